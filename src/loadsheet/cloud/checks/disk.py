"""Room for checkpoints, and how fast they are written."""

from __future__ import annotations

from loadsheet.cloud.checklist import Result, fail, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import check
from loadsheet.units import format_bytes

_SPARE = 1.2  # of what is needed: below it, warn


@check(
    "disk.space",
    phase="before",
    why="the save that finds the disk full is the first one that mattered: a whole epoch is lost at 3 AM",
)
def space(context: Context) -> Result:
    """Free ≥ (retained + 1) · size: one more than is kept, because the new one is written before an old one goes."""
    inputs = context.inputs
    place = context.checkpoint_place
    facts = context.machine.statvfs(place)
    free = facts.f_bavail * facts.f_frsize
    size = context.checkpoint_size
    if size is None:
        return unknown(
            {
                "fact": f"{format_bytes(free)} free in {place}; the size of a checkpoint is not known",
                "free_bytes": free,
            },
            next="give `--sheet FILE` (`loadsheet plan … --json`) or `--checkpoint-bytes SIZE`",
        )
    needed = (inputs.keep + 1) * size[0]
    working = f"({inputs.keep}{inputs.star('keep')} + 1) × {format_bytes(size[0])} {size[1]}"
    row = {
        "fact": f"{format_bytes(free)} free in {place}, {format_bytes(needed)} needed: {working}",
        "free_bytes": free,
        "needed_bytes": needed,
    }
    if free < needed:
        return fail(
            row, next=f"free {format_bytes(needed - free)}, keep fewer (`keep_last`), or write elsewhere"
        )
    if free < _SPARE * needed:
        return warn(row, next="logs and results need room too: leave a fifth to spare")
    return ok(row)

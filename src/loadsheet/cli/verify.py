"""`loadsheet verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from loadsheet.arch.read import model as find_model
from loadsheet.cli.output import show, show_json
from loadsheet.cli.progress import Progress
from loadsheet.text import columns
from loadsheet.units import format_number

if TYPE_CHECKING:
    from loadsheet.measure.verify import Line


@click.command(name="verify")
@click.argument("model")
@click.option("--counts", is_flag=True, help="Only the parameters, on the real sizes.")
@click.option("--quick", is_flag=True, help="One length, and each attention and dtype once.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(model: str, counts: bool, quick: bool, as_json: bool) -> int:
    """Formulas against real PyTorch on this machine (needs torch and transformers; no GPU, no weights).

    Parameters on the real sizes, on the meta device; FLOPs, bytes kept for backward, peak of a
    training step and cache on a small model of the same structure, with real tensors on the CPU.

    Exit status: 0 all within their limits, 1 something is not, 2 something could not be looked at.
    """
    from loadsheet.measure.verify import verify

    found = find_model(model)
    progress = Progress(f"comparing {found.name} with PyTorch")
    try:
        lines = verify(found, progress, small=not counts, quick=quick)
    finally:
        progress.close()
    failed = [line for line in lines if line.ok is False]
    judged = [line for line in lines if line.ok is not None]
    unseen = [line.what for line in lines if line.unseen]
    code = 1 if failed else 2 if unseen else 0
    if as_json:
        ok = {0: True, 1: False, 2: None}[code]
        rows_json = [line.to_json() for line in lines]
        show_json({"model": model, "ok": ok, "not_looked_at": unseen, "lines": rows_json})
        return code
    rows = [["", "ours", "PyTorch", "difference", "limit", ""]]
    rows += [_row(line) for line in lines]
    for text in columns(rows):
        show(text)
    for line in lines:
        if line.reason and line.ok is not True:
            show(f"  {line.what}: {line.reason}")
    show(f"{len(judged) - len(failed)} of {len(judged)} within their limits")
    if unseen:
        show(f"NOT LOOKED AT: {'; '.join(unseen)}")
    return code


def _row(line: Line) -> list[str]:
    """What, ours, theirs, difference, limit, judgement."""
    off, limit = line.difference, line.limit
    return [
        line.what,
        "–" if line.ours is None else format_number(line.ours),
        "–" if line.theirs is None else format_number(line.theirs),
        "–" if off is None else "equal" if not off else f"{off:+.2%}",
        "–" if limit is None or off is None else "equal" if not limit else f"{limit:.0%}",
        "does not exist" if line.absent else {True: "ok", False: "DIFFERS", None: "not looked at"}[line.ok],
    ]

"""Room for checkpoints, and how fast they are written."""

from __future__ import annotations

import errno
from typing import Final

from loadsheet.cloud import mounts
from loadsheet.cloud.checklist import CannotLook, Result, fail, not_applicable, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import check
from loadsheet.units import format_bytes, format_duration, format_si

_SPARE: Final = 1.2  # of what is needed: below it, warn
_INODES: Final = 10_000  # a run writes some dozens of files; below this something else is wrong
_SHARE: Final = 0.05  # of the time between saves that a save may take
_SAFETY: Final = 1.3  # a save on a notice is begun only if the time left is so much more than it takes
_TRIAL: Final = 4.0  # seconds of writing
_SIZE: Final = "give `--sheet FILE` (`loadsheet plan … --json`) or `--checkpoint-bytes SIZE`"


def needed(context: Context) -> tuple[int, str] | None:
    """Bytes for (retained + 1) checkpoints, and the working; None where the size of one is not known."""
    size = context.checkpoint_size
    if size is None:
        return None
    inputs = context.inputs
    working = f"({inputs.keep}{inputs.star('keep')} + 1) × {format_bytes(size[0])} {size[1]}"
    return (inputs.keep + 1) * size[0], working


@check(
    "disk.space",
    phase="before",
    why="the save that finds the disk full is the first one that mattered: a whole epoch is lost at 3 AM",
)
def space(context: Context) -> Result:
    """Free ≥ (retained + 1) · size: one more than is kept, because the new one is written before an old one goes."""
    place, free = context.checkpoint_place, context.free_bytes
    want = needed(context)
    if want is None:
        text = f"{format_bytes(free)} free in {place}; the size of a checkpoint is not known"
        return unknown({"fact": text, "free_bytes": free}, next=_SIZE)
    text = f"{format_bytes(free)} free in {place}, {format_bytes(want[0])} needed: {want[1]}"
    row = {"fact": text, "free_bytes": free, "needed_bytes": want[0]}
    if free < want[0]:
        todo = f"free {format_bytes(want[0] - free)}, keep fewer (`keep_last`), or write elsewhere"
        return fail(row, next=todo)
    if free < _SPARE * want[0]:
        return warn(row, next="logs and results need room too: leave a fifth to spare")
    return ok(row)


@check(
    "disk.inodes",
    phase="before",
    why="a disk with room but without inodes refuses new files all the same",
)
def inodes(context: Context) -> Result:
    """Free inodes, where the file system has a fixed number of them."""
    facts = context.machine.statvfs(context.checkpoint_place)
    if facts.f_files == 0:
        return not_applicable("this file system has no fixed number of inodes")
    row = {"fact": f"{facts.f_favail:,} inodes free", "free_inodes": facts.f_favail}
    if facts.f_favail < _INODES:
        return fail(row, next="remove small files (caches, datasets of single files), or write elsewhere")
    return ok(row)


@check(
    "disk.quota",
    phase="before",
    why="a quota refuses a save although the disk has room (errno 122): mmdetection #12069",
)
def quota(context: Context) -> Result:
    """Have the room for all checkpoints reserved for a moment, and given back: a quota would refuse."""
    want, place = needed(context), context.checkpoint_place
    if want is None:
        return unknown("the size of a checkpoint is not known", next=_SIZE)
    if mounts.mount_of(context.machine, place).kind in mounts.MEMORY:
        return not_applicable("memory, not a disk")
    if context.free_bytes < 1.05 * want[0]:
        return unknown("not tried: there is not the room (disk.space)", next="make room first")
    size = format_bytes(want[0])
    try:
        done = context.machine.reserve(place, want[0])
    except OSError as error:
        if error.errno in {errno.EDQUOT, errno.ENOSPC}:
            text = f"{size} were refused although so much is free: {(error.strerror or '').lower()}"
            return fail(text, next="ask for a larger quota (`quota -s`, `lfs quota -h`), or write elsewhere")
        if error.errno == errno.EFBIG:
            return warn(f"one file of {size} is too large here", next="see `ulimit -f` and the file system")
        raise CannotLook(f"{place}: {(error.strerror or str(error)).lower()}") from None
    if not done:
        return unknown("this file system does not reserve room, so a quota does not show", next="`quota -s`")
    return ok(
        {"fact": f"{size} were reserved and given back: no quota refuses them", "needed_bytes": want[0]}
    )


@check(
    "disk.speed",
    phase="before",
    slow=True,
    why="a save that takes longer than the notice is lost, and one that takes too long is paid for in GPU hours",
)
def speed(context: Context) -> Result:
    """Write and fsync there, and carry the rate over to a whole checkpoint."""
    place, inputs = context.checkpoint_place, context.inputs
    try:
        rate = context.machine.write_rate(place, min(_TRIAL, max(context.left() / 4, 0.2)))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}:
            return fail(
                f"nothing can be written in {place}: {reason}", next="make it writable, or write elsewhere"
            )
        raise CannotLook(f"{place}: {reason}") from None
    text = (
        f"{format_si(rate.per_second, 'B/s', 0)} written and synced ({format_bytes(rate.bytes, 0)} tried), "
        f"{format_duration(rate.append_seconds)} for a small durable append"
    )
    row = {"fact": text, "bytes_per_second": rate.per_second, "append_seconds": rate.append_seconds}
    size = context.checkpoint_size
    if size is None:
        return unknown(
            row, "so the time of a save is not known: the size of a checkpoint is missing", next=_SIZE
        )
    save = size[0] / rate.per_second
    every, notice = inputs.every, inputs.notice
    text = (
        f"a checkpoint of {format_bytes(size[0])} {size[1]}: {format_duration(save)}, {save / every:.1%} of "
        f"{format_duration(every)}{inputs.star('every')} between saves; a notice gives "
        f"{format_duration(notice)}{inputs.star('notice')}"
    )
    time_row = {"fact": text, "save_seconds": save, "every_seconds": every, "notice_seconds": notice}
    if save >= every:
        return fail(time_row, row, next="save less often (`--every`), or to a faster disk")
    if _SAFETY * save > notice:
        todo = "a save on a notice would not be done in time: rely on the regular ones, or use a faster disk"
        return warn(time_row, row, next=todo)
    if save > _SHARE * every:
        return warn(time_row, row, next="save in the background, less often, or to a faster disk")
    return ok(time_row, row)

"""Which assumption was off, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loadsheet.closing.hours import Hours, percent, ratio_text, signed_percent
from loadsheet.closing.items import Row, Sides
from loadsheet.errors import shorten
from loadsheet.units import format_bytes

#: a part of the hours below this share of the predicted time is not worth a sentence
WORTH = 0.05


#: an MFU is a share; a little more than all of it may be a peak that was measured too low
_MOST_MFU = 1.2


def assumptions(sides: Sides, rows: Sequence[Row], hours: Hours | str) -> tuple[str, ...]:
    """Sentences, the most important first: is it the same experiment, the hours, the memory, what is unknown."""
    return (*sameness(sides, rows), *_hours(sides, rows, hours), *_memory(rows), *_checkpoint(rows))


def _row(rows: Sequence[Row], name: str) -> Row:
    return next(row for row in rows if row.name == name)


def sameness(sides: Sides, rows: Sequence[Row], *, step: bool = True) -> Iterator[str]:
    """Where run and sheet are not about the same thing: every ratio below means little then.

    `step`: another number of tokens in a step counts too; an MFU takes it into account.
    """
    params = _row(rows, "parameters")
    if params.inside is False and params.predicted is not None and params.measured is not None:
        yield (
            f"Another model: {params.counter} has {params.measured:,.0f} parameters, the sheet's "
            f"{params.predicted.mid:,.0f}."
        )
    tokens = _row(rows, "tokens_per_step")
    if step and tokens.inside is False and tokens.predicted is not None and tokens.measured is not None:
        yield (
            f"Another step: {tokens.measured:,.0f} tokens were logged for one, the sheet was signed for "
            f"{tokens.predicted.mid:,.0f}."
        )
    devices = {str(entry.get("device")) for entry in sides.evidence.entries()}
    meant = "cpu" if sides.on_cpu else "cuda"
    if devices and meant not in devices:
        yield f"Another device: the run computed on {', '.join(sorted(devices))}, the sheet is for {meant}."
    mfu = _row(rows, "mfu").measured
    if mfu is not None and mfu > _MOST_MFU:
        yield (
            f"An MFU of {percent(mfu)} cannot be: {_own_peak(sides)}the steps did less than the sheet counts, or were "
            "timed before the device had done them."
        )


def _own_peak(sides: Sides) -> str:
    """The first cause where the peak is no data sheet's: it was measured, or typed by hand."""
    cluster = sides.sheet.get("cluster")
    own = cluster.get("own") if isinstance(cluster, Mapping) else None
    if not isinstance(own, Mapping):
        return ""
    name = shorten(own.get("id"))
    if "measure machine" in str(own.get("source")):
        return f"the peak of {name} was measured too low (`measure machine --quick`, or a busy machine), "
    return f"the peak in your file of {name} is too low, "


def _hours(sides: Sides, rows: Sequence[Row], hours: Hours | str) -> Iterator[str]:
    if isinstance(hours, str):
        yield f"Where the hours went cannot be said: {hours}."
        return
    row = _row(rows, "seconds")
    place = {True: "inside", False: "outside", None: "beside"}[row.inside]
    so_far = "" if sides.finished else " so far"
    times = f"{ratio_text(hours.ratio)} times"
    yield f"The run took{so_far} {times} the predicted machine time, {place} the predicted range."
    largest = hours.largest
    share = largest.seconds / hours.predicted
    if abs(share) < WORTH:
        yield f"No assumption was off by much; the largest part is {largest.name} ({_share(share)})."
        return
    yield f"Most of the difference is {largest.name} ({_share(share)}): {largest.what}."


def _share(share: float) -> str:
    return f"{signed_percent(share)} of the predicted time"


def _memory(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.unit == "bytes" and row.name.startswith("peak") and row.inside is False:
            assert row.predicted is not None
            assert row.measured is not None
            above = row.measured > row.predicted.high
            end = row.predicted.high if above else row.predicted.low
            yield (
                f"{row.label.capitalize()}: {format_bytes(abs(row.measured - end))} "
                f"{'above the high' if above else 'below the low'} end of the prediction."
            )


def _checkpoint(rows: Sequence[Row]) -> Iterator[str]:
    row = _row(rows, "checkpoint_bytes")
    if row.inside is False and row.ratio is not None:
        yield (
            f"A checkpoint is {ratio_text(row.ratio)} times the predicted size: other dtypes or another optimizer "
            "than the sheet's, or more was kept."
        )

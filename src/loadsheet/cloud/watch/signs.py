"""The rules: what a look at a training means. Pure functions of what was seen; none looks anything up.

Each returns a `Finding` or None. `alarm` is worth waking somebody, `warning` worth knowing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from loadsheet.cloud.watch.power import Draw
from loadsheet.units import format_bytes, format_duration

#: a GPU that draws less than this share of its limit does no large matrix products: an H100 that waits draws 10 to
#: 20 % of its 700 W, one that trains more than half (a rule of thumb; said with the figure wherever it is used)
LOW_POWER = 0.30
#: times the usual pause between records after which a silent training counts as one that does not get on
SILENT_PAUSES = 10.0
#: share of the steps' time spent waiting for the loader that is worth a warning
MUCH_WAITING = 0.20
#: spreads (normalised median absolute deviation) above the median at which a value is a spike
SPIKE = 10.0
_BEFORE_SPIKE = 20  # values that a spike is compared with, at least


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found; `id` is stable, `text` one sentence."""

    id: str
    level: Literal["alarm", "warning"]
    text: str

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"id": self.id, "level": self.level, "text": self.text}


def silent(
    seconds: float | None,
    usual: float | None,
    draws: Sequence[Draw] | None,
    *,
    window: float,
    start: float,
) -> Finding | None:
    """No new record for too long: `seconds` since the last one or, without any, since the watch began.

    Too long is `window`, or ten usual pauses if that is longer; before the first records `start`. What the
    GPUs draw tells a training that waits from one that is busy with something that never ends.
    """
    if seconds is None:
        return None
    limit = start if usual is None else max(window, SILENT_PAUSES * usual)
    if seconds <= limit:
        return None
    said = f"no new record for {format_duration(seconds)}"
    if usual is not None:
        said += f", usual are {format_duration(usual)}"
    powers = [d.power for d in draws or () if d.power is not None]
    if not powers:
        return Finding("progress", "alarm", f"{said}; what the GPU draws is not known here")
    busy = max((d.busy for d in draws or () if d.busy is not None), default=None)
    drawn = f"the GPU draws {max(powers):.0%} of its power limit"
    if max(powers) < LOW_POWER:
        counted = "" if busy is None else f", though the driver counts it as {busy:.0%} busy"
        return Finding("progress", "alarm", f"idle: {said}, {drawn}{counted}")
    return Finding(
        "progress",
        "alarm",
        f"{said}, yet {drawn}: busy with something that does not end, or a long evaluation",
    )


def gone(in_use: bool | None, ending: str, done: bool) -> Finding | None:
    """Nobody trains any more, and the run is not done: the machine goes on costing."""
    if in_use is not False or done:
        return None
    how = {"stopped": "it was stopped", "left": "an error or `break` ended it"}.get(ending, "it was killed")
    return Finding("process", "alarm", f"nobody trains: the run is not done and no process has it ({how})")


def not_a_number(values: Sequence[tuple[int, float]], metric: str) -> Finding | None:
    """The newest value is NaN or infinite."""
    if not values or math.isfinite(values[-1][1]):
        return None
    first = next(step for step, value in reversed(values) if not math.isfinite(value))
    for step, value in reversed(values):
        if math.isfinite(value):
            break
        first = step
    return Finding("loss.finite", "alarm", f"{metric} is {values[-1][1]} since step {first}")


def spike(values: Sequence[tuple[int, float]], metric: str, last: int = 5) -> Finding | None:
    """The last values all lie far above those before: median + 10 spreads, for `last` records in a row.

    The spread is 1.4826 · the median absolute deviation (of normal values their standard deviation).
    """
    finite = [(step, value) for step, value in values if math.isfinite(value)]
    if len(finite) < _BEFORE_SPIKE + last:
        return None
    before = [value for _, value in finite[:-last]]
    middle = median(before)
    spread = 1.4826 * median(abs(value - middle) for value in before)
    limit = middle + SPIKE * max(spread, 1e-3 * abs(middle))
    if not all(value > limit for _, value in finite[-last:]):
        return None
    step, value = finite[-1]
    return Finding(
        "loss.spike",
        "warning",
        f"{metric} {value:.4g} at step {step}, the {len(before)} before were around {middle:.4g}",
    )


def waiting(share: float | None) -> Finding | None:
    """The loader cannot keep up: an idle GPU one pays for."""
    if share is None or share <= MUCH_WAITING:
        return None
    return Finding("data_wait", "warning", f"{share:.0%} of the steps' time is spent waiting for data")


def filling(
    free: int | None, needed: int | None, per_second: float | None, horizon: float = 3600.0
) -> Finding | None:
    """Too little room for the next checkpoint, or none within the hour as the disk is filling now; bytes."""
    if free is None:
        return None
    if needed is not None and free < needed:
        text = f"{format_bytes(free)} free, the next checkpoint takes {format_bytes(needed)}"
        return Finding("disk", "alarm", text)
    if per_second is not None and per_second > 0 and free - (needed or 0) < per_second * horizon:
        left = format_duration(max(free - (needed or 0), 0) / per_second)
        return Finding("disk", "warning", f"{format_bytes(free)} free, full in {left} as it is filling now")
    return None


def noticed(kind: str | None, source: str) -> Finding | None:
    """The machine will be taken, or may be."""
    if kind not in ("terminate", "rebalance"):
        return None
    what = "will" if kind == "terminate" else "may"
    return Finding("notice", "warning", f"the machine {what} be taken ({source or 'no source given'})")

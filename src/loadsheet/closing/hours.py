"""Where the hours went: the difference between predicted and measured machine time, in parts that add up.

    H_m − H_p = (S_m − S_p)·t_p            another number of steps
              + S_m·(t_m − w − t_p)        a step that computes longer, or shorter: the MFU
              + S_m·w                      waiting for data
              + L·t_m − lost_p             steps lost to interruptions, and run again
              + saves − saves_p            the loop held up by saves
              + evaluation
              + Σ t − n·t_m                steps longer than the median: warm-up, hiccups
              + starts − starts_p          each process until its state was restored: imports, building, loading
              + the rest                   ending, and whatever nobody timed

S steps, t seconds of a step (measured: the median), w seconds of it spent waiting for data, L steps lost, n steps
timed, H machine time; p predicted, m measured. The rest is what is left over, so the parts always add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadsheet.closing.items import Sides
from loadsheet.units import format_duration


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the difference, seconds; `what` in words."""

    name: str
    seconds: float
    what: str


@dataclass(frozen=True, slots=True)
class Hours:
    """The machine time of a run, predicted (for the steps that are complete) and measured, and why they differ."""

    predicted: float
    measured: float
    parts: tuple[Part, ...]

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted

    @property
    def largest(self) -> Part:
        """The part that moves the hours most, up or down."""
        return max(self.parts, key=lambda part: abs(part.seconds))

    def to_json(self) -> dict[str, Any]:
        """Seconds, the parts with their share of the predicted time, and the name of the largest."""
        return {
            "predicted_seconds": self.predicted,
            "measured_seconds": self.measured,
            "ratio": self.ratio,
            "parts": [
                {
                    "name": p.name,
                    "seconds": p.seconds,
                    "share_of_predicted": p.seconds / self.predicted,
                    "what": p.what,
                }
                for p in self.parts
            ],
            "largest": self.largest.name,
        }


def hours_of(sides: Sides) -> Hours | str:
    """The parts, or why there are none."""
    e = sides.evidence
    expected, step_p, step = sides.expected("seconds"), sides.expected("step_seconds"), sides.step_seconds
    if expected is None or step_p is None or not expected.mid or not step_p.mid:
        return "the sheet does not say how long a step takes"
    if e.seconds is None:
        return "the log has no times"
    if step is None:
        return f"no step time was measured: {e.why('step_seconds')}"
    completed = e.completed
    meant = completed if not sides.finished else sides.steps
    predicted = expected.mid * sides.share
    saving_p = _mid(sides, "saving_seconds") * sides.share
    lost_p = _mid(sides, "lost_steps") * sides.share * step_p.mid
    starts_p = predicted - meant * step_p.mid - saving_p - lost_p
    timed = e.total("steps_timed") or 0.0
    spent = e.total("step_seconds", "sum") or 0.0
    wait = min((e.total("data_wait_seconds") or 0.0) / timed, step) if timed else 0.0
    saving = e.total("save_stall_sum_seconds") or 0.0
    aside = e.total("aside_seconds") or 0.0
    uneven = spent - timed * step
    mfu_p = sides.mfu(step_p.mid, sides.tokens_per_step)
    mfu = sides.mfu(step - wait, sides.tokens_per_step) if step > wait else None
    longer = _step_words(sides, step - wait, step_p.mid, mfu, mfu_p)
    parts = [
        Part("steps", (completed - meant) * step_p.mid, f"{completed:,} steps instead of {meant:,}"),
        Part("step time", completed * (step - wait - step_p.mid), longer),
        Part("data wait", completed * wait, "steps that waited for data"),
        Part("lost steps", e.lost_steps * step - lost_p, f"{e.lost_steps:,} steps that were run again"),
        Part("saving", saving - saving_p, "the loop held up by saves"),
        Part("evaluation", aside, "evaluation and whatever else ran aside"),
        Part("uneven steps", uneven, "steps longer than the median: warm-up, hiccups"),
        Part("starting", e.starting_seconds - starts_p, _starting_words(sides, starts_p)),
    ]
    known = sum(part.seconds for part in parts)
    parts.append(Part("the rest", e.seconds - predicted - known, "ending, and what nobody timed"))
    return Hours(predicted, e.seconds, tuple(parts))


def _starting_words(sides: Sides, predicted: float) -> str:
    count = sum(1 for attempt in sides.evidence.attempts if attempt.lives)
    took = format_duration(sides.evidence.starting_seconds)
    beyond = f", {format_duration(predicted)} of it predicted" if predicted > 1e-9 else ""
    return f"{count} start{'s' * (count > 1)} of the process in {took}{beyond}: imports, building, restoring"


def _mid(sides: Sides, name: str) -> float:
    value = sides.expected(name)
    return 0.0 if value is None else float(value.mid)


def _step_words(sides: Sides, step: float, step_p: float, mfu: float | None, mfu_p: float | None) -> str:
    times = f"a step of {format_duration(step)} instead of {format_duration(step_p)}"
    if mfu is None or mfu_p is None:
        return times
    how = {"assumed": "assumed", "given": "given", "measured": "measured in your earlier runs"}[sides.basis]
    return f"{times}, so an MFU of {percent(mfu)} where {percent(mfu_p)} was {how}"


def signed_percent(share: float) -> str:
    """A share with its sign.

    >>> signed_percent(0.25), signed_percent(-0.391)
    ('+25%', '−39%')
    """
    return f"{share * 100:+,.0f}%".replace("-", "−")


def percent(share: float) -> str:
    """A share with three digits that count.

    >>> percent(0.4), percent(0.0123), percent(1.07)
    ('40.0%', '1.23%', '107%')
    """
    value = share * 100
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}%"


def ratio_text(ratio: float) -> str:
    """Measured over predicted, to two decimals, below 0.1 to two digits that count.

    >>> ratio_text(1.0), ratio_text(18.556), ratio_text(0.0123), ratio_text(0.0)
    ('1.00', '18.56', '0.012', '0.00')
    """
    return f"{ratio:.2f}" if ratio >= 0.1 or not ratio else f"{ratio:.2g}"

"""The answer of `odds` as JSON, and what should be known before it is believed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from loadsheet.units import format_duration

if TYPE_CHECKING:
    from loadsheet.money.answer import Odds, Shares

SCHEMA = 1
STRESSED = (
    "60 % Exp(0.14 M) + 40 % Exp(2.3 M), times 1.5 or 0.5 for the whole job; waits likewise, times 0.5 or 1.5"
)


def as_json(odds: Odds) -> dict[str, Any]:
    """The keys of the design first, then the rest; no infinities."""
    q = odds.question
    within, by = _value(odds.within_budget), _value(odds.by_deadline)
    reasons = dict(odds.reasons)
    if odds.cost is None:
        reasons["cost"] = "no --price was given" if q.bill is None else unfinished(odds)
    if odds.expected_seconds is None:
        reasons["expected_seconds"] = unfinished(odds)
    if odds.expected_wall is None:
        reasons["wall_seconds"] = (
            unfinished(odds) if odds.sample.unfinished else "waits for capacity are unknown"
        )
    breakdown = odds.machine if odds.wall is None else odds.wall
    out = {
        "schema": SCHEMA,
        "interval_seconds": {**odds.interval, "used": q.job.interval},
        "expected_seconds": odds.expected_seconds,
        "std_seconds": odds.std_seconds,
        "quantiles": odds.sample.quantiles(odds.sample.machine),
        "cost": odds.cost,
        "p_within_budget": within,
        "p_by_deadline": by,
        "reasons": reasons,
        "finishes": not odds.never_done,
        "currency": "" if q.bill is None else q.bill.currency,
        "undisturbed_seconds": q.job.undisturbed,
        "interruptions": odds.interruptions,
        "breakdown_seconds": breakdown.parts,
        "dominant": odds.dominant,
        "wall_seconds": None
        if odds.expected_wall is None
        else {
            "expected": odds.expected_wall,
            "std": _wall_std(odds),
            "quantiles": odds.sample.quantiles(odds.sample.wall),
        },
        "odds": {
            "within_budget": _probabilities(odds.within_budget),
            "by_deadline": _probabilities(odds.by_deadline),
        },
        "stressed": {
            "law": "the trace itself" if q.trace is not None else STRESSED,
            "quantiles": odds.stressed.quantiles(odds.stressed.machine),
            "wall_quantiles": None
            if odds.expected_wall is None
            else odds.stressed.quantiles(odds.stressed.wall),
        },
        "simulation": {
            "jobs": odds.sample.jobs,
            "asked": q.jobs,
            "seed": q.seed,
            "mean_seconds": None if odds.simulated_mean is None else odds.simulated_mean[0],
            "standard_error_seconds": None if odds.simulated_mean is None else odds.simulated_mean[1],
            "unfinished": odds.sample.unfinished,
        },
        "on_demand": odds.on_demand,
        "switch": None if odds.switch is None else odds.switch.to_json(),
        "remedies": [change.to_json() for change in odds.changes],
        "sensitivity": list(odds.sensitivity),
        "history": None
        if q.rate is None
        else {
            "exposure_seconds": q.rate.exposure,
            "interruptions": q.rate.interruptions,
            "mtbf_seconds": q.rate.mtbf,
            "low_seconds": q.rate.low,
            "high_seconds": q.rate.high,
        },
        "trace": None
        if q.trace is None
        else {
            "source": q.trace.source,
            "seconds": q.trace.seconds,
            "up_times": len(q.trace.up),
            "mean_up_seconds": q.trace.mtbf,
            "mean_down_seconds": q.trace.wait,
            "available": q.trace.available,
        },
        "inputs": {
            name: {"value": known.value, "source": known.source, "defaulted": known.assumed}
            for name, known in q.inputs.items()
        },
        "notes": notes(odds),
    }
    plain: dict[str, Any] = _plain(out)
    return plain


def _plain(value: Any) -> Any:
    """The value without infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _value(found: Shares | float | None) -> float | None:
    return found[0].value if isinstance(found, tuple) else found


def _probabilities(found: Shares | float | None) -> dict[str, Any] | None:
    if not isinstance(found, tuple):
        return None
    plain, stressed = found
    return {"plain": plain.to_json(), "stressed": None if stressed is None else stressed.to_json()}


def unfinished(odds: Odds) -> str:
    """How many of the simulated jobs did not finish, in words."""
    return (
        f"{odds.sample.unfinished:,} of {odds.sample.jobs:,} simulated jobs were cut off before they finished"
    )


def _wall_std(odds: Odds) -> float | None:
    if odds.sample.unfinished or odds.sample.jobs < 2:
        return None
    if odds.question.trace is None and odds.wall is not None:
        return float(odds.wall.total.std)
    return float(odds.sample.wall.std(ddof=1))


def notes(odds: Odds) -> list[str]:
    """What a person should know before believing the answer."""
    q = odds.question
    found = list(q.notes)
    if odds.sample.jobs < q.jobs:
        found.append(
            f"{odds.sample.jobs:,} jobs were simulated, not {q.jobs:,}: all together may use up 10,000,000 random "
            "numbers"
        )
    if worst := max(odds.sample.unfinished, odds.stressed.unfinished):
        found.append(
            f"{worst:,} of {odds.stressed.jobs:,} simulated jobs were cut off before they finished: what depends on "
            "how they end has no number"
        )
    if q.trace is not None and odds.expected_wall is not None and odds.expected_wall > q.trace.seconds / 3:
        found.append(
            f"the job takes {format_duration(odds.expected_wall)} and the trace is only "
            f"{format_duration(q.trace.seconds)} long: the spread is less than it should be"
        )
    if q.bill is not None and q.wait is None and q.bill.by_wall:
        found.append("waits are unknown: what is charged while one waits is not in the cost")
    return found

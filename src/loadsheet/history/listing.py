"""Which runs a table shows, and in which order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from loadsheet.errors import BadInput, UnknownKey, shorten
from loadsheet.history.configs import ABSENT, flat, parse_condition, resolve
from loadsheet.history.logs import Metric
from loadsheet.history.measures import Measure
from loadsheet.history.rows import STATES, RunRow

_SECONDS_PER_HOUR: Final = 3600.0


def cost(row: RunRow, price: float | None = None) -> float | None:
    """What a run cost: machine time × GPUs × price of a GPU hour, by default that of its signed sheet.

    C = t/3600 · n · P, t in seconds; the currency is the price's. It counts the time in which the run was
    alive, not what a provider bills for starting, idling or storage.
    """
    rate = row.price if price is None else price
    return None if rate is None else row.seconds / _SECONDS_PER_HOUR * row.gpus * rate


def chosen(rows: Iterable[RunRow], states: Sequence[str] = (), where: Sequence[str] = ()) -> list[RunRow]:
    """The rows in one of these states and under all of these conditions on config (or excluded) values.

    Raises UnknownKey for a state or a key that there is none of, BadInput for a condition that is none.
    """
    rows = list(rows)
    for state in states:
        if state not in STATES:
            raise UnknownKey(state, STATES, "state")
    if states:
        rows = [row for row in rows if row.state in states]
    for text in where:
        condition = parse_condition(text)
        values = [(row, settings(row)) for row in rows]
        if not rows:
            break
        key = resolve(condition.key, {key for _, flat_config in values for key in flat_config})
        rows = [row for row, flat_config in values if condition.holds(flat_config.get(key, ABSENT))]
    return rows


def settings(row: RunRow) -> dict[str, Any]:
    """Config and excluded values of a run, by dotted key."""
    return {**row.excluded, **flat(row.config)} if row.excluded else flat(row.config)


_COLUMNS: Final[dict[str, Callable[[RunRow], Any]]] = {
    "run": lambda row: row.fingerprint,
    "state": lambda row: STATES.index(row.state),
    "attempts": lambda row: row.attempts,
    "steps": lambda row: row.step,
    "hours": lambda row: row.seconds,
    "lost": lambda row: row.lost_steps,
    "bytes": lambda row: row.nbytes,
    "started": lambda row: row.started,
    "updated": lambda row: row.updated,
}


def ordered(
    rows: Sequence[RunRow],
    key: str | None = None,
    measure: Measure | None = None,
    *,
    reverse: bool = False,
    price: float | None = None,
) -> list[RunRow]:
    """The rows in the order of a column, a metric or a key of the config; by default the best first.

    Columns: run, state, attempts, steps, best, hours, cost, lost, bytes, started, updated. Rows without a
    value stand at the end, whatever the direction. Raises UnknownKey.
    """
    value = _order_by(rows, key, measure, price)
    known, unknown = [], []
    for row in rows:
        found = value(row)
        if found is None or found is ABSENT or (isinstance(found, float) and math.isnan(found)):
            unknown.append(row)
        else:
            known.append((comparable(found), row))
    known.sort(key=lambda pair: pair[0], reverse=reverse)
    return [row for _, row in known] + unknown


def _order_by(
    rows: Sequence[RunRow], key: str | None, measure: Measure | None, price: float | None
) -> Callable[[RunRow], Any]:
    if key is None or key == "best":
        if measure is None:
            return _COLUMNS["run"]
        sign = 1 if measure.mode == "min" else -1

        def best(row: RunRow) -> float | None:
            found = measure.of(row.metrics)
            return None if found is None else sign * found[0]

        return best
    if key == "cost":
        return lambda row: cost(row, price)
    if key in _COLUMNS:
        return _COLUMNS[key]
    metrics = {name for row in rows for name in row.metrics}
    if key in metrics:
        by = Measure(key, measure.mode if measure is not None and measure.metric == key else "min")
        return lambda row: (by.of(row.metrics) or (None,))[0]
    keys = {name for row in rows for name in settings(row)}
    try:
        resolved = resolve(key, keys)
    except UnknownKey:
        raise UnknownKey(key, {*_COLUMNS, "best", "cost", *metrics, *keys}, "sort key") from None
    return lambda row: settings(row).get(resolved, ABSENT)


def comparable(value: Any) -> tuple[int, Any]:
    """A value such that any two can be put in order: numbers, then text, then all others."""
    if isinstance(value, int | float):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, str(value))


def limited(text: str | None, default: int) -> int | None:
    """How many rows to show: a whole number, or None for all of them (0 or `all`). Raises BadInput."""
    if text is None:
        return default
    if text == "all":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise BadInput(f"--limit: got {shorten(text)}, expected a whole number, or `all`")
    return int(text) or None


# --- as JSON ----------------------------------------------------------------------------------------------------


def finite(value: float | None) -> float | None:
    """A number that JSON can hold."""
    return value if value is not None and math.isfinite(value) else None


def metrics_json(metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Metrics as `--json` has them; a last value that is no finite number is null, `nonfinite` counts them."""
    return {
        name: {**dataclasses.asdict(metric), "last": finite(metric.last)} for name, metric in metrics.items()
    }


def row_json(row: RunRow, measure: Measure | None = None, price: float | None = None) -> dict[str, Any]:
    """A row as `--json` has it: base units, times in seconds since 1970."""
    found = measure.of(row.metrics) if measure is not None else None
    return {
        "run": row.fingerprint,
        "path": str(row.path),
        "config": row.config,
        "excluded": row.excluded,
        "state": row.state,
        "attempts": row.attempts,
        "step": row.step,
        "total": row.total,
        "planned": row.planned,
        "started": row.started,
        "updated": row.updated,
        "seconds": row.seconds,
        "cost": cost(row, price),
        "resumes": row.resumes,
        "lost_steps": row.lost_steps,
        "unsaved_steps": row.unsaved_steps,
        "best": None if found is None else found[0],
        "best_step": None if found is None else found[1],
        "metrics": metrics_json(row.metrics),
        "checkpoints": list(row.checkpoints),
        "bytes": row.nbytes,
        "problems": list(row.problems),
    }


def measure_json(measure: Measure | None) -> dict[str, Any] | None:
    """A measure as `--json` has it."""
    if measure is None:
        return None
    return {
        "metric": measure.metric,
        "mode": measure.mode,
        "value": measure.value,
        "defaulted": sorted(measure.defaulted),
    }

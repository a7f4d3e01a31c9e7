"""Curves as they are drawn: one value per step, against steps, tokens, time or epochs; smoothed; thinned.

Nothing here draws: `plot` makes pictures of these, `plot_text` a page for the terminal.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from loadsheet.errors import BadFile, BadInput, LoadsheetError, shorten
from loadsheet.history.configs import cell, differing, flat, short_names
from loadsheet.history.inside import Inside
from loadsheet.history.logs import Quiet
from loadsheet.history.rows import RunRow
from loadsheet.history.tokens import seen
from loadsheet.run.columns import read_columns
from loadsheet.run.errors import RunWarning

By = Literal["step", "tokens", "time", "epoch"]
_MOST_KEYS: Final = 4  # of a config, in a name
_MOST_BYTES: Final = 1 << 30  # of a log whose columns are held in memory


@dataclass(frozen=True, slots=True)
class Axis:
    """What the curves are drawn against; `tokens_per_step` where the log does not count tokens itself."""

    by: By = "step"
    tokens_per_step: int | None = None


@dataclass(slots=True)
class Curve:
    """One metric of one run, or the mean of several runs; only finite values, in order of steps.

    `smooth` has as many entries as `x`, and is `y` itself without smoothing. `resumed` are the places at
    which an attempt went on, `odd` the values that are not finite. A mean has `low` and `high` of the runs.
    `grouped`: it stands for a group of seeds, be it of one; `order` is its place among the labels.
    """

    label: str
    metric: str
    steps: list[int] = field(default_factory=list)
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    smooth: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)
    odd: list[tuple[float, float]] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    runs: int = 1
    grouped: bool = False
    order: int = 0


def exponential_average(values: Sequence[float], beta: float) -> list[float]:
    """The exponential moving average of values, without the bias towards 0 at their beginning.

    s_t = β·s_{t−1} + (1 − β)·y_t with s_0 = 0, and shown is s_t / (1 − β^t): Kingma, Ba, "Adam", ICLR 2015,
    section 3. It forgets by logged values, whatever lies between them; β = 0 changes nothing. Valid for
    0 ≤ β < 1 and finite values.

    >>> [round(v, 4) for v in exponential_average([1, 2, 3], 0.5)]
    [1.0, 1.6667, 2.4286]
    """
    if not beta:
        return list(values)
    out, state, power = [], 0.0, 1.0
    for value in values:
        state = beta * state + (1 - beta) * value
        power *= beta
        out.append(state / (1 - power))
    return out


# --- reading ------------------------------------------------------------------------------------------------


def labels(rows: Sequence[RunRow]) -> list[str]:
    """A name for each run: its fingerprint, and where their configs differ its own values."""
    configs = [flat(row.config) for row in rows]
    keys = differing(configs)
    names = short_names(keys)
    out = []
    for row, config in zip(rows, configs, strict=True):
        told = [f"{names[key]}={cell(config[key], 16)}" for key in keys if key in config]
        more = f" …{len(told) - _MOST_KEYS} more" if len(told) > _MOST_KEYS else ""
        out.append(" ".join([row.fingerprint, *told[:_MOST_KEYS]]) + more)
    return out


def log_of(path: Path) -> Path:
    """The log in a run directory. Raises BadFile if there is none, or something that must not be opened."""
    try:
        found = Inside(path).file("log.jsonl")
    except FileNotFoundError:
        raise BadFile(
            f"run {shorten(path.name)}: got no log.jsonl, expected one: nothing was logged"
        ) from None
    if not found.is_file():
        raise BadFile(f"{path.name}/log.jsonl: got something that is no file, expected a log")
    return found


def read_curves(row: RunRow, label: str, metrics: Sequence[str], axis: Axis, beta: float) -> list[Curve]:
    """The curves of a run for those of the metrics that it has logged.

    Raises BadFile for a log that cannot be read, BadInput where the axis is not in it.
    """
    path = log_of(row.path)
    columns = quiet_columns(path)
    places = positions(columns, axis, row)
    starts = _resumed(path, columns, places)
    curves = []
    for metric in metrics:
        if metric not in columns:
            continue
        curve = Curve(label, metric, resumed=starts)
        for step, place, value in zip(columns["step"], places, columns[metric], strict=True):
            if place is None or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            try:
                number = float(value)
            except OverflowError:
                number = math.inf if value > 0 else -math.inf
            if math.isfinite(number):
                curve.steps.append(step)
                curve.x.append(place)
                curve.y.append(number)
            else:
                curve.odd.append((place, number))
        if curve.x or curve.odd:
            curve.smooth = exponential_average(curve.y, beta)
            curves.append(curve)
    return curves


def quiet_columns(path: Path) -> dict[str, list[Any]]:
    """The columns of a log; damaged lines are left out without a word, `runs verify` counts them.

    Raises BadFile for a log of more than 1 GiB: its columns would fill the memory.
    """
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise BadFile(f"{path.parent.name}/log.jsonl: got {size:,} bytes, expected at most {_MOST_BYTES:,}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunWarning)
        return read_columns(path)


def positions(columns: Mapping[str, Sequence[Any]], axis: Axis, row: RunRow) -> list[float | None]:
    """Where each record stands on the axis; None where its column has no finite number.

    Tokens: completed steps times `axis.tokens_per_step`, else what was logged as `tokens` (a running total, or
    those of one step: see `tokens.seen`), else steps times
    the `tokens_per_step` of the config or the signed sheet. Epochs: what was logged as `epoch`. Time: seconds
    since the run's first line, pauses included. Raises BadInput for an axis that the run does not have.
    """
    if axis.by == "step":
        return [float(step) for step in columns["step"]]
    if axis.by == "time":
        begun = _begun(row, columns)
        return [t - begun if (t := _number(value)) is not None else None for value in columns["time"]]
    name = "tokens" if axis.by == "tokens" else "epoch"
    found = next((columns[c] for c in (name, f"timing.{name}") if c in columns), None)
    each = None
    if axis.by == "tokens":
        each = axis.tokens_per_step or (None if found is not None else _tokens_per_step(row))
    if each is not None:
        return [float((step + 1) * each) for step in columns["step"]]
    if found is None:
        hint = "give `--tokens-per-step N`, or log it: " if axis.by == "tokens" else "log it: "
        raise BadInput(
            f"--by {axis.by}: got run {shorten(row.fingerprint)} without a logged `{name}`, expected one",
            f"{hint}run.log({name}=…); `--by step` is there always",
        )
    values = [_number(value) for value in found]
    if axis.by != "tokens":
        return list(values)
    known = [(at, step) for at, step in enumerate(columns["step"]) if values[at] is not None]
    totals = seen([step for _, step in known], [value for value in values if value is not None])
    places: list[float | None] = [None] * len(values)
    for (at, _), total in zip(known, totals, strict=True):
        places[at] = total
    return places


def _tokens_per_step(row: RunRow) -> int | None:
    """Tokens per step as the config says, or the intent of the signed sheet."""
    found = [value for key, value in flat(row.config).items() if key.rpartition(".")[2] == "tokens_per_step"]
    if not found:
        with contextlib.suppress(LoadsheetError, OSError):
            intent = Inside(row.path).json("sheet.json", 16 << 20).get("intent")
            found = [intent.get("tokens_per_step")] if isinstance(intent, dict) else []
    return found[0] if len(found) == 1 and type(found[0]) is int and found[0] > 0 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 and math.isfinite(value) else None


def _begun(row: RunRow, columns: Mapping[str, Sequence[Any]]) -> float:
    """The time of the first line of a log."""
    for event in _resumes(log_of(row.path)):
        if (time := _number(event.get("time"))) is not None:
            return time
    return next((t for value in columns["time"] if (t := _number(value)) is not None), 0.0)


def _resumes(path: Path) -> list[dict[str, Any]]:
    with Quiet(path) as reader:
        return [event for event in reader.events() if event.get("event") == "resume"]


def _resumed(path: Path, columns: Mapping[str, Sequence[Any]], places: Sequence[float | None]) -> list[float]:
    """Where attempts after the first went on: the place of the first record from that step on."""
    steps, found = columns["step"], []
    for event in _resumes(path)[1:]:
        start = event.get("from")
        if type(start) is int:
            at = bisect.bisect_left(steps, start)
            if at < len(steps) and (place := places[at]) is not None:
                found.append(place)
    return sorted(set(found))


# --- several runs, one curve ---------------------------------------------------------------------------------


def mean_of(curves: Sequence[Curve], label: str) -> Curve:
    """The mean of the smoothed curves of several runs, with the lowest and the highest, at each step.

    Only steps at which all of them have a finite value: where one ends, the mean ends. Where the runs
    reach a step at different places (times), it stands at the mean of these.
    """
    shared = set(curves[0].steps)
    for curve in curves[1:]:
        shared &= set(curve.steps)
    tables = [
        dict(zip(curve.steps, zip(curve.x, curve.smooth, strict=True), strict=True)) for curve in curves
    ]
    out = Curve(label, curves[0].metric, runs=len(curves))
    for step in sorted(shared):
        places, values = zip(*(table[step] for table in tables), strict=True)
        out.steps.append(step)
        out.x.append(math.fsum(places) / len(places))
        out.smooth.append(math.fsum(values) / len(values))
        out.low.append(min(values))
        out.high.append(max(values))
    out.y = out.smooth
    out.resumed = sorted({place for curve in curves for place in curve.resumed})
    out.odd = sorted(
        (pair for curve in curves for pair in curve.odd), key=lambda pair: (pair[0], str(pair[1]))
    )
    return out


# --- no more points than can be seen --------------------------------------------------------------------------


def thinned(
    x: Sequence[float], y: Sequence[float], start: float, end: float, columns: int
) -> tuple[list[float], list[float]]:
    """The points that matter where `columns` pixels lie between `start` and `end`.

    Of each column the first, lowest, highest and last point stay, in their order: a line through them covers
    the same pixels as one through all (Jugel et al., "M4: a visualization-oriented time series data
    aggregation", PVLDB 7, 2014). No minimum and no maximum is lost.

    >>> thinned([0, 1, 2, 3, 4, 5, 6], [5, 1, 9, 3, 3, 3, 3], 0, 7, 1)
    ([0, 1, 2, 6], [5, 1, 9, 3])
    """
    if len(x) <= 4 * columns or not end > start:
        return list(x), list(y)
    scale = columns / (end - start)
    keep: list[int] = []
    first = 0
    column = int((x[0] - start) * scale)
    low = high = 0
    for n in range(1, len(x) + 1):
        here = int((x[n] - start) * scale) if n < len(x) else None
        if here != column:
            keep += sorted({first, low, high, n - 1})
            if here is None:
                break
            first = low = high = n
            column = here
        elif y[n] < y[low]:
            low = n
        elif y[n] > y[high]:
            high = n
    return [x[n] for n in keep], [y[n] for n in keep]


def thinned_band(
    x: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    start: float,
    end: float,
    columns: int,
) -> tuple[list[float], list[float], list[float]]:
    """A band in at most `columns` steps: the lowest and highest of each, at the place of its first point.

    >>> thinned_band([0, 1, 2, 3, 4, 5], [1, 0, 1, 2, 3, 4], [5, 5, 9, 5, 5, 5], 0, 6, 2)
    ([0, 3], [0, 2], [9, 5])
    """
    if len(x) <= columns or not end > start:
        return list(x), list(low), list(high)
    xs: list[float] = []
    lows: list[float] = []
    highs: list[float] = []
    last: int | None = None
    for place, bottom, top in zip(x, low, high, strict=True):
        column = int((place - start) / (end - start) * columns)
        if column == last:
            lows[-1], highs[-1] = min(lows[-1], bottom), max(highs[-1], top)
        else:
            xs.append(place)
            lows.append(bottom)
            highs.append(top)
            last = column
    return xs, lows, highs


def span(curves: Sequence[Curve]) -> tuple[float, float]:
    """Where on the axis the curves begin and end; (0, 0) for none."""
    low, high = math.inf, -math.inf
    for curve in curves:
        places = [*curve.x, *(place for place, _ in curve.odd)]
        low, high = min(low, *places), max(high, *places)
    return (low, high) if low <= high else (0.0, 0.0)


# --- words ----------------------------------------------------------------------------------------------------

#: how the name of a metric ends, and what that says
_UNITS: Final = {"per_second": "1/s", "seconds": "s", "hours": "h", "bytes": "bytes"}


def unit_of(metric: str) -> str:
    """The unit of a metric as far as its name says it; the log itself knows none.

    >>> unit_of("timing.tokens_per_second"), unit_of("step_seconds"), unit_of("loss")
    ('1/s', 's', '')
    """
    return next((unit for ending, unit in _UNITS.items() if metric.endswith(ending)), "")


def axis_label(axis: Axis, seconds: float = 0.0) -> tuple[str, float]:
    """The label of the axis with its unit, and by what its numbers are divided; `seconds` is its length."""
    if axis.by == "time":
        unit, scale = next(
            (pair for pair in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)) if seconds >= 2 * pair[1]),
            ("s", 1.0),
        )
        return f"time since the run began, pauses included ({unit})", scale
    if axis.by == "tokens":
        return "tokens", 1.0
    return ("optimizer step", 1.0) if axis.by == "step" else ("epoch", 1.0)


def remarks(curves: Sequence[Curve], beta: float, *, picture: bool = True) -> list[str]:
    """What must be known to read the curves, in phrases; a page of text has no room for faint lines and bands."""
    said = ["not smoothed"]
    if beta:
        said = [f"smoothed: exponential moving average, β = {beta:g}, debiased"]
        if picture and any(curve.runs == 1 for curve in curves):
            said[0] += ", the raw values faint behind it"
    if any(curve.resumed for curve in curves):
        said.append("ticks: an attempt was resumed, and steps that were run again are drawn once")
    if any(curve.runs > 1 for curve in curves):
        band = ", band from the lowest to the highest" if picture else ""
        said.append(f"mean of the seeds{band}, over the steps that all have")
    return said

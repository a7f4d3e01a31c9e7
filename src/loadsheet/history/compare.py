"""Runs beside each other: the keys that differ, curves at common points, the first step of other bits."""

from __future__ import annotations

import bisect
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadsheet.errors import BadInput, LoadsheetError, one_line
from loadsheet.history.attempts import read_attempts
from loadsheet.history.configs import ABSENT, as_text, differing, flat
from loadsheet.history.inside import Inside
from loadsheet.history.listing import finite, settings
from loadsheet.history.measures import Measure
from loadsheet.history.plot_curves import Axis, Curve, log_of, quiet_columns, read_curves
from loadsheet.history.rows import Notes, RunRow
from loadsheet.history.seeds import Group, is_seed, without_seeds
from loadsheet.run.provenance import changes, code_changes

POINTS: Final = 8  # at which values are shown
_OF_LOG: Final = frozenset({"step", "attempt", "time"})
_BARS: Final = "▁▂▃▄▅▆▇█"
#: letters that stand for runs in a table
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def letters(count: int) -> list[str]:
    """A name for each of some runs: A … Z, then A1, B1 and so on."""
    return [LETTERS[at % 26] + (str(at // 26) if at >= 26 else "") for at in range(count)]


# --- configs ----------------------------------------------------------------------------------------------------


def config_differences(rows: Sequence[RunRow]) -> dict[str, list[Any]]:
    """For each key (of config or excluded) that differs its value in each run, `ABSENT` where there is none."""
    flats = [settings(row) for row in rows]
    return {key: [config.get(key, ABSENT) for config in flats] for key in differing(flats)}


def only_excluded(rows: Sequence[RunRow], keys: Iterable[str]) -> list[str]:
    """Those of the keys that are in no config: their values do not say which run it is."""
    known = {key for row in rows for key in flat(row.config)}
    return [key for key in keys if key not in known]


def group_differences(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """For each key that differs between groups of seeds its value in each, `ABSENT` where there is none."""
    flats = [flat(each.config) for each in groups]
    return {key: [config.get(key, ABSENT) for config in flats] for key in differing(flats)}


# --- curves -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Aligned:
    """A metric of several runs at common points of an axis.

    `values[run][point]` is None where a run has none. `exact`: every value was logged there; else values are
    interpolated between the two records around the point. `curves` has None for a run without the metric.
    """

    metric: str
    axis: Axis
    points: list[float]
    values: list[list[float | None]]
    curves: list[Curve | None]
    exact: bool

    def last(self, run: int) -> tuple[float, float] | None:
        """Where a run's last finite value stands, and the value."""
        curve = self.curves[run]
        return (curve.x[-1], curve.y[-1]) if curve is not None and curve.x else None


def align(rows: Sequence[RunRow], metric: str, axis: Axis, count: int = POINTS) -> Aligned:
    """The curves of a metric at up to `count` points that all runs with this metric have reached.

    They are places at which all of them logged, if there are enough (by step two); else they are spread
    evenly over what is common, and values lie on the line between two records. Nothing is smoothed.
    Raises BadFile for a log that cannot be read, BadInput for an axis that a run does not have.
    """
    curves: list[Curve | None] = []
    for row in rows:
        try:
            found = read_curves(row, row.fingerprint, [metric], axis, 0.0)
        except BadInput:
            raise
        except LoadsheetError:  # no log at all: the run stands there without values
            found = []
        curves.append(found[0] if found and found[0].x else None)
    known = [curve for curve in curves if curve is not None]
    if not known:
        return Aligned(metric, axis, [], [[] for _ in rows], curves, True)
    shared = _shared(known)
    exact = len(shared) >= (2 if axis.by == "step" else count) or max(len(curve.x) for curve in known) == len(
        shared
    )
    points = _spread(shared, count) if exact else _common(known, count)
    values = [[_at(curve, x) if curve is not None else None for x in points] for curve in curves]
    return Aligned(metric, axis, points, values, curves, exact)


def _shared(curves: Sequence[Curve]) -> list[float]:
    """The places at which every curve has a value."""
    found = set(curves[0].x)
    for curve in curves[1:]:
        found &= set(curve.x)
    return sorted(found)


def _spread(places: Sequence[float], count: int) -> list[float]:
    """At most `count` of the places, the first and the last among them.

    >>> _spread([0, 1, 2, 3, 4, 5, 6], 3)
    [0, 3, 6]
    """
    if len(places) <= count:
        return list(places)
    return [places[round(at * (len(places) - 1) / (count - 1))] for at in range(count)]


def _common(curves: Sequence[Curve], count: int) -> list[float]:
    """Points spread evenly over the stretch that all curves cover; none if there is none."""
    low = max(curve.x[0] for curve in curves)
    high = min(curve.x[-1] for curve in curves)
    if low > high:
        return []
    if low == high:
        return [low]
    return [low + (high - low) * at / (count - 1) for at in range(count)]


def _at(curve: Curve, x: float) -> float | None:
    """The value of a curve at a place: logged there, or on the line between the records around it."""
    at = bisect.bisect_left(curve.x, x)
    if at < len(curve.x) and curve.x[at] == x:
        last = bisect.bisect_right(curve.x, x) - 1
        return curve.y[last]
    if at in (0, len(curve.x)):
        return None
    left, right = curve.x[at - 1], curve.x[at]
    share = (x - left) / (right - left)
    return curve.y[at - 1] * (1 - share) + curve.y[at] * share


def sparkline(curve: Curve, low: float, high: float, begin: float, end: float, width: int) -> str:
    """A curve as blocks, the mean of each stretch; scales are given, so that several can be compared.

    A space stands where the curve has no value.
    """
    sums, counts = [0.0] * width, [0] * width
    for x, y in zip(curve.x, curve.y, strict=True):
        place = 0 if end <= begin else min(int((x - begin) / (end - begin) * width), width - 1)
        if place >= 0:
            sums[place] += y
            counts[place] += 1
    cells = []
    for total, count in zip(sums, counts, strict=True):
        if not count:
            cells.append(" ")
            continue
        share = 0.5 if high <= low else (total / count - low) / (high - low)
        share = 1.0 if math.isnan(share) else min(max(share, 0.0), 1.0)  # sums of 1e308 are infinite
        cells.append(_BARS[min(int(share * 8), 7)])
    return "".join(cells)


# --- bits -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bits:
    """Two runs whose configs agree but for seeds and excluded keys: where do their logs differ?

    `step` is the first step at which a value logged by both is not the same, bit for bit (None: in none of
    the `compared` steps), `names` what differed there. `same_seeds`: they should be the same. `changed` is
    what was recorded differently of code, machine and libraries.
    """

    one: RunRow
    other: RunRow
    same_seeds: bool
    step: int | None
    names: tuple[str, ...]
    compared: int
    changed: tuple[str, ...]


def bits(one: RunRow, other: RunRow, seed_keys: Sequence[str] = ()) -> Bits | None:
    """The first step of other bits; None if the configs differ in more than seeds, or a log cannot be read.

    What is logged as `timing` is not compared, nor names that only one of them has logged.
    """
    if not one.config or as_text(without_seeds(one.config, seed_keys)) != as_text(
        without_seeds(other.config, seed_keys)
    ):
        return None
    try:
        first, second = quiet_columns(log_of(one.path)), quiet_columns(log_of(other.path))
    except (LoadsheetError, OSError):
        return None
    step, names, compared = first_difference(first, second)
    same_seeds = as_text(one.config) == as_text(other.config)
    return Bits(one, other, same_seeds, step, names, compared, recorded_differently(one, other))


def first_difference(
    one: Mapping[str, Sequence[Any]], other: Mapping[str, Sequence[Any]]
) -> tuple[int | None, tuple[str, ...], int]:
    """Of two logs as columns: the first step with other values, their names, and how many steps were compared."""
    names = [n for n in one if n in other and n not in _OF_LOG and not n.startswith("timing.")]
    places = {step: at for at, step in enumerate(other["step"])}
    compared = 0
    for at, step in enumerate(one["step"]):
        there = places.get(step)
        if there is None:
            continue
        pairs = [(name, one[name][at], other[name][there]) for name in names]
        compared += any(a is not None and b is not None for _, a, b in pairs)
        differ = [name for name, a, b in pairs if a is not None and b is not None and not same_bits(a, b)]
        if differ:
            return step, tuple(differ), compared
    return None, (), compared


def same_bits(one: Any, other: Any) -> bool:
    """Whether two logged values are the same bits: NaN is itself, 0.0 and −0.0 are two.

    >>> same_bits(float("nan"), float("nan")), same_bits(0.0, -0.0), same_bits(1, 1.0)
    (True, False, False)
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        if math.isnan(one) or math.isnan(other):  # a log holds one NaN only
            return math.isnan(one) and math.isnan(other)
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return bool(one == other)


def recorded_differently(one: RunRow, other: RunRow) -> tuple[str, ...]:
    """What the newest attempts of two runs recorded differently and may change bits, a line each."""
    notes = Notes()
    first, second = read_attempts(Inside(one.path), notes), read_attempts(Inside(other.path), notes)
    if not first or not second:
        return ("of one of them no record of an attempt can be read",)
    old, new = first[-1].facts, second[-1].facts
    return tuple(one_line(line)[:160] for line in [*code_changes(old, new), *changes(old, new)])


def recorded_in_all(rows: Sequence[RunRow]) -> dict[str, list[str]]:
    """What results depend on beside the seed, and every value that the newest attempts of the runs recorded.

    More than one value is a second reason for spread.
    """
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        attempts = read_attempts(Inside(row.path), Notes())
        facts = attempts[-1].facts if attempts else {}
        libraries, code = facts.get("libraries") or {}, facts.get("code") or {}
        values = {
            "processor": attempts[-1].processor if attempts else "not recorded",
            "threads": libraries.get("threads"),
            "torch": libraries.get("torch"),
            "cuda": libraries.get("cuda"),
            "deterministic": libraries.get("deterministic"),
            "commit": code.get("commit"),
        }
        for name, value in values.items():
            shown = "not recorded" if value is None else one_line(str(value))[:80]
            found.setdefault(name, {})[shown] = None
    return {name: sorted(values)[:20] for name, values in found.items()}


# --- as JSON ----------------------------------------------------------------------------------------------------


def differences_json(rows: Sequence[RunRow], found: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The keys that differ, for each run by its path its value; a run without the key is left out."""
    return {
        key: {str(row.path): value for row, value in zip(rows, values, strict=True) if value is not ABSENT}
        for key, values in found.items()
    }


def aligned_json(rows: Sequence[RunRow], found: Aligned, measure: Measure) -> dict[str, Any]:
    """Curves at common points as `--json` has them."""
    runs = []
    for at, row in enumerate(rows):
        last, best = found.last(at), measure.of(row.metrics)
        runs.append(
            {
                "path": str(row.path),
                "values": [finite(value) for value in found.values[at]] if found.curves[at] else None,
                "last": last[1] if last else None,
                "last_at": last[0] if last else None,
                "best": best[0] if best else None,
                "best_step": best[1] if best else None,
            }
        )
    return {
        "metric": found.metric,
        "by": found.axis.by,
        "points": found.points,
        "interpolated": not found.exact,
        "runs": runs,
    }


def bits_json(found: Bits) -> dict[str, Any]:
    """A comparison of bits as `--json` has it."""
    return {
        "one": str(found.one.path),
        "other": str(found.other.path),
        "same_seeds": found.same_seeds,
        "first_step": found.step,
        "names": list(found.names),
        "steps_compared": found.compared,
        "recorded_differently": list(found.changed),
    }


def only_seeds(found: Mapping[str, Any], seed_keys: Sequence[str] = ()) -> bool:
    """Whether nothing but seeds is among the keys that differ."""
    return all(is_seed(key, seed_keys) for key in found)

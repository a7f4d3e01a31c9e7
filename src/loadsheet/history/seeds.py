"""Runs that differ only in the seed are one group; is one group really better than another?

A single run says how good one draw was. What a change is worth shows only against how far runs apart that
differ in nothing but the seed, so nothing is ever claimed from one run a side.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from loadsheet.errors import one_line
from loadsheet.history.configs import as_text, cell, differing, flat
from loadsheet.history.measures import Measure
from loadsheet.history.rows import RunRow
from loadsheet.history.welch import Spread, Welch, holm, p_value, spread, welch
from loadsheet.run.fingerprint import digest

SEED: Final = "seed"
#: fewer runs than this on a side give an interval so wide that it seldom shows anything
ENOUGH: Final = 3
_APART: Final = 100  # times: runs of which some diverged
_DIVERGED: Final = 1e100  # beyond it squares are infinite, and no mean says anything


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one config but for the seed.

    `fingerprint` is that of the config without its seeds, `values` has for each run that counts its
    fingerprint and value, `left_out` for each other run the reason, `counted` has the rows of those that count.
    """

    fingerprint: str
    config: dict[str, Any]
    members: tuple[RunRow, ...]
    values: tuple[tuple[str, float], ...]
    left_out: tuple[tuple[str, str], ...]
    spread: Spread | None
    name: str = ""
    counted: tuple[RunRow, ...] = ()

    @property
    def seeds(self) -> list[str]:
        """The fingerprints of the runs that count."""
        return [fingerprint for fingerprint, _ in self.values]


def is_seed(key: str, seed_keys: Iterable[str] = ()) -> bool:
    """Whether a dotted key is a seed: its last part is `seed`, or it is named (whole, or by its last part).

    >>> is_seed("data.seed"), is_seed("seeds"), is_seed("model.init", ["init"])
    (True, False, True)
    """
    last = key.rpartition(".")[2]
    return last == SEED or any(name in (key, last) for name in seed_keys)


def without_seeds(config: dict[str, Any], seed_keys: Sequence[str] = (), prefix: str = "") -> dict[str, Any]:
    """A config without its seeds.

    >>> without_seeds({"lr": 0.1, "seed": 3, "data": {"seed": 4, "n": 5}})
    {'lr': 0.1, 'data': {'n': 5}}
    """
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if type(value) is dict and value:
            kept[key] = without_seeds(value, seed_keys, f"{prefix}{key}.")
        elif not is_seed(prefix + key, seed_keys):
            kept[key] = value
    return kept


def seeds_of(config: dict[str, Any], seed_keys: Sequence[str] = ()) -> dict[str, Any]:
    """The seeds in a config, by dotted key."""
    return {key: value for key, value in flat(config).items() if is_seed(key, seed_keys)}


def group(
    rows: Iterable[RunRow],
    measure: Measure | None,
    seed_keys: Sequence[str] = (),
    *,
    unfinished: bool = False,
) -> list[Group]:
    """The groups of some runs, in the order in which they come; a run alone is a group of one.

    Only runs that are done count, or with `unfinished` all that logged the measure: a run that stopped
    early has had fewer steps to get good. A copy of a run (the same seeds again) counts once.
    """
    found: dict[str, list[RunRow]] = {}
    for row in rows:
        key = as_text(without_seeds(row.config, seed_keys)) if row.config else f"no config: {row.path}"
        found.setdefault(key, []).append(row)
    groups = [_group(members, measure, seed_keys, unfinished) for members in found.values()]
    return named(groups)


def _group(
    members: list[RunRow], measure: Measure | None, seed_keys: Sequence[str], unfinished: bool
) -> Group:
    values: list[tuple[str, float]] = []
    left_out: list[tuple[str, str]] = []
    counted: list[RunRow] = []
    seen: dict[str, str] = {}
    steps: dict[int, int] = {}
    for row in members:
        steps[row.step] = steps.get(row.step, 0) + (row.state == "done")
    usual = max(steps, key=lambda step: (steps[step], step), default=0)
    for row in members:
        seeds = as_text(seeds_of(row.config, seed_keys))
        value = measure.of(row.metrics) if measure is not None else None
        if row.state != "done" and not unfinished:
            left_out.append((row.fingerprint, f"{row.state} after {row.step:,} steps"))
        elif value is not None and abs(value[0]) > _DIVERGED:
            left_out.append((row.fingerprint, f"diverged: {value[0]:.3g}"))
        elif value is None:
            name = f"finite {one_line(measure.metric)[:60]}" if measure is not None else "number"
            left_out.append((row.fingerprint, f"logged no {name}"))
        elif not row.config:
            left_out.append((row.fingerprint, "its config cannot be read"))
        elif seeds in seen:
            left_out.append((row.fingerprint, f"has the seeds of {seen[seeds]}"))
        elif row.step != usual and not unfinished:
            left_out.append((row.fingerprint, f"made {row.step:,} steps, the others {usual:,}"))
        else:
            seen[seeds] = row.fingerprint
            values.append((row.fingerprint, value[0]))
            counted.append(row)
    config = without_seeds(members[0].config, seed_keys)
    return Group(
        digest(config) if members[0].config else members[0].fingerprint,
        config,
        tuple(members),
        tuple(values),
        tuple(left_out),
        spread([value for _, value in values]) if values else None,
        counted=tuple(counted),
    )


def named(groups: list[Group]) -> list[Group]:
    """The groups with names that say what differs between them, such as `lr=0.003`."""
    flats = [flat(each.config) for each in groups]
    keys = differing(flats)[:3]
    named = []
    for each, config in zip(groups, flats, strict=True):
        shown = [
            f"{one_line(key.rpartition('.')[2])[:24]}={cell(config[key], 16)}"
            for key in keys
            if key in config
        ]
        named.append(replace(each, name=" ".join(shown) or each.fingerprint))
    return named


# --- is it better? ----------------------------------------------------------------------------------------------

Finding = Literal["better", "not shown", "cannot say"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two groups: the better one by its mean, the other, and whether the difference is more than chance.

    `welch` is of the better minus the other; `gain` is the same turned so that more is better: by how much,
    and the ends of the interval. `p` is the one that decides, adjusted where several comparisons are made.
    """

    best: Group
    other: Group
    finding: Finding
    sentence: str
    welch: Welch | None = None
    p: float | None = None
    gain: tuple[float, float, float] | None = None
    remarks: tuple[str, ...] = field(default=())


def compare(
    groups: Sequence[Group], measure: Measure, confidence: float = 0.95, limit: int | None = None
) -> list[Comparison]:
    """The group with the best mean against each other one, best first; groups without a value are left out.

    With more than two groups the p-values are Holm's over all of them, since of many comparisons some come out
    by chance; of the comparisons the first `limit` are returned.
    """
    ranked = sorted(
        (each for each in groups if each.spread is not None),
        key=lambda each: each.spread.mean if measure.mode == "min" else -each.spread.mean,  # type: ignore[union-attr]
    )
    if len(ranked) < 2:
        return []
    best, others = ranked[0], ranked[1:]
    values = [p_value(best.spread, each.spread) for each in others]  # type: ignore[arg-type]
    adjusted = iter(holm([p for p in values if p is not None]))
    decisive = [None if p is None else next(adjusted) for p in values]
    return [
        _compared(best, each, measure, p, confidence)
        for each, p in zip(others[:limit], decisive, strict=False)
    ]


def _compared(best: Group, other: Group, measure: Measure, p: float | None, confidence: float) -> Comparison:
    a, b = best.spread, other.spread
    assert a is not None and b is not None  # noqa: PT018  (compare leaves out the others)
    found = welch(a, b, confidence)
    apart = abs(a.mean - b.mean)
    names = f"{best.name} and {other.name}"
    if found is None or p is None:
        return Comparison(best, other, "cannot say", _cannot_say(best, other, measure))
    sign = -1 if measure.mode == "min" else 1
    low, high = sorted((sign * found.low, sign * found.high))
    gain = (apart, low, high)
    within = max(a.deviation or 0.0, b.deviation or 0.0)
    whose = (best if within == a.deviation else other).name
    remarks = []
    if min(a.n, b.n) < ENOUGH:
        remarks.append(f"{min(a.n, b.n)} seeds tell little of a spread: {ENOUGH} and more a side are better")
    for each in (best, other):
        if each.spread is not None and each.spread.low > 0 and each.spread.high > _APART * each.spread.low:
            remarks.append(
                f"the runs of {each.name} lie orders of magnitude apart: their mean says little, nor does an "
                "interval that takes them to be roughly normal"
            )
        if each.spread is not None and each.spread.deviation == 0:
            remarks.append(
                f"all seeds of {each.name} gave the same number to the last bit: is the seed used at all?"
            )
    share = f"{confidence * 100:g} %"
    if p < 1 - confidence:
        sentence = (
            f"{best.name} is better than {other.name} by {apart:.4g} ({share} interval {low:.4g} to {high:.4g}): "
            f"more than the spread between seeds explains ({_times(apart, within, whose)})"
        )
        return Comparison(best, other, "better", sentence, found, p, gain, tuple(remarks))
    sentence = (
        f"not shown: {names} differ by {apart:.4g} in the mean ({_times(apart, within, whose)}), and the {share} "
        f"interval of the difference, {low:.4g} to {high:.4g}, "
    )
    if low <= 0 <= high:
        sentence += "has 0 in it: other seeds alone may do that"
    else:
        sentence += f"leaves out 0 by itself, but not as one of several comparisons (Holm's p = {p:.2g})"
    return Comparison(best, other, "not shown", sentence, found, p, gain, tuple(remarks))


def _times(apart: float, within: float, whose: str) -> str:
    """The difference beside the spread between the seeds of the group where it is the larger one."""
    if within == 0:
        return "the seeds do not spread at all"
    return f"{apart / within:.1f} times the spread s = {within:.4g} between the seeds of {whose}"


def _cannot_say(best: Group, other: Group, measure: Measure) -> str:
    a, b = best.spread, other.spread
    assert a is not None and b is not None  # noqa: PT018
    alone = [each.name for each in (best, other) if each.spread is not None and each.spread.n == 1]
    if alone:
        each = "each" if len(alone) == 2 else f"of {alone[0]}"
        return (
            f"cannot say: one seed {each}; how much {one_line(measure.metric)[:60]} differs from seed to seed is "
            f"not known. Run the same configs with other seeds ({ENOUGH} or more a side)"
        )
    return (
        "cannot say: every seed gave the same number to the last bit in both groups, so there is no spread to "
        "compare with: is the seed used at all?"
    )


def to_json(each: Group) -> dict[str, Any]:
    """A group as `--json` has it."""
    s = each.spread
    return {
        "fingerprint": each.fingerprint,
        "name": each.name,
        "config": json.loads(as_text(each.config)),
        "runs": [row.fingerprint for row in each.members],
        "values": dict(each.values),
        "left_out": dict(each.left_out),
        "n": len(each.values),
        "mean": s.mean if s else None,
        "deviation": s.deviation if s else None,
        "min": s.low if s else None,
        "max": s.high if s else None,
    }


def comparison_json(found: Comparison) -> dict[str, Any]:
    """A comparison as `--json` has it."""
    w = found.welch
    return {
        "best": found.best.fingerprint,
        "other": found.other.fingerprint,
        "finding": found.finding,
        "sentence": found.sentence,
        "difference": w.difference if w else None,
        "interval": [w.low, w.high] if w else None,
        "gain": found.gain[0] if found.gain else None,
        "gain_interval": list(found.gain[1:]) if found.gain else None,
        "confidence": w.confidence if w else None,
        "t": w.t if w else None,
        "degrees_of_freedom": w.df if w else None,
        "p": w.p if w else None,
        "p_adjusted": found.p,
        "remarks": list(found.remarks),
    }

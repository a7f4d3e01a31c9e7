"""Errors of predictions: per source and over sources, each of which weighs the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Pair:
    """One measured figure beside its prediction."""

    source: str
    group: str
    measured: float
    low: float
    mid: float
    high: float

    @property
    def error(self) -> float:
        """Relative: 0.04 is 4 % too high."""
        return self.mid / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measured figure lies in the stated range."""
        return self.low <= self.measured <= self.high

    @property
    def width(self) -> float:
        """Of the stated range, relative to its middle."""
        return (self.high - self.low) / self.mid


@dataclass(frozen=True, slots=True)
class Metrics:
    """What the predictions of one source, or of all, amount to; errors are relative.

    n configurations; coverage: predicted over complete rows in scope; bias: the median error; the trivial
    predictor answers every question with the source's own median.
    """

    n: int
    coverage: float | None
    median_abs_error: float | None
    p90_abs_error: float | None
    bias: float | None
    too_low_share: float | None
    inside_share: float | None
    median_width: float | None
    trivial_median_abs_error: float | None
    trivial_p90_abs_error: float | None

    def to_json(self) -> dict[str, Any]:
        """Every field."""
        return asdict(self)


def merged(pairs: Iterable[Pair]) -> list[Pair]:
    """One pair for each configuration: the medians over the rows of its group."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.source, pair.group), []).append(pair)
    return [
        Pair(
            source, group, *(median(getattr(p, f) for p in found) for f in ("measured", "low", "mid", "high"))
        )
        for (source, group), found in groups.items()
    ]


def quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The value that `share` of the weight lies at or below; half-way to the next where it meets exactly.

    >>> quantile([3, 1, 2], [1, 1, 1], 0.5), quantile([1, 2, 3, 4], [1, 1, 1, 1], 0.5)
    (2, 2.5)
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    target, reached = share * sum(weights), 0.0
    for place, i in enumerate(order):
        reached += weights[i]
        if reached > target * (1 + 1e-12):
            return values[i]
        if reached >= target * (1 - 1e-12):
            following = order[place + 1] if place + 1 < len(order) else i
            return (values[i] + values[following]) / 2 if following != i else values[i]
    return values[order[-1]]


def metrics(pairs: Sequence[Pair], predicted: int = 0, complete: int = 0) -> Metrics:
    """The figures of `pairs` (already merged); every source weighs the same, however many rows it has."""
    coverage = predicted / complete if complete else None
    if not pairs:
        return Metrics(0, coverage, *(None,) * 8)
    counts: dict[str, int] = {}
    for pair in pairs:
        counts[pair.source] = counts.get(pair.source, 0) + 1
    middles = {s: median(p.measured for p in pairs if p.source == s) for s in counts}
    weights = [1 / counts[p.source] for p in pairs]
    total = sum(weights)
    errors, absolute = [p.error for p in pairs], [abs(p.error) for p in pairs]
    trivial = [abs(middles[p.source] / p.measured - 1) for p in pairs]

    def share(flags: Iterable[bool]) -> float:
        return sum(w for w, yes in zip(weights, flags, strict=True) if yes) / total

    return Metrics(
        n=len(pairs),
        coverage=coverage,
        median_abs_error=quantile(absolute, weights, 0.5),
        p90_abs_error=quantile(absolute, weights, 0.9),
        bias=quantile(errors, weights, 0.5),
        too_low_share=share(e < -0.05 for e in errors),
        inside_share=share(p.inside for p in pairs),
        median_width=quantile([p.width for p in pairs], weights, 0.5),
        trivial_median_abs_error=quantile(trivial, weights, 0.5),
        trivial_p90_abs_error=quantile(trivial, weights, 0.9),
    )

"""Two groups of numbers: is the difference of their means more than chance explains?

Formulas on numbers; what they mean for runs stands in `seeds`. Symbols: n values of mean x̄ and sample
standard deviation s in each group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from loadsheet.history.student import quantile, two_sided_p


@dataclass(frozen=True, slots=True)
class Spread:
    """Some numbers in a few: how many, mean, sample standard deviation (None for one), least, greatest."""

    n: int
    mean: float
    deviation: float | None
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Mean x̄ = Σx/n and sample standard deviation s = √(Σ(x − x̄)²/(n − 1)) of finite values, at least one.

    >>> spread([1.0, 2.0, 3.0, 4.0])
    Spread(n=4, mean=2.5, deviation=1.2909944487358056, low=1.0, high=4.0)
    """
    deviation = float(stdev(values)) if len(values) > 1 else None
    return Spread(len(values), fmean(values), deviation, min(values), max(values))


def p_value(a: Spread, b: Spread) -> float | None:
    """The two-sided p of no difference between the means, as in `welch`; None where nothing can be said."""
    if a.deviation is None or b.deviation is None or a.deviation == b.deviation == 0:
        return None
    error = standard_error(a.deviation, a.n, b.deviation, b.n)
    return two_sided_p((a.mean - b.mean) / error, degrees_of_freedom(a.deviation, a.n, b.deviation, b.n))


def standard_error(deviation_a: float, n_a: int, deviation_b: float, n_b: int) -> float:
    """The standard error of a difference of means: √(s_a²/n_a + s_b²/n_b).

    Source: B. L. Welch, "The generalization of 'Student's' problem when several different population
    variances are involved", Biometrika 34 (1947), 28–35.
    """
    return math.hypot(deviation_a / math.sqrt(n_a), deviation_b / math.sqrt(n_b))


def degrees_of_freedom(deviation_a: float, n_a: int, deviation_b: float, n_b: int) -> float:
    """Welch–Satterthwaite: ν = (u + v)² / (u²/(n_a − 1) + v²/(n_b − 1)), u = s_a²/n_a, v = s_b²/n_b.

    Both n from 2 on, and not both s zero. Source: F. E. Satterthwaite, "An approximate distribution of
    estimates of variance components", Biometrics Bulletin 2 (1946), 110–114; Welch 1947. An approximation:
    with three or four values in a group, of very unequal spread, the interval's confidence is a few percent off.

    >>> round(degrees_of_freedom(1.789010, 10, 2.002249, 10), 3)
    17.776
    """
    largest = max(deviation_a / math.sqrt(n_a), deviation_b / math.sqrt(n_b))
    u = (deviation_a / math.sqrt(n_a) / largest) ** 2  # only their ratio counts
    v = (deviation_b / math.sqrt(n_b) / largest) ** 2
    return (u + v) ** 2 / (u**2 / (n_a - 1) + v**2 / (n_b - 1))


@dataclass(frozen=True, slots=True)
class Welch:
    """The difference of two means, x̄_a − x̄_b, with its interval and what it rests on."""

    difference: float
    low: float
    high: float
    t: float
    df: float
    p: float
    confidence: float


def welch(a: Spread, b: Spread, confidence: float = 0.95) -> Welch | None:
    """The interval x̄_a − x̄_b ± t_ν · √(s_a²/n_a + s_b²/n_b) and the two-sided p of no difference.

    None where nothing can be said: fewer than two values in a group, or no spread in either. It takes the
    values of a group to be independent and roughly normal, which three of them cannot show.
    Raises BadInput for a confidence that is none. Source: Welch 1947, as in `standard_error`.
    """
    p = p_value(a, b)
    if p is None or a.deviation is None or b.deviation is None:
        quantile(confidence, 1.0)  # a confidence that is none is an error even so
        return None
    error = standard_error(a.deviation, a.n, b.deviation, b.n)
    df = degrees_of_freedom(a.deviation, a.n, b.deviation, b.n)
    difference = a.mean - b.mean
    half = quantile(confidence, df) * error
    return Welch(difference, difference - half, difference + half, difference / error, df, p, confidence)


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p adjusted for being one of several (Holm): p̃_(i) = max over j ≤ i of min(1, (m − j + 1) p_(j)).

    With them the chance of even one false claim among m stays below the level, whatever the dependence.
    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 6 (1979), 65–70.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.005])]
    [0.03, 0.06, 0.06, 0.02]
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = highest
    return adjusted

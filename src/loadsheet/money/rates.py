"""The mean time between interruptions from what was seen: so many, in so many hours."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from loadsheet.errors import BadInput, shorten

#: of the interval around what was seen
CONFIDENCE: Final = 0.90
_HALVINGS: Final = 200
_MOST: Final = 1_000_000  # interruptions


@dataclass(frozen=True, slots=True)
class Rate:
    """Mean time between interruptions, seconds: the estimate (None if none was seen) and its interval."""

    exposure: float  # seconds for which the machine was there
    interruptions: int
    mtbf: float | None
    low: float
    high: float  # infinite if none was seen

    @property
    def pessimistic(self) -> float:
        """The estimate, or where none was seen the bound, which is the most that can be claimed."""
        return self.low if self.mtbf is None else self.mtbf


def rate(exposure: float, interruptions: int, confidence: float = CONFIDENCE) -> Rate:
    """M = exposure / n, with the exact Poisson interval (Garwood, Biometrika 28, 1936).

    The ends are the rates under which as few, or as many, would be seen with probability (1 − C)/2. Where
    none was seen there is no estimate, only a bound: M above exposure / −ln(1 − C), one-sided. Raises BadInput.

    Ten in 1000 hours, 95 %: between 4.795 and 18.39 per 1000 hours.

    >>> found = rate(1000.0, 10, 0.95)
    >>> round(1000 / found.high, 3), round(1000 / found.low, 2), rate(3.0, 0, 0.95).mtbf
    (4.795, 18.39, None)
    """
    if not 0 < exposure < math.inf:
        raise BadInput(f"exposure: got {shorten(exposure)}, expected seconds above 0")
    if not 0 <= interruptions <= _MOST:
        raise BadInput(f"interruptions: got {shorten(interruptions)}, expected from 0 to {_MOST:,}")
    if interruptions == 0:
        return Rate(exposure, 0, None, exposure / -math.log(1 - confidence), math.inf)
    tail, n = (1 - confidence) / 2, interruptions
    most = _where(lambda mean: at_most(n, mean) - tail, n, n + 20 * math.sqrt(n) + 50)
    least = _where(lambda mean: at_most(n - 1, mean) - (1 - tail), 0.0, n)
    return Rate(exposure, n, exposure / n, exposure / most, exposure / least)


def at_most(count: int, mean: float) -> float:
    """The probability that a Poisson variable of that mean is at most `count`.

    >>> round(at_most(0, 1.0), 6)
    0.367879
    """
    if mean <= 0:
        return 1.0
    # From the greatest term outwards, so that nothing underflows to a sum of zero.
    mode = min(count, int(mean))
    peak = mode * math.log(mean) - mean - math.lgamma(mode + 1)
    total, term, k = 1.0, 1.0, mode
    while k > 0 and term > 1e-18 * total:
        term *= k / mean
        total += term
        k -= 1
    term, k = 1.0, mode
    while k < count and term > 1e-18 * total:
        k += 1
        term *= mean / k
        total += term
    return min(math.exp(peak) * total, 1.0)


def _where(falling: Callable[[float], float], low: float, high: float) -> float:
    """The root of a function that falls from positive to negative."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2

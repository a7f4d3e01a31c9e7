"""Student's t distribution by the standard library alone: distribution function and its inverse.

Symbols: t a value, ν degrees of freedom (any number above 0), p a probability, I_x(a, b) the regularised
incomplete beta function.
"""

from __future__ import annotations

import math
from typing import Final

from loadsheet.errors import BadInput

_TINY: Final = 1e-300
_EXACT: Final = 1e-15
_MOST_TERMS: Final = 10_000


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for 0 ≤ x ≤ 1 and a, b > 0.

    I_x(a, b) = x^a (1 − x)^b / (a B(a, b)) · 1/(1 + d₁/(1 + d₂/(1 + …))),
    d₂ₘ = m (b − m) x / ((a + 2m − 1)(a + 2m)),  d₂ₘ₊₁ = −(a + m)(a + b + m) x / ((a + 2m)(a + 2m + 1)),
    and I_x(a, b) = 1 − I_{1−x}(b, a) where that converges faster. Source: NIST DLMF, 8.17.4 and 8.17.22;
    the fraction is evaluated from its beginning (Lentz 1976). Good to about 1e-13 for a, b up to 1e4.

    >>> incomplete_beta(0.5, 2, 2)
    0.5
    """
    if not (0 <= x <= 1 and a > 0 and b > 0):
        raise BadInput(f"incomplete beta: got x = {x}, a = {a}, b = {b}, expected 0 ≤ x ≤ 1 and a, b > 0")
    if x in (0, 1):
        return float(x)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    fraction, c, d = 1.0, 1.0, 0.0
    for term in range(_MOST_TERMS):
        m = term // 2
        if term == 0:
            step = 1.0
        elif term % 2 == 0:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / _away_from_zero(1 + step * d)
        c = _away_from_zero(1 + step / c)
        fraction *= c * d
        if abs(1 - c * d) < _EXACT and term:
            break
    return front * (fraction - 1)


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def two_sided_p(t: float, df: float) -> float:
    """The probability of a value at least as far from 0 as t: P(|T| ≥ |t|) = I_{ν/(ν + t²)}(ν/2, 1/2).

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.1.

    >>> round(two_sided_p(12.706, 1), 4)
    0.05
    """
    if not df > 0:
        raise BadInput(f"Student's t: got {df} degrees of freedom, expected more than 0")
    return 1.0 if t == 0 else incomplete_beta(df / (df + t * t), df / 2, 0.5)


def quantile(confidence: float, df: float) -> float:
    """The t for which P(|T| ≤ t) = `confidence`: half the width of a two-sided interval, in standard errors.

    Found by bisection, in whose steps nothing can go wrong. Raises BadInput for a confidence outside
    0 … 1 (both excluded) or degrees of freedom that are not above 0.

    >>> round(quantile(0.95, 4), 3), round(quantile(0.99, 10), 3)
    (2.776, 3.169)
    """
    if not 0 < confidence < 1:
        raise BadInput(f"confidence: got {confidence}, expected a number between 0 and 1, such as 0.95")
    outside = 1 - confidence
    low, high = 0.0, 1.0
    while two_sided_p(high, df) > outside:
        low, high = high, 2 * high
        if math.isinf(high):
            return math.inf
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if two_sided_p(middle, df) > outside:
            low = middle
        else:
            high = middle

"""How much work between two saves costs least in the end.

Symbols: δ what a save costs the loop (seconds), M the mean time between interruptions (seconds), τ the work
between the end of a save and the beginning of the next (seconds), p the share of interruptions whose notice
works: the state is saved in time and nothing is repeated.

Three answers to one question. Young's is the first-order one, Daly's the higher-order one, `exact` the true
minimum of Daly's own model (exponential interruptions). What a restart costs does not move it, and neither
does the time until a save is durable, as long as saves do not overtake one another. The minimum is flat:
twice too long costs a few percent.
"""

from __future__ import annotations

import math
from typing import Any

from loadsheet.money.elementwise import MOST, bounded, functions
from loadsheet.units import largest, where

_HALVINGS = 100  # of 300: down to the last bit
_LEAST = 1e-150  # its square is still a number


def young(save: Any, mtbf: Any, notice_works: Any = 0.0) -> Any:
    """Young's interval √(2·δ·M/(1 − p)), seconds; numbers or arrays.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974) 530–531,
    with M/(1 − p) for M: only interruptions without a working notice cost an interval. Good while δ ≪ M.

    >>> round(young(300, 86400) / 60)
    120
    """
    return functions(save, mtbf, notice_works).sqrt(2.0 * save * _harmful(mtbf, notice_works))


def daly(save: Any, mtbf: Any, notice_works: Any = 0.0) -> Any:
    """Daly's interval √(2δM)·[1 + ⅓·√(δ/2M) + ⅑·(δ/2M)] − δ where δ < 2M, else M; seconds.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22
    (2006) 303–312, eq. (37), with M/(1 − p) for M. His published optima at δ = 5 min: 117 min for
    M = 24 h, 57 min for 6 h, 9.1 min for 15 min. Numbers or arrays.

    >>> [round(daly(300, 3600 * hours) / 60, 1) for hours in (24, 6, 0.25)]
    [116.7, 56.7, 9.1]
    """
    mean = _harmful(mtbf, notice_works)
    xp = functions(save, mean)
    ratio = save / (2.0 * mean)
    found = xp.sqrt(2.0 * save * mean) * (1.0 + xp.sqrt(ratio) / 3.0 + ratio / 9.0) - save
    # without interruptions δ/M is 0 and the first factor infinite: never
    return where(ratio < 1.0, found, mean)


def exact(save: Any, mtbf: Any, notice_works: Any = 0.0) -> Any:
    """The τ that minimises the expected time ln(1 + p·(e^((τ+δ)/M) − 1))/(p·τ); seconds, numbers or arrays.

    For p = 0 that is Daly's model, (e^((τ+δ)/M) − 1)/τ, whose minimum is τ = M·(1 + W₀(−e^(−1−δ/M))) with
    Lambert's W. With v = (τ+δ)/M the minimum is the root of

        v − δ/M = ((1−p)·e⁻ᵛ + p)·ln(1 + p·(eᵛ − 1))/p

    whose sides differ by a function that grows with v: it is found by halving. There is none, and the
    answer is infinite, where p ≥ e^(−δ/M): then it pays to rely on the notices. Derived in
    docs/odds.md; where M is far beyond δ it is Young's.

    >>> [round(exact(300, 3600 * hours) / 60, 1) for hours in (24, 6, 0.25)]
    [116.7, 56.7, 9.2]
    """
    p = largest(notice_works, _LEAST)
    xp = functions(save, mtbf, notice_works)
    ratio = save / mtbf

    def excess(v: Any) -> Any:
        e = xp.expm1(bounded(v))
        return v - ratio - (1.0 + p * e) / (1.0 + e) * xp.log1p(p * e) / p

    low: Any = ratio + 0.0 * p
    high: Any = low + MOST
    never = excess(bounded(high)) <= 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        above = excess(middle) > 0.0
        low, high = where(above, low, middle), where(above, middle, high)
    found = where(ratio > 0.0, 0.5 * (low + high) - ratio, 0.0)  # saves that cost nothing: all the time
    finite = where(mtbf < math.inf, mtbf, 1.0)
    return where(mtbf < math.inf, where(never & (ratio > 0.0), math.inf, found * finite), math.inf)


def _harmful(mtbf: Any, notice_works: Any) -> Any:
    """M/(1 − p), the mean time between interruptions that cost an interval; infinite if all notices work."""
    share = 1.0 - notice_works
    return where(share > 0.0, mtbf / where(share > 0.0, share, 1.0), math.inf)


def in_steps(seconds: float, step_seconds: float, *, up: bool = False) -> int:
    """The interval in whole steps, at least one: the nearest number, or the next above.

    >>> in_steps(3400.0, 7.0), in_steps(1.0, 7.0)
    (486, 1)
    """
    steps = seconds / step_seconds
    return max(math.ceil(steps - 1e-9) if up else round(steps), 1)


def best_every(work: float, save: float, mtbf: float, notice_works: float, commit: float) -> float:
    """The exact optimum, seconds, or what is near it and divides the work into equal parts.

    Never less than the commit latency: saves would wait for one another.

    >>> round(best_every(86400, 300, 21600, 0, 0))
    3456
    """
    least: float = max(exact(save, mtbf, notice_works), commit) or 1.0
    if least >= work:
        return work
    return work / max(math.floor(work / least) if least == commit else round(work / least), 1)

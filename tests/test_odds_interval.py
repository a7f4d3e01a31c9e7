"""How often to save: Young, Daly and the exact optimum, against papers, brute force and the run's own policy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadsheet.money.interval import best_every, daly, exact, in_steps, young
from loadsheet.run.policy import young_interval

MINUTE, HOUR = 60.0, 3600.0

spans = st.floats(min_value=60.0, max_value=1e8)
ratios = st.floats(min_value=1e-6, max_value=5.0)


@pytest.mark.parametrize(("mtbf_hours", "minutes"), [(24, "117"), (6, "57"), (0.25, "9.1")])
def test_daly_published_optima(mtbf_hours: float, minutes: str) -> None:
    """Daly 2006, figures: for δ = 5 min the optimum is 117, 57 and 9.1 min at M = 24 h, 6 h and 15 min."""
    digits = len(minutes.partition(".")[2])
    assert f"{daly(300.0, mtbf_hours * HOUR) / MINUTE:.{digits}f}" == minutes
    assert exact(300.0, mtbf_hours * HOUR) == pytest.approx(float(minutes) * MINUTE, rel=0.01)


def test_young_1974() -> None:
    """√(2·δ·M): 120 min for δ = 5 min and M = 24 h, by hand √(2·5·1440) min."""
    assert young(300.0, 86400.0) / MINUTE == 120.0


def daly_time(tau: float, save: float, mtbf: float) -> float:
    """Daly 2006, eq. 13, without the restart: expected time per work."""
    return mtbf * math.expm1((tau + save) / mtbf) / tau


@pytest.mark.parametrize("mtbf", [15 * MINUTE, HOUR, 6 * HOUR, 24 * HOUR, 1000 * HOUR])
@pytest.mark.parametrize("save", [1.0, 60.0, 300.0, 1800.0])
def test_exact_is_the_minimum(save: float, mtbf: float) -> None:
    """Nothing on a fine grid around it costs less, and Lambert's W has it: w·e^w = −e^(−1−δ/M)."""
    best = exact(save, mtbf)
    least = daly_time(best, save, mtbf)
    assert all(daly_time(best * (1 + k / 1000), save, mtbf) >= least for k in (-100, -10, -3, 3, 10, 100))
    w = best / mtbf - 1
    assert w * math.exp(w) == pytest.approx(-math.exp(-1 - save / mtbf), rel=1e-12)


def noticed_time(tau: float, save: float, mtbf: float, works: float) -> float:
    """Expected time per work where a share of the notices works, restarts apart; docs/odds.md."""
    return math.log1p(works * math.expm1((tau + save) / mtbf)) / (works * tau)


@pytest.mark.parametrize("works", [0.1, 0.5, 0.9, 0.99])
def test_exact_with_notices_is_the_minimum(works: float) -> None:
    """A golden-section search over the time finds the same interval."""
    save, mtbf = 60.0, 4 * HOUR
    low, high, golden = 10.0, 100 * mtbf, (math.sqrt(5) - 1) / 2
    for _ in range(200):
        a, b = high - golden * (high - low), low + golden * (high - low)
        if noticed_time(a, save, mtbf, works) < noticed_time(b, save, mtbf, works):
            high = b
        else:
            low = a
    assert exact(save, mtbf, works) == pytest.approx(low, rel=1e-5)


@pytest.mark.parametrize(("works", "minutes", "brute"), [(0.0, 22, 20), (0.5, 31, 29), (0.9, 69, 67)])
def test_rule_with_notices(works: float, minutes: int, brute: int) -> None:
    """√(2δM/(1−p)) at δ = 1 min, M = 4 h: 22, 31, 69 min; simulations found 20, 29, 67, which cost no more."""
    assert round(young(60.0, 4 * HOUR, works) / MINUTE) == minutes
    p = max(works, 1e-9)
    best = noticed_time(exact(60.0, 4 * HOUR, works), 60.0, 4 * HOUR, p)
    assert noticed_time(brute * MINUTE, 60.0, 4 * HOUR, p) < 1.001 * best


def test_notices_that_make_saves_needless() -> None:
    """Where p ≥ e^(−δ/M) regular saves never pay, and just below they do."""
    edge = math.exp(-60.0 / HOUR)
    assert exact(60.0, HOUR, edge + 1e-9) == exact(60.0, HOUR, 1.0) == math.inf
    assert exact(60.0, HOUR, edge - 1e-6) < math.inf


@pytest.mark.parametrize("mtbf", [15 * MINUTE, 6 * HOUR, 24 * HOUR])
def test_flat_minimum(mtbf: float) -> None:
    """Twice too long costs a few percent, where saves are short beside M."""
    best = exact(60.0, mtbf)
    assert 1.005 < daly_time(2 * best, 60.0, mtbf) / daly_time(best, 60.0, mtbf) < 1.12


def test_the_run_saves_as_often_as_the_odds_advise() -> None:
    """`checkpoint_every="auto"` takes Young's interval, as this does, but for its own floor of two saves."""
    for stall, mtbf in ((0.089, 7200.0), (5.0, 21600.0), (300.0, 86400.0)):
        assert young_interval(stall, 0.0, mtbf) == young(stall, mtbf)
    assert young_interval(1.0, 600.0, 7200.0) == 1200.0 > young(1.0, 7200.0)


def test_arrays() -> None:
    """An array of questions has the array of the answers."""
    save, mtbf, works = [60.0, 300.0, 0.0], [HOUR, 6 * HOUR, HOUR], [0.0, 0.5, 0.99]
    for formula in (young, daly, exact):
        one_by_one = [formula(s, m, p) for s, m, p in zip(save, mtbf, works, strict=True)]
        found = formula(np.array(save), np.array(mtbf), np.array(works))
        assert found.tolist() == pytest.approx(one_by_one, rel=1e-12)


@pytest.mark.parametrize("formula", [young, daly, exact])
def test_limits(formula: object) -> None:
    """Saves that cost nothing: all the time; machines that stay for ever: never."""
    assert callable(formula)
    assert formula(0.0, HOUR) == 0.0
    assert formula(60.0, math.inf) == math.inf


@given(spans, ratios, st.floats(min_value=1.01, max_value=10.0))
def test_grows_with_both(mtbf: float, ratio: float, factor: float) -> None:
    """Dearer saves and longer lives are reasons to save less often; and Young's is never below the exact one."""
    save = ratio * mtbf
    best = exact(save, mtbf)
    assert best <= exact(save * factor, mtbf) * (1 + 1e-9)
    assert best <= exact(save, mtbf * factor) * (1 + 1e-9)
    assert 0 < best <= young(save, mtbf) * (1 + 1e-9)


def test_equal_parts() -> None:
    """The interval that is used divides the work, and never undercuts the time until a save is durable."""
    every = best_every(24 * HOUR, 300.0, 6 * HOUR, 0.0, 0.0)
    assert 24 * HOUR / every == pytest.approx(25)
    assert best_every(600.0, 300.0, 6 * HOUR, 0.0, 0.0) == 600.0
    assert best_every(24 * HOUR, 1.0, HOUR, 0.0, 1800.0) >= 1800.0


def test_whole_steps() -> None:
    """Saves stand between steps: 57.6 min in steps of 7 s are 494 of them, or 493.7 rounded."""
    assert (in_steps(3456.0, 7.0), in_steps(3451.0, 7.0), in_steps(3451.0, 7.0, up=True)) == (494, 493, 493)
    assert in_steps(0.1, 7.0) == 1

"""Student's t, Welch's interval and Holm's correction against tables, other programs and other methods."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from loadsheet.errors import BadInput
from loadsheet.history.student import incomplete_beta, quantile, two_sided_p
from loadsheet.history.welch import Spread, holm, spread, welch

# NIST/SEMATECH e-Handbook, 1.3.6.7.2, critical values of Student's t: upper tail 0.025 and 0.005
TABLE = {
    1: (12.706, 63.657), 2: (4.303, 9.925), 3: (3.182, 5.841), 4: (2.776, 4.604), 5: (2.571, 4.032),
    6: (2.447, 3.707), 8: (2.306, 3.355), 10: (2.228, 3.169), 15: (2.131, 2.947), 20: (2.086, 2.845),
    30: (2.042, 2.750), 60: (2.000, 2.660), 100: (1.984, 2.626),
}  # fmt: skip

# Student's sleep data (Biometrika 6, 1908), the example of R's t.test: extra ~ group
SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)


@pytest.mark.parametrize("df", TABLE)
def test_quantiles_of_the_published_table(df: int) -> None:
    """Two-sided 95 % and 99 % points to the three decimals of the table."""
    assert TABLE[df] == (round(quantile(0.95, df), 3), round(quantile(0.99, df), 3))


@pytest.mark.parametrize("t", [1e-3, 0.5, 1.0, 4.0, 50.0, 1e5])
def test_closed_forms(t: float) -> None:
    """For ν = 1 and 2 the distribution has a closed form (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    assert 1 - 2 / math.pi * math.atan(t) == pytest.approx(two_sided_p(t, 1), rel=1e-6, abs=1e-14)
    assert 1 - t / math.sqrt(2 + t * t) == pytest.approx(two_sided_p(t, 2), rel=1e-6, abs=1e-14)


def _integrated(t: float, df: float) -> float:
    """P(|T| ≤ t) by Simpson's rule over the density, 4000 strips."""
    factor = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    n = 4000
    h = t / n
    values = [factor * (1 + (i * h) ** 2 / df) ** (-(df + 1) / 2) for i in range(n + 1)]
    return 2 * h / 3 * (values[0] + values[-1] + 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2]))


@pytest.mark.parametrize("df", [0.7, 1.31, 2.5, 3.14, 7.99, 17.776, 120.0, 5000.0])
@pytest.mark.parametrize("t", [0.1, 1.0, 2.5, 6.0])
def test_against_numeric_integration(df: float, t: float) -> None:
    """An independent method for degrees of freedom that are no whole numbers, as Welch's are."""
    assert 1 - _integrated(t, df) == pytest.approx(two_sided_p(t, df), abs=1e-9)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("df", [0.5, 1.7, 12.3, 1e4])
def test_the_quantile_is_the_inverse(confidence: float, df: float) -> None:
    """P(|T| ≤ quantile(c)) = c."""
    assert confidence == pytest.approx(1 - two_sided_p(quantile(confidence, df), df), abs=1e-12)


def test_incomplete_beta_is_a_binomial_tail() -> None:
    """I_x(a, n − a + 1) = P(at least a of n), summed here term by term (DLMF 8.17.5)."""
    for n, a, x in ((10, 3, 0.2), (25, 20, 0.9), (7, 7, 0.5), (40, 1, 0.01)):
        tail = sum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
        assert tail == pytest.approx(incomplete_beta(x, a, n - a + 1), rel=1e-12)
    assert (incomplete_beta(0, 2, 3), incomplete_beta(1, 2, 3)) == (0.0, 1.0)


def test_the_sleep_data_as_r_has_them() -> None:
    """R's t.test(extra ~ group, data = sleep): every figure that it prints."""
    a, b = map(spread, SLEEP)
    found = welch(a, b)
    assert found is not None
    assert (pytest.approx(a.mean), pytest.approx(b.mean)) == (0.75, 2.33)
    assert (round(found.t, 4), round(found.df, 3), round(found.p, 5)) == (-1.8608, 17.776, 0.07939)
    assert (round(found.low, 7), round(found.high, 7)) == (-3.3654832, 0.2054832)


def test_groups_of_unequal_size_and_spread_as_nag_has_them() -> None:
    """NAG Library, example of g07cac: n 4 and 8, means 25 and 21, s 0.8185 and 4.208 (rounded there)."""
    a, b = Spread(4, 25.0, 0.8185, 24.0, 26.0), Spread(8, 21.0, 4.2080, 15.0, 27.0)
    found = welch(a, b)
    assert found is not None
    assert pytest.approx((found.t, found.df, found.p), abs=5e-4) == (2.5922, 7.9925, 0.0320)
    assert (pytest.approx(found.low, abs=5e-4), pytest.approx(found.high, abs=5e-4)) == (0.4410, 7.5590)


def test_a_worked_example_of_r() -> None:
    """statscodes.com, "Welch's Two Sample t-tests in R": t = 0.51703, df = 9.48, p = 0.617."""
    found = welch(spread([5.1, 2.0, 4.1, 6.2, 7.1, 8.3]), spread([1.5, 6.4, 3.3, 5.8, 4.8, 7.2, 5.6, 4.5]))
    assert found is not None
    assert (round(found.t, 5), round(found.df, 2), round(found.p, 3)) == (0.51703, 9.48, 0.617)
    assert (round(found.low, 6), round(found.high, 6)) == (-1.935420, 3.093754)


def test_the_interval_covers_as_often_as_it_says() -> None:
    """600 draws of two groups of 4 with one mean and spreads 1 and 3: 95 % of the intervals hold the 0."""
    draw = random.Random(20261129)
    held = 0
    for _ in range(600):
        a = spread([draw.gauss(5, 1) for _ in range(4)])
        b = spread([draw.gauss(5, 3) for _ in range(4)])
        found = welch(a, b)
        assert found is not None
        held += found.low <= 0 <= found.high
    # three standard deviations of a binomial, and the percent or two by which Welch is off for n = 4
    assert pytest.approx(held / 600, abs=0.04) == 0.95


def test_one_value_or_no_spread_says_nothing() -> None:
    """No interval from n = 1, none where neither group spreads; one group without spread is enough for one."""
    one, two, flat = spread([1.0]), spread([1.0, 2.0]), spread([3.0, 3.0])
    assert welch(one, two) is None
    assert welch(two, one) is None
    assert welch(flat, spread([5.0, 5.0, 5.0])) is None
    found = welch(two, flat)
    assert found is not None
    # ν is that of the group that spreads: n − 1 = 1, so t = 12.706 (table), times s/√n = 0.5
    assert (pytest.approx(found.low, abs=1e-3), pytest.approx(found.df)) == (-1.5 - 12.706 * 0.5, 1.0)
    assert one.deviation is None


def test_holm_as_published() -> None:
    """Holm's method on p = 0.01, 0.04, 0.03, 0.005 at 5 %: the first and the last are rejected, two are not."""
    adjusted = holm([0.01, 0.04, 0.03, 0.005])
    assert [p < 0.05 for p in adjusted] == [True, False, False, True]
    assert pytest.approx(adjusted) == [0.03, 0.06, 0.06, 0.02]
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_spread_is_the_textbook_one() -> None:
    """2, 4, 4, 4, 5, 5, 7, 9: mean 5, Σ(x − x̄)² = 32, s = √(32/7)."""
    values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]
    found = spread(values)
    assert (found.n, found.mean, found.low, found.high) == (8, 5.0, 2.0, 9.0)
    assert math.sqrt(32 / 7) == pytest.approx(found.deviation)
    assert fmean(values) == found.mean


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.1, math.nan])
def test_a_confidence_that_is_none(confidence: float) -> None:
    """Refused, also where no interval would come of it."""
    with pytest.raises(BadInput, match="confidence"):
        welch(spread([1.0, 2.0]), spread([1.0, 3.0]), confidence)
    with pytest.raises(BadInput, match="confidence"):
        welch(spread([1.0]), spread([1.0, 3.0]), confidence)
    with pytest.raises(BadInput, match="degrees"):
        two_sided_p(1.0, 0.0)

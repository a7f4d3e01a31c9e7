"""Expected time and its spread, against formulas from elsewhere, second methods and limits."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadsheet.errors import BadInput
from loadsheet.money.interruptions import (
    STRESS,
    Job,
    Span,
    combined,
    expected,
    exponential,
    must_finish,
    passage,
    segment,
    stationary_wait,
)
from loadsheet.money.interval import exact

HOUR = 3600.0


def daly(work: float, every: float, save: float, restart: float, mtbf: float) -> float:
    """Daly 2006, eq. 13: M·e^(R/M)·(e^((τ+δ)/M) − 1)·W/τ."""
    return mtbf * math.exp(restart / mtbf) * math.expm1((every + save) / mtbf) * work / every


@pytest.mark.parametrize("restart", [0.0, 120.0, 1800.0])
@pytest.mark.parametrize("mtbf", [HOUR, 6 * HOUR, 1000 * HOUR])
def test_daly_eq_13(restart: float, mtbf: float) -> None:
    """In equal segments and without a start-up, the first restart apart, it is Daly's formula."""
    job = Job(24 * HOUR, 300.0, 0.5 * HOUR, mtbf, restart)
    whole = daly(24 * HOUR, 0.5 * HOUR, 300.0, restart, mtbf)
    assert expected(job).total.mean == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(
    ("mtbf_hours", "slowdown", "ratio"),
    [(0.5, 1.83, 0.55), (1, 1.43, 0.70), (2, 1.24, 0.81), (4, 1.14, 0.87), (8, 1.09, 0.92)],
)
def test_slowdown_at_best(mtbf_hours: float, slowdown: float, ratio: float) -> None:
    """δ = 1 min, R = 10 min at the best interval: the factors, and the spot price at which it pays, of a study."""
    mtbf = mtbf_hours * HOUR
    every = exact(60.0, mtbf)
    found = expected(Job(1000 * every, 60.0, every, mtbf, 600.0)).total.mean / (1000 * every)
    assert (round(found, 2), round(1 / found, 2)) == (slowdown, ratio)


@pytest.mark.parametrize(("mtbf_hours", "within"), [(4, 0.005), (2, 0.02)])
@pytest.mark.parametrize("works", [0.0, 0.5, 0.9])
def test_first_order_with_notices(mtbf_hours: float, within: float, works: float) -> None:
    """W(1+δ/τ)/(1 − λ[R + p·δ + (1−p)(τ+δ)/2]), first order, is near: 0.5 % at M = 4 h, 2 % at M = 2 h."""
    mtbf, save, restart = mtbf_hours * HOUR, 60.0, 600.0
    every = exact(save, mtbf, works)
    job = Job(500 * every, save, every, mtbf, restart, notice_works=works, notice=save)
    lost = restart + works * save + (1 - works) * (every + save) / 2
    rough = job.work * (1 + save / every) / (1 - lost / mtbf)
    assert expected(job).total.mean == pytest.approx(rough, rel=within)


def test_gap_in_a_poisson_process() -> None:
    """Time until y seconds pass without an event: mean M(e^a − 1), variance M²(e^2a − 2a·e^a − 1); a textbook's."""
    for a in (0.01, 0.3, 1.0, 4.0, 12.0):
        span = passage(a * HOUR, HOUR)
        assert span.mean == pytest.approx(HOUR * math.expm1(a), rel=1e-12)
        variance = HOUR**2 * (math.exp(2 * a) - 2 * a * math.exp(a) - 1)
        assert span.variance == pytest.approx(variance, rel=1e-8)


def compound(length: float, restart: float, mtbf: float) -> tuple[float, float]:
    """Mean and variance of a segment as a geometric sum of cut-off lives: a second derivation."""

    def cut(of: float) -> tuple[float, float]:
        a = of / mtbf
        return mtbf - of / math.expm1(a), mtbf**2 - of**2 * math.exp(a) / math.expm1(a) ** 2

    fails, retry = -math.expm1(-length / mtbf), restart + length
    success = math.exp(-retry / mtbf)
    count, spread = (1 - success) / success, (1 - success) / success**2
    mean, variance = cut(retry)
    lost, lost_variance = count * mean, count * variance + spread * mean**2
    first, first_variance = cut(length)
    more, more_variance = first + restart + lost, first_variance + lost_variance
    return length + fails * more, fails * more_variance + fails * (1 - fails) * more**2


@pytest.mark.parametrize("restart", [0.0, 600.0, 5000.0])
@pytest.mark.parametrize(("length", "mtbf"), [(600.0, 36000.0), (3000.0, 3600.0), (20000.0, 3600.0)])
def test_segment_as_a_geometric_sum(length: float, mtbf: float, restart: float) -> None:
    """The same mean and variance as by summing the failed tries."""
    span = segment(length, length, mtbf, passage(restart, mtbf))
    mean, variance = compound(length, restart, mtbf)
    assert span.mean == pytest.approx(mean, rel=1e-11)
    assert span.variance == pytest.approx(variance, rel=1e-8)


def volterra(
    length: float, mtbf: float, pause: Span, works: float, lead: float, steps: int = 4000
) -> tuple[float, float]:
    """First and second moment of a passage with notices from their integral equations, step by step."""
    rate, h = 1 / mtbf, length / steps
    first, second = np.zeros(steps + 1), np.zeros(steps + 1)
    x = np.arange(steps + 1) * h
    density = rate * np.exp(-rate * x)
    kept, kept2 = lead + pause.mean, lead**2 + 2 * lead * pause.mean + pause.square
    for n in range(1, steps + 1):
        y, weight = x[n], np.full(n + 1, h)
        weight[0] = weight[-1] = h / 2
        d, past = density[: n + 1] * weight, x[: n + 1]
        stays = math.exp(-rate * y)
        hit = 1 - stays
        mean = mtbf * (1 - stays) - y * stays  # of X where X < y
        square = 2 * mtbf**2 * (1 - stays) - (2 * mtbf * y + y**2) * stays
        tail, tail2 = first[n::-1], second[n::-1]  # what is left after x, with the unknown at x = 0
        known = stays * y + mean + works * (kept * hit + (d * tail).sum()) + (1 - works) * pause.mean * hit
        own = (1 - works) * hit + works * d[0]
        first[n] = known / (1 - own)
        tail = first[n::-1]
        known2 = stays * y**2 + square
        known2 += works * (
            2 * kept * mean + kept2 * hit + 2 * (d * (past + kept) * tail).sum() + (d * tail2).sum()
        )
        known2 += (1 - works) * (
            2 * pause.mean * mean + pause.square * hit + 2 * (mean + pause.mean * hit) * first[n]
        )
        second[n] = known2 / (1 - own)
    return float(first[-1]), float(second[-1])


@pytest.mark.parametrize("works", [0.0, 0.3, 0.9, 1.0])
def test_passage_solves_its_integral_equation(works: float) -> None:
    """Mean and variance with notices agree with the equations solved in small steps."""
    pause, lead = Span(700.0, 250_000.0), 120.0
    span = passage(5000.0, 3600.0, pause, works, lead)
    mean, square = volterra(5000.0, 3600.0, pause, works, lead)
    assert span.mean == pytest.approx(mean, rel=1e-4)
    assert span.variance == pytest.approx(square - mean**2, rel=1e-3)


def test_commit_latency_is_a_longer_restart() -> None:
    """What is not durable yet is lost too: c seconds more per repeated segment, e^((R+c)/M) for e^(R/M)."""
    mtbf, restart, commit, length = 2 * HOUR, 300.0, 240.0, 1860.0
    span = segment(length, length + commit, mtbf, passage(restart, mtbf))
    longer = mtbf * math.exp((restart + commit) / mtbf) * math.expm1(length / mtbf)
    assert span.mean == pytest.approx(longer, rel=1e-12)


def test_without_interruptions() -> None:
    """M → ∞: start-up, work, a save each, the last one until it is durable, and no spread at all."""
    job = Job(10 * HOUR, 60.0, 3 * HOUR, math.inf, 600.0, 900.0, commit=30.0)
    found = expected(job, exponential(1000.0))
    assert (found.total.mean, found.total.variance) == (900 + 36000 + 4 * 60 + 30, 0.0)
    assert found.interruptions == found.waiting == found.repeated == 0.0
    near = expected(replace(job, mtbf=1e15)).total
    assert near.mean == pytest.approx(found.total.mean, rel=1e-9)


def test_one_segment() -> None:
    """τ ≥ W: one save, at the end, and everything is repeated until it passes: M·e^(R/M)·(e^((W+δ)/M) − 1)."""
    for every in (HOUR, 5 * HOUR):
        job = Job(HOUR, 60.0, every, 2 * HOUR, 600.0)
        whole = 2 * HOUR * math.exp(600 / 7200) * math.expm1(3660 / 7200)
        assert expected(job).total.mean == pytest.approx(whole, rel=1e-12)


def test_saves_for_nothing() -> None:
    """δ = 0, τ → 0: only restarts are left, W·e^(R/M)."""
    found = expected(Job(10 * HOUR, 0.0, 0.01, 2 * HOUR, 600.0)).total.mean
    assert found == pytest.approx(10 * HOUR * math.exp(600 / 7200), rel=1e-5)


def test_notices_that_all_work() -> None:
    """p = 1: no work is repeated, each interruption costs the notice and a restart: L·(1 + (g + ρ)/M)."""
    job = Job(10 * HOUR, 60.0, HOUR, 2 * HOUR, 600.0, notice_works=1.0, notice=120.0)
    restart = 2 * HOUR * math.expm1(600 / 7200)
    found = expected(job)
    assert found.total.mean == pytest.approx((36000 + 600) * (1 + (120 + restart) / 7200), rel=1e-12)
    assert found.repeated == pytest.approx(0.0, abs=1e-6)


def test_last_segment_is_shorter() -> None:
    """10 h in segments of 3 h: four saves, the last after one hour."""
    job = Job(10 * HOUR, 60.0, 3 * HOUR, 5 * HOUR, 600.0)
    assert (job.segments, job.last) == (4.0, HOUR)
    parts = [daly(tau, tau, 60.0, 600.0, 5 * HOUR) for tau in (3 * HOUR,) * 3 + (HOUR,)]
    assert expected(job).total.mean == pytest.approx(sum(parts), rel=1e-12)


def test_start_up_is_paid_once_more() -> None:
    """R0, which is easily forgotten, adds M·(e^(R0/M) − 1): a start that is interrupted begins again."""
    job = Job(10 * HOUR, 60.0, HOUR, 5 * HOUR, 600.0)
    more = expected(replace(job, startup=1800.0)).total.mean - expected(job).total.mean
    assert more == pytest.approx(5 * HOUR * math.expm1(1800 / 18000), rel=1e-9)


def test_saves_that_overtake_one_another() -> None:
    """Asynchronous saves that are not durable when the next is due make that one wait: τ 10 s, c 60 s, δ 1 s."""
    job = Job(1000.0, 1.0, 10.0, math.inf, commit=60.0)
    assert expected(job).total.mean == 100 * (60 + 1) + 60


def test_interruptions_and_waits() -> None:
    """Interruptions come at the rate 1/M of the machine's time (Wald), and each costs the mean wait."""
    job = Job(24 * HOUR, 300.0, HOUR, 3 * HOUR, 900.0, 1800.0, 120.0)
    machine, wall = expected(job), expected(job, Span(1200.0, 0.0))
    assert machine.interruptions == pytest.approx(machine.total.mean / job.mtbf, rel=1e-12)
    assert wall.waiting == pytest.approx(machine.interruptions * 1200.0, rel=1e-12)
    assert wall.total.mean == pytest.approx(machine.total.mean + wall.waiting, rel=1e-12)


def test_first_wait() -> None:
    """Asked at a random time, a machine is missing with probability D/(M+D): up 3 h, down 1 h gives 15 min."""
    span = stationary_wait(3 * HOUR, HOUR)
    assert span.mean == pytest.approx(900.0)
    assert span.square == pytest.approx(0.25 * 2 * HOUR**2)
    assert stationary_wait(math.inf, HOUR).mean == 0.0


def test_rates_add_up() -> None:
    """Spot with notices and failures without: λ = (1−p)·λ_spot + λ_fail is what costs work."""
    mtbf, works = combined(4 * HOUR, 0.9, 100 * HOUR)
    assert (1 - works) / mtbf == pytest.approx(0.1 / (4 * HOUR) + 1 / (100 * HOUR), rel=1e-12)
    assert combined(4 * HOUR, 0.9, math.inf) == (4 * HOUR, pytest.approx(0.9))
    assert combined(math.inf, 0.0, math.inf) == (math.inf, 0.0)


@pytest.mark.parametrize(
    "job",
    [
        Job(24 * HOUR, 300.0, 10 * HOUR, HOUR, 600.0),
        Job(24 * HOUR, 300.0, HOUR, 300.0, 600.0),
        Job(24 * HOUR, 3600.0, 60.0, 300.0),
        Job(24 * HOUR, 1.0, 60.0, 60.0, 900.0),
        Job(1e7, 1.0, 1e7, 1.0),
    ],
)
def test_never_finishes_is_an_error(job: Job) -> None:
    """A stretch that almost never passes is no very long job: it is said."""
    with pytest.raises(BadInput) as caught:
        must_finish(job)
    assert "this job never finishes" in caught.value.hint
    assert math.isfinite(expected(job).total.mean)


def test_stress_law() -> None:
    """The law of up-times: mean 1.00 M, spread 1.8 M; where 63 % end within an hour they hold 8 % of the hours."""
    mean = sum(share * of for share, of in STRESS)
    square = sum(2 * share * of**2 for share, of in STRESS)
    assert round(mean, 2) == 1.0
    assert round(math.sqrt(square - mean**2) / mean, 1) == 1.8
    mtbf = 2.45  # hours
    within = sum(share * -math.expm1(-1 / (of * mtbf)) for share, of in STRESS)
    hours = sum(share * (of * mtbf - math.exp(-1 / (of * mtbf)) * (1 + of * mtbf)) for share, of in STRESS)
    assert (round(within, 2), round(hours / (mean * mtbf), 2)) == (0.63, 0.08)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Jobs that finish, from minutes to months."""
    mtbf = draw(st.floats(600.0, 1e6))
    job = Job(
        work=draw(st.floats(60.0, 1e6)),
        save=draw(st.floats(0.0, 0.5)) * mtbf,
        every=draw(st.floats(0.01, 1.5)) * mtbf,
        mtbf=mtbf,
        restart=draw(st.floats(0.0, 1.0)) * mtbf,
        startup=draw(st.floats(0.0, 1.0)) * mtbf,
        commit=draw(st.floats(0.0, 0.5)) * mtbf,
        notice_works=draw(st.floats(0.0, 1.0)),
        notice=draw(st.floats(0.0, 300.0)),
    )
    return replace(job, every=max(job.every, job.work / 1e5))


@given(jobs(), st.floats(1.01, 3.0))
def test_what_is_worse_takes_longer(job: Job, factor: float) -> None:
    """Time never falls with dearer saves, restarts and latency, nor with shorter lives or fewer good notices."""
    base = expected(job).total.mean
    assert base >= job.undisturbed * (1 - 1e-12)
    for name in ("save", "restart", "startup", "commit"):
        worse = replace(job, **{name: getattr(job, name) * factor})
        assert expected(worse).total.mean >= base * (1 - 1e-9)
    assert expected(replace(job, mtbf=job.mtbf / factor)).total.mean >= base * (1 - 1e-9)
    if job.notice == 0.0:
        assert expected(replace(job, notice_works=job.notice_works / factor)).total.mean >= base * (1 - 1e-9)


@given(jobs(), st.floats(0.0, 1e5))
def test_parts_add_up(job: Job, wait: float) -> None:
    """Work, saving, repeated work, restarts and waits are the whole; none is negative; neither is the variance."""
    found = expected(job, exponential(wait), stationary_wait(job.mtbf, wait))
    assert sum(found.parts.values()) == pytest.approx(found.total.mean, rel=1e-9)
    assert all(part >= -1e-6 * found.total.mean for part in found.parts.values())
    assert found.total.variance >= 0


@settings(max_examples=25, deadline=None)
@given(st.lists(jobs(), min_size=1, max_size=5), st.floats(0.0, 1e4))
def test_arrays_are_the_numbers_one_by_one(several: list[Job], wait: float) -> None:
    """One formula, two uses."""
    together = Job(*(np.array([getattr(job, f.name) for job in several]) for f in fields(Job)))
    found = expected(together, exponential(wait))
    each = [expected(job, exponential(wait)) for job in several]
    assert list(found.total.mean) == pytest.approx([e.total.mean for e in each], rel=1e-9)
    assert list(found.total.variance) == pytest.approx([e.total.variance for e in each], rel=1e-6)


def test_small_rates_keep_their_digits() -> None:
    """Variance where interruptions are rare: λL·(L²/3 + L·R + R²) to first order, at M = 10 years."""
    length, restart, mtbf = 1000.0, 600.0, 3.15e8
    span = segment(length, length, mtbf, passage(restart, mtbf))
    rough = length / mtbf * (length**2 / 3 + length * restart + restart**2)
    assert span.variance == pytest.approx(rough, rel=1e-4)

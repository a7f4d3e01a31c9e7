"""The simulation against the formulas, against a slower one, and what it says of its own certainty."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from loadsheet.errors import BadInput
from loadsheet.money import odds
from loadsheet.money.answer import Odds
from loadsheet.money.bill import Bill
from loadsheet.money.interruptions import STRESS, WEATHER, Job, expected, exponential, stationary_wait
from loadsheet.money.odds import (
    Exponential,
    Probability,
    Replay,
    Sample,
    affordable,
    probability,
    simulate,
)
from loadsheet.money.question import Inputs, ask
from loadsheet.money.rates import rate
from loadsheet.money.traces import Trace

HOUR = 3600.0
DAY = Job(24 * HOUR, 300.0, 3456.0, 6 * HOUR)

#: (job, mean wait): every term of the formula, alone and together
CASES = [
    (DAY, 0.0),
    (replace(DAY, restart=600.0, startup=1800.0), 0.0),
    (replace(DAY, restart=1200.0, startup=600.0, commit=240.0, mtbf=2 * HOUR), 1800.0),
    (replace(DAY, every=5000.0, restart=120.0), 600.0),  # the last segment is shorter
    (replace(DAY, every=48 * HOUR, mtbf=20 * HOUR, restart=600.0), 60.0),  # one segment
    (Job(4 * HOUR, 30.0, 100.0, HOUR, 600.0, 1800.0, commit=300.0), 1800.0),  # saves that overtake each other
    (Job(24 * HOUR, 60.0, 1800.0, 4 * HOUR, 600.0, 600.0, notice_works=0.5, notice=120.0), 0.0),
    (Job(24 * HOUR, 60.0, 1800.0, 2 * HOUR, 1200.0, 600.0, notice_works=0.9, notice=30.0), 1800.0),
    (Job(24 * HOUR, 60.0, 1800.0, 2 * HOUR, 1200.0, 600.0, notice_works=1.0, notice=120.0), 1800.0),
    (Job(1000.0, 30.0, 600.0, HOUR, 600.0, 1800.0, commit=100.0), 1800.0),
]


@pytest.mark.parametrize(("job", "wait"), CASES)
def test_simulation_and_formula_agree(job: Job, wait: float) -> None:
    """Mean and variance, on the machine and on the wall, and the count of interruptions: within 4 standard errors."""
    jobs, seed = 30_000, 20261129
    sample = simulate(job, Exponential(job.mtbf, wait), jobs, seed)
    machine = expected(job)
    wall = expected(job, exponential(wait), stationary_wait(job.mtbf, wait))
    for values, span in ((sample.machine, machine.total), (sample.wall, wall.total)):
        mean, error = mean_and_error(values)
        assert abs(mean - span.mean) < 4 * error, (seed, mean, span.mean, error)
        fourth = float(((values - mean) ** 4).mean())
        error = math.sqrt((fourth - values.var() ** 2) / jobs)
        assert abs(values.var() - span.variance) < 4 * error, (seed, values.var(), span.variance)
    mean, error = mean_and_error(sample.interruptions)
    assert abs(mean - machine.interruptions) < 4 * error, (seed, mean, machine.interruptions)
    waited, error = mean_and_error(sample.waiting + sample.first_wait)
    assert abs(waited - wall.waiting) <= 4 * error, (seed, waited, wall.waiting)


def test_notices_and_latency_together() -> None:
    """Only here the formula is a little too high: a state saved on a notice stays ahead of the checkpoint due."""
    job = Job(24 * HOUR, 60.0, 1000.0, HOUR, 600.0, 1800.0, 300.0, 0.5, 120.0)
    mean, error = mean_and_error(simulate(job, Exponential(HOUR, 0.0), 30_000, 5).machine)
    assert mean - 4 * error <= expected(job).total.mean <= 1.005 * mean


def one_by_one(job: Job, dice: random.Random) -> float:
    """One job, save by save, second method: what is done, when it is durable, what is lost."""
    clock, start = 0.0, float(job.startup)
    durable = 0.0  # work that is safe
    ahead = 0.0  # of the segment that was under way at the notice
    while True:
        end = clock + dice.expovariate(1 / job.mtbf)
        noticed = dice.random() < job.notice_works
        clock += start
        if clock > end:
            clock = end
            continue
        start = float(job.restart)
        work, inside, pending = durable, ahead, []
        alive = True
        while alive:
            left = min(job.every, job.work - work) + job.save - inside
            if clock + left > end:
                alive = False
                break
            clock += left
            work, inside = min(work + job.every, job.work), 0.0
            pending.append((clock + job.commit, work))
            if work >= job.work:
                if clock + job.commit > end:
                    alive = False
                    break
                return clock + job.commit
        done = [of for when, of in pending if when <= end]
        if noticed:
            durable, ahead = work, inside + end - clock
            clock = end + job.notice
        else:
            if done:
                durable, ahead = done[-1], 0.0
            clock = end


@pytest.mark.parametrize(
    "job",
    [
        Job(10 * HOUR, 60.0, 1500.0, 2 * HOUR, 600.0, 900.0, commit=400.0),
        Job(10 * HOUR, 60.0, 1500.0, 2 * HOUR, 600.0, 900.0, notice_works=0.7, notice=90.0),
    ],
)
def test_a_slow_simulation_agrees(job: Job) -> None:
    """Following one job save by save in plain Python gives the same distribution."""
    dice = random.Random(7)
    slow = np.array([one_by_one(job, dice) for _ in range(4000)])
    fast = simulate(job, Exponential(job.mtbf, 0.0), 40_000, 3).machine
    (a, da), (b, db) = mean_and_error(slow), mean_and_error(fast)
    assert abs(a - b) < 4 * math.hypot(da, db)
    for q in (0.25, 0.5, 0.9):  # the share of one below the quantile of the other
        share = float((slow <= np.quantile(fast, q)).mean())
        assert abs(share - q) < 4 * math.sqrt(q * (1 - q) / len(slow))


def test_stressed_keeps_the_means() -> None:
    """Stressed up-times and waits have the means they are given, and 1.8 times their spread or more."""
    dice = np.random.default_rng(11)
    law = Exponential(HOUR, 1800.0, stressed=True)
    _, up, memory = law.start(dice, 200_000)
    wait, _, _ = law.again(dice, memory)
    for values, of in ((up, HOUR), (wait, 1800.0)):
        mean, error = mean_and_error(values)
        assert abs(mean - of) < 4 * error
        assert 1.8 < values.std() / mean < 2.4


def test_stressed_first_wait() -> None:
    """One asks into long waits more often: what is left of one is E[D²]/(2·E[D]) on average, in both weathers."""
    first, _, _ = Exponential(HOUR, 1800.0, stressed=True).start(np.random.default_rng(12), 200_000)
    whole = sum(share * of for share, of in STRESS)
    left = sum(share * of**2 for share, of in STRESS) / whole**2  # of a mean of 1
    by_hand = sum(0.5 * bad * 1800 / (bad * 1800 + good * HOUR) * left * bad * 1800 for good, bad in WEATHER)
    mean, error = mean_and_error(first)
    assert abs(mean - by_hand) < 4 * error


def test_seeds() -> None:
    """The same seed gives the same answer, another one another."""
    law = Exponential(DAY.mtbf, 600.0)
    first, again, other = (simulate(DAY, law, 100, seed).wall for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


# --- what is charged ------------------------------------------------------------------------------------


def test_charged_by_the_hour_and_at_least_a_minute() -> None:
    """Each machine's time is rounded up by itself: 1 h 1 s is 2 h by the hour; 30 s is a minute if that is least."""
    job = Job(HOUR, 1.0, HOUR, math.inf)
    law = Exponential(math.inf, 0.0)
    assert simulate(job, law, 1, 0, unit=HOUR).charged.tolist() == [2 * HOUR]
    assert simulate(replace(job, work=29.0), law, 1, 0, least=60.0).charged.tolist() == [60.0]
    assert simulate(replace(job, work=3599.0), law, 1, 0, unit=HOUR).charged.tolist() == [HOUR]
    spot = simulate(DAY, Exponential(DAY.mtbf, 0.0), 2000, 1, unit=HOUR)
    assert (spot.charged % HOUR == 0).all()
    more = spot.charged - spot.machine
    assert (more >= 0).all()
    assert (more < HOUR * (spot.interruptions + 1)).all()


def test_several_machines_are_all_paid_while_one_is_missing() -> None:
    """Four machines at 2 an hour for 10 h, and 3 h of waiting for one of them: 80 and 18."""
    parts = Bill(2.0, machines=4).parts(10 * HOUR, 3 * HOUR, 13 * HOUR)
    assert (parts["machines"], parts["machines kept while one is missing"]) == (80.0, 18.0)


def test_waiting_costs_volumes_and_no_machine() -> None:
    """On spot nothing is charged for a machine that is not there; a volume costs by the wall."""
    bill = Bill(2.0, hourly=0.005, storage_bytes=200 * 10**9, storage_price=0.1)
    assert bill.total(0.0, 5 * HOUR, 5 * HOUR) == pytest.approx(5 * 0.005 + 200 * 0.1 * 5 / 730)


def test_month_and_gigabyte() -> None:
    """A month is 730 h and a GB 10⁹ bytes: 1 TiB is 1,099.5 of them."""
    bill = Bill(0.0, storage_bytes=2**40, storage_price=0.1, egress_bytes=50 * 10**9, egress_price=0.09)
    assert bill.total(0.0, 0.0, 730 * HOUR) == pytest.approx(109.95 + 4.50, abs=0.01)


# --- probabilities ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"), [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)]
)
def test_wilson_interval(hits: int, of: int, low: float, high: float) -> None:
    """The score intervals of Newcombe, Statistics in Medicine 17 (1998), table I."""
    found = probability(hits, of)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    assert found.error == pytest.approx(math.sqrt(hits / of * (1 - hits / of) / of))


@pytest.mark.parametrize("of", [10, 1000, 100_000])
def test_never_zero_and_never_one(of: int) -> None:
    """None of n is no zero: below 3/n with 95 % (exactly 1 − 0.05^(1/n)); neither is all of n a one."""
    none, every = probability(0, of), probability(of, of)
    assert 0 < none.value < none.high == 3 / of
    assert 1 - 0.05 ** (1 / of) < none.high
    assert 1 - 3 / of == pytest.approx(every.low)
    assert every.low < every.value < 1
    assert "below" in str(none)
    assert "all but" in str(every)
    assert isinstance(none, Probability)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def test_jobs_that_were_cut_off() -> None:
    """What depends on how they end is no number; what does not, is."""
    nothing, values = np.zeros(4), np.array([1.0, 2.0, 3.0, 2.5])
    sample = Sample(values, values, nothing, nothing, nothing, np.array([False, False, False, True]))
    assert sample.quantiles(values, (0.25, 0.9)) == {"p25": 2.0, "p90": None}
    assert sample.mean(values) is None
    assert sample.below(values, 2.7) is None  # it may yet end before that
    below = sample.below(values, 2.2)  # it is already later than that
    assert below is not None
    assert below.value == 0.5


# --- limits -------------------------------------------------------------------------------------------------


class Counting:
    """A generator that counts what it draws."""

    def __init__(self, seed: int) -> None:
        self._inner = np.random.Generator(np.random.PCG64(seed))
        self.drawn = 0

    def _count(self, values: np.ndarray) -> np.ndarray:
        self.drawn += values.size
        return values

    def random(self, size: int) -> np.ndarray:
        return self._count(self._inner.random(size))

    def standard_exponential(self, size: int) -> np.ndarray:
        return self._count(self._inner.standard_exponential(size))

    def integers(self, high: int, size: int) -> np.ndarray:
        return self._inner.integers(high, size=size)


@pytest.mark.parametrize("stressed", [False, True])
@pytest.mark.parametrize("wait", [0.0, 600.0])
def test_draws_are_capped(monkeypatch: pytest.MonkeyPatch, stressed: bool, wait: float) -> None:
    """No more than the random numbers that are allowed, and the jobs are cut before they run out."""
    counters: list[Counting] = []

    def counting(seed: int) -> Counting:
        counters.append(Counting(seed))
        return counters[-1]

    monkeypatch.setattr(np.random, "default_rng", counting)
    job = replace(DAY, mtbf=HOUR, every=600.0, restart=600.0, notice_works=0.5)
    law = Exponential(job.mtbf, wait, stressed=stressed)
    jobs = affordable(10_000_000, 1 + float(expected(job).interruptions), law, 500_000)
    sample = simulate(job, law, jobs, 1, draws=500_000)
    assert sample.unfinished == 0
    assert 100_000 < counters[0].drawn <= 500_000
    everything = simulate(job, law, 10_000, 1, draws=100_000)
    assert everything.unfinished == 10_000
    assert counters[1].drawn <= 100_000 + 10_000 * 6


def test_a_job_that_never_ends_does_not_run_for_ever() -> None:
    """On a trace whose machines all go too soon, no job finishes, and the answer comes all the same."""
    law = Replay(Trace((600.0, 700.0), (60.0, 60.0), "short"))
    sample = simulate(Job(HOUR, 10.0, 1000.0, 650.0, 60.0), law, 50, 0, lives=500)
    assert sample.unfinished == 50
    assert sample.below(sample.wall, 2 * HOUR) == probability(0, 50)
    assert sample.below(sample.wall, 1e9) is None


# --- the whole answer -------------------------------------------------------------------------------------------


def answer(**options: object) -> Odds:
    base = {"work": 24 * HOUR, "save": 300.0, "restart": 120.0, "mtbf": 6 * HOUR, "jobs": 4000}
    return Odds(ask(Inputs({**base, **options})))


def test_unknown_waits_leave_the_deadline_open() -> None:
    """Without a word on capacity nobody can say when it ends; with one (0 is one) there is a number."""
    unknown = answer(deadline=36 * HOUR).to_json()
    assert unknown["p_by_deadline"] is None
    assert "--down-mean" in unknown["reasons"]["p_by_deadline"]
    assert unknown["wall_seconds"] is None
    known = answer(deadline=36 * HOUR, down_mean=0.0).to_json()
    assert 0.9 < known["p_by_deadline"] < 1
    slow = answer(deadline=36 * HOUR, down_mean=4 * HOUR).to_json()
    assert slow["p_by_deadline"] < known["p_by_deadline"]


def test_gamma_approximation_of_the_deadline() -> None:
    """A shifted gamma with the same mean and variance is 1–2 points off in the body, and no more."""
    job, deadline = replace(DAY, restart=600.0, startup=600.0), 30.5 * HOUR
    span, shift = expected(job).total, float(job.undisturbed)
    shape = (span.mean - shift) ** 2 / span.variance
    dice = np.random.default_rng(2)
    gamma = shift + dice.gamma(shape, span.variance / (span.mean - shift), 200_000)
    sample = simulate(job, Exponential(job.mtbf, 0.0), 50_000, 3)
    assert abs((gamma <= deadline).mean() - (sample.machine <= deadline).mean()) < 0.025


def test_what_no_dice_decide_is_certain() -> None:
    """A budget below the cost of an undisturbed job is impossible, by arithmetic and not by counting."""
    found = answer(price=1.0, budget=24.0)
    assert found.to_json()["p_within_budget"] == 0.0
    assert "even without an interruption" in found.reasons["p_within_budget"]
    assert 0 < answer(price=1.0, budget=26.3).to_json()["p_within_budget"] < 0.2
    assert answer(price=1.0, budget=1000.0).to_json()["p_within_budget"] == 4001 / 4002


def test_on_demand() -> None:
    """W(1+δ/τ) + R0 at its own price; spot pays below one over the slowdown."""
    found = answer(price=1.0, on_demand_price=3.0, every=HOUR).on_demand
    assert found is not None
    assert found["expected_seconds"] == 24 * HOUR + 24 * 300 + 120
    assert found["cost"] == pytest.approx(3 * (26 + 120 / 3600))
    assert found["price_ratio"] == pytest.approx(1 / 3)
    spot = expected(Job(24 * HOUR, 300.0, HOUR, 6 * HOUR, 120.0, 120.0)).total.mean
    assert found["break_even_ratio"] == pytest.approx(found["expected_seconds"] / spot)


def test_failures_strike_on_demand_too() -> None:
    """Llama 3: 419 failures in 54 days on 16,384 GPUs are one per 50,677 GPU hours: 8 GPUs hardly notice."""
    per_gpu = 54 * 24 * 16384 / 419
    assert round(per_gpu) == 50_677
    assert round(per_gpu / 8) == 6335
    plain = answer(price=1.0, on_demand_price=3.0).on_demand
    struck = answer(price=1.0, on_demand_price=3.0, failures=per_gpu / 8 * HOUR).on_demand
    assert plain is not None
    assert struck is not None
    assert 1 < struck["expected_seconds"] / plain["expected_seconds"] < 1.001


def test_cost_is_linear_in_the_time() -> None:
    """The middle is the price times the expected hours; low and high enclose it."""
    found = answer(price=2.0)
    assert found.cost is not None
    assert found.cost["mid"] == pytest.approx(2 * found.expected_seconds / HOUR)
    assert found.cost["low"] < found.cost["mid"] < found.cost["high"]


def test_more_machines_are_hit_more_often() -> None:
    """N machines of which any stops the job: λ = N·λ₁."""
    four, one = answer(machines=4, mtbf=24 * HOUR), answer(mtbf=6 * HOUR)
    assert four.expected_seconds == pytest.approx(one.expected_seconds)


def test_what_was_seen_is_not_divided() -> None:
    """M from a run of several machines was seen of all of them together; one that is typed is of one machine."""
    inputs = Inputs({"work": 24 * HOUR, "save": 300.0, "machines": 4, "restart": 120.0})
    assert ask(inputs, rate=rate(24 * HOUR, 4)).job.mtbf == 6 * HOUR
    assert answer(machines=4).question.job.mtbf == 1.5 * HOUR


def test_charged_by_the_hour_costs_half_an_hour_for_each_machine() -> None:
    """The mean cost by the hour is above that by the second by about half an hour's for each machine used."""
    fine, coarse = answer(price=2.0, jobs=20_000), answer(price=2.0, billed_by=HOUR, jobs=20_000)
    assert fine.cost is not None
    assert coarse.cost is not None
    machines = float(fine.machine.interruptions) + 1
    assert (coarse.cost["mid"] - fine.cost["mid"]) / machines == pytest.approx(1.0, abs=0.15)
    middle = coarse.sensitivity[1]["cost"]
    assert middle == pytest.approx(coarse.cost["mid"], rel=0.02)


options = st.fixed_dictionaries(
    {"work": st.floats(60, 1e6), "save": st.floats(0, 600), "mtbf": st.floats(1800, 1e7)},
    optional={
        "restart": st.floats(0, 1800), "startup": st.floats(0, 1800), "commit": st.floats(0, 900),
        "notice_works": st.floats(0, 1), "notice": st.floats(0, 300), "down_mean": st.floats(0, 1e5),
        "price": st.floats(0, 100), "on_demand_price": st.floats(0, 100), "budget": st.floats(0, 1e4),
        "deadline": st.floats(0, 1e7), "machines": st.integers(1, 8), "failures": st.floats(1e6, 1e9),
        "every": st.floats(60, 1800), "step": st.floats(0.01, 600), "billed_by": st.floats(1, 7200),
        "billed_least": st.floats(0, 600), "other_hourly": st.floats(0, 10),
    },
)  # fmt: skip


@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(options, st.integers(1, 60), st.sampled_from([60, 100, 400]))
def test_any_question_has_an_answer(given: dict[str, float], jobs: int, width: int) -> None:
    """An error of ours, or a page that keeps to its width and JSON whose numbers are in order."""
    try:
        found = Odds(ask(Inputs({**given, "jobs": jobs})))
    except BadInput:
        return
    assert max(map(len, found.text(width).splitlines())) <= width
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["expected_seconds"] >= data["undisturbed_seconds"] * (1 - 1e-9)
    if data["cost"] is not None:
        assert 0 <= data["cost"]["low"] <= data["cost"]["mid"] <= data["cost"]["high"]
    values = [v for v in data["quantiles"].values() if v is not None]
    assert values == sorted(values)
    for key in ("p_within_budget", "p_by_deadline"):
        assert data[key] is None or 0 <= data[key] <= 1
        assert data[key] is not None or data["reasons"][key]


def test_saves_stand_between_steps() -> None:
    """The interval is rounded to whole steps: 57.6 min in steps of 1000 s are four, not 3.456."""
    assert answer(step=1000.0).question.job.interval == 4000.0
    assert answer(step=1000.0, every=3300.0).question.job.interval == 3000.0


def test_stored_are_all_copies() -> None:
    """Where a checkpoint's size is known, two that are kept and one in the making are stored."""
    inputs = Inputs({"work": HOUR, "save": 1.0, "mtbf": HOUR, "price": 1.0, "storage_price": 0.1})
    inputs.give("checkpoint_bytes", 100e9, "a sheet")
    bill = ask(inputs).bill
    assert bill is not None
    assert bill.storage_bytes == 300e9


def test_what_would_change_it_is_computed() -> None:
    """Each line is the formula at the changed job: half the restart, with the start-up, at the same interval."""
    found = answer(restart=1200.0, every=HOUR)
    line = next(c for c in found.changes if c.what == "a restart in half the time")
    before = Job(24 * HOUR, 300.0, HOUR, 6 * HOUR, 1200.0, 1200.0)
    after = replace(before, restart=600.0, startup=600.0)
    assert line.seconds == pytest.approx(expected(before).total.mean - expected(after).total.mean)
    assert [c.seconds for c in found.changes] == sorted((c.seconds for c in found.changes), reverse=True)


def test_the_answer_holds_no_infinities() -> None:
    """JSON of an answer with intervals that are infinite has null there, and nothing that is not JSON."""
    found = answer(notice_works=1.0).to_json()
    assert found["interval_seconds"]["exact"] is None
    json.dumps(found, allow_nan=False)
    assert odds.MAX_DRAWS == 10_000_000

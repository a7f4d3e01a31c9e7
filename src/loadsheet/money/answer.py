"""The answer of `odds`: formulas, simulation, money, and what would change them, in one object."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from loadsheet.errors import BadInput
from loadsheet.money.bill import Bill
from loadsheet.money.interruptions import (
    Expected,
    Job,
    Span,
    expected,
    exponential,
    must_finish,
    passage,
    stationary_wait,
)
from loadsheet.money.interval import best_every, daly, exact, young
from loadsheet.money.question import MARGIN, NOTICE, Question

if TYPE_CHECKING:
    from loadsheet.money.odds import Latest, Law, Probability, Sample
    from loadsheet.money.switch import Switch

    #: plain and stressed; the latter None where simulated jobs were cut off before the limit
    Shares = tuple[Probability, Probability | None]

_PILOT: Final = 500  # jobs from which it is learnt how many a trace lets one afford
_SMALLEST: Final = 0.002  # of the time or the money: what saves less is not worth a line


@dataclass(frozen=True, slots=True)
class Change:
    """Something that could be otherwise: how much time and money it saves (negative: costs)."""

    what: str
    seconds: float
    money: float | None

    def to_json(self) -> dict[str, Any]:
        """The change as JSON."""
        return {"change": self.what, "saves_seconds": self.seconds, "saves_money": self.money}


class Odds:
    """Expected time and cost of a job on machines that are taken away, and their distribution.

    Raises BadInput if the job hardly ever finishes.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        job = question.job
        must_finish(job)
        works = job.notice_works
        self.interval = {
            "young": young(job.save, job.mtbf, works),
            "daly": daly(job.save, job.mtbf, works),
            "exact": exact(job.save, job.mtbf, works),
        }
        #: machine time by the formulas, without any wait
        self.machine: Expected = expected(job)
        self.wall: Expected | None = None if question.wait is None else self._on_the_wall(question.wait)
        self.reasons: dict[str, str] = {}
        self._simulate()

    def _on_the_wall(self, wait: float) -> Expected:
        job = self.question.job
        return expected(job, exponential(wait), self._first_wait(job.mtbf, wait))

    def _first_wait(self, mtbf: float, wait: float) -> Span:
        """The wait before the first machine: as at a random time, or as the user knows."""
        if self.question.machine_now is None:
            return stationary_wait(mtbf, wait)
        return exponential(0.0 if self.question.machine_now else wait)

    @property
    def never_done(self) -> bool:
        """Whether so little stays of what is computed that most simulated jobs were given up.

        Only where M is less than a save, or the time ten times the work: a job of years is cut off, too.
        """
        job, time = self.question.job, self.machine.total.mean
        given_up = 2 * self.sample.unfinished > self.sample.jobs
        return given_up and bool(job.mtbf < job.save or time > 10 * job.work)

    # --- the simulations ------------------------------------------------------------------------------------

    def _simulate(self) -> None:
        from loadsheet.money import odds

        q, job = self.question, self.question.job
        laws: list[Law]
        if q.trace is not None:
            laws = [odds.Replay(q.trace, q.machine_now)]
            pilot = self.run(laws[0], min(q.jobs, _PILOT), q.seed + 1)
            if 2 * pilot.unfinished > pilot.jobs:
                raise BadInput(
                    f"trace: got machines that stay {q.trace.mtbf:,.0f} s on average, expected ones that let "
                    "this job get from save to save",
                    "save more often (`--every`), faster, or restart faster",
                )
            lives = 1.0 + float(pilot.interruptions.mean())
        else:
            wait = q.wait or 0.0
            laws = [
                odds.Exponential(job.mtbf, wait, now=q.machine_now),
                odds.Exponential(job.mtbf, wait, stressed=True, now=q.machine_now),
            ]
            lives = 1.0 + self.machine.interruptions
        draws = odds.MAX_DRAWS // len(laws)
        self.jobs = min(odds.affordable(q.jobs, lives, law, draws) for law in laws)
        samples = [self.run(law, self.jobs, q.seed + i, draws) for i, law in enumerate(laws)]
        self.laws = laws
        self.sample: Sample = samples[0]
        #: the same under up-times as real machines have them; with a trace, the trace itself
        self.stressed: Sample = samples[-1]

    @cached_property
    def switch(self) -> Switch | None:
        """The same jobs if they take a machine that stays once spot is waited for too long; None: not asked for."""
        from loadsheet.money.switch import switched

        return switched(self)

    def run(
        self, law: Law, jobs: int, seed: int, draws: int | None = None, latest: Latest | None = None
    ) -> Sample:
        """Simulate so many jobs under a law; `latest`: see `money.odds.simulate`."""
        from loadsheet.money import odds

        q = self.question
        return odds.simulate(
            q.job, law, jobs, seed, unit=self._coarse, least=q.least,
            draws=odds.MAX_DRAWS if draws is None else draws, latest=latest,
        )  # fmt: skip

    # --- time -------------------------------------------------------------------------------------------------

    @cached_property
    def simulated_mean(self) -> tuple[float, float] | None:
        """Mean machine time of the simulated jobs, and its standard error; seconds. None if one was cut off."""
        return self.sample.mean(self.sample.machine)

    @property
    def expected_seconds(self) -> float | None:
        """Mean machine time: by the formula, or of a trace by its replay; None if a job did not finish."""
        if self.question.trace is None:
            return float(self.machine.total.mean)
        return None if self.simulated_mean is None else self.simulated_mean[0]

    @property
    def std_seconds(self) -> float | None:
        """The standard deviation of one job's machine time."""
        if self.question.trace is None:
            return float(self.machine.total.std)
        return (
            None if self.sample.unfinished or self.sample.jobs < 2 else float(self.sample.machine.std(ddof=1))
        )

    @property
    def expected_wall(self) -> float | None:
        """Mean time from the start to the end, waits included; None if they are unknown."""
        if self.question.trace is not None:
            return None if self.sample.unfinished else float(self.sample.wall.mean())
        return None if self.wall is None else float(self.wall.total.mean)

    @property
    def interruptions(self) -> float:
        """How many there are on average: by the formula, or of a trace by its replay."""
        if self.question.trace is None:
            return float(self.machine.interruptions)
        return float(self.sample.interruptions.mean())

    # --- money --------------------------------------------------------------------------------------------------

    def _costs(self, sample: Sample, bill: Bill) -> Any:
        return bill.total(sample.charged, sample.waiting, sample.wall)

    @cached_property
    def cost(self) -> dict[str, float] | None:
        """Low, mid, high: of 100 jobs 5 cost less; the mean; under stress 5 of 100 cost more. None: no price."""
        bill = self.question.bill
        if bill is None:
            return None
        costs = self._costs(self.sample, bill)
        low = self.sample.quantiles(costs, (0.05,))["p5"]
        high = self.stressed.quantiles(self._costs(self.stressed, bill), (0.95,))["p95"]
        mid: float | None
        if self.question.trace is None and not self._coarse and self.question.least <= 0:
            mid = self._formula_cost(self.machine, self.wall, bill)
        else:
            mean = self.sample.mean(costs)
            mid = None if mean is None else mean[0]
        if low is None or high is None or mid is None:
            return None
        return {"low": min(low, mid), "mid": mid, "high": max(high, mid)}

    def _formula_cost(self, machine: Expected, wall: Expected | None, bill: Bill) -> float:
        """The mean cost, which is linear in the times; rounding up costs half a unit for each machine."""
        seconds = machine.total.mean
        charged = seconds + (machine.interruptions + 1) * self._coarse / 2
        if wall is None:
            return float(bill.total(charged, 0.0, seconds))
        first = self._first_wait(self.question.job.mtbf, self.question.wait or 0.0).mean
        return float(bill.total(charged, wall.waiting - first, wall.total.mean))

    @property
    def _coarse(self) -> float:
        """The unit by which machines are charged, where it is not a second."""
        return self.question.unit if self.question.unit > 1 else 0.0

    @property
    def least_cost(self) -> float | None:
        """What it costs if nothing happens."""
        bill, time = self.question.bill, self.question.job.undisturbed
        return None if bill is None else float(bill.total(time, 0.0, time))

    # --- odds ---------------------------------------------------------------------------------------------------

    @cached_property
    def within_budget(self) -> Shares | float | None:
        """P(cost ≤ budget) as simulated, plain and under stress; a number where no dice decide."""
        q = self.question
        if q.bill is None or q.budget is None:
            self.reasons["p_within_budget"] = (
                "no --price was given" if q.bill is None else "no --budget was given"
            )
            return None
        return self._share(
            self._costs(self.sample, q.bill), self._costs(self.stressed, q.bill), q.budget, self.least_cost or 0.0,
            "p_within_budget", "even without an interruption it costs more",
        )  # fmt: skip

    @cached_property
    def by_deadline(self) -> Shares | float | None:
        """P(done by the deadline); None where nobody knows how long one waits for a machine."""
        q = self.question
        if q.deadline is None:
            self.reasons["p_by_deadline"] = "no --deadline was given"
            return None
        if q.wait is None and not math.isinf(q.job.mtbf):
            if q.deadline < q.job.undisturbed:
                self.reasons["p_by_deadline"] = "even without an interruption it takes longer"
                return 0.0
            self.reasons["p_by_deadline"] = (
                "how long one waits for a machine after an interruption is unknown, and rules the end: "
                "give --down-mean T (0 if one is there at once) or --trace FILE"
            )
            return None
        return self._share(
            self.sample.wall, self.stressed.wall, q.deadline, q.job.undisturbed,
            "p_by_deadline", "even without an interruption it takes longer",
        )  # fmt: skip

    def _share(
        self, plain: Any, stressed: Any, limit: float, least: float, key: str, why: str
    ) -> Shares | float | None:
        if limit < least:
            self.reasons[key] = why
            return 0.0
        if math.isinf(self.question.job.mtbf):
            return 1.0
        found = self.sample.below(plain, limit)
        if found is None:
            self.reasons[key] = (
                f"{self.sample.unfinished:,} of {self.sample.jobs:,} simulated jobs were cut off before that"
            )
            return None
        return found, self.stressed.below(stressed, limit)

    # --- on demand -------------------------------------------------------------------------------------------------

    @cached_property
    def on_demand(self) -> dict[str, Any] | None:
        """The same job on machines that stay (but for `--failures`): its time, its cost, and when spot pays."""
        q = self.question
        if q.on_demand is None:
            return None
        job = replace(q.job, mtbf=q.failures, notice_works=0.0, notice=0.0)
        machine = expected(job).total.mean
        charged = math.ceil(machine / self._coarse - 1e-9) * self._coarse if self._coarse else machine
        cost = float(q.on_demand.total(max(charged, q.least), 0.0, machine))
        found: dict[str, Any] = {
            "expected_seconds": float(machine),
            "cost": cost,
            "price_ratio": None,
            "break_even_ratio": None if self.expected_seconds is None else machine / self.expected_seconds,
            "spot_saves": None,
            "p_spot_cheaper": None,
            "by_deadline": None if q.deadline is None else bool(machine <= q.deadline),
            "within_budget": None if q.budget is None else bool(cost <= q.budget),
        }
        if q.bill is not None and self.cost is not None:
            if q.on_demand.price > 0:
                found["price_ratio"] = q.bill.price / q.on_demand.price
            found["spot_saves"] = cost - self.cost["mid"]
            cheaper = self.stressed.below(self._costs(self.stressed, q.bill), cost)
            found["p_spot_cheaper"] = None if cheaper is None else cheaper.value
        return found

    # --- what would change it -----------------------------------------------------------------------------------------

    def _priced(self, job: Job) -> tuple[float, float | None]:
        """Expected machine time and cost of another job at the same prices."""
        q = self.question
        machine = expected(job)
        wall = None
        if q.wait is not None:
            wall = expected(job, exponential(q.wait), self._first_wait(job.mtbf, q.wait))
        cost = None if q.bill is None else self._formula_cost(machine, wall, q.bill)
        return float(machine.total.mean), cost

    def _at_best(self, **changes: Any) -> Job:
        """The job with something else, saved as often as is then best, unless the user says how often."""
        job = replace(self.question.job, **changes)
        if self.question.interval_given:
            return job
        every = best_every(job.work, job.save, job.mtbf, job.notice_works, job.commit)
        return replace(job, every=every)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What could be otherwise, what helps most first; by the formulas."""
        q, job = self.question, self.question.job
        base, base_cost = self._priced(job)
        tries: list[tuple[str, Job]] = []
        if q.interval_given:
            best = best_every(job.work, job.save, job.mtbf, job.notice_works, job.commit)
            tries.append(("save as often as is best", replace(job, every=best)))
        if job.save > 0:
            tries.append(("a save that stalls half as long", self._at_best(save=job.save / 2)))
        if job.commit > 0:
            tries.append(("durable in half the time", self._at_best(commit=job.commit / 2)))
        if job.restart > 0:
            half = {"restart": job.restart / 2, "startup": job.startup / 2}
            tries.append(("a restart in half the time", self._at_best(**half)))
        notice = job.notice or NOTICE
        if job.notice_works < 0.9 and MARGIN * (job.save + job.commit) <= notice:  # else it comes too late
            obeyed = {"notice_works": 0.9, "notice": notice}
            tries.append(("notices obeyed, 9 of 10 in time", self._at_best(**obeyed)))
        if not math.isinf(job.mtbf):
            tries.append(("a zone with half the interruptions", self._at_best(mtbf=2 * job.mtbf)))
        found = []
        for what, other in tries:
            time, cost = self._priced(other)
            money = None if cost is None or base_cost is None else base_cost - cost
            if base - time > _SMALLEST * base:
                found.append(Change(what, base - time, money))
        found.sort(key=lambda c: -c.seconds)
        if self.on_demand is not None:
            time, cost = self.on_demand["expected_seconds"], self.on_demand["cost"]
            found.append(Change("on demand", base - time, None if base_cost is None else base_cost - cost))
        return tuple(found)

    @cached_property
    def sensitivity(self) -> tuple[dict[str, Any], ...]:
        """The same job if M is not what it was taken for: half and twice, or the ends of what was observed."""
        job, rate = self.question.job, self.question.rate
        if math.isinf(job.mtbf):
            return ()
        ends = [job.mtbf / 2, job.mtbf, job.mtbf * 2]
        if rate is not None and rate.mtbf is not None and self.question.inputs["mtbf"].value == rate.mtbf:
            scale = job.mtbf / rate.mtbf
            ends = [rate.low * scale, job.mtbf, rate.high * scale]
        rows = []
        for mtbf in ends:
            other = self._at_best(mtbf=mtbf)
            try:
                must_finish(other)
            except BadInput:
                rows.append({"mtbf": mtbf, "every": other.interval, "expected_seconds": None, "cost": None})
                continue
            time, cost = self._priced(other)
            rows.append({"mtbf": mtbf, "every": other.interval, "expected_seconds": time, "cost": cost})
        return tuple(rows)

    def machine_time(self, every: float) -> float | None:
        """Expected machine time if saves were so far apart; None if the job would hardly ever finish."""
        job = replace(self.question.job, every=every or 1.0)
        try:
            must_finish(job)
        except BadInput:
            return None
        return float(expected(job).total.mean)

    @property
    def dominant(self) -> str | None:
        """The part of the time, beside the work, that is the greatest."""
        parts = {name: value for name, value in (self.wall or self.machine).parts.items() if name != "work"}
        name = max(parts, key=lambda n: parts[n])
        return name if parts[name] > 0 else None

    def curve(self, points: int = 160) -> tuple[list[float], list[float]]:
        """τ from a twentieth to twenty times the best one, and the expected time over the work (W ≫ τ)."""
        job = self.question.job
        middle = min(self.interval["exact"], job.work)
        middle = middle if middle > 0 else 60.0
        ratios = [math.exp(math.log(20) * (2 * i / (points - 1) - 1)) for i in range(points)]
        every = [middle * r for r in ratios]
        pause = passage(job.restart, job.mtbf)
        from loadsheet.money.interruptions import segment

        slowdown = []
        for tau in every:
            stretch = job.stretch(tau)
            time = segment(stretch, stretch + job.commit, job.mtbf, pause, job.notice_works, job.notice).mean
            slowdown.append(time / tau)
        return every, slowdown

    # --- output ----------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The JSON of the design, and more; seconds, bytes, the user's currency; null where there is no number."""
        from loadsheet.money.odds_json import as_json

        return as_json(self)

    def text(self, width: int = 100) -> str:
        """The answer as a page."""
        from loadsheet.money.odds_view import page

        return page(self, width)

    def __str__(self) -> str:
        return self.text()

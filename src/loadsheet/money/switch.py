"""Spot at first, and on demand for the rest: what it costs to be sure.

While a job waits for a spot machine it may take one that stays instead. Until when it waits is the policy: so
long after the start, or as long as a deadline still allows it. A spot machine that is there is never given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from loadsheet.money.bill import HOUR
from loadsheet.units import format_duration, format_money

if TYPE_CHECKING:
    from loadsheet.money.answer import Odds
    from loadsheet.money.interruptions import Job
    from loadsheet.money.odds import Array, Latest, Probability, Sample

#: as the time of the switch: as late as the deadline allows
DEADLINE: Final = "deadline"


def latest(job: Job, after: float | str, deadline: float | None) -> Latest:
    """Until when on the wall a job waits for spot, by the seconds of work, saves and upload that it still needs.

    For a deadline: until what is left, two restarts, and what one interruption loses at most (a segment and its
    upload, or the time of a notice) just fit. Then it is met as long as on-demand machines are there and stay.
    """
    if isinstance(after, str):
        assert deadline is not None  # `ask` has looked
        spare = 2 * max(job.restart, job.startup) + job.stretch(job.interval) + job.commit + job.notice
        return lambda left: deadline - spare - left
    return lambda left: 0.0 * left + after


def switched(odds: Odds) -> Switch | None:
    """The jobs of an answer, simulated anew under the policy; None if none was asked for."""
    from loadsheet.money.odds import MAX_DRAWS

    q = odds.question
    if "switch_after" not in q.inputs:
        return None
    until = latest(q.job, q.inputs["switch_after"].value, q.deadline)
    draws = MAX_DRAWS // len(odds.laws)
    samples = [odds.run(law, odds.jobs, q.seed + i, draws, until) for i, law in enumerate(odds.laws)]
    return Switch(odds, samples[0], samples[-1])


@dataclass(frozen=True)
class Switch:
    """The same jobs under the policy, plain and under stress."""

    odds: Odds
    sample: Sample
    stressed: Sample

    def costs(self, sample: Sample) -> Array | None:
        """What each job costs; None without both prices."""
        spot, steady = self.odds.question.bill, self.odds.question.on_demand
        if spot is None or steady is None:
            return None
        total = spot.total(sample.charged, sample.waiting, sample.wall)
        return total + steady.machines * steady.price * sample.steady_charged / HOUR

    @property
    def cost(self) -> dict[str, float] | None:
        """As `Odds.cost`: 5 of 100 jobs cost less, the mean, 5 of 100 under stress cost more."""
        plain, hard = self.costs(self.sample), self.costs(self.stressed)
        if plain is None or hard is None or self.sample.unfinished:
            return None
        low, high = self.sample.quantiles(plain, (0.05,))["p5"], self.stressed.quantiles(hard, (0.95,))["p95"]
        mid = float(plain.mean())
        return (
            None
            if low is None or high is None
            else {"low": min(low, mid), "mid": mid, "high": max(high, mid)}
        )

    def _share(self, sample: Sample, values: Array | None, limit: float | None) -> Probability | None:
        return None if values is None or limit is None else sample.below(values, limit)

    def _of(self, sample: Sample) -> dict[str, Any]:
        """What the policy does to one of the two samples."""
        q = self.odds.question
        by = self._share(sample, sample.wall, q.deadline)
        within = self._share(sample, self.costs(sample), q.budget)
        return {
            "switched": float((sample.steady > 0).mean()),
            "on_demand_seconds": float(sample.steady.mean()),
            "wall_seconds": None if sample.unfinished else float(sample.wall.mean()),
            "wall_quantiles": sample.quantiles(sample.wall),
            "by_deadline": None if by is None else by.to_json(),
            "within_budget": None if within is None else within.to_json(),
        }

    def to_json(self) -> dict[str, Any]:
        """Seconds, money, shares of the jobs; null where there is no limit, or no price."""
        after = self.odds.question.inputs["switch_after"].value
        plain = self._of(self.sample)
        return {"after": after, "cost": self.cost, **plain, "stressed": self._of(self.stressed)}

    def text(self) -> str:
        """One paragraph."""
        q = self.odds.question
        after = q.inputs["switch_after"].value
        when = "as late as the deadline allows" if after == DEADLINE else f"after {format_duration(after)}"
        said = f"Switch to on demand {when}, when no spot machine is there: "
        shares = [float((sample.steady > 0).mean()) for sample in (self.sample, self.stressed)]
        said += f"{shares[0]:.1%} of jobs do" + (f", stressed {shares[1]:.1%}" if q.trace is None else "")
        if not self.sample.unfinished:
            said += f"; {format_duration(float(self.sample.wall.mean()))} on the wall"
        if (cost := self.cost) is not None:
            currency = "" if q.bill is None else q.bill.currency
            ends = " – ".join(format_money(cost[end]) for end in ("low", "high"))
            said += f", {format_money(cost['mid'], currency)} ({ends})"
        limits = (("by", q.deadline, format_duration), ("within", q.budget, format_money))
        for what, limit, shown in limits:
            pairs = [
                self._share(s, s.wall if what == "by" else self.costs(s), limit)
                for s in (self.sample, self.stressed)
            ]
            if limit is not None and pairs[0] is not None:
                said += f"; {what} {shown(limit)}: {pairs[0]}"
                said += f", stressed {pairs[1] or 'not known'}" if q.trace is None else ""
        return said + "."

"""Many lives of one job, simulated: the distribution that the formulas of `interruptions` do not give.

A job is followed from machine to machine, not from save to save: a machine that lives X seconds carries it
from where it stood to where it was last durable, whatever the number of saves between. So 100,000 jobs are a
few array operations per interruption. Random numbers come from NumPy's PCG64 with the seed that is printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from loadsheet.money.interruptions import STRESS, WEATHER, Job
from loadsheet.money.traces import Trace

Array = Any
#: from the seconds of undisturbed running that are left to the time on the wall until which spot is waited for
Latest = Callable[[Array], Array]
#: random numbers for one answer, all simulations together
MAX_DRAWS: Final = 10_000_000
#: machines that one job may use up before it is said not to finish
MAX_LIVES: Final = 5_000
QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


class Law(Protocol):
    """How long a machine stays, and how long one waits for the next."""

    draws: int  # random numbers per machine
    has_notice_inside: bool  # whether the up-time includes the time between notice and end

    def start(self, random: np.random.Generator, jobs: int) -> tuple[Array, Array, Array]:
        """The wait before the first machine, its time, and what this law remembers of each job."""
        ...

    def again(self, random: np.random.Generator, memory: Array) -> tuple[Array, Array, Array]:
        """The same for the next machine of these jobs."""
        ...


class Exponential:
    """Up-times with mean M and waits with mean D, both exponential; under `stressed` as in real traces.

    Stressed, 60 % of the times are short (0.14 of their mean) and 40 % long (2.3 of it), and half of the
    jobs meet a bad time (M halved, waits longer by half), the others a good one (M longer by half, waits
    halved). The means of M and D stay. Against replays of nine traces (docs/odds.md) the plain law is too
    kind at the 95 % quantile, by 9 % of the machine time and 38 % of the time on the wall (medians);
    the stressed one meets the first and is 28 % above the second.
    """

    has_notice_inside = False

    def __init__(self, mtbf: float, wait: float, *, stressed: bool = False, now: bool | None = None) -> None:
        """`now`: whether a machine is there at the start; None: as at a random time."""
        self.stressed, self._now = stressed, now
        self._mean, self._wait = np.array([mtbf]), np.array([wait])
        if stressed:
            self._mean = mtbf * np.array([good for good, _ in WEATHER])
            self._wait = wait * np.array([bad for _, bad in WEATHER])
        kinds = STRESS if stressed else ((1.0, 1.0),)
        whole = sum(share * mean for share, mean in kinds)  # the fitted mean is 1.004: here it is 1
        self._shares = np.array([share for share, _ in kinds])
        self._means = np.array([mean / whole for _, mean in kinds])
        self.draws = len(kinds) * (1 + (wait > 0))

    def _times(self, random: np.random.Generator, means: Array, shares: Array) -> Array:
        if np.isinf(means).all():
            return means
        times = means * random.standard_exponential(len(means))
        if self.stressed:
            times *= np.where(random.random(len(means)) < shares[0], *self._means)
        return times

    def start(self, random: np.random.Generator, jobs: int) -> tuple[Array, Array, Array]:
        """One asks at a random time: with probability D/(M + D) into a wait, of which the rest is left.

        Or it is known whether one asks into a wait.
        """
        weather = random.integers(len(self._mean), size=jobs)
        mean, wait = self._mean[weather], self._wait[weather]
        waited = np.zeros(jobs)
        if wait[0] > 0 and self._now is not True and (np.isfinite(mean).all() or self._now is False):
            lengths = self._shares * self._means  # a long wait is met more often, in proportion to its length
            rest = self._times(random, wait, lengths / lengths.sum())
            share = wait / (mean + wait) if self._now is None else 1.0
            waited = np.where(random.random(jobs) < share, rest, 0.0)
        return waited, self._times(random, mean, self._shares), weather

    def again(self, random: np.random.Generator, memory: Array) -> tuple[Array, Array, Array]:
        """A wait and an up-time that know nothing of those before, but the weather."""
        wait = self._wait[memory]
        if self._wait[0] > 0:
            wait = self._times(random, wait, self._shares)
        return wait, self._times(random, self._mean[memory], self._shares), memory


class Replay:
    """The user's trace, entered at a random time and followed from there, its end joined to its beginning."""

    has_notice_inside = True
    draws = 1

    def __init__(self, trace: Trace, now: bool | None = None) -> None:
        """`now`: start only where a machine is there, or only where none is; None: anywhere."""
        self._now = now
        self._up, self._down = np.array(trace.up), np.array(trace.down)
        self._ends = np.cumsum(self._up + self._down)

    def start(self, random: np.random.Generator, jobs: int) -> tuple[Array, Array, Array]:
        """What is left of the up-time one falls into; of a down-time, the rest is waited for."""
        at = random.random(jobs) * self._ends[-1]
        if self._now is not None:
            part = self._up if self._now else self._down
            if part.sum() > 0:
                ends = np.cumsum(part)
                inside = at * (ends[-1] / self._ends[-1])
                which = np.searchsorted(ends, inside, side="right").clip(max=len(ends) - 1)
                before_end = (ends[which] - inside) + (self._down[which] if self._now else 0.0)
                at = self._ends[which] - before_end
        pair = np.searchsorted(self._ends, at, side="right").clip(max=len(self._ends) - 1)
        left = self._ends[pair] - at  # until the end of the down-time that follows
        up = left - self._down[pair]
        after = (pair + 1) % len(self._up)
        late = up <= 0
        return (
            np.where(late, left, 0.0),
            np.where(late, self._up[after], up),
            np.where(late, after, pair),
        )

    def again(self, random: np.random.Generator, memory: Array) -> tuple[Array, Array, Array]:
        """The down-time after this up-time, and the next up-time."""
        after = (memory + 1) % len(self._up)
        return self._down[memory], self._up[after], after


@dataclass(frozen=True, slots=True)
class Sample:
    """What became of the simulated jobs; arrays of seconds, up to where it was cut off for some."""

    machine: Array  # for which a machine was there
    charged: Array  # the same, each machine's time rounded up as it is charged
    waiting: Array  # for a machine, without the first wait
    first_wait: Array
    interruptions: Array
    cut: Array  # true for jobs that had not finished when random numbers or machines ran out
    steady: Array = 0.0  # seconds on a machine that stays, for those that have switched to one; the others 0
    steady_charged: Array = 0.0

    @property
    def jobs(self) -> int:
        """How many were simulated."""
        return len(self.machine)

    @property
    def unfinished(self) -> int:
        """How many did not finish within the random numbers and machines that there were."""
        return int(self.cut.sum())

    @property
    def wall(self) -> Array:
        """From the start to the last durable save."""
        return self.machine + self.waiting + self.first_wait + self.steady

    # What follows is asked of times and costs alike: `values` that only grow while a job goes on.

    def quantiles(self, values: Array, at: tuple[float, ...] = QUANTILES) -> dict[str, float | None]:
        """Quantiles by name, `p5` to `p99`; None where a job that was cut off might stand before it."""
        ordered = np.sort(values)
        known = float(values[self.cut].min()) if self.unfinished else math.inf
        found: dict[str, float | None] = {}
        for q in at:
            value = float(ordered[min(int(q * len(ordered)), len(ordered) - 1)])
            found[f"p{q * 100:g}"] = value if value < known else None
        return found

    def below(self, values: Array, limit: float) -> Probability | None:
        """The share of jobs with a value up to the limit; None where one was cut off before it."""
        if (self.cut & (values <= limit)).any():
            return None
        return probability(int((values <= limit).sum()), len(values))

    def mean(self, values: Array) -> tuple[float, float] | None:
        """Mean and its standard error (infinite for a single job); None where a job was cut off."""
        if self.unfinished:
            return None
        error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf
        return float(values.mean()), error


def simulate(
    job: Job,
    law: Law,
    jobs: int,
    seed: int,
    *,
    unit: float = 0.0,
    least: float = 0.0,
    draws: int = MAX_DRAWS,
    lives: int = MAX_LIVES,
    latest: Latest | None = None,
) -> Sample:
    """Follow `jobs` copies of a job (plain numbers) to their end, or until `draws` random numbers are used up.

    Each machine's time is charged in whole `unit`s of seconds, at least `least`. A job for which no machine is
    there by `latest` takes one that stays, and ends on it.
    """
    random = np.random.default_rng(seed)
    total = float(job.undisturbed - job.startup)
    grid = float(job.stretch(job.interval))
    p, lead = float(job.notice_works), float(job.notice)
    machine, charged, waiting, hits, first, steady = (np.zeros(jobs) for _ in range(6))
    base = np.zeros(jobs)  # what is durable, in seconds of undisturbed running
    prefix = np.full(jobs, float(job.startup))
    who = np.arange(jobs)

    def waits(who: Array, wait: Array) -> tuple[Array, Array]:
        """How long these wait, and who of them gets the machine that he waited for."""
        if latest is None:
            return wait, np.ones(len(who), bool)
        left = total - base[who]
        until = np.maximum(latest(left) - machine[who] - waiting[who] - first[who], 0.0)
        gets = wait < until
        steady[who[~gets]] = (prefix[who] + left)[~gets]
        return np.minimum(wait, until), gets

    wait, up, memory = law.start(random, jobs)
    first, gets = waits(who, wait)
    who, up, memory = who[gets], up[gets], memory[gets]
    used = jobs * (law.draws + 1)
    for _ in range(lives if len(who) else 0):
        noticed = random.random(len(who)) < p if p > 0 else np.zeros(len(who), bool)
        until = np.maximum(up - lead * noticed, 0.0) if law.has_notice_inside else up
        need = prefix[who] + (total - base[who])
        done = until >= need
        running = np.where(done, need, until)
        began = running >= prefix[who]
        position = base[who] + np.maximum(running - prefix[who], 0.0)
        kept = np.maximum(base[who], np.floor((position - job.commit) / grid) * grid)
        noticed &= began & ~done
        base[who] = np.where(noticed, position, kept)
        running = np.where(done, need, up) if law.has_notice_inside else running + lead * noticed
        prefix[who[began]] = float(job.restart)
        machine[who] += running
        charged[who] += _charged(running, unit, least)
        who, memory = who[~done], memory[~done]
        if not len(who):
            break
        hits[who] += 1
        used += len(who) * (law.draws + (p > 0))
        if used > draws:
            break
        wait, up, memory = law.again(random, memory)
        wait, gets = waits(who, wait)
        waiting[who] += wait
        who, up, memory = who[gets], up[gets], memory[gets]
        if not len(who):
            break
    cut = np.zeros(jobs, bool)
    cut[who] = True
    paid = np.where(steady > 0, _charged(steady, unit, least), 0.0)
    return Sample(machine, charged, waiting, first, hits, cut, steady, paid)


def _charged(seconds: Array, unit: float, least: float) -> Array:
    """Seconds as they are charged: in whole units, and not fewer than the least."""
    rounded = np.ceil(seconds / unit - 1e-9) * unit if unit > 0 else seconds
    return np.maximum(rounded, least) if least > 0 else rounded


def affordable(jobs: int, lives: float, law: Law, draws: int = MAX_DRAWS) -> int:
    """How many jobs can be simulated if each needs `lives` machines on average: at least 100 are tried."""
    each = max(lives, 1.0) * (law.draws + 1)
    return max(min(jobs, int(draws / (1.5 * each))), min(jobs, 100))


# --- what the sample says -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probability:
    """A share of simulated jobs, with its standard error and its 95 % interval; never 0 or 1."""

    value: float
    error: float
    low: float
    high: float
    hits: int
    of: int

    def __str__(self) -> str:
        if self.hits in (0, self.of):
            bound = 100 * 3.0 / self.of
            text = f"{bound:.2g} %" if bound >= 1e-4 else f"{bound:.1e} %"
            return (
                f"below {text} (none of {self.of:,})"
                if self.hits == 0
                else f"all but {text} (all of {self.of:,})"
            )
        digits = 1 if self.error >= 5e-4 else 2 if self.error >= 5e-5 else 3
        return f"{100 * self.value:.{digits}f} % ± {100 * self.error:.{digits}f}"

    def to_json(self) -> dict[str, float | int]:
        """Value, standard error, interval and counts."""
        return {"value": self.value, "standard_error": self.error, "low": self.low, "high": self.high,
                "hits": self.hits, "of": self.of}  # fmt: skip


def probability(hits: int, of: int) -> Probability:
    """The share `hits`/`of` with Wilson's 95 % interval; at its ends the rule of three.

    If none (or all) of n jobs do it, less than 3/n (more than 1 − 3/n) is what can be said with 95 %
    confidence (Hanley and Lippman-Hand, JAMA 249, 1983); the value is then (hits + 1)/(n + 2), Laplace's.

    >>> probability(0, 1000).high, probability(500, 1000).error
    (0.003, 0.015811388300841896)
    """
    z = 1.959963984540054
    share = hits / of
    if hits in (0, of):
        value = (hits + 1) / (of + 2)
        ends = (0.0, min(3.0 / of, 1.0)) if hits == 0 else (max(1 - 3.0 / of, 0.0), 1.0)
        return Probability(value, math.sqrt(value * (1 - value) / of), *ends, hits, of)
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return Probability(share, math.sqrt(share * (1 - share) / of), centre - half, centre + half, hits, of)

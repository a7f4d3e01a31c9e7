"""Expected time, and its spread, of a job whose machine is taken away now and then.

Interruptions come at random with a mean time M between them, as long as the machine is there (exponential:
one that has run long is as likely to be taken as a new one). The job alternates work τ and saves δ. After an
interruption it waits for a machine, restarts, and repeats what was not durable.

One formula carries all of it, `passage`: the time until a stretch of y seconds has been run, when every
interruption costs a pause and, unless its notice works, the whole stretch so far. A restart is a passage
(interrupted, it begins again); a segment is a passage with the restart as its pause; the job is a sum of
independent segments, because what is durable has no memory. So mean and variance add up:

    E[T] = M·e^(R/M)·(e^((τ+δ)/M) − 1)·W/τ       (Daly 2006, eq. 13)

without notices, commit latency, start-up and waiting, and the same with them. Derivations: docs/odds.md.
Everything takes numbers and arrays alike.

Where this stops being valid: real machines that have survived their first hours live longer, and waits for
capacity come in bursts. Replays of nine traces of 45 days (V100 in AWS zones, 2023) cost 1–9 % more than
this says (`REPLAY_MARGIN`). `money.odds` simulates other laws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from loadsheet.errors import BadInput
from loadsheet.money.elementwise import bounded, functions
from loadsheet.units import format_duration, largest, smallest, where

#: up-times of real spot machines: a share, and its mean as a part of M; fitted to 3,607 up-times of the
#: traces of Wu et al., "Can't Be Late", NSDI 2024 (65 % ended within an hour, and held 9 % of the hours)
STRESS: Final = ((0.6, 0.14), (0.4, 2.3))
#: the times a stressed job may meet, equally likely: factors of M and of the wait. Real bad times last: with
#: the up-times above alone, the 95 % quantiles of replays were met in 5 of 27 cases; with these in 15, and in
#: 24 of 27 for the time on the wall (the nine traces of 45 days, three jobs; 2026-11-29)
WEATHER: Final = ((0.5, 1.5), (1.5, 0.5))
#: how much more than the formula replays of those traces cost at worst (2026-11-29; at best 1 % more)
REPLAY_MARGIN: Final = 1.09
#: from a new machine to the first step (boot, pull, load, warm up) where nobody says: an assumption; seconds
RESTART: Final = 600.0
#: a stretch that needs this many times its own length on average is one that never ends
NEVER: Final = 1000.0

_LEAST = 1e-150
_PANELS = 3
#: nodes and weights of Gauss and Legendre, 8 points on (-1, 1); Abramowitz and Stegun, table 25.4
_GAUSS: Final = (
    (0.1834346424956498, 0.3626837833783620),
    (0.5255324099163290, 0.3137066458778873),
    (0.7966664774136267, 0.2223810344533745),
    (0.9602898564975363, 0.1012285362903763),
)


@dataclass(frozen=True, slots=True)
class Span:
    """A random duration by its mean (seconds) and variance (seconds²); independent ones add up."""

    mean: Any = 0.0
    variance: Any = 0.0

    def __add__(self, other: Span) -> Span:
        return Span(self.mean + other.mean, self.variance + other.variance)

    def times(self, count: Any) -> Span:
        """The sum of `count` independent ones."""
        return Span(self.mean * count, self.variance * count)

    @property
    def square(self) -> Any:
        """The mean of the square."""
        return self.variance + self.mean * self.mean

    @property
    def std(self) -> Any:
        """The standard deviation, seconds."""
        return functions(self.variance).sqrt(self.variance)


NOTHING: Final = Span()


def exponential(mean: Any) -> Span:
    """An exponential duration: its variance is the square of its mean."""
    return Span(mean, mean * mean)


def passage(seconds: Any, mtbf: Any, pause: Span = NOTHING, notice: Any = 0.0, lead: Any = 0.0) -> Span:
    """Time until `seconds` y have been run: mean (M + ρ + p·g)·ln(1 + p·(e^(y/M) − 1))/p.

    At every interruption the machine pauses (mean ρ); with probability p (`notice`) the state was saved
    before, at the price of g seconds (`lead`), and the stretch goes on where it was, else it begins anew.
    For p = 0 the mean is (M + ρ)·(e^(y/M) − 1), for p = 1 y·(1 + (ρ + g)/M). The Laplace transform of the
    time is (1 + α·(e^(θy) − 1))^(−κ) with θ = s + 1/M, α = 1 − (1−p)·B/(Mθ), κ = 1 − p·G/(Mθ − (1−p)·B),
    where B and G are those of the pause and of g + pause; hence the variance, an integral over the stretch
    that is evaluated by Gauss's rule (to seven digits where y/M is below 12). Derived in docs/odds.md.

    The time to see an hour without an event where there is one an hour on average: 1.72 h ± 0.98 h.

    >>> span = passage(3600.0, 3600.0)
    >>> round(span.mean / 3600, 4), round(span.std / 3600, 4)
    (1.7183, 0.976)
    """
    rate, p = 1.0 / mtbf, largest(notice, _LEAST)
    xp = functions(seconds, mtbf, notice, pause.mean)
    burden = 1.0 + (pause.mean + notice * lead) * rate
    a = largest(bounded(seconds * rate), _LEAST)
    mean = seconds * burden * xp.log1p(p * xp.expm1(a)) / (p * a)
    # mean of the square of what an interruption costs by itself
    square = pause.square + notice * lead * (2.0 * pause.mean + lead)

    def growth(z: Any) -> Any:
        """By how much the variance grows where z of the stretch have been run, per second."""
        e = xp.expm1(bounded(z * rate))
        gain = (1.0 + e) / (1.0 + notice * e)
        lost = pause.mean * e / (1.0 + e) + _lost(z, rate, xp)
        return gain * square * rate + 2.0 * burden * (1.0 - notice) * gain * gain * lost

    return Span(mean, _integral(growth, seconds))


def _lost(z: Any, rate: Any, xp: Any) -> Any:
    """The mean of X where X < z, else 0, for an exponential X: M·(1 − e^(−a)·(1 + a)) with a = z/M."""
    a = bounded(z * rate)
    near = a < 0.01
    small = where(near, a, 0.0)
    series = small * (1 / 2 - small * (1 / 3 - small * (1 / 8 - small * (1 / 30 - small / 144))))
    big = where(near, 1.0, a)
    return z * where(near, series, (-xp.expm1(-big) - big * xp.exp(-big)) / big)


def _integral(function: Any, end: Any) -> Any:
    """From 0 to `end`, in panels of 8 points."""
    half = end / (2 * _PANELS)
    total: Any = 0.0
    for panel in range(_PANELS):
        middle = half * (2 * panel + 1)
        for node, weight in _GAUSS:
            total = total + weight * (function(middle - half * node) + function(middle + half * node))
    return total * half


def segment(fresh: Any, retry: Any, mtbf: Any, pause: Span, notice: Any = 0.0, lead: Any = 0.0) -> Span:
    """Time from one durable checkpoint to the next.

    `fresh` seconds if nothing happens; after an interruption without a working notice it takes `retry`,
    which is `fresh` and the commit latency: what had been done before the checkpoint was durable is lost
    too. Without notices the mean is M·e^((R+c)/M)·(e^((τ+δ)/M) − 1): the latency c acts as a longer restart.
    """
    first = passage(fresh, mtbf, pause, notice, lead)
    again = passage(retry, mtbf, pause, notice, lead)
    xp = functions(fresh, mtbf, notice)
    hit = (1.0 - notice) * -xp.expm1(-bounded(fresh / mtbf))
    more = again.mean - first.mean
    lost = (1.0 - notice) * (pause.mean * -xp.expm1(-bounded(fresh / mtbf)) + _lost(fresh, 1.0 / mtbf, xp))
    variance = (
        (1.0 - hit) * first.variance
        + hit * again.variance
        + 2.0 * lost * more
        + hit * (1.0 - hit) * more * more
    )
    return Span(first.mean + hit * more, variance)


@dataclass(frozen=True, slots=True)
class Job:
    """A job and what happens to it; all in seconds, numbers or arrays.

    The first start-up is repeated whole if it is interrupted. `commit` is the time from the end of a save's
    stall until it is durable. A save that is not durable when the next is due makes that one wait. The last
    segment is what is left of the work, and its save is waited for. `notice_works` is the share of
    interruptions whose notice works, `notice` the time from it until the machine goes, which is lost.
    """

    work: Any
    save: Any
    every: Any
    mtbf: Any
    restart: Any = 0.0
    startup: Any = 0.0
    commit: Any = 0.0
    notice_works: Any = 0.0
    notice: Any = 0.0

    @property
    def interval(self) -> Any:
        """The work of a segment: never more than there is."""
        return smallest(self.every, self.work)

    @property
    def segments(self) -> Any:
        """How many segments, each with its save; the last may be shorter."""
        return largest(-((-self.work / self.interval + 1e-9) // 1), 1.0)

    @property
    def last(self) -> Any:
        """The work of the last segment."""
        return self.work - (self.segments - 1.0) * self.interval

    def stretch(self, work: Any) -> Any:
        """Seconds of a segment with so much work if nothing happens: work, save, waiting for the save before."""
        return largest(work, self.commit) + self.save

    @property
    def undisturbed(self) -> Any:
        """Seconds if nothing ever happens: start-up, work, saves, and the last one made durable."""
        middle = (self.segments - 1.0) * self.stretch(self.interval)
        return self.startup + middle + self.stretch(self.last) + self.commit

    @property
    def saving(self) -> Any:
        """Seconds of that that are no work and no start-up."""
        return self.undisturbed - self.startup - self.work


@dataclass(frozen=True, slots=True)
class Expected:
    """What a job takes on average; seconds. `total` with its spread is the sum of the parts below it."""

    total: Span
    work: Any
    saving: Any
    repeated: Any  # work and saves that were done before and lost
    restarting: Any
    startup: Any
    noticed: Any  # between notices and the end of the machine
    waiting: Any  # for capacity
    interruptions: Any  # a number

    @property
    def parts(self) -> dict[str, Any]:
        """The parts by name, in the order in which they are told."""
        return {
            "work": self.work, "saving": self.saving, "repeated work": self.repeated,
            "restarting": self.restarting, "start-up": self.startup, "after notices": self.noticed,
            "waiting for capacity": self.waiting,
        }  # fmt: skip


def expected(job: Job, wait: Span = NOTHING, first_wait: Span = NOTHING) -> Expected:
    """Mean and variance of the time from the start to the last durable save, exact for this model.

    Machine time without a wait; with the wait for a machine after each interruption, and before the first
    start, the time on the wall. The wait may have any law: two moments are all that enters.

    Daly's model with δ = 5 min, R = 10 min, M = 6 h, and a segment of 24 h / 25:

    >>> job = Job(work=86400.0, save=300.0, every=3456.0, mtbf=21600.0, restart=600.0)
    >>> round(expected(job).total.mean / 3600, 3)
    29.291
    """
    rate = 1.0 / job.mtbf
    again = wait + passage(job.restart, job.mtbf, wait)
    start = passage(job.startup, job.mtbf, wait)
    common = (job.mtbf, again, job.notice_works, job.notice)
    usual = job.stretch(job.interval)
    last = job.stretch(job.last)
    count = job.segments
    first = passage(where(count > 1.0, usual, last) + job.commit, *common)
    body = first + segment(usual, usual + job.commit, *common).times(largest(count - 2.0, 0.0))
    body = body + segment(last, last + job.commit, *common).times(where(count > 1.0, 1.0, 0.0))
    useful = body.mean / (1.0 + (again.mean + job.notice_works * job.notice) * rate)
    noticed = useful * rate * job.notice_works * job.notice
    # A restart and the start-up are hit at the same rate as everything else that runs.
    hits = useful * rate + passage(job.startup, job.mtbf).mean * rate
    restarts = useful * rate * passage(job.restart, job.mtbf).mean
    hits = hits + restarts * rate
    return Expected(
        total=first_wait + start + body,
        work=job.work,
        saving=job.saving,
        repeated=useful - job.work - job.saving,
        restarting=restarts,
        startup=passage(job.startup, job.mtbf).mean,
        noticed=noticed,
        waiting=first_wait.mean + hits * wait.mean,
        interruptions=hits,
    )


def must_finish(job: Job) -> None:
    """BadInput if the job hardly ever gets from one checkpoint to the next: numbers, not arrays."""
    again = passage(job.restart, job.mtbf)
    for name, start in (("restart", job.restart), ("startup", job.startup)):
        if passage(start, job.mtbf).mean > NEVER * start > 0:
            raise BadInput(
                f"{name}: got {format_duration(start)}, expected what an interruption every "
                f"{format_duration(job.mtbf)} lets pass",
                "this job never finishes: restart faster, or rent on demand",
            )
    for stretch in (job.stretch(job.interval), job.stretch(job.last)):
        need = segment(stretch, stretch + job.commit, job.mtbf, again, job.notice_works, job.notice).mean
        if need > NEVER * (stretch + job.commit + job.restart):
            raise BadInput(
                f"every: got {format_duration(job.interval)} of work between saves, expected stretches that "
                f"an interruption every {format_duration(job.mtbf)} lets pass",
                "this job never finishes: save more often or faster, restart faster, or rent on demand",
            )


def stationary_wait(mtbf: Any, wait: Any) -> Span:
    """The wait before the first machine if one asks at a random time and waits are exponential with mean D.

    With probability D/(M + D) there is no machine now, and the rest of such a wait has the mean D.

    >>> round(stationary_wait(3600.0, 1200.0).mean)
    300
    """
    share = where(mtbf < math.inf, wait / (where(mtbf < math.inf, mtbf, 1.0) + wait), 0.0)
    return Span(share * wait, share * (2.0 - share) * wait * wait)


def combined(mtbf: Any, notice_works: Any, failures: Any) -> tuple[Any, Any]:
    """(M, p) of interruptions with notices and of failures without any, together.

    Rates add up: 1/M = 1/M_spot + 1/M_failures, and the share of notices that work falls accordingly.

    >>> combined(3600.0, 0.5, 3600.0)
    (1800.0, 0.25)
    """
    rate = 1.0 / mtbf + 1.0 / failures
    safe = where(rate > 0.0, rate, 1.0)
    together = where(rate > 0.0, 1.0 / safe, math.inf)
    return together, where(rate > 0.0, notice_works / mtbf / safe, 0.0)

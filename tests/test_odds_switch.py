"""Spot at first and on demand for the rest: its limits, a case on paper, and the deadline that is always met."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from terminal import answered, refused

from loadsheet.money.interruptions import Job
from loadsheet.money.odds import Exponential, Replay, Sample, simulate
from loadsheet.money.switch import latest
from loadsheet.money.traces import Trace

HOUR = 3600.0
JOB = Job(24 * HOUR, 60.0, 1800.0, 2 * HOUR, 600.0, 900.0, commit=120.0)
ASK = (
    "odds", "--work", "24h", "--save", "1min", "--restart", "10min", "--mtbf", "6h", "--down-mean", "1h",
    "--price", "1 USD", "--on-demand-price", "3", "--deadline", "36h", "--budget", "60", "--jobs", "4000",
)  # fmt: skip


def followed(
    job: Job, law: Any, after: float | str, deadline: float | None = None, jobs: int = 4000
) -> Sample:
    return simulate(job, law, jobs, 1, latest=latest(job, after, deadline))


@pytest.mark.parametrize("now", [True, False, None])
def test_at_once_is_on_demand_and_never_is_spot(now: bool | None) -> None:
    """After 0 s every job is an undisturbed one; after an endless time each is what it is without the policy."""
    law = Exponential(JOB.mtbf, HOUR, stressed=True, now=now)
    at_once = followed(JOB, law, 0.0)
    assert set(at_once.wall) == {JOB.undisturbed}
    assert set(at_once.steady) == {JOB.undisturbed}
    assert not at_once.machine.any()
    never, spot = followed(JOB, law, math.inf), simulate(JOB, law, 4000, 1)
    for name in ("machine", "charged", "waiting", "first_wait", "interruptions", "wall", "steady"):
        assert np.array_equal(getattr(never, name), getattr(spot, name)), name


def test_one_machine_and_then_on_demand() -> None:
    """On paper: one try of x = R₀ + W + δ seconds on spot, and after it an endless wait that nobody waits for.

    With q = 1 − e^(−x/M) the first machine is used for M·q on average. A share q does it all again on demand, and
    starts again in R; who was interrupted within R₀ has still to make that first start.
    """
    job = Job(5 * HOUR, 60.0, 5 * HOUR, 4 * HOUR, 600.0, 900.0)
    sample = followed(job, Exponential(job.mtbf, 1e12, now=True), 1e-6, jobs=100_000)
    x, rest = 900 + 5 * HOUR + 60, 600 + 5 * HOUR + 60
    q = 1 - math.exp(-x / job.mtbf)
    fresh = 900 + 5 * HOUR + 60  # who is interrupted while he starts, starts for the first time
    early = 1 - math.exp(-900 / job.mtbf)
    mean = job.mtbf * q + (q - early) * rest + early * fresh
    assert abs(sample.wall.mean() - mean) < 4 * sample.wall.std() / math.sqrt(sample.jobs)
    assert abs((sample.steady > 0).mean() - q) < 4 * math.sqrt(q * (1 - q) / sample.jobs)
    assert not sample.unfinished


@pytest.mark.parametrize("deadline", [27.5 * HOUR, 30 * HOUR, 48 * HOUR])
@pytest.mark.parametrize(
    "law",
    [
        Exponential(2 * HOUR, HOUR, stressed=True),
        Exponential(600.0, 10 * HOUR),
        Replay(Trace((HOUR, 300.0, 9 * HOUR), (600.0, 8 * HOUR, 60.0), "by hand")),
    ],
)
@pytest.mark.parametrize("notices", [0.0, 0.5])
def test_a_deadline_is_met(law: Any, deadline: float, notices: float) -> None:
    """Work, saves, three starts and a segment fit into it: then every single job is in time, whatever spot does."""
    job = replace(JOB, notice_works=notices, notice=120.0 if notices else 0.0)
    sample = followed(job, law, "deadline", deadline)
    assert sample.wall.max() <= deadline
    assert not sample.unfinished
    later = followed(job, law, "deadline", deadline + 24 * HOUR)
    assert later.steady.sum() < sample.steady.sum()  # with more time more of the work is done on spot


def test_a_deadline_that_on_demand_alone_does_not_meet() -> None:
    """One goes on demand at once, and is late by what is missing."""
    sample = followed(JOB, Exponential(JOB.mtbf, HOUR), "deadline", 20 * HOUR)
    assert set(sample.wall) == {JOB.undisturbed}


def test_the_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """At its two ends it costs what on demand, and what spot costs; in between the deadline holds, for more money."""
    monkeypatch.chdir(tmp_path)

    def asked(after: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(answered(*ASK, "--switch-after", after, "--json").stdout)
        return found

    at_once = asked("0")
    assert at_once["switch"]["cost"]["mid"] == pytest.approx(at_once["on_demand"]["cost"])
    assert at_once["switch"]["wall_seconds"] == pytest.approx(at_once["on_demand"]["expected_seconds"])
    never = asked("1000000h")
    assert never["switch"]["switched"] == 0
    assert never["switch"]["by_deadline"] == never["odds"]["by_deadline"]["plain"]
    assert never["switch"]["within_budget"] == never["odds"]["within_budget"]["plain"]
    between = asked("deadline")
    for found in (between["switch"], between["switch"]["stressed"]):
        assert found["by_deadline"]["hits"] == found["by_deadline"]["of"] == 4000
        assert 0 < found["switched"] < 1
    assert (
        never["switch"]["cost"]["mid"] < between["switch"]["cost"]["mid"] < at_once["switch"]["cost"]["mid"]
    )
    assert json.loads(answered(*ASK, "--json").stdout)["switch"] is None
    page = " ".join(answered(*ASK, "--switch-after", "deadline").stdout.split())
    assert "Switch to on demand as late as the deadline allows" in page
    assert "by 36.00 h: all but" in page


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Unknown waits, no deadline, failures, and what is no time."""
    monkeypatch.chdir(tmp_path)
    base = ("odds", "--work", "24h", "--save", "1min", "--mtbf", "6h", "--switch-after")
    refused(*base, "30h", words="--switch-after: got a time and no wait")
    refused(*base, "deadline", "--down-mean", "1h", words="--switch-after: got `deadline`")
    refused(*base, "30h", "--down-mean", "1h", "--failures", "100h", words="--switch-after: got failures")
    refused(*base, "late", "--down-mean", "1h", words="expected `deadline` or a time")

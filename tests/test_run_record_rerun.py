"""The free audit: steps that are run twice must give the same bits."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from run_logs import attempt

from loadsheet.run.errors import RunWarning
from loadsheet.run.log import Log
from loadsheet.run.reading import compare_rerun, read_events
from loadsheet.run.rerun import explain_rerun

NAN, INF = math.nan, math.inf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def test_a_rerun_with_the_same_bits_is_silent(path: Path) -> None:
    """NaN equals NaN here; time, attempt and timing are never compared; a shorter re-run is fine."""
    values = [0.1, NAN, INF, -0.0, 1e-300]
    for number, start, end in ((1, 0, 5), (2, 2, 5), (3, 3, 4)):
        with Log(path, number) as log:
            log.resume(start)
            for step in range(start, end):
                log.write(step, {"loss": values[step]}, {"rate": random.random()})
        assert log.difference is None
    assert compare_rerun(path) is None


@pytest.mark.parametrize(
    ("value", "changed"), [(0.1, math.nextafter(0.1, 1)), (0.0, -0.0), (1, 1.0), (NAN, 0.0), ("a", "b")]
)
def test_one_changed_bit_is_said_at_once(path: Path, value: Any, changed: Any) -> None:
    """The first differing step, at the moment the step is over; and again when the log is read."""
    attempt(path, 1, 0, 10, lambda step: value)
    log = Log(path, 2)
    log.resume(4)
    for step in range(4, 7):
        log.write(step, {"loss": value})
    log.write(7, {"loss": changed})
    with pytest.warns(RunWarning, match="step 7 of attempt 2 differs from attempt 1"):
        log.write(8, {"loss": value})
    assert log.difference is not None
    assert (log.difference.step, log.difference.names) == (7, ("loss",))
    log.write(9, {"loss": changed})
    log.close()  # said once
    assert compare_rerun(path) == 7
    assert [event["step"] for event in read_events(path) if event["event"] == "differs"] == [7]


def test_the_likely_cause_is_named(path: Path) -> None:
    """The learning rate points at the scheduler, the first step at the state, a later one at memory."""
    with Log(path, 1) as log:
        log.resume(0)
        for step in range(10):
            log.write(step, {"loss": 1.0, "lr": 0.1, "tokens_per_second": 5.0})
    said = {}
    for name, step in (("lr", 5), ("tokens_per_second", 5), ("loss", 5), ("loss", 6)):
        copy = path.with_name(f"{name}{step}.jsonl")
        copy.write_bytes(path.read_bytes())
        log = Log(copy, 2)
        log.resume(5)
        for at in range(5, step + 1):
            values = {"loss": 1.0, "lr": 0.1, "tokens_per_second": 5.0}
            log.write(at, {**values, name: 2.0} if at == step else values)
        with pytest.warns(RunWarning, match=name):
            log.close()
        found = explain_rerun(copy)
        assert found is not None
        said[name, step] = found.cause()
    assert "scheduler" in said["lr", 5]
    assert "timing=" in said["tokens_per_second", 5]
    assert "first step after resuming" in said["loss", 5]
    assert "optimizer" in said["loss", 6]


def test_the_step_in_which_an_attempt_died_may_be_incomplete(path: Path) -> None:
    """Killed between two calls of one step: only what both attempts logged is compared."""
    with Log(path, 1) as log:
        log.resume(0)
        log.write(0, {"loss": 1.0})
        log.write(0, {"norm": 1.0})
        log.write(1, {"loss": 2.0})  # and killed here
    with Log(path, 2) as log:
        log.resume(0)
        for step in (0, 1):
            log.write(step, {"loss": step + 1.0})
            log.write(step, {"norm": 1.0})
    assert log.difference is None
    assert compare_rerun(path) is None


def test_a_missing_value_in_a_whole_step_is_a_difference(path: Path) -> None:
    """An evaluation that ran the first time and not the second."""
    with Log(path, 1) as log:
        log.resume(0)
        for step in (0, 1):
            log.write(step, {"loss": 1.0, "eval": 2.0} if step == 0 else {"loss": 1.0})
    with pytest.warns(RunWarning, match="eval"):
        attempt(path, 2, 0, 2, lambda step: 1.0)
    assert compare_rerun(path) == 0


def test_since_skips_what_cannot_matter(path: Path) -> None:
    """The manifest's offset: the comparison is the same, without reading the log from its beginning."""
    with Log(path, 1) as log:
        log.resume(0)
        for step in range(100):
            log.write(step, {"loss": float(step)})
        offset = log.sync()
        for step in range(100, 110):
            log.write(step, {"loss": float(step)})
    log = Log(path, 2)
    log.resume(100, since=offset)
    for step in range(100, 105):
        log.write(step, {"loss": float(step)})
    log.write(105, {"loss": 0.0})
    with pytest.warns(RunWarning, match="step 105"):
        log.close()


def test_a_log_shorter_than_its_checkpoint_says_is_reported(path: Path) -> None:
    """The manifest holds the length that was durable: less than that was taken out by someone."""
    attempt(path, 1, 0, 5)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2].rpartition(b"\n")[0] + b"\n")
    with Log(path, 2) as log, pytest.warns(RunWarning, match=f"{size} when the checkpoint was made"):
        log.resume(5, since=size)

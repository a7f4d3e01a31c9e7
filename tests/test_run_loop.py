"""The loop and its end: what a step is, what is saved when, why it stops, and what comes after."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torture.small import Training, starts, whole

import loadsheet as ls
from loadsheet.errors import BadInput
from loadsheet.run.errors import NoCheckpoint, RunError
from loadsheet.run.reading import read_events

# tests keep their models for looking at
pytestmark = pytest.mark.filterwarnings("ignore:.*lives but was not kept")


# -- steps -------------------------------------------------------------------------------------------------


def test_resumes_after_a_break(tmp_path: Path) -> None:
    """A break saves nothing; the next attempt goes on from the last checkpoint, bit for bit the same."""
    weights, losses = whole(tmp_path / "whole", 11)
    with Training(tmp_path / "cut") as first:
        assert first.train(11, stop_after=7) == [0, 1, 2, 3, 4, 5, 6, 7]
        assert first.checkpoints == [3, 6]  # not 8
        assert not (first.run.path / "done.json").exists()
    with Training(tmp_path / "cut") as second:
        assert second.train(11) == [6, 7, 8, 9, 10]
        assert second.weights == weights
        assert ls.read_log(second.run.path)["loss"] == losses
        assert starts(second.run.path) == [0, 6]
        assert second.run.attempt == 2


def test_an_exception_saves_nothing(tmp_path: Path) -> None:
    """An error in the body passes through; what is saved is the last checkpoint, and signals are free again."""
    with Training(tmp_path) as training:
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(ZeroDivisionError):
            for step in training.run.steps(9, checkpoint_every=3):
                assert signal.getsignal(signal.SIGTERM) != before
                training.step()
                if step == 4:
                    1 / 0  # noqa: B018
        assert signal.getsignal(signal.SIGTERM) == before
        assert training.checkpoints == [0, 3]
    with Training(tmp_path) as training:
        assert training.train(9) == [3, 4, 5, 6, 7, 8]


def test_two_loops_in_one_process(tmp_path: Path) -> None:
    """After a break the same process may go on: from the checkpoint, as another process would."""
    weights, _ = whole(tmp_path / "whole", 9)
    with Training(tmp_path / "cut") as training:
        training.train(9, stop_after=4)
        assert training.train(9) == [3, 4, 5, 6, 7, 8]
        assert training.weights == weights
        assert starts(training.run.path) == [0, 3]


def test_done_yields_nothing(tmp_path: Path) -> None:
    """A done run restores its final state, random numbers included, and what comes after the loop runs."""
    with Training(tmp_path) as first:
        first.train(5)
        drawn = (torch.rand(3).tolist(), random.random(), np.random.rand())
        weights = first.weights
    assert first.checkpoints == [3, 5]
    with Training(tmp_path) as second:
        assert second.train(5) == []
        assert second.weights == weights
        assert (torch.rand(3).tolist(), random.random(), np.random.rand()) == drawn
        second.run.log(final=1.0)
    assert ls.read_log(second.run.path)["final"] == [None] * 5 + [1.0]
    assert json.loads((second.run.path / "done.json").read_text())["steps"] == 5


def test_more_steps_go_on(tmp_path: Path) -> None:
    """A larger number of steps goes on from the end; a smaller one than are complete is refused."""
    weights, losses = whole(tmp_path / "whole", 8)
    with Training(tmp_path / "cut") as first:
        first.train(5)
    with Training(tmp_path / "cut") as second:
        assert second.train(8) == [5, 6, 7]
        assert second.weights == weights
        assert ls.read_log(second.run.path)["loss"] == losses
    with (
        Training(tmp_path / "cut") as third,
        pytest.raises(BadInput, match="got 5, but this run has completed 8"),
    ):
        third.run.steps(5)


def test_a_checkpoint_holds_completed_steps(tmp_path: Path) -> None:
    """step-3 is what the model is when the body has been left for the third time, and asks for more."""
    seen = {}
    with Training(tmp_path) as training:
        for step in training.run.steps(7, checkpoint_every=3, keep_last=9):
            seen[step] = training.weights  # before the update of this step
            training.step()
    for step in (0, 3, 6):
        fresh = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        state = ls.load(tmp_path / training.run.fingerprint, step, into=fresh)
        assert state.step == step
        assert [w for p in fresh.parameters() for w in p.detach().flatten().tolist()] == seen[step]


def test_restores_when_called(tmp_path: Path) -> None:
    """`steps` restores at once, before anything is iterated."""
    with Training(tmp_path) as first:
        first.train(9, stop_after=5)
        weights = first.weights
    with Training(tmp_path) as second:
        assert second.weights != weights
        second.run.steps(9)
        with Training(tmp_path / "other") as other:
            other.train(3)
            assert second.weights == other.weights


def test_unseeded_starts_are_kept(tmp_path: Path) -> None:
    """A script that seeds nothing and dies before its first checkpoint begins again with the same weights."""
    runs = []
    for _ in range(2):
        with Training(tmp_path) as training:
            with torch.no_grad():
                training.model[0].weight.normal_(
                    generator=torch.Generator().manual_seed(time.time_ns() % 2**31)
                )
            for _step in training.run.steps(9, checkpoint_every=None):
                runs.append(training.weights)
                break
    assert runs[0] == runs[1]


def test_several_calls_of_log_are_one_record(tmp_path: Path) -> None:
    """Calls within a step merge; before the first step there is nothing to log to."""
    with Training(tmp_path) as training:
        with pytest.raises(BadInput, match="before the first step"):
            training.run.log(loss=1.0)
        for step in training.run.steps(2):
            training.run.log(a=step, b=0)
            training.run.log(b=np.float32(0.5), timing={"rate": 2.0})
        log = ls.read_log(training.run.path)
    assert [log[k] for k in ("step", "a", "b", "timing.rate")] == [[0, 1], [0, 1], [0.5, 0.5], [2.0, 2.0]]


def test_aside_changes_nothing(tmp_path: Path) -> None:
    """How often one evaluates, with what randomness, does not reach the training."""
    weights, _ = whole(tmp_path / "whole", 6)
    inside = []
    with Training(tmp_path / "evaluated") as training:
        for _ in training.run.steps(6, checkpoint_every=3):
            with training.run.aside():
                inside.append((torch.rand(2).tolist(), random.random(), np.random.rand()))
                list(torch.utils.data.DataLoader(range(4), shuffle=True))
            training.step()
        with training.run.aside(seed=5):
            fixed = torch.rand(2).tolist()
        with training.run.aside(seed=5):
            assert torch.rand(2).tolist() == fixed
    assert training.weights == weights
    assert len({str(i) for i in inside}) == 6  # and each step has numbers of its own


def test_measures_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`measured.json` has the time per step without evaluation, the wait for data, and the saves."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def slow() -> Iterator[int]:
        while True:
            sleep(0.25)
            yield 1

    class Slow:
        def __iter__(self) -> Iterator[int]:
            return slow()

    with ls.Run.open(tmp_path, {}, progress=False) as run:
        batches = run.batches(Slow())
        for _ in run.steps(5, checkpoint_every=2):
            next(batches)
            sleep(0.75)
            with run.aside():
                sleep(5)
    found = json.loads((run.path / "measured.json").read_text())["attempts"]["1"]
    assert (found["step_seconds"]["median"], found["step_seconds"]["sum"]) == (1.0, 5.0)
    assert found["data_wait_share"] == 0.25
    assert (found["from_step"], found["to_step"], found["steps_timed"]) == (0, 5, 5)
    assert found["saves"] == 4  # 0, 2, 4, 5
    assert found["peak_host_bytes"] > 50e6


def test_what_was_forgotten_is_reported(tmp_path: Path) -> None:
    """A batch fetched ahead is in no state: the first step that is run again differs, and it is said at once."""
    for crash_after in (7, 7):
        with Training(tmp_path) as training:
            ahead = torch.rand(4)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for step in training.run.steps(20, checkpoint_every=3):
                    training.run.log(loss=ahead.sum())
                    ahead = torch.rand(4)  # for the next step
                    if step == crash_after:
                        break
    said = [str(w.message) for w in caught if "not the same bits" in str(w.message)]
    assert starts(training.run.path) == [0, 6]
    assert len(said) == 1
    assert said[0].startswith("not the same bits: step 6 of attempt 2 differs from attempt 1 (loss ")
    assert "data or random numbers are not kept in full" in said[0]
    (event,) = (e for e in read_events(training.run.path) if e["event"] == "differs")
    assert event["step"] == 6


def test_goes_on_from_the_mirror(tmp_path: Path) -> None:
    """A machine with an empty disk brings checkpoint and log from the mirror, and ends with the same bits."""
    weights, losses = whole(tmp_path / "whole", 9)
    mirror = tmp_path / "elsewhere"
    with Training(tmp_path / "first", mirror=mirror) as first, pytest.raises(ls.Stopped):
        for step in first.run.steps(9, checkpoint_every=3):
            first.step()
            if step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
    shutil.rmtree(tmp_path / "first")
    with Training(tmp_path / "second", mirror=mirror) as second:
        assert second.train(9) == [5, 6, 7, 8]
        assert second.weights == weights
        assert ls.read_log(second.run.path)["loss"] == losses
        assert second.run.attempt == 2
    with Training(tmp_path / "third", mirror=mirror) as third:
        assert third.train(9) == []
        assert third.weights == weights


def test_what_comes_after_the_loop_is_in_the_mirror(tmp_path: Path) -> None:
    """A record after the last step, and the events of the end, are there once the run is closed; twice is once."""
    mirror = tmp_path / "elsewhere"
    with Training(tmp_path / "first", mirror=mirror) as first:
        first.train(4)
        first.run.log(test_loss=0.5)
    whole = (first.run.path / "log.jsonl").read_bytes()
    segments = sorted((mirror / first.run.fingerprint / "log").iterdir())
    assert b"".join(segment.read_bytes() for segment in segments) == whole
    (first.run.path / "log.jsonl").write_bytes(whole + b"{}\n")  # somebody else's, later
    first.run.close()
    assert sorted((mirror / first.run.fingerprint / "log").iterdir()) == segments
    with Training(tmp_path / "second", mirror=mirror) as second:
        assert second.train(4) == []
    assert (second.run.path / "log.jsonl").read_bytes().startswith(whole)


UNCLOSED = """
import sys
import loadsheet as ls
run = ls.Run.open(sys.argv[1], {}, mirror=sys.argv[2], progress=False)
for step in run.steps(3):
    run.log(x=step)
    if step == 2 and sys.argv[3] == "error":
        raise ZeroDivisionError
run.log(last=1)
"""


@pytest.mark.parametrize(("how", "status", "steps"), [("well", 0, [0, 1, 2, 3]), ("error", 1, [0, 1, 2])])
def test_a_script_that_closes_nothing(how: str, status: int, steps: list[int], tmp_path: Path) -> None:
    """What it has logged is in the mirror when the process has ended, by an error too."""
    command = [sys.executable, "-c", UNCLOSED, str(tmp_path / "runs"), str(tmp_path / "mirror"), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert "Warning" not in done.stderr
    (here,) = (tmp_path / "runs").iterdir()
    segments = sorted((tmp_path / "mirror" / here.name / "log").iterdir())
    assert b"".join(segment.read_bytes() for segment in segments) == (here / "log.jsonl").read_bytes()
    assert ls.read_log(here)["step"] == steps
    assert (read_events(here)[-1]["event"] == "left") == (how == "error")


def test_close_ends_the_loop(tmp_path: Path) -> None:
    """Closed from inside, the loop is over: signals are free, and it is noted that it was left."""
    before = signal.getsignal(signal.SIGTERM)
    training = Training(tmp_path)
    for _ in training.run.steps(5):
        training.step()
        training.run.close()
        assert signal.getsignal(signal.SIGTERM) == before
        break
    assert read_events(training.run.path)[-1]["event"] == "left"
    with Training(tmp_path) as training:
        assert training.train(5) == [0, 1, 2, 3, 4]


# -- weights of a run --------------------------------------------------------------------------------------


def test_load(tmp_path: Path) -> None:
    """The newest, the best by a logged metric, or a step; nothing is locked, nothing changed."""
    weights = {}
    with Training(tmp_path) as training:
        for step in training.run.steps(8, checkpoint_every=2, keep_last=9):
            training.step()
            weights[step + 1] = training.weights
            if step % 2:
                training.run.log(val_loss=[9.0, 1.0, 4.0, 5.0][step // 2], score=[9, 1, 4, 5][step // 2])
        for which, options, expected in (
            ("latest", {}, 8),
            ("best", {}, 4),
            ("best", {"metric": "score", "mode": "max"}, 2),
            (6, {}, 6),
        ):
            fresh = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
            assert ls.load(training.run, which, into=fresh, **options).step == expected
            assert [w for p in fresh.parameters() for w in p.detach().flatten().tolist()] == weights[expected]
    with pytest.raises(NoCheckpoint, match="got step 5, expected one of"):
        ls.load(training.run.path, 5)
    with pytest.raises(NoCheckpoint, match="no checkpoint with a logged 'accuracy'"):
        ls.load(training.run.path, "best", metric="accuracy")
    with pytest.raises(NoCheckpoint, match="expected the directory of a run"):
        ls.load(tmp_path / "nothing")
    with pytest.raises(BadInput, match='expected "latest", "best" or a number of steps'):
        ls.load(training.run.path, "newest")
    with pytest.raises(ls.LoadsheetError, match=r"model\.0\.weight: got shape \(8, 5\), expected \(8, 4\)"):
        ls.load(training.run.path, into=nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.Linear(8, 1)))


def test_start_from(tmp_path: Path) -> None:
    """A new run begins with old weights, and only with those; once it has a checkpoint, with its own."""
    with Training(tmp_path / "old") as old:
        old.train(6)
    with Training(tmp_path / "new", {"lr": 0.02}, start_from=old.run.path) as new:
        for step in new.run.steps(4, checkpoint_every=2):
            if step == 0:
                assert new.weights == old.weights
                assert new.optimizer.state == {}
            new.step()
            if step == 2:
                break
    (event,) = (e for e in read_events(new.run.path) if e["event"] == "start_from")
    assert (event["run"], event["step"], event["names"]) == (str(old.run.path), 6, ["model"])
    with Training(tmp_path / "new", {"lr": 0.02}, start_from=old.run.path) as new:
        assert new.train(4) == [2, 3]


# -- wrong use -----------------------------------------------------------------------------------------------


def test_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are no number, loops inside loops, two loaders of one name, several processes."""
    with Training(tmp_path) as training:
        for wrong in (-1, 2.0, True, "9"):
            with pytest.raises(BadInput, match="expected a whole number from 0 on"):
                training.run.steps(wrong)
        with pytest.raises(BadInput, match="second loop inside the first"):
            for _ in training.run.steps(3):
                training.run.steps(3)
        with pytest.raises(BadInput, match="'a' twice"):
            training.run.batches([1], "a"), training.run.batches([1], "a")
        with pytest.raises(BadInput, match="checkpoint_every"):
            training.run.steps(3, checkpoint_every=0)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RunError, match="WORLD_SIZE='4', expected one process"):
        ls.Run.open(tmp_path, {})


def test_zero_steps(tmp_path: Path) -> None:
    """As `range(0)`: nothing to do, and done."""
    with Training(tmp_path) as training:
        assert training.train(0) == []
        assert training.run.path.joinpath("done.json").exists()


# -- determinism ---------------------------------------------------------------------------------------------


@pytest.fixture
def _as_before() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.set_num_threads(before[1])


@pytest.mark.usefixtures("_as_before")
def test_deterministic() -> None:
    """Equal seeds give equal numbers everywhere; what remains is listed; operations without a way raise."""
    drawn = []
    for seed in (7, 7, 8):
        found = ls.deterministic(seed, threads=1)
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    assert drawn[0] == drawn[1] != drawn[2]
    assert found.seed == 8
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 1
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert any("CPU threads: 1 now" in line for line in found.remaining)
    assert "seed 8" in str(found)
    for wrong in (-1, 2**32, 1.0, True):
        with pytest.raises(BadInput, match="seed"):
            ls.deterministic(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="threads"):
        ls.deterministic(1, threads=0)

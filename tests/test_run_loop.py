"""The loop and its end: what a step is, what is saved when, why it stops, and what comes after."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import loadsheet as ls
from loadsheet.errors import BadInput
from loadsheet.run import ending, notices
from loadsheet.run.errors import NoCheckpoint, NoSpace, RunError, RunWarning, SaveFailed
from loadsheet.run.files import Disk
from loadsheet.run.reading import read_events

CONFIG = {"lr": 0.01}

pytestmark = [
    pytest.mark.usefixtures("frozen_garbage"),
    pytest.mark.filterwarnings("ignore:.*lives but was not kept"),  # tests keep their models for looking at
]


class Training:
    """A run of a tiny model, written as a script would."""

    def __init__(self, root: Path, config: object = CONFIG, **options: Any) -> None:
        torch.manual_seed(0)
        self.run = ls.Run.open(root, config, progress=False, **options)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.run.keep(model=self.model, optimizer=self.optimizer)
        data = [(torch.full((4,), float(i)), torch.ones(1)) for i in range(10)]
        self.batches = self.run.batches(torch.utils.data.DataLoader(data, 4, shuffle=True))

    def step(self) -> float:
        """One step, its loss logged."""
        x, y = next(self.batches)
        loss = ((self.model(x) - y) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.run.log(loss=loss)
        return loss.item()

    def train(self, total: int, stop_after: int | None = None, **options: Any) -> list[int]:
        """The steps done; `stop_after`: break in that step."""
        done = []
        for step in self.run.steps(total, **{"checkpoint_every": 3, **options}):
            self.step()
            done.append(step)
            if step == stop_after:
                break
        return done

    @property
    def weights(self) -> list[float]:
        """All of them."""
        return [w for p in self.model.parameters() for w in p.detach().flatten().tolist()]

    @property
    def checkpoints(self) -> list[int]:
        """The steps that have one."""
        return sorted(int(p.name[5:]) for p in (self.run.path / "checkpoints").glob("step-*"))

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.run.close()


def starts(path: Path) -> list[int]:
    """Where each attempt began."""
    return [event["from"] for event in read_events(path) if event["event"] == "resume"]


def whole(root: Path, total: int) -> tuple[list[float], list[Any]]:
    """Weights and losses of the uninterrupted run."""
    with Training(root) as training:
        assert training.train(total) == list(range(total))
        return training.weights, ls.read_log(training.run.path)["loss"]


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


def test_measures_itself(tmp_path: Path) -> None:
    """`measured.json` has the time per step without evaluation, the wait for data, and the saves."""

    def slow() -> Iterator[int]:
        while True:
            time.sleep(0.01)
            yield 1

    class Slow:
        def __iter__(self) -> Iterator[int]:
            return slow()

    with ls.Run.open(tmp_path, {}, progress=False) as run:
        batches = run.batches(Slow())
        for _ in run.steps(5, checkpoint_every=2):
            next(batches)
            time.sleep(0.01)
            with run.aside():
                time.sleep(0.05)
    found = json.loads((run.path / "measured.json").read_text())["attempts"]["1"]
    assert 0.02 <= found["step_seconds"]["median"] < 0.05
    assert 0.25 < found["data_wait_share"] < 0.75
    assert (found["from_step"], found["to_step"], found["steps_timed"]) == (0, 5, 5)
    assert found["saves"] == 4  # 0, 2, 4, 5
    assert found["peak_host_bytes"] > 50e6


# -- being stopped -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGINT", 130)])
def test_signals_save_and_stop(number: str, code: int, tmp_path: Path) -> None:
    """The step in which the signal comes is finished and saved; the exit status says what to do."""
    weights, losses = whole(tmp_path / "whole", 9)
    with Training(tmp_path / "cut") as training:
        with pytest.raises(ls.Stopped) as stopped:
            for step in training.run.steps(9, checkpoint_every=3):
                if step == 4:
                    os.kill(os.getpid(), getattr(signal, number))
                training.step()
        assert (stopped.value.code, stopped.value.step, stopped.value.reason) == (code, 5, number)
        assert isinstance(stopped.value, SystemExit)
        assert training.checkpoints == [3, 5]
    with Training(tmp_path / "cut") as training:
        assert training.train(9) == [5, 6, 7, 8]
        assert training.weights == weights
        assert ls.read_log(training.run.path)["loss"] == losses


def test_a_signal_in_the_last_step(tmp_path: Path) -> None:
    """The run is complete and marked done; what comes after the loop is left to the next attempt."""
    with Training(tmp_path) as training:
        with pytest.raises(ls.Stopped):
            for step in training.run.steps(4):
                training.step()
                if step == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
        assert training.run.path.joinpath("done.json").exists()
    with Training(tmp_path) as training:
        assert training.train(4) == []


SCRIPT = """
import os, signal, sys, time
import loadsheet as ls
run = ls.Run.open(sys.argv[1], {})
for step in run.steps(100):
    print(step, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def start(root: Path, seconds: float) -> subprocess.Popen[str]:
    """The script, once it is in its first step."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(root), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    return process


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    """Ctrl-C twice, in a step that takes a minute: gone within a second or two."""
    process = start(tmp_path, 60)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT
    assert time.monotonic() - begun < 2


def test_the_exit_status_and_the_message(tmp_path: Path) -> None:
    """A script that knows nothing of signals exits with 75 and one line; a second owner with 2 and one line."""
    process = start(tmp_path, 0.3)
    second = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{})", "{}, wait=0.1)"), str(tmp_path), "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 2
    assert "Traceback" not in second.stderr
    assert f"in use by process {process.pid}" in second.stderr
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 75
    assert len(errors.splitlines()) == 1
    assert "stopped by SIGTERM after" in errors
    assert "the same command goes on from step" in errors


# -- notices -------------------------------------------------------------------------------------------------


def write_notice(path: Path, **fields: Any) -> None:
    """As a watcher does: whole or not at all."""
    path.with_suffix(".new").write_text(json.dumps(fields))
    path.with_suffix(".new").replace(path)


def test_terminate_saves_and_waits_to_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With time enough: saved after the step, no further step, and the SIGTERM that follows ends with 75."""
    path = tmp_path / "notice.json"
    monkeypatch.setenv("LOADSHEET_NOTICE", str(path))
    with Training(tmp_path / "run") as training:
        killer = threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGTERM))
        seen = []
        with pytest.raises(ls.Stopped) as stopped:
            for step in training.run.steps(9, checkpoint_every=100):
                training.step()
                seen.append(step)
                if step == 3:
                    write_notice(path, kind="terminate", deadline=time.time() + 60, source="aws")
                    killer.start()
                    begun = time.monotonic()
        assert seen == [0, 1, 2, 3]
        assert time.monotonic() - begun > 0.5
        assert (stopped.value.code, stopped.value.step) == (75, 4)
        assert stopped.value.reason == "a notice from aws, then SIGTERM"
        assert training.checkpoints == [0, 4]
    path.unlink()
    with Training(tmp_path / "run") as training:
        assert training.train(9) == [4, 5, 6, 7, 8]


def test_terminate_without_being_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If nobody takes the machine, the run stops by itself some time after the deadline."""
    monkeypatch.setattr(ending, "GRACE", 0.1)
    path = tmp_path / "notice.json"
    with Training(tmp_path / "run", notice=path) as training:
        with pytest.raises(ls.Stopped) as stopped:
            for _ in training.run.steps(9, checkpoint_every=100):
                training.step()
                write_notice(path, kind="terminate", deadline=time.time() + 0.5)
        assert (stopped.value.code, stopped.value.step, stopped.value.reason) == (75, 1, "a notice")


def test_cancelled_goes_on(tmp_path: Path) -> None:
    """A notice that is taken back lets training go on, and the result is the same."""
    weights, _ = whole(tmp_path / "whole", 6)
    path = tmp_path / "notice.json"
    with Training(tmp_path / "run", notice=path) as training:
        for step in training.run.steps(6, checkpoint_every=100):
            training.step()
            if step == 2:
                write_notice(path, kind="terminate", deadline=time.time() + 60)
                threading.Timer(0.3, write_notice, (path,), {"kind": "cancelled"}).start()
        assert training.weights == weights
        assert training.checkpoints == [3, 6]


def test_too_late_for_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With less time left than 1.3 saves take, none is begun: it would be cut, and costs nothing to leave out."""
    monkeypatch.setattr(ending, "GRACE", 0.0)
    monkeypatch.setattr(ending, "worth_saving", lambda deadline, durations: False)
    path = tmp_path / "notice.json"
    with Training(tmp_path / "run", notice=path) as training:
        with pytest.raises(ls.Stopped) as stopped:
            for step in training.run.steps(9, checkpoint_every=2):
                training.step()
                if step == 4:
                    write_notice(path, kind="terminate", deadline=time.time() + 0.01)
        assert stopped.value.step == 4
        assert training.checkpoints == [2, 4]


def test_rebalance_saves_and_goes_on(tmp_path: Path) -> None:
    """One checkpoint more, once; training goes on."""
    given = {"kind": "rebalance"}
    with Training(tmp_path, notice=lambda: given) as training:
        for step in training.run.steps(6, checkpoint_every=100, keep_last=9):
            training.step()
            time.sleep(0.05 if step == 0 else 0)  # the thread asks
        assert training.checkpoints == [0, 1, 6]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "got a list, expected an object"),
        ('{"kind": "boom"}', "kind: got 'boom', expected one of terminate, rebalance, cancelled"),
        ('{"kind": "terminate", "deadline": "soon"}', "deadline: got 'soon', expected Unix seconds or null"),
        ('{"kind": "terminate", "deadline": NaN}', "deadline: got nan"),
        ("{", "Expecting property name"),
        ("[" * 70000, "got more than 65536 bytes"),
    ],
)
def test_a_notice_that_cannot_be_read(text: str, said: str, tmp_path: Path) -> None:
    """It is warned about once, and ignored."""
    path = tmp_path / "notice.json"
    path.write_text(text)
    found = notices.Notices(path)
    with pytest.warns(RunWarning) as caught:
        assert found.current() is None
        assert found.current() is None
    assert len(caught) == 1
    assert said in str(caught[0].message)


# -- saves that fail -----------------------------------------------------------------------------------------


def test_a_failed_save_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up is an error at the next step, with the bytes needed; what was saved is there."""
    with Training(tmp_path) as training:
        with pytest.raises(NoSpace, match=r"\(2 kept \+ 1\)"):
            for step in training.run.steps(30, checkpoint_every=3):
                training.step()
                time.sleep(0.02)
                if step == 4:
                    monkeypatch.setattr(Disk, "create", full)
        monkeypatch.undo()
        assert training.checkpoints == [0, 3]
    with Training(tmp_path) as training:
        assert training.train(6) == [3, 4, 5]


def test_a_failed_save_may_be_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If asked for, training goes on without that checkpoint, and saves again when it can."""
    with (
        Training(tmp_path) as training,
        pytest.warns(RunWarning, match="training goes on without this checkpoint"),
    ):
        for step in training.run.steps(12, checkpoint_every=3, when_save_fails="warn"):
            training.step()
            time.sleep(0.02)
            if step == 4:
                monkeypatch.setattr(Disk, "create", full)
            if step == 7:
                monkeypatch.undo()
    assert training.checkpoints == [9, 12]


def test_the_final_save_must_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose final state is not on disk is not done, whatever was asked for."""
    with Training(tmp_path) as training:
        with pytest.raises(SaveFailed, match="the final state"), pytest.warns(RunWarning):
            for step in training.run.steps(5, checkpoint_every=3, when_save_fails="warn"):
                training.step()
                time.sleep(0.02)
                if step == 4:
                    monkeypatch.setattr(Disk, "create", full)
        monkeypatch.undo()
    with Training(tmp_path) as training:
        assert training.train(5) == [3, 4]


def full(*_: Any) -> None:
    """A disk without room."""
    raise OSError(errno.ENOSPC, "No space left on device")


# -- weights of a run ----------------------------------------------------------------------------------------


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

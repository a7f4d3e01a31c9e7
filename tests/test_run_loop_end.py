"""Why a run stops, and what is saved then: signals, notices, disks that are full."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torture.small import Training, whole

import loadsheet as ls
from loadsheet.run import ending, notices
from loadsheet.run.errors import NoSpace, RunError, RunWarning, SaveFailed
from loadsheet.run.files import Disk

# tests keep their models for looking at
pytestmark = pytest.mark.filterwarnings("ignore:.*lives but was not kept")


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


#: steps until it is asked to stop, then one that takes as long as it was told, without an end to the run
SCRIPT = """
import sys, time
import loadsheet as ls
run = ls.Run.open(sys.argv[1], {})
for step in run.steps(1_000_000):
    print(step, flush=True)
    while run._stops.signals.received is None:
        time.sleep(0.01)
    print("heard", flush=True)
    time.sleep(float(sys.argv[2]))
"""
PATIENCE = 300  # seconds: only how long a test that fails takes


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
    """Ctrl-C twice, in a step that takes an hour: the first is noted, at the second it is gone."""
    process = start(tmp_path, 3600)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "heard\n"  # two at once would be one to the process
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT


def test_the_exit_status_and_the_message(tmp_path: Path) -> None:
    """A script that knows nothing of signals exits with 75 and one line; a second owner with 2 and one line."""
    process = start(tmp_path, 0)
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
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75
    assert len(errors.splitlines()) == 1
    assert "stopped by SIGTERM after" in errors
    assert "the same command goes on from step" in errors


# -- notices -------------------------------------------------------------------------------------------------


def appears(training: Training, step: int) -> None:
    """Wait until that checkpoint is there."""
    deadline = time.monotonic() + PATIENCE
    while step not in training.checkpoints and time.monotonic() < deadline:
        time.sleep(0.01)


def write_notice(path: Path, **fields: Any) -> None:
    """As a watcher does: whole or not at all."""
    path.with_suffix(".new").write_text(json.dumps(fields))
    path.with_suffix(".new").replace(path)


def take_away(training: Training, step: int) -> None:
    """SIGTERM while the loop waits for it: that checkpoint is committed after the loop has seen the notice."""
    appears(training, step)
    time.sleep(0.2)  # another step would be done by now, if it did not wait
    if training.run._looping:  # else nobody would catch it
        os.kill(os.getpid(), signal.SIGTERM)


def test_terminate_saves_and_waits_to_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With time enough: saved after the step, no further step, and the SIGTERM that follows ends with 75."""
    path = tmp_path / "notice.json"
    monkeypatch.setenv("LOADSHEET_NOTICE", str(path))
    with Training(tmp_path / "run") as training:
        killer = threading.Thread(target=take_away, args=(training, 4))
        seen = []
        with pytest.raises(ls.Stopped) as stopped:
            for step in training.run.steps(9, checkpoint_every=100):
                training.step()
                seen.append(step)
                if step == 3:
                    write_notice(path, kind="terminate", deadline=time.time() + 60, source="aws")
                    killer.start()
        killer.join()
        assert seen == [0, 1, 2, 3]
        assert (stopped.value.code, stopped.value.step) == (75, 4)
        assert stopped.value.reason == "a notice from aws, then SIGTERM"
        assert training.checkpoints == [0, 4]
    path.unlink()
    with Training(tmp_path / "run") as training:
        assert training.train(9) == [4, 5, 6, 7, 8]


def test_terminate_without_being_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If nobody takes the machine, the run stops by itself some time after the deadline."""
    monkeypatch.setattr(ending, "GRACE", 0.1)
    monkeypatch.setattr(ending, "worth_saving", lambda deadline, durations: True)  # however slow the disk is
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
                write_notice(path, kind="terminate", deadline=time.time() + 600)
                canceller = threading.Thread(
                    target=lambda: (appears(training, 3), write_notice(path, kind="cancelled"))
                )
                canceller.start()
        canceller.join()
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
            while step == 0 and training.run._notices.current() is None:
                time.sleep(0.001)  # until the thread has asked
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
                if step == 4:
                    training.settle()
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
            if step in (4, 7):
                training.settle()
            if step == 4:
                monkeypatch.setattr(Disk, "create", full)
            if step == 7:
                monkeypatch.undo()
    assert training.checkpoints == [9, 12]


def test_a_save_that_fails_after_the_last_step_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a break nobody asks for the next step; the failure is not lost."""
    with (
        Training(tmp_path) as training,
        pytest.warns(RunWarning, match="the last save failed: save step-00000003"),
    ):
        for step in training.run.steps(9, checkpoint_every=3):
            training.step()
            if step == 2:
                training.settle()
                monkeypatch.setattr(Disk, "create", full)
            if step == 3:
                break
    assert training.checkpoints == [0]


def test_the_final_save_must_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose final state is not on disk is not done, whatever was asked for."""
    with Training(tmp_path) as training:
        with pytest.raises(SaveFailed, match="the final state"), pytest.warns(RunWarning):
            for step in training.run.steps(5, checkpoint_every=3, when_save_fails="warn"):
                training.step()
                if step == 4:
                    training.settle()
                    monkeypatch.setattr(Disk, "create", full)
        monkeypatch.undo()
    with Training(tmp_path) as training:
        assert training.train(5) == [3, 4]


def test_too_small_a_disk_is_said_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is asked for what checkpoints will take once the optimizer has its moments."""
    with Training(tmp_path / "room") as training:
        training.train(2, keep_last=9)
        size = (training.run.path / "checkpoints/step-00000000/tensors.bin").stat().st_size
    monkeypatch.setattr(Disk, "free", lambda *_: 3 * size)  # enough for what there is in the beginning
    steps = 0
    with Training(tmp_path / "none") as training, pytest.raises(NoSpace, match=r"\(2 kept \+ 1\)"):
        for _ in training.run.steps(3):
            steps += 1
    assert steps == 0


def test_the_directory_removed_under_the_run(tmp_path: Path) -> None:
    """Training into a directory that is gone is no training: an error at the next save, not a silence."""
    training = Training(tmp_path)
    with pytest.warns(RunWarning, match="measured.json: not written"):
        with pytest.raises(RunError, match="deleted"):
            for step in training.run.steps(9, checkpoint_every=3):
                training.step()
                if step == 4:
                    training.settle()
                    shutil.rmtree(training.run.path)
        assert step in (4, 5)  # the log's own thread, or the next save
    with pytest.raises(RunError, match="deleted"):
        training.run.close()


def full(*_: Any) -> None:
    """A disk without room."""
    raise OSError(errno.ENOSPC, "No space left on device")

"""A stop is never lost: whatever the script does in the step of a signal, and whoever is at work when it comes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ending_scripts import LIMIT, ended
from torture.small import Training

import loadsheet as ls
from loadsheet.run.saves import Saves

# tests keep their models for looking at
pytestmark = pytest.mark.filterwarnings("ignore:.*lives but was not kept")


# -- stops that no step looks at ------------------------------------------------------------------------------


def stop(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def test_the_step_of_a_signal_leaves_the_loop(tmp_path: Path) -> None:
    """Early stopping in the step in which SIGTERM came: what comes after the loop is stopped all the same."""
    with Training(tmp_path) as training, pytest.raises(ls.Stopped) as stopped:
        for step in training.run.steps(9, checkpoint_every=2):
            training.step()
            if step == 2:
                stop()
            if step == 2:  # the loop might go on
                break
        time.sleep(LIMIT)
    assert (stopped.value.code, stopped.value.reason) == (75, "SIGTERM")


def test_ctrl_c_in_the_step_that_leaves_the_loop(tmp_path: Path) -> None:
    """It is a KeyboardInterrupt after the loop, as it would be without us."""
    with Training(tmp_path) as training, pytest.raises(KeyboardInterrupt):
        for step in training.run.steps(9):
            training.step()
            if step == 2:
                stop(signal.SIGINT)
            if step == 2:
                break
        time.sleep(LIMIT)


def test_a_loop_that_is_left_and_closed_at_once(tmp_path: Path) -> None:
    """`close` raises the stop before it would be sent anew."""
    training = Training(tmp_path)
    for step in training.run.steps(9):
        training.step()
        if step == 2:
            stop()
        if step == 2:
            break
    with pytest.raises(ls.Stopped):
        training.run.close()


def test_an_error_that_is_caught_in_the_step_of_a_signal(tmp_path: Path) -> None:
    """Who tries again is stopped in the new loop, after a save."""
    with Training(tmp_path) as training, pytest.raises(ls.Stopped) as stopped:
        for again in range(2):
            try:
                for step in training.run.steps(999_999, checkpoint_every=999_999):
                    training.step()
                    if step == 2 and not again:
                        stop()
                        raise RuntimeError("uncorrectable ECC error")
            except RuntimeError:
                pass
    assert stopped.value.step in training.checkpoints


def test_a_held_iterator_with_a_way_back(tmp_path: Path) -> None:
    """One fold after the other, and a progress bar: the stop that nobody looks at is raised when the run is closed."""
    folds = []
    with pytest.raises(ls.Stopped):
        for fold in range(3):
            folds.append(fold)
            with Training(tmp_path / str(fold)) as training:
                held = training.run.steps(9)
                for step in held:
                    training.step()
                    if step == 2:
                        break
                stop()
    assert folds == [0]


class Own:
    """Somebody's own iterator around ours."""

    def __init__(self, steps: Iterator[int]) -> None:
        self.steps = steps

    def __iter__(self) -> Own:
        return self

    def __next__(self) -> int:
        return next(self.steps)


def test_an_iterator_of_ones_own(tmp_path: Path) -> None:
    """The step is finished and saved: that the call which asked for it has returned says nothing."""
    with Training(tmp_path) as training:
        with pytest.raises(ls.Stopped) as stopped:
            for step in Own(training.run.steps(9)):
                if step == 2:
                    stop()
                training.step()
        assert (stopped.value.step, training.checkpoints[-1]) == (3, 3)


def test_a_signal_while_the_loop_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last look, and before the handlers are given back."""
    close = Saves.close

    def closing(self: Saves) -> None:
        stop()
        close(self)

    with Training(tmp_path) as training, pytest.raises(ls.Stopped):
        with monkeypatch.context() as patch:
            patch.setattr(Saves, "close", closing)
            assert training.train(3) == [0, 1, 2]
        time.sleep(LIMIT)


def test_two_runs_of_which_one_is_closed(tmp_path: Path) -> None:
    """The other has the signals then."""
    first = ls.Run.open(tmp_path, {"number": 1}, progress=False)
    with ls.Run.open(tmp_path, {"number": 2}, progress=False):
        first.close()
        with pytest.raises(ls.Stopped):
            stop()


def test_while_a_run_is_being_opened(tmp_path: Path) -> None:
    """It waits for another process: 75, so that the job is started again."""
    code = """
parent = os.fork()
if parent:
    print(os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1]))
else:
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
    ls.Run.open(sys.argv[1], {}, wait=3600.0)
"""
    done = ended(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "75\n")


GONE = """
for step in run.steps(9, checkpoint_every=100):
    if step == 2:
        os.close(reading)
        signal.raise_signal(signal.SIGTERM)
        for _ in range(2):
            print("to nobody", flush=True)
        sys.stdout.writelines(["x" * 100_000])
"""


def test_nobody_reads_any_more(tmp_path: Path) -> None:
    """The `tee` behind a pipe was ended by the same signal: the step is finished and saved, and the status 75."""
    pipe = "reading, writing = os.pipe(); os.dup2(writing, 1)\n"
    done = ended(pipe + GONE, tmp_path)
    assert done.returncode == 75
    assert "after 3 steps" in done.stderr


STUCK = """
from loadsheet.run import waiting
waiting.LEAST = waiting.FIRST = 0.5
waiting._PAUSE = 0.05
for step in run.steps(9):
    if step == 2:
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait()
"""


def test_a_step_that_never_ends(tmp_path: Path) -> None:
    """Ended by force after a while, and said; by default in ten minutes at the earliest."""
    done = ended(STUCK, tmp_path)
    assert done.returncode == 75
    assert "no step has ended" in done.stderr


UPLOAD = """
from concurrent.futures import ThreadPoolExecutor
def upload():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    print("uploaded")
for step in run.steps(2):
    pass
ThreadPoolExecutor(1).submit(lambda: time.sleep(0.5) or upload())
"""


def test_threads_end_after_a_stop_at_the_end(tmp_path: Path) -> None:
    """The script is over and a thread still works: it ends its work, and the status is that of a stop."""
    done = ended(UPLOAD, tmp_path)
    assert (done.returncode, done.stdout) == (75, "uploaded\n")
    assert "Traceback" not in done.stderr


FORKED = """
data = torch.utils.data.TensorDataset(torch.arange(400.0))
own = run.batches(torch.utils.data.DataLoader(data, batch_size=4, num_workers=2))
for step in run.steps(40):
    next(own)
    if step == 4 and os.fork() == 0:
        sys.exit(0)
    if step == 5:
        os.wait()
run.close()
events = [each["event"] for each in map(__import__("json").loads, open(run.path / "log.jsonl")) if "event" in each]
print(events.count("left"))
"""


def test_a_child_that_the_body_forks(tmp_path: Path) -> None:
    """It ends by an exception: neither loop nor workers are its own."""
    done = ended(FORKED, tmp_path)
    assert (done.returncode, done.stdout) == (0, "0\n")


EXECUTOR = """
from concurrent.futures import ThreadPoolExecutor
leaving.PATIENCE = 0.5
with ThreadPoolExecutor(1) as executor:
    executor.submit(threading.Event().wait)
    for step in run.steps(9):
        if step == 2:
            signal.raise_signal(signal.SIGTERM)
"""


def test_an_executor_around_the_loop(tmp_path: Path) -> None:
    """Its end waits for a task that never ends: not longer than for any other thread."""
    done = ended(EXECUTOR, tmp_path)
    assert done.returncode == 75
    assert "still holds up the process" in done.stderr

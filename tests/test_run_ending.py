"""Processes end: whatever a script leaves behind, and whenever it is asked to stop, none stays for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torture.killing import Life, Script, living, start_server
from torture.small import Training

import loadsheet as ls
from loadsheet.run.saver import Saver
from loadsheet.run.saves import Saves
from loadsheet.run.signals import STOPS

# tests keep their models for looking at
pytestmark = pytest.mark.filterwarnings("ignore:.*lives but was not kept")
#: seconds: far more than any of these processes needs, far less than those that hung did
LIMIT = 60

BEGIN = """
import multiprocessing, os, signal, subprocess, sys, threading, time
import torch
import loadsheet as ls
from loadsheet.run import batches, leaving
fork = multiprocessing.get_context("fork")
run = ls.Run.open(sys.argv[1], {}, notice=None)
"""


def ended(code: str, root: Path) -> subprocess.CompletedProcess[str]:
    """The process of a script, which must be over in time and leave nobody."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + code, str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=LIMIT)
    finally:
        left = living(process.pid)
        if left:
            os.killpg(process.pid, signal.SIGKILL)
    assert left == []
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


# -- children ------------------------------------------------------------------------------------------------

CHILDREN = """
for step in run.steps(2):
    child = fork.Process(target=time.sleep, args=(3600,))
    child.start()
    child.terminate()
    child.join()
    fork.Process(target=time.sleep, args=(3600,), daemon=True).start()
    for _ in range(10):  # a signal must not come to a process that is about to wait for work
        with fork.Pool(2) as pool:
            pool.map(abs, range(4))
"""


def test_children_of_a_step_hear_sigterm(tmp_path: Path) -> None:
    """Those that the script ends, those of a pool, and those that multiprocessing ends when the process does."""
    done = ended(CHILDREN, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


PROGRAMS = """
class Decoded(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        program = subprocess.Popen(["sleep", "3600"])
        program.terminate()
        return program.wait()
given = run.batches(torch.utils.data.DataLoader(Decoded(), 2, num_workers=1))
for step in run.steps(2):
    print(next(given).tolist())
"""


def test_programs_that_a_worker_starts_hear_sigterm(tmp_path: Path) -> None:
    """A worker is deaf to it, and does not hand that on."""
    done = ended(PROGRAMS, tmp_path)
    assert (done.returncode, done.stdout) == (0, "[-15, -15]\n" * 2)


THREADS = """
for step in run.steps(3):
    run.log(x=step)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        print(thread.name)
        signal.pthread_kill(thread.ident, signal.SIGTERM)  # held back: it is not for that thread
        status = open(f"/proc/self/task/{thread.native_id}/status").read()
        (held,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk"))
        print(held >> signal.SIGTERM - 1 & 1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what a thread does not hear")
def test_signals_are_for_the_main_thread(tmp_path: Path) -> None:
    """The system gives them to no thread of ours: the main thread, which runs the handlers, would sleep on."""
    done = ended(THREADS, tmp_path)
    assert (done.returncode, done.stdout) == (0, "loadsheet-log\n1\n")


BUSY = """
batches.BUSY = 0.5
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        if index > 7:
            time.sleep(3600)
        return index
given = run.batches(torch.utils.data.DataLoader(Slow(), 1, num_workers=8))
for step in run.steps(9):
    next(given)
    if step == 7:
        break
"""


def test_busy_workers_are_not_waited_for_one_after_the_other(tmp_path: Path) -> None:
    """torch gives ten seconds to each of them if they do not hear SIGTERM."""
    assert ended(BUSY, tmp_path).returncode == 0


# -- threads -------------------------------------------------------------------------------------------------

THREAD = """
import atexit
leaving.PATIENCE = 0.5
atexit.register(print, "goodbye", flush=True)
threading.Thread(target=time.sleep, args=(3600,), name="theirs").start()
for step in run.steps(9):
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_thread_does_not_keep_what_was_asked_to_stop(tmp_path: Path) -> None:
    """SIGTERM would have ended it without us; what is to be done at exit is done."""
    done = ended(THREAD, tmp_path)
    assert (done.returncode, done.stdout) == (75, "goodbye\n")
    assert "thread `theirs` still holds up the process" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_thread_in_a_process_of_multiprocessing(tmp_path: Path) -> None:
    """The same in a child that multiprocessing has started."""
    script = tmp_path / "script.py"
    script.write_text(BEGIN + THREAD)
    start_server()
    life = Life(tmp_path / "runs", Script(script), tmp_path / "out")
    status = life.wait(LIMIT)
    life.kill(group=True)
    assert status == 75


# -- loops that were left ------------------------------------------------------------------------------------

HELD = """
def train():
    global steps
    steps = run.steps(9)
    for step in steps:
        if step == 3:
            break
train()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(3600)
finally:
    os.kill(os.getpid(), signal.SIGTERM)  # launchers send it to the process and to its group
"""


def test_a_signal_after_break_while_the_loop_is_held(tmp_path: Path) -> None:
    """Nobody asks for the next step any more, so it is not waited for."""
    done = ended(HELD, tmp_path)
    assert done.returncode == 75
    assert len(done.stderr.splitlines()) == 1
    assert "stopped by SIGTERM outside the loop" in done.stderr


def test_a_signal_after_break_in_the_same_function(tmp_path: Path) -> None:
    """The call is still in progress, but there is no way back to its loop."""
    with Training(tmp_path) as training:
        steps = training.run.steps(9)
        for step in steps:
            training.step()
            if step == 3:
                break
        with pytest.raises(ls.Stopped):
            _send(signal.SIGUSR1)
        del steps


def test_a_signal_in_a_handler_of_the_body(tmp_path: Path) -> None:
    """Code that stands apart in the bytecode is in the loop all the same: the step is finished, and saved."""
    with Training(tmp_path) as training:
        done = []
        with pytest.raises(ls.Stopped) as stopped:
            for step in training.run.steps(9):
                try:
                    {}[step]
                except KeyError:
                    os.kill(os.getpid(), signal.SIGUSR1)
                    done.append(step)
        assert (done, stopped.value.step) == ([0], 1)


def test_two_loops_of_which_the_first_ends_first(tmp_path: Path) -> None:
    """The other gives back what it found: not the handlers of a loop that is over."""
    before = {number: signal.getsignal(number) for number in STOPS}
    with Training(tmp_path, {"a": 1}) as one, Training(tmp_path, {"a": 2}) as two:
        outside = {number: signal.getsignal(number) for number in STOPS}
        for _ in zip(one.run.steps(2), two.run.steps(5), strict=False):
            pass
        assert outside != before
        with pytest.raises(ls.Stopped):
            _send(signal.SIGTERM)
    assert {number: signal.getsignal(number) for number in STOPS} == before


def test_a_signal_while_a_loop_is_being_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception there would be ignored by Python; it comes when the loop is over."""
    close = Saver.close

    def closes(saver: Saver) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        close(saver)

    with Training(tmp_path) as training, monkeypatch.context() as patch, pytest.raises(ls.Stopped):
        patch.setattr(Saver, "close", closes)
        for step in training.run.steps(9):
            if step == 3:
                break
        patch.undo()
        _until_stopped()


def _send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    _until_stopped()


def _until_stopped() -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        time.sleep(0.01)


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

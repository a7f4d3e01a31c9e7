"""Processes end: whatever a script leaves behind, and whenever it is asked to stop, none stays for ever."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from ending_scripts import BEGIN, LIMIT, ended
from torture.killing import Life, Script, start_server
from torture.small import Training

import loadsheet as ls
from loadsheet.run.errors import STOPS
from loadsheet.run.saver import Saver

# tests keep their models for looking at
pytestmark = pytest.mark.filterwarnings("ignore:.*lives but was not kept")


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

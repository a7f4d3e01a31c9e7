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
from loadsheet.history.index import find
from loadsheet.run.errors import STOPS
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
    assert (stopped.value.code, stopped.value.step, stopped.value.reason) == (75, 2, "SIGTERM")
    assert find(tmp_path, training.run.path.name).state == "interrupted"


def test_the_step_goes_on_to_nowhere(tmp_path: Path) -> None:
    """`break` right behind the signal: from the save that is under way, and no failure of the script's."""
    with Training(tmp_path) as training, pytest.raises(ls.Stopped) as stopped:
        for step in training.run.steps(9, checkpoint_every=2):
            training.step()
            if step == 2:
                stop()
                break
    assert (stopped.value.code, stopped.value.step) == (75, 2)
    assert find(tmp_path, training.run.path.name).state == "interrupted"


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
        signal.raise_signal(signal.SIGTERM)
        os.close(reading)  # a moment later, as it happens
        time.sleep(0.5)
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
waiting.LEAST = 0.5
for step in run.steps(9):
    if step == 2:
        signal.raise_signal(signal.SIGTERM)
        while step == 2:
            try:
                threading.Event().wait()
            except SystemExit:
                if sys.argv[-1] == "raised":
                    raise
"""


@pytest.mark.parametrize(("how", "said"), [("raised", "outside the loop"), ("lost", "no step has ended")])
def test_a_step_that_never_ends(how: str, said: str, tmp_path: Path) -> None:
    """After a while an exception ends the wait in it, and if that is lost, force; by default in an hour."""
    done = ended(STUCK, tmp_path, how)
    assert done.returncode == 75
    assert said in done.stderr


SWEEP = """
from loadsheet.run import waiting
waiting.LEAST = 0.5
held = run.steps(9)
for step in held:
    if step == 2:
        signal.raise_signal(signal.SIGTERM)
    if step == 2:
        break
second = ls.Run.open(sys.argv[1], {"number": 2})
for step in second.steps(10**9, checkpoint_every=10**9):
    time.sleep(0.01)
"""


def test_a_stop_that_is_given_up_stops_who_is_at_work(tmp_path: Path) -> None:
    """A loop that was left while it is held: the next run of a sweep saves and stops."""
    done = ended(SWEEP, tmp_path)
    assert done.returncode == 75
    assert "stopped by SIGTERM after" in done.stderr


CHILD = """
def child():
    ls.Run.open(sys.argv[1], {"number": 2})
    threading.Event().wait()
for step in run.steps(2):
    process = fork.Process(target=child)
    process.start()
    time.sleep(1)
    process.terminate()
    process.join()
"""


def test_a_child_with_a_run_of_its_own(tmp_path: Path) -> None:
    """It hears SIGTERM, though its parent had a run too."""
    assert ended(CHILD, tmp_path).returncode == 0


POOL = """
from concurrent.futures import ThreadPoolExecutor
leaving.PATIENCE = 0.5
try:
    for step in run.steps(9):
        if step == 2:
            signal.raise_signal(signal.SIGTERM)
except ls.Stopped:
    for _ in range(3):
        with ThreadPoolExecutor(1) as executor:
            executor.submit(time.sleep, 1)
    print("uploaded")
"""


def test_a_thread_pool_after_a_stop(tmp_path: Path) -> None:
    """Who catches the stop may upload what there is: these threads did not hold up anything when it came."""
    done = ended(POOL, tmp_path)
    assert (done.returncode, done.stdout) == (0, "uploaded\n")


def test_a_closed_run_keeps_no_signals(tmp_path: Path) -> None:
    """Also where it was closed by a stop or an interrupt that nobody had heard."""
    before = [signal.getsignal(number) for number in STOPS]
    for number, error in ((signal.SIGTERM, ls.Stopped), (signal.SIGINT, KeyboardInterrupt)):
        training = Training(tmp_path / number.name)
        with pytest.raises(error):
            for step in training.run.steps(9):
                training.step()
                if step == 2:
                    stop(number)
                if step == 2:
                    break
            training.run.close()
        assert [signal.getsignal(each) for each in STOPS] == before


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

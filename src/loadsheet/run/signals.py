"""Being asked to stop: the handlers only set a flag, the loop looks at it between two steps.

To save inside a handler would catch the model in the middle of an update. Loader workers must not hear
these signals: a launcher signals the whole process group, torch's workers die of SIGTERM, and the main
process would fail in `next()` before it could save. Workers that are not ours to shield do die of it; so
an error in a step after such a signal counts as its consequence: a stop, without a save.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from loadsheet.run.errors import INTERRUPTED, REQUEUE, Stopped
from loadsheet.run.tell import tell

#: signal -> exit status once the state is saved
STOPS = {
    signal.SIGTERM: REQUEUE,
    signal.SIGUSR1: REQUEUE,
    signal.SIGHUP: REQUEUE,  # the terminal is gone
    signal.SIGINT: INTERRUPTED,
}


class StopSignals:
    """Handlers for SIGTERM, SIGUSR1, SIGHUP and SIGINT, while it is installed.

    The first one of any of them is noted in `received`; a second Ctrl-C ends the process at once, even if
    it is deep in a long computation: the signal's default action is back in place by then, and nothing on
    disk needs a goodbye. With `tell` a person who pressed Ctrl-C is told so.
    """

    def __init__(self, *, tell: bool = False) -> None:
        self._tell = tell
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._pid = os.getpid()

    def install(self) -> None:
        """Take the signals over; outside the main thread Python cannot, and a warning says so."""
        if self._before:
            return
        if threading.current_thread() is not threading.main_thread():
            tell(
                "run: started outside the main thread, where signals cannot be caught: SIGTERM will end the "
                "process without a save"
            )
            return
        for number in STOPS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a background job: it is to be ignored
                self._before[number] = signal.signal(number, self._handle)

    def remove(self) -> None:
        """Give the signals back to whoever had them."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            # A handler that was not installed from Python cannot be put back; the default is next to it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return  # a forked child that has not set its own handlers
        which = signal.Signals(number)
        if self.received is None:
            self.received = which
            self._let_workers_die()
        if which == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            if self._tell:  # straight to the file: the main program may be in the middle of a print
                with contextlib.suppress(OSError):
                    os.write(2, b"\nloadsheet: stopping after this step; Ctrl-C again ends at once\n")

    def _let_workers_die(self) -> None:
        """Finish the step even if an evaluation's idle workers died of the signal that we got.

        torch raises in the middle of whatever the main thread does when any worker dies; without its handler
        only who waits for a batch of that worker gets the error. It is not put back: what died may still be
        reported to it, in the middle of our own end.
        """
        handler = signal.getsignal(signal.SIGCHLD)
        if callable(handler) and str(getattr(handler, "__module__", "")).startswith("torch."):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


class Uncaught:
    """`sys.excepthook` for a loop: the traceback as ever, then what `stop` makes of the error, if anything."""

    def __init__(self, stop: Callable[[Exception], Stopped | None]) -> None:
        self._stop = stop
        self._before: Callable[..., Any] = sys.excepthook

    def install(self) -> None:
        """Begin."""
        if sys.excepthook != self._hook:
            self._before = sys.excepthook
            sys.excepthook = self._hook

    def remove(self) -> None:
        """End, unless somebody else has come on top."""
        if sys.excepthook == self._hook:
            sys.excepthook = self._before

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._before(kind, error, trace)
        stopped = self._stop(error) if isinstance(error, Exception) else None
        if stopped is not None:
            raise stopped  # which the interpreter ends with, as anywhere


class Outside:
    """Handlers while a run is open and no loop runs: nothing is to be saved, but the exit status is to be right.

    A launcher that sees 75 starts the job again; after 143, the status of a process that a signal ended, it
    may not. Who has handlers of their own keeps them; Ctrl-C is left alone.
    """

    def __init__(self, say: Callable[[str], None], step: Callable[[], int]) -> None:
        self._say = say
        self._step = step
        self._pid = os.getpid()
        self._numbers: list[signal.Signals] = []

    def install(self) -> None:
        """Begin; outside the main thread nothing can be done."""
        if threading.current_thread() is threading.main_thread():
            self._numbers = [n for n in STOPS if signal.getsignal(n) == signal.SIG_DFL]
            for number in self._numbers:
                signal.signal(number, self._handle)

    def remove(self) -> None:
        """End, and give back what is still ours."""
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, signal.SIG_DFL)
            self._numbers = []

    def _handle(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != self._pid:  # a forked child: as if we had never been there
            os.kill(os.getpid(), number)
            return
        which, step = signal.Signals(number), self._step()
        self._say(f"stopped by {which.name} outside the loop; the same command goes on from step {step}")
        raise Stopped(STOPS[which], step, which.name)


def shield_worker() -> None:
    """In a loader's worker: leave these signals to the main process, and end with it.

    torch's workers look every few seconds whether their parent has changed; under a fork server it never
    does, and those of a killed process would stay for ever.
    """
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_with, args=(parent.sentinel,), name="loadsheet-parent", daemon=True
        ).start()


#: seconds that workers are given to end by themselves when the process ends
_GRACE: float = 1.0


def end_workers_at_exit() -> None:
    """Let no worker that does not hear SIGTERM hold up the end of this process.

    When a process ends, multiprocessing sends SIGTERM to each child that is a daemon, as loaders' workers are,
    and waits for it without limit: a loader that is still referred to then, and has not ended its workers
    itself, would never let go. What is still there after a second is killed before that.
    """
    if "pid" not in _ENDING or _ENDING["pid"] != os.getpid():
        _ENDING["pid"] = os.getpid()
        # not atexit: a child of multiprocessing runs these only
        multiprocessing.util.Finalize(None, _end_workers, exitpriority=100)


_ENDING: dict[str, int] = {}


def _end_workers() -> None:
    daemons = [child for child in multiprocessing.active_children() if child.daemon]
    if daemons and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises an error for a worker that was killed
    for child in daemons:
        child.terminate()
    until = time.monotonic() + _GRACE
    for child in daemons:
        child.join(max(until - time.monotonic(), 0.0))
        if child.is_alive():
            child.kill()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)

"""Being asked to stop: the handlers only set a flag, the loop looks at it between two steps.

To save inside a handler would catch the model in the middle of an update. Loader workers must not hear
these signals: a launcher signals the whole process group, torch's workers die of SIGTERM, and the main
process would fail in `next()` before it could save. Workers that are not ours to shield do die of it; so
an error in a step after such a signal counts as its consequence: a stop, without a save.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

from loadsheet.run.errors import STOPS, Stopped
from loadsheet.run.leaving import end_now, of_torch, see_to_the_end, waits_for_threads
from loadsheet.run.place import Place
from loadsheet.run.streams import let_go_of_what_is_gone
from loadsheet.run.tell import tell

#: seconds after which a signal that came while a loop was being left is sent anew
_AGAIN: Final = 0.1


class StopSignals:
    """Handlers for SIGTERM, SIGUSR1, SIGHUP and SIGINT, while it is installed.

    The first one of any of them is noted in `received`; a second Ctrl-C ends the process at once, even if
    it is deep in a long computation: the signal's default action is back in place by then, and nothing on
    disk needs a goodbye. With `tell` a person who pressed Ctrl-C is told so.
    """

    def __init__(self, *, tell: bool = False) -> None:
        self._tell = tell
        self.received: signal.Signals | None = None
        #: called when it comes, in the middle of whatever the main thread does
        self.woken: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._over = False
        self._place: Place | None = None
        self._leaving = False
        self._late: signal.Signals | None = None
        self._again: threading.Timer | None = None
        self._pid = os.getpid()

    def install(self) -> None:
        """Take the signals over; outside the main thread Python cannot, and a warning says so.

        To be called while the user's code asks for a step: who breaks out of that loop has left it.
        """
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
        self._place = Place()

    def leave(self) -> None:
        """The loop was left, and tidies up: what comes meanwhile is for what comes after it.

        An exception would be lost in there: Python ignores those of a generator that it throws away.
        """
        self._leaving = True

    def remove(self, *, heard: bool = True) -> None:
        """Give the signals back to whoever had them; who came on top of us keeps them, and may give them back.

        What came while the loop was being left, or was noted in a step after which the loop did not look (not
        `heard`), is sent anew.
        """
        self._over = True
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._before:
            if signal.getsignal(number) in (self._handle, signal.SIG_DFL):
                signal.signal(number, self.earlier(number))
        late = self._late if heard or self.received is None else self.received
        # for an error on its way, and for what comes after `break`
        if late is not None and self._again is None:
            self.received = late
            self._again = threading.Timer(_AGAIN, self._send, [late])
            self._again.daemon = True
            with contextlib.suppress(RuntimeError):  # the interpreter is ending: `take` has it all the same
                self._again.start()
        self._leaving, self._late = False, None

    def _send(self, which: signal.Signals) -> None:
        if self.take() is not None:
            self.received = None  # from here on it is no longer the loop's
            os.kill(self._pid, which)

    def give_up(self) -> None:
        """Send what came anew, to whoever has it where this loop is over."""
        if self.received is not None:
            self._over = True
            os.kill(self._pid, self.received)

    @property
    def unheard(self) -> signal.Signals | None:
        """The signal that is yet to be sent anew; None if there is none."""
        return None if self._again is None else self.received

    def take(self) -> signal.Signals | None:
        """The signal that is yet to be sent anew, which it then is not; None if there is none."""
        again, self._again = self._again, None
        if again is None:
            return None
        again.cancel()
        return self.received

    def earlier(self, number: signal.Signals) -> Any:
        """Who had a signal before; not a loop that is over since."""
        handler = self._before.get(number)
        owner = getattr(handler, "__self__", None)
        if isinstance(owner, StopSignals) and owner._over:
            return owner.earlier(number)
        # A handler that was not installed from Python cannot be put back; the default is next to it.
        return signal.SIG_DFL if handler is None else handler

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return  # a loader's worker that has not set its own handlers
        which = signal.Signals(number)
        if self._leaving:
            if self.received is None:
                self._late = which
            if which == signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)  # a second one ends at once
            return
        if not self._over and self._place is not None and self._place.left(frame):
            self.remove()
        if self._over:
            self._pass_on(number, frame)
            return
        if self.received is None:
            self.received = which
            if self.woken is not None:
                self.woken()
            let_go_of_what_is_gone()
            self._let_workers_die()
        if which == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            if self._tell:  # straight to the file: the main program may be in the middle of a print
                with contextlib.suppress(OSError):
                    os.write(2, b"\nloadsheet: stopping after this step; Ctrl-C again ends at once\n")

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """As if we were not there: the loop is over."""
        before = self.earlier(signal.Signals(number))
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:
            by_default(number)

    def _let_workers_die(self) -> None:
        """Finish the step even if an evaluation's idle workers died of the signal that we got.

        torch raises in the middle of whatever the main thread does when any worker dies; without its handler
        only who waits for a batch of that worker gets the error. It is not put back: what died may still be
        reported to it, in the middle of our own end.
        """
        if of_torch(signal.getsignal(signal.SIGCHLD)):
            signal.signal(signal.SIGCHLD, _nothing)  # not SIG_DFL: Python complains of one that is on its way


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


OUTSIDE: Final = "outside the loop"
#: seconds after a stop in which another signal is the same one: launchers send it to the process and its group
_SAME: Final = 5.0


class Outside:
    """Handlers while a run is open and no loop runs: nothing is to be saved, but the exit status is to be right.

    A launcher that sees 75 starts the job again; after 143, the status of a process that a signal ended, it
    may not. Who has handlers of their own keeps them; Ctrl-C is left alone. `stopped` is called with the
    signal when one has come.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        step: Callable[[], int | None],
        stopped: Callable[[signal.Signals], None],
    ) -> None:
        self._say = say
        self._step = step
        self._stopped = stopped
        self._pid = os.getpid()
        self._numbers: list[signal.Signals] = []
        self._since: float | None = None
        self._over = False
        self.where = OUTSIDE
        self.exiting = False  # the script's code is over: nobody would see an exception
        _open_ones.add(self)

    def install(self) -> None:
        """Begin; outside the main thread nothing can be done."""
        if self._over or os.getpid() != self._pid:
            return
        if threading.current_thread() is threading.main_thread():
            free = [n for n in STOPS if signal.getsignal(n) == signal.SIG_DFL]
            self._numbers = [*self._numbers, *free]
            for number in free:
                signal.signal(number, self._handle)

    def has(self, number: signal.Signals) -> bool:
        """Whether this signal is ours."""
        return signal.getsignal(number) == self._handle

    def stopping(self) -> None:
        """A stop is on its way already."""
        self._since = time.monotonic()

    def remove(self) -> None:
        """End, and give back what is still ours."""
        self._over = True
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if self.has(number):
                    signal.signal(number, signal.SIG_DFL)
            self._numbers = []
            for other in list(_open_ones):  # another run that is still open
                other.install()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return  # a loader's worker that has not set its own handlers
        if self._since is not None and time.monotonic() - self._since < _SAME:
            return
        if self._over or self._since is not None:
            by_default(number)
            return
        which = signal.Signals(number)
        if waits_for_threads(frame):
            self.stopped_by(which)
            _end_with_status(STOPS[which])
            return
        raise self.stopped_by(which)

    def stopped_by(self, which: signal.Signals) -> Stopped:
        """Say so, see to the end, and give what is to be raised; if nobody would see that, end here."""
        self.stopping()
        step = self._step()
        where = "before the run was open" if step is None else self.where
        self._say(f"stopped by {which.name} {where}; the same command goes on from {_from(step)}")
        if self.exiting:
            os._exit(STOPS[which])
        self._stopped(which)
        return Stopped(STOPS[which], step or 0, which.name)


_open_ones: weakref.WeakSet[Outside] = weakref.WeakSet()


def _from(step: int | None) -> str:
    return "the newest checkpoint" if step is None else f"step {step}"


def _end_with_status(code: int) -> None:
    """What runs at the end runs, then the process ends with this status: an exception would be lost by then."""

    def end() -> None:
        atexit.unregister(end)
        atexit._run_exitfuncs()
        end_now(code)

    atexit.register(end)  # the last that is registered is the first that is called


@contextmanager
def while_opening(say: Callable[[str], None]) -> Iterator[None]:
    """A run is being opened, which may wait for another process or for a mirror: a stop is a stop already."""
    outside = Outside(say, lambda: None, lambda which: see_to_the_end(STOPS[which], say))
    outside.install()
    try:
        yield
    finally:
        outside.remove()


class _Forking(threading.local):
    """Gives a child that is forked the handlers it would have without us, before any signal can reach it.

    Those of Python do not do there: what comes before the child has settled is dropped, what comes right before a
    call that waits is seen after it, so `terminate` and `join` could wait for ever. Until then signals are held
    back. A loader's worker keeps ours: it leaves them to the main process.
    """

    mask: set[Any] | None = None
    worker = False

    def before(self) -> None:
        if any(isinstance(_owner(number), StopSignals | Outside) for number in STOPS):
            self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
            self.worker = _starts_workers()

    def in_parent(self) -> None:
        mask, self.mask, self.worker = self.mask, None, False
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def in_child(self) -> None:
        mask, self.mask = self.mask, None
        _open_ones.clear()  # they are the parent's
        if mask is None:
            return
        for number in STOPS if not self.worker else ():
            while isinstance(owner := _owner(number), StopSignals | Outside):
                earlier = owner.earlier(number) if isinstance(owner, StopSignals) else signal.SIG_DFL
                signal.signal(number, earlier)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _owner(number: signal.Signals) -> object:
    """Whose method handles a signal."""
    return getattr(signal.getsignal(number), "__self__", None)


def _starts_workers() -> bool:
    """Whether a loader, torch's or torchdata's, is being made, of whatever process."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_qualname.endswith("MultiProcessingDataLoaderIter.__init__"):
            return True
        frame = frame.f_back
    return False


_forking = _Forking()
os.register_at_fork(
    before=_forking.before, after_in_parent=_forking.in_parent, after_in_child=_forking.in_child
)


def by_default(number: int) -> None:
    """Do what this signal does where nobody handles it."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# -- workers ---------------------------------------------------------------------------------------------


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def shield_worker() -> None:
    """In a loader's worker: leave these signals to the main process, and end with it.

    torch's workers look every few seconds whether their parent has changed; under a fork server it never
    does, and those of a killed process would stay for ever.
    """
    for number in STOPS:
        # SIG_IGN would be passed on to programs that the worker starts, and they could not be ended
        signal.signal(number, _nothing)
        signal.siginterrupt(number, False)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_with, args=(parent.sentinel,), name="loadsheet-parent", daemon=True
        ).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)

"""That a process ends: neither workers that do not hear SIGTERM nor other people's threads may keep it.

A rented machine costs as long as its process lives. Without us SIGTERM would have ended the process at once,
threads and all; since we catch it, it is ours to see that the end comes.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final, NoReturn

from loadsheet.run.background import Background

#: seconds for which the end of a process that was asked to stop waits for threads that are not ours
PATIENCE: float = 60.0
#: seconds that workers are given to end by themselves, all of them together: what torch gives to each
BUSY: float = 5.0
#: the same for those that nobody has ended when the process ends
_GRACE: float = 1.0
_PAUSE: Final = 0.2
#: seconds for which a thread of ours, a save or a copy to a mirror, is waited for besides
OURS_AT_MOST: float = 3600.0
#: seconds after which a script that goes on has handled the stop, and its end is its own again
_HANDLED: Final = 600.0
#: how the names of our own threads begin
OURS: Final = "loadsheet-"


# -- workers ---------------------------------------------------------------------------------------------


@contextmanager
def workers_may_die() -> Iterator[None]:
    """Without torch's handler, which raises an error in the main thread for a worker that was killed.

    Whoever kills them waits for them inside.
    """
    handler = signal.getsignal(signal.SIGCHLD)
    if threading.current_thread() is not threading.main_thread() or not of_torch(handler):
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)


def of_torch(handler: Any) -> bool:
    """Whether a signal's handler is one of torch's."""
    return callable(handler) and str(getattr(handler, "__module__", "")).startswith("torch.")


def kill_after(seconds: float, workers: list[Any]) -> threading.Timer:
    """A clock, to be cancelled, at whose end these processes are killed; those that have ended are passed over."""

    def kill() -> None:
        for worker in workers:
            with contextlib.suppress(ValueError, OSError):
                worker.kill()

    clock = threading.Timer(seconds, kill)
    clock.daemon, clock.name = True, f"{OURS}workers"
    try:
        clock.start()
    except RuntimeError:  # the interpreter is ending, and starts no more threads
        kill()
    return clock


def end_workers_at_exit() -> None:
    """Let no worker that does not hear SIGTERM hold up the end of this process.

    When a process ends, multiprocessing sends SIGTERM to each child that is a daemon, as loaders' workers are,
    and waits for it without limit: a loader that is still referred to then, and has not ended its workers
    itself, would never let go. What is still there after a second is killed before that.
    """
    at_the_end(_end_workers)


def at_the_end(do: Callable[[], None]) -> None:
    """Call it once when this process ends, before multiprocessing waits for children, however often it is asked.

    Not atexit: a child of multiprocessing runs these only.
    """
    if _registered.get(do) != os.getpid():
        _registered[do] = os.getpid()
        multiprocessing.util.Finalize(None, do, exitpriority=100)


_registered: dict[Callable[[], None], int] = {}


def _end_workers() -> None:
    daemons = [child for child in multiprocessing.active_children() if child.daemon]
    with workers_may_die():
        for child in daemons:
            child.terminate()
        until = time.monotonic() + _GRACE
        for child in daemons:
            child.join(max(until - time.monotonic(), 0.0))
            if child.is_alive():
                child.kill()
                child.join(_GRACE)


# -- threads ---------------------------------------------------------------------------------------------


def see_to_the_end(code: int, say: Callable[[str], None]) -> None:
    """The script was asked to stop: once its code is over, nothing may hold up the process longer than PATIENCE.

    Python waits without limit for every thread that is not a daemon, then multiprocessing for every child.
    What runs when the interpreter ends runs all the same, then the process ends with `code`.
    """
    if any(thread.name == _NAME for thread in threading.enumerate()):
        return
    ending = threading.Event()
    lived = set(threading.enumerate())
    if multiprocessing.parent_process() is None:
        atexit.register(ending.set)  # the last that is registered is the first that is called
    else:
        multiprocessing.util.Finalize(None, ending.set, exitpriority=1000)
    Background(target=_watch, args=(code, say, ending, lived), name=_NAME, daemon=True).start()


_NAME: Final = f"{OURS}end"


def _watch(
    code: int, say: Callable[[str], None], ending: threading.Event, lived: Collection[threading.Thread]
) -> None:
    began, since = time.monotonic(), None
    while True:
        now = time.monotonic()
        if not (ending.is_set() or _for_threads(lived)):
            if now - began > _HANDLED:
                return
            since = None  # the wait is over, and the script goes on
        elif since is None:
            since = now
        elif now - since > PATIENCE + (OURS_AT_MOST if waited_for(ours=True) else 0.0):
            break
        time.sleep(_PAUSE)
    names = [*waited_for(ours=False), *(f"process {p.pid}" for p in multiprocessing.active_children())]
    say(
        f"{', '.join(names) or 'something'} still holds up the process, {PATIENCE:.0f} s after the end of the "
        f"script, which was asked to stop: it ends by force, with status {code}"
    )
    if not ending.is_set():
        hard = threading.Timer(PATIENCE, os._exit, [code])
        hard.daemon = True
        hard.start()
        atexit._run_exitfuncs()
    end_now(code)


def end_now(code: int) -> NoReturn:
    """End the process with a status; nothing more runs, but what was printed is written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


def _for_threads(lived: Collection[threading.Thread]) -> bool:
    """Whether the main thread waits for others: the script's own code is done, or an executor that was at work."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if waits_for_threads(frame):
        return True
    ending = _call_of(ThreadPoolExecutor.shutdown.__code__, frame)
    workers = () if ending is None else getattr(ending.f_locals.get("self"), "_threads", ())
    return any(thread in lived for thread in tuple(workers))


def waits_for_threads(frame: FrameType | None) -> bool:
    """Whether the main thread, at this frame, has come to Python's own wait for threads at the end of the script."""
    return _call_of(threading._shutdown.__code__, frame) is not None  # type: ignore[attr-defined]


def _call_of(code: CodeType, frame: FrameType | None) -> FrameType | None:
    """The call of a function that is in progress at a frame."""
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def waited_for(*, ours: bool) -> list[str]:
    """The threads that are not daemons, ours or those of others."""
    main = threading.main_thread()
    return [
        f"thread `{thread.name}`"
        for thread in threading.enumerate()
        if thread is not main and not thread.daemon and thread.name.startswith(OURS) == ours
    ]

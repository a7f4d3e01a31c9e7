"""A stop that the loop never comes to look at.

It is heard between two steps. A step may never end (a pool waits for workers that the same signal has ended), or
the loop was left in a way that it cannot see (somebody still holds its iterator). Without us the signal would have
ended the process; so after a while we do.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from loadsheet.run.background import Background
from loadsheet.run.errors import STOPS
from loadsheet.run.leaving import OURS, OURS_AT_MOST, end_now, waited_for
from loadsheet.run.signals import StopSignals
from loadsheet.run.streams import let_go_of_what_is_gone
from loadsheet.units import format_duration

#: seconds after a signal for which its step is waited for at least, and again once it was sent anew
LEAST: float = 3600.0
#: or so many times as long as the slowest step so far
TIMES: Final = 3.0
#: seconds between two looks: at first often, for a `tee` that the same signal ends
_OFTEN: Final = 0.02
_OFTEN_FOR: Final = 5.0
_PAUSE: Final = 0.5


class Waiting:
    """From a thread of its own: when a signal comes, whether its step ends, and whether anybody reads our output.

    Ctrl-C is left to the person who can press it again.
    """

    def __init__(self, signals: StopSignals, say: Callable[[str], None]) -> None:
        self._signals, self._say = signals, say
        self._begun: float | None = None
        self._slowest = 0.0
        self._ended = threading.Event()
        # a handler may run in the middle of anything, and must take no lock: it writes into a pipe
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signals.woken = self._wake
        self._thread = Background(target=self._watch, name=f"{OURS}stop", daemon=True)
        self._thread.start()

    def step_begins(self) -> None:
        """The body has its turn."""
        self._begun = time.monotonic()

    def step_ends(self) -> None:
        """It has come back, evaluation and all; what the loop does now, a save, takes as long as it takes."""
        if self._begun is not None:
            self._slowest = max(self._slowest, time.monotonic() - self._begun)
        self._begun = None

    def end(self) -> None:
        """The loop has ended, or somebody has heard the signal."""
        if not self._ended.is_set():
            self._ended.set()
            self._wake()
            if threading.current_thread() is not self._thread:
                self._thread.join(1.0)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._write, b"!")

    def _watch(self) -> None:
        select.select([self._read], [], [])
        since, anew = time.monotonic(), False
        while not self._ended.wait(_OFTEN if time.monotonic() - since < _OFTEN_FOR and not anew else _PAUSE):
            which = self._signals.received
            let_go_of_what_is_gone()
            limit = max(LEAST, TIMES * self._slowest)
            if which in (None, signal.SIGINT) or self._begun is None or time.monotonic() - since < limit:
                continue
            if not anew:
                # to whoever has it without this loop: an exception ends a step that waits, another run saves
                since, anew = time.monotonic(), True
                self._signals.give_up()
                continue
            self._end_by_force(which, limit)
        self._signals.woken = None
        for number in (self._read, self._write):
            os.close(number)

    def _end_by_force(self, which: signal.Signals | None, limit: float) -> None:
        assert which is not None
        until = time.monotonic() + OURS_AT_MOST
        while waited_for(ours=True) and time.monotonic() < until:  # a save of ours
            time.sleep(_PAUSE)
        self._say(
            f"stopped by {which.name}, but no step has ended for {format_duration(limit)}: the process ends by "
            "force; the same command goes on from the newest checkpoint"
        )
        end_now(STOPS[which])

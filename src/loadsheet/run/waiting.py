"""A stop that the loop never comes to look at.

It is heard between two steps. A step may never end (a pool waits for workers that the same signal has ended), or
the loop was left in a way that it cannot see (somebody still holds its iterator). Without us the signal would have
ended the process; so after a while we do.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from loadsheet.run.background import Background
from loadsheet.run.leaving import OURS
from loadsheet.run.signals import STOPS, StopSignals
from loadsheet.units import format_duration

#: seconds after a signal for which a step is waited for at least, and before any has ended
LEAST: float = 600.0
FIRST: float = 3600.0
#: or so many times as long as the slowest step so far
TIMES: Final = 3.0
_PAUSE: float = 2.0


class Waiting:
    """Watches from a thread of its own whether a step in which a signal has come ends."""

    def __init__(self, signals: StopSignals, say: Callable[[str], None]) -> None:
        self._signals, self._say = signals, say
        self._begun: float | None = None
        self._slowest: float | None = None
        self._ended = threading.Event()
        self._thread = Background(target=self._watch, name=f"{OURS}stop", daemon=True)
        self._thread.start()

    def step_begins(self) -> None:
        """The body has its turn."""
        self._begun = time.monotonic()

    def step_ends(self) -> None:
        """It has come back, evaluation and all; what the loop does now, a save, takes as long as it takes."""
        if self._begun is not None:
            self._slowest = max(self._slowest or 0.0, time.monotonic() - self._begun)
        self._begun = None

    def end(self) -> None:
        """The loop has ended."""
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def _watch(self) -> None:
        since: float | None = None
        while not self._ended.wait(_PAUSE):
            which = self._signals.received
            if which is None or self._begun is None:
                continue
            since = time.monotonic() if since is None else since
            limit = FIRST if self._slowest is None else max(LEAST, TIMES * self._slowest)
            if time.monotonic() - since < limit:
                continue
            self._say(
                f"stopped by {which.name}, but no step has ended for {format_duration(limit)}: the process ends by "
                "force; the same command goes on from the newest checkpoint"
            )
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError, OSError, ValueError):
                    stream.flush()
            os._exit(STOPS[which])

"""What is done right now, on one line of a terminal's stderr; elsewhere one line when something long begins."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

_EVERY = 0.1  # seconds between two writes


class Progress:
    """Shown if it takes longer than a second, and on a terminal only; `close` leaves nothing behind.

    `long`: what always takes longer. Where no terminal is, it is said at once, in a line that stays: at once,
    since what is printed must not depend on how fast a machine is.
    """

    def __init__(self, long: str = "") -> None:
        self.watched = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.what = long
        self.shown = False
        self.last = 0.0
        self.timer = threading.Timer(1.0, self._first)
        self.timer.daemon = True
        if self.watched:
            self.timer.start()
        elif long and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                print(f"loadsheet: {long} …", file=sys.stderr, flush=True)

    def __call__(self, what: str) -> None:
        """Say what comes next."""
        self.what = what
        if self.shown and time.monotonic() - self.last >= _EVERY:
            self._write()

    def pause(self) -> None:
        """Make room for a line of the answer; what is said next is shown again."""
        if self.shown:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            self.last = 0.0

    def _first(self) -> None:
        self.shown = True
        self._write()

    def _write(self) -> None:
        self.last = time.monotonic()
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            sys.stderr.write(f"\r\x1b[K{self.what[: columns - 3]} …")
            sys.stderr.flush()

    def close(self) -> None:
        """Leave nothing behind."""
        self.timer.cancel()
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

"""What a person at the terminal is told: one line per event, and a bar while training runs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from loadsheet.units import format_duration

_EVERY = 0.1  # seconds between two drawings


class Progress:
    """Events as lines on stderr, and on a terminal a bar with the time left; `shown` False: silence."""

    def __init__(self, shown: bool | None = None) -> None:
        terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._lines = shown is not False
        self.terminal = shown is not False and terminal
        self._bar = shown is not False and terminal
        self._drawn = False
        self._last = 0.0
        self._begun = 0.0
        self._start = self._total = 0

    def say(self, text: str) -> None:
        """One line."""
        if self._lines and sys.stderr is not None:
            self.clear()
            with contextlib.suppress(OSError, ValueError):  # nobody listens any more
                print(f"loadsheet: {text}", file=sys.stderr, flush=True)

    def begin(self, start: int, total: int) -> None:
        """The loop starts at `start` of `total` steps."""
        self._start, self._total, self._begun = start, total, time.monotonic()

    def update(self, done: int, values: Mapping[str, Any]) -> None:
        """`done` steps are complete; the first few numbers logged stand behind the bar."""
        now = time.monotonic()
        if not self._bar or now - self._last < _EVERY:
            return
        self._last, self._drawn = now, True
        text = bar(done, self._total, (now - self._begun) / max(done - self._start, 1), values)
        with contextlib.suppress(OSError, ValueError):
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            sys.stderr.write(f"\r\x1b[K{text[: width - 1]}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the bar away."""
        if self._drawn:
            self._drawn = False
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


def bar(done: int, total: int, step_seconds: float, values: Mapping[str, Any]) -> str:
    """Steps, share, speed, time left, and up to three numbers.

    >>> bar(150, 600, 0.2, {"loss": 1.23456})
    '━━━━━               150/600 25 % · 5.00 steps/s · 1.50 min left · loss 1.235'
    """
    share = done / total if total else 1.0
    rate = f"{1 / step_seconds:.2f} steps/s" if step_seconds < 1 else f"{step_seconds:.2f} s/step"
    numbers = [f"{k} {v:.4g}" for k, v in values.items() if isinstance(v, float)][:3]
    left = format_duration((total - done) * step_seconds)
    drawn = "━" * int(share * 20)
    return " · ".join(
        [f"{drawn:<20}{done}/{total} {share:.0%}".replace("%", " %"), rate, f"{left} left", *numbers]
    )

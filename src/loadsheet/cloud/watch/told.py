"""What the watch is told by a signal: the training it started is told the same, and the watch ends after it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Final

#: told to the training as they come; Ctrl-C reaches it without us where it comes from a terminal
FORWARDED: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)
)


class Told:
    """Listens from before the training is started: one that came with nobody listening would leave it alone.

    `ended`: a signal came that nobody else is there to obey; `status` is then that of the watch.
    """

    def __init__(self) -> None:
        self.ended = False
        self.number: int | None = None
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def status(self) -> int:
        """128 + the signal, as a shell counts it; 0 if there was none."""
        return 0 if self.number is None else 128 + self.number

    @property
    def child(self) -> subprocess.Popen[bytes] | None:
        """The training that the watch has started."""
        return self._child

    @contextlib.contextmanager
    def listening(self) -> Iterator[Told]:
        """Until the end of the block; what is ignored, as by `nohup`, stays so."""
        before = {number: signal.getsignal(number) for number in (*FORWARDED, signal.SIGINT)}
        before = {number: how for number, how in before.items() if how not in (signal.SIG_IGN, None)}
        for number in before:
            signal.signal(number, self._hear)
        try:
            yield self
        finally:
            for number, how in before.items():
                signal.signal(number, how)

    def start(self, words: list[str]) -> subprocess.Popen[bytes]:
        """Start the training; its output goes where ours goes. Raises OSError if it cannot be started."""
        self._child = child = subprocess.Popen(words)
        if self.number is not None:  # it came while the training was being started
            self._pass_on(self.number)
        return child

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until `ended`; whether it is. No lock is held, which a signal could find taken."""
        until = time.monotonic() + seconds
        while not self.ended and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        return self.ended

    def _hear(self, number: int, _: Any) -> None:
        self.number = number
        if self._child is None:
            self.ended = True
        else:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        child = self._child
        if child is None or child.poll() is not None or (number == signal.SIGINT and _at_a_terminal()):
            return
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)


def _at_a_terminal() -> bool:
    """Whether Ctrl-C reaches this process's whole group: it is the one in front of its terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | getattr(os, "O_NOCTTY", 0))
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)

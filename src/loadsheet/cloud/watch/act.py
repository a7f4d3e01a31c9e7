"""Stopping: the training first, by the signal it saves at; then, if asked for, the machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from loadsheet.errors import BadInput, LoadsheetError
from loadsheet.run.lock import in_use


class CannotStop(LoadsheetError):
    """The training that should be stopped cannot be reached from here."""

    exit_code = 1


def owner(path: Path) -> int | None:
    """The process on this machine that has the run; None if none has it. CannotStop if it is elsewhere."""
    lock = path / "lock"
    if in_use(lock) is False:
        return None
    try:
        with lock.open("rb") as file:
            found = json.loads(file.read(4096))
        pid, host = found["pid"], found["host"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CannotStop(f"run `{path}`: got a lock that names no process, expected one to stop") from None
    if host != socket.gethostname():
        raise CannotStop(
            f"run `{path}`: got a training on {str(host)[:100]!r}, expected one on this machine",
            "watch it there: `loadsheet watch` stops what runs beside it",
        )
    if type(pid) is not int or pid <= 1:
        raise CannotStop(f"run `{path}`: got process {pid!r} in its lock, expected a process id")
    return pid


def stop(pid: int, alive: Callable[[], bool], patience: float, pause: float = 0.05) -> bool:
    """SIGTERM, at which a run saves and ends with 75; SIGKILL after `patience` seconds. True if it ended by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + patience
    while alive():
        if time.monotonic() >= until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(pause)
    return True


class DeadMan:
    """A shutdown that is always pending and put off as long as all is well: if the watch dies, it comes.

    `minutes` from now, again and again; the program is `shutdown` of the system.
    """

    def __init__(self, seconds: float) -> None:
        self.minutes = max(int(seconds // 60), 2)
        self._put_off = float("-inf")
        self.pending = False
        if shutil.which("shutdown") is None:
            raise BadInput("--dead-man: got a machine without `shutdown`, expected one", "leave it out")

    def put_off(self, now: float) -> None:
        """All is well: the shutdown is so many minutes away again. At most twice in that time."""
        if now - self._put_off < self.minutes * 60 / 2:
            return
        run_shutdown("-h", f"+{self.minutes}", "loadsheet watch: nobody watches this machine any more")
        self._put_off = now
        self.pending = True


def run_shutdown(*arguments: str) -> None:
    """Call the system's `shutdown`; CannotStop with what it says."""
    program = shutil.which("shutdown")
    if program is None:
        raise CannotStop("shutdown: got a machine without that program, expected one")
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            check=False,
            timeout=30,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStop(f"shutdown: got {type(error).__name__}, expected it to answer") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CannotStop(
            f"shutdown: got status {done.returncode} ({said[-1][:200] if said else 'nothing said'}), expected 0",
            "it takes root: run the watch with sudo, or allow this user `shutdown`",
        )

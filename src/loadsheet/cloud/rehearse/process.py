"""One life of the user's command; whatever happens, nothing of it stays behind.

The command has a process group of its own, and that is killed as a whole. What leaves the group (a daemon)
becomes a child of this process when its parent ends, and is killed at the end. If this process is killed
itself, the system kills the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from loadsheet.errors import BadInput, one_line, shorten

_LINUX: Final = sys.platform.startswith("linux")
_SUBREAPER, _DEATHSIG = 36, 1  # PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG of prctl(2)
_LOOK: Final = 0.01  # seconds between two looks
_TAIL: Final = 64 << 10
#: becomes the command, and dies with the process that started it
_SHIM: Final = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "os.getppid() == int(sys.argv[1]) or os._exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)


class Life:
    """The command, started as `process`; `output` has what it prints."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.output = output
        self.begun = time.monotonic()
        self._process = process

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.begun

    def status(self) -> int | None:
        """How it ended: an exit status, or minus the signal; None while it lives."""
        return self._process.poll()

    def wait_for(self, happened: Callable[[], bool], seconds: float) -> bool:
        """Until it has happened, the life is over, or so much time has passed; whether it has happened."""
        until = time.monotonic() + seconds
        while not happened():
            if self.status() is not None:
                return happened()
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK)
        return True

    def wait(self, seconds: float) -> int | None:
        """How it ended; None if it did not within that time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def ask_to_end(self) -> None:
        """SIGTERM, to the command alone, as a provider does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> int:
        """SIGKILL, to the whole group; how it ended."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        return self._process.wait()

    def tail(self, lines: int = 6, longest: int = 160) -> list[str]:
        """The last lines that it printed."""
        try:
            with self.output.open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        # a progress bar draws over its line again and again
        found = [line.rpartition("\r")[2] if not line.endswith("\r") else line for line in text.split("\n")]
        cut = [one_line(line) for line in found if line.strip()][-lines:]
        return [line if len(line) <= longest else f"{line[: longest - 1]}…" for line in cut]


class Lives:
    """Starts lives, and sees to it that none is left."""

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, output: Path
    ) -> subprocess.Popen[bytes]:
        """The process, in a session of its own. BadInput if it cannot be started."""
        words = list(command)
        if _LINUX:
            words = [sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()), *words]
        try:
            with output.open("wb") as file:
                return subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=directory,
                    env=dict(environment),
                    start_new_session=True,
                )
        except OSError as error:
            raise BadInput(f"rehearse: cannot run {shorten(command[0])}: {error.strerror}") from None

    @contextmanager
    def start(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, output: Path
    ) -> Iterator[Life]:
        """A life; what is left of it at the end of the block is killed."""
        life = Life(self.spawn(command, environment, directory, output), output)
        try:
            yield life
        finally:
            life.kill()


@contextmanager
def nothing_left() -> Iterator[None]:
    """Until the end of the block orphans come to this process; then they are killed.

    SIGTERM and SIGHUP leave the block as Ctrl-C does, so that it can clean up; the program then ends with
    128 + the signal.
    """
    before = _children()
    adopting = _prctl(_SUBREAPER, 1)

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    old = {}
    if threading.current_thread() is threading.main_thread():
        old = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        if adopting:
            for _ in range(100):  # children of what was killed come only now
                orphans = _children() - before
                if not orphans:
                    break
                for pid in orphans:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
            _prctl(_SUBREAPER, 0)


def _prctl(option: int, value: int) -> bool:
    if not _LINUX:
        return False
    with contextlib.suppress(OSError, AttributeError):
        return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0)) == 0
    return False


def _children() -> set[int]:
    """The children of this process, as the kernel lists them; none where it does not say."""
    found: set[int] = set()
    if _LINUX:
        for task in Path("/proc/self/task").glob("*/children"):
            with contextlib.suppress(OSError, ValueError):
                found.update(map(int, task.read_text().split()))
    return found

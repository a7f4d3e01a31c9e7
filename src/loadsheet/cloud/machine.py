"""What a check may ask of a machine: files of the system, programs, the environment, the clock.

Every check goes through this, so that a test can put another machine in its place: another root with its own
/proc, an environment, programs that answer what the test says.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.probe import Clock, WriteRate, clock, reserve, wall_drift, write_rate

_LIMIT: Final = 4 << 20  # of what a program may answer, and of a system file, bytes
_PIECE: Final = 1 << 16
_TIMEOUT: Final = 15.0  # of a program, seconds


@dataclass(frozen=True)
class Output:
    """What a program answered."""

    status: int
    out: str
    err: str = ""


class Space(Protocol):
    """What `os.statvfs` says of a file system."""

    @property
    def f_frsize(self) -> int:
        """Bytes of a block."""

    @property
    def f_blocks(self) -> int:
        """Blocks."""

    @property
    def f_bavail(self) -> int:
        """Blocks free for an ordinary user."""

    @property
    def f_files(self) -> int:
        """Inodes; 0 where the file system has no fixed number."""

    @property
    def f_favail(self) -> int:
        """Inodes free for an ordinary user."""

    @property
    def f_flag(self) -> int:
        """Mount flags."""


class Machine:
    """This machine, or the one that a test describes."""

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        environment: Mapping[str, str] | None = None,
        programs: Callable[[Sequence[str], float], Output | None] | None = None,
        time: Callable[[], float] = time.time,
        statvfs: Callable[[Path], Space] | None = None,
        write_rate: Callable[[Path, float], WriteRate] = write_rate,
        reserve: Callable[[Path, int], bool] = reserve,
        clock: Callable[[], Clock | None] = clock,
        drift: Callable[[], float] = wall_drift,
        system: str = sys.platform,
        home: Path | None = None,
        user: int | None = None,
        nvml: Any = None,
        not_from: Iterable[Path] = (),
    ) -> None:
        """`not_from`: folders none of whose programs may be run, however PATH stands.

        `nvml`: what to take for the module pynvml, False for none; None looks whether it is installed.
        """
        self.nvml = nvml
        self.root = root
        self.environment = dict(os.environ if environment is None else environment)
        self.time = time
        self.statvfs: Callable[[Path], Space] = statvfs or os.statvfs
        self.write_rate = write_rate
        self.reserve = reserve
        self.clock = clock
        self.drift = drift
        self.system = system
        self.user = os.getuid() if user is None and hasattr(os, "getuid") else user or 0
        self.home = home or Path(self.environment.get("HOME") or os.path.expanduser("~"))
        self._programs = programs
        self._not_from = [path.resolve() for path in not_from]

    # --- files ----------------------------------------------------------------------------------------

    def path(self, path: str | os.PathLike[str]) -> Path:
        """Where a file of the system is to be looked for."""
        return self.root / str(path).lstrip("/")

    def read(self, path: str | os.PathLike[str]) -> str | None:
        """The text of a file of the system; None if there is none. CannotLook if it may not be read."""
        found = self.path(path)
        try:
            mode = os.stat(found).st_mode
            if not stat.S_ISREG(mode):
                return None
            data = bytearray()
            with open(found, "rb", buffering=0) as file:
                # in pieces: files of /proc/sys refuse to be asked for megabytes at once
                while len(data) < _LIMIT and (piece := file.read(_PIECE)):
                    data += piece
            return data.decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
            return None
        except OSError as error:
            raise CannotLook(f"{path}: {(error.strerror or str(error)).lower()}") from None

    def names(self, path: str | os.PathLike[str]) -> list[str]:
        """The names in a folder of the system, sorted; none if there is no such folder, CannotLook as above."""
        try:
            return sorted(os.listdir(self.path(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CannotLook(f"{path}: {(error.strerror or str(error)).lower()}") from None

    def need_linux(self) -> None:
        """CannotLook where there is no /proc to read."""
        if not self.path("/proc/self").exists():
            raise CannotLook(f"there is no /proc here ({self.system})", "run it on the machine that you rent")

    # --- programs -------------------------------------------------------------------------------------

    def which(self, name: str) -> str | None:
        """Where a program is; folders of PATH that are relative or ruled out are passed over."""
        folders = []
        for entry in self.environment.get("PATH", os.defpath).split(os.pathsep):
            if not os.path.isabs(entry):
                continue
            resolved = Path(entry).resolve()
            if not any(resolved.is_relative_to(outside) for outside in self._not_from):
                folders.append(entry)
        return shutil.which(name, path=os.pathsep.join(folders) or os.devnull)

    def command(self, words: Sequence[str], timeout: float = _TIMEOUT) -> Output | None:
        """What a program answers; None if it is not installed. CannotLook if it takes too long."""
        if self._programs is not None:
            return self._programs(words, timeout)
        program = self.which(words[0])
        if program is None:
            return None
        with started([program, *words[1:]], self.environment) as process:
            return answer(process, timeout)


#: programs that are at work right now
_RUNNING: Final[set[subprocess.Popen[bytes]]] = set()


def end_all() -> None:
    """End the programs that are still at work: nobody waits for their answer any more."""
    for process in list(_RUNNING):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def started(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own; it and all that it has started are gone at the end.

    CannotLook if it cannot be started.
    """
    try:
        process = subprocess.Popen(
            words,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**environment, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        raise CannotLook(f"{words[0]}: {(error.strerror or str(error)).lower()}") from None
    _RUNNING.add(process)
    try:
        yield process
    finally:
        _end(process)
        _RUNNING.discard(process)
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def answer(process: subprocess.Popen[bytes], timeout: float) -> Output:
    """All that a program says, at most 4 MiB of it; CannotLook if it is not done in time."""
    streams = {"out": process.stdout, "err": process.stderr}
    heard = {name: bytearray() for name in streams}

    def listen(name: str) -> None:
        stream = streams[name]
        with contextlib.suppress(OSError, ValueError):
            while stream is not None and (data := os.read(stream.fileno(), 65536)):
                if len(heard[name]) < _LIMIT:
                    heard[name] += data

    listeners = [threading.Thread(target=listen, args=(name,), daemon=True) for name in streams]
    for listener in listeners:
        listener.start()
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        name = os.path.basename(str(process.args[0]))  # type: ignore[index]
        raise CannotLook(f"{name} did not answer within {timeout:.0f} s") from None
    for listener in listeners:
        listener.join(5)
    return Output(status, heard["out"].decode(errors="replace"), heard["err"].decode(errors="replace"))

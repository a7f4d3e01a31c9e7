"""Try a disk out: how fast it takes data to keep, and whether it would take so much.

Everything is written into a file that has no name any more when the first byte is written, so nothing is
left behind, whatever happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

_PIECE: Final = 8 << 20
_LARGEST: Final = 256 << 20
_APPENDS: Final = 10


@dataclass(frozen=True)
class WriteRate:
    """What a disk did: bytes written and made durable in seconds, and the time of a small durable append."""

    bytes: int
    seconds: float
    append_seconds: float

    @property
    def per_second(self) -> float:
        """Bytes per second, the fsync included."""
        return self.bytes / self.seconds


@contextlib.contextmanager
def _nameless(folder: Path) -> Iterator[int]:
    path = folder / f".loadsheet-preflight-{os.getpid()}-{time.monotonic_ns()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        os.unlink(path)
        yield fd
    finally:
        os.close(fd)


def write_rate(folder: Path, seconds: float) -> WriteRate:
    """Write up to 256 MiB of random bytes for up to so many seconds, then fsync. Raises OSError.

    Bytes that cannot be compressed; what the page cache absorbs counts only once the fsync is through. A
    cloud disk may be faster for its first minutes than for the rest of the day.
    """
    data = os.urandom(_PIECE)
    with _nameless(folder) as fd:
        os.write(fd, data[:4096])
        os.fsync(fd)  # the file itself is not what is measured
        begun, written = time.perf_counter(), 0
        while written < _LARGEST and time.perf_counter() - begun < seconds:
            written += os.write(fd, data)
        os.fsync(fd)
        taken = time.perf_counter() - begun
        appends = []
        for _ in range(_APPENDS):
            start = time.perf_counter()
            os.write(fd, data[:100])
            os.fsync(fd)
            appends.append(time.perf_counter() - start)
            if time.perf_counter() - begun > 2 * seconds:
                break
    return WriteRate(written, max(taken, 1e-9), median(appends))


def reserve(folder: Path, size: int) -> bool:
    """Have so many bytes reserved for a moment, which a quota refuses as it would refuse to write them.

    False where the file system cannot say. Raises OSError: ENOSPC, EDQUOT, EFBIG.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if call is None:
        return False
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    with _nameless(folder) as fd:
        while call(fd, 0, 0, size) != 0:
            number = ctypes.get_errno()
            if number == errno.EINTR:
                continue
            if number in {errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV}:
                return False
            raise OSError(number, os.strerror(number))
    return True


@dataclass(frozen=True)
class Clock:
    """What the kernel says of its clock: kept in step or not, and the error it allows for, in seconds."""

    synchronised: bool
    error_seconds: float


class _Timex(ctypes.Structure):
    """`struct timex` of adjtimex(2), as far as it is read; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("room", ctypes.c_char * 256),
    )


def clock() -> Clock | None:
    """The state of the kernel's clock; None where it cannot be asked. Reading needs no rights."""
    call = getattr(ctypes.CDLL(None), "adjtimex", None)
    if call is None:
        return None
    facts = _Timex()
    state = call(ctypes.byref(facts))
    if state < 0:
        return None
    unsynchronised = bool(facts.status & 0x40) or state == 5  # STA_UNSYNC, TIME_ERROR
    return Clock(not unsynchronised, facts.maxerror / 1e6)


def wall_drift(seconds: float = 0.3) -> float:
    """Seconds by which the wall clock moved against the monotonic one meanwhile: stepped, or slewed hard.

    Each of the two ends is the closest of a few readings, so that a busy machine does not look like a bad
    clock; what is left of that error is in the result.
    """
    before = _offset()
    time.sleep(seconds)
    return _offset() - before


def _offset() -> float:
    """Wall clock minus monotonic clock, from the reading between the two closest looks at the latter."""
    best: tuple[float, float] | None = None
    for _ in range(9):
        first, wall, second = time.monotonic(), time.time(), time.monotonic()
        if best is None or second - first < best[0]:
            best = second - first, wall - (first + second) / 2
    assert best is not None
    return best[1]

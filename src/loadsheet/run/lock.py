"""The lock of a run directory: one process at a time.

A POSIX record lock belongs to a process: the kernel drops it when the process ends, however it ends, and a
forked child never has it. (`flock` is shared with forked children: a loader worker that outlives its
killed parent would keep the run locked.) The price is a rule: if the process closes *any* descriptor of the
file, the lock is gone. So the file is opened once per process, and nothing else here ever opens it.

A lock can fail silently (a file server that restarts, a directory that is deleted and made anew), so it is
not the only guard: the number of the attempt fences, see `directory`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from loadsheet.errors import BadFile, shorten
from loadsheet.run.errors import Busy
from loadsheet.run.tell import tell

_TAKEN: Final = {errno.EACCES, errno.EAGAIN}
_NO_LOCKS: Final = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
#: seconds of waiting after which a person is told why nothing happens
_PATIENCE: Final = 2.0
_MOUNTS: Final = Path("/proc/self/mountinfo")

#: the lock files this process holds, by device and inode; a forked child has the entry but not the lock
_held: dict[tuple[int, int], int] = {}
_guard = threading.Lock()


class RunLock:
    """The lock on one file, held from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._key = (0, 0)

    def acquire(self, wait: float, describe: Callable[[], dict[str, Any]] | None = None) -> None:
        """Take the lock, waiting up to `wait` seconds for another process to end.

        Raises Busy naming the owner, BadFile where the file system has no locks.
        """
        deadline = time.monotonic() + wait
        told = time.monotonic() + _PATIENCE
        pause = 0.02
        while not self._try():
            now = time.monotonic()
            owner = self._owner()
            if now >= deadline:
                raise Busy(
                    f"run: got one that is in use by {owner}, expected a free one: `{self.path.parent}`",
                    "one config is one run: wait for it, stop it, or change the config",
                )
            if now >= told:
                tell(f"waiting up to {wait:.0f} s for `{self.path.parent}`, in use by {owner}")
                told = deadline + 1
            time.sleep(min(pause, max(deadline - now, 0)))
            pause = min(pause * 1.5, 0.5)
        self._describe(describe() if describe else {})

    def _try(self) -> bool:
        """One try; False if another process has the lock."""
        with _guard:
            if self._held_here():
                raise Busy(
                    f"run: got one that this process has open already, expected a free one: "
                    f"`{self.path.parent}`",
                    "a notebook cell that was run again? `run.close()` first, or `with ls.Run.open(...) as run:`",
                )
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _TAKEN:
                    return False
                self._drop()
                if error.errno in _NO_LOCKS:
                    raise BadFile(
                        f"run directory `{self.path.parent}`: got a file system without locks "
                        f"({error.strerror}), expected one that has them",
                        "keep runs on a local disk, and give `mirror=` for the copy elsewhere",
                    ) from None
                raise
            found = os.fstat(self._fd)
            self._key = (found.st_dev, found.st_ino)
            if not self.in_place():  # deleted and made anew since it was opened: that is another lock
                self._drop()
                return False
            _held[self._key] = os.getpid()
            return True

    def _held_here(self) -> bool:
        """Whether this process has the lock; found out without opening the file, which would drop it."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return False
        return _held.get((found.st_dev, found.st_ino)) == os.getpid()

    def in_place(self) -> bool:
        """Whether the locked file is still the one under that name."""
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        return self._fd is not None and (found.st_dev, found.st_ino) == self._key

    def _describe(self, facts: dict[str, Any]) -> None:
        """Write into the file who has it; only for people, so a full disk does not matter."""
        assert self._fd is not None
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": shorten(" ".join(sys.argv), 200).strip("'"),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            **facts,
        }
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps(owner).encode() + b"\n", 0)
        except OSError:
            pass

    def _owner(self) -> str:
        """Who has the lock, from what it wrote there."""
        try:
            found = json.loads(os.pread(self._fd or 0, 4096, 0)) if self._fd is not None else {}
            return (
                f"process {int(found['pid'])} on {found['host']} since {found['since']} "
                f"({shorten(found['command'], 120)})"
            )
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def _drop(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def release(self) -> None:
        """Give the lock back; nothing happens where it is not held (a forked child, a second call)."""
        with _guard:
            if self._fd is not None:
                if _held.get(self._key) == os.getpid():
                    del _held[self._key]
                self._drop()


#: how the system's `struct flock` is laid out, and where in it the kind of the lock stands
_FLOCK: Final = ("qqihh", 3) if sys.platform == "darwin" else ("hhqqi", 0)


def in_use(path: Path) -> bool | None:
    """Whether a living process holds this lock file; it is only looked at, never taken.

    None where the system does not say: no permission, a file system without locks.
    """
    with _guard:  # between here and `close` no thread of this process may take the lock, or it would lose it
        try:
            found = os.stat(path, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                return False
            if _held.get((found.st_dev, found.st_ino)) == os.getpid():
                return True
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        except OSError:
            return None
        layout, at = _FLOCK
        question = [0] * 5
        question[at] = fcntl.F_WRLCK
        try:
            answer = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(layout, *question))
        except OSError:
            return None
        finally:
            os.close(fd)
        return bool(struct.unpack(layout, answer)[at] != fcntl.F_UNLCK)


def refuse_unsafe(path: Path, mounts: Path = _MOUNTS) -> None:
    """BadFile for a directory on a file system that cannot keep a run, with the reason.

    FUSE (mounted buckets among it) neither has to honour locks nor fsync, nor rename at once; an NFS
    mounted with `nolock` or `local_lock` locks only against this one machine.
    """
    kind, options = _file_system(path, mounts)
    reason = ""
    if kind == "fuse" or kind.startswith(("fuse.", "fuseblk")):
        reason = f"a FUSE file system ({kind})"
    elif kind.startswith("nfs") and options & {"nolock", "local_lock=all", "local_lock=posix"}:
        reason = "an NFS mount whose locks reach no other machine"
    if reason:
        raise BadFile(
            f"run directory `{path}`: got {reason}, expected one with locks, fsync and rename",
            "keep runs on a local disk, and give `mirror=` for the copy elsewhere",
        )


def _file_system(path: Path, mounts: Path) -> tuple[str, frozenset[str]]:
    """Kind and options of the mount a path lies on; nothing where the system does not say."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        real = os.path.realpath(path)
    except OSError:
        return "", frozenset()
    best, found = -1, ("", frozenset[str]())
    for line in lines:
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) < 6 or len(right) < 3:
            continue
        point = _unescape(left[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # of mounts at one point the last one is seen
            best, found = len(point), (right[0], frozenset(f"{left[5]},{right[2]}".split(",")))
    return found


def _unescape(text: str) -> str:
    """A path as /proc writes it, with octal escapes for white space and the backslash."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text

"""The files of checkpoints as somebody who does not trust the directory reads them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from loadsheet.run.files import Disk
from loadsheet.units import format_bytes

#: told, in a few words, what is being read and how far that has come
Say = Callable[[str], None]


def silent(_: str) -> None:
    """Progress that nobody reads."""


class Counter:
    """Counts the bytes that are read back, of `total`, and says so.

    `what` is what they belong to; as long as it is empty nothing is counted.
    """

    def __init__(self, say: Say = silent) -> None:
        self.what = ""
        self.total = 0
        self._say = say
        self._read = 0

    def __call__(self, nbytes: int) -> None:
        """So many more."""
        if not self.what:
            return
        self._read += nbytes
        of = f" of {format_bytes(self.total, 1)}" if self._read <= self.total else ""
        self._say(f"reading back {self.what}: {format_bytes(self._read, 1)}{of}")


class Guarded(Disk):
    """The real file system below one folder: only regular files that lie in it are opened.

    A link that leads out, a pipe (which would be waited for) and a device are an OSError that says so.
    `read` is told the number of bytes of each piece that was read.
    """

    def __init__(self, folder: Path, read: Callable[[int], None] | None = None) -> None:
        self._root = os.path.realpath(folder)
        self._read = read
        self._failed: OSError | None = None

    def failure(self) -> OSError | None:
        """The last error since this was asked before."""
        failed, self._failed = self._failed, None
        return failed

    def _check(self, path: str) -> None:
        real = os.path.realpath(path)
        if not real.startswith(self._root.rstrip("/") + "/"):
            raise OSError(errno.ELOOP, "a link that leaves the directory", path)
        if not stat.S_ISREG(os.stat(real).st_mode):
            raise OSError(errno.EINVAL, "something that is no file", path)

    def size(self, path: str) -> int:
        """Bytes of a file."""
        try:
            self._check(path)
            return super().size(path)
        except OSError as error:
            self._failed = error
            raise

    def chunks(self, path: str) -> Iterator[memoryview]:
        """The content of a file, piece by piece."""
        try:
            self._check(path)
            for part in super().chunks(path):
                if self._read is not None:
                    self._read(len(part))
                yield part
        except OSError as error:
            self._failed = error
            raise

"""Room on the disk: what checkpoints take, asked before the first step, and what is said when it is not there."""

from __future__ import annotations

import errno
import os

from loadsheet.run.errors import NoSpace, SaveFailed
from loadsheet.run.files import Files

_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class Room:
    """The room for `most` checkpoints below `root`, and one more while it is written."""

    def __init__(self, files: Files, root: str, most: int) -> None:
        self.most = most
        self._files = files
        self._root = root

    def needed(self, nbytes: int) -> int:
        """Bytes that checkpoints of this size take at most: those kept, and the one being written."""
        return (self.most + 1) * nbytes

    def check(self, nbytes: int, stored: int) -> None:
        """Is there room for checkpoints of this size, `stored` bytes of them being there already? NoSpace if not."""
        try:
            free = self._files.free(self._existing())
        except OSError as error:
            raise SaveFailed(
                f"checkpoints in {self._root}: got `{error.strerror}`, expected a directory"
            ) from error
        if free < self._missing(nbytes, stored):
            raise self._no_space(f"checkpoints in {self._root}", nbytes, stored)

    def _missing(self, nbytes: int, stored: int) -> int:
        """Bytes that must be free: for what is not there yet, at least for the one being written."""
        return max(self.needed(nbytes) - stored, nbytes)

    def failure(self, name: str, error: OSError, nbytes: int, stored: int) -> SaveFailed:
        """What the system said to a save of so many bytes, `stored` bytes being there already, as an error."""
        where = f"save {name} in {self._root}"
        if error.errno in _FULL:
            return self._no_space(where, nbytes, stored)
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = "the checkpoints before it are untouched"
        if error.errno == errno.ENOENT:
            hint = "was the run directory removed or unmounted?"
        elif error.errno in _READ_ONLY:
            hint = "the directory must be writable; a disk with errors is often made read-only by the system"
        return SaveFailed(f"{where}: got `{reason}`, expected to write {nbytes:,} bytes", hint)

    def _no_space(self, where: str, nbytes: int, stored: int) -> NoSpace:
        try:
            free = self._files.free(self._existing())
        except OSError:
            free = 0
        return NoSpace(
            f"{where}: got {free:,} bytes free, expected {self._missing(nbytes, stored):,}: "
            f"({self.most} kept + 1) × {nbytes:,}" + (f" - {stored:,} stored" if stored else ""),
            "make room (or ask for quota) and start again, it goes on from the newest checkpoint; or keep fewer, "
            "keep_last=1; or train on without saving until there is room, when_save_fails='warn'",
        )

    def _existing(self) -> str:
        return self._root if self._files.names(self._root) else os.path.dirname(self._root) or "."

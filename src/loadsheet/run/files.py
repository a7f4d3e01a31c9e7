"""The few things a save asks of a file system, so that a test can stand in its place.

A save is a protocol of writes, fsyncs and renames. Whether it survives a power cut does not show on a
working machine: a killed process leaves the page cache intact. So the protocol is written over this small
interface; the tests replay it on a file system in memory that forgets, in every possible combination,
what was never fsynced, and once for each fsync and rename with that one left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch

_CHUNK = 16 * 1024 * 1024
_PAGE = 4096


class NewFile(Protocol):
    """A file being written, from its beginning to its end."""

    def write(self, data: memoryview) -> None:
        """Append bytes; not durable yet."""

    def sync(self) -> None:
        """Make what was written durable. The name of the file is durable only with its directory."""

    def close(self) -> None:
        """Close it."""


class Files(Protocol):
    """A file system, as far as a save needs it. Every method raises OSError as the system does."""

    def create(self, path: str) -> NewFile:
        """A new, empty file; it must not exist."""

    def make_directory(self, path: str) -> None:
        """One directory; it must not exist."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable: what was created, renamed and removed there."""

    def rename(self, old: str, new: str) -> None:
        """Give another name, within one directory, in one instant; `new` must not exist."""

    def remove(self, path: str) -> None:
        """Remove a directory and all that is in it."""

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted; none if there is no such directory."""

    def read(self, path: str) -> torch.Tensor:
        """The content of a file as uint8; changing the tensor does not change the file."""

    def chunks(self, path: str) -> Iterator[memoryview]:
        """The content of a file, piece by piece; a disk that cannot read it raises OSError."""

    def size(self, path: str) -> int:
        """Bytes of a file."""

    def free(self, path: str) -> int:
        """Bytes that can still be written below a directory."""


class _DiskFile:
    """Writes in large pieces, past the page cache where the file system allows it.

    Half a gigabyte of dirty pages takes memory from training, a core to copy it, and makes every fsync of
    the log beside it wait; with O_DIRECT the bytes go from the snapshot's buffer to the disk at once.
    """

    def __init__(self, path: str) -> None:
        self._direct = getattr(os, "O_DIRECT", 0)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        try:
            self._fd = os.open(path, flags | self._direct, 0o644)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._direct:
                raise
            self._direct = 0
            with contextlib.suppress(FileNotFoundError):  # some systems create it before they refuse
                os.unlink(path)
            self._fd = os.open(path, flags, 0o644)
        self._offset = 0

    def write(self, data: memoryview) -> None:
        data = data.cast("B")
        while data:
            count = min(len(data), _CHUNK)
            if self._direct:
                count -= count % _PAGE
                if not count or self._offset % _PAGE or _address(data) % _PAGE:
                    self._buffered()
                    continue
            try:
                written = os.pwrite(self._fd, data[:count], self._offset)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._buffered()
                continue
            self._offset += written
            data = data[written:]

    def _buffered(self) -> None:
        """From here on through the page cache."""
        import fcntl

        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~self._direct)
        self._direct = 0

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def _address(data: memoryview) -> int:
    """Where the bytes lie in memory; an odd address for what cannot be asked."""
    return 1 if data.readonly else ctypes.addressof(ctypes.c_ubyte.from_buffer(data))


class Disk:
    """The real file system."""

    def create(self, path: str) -> NewFile:
        """A new, empty file."""
        return _DiskFile(path)

    def make_directory(self, path: str) -> None:
        """One directory."""
        os.mkdir(path)

    def sync_directory(self, path: str) -> None:
        """fsync of the directory; a file system that cannot (EINVAL) keeps its names in order by itself."""
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        """Give another name; even an empty directory, which the system call would replace, is in the way."""
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        os.rename(old, new)

    def remove(self, path: str) -> None:
        """Remove a directory with its content; nothing outside is followed."""
        shutil.rmtree(path)

    def names(self, path: str) -> list[str]:
        """The names in a directory."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str) -> torch.Tensor:
        """The file, mapped into memory: pages come when they are looked at, and can be dropped again."""
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return torch.empty(0, dtype=torch.uint8)
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        out: torch.Tensor = torch.frombuffer(mapped, dtype=torch.uint8)
        return out

    def chunks(self, path: str) -> Iterator[memoryview]:
        """The file through a buffer: a bad sector is an error here, and would kill the process if mapped."""
        with open(path, "rb", buffering=0) as file:
            buffer = bytearray(min(_CHUNK, os.fstat(file.fileno()).st_size + 1))
            while count := file.readinto(buffer):
                yield memoryview(buffer)[:count]

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return os.stat(path).st_size

    def free(self, path: str) -> int:
        """Bytes an ordinary user may still write; a quota is not seen by this."""
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize


def write_file(files: Files, path: str, chunks: Iterable[memoryview]) -> None:
    """A new file whose bytes are durable when this returns; its name is so only with its directory."""
    file = files.create(path)
    try:
        for chunk in chunks:
            file.write(chunk)
        file.sync()
    finally:
        file.close()


def memory(data: torch.Tensor) -> memoryview:
    """The bytes of a contiguous uint8 tensor in host memory, without copying; keep the tensor alive."""
    return memoryview((ctypes.c_ubyte * data.numel()).from_address(data.data_ptr())).cast("B")

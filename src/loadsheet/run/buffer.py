"""One buffer in host memory for all snapshots of a process.

The loop waits only for the copy into it, so what a copy costs beyond the bytes is paid once: pages are
touched when the buffer is made, and a forked loader worker does not share it, which would make the next
copy fault on every page again.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from pathlib import Path

import torch

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; the module has no name for it
_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
_LIMITS = (  # version 2, version 1: the limit, what is used, and what of that are files that can be dropped
    ("memory.max", "memory.current", "memory.stat", ("active_file", "inactive_file")),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        ("total_active_file", "total_inactive_file"),
    ),
)
_SPARE = 256 * 1024 * 1024  # bytes that stay free for the rest of the process


class HostBuffer:
    """`nbytes` of host memory as uint8, page aligned; pinned if copies come from CUDA."""

    def __init__(self, nbytes: int, pinned: bool) -> None:
        self.pinned = pinned
        if pinned:  # untested without a GPU
            self.data = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            return
        memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for advice in (
            getattr(mmap, "MADV_HUGEPAGE", None),
            getattr(mmap, "MADV_DONTFORK", None),
            _POPULATE_WRITE,
        ):
            if advice is not None:
                with contextlib.suppress(OSError, ValueError):  # only ever makes it slower
                    memory.madvise(advice)
        self.data = torch.frombuffer(memory, dtype=torch.uint8)[:nbytes]


class Lease:
    """The use of the buffer by one snapshot; `busy` is set while a save reads it."""

    def __init__(self, buffer: HostBuffer) -> None:
        self.buffer = buffer
        self.busy = False
        self._free = threading.Event()

    def release(self) -> None:
        """The bytes are no longer needed."""
        self._free.set()

    @property
    def free(self) -> bool:
        """Whether it was released."""
        return self._free.is_set()

    def wait(self) -> None:
        """Until it is released."""
        self._free.wait()


class Buffers:
    """Hands out the one buffer, and makes a larger one when the state has grown."""

    def __init__(self) -> None:
        self._lease: Lease | None = None

    def lease(self, nbytes: int, pinned: bool) -> Lease | None:
        """Room for a snapshot: waits for a save that is reading the buffer; None if memory is too short."""
        old = self._lease
        buffer: HostBuffer | None = None
        if old is not None:
            if old.busy:
                old.wait()
            if old.free:
                buffer = old.buffer
            self._lease = old = None
        if buffer is None or buffer.data.numel() < nbytes or buffer.pinned != pinned:
            buffer = None  # the old one goes before the new one comes
            available = available_memory()
            if available is not None and nbytes + _SPARE > available:
                return None
            try:
                buffer = HostBuffer(nbytes, pinned)
            except (MemoryError, OSError, RuntimeError):
                return None
        self._lease = Lease(buffer)
        return self._lease


def available_memory() -> int | None:
    """Bytes that can be had without swapping, the container's limit included; None if nobody says.

    A container's use includes the page cache, which fills whatever is free and goes when memory is needed.
    Source: proc(5), MemAvailable; the kernel's cgroup-v2 text, memory.max, memory.current and memory.stat.
    """
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _MEMORY.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    for limit, used, stat, files in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            most = int((_GROUP / limit).read_text(encoding="ascii"))
            taken = int((_GROUP / used).read_text(encoding="ascii"))
            found.append(max(most - taken, 0) + _of_files(_GROUP / stat, files))
    return min(found) if found else None


def _of_files(stat: Path, names: tuple[str, ...]) -> int:
    """Bytes of page cache in a group's account; 0 where it does not say."""
    cached = 0
    with contextlib.suppress(OSError, ValueError):
        for line in stat.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            cached += int(value) if name in names else 0
    return cached

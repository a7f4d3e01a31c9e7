"""A file system in memory that knows what a power cut may leave of it.

Nothing is durable before it is fsynced: the data of a file by the file's own fsync, the names in a
directory by the directory's. Until then any subset may be on the disk, in any order, with one exception
that every file system makes: changes of the same name keep their order. Data that were not fsynced may be
there, missing, cut in the middle, or a hole of zeros of the right size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

Tree = dict[str, Any]  # name -> bytes or Tree: what is on a disk


@dataclass(eq=False)
class Data:
    """A file: what a reader sees, and what is durable."""

    now: bytes = b""
    durable: bytes = b""

    def versions(self) -> list[bytes]:
        """What a power cut may leave."""
        if self.now == self.durable:
            return [self.now]
        half = len(self.now) // 2
        return list(
            dict.fromkeys(
                [
                    self.durable,
                    self.now,
                    self.now[:half],
                    b"\0" * len(self.now),
                    self.now[:half] + b"\0" * half,
                ]
            )
        )


@dataclass
class Change:
    """A change of the names in a directory; None removes the name."""

    names: dict[str, Data | Folder | None]


@dataclass(eq=False)
class Folder:
    """A directory: what a reader sees, what is durable, and the changes in between, in order."""

    now: dict[str, Data | Folder] = field(default_factory=dict)
    durable: dict[str, Data | Folder] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    def change(self, **names: Data | Folder | None) -> None:
        self.pending.append(Change(dict(names)))
        apply(self.now, names)

    def versions(self, hidden: bool = False) -> Iterator[Tree]:
        """What a power cut may leave; of a hidden directory only the two extremes, nobody reads it."""
        for chosen in self.subsets():
            if hidden and len(chosen) not in (0, len(self.pending)):
                continue
            names = dict(self.durable)
            for change in chosen:
                apply(names, change.names)
            contents = [
                list(
                    node.versions(hidden or name.startswith("."))
                    if isinstance(node, Folder)
                    else node.versions()
                )
                for name, node in names.items()
            ]
            if hidden:
                contents = [[versions[0], versions[-1]][: len(versions)] for versions in contents]
            for combination in product(*contents):
                yield dict(zip(names, combination, strict=True))

    def subsets(self) -> Iterator[list[Change]]:
        """Every choice of pending changes that keeps the order of changes of the same name."""
        for bits in product((False, True), repeat=len(self.pending)):
            chosen = [change for change, bit in zip(self.pending, bits, strict=True) if bit]
            left = [
                (number, change)
                for number, (change, bit) in enumerate(zip(self.pending, bits, strict=True))
                if not bit
            ]
            late = [
                (number, change)
                for number, (change, bit) in enumerate(zip(self.pending, bits, strict=True))
                if bit
            ]
            if not any(a < b and x.names.keys() & y.names.keys() for a, x in left for b, y in late):
                yield chosen


def apply(names: dict[str, Data | Folder], change: dict[str, Data | Folder | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class CrashDisk:
    """`loadsheet.run.files.Files` in memory.

    `after` is called after every operation; `skip` names one kind of operation that does nothing, as
    `trace` lists them: what, by which function, on what.
    """

    def __init__(self, tree: Tree | None = None, skip: str = "") -> None:
        self.root = plant(tree or {})
        self.after: Callable[[], None] = lambda: None
        self.trace: list[str] = []
        self.skip = skip

    def label(self, what: str, path: str) -> bool:
        """Note an operation; is it to be done?"""
        frame = sys._getframe(2)
        while frame.f_code.co_filename == __file__ and frame.f_back is not None:
            frame = frame.f_back
        name = path.rsplit("/", 1)[-1]
        kind = name if "." in name[1:] else name.split("-")[0]
        self.trace.append(f"{what} {kind} in {frame.f_code.co_name}")
        return self.trace[-1] != self.skip

    def find(self, path: str) -> Data | Folder:
        node: Data | Folder = self.root
        for name in path.strip("/").split("/"):
            if not isinstance(node, Folder):
                raise NotADirectoryError(20, "Not a directory", path)
            if name and name not in node.now:
                raise FileNotFoundError(2, "No such file or directory", path)
            node = node.now[name] if name else node
        return node

    def parent(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        node = self.find(above)
        assert isinstance(node, Folder)
        return node, name

    # --- the interface ------------------------------------------------------------------------------

    def create(self, path: str) -> CrashFile:
        folder, name = self.parent(path)
        if name in folder.now:
            raise FileExistsError(17, "File exists", path)
        data = Data()
        folder.change(**{name: data})
        self.after()
        return CrashFile(self, data, path)

    def make_directory(self, path: str) -> None:
        folder, name = self.parent(path)
        if name in folder.now:
            raise FileExistsError(17, "File exists", path)
        folder.change(**{name: Folder()})
        self.after()

    def sync_directory(self, path: str) -> None:
        folder = self.find(path)
        assert isinstance(folder, Folder)
        if self.label("sync", path or "/"):
            folder.durable = dict(folder.now)
            folder.pending.clear()
        self.after()

    def rename(self, old: str, new: str) -> None:
        folder, name = self.parent(old)
        other, target = self.parent(new)
        assert folder is other
        if target in folder.now:
            raise FileExistsError(17, "File exists", new)
        if name not in folder.now:
            raise FileNotFoundError(2, "No such file or directory", old)
        if self.label("rename", new):
            folder.change(**{target: folder.now[name], name: None})
        self.after()

    def remove(self, path: str) -> None:
        folder, name = self.parent(path)
        node = self.find(path)
        assert isinstance(node, Folder)
        for inner in list(node.now):
            node.change(**{inner: None})
            self.after()
        folder.change(**{name: None})
        self.after()

    def names(self, path: str) -> list[str]:
        try:
            node = self.find(path)
        except FileNotFoundError:
            return []
        return sorted(node.now) if isinstance(node, Folder) else []

    def content(self, path: str) -> bytes:
        node = self.find(path)
        if isinstance(node, Folder):
            raise IsADirectoryError(21, "Is a directory", path)
        return node.now

    def read(self, path: str) -> torch.Tensor:
        data = bytearray(self.content(path))
        return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)

    def chunks(self, path: str) -> Iterator[memoryview]:
        yield memoryview(self.content(path))

    def size(self, path: str) -> int:
        return len(self.content(path))

    def free(self, path: str) -> int:
        return 1 << 40


class CrashFile:
    """A file being written."""

    def __init__(self, disk: CrashDisk, data: Data, path: str) -> None:
        self.disk, self.data, self.path = disk, data, path

    def write(self, data: memoryview) -> None:
        self.data.now += bytes(data)
        self.disk.after()

    def sync(self) -> None:
        if self.disk.label("sync", self.path):
            self.data.durable = self.data.now
        self.disk.after()

    def close(self) -> None:
        pass


def plant(tree: Tree) -> Folder:
    """A tree as a directory, all of it durable."""
    names: dict[str, Data | Folder] = {
        name: plant(node) if isinstance(node, dict) else Data(node, node) for name, node in tree.items()
    }
    return Folder(dict(names), dict(names))


def cached(folder: Folder) -> Tree:
    """What a reader sees: what a killed process leaves, page cache and all."""
    return {
        name: cached(node) if isinstance(node, Folder) else node.now
        for name, node in sorted(folder.now.items())
    }


def frozen(tree: Tree) -> tuple[Any, ...]:
    """A tree as something that can be compared and hashed."""
    return tuple(
        (name, frozen(node) if isinstance(node, dict) else node) for name, node in sorted(tree.items())
    )

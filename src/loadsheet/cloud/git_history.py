"""Secrets in everything that a repository holds: not what is checked out, what can be got back.

Every object is read once, in the order in which it lies on the disk: files and messages of all branches and
tags, stashes, notes, what only a reflog still remembers, and what nothing refers to any more. That is more
than a walk over commits sees, and faster. Only for what was found is it then looked up in which commits it
came and went.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from subprocess import DEVNULL, PIPE
from typing import IO, Final

from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.git import Repository
from loadsheet.cloud.secrets import CHUNK, Found, Scanner

_MOST_OBJECTS: Final = 20_000_000
_MOST_SECRETS: Final = 2000
_MOST_PLACES: Final = 2000  # of one secret: a file with it may have been edited very often
_MOST_NAMED: Final = 4000  # objects whose commits are looked up
_PACKED: Final = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf")


@dataclass(frozen=True)
class Place:
    """Where in the history a secret stands; `commit` None: no commit was found that has it."""

    object: str
    kind: str  # blob, commit, tag
    path: str | None = None
    commit: str | None = None
    date: str | None = None
    removed: str | None = None  # the commit that took it away again
    stash: int | None = None  # the number of the stash that the commit belongs to


@dataclass
class History:
    """What was found, and how much was looked at. `stopped` says why not at all of it."""

    found: list[tuple[Found, Place]] = field(default_factory=list)
    times: Counter[str] = field(default_factory=Counter)  # how often each fingerprint stands there
    objects: int = 0
    bytes: int = 0
    total: int = 0
    packed: int = 0  # compressed files: they were not unpacked
    stopped: str = ""


class _Enough(Exception):
    """There is no need, or no time, to go on."""


def search(
    repository: Repository,
    scanner: Scanner,
    left: Callable[[], float],
    tell: Callable[[str], None] = lambda text: None,
) -> History:
    """All objects of a repository; `left` says how many seconds there still are, `tell` is told how far it is.

    CannotLook if git cannot list them. What it cannot read, or there was no time for, stands in `stopped`.
    """
    history = History()
    names, history.total = _names(repository, left)
    read = 0
    with repository.start("cat-file", "--batch", "--buffer", stdin=PIPE, stderr=DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        writer = threading.Thread(target=_write, args=(process.stdin, names), daemon=True)
        writer.start()
        for name, kind, size in _headers(process.stdout):
            read += 1
            if read % 64 == 0:
                tell(f"history: {read:,} of {len(names):,} objects")
            if size < 0:
                history.stopped = f"object {name[:10]} is missing from the repository"
                continue
            try:
                for entry in scanner.stream(_content(process.stdout, size, history, left)):
                    history.times[entry.fingerprint] += 1
                    if history.times[entry.fingerprint] <= _MOST_PLACES:
                        history.found.append((entry, Place(name, kind)))
                    if len(history.times) >= _MOST_SECRETS:
                        raise _Enough(f"there are {_MOST_SECRETS:,} secrets and more")
            except _Enough as reason:
                history.stopped = str(reason)
                break
        else:
            if read < len(names) and not history.stopped:
                history.stopped = f"git could read {read:,} of {len(names):,} objects: `git fsck` says more"
    history.found = _named(repository, history.found, left)
    return history


def _names(repository: Repository, left: Callable[[], float]) -> tuple[list[bytes], int]:
    """Names of all objects but trees (which hold names of files only), in the order of the disk; how many."""
    names: list[bytes] = []
    total = 0
    words = ("cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname) %(objecttype)")
    with repository.start(*words, stderr=DEVNULL) as process:
        assert process.stdout is not None
        for line in process.stdout:
            name, _, kind = line.rstrip().partition(b" ")
            total += 1
            if kind != b"tree":
                names.append(name)
            if total > _MOST_OBJECTS or (total % 4096 == 0 and left() <= 0):
                raise CannotLook(f"there are more than {total:,} objects: no time even to list them all")
        status = process.wait()
    if status != 0:
        raise CannotLook(f"git cat-file ended with status {status}: `git fsck` says more")
    return names, total


def _write(stream: IO[bytes], names: list[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):
        for start in range(0, len(names), 1024):
            stream.write(b"".join(name + b"\n" for name in names[start : start + 1024]))
        stream.close()


def _headers(stream: IO[bytes]) -> Iterator[tuple[str, str, int]]:
    """Name, kind and size of each object; the reader takes the content. Size -1: git does not have it."""
    while line := stream.readline():
        words = line.decode("ascii", "replace").split()
        if len(words) == 3 and words[2].isdigit():
            yield words[0], words[1], int(words[2])
        elif words:
            yield words[0], "", -1


def _content(stream: IO[bytes], size: int, history: History, left: Callable[[], float]) -> Iterator[bytes]:
    """The content of an object in pieces, counted; _Enough when the time is over."""
    rest = size
    while rest > 0:
        if left() <= 0:
            raise _Enough("there was no time for the rest")
        piece = stream.read(min(rest, CHUNK))
        if not piece:
            return
        if rest == size:
            history.objects += 1
            history.packed += piece.startswith(_PACKED)
        history.bytes += len(piece)
        rest -= len(piece)
        yield piece
    history.objects += not size
    stream.read(1)  # the line end behind it


# --- in which commits -----------------------------------------------------------------------------------


def _named(
    repository: Repository, found: list[tuple[Found, Place]], left: Callable[[], float]
) -> list[tuple[Found, Place]]:
    """The same, with path and commits, as far as there is time."""
    blobs = list(dict.fromkeys(place.object for _, place in found if place.kind == "blob"))[:_MOST_NAMED]
    known: dict[str, Place] = {}
    if blobs:
        with contextlib.suppress(CannotLook):
            known = _commits(repository, blobs, left)
    stashes = _stashes(repository) if found else {}
    known = {name: replace(place, stash=stashes.get(place.commit or "")) for name, place in known.items()}
    named = []
    for entry, place in found:
        if place.kind == "blob":
            named.append((entry, known.get(place.object, place)))
        elif place.kind == "commit":
            named.append((entry, replace(place, path="(commit message)", commit=place.object)))
        else:
            named.append((entry, replace(place, path="(tag message)")))
    return named


def _stashes(repository: Repository) -> dict[str, int]:
    """The commits that a stash is made of (work tree, index, new files) -> its number in `git stash list`."""
    words = (
        "log",
        "--walk-reflogs",
        "--no-show-signature",
        "--no-color",
        "--format=%H %P",
        "refs/stash",
        "--",
    )
    output = repository.run(*words)
    found: dict[str, int] = {}
    for number, line in enumerate(output.out.splitlines() if output.status == 0 else []):
        tree, _, *parts = line.split(" ")  # the first parent is the commit that the work stood on
        for name in (tree, *parts):
            found.setdefault(name, number)
    return found


def _commits(repository: Repository, blobs: list[str], left: Callable[[], float]) -> dict[str, Place]:
    """For each blob its path, the oldest commit that has it, and the one that took it away.

    One walk over all commits, newest first, that reports only changes from or to these blobs.
    """
    words = ["log", "--all", "--reflog", "-m", "--raw", "-z", "--no-abbrev", "--no-renames", "--no-ext-diff"]
    words += ["--no-textconv", "--no-color", "--no-notes", "--no-show-signature", "--format=%x02%H %cs"]
    words += [f"--find-object={blob}" for blob in blobs]
    if repository.head is not None:
        words.append("HEAD")
    wanted = set(blobs)
    places: dict[str, Place] = {}
    commit, date = "", ""
    change: tuple[str, str] | None = None
    with repository.start(*words, stderr=DEVNULL) as process:
        assert process.stdout is not None
        for token in _tokens(process.stdout):
            text = token.decode("utf-8", "replace").strip("\n")
            if "\x02" in text:
                commit, _, date = text.rpartition("\x02")[2].partition(" ")
            elif text.startswith(":") and change is None:
                parts = text.split(" ")
                change = (parts[2], parts[3]) if len(parts) >= 5 else None
            elif change is not None:
                old, new = change
                change = None
                if new in wanted:
                    before = places.get(new)
                    removed = before.removed if before else None
                    places[new] = Place(new, "blob", text, commit, date, removed)
                if old in wanted and old != new:
                    before = places.get(old)
                    if before is None:
                        places[old] = Place(old, "blob", text, None, None, commit)
                    elif before.removed is None:
                        places[old] = replace(before, removed=commit)
            if left() <= 0:
                break
    return places


def _tokens(stream: IO[bytes]) -> Iterator[bytes]:
    """What stands between NULs."""
    rest = b""
    while piece := stream.read(65536):
        *whole, rest = (rest + piece).split(b"\0")
        yield from whole
    if rest:
        yield rest

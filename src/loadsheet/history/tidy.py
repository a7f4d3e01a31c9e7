"""What a retention rule would free of runs that nobody is running, and its removal.

Planned without a lock and carried out under the run's own, after everything was looked at again: what has
been shown is the most that goes. Before anything goes, every checkpoint that stays is read back; one that is
damaged keeps nothing else from staying, so the rule is then answered with those that are whole. The newest
whole one always stays. Reading takes minutes where there is much, and a run that is started meanwhile waits
for the lock only so long; so it is done before, and under the lock again for what has changed since.
Removal is the run's own (`CheckpointStore.remove`), safe to be killed at any instant.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from loadsheet.errors import LoadsheetError
from loadsheet.history.check_files import Counter, Guarded, Say, silent
from loadsheet.run.checkpoint import CheckpointStore, directory_name
from loadsheet.run.errors import BadCheckpoint, Busy, RunWarning
from loadsheet.run.files import Disk
from loadsheet.run.lock import RunLock, in_use
from loadsheet.run.retention import Best, kept, last_values, ranked

#: what unfinished saves and removals left, and damaged checkpoints that a run has set aside: see run/checkpoint.py
_REPLACED: Final = ".replaced-"
_UNFINISHED: Final = (".saving-", ".old-", _REPLACED)
_SET_ASIDE: Final = "torn-"

Kind = Literal["checkpoint", "damaged", "set aside", "unfinished"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Which checkpoints stay: one that any part of the rule keeps; without any part all of them.

    `keep_last`: the newest so many. `keep_every`: those whose step is a multiple. `best`: the best by a
    logged metric, as `load(run, "best")` finds them. `older_than`: seconds; what is younger stays, and so do
    leftovers. `damaged`: checkpoints that are not whole are freed as well.
    """

    keep_last: int | None = None
    keep_every: int | None = None
    best: tuple[Best, ...] = ()
    older_than: float | None = None
    damaged: bool = False

    @property
    def of_checkpoints(self) -> bool:
        """Whether it says anything of checkpoints that are whole."""
        return bool(self.keep_last or self.keep_every or self.best or self.older_than is not None)

    def old(self, item: Item, now: float) -> bool:
        """Whether something may go as far as its age is concerned."""
        return self.older_than is None or item.time <= now - self.older_than


@dataclass(frozen=True, slots=True)
class Item:
    """One directory below `checkpoints`; `nbytes` as the files say, `time` in seconds since 1970."""

    kind: Kind
    name: str
    step: int | None
    nbytes: int
    time: float


@dataclass(slots=True)
class Freeable:
    """What of one run would go and what stays; `reason` says why nothing of it is touched."""

    path: Path
    free: list[Item] = field(default_factory=list)
    stay: list[Item] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    reason: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes that would be freed."""
        return sum(item.nbytes for item in self.free)


@dataclass(slots=True)
class Freed:
    """What has gone, and what could not."""

    path: Path
    items: list[Item] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes that were freed."""
        return sum(item.nbytes for item in self.items)


# --- looking --------------------------------------------------------------------------------------------------


def plan(path: Path, rule: Rule, *, now: float | None = None, say: Say = silent) -> Freeable:
    """What the rule would free of a run directory; nothing is changed.

    With `rule.damaged` every checkpoint is read back, else only the manifests and sizes are looked at.
    """
    found = Freeable(path)
    if (used := in_use(path / "lock")) is not False:
        found.reason = "in use by a living process" if used else "whether it is in use cannot be seen"
        return found
    folder = path / "checkpoints"
    if folder.is_symlink():
        found.reason = "`checkpoints` is a link: what it points to is not for this run alone to say"
        return found
    _divide(_Looked(path, say), found, rule, time.time() if now is None else now)
    return found


def _divide(looked: _Looked, found: Freeable, rule: Rule, now: float) -> None:
    """Sort the directories into those that go and those that stay; none goes if they cannot be looked at."""
    try:
        checkpoints, others = _items(looked.store)
        whole: list[Item] = []
        looked.expect(checkpoints if rule.damaged else ())
        for item in checkpoints:
            reason = looked.whole(item) if rule.damaged else looked.plausible(item)
            if not reason:
                whole.append(item)
                continue
            found.damaged.append(reason)
            damaged = replace(item, kind="damaged")
            (found.free if rule.damaged and rule.old(item, now) else found.stay).append(damaged)
        staying = keeps(found.path, whole, rule, now)
        for item in whole:
            (found.stay if item.step in staying else found.free).append(item)
        for item in others:
            (found.free if rule.old(item, now) else found.stay).append(item)
    except LoadsheetError as error:
        found.free, found.reason = [], str(error)
    except OSError as error:
        found.free, found.reason = [], f"cannot be read: {error.strerror}"


def keeps(path: Path, whole: Sequence[Item], rule: Rule, now: float) -> set[int]:
    """The steps that stay of checkpoints that are whole, in order; the newest is always one of them.

    Raises LoadsheetError if the metric of `rule.best` counts
    for none of them: what is best is then not known, and nothing may go.
    """
    steps = [item.step for item in whole if item.step is not None]
    if not steps or not rule.of_checkpoints:
        return set(steps)
    best: set[int] = set()
    for wanted in rule.best:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunWarning)  # damaged lines: `runs verify` counts them
            values = last_values(path, steps, wanted.metric)
        if not values:
            raise LoadsheetError(
                f"no `{wanted.metric}` was logged for any checkpoint: which is best is not known"
            )
        best |= set(ranked(values, wanted.mode)[: wanted.count])
    found = kept(steps, rule.keep_last or 1, rule.keep_every, best)
    return found | {item.step for item in whole if item.step is not None and not rule.old(item, now)}


def _items(store: CheckpointStore) -> tuple[list[Item], list[Item]]:
    """The checkpoints in order, and the leftovers; what is neither is not ours to touch."""
    checkpoints: list[Item] = []
    others: list[Item] = []
    steps = {directory_name(step): step for step in store.steps()}
    names = sorted(os.listdir(store.path)) if store.path.is_dir() else []
    for name in names:
        kind: Kind
        if name in steps:
            kind = "checkpoint"
        elif name.startswith(_UNFINISHED) and _replaced(name) not in ("", *steps):
            continue  # the one that should have taken its place did not come: the next start gives it its name back
        elif name.startswith(_UNFINISHED):
            kind = "unfinished"
        elif name.startswith(_SET_ASIDE):
            kind = "set aside"
        else:
            continue
        folder = store.path / name
        if folder.is_symlink() or not folder.is_dir():
            continue
        nbytes, made = _size(folder)
        if name in steps:
            with contextlib.suppress(BadCheckpoint):
                made = store.manifest(steps[name]).time
        item = Item(kind, name, steps.get(name), nbytes, made)
        (checkpoints if name in steps else others).append(item)
    return sorted(checkpoints, key=lambda item: item.step or 0), others


def _replaced(name: str) -> str:
    """The checkpoint whose name a directory had until another was to take its place; else nothing."""
    return name.removeprefix(_REPLACED).rpartition("-")[0] if name.startswith(_REPLACED) else ""


def _size(folder: Path) -> tuple[int, float]:
    """Bytes of the files in a directory, and when it was last changed."""
    nbytes = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                nbytes += os.lstat(os.path.join(where, name)).st_size
    return nbytes, folder.stat().st_mtime


class _Looked:
    """Which checkpoints of a run are whole; each is read once."""

    def __init__(self, path: Path, say: Say) -> None:
        folder = path / "checkpoints"
        self._counter = Counter(say)
        self._run = path.name
        self._known: dict[int, tuple[_Signature, str]] = {}
        self.store = CheckpointStore(folder, files=Guarded(folder, self._counter))

    def expect(self, items: Iterable[Item]) -> None:
        """These will be read, for what is said of the progress."""
        self._counter.total += sum(item.nbytes for item in items if self._read_before(item) is None)

    def _read_before(self, item: Item) -> str | None:
        """What was found when it was read; None if it was not, or has changed since."""
        signature, reason = self._known.get(item.step or 0, ((), ""))
        return reason if signature and signature == _signature(self.store.path / item.name) else None

    def plausible(self, item: Item) -> str:
        """Why a checkpoint cannot be whole, by its manifest and the sizes of its files; else nothing."""
        assert item.step is not None
        try:
            manifest = self.store.manifest(item.step)
            for name, expected in manifest.files.items():
                size = (self.store.path / item.name / name).stat().st_size
                if size != expected.bytes:
                    return f"{item.name}/{name}: got {size:,} bytes, expected {expected.bytes:,}"
        except BadCheckpoint as error:
            return str(error)
        except OSError as error:
            return f"{item.name}: got `{error.strerror}`, expected its files"
        return ""

    def whole(self, item: Item) -> str:
        """Why a checkpoint is not whole, every byte read; else nothing."""
        assert item.step is not None
        found = self._read_before(item)
        if found is None:
            self._counter.what = f"{self._run} {item.name}"
            signature = _signature(self.store.path / item.name)
            try:
                self.store.verify(item.step)
                found = ""
            except BadCheckpoint as error:
                found = str(error)
            self._counter.what = ""
            self._known[item.step] = signature, found
        return found


#: what changes when something is written into a checkpoint: for each file inode, size, time
_Signature = tuple[tuple[str, int, int, int], ...]


def _signature(folder: Path) -> _Signature:
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            facts = os.lstat(folder / name)
            found.append((name, facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return tuple(found)


# --- removing -------------------------------------------------------------------------------------------------


def carry_out(shown: Freeable, rule: Rule, *, now: float | None = None, say: Say = silent) -> Freed:
    """Remove what was shown, as far as the rule still says so now that the run is locked.

    What stays is read back first. What cannot be removed stands in `problems`.
    """
    done = Freed(shown.path)
    if not shown.free:
        return done
    now = time.time() if now is None else now
    looked = _Looked(shown.path, say)
    _look(shown, rule, now, looked, [])
    lock = RunLock(shown.path / "lock")
    try:
        lock.acquire(0)
    except Busy as error:
        done.problems.append(str(error))
        return done
    except (OSError, LoadsheetError) as error:
        done.problems.append(f"cannot be locked: {getattr(error, 'strerror', None) or error}")
        return done
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RunWarning)
            _remove(shown, rule, done, now, looked)
        done.problems += [str(w.message) for w in caught]
    finally:
        lock.release()
    return done


def _look(
    shown: Freeable, rule: Rule, now: float, looked: _Looked, problems: list[str]
) -> tuple[list[Item], set[int], set[int]] | None:
    """What may go now of what was shown, the steps that stay, and those that should and are damaged.

    None, and why in `problems`, if nothing may go.
    """
    fresh = Freeable(shown.path)
    _divide(looked, fresh, rule, now)
    if fresh.reason:
        problems.append(fresh.reason)
        return None
    names = {item.name for item in shown.free}
    whole = [item for item in (*fresh.stay, *fresh.free) if item.kind == "checkpoint"]
    try:
        staying, bad = _verified(shown.path, whole, rule, now, looked, problems)
    except (LoadsheetError, OSError) as error:
        problems.append(str(error))
        return None
    return [item for item in fresh.free if item.name in names], staying, bad


def _remove(shown: Freeable, rule: Rule, done: Freed, now: float, looked: _Looked) -> None:
    """Under the lock: look again, and remove."""
    if (found := _look(shown, rule, now, looked, done.problems)) is None:
        return
    free, staying, bad = found
    going = [item for item in free if item.kind == "checkpoint" and item.step not in staying | bad]
    if going and not staying:
        done.problems.append("no checkpoint that stays is whole: none is removed")
        going = []
    going += [item for item in free if item.kind == "damaged"]
    gone = set(looked.store.remove([item.step for item in going if item.step is not None]))
    done.items += [item for item in going if item.step in gone]
    _drop(looked.store.path, [item for item in free if item.kind in ("set aside", "unfinished")], done)


def _verified(
    path: Path, whole: Sequence[Item], rule: Rule, now: float, looked: _Looked, problems: list[str]
) -> tuple[set[int], set[int]]:
    """The steps that stay, each read back, and those that should have and are damaged."""
    damaged: set[int] = set()
    candidates = sorted(whole, key=lambda item: item.step or 0)
    while True:
        staying = keeps(path, candidates, rule, now)
        stay = [item for item in candidates if item.step in staying]
        looked.expect(stay)
        bad = {item.step: reason for item in stay if item.step is not None and (reason := looked.whole(item))}
        if not bad:
            return staying, damaged
        damaged |= bad.keys()
        problems += [f"{why}; it is left where it is, another one stays for it" for why in bad.values()]
        candidates = [item for item in candidates if item.step not in bad]


def _drop(folder: Path, items: Sequence[Item], done: Freed) -> None:
    """Remove directories that bear no checkpoint's name: half of one is as little a checkpoint as all of it."""
    if not items:
        return
    disk = Disk()
    # Whoever was killed may have renamed and not made it durable: the old name must not come back half empty.
    disk.sync_directory(os.fspath(folder))
    for item in items:
        try:
            disk.remove(os.fspath(folder / item.name))
        except OSError as error:
            done.problems.append(f"{item.name}: cannot be removed: {error.strerror}")
            continue
        done.items.append(item)

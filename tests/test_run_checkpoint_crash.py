"""Power cuts: every state of the disk that the save protocol can leave behind must recover.

SIGKILL leaves the page cache, so no test that kills a process can tell whether an fsync is needed. Here
the protocol runs on a disk in memory; after each single operation every state that a power cut could
leave is enumerated and recovered from. Then the whole is repeated with one fsync or rename left out, for
each of them in turn: if nothing goes wrong, either the fsync is superfluous or the test is blind.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("msgspec")

from crash_disk import CrashDisk, Tree, cached, frozen

from loadsheet.errors import LoadsheetError
from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.errors import BadCheckpoint
from loadsheet.run.snapshot import Snapshot

ROOT = "/run/checkpoints"
START: Tree = {"run": {}}


class Small(Snapshot):
    """A snapshot whose tensors are a few bytes: the random states are not what these tests are about."""

    def __init__(self, step: int, text: str = "") -> None:
        import msgspec

        document = msgspec.json.encode(
            {
                "format": 1,
                "tree": {
                    "step": step,
                    "objects": {"facts": {"kind": "data", "saved": {"step": step, "text": text}}},
                    "random": None,
                    "loop": None,
                },
                "tensors": [],
                "pieces": [],
            }
        )
        super().__init__(step, document, 8, None, [], 0.0)

    def chunks(self) -> Any:
        yield memoryview(b"tensors!")


class Violation(Exception):
    """A state of the disk from which the run does not recover as promised."""


@dataclass
class Promise:
    """What must be there after a power cut: these steps, with one of these texts each."""

    steps: dict[int, set[str]] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)  # were so before the test began

    def copy(self) -> Promise:
        return Promise({step: set(texts) for step, texts in self.steps.items()}, set(self.damaged))


class Laboratory:
    """A disk on which every state is recovered from as soon as it is possible."""

    def __init__(self, tree: Tree, promise: Promise, skip: str = "", keep_last: int = 2) -> None:
        self.disk = CrashDisk(tree, skip)
        self.promise = promise
        self.keep_last = keep_last
        self.seen: set[Any] = set()
        self.states = 0
        self.disk.after = self.power_cut
        self.store = CheckpointStore(ROOT, keep_last=keep_last, files=self.disk)

    def power_cut(self) -> None:
        """Recover from every state that a power cut right now could leave."""
        wanted = tuple(sorted((step, *sorted(texts)) for step, texts in self.promise.steps.items()))
        for tree in self.disk.root.versions():
            key = (frozen(tree), wanted)
            if key not in self.seen:
                self.seen.add(key)
                self.states += 1
                recover(tree, self.promise, self.keep_last)

    def write(self, step: int, text: str = "") -> None:
        """A save; while it is under way, the old content of that step is as good as the new."""
        if step in self.promise.steps:
            self.promise.steps[step].add(text)
        self.store.write(Small(step, text))
        self.promise.steps[step] = {text}

    def prune(self) -> None:
        """Retention: what is beyond the last ones is no longer promised."""
        for step in sorted(self.promise.steps)[: -self.keep_last]:
            del self.promise.steps[step]
        self.store.prune()
        if self.store.steps() != sorted(self.promise.steps):
            raise Violation(f"kept {self.store.steps()}, expected {sorted(self.promise.steps)}")


def recover(tree: Tree, promise: Promise, keep_last: int) -> None:
    """What a new process does with a disk; raises Violation if a promise is broken."""
    disk = CrashDisk(tree)
    store = CheckpointStore(ROOT, keep_last=keep_last, files=disk)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store.sweep()
        steps = store.steps()
        if promise.steps:
            newest = max(promise.steps)
            state = store.load()
            if state.step < newest:
                raise Violation(f"promised step {newest}, got step {state.step}")
            for step, texts in promise.steps.items():
                if store.load(step).value("facts")["text"] not in texts:
                    raise Violation(f"step {step} is not what was saved")
        for step in steps:
            if step in promise.damaged:
                continue
            try:
                store.verify(step)
            except BadCheckpoint as error:
                raise Violation(f"damaged: {error}") from None
        hidden = [name for name in disk.names(ROOT) if name.startswith(".")]
        if hidden:
            raise Violation(f"left behind: {hidden}")
        following = max([*steps, *promise.steps, *promise.damaged, 0]) + 1
        store.write(Small(following))
        if store.load().step != following:
            raise Violation("the next save does not count")
    for warning in caught:
        if "unfinished save" not in str(warning.message) and not promise.damaged:
            raise Violation(f"warned: {warning.message}")


# --- what a run does --------------------------------------------------------------------------------


def saves(skip: str) -> Laboratory:
    """Four saves with retention, from an empty directory on."""
    laboratory = Laboratory(START, Promise(), skip)
    for step in (100, 200, 300, 400):
        laboratory.write(step)
        laboratory.prune()
    return laboratory


def same_step_again(skip: str) -> Laboratory:
    """A step is saved again: with the same content, then with another."""
    laboratory = Laboratory(START, Promise(), skip)
    laboratory.write(100, "a")
    laboratory.write(200, "a")
    laboratory.write(200, "a")
    laboratory.write(200, "b")
    laboratory.prune()
    return laboratory


@cache
def on_disk(*steps: int) -> Tree:
    """A directory with intact checkpoints."""
    disk = CrashDisk(START)
    store = CheckpointStore(ROOT, files=disk)
    for step in steps:
        store.write(Small(step))
    return cached(disk.root)


def damaged(skip: str) -> Laboratory:
    """The newest has a flipped bit: it is set aside, the run goes on from the older one and gets there again."""
    tree = cached(CrashDisk(on_disk(100, 200)).root)
    data = bytearray(tree["run"]["checkpoints"]["step-00000200"]["state.json"])
    data[-9] ^= 4
    tree["run"]["checkpoints"]["step-00000200"]["state.json"] = bytes(data)
    laboratory = Laboratory(tree, Promise({100: {""}}, {200}), skip)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        state = laboratory.store.load()
    if state.step != 100:
        raise Violation(f"loaded step {state.step}")
    for step in laboratory.store.steps():
        laboratory.store.verify(step)
    laboratory.write(200)
    return laboratory


def killed(skip: str) -> Laboratory:
    """A process is killed at any operation; another goes on, and then the power is cut.

    Nothing that the first did not fsync is durable when the second begins, though it can see it.
    """
    total = Laboratory(START, Promise(), skip)

    class Killed(Exception):
        pass

    for keep_last in (1, 2):
        for work in (
            lambda lab: lab.write(200),
            lambda lab: (lab.write(200), lab.prune()),
            lambda lab: lab.write(100, "b"),
        ):
            number = 0
            while True:
                laboratory = Laboratory(on_disk(100), Promise({100: {""}}), skip, keep_last)
                laboratory.seen = total.seen
                left = [number]

                def kill(left: list[int] = left) -> None:
                    left[0] -= 1
                    if left[0] < 0:
                        raise Killed

                laboratory.disk.after = kill
                try:
                    work(laboratory)
                    finished = True
                except Killed:
                    finished = False
                laboratory.disk.after = laboratory.power_cut
                laboratory.store = CheckpointStore(ROOT, keep_last=keep_last, files=laboratory.disk)
                with warnings.catch_warnings(record=True):
                    warnings.simplefilter("always")
                    laboratory.store.sweep()
                    # from here on the second process builds on what it has found
                    texts = {
                        step: laboratory.store.load(step).value("facts")["text"]
                        for step in laboratory.store.steps()
                    }
                    if not laboratory.promise.steps.keys() <= texts.keys():
                        raise Violation(f"promised {sorted(laboratory.promise.steps)}, found {sorted(texts)}")
                    laboratory.promise.steps = {step: {text} for step, text in texts.items()}
                    laboratory.prune()
                laboratory.write(300)
                laboratory.prune()
                total.states += laboratory.states
                total.disk.trace += laboratory.disk.trace
                number += 1
                if finished:
                    break
    return total


SCENARIOS: dict[str, Callable[[str], Laboratory]] = {
    "saves": saves,
    "same step again": same_step_again,
    "damaged": damaged,
    "killed": killed,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_power_cut_is_recovered_from(name: str) -> None:
    """After each operation, every state the disk can be in: what was promised is there, nothing torn is."""
    laboratory = SCENARIOS[name]("")
    assert laboratory.states > 20


# Every fsync and every rename of the store. One that is new must be added here, and then must be needed.
OPERATIONS = {
    "sync run in _make_root": "saves",
    "sync tensors.bin in _put": "saves",
    "sync state.json in _put": "saves",
    "sync manifest.json in _put": "saves",
    "sync .saving in _commit": "saves",
    "rename step in _commit": "saves",
    "sync checkpoints in _commit": "saves",
    "rename .old in prune": "saves",
    "sync checkpoints in prune": "saves",
    "rename .replaced in _replace": "same step again",
    "rename torn in _set_aside": "damaged",
    "sync checkpoints in sweep": "killed",
    "rename step in sweep": "killed",
}


def test_the_list_of_operations_is_complete() -> None:
    """No fsync or rename is done that the next test does not leave out."""
    done = {operation for scenario in SCENARIOS.values() for operation in scenario("").disk.trace}
    assert done == set(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_without_any_one_of_them_something_is_lost(operation: str) -> None:
    """Each fsync and each rename is there for a reason."""
    with pytest.raises((Violation, OSError, LoadsheetError)):
        SCENARIOS[OPERATIONS[operation]](operation)

"""Power cuts: every state of the disk that the save protocol can leave behind must recover.

SIGKILL leaves the page cache, so no test that kills a process can tell whether an fsync is needed. Here
the protocol runs on a disk in memory; after each single operation every state that a power cut could
leave is enumerated and recovered from. Then the whole is repeated with one fsync or rename left out, for
each of them in turn: if nothing goes wrong, either the fsync is superfluous or the test is blind.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("msgspec")

from crash_disk import CrashDisk, Tree, cached, frozen
from xxhash import xxh3_128_hexdigest

from loadsheet.errors import LoadsheetError
from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.errors import BadCheckpoint
from loadsheet.run.retention import Best, BestOf
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


class Scores:
    """The log of a run that logs a score in the step that follows each checkpoint."""

    folder = Path()

    def __init__(self, scores: dict[int, float]) -> None:
        self.scores = scores
        self.lines = {
            step: f'{{"step":{step},"attempt":1,"time":0,"score":{score}}}\n'
            for step, score in scores.items()
        }

    def offset(self, step: int) -> int:
        """The bytes of it when the checkpoint of a step is taken."""
        return sum(len(line) for earlier, line in self.lines.items() if earlier < step)

    def best(self, steps: list[int]) -> set[int]:
        """The two highest, of equals the later, without the newest: that has no score yet."""
        return set(sorted(steps[:-1], key=lambda step: (self.scores[step], step))[-2:])

    def reader(self, steps: list[int]) -> BestOf:
        """What a process finds best if the log has lost all that its newest checkpoint does not promise."""
        size = self.offset(max(steps, default=0))
        text = "".join(self.lines.values())[:size]
        path = self.folder / f"{xxh3_128_hexdigest(text.encode())}.jsonl"
        path.write_text(text)
        return BestOf(path, Best("score", "max", 2))


@pytest.fixture(scope="module", autouse=True)
def _logs(tmp_path_factory: pytest.TempPathFactory) -> None:
    Scores.folder = tmp_path_factory.mktemp("logs")


class Laboratory:
    """A disk on which every state is recovered from as soon as it is possible."""

    def __init__(
        self, tree: Tree, promise: Promise, skip: str = "", keep_last: int = 2, scores: Scores | None = None
    ) -> None:
        self.disk = CrashDisk(tree, skip)
        self.promise = promise
        self.keep_last = keep_last
        self.scores = scores
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
                recover(tree, self.promise, self.keep_last, self.scores)

    def write(self, step: int, text: str = "") -> None:
        """A save; while it is under way, the old content of that step is as good as the new."""
        if step in self.promise.steps:
            self.promise.steps[step].add(text)
        offset = 0 if self.scores is None else self.scores.offset(step)
        self.store.write(Small(step, text), log_offset=offset)
        self.promise.steps[step] = {text}

    def prune(self) -> None:
        """Retention: what is beyond the last ones is no longer promised, unless it is one of the best."""
        steps = sorted(self.promise.steps)
        best = set() if self.scores is None else self.scores.best(steps)
        for step in set(steps[: -self.keep_last]) - best:
            del self.promise.steps[step]
        if self.scores is not None:  # what it knows, it knows from the log alone
            self.store = CheckpointStore(
                ROOT, keep_last=self.keep_last, best=self.scores.reader(steps), files=self.disk
            )
        self.store.prune()
        if self.store.steps() != sorted(self.promise.steps):
            raise Violation(f"kept {self.store.steps()}, expected {sorted(self.promise.steps)}")


def recover(tree: Tree, promise: Promise, keep_last: int, scores: Scores | None = None) -> None:
    """What a new process does with a disk; raises Violation if a promise is broken."""
    disk = CrashDisk(tree)
    if scores is not None:
        prune_again(CrashDisk(tree), promise, keep_last, scores)
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


def prune_again(disk: CrashDisk, promise: Promise, keep_last: int, scores: Scores) -> None:
    """What a new process thinks the best ones are must not cost what was promised, but for the last ones."""
    store = CheckpointStore(ROOT, keep_last=keep_last, files=disk)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.sweep()
        steps = store.steps()
        store = CheckpointStore(ROOT, keep_last=keep_last, best=scores.reader(steps), files=disk)
        store.prune()
    promised = set(promise.steps) & (scores.best(steps) | set(steps[-keep_last:]))
    if not promised <= set(store.steps()):
        raise Violation(f"promised {sorted(promised)}, kept {store.steps()}")


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
def on_disk(*steps: int, scores: Scores | None = None) -> Tree:
    """A directory with intact checkpoints."""
    disk = CrashDisk(START)
    store = CheckpointStore(ROOT, files=disk)
    for step in steps:
        store.write(Small(step), log_offset=0 if scores is None else scores.offset(step))
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


class Killed(Exception):
    """SIGKILL, at an operation of the disk."""


def go_on(laboratory: Laboratory, work: Callable[[Laboratory], object], number: int, following: int) -> bool:
    """A process is killed at an operation; another sweeps, prunes and saves `following`. Was the work done?"""
    left = itertools.count(number, -1)

    def kill() -> None:
        if next(left) <= 0:
            raise Killed

    laboratory.disk.after = kill
    try:
        work(laboratory)
        finished = True
    except Killed:
        finished = False
    laboratory.disk.after = laboratory.power_cut
    laboratory.store = CheckpointStore(ROOT, keep_last=laboratory.keep_last, files=laboratory.disk)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        laboratory.store.sweep()
        # from here on the second process builds on what it has found
        texts = {
            step: laboratory.store.load(step).value("facts")["text"] for step in laboratory.store.steps()
        }
        if not laboratory.promise.steps.keys() <= texts.keys():
            raise Violation(f"promised {sorted(laboratory.promise.steps)}, found {sorted(texts)}")
        laboratory.promise.steps = {step: {text} for step, text in texts.items()}
        laboratory.prune()
    laboratory.write(following)
    laboratory.prune()
    return finished


def killed(skip: str) -> Laboratory:
    """A process is killed at any operation; another goes on, and then the power is cut.

    Nothing that the first did not fsync is durable when the second begins, though it can see it.
    """
    total = Laboratory(START, Promise(), skip)
    for keep_last in (1, 2):
        for work in (
            lambda lab: lab.write(200),
            lambda lab: (lab.write(200), lab.prune()),
            lambda lab: lab.write(100, "b"),
        ):
            for number in itertools.count():
                laboratory = Laboratory(on_disk(100), Promise({100: {""}}), skip, keep_last)
                laboratory.seen = total.seen
                finished = go_on(laboratory, work, number, 300)
                total.states += laboratory.states
                total.disk.trace += laboratory.disk.trace
                if finished:
                    break
    return total


def best(skip: str) -> Laboratory:
    """The two best by a score stay, wherever the power is cut: the last one is the only other."""
    scores = Scores({100: 5, 200: 7, 300: 1, 400: 7, 500: 2, 600: 9, 700: 3})
    laboratory = Laboratory(START, Promise(), skip, keep_last=1, scores=scores)
    for step in scores.scores:
        laboratory.write(step)
        laboratory.prune()
    if laboratory.store.steps() != [400, 600, 700]:
        raise Violation(f"kept {laboratory.store.steps()}")
    return laboratory


def best_killed(skip: str) -> Laboratory:
    """A process is killed at any operation of a save after which a best one must go, or need not."""
    total = Laboratory(START, Promise(), skip)
    for scores in (
        Scores({100: 4, 200: 8, 300: 6, 400: 2, 500: 1}),
        Scores({100: 8, 200: 6, 300: 1, 400: 9, 500: 1}),
    ):
        tree = on_disk(100, 200, 300, scores=scores)
        for number in itertools.count():
            promise = Promise({step: {""} for step in (100, 200, 300)})
            laboratory = Laboratory(tree, promise, skip, 1, scores)
            finished = go_on(laboratory, lambda lab: (lab.write(400), lab.prune()), number, 500)
            total.states += laboratory.states
            total.disk.trace += laboratory.disk.trace
            if finished:
                break
    return total


SCENARIOS: dict[str, Callable[[str], Laboratory]] = {
    "saves": saves,
    "same step again": same_step_again,
    "damaged": damaged,
    "killed": killed,
    "best": best,
    "best killed": best_killed,
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
    "rename .old in remove": "saves",
    "sync checkpoints in remove": "saves",
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

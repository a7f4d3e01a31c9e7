"""Every state in which the loss of power can leave a run's record, and what each fsync is there for.

A killed process leaves the page cache behind, so killing proves no fsync. Here a run is recorded as the
list of its writes, renames and fsyncs; whatever was not fsynced at an instant may be on disk or not, in
any order (a file's bytes with its file, a name with its directory). From each such state a new attempt
must find everything that had been promised. The last test takes each fsync and rename away in turn: then
some state must break a promise, or that fsync would be there for nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadsheet.errors import LoadsheetError
from loadsheet.run import log as log_module
from loadsheet.run import provenance
from loadsheet.run.directory import RunDirectory
from loadsheet.run.log import Log
from loadsheet.run.reading import read_log

CONFIG = {"lr": 0.1}
Operation = tuple[Any, ...]


class Broken(AssertionError):
    """A promise that a state does not keep."""


class Recorder:
    """Stands between the package and the system, and writes down what is asked of the disk under a root."""

    def __init__(self, root: Path, without: str = "") -> None:
        self.root = str(root)
        self.without = without  # the call that is left out, by its place in the source
        self.places: set[str] = set()
        self.operations: list[Operation] = []
        self.promises: list[tuple[int, str, Any]] = []
        self._nodes: dict[str, int] = {}
        self._open: dict[int, int | str] = {}
        self._count = 0

    def promise(self, kind: str, value: Any) -> None:
        """What was promised to hold from now on, whatever happens."""
        self.promises.append((len(self.operations), kind, value))

    def _skip(self, call: str) -> bool:
        """Whether the call at this place in the source is the one to leave out."""
        frame = sys._getframe(2)
        names = []
        while frame is not None and len(names) < 3:
            module = Path(frame.f_code.co_filename).stem
            if module in {"directory", "log"}:
                names.append(frame.f_code.co_name)
            frame = frame.f_back  # type: ignore[assignment]
        # write_whole and fsync_directory are called from several places, each of which is one
        place = f"{call} in {' < '.join(names[:2] if names[0] in {'fsync_directory', 'write_whole'} else names[:1])}"
        self.places.add(place)
        return place == self.without

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = {
            name: getattr(os, name)
            for name in (
                "open",
                "close",
                "write",
                "pwrite",
                "fsync",
                "replace",
                "mkdir",
                "unlink",
                "ftruncate",
            )
        }

        def inside(path: Any) -> bool:
            return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.root)

        def open_(path: Any, flags: int, *rest: Any, **names: Any) -> int:
            new = inside(path) and not os.path.lexists(path)
            fd: int = real["open"](path, flags, *rest, **names)
            if inside(path):
                text = os.fspath(path)
                if stat.S_ISDIR(os.fstat(fd).st_mode):
                    self._open[fd] = text
                else:
                    if new:
                        self._count += 1
                        self._nodes[text] = self._count
                        self.operations.append(("create", os.path.dirname(text), text, self._count))
                    if flags & os.O_TRUNC:
                        self.operations.append(("truncate", self._nodes[text], 0))
                    self._open[fd] = self._nodes[text]
            return fd

        def close(fd: int) -> None:
            self._open.pop(fd, None)
            real["close"](fd)

        def write(fd: int, data: Any) -> int:
            if fd in self._open:
                self.operations.append(("write", self._open[fd], os.lseek(fd, 0, os.SEEK_END), bytes(data)))
            count: int = real["write"](fd, data)
            assert fd not in self._open or count == len(data)
            return count

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            if fd in self._open:
                self.operations.append(("write", self._open[fd], offset, bytes(data)))
            return int(real["pwrite"](fd, data, offset))

        def ftruncate(fd: int, size: int) -> None:
            if fd in self._open:
                self.operations.append(("truncate", self._open[fd], size))
            real["ftruncate"](fd, size)

        def fsync(fd: int) -> None:
            if fd in self._open and not self._skip("fsync"):
                self.operations.append(("sync", self._open[fd]))

        def replace(old: Any, new: Any) -> None:
            if inside(new):
                if self._skip("rename"):
                    return
                self._nodes[os.fspath(new)] = self._nodes.pop(os.fspath(old))
                self.operations.append(("rename", os.path.dirname(new), os.fspath(old), os.fspath(new)))
            real["replace"](old, new)

        def mkdir(path: Any, *rest: Any) -> None:
            real["mkdir"](path, *rest)
            if inside(path):
                self.operations.append(("mkdir", os.path.dirname(path), os.fspath(path)))

        def unlink(path: Any, *rest: Any, **names: Any) -> None:
            real["unlink"](path, *rest, **names)
            if inside(path):
                self.operations.append(("unlink", os.path.dirname(path), os.fspath(path)))

        for name, function in {
            "open": open_, "close": close, "write": write, "pwrite": pwrite, "fsync": fsync,
            "replace": replace, "mkdir": mkdir, "unlink": unlink, "ftruncate": ftruncate,
        }.items():  # fmt: skip
            monkeypatch.setattr(os, name, function)
        monkeypatch.setattr(log_module, "_fsync_data", fsync)


# --- states -----------------------------------------------------------------------------------------------

State = tuple[frozenset[str], tuple[tuple[str, bytes], ...]]


def states(operations: list[Operation], root: str) -> Iterator[State]:
    """What may be on disk if the power goes away after all these operations."""
    synced: set[Any] = set()
    loose: list[int] = []
    for at in reversed(range(len(operations))):
        kind, where = operations[at][:2]
        if kind == "sync":
            synced.add(where)
        elif where not in synced:
            loose.append(at)
    everything = set(range(len(operations)))
    choices = [set(), set(loose)]  # nothing lost, everything lost
    choices += [{at} for at in loose] + [set(loose) - {at} for at in loose]
    for lost in choices:
        yield replay(operations, everything - lost, root)
    yield replay(operations, everything, root, zeros=set(loose))  # lengths are there, bytes are not


def replay(operations: list[Operation], kept: set[int], root: str, zeros: set[int] = frozenset()) -> State:  # type: ignore[assignment]
    folders, files, content = {root}, dict[str, int](), dict[int, bytearray]()
    for at, (kind, where, *rest) in enumerate(operations):
        if at not in kept:
            continue
        if kind == "mkdir" and where in folders:
            folders.add(rest[0])
        elif kind == "create" and where in folders:
            files[rest[0]] = rest[1]
        elif kind == "rename" and rest[0] in files:
            files[rest[1]] = files.pop(rest[0])
        elif kind == "unlink":
            files.pop(rest[0], None)
        elif kind == "write":
            data = content.setdefault(where, bytearray())
            data.extend(bytes(max(rest[0] + len(rest[1]) - len(data), 0)))
            if at not in zeros:
                data[rest[0] : rest[0] + len(rest[1])] = rest[1]
        elif kind == "truncate":
            data = content.setdefault(where, bytearray())
            del data[rest[0] :]
    return frozenset(os.path.relpath(folder, root) for folder in folders), tuple(
        (os.path.relpath(path, root), bytes(content.get(node, b""))) for path, node in sorted(files.items())
    )


def restore(state: State, to: Path) -> None:
    """Put a state on the disk."""
    shutil.rmtree(to, ignore_errors=True)
    folders, files = state
    for folder in sorted(folders):
        (to / folder).mkdir(parents=True, exist_ok=True)
    for path, data in files:
        (to / path).write_bytes(data)


# --- what a run promises ----------------------------------------------------------------------------------


def attempt(recorder: Recorder, root: Path, start: int, end: int, durable: bool, number: int) -> None:
    """One attempt: opens, logs, syncs as before a checkpoint, marks done; promises as it goes on."""
    run = RunDirectory.open(root, CONFIG)
    recorder.promise("attempt", run.attempt)
    with Log(run.log_path, run.attempt, durable=durable) as log:
        recorder.promise("resuming", start)  # from here on, what it supersedes may be gone
        log.resume(start)
        recorder.promise("resumed", (start, number))  # and from here on it must be
        for step in range(start, end):
            log.write(step, {"x": number})
            if durable:
                recorder.promise("logged", (step, number))
        offset = log.sync()
        recorder.promise("offset", offset)
        for step in range(start, end):
            recorder.promise("logged", (step, number))
        log.write(end, {"x": number})
    run.mark_done(end)
    recorder.promise("done", end)
    run.close()


def scenario(recorder: Recorder, root: Path) -> None:
    """Three attempts, the third over half a line that the second left behind."""
    attempt(recorder, root / "deep" / "runs", 0, 3, False, 1)
    attempt(recorder, root / "deep" / "runs", 2, 4, True, 2)
    (path,) = (root / "deep" / "runs").glob("*/log.jsonl")
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b'{"step":4,"half')
    recorder.operations.append(("sync", recorder._nodes[str(path)]))
    os.close(fd)
    recorder.promise("half", b'{"step":4,"half')
    attempt(recorder, root / "deep" / "runs", 3, 6, False, 3)


def check(root: Path, promised: list[tuple[str, Any]]) -> None:
    """What a new attempt finds in a state, against what had been promised before it; Broken if not kept."""
    runs = root / "deep" / "runs"
    values: dict[str, Any] = dict(promised)
    logged: dict[int, int] = {}
    for kind, value in promised:
        if kind == "resuming":
            logged = {step: number for step, number in logged.items() if step < value}
        elif kind == "logged":
            logged[value[0]] = value[1]
    half = values.get("half")
    found = list(runs.glob("*/log*"))
    if half is not None and not any(half in path.read_bytes() for path in found):
        raise Broken("half a line is gone")
    for number in range(1, values.get("attempt", 0) + 1):
        try:
            (path,) = runs.glob("*/provenance")
            assert json.loads((path.parent / "config.json").read_bytes()) == CONFIG
            facts = json.loads((path / f"attempt-{number:04d}.json").read_bytes())
            assert (path / facts["code"]["diff_file"]).read_bytes() == b"diff"
        except (OSError, ValueError, AssertionError):
            raise Broken(f"where attempt {number} comes from is lost") from None
    run = RunDirectory.open(runs, CONFIG, wait=0)
    try:
        if run.attempt <= values.get("attempt", 0):
            raise Broken(f"attempt {run.attempt} is given out twice")
        if (run.done() or 0) < values.get("done", 0):
            raise Broken("the done marker is gone")
        if run.log_path.exists() and run.log_path.stat().st_size < values.get("offset", 0):
            raise Broken("the log is shorter than a checkpoint says")
        with Log(run.log_path, run.attempt) as log:
            columns = read_log(run.log_path)
            log.resume(0)
        seen = dict(zip(columns["step"], columns.get("x", []), strict=False))
        if len(seen) != len(columns["step"]) or columns["step"] != sorted(columns["step"]):
            raise Broken("a record is doubled")
        start, newest = values.get("resumed", (0, 0))
        if any(number < newest for step, number in seen.items() if step >= start):
            raise Broken("a record that was superseded counts again")
        for step, number in logged.items():
            if seen.get(step, 0) < number:
                raise Broken(f"step {step} of attempt {number} is lost")
    finally:
        run.close()


def record(monkeypatch: pytest.MonkeyPatch, root: Path, without: str = "") -> Recorder:
    root.mkdir()
    recorder = Recorder(root, without)
    with monkeypatch.context() as patch:
        recorder.patch(patch)
        scenario(recorder, root)
    return recorder


def first_broken(recorder: Recorder, to: Path, seen: set[str]) -> str:
    """The first promise that some state does not keep, "" if all do; `seen` are states that need no check."""
    for end in range(len(recorder.operations) + 1):
        promised = [(kind, value) for at, kind, value in recorder.promises if at <= end]
        for state in states(recorder.operations[:end], recorder.root):
            key = hashlib.sha256(repr((sorted(state[0]), state[1], promised)).encode()).hexdigest()
            if key in seen:
                continue
            restore(state, to)
            try:
                check(to, promised)
            except (Broken, LoadsheetError) as error:
                return f"after {recorder.operations[end - 1][:3]}: {error}"
            seen.add(key)
    return ""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place in memory; no thread, no real fsync (the model does not need them), a small provenance."""
    facts: Callable[..., dict[str, Any]] = lambda attempt, excluded=None: {  # noqa: E731
        "attempt": attempt, "machine": {}, "code": {"diff": b"diff", "diff_sha256": "ab" * 32},
    }  # fmt: skip
    monkeypatch.setattr(provenance, "collect", facts)
    monkeypatch.setattr(log_module, "_LATEST", 1000.0)
    monkeypatch.setattr(log_module, "_fsync_data", lambda fd: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield Path(folder)


def test_every_state_after_the_loss_of_power_recovers(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of states of three attempts: numbers, records, markers are as promised in all of them."""
    recorder = record(monkeypatch, quick / "run")
    seen: set[str] = set()
    assert first_broken(recorder, quick / "state", seen) == ""
    assert len(seen) > 200


def test_no_fsync_and_no_rename_is_there_for_nothing(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place in the source in turn: without it some state breaks a promise."""
    whole = record(monkeypatch, quick / "run")
    seen: set[str] = set()
    assert first_broken(whole, quick / "state", seen) == ""
    assert len(whole.places) >= 12
    needless = []
    for n, place in enumerate(sorted(whole.places)):
        try:
            recorder = record(monkeypatch, quick / f"without{n}", without=place)
        except (OSError, Broken):
            continue  # it did not even get to the end
        if first_broken(recorder, quick / "state", seen) == "":
            needless.append(place)
    assert needless == []

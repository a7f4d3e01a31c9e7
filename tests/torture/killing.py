"""Kill a training process at random instants until it is done, and check what it left each time."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loadsheet.run.reading import read_events, read_log
from torture.programs import Spec, promised, train

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torture.preload"])
_PATHS = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *(p for p in sys.path if p)])
_LOOK = 0.003  # seconds between two looks at what a life has done
_MORE = 0.03  # seconds that a life may last when it has a new checkpoint: it makes the next one then
_AIMED = 0.2  # share of these that are killed as soon as they are seen to save
PATIENCE = 600  # seconds, for what must happen: only how long a failure takes


class Lost(AssertionError):
    """A record or a checkpoint that had been promised is not there."""


class Failed(AssertionError):
    """A life ended by itself, and not as it should."""


class Mismatched(AssertionError):
    """The end is not, bit for bit, that of the uninterrupted run."""


@dataclass
class Tally:
    """What was done and seen."""

    kills: int = 0
    in_save: int = 0
    cold: int = 0  # killed lives that were interpreters of their own, not forked
    groups: int = 0  # kills of the whole process group; of the others the loader's workers stay behind
    lives: int = 0
    resumed: int = 0  # lives that went on from a step > 0; all that got to a step, but the first of each run
    runs: int = 0  # that got to their end, where all is compared
    failed: int = 0
    lost: int = 0
    mismatched: int = 0


@dataclass(frozen=True)
class Script:
    """A program of its own; its arguments are the root of the runs and where the result goes."""

    path: Path


Kind = Spec | Script


# --- one life -----------------------------------------------------------------------------------------------


def _nothing() -> None:
    pass


def start_server(compiled: bool = False) -> None:
    """Start the server, which takes seconds, once; it must find these modules as we did."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "TORTURE_SERVER")}
    os.environ.update(PYTHONPATH=_PATHS, TORTURE_SERVER="compiled" if compiled else "plain")
    try:
        first = _CONTEXT.Process(target=_nothing)
        first.start()
        first.join()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _forked(root: str, kind: Kind, out: str) -> None:
    os.setsid()
    os.chdir(Path(root).parent)  # in no repository: git, asked several times, is most of a short life
    multiprocessing.set_start_method("fork", force=True)  # for loader workers: not another server
    if isinstance(kind, Spec):
        train(root, kind, out)
        return
    sys.argv = [str(kind.path), root, out]
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    runpy.run_path(str(kind.path), run_name="__main__")


def _command(root: Path, kind: Kind, out: Path) -> list[str]:
    if isinstance(kind, Script):
        return [sys.executable, str(kind.path), str(root), str(out)]
    return [sys.executable, "-m", "torture.programs", str(root), json.dumps(asdict(kind)), str(out)]


class Life:
    """One process life: from the fork server, or a cold interpreter."""

    def __init__(self, root: Path, kind: Kind, out: Path, cold: bool = False) -> None:
        self._popen: Any = None
        if cold:
            environment = {**os.environ, "PYTHONPATH": _PATHS}
            self._popen = subprocess.Popen(
                _command(root, kind, out), start_new_session=True, env=environment, cwd=root.parent
            )
            self.pid = self._popen.pid
        else:
            self._process = _CONTEXT.Process(target=_forked, args=(str(root), kind, str(out)))
            self._process.start()
            self.pid = self._process.pid or 0

    def wait(self, seconds: float | None) -> int | None:
        """The exit status, None if it still runs."""
        if self._popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return int(self._popen.wait(seconds))
            return None
        self._process.join(seconds)
        return self._process.exitcode

    def wait_until(self, there: Callable[[], bool], seconds: float | None = None) -> int | None:
        """As `wait`, but only until something is true; it must be, unless a time is given."""
        deadline = time.monotonic() + (PATIENCE if seconds is None else seconds)
        while (status := self.wait(_LOOK)) is None and not there():
            if time.monotonic() > deadline:
                if seconds is None:
                    raise Failed(f"a life has done nothing for {PATIENCE} s")
                break
        return status

    def kill(self, group: bool) -> int | None:
        """SIGKILL, to the process alone (its loader workers stay behind for a while) or to its group."""
        if group:
            with contextlib.suppress(ProcessLookupError):  # it has none yet
                os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.wait(None)

    def close(self) -> None:
        """Give back what the system keeps of a process that has ended."""
        if self._popen is None:
            self._process.close()


def living(group: int) -> list[int]:
    """The processes of a process group that have not ended; one that only waits to be reaped has."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, of_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                found.append(int(entry.name))
    return found


# --- what it is compared with -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """The uninterrupted run: digest, log columns, and how long such a life takes."""

    digest: dict[str, str]
    log: dict[str, list[Any]]
    seconds: float


def reference(folder: Path, kind: Kind, name: str = "reference") -> Reference:
    """Run it, without a checkpoint on the way where we may say so: those must not change anything."""
    start_server(isinstance(kind, Spec) and kind.compiled)
    out = folder / f"{name}.json"
    begun = time.monotonic()
    life = Life(folder / name, replace(kind, every=None) if isinstance(kind, Spec) else kind, out)
    status = life.wait(PATIENCE)
    seconds = time.monotonic() - begun
    if status is None:
        raise Failed(f"process {life.pid}, the uninterrupted run, hangs")
    if status != 0:
        raise Failed(f"the uninterrupted run ended with {status}")
    life.close()
    return Reference(json.loads(out.read_text()), columns(folder / name), seconds)


def columns(root: Path) -> dict[str, list[Any]]:
    """The log of the one run below `root`, without what is never compared."""
    (path,) = (p for p in root.iterdir() if (p / "log.jsonl").exists())
    found = read_log(path)
    return {k: v for k, v in found.items() if k not in ("time", "attempt") and not k.startswith("timing")}


def committed(root: Path) -> int:
    """The newest checkpoint's step; -1 if there is none."""
    return max((int(p.name[5:]) for p in root.glob("*/checkpoints/step-*")), default=-1)


def _saving(root: Path) -> set[str]:
    """What is being written, or was when its process was killed."""
    return {path.name for path in root.glob("*/checkpoints/.saving-*")}


def _attempts(root: Path) -> int:
    return sum(1 for _ in root.glob("*/provenance/attempt-*.json"))


# --- kill, and kill again -----------------------------------------------------------------------------------


def kill_many(
    folder: Path,
    kind: Kind,
    kills: int,
    dice: random.Random,
    tally: Tally,
    cold_share: float = 0.0,
    until: float = math.inf,
) -> None:
    """So many kills, in as many runs of one kind as that takes; none after `until` on the monotonic clock."""
    expected = reference(folder, kind)
    goal, number = tally.kills + kills, 0
    while tally.kills < goal and time.monotonic() < until:
        if number > 10 * kills:
            raise Failed("these runs end before anybody can kill them")
        run = folder / f"run-{number}"
        run.mkdir()
        try:
            kill_until_done(run, kind, expected, dice, tally, goal, cold_share, until)
        except Mismatched as error:
            control = reference(folder, kind, "control")
            if (control.digest, control.log) != (expected.digest, expected.log):
                raise Failed("the program itself is not deterministic") from error
            raise
        shutil.rmtree(run)
        number += 1


def kill_until_done(
    folder: Path,
    kind: Kind,
    expected: Reference,
    dice: random.Random,
    tally: Tally,
    goal: int,
    cold_share: float = 0.0,
    until: float = math.inf,
) -> None:
    """One run, its lives ended by SIGKILL at random instants; once there were `goal` kills one is left alone.

    The first life lasts until there is a checkpoint beyond step 0: no later one begins there. How long
    the others may last is drawn so that about half of them are killed before they have a new checkpoint,
    in whatever they are doing then, and the others soon after. Raises Lost after a kill that cost what had
    been promised, Mismatched if at the end digest and log are not those of the uninterrupted run, bit for
    bit, and Failed for a life that ended in another way.
    """
    root, out = folder / "root", folder / "out.json"
    newest, unfinished = [-1], set[str]()
    span = expected.seconds / 10
    status: int | None = None
    while status != 0:  # the result itself may be cut by a kill: the next life writes it again
        cold = newest[-1] > 0 and dice.random() < cold_share
        life = Life(root, kind, out, cold)
        tally.lives += 1
        if tally.kills >= goal or time.monotonic() > until:
            status = life.wait(PATIENCE)
            if status is None:
                raise Failed(f"process {life.pid} hangs")
        elif newest[-1] <= 0:
            status = life.wait_until(lambda: committed(root) > 0)
        else:
            if cold:  # not in the middle of an import
                attempts = _attempts(root)
                status = life.wait_until(lambda: _attempts(root) > attempts)  # noqa: B023
            last = newest[-1]
            status = life.wait_until(lambda: committed(root) > last, dice.random() * span)  # noqa: B023
        if status is None and committed(root) > max(newest[-1], 0):
            status = life.wait(dice.random() * _MORE)
            if status is None and dice.random() < _AIMED:
                status = life.wait_until(lambda: bool(_saving(root)), _MORE)
        if status is None:
            group = dice.random() < 0.5
            status = life.kill(group)
            if status != 0:  # else it was quicker
                tally.kills += 1
                tally.cold += cold
                tally.groups += group
        if status not in (0, -signal.SIGKILL):
            raise Failed(f"an attempt ended with {status}")
        life.close()
        newest.append(committed(root))
        span *= 0.8 if newest[-1] > newest[-2] else 1.25
        if newest[-1] < newest[-2]:
            raise Lost(f"checkpoint {newest[-2]} is not there any more, only {newest[-1]}")
        tally.in_save += bool(_saving(root) - unfinished)  # what an earlier one left may not be swept yet
        unfinished |= _saving(root)
        if isinstance(kind, Spec):
            _check(root, out)
    _compare(root, out, expected)
    tally.runs += 1
    starts = [event["from"] for event in read_events(*root.iterdir()) if event["event"] == "resume"]
    if starts != sorted(starts) or not set(starts) <= {0, *newest}:
        raise Lost(f"lives began at {starts}, where the newest checkpoints were {newest}")
    if any(start == 0 for start in starts[1:]):
        raise Failed(f"lives began at {starts}")
    tally.resumed += len(starts) - 1


def _check(root: Path, out: Path) -> None:
    """What must hold right after a kill, before anybody mends anything."""
    attempt, step = promised(str(out))
    if step < 0:
        return
    (log,) = root.glob("*/log.jsonl")
    for line in reversed(log.read_bytes().split(b"\n")):
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if record["attempt"] == attempt and record.get("step") == step and "loss" in record:
                return
    raise Lost(f"attempt {attempt} was promised its record of step {step}")


def _compare(root: Path, out: Path, expected: Reference) -> None:
    digest, log = json.loads(out.read_text()), columns(root)
    if digest != expected.digest:
        names = [name for name in expected.digest if digest.get(name) != expected.digest[name]]
        raise Mismatched(f"not the same bits: {', '.join(names)}")
    if log != expected.log:
        names = [name for name in expected.log | log if log.get(name) != expected.log.get(name)]
        raise Mismatched(f"not the same log: {', '.join(names)}")

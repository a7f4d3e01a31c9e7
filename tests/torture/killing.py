"""Kill a training process at random instants until it is done, and check what it left each time."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from loadsheet.run.reading import read_events, read_log
from torture.programs import Spec, promised, train

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torture.preload"])
COLD_SECONDS = 2.0  # what a cold interpreter needs to load torch
_PATHS = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *(p for p in sys.path if p)])


@dataclass
class Tally:
    """What was done and seen."""

    kills: int = 0
    inside_save: int = 0
    before_first_step: int = 0
    cold: int = 0
    groups: int = 0
    lives: int = 0
    resumed: int = 0  # lives that went on from a step > 0
    runs: int = 0

    def add(self, other: Tally) -> None:
        """Sum up."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def _nothing() -> None:
    pass


def _start_server() -> None:
    """Start the server, which takes seconds, once; it must find these modules as we did."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "TORTURE_SERVER")}
    os.environ.update(PYTHONPATH=_PATHS, TORTURE_SERVER="1")
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


@dataclass(frozen=True)
class Script:
    """A program of its own; its arguments are the root of the runs and where the result goes."""

    path: Path


Kind = Spec | Script


def _forked(root: str, kind: Kind, out: str) -> None:
    os.setsid()
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

    def __init__(self, root: Path, spec: Kind, out: Path, cold: bool) -> None:
        self._popen: Any = None
        if cold:
            command = [
                sys.executable,
                "-m",
                "torture.programs",
                str(root),
                json.dumps(asdict(spec)),
                str(out),
            ]
            environment = {**os.environ, "PYTHONPATH": _PATHS}
            self._popen = subprocess.Popen(command, start_new_session=True, env=environment)
            self.pid = self._popen.pid
        else:
            self._process = _CONTEXT.Process(target=_forked, args=(str(root), spec, str(out)))
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

    def wait_for(self, root: Path, newest: int, seconds: float) -> int | None:
        """As `wait`, but only until there is a newer checkpoint."""
        deadline = time.monotonic() + seconds
        while (status := self.wait(0.004)) is None and time.monotonic() < deadline:
            if committed(root) > newest:
                break
        return status

    def kill(self, group: bool) -> int | None:
        """SIGKILL, to the process alone (its loader workers stay behind for a while) or to its group."""
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)
        return self.wait(None)


@dataclass(frozen=True)
class Reference:
    """The uninterrupted run: digest, log columns, and how long such a life takes."""

    digest: dict[str, str]
    log: dict[str, list[Any]]
    seconds: float


def reference(folder: Path, spec: Kind) -> Reference:
    """Run it, twice: the first one pays for what is loaded only once, and both must agree."""
    _start_server()
    found = []
    for name in ("reference", "control"):
        out = folder / f"{name}.json"
        begun = time.monotonic()
        status = Life(folder / name, spec, out, cold=False).wait(300)
        seconds = time.monotonic() - begun
        assert status == 0, f"the uninterrupted run ended with {status}"
        found.append((json.loads(out.read_text()), columns(folder / name)))
    assert found[0] == found[1], "the program itself is not deterministic"
    return Reference(*found[0], seconds)


def columns(root: Path) -> dict[str, list[Any]]:
    """The log of the one run below `root`, without what is never compared."""
    (path,) = (p for p in root.iterdir() if (p / "log.jsonl").exists())
    found = read_log(path)
    return {k: v for k, v in found.items() if k not in ("time", "attempt") and not k.startswith("timing")}


def committed(root: Path) -> int:
    """The newest checkpoint's step; -1 if there is none."""
    return max((int(p.name[5:]) for p in root.glob("*/checkpoints/step-*")), default=-1)


def kill_many(folder: Path, spec: Kind, kills: int, dice: random.Random, cold_share: float = 0.0) -> Tally:
    """At least `kills` kills, in as many runs of one spec as that takes."""
    expected = reference(folder, spec)
    tally = Tally()
    while tally.kills < kills:
        run = folder / f"run-{tally.runs}"
        run.mkdir()
        tally.add(kill_until_done(run, spec, expected, dice, cold_share))
        shutil.rmtree(run)
    return tally


def kill_until_done(
    folder: Path,
    spec: Kind,
    expected: Reference,
    dice: random.Random,
    cold_share: float = 0.0,
    least: int = 0,
) -> Tally:
    """One run, each life ended by SIGKILL at a random instant, until one ends by itself.

    With `least`, lives are cut so short that at least so many are needed: when a new checkpoint is there,
    or sooner. Asserts after each kill that no promised record and no committed checkpoint was lost, that
    each life goes on from a checkpoint there was, and at the end that digest and log are those of the
    uninterrupted run, bit for bit.
    """
    tally = Tally(runs=1)
    root, out = folder / "root", folder / "out.json"
    newest = [-1]
    status: int | None = None
    while status != 0:  # the result itself may be cut by a kill: the next life writes it again
        cold = dice.random() < cold_share
        life = Life(root, spec, out, cold)
        tally.lives += 1
        # Who is killed sooner than it takes to get anywhere never ends: lives without a new checkpoint grow.
        fruitless = next((k for k, step in enumerate(reversed(newest)) if step != newest[-1]), len(newest))
        pause = dice.random() * expected.seconds * (0.5 + fruitless / 20) + (COLD_SECONDS if cold else 0)
        status = life.wait(pause) if tally.kills >= least else life.wait_for(root, newest[-1], pause)
        if status is None:
            group = dice.random() < 0.5
            status = life.kill(group)
            if status != 0:  # else it was quicker
                tally.kills += 1
                tally.cold += cold
                tally.groups += group
        assert status in (0, -signal.SIGKILL), f"an attempt ended with {status}"
        newest.append(committed(root))
        assert newest == sorted(newest), f"checkpoints that were there are not: {newest}"
        tally.inside_save += any(root.glob("*/checkpoints/.saving-*"))
        if isinstance(spec, Spec):
            _check(root, out, tally)
    assert json.loads(out.read_text()) == expected.digest
    assert columns(root) == expected.log
    (path,) = root.iterdir()
    starts = [event["from"] for event in read_events(path) if event["event"] == "resume"]
    assert starts == sorted(starts), starts
    assert set(starts) <= {0, *newest}, (starts, newest)  # nobody started anywhere else
    tally.resumed += sum(start > 0 for start in starts)
    return tally


def _check(root: Path, out: Path, tally: Tally) -> None:
    """What must hold right after a kill, before anybody mends anything."""
    attempt, step = promised(str(out))
    logs = list(root.glob("*/log.jsonl"))
    if step >= 0:
        last = {}
        for line in logs[0].read_bytes().split(b"\n"):
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if "step" in record and "loss" in record:
                    last[record["attempt"], record["step"]] = record
        assert (attempt, step) in last, f"attempt {attempt} was promised its record of step {step}"
    else:
        tally.before_first_step += 1

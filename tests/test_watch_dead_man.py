"""Story 14: the guard outside was not set, or did not fire, and the dead man's switch on the machine must.

Clusters whose autostop was lost, could not be asked, or waits for a job that hangs were paid for until somebody
looked. `loadsheet watch --dead-man` keeps a shutdown of the machine itself pending; what is played here is
`shutdown` as its manual has it: `-h +m` halts the machine in m minutes, in the place of what was pending before.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_logs import attempt

from loadsheet.cli import watch
from loadsheet.cloud.watch import act
from loadsheet.cloud.watch.look import Watcher
from loadsheet.cloud.watch.power import Draw
from loadsheet.cloud.watch.told import Told
from loadsheet.run.directory import RunDirectory


class Machine:
    """A machine with a clock that tests set, and the one shutdown that may be pending."""

    def __init__(self) -> None:
        self.now = 0
        self.due: int | None = None

    def shutdown(self, *words: str) -> None:
        """As the program: only what the watch may say is understood."""
        assert words[0] == "-h"
        assert words[1].startswith("+")
        self.due = self.now + 60 * int(words[1][1:])

    @property
    def down(self) -> bool:
        """Whether it has halted."""
        return self.due is not None and self.now >= self.due


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """In the place of this one."""
    made = Machine()
    monkeypatch.setattr(act, "run_shutdown", made.shutdown)
    monkeypatch.setattr(act, "shutil", SimpleNamespace(which=lambda name: f"/sbin/{name}"))
    return made


@pytest.mark.parametrize("minutes", [2, 30, 61])
@pytest.mark.parametrize("poll", [10, 55])
def test_story_14_nobody_looks_any_more(machine: Machine, minutes: int, poll: int) -> None:
    """Up while it is looked at, for hours; after the last look down in m minutes at most, and not before m/2."""
    guard, draw = act.DeadMan(60.0 * minutes), random.Random(0)
    while machine.now < 6 * 3600:
        guard.put_off(machine.now)
        assert machine.due is not None
        assert 30 * minutes <= machine.due - machine.now <= 60 * minutes
        last, machine.now = machine.now, machine.now + draw.randint(1, poll)
        assert not machine.down
    machine.now = last + 60 * minutes
    assert machine.down


def test_story_14_the_training_hangs(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is there and its GPU counts as busy, so no autostop fires; without progress nothing is put off.

    The last progress seen at 0 s, 300 s of patience, a switch of ten minutes: all is well for 300 s at most, and
    half of the ten minutes or all of them are left then. The looks go on all the while: it is not the watch that dies.
    """
    monkeypatch.delenv("LOADSHEET_NOTICE", raising=False)
    directory = RunDirectory.open(tmp_path, {"hangs": 1})  # this process has the run: nobody sees it gone
    attempt(directory.log_path, 1, 0, 20)
    looks: list[bool] = []

    def rest(told: Told, seconds: float) -> None:
        looks.append(machine.down)
        machine.now += int(seconds)
        if machine.down or machine.now > 7200:
            told.ended = True

    clock = SimpleNamespace(monotonic=lambda: machine.now, strftime=time.strftime, localtime=time.localtime)
    monkeypatch.setattr(watch, "time", clock)
    monkeypatch.setattr(watch, "_rest", rest)
    busy = [Draw(power=0.15, busy=0.97)]
    watcher = Watcher(directory.path, start=300.0, clock=lambda: machine.now, ask_gpus=lambda: busy)
    options = {"json": True, "as_json": True, "then_shutdown": False}
    settings: dict[str, Any] = {"poll": 10.0, "idle": 300.0, "currency": ""}
    assert watch._loop(watcher, Told(), options, settings, act.DeadMan(600.0)) == 0
    directory.close()
    assert machine.down
    assert 300 + 300 <= machine.now <= 300 + 600 + 10
    assert len(looks) == machine.now // 10


TRAIN = """
import sys, time, torch, loadsheet as ls
run = ls.Run.open(sys.argv[1], {"kind": "left alone"})
run.keep(model=torch.nn.Linear(4, 4))
for step in run.steps(10**9, checkpoint_every=10**6):
    run.log(loss=1.0)
    time.sleep(0.05)
"""


def test_story_14_the_watch_is_killed(tmp_path: Path) -> None:
    """No autostop, no budget, and the watch gets SIGKILL: the shutdown stays pending, and nobody called it off."""
    root, said, programs = tmp_path / "runs", tmp_path / "said", tmp_path / "bin"
    programs.mkdir()
    (programs / "shutdown").write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    (programs / "shutdown").chmod(0o755)
    words = ["--runs", str(root), "--json", "--poll", "0.1s", "--dead-man", "30min"]
    process = subprocess.Popen(
        [sys.executable, "-m", "loadsheet", "watch", *words, "--", sys.executable, "-c", TRAIN, str(root)],
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    looks = [json.loads(process.stdout.readline()) for _ in range(2)]  # the switch is set after the first
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    trainer = act.owner(Path(looks[0]["run"]))
    assert trainer is not None  # it trains on, and costs on, with nobody beside it
    try:
        (line,) = said.read_text().splitlines()
        assert line.split()[:2] == ["-h", "+30"]
    finally:
        os.kill(trainer, signal.SIGKILL)


def test_it_is_set_before_anything_is_started(tmp_path: Path) -> None:
    """A download that hangs opens no run: the shutdown is pending all the same, and it is said that it stays so."""
    said, programs = tmp_path / "said", tmp_path / "bin"
    programs.mkdir()
    (programs / "shutdown").write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    (programs / "shutdown").chmod(0o755)
    ended = subprocess.run(
        [sys.executable, "-m", "loadsheet", "watch", "--runs", str(tmp_path / "runs"), "--dead-man", "30min",
         "--", "sh", "-c", f"wc -l < {said}; exit 3"],
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout.split()) == (3, ["1"])
    assert "30 min from now at most: `shutdown -c` takes it back" in " ".join(ended.stderr.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_watch_that_cannot_tell_stops_nobody(tmp_path: Path) -> None:
    """The disk that its output goes to is full: that is said once, and the training goes on to its end."""
    script = TRAIN.replace("10**9", "30")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "loadsheet", "watch", "--runs", str(tmp_path), "--json", "--poll", "0.1s",
             "--", sys.executable, "-c", script, str(tmp_path)],
            check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("the watch goes on") == 1


def test_a_training_that_is_killed_by_somebody_else(tmp_path: Path) -> None:
    """As the system does it where memory runs out: by name, with what to do, and the status of a shell."""
    script = TRAIN.replace("10**9", "30") + "    if step == 20: import os; os.kill(os.getpid(), 9)\n"
    ended = subprocess.run(
        [sys.executable, "-m", "loadsheet", "watch", "--runs", str(tmp_path), "--json", "--poll", "0.1s",
         "--", sys.executable, "-c", script, str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 137
    assert "ended by SIGKILL after 21 logged steps" in " ".join(ended.stderr.split())
    assert "the same command goes on" in " ".join(ended.stderr.split())

"""Signals as they come: to the watch, alone and with the training it started, from a terminal and from `kill`."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_logs import attempt

from loadsheet.cloud.watch import act
from loadsheet.run.directory import RunDirectory

OURS = """
import sys, time, torch, loadsheet as ls
run = ls.Run.open(sys.argv[1], {"kind": "told"})
run.keep(model=torch.nn.Linear(2, 2))
for step in run.steps(10**9, checkpoint_every=10**6):
    run.log(loss=1.0)
    time.sleep(0.01)
"""
#: opens no run for long, as while it downloads
SLOW = "import sys, time\nprint('begun', flush=True)\ntime.sleep(600)"


@contextlib.contextmanager
def watch(root: Path, *command: str, before: str = "", **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """`loadsheet watch --json` as a process of its own; nothing of it is left behind.

    `before` is done in it first.
    """
    words = ["watch", "--runs", str(root), "--json", "--poll", "0.1s", *(["--", *command] if command else [])]
    program = f"import sys\n{before}\nfrom loadsheet.cli import main\nmain({words!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **settings,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def trainer_of(process: subprocess.Popen[str], root: Path) -> tuple[int, Path]:
    """The training that the watch has started, once it is in its loop."""
    assert process.stdout is not None
    look: dict[str, Any] = {"step": -1}
    while look["step"] < 3:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        look = json.loads(line)
    pid = act.owner(Path(look["run"]))
    assert pid is not None
    return pid, Path(look["run"])


def rest_of(process: subprocess.Popen[str]) -> tuple[list[Any], str]:
    """What is said until the end: each line is whole; and what is said on stderr."""
    out, err = process.communicate(timeout=120)
    assert out == "" or out.endswith("\n")
    return [json.loads(line) for line in out.splitlines()], err


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGHUP, 75), (signal.SIGINT, 130)],
)
def test_the_training_is_told(tmp_path: Path, number: int, status: int) -> None:
    """To the watch alone: the training saves and ends as after that signal, and the watch with it, by its status."""
    with watch(tmp_path, sys.executable, "-c", OURS, str(tmp_path)) as process:
        pid, path = trainer_of(process, tmp_path)
        process.send_signal(number)
        looks, _ = rest_of(process)
    assert (process.returncode, is_gone(pid)) == (status, True)
    newest = max(int(p.name[5:]) for p in (path / "checkpoints").glob("step-*"))
    assert newest > 0
    assert (looks[-1]["step"], looks[-1]["done"]) == (newest - 1, False)  # looked at once more after its end


def test_before_a_run_is_opened(tmp_path: Path) -> None:
    """A training that is still downloading is told as well: it is not left alone on a machine that costs."""
    with watch(tmp_path, sys.executable, "-c", SLOW) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGTERM)
        looks, said = rest_of(process)
    assert (process.returncode, looks, is_gone(int(child))) == (128 + signal.SIGTERM, [], True)
    assert "nothing was watched" in said


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_watch_alone(tmp_path: Path, number: int, there: bool) -> None:
    """Beside a training: the watch ends, as a shell counts it, and the training goes on; so while it waits for one."""
    run = RunDirectory.open(tmp_path, {"alone": 1}) if there else None  # this process trains
    if run is not None:
        attempt(run.log_path, 1, 0, 5)
    with watch(tmp_path) as process:
        if there:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["step"] == 4
        else:
            assert process.stderr is not None
            assert "waiting for one" in process.stderr.readline()
        process.send_signal(number)
        rest_of(process)
    assert process.returncode == 128 + number
    if run is not None:
        run.close()


def test_nohup_is_obeyed(tmp_path: Path) -> None:
    """A hang-up that is ignored, as `nohup` has it, ends neither the watch nor the training."""
    ignore = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)"
    with watch(tmp_path, sys.executable, "-c", OURS, str(tmp_path), before=ignore) as process:
        pid, _ = trainer_of(process, tmp_path)
        os.killpg(process.pid, signal.SIGHUP)
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())["step"]
        while json.loads(process.stdout.readline())["step"] < first + 20:
            pass
        process.send_signal(signal.SIGTERM)
        rest_of(process)
    assert (process.returncode, is_gone(pid)) == (75, True)


def test_ctrl_c_at_a_terminal(tmp_path: Path) -> None:
    """It reaches both, and is not told a second time, which would end the training at once: it saves, and 130."""
    main, side = pty.openpty()
    name = os.ttyname(side)
    # the first terminal that a process without one opens becomes its own, and its group the one in front
    before = f"import os\nos.set_inheritable(os.open({name!r}, os.O_RDWR), True)"
    with watch(tmp_path, sys.executable, "-c", OURS, str(tmp_path), before=before) as process:
        pid, path = trainer_of(process, tmp_path)
        os.write(main, b"\x03")
        rest_of(process)
    os.close(main)
    os.close(side)
    assert (process.returncode, is_gone(pid)) == (130, True)
    assert max(int(p.name[5:]) for p in (path / "checkpoints").glob("step-*")) > 0

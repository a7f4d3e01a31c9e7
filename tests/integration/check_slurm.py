"""An exported job on a real Slurm: preempted once, stopped by its time limit once, equal in the end, bit for bit.

Not among the tests of every day: `make integration` runs it, in about ten minutes, most of which Slurm waits
(a job that was queued again becomes eligible two minutes later).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from export_sheets import cpu_sheet, exported  # noqa: E402
from slurm_node import Node, missing  # noqa: E402

import loadsheet as ls  # noqa: E402
from loadsheet.run.reading import read_events  # noqa: E402

TRAIN = Path(__file__).with_name("train.py")
STEPS = 1000
PAUSE = "0.2"  # so the second start outlives its time limit of three minutes


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A Slurm of one node, torn down in the end."""
    if why := missing():
        pytest.skip(why)
    with Node() as node:
        yield node


def _only_run(folder: Path) -> Path:
    (found,) = [path for path in (folder / "runs").iterdir() if (path / "config.json").exists()]
    return found


def _logged(folder: Path) -> int:
    try:
        return len(list(ls.stream_log(_only_run(folder))))
    except (OSError, ValueError, ls.LoadsheetError):  # it has not begun
        return 0


def _bits(run: Path) -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    ls.load(run, "latest", into=model)
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


def _exported(folder: Path, training: Path, *options: str) -> Path:
    """The job of a training of STEPS steps below `training`."""
    script = folder / "job.sh"
    words = [sys.executable, str(TRAIN), str(STEPS)]
    exported(
        "slurm", str(cpu_sheet(folder, STEPS)), "--command", " ".join(words), "--name", "torture", "--partition",
        "low", "--cpus", "1", "--ram", "1GiB", "--workdir", str(training), "--setup", f"export PAUSE={PAUSE}",
        "--json", "--out", str(script), *options,
    )  # fmt: skip
    return script


def _stops(run: Path) -> list[str]:
    return [event["reason"] for event in read_events(run) if event["event"] == "stopped"]


def test_scancel_saves_and_stays_cancelled(node: Node, tmp_path: Path) -> None:
    """Who cancels a job means it: the state is saved, and nothing queues the job again."""
    number = node.call("sbatch", "--parsable", str(_exported(tmp_path, tmp_path)), cwd=tmp_path)
    node.wait(lambda: _logged(tmp_path) >= 10, 180, "10 steps")
    node.call("scancel", number)
    node.wait(lambda: "torture" not in node.call("squeue", "--noheader", "--format=%j"), 120, "end")
    print((tmp_path / f"torture-{number}.out").read_text())
    assert node.job(number)["JobState"] == "CANCELLED"
    assert node.job(number)["Restarts"] == "0"
    assert len(_stops(_only_run(tmp_path))) == 1


def test_preempted_and_out_of_time(node: Node, tmp_path: Path) -> None:
    """SIGTERM by preemption, USR1 before the time limit, each a 75; Slurm starts it again; the bits are equal."""
    whole, taken = tmp_path / "whole", tmp_path / "taken"
    whole.mkdir()
    taken.mkdir()
    subprocess.run([sys.executable, str(TRAIN), str(STEPS)], cwd=whole, check=True, timeout=300)

    script = _exported(tmp_path, taken, "--time", "3min")
    number = node.call("sbatch", "--parsable", str(script), cwd=tmp_path)
    node.wait(lambda: _logged(taken) >= 60, 180, "60 steps")
    print("preempting after", _logged(taken), "steps")
    node.call("sbatch", "--partition=high", "--exclusive", "--wrap=sleep 3", "--output=/dev/null")
    node.wait(lambda: node.job(number)["Restarts"] == "1", 120, "requeue after preemption")
    node.wait(lambda: node.job(number)["JobState"] == "RUNNING", 300, "second start")
    print("second start; it will be told before its time limit")
    node.wait(lambda: int(node.job(number)["Restarts"]) >= 2, 400, "requeue before the time limit")
    node.wait(lambda: node.job(number)["JobState"] == "COMPLETED", 900, "end")

    print((tmp_path / f"torture-{number}.out").read_text())
    one, other = _only_run(whole), _only_run(taken)
    stops = _stops(other)
    print("stopped by", stops)
    assert stops[0] == "SIGTERM"
    assert stops[1] == "SIGUSR1"
    assert set(stops[2:]) <= {"SIGUSR1"}  # on a slow machine the third start is told as well
    assert node.job(number)["ExitCode"] == "0:0"
    assert ls.read_log(one)["loss"] == ls.read_log(other)["loss"]
    assert len(ls.read_log(one)["loss"]) == STEPS
    assert _bits(one) == _bits(other)
    assert len(list((other / "provenance").glob("attempt-*.json"))) == len(stops) + 1

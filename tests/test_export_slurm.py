"""The script for Slurm, run by bash with stubs of Slurm's programs: signals, exit statuses, no orphans."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from export_sheets import cpu_sheet, exported
from terminal import refused

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash here")

#: the options of sbatch 22.05 that we write (man sbatch), with the form of their value
OPTIONS = {
    "job-name": r"[a-z][a-z0-9-]*", "nodes": r"\d+", "ntasks": r"\d+", "cpus-per-task": r"\d+", "mem": r"\d+M",
    "gpus-per-node": r"(\w[\w.-]*:)?\d+", "time": r"\d+-\d\d:\d\d:\d\d", "signal": r"B:USR1@\d+", "requeue": None,
    "open-mode": r"append|truncate", "output": r"[\w-]+-%j\.out", "partition": r"[\w,.-]+", "account": r"[\w.-]+",
    "qos": r"[\w.-]+",
}  # fmt: skip
#: a training that says what it hears, then ends with the status that its argument names
TRAINING = """
import os, signal, sys, time
place, status = sys.argv[1], int(sys.argv[2])
told = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda n, frame: told.append(n))
with open(place + "/began", "w") as file:
    file.write(str(os.getpid()))
os.rename(place + "/began", place + "/pid")
end = time.monotonic() + 60
while not told and time.monotonic() < end and not os.path.exists(place + "/end"):
    time.sleep(0.02)
time.sleep(0.3)  # a save takes its time
with open(place + "/heard", "w") as file:
    file.write(" ".join(signal.Signals(n).name for n in told))
sys.exit(status)
"""

#: as the real one: hands USR1 on, kills its task at TERM, and ends with the status of its task
_SRUN = """
while [ "$1" != -- ]; do shift; done; shift
trap 'kill -USR1 $task' USR1
trap 'kill -KILL $task' TERM
"$@" & task=$!
while told=; trap 'told=1; kill -USR1 $task' USR1; wait $task; status=$?; [ -n "$told" ]; do :; done
exit $status
"""


class World:
    """A folder with stubs of `srun` and `scontrol`, a training, and the script that was exported."""

    def __init__(self, folder: Path, status: int, *, setup: str = "", requeue: int = 0) -> None:
        self.folder = folder
        stubs = folder / "bin"
        stubs.mkdir()
        for name, text in {
            "srun": _SRUN,
            "scontrol": f'echo "$@" >> "{folder}/requeued"; exit {requeue}',
        }.items():
            (stubs / name).write_text(f"#!/bin/bash\n{text}\n")
            (stubs / name).chmod(0o755)
        training = folder / "train.py"
        training.write_text(TRAINING)
        self.script = folder / "job.sh"
        options = ["--setup", setup] if setup else []
        command = f"{sys.executable} {training} {folder} {status}"
        exported(
            "slurm", str(cpu_sheet(folder)), "--command", command, *options, "--json", "--out",
            str(self.script),
        )  # fmt: skip
        self.environment = {
            "PATH": f"{stubs}:{os.environ['PATH']}", "SLURM_JOB_ID": "4242", "SLURM_CPUS_PER_TASK": "2",
        }  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start the script as the batch shell of a job, in a session of its own."""
        assert BASH is not None
        self.process = subprocess.Popen(
            [BASH, str(self.script)], env={**self.environment, **environment}, cwd=self.folder,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        return self.process

    def began(self) -> int:
        """Wait until the training is there; its process."""
        return int(self.wait_for("pid"))

    def wait_for(self, name: str) -> str:
        """Wait for a file, and read it."""
        end = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < end, name
            assert self.process is None or self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)
        return (self.folder / name).read_text()

    def ended(self) -> int:
        """The exit status of the script."""
        assert self.process is not None
        self.process.communicate(timeout=60)
        return self.process.returncode

    def requeued(self) -> list[str]:
        """What `scontrol` was asked."""
        place = self.folder / "requeued"
        return place.read_text().splitlines() if place.exists() else []

    def orphans(self) -> list[int]:
        """Processes of the job that outlived it."""
        assert self.process is not None
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.getsid(int(entry.name)) == self.process.pid:
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[World]]:
    """Worlds that are cleared away, whatever became of them."""
    made: list[World] = []
    yield made
    for world in made:
        if world.process is not None and world.process.poll() is None:
            os.killpg(world.process.pid, signal.SIGKILL)
            world.process.communicate()


def test_usr1_reaches_the_training_and_75_is_queued_again(tmp_path: Path, worlds: list[World]) -> None:
    """The batch shell hears the signal, hands it on, waits for the save, and asks for a requeue."""
    worlds.append(world := World(tmp_path, 75))
    job = world.start()
    world.began()
    job.send_signal(signal.SIGUSR1)
    assert world.ended() == 75
    assert (tmp_path / "heard").read_text() == "SIGUSR1"
    assert world.requeued() == ["requeue 4242"]
    assert world.orphans() == []


def test_a_job_that_is_ended_saves_and_does_not_come_back(tmp_path: Path, worlds: list[World]) -> None:
    """SIGTERM is scancel: the training saves, told by USR1 (srun would kill at TERM), and nobody queues it again."""
    worlds.append(world := World(tmp_path, 75))
    job = world.start()
    world.began()
    job.send_signal(signal.SIGTERM)
    assert world.ended() == 75
    assert (tmp_path / "heard").read_text() == "SIGUSR1"
    assert world.requeued() == []
    assert world.orphans() == []


def test_the_training_alone_is_told(tmp_path: Path, worlds: list[World]) -> None:
    """On preemption Slurm tells the tasks and not the batch shell: 75 is queued again all the same."""
    worlds.append(world := World(tmp_path, 75))
    world.start()
    os.kill(world.began(), signal.SIGTERM)
    assert world.ended() == 75
    assert (tmp_path / "heard").read_text() == "SIGTERM"
    assert world.requeued() == ["requeue 4242"]


def test_two_signals_do_not_lose_the_status(tmp_path: Path, worlds: list[World]) -> None:
    """A second signal during the save ends a second wait, and the shell waits a third time."""
    worlds.append(world := World(tmp_path, 75))
    job = world.start()
    world.began()
    job.send_signal(signal.SIGUSR1)
    time.sleep(0.1)
    job.send_signal(signal.SIGUSR1)
    assert world.ended() == 75
    assert world.requeued() == ["requeue 4242"]
    assert world.orphans() == []


@pytest.mark.parametrize("status", [0, 1, 2, 130])
def test_other_codes_pass_through(tmp_path: Path, worlds: list[World], status: int) -> None:
    """Done, failed, refused, interrupted: the job ends with that status and is not queued again."""
    worlds.append(world := World(tmp_path, status))
    world.start()
    world.began()
    (tmp_path / "end").touch()
    assert world.ended() == status
    assert world.requeued() == []


def test_a_status_after_a_signal_passes_through(tmp_path: Path, worlds: list[World]) -> None:
    """A training that ends with 0 in spite of the signal was done: nothing is queued again."""
    worlds.append(world := World(tmp_path, 0))
    job = world.start()
    world.began()
    job.send_signal(signal.SIGUSR1)
    assert world.ended() == 0
    assert world.requeued() == []


def test_killed_training(tmp_path: Path, worlds: list[World]) -> None:
    """Out of memory: SIGKILL is 128 + 9, and no reason to start again."""
    worlds.append(world := World(tmp_path, 75))
    world.start()
    os.kill(world.began(), signal.SIGKILL)
    assert world.ended() == 128 + 9
    assert world.requeued() == []


def test_told_while_setting_up(tmp_path: Path, worlds: list[World]) -> None:
    """A signal before the training: it does not begin, and the job is queued again."""
    setup = f'touch "{tmp_path}/setting-up"; while [ ! -e "{tmp_path}/go" ]; do sleep 0.05; done'
    worlds.append(world := World(tmp_path, 0, setup=setup))
    job = world.start()
    world.wait_for("setting-up")
    job.send_signal(signal.SIGUSR1)
    (tmp_path / "go").touch()
    assert world.ended() == 75
    assert not (tmp_path / "pid").exists()
    assert world.requeued() == ["requeue 4242"]


def test_a_setup_that_fails_ends_the_job(tmp_path: Path, worlds: list[World]) -> None:
    """Nothing is trained in half an environment."""
    worlds.append(world := World(tmp_path, 0, setup="false"))
    world.start()
    assert world.ended() == 1
    assert not (tmp_path / "pid").exists()
    assert world.requeued() == []


def test_restarts_are_bounded(tmp_path: Path, worlds: list[World]) -> None:
    """A training that always says 75 is not started for ever: 20 restarts."""
    worlds.append(world := World(tmp_path, 75))
    world.start(SLURM_RESTART_COUNT="20")
    world.began()
    (tmp_path / "end").touch()
    assert world.ended() == 75
    assert world.requeued() == []


def test_a_requeue_that_is_refused(tmp_path: Path, worlds: list[World]) -> None:
    """Where Slurm does not let the job be queued again, the status still says what happened."""
    worlds.append(world := World(tmp_path, 75, requeue=1))
    job = world.start()
    world.began()
    (tmp_path / "end").touch()
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 75
    assert b"sbatch it once more" in out


# --- the text ---------------------------------------------------------------------------------------------------------


def test_options_are_those_of_sbatch(tmp_path: Path) -> None:
    """Each #SBATCH line is one known option with a value of its form, and all stand before the first command."""
    sheet = cpu_sheet(tmp_path)
    text = exported(
        "slurm", str(sheet), "--command", "python train.py", "--partition", "gpu", "--account", "me",
        "--qos", "low", "--name", "mine",
    ).stdout  # fmt: skip
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    found = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    for option in found:
        name, _, value = option.partition("=")
        form = OPTIONS[name]
        assert (value == "") if form is None else re.fullmatch(form, value), option
    assert {option.partition("=")[0] for option in found} == OPTIONS.keys() - {"gpus-per-node"}
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(not line.startswith("#SBATCH") for line in lines[first_command:])
    assert found[-3:] == ["partition=gpu", "account=me", "qos=low"]


def test_bash_reads_it(tmp_path: Path) -> None:
    """`bash -n`, and shellcheck where it is, find nothing."""
    path = tmp_path / "job.sh"
    exported(
        "slurm", str(cpu_sheet(tmp_path)), "--command", "python train.py", "--setup", "module load cuda",
        "--volume", "/scratch/me", "--workdir", "/home/me/it's here", "--json", "--out", str(path),
    )  # fmt: skip
    assert BASH is not None
    assert subprocess.run([BASH, "-n", str(path)], capture_output=True, check=False).stderr == b""
    if checker := shutil.which("shellcheck"):
        found = subprocess.run([checker, str(path)], capture_output=True, text=True, check=False)
        assert found.stdout == ""


def test_times(tmp_path: Path) -> None:
    """A time limit below the time to save would be told to stop before it begins."""
    sheet = str(cpu_sheet(tmp_path))
    command = ("--command", "python train.py")
    refused("export", "slurm", sheet, *command, "--time", "2min", words="--time: got 2.00 min")
    text = exported("slurm", sheet, *command, "--time", "36h").stdout
    assert "#SBATCH --time=1-12:00:00" in text
    text = exported("slurm", sheet, *command, "--time", "36h", "--save", "100s").stdout
    assert "#SBATCH --signal=B:USR1@131" in text  # 1.3 · 100 s and a step of 9 ms, up to whole seconds

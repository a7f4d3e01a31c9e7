"""A Slurm of one node on this machine, for the time of a test: munged, slurmctld and slurmd, nothing installed or kept.

Two partitions share the node; jobs of `high` preempt those of `low`, which are queued again after a grace of 30 s.
No cgroups (a container has none to give), no accounting. Needs root, and Debian's slurm-wlm and munge.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel", "srun")
_CONF = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=10
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=4000 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 GraceTime=30 MaxTime=INFINITE State=UP
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=off MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """What is missing for a Slurm of one's own; empty if nothing."""
    if os.geteuid() != 0:
        return "needs root: munged and slurmd change users"
    names = [name for name in PROGRAMS if _program(name) is None]
    return f"{', '.join(names)} not installed: apt-get install slurm-wlm munge" if names else ""


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Node:
    """A running Slurm; use as a context."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: it holds a socket
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> Node:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def _start(self) -> None:
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir(mode=0o700)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        munge = self.folder / "munge"
        self.call(
            "munged", f"--key-file={key}", f"--socket={munge}/socket", f"--pid-file={self.folder}/munged.pid",
            f"--log-file={munge}/log", f"--seed-file={munge}/seed", "--force",
        )  # fmt: skip
        conf = _CONF.format(
            host=socket.gethostname().partition(".")[0], folder=self.folder, ports=_free_ports(2),
            cpus=os.cpu_count() or 1,
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(conf)
        self.call("slurmctld", "-c")
        self.call("slurmd", "-c")
        self.wait(lambda: "idle" in self.call("sinfo", "--noheader", "--format=%T"), 60, "an idle node")

    def call(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        """What a program of Slurm prints; RuntimeError if it fails."""
        found = subprocess.run(
            [_program(program) or program, *arguments], env=self.environment, cwd=cwd, capture_output=True,
            text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if found.returncode:
            raise RuntimeError(f"{program} {' '.join(arguments)}: {found.returncode}: {found.stderr}")
        return found.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says of a job."""
        words = self.call("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, condition: Any, seconds: float, what: str) -> None:
        """Wait until something is so; TimeoutError with the logs if it does not come."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
                if condition():
                    return
            time.sleep(0.5)
        raise TimeoutError(f"no {what} within {seconds:.0f} s\n{self.logs()}")

    def logs(self) -> str:
        """The last lines of the daemons."""
        lines = []
        for name in ("slurmctld.log", "slurmd.log"):
            place = self.folder / name
            lines += [name, *(place.read_text().splitlines()[-30:] if place.exists() else [])]
        return "\n".join(lines)

    def stop(self) -> None:
        """End the jobs, then the daemons, by the processes that they named themselves."""
        with contextlib.suppress(Exception):
            self.call("scancel", "--user=root")
            self.wait(lambda: not self.call("squeue", "--noheader"), 60, "an empty queue")
        for name in ("slurmd", "slurmctld", "munged"):
            with contextlib.suppress(OSError, ValueError):
                process = int((self.folder / f"{name}.pid").read_text())
                os.kill(process, signal.SIGTERM)
                _gone(process)
        shutil.rmtree(self.folder, ignore_errors=True)


def _gone(process: int) -> None:
    for _ in range(100):
        if not Path(f"/proc/{process}").exists():
            return
        time.sleep(0.1)
    os.kill(process, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports

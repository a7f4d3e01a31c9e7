"""Worlds for the tests of preflight: a machine out of a few files, a repository, keys that open nothing.

Keys are drawn at run time, from a fixed seed: none stands in a file of ours, so that no scanner, ours
included, finds one here.
"""

from __future__ import annotations

import os
import random
import string
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadsheet.cloud.carry_out import carry_out
from loadsheet.cloud.checklist import Result
from loadsheet.cloud.context import Context, Inputs
from loadsheet.cloud.machine import Machine, Output
from loadsheet.cloud.probe import Clock, WriteRate
from loadsheet.cloud.registry import select

LETTERS, DIGITS, LOWER, UPPER = (
    string.ascii_letters,
    string.digits,
    string.ascii_lowercase,
    string.ascii_uppercase,
)
BASE64 = LETTERS + DIGITS + "+/"
HEX = "0123456789abcdef"
_draw = random.Random(20261129)


def draw(length: int, alphabet: str = LETTERS + DIGITS) -> str:
    """Characters drawn at random, at least one of each kind that the alphabet has."""
    while True:
        text = "".join(_draw.choice(alphabet) for _ in range(length))
        kinds = [kind for kind in (LOWER, UPPER, DIGITS) if set(kind) & set(alphabet)]
        if length < 16 or all(set(text) & set(kind) for kind in kinds):
            return text


def private_key(kind: str = "RSA ") -> str:
    """What looks like a private key in PEM."""
    body = "\n".join("MII" + draw(61, BASE64) for _ in range(6))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n-----END {kind}PRIVATE KEY-----\n"


# --- repositories -----------------------------------------------------------------------------------------

_IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org", "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
}  # fmt: skip


class Repo:
    """A repository for a test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main", ".")

    def git(self, *words: str, check: bool = True) -> str:
        """What git answers."""
        environment = {**os.environ, **_IDENTITY}
        done = subprocess.run(
            ["git", "-C", str(self.path), *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    def write(self, name: str, text: str | bytes) -> None:
        """A file of the work tree."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def commit(self, message: str = "a change", **files: str | bytes) -> str:
        """Write, add all, commit; the name of the commit. `a__py` stands for the file a.py."""
        for name, text in files.items():
            self.write(name.replace("__", "."), text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


# --- machines ---------------------------------------------------------------------------------------------


@dataclass
class Space:
    """What `statvfs` would say."""

    free: int
    size: int = 1 << 40
    f_frsize: int = 4096
    f_files: int = 1_000_000
    f_favail: int = 900_000
    f_flag: int = 0

    @property
    def f_blocks(self) -> int:
        return self.size // self.f_frsize

    @property
    def f_bavail(self) -> int:
        return self.free // self.f_frsize


MOUNTINFO = "20 1 254:0 / / rw,relatime - ext4 /dev/root rw\n"
LAPTOP = {
    "/proc/self/mountinfo": MOUNTINFO,
    "/proc/self/stat": "500 (python) S 400 500 400 34816 500 4194304 0 0",
    "/proc/400/stat": "400 (bash) S 300 400 400 34816 500 4194304 0 0",
    "/proc/300/stat": "300 (gnome-terminal-) S 1 300 300 0 -1 4194304 0 0",
    "/proc/1/stat": "1 (systemd) S 0 1 1 0 -1 4194304 0 0",
    "/proc/self/status": "Name:\tpython\nSigIgn:\t0000000001001000\nCpus_allowed_list:\t0-7\n",
    "/proc/self/cgroup": "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope\n",
    "/proc/cpuinfo": "".join(f"processor\t: {n}\nflags\t\t: fpu sse\n" for n in range(8)),
    "/proc/meminfo": "MemTotal:  32000000 kB\nMemAvailable: 20000000 kB\nSwapTotal: 0 kB\n",
    "/proc/self/limits": "Max core file size   0  unlimited  bytes\nMax open files  65536  1048576  files\n",
    "/proc/sys/kernel/core_pattern": "core\n",
    "/sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
    "/sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
    "/sys/block/sda/device/model": "Samsung SSD 980\n",
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nada:x:1000:1000:Ada:/home/ada:/bin/bash\n",
}
GPU = {
    "/sys/bus/pci/devices/0000:00:1e.0/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:00:1e.0/class": "0x030200\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\n",
}


def machine(
    root: Path,
    files: Mapping[str, str | None] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    answers: Callable[[Sequence[str]], Output | None] | None = None,
    disk: str = "sda",
    **more: Any,
) -> Machine:
    """A laptop with Linux and without a GPU, changed by `files` (None: not there); nothing of this machine shows."""
    wanted = {**LAPTOP, **(files or {})}
    for name, text in wanted.items():
        if text is not None:
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    link = root / "sys/dev/block/254:0"
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/block" / disk).mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../block/{disk}")
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    defaults: dict[str, Any] = {
        "statvfs": lambda path: Space(1 << 39),
        "write_rate": lambda place, seconds: WriteRate(256 << 20, 0.25, 0.001),
        "reserve": lambda place, size: True,
        "clock": lambda: Clock(True, 0.01),
        "drift": lambda: 0.0,
        "nvml": False,
        "user": 1000,
        "home": root / "home",
    }
    played = answers or (lambda words: None)
    # git itself is the real one: it is found through PATH, and not asked through `programs`
    kept = {"PATH": os.environ["PATH"], "HOME": str(root / "home"), **(environment or {})}
    return Machine(
        root=root, environment=kept, programs=lambda words, _: played(words), **{**defaults, **more}
    )


def results(
    directory: Path, host: Machine, *ids: str, inputs: Inputs | None = None, timeout: float = 60.0
) -> dict[str, Result]:
    """The results of some checks, by id."""
    context = Context(directory, inputs, host, timeout)
    return {entry.id: result for entry, result in carry_out(select(ids), context)}


def result(directory: Path, host: Machine, id: str, **values: Any) -> Result:
    """The result of one check; `values` are fields of `Inputs`, and count as given."""
    return results(directory, host, id, inputs=Inputs(**values, given=frozenset(values)))[id]


def facts(found: Result) -> str:
    """All sentences of a result."""
    return " | ".join(str(row.get("fact", row.get("redacted"))) for row in found.evidence)


def alive(pid: int) -> bool:
    """Whether a process is there, and not only its name waiting for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

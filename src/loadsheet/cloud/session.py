"""What a process hangs on: its ancestors, what they are, and whether they end with a connection.

A shell that was logged in through ssh gets a SIGHUP when the connection ends, and passes it on. What stands
between (tmux, screen, a service) keeps it away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.machine import Machine

_MOST: Final = 200  # ancestors
_STAT: Final = re.compile(r"\d+ \((?P<name>.*)\) \S (?P<parent>\d+) \d+ \d+ (?P<terminal>-?\d+)", re.DOTALL)

Keeper = Literal["tmux", "screen", "zellij", "dtach", "abduco", "mosh"]
#: names of processes, by their beginning, that outlive a connection
_KEEPERS: Final[tuple[tuple[str, Keeper], ...]] = (
    ("tmux", "tmux"), ("screen", "screen"), ("SCREEN", "screen"), ("zellij", "zellij"), ("dtach", "dtach"),
    ("abduco", "abduco"), ("mosh-server", "mosh"),
)  # fmt: skip


@dataclass(frozen=True)
class Process:
    """One process as /proc/PID/stat has it."""

    pid: int
    name: str
    parent: int
    terminal: int


@dataclass(frozen=True)
class Session:
    """What a process hangs on."""

    chain: tuple[Process, ...]  # from the process up to the first
    keeper: Keeper | None  # what outlives a connection
    ssh: bool  # the process comes from a connection
    slurm: bool  # a step daemon holds it
    service: str  # a systemd unit that is a service
    login: str  # a systemd scope that belongs to a login
    user_service: bool  # a service of the user, not of the system
    hangup_ignored: bool
    terminal: bool  # there is a terminal to close
    inside: bool  # the chain ends within a container, below something that came from outside

    @property
    def names(self) -> str:
        """The chain as text, the outermost first."""
        return " → ".join(process.name for process in reversed(self.chain))


def session(machine: Machine, pid: int | None) -> Session:
    """What this process, or another, hangs on; CannotLook if /proc does not say."""
    machine.need_linux()
    who = "self" if pid is None else str(pid)
    chain = tuple(_chain(machine, who))
    names = [process.name for process in chain[1:]]
    keeper = next((kind for name in names for start, kind in _KEEPERS if name.startswith(start)), None)
    groups = machine.read(f"/proc/{who}/cgroup") or ""
    service = re.search(r"/([^/\n]+\.service)(?:/|$)", groups, re.MULTILINE)
    user = re.search(r"/user@\d+\.service/", groups)
    inner = re.search(
        r"/user@\d+\.service/(?:[^/\n]+/)*([^/\n]+\.(?:service|scope))(?:/|$)", groups, re.MULTILINE
    )
    login = re.search(r"/(session-[^/\n]+\.scope)", groups)
    name = inner[1] if user and inner else service[1] if service else ""
    last = chain[-1]
    return Session(
        chain=chain,
        keeper=keeper,
        ssh=any(name.startswith("sshd") for name in names) or "SSH_CONNECTION" in _environment(machine, pid),
        slurm=any(name.startswith("slurmstepd") for name in names),
        service=name,
        login=login[1] if login else "",
        user_service=bool(user),
        hangup_ignored=_hangup_ignored(machine, who),
        terminal=chain[0].terminal != 0,
        inside=last.parent == 0 and last.pid != 1,
    )


def _chain(machine: Machine, who: str) -> list[Process]:
    found: list[Process] = []
    while len(found) < _MOST:
        text = machine.read(f"/proc/{who}/stat")
        match = _STAT.match(text or "")
        if match is None:
            if not found:
                raise CannotLook(f"there is no process {who}", "name one that runs: `--pid`")
            break  # an ancestor that may not be seen, or has just ended
        pid = int((text or "").partition(" ")[0])
        found.append(Process(pid, match["name"], int(match["parent"]), int(match["terminal"])))
        if int(match["parent"]) == 0:
            break
        who = match["parent"]
    return found


def _hangup_ignored(machine: Machine, who: str) -> bool:
    """Bit 0 of SigIgn: what `nohup` sets, and a process keeps when it starts another program."""
    match = re.search(r"^SigIgn:\s*([0-9a-f]+)", machine.read(f"/proc/{who}/status") or "", re.MULTILINE)
    return match is not None and int(match[1], 16) & 1 == 1


def _environment(machine: Machine, pid: int | None) -> dict[str, str]:
    """The environment of this process; of another one only where it may be read, names alone matter."""
    if pid is None:
        return machine.environment
    try:
        text = machine.read(f"/proc/{pid}/environ") or ""
    except CannotLook:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if "=" in entry)


def kills_at_logout(machine: Machine) -> bool | None:
    """systemd's KillUserProcesses: what stands in logind.conf and its drop-ins; None where nothing is said.

    Not said means what the distribution compiled in: systemd itself says yes, Debian, Ubuntu and Fedora no.
    """
    said: bool | None = None
    files = ["/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf"]
    for folder in (
        "/usr/lib/systemd/logind.conf.d",
        "/etc/systemd/logind.conf.d",
        "/run/systemd/logind.conf.d",
    ):
        files += [f"{folder}/{name}" for name in machine.names(folder) if name.endswith(".conf")]
    for file in files:
        for value in re.findall(r"^\s*KillUserProcesses\s*=\s*(\w+)", machine.read(file) or "", re.MULTILINE):
            said = value.lower() in {"yes", "true", "1", "on"}
    return said


def lingers(machine: Machine) -> bool:
    """Whether systemd keeps this user's services after the last logout."""
    match = re.search(
        rf"^([^:\n/]+):[^:\n]*:{machine.user}:", machine.read("/etc/passwd") or "", re.MULTILINE
    )
    names = [match[1] if match else "", machine.environment.get("USER", "")]
    return any(
        name and "/" not in name and machine.path(f"/var/lib/systemd/linger/{name}").exists()
        for name in names
    )

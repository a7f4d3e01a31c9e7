"""The machine around the GPU: processors, memory, shared memory, limits, clock, upgrades."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from loadsheet.cloud import mounts
from loadsheet.cloud.checklist import CannotLook, Result, fail, not_applicable, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.gpus import devices
from loadsheet.cloud.machine import Machine
from loadsheet.cloud.registry import check
from loadsheet.errors import one_line
from loadsheet.units import GIB, MIB, format_bytes, format_duration

_DOCKER_SHM: Final = 64 * MIB  # what Docker gives a container that asks for nothing
_SHM: Final = GIB  # what loaders with some workers and batches of images or long sequences take
_FILES: Final = 4096  # open files: a loader shares every tensor of a batch through one
_JUMP: Final = 0.05  # seconds by which the wall clock may move against the monotonic one
_AHEAD: Final = 300.0  # seconds by which a commit may lie in the future
_UNLIMITED: Final = 1 << 62
_INIT: Final = frozenset(
    {"systemd", "init", "openrc-init", "runit", "launchd"}
)  # first processes of whole machines


# --- processors and memory that this process may use ----------------------------------------------------


@dataclass(frozen=True)
class Allowed:
    """What the control group, the affinity and the machine leave to this process; None: no limit is set."""

    cpus: float
    cpus_of_machine: int
    memory_limit: int | None
    memory_used: int | None
    kills: int | None  # processes that were killed here for want of memory


def allowed(machine: Machine) -> Allowed:
    """Processors and memory, by affinity and control groups (v2, else v1); CannotLook off Linux."""
    machine.need_linux()
    online = len(re.findall(r"^processor\s*:", machine.read("/proc/cpuinfo") or "", re.MULTILINE))
    mask = re.search(r"^Cpus_allowed_list:\s*(\S+)", machine.read("/proc/self/status") or "", re.MULTILINE)
    cpus = float(_listed(mask[1]) if mask else online)
    limit = used = kills = None
    for folder in _groups(machine, ""):
        quota = (machine.read(f"{folder}/cpu.max") or "").split()
        if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
            cpus = min(cpus, int(quota[0]) / int(quota[1]))
        most = _whole(machine.read(f"{folder}/memory.max"))
        if most is not None and (limit is None or most < limit):
            limit, used = most, _whole(machine.read(f"{folder}/memory.current"))
        events = re.search(r"^oom_kill (\d+)", machine.read(f"{folder}/memory.events") or "", re.MULTILINE)
        if events and kills is None:
            kills = int(events[1])
    for folder in _groups(machine, "cpu"):
        quota_v1 = _whole(machine.read(f"{folder}/cpu.cfs_quota_us"))
        period = _whole(machine.read(f"{folder}/cpu.cfs_period_us"))
        if quota_v1 and period:
            cpus = min(cpus, quota_v1 / period)
    for folder in _groups(machine, "memory"):
        most = _whole(machine.read(f"{folder}/memory.limit_in_bytes"))
        if most is not None and most < _UNLIMITED and (limit is None or most < limit):
            limit, used = most, _whole(machine.read(f"{folder}/memory.usage_in_bytes"))
    return Allowed(cpus, online or int(cpus), limit, used, kills)


def _groups(machine: Machine, controller: str) -> list[str]:
    """Folders of this process's control group and those above it; `controller` empty for version 2."""
    found: list[str] = []
    for line in (machine.read("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller == "" and number == "0" and not names:
            bases = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        elif controller and controller in names.split(","):
            bases = [f"/sys/fs/cgroup/{controller}", f"/sys/fs/cgroup/{names}"]
        else:
            continue
        parts = [part for part in path.split("/") if part not in {"", "..", "."}]
        for base in bases:
            found += ["/".join([base, *parts[:n]]) for n in range(len(parts), -1, -1)]
    return found


def _whole(text: str | None) -> int | None:
    """A whole number, or None for `max`, -1 and nothing."""
    word = (text or "").strip()
    return int(word) if word.isdigit() else None


def _listed(text: str) -> int:
    """How many processors a list names.

    >>> _listed("0-3,8"), _listed("5")
    (5, 1)
    """
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            count += int(last or first) - int(first) + 1
    return count


def _meminfo(machine: Machine) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    text = machine.read("/proc/meminfo") or ""
    return {name: int(kb) * 1024 for name, kb in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}


@check(
    "host.processors",
    phase="before",
    question="Does the data loader start no more workers than there are processors?",
    why="loaders without processors keep an expensive GPU waiting for data",
)
def processors(context: Context) -> Result:
    """Processors that this process may use (affinity, quota of the container), against the loader's workers."""
    found, inputs = allowed(context.machine), context.inputs
    workers = inputs.workers
    row: dict[str, Any] = {
        "fact": f"{found.cpus:g} processors for this process, {workers}{inputs.star('workers')} loader workers",
        "processors": found.cpus,
        "workers": workers,
    }
    if found.cpus < found.cpus_of_machine:
        row["fact"] += f" (the machine has {found.cpus_of_machine}; a quota or an affinity says so)"
    if workers > found.cpus and "workers" not in inputs.given:
        # a default of ours is nothing to warn of: how many there are is the script's affair
        row["fact"] = (
            f"{found.cpus:g} processors for this process; how many workers the loader starts is not known"
        )
        return unknown(
            row, next=f"look for num_workers in the script: `--workers {max(int(found.cpus), 1)}` if so many"
        )
    if workers > found.cpus:
        return warn(row, next="fewer workers, or more processors: data_wait in the log shows what it costs")
    if workers == 0:
        return warn(row, next="without workers the GPU waits while each batch is made: give the loader some")
    return ok(row)


@check(
    "host.memory",
    phase="before",
    why="a process that outgrows its memory is killed without a word: status 137",
)
def memory(context: Context) -> Result:
    """Memory that is left to this process: the machine's, and the limit of its control group."""
    machine = context.machine
    found, facts = allowed(machine), _meminfo(machine)
    if "MemAvailable" not in facts:
        raise CannotLook("/proc/meminfo does not say how much is available")
    left = facts["MemAvailable"]
    text = f"{format_bytes(left)} available of {format_bytes(facts.get('MemTotal', 0))}"
    if found.memory_limit is not None and found.memory_limit < facts.get("MemTotal", _UNLIMITED):
        if found.memory_used is None:
            limit = format_bytes(found.memory_limit)
            raise CannotLook(f"the control group is limited to {limit}, and does not say how much is in use")
        group = max(found.memory_limit - found.memory_used, 0)
        left = min(left, group)
        text += f"; the control group is limited to {format_bytes(found.memory_limit)}, {format_bytes(group)} left"
    swap = facts.get("SwapTotal", 0)
    text += f"; {format_bytes(swap)} of swap" if swap else "; no swap"
    row = {"fact": text, "available_bytes": left}
    rows: list[dict[str, Any]] = [row]
    if found.kills:
        rows.append(
            {"fact": f"{found.kills:,} processes were killed here for want of memory", "killed": found.kills}
        )
    size = context.checkpoint_size
    if size is None:
        return warn(*rows, next="see what was killed: `dmesg`") if found.kills else ok(*rows)
    rows.append({"fact": f"a save in the background takes a copy of {format_bytes(size[0])} {size[1]}"})
    if left < size[0]:
        return warn(*rows, next="saves will be written from the GPU directly, and training waits for them")
    return warn(*rows, next="see what was killed: `dmesg`") if found.kills else ok(*rows)


@check(
    "host.shm",
    phase="before",
    why="loader workers hand batches over in /dev/shm; where it is full they die of SIGBUS",
)
def shared_memory(context: Context) -> Result:
    """Size of /dev/shm: Docker gives 64 MiB to a container that asks for nothing."""
    machine, inputs = context.machine, context.inputs
    machine.need_linux()
    try:
        facts = machine.statvfs(machine.path("/dev/shm"))
    except OSError as error:
        raise CannotLook(f"/dev/shm: {(error.strerror or str(error)).lower()}") from None
    size, free = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
    star = inputs.star("workers")
    row = {
        "fact": f"/dev/shm: {format_bytes(free)} free of {format_bytes(size)}, {inputs.workers}{star} loader workers",
        "free_bytes": free,
        "size_bytes": size,
    }
    if inputs.workers == 0:
        return not_applicable(row)
    todo = "`docker run --shm-size=16g` (or `--ipc=host`); Kubernetes: an emptyDir with medium Memory"
    if size <= _DOCKER_SHM:
        return fail(row, next=todo)
    if free < _SHM:
        return warn(row, next=f"{todo}; or remove what is left over in /dev/shm")
    return ok(row)


@check(
    "host.limits",
    phase="before",
    why="`Too many open files` comes hours in, when the loader has shared enough tensors",
)
def limits(context: Context) -> Result:
    """Open files, core dumps, locked memory (where there is InfiniBand)."""
    machine = context.machine
    machine.need_linux()
    text = machine.read("/proc/self/limits") or ""
    files, hard = _limit(text, "Max open files")
    core, _ = _limit(text, "Max core file size")
    locked, _ = _limit(text, "Max locked memory")
    if files is None:
        raise CannotLook("/proc/self/limits does not name open files")
    rows = [
        {"fact": f"open files: {_shown(files)} (up to {_shown(hard)})", "open_files": min(files, _UNLIMITED)}
    ]
    todo = []
    if files < _FILES:
        todo.append(f"`ulimit -n {min(65536, hard or 65536)}`")
    pattern = (machine.read("/proc/sys/kernel/core_pattern") or "").strip()
    if core and core > GIB and not pattern.startswith("|"):
        rows.append({"fact": "core dumps are on: a crash writes all of the memory onto the disk"})
        todo.append("`ulimit -c 0`")
    if machine.names("/sys/class/infiniband") and (locked or 0) < _UNLIMITED:
        rows.append({"fact": f"InfiniBand, and locked memory is limited to {_shown(locked)} bytes"})
        todo.append("`ulimit -l unlimited`")
    return warn(*rows, next=", ".join(todo)) if todo else ok(*rows)


def _limit(text: str, name: str) -> tuple[int | None, int | None]:
    match = re.search(rf"^{name}\s+(\S+)\s+(\S+)", text, re.MULTILINE)
    if match is None:
        return None, None
    soft, hard = (_UNLIMITED if word == "unlimited" else int(word) for word in match.groups())
    return soft, hard


def _shown(value: int | None) -> str:
    return "not known" if value is None else "unlimited" if value >= _UNLIMITED else f"{value:,}"


# --- clock and upgrades -----------------------------------------------------------------------------------


@check(
    "host.clock",
    phase="before",
    why="a clock that is off makes logs contradict each other, and S3 refuses from 15 minutes on",
)
def clock(context: Context) -> Result:
    """What the kernel says of its clock, whether it jumps, and whether the newest commit lies in the future."""
    machine = context.machine
    rows: list[str] = []
    refused: CannotLook | None = None
    try:
        repository = context.repository
    except CannotLook as error:
        repository, refused = None, error
    if repository is not None:
        output = repository.run("log", "-1", "--format=%ct", "--no-show-signature")
        ahead = int(output.out) - machine.time() if output.out.strip().isdigit() else 0.0
        if ahead > _AHEAD:
            text = (
                f"the newest commit is {format_duration(ahead)} in the future: one of the two clocks is wrong"
            )
            return fail(text, next="`timedatectl set-ntp true`, and look at `date`")
        if output.out.strip().isdigit():
            rows.append("the newest commit is not in the future")
    moved = machine.drift()
    if abs(moved) > _JUMP:
        text = f"the wall clock moved by {moved:+.3f} s against the monotonic one within a moment"
        return warn({"fact": text, "drift_seconds": moved}, *rows, next="see which two programs set it")
    state = machine.clock()
    if state is None:
        return unknown("the kernel does not say whether its clock is kept in step", *rows)
    if not state.synchronised:
        text = "the kernel's clock is not kept in step (adjtimex: unsynchronised)"
        where: str = mounts.container(machine)
        first = (machine.read("/proc/1/comm") or "").strip()
        if not where and first and first not in _INIT:
            where = f"a container (its first process is {one_line(first)})"
        if where:  # whose kernel is the host's: nothing can be set from here, and often nothing seen
            text += f"; in {where} that is the host's affair"
            return unknown(
                text, *rows, next="on the host: `timedatectl` says whether its clock is kept in step"
            )
        return warn(text, *rows, next="`timedatectl set-ntp true`")
    off = format_duration(state.error_seconds)
    row = {"fact": f"kept in step, at most {off} off", "error_seconds": state.error_seconds}
    if refused is not None:
        text = f"whether the newest commit lies in the future could not be seen: {refused}"
        return unknown(row, text, next=refused.next)
    return ok(row, *rows)


@check(
    "host.upgrades",
    phase="before",
    why="unattended upgrades exchange the GPU's driver in the middle of a run: 50 restarts in one project",
)
def upgrades(context: Context) -> Result:
    """Whether apt upgrades packages by itself, on a machine with an NVIDIA driver."""
    machine = context.machine
    if not devices(machine) and not machine.path("/proc/driver/nvidia").exists():
        return not_applicable("no NVIDIA GPU here, so no driver that could be exchanged")
    if not machine.path("/etc/apt").is_dir():
        return not_applicable("no apt on this machine")
    said = ""
    for name in machine.names("/etc/apt/apt.conf.d"):
        text = machine.read(f"/etc/apt/apt.conf.d/{name}") or ""
        for value in re.findall(r'^\s*APT::Periodic::Unattended-Upgrade\s+"([^"]*)"', text, re.MULTILINE):
            said = value
    if said in {"", "0"}:
        return ok("apt upgrades nothing by itself")
    text = f"apt upgrades by itself (Unattended-Upgrade {one_line(said)!r}), the driver too unless it is held"
    return warn(
        text, next="`sudo apt-mark hold` the nvidia packages, or switch it off for the time of the run"
    )

"""The machine: GPUs and their driver, processors, memory, clock, and what ends with an SSH connection."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from preflight_world import GPU, LAPTOP, Space, facts, machine, result

from loadsheet.cloud import gpus, probe
from loadsheet.cloud.checklist import Result
from loadsheet.cloud.checks import host as host_checks
from loadsheet.cloud.machine import Machine, Output
from loadsheet.cloud.probe import Clock
from loadsheet.cloud.session import session

pytestmark = pytest.mark.usefixtures("offline")

MIB = 1 << 20
GPU_CHECKS = ("gpu.driver", "gpu.visible", "gpu.memory", "gpu.errors", "gpu.strangers", "gpu.log")

# --- GPUs -----------------------------------------------------------------------------------------------------

#: one line of `nvidia-smi --query-gpu=…`, in the order in which it is asked for
LINE = (
    "0, NVIDIA A10G, GPU-1, 550.90.07, 23028, {used}, {free}, {ecc}, {now}, {ever}, {pending}, [N/A], 0, 60.1"
)


def smi(
    *lines: str, users: str = "", rows: str = "", status: int = 0, dmesg: Output | None = None
) -> Callable[[Sequence[str]], Output | None]:
    """An nvidia-smi that answers so."""

    def play(words: Sequence[str]) -> Output | None:
        if words[0] == "dmesg":
            return dmesg
        if words[0] != "nvidia-smi":
            return None
        if words[1].startswith("--query-gpu="):
            return Output(status, "\n".join(lines) + "\n")
        return Output(0, users if "compute-apps" in words[1] else rows)

    return play


def line(**change: str) -> str:
    """A GPU in order, changed."""
    given = {"used": "1", "free": "22500", "ecc": "Enabled", "now": "0", "ever": "0", "pending": "No"}
    return LINE.format(**{**given, **change})


def look(
    tmp_path: Path, answers: Any, id: str, files: dict[str, str | None] | None = None, **values: Any
) -> Result:
    """One check on a machine with a GPU."""
    host = machine(tmp_path / "root", {**GPU, **(files or {})}, answers=answers)
    return result(tmp_path, host, id, **values)


@pytest.mark.parametrize("id", GPU_CHECKS)
def test_without_a_gpu(id: str, tmp_path: Path) -> None:
    """Nothing to look at on a laptop; but unknown if the training takes one: it is not this machine."""
    host = machine(tmp_path / "root")
    assert result(tmp_path, host, id).state == "not_applicable"
    assert result(tmp_path, host, id, gpus=1).state == "unknown"


@pytest.mark.parametrize("id", GPU_CHECKS)
def test_where_the_bus_cannot_be_seen(id: str, tmp_path: Path) -> None:
    """unknown, not "no GPU"."""
    host = machine(tmp_path / "root", system="darwin")
    shutil.rmtree(tmp_path / "root" / "sys" / "bus")
    assert result(tmp_path, host, id).state == "unknown"


def test_a_gpu_of_another_maker(tmp_path: Path) -> None:
    """It is there and not looked at: unknown."""
    files = {"/sys/bus/pci/devices/1/vendor": "0x1002\n", "/sys/bus/pci/devices/1/class": "0x030200\n"}
    found = result(tmp_path, machine(tmp_path / "root", files), "gpu.visible")
    assert (found.state, "AMD" in facts(found)) == ("unknown", True)


#: what nvidia-smi says, and its status; texts and numbers as NVIDIA's program has them
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.90"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running."
)


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        (MISMATCH, 18, "keep the driver from being upgraded"),
        (NO_DRIVER, 9, "install the driver"),
        ("No devices were found", 6, ""),
    ],
)
def test_a_driver_that_does_not_answer(said: str, status: int, words: str, tmp_path: Path) -> None:
    """It fails once, with what it says and what to do; the other checks could not look (story 12)."""
    answers = smi(said, status=status)
    found = look(tmp_path, answers, "gpu.driver")
    assert found.state == "fail"
    assert said.splitlines()[0][:60] in facts(found)
    assert f"status {status}" in facts(found)
    assert words in found.next
    for id in GPU_CHECKS[1:]:
        assert look(tmp_path, answers, id).state == "unknown"


def test_a_real_program_that_plays_nvidia_smi(tmp_path: Path) -> None:
    """The same through PATH and a process: text on stdout, status 18."""
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{MISMATCH}\nEND\nexit 18\n")
    script.chmod(0o755)
    host = machine(tmp_path / "root", GPU)
    host._programs = None
    host.environment["PATH"] = f"{script.parent}:/usr/bin:/bin"
    found = result(tmp_path, host, "gpu.driver")
    assert (found.state, "Driver/library version mismatch" in facts(found)) == ("fail", True)
    assert "the kernel module is 550.90.07" in facts(found)


def test_a_gpu_without_a_driver(tmp_path: Path) -> None:
    """On the bus, and no program that answers: a container that was started without its GPUs."""
    found = look(tmp_path, None, "gpu.driver", {"/proc/driver/nvidia/version": None})
    assert (found.state, "--gpus all" in found.next) == ("fail", True)


def test_nvidia_smi_without_a_gpu(tmp_path: Path) -> None:
    """The driver's programs may be installed where there is no GPU."""
    host = machine(tmp_path / "root", answers=smi(NO_DRIVER, status=9))
    assert result(tmp_path, host, "gpu.driver").state == "not_applicable"


@pytest.mark.parametrize("id", GPU_CHECKS[:-1])
def test_a_gpu_in_order(id: str, tmp_path: Path) -> None:
    """Every check is ok."""
    expected = "fail" if id == "gpu.driver" and _cpu_torch() else "ok"  # of the PyTorch of the tests
    assert look(tmp_path, smi(line()), id).state == expected


def test_kernel_module_and_library(tmp_path: Path) -> None:
    """Of two versions, although the driver still answers: the next program will not start."""
    other = GPU["/proc/driver/nvidia/version"].replace("550.90.07", "550.54.15")
    found = look(tmp_path, smi(line()), "gpu.driver", {"/proc/driver/nvidia/version": other})
    assert (found.state, "550.54.15" in facts(found)) == ("fail", True)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\n", "ok"),
        ("__version__ = '2.9.0+cu130'\ncuda: str | None = '13.0'\n", "fail"),  # takes 580
        ("__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\n", "fail"),
        ("__version__ = '9.0+cu150'\ncuda: Optional[str] = '15.0'\n", "unknown"),
        ("nothing that is known\n", "unknown"),
        (None, "ok"),
    ],
)
def test_driver_and_the_cuda_of_pytorch(text: str | None, state: str, tmp_path: Path) -> None:
    """CUDA 13 takes a driver from 580, 12 from 525 (NVIDIA, CUDA Compatibility); a build without CUDA fails."""
    from loadsheet.cloud.carry_out import carry_out
    from loadsheet.cloud.context import Context
    from loadsheet.cloud.registry import select

    path = tmp_path / "version.py"
    if text is not None:
        path.write_text(text)
    host = machine(tmp_path / "root", GPU, answers=smi(line()))
    context = Context(tmp_path, None, host, options={"torch_version_file": path})
    ((_, found),) = carry_out(select(["gpu.driver"]), context)
    assert found.state == state


def test_the_installed_pytorch_is_read_and_not_imported(tmp_path: Path) -> None:
    """Its version is the one that the installer has noted; a build for the CPU says `+cpu`."""
    import importlib.metadata

    code = (
        "import sys; from pathlib import Path; from loadsheet.cloud.checks.gpu import _torch_build\n"
        "from loadsheet.cloud.context import Context; version, cuda = _torch_build(Context(Path('.')))\n"
        "print(version, cuda is None, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    version, without_cuda, imported = done.stdout.split()
    assert (version, imported) == (importlib.metadata.version("torch"), "False")
    if "+" in version:  # the index of PyTorch names the build, the one of Python does not
        assert without_cuda == str("+cu" not in version)


@pytest.mark.parametrize(
    ("values", "hidden", "state"),
    [
        ({}, None, "ok"),
        ({"gpus": 2}, None, "ok"),
        ({"gpus": 3}, None, "fail"),
        ({"gpus": 1}, None, "warn"),
        ({}, "", "fail"),
        ({}, "-1", "fail"),
        ({"gpus": 2}, "0", "fail"),
        ({"gpus": 1}, "0", "ok"),
    ],
)
def test_as_many_as_were_paid_for(
    values: dict[str, int], hidden: str | None, state: str, tmp_path: Path
) -> None:
    """Two GPUs, some of them hidden from CUDA."""
    environment = {} if hidden is None else {"CUDA_VISIBLE_DEVICES": hidden}
    lines = line(), line().replace("0, NVIDIA", "1, NVIDIA").replace("GPU-1", "GPU-2")
    host = machine(tmp_path / "root", GPU, answers=smi(*lines), environment=environment)
    assert result(tmp_path, host, "gpu.visible", **values).state == state


@pytest.mark.parametrize(
    ("used", "peak", "state"),
    [
        ("1", None, "ok"),
        ("9000", None, "warn"),
        ("1", (10e9, 12e9), "ok"),
        ("1", (30e9, 31e9), "fail"),
        ("12028", (10e9, 12e9), "warn"),  # 11,000 MiB free are 11.5 GB
        ("14000", (10e9, 12e9), "fail"),  # 9,028 MiB free are 9.5 GB
        ("[N/A]", (10e9, 12e9), "unknown"),
        ("ERR!", None, "unknown"),
    ],
)
def test_free_memory(used: str, peak: tuple[float, float] | None, state: str, tmp_path: Path) -> None:
    """Against the sheet's peak: below the middle fails, below the upper end warns."""
    from test_preflight_disk import sheet

    values: dict[str, Any] = {}
    if peak:
        memory = {"peak_bytes": {"low": 0, "mid": peak[0], "high": peak[1]}}
        values["sheet"] = sheet(tmp_path / "s.json", memory=memory)
    assert look(tmp_path, smi(line(used=used)), "gpu.memory", **values).state == state


@pytest.mark.parametrize(
    ("change", "rows", "state"),
    [
        ({}, "GPU-1, No, No", "ok"),
        ({"now": "2", "ever": "2"}, "", "fail"),
        ({"ever": "2"}, "", "warn"),
        ({"pending": "Yes"}, "", "warn"),
        ({}, "GPU-1, Yes, No", "warn"),
        ({}, "GPU-1, 0, 1", "fail"),
        ({"ecc": "Disabled"}, "", "warn"),
        ({"ecc": "[N/A]", "now": "[N/A]", "ever": "[N/A]", "pending": "[N/A]"}, "", "not_applicable"),
    ],
)
def test_memory_errors(change: dict[str, str], rows: str, state: str, tmp_path: Path) -> None:
    """Uncorrected errors since the driver was loaded, in its life, rows that wait or could not be replaced."""
    assert look(tmp_path, smi(line(**change), rows=rows), "gpu.errors").state == state


def test_strangers(tmp_path: Path) -> None:
    """Their name and pid; memory that nobody visible holds; and not the training that is asked about."""
    users = "GPU-1, 777, python, with, commas, 8000\n"
    found = look(tmp_path, smi(line(used="8001"), users=users), "gpu.strangers")
    assert (found.state, "pid 777, 7.81 GiB" in facts(found)) == ("warn", True)
    assert look(tmp_path, smi(line(used="8001"), users=users), "gpu.strangers", pid=777).state == "ok"
    found = look(tmp_path, smi(line(used="8001")), "gpu.strangers")
    assert (found.state, "not seen from here" in facts(found)) == ("warn", True)


def test_strangers_that_could_not_be_listed(tmp_path: Path) -> None:
    """nvidia-smi refuses its second question, or NVML does: nobody said that nobody is there."""

    def refusing(words: Sequence[str]) -> Output | None:
        return Output(6, "", "no") if "compute-apps" in words[1] else smi(line())(words)

    assert look(tmp_path, refusing, "gpu.strangers").state == "unknown"
    played = nvml()

    def refuse(handle: object) -> None:
        raise played.NVMLError("not permitted")

    played.nvmlDeviceGetComputeRunningProcesses = refuse
    found = result(tmp_path, machine(tmp_path / "a", GPU, nvml=played), "gpu.strangers")
    assert found.state == "unknown"
    # nobody seen, and the driver does not say what is in use
    assert look(tmp_path, smi(line(used="[N/A]")), "gpu.strangers").state == "unknown"


def test_a_sheet_that_cannot_be_read_counts_no_gpus(tmp_path: Path) -> None:
    """It may say that more are needed."""
    (tmp_path / "s.json").write_text("{")
    assert look(tmp_path, smi(line()), "gpu.visible", sheet=tmp_path / "s.json").state == "unknown"


@pytest.mark.parametrize(
    ("output", "state"),
    [
        (Output(0, "[1.0] eth0: up\n"), "ok"),
        (Output(0, "[9.9] NVRM: Xid (PCI:0000:00:1e): 79, pid=1, GPU has fallen off the bus.\n"), "warn"),
        (Output(0, ""), "unknown"),
        (Output(1, "", "dmesg: read kernel buffer failed: Operation not permitted"), "unknown"),
        (None, "unknown"),
    ],
)
def test_the_kernel_s_log(output: Output | None, state: str, tmp_path: Path) -> None:
    """Xid errors warn; a log that may not be read is unknown."""
    assert look(tmp_path, smi(line(), dmesg=output), "gpu.log").state == state


@pytest.mark.parametrize("text", ["", "garbage", "0, A10G", "x" * 100_000, "\x00\xff, , , ,\n"])
def test_what_is_no_answer(text: str, tmp_path: Path) -> None:
    """A program that answers something else could not be asked: never ok, never a crash."""
    for id in GPU_CHECKS:
        found = look(tmp_path, smi(text), id)
        assert found.state in {"fail", "unknown"}
        assert "this check itself failed" not in facts(found)


def nvml(**change: Any) -> Any:
    """NVML as nvidia-ml-py has it, for one GPU in order; the names are checked against the real module below."""

    class Error(Exception):
        pass

    def refuse(*_: object) -> None:
        raise Error("Not Supported")

    process = SimpleNamespace(pid=777, usedGpuMemory=8000 * MIB)
    functions = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"550.90.07",
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID": lambda handle: "GPU-1",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 << 30, used=8001 * MIB, free=0),
        "nvmlDeviceGetEccMode": lambda handle: [1, 1],
        "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: {0: 0, 1: 3}[counter],
        "nvmlDeviceGetRemappedRows": lambda handle: (0, 1, 1, 0),
        "nvmlDeviceGetRetiredPagesPendingStatus": refuse,
        "nvmlDeviceGetMigMode": refuse,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [process],
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "NVML_AGGREGATE_ECC": 1,
        "NVMLError": Error,
    }
    return SimpleNamespace(**{**functions, **change})


def test_through_nvml(tmp_path: Path) -> None:
    """The same figures without nvidia-smi."""
    host = machine(tmp_path / "root", GPU, nvml=nvml())
    found = gpus.gpus(host)
    assert (found.driver, found.through) == ("550.90.07", "NVML")
    (gpu,) = found.gpus
    assert (gpu.total, gpu.free) == (80 << 30, (80 << 30) - 8001 * MIB)
    assert (gpu.ecc, gpu.uncorrected, gpu.uncorrected_ever, gpu.pending, gpu.failed, gpu.mig) == (
        True, 0, 3, True, False, None,
    )  # fmt: skip
    assert gpu.users == (gpus.User(777, "", 8000 * MIB),)
    states = {id: result(tmp_path, host, id).state for id in GPU_CHECKS[:-1]}
    assert states == {
        "gpu.driver": "fail" if _cpu_torch() else "ok", "gpu.visible": "ok", "gpu.memory": "warn",
        "gpu.errors": "warn", "gpu.strangers": "warn",
    }  # fmt: skip


def _cpu_torch() -> bool:
    import importlib.metadata

    return "+cpu" in importlib.metadata.version("torch")


def test_nvml_without_its_library(tmp_path: Path) -> None:
    """nvidia-ml-py is installed and the driver is not: nvidia-smi and the bus decide."""
    played = nvml()

    def missing() -> None:
        raise played.NVMLError("NVML Shared Library Not Found")

    played.nvmlInit = missing
    assert result(tmp_path, machine(tmp_path / "a", nvml=played), "gpu.driver").state == "not_applicable"
    found = result(tmp_path, machine(tmp_path / "b", GPU, nvml=played, answers=smi(line())), "gpu.visible")
    assert found.state == "ok"


def test_nvml_with_a_mismatch(tmp_path: Path) -> None:
    """What it says is what counts; nvidia-smi would say the same."""
    played = nvml()

    def mismatch() -> None:
        raise played.NVMLError("Driver/library version mismatch")

    played.nvmlInit = mismatch
    found = result(tmp_path, machine(tmp_path / "root", GPU, nvml=played), "gpu.driver")
    assert (found.state, "mismatch" in facts(found)) == ("fail", True)


def test_nvml_has_what_is_asked_of_it() -> None:
    """Every name that the player plays is one of the real module."""
    pynvml = pytest.importorskip("pynvml")
    assert [name for name in vars(nvml()) if not hasattr(pynvml, name)] == []


# --- the machine around it --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "workers", "state", "cpus"),
    [
        ({}, 8, "ok", 8),
        ({}, 9, "warn", 8),
        ({}, 0, "warn", 8),
        ({"/proc/self/status": "Cpus_allowed_list:\t0-1,5\n"}, 4, "warn", 3),
        ({"/sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n"}, 2, "warn", 1.5),
        ({"/sys/fs/cgroup/user.slice/cpu.max": "max 100000\n"}, 8, "ok", 8),
        (
            {
                "/proc/self/cgroup": "4:cpu,cpuacct:/docker/ab\n",
                "/sys/fs/cgroup/cpu/docker/ab/cpu.cfs_quota_us": "200000\n",
                "/sys/fs/cgroup/cpu/docker/ab/cpu.cfs_period_us": "100000\n",
            },
            3, "warn", 2,
        ),
    ],
)  # fmt: skip
def test_processors(files: dict[str, str], workers: int, state: str, cpus: float, tmp_path: Path) -> None:
    """Affinity and quotas of both kinds of control groups count, not what the machine has."""
    host = machine(tmp_path / "root", {"/proc/self/cgroup": "0::/user.slice/x.scope\n", **files})
    found = result(tmp_path, host, "host.processors", workers=workers)
    assert (found.state, found.evidence[0]["processors"]) == (state, cpus)


@pytest.mark.parametrize(("cpus", "state"), [("0-7", "ok"), ("0-1", "unknown")])
def test_workers_that_nobody_named(cpus: str, state: str, tmp_path: Path) -> None:
    """A default of ours is no reason to warn: it is asked, and an answer counts."""
    host = machine(tmp_path / "root", {"/proc/self/status": f"Cpus_allowed_list:\t{cpus}\n"})
    found = result(tmp_path, host, "host.processors")
    assert found.state == state
    assert ("num_workers" in found.next) == (state == "unknown")


def test_this_machine_s_processors() -> None:
    """As Python counts those that this process may use, where no quota is set."""
    found = host_checks.allowed(Machine())
    assert 0 < found.cpus <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "size", "state", "left"),
    [
        ({}, None, "ok", 20_000_000 * 1024),
        ({}, 10**9, "ok", 20_000_000 * 1024),
        ({}, 30 * 10**9, "warn", 20_000_000 * 1024),
        (
            {"/sys/fs/cgroup/job/memory.max": "1000000000\n", "/sys/fs/cgroup/job/memory.current": "400000000\n"},
            7 * 10**8, "warn", 6 * 10**8,
        ),
        ({"/sys/fs/cgroup/job/memory.max": "1000000000\n"}, None, "unknown", None),  # in use: nobody says
        ({"/sys/fs/cgroup/job/memory.max": "max\n"}, None, "ok", 20_000_000 * 1024),
        ({"/sys/fs/cgroup/job/memory.events": "low 0\noom 3\noom_kill 2\n"}, None, "warn", 20_000_000 * 1024),
        ({"/proc/meminfo": "MemTotal: 1 kB\n"}, None, "unknown", None),
    ],
)  # fmt: skip
def test_memory(
    files: dict[str, str], size: int | None, state: str, left: int | None, tmp_path: Path
) -> None:
    """What is available, the control group's limit, earlier kills, and a checkpoint's copy."""
    host = machine(tmp_path / "root", {"/proc/self/cgroup": "0::/job\n", **files})
    values = {} if size is None else {"checkpoint_bytes": size}
    found = result(tmp_path, host, "host.memory", **values)
    assert (found.state, found.evidence[0].get("available_bytes")) == (state, left)


@pytest.mark.parametrize(
    ("size", "free", "workers", "state"),
    [
        (64 * MIB, 64 * MIB, 4, "fail"),  # what Docker gives
        (64 * MIB, 64 * MIB, 0, "not_applicable"),
        (16 << 30, 12 << 30, 4, "ok"),
        (16 << 30, 100 * MIB, 4, "warn"),
        (512 * MIB, 512 * MIB, 4, "warn"),
    ],
)
def test_shared_memory(size: int, free: int, workers: int, state: str, tmp_path: Path) -> None:
    """/dev/shm, against loader workers."""
    host = machine(tmp_path / "root", statvfs=lambda path: Space(free, size=size))
    assert result(tmp_path, host, "host.shm", workers=workers).state == state


LIMITS = (
    "Max core file size  {core}  unlimited  bytes\nMax locked memory  {lock}  {lock}  bytes\n"
    "Max open files  {files}  524288  files\n"
)


@pytest.mark.parametrize(
    ("change", "more", "state"),
    [
        ({}, {}, "ok"),
        ({"files": "1024"}, {}, "warn"),
        ({"files": "unlimited"}, {}, "ok"),
        ({"core": "unlimited"}, {}, "warn"),
        ({"core": "unlimited"}, {"/proc/sys/kernel/core_pattern": "|/usr/bin/coredump %p\n"}, "ok"),
        ({}, {"/sys/class/infiniband/mlx5_0/x": ""}, "warn"),
        ({"lock": "unlimited"}, {"/sys/class/infiniband/mlx5_0/x": ""}, "ok"),
    ],
)
def test_limits(change: dict[str, str], more: dict[str, str], state: str, tmp_path: Path) -> None:
    """Open files; core dumps that would land on the disk; locked memory only where there is InfiniBand."""
    text = LIMITS.format(**{"core": "0", "lock": "8388608", "files": "65536", **change})
    host = machine(tmp_path / "root", {"/proc/self/limits": text, **more})
    assert result(tmp_path, host, "host.limits").state == state


@pytest.mark.parametrize(
    ("clock", "state"), [(Clock(True, 0.01), "ok"), (Clock(False, 16.0), "warn"), (None, "unknown")]
)
def test_clock(clock: Clock | None, state: str, tmp_path: Path) -> None:
    """Kept in step, not, or not to be asked."""
    assert result(tmp_path, machine(tmp_path / "root", clock=lambda: clock), "host.clock").state == state


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"/.dockerenv": ""}, "unknown"), ({"/proc/1/comm": "python3\n"}, "unknown"),
        ({"/proc/1/comm": "systemd\n"}, "warn"), ({}, "warn"),
    ],
)  # fmt: skip
def test_a_container_s_clock(files: dict[str, str], state: str, tmp_path: Path) -> None:
    """Is its host's, which cannot be seen or set from inside: not known, and no alarm."""
    host = machine(tmp_path / "root", files, clock=lambda: Clock(False, 16.0))
    found = result(tmp_path, host, "host.clock")
    assert (found.state, "on the host" in found.next) == (state, state == "unknown")


def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock is set back by an hour while the monotonic one goes on; a busy machine is no jump."""
    host = machine(tmp_path / "root", drift=lambda: -3600.0)
    found = result(tmp_path, host, "host.clock")
    assert (found.state, "-3600.000 s" in facts(found)) == ("warn", True)
    readings, held = {"monotonic": 0.0}, random.Random(1)

    def monotonic() -> float:
        readings["monotonic"] += held.choice([1e-6, 0.2])  # held up between two looks, now and then
        return readings["monotonic"]

    monkeypatch.setattr(probe.time, "monotonic", monotonic)
    monkeypatch.setattr(probe.time, "time", lambda: 1e9 + readings["monotonic"])
    monkeypatch.setattr(probe.time, "sleep", lambda seconds: None)
    assert abs(probe.wall_drift()) < 1e-3
    monkeypatch.setattr(
        probe.time, "sleep", lambda seconds: readings.update(monotonic=readings["monotonic"] + 5)
    )
    assert abs(probe.wall_drift()) < 1e-3
    walls = iter([1e9] * 9 + [1e9 - 3600] * 9)
    monkeypatch.setattr(probe.time, "time", lambda: next(walls) + readings["monotonic"])
    assert probe.wall_drift() == pytest.approx(-3600, abs=1e-3)


def test_a_commit_in_the_future(tmp_path: Path) -> None:
    """One of the two clocks is wrong, by hours: without any network."""
    from preflight_world import Repo

    repo = Repo(tmp_path / "repo")
    repo.commit()  # of 2026-01-01
    committed = 1_767_225_600
    for now, state in ((committed + 10, "ok"), (committed - 200, "ok"), (committed - 7200, "fail")):
        host = machine(tmp_path / "root", time=lambda now=now: now)
        assert result(repo.path, host, "host.clock").state == state


def test_the_kernel_s_clock() -> None:
    """The same status as the kernel's interface for programs in C says (adjtimex through another structure)."""
    found = probe.clock()
    if found is None:
        pytest.skip("no adjtimex here")
    import ctypes

    # struct timex of <sys/timex.h>: modes, then longs; status is the int behind offset, freq, maxerror, esterror
    whole = (ctypes.c_long * 64)()
    ctypes.CDLL(None).adjtimex(ctypes.byref(whole))
    status = ctypes.cast(ctypes.byref(whole, 5 * ctypes.sizeof(ctypes.c_long)), ctypes.POINTER(ctypes.c_int))[
        0
    ]
    state = ctypes.CDLL(None).ntp_gettime(ctypes.byref((ctypes.c_long * 16)()))
    assert found.synchronised == (state != 5 and not status & 0x40)


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({}, "ok"),
        ({"/etc/apt/apt.conf.d/20auto-upgrades": 'APT::Periodic::Unattended-Upgrade "1";\n'}, "warn"),
        ({"/etc/apt/apt.conf.d/20auto-upgrades": 'APT::Periodic::Unattended-Upgrade "0";\n'}, "ok"),
        (
            {
                "/etc/apt/apt.conf.d/20auto-upgrades": 'APT::Periodic::Unattended-Upgrade "1";\n',
                "/etc/apt/apt.conf.d/99mine": 'APT::Periodic::Unattended-Upgrade "0";\n',
            },
            "ok",
        ),
        ({"/etc/apt/apt.conf.d/20auto-upgrades": '// APT::Periodic::Unattended-Upgrade "1";\n'}, "ok"),
    ],
)
def test_upgrades(files: dict[str, str], state: str, tmp_path: Path) -> None:
    """apt that upgrades by itself, the last file counts; without a GPU there is no driver to exchange."""
    files = {"/etc/apt/sources.list": "", **files}
    assert result(tmp_path, machine(tmp_path / "gpu", {**GPU, **files}), "host.upgrades").state == state
    assert result(tmp_path, machine(tmp_path / "none", files), "host.upgrades").state == "not_applicable"


@pytest.mark.parametrize(
    "id", ["host.processors", "host.memory", "host.shm", "host.limits", "session.survives"]
)
def test_off_linux(id: str, tmp_path: Path) -> None:
    """unknown, with the reason."""
    host = machine(tmp_path / "root", system="darwin")
    shutil.rmtree(tmp_path / "root" / "proc")
    found = result(tmp_path, host, id)
    assert (found.state, "no /proc here" in facts(found)) == ("unknown", True)


# --- what ends with the connection --------------------------------------------------------------------------------


def chain(*names: str, terminal: int = 34816, first: int = 1) -> dict[str, str | None]:
    """Ancestors, the innermost first; the last one is process `first`."""
    files: dict[str, str | None] = dict.fromkeys(k for k in LAPTOP if k.endswith("/stat"))
    pids = [500 - 10 * n for n in range(len(names) - 1)] + [first]
    for n, (pid, name) in enumerate(zip(pids, names, strict=True)):
        parent = pids[n + 1] if n + 1 < len(pids) else 0
        path = "self" if n == 0 else str(pid)
        files[f"/proc/{path}/stat"] = (
            f"{pid} ({name}) S {parent} {pid} {pid} {terminal if n < 2 else 0} -1 4194304"
        )
    return files


SSH = chain("python", "bash", "sshd", "sshd", "sshd", "systemd")
TMUX = chain("python", "bash", "tmux: server", "systemd")
LOGIN = {"/proc/self/cgroup": "0::/user.slice/user-1000.slice/session-7.scope\n"}
KILLS = {"/etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=no\nKillUserProcesses=yes\n"}
NOHUP = {"/proc/self/status": "Name:\tpython\nSigIgn:\t0000000001001001\n"}
SPAWNED = {
    "/proc/self/cgroup": "0::/user.slice/user-1000.slice/user@1000.service/tmux.slice/tmux-spawn-1.scope\n"
}
LINGER = {"/var/lib/systemd/linger/ada": ""}
SERVICE = {"/proc/self/cgroup": "0::/system.slice/train.service\n"}
CRON = {"/proc/self/cgroup": "0::/system.slice/cron.service\n"}
OWN = {"/proc/self/cgroup": "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.service\n"}
DOCKER = {"/.dockerenv": "", "/proc/self/cgroup": "0::/\n"}

SESSIONS: dict[str, tuple[dict[str, str | None], dict[str, str], str]] = {
    "a closed SSH session": ({**SSH, **LOGIN}, {"SSH_CONNECTION": "a 1 b 22"}, "warn"),
    "SSH without its variable": ({**SSH, **LOGIN}, {}, "warn"),
    "OpenSSH 9.8": (chain("python", "bash", "sshd-session", "sshd", "systemd"), {}, "warn"),
    "SSH through sudo": (chain("python", "bash", "su", "sudo", "bash", "sshd", "systemd"), {}, "warn"),
    "tmux": ({**TMUX, **LOGIN}, {"TMUX": "/tmp/x", "SSH_CONNECTION": "a 1 b 22"}, "ok"),
    "TMUX is set, but nothing holds it": ({**SSH, **LOGIN}, {"TMUX": "/tmp/x"}, "warn"),
    "screen": ({**chain("python", "bash", "screen", "systemd"), **LOGIN}, {"STY": "1.x"}, "ok"),
    "SCREEN": ({**chain("python", "bash", "SCREEN", "systemd"), **LOGIN}, {}, "ok"),
    "zellij": ({**chain("python", "zsh", "zellij", "systemd"), **LOGIN}, {}, "ok"),
    "mosh": ({**chain("python", "bash", "mosh-server", "systemd"), **LOGIN}, {"SSH_CONNECTION": "a 1 b 22"}, "ok"),
    "nohup": ({**SSH, **LOGIN, **NOHUP}, {}, "ok"),
    "tmux, and systemd kills at logout": ({**TMUX, **LOGIN, **KILLS}, {}, "warn"),
    "nohup, and systemd kills at logout": ({**SSH, **LOGIN, **NOHUP, **KILLS}, {}, "warn"),
    "tmux, systemd kills, but lingers": ({**TMUX, **LOGIN, **KILLS, **LINGER}, {}, "ok"),
    "a drop-in has the last word": (
        {**TMUX, **LOGIN, **KILLS, "/etc/systemd/logind.conf.d/x.conf": "[Login]\nKillUserProcesses=no\n"}, {}, "ok",
    ),
    "tmux below the user's manager": ({**TMUX, **SPAWNED}, {}, "warn"),
    "tmux below the user's manager, lingers": ({**TMUX, **SPAWNED, **LINGER}, {}, "ok"),
    "a service": ({**chain("python", "systemd", terminal=0), **SERVICE}, {"INVOCATION_ID": "x"}, "ok"),
    "Slurm": (chain("python", "slurm_script", "slurmstepd", "systemd", terminal=0), {"SLURM_JOB_ID": "1"}, "ok"),
    "srun --pty": (chain("python", "bash", "slurmstepd", "systemd"), {"SLURM_PTY_PORT": "1"}, "warn"),
    "salloc, on the login node": ({**SSH, **LOGIN}, {"SLURM_JOB_ID": "1"}, "warn"),
    "VS Code": (chain("python", "bash", "node", "sh", "systemd"), {"VSCODE_IPC_HOOK_CLI": "x"}, "warn"),
    "Jupyter": (chain("python", "jupyter-lab", "systemd", terminal=0), {"JPY_PARENT_PID": "1"}, "warn"),
    "a container's own process": ({**chain("python", terminal=0), **DOCKER}, {}, "ok"),
    "docker exec": ({**chain("python", "bash", first=77), **DOCKER}, {}, "warn"),
    "docker exec, detached": ({**chain("python", "bash", first=77, terminal=0), **DOCKER}, {}, "ok"),
    "tmux in a container": ({**chain("python", "bash", "tmux: server", first=77), **DOCKER}, {}, "ok"),
    "sshd in a container": ({**chain("python", "bash", "sshd", "sshd"), **DOCKER}, {}, "warn"),
    "kubectl exec": (chain("python", "bash", first=77), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "warn"),
    "cron": ({**chain("python", "sh", "cron", "systemd", terminal=0), **CRON}, {}, "ok"),
    "a service of the user": ({**chain("python", "systemd", "systemd", terminal=0), **OWN}, {}, "warn"),
    "a service of the user, lingers": ({**chain("python", "systemd", terminal=0), **OWN, **LINGER}, {}, "ok"),
    "a laptop's own window": ({}, {}, "not_applicable"),
    "a name with brackets": (chain("py) S 1 (x", "bash", "sshd", "systemd"), {}, "warn"),
}  # fmt: skip


@pytest.mark.parametrize("name", SESSIONS)
def test_what_outlives_a_connection(name: str, tmp_path: Path) -> None:
    """By the ancestors, the control group, the signals that are ignored; variables alone prove nothing."""
    files, environment, state = SESSIONS[name]
    host = machine(tmp_path / "root", files, environment=environment)
    found = result(tmp_path, host, "session.survives")
    assert found.state == state, facts(found)
    assert found.next or state != "warn"


def test_another_process(tmp_path: Path) -> None:
    """`--pid`: a training that runs already, started with nohup; and one that does not exist."""
    files = {
        **SSH, "/proc/900/stat": "900 (python) S 1 900 900 0 -1 4194304",
        "/proc/900/status": "Name:\tpython\nSigIgn:\t0000000000000001\n",
    }  # fmt: skip
    host = machine(tmp_path / "root", files)
    assert result(tmp_path, host, "session.survives").state == "warn"
    assert result(tmp_path, host, "session.survives", pid=900).state == "ok"
    found = result(tmp_path, host, "session.survives", pid=901)
    assert (found.state, "no process 901" in facts(found)) == ("unknown", True)


def test_real_processes(tmp_path: Path) -> None:
    """This process, and a child under nohup, as the real /proc describes them."""
    assert session(Machine(), None).chain[0].pid == os.getpid()
    if shutil.which("nohup") is None:
        pytest.skip("no nohup here")
    code = "import sys; sys.stdout.write('up\\n'); sys.stdout.flush(); sys.stdin.read()"
    for words, ignored in (
        (["nohup", sys.executable, "-c", code], True),
        ([sys.executable, "-c", code], False),
    ):
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509  (the tests may be under nohup)
        ) as child:  # fmt: skip
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
            found = session(Machine(), child.pid)
            assert found.hangup_ignored is ignored
            assert [p.pid for p in found.chain[:2]] == [child.pid, os.getpid()]
            assert child.stdin is not None
            child.stdin.close()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here")
def test_in_a_real_tmux(tmp_path: Path) -> None:
    """What is started in a real tmux finds it among its ancestors."""
    out = tmp_path / "out"
    code = (
        "from loadsheet.cloud.machine import Machine; from loadsheet.cloud.session import session;"
        f"open({str(out)!r}, 'w').write(str(session(Machine(), None).keeper))"
    )
    name = f"loadsheet-{os.getpid()}"
    command = f'{sys.executable} -c "{code}"; tmux -L {name} wait-for -S done'
    try:
        subprocess.run(
            ["tmux", "-L", name, "new-session", "-d", command],
            check=True,
            env={**os.environ, "TERM": "xterm"},
        )
        subprocess.run(["tmux", "-L", name, "wait-for", "done"], check=False, timeout=60)
    finally:
        subprocess.run(["tmux", "-L", name, "kill-server"], check=False, capture_output=True)
    assert out.read_text() == "tmux"


def test_files_of_proc_sys_can_be_read() -> None:
    """They refuse to be asked for megabytes at once."""
    if not Path("/proc/sys/kernel/core_pattern").exists():
        pytest.skip("no /proc here")
    assert (
        Machine().read("/proc/sys/kernel/core_pattern") == Path("/proc/sys/kernel/core_pattern").read_text()
    )
    assert Machine().read("/proc/no/such/file") is None
    assert re.match(r"Linux", Machine().read("/proc/version") or "")

"""What the NVIDIA driver says of its GPUs: through NVML where nvidia-ml-py is installed, else nvidia-smi.

Three things are told apart: there is no NVIDIA GPU in this machine; there is one and the driver does not
answer, with its reason; and what it answers. A figure that the driver does not give is None, never 0.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.machine import Machine, Output
from loadsheet.errors import one_line

_NVIDIA: Final = "0x10de"
_MIB: Final = 1 << 20
_FIELDS: Final = (
    "index", "name", "uuid", "driver_version", "memory.total", "memory.used", "memory.free", "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total", "ecc.errors.uncorrected.aggregate.total", "retired_pages.pending",
    "mig.mode.current", "utilization.gpu", "power.draw",
)  # fmt: skip


class NoGpu(Exception):
    """There is no NVIDIA GPU in this machine, or none that is looked at; the text says how that is known."""


@dataclass(frozen=True)
class User:
    """A process that computes on a GPU; bytes None where the driver does not say."""

    pid: int
    name: str
    bytes: int | None


@dataclass(frozen=True)
class Gpu:
    """One GPU, base units; None for what the driver does not say."""

    index: int
    name: str
    uuid: str
    total: int | None
    used: int | None
    ecc: bool | None = None
    uncorrected: int | None = None  # since the driver was loaded
    uncorrected_ever: int | None = None
    pending: bool | None = None  # pages or rows that wait for a reset to be replaced
    failed: bool | None = None  # rows that could not be replaced
    mig: bool | None = None
    users: tuple[User, ...] | None = ()  # processes that compute on it; None where they could not be listed

    @property
    def free(self) -> int | None:
        """Bytes that are not in use."""
        return None if self.total is None or self.used is None else self.total - self.used


@dataclass(frozen=True)
class Gpus:
    """All GPUs and their driver."""

    driver: str
    gpus: tuple[Gpu, ...]
    through: str  # NVML or nvidia-smi
    remarks: tuple[str, ...] = field(default=())


def devices(machine: Machine) -> list[str]:
    """PCI addresses of NVIDIA's display and 3D controllers; CannotLook where /sys does not say."""
    folder = "/sys/bus/pci/devices"
    if not machine.path(folder).is_dir():
        if machine.path("/proc/driver/nvidia/gpus").is_dir():
            return machine.names("/proc/driver/nvidia/gpus")
        raise CannotLook(
            f"there is no {folder} here ({machine.system})", "run it on the machine that you rent"
        )
    found = []
    for name in machine.names(folder):
        if (machine.read(f"{folder}/{name}/vendor") or "").strip() != _NVIDIA:
            continue
        if (machine.read(f"{folder}/{name}/class") or "").strip().startswith("0x03"):
            found.append(name)
    return found


def other_gpus(machine: Machine) -> list[str]:
    """Makers of GPUs that are not looked at here."""
    makers = {"0x1002": "AMD", "0x8086": "Intel"}
    folder, found = "/sys/bus/pci/devices", set()
    for name in machine.names(folder):
        vendor = (machine.read(f"{folder}/{name}/vendor") or "").strip()
        kind = (machine.read(f"{folder}/{name}/class") or "").strip()
        if vendor in makers and (
            kind.startswith("0x0380") or (kind.startswith("0x03") and vendor == "0x1002")
        ):
            found.add(makers[vendor])
    return sorted(found)


def gpus(machine: Machine) -> Gpus:
    """All NVIDIA GPUs. NoGpu where there is none; DriverFails where the driver does not answer."""
    errors: list[str] = []
    for ask in (_through_nvml, _through_smi):
        try:
            found = ask(machine)
        except DriverFails as error:
            errors.append(str(error))
            if error.final:
                break
            continue
        if found is not None:
            return found
    if errors and ("mismatch" in errors[0].lower() or _has_driver(machine) or devices(machine)):
        raise DriverFails(errors[0])
    there = devices(machine)
    if there:
        raise DriverFails(
            f"{len(there)} NVIDIA GPU{'s' * (len(there) != 1)} on the PCI bus, but no driver that answers: "
            "nvidia-smi is not installed"
        )
    others = other_gpus(machine)
    if others:
        raise CannotLook(
            f"a GPU of {' and '.join(others)}: only NVIDIA's are looked at", "look with the maker's tool"
        )
    raise NoGpu("no NVIDIA GPU on the PCI bus of this machine")


def _has_driver(machine: Machine) -> bool:
    """Whether a driver left its traces (on WSL the GPU stands on no PCI bus)."""
    return any(machine.path(path).exists() for path in ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg"))


class DriverFails(Exception):
    """The driver does not answer; the text is what it says. `final`: asking in another way would not help."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(one_line(text)[:300])
        self.final = final


# --- NVML -------------------------------------------------------------------------------------------------


def _nvml(machine: Machine) -> Any:
    """The module, if it is installed and not switched off (a test has its own)."""
    if machine.nvml is not None:
        return machine.nvml or None
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _through_nvml(machine: Machine) -> Gpus | None:
    nvml = _nvml(machine)
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        text = _text(error)
        if "not found" in text.lower():  # no library: nvidia-smi and the PCI bus say whether there is a GPU
            return None
        raise DriverFails(f"NVML: {text}", final="mismatch" in text.lower()) from None
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        found = [_one(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        raise DriverFails(f"NVML: {_text(error)}") from None
    finally:
        nvml.nvmlShutdown()
    return Gpus(driver, tuple(found), "NVML")


def _one(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *arguments: Any) -> Any:
        """An answer, or None where this GPU or driver has none."""
        try:
            return getattr(nvml, name)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    memory = ask("nvmlDeviceGetMemoryInfo")
    ecc = ask("nvmlDeviceGetEccMode")
    counted = (getattr(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1),)
    now = ask("nvmlDeviceGetTotalEccErrors", *counted, getattr(nvml, "NVML_VOLATILE_ECC", 0))
    ever = ask("nvmlDeviceGetTotalEccErrors", *counted, getattr(nvml, "NVML_AGGREGATE_ECC", 1))
    rows = ask("nvmlDeviceGetRemappedRows")  # corrected, uncorrected, pending, failure
    pages = ask("nvmlDeviceGetRetiredPagesPendingStatus")
    mig = ask("nvmlDeviceGetMigMode")
    users = ask("nvmlDeviceGetComputeRunningProcesses")
    pending = None if rows is None and pages is None else bool((rows and rows[2]) or pages)
    return Gpu(
        index=index,
        name=_text(ask("nvmlDeviceGetName") or "?"),
        uuid=_text(ask("nvmlDeviceGetUUID") or ""),
        total=None if memory is None else int(memory.total),
        used=None if memory is None else int(memory.used),
        ecc=None if ecc is None else bool(ecc[0]),
        uncorrected=None if now is None else int(now),
        uncorrected_ever=None if ever is None else int(ever),
        pending=pending,
        failed=None if rows is None else bool(rows[3]),
        mig=None if mig is None else bool(mig[0]),
        users=None
        if users is None
        else tuple(
            User(int(u.pid), "", None if u.usedGpuMemory is None else int(u.usedGpuMemory)) for u in users
        ),
    )


def _text(value: object) -> str:
    return one_line(value.decode(errors="replace") if isinstance(value, bytes) else str(value))


# --- nvidia-smi -------------------------------------------------------------------------------------------


def _through_smi(machine: Machine) -> Gpus | None:
    output = machine.command(
        ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    )
    if output is None:
        return None
    if output.status != 0:
        _complain(output)
    found = []
    for line in output.out.splitlines():
        values = dict(zip(_FIELDS, (value.strip() for value in line.split(",")), strict=False))
        if len(values) == len(_FIELDS) and values["index"].isdigit():
            found.append((values, _row(values)))
    if not found:
        _complain(output)
    users = _users(machine)
    rows = _remapped(machine)
    complete = [
        Gpu(
            **{
                **vars(gpu),
                **rows.get(gpu.uuid, {}),
                "users": None if users is None else tuple(users.get(gpu.uuid, ())),
            }
        )
        for _, gpu in found
    ]
    return Gpus(found[0][0]["driver_version"], tuple(complete), "nvidia-smi")


def _complain(output: Output) -> None:
    """DriverFails with what nvidia-smi says: on stdout or stderr, by version."""
    said = one_line(output.out.strip() or output.err.strip())[:300]
    raise DriverFails(
        f"nvidia-smi ended with status {output.status}: {said or 'and said nothing'}", final=True
    )


def _row(values: dict[str, str]) -> Gpu:
    def number(name: str, unit: int = 1) -> int | None:
        match = re.fullmatch(r"(\d+)(?:\.\d+)?", values[name])  # [N/A], [Not Supported], ERR!
        return int(match[1]) * unit if match else None

    def switch(name: str) -> bool | None:
        return {"enabled": True, "disabled": False, "yes": True, "no": False}.get(values[name].lower())

    return Gpu(
        index=int(values["index"]),
        name=one_line(values["name"]),
        uuid=values["uuid"],
        total=number("memory.total", _MIB),
        used=number("memory.used", _MIB),
        ecc=switch("ecc.mode.current"),
        uncorrected=number("ecc.errors.uncorrected.volatile.total"),
        uncorrected_ever=number("ecc.errors.uncorrected.aggregate.total"),
        pending=switch("retired_pages.pending"),
        mig=switch("mig.mode.current"),
    )


def _users(machine: Machine) -> dict[str, list[User]] | None:
    """Processes by GPU; None where nvidia-smi does not list them."""
    words = [
        "nvidia-smi",
        "--query-compute-apps=gpu_uuid,pid,process_name,used_memory",
        "--format=csv,noheader,nounits",
    ]
    output = machine.command(words)
    if output is None or output.status != 0:
        return None
    found: dict[str, list[User]] = {}
    for line in output.out.splitlines():
        uuid, pid, *rest = (part.strip() for part in line.split(","))
        if pid.isdigit() and len(rest) >= 2:
            size = int(rest[-1]) * _MIB if rest[-1].isdigit() else None
            found.setdefault(uuid, []).append(User(int(pid), one_line(",".join(rest[:-1])), size))
    return found


def _remapped(machine: Machine) -> dict[str, dict[str, bool]]:
    words = ["nvidia-smi", "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure"]
    output = machine.command([*words, "--format=csv,noheader,nounits"])
    found: dict[str, dict[str, bool]] = {}
    for line in output.out.splitlines() if output and output.status == 0 else ():
        parts = [part.strip().lower() for part in line.split(",")]
        known = {"yes": True, "1": True, "no": False, "0": False}
        if len(parts) == 3 and parts[1] in known and parts[2] in known:
            uuid = line.partition(",")[0].strip()
            found[uuid] = {"pending": known[parts[1]], "failed": known[parts[2]]}
    return found


# --- what a CUDA build asks of the driver -----------------------------------------------------------------


@lru_cache(maxsize=1)
def _needed() -> dict[str, Any]:
    text = resources.files("loadsheet.cloud").joinpath("cuda_drivers.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def driver_needed(cuda: str) -> str | None:
    """The oldest Linux driver for a build with this CUDA: minor versions of one major need the same.

    None for a major version that is not in the table (`cuda_drivers.json`, with its source).

    >>> driver_needed("12.8"), driver_needed("99.0")
    ('525', None)
    """
    row = _needed()["majors"].get(cuda.partition(".")[0])
    return None if row is None else str(row)


def at_least(version: str, wanted: str) -> bool:
    """Whether a driver version is another or newer.

    >>> at_least("535.104.05", "525.60.13"), at_least("470.57.02", "525.60.13")
    (True, False)
    """
    return _numbers(version) >= _numbers(wanted)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])

"""The instance types with GPUs, as an account sees them, and whether a need fits onto one."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.aws.session import Account
from loadsheet.errors import nearest, one_line

#: what begins the names of types with GPUs; the call has no filter for them
_FAMILIES: Final = ("g*", "p*")
_VALUES: Final = 200  # a filter of EC2 takes no more values
_MIB: Final = 1 << 20


@dataclass(frozen=True)
class GpuType:
    """An instance type with GPUs. `usable`: bytes that a process may have on one of them."""

    name: str
    gpu: str
    count: int
    share: float  # of a physical GPU that one is: below 1 for slices
    memory: int  # bytes of one, as the account's API says
    usable: int
    measured: bool  # `usable` is from our table of GPUs, else the API's figure
    vcpus: int
    spot: bool
    arm: bool
    capability: float | None
    nvidia: bool

    @property
    def traps(self) -> list[str]:
        """Why it may not be what it seems."""
        found = []
        if not self.nvidia:
            found.append("no NVIDIA GPU: no CUDA")
        if self.share < 1:
            found.append(f"{self.share:g} of a GPU")
        if self.arm:
            found.append("ARM: images and wheels for x86 do not run")
        if self.capability is None and self.nvidia:
            found.append("compute capability not in our table")
        elif self.nvidia and self.capability is not None and self.capability < _table()["oldest"]:
            found.append(f"compute capability {self.capability:g}: PyTorch's builds for CUDA 13 leave it out")
        return found


@functools.cache
def _table() -> dict[str, Any]:
    text = resources.files("loadsheet.cloud.aws").joinpath("gpu_types.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def gpu_types(account: Account, region: str, names: tuple[str, ...] = ()) -> list[GpuType]:
    """The types with GPUs that a region has, or of these names.

    CallFailed if it may not be asked; of kind `missing` for a name that the region does not have.
    """
    if names:
        rows = account.items(
            "ec2", "describe_instance_types", "InstanceTypes", region=region, InstanceTypes=list(names)
        )
    else:
        wanted = [{"Name": "instance-type", "Values": list(_FAMILIES)}]
        rows = account.items("ec2", "describe_instance_types", "InstanceTypes", region=region, Filters=wanted)
    return [found for row in rows if (found := parse_type(row)) is not None]


def alike(account: Account, region: str, name: str) -> list[str]:
    """The types with GPUs whose names come near one that there is not, else the smallest of its family.

    None if they may not be asked for.
    """
    try:
        known = sorted(gpu_types(account, region), key=lambda found: (found.vcpus, found.name))
    except CallFailed:
        return []
    names = [found.name for found in known]
    family = name.partition(".")[0]
    return nearest(name, names) or [other for other in names if other.partition(".")[0] == family][:3]


def parse_type(row: Mapping[str, Any]) -> GpuType | None:
    """An instance type as `describe_instance_types` gives it; None without a GPU, or with several kinds."""
    gpus = (row.get("GpuInfo") or {}).get("Gpus") or []
    if len(gpus) != 1:
        return None
    gpu = gpus[0]
    share = float(gpu.get("GpuPartitionSize") or 1.0)
    # a slice has Count 0 and LogicalGpuCount 1
    count = int(gpu.get("Count") or gpu.get("LogicalGpuCount") or 0)
    mib = int((gpu.get("MemoryInfo") or {}).get("SizeInMiB") or 0)
    if count < 1 or mib < 1:
        return None
    name = one_line(str(gpu.get("Name", "")))[:60]
    known = _table()["gpus"].get(name, {})
    entry = known.get("entries", {}).get(str(mib)) if share >= 1 else None
    memory = mib * _MIB
    usable = _usable(entry)
    return GpuType(
        name=str(row.get("InstanceType", "")),
        gpu=name,
        count=count,
        share=share,
        memory=memory,
        usable=memory if usable is None else min(usable, memory),
        measured=usable is not None,
        vcpus=int((row.get("VCpuInfo") or {}).get("DefaultVCpus") or 0),
        spot="spot" in (row.get("SupportedUsageClasses") or ()),
        arm="x86_64" not in ((row.get("ProcessorInfo") or {}).get("SupportedArchitectures") or ("x86_64",)),
        capability=known.get("capability"),
        nvidia=str(gpu.get("Manufacturer", "")).upper() == "NVIDIA",
    )


def sold_by(gpu: str) -> list[int]:
    """How many of one of our GPU ids a machine of EC2 has, the fewest first; none where the table does not say.

    >>> sold_by("a100-sxm-80gb"), sold_by("h100-sxm"), sold_by("rtx-4090")
    ([8], [1, 8], [])
    """
    for known in _table()["gpus"].values():
        for mib, entry in known["entries"].items():
            if entry == gpu and (counts := known.get("counts", {}).get(mib)):
                return sorted(counts)
    return []


def _usable(entry: str | None) -> int | None:
    if entry is None:
        return None
    from loadsheet.hardware import gpu

    return int(gpu(entry).memory_usable_bytes)


def candidates(types: list[GpuType], need: float, gpus: int) -> list[GpuType]:
    """The types whose every GPU holds `need` bytes and that have `gpus` of them, the smallest first.

    Smallest: fewest GPUs, then least memory, then fewest vCPUs. Those with traps come last.
    """
    fitting = [t for t in types if t.usable >= need and t.count >= gpus]
    return sorted(fitting, key=lambda t: (bool(t.traps), t.count, t.memory, t.vcpus, t.name))


def offered(account: Account, region: str, names: Sequence[str]) -> dict[str, list[str]]:
    """The zones of a region in which instance types are offered, by their names."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for start in range(0, len(names), _VALUES):
        rows = account.items(
            "ec2",
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            region=region,
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": list(names[start : start + _VALUES])}],
        )
        for row in rows:
            if row.get("Location") and row.get("InstanceType") in found:
                found[row["InstanceType"]].add(str(row["Location"]))
    return {name: sorted(zones) for name, zones in found.items()}

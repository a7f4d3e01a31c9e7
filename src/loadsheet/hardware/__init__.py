"""GPUs and other accelerators: dense peaks, memory, bandwidth and links, each with its source.

The data is `gpus.json`; its `about` says what each field means and what `verified` promises. It is
JSON, not TOML, because the standard library reads it about ten times faster (1 ms instead of 9).
Hardware that is not in it is described by a file of one's own (`own.py`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from loadsheet.errors import BadInput, UnknownGpu, one_line, shorten

__all__ = ["DTYPES", "Gpu", "gpu", "gpus", "listed"]

#: dtypes that a peak can be asked for; fp32 is the vector rate, the others the matrix engines' rate
DTYPES: Final = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")

#: bytes/s of one lane in one direction, by PCIe generation, after line coding
_PCIE_LANE: Final = {"3.0": 0.985e9, "4.0": 1.969e9, "5.0": 3.938e9, "6.0": 7.563e9}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator as a process sees it; memory in bytes, rates per second, peaks dense."""

    id: str
    name: str
    vendor: str
    kind: Literal["datacenter", "workstation", "consumer", "own"]
    memory_marketed_gb: int  # as the data sheet prints it
    memory_usable_bytes: int  # what the driver lets a process see, its own context included
    memory_usable_basis: Literal["measured", "assumed"]
    memory_type: str
    bandwidth: float  # memory, bytes/s
    peaks: tuple[tuple[str, float], ...]  # (dtype, FLOP/s or OP/s)
    link: str  # the fastest way to a neighbour: "NVLink 4", "PCIe", ...
    link_bandwidth: float  # bytes/s in one direction, all ports together
    pcie: str  # "5.0 x16"; "" if there is none or it is unpublished
    tdp_watts: float | None  # None if unpublished
    source: str
    date: str  # when it was checked, YYYY-MM
    verified: bool  # False: something is recalled or derived; `note` says what
    note: str = ""
    device: Literal["cuda", "cpu"] = "cuda"  # what PyTorch calls it; a CPU has no context and other kernels
    own: str = ""  # the file of the user's that describes it; "" for an entry of ours

    @property
    def yours(self) -> str:
        """What is said of hardware from a file of the user's: its name and date; "" for an entry of ours."""
        if not self.own:
            return ""
        when = f", {'measured ' if self.verified else ''}{self.date}" if self.date else ""
        return f"yours: {one_line(self.own)[:60]}{when}"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that have a peak."""
        return tuple(dtype for dtype, _ in self.peaks)

    @property
    def pcie_bandwidth(self) -> float:
        """Bytes/s to the host in one direction; 0 if the device has no published PCIe port."""
        generation, _, lanes = self.pcie.partition(" x")
        return _PCIE_LANE[generation] * int(lanes) if lanes else 0.0

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s (OP/s for int8); BadInput, naming the known dtypes, if there is none."""
        for known, rate in self.peaks:
            if known == dtype:
                return rate
        raise BadInput(
            f"peak of `{self.id}`: got dtype {shorten(dtype)}, expected one of {', '.join(self.dtypes)}",
            "a dtype is left out where the device lacks it or no dense rate is published",
        )

    def to_json(self) -> dict[str, Any]:
        """Every field, the peaks as an object, ready for `json.dumps`."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "peaks": dict(self.peaks)}


@cache
def _table() -> dict[str, Gpu]:
    import json

    path = os.path.join(os.path.dirname(__file__), "gpus.json")
    with open(path, encoding="utf-8") as file:
        entries = json.load(file)["gpus"]
    return {e["id"]: Gpu(**{**e, "peaks": tuple(e["peaks"].items())}) for e in entries}


def gpu(name: str | os.PathLike[str] | Gpu) -> Gpu:
    """The GPU of that exact id (case and outer spaces do not matter); UnknownGpu with the nearest ids.

    A path, or a name that ends with `.json`, is a file that describes hardware of one's own: BadFile or
    UnknownKey if it does not. A `Gpu` is handed back as it is.

    >>> gpu("H100-SXM").peak("bf16"), gpu("h100-sxm").bandwidth
    (989400000000000.0, 3350000000000.0)
    """
    if isinstance(name, Gpu):
        return name
    if isinstance(name, os.PathLike) or str(name).strip().lower().endswith(".json"):
        from loadsheet.hardware.own import read_gpu

        return read_gpu(name)
    return listed(name)


def listed(name: str) -> Gpu:
    """The GPU of that exact id in our table, never a file: for names that come from a file themselves."""
    found = _table().get(str(name).strip().lower())
    if found is None:
        raise UnknownGpu(name, _table())
    return found


def gpus() -> tuple[Gpu, ...]:
    """All known GPUs, in the order of the data file: by vendor and kind, older ones first."""
    return tuple(_table().values())

"""Peaks of memory of this process, each by a named counter; None with the reason where nobody counts."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

_NO_GPU: Final = "no CUDA device was used"
_NO_NVML: Final = "NVML cannot be asked: pip install 'loadsheet[gpu]'"


@dataclass(frozen=True, slots=True)
class Peak:
    """A peak in bytes by a counter, or why there is none."""

    nbytes: int | None
    counter: str
    why: str = ""


def on_gpu() -> bool:
    """Whether this process has used CUDA."""
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def host_peak() -> Peak:
    """The largest resident set of this process, workers not included.

    `VmHWM` where there is one: `ru_maxrss` survives an exec on Linux, so it may be that of whoever started
    the process.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        line = next(line for line in lines if line.startswith("VmHWM:"))
        return Peak(int(line.split()[1]) * 1024, "resident set of the process (VmHWM)")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Peak(peak if sys.platform == "darwin" else peak * 1024, "resident set of the process (ru_maxrss)")


def busiest() -> int:
    """The CUDA device on which this process has reserved most: its thread that saves has a current one of its own."""
    return max(range(torch.cuda.device_count()), key=lambda n: int(torch.cuda.max_memory_reserved(n)))


def allocated_peak() -> Peak:
    """What PyTorch's allocator had handed out at most, on the busiest device; not tried on a GPU so far."""
    return _cuda("max_memory_allocated")


def reserved_peak() -> Peak:
    """What PyTorch's allocator had reserved at most, on the busiest device; not tried on a GPU so far."""
    return _cuda("max_memory_reserved")


def _cuda(name: str) -> Peak:
    counter = f"torch.cuda.{name}"
    if not on_gpu():
        return Peak(None, counter, f"{_NO_GPU}, and PyTorch does not count allocations on a CPU")
    return Peak(int(getattr(torch.cuda, name)(busiest())), counter)


def device_peak() -> Peak:
    """What the driver says that this process holds on the busiest device; not tried on a GPU so far.

    NVML knows the present, so what the allocator has given back since its peak is added.
    """
    if not on_gpu():
        return Peak(None, "NVML", _NO_GPU)
    try:
        import pynvml
    except ImportError:
        return Peak(None, "NVML", _NO_NVML)
    try:
        pynvml.nvmlInit()
        device = busiest()
        handle = pynvml.nvmlDeviceGetHandleByUUID(_uuid(device))
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except (pynvml.NVMLError, AttributeError) as error:
        return Peak(None, "NVML", f"NVML: {str(error)[:100]}")
    given_back = int(torch.cuda.max_memory_reserved(device)) - int(torch.cuda.memory_reserved(device))
    return _of_process(processes, os.getpid(), given_back)


def _of_process(processes: list[Any], pid: int, given_back: int) -> Peak:
    """The memory of one process in NVML's list; in a container its number may be another one."""
    mine = [p for p in processes if p.pid == pid]
    if not mine and len(processes) == 1:
        mine = processes
    used = mine[0].usedGpuMemory if mine else None
    if used is None:
        return Peak(None, "NVML", "NVML does not say what this process holds (a container hides its number)")
    return Peak(int(used) + max(given_back, 0), "NVML, this process")


def _uuid(device: int) -> str:
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"

"""This machine as an entry of `gpus.json`: what was measured of it, in the form in which a plan reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from loadsheet.measure.machine import Rate
from loadsheet.signature import version

#: where a container's limit of memory stands, version 2 and version 1
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def describe(device: str, rates: Sequence[Rate]) -> dict[str, Any]:
    """An entry with the best rate of each dtype as its peak, so that an MFU is one of what was measured.

    `device` is its name as `measure_machine` gives it. Memory: what CUDA shows, or the host's, within the
    limit of the container.
    """
    on_gpu = torch.cuda.is_available()
    peaks: dict[str, float] = {}
    for rate in rates:
        if rate.what == "matmul":
            peaks[rate.dtype] = max(rate.per_second, peaks.get(rate.dtype, 0.0))
    memory = int(torch.cuda.mem_get_info()[1]) if on_gpu else host_memory()
    largest = max(rate.size for rate in rates if rate.what == "matmul")
    return {
        "id": identifier(device, torch.get_num_threads()),
        "name": device,
        "vendor": "",
        "kind": "own",
        "memory_usable_bytes": memory,
        "memory_usable_basis": "measured",
        "memory_type": "" if on_gpu else "the host's",
        "bandwidth": next(rate.per_second for rate in rates if rate.what == "copy"),
        "peaks": peaks,
        "source": f"loadsheet {version()} measure machine, PyTorch {torch.__version__}: square products up to "
        f"{largest}, the shortest of several runs",
        "date": date.today().isoformat(),
        "verified": True,
        "note": "Peaks are what one product reaches here, not what a data sheet promises.",
        "device": "cuda" if on_gpu else "cpu",
    }


def identifier(device: str, threads: int) -> str:
    """An id from the name of a device.

    >>> identifier("NVIDIA H200", 4), identifier("CPU, 2 threads", 2)
    ('my-nvidia-h200', 'my-cpu-2-threads')
    """
    words = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:40].strip("-")
    return f"my-{words or f'machine-{threads}-threads'}"


def host_memory() -> int:
    """Bytes that a process here can use: the physical ones, or the container's limit if that is lower."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMITS:
        try:
            text = path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdigit() and int(text) > 0:
            found = min(found, int(text))
    return found

"""What a run measures of itself: seconds per step, waiting for data, saving, memory."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from loadsheet.run.batches import Batches
from loadsheet.run.directory import write_whole
from loadsheet.run.saver import SaveTimes

_MOST = 1_000_000  # step times that are kept


class Clock:
    """Times the steps, without what `aside` took: evaluation is no part of a training step."""

    def __init__(self) -> None:
        self.seconds = array("d")
        self.wait_seconds = 0.0
        self.step_seconds = 0.0
        self._aside = 0.0
        self._begun = 0.0
        self._waited = 0.0

    def begin(self, batches: Iterable[Batches]) -> None:
        """A step begins."""
        self._aside = 0.0
        self._waited = sum(b.wait_seconds for b in batches)
        self._begun = time.perf_counter()

    def aside(self, seconds: float) -> None:
        """Some of it was spent on something else."""
        self._aside += seconds

    def end(self, batches: Iterable[Batches]) -> None:
        """It has ended."""
        spent = time.perf_counter() - self._begun - self._aside
        self.step_seconds += spent
        self.wait_seconds += sum(b.wait_seconds for b in batches) - self._waited
        if len(self.seconds) < _MOST:
            self.seconds.append(spent)

    @property
    def data_wait(self) -> float:
        """The share of the steps' time spent waiting for the loader."""
        return min(self.wait_seconds / self.step_seconds, 1.0) if self.step_seconds > 0 else 0.0


def write_measured(
    path: Path, *, attempt: int, start: int, steps: int, clock: Clock, saves: Sequence[SaveTimes]
) -> None:
    """Add this attempt to `measured.json`: base units; the step's median leaves out warm-up and hiccups."""
    file = path / "measured.json"
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        known = dict(json.loads(file.read_bytes())["attempts"])
    seconds = clock.seconds
    known[str(attempt)] = {
        "from_step": start,
        "to_step": steps,
        "steps_timed": len(seconds),
        "step_seconds": {"median": median(seconds), "sum": clock.step_seconds} if seconds else None,
        "data_wait_share": clock.data_wait,
        "saves": len(saves),
        "save_bytes": saves[-1].nbytes if saves else None,
        "save_stall_seconds": median(s.stall for s in saves) if saves else None,
        "save_total_seconds": median(s.total for s in saves) if saves else None,
        "peak_host_bytes": _peak_host(),
        "peak_gpu_allocated_bytes": _peak_gpu("max_memory_allocated"),
        "peak_gpu_reserved_bytes": _peak_gpu("max_memory_reserved"),
        "gpu": torch.cuda.get_device_name() if _gpu() else None,
    }
    write_whole(file, json.dumps({"schema": 1, "attempts": known}, indent=1).encode() + b"\n")


def _peak_host() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _gpu() -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def _peak_gpu(name: str) -> int | None:
    """Of the current device; untested without a GPU."""
    return int(getattr(torch.cuda, name)()) if _gpu() else None

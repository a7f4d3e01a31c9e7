"""The machine time of an attempt: from when to when a machine worked for it. One rule for all who count hours.

It begins with the process, since imports and building are paid for too, and ends with the last sign of life.
A process may open several runs one after the other: what comes before the first is the first one's, each later
run begins where it is opened, and the time between two of them is nobody's. So no second is counted twice as
long as one run is open at a time. A process that has lived longer than `START_UP` before it opens its first run
was not started for it (a notebook, a server): there the attempt begins where the run is opened.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

#: seconds between the start of a process and the opening of a run that it was started for, at most
START_UP: Final = 600.0
_LATEST: Final = 1e12  # Unix seconds; what is beyond is no time


def process_started() -> float | None:
    """When this process began, Unix seconds, from the kernel; None where it does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (
            Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
        since_boot = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        return time.time() - since_boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return None


def working_since(opened: float, *, first: bool) -> float:
    """Since when this process works for a run that it opened then; `first`: it is its first one. Unix seconds."""
    began = process_started() if first else None
    return began if began is not None and 0 <= opened - began <= START_UP else opened


def alive(
    measured: Mapping[str, Any] | None, recorded: Mapping[str, Any] | None, logged: Iterable[float | None]
) -> tuple[float, float] | None:
    """From when to when an attempt had a machine, Unix seconds; None if it left no sign of life.

    `measured` is its entry in `measured.json`, `recorded` its record in `provenance`, `logged` the times in
    the log. A start of the process that lies further back than `START_UP` is not believed.
    """
    signs = [_time(time) for time in logged]
    signs += [_time((measured or {}).get(name)) for name in ("opened", "written")]
    signs.append(_time((recorded or {}).get("time")))
    known = [sign for sign in signs if sign is not None]
    if not known:
        return None
    began = [_time((facts or {}).get("started")) for facts in (measured, recorded)]
    starts = [start for start in began if start is not None and 0 <= min(known) - start <= START_UP]
    return min([*starts, *known]), max(known)


def _time(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LATEST
    return float(value) if good else None  # type: ignore[arg-type]

"""What the GPUs draw and how busy the driver says they are, through NVML or nvidia-smi.

"Utilisation" is the share of time in which *some* kernel ran (NVML, nvmlUtilization_t): one small kernel that
hangs gives 100 %. Power tells work from waiting, so both are asked for.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any, Final

_QUERY: Final = "power.draw,power.limit,utilization.gpu"


@dataclass(frozen=True, slots=True)
class Draw:
    """One GPU: power as a share of its limit, and the driver's utilisation; None where it does not say."""

    power: float | None
    busy: float | None


def draws() -> tuple[Draw, ...] | None:
    """Every GPU of this machine; None if there is none, or none that answers."""
    return _through_nvml() or _through_smi()


def _through_nvml() -> tuple[Draw, ...] | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return tuple(_one(pynvml, number) for number in range(pynvml.nvmlDeviceGetCount())) or None
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _one(nvml: Any, number: int) -> Draw:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    power = busy = None
    with contextlib.suppress(nvml.NVMLError, ZeroDivisionError):
        power = nvml.nvmlDeviceGetPowerUsage(handle) / nvml.nvmlDeviceGetEnforcedPowerLimit(handle)
    with contextlib.suppress(nvml.NVMLError):
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    return Draw(power, busy)


def _through_smi() -> tuple[Draw, ...] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True, check=False, timeout=15, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return tuple(parsed(line) for line in done.stdout.splitlines()[:1024] if line.strip()) or None


def parsed(line: str) -> Draw:
    """A line of nvidia-smi's table: draw in W, limit in W, utilisation in %.

    >>> parsed("105.00, 700.00, 97"), parsed("[N/A], [N/A], ERR!")
    (Draw(power=0.15, busy=0.97), Draw(power=None, busy=None))
    """
    numbers: list[float | None] = []
    for text in line.split(","):
        try:
            numbers.append(float(text))
        except ValueError:
            numbers.append(None)
    draw, limit, busy = (*numbers, None, None, None)[:3]
    share = draw / limit if draw is not None and limit else None
    return Draw(None if share is None else round(share, 6), None if busy is None else busy / 100)

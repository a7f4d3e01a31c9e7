"""This machine's rates: matmul FLOP/s per dtype and size, and memory bandwidth, against a data sheet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from loadsheet.hardware import Gpu

SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (1024, 2048, 4096, 8192)}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
QUICK = {"cpu": (256, 512), "cuda": (2048, 8192)}
ENOUGH = 0.3  # seconds of measuring per size
COPY = 1 << 28  # bytes


@dataclass(frozen=True, slots=True)
class Rate:
    """One measured rate; `share` is that of the data sheet's, if there is one to compare with."""

    what: str
    dtype: str
    size: int
    per_second: float
    share: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Every field."""
        return {name: getattr(self, name) for name in self.__slots__}


def _best(run: Callable[[], Any], device: str, enough: float = ENOUGH) -> float:
    """The shortest of several runs: what is slower was disturbed."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    run()
    wait()
    best, spent, rounds = float("inf"), 0.0, 0
    while spent < enough and rounds < 50:
        start = time.perf_counter()
        run()
        wait()
        took = time.perf_counter() - start
        best, spent, rounds = min(best, took), spent + took, rounds + 1
    return best


def matmul_rate(size: int, dtype: str, device: str, enough: float = ENOUGH) -> float:
    """FLOP/s of a square product: 2·n³ over its shortest time."""
    a = torch.randn(size, size, device=device).to(DTYPES[dtype])
    b = torch.randn(size, size, device=device).to(DTYPES[dtype])
    return 2 * size**3 / _best(lambda: a @ b, device, enough)


def bandwidth(device: str, size: int = COPY) -> float:
    """Bytes/s of a copy of `size` bytes: read once, written once."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _best(lambda: target.copy_(source), device)


def measure_machine(
    gpu: Gpu | None = None, progress: Callable[[str], None] | None = None, *, quick: bool = False
) -> tuple[str, list[Rate]]:
    """(name of the device, rates); `gpu` is the data sheet to compare with; `quick`: fewer sizes, less time."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = torch.get_num_threads()
    host = f"CPU, {threads} thread{'s' * (threads > 1)}"
    name = torch.cuda.get_device_name(0) if device == "cuda" else host
    rates: list[Rate] = []
    for dtype in DTYPES:
        if device == "cpu" and dtype == "fp16":
            continue  # emulated there
        for size in (QUICK if quick else SIZES)[device]:
            if progress is not None:
                progress(f"{dtype} {size}")
            rate = matmul_rate(size, dtype, device, ENOUGH / 3 if quick else ENOUGH)
            sheet = gpu.peak(dtype) if gpu is not None and dtype in gpu.dtypes else None
            rates.append(Rate("matmul", dtype, size, rate, rate / sheet if sheet else None))
            if size**3 * 2 / rate > 2:  # a slow machine need not do the larger ones
                break
    if progress is not None:
        progress("bandwidth")
    size = COPY // 8 if quick else COPY
    speed = bandwidth(device, size)
    rates.append(Rate("copy", "bytes", size, speed, speed / gpu.bandwidth if gpu is not None else None))
    return name, rates

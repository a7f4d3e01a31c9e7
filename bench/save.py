"""How long a save stops training, and how long until it is durable: `python bench/save.py [--check]`.

A state of half a gigabyte (40 million weights in fp32 with AdamW's moments, 720 tensors) is saved in turns:
by a run of ours, by `torch.save`, safetensors and `torch.distributed.checkpoint` with the fsyncs that they
leave out, and as the same bytes in one file. What is reported are medians over the rounds, and medians of
the ratio to `torch.save` of the same round, so that a disk that is slow for a while is slow for both.

*stall* is what the loop waits; *slowed* adds what steps take longer while the save is written behind them.
`--check` exits 1 if stall is more than a fifth of fsynced `torch.save`, or the total more than it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.saver import Saver
from loadsheet.run.state import Keeper

REFERENCE = "torch.save, fsynced"


class Training:
    """A model with its optimizer, and steps that keep one core busy."""

    def __init__(self, layers: int, width: int) -> None:
        self.model = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter) * 1e-3
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.work = torch.randn(400, 400)
        self.step_seconds = 0.0

    def step(self) -> float:
        """One step: arithmetic that leaves the state alone."""
        begin = time.perf_counter()
        for _ in range(4):
            self.work @ self.work
        return time.perf_counter() - begin

    def alone(self) -> None:
        """How long a step takes right now, with nothing behind it."""
        self.step_seconds = median(self.step() for _ in range(25))

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def lost_until(self, done: Callable[[], bool]) -> float:
        """Step until something is done; the seconds that the steps took longer than alone."""
        lost = 0.0
        while not done():
            lost += max(self.step() - self.step_seconds, 0.0)
        return lost


def fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def commit(path: Path) -> None:
    """Make a file or a directory of files durable, and its name."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        fsync(file)
    if path.is_dir():
        fsync(path)
    fsync(path.parent)


Result = tuple[float, float, float]  # stall, stall and slowdown, total


def blocking(save: Callable[[Path], None]) -> Callable[[Path], Result]:
    """A save that the loop waits for from beginning to end."""

    def run(path: Path) -> Result:
        begin = time.perf_counter()
        save(path)
        commit(path)
        spent = time.perf_counter() - begin
        return spent, spent, spent

    return run


def methods(training: Training, folder: Path) -> dict[str, Callable[[Path], Result]]:
    """All ways of saving that are installed."""
    keeper = Keeper()
    keeper.keep(model=training.model, optimizer=training.optimizer)
    saver = Saver(CheckpointStore(folder / "ours", keep_last=1))
    number = [0]

    def ours(path: Path) -> Result:
        number[0] += 1
        training.alone()
        begin = time.perf_counter()
        saver.save(keeper.capture(number[0]))
        stall = time.perf_counter() - begin
        lost = training.lost_until(lambda: not saver.busy or len(saver.history) == number[0])
        saver.wait()
        return stall, stall + lost, saver.history[-1].total

    first = keeper.capture(0)
    raw = b"".join(bytes(chunk) for chunk in first.chunks())
    first.release()
    print(f"{len(raw):,} bytes")
    out = {
        "loadsheet": ours,
        REFERENCE: blocking(lambda path: torch.save(training.state(), path)),
        "raw write + fsync": blocking(lambda path: path.write_bytes(raw) and None),
    }
    if find_spec("safetensors"):
        from safetensors.torch import save_file

        def tensors(path: Path) -> None:
            flat = {f"model.{k}": v for k, v in training.model.state_dict().items()}
            for index, values in training.optimizer.state_dict()["state"].items():
                flat |= {f"optimizer.{index}.{k}": v for k, v in values.items()}
            save_file(flat, path)

        out["safetensors, fsynced"] = blocking(tensors)
    import torch.distributed.checkpoint as dcp

    out["dcp.save, fsynced"] = blocking(lambda path: dcp.save(training.state(), checkpoint_id=path) and None)

    def dcp_async(path: Path) -> Result:
        training.alone()
        begin = time.perf_counter()
        future = dcp.async_save(training.state(), checkpoint_id=path)
        stall = time.perf_counter() - begin
        lost = training.lost_until(future.done)
        future.result()
        commit(path)
        return stall, stall + lost, time.perf_counter() - begin

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    out["dcp.async_save"] = dcp_async
    return out


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def record(
    path: Path, results: dict[str, list[Result]], ratios: dict[str, list[float]], rounds: int, nbytes: int
) -> None:
    """Put medians, seconds and ratios to the reference, into a file that holds other measurements as well."""
    known = json.loads(path.read_text()) if path.exists() else {}
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    known["save"] = {"date": date, "cores": os.cpu_count(), "rounds": rounds, "bytes": nbytes}
    for name, rows in results.items():
        found = known["save"][name] = {}
        for k, what in enumerate(("stall", "slowed", "total")):
            found[what] = median(row[k] for row in rows)
            found[f"{what}_ratio"] = ratios[name][k]
    path.write_text(json.dumps(known, indent=1) + "\n")


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds [20]")
    parser.add_argument("--layers", type=int, default=90, help="layers of 5.4 MB of state each [90]")
    parser.add_argument("--record", type=Path, help="a JSON file whose `save` becomes what was measured")
    parser.add_argument("--path", type=Path, help="where to write; a new directory is made there")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="torch.*")
    folder = Path(tempfile.mkdtemp(prefix="save-", dir=options.path))
    try:
        training = Training(options.layers, 672)
        ways = methods(training, folder)
        results: dict[str, list[Result]] = {name: [] for name in ways}
        for round_number in range(options.rounds + 1):
            for name, save in ways.items():
                path = folder / f"{round_number}"
                os.sync()
                with contextlib.redirect_stderr(open(os.devnull, "w")):
                    results[name].append(save(path))
                remove(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name in results:
        results[name] = results[name][1:]  # the first round makes buffers and fills caches
    print(f"{options.rounds} rounds     stall s   slowed s    total s   stall ×   slowed ×   total ×")
    ratios = {}
    for name, rows in results.items():
        pairs = list(zip(rows, results[REFERENCE], strict=True))
        ratios[name] = [median(a[i] / b[i] for a, b in pairs) for i in range(3)]
        figures = "".join(f"{median(row[i] for row in rows):10.3f} " for i in range(3))
        print(f"{name:21}{figures}" + "".join(f"{ratio:9.2f} " for ratio in ratios[name]))
    if options.record is not None:
        nbytes = 3 * sum(p.numel() * p.element_size() for p in training.model.parameters())
        record(options.record, results, ratios, options.rounds, nbytes)
    met = ratios["loadsheet"][0] <= 0.2 and ratios["loadsheet"][2] <= 1.0
    print("stall ≤ 0.20 × and total ≤ 1.00 × of fsynced torch.save: " + ("met" if met else "MISSED"))
    return int(options.check and not met)


if __name__ == "__main__":
    sys.exit(main())

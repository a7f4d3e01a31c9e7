"""What a record of the log costs, and how fast a log is read: `python bench/log.py [--check] [--record FILE]`.

Written are records of the usual kind (two numbers, one timing), one call each: flushed, which survives the
death of the process; `durable=True`, which survives the loss of power, alone and beside a thread that writes
checkpoints of half a gigabyte one after another, as a run does while it trains. Reported are the median and
the tails, for a mean would hide that one call in a hundred waits for the disk.

Read is a log of 200,000 lines: into columns (`read_log`) and as a stream of records in constant memory.
`--check` exits 1 if reading is slower than 500,000 lines a second of processor time or a flushed record
takes more than 50 µs in the median.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.log import Log
from loadsheet.run.reading import read_log, stream_log
from loadsheet.run.state import Keeper

LINES = 200_000
READ, WRITE = 500_000, 50e-6


def written(path: Path, calls: int, durable: bool, pause: float = 0.0) -> list[float]:
    """Seconds of each call of `write`."""
    spent = []
    with Log(path, 1, durable=durable) as log:
        log.resume(0)
        for step in range(calls):
            begin = time.perf_counter()
            log.write(step, {"loss": 0.1, "lr": 3e-4}, {"rate": 1.0})
            spent.append(time.perf_counter() - begin)
            time.sleep(pause)
    return spent


class Saving:
    """A thread that saves the same state over and over, for as long as it is entered."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self._store = CheckpointStore(path, keep_last=1)
        self._keeper = Keeper()
        self._keeper.keep(weights=torch.ones(nbytes // 4))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._save)
        self.saves = 0

    def _save(self) -> None:
        while not self._over.is_set():
            self.saves += 1
            snapshot = self._keeper.capture(self.saves)
            self._store.write(snapshot)
            snapshot.release()
            self._store.prune()

    def __enter__(self) -> Saving:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def spread(spent: list[float]) -> dict[str, float]:
    """Median, the tails, the longest; seconds."""
    ordered = sorted(spent)
    at = {"median": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "longest": 1.0}
    return {name: ordered[min(int(share * len(ordered)), len(ordered) - 1)] for name, share in at.items()}


def reading(path: Path) -> dict[str, float]:
    """Lines a second of processor time, best of five, and the peak of memory in bytes that a stream takes."""
    with path.open("w") as file:
        file.write('{"event":"resume","attempt":1,"time":1.0,"from":0}\n')
        for step in range(LINES):
            line = f'{{"step":{step},"attempt":1,"time":{1e9 + step},"loss":{3.1 + step * 1e-7},"lr":0.0003'
            file.write(f'{line},"timing":{{"rate":{1e5 + step},"wait":0.01}}}}\n')
    best = {"columns": math.inf, "stream": math.inf}
    for _ in range(5):
        begin = time.process_time()
        assert len(read_log(path)["loss"]) == LINES
        best["columns"] = min(best["columns"], time.process_time() - begin)
        begin = time.process_time()
        assert sum(1 for _ in stream_log(path)) == LINES
        best["stream"] = min(best["stream"], time.process_time() - begin)
    tracemalloc.start()
    for _ in stream_log(path):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {**{f"{name}_lines_per_second": LINES / seconds for name, seconds in best.items()}, "bytes": peak}


def measure(folder: Path, quick: bool) -> dict[str, Any]:
    """Everything."""
    found: dict[str, Any] = {
        "flushed": spread(written(folder / "flushed", 2_000 if quick else 50_000, False))
    }
    calls = 200 if quick else 3000
    found["durable"] = spread(written(folder / "durable", calls, True))
    with Saving(folder / "checkpoints", 50_000_000 if quick else 500_000_000) as saving:
        found["durable_beside_saves"] = spread(written(folder / "beside", calls, True, pause=0.003))
    found["saves"] = saving.saves
    found["reading"] = reading(folder / "log.jsonl")
    return found


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--quick", action="store_true", help="few calls, to see that it works")
    parser.add_argument("--path", type=Path, help="where to write; a new directory is made there")
    parser.add_argument("--record", type=Path, help="a JSON file whose `log` becomes what was measured")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="log-", dir=options.path))
    try:
        found = measure(folder, options.quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("microseconds            median       p90       p99     p99.9   longest")
    for name in ("flushed", "durable", "durable_beside_saves"):
        print(f"{name:20}" + "".join(f"{1e6 * seconds:10.0f}" for seconds in found[name].values()))
    speed = found["reading"]
    print(
        f"read_log {speed['columns_lines_per_second']:,.0f} lines/s, "
        f"stream_log {speed['stream_lines_per_second']:,.0f} lines/s in {speed['bytes'] / 1e6:.1f} MB"
    )
    if options.record is not None:
        known = json.loads(options.record.read_text()) if options.record.exists() else {}
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        known["log"] = {"date": date, "cores": os.cpu_count(), **found}
        options.record.write_text(json.dumps(known, indent=1) + "\n")
    met = speed["columns_lines_per_second"] >= READ and found["flushed"]["median"] <= WRITE
    print("read_log ≥ 500,000 lines/s and a flushed record ≤ 50 µs: " + ("met" if met else "MISSED"))
    return int(options.check and not met)


if __name__ == "__main__":
    sys.exit(main())

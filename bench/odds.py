"""How long the odds take, and how they fare against real traces: `python bench/odds.py [--traces FOLDER]`.

Times are medians of several repeats in this process, or of whole processes. With `--traces`, every file of
the folder (any form that `loadsheet odds --trace` reads; the V100 availability traces of
github.com/skypilot-org/spot-traces were used for docs/odds.md) is replayed for three jobs and compared with
what the formula and both laws of the simulation say from the trace's mean up- and down-time alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from loadsheet.money.interruptions import Job, expected
from loadsheet.money.interval import best_every, exact
from loadsheet.money.odds import Exponential, Replay, simulate
from loadsheet.money.traces import read_trace

HOUR = 3600.0
DAY = Job(24 * HOUR, 300.0, 3456.0, 6 * HOUR, 120.0, 120.0)
ODDS = ("odds", "--work", "24h", "--save", "5min", "--restart", "2min", "--mtbf", "6h")
PLAN = ("plan", "llama-3-8b", "--gpu", "h100-sxm", "--tokens", "1B", "--price", "2")
SPOT = ("--mtbf", "6h", "--save", "5min")
#: (work, δ, R) in seconds
JOBS = ((12 * HOUR, 60.0, 600.0), (24 * HOUR, 300.0, 120.0), (72 * HOUR, 60.0, 300.0))


def seconds(task: Callable[[], object], repeats: int = 7) -> float:
    """The median of several runs."""
    spent = []
    for _ in range(repeats):
        begin = perf_counter()
        task()
        spent.append(perf_counter() - begin)
    return median(spent)


def process(*arguments: str) -> None:
    """One run of the command line."""
    command = [sys.executable, "-m", "loadsheet", *arguments]
    done = subprocess.run(command, capture_output=True, check=False, encoding="utf-8", timeout=600)
    if done.returncode not in (0, 1):  # 1: the plan says that it does not fit
        raise RuntimeError(done.stderr)


def times() -> None:
    """The table of times; what has a target says so."""
    law, stressed = Exponential(DAY.mtbf, 0.0), Exponential(DAY.mtbf, 1200.0, stressed=True)
    several = Job(*(np.full(100_000, v) for v in (86400.0, 300.0, 3456.0, 21600.0, 120.0, 120.0)))
    rows = [
        ("100,000 jobs of 24 h at M = 6 h", seconds(lambda: simulate(DAY, law, 100_000, 0)), "target 1 s"),
        ("the same, stressed, with waits", seconds(lambda: simulate(DAY, stressed, 100_000, 0)), ""),
        ("the formula, mean and variance", seconds(lambda: expected(DAY)), ""),
        ("the formula for an array of 100,000", seconds(lambda: expected(several), 3), ""),
        ("the exact interval", seconds(lambda: exact(300.0, 21600.0)), ""),
        ("`loadsheet odds`, whole process", seconds(lambda: process(*ODDS), 5), ""),
    ]
    plain, spot = (seconds(lambda args=args: process(*args), 5) for args in (PLAN, (*PLAN, *SPOT)))
    rows += [("`loadsheet plan`", plain, ""), ("`loadsheet plan --mtbf`", spot, "")]
    for what, spent, remark in rows:
        print(f"{what:42s} {1e3 * spent:10.3f} ms  {remark}")


def against(folder: Path) -> None:
    """Each trace replayed, and what was foretold from its means; ratios to the replay."""
    print(
        "\ntrace, hours: M, D, there | machine time / work: formula, replay | 95 % of the wall: replay, plain, stressed"
    )
    ratios: dict[str, list[tuple[float, ...]]] = {"plain": [], "stressed": []}
    for path in sorted(folder.iterdir()):
        trace = read_trace(path)
        for number, (work, save, restart) in enumerate(JOBS):
            job = Job(work, save, best_every(work, save, trace.mtbf, 0.0, 0.0), trace.mtbf, restart, restart)
            replay = simulate(job, Replay(trace), 8000, 1, draws=10**9)
            walls = []
            for name, row in ratios.items():
                law = Exponential(trace.mtbf, trace.wait, stressed=name == "stressed")
                found = simulate(job, law, 8000, 1, draws=10**9)
                row.append(tuple(
                    float(of(mine) / of(real))
                    for mine, real in ((found.machine, replay.machine), (found.wall, replay.wall))
                    for of in (np.mean, lambda v: np.quantile(v, 0.95))
                ))  # fmt: skip
                walls.append(np.quantile(found.wall, 0.95) / HOUR)
            if number == 0:
                print(
                    f"{path.stem:24s} {trace.mtbf / HOUR:5.2f} {trace.wait / HOUR:5.2f} {trace.available:4.0%} | "
                    f"{expected(job).total.mean / work:.3f} {replay.machine.mean() / work:.3f} | "
                    f"{np.quantile(replay.wall, 0.95) / HOUR:4.0f} {walls[0]:4.0f} {walls[1]:4.0f}"
                )
    for name, rows in ratios.items():
        table = np.array(rows)
        print(
            f"{name}, over the replay, median (least, most) of {len(table)}; how many reach 98 % of its 95 % quantile"
        )
        for column, what in enumerate(("machine mean", "machine 95 %", "wall mean", "wall 95 %")):
            values = table[:, column]
            reached = f"   {(values >= 0.98).sum()}" if column in (1, 3) else ""
            print(f"  {what:14s} {np.median(values):.3f} ({values.min():.2f}, {values.max():.2f}){reached}")


def main() -> None:
    """Times, and traces if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, help="a folder of traces")
    given = parser.parse_args()
    times()
    if given.traces is not None:
        against(given.traces)


if __name__ == "__main__":
    main()

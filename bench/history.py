"""How long it takes to list 10,000 runs: `python bench/history.py [--runs N]`.

Makes small run directories as a run leaves them (a config of twelve keys, one attempt, a log of 50 steps with
two metrics, a checkpoint's manifest, a done marker), and lists them in a process of its own each time: cold,
when there is no index, and warm, when there is one. Both with the page cache warm: what a disk takes on
top of it is the disk's. The shortest of several is given: other programs only make it longer; the processor's
time beside it says how much of it was ours.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loadsheet.run.fingerprint import digest

STEPS = 50
TARGET = 1.0  # seconds, with an index


def make(root: Path, number: int) -> None:
    """One run directory; every third one is a seed of the same config."""
    config = {
        "seed": number % 3, "batch": 8, "steps": STEPS,
        "optimizer": {"name": "adamw", "lr": (1 + number // 3) * 1e-5, "betas": [0.9, 0.95], "weight_decay": 0.1},
        "model": {"layers": 4, "width": 256, "heads": 4, "dropout": 0.0, "vocab": 50257},
    }  # fmt: skip
    path = root / digest(config)
    (path / "provenance").mkdir(parents=True)
    (path / "checkpoints" / f"step-{STEPS:08d}").mkdir(parents=True)
    (path / "checkpoints" / f"step-{STEPS:08d}" / "manifest.json").write_text("{}\n")
    (path / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    begun = 1.75e9 + 100 * number
    facts = {"attempt": 1, "time": begun, "excluded": {}, "machine": {}, "libraries": {}, "packages": {}}
    (path / "provenance" / "attempt-0001.json").write_text(json.dumps(facts))
    lines = [{"event": "resume", "attempt": 1, "time": begun + 1, "from": 0}]
    for step in range(STEPS):
        loss = 3 / (1 + step) + number % 7 / 100
        lines.append(
            {"step": step, "attempt": 1, "time": begun + 2 + step, "loss": loss, "val_loss": loss + 0.1}
        )
    (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "done.json").write_text(json.dumps({"steps": STEPS, "attempt": 1, "time": begun + 2 + STEPS}))
    (path / "lock").write_text("")
    old = time.time() - 3600  # what was written in the last seconds is not trusted, and read again
    for entry in [*path.rglob("*"), path]:
        os.utime(entry, (old, old))


def seconds(root: Path, *options: str) -> tuple[float, float]:
    """Wall-clock and processor time of the whole command, in a process of its own."""
    command = [sys.executable, "-m", "loadsheet", "runs", "list", "--runs", str(root), *options]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True)
    spent, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr.decode()
    return spent, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def shortest(repeats: int, root: Path, *options: str) -> tuple[float, float]:
    """The shortest wall-clock time of several, and the shortest processor time."""
    times = [seconds(root, *options) for _ in range(repeats)]
    return min(wall for wall, _ in times), min(cpu for _, cpu in times)


def main() -> int:
    """Make, list, report; exit status 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(options.runs):
            make(root, number)
        rows = {"Python and --help": shortest(options.repeats, root / "none", "--help")}
        rows["cold, no index"] = seconds(root)
        rows["warm"] = warm = shortest(options.repeats, root)
        rows["warm, --groups"] = shortest(options.repeats, root, "--groups")
        rows["warm, --json"] = shortest(options.repeats, root, "--json")
        size = (root / ".loadsheet-index.sqlite").stat().st_size
    print(f"{options.runs:,} runs of {STEPS} steps; whole commands, seconds, shortest of {options.repeats}")
    print(f"  {'':<20}{'wall':>8}{'processor':>12}")
    for name, (wall, cpu) in rows.items():
        target = f"   target {TARGET:.2f} wall" if name == "warm" else ""
        print(f"  {name:<20}{wall:8.2f}{cpu:12.2f}{target}")
    print(f"  the index: {size / 1e6:.1f} MB")
    return 0 if warm[0] <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())

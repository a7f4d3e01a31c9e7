"""Kill training runs at random instants, thousands of times, and report the counts: `make torture`.

Every kind of training gets its share: all combinations of optimizer, scheduler, loader, accumulation and
mixed precision, and with `--compiled` those of the usual ones through `torch.compile`. 2 % of the kills hit
cold interpreters, half hit the process alone and leave its workers behind. With `--record` the counts of an
invocation become a line of a file, in which many add up; `--sum` prints the sum of the reported ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch

from torture.killing import Failed, Lost, Mismatched, Tally, kill_many
from torture.programs import OPTIMIZERS, SCHEDULERS, Spec

RUNS = Path(__file__).with_name("runs.jsonl")
USUAL = {
    "optimizer": ["sgd", "sgd-fused", "adam", "adam-fused", "adamw", "adamw-fused"],
    "scheduler": ["lambda", "onecycle", "cosine", "plateau"],
    "workers": [0, 2],
    "accumulation": [1, 3],
    "amp": [False, True],
}
EVERYTHING = USUAL | {
    "optimizer": list(OPTIMIZERS),
    "scheduler": list(SCHEDULERS),
    "workers": [None, 0, 2],
}
COLD = 0.02


def kinds(compiled: bool) -> list[Spec]:
    """All kinds of training, in an order that is always the same and mixes them."""
    ways: dict[str, Any] = USUAL if compiled else EVERYTHING
    found = [
        Spec(**dict(zip(ways, values, strict=True)), compiled=compiled) for values in product(*ways.values())
    ]
    random.Random(0).shuffle(found)
    return found


def drawn(kind: Spec, dice: random.Random) -> Spec:
    """A kind with what does not matter drawn: a number of steps, how often it saves, a seed."""
    return replace(
        kind,
        steps=dice.choice([30, 40, 60]),
        every=dice.choice([1, 1, 2, 3, 5, "0.02 s", "auto"]),
        seed=dice.randrange(1000),
    )


class Record:
    """A line in a file of lines, written anew as an invocation goes on."""

    def __init__(self, path: Path | None, facts: dict[str, Any]) -> None:
        self._path = path
        self._facts = facts
        self._before = path.read_text() if path is not None and path.exists() else ""

    def write(self, tally: Tally, kinds: int, seconds: float) -> str:
        """The line as it is now."""
        counts = {"kinds": kinds, "hours": round(seconds / 3600, 2), **asdict(tally)}
        line = json.dumps(self._facts | counts)
        if self._path is not None and tally.kills:
            new = self._path.with_name(self._path.name + ".new")
            new.write_text(self._before + line + "\n")
            new.replace(self._path)
        return line


def commit() -> str:
    """The commit this was run at, with a `+` if what is tested was changed since."""
    folder = Path(__file__).resolve().parents[2]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "src/loadsheet/run", "tests/torture/*.py")
    return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


def summed(path: Path = RUNS) -> dict[str, Any]:
    """The counts of all lines of a file together."""
    total: dict[str, Any] = {}
    for line in path.read_text().splitlines():
        for name, value in json.loads(line).items():
            if name in Tally.__dataclass_fields__:
                total[name] = total.get(name, 0) + value
    return total


def torture(options: argparse.Namespace) -> int:
    """As many kills as asked for, in the time there is; 1 if anything was lost."""
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    dice = random.Random(seed)
    every = kinds(options.compiled)
    tally, done, begun = Tally(), 0, time.monotonic()
    until = begun + 60 * options.minutes
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"), "commit": commit(), "cores": os.cpu_count(),
        "torch": str(torch.__version__), "seed": seed, "compiled": options.compiled, "start": options.start,
    }  # fmt: skip
    record = Record(options.record, facts)
    print(json.dumps(facts), flush=True)
    while tally.kills < options.kills and time.monotonic() < until:
        kind = drawn(every[(options.start + done) % len(every)], dice)
        folder = Path(tempfile.mkdtemp(prefix="torture-", dir=options.folder))
        share = min(options.per_kind, options.kills - tally.kills)
        try:
            kill_many(folder, kind, share, dice, tally, cold_share=COLD, until=until)
        except (Failed, Lost, Mismatched) as error:
            found = {Failed: "failed", Lost: "lost", Mismatched: "mismatched"}[type(error)]
            setattr(tally, found, getattr(tally, found) + 1)
            print(f"{found.upper()}: {kind}: {error}; its files are in {folder}", flush=True)
        else:
            shutil.rmtree(folder)
        done += 1
        record.write(tally, done, time.monotonic() - begun)
        print(f"{tally.kills} kills, {done} kinds, {time.monotonic() - begun:.0f} s", flush=True)
    print(record.write(tally, done, time.monotonic() - begun))
    return int(tally.failed + tally.lost + tally.mismatched > 0)


def main() -> int:
    """Kill, or only sum up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--per-kind", type=int, default=14, help="kills of one kind of training [14]")
    parser.add_argument("--compiled", action="store_true", help="models through torch.compile; needs g++")
    parser.add_argument("--start", type=int, default=0, help="the kind to begin with; they go round [0]")
    parser.add_argument("--seed", type=int, default=None, help="default: by the clock; printed")
    parser.add_argument("--record", type=Path, default=None, help="a file that gets a line with the counts")
    parser.add_argument("--folder", type=Path, default=None, help="where the runs are made [the system's]")
    parser.add_argument("--sum", action="store_true", help=f"print the sum of {RUNS.name} and of --record")
    options = parser.parse_args()
    if options.sum:
        print(json.dumps(summed(options.record or RUNS)))
        return 0
    return torture(options)


if __name__ == "__main__":
    sys.exit(main())

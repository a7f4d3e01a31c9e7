"""Kill training runs at random instants, thousands of times, and report the counts: `make torture`.

Every kind of training there is gets its share, all combinations of optimizer, scheduler, workers,
accumulation, mixed precision and compilation; 2 % of the lives are cold interpreters, half of the kills hit
the process alone and leave its workers behind.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch

from torture.killing import Tally, kill_many
from torture.programs import OPTIMIZERS, SCHEDULERS, Spec


def draw(dice: random.Random, compiled: bool) -> Spec:
    """A kind of training."""
    return Spec(
        optimizer=dice.choice(list(OPTIMIZERS)),
        scheduler=dice.choice(list(SCHEDULERS)),
        workers=dice.choice([None, 0, 0, 2]),
        accumulation=dice.choice([1, 3]),
        amp=dice.random() < 0.5,
        compiled=compiled and dice.random() < 0.02,
        steps=dice.choice([20, 40, 90]),
        every=dice.choice([1, 2, 5, 11, "0.02 s", "auto"]),
        seed=dice.randrange(1000),
    )


def main() -> None:
    """As many kills as asked for; the counts as JSON at the end, and a line now and then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="default: by the clock; printed")
    parser.add_argument("--per-kind", type=int, default=40, help="kills of one kind of training")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the runs are made; default: the system's"
    )
    options = parser.parse_args()
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    dice = random.Random(seed)
    tally, kinds, begun = Tally(), 0, time.monotonic()
    print(f"seed {seed}, torch {torch.__version__}", flush=True)
    while tally.kills < options.kills:
        spec = draw(dice, compiled=shutil.which("g++") is not None)
        folder = Path(tempfile.mkdtemp(prefix="torture-", dir=options.folder))
        try:
            share = min(options.per_kind, options.kills - tally.kills)
            tally.add(kill_many(folder, spec, share, dice, cold_share=0.02))
        except BaseException:
            print(f"FAILED with {spec} after {asdict(tally)}; its files are in {folder}", flush=True)
            raise
        shutil.rmtree(folder)
        kinds += 1
        print(f"{tally.kills} kills, {tally.runs} runs, {time.monotonic() - begun:.0f} s", flush=True)
    hours = (time.monotonic() - begun) / 3600
    print(json.dumps({"seed": seed, "kinds": kinds, "hours": round(hours, 2), **asdict(tally)}))


if __name__ == "__main__":
    main()

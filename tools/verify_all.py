"""Hold many architectures against real PyTorch: `loadsheet verify --quick` for each (CI; needs transformers).

    python tools/verify_all.py [--jobs N] [MODEL_TYPE ...]

Small models with random weights on the CPU: parameters on the real sizes, FLOPs, bytes kept for backward
with and without checkpointing, peak of an AdamW step, cache. Prints a line each and ends with exit status 1
if anything is outside its limits.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor

from architectures import recorded
from loadsheet.arch.checked import CHECKED
from loadsheet.arch.families import build

ENOUGH = 12  # comparisons without which an architecture is not called verified


def check(name: str) -> tuple[str, list[str], tuple[int, int], float]:
    """(model type, what is outside its limits or could not be looked at, (good, judged), seconds)."""
    import torch

    from loadsheet.measure.verify import verify

    torch.set_num_threads(1)
    start = time.monotonic()
    lines = verify(build(recorded()[name][0]["config"], name), quick=True)
    bad = [f"{line.what}: {line.ours} against {line.theirs}" for line in lines if line.ok is False]
    bad += [f"{line.what}: could not be looked at: {line.reason}" for line in lines if line.unseen]
    judged = [line.ok for line in lines if line.ok is not None]
    return name, bad, (sum(judged), len(judged)), time.monotonic() - start


def main(arguments: list[str]) -> int:
    """Run them, two at a time unless told otherwise."""
    jobs = int(arguments[arguments.index("--jobs") + 1]) if "--jobs" in arguments else 2
    chosen = [a for a in arguments if not a.startswith("-") and not a.isdigit()]
    names = chosen or sorted(CHECKED)
    failed = 0
    with ProcessPoolExecutor(jobs) as pool:
        for name, bad, (good, judged), seconds in pool.map(check, names):
            if judged < ENOUGH:
                bad.append(f"only {judged} comparisons could be made")
            print(f"{name:24} {good} of {judged} within their limits, {seconds:.0f} s", flush=True)
            for line in bad:
                print(f"    {line}", flush=True)
            failed += bool(bad)
    print(f"verify: {len(names) - failed} of {len(names)} architectures as PyTorch has them")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

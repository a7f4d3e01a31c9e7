"""Processes that do nothing but save, to be killed; forked from one that has PyTorch loaded already.

Reads directories from standard input, one a line. For each a child prints its process id, the step it goes
on from, and then each step once it is durable; when it is dead, `dead` is printed.
"""

from __future__ import annotations

import os
import sys

import torch

from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.state import Keeper


def say(*words: object) -> None:
    """A line that is out when this returns."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def save_for_ever(path: str) -> None:
    """Go on from the newest checkpoint."""
    store = CheckpointStore(path)
    keeper = Keeper()
    weights, facts = torch.zeros(500_000), {"step": 0}
    keeper.keep(weights=weights, facts=facts)
    step = store.load().step if store.steps() else 0
    say(os.getpid(), step)
    while True:
        step += 1
        weights.fill_(step)
        facts["step"] = step
        snapshot = keeper.capture(step)
        store.write(snapshot)
        snapshot.release()
        say(step)
        store.prune()


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads do not survive a fork
    for line in sys.stdin:
        child = os.fork()
        if not child:
            save_for_ever(line.rstrip("\n"))
        os.waitpid(child, 0)
        say("dead")

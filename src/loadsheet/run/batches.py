"""Batches without end, exact in the middle of an epoch.

What makes a resumed epoch go wrong elsewhere: `iter(DataLoader)` draws from the global generator even
unshuffled, a sampler's order is drawn when the epoch begins but the generator is saved later, workers
start again with new seeds, and whoever saves counts what was prefetched instead of what was used. Here
the order of an epoch is a function of (seed, epoch), the randomness of a batch a function of (seed,
epoch, batch), and the position counts batches handed out. Three numbers are the whole state.

For a `DataLoader` over a map-style dataset the position is found by skipping indices, which loads
nothing, and the random numbers are the same whatever the number of workers. Anything else that can be
iterated again is replayed up to the position, or asked for its own `state_dict`.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from loadsheet.errors import shorten
from loadsheet.run.errors import BadCheckpoint
from loadsheet.run.leaving import BUSY, at_the_end, kill_after, workers_may_die
from loadsheet.run.sources import Step, source_of
from loadsheet.run.tell import tell


class Batches:
    """An endless iterator over a loader; `state_dict` is its exact position.

    Raises BadInput for what can be iterated only once, or has no batches.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self._source = source_of(loader)
        self._seed = _seed_of(loader)
        self._length = _length(loader)
        self._epoch = 0
        self._number = 0  # batches of this epoch that were handed out
        self._batches: Iterator[Step] | None = None
        self._workers: list[Any] = []
        self._others: set[Any] = set()  # children of somebody else
        self.wait_seconds = 0.0
        self._pid = os.getpid()
        _alive.add(self)
        at_the_end(_close_all)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        begun = time.perf_counter()
        started = self._batches is None
        epoch = -1
        try:
            if self._batches is None:
                self._others = set(multiprocessing.active_children())
                self._batches = self._source.start(self._seed, self._epoch, self._number)
            epoch, number, batch = next(self._batches)
        finally:
            if started or epoch != self._epoch:  # an epoch may begin with new workers, an error end here
                self._workers = [w for w in multiprocessing.active_children() if w not in self._others]
        self._epoch, self._number = epoch, number + 1
        self.wait_seconds += time.perf_counter() - begun
        return batch

    @property
    def epoch(self) -> int:
        """The epoch of the last batch, from 0."""
        return self._epoch

    @property
    def workers(self) -> list[int]:
        """Process ids of the loader's workers."""
        return [w.pid for w in self._workers if w.pid is not None]

    def state_dict(self) -> dict[str, Any]:
        """Seed, epoch, batches used of it, length of the data, and what the source itself keeps."""
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "number": self._number,
            "length": self._length,
            "source": self._source.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position; workers that have run ahead are dropped with what they prefetched."""
        try:
            seed, epoch, number = (int(state[k]) for k in ("seed", "epoch", "number"))
            length, inner = state["length"], state["source"]
        except (KeyError, TypeError, ValueError):
            message = f"batches: got the state {shorten(state)}, expected seed, epoch and number"
            raise BadCheckpoint(message) from None
        self.close()
        if length != self._length:
            tell(
                f"batches: the loader has {self._length} batches, the checkpoint was written with {length}: "
                "the data or the batch size has changed, so the order has too"
            )
        self._seed, self._epoch, self._number = seed, epoch, number
        self._source.restore(inner)

    def close(self) -> None:
        """End the workers; the next batch starts new ones at the same position.

        Those that are busy are waited for, together, as long as torch would wait for each of them.
        """
        workers, self._workers = self._workers, []
        if os.getpid() != self._pid:  # a child that was forked: to let go of them would tell them to end
            _of_the_parent.append(self._batches)
            self._batches = None
            return
        if not workers:
            self._batches = None
            return
        with workers_may_die():
            clock = kill_after(BUSY, workers)
            self._batches = None  # torch ends its workers when the last reference goes
            for worker in workers:  # if one is held still, they were not told, and do not hear SIGTERM
                worker.join(0.5)
                if worker.is_alive():
                    worker.kill()
                    worker.join()
            clock.cancel()


_of_the_parent: list[Any] = []
_alive: weakref.WeakSet[Batches] = weakref.WeakSet()


def _close_all() -> None:
    """End the workers when this process ends, by an exception too, before multiprocessing waits for them.

    It asks them with SIGTERM, which they ignore, and would wait for ever.
    """
    for batches in list(_alive):
        batches.close()


def _seed_of(loader: object) -> int:
    """The seed that the user has set: the loader's generator's, else the process's."""
    generator = getattr(loader, "generator", None)
    if isinstance(generator, torch.Generator):
        return int(generator.initial_seed()) & (2**63 - 1)
    return int(torch.initial_seed()) & (2**63 - 1)


def _length(loader: object) -> int | None:
    """The number of batches, where that can be told."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that an iterable's length may be approximate
            return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None

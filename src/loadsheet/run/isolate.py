"""Randomness kept apart: what evaluation and data draw must not move the training's random numbers.

Every generator here is counter based at the level that matters: its seed is a function of (base seed,
epoch, batch), so the numbers of batch 7 do not depend on who drew what before it, in which process, or
how often the run was interrupted.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from types import TracebackType
from typing import Any

import torch


def mix(*numbers: int) -> int:
    """A 63-bit seed out of integers: equal ones give the same, and no two near ones a related one."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


def _numpy_random() -> Any | None:
    """NumPy's legacy generator if NumPy has been imported; else it cannot have been used."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else getattr(numpy, "random", None)


def _cuda() -> bool:
    """Whether CUDA's generators exist in this process; to ask must not start CUDA."""
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


class Randomness:
    """The states of the process's own generators: Python, NumPy (legacy), torch, if asked for every CUDA."""

    __slots__ = ("cuda", "numpy", "python", "torch")

    def __init__(self, cuda: bool = False) -> None:
        self.python = random.getstate()
        numpy = _numpy_random()
        self.numpy = None if numpy is None else numpy.get_state()
        self.torch = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if cuda and _cuda() else None

    def restore(self) -> None:
        """Put every generator back where it stood."""
        random.setstate(self.python)
        if self.numpy is not None and (numpy := _numpy_random()) is not None:
            numpy.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda is not None:
            torch.cuda.set_rng_state_all(self.cuda)


def reseed(seed: int, cuda: bool = False) -> None:
    """Seed the process's generators; a forked worker never touches CUDA's, which would fail there."""
    random.seed(seed)
    if (numpy := _numpy_random()) is not None:
        numpy.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    if cuda and _cuda():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def isolated(seed: int | None = None, cuda: bool = False) -> Iterator[None]:
    """Whatever is drawn inside, outside nothing has moved; `seed` starts the inside afresh."""
    before = Randomness(cuda)
    try:
        if seed is not None:
            reseed(seed, cuda)
        yield
    finally:
        before.restore()


class Stream:
    """Random numbers of its own for code that draws from the process's generators bit by bit.

    Each `with stream:` goes on where the last one stopped, and leaves the outside untouched.
    """

    __slots__ = ("_inside", "_outside", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inside: Randomness | None = None
        self._outside: Randomness | None = None

    def __enter__(self) -> None:
        self._outside = Randomness()
        if self._inside is None:
            reseed(self._seed)
        else:
            self._inside.restore()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = Randomness()
        if self._outside is not None:
            self._outside.restore()
            self._outside = None

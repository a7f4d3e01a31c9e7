"""What PyTorch measures: bytes kept for backward, FLOPs, optimizer states, and times."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from loadsheet.lab.models import loss_of
from loadsheet.measure.kept import KeptTensors


@contextmanager
def reproducible(seed: int = 0) -> Iterator[None]:
    """One thread and a fixed seed inside; outside everything is as it was."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def versions() -> dict[str, str]:
    """What an experiment ran on."""
    return {"torch": torch.__version__.partition("+")[0], "python": platform.python_version(), "threads": "1"}


def token_ids(batch: int, seq: int, vocab: int) -> Tensor:
    """Random tokens, (B, T)."""
    return torch.randint(vocab, (batch, seq))


def activation_bytes(model: nn.Module, batch: int, seq: int, vocab: int) -> int:
    """Bytes kept by one forward with its loss."""
    ids = token_ids(batch, seq, vocab)
    with KeptTensors(model) as kept:
        loss = loss_of(model, ids)
    del loss  # what is kept is counted while the graph is there
    return kept.total


def counted_flops(model: nn.Module, batch: int, seq: int, vocab: int) -> tuple[int, int, int]:
    """FlopCounterMode's count of (forward, backward, of both the attention's batched products)."""
    ids = token_ids(batch, seq, vocab)
    with FlopCounterMode(display=False) as forward:
        loss = loss_of(model, ids)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    model.zero_grad(set_to_none=True)
    batched = sum(
        flops
        for counter in (forward, backward)
        for op, flops in counter.get_flop_counts()["Global"].items()
        if op is torch.ops.aten.bmm
    )
    return forward.get_total_flops(), backward.get_total_flops(), batched


def state_bytes(optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """(bytes of the states that are as large as their parameter, bytes of the rest: step counters)."""
    full = rest = 0
    for parameter, state in optimizer.state.items():
        for value in state.values():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                full += value.nbytes
            elif isinstance(value, Tensor):
                rest += value.nbytes
    return full, rest


def best_seconds(work: Callable[[], object], *, budget: float = 1.0, most: int = 20) -> float:
    """The shortest of several runs after one for warming up, within about `budget` seconds."""
    work()
    best, spent, runs = float("inf"), 0.0, 0
    while runs == 0 or (spent + best < budget and runs < most):
        start = time.perf_counter()
        work()
        taken = time.perf_counter() - start
        best, spent, runs = min(best, taken), spent + taken, runs + 1
    return best


def matmul_rate(size: int = 1024) -> float:
    """FLOP/s of a square product in fp32: 2·n³ over the shortest of several times."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / best_seconds(lambda: torch.mm(a, b))


def step_seconds(model: nn.Module, batch: int, seq: int, vocab: int) -> float:
    """Seconds of a training step: forward, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters())
    ids = token_ids(batch, seq, vocab)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, ids).backward()
        optimizer.step()

    return best_seconds(step, budget=1.0, most=10)

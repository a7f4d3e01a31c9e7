"""Small training programs of many kinds, for processes that will be killed; run as a module: one attempt.

Each ends by writing a digest of everything that training has made, bit for bit, and while it runs it notes
in a shared page which records it was promised: a write to mapped memory survives SIGKILL as the page cache
does.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import random
import struct
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import loadsheet as ls

#: what "auto" is told of the time between kills, seconds
MTBF = 0.5
PROMISE = struct.Struct(
    "<qqq"
)  # attempt and step of the last record that `log` returned from, and a check of both


@dataclass(frozen=True)
class Spec:
    """One kind of training."""

    optimizer: str = "adamw"
    scheduler: str = "lambda"
    workers: int | None = 0  # None: batches drawn from the global generator, no loader
    accumulation: int = 1
    amp: bool = False
    compiled: bool = False
    steps: int = 40
    every: int | str | None = 5
    seed: int = 0
    hold: int | None = None  # the step that goes on only when there is no `out`.hold


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 3e-3, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 3e-3, weight_decay=0.1),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 3e-3, fused=True),
    "adam-fused": lambda p: torch.optim.Adam(p, 3e-3, fused=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, 3e-3, foreach=True),
}
SCHEDULERS = {
    "lambda": lambda o, n: torch.optim.lr_scheduler.LambdaLR(
        o, lambda s: min(1.0, (s + 1) / 8) / (1 + s / n)
    ),
    "onecycle": lambda o, n: torch.optim.lr_scheduler.OneCycleLR(o, 0.01, total_steps=n + 1),
    "cosine": torch.optim.lr_scheduler.CosineAnnealingLR,
    "plateau": lambda o, n: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1, threshold=0.05),
    "sequential": lambda o, n: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=5),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.97),
        ],
        [7],
    ),
    "none": lambda o, n: None,
}


class Net(nn.Module):
    """Dropout, a running mean that is not saved by state_dict, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 12)
        self.inner = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Dropout(0.2), nn.Linear(24, 12))
        self.head = nn.Linear(12, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mean", torch.zeros(12), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        hidden = hidden + self.inner(hidden)
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * hidden.mean((0, 1)).float())
        out: torch.Tensor = self.head(hidden - self.mean.to(hidden.dtype))
        return out


class Text(Dataset[Any]):
    """Tokens with random changes, as augmentation: every global generator has a part in them."""

    def __len__(self) -> int:
        return 46

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = (torch.arange(9) * (index + 1)) % 16
        ids[random.randrange(9)] = int(torch.randint(16, ()))
        ids[int(np.random.randint(9))] = 3
        return ids[:-1], ids[1:]


def batches_of(run: Any, spec: Spec) -> Iterator[Any]:
    """From a loader through the run, or drawn from the global generator as nanoGPT does."""
    if spec.workers is not None:
        loader = DataLoader(Text(), 4, shuffle=True, num_workers=spec.workers)
        iterator: Iterator[Any] = run.batches(loader)
        return iterator

    def drawn() -> Iterator[Any]:
        text = Text()
        while True:
            pairs = [text[int(i)] for i in torch.randint(len(text), (4,))]
            yield torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])

    return drawn()


class Crash(Exception):
    """Ends a life that is to end at a certain step, in this process."""


def train(root: str, spec: Spec, out: str, crash_at: int | None = None) -> None:
    """One attempt; `out` gets the digest at the end. `crash_at`: raises Crash at the end of that step."""
    with warnings.catch_warnings():
        # that unfinished saves are swept, and that other tests' models live: both are as they must be
        warnings.simplefilter("ignore", ls.RunWarning)
        ls.deterministic(spec.seed, threads=1)
        with ls.Run.open(root, asdict(spec), exclude=("every", "hold"), progress=False) as run:
            _train(run, spec, out, crash_at)


def _train(run: Any, spec: Spec, out: str, crash_at: int | None) -> None:
    model = Net()
    optimizer = OPTIMIZERS[spec.optimizer](model.parameters())
    scheduler = SCHEDULERS[spec.scheduler](optimizer, spec.steps)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=6, enabled=spec.amp)
    forward = torch.compile(model) if spec.compiled else model
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    run.keep(model=model, optimizer=optimizer, scaler=scaler, average=average)
    if scheduler is not None:
        run.keep(scheduler=scheduler)
    batches = batches_of(run, spec)
    page = _page(out + ".promised")
    for step in run.steps(spec.steps, checkpoint_every=spec.every, mtbf=MTBF):
        total = 0.0
        for _ in range(spec.accumulation):
            x, y = next(batches)
            with torch.autocast("cpu", torch.bfloat16, enabled=spec.amp):
                logits = forward(x)
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten()) / spec.accumulation
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if spec.scheduler == "plateau":
            scheduler.step(total)
        elif scheduler is not None:
            scheduler.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                average[name].lerp_(p, 0.1)
        run.log(loss=total, lr=optimizer.param_groups[0]["lr"])
        run.log(scale=scaler.get_scale() if spec.amp else 1.0, timing={"pid": 1.0})
        page[:] = promise(run.attempt, step)
        if step % 16 == 7:
            with run.aside():
                model.eval()
                torch.rand(step), random.random(), np.random.rand()
                model.train()
        if step == crash_at:
            raise Crash
        while step == spec.hold and Path(out + ".hold").exists():
            time.sleep(0.01)
    Path(out).write_text(json.dumps(digest(model, optimizer, scheduler, scaler, average)))


def _page(name: str) -> mmap.mmap:
    path = Path(name)
    if not path.exists():
        path.write_bytes(promise(0, -1))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), PROMISE.size)


def promised(out: str) -> tuple[int, int]:
    """The attempt and step of the last record that a killed process was promised."""
    try:
        data = Path(out + ".promised").read_bytes()
    except FileNotFoundError:
        return 0, -1
    attempt, step, _ = PROMISE.unpack(data)
    # A kill can fall into the copying of the page itself: what was noted half was not promised yet.
    return (attempt, step) if data == promise(attempt, step) else (0, -1)


def promise(attempt: int, step: int) -> bytes:
    """A note of a promise, whose third number tells a whole one from one that a kill cut."""
    return PROMISE.pack(attempt, step, attempt * 1_000_003 ^ step)


def _hash(value: Any) -> str:
    """A digest of nested states, tensors by their bytes and dtype."""
    sha = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            sha.update(f"{item.dtype}{tuple(item.shape)}".encode())
            sha.update(item.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(item, dict):
            for key in item:
                sha.update(repr(key).encode())
                add(item[key])
        elif isinstance(item, list | tuple):
            for part in item:
                add(part)
        elif isinstance(item, np.ndarray):
            sha.update(item.tobytes())
        elif not callable(item):
            sha.update(repr(item).encode())

    add(value)
    return sha.hexdigest()[:16]


def digest(model: nn.Module, optimizer: Any, scheduler: Any, scaler: Any, average: Any) -> dict[str, str]:
    """All that training has made, each part by itself, so that a difference has a name."""
    return {
        "model": _hash(dict(model.named_parameters())),
        "buffers": _hash(dict(model.named_buffers())),
        "optimizer": _hash(optimizer.state_dict()),
        "scheduler": _hash(scheduler.state_dict() if scheduler is not None else None),
        "scaler": _hash(scaler.state_dict()),
        "average": _hash(average),
        "random": _hash([torch.get_rng_state(), np.random.get_state(), random.getstate()]),
    }


if __name__ == "__main__":
    train(sys.argv[1], Spec(**json.loads(sys.argv[2])), sys.argv[3])

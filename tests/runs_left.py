"""Small real runs, as finished and interrupted training scripts leave them, for the tests of `loadsheet runs`."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import loadsheet as ls
from loadsheet.run.errors import RunWarning

STEPS = 12


def train(
    root: Path, config: dict[str, Any], *, until: int | None = None, steps: int = STEPS, keep_last: int = 9
) -> Path:
    """One attempt at a run of a tiny tied model; `until`: break off after so many steps. The run's directory.

    Steps log `loss`, tokens and a rate; every third one `val_loss`, best in the middle of the run.
    """
    gc.collect()
    gc.freeze()  # a run looks through all living objects, for what was not kept
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunWarning)
            return _train(root, config, until, steps, keep_last)
    finally:
        gc.unfreeze()


class Tied(nn.Module):
    """An embedding, a layer, and a head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.layer(self.embed(tokens))))
        return out


def _train(root: Path, config: dict[str, Any], until: int | None, steps: int, keep_last: int) -> Path:
    torch.manual_seed(config.get("seed", 0))
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1))
    run = ls.Run.open(root, config, progress=False)
    run.keep(model=model, optimizer=optimizer)
    loop = run.steps(steps, checkpoint_every=3, keep_last=keep_last)
    for step in loop:
        tokens = torch.randint(0, 16, (4,))
        loss = nn.functional.cross_entropy(model(tokens), tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.seen += 4
        run.log(loss=loss.item(), tokens=(step + 1) * 4, timing={"tokens_per_second": 100.0 + step})
        if step % 3 == 2:
            run.log(val_loss=(step - 5) ** 2 + config.get("lr", 0.1))
        if until is not None and step + 1 == until:
            break
    loop.close()  # type: ignore[attr-defined]
    run.__exit__(None, None, None)
    return run.path

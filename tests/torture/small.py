"""A run of a tiny model, for tests of the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import loadsheet as ls
from loadsheet.run.reading import read_events

CONFIG = {"lr": 0.01}


class Training:
    """A run of a tiny model, written as a script would."""

    def __init__(self, root: Path, config: object = CONFIG, **options: Any) -> None:
        torch.manual_seed(0)
        self.run = ls.Run.open(root, config, progress=False, **options)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.run.keep(model=self.model, optimizer=self.optimizer)
        data = [(torch.full((4,), float(i)), torch.ones(1)) for i in range(10)]
        self.batches = self.run.batches(torch.utils.data.DataLoader(data, 4, shuffle=True))

    def step(self) -> float:
        """One step, its loss logged."""
        x, y = next(self.batches)
        loss = ((self.model(x) - y) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.run.log(loss=loss)
        return loss.item()

    def train(self, total: int, stop_after: int | None = None, **options: Any) -> list[int]:
        """The steps done; `stop_after`: break in that step."""
        done = []
        for step in self.run.steps(total, **{"checkpoint_every": 3, **options}):
            self.step()
            done.append(step)
            if step == stop_after:
                break
        return done

    def settle(self) -> None:
        """Wait for the save that is being written."""
        assert self.run._saves is not None
        self.run._saves.wait()

    @property
    def weights(self) -> list[float]:
        """All of them."""
        return [w for p in self.model.parameters() for w in p.detach().flatten().tolist()]

    @property
    def checkpoints(self) -> list[int]:
        """The steps that have one."""
        return sorted(int(p.name[5:]) for p in (self.run.path / "checkpoints").glob("step-*"))

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.run.close()


def starts(path: Path) -> list[int]:
    """Where each attempt began."""
    return [event["from"] for event in read_events(path) if event["event"] == "resume"]


def whole(root: Path, total: int) -> tuple[list[float], list[Any]]:
    """Weights and losses of the uninterrupted run."""
    with Training(root) as training:
        assert training.train(total) == list(range(total))
        return training.weights, ls.read_log(training.run.path)["loss"]

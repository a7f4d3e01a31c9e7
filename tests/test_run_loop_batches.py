"""Batches: exact from any position, whatever draws random numbers, and without moving anybody else's."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

import loadsheet as ls
from loadsheet.errors import BadInput
from loadsheet.run.batches import Batches
from loadsheet.run.errors import BadCheckpoint, RunWarning
from loadsheet.run.reading import read_events


class Augmented(Dataset[Any]):
    """Items whose values hang on every global generator, as augmentations do."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), float(np.random.rand()), float(torch.rand(()))


class Shuffling(Sampler[int]):
    """A sampler of one's own that draws from Python's generator while it goes."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        left = list(range(22))
        while left:
            yield left.pop(random.randrange(len(left)))

    def __len__(self) -> int:
        return 22


class Streamed(IterableDataset[Any]):
    """A stream, split among workers, with noise."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 22, stride):
            yield index, random.random(), float(np.random.rand()), float(torch.rand(()))


def noisy_collate(items: list[Any]) -> torch.Tensor:
    """A collate function that draws, as masking for a language model does."""
    return torch.tensor(items, dtype=torch.float64) + torch.rand(())


def plain(batch: Any) -> Any:
    """A batch as something that compares by value, bit for bit."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [plain(b) for b in batch] if isinstance(batch, list | tuple) else batch


LOADERS = {
    "in order": lambda n: DataLoader(Augmented(), 4, num_workers=n),
    "shuffled": lambda n: DataLoader(Augmented(), 4, shuffle=True, num_workers=n),
    "own generator": lambda n: DataLoader(
        Augmented(), 4, shuffle=True, num_workers=n, generator=torch.Generator().manual_seed(5)
    ),
    "weighted": lambda n: DataLoader(
        Augmented(), 4, sampler=WeightedRandomSampler([1.0] * 21 + [9.0], 18), num_workers=n
    ),
    "with replacement": lambda n: DataLoader(
        Augmented(), 4, sampler=RandomSampler(Augmented(), replacement=True, num_samples=70), num_workers=n
    ),
    "own sampler": lambda n: DataLoader(Augmented(), 4, sampler=Shuffling(), num_workers=n, drop_last=True),
    "batch sampler": lambda n: DataLoader(
        Augmented(), batch_sampler=BatchSampler(Shuffling(), 3, False), num_workers=n
    ),
    "no batching": lambda n: DataLoader(Augmented(), batch_size=None, shuffle=True, num_workers=n),
    "collate": lambda n: DataLoader(Augmented(), 4, shuffle=True, num_workers=n, collate_fn=noisy_collate),
    "stream": lambda n: DataLoader(Streamed(), 4, num_workers=n),
}


def take(batches: Batches, count: int) -> list[Any]:
    """The next batches."""
    return [plain(next(batches)) for _ in range(count)]


@pytest.mark.parametrize("name", LOADERS)
def test_resumes_in_the_middle(name: str) -> None:
    """From every position over two epochs and more, a new iterator goes on with exactly the same batches."""
    whole = Batches(LOADERS[name](0))
    expected = take(whole, 15)
    for position in (1, 4, 5, 6, 7, 11, 14):
        first = Batches(LOADERS[name](0))
        take(first, position)
        state = first.state_dict()
        torch.manual_seed(position), random.seed(position), np.random.seed(position)
        second = Batches(LOADERS[name](0))
        second.load_state_dict(state)
        assert take(second, 15 - position) == expected[position:], position
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", ["shuffled", "collate", "batch sampler"])
def test_workers_do_not_change_the_numbers(name: str) -> None:
    """Two workers, and two after a resume, give the batches that no workers give, augmentation included."""
    expected = take(Batches(LOADERS[name](0)), 12)
    first = Batches(LOADERS[name](2))
    assert take(first, 5) == expected[:5]
    assert len(first.workers) == 2
    state = first.state_dict()
    first.close()
    second = Batches(LOADERS[name](2))
    second.load_state_dict(state)
    assert take(second, 7) == expected[5:]
    second.close()


def test_stream_with_workers() -> None:
    """An iterable dataset with two workers is replayed to the same numbers."""
    whole = Batches(LOADERS["stream"](2))
    expected = take(whole, 14)
    whole.close()
    second = Batches(LOADERS["stream"](2))
    second.load_state_dict({**Batches(LOADERS["stream"](2)).state_dict(), "epoch": 1, "number": 2})
    assert take(second, 6) == expected[8:]
    second.close()


@pytest.mark.parametrize("name", LOADERS)
def test_moves_no_global_generator(name: str) -> None:
    """Loading, shuffling, augmenting and starting epochs draw nothing from the process's generators."""
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    take(Batches(LOADERS[name](0)), 13)
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert after == before


def test_every_sample_once_per_epoch() -> None:
    """Resumed three times in one epoch, every sample is seen exactly once, and epochs differ in order."""
    loader = DataLoader(range(20), 4, shuffle=True)
    seen: list[Any] = []
    state = None
    for count in (1, 2, 1, 6):
        batches = Batches(loader)
        if state is not None:
            batches.load_state_dict(state)
        seen += take(batches, count)
        state = batches.state_dict()
    flat = [i for batch in seen for i in batch]
    assert Counter(flat) == Counter(dict.fromkeys(range(20), 2))
    assert sorted(flat[:20]) == list(range(20))
    assert flat[:20] != flat[20:]
    assert batches.epoch == 1


def test_seed_decides() -> None:
    """The process's seed, or the loader's generator's, decides the order; an untouched seed repeats it."""
    orders = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        orders.append(take(Batches(DataLoader(range(50), 10, shuffle=True)), 5))
    assert orders[0] == orders[1] != orders[2]


def test_own_state_is_asked_for() -> None:
    """A loader that knows its position is given it back before it is iterated."""

    class Knowing:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Iterator[int]:
            while self.at < 6:
                self.at += 1
                yield self.at
            self.at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    first = Batches(Knowing())
    assert take(first, 4) == [1, 2, 3, 4]
    second = Batches(Knowing())
    second.load_state_dict(first.state_dict())
    assert take(second, 4) == [5, 6, 1, 2]


class Positioned(IterableDataset[Any]):
    """A stream that knows its position, with noise, as torchdata wants one."""

    def __init__(self) -> None:
        self.at: int | None = None

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        self.at = first if self.at is None else self.at
        while self.at < 22:
            self.at += stride
            yield self.at - stride, float(torch.rand(())) if info is None else 0.0
        self.at = None

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


STATEFUL = {
    "in order": lambda n: StatefulDataLoader(Augmented(), 4, num_workers=n),
    "shuffled": lambda n: StatefulDataLoader(Augmented(), 4, shuffle=True, num_workers=n),
    "stream": lambda n: StatefulDataLoader(Streamed(), 4, num_workers=n),
    "stream with a position": lambda n: StatefulDataLoader(Positioned(), 4, num_workers=n),
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # of torchdata, to torch
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", STATEFUL)
def test_torchdata_resumes_in_the_middle(name: str, workers: int) -> None:
    """Its StatefulDataLoader: over indices, over streams, mid-epoch and at its end; no global number is drawn."""
    expected, states = [], []
    whole = Batches(STATEFUL[name](workers))
    before = torch.get_rng_state().tolist(), random.getstate()
    for _ in range(14):
        expected += take(whole, 1)
        states.append(whole.state_dict())
    assert (torch.get_rng_state().tolist(), random.getstate()) == before
    whole.close()
    for position in (1, 5, 6, 7, 11) if workers == 0 else (2, 9):
        torch.manual_seed(position), random.seed(position), np.random.seed(position)
        second = Batches(STATEFUL[name](workers))
        second.load_state_dict(states[position - 1])
        assert take(second, 14 - position) == expected[position:], position
        second.close()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_in_a_run(workers: int, tmp_path: Path) -> None:
    """A run that is left in the middle of an epoch and goes on logs what an uninterrupted one does."""
    logs = []
    for name, leaves in (("whole", [99]), ("cut", [4, 8, 99])):
        for leave in leaves:
            torch.manual_seed(0)
            with ls.Run.open(tmp_path / name, {}, progress=False) as run:
                batches = run.batches(STATEFUL["stream with a position"](workers))
                for step in run.steps(14, checkpoint_every=3):
                    run.log(batch=plain(next(batches)), drawn=float(torch.rand(())))
                    if step == leave:
                        break
        logs.append([ls.read_log(run.path)[column] for column in ("step", "batch", "drawn")])
    starts = [e["from"] for e in read_events(run.path) if e["event"] == "resume"]
    assert starts == [0, 3, 6]
    assert logs[0] == logs[1]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("name", ["shuffled", "stream with a position"])
def test_workers_of_torchdata_are_deaf_too(name: str) -> None:
    """SIGTERM to the process group does not take the batches away."""
    expected = take(Batches(STATEFUL[name](0)), 7)
    batches = Batches(STATEFUL[name](2))
    found = take(batches, 2)
    assert len(batches.workers) == 2
    for worker in batches.workers:
        os.kill(worker, signal.SIGTERM)
    found += take(batches, 5)
    if name == "shuffled":
        assert found == expected
    else:  # two workers split the stream in another way
        assert len(found) == 7
    batches.close()


def test_worker_init_sees_the_users_dataset() -> None:
    """A worker's init function finds its own dataset, and what it sets there is seen when loading."""
    batches = Batches(DataLoader(Marked(), 2, num_workers=1, worker_init_fn=mark))
    assert take(batches, 1) == [[7, 7]]
    batches.close()


class Marked(Dataset[Any]):
    """A dataset that a worker's init function completes."""

    mark = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.mark


def mark(worker: int) -> None:
    """Complete it."""
    info = get_worker_info()
    assert type(info.dataset) is Marked
    info.dataset.mark = 7


def test_refuses() -> None:
    """What can be iterated once, not at all, or has nothing in it is refused with the reason."""
    with pytest.raises(BadInput, match="only once"):
        Batches(iter([1, 2]))
    with pytest.raises(BadInput, match="expected something to iterate over"):
        Batches(3)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="the loader has none"):
        next(Batches(DataLoader(range(3), 4, drop_last=True)))
    with pytest.raises(BadInput, match="the loader has none"):
        next(Batches([]))
    with pytest.raises(BadInput, match="in_order"):
        Batches(DataLoader(range(3), num_workers=1, in_order=False))


def test_says_that_the_data_changed() -> None:
    """Another length is warned about; a position beyond the end is an error, never a silent new epoch."""
    batches = Batches(DataLoader(range(40), 4))
    take(batches, 9)
    shorter = Batches(DataLoader(range(20), 4))
    with pytest.warns(RunWarning, match="has 5 batches, the checkpoint was written with 10"):
        shorter.load_state_dict(batches.state_dict())
    with pytest.raises(BadCheckpoint, match="stands after batch 9 of epoch 0, the loader has only 5"):
        next(shorter)
    with pytest.raises(BadCheckpoint, match="expected seed, epoch and number"):
        shorter.load_state_dict({"epoch": 1})

"""Where batches come from: a DataLoader over indices, one over a stream, anything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch.utils import data as torch_data

from loadsheet.errors import BadInput, a_type
from loadsheet.run.errors import BadCheckpoint
from loadsheet.run.isolate import Stream, isolated, mix, reseed
from loadsheet.run.leaving import end_workers_at_exit
from loadsheet.run.signals import shield_worker

Step = tuple[int, int, Any]  # epoch, number of the batch in it, the batch

#: samplers that draw from the global generators in their first step only, never between batches
_PLAIN = (
    torch_data.SequentialSampler,
    torch_data.RandomSampler,
    torch_data.SubsetRandomSampler,
    torch_data.WeightedRandomSampler,
    torch_data.DistributedSampler,
)


class Source(Protocol):
    """Where batches come from."""

    def start(self, seed: int, epoch: int, number: int) -> Iterator[Step]:
        """The batches from a position on, over all epochs."""

    def state(self) -> Any:
        """What the source itself must be given back, besides the position."""

    def restore(self, state: Any) -> None:
        """Take that back."""


def _stateful(thing: object) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def source_of(loader: Iterable[Any]) -> Source:
    """The way to go through this kind of loader."""
    if isinstance(loader, torch_data.DataLoader):
        by_index = not isinstance(loader.dataset, torch_data.IterableDataset)
        # A subclass with its own __iter__ may do more than load (move to a device, say). torchdata's
        # does not: over indices ours is as exact, and restores the workers' randomness besides.
        own = type(loader).__iter__ is torch_data.DataLoader.__iter__
        if by_index and (own or type(loader).__module__.startswith("torchdata.")):
            return _ByIndex(loader)
        if own:
            return _Replayed(loader, _clone_iterable)
        if loader.num_workers > 0 and not isinstance(loader.worker_init_fn, _Worker):
            loader.worker_init_fn = _Worker(loader.worker_init_fn)  # deaf to signals; then the user's own
    if _stateful(loader):
        return _Stateful(loader)
    try:
        once = iter(loader) is loader
    except TypeError:
        raise BadInput(
            f"batches: got {a_type(loader)}, expected something to iterate over, a DataLoader say"
        ) from None
    if once:
        raise BadInput(
            f"batches: got {a_type(loader)} that can be iterated only once",
            "give the loader itself, or an object with state_dict and load_state_dict",
        )
    return _Replayed(loader, lambda it, seed, epoch: it)


# -- a DataLoader over indices --------------------------------------------------------------------------


class _ByIndex:
    """A map-style dataset: the sampler is skipped forward, nothing is loaded in vain."""

    def __init__(self, loader: torch_data.DataLoader[Any]) -> None:
        self._loader = loader
        if getattr(loader, "in_order", True) is False:
            raise BadInput(
                "batches: got a DataLoader with in_order=False, whose order nobody can repeat",
                "leave in_order out",
            )

    def start(self, seed: int, epoch: int, number: int) -> Iterator[Step]:
        """One DataLoader over all epochs: its workers neither end nor drain between them."""
        given = self._loader
        options: dict[str, Any] = {}
        if given.num_workers > 0:
            options["prefetch_factor"] = given.prefetch_factor
            options["multiprocessing_context"] = given.multiprocessing_context
            options["worker_init_fn"] = _Worker(given.worker_init_fn)
        collate = given.collate_fn
        batched = given.batch_sampler is not None
        dataset = _Seeded(given.dataset, collate, batched, seed, in_process=given.num_workers == 0)
        loader: torch_data.DataLoader[Any] = torch_data.DataLoader(
            dataset,
            batch_size=None,
            sampler=_Order(given, seed, epoch, number),
            num_workers=given.num_workers,
            collate_fn=_as_it_is,
            pin_memory=given.pin_memory,
            timeout=given.timeout,
            generator=torch.Generator(),
            pin_memory_device=getattr(given, "pin_memory_device", ""),
            **options,
        )
        return iter(loader)

    def state(self) -> None:
        """Nothing beyond the position."""

    def restore(self, state: Any) -> None:
        """Nothing beyond the position."""


def _as_it_is(batch: Any) -> Any:
    """The batch was put together under its own seed already."""
    return batch


class _Order:
    """The sampler's batches of indices, epoch after epoch, each with its epoch and number."""

    def __init__(self, loader: torch_data.DataLoader[Any], seed: int, epoch: int, number: int) -> None:
        self._sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        parts = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
        self._parts = list({id(p): p for p in parts if p is not None}.values())
        self._seed, self._epoch, self._number = seed, epoch, number
        self._plain = all(type(p) in (*_PLAIN, torch_data.BatchSampler) for p in self._parts)

    def __iter__(self) -> Iterator[Step]:
        epoch, skip = self._epoch, self._number
        while True:
            count = 0
            for count, indices in enumerate(self._indices(epoch), 1):
                if count > skip:
                    yield epoch, count - 1, indices
            _check_count(count, epoch, skip)
            epoch, skip = epoch + 1, 0

    def _indices(self, epoch: int) -> Iterator[Any]:
        stream = Stream(mix(self._seed, epoch, -1))
        with stream:
            _new_epoch(self._parts, self._seed, epoch)
            indices = iter(self._sampler)
        end = object()
        first = True
        while True:
            aside: AbstractContextManager[None] = stream if first or not self._plain else nullcontext()
            with aside:
                index = next(indices, end)
            if index is end:
                return
            first = False
            yield index


def _new_epoch(parts: Iterable[Any], seed: int, epoch: int) -> None:
    """Tell samplers which epoch it is, in their own way, and seed the generators that they hold."""
    for k, part in enumerate(parts):
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch)
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(mix(seed, epoch, -2, k))


def _check_count(count: int, epoch: int, skip: int) -> None:
    """Whether an epoch had the batches that it must have had."""
    if count == 0:
        raise BadInput("batches: the loader has none", "is the dataset empty, or smaller than one batch?")
    if count < skip:
        raise BadCheckpoint(
            f"batches: the checkpoint stands after batch {skip} of epoch {epoch}, the loader has only {count}",
            "the data or the batch size has changed since",
        )


class _Seeded:
    """The dataset, loading and collating each batch under the batch's own seed.

    It reads and writes like the dataset itself: a worker's init function may look into it.
    """

    def __init__(
        self, dataset: Any, collate: Callable[[Any], Any], batched: bool, seed: int, *, in_process: bool
    ) -> None:
        self.__dict__.update(
            loadsheet_dataset=dataset,
            loadsheet_plan=(collate, batched, seed, in_process),
        )

    def __getitem__(self, key: Step) -> Step:
        collate, batched, seed, in_process = self.loadsheet_plan
        epoch, number, index = key
        seed = mix(seed, epoch, number)
        if in_process:
            with isolated(seed):
                return epoch, number, self._load(index, batched, collate)
        reseed(seed)
        return epoch, number, self._load(index, batched, collate)

    def _load(self, index: Any, batched: bool, collate: Callable[[Any], Any]) -> Any:
        dataset = self.loadsheet_dataset
        if not batched:
            return collate(dataset[index])
        many = getattr(dataset, "__getitems__", None)
        return collate(many(index) if callable(many) else [dataset[i] for i in index])

    def __len__(self) -> int:
        return len(self.loadsheet_dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loadsheet_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["loadsheet_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.loadsheet_dataset, name, value)


class _Worker:
    """What a worker does first: not hear what is meant for the main process; then the user's own."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then
        end_workers_at_exit()

    def __call__(self, worker_id: int) -> None:
        shield_worker()
        if self._then is not None:
            info = torch_data.get_worker_info()
            if info is not None and isinstance(info.dataset, _Seeded):
                # it guards its attributes, and this one must be the user's own
                object.__setattr__(info, "dataset", info.dataset.loadsheet_dataset)
            self._then(worker_id)


# -- everything else -------------------------------------------------------------------------------------


class _Replayed:
    """Iterated from the beginning of the epoch up to the position; exact, at the price of loading again."""

    def __init__(self, loader: Any, prepare: Callable[[Any, int, int], Iterable[Any]]) -> None:
        self._loader = loader
        self._prepare = prepare

    def start(self, seed: int, epoch: int, number: int) -> Iterator[Step]:
        """The batches from a position on, over all epochs."""
        skip = number
        while True:
            # Workers have seeds of their own; without them everything is drawn in this process.
            alone = getattr(self._loader, "num_workers", 0) == 0
            aside: AbstractContextManager[None] = Stream(mix(seed, epoch)) if alone else nullcontext()
            parts = [getattr(self._loader, name, None) for name in ("dataset", "sampler", "batch_sampler")]
            _new_epoch([self._loader, *(p for p in parts if p is not None)], seed, epoch)
            with aside:
                items = iter(self._prepare(self._loader, seed, epoch))
            end, count = object(), 0
            while True:
                with aside:
                    item = next(items, end)
                if item is end:
                    break
                count += 1
                if count > skip:
                    yield epoch, count - 1, item
            _check_count(count, epoch, skip)
            epoch, skip = epoch + 1, 0

    def state(self) -> None:
        """Nothing beyond the position."""

    def restore(self, state: Any) -> None:
        """Nothing beyond the position."""


def _clone_iterable(given: torch_data.DataLoader[Any], seed: int, epoch: int) -> Iterable[Any]:
    """The DataLoader over an iterable dataset, with workers seeded by the epoch and deaf to signals."""
    options: dict[str, Any] = {}
    if given.num_workers > 0:
        options["prefetch_factor"] = given.prefetch_factor
        options["multiprocessing_context"] = given.multiprocessing_context
        options["worker_init_fn"] = _Worker(given.worker_init_fn)
    generator = torch.Generator()
    generator.manual_seed(mix(seed, epoch))
    loader: Iterable[Any] = torch_data.DataLoader(
        given.dataset,
        batch_size=given.batch_size,
        num_workers=given.num_workers,
        collate_fn=given.collate_fn,
        pin_memory=given.pin_memory,
        drop_last=given.drop_last,
        timeout=given.timeout,
        generator=generator,
        pin_memory_device=getattr(given, "pin_memory_device", ""),
        **options,
    )
    return loader


class _Stateful:
    """A loader that knows its own position; that must be set before it is iterated, not after.

    What it draws in this process depends on (seed, epoch, batch) only. Its workers, if it has any, get their
    seed with the epoch; random numbers that they have drawn when they are started anew are theirs to keep.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def start(self, seed: int, epoch: int, number: int) -> Iterator[Step]:
        """The batches from where the loader stands, over all epochs."""
        end = object()
        while True:
            count = number
            with isolated(mix(seed, epoch, -1)):
                items = iter(self._loader)
            while True:
                with isolated(mix(seed, epoch, count)):
                    item = next(items, end)
                if item is end:
                    break
                yield epoch, count, item
                count += 1
            _check_count(count, epoch, 0)
            epoch, number = epoch + 1, 0

    def state(self) -> Any:
        """The loader's own state, after the last batch handed out."""
        return self._loader.state_dict()

    def restore(self, state: Any) -> None:
        """Give it back, before anything iterates."""
        self._loader.load_state_dict(state)

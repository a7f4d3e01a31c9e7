"""What tells whether a thing has moved: the state of a generator, values of tensors, the position of a loader."""

from __future__ import annotations

import gc
import pickle
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

import torch
from torch import nn
from torch.utils import data as torch_data

from loadsheet.run.parts import bare
from loadsheet.run.reach import walk

#: values of a tensor that are compared: a mean moves nearly all of them
_SAMPLE: Final = 64


# --- generators -----------------------------------------------------------------------------------------------


def bits_of(thing: Any) -> Any | None:
    """What has the state of a generator of random numbers; None for anything else."""
    if isinstance(thing, torch.Generator | random.Random):
        return thing
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return None
    if isinstance(thing, numpy.Generator):
        return thing.bit_generator
    if isinstance(thing, numpy.RandomState):
        return thing._bit_generator
    return thing if isinstance(thing, numpy.BitGenerator) else None


def random_kinds() -> tuple[type, ...]:
    """The classes of what has such a state; NumPy's only where it is loaded."""
    numpy = sys.modules.get("numpy.random")
    theirs = () if numpy is None else (numpy.Generator, numpy.RandomState, numpy.BitGenerator)
    return (torch.Generator, random.Random, *theirs)


def generator_mark(thing: Any) -> Any:
    """What a generator's state is, to be compared."""
    bits = bits_of(thing)
    if isinstance(bits, torch.Generator):
        return bytes(bits.get_state().tolist())
    if isinstance(bits, random.Random):
        return None if isinstance(bits, random.SystemRandom) else hash(bits.getstate())
    return blake2b(pickle.dumps(bits.state)).digest() if bits is not None else None


def known_generators(kept: Mapping[str, Any]) -> set[int]:
    """Those that are kept, by the run or by what is kept and has a state of its own; of the process itself too."""
    known = {id(torch.default_generator), id(getattr(random, "_inst", None))}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        known.update(id(each) for each in torch.cuda.default_generators)
    if (numpy := sys.modules.get("numpy.random")) is not None:
        known.add(id(bits_of(numpy.mtrand._rand)))

    def found(name: str, thing: Any) -> bool:
        bits = bits_of(thing)
        known.add(id(bits))
        return bits is not None

    for name, value in kept.items():
        if isinstance(value, nn.Module | torch.optim.Optimizer):
            continue  # what they keep is known, and no generator
        source = getattr(value, "_source", None)
        if source is None:
            walk([(name, value)], random_kinds(), found)
        else:  # the harness's own iterator seeds what draws the order, not what the data draw by themselves
            loader = getattr(source, "_loader", None)
            if callable(getattr(loader, "state_dict", None)):
                walk([(name, loader)], random_kinds(), found)
            known.update(id(each) for each in _loader_generators(loader))
    return known


def _loader_generators(loader: Any) -> list[Any]:
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    parts = (loader, sampler, batches, getattr(batches, "sampler", None))
    return [g for part in parts if (g := getattr(part, "generator", None)) is not None]


def of_loaders(loaders: Iterable[Any]) -> dict[int, str]:
    """Generators of loaders: `used` for the order, or `unused`, where nothing but seeds of workers comes from it."""
    out: dict[int, str] = {}
    for loader in loaders:
        with suppress(AttributeError):
            plain = type(loader.sampler) is torch_data.SequentialSampler
            for generator in _loader_generators(loader):
                if out.get(id(generator)) != "used":
                    out[id(generator)] = "unused" if plain else "used"
    return out


# --- tensors --------------------------------------------------------------------------------------------------


def storage_of(tensor: torch.Tensor) -> Any:
    """What tells whether two tensors share their memory."""
    try:
        return tensor.device, tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


def storages(kept: Mapping[str, Any]) -> set[Any]:
    """The memory of all tensors that are kept."""
    out: set[Any] = set()
    for value in kept.values():
        if isinstance(value, nn.Module):
            tensors: Iterable[Any] = tensors_of(bare(value))
        elif isinstance(value, torch.optim.Optimizer):
            tensors = [p for group in value.param_groups for p in group["params"]]
        else:
            tensors = held(value)
        out.update(storage_of(t) for t in tensors if isinstance(t, torch.Tensor))
    return out


def held(value: Any, depth: int = 3) -> Iterator[Any]:
    """The tensors and arrays in a variable, or in the lists and dicts that it holds."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Tensor) or (numpy is not None and isinstance(value, numpy.ndarray)):
        yield value
    elif isinstance(value, tuple | list | dict) and depth and len(value) <= 1000:
        for each in value.values() if isinstance(value, dict) else value:
            yield from held(each, depth - 1)


def module_mark(covered: set[Any]) -> Callable[[Any], bytes]:
    """A digest of a module, without the tensors in the memory that is covered."""
    return lambda module: sample_of([t for t in tensors_of(module) if storage_of(t) not in covered])


def sample_of(tensors: Iterable[Any]) -> bytes:
    """A digest of some values of each; counters of versions do not see what is written through `.data`."""
    hasher = blake2b()
    parts: dict[Any, list[torch.Tensor]] = {}
    with torch.no_grad():
        for tensor in tensors:
            hasher.update(repr(tuple(tensor.shape)).encode())
            if not isinstance(tensor, torch.Tensor):
                flat = tensor.reshape(-1)
                hasher.update(flat[:: max(1, flat.size // _SAMPLE)].tobytes())
            elif tensor.numel() and not tensor.is_meta:
                flat = tensor.detach().reshape(-1)
                few = flat[:: max(1, flat.numel() // _SAMPLE)].contiguous()
                parts.setdefault((tensor.device, tensor.dtype), []).append(few)
        for many in parts.values():
            hasher.update(bytes(torch.cat(many).view(torch.uint8).cpu().numpy().data))
    return hasher.digest()


# --- loaders --------------------------------------------------------------------------------------------------


def position_of(iterator: Any) -> Any:
    """Batches handed out in this epoch."""
    return getattr(iterator, "_num_yielded", None)


def between(iterator: Any) -> bool:
    """Whether it is in the middle of an epoch: one that is over, or about to begin, has no position to lose."""
    done = position_of(iterator) or 0
    try:
        return 0 < done < len(iterator._index_sampler)
    except (TypeError, AttributeError, NotImplementedError):
        return done > 0


def iterators_of(kept: Iterable[Any]) -> set[int]:
    """The loaders' iterators that kept things drive, the harness's own among them."""
    out: set[int] = set()
    todo = [
        (each, 0)
        for value in kept
        for each in (getattr(value, "_batches", None), getattr(value, "_iterator", None))
    ]
    while todo:
        thing, depth = todo.pop()
        out.add(id(thing))
        if thing is not None and depth < 4 and not isinstance(thing, nn.Module):
            todo += [(each, depth + 1) for each in gc.get_referents(thing) if _drives(each)]
    return out


def _drives(thing: Any) -> bool:
    return isinstance(thing, Iterator) and not isinstance(thing, type)

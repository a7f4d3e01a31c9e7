"""What changes from step to step and is not kept, found by looking at it: after one step, after two, and later.

A generator of random numbers, a copy of the model that is averaged, a loader in the middle of an epoch: if
they are forgotten nothing fails, and after an interruption at which no step was repeated nothing even
differs from an earlier record. What stands still, a frozen teacher say, has nothing to lose; so what counts
is not what a thing is, but whether it moved.

Numbers that a script keeps in plain variables are not seen: most of them are clocks and counters.
"""

from __future__ import annotations

import gc
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from types import GeneratorType
from typing import Any, Final

import torch
from torch import nn
from torch.utils import data as torch_data
from torch.utils.data.dataloader import _BaseDataLoaderIter

from loadsheet.run.carried import carried
from loadsheet.run.parts import bare
from loadsheet.run.reach import roots, user_frames, variables, walk
from loadsheet.run.unkept import living, name_of

#: values of a tensor that are compared: a mean moves nearly all of them
_SAMPLE: Final = 64
#: completed steps of an attempt after which the last look is taken, at the next checkpoint or end
LATER: Final = 8


@dataclass(slots=True)
class _Watched:
    """A thing, how it is called, what it was like, and whether what it does in `aside` counts."""

    thing: Callable[[], Any]  # weak where that is possible: a look must not keep a model alive
    name: str
    mark: Callable[[Any], Any]
    was: Any
    aside: bool  # what happens to it inside `run.aside` does not count
    advice: str


class Watch:
    """Looks at what lives and is not kept; `say` gets a line for each thing that moved.

    `objects` gives what is kept by name and `skip` what was spoken of already.
    """

    def __init__(
        self,
        objects: Callable[[], Mapping[str, Any]],
        skip: Callable[[], Iterable[Any]],
        say: Callable[[str], None],
    ) -> None:
        self._objects = objects
        self._skip = skip
        self._say = say
        self._looks = 0
        self._watched: dict[int, _Watched] = {}
        self._carried: dict[str, bytes] = {}
        self._said: list[Any] = []
        self._inside: dict[int, Any] | None = None

    @property
    def over(self) -> bool:
        """Whether there is nothing more to look at."""
        return self._looks >= 3

    def after_step(self, done: int) -> None:
        """After `done` steps of this attempt."""
        if done <= 2 and not self.over:
            self._look()

    def later(self, done: int, least: int = LATER) -> None:
        """Before a checkpoint, or the end: the last look, if at least so many steps are done."""
        if self._looks == 2 and done >= least:
            self._look()

    def _look(self) -> None:
        self._looks += 1
        self._compare()
        if self.over:
            self._watched, self._carried, self._said = {}, {}, []
        else:
            self._note()

    def aside(self, begins: bool) -> None:
        """`run.aside` begins or ends: a loader that is used there only is not the training's."""
        if self.over or not self._watched:
            return
        if begins:
            self._inside = {key: one.mark(thing) for key, one, thing in self._alive() if one.aside}
        elif self._inside is not None:
            for key, one, thing in self._alive():
                if one.aside and self._inside.get(key) == one.was:
                    one.was = one.mark(thing)
            self._inside = None

    def _alive(self) -> Iterator[tuple[int, _Watched, Any]]:
        for key, one in self._watched.items():
            thing = one.thing()
            if thing is not None:
                yield key, one, thing

    # --- comparing --------------------------------------------------------------------------------------

    def _compare(self) -> None:
        kept = {id(thing) for thing in self._objects().values()}
        for key, one, thing in list(self._alive()):
            now = one.mark(thing)
            if (
                key in kept
                or now == one.was
                or (isinstance(thing, _BaseDataLoaderIter) and not _between(thing))
            ):
                continue
            self._said.append(thing)
            self._say(f"{one.name} {one.advice}")
        for name, was in self._carried.items() if self._looks == 2 else ():
            now = self._carried_now({name}).get(name)
            if now is not None and now != was:
                self._say(
                    f"`{name}` holds tensors that one step leaves to the next, and they are not kept: a resumed run "
                    "starts with others. Fetch a batch inside the step that uses it; what must be carried over, "
                    "keep: `run.keep(state=d)` with d a dict that holds it"
                )

    def _note(self) -> None:
        """Look at everything afresh; what was spoken of is left out."""
        kept = self._objects()
        said = {id(thing) for thing in (*self._said, *self._skip(), *kept.values())}
        self._watched = {}
        for name, thing, mark, aside, advice in self._candidates(kept):
            if id(thing) in said or id(thing) in self._watched:
                continue
            try:
                weak: Callable[[], Any] = weakref.ref(thing)
            except TypeError:  # NumPy's generators; they are small
                weak = _holding(thing)
            with suppress(
                RuntimeError, NotImplementedError, TypeError, ValueError
            ):  # no look is worth an error
                self._watched[id(thing)] = _Watched(weak, name, mark, mark(thing), aside, advice)
        self._carried = self._carried_now(None) if self._looks == 1 else {}

    def _candidates(
        self, kept: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any, Callable[[Any], Any], bool, str]]:
        alive = living(*_LOOKED_FOR)
        modules = [thing for thing in alive if isinstance(thing, nn.Module)]
        iterators = [thing for thing in alive if isinstance(thing, _BaseDataLoaderIter)]
        loaders = [thing for thing in alive if isinstance(thing, torch_data.DataLoader)]
        generating = [thing for thing in alive if isinstance(thing, GeneratorType)]
        theirs = _of_loaders(loaders)
        known = _known_generators(kept)
        generators: dict[int, tuple[str, Any]] = {}
        names: dict[int, str] = {}

        def found(name: str, thing: Any) -> bool:
            if isinstance(thing, nn.Module | _BaseDataLoaderIter):
                names.setdefault(id(thing), f"`{name}` ({type(thing).__qualname__})")
            inner = _bits(thing)
            if inner is None:
                return False
            if id(inner) not in known:
                generators.setdefault(id(inner), (name, thing))
            return True

        walk(roots(generating), found)
        for name, thing in generators.values():
            use = theirs.get(id(thing))
            if use != "unused":
                yield (
                    f"`{name}` ({type(thing).__qualname__})",
                    thing,
                    _generator_mark,
                    use is not None,
                    _GENERATOR,
                )
        covered = _storages(kept)
        children = {id(child) for module in modules for child in module._modules.values()}
        for module in modules:
            if id(module) not in children:
                loose = [t for t in _tensors(module) if _storage(t) not in covered]
                if loose and not any(type(t).__name__ == "UninitializedParameter" for t in loose):
                    yield (
                        names.get(id(module)) or name_of(module),
                        module,
                        _module_mark(covered),
                        True,
                        _MODULE,
                    )
        ours = _iterators_of(kept.values())
        for iterator in iterators:
            home = type(getattr(iterator, "_dataset", None)).__module__
            if id(iterator) not in ours and not home.startswith("loadsheet."):
                yield names.get(id(iterator)) or name_of(iterator), iterator, _position, True, _ITERATOR

    # --- variables of the loop ------------------------------------------------------------------------------

    def _carried_now(self, names: set[str] | None) -> dict[str, bytes]:
        """What the variables hold that the loop carries on; of `names` only, if given."""
        frames = user_frames()
        if not frames:
            return {}
        frame = frames[0]
        if names is None:
            names = carried(frame.f_code, frame.f_lasti)
        kept = _storages(self._objects())
        out = {}
        with variables(frame) as local:
            for name in names:
                tensors = list(_held(local.get(name, frame.f_globals.get(name))))
                if any(
                    isinstance(t, torch.Tensor) and (t.grad_fn is not None or _storage(t) in kept)
                    for t in tensors
                ):
                    continue
                if tensors:
                    with suppress(RuntimeError, NotImplementedError, TypeError, ValueError):
                        out[name] = _sample(tensors)
        return out


_LOOKED_FOR: Final = (nn.Module, _BaseDataLoaderIter, torch_data.DataLoader, GeneratorType)
_ANEW: Final = "is not kept: after an interruption it starts anew; `run.keep(name=it)` before `run.steps`"
_GENERATOR: Final = f"draws in the steps and {_ANEW}"
_MODULE: Final = f"changes in the steps and {_ANEW}"
_ITERATOR: Final = (
    "goes on from step to step, and its position is not saved: after an interruption it starts anew; "
    "`run.batches(loader)` before `run.steps`"
)


def _holding(thing: Any) -> Callable[[], Any]:
    return lambda: thing


# --- generators -----------------------------------------------------------------------------------------------


def _bits(thing: Any) -> Any | None:
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


def _generator_mark(thing: Any) -> Any:
    bits = _bits(thing)
    if isinstance(bits, torch.Generator):
        return bytes(bits.get_state().tolist())
    if isinstance(bits, random.Random):
        return None if isinstance(bits, random.SystemRandom) else hash(bits.getstate())
    return blake2b(pickle.dumps(bits.state)).digest() if bits is not None else None


def _known_generators(kept: Mapping[str, Any]) -> set[int]:
    """Those that are kept, by the run or by what is kept and has a state of its own; of the process itself too."""
    known = {id(torch.default_generator), id(getattr(random, "_inst", None))}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        known.update(id(each) for each in torch.cuda.default_generators)
    if (numpy := sys.modules.get("numpy.random")) is not None:
        known.add(id(_bits(numpy.mtrand._rand)))

    def found(name: str, thing: Any) -> bool:
        bits = _bits(thing)
        known.add(id(bits))
        return bits is not None

    for name, value in kept.items():
        if isinstance(value, nn.Module | torch.optim.Optimizer):
            continue  # what they keep is known, and no generator
        source = getattr(value, "_source", None)
        if source is None:
            walk([(name, value)], found)
        else:  # the harness's own iterator seeds what draws the order, not what the data draw by themselves
            loader = getattr(source, "_loader", None)
            if callable(getattr(loader, "state_dict", None)):
                walk([(name, loader)], found)
            known.update(id(each) for each in _loader_generators(loader))
    return known


def _loader_generators(loader: Any) -> list[Any]:
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    parts = (loader, sampler, batches, getattr(batches, "sampler", None))
    return [g for part in parts if (g := getattr(part, "generator", None)) is not None]


def _of_loaders(loaders: Iterable[Any]) -> dict[int, str]:
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


def _storage(tensor: torch.Tensor) -> Any:
    try:
        return tensor.device, tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _storages(kept: Mapping[str, Any]) -> set[Any]:
    """The memory of all tensors that are kept."""
    out: set[Any] = set()
    for value in kept.values():
        if isinstance(value, nn.Module):
            tensors: Iterable[Any] = _tensors(bare(value))
        elif isinstance(value, torch.optim.Optimizer):
            tensors = [p for group in value.param_groups for p in group["params"]]
        else:
            tensors = _held(value)
        out.update(_storage(t) for t in tensors if isinstance(t, torch.Tensor))
    return out


def _held(value: Any, depth: int = 3) -> Iterator[Any]:
    """The tensors and arrays in a variable, or in the lists and dicts that it holds."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Tensor) or (numpy is not None and isinstance(value, numpy.ndarray)):
        yield value
    elif isinstance(value, tuple | list | dict) and depth and len(value) <= 1000:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _held(each, depth - 1)


def _module_mark(covered: set[Any]) -> Callable[[Any], bytes]:
    return lambda module: _sample([t for t in _tensors(module) if _storage(t) not in covered])


def _sample(tensors: Iterable[Any]) -> bytes:
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


def _position(iterator: Any) -> Any:
    return getattr(iterator, "_num_yielded", None)


def _between(iterator: Any) -> bool:
    """Whether it is in the middle of an epoch: one that is over, or about to begin, has no position to lose."""
    done = _position(iterator) or 0
    try:
        return 0 < done < len(iterator._index_sampler)
    except (TypeError, AttributeError, NotImplementedError):
        return done > 0


def _iterators_of(kept: Iterable[Any]) -> set[int]:
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

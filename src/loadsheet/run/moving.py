"""What changes from step to step and is not kept, found by looking at it: after one step, after two, and later.

A generator of random numbers, a copy of the model that is averaged, a loader in the middle of an epoch: if
they are forgotten nothing fails, and after an interruption at which no step was repeated nothing even
differs from an earlier record. What stands still, a frozen teacher say, has nothing to lose; so what counts
is not what a thing is, but whether it moved.

Numbers that a script keeps in plain variables are not seen: most of them are clocks and counters.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, Final

import torch
from torch import nn
from torch.utils import data as torch_data
from torch.utils.data.dataloader import _BaseDataLoaderIter

from loadsheet.run.carried import carried
from loadsheet.run.marks import (
    between,
    bits_of,
    generator_mark,
    held,
    iterators_of,
    known_generators,
    module_mark,
    of_loaders,
    position_of,
    random_kinds,
    sample_of,
    storage_of,
    storages,
    tensors_of,
)
from loadsheet.run.reach import roots, user_frames, variables, walk
from loadsheet.run.unkept import living, name_of

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
                or (isinstance(thing, _BaseDataLoaderIter) and not between(thing))
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
        theirs = of_loaders(loaders)
        known = known_generators(kept)
        generators: dict[int, tuple[str, Any]] = {}
        names: dict[int, str] = {}

        def found(name: str, thing: Any) -> bool:
            if isinstance(thing, _HELD):
                names.setdefault(id(thing), f"`{name}` ({type(thing).__qualname__})")
            inner = bits_of(thing)
            if inner is None:
                return False
            if id(inner) not in known:
                generators.setdefault(id(inner), (name, thing))
            return True

        for begin in roots(generating):
            walk(begin, (*_HELD, *random_kinds()), found)
        for name, thing in generators.values():
            use = theirs.get(id(thing))
            if use != "unused":
                yield (
                    f"`{name}` ({type(thing).__qualname__})",
                    thing,
                    generator_mark,
                    use is not None,
                    _GENERATOR,
                )
        covered = storages(kept)
        children = {id(child) for module in modules for child in module._modules.values()}
        for module in modules:
            if id(module) not in children:
                loose = [t for t in tensors_of(module) if storage_of(t) not in covered]
                if loose and not any(type(t).__name__ == "UninitializedParameter" for t in loose):
                    yield (
                        names.get(id(module)) or name_of(module),
                        module,
                        module_mark(covered),
                        True,
                        _MODULE,
                    )
        ours = iterators_of(kept.values())
        for iterator in iterators:
            home = type(getattr(iterator, "_dataset", None)).__module__
            if id(iterator) not in ours and not home.startswith("loadsheet."):
                yield names.get(id(iterator)) or name_of(iterator), iterator, position_of, True, _ITERATOR

    # --- variables of the loop ------------------------------------------------------------------------------

    def _carried_now(self, names: set[str] | None) -> dict[str, bytes]:
        """What the variables hold that the loop carries on; of `names` only, if given."""
        frames = user_frames()
        if not frames:
            return {}
        frame = frames[0]
        if names is None:
            names = carried(frame.f_code, frame.f_lasti)
        kept = storages(self._objects())
        out = {}
        with variables(frame) as local:
            for name in names:
                tensors = list(held(local.get(name, frame.f_globals.get(name))))
                if any(
                    isinstance(t, torch.Tensor) and (t.grad_fn is not None or storage_of(t) in kept)
                    for t in tensors
                ):
                    continue
                if tensors:
                    with suppress(RuntimeError, NotImplementedError, TypeError, ValueError):
                        out[name] = sample_of(tensors)
        return out


_HELD: Final = (nn.Module, _BaseDataLoaderIter)
_LOOKED_FOR: Final = (*_HELD, torch_data.DataLoader, GeneratorType)
_ANEW: Final = "is not kept: after an interruption it starts anew; `run.keep(name=it)` before `run.steps`"
_GENERATOR: Final = f"draws in the steps and {_ANEW}"
_MODULE: Final = f"changes in the steps and {_ANEW}"
_ITERATOR: Final = (
    "goes on from step to step, and its position is not saved: after an interruption it starts anew; "
    "`run.batches(loader)` before `run.steps`"
)


def _holding(thing: Any) -> Callable[[], Any]:
    return lambda: thing

"""What a training script can reach by its own variables, each thing under the name that the script gives it."""

from __future__ import annotations

import gc
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from loadsheet.run.tell import written_by_user

#: things entered, their entries all together, entries of one: a walk must be over in a moment
_MOST: Final = 15_000
_ENTRIES: Final = 150_000
_LONGEST: Final = 10_000
#: things of one class that are entered in one list or dict: what they hold alike, the first ones tell
_ALIKE: Final = 32
_PLAINEST: Final = frozenset(
    (int, float, complex, bool, str, bytes, bytearray, type(None), torch.Tensor, range)
)
_PLAIN: Final = (*_PLAINEST, type)
_MANY: Final = (dict, list, tuple, set, frozenset, deque)
_CLOSED: Final = (types.ModuleType, types.FrameType, types.CodeType, types.TracebackType)
#: of the standard library, what holds things for others
_OPEN: Final = {"builtins", "collections", "functools", "itertools", "types", "random", "argparse"}


def user_frames() -> list[types.FrameType]:
    """The calls in progress of the user's own code, the innermost first."""
    out = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if written_by_user(frame.f_code.co_filename):
            out.append(frame)
        frame = frame.f_back
    return out


@contextmanager
def variables(frame: types.FrameType) -> Iterator[Mapping[str, Any]]:
    """The local variables of a call.

    Before Python 3.13 a frame keeps the copy that it was asked for, and with it every tensor in it, until
    the call returns: so the copy is emptied.
    """
    found = frame.f_locals
    try:
        yield found
    finally:
        if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            found.clear()


def roots(generating: Iterable[types.GeneratorType[Any, Any, Any]]) -> list[list[tuple[str, Any]]]:
    """What walks begin with: the variables of the calls in progress and of generators; those of modules."""
    calls: list[tuple[str, Any]] = []
    modules: list[tuple[str, Any]] = []
    for frame in user_frames():
        with variables(frame) as local:
            calls += local.items()
        modules += frame.f_globals.items()
    for thing in generating:
        if written_by_user(thing.gi_code.co_filename):
            calls.append((thing.__name__, thing))
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and written_by_user(file):
            modules += vars(module).items()
    return [[(name, thing) for name, thing in out if not name.startswith("__")] for out in (calls, modules)]


def walk(begin: list[tuple[str, Any]], wanted: tuple[type, ...], found: Callable[[str, Any], bool]) -> None:
    """Call `found(name, thing)` for each thing of a wanted class that can be reached, the nearest first.

    Where it returns True, the walk does not go into the thing. Modules, classes of libraries, and our own
    objects are not entered. A name is spelled only for what is found: most things are passed by. Data in
    memory, rows of rows, must neither cost more than a moment nor hide what stands beside them: of the entries of
    one list or dict those of a wanted class are all looked at, of any other class the first _ALIKE. After
    _MOST things or _ENTRIES entries the walk ends.
    """
    entries = 0
    seen: set[int] = set()
    todo: deque[tuple[_Way, Any]] = deque(((None, name), thing) for name, thing in begin)
    looked_for: dict[type, bool] = {}
    while todo and len(seen) < _MOST and entries < _ENTRIES:
        way, thing = todo.popleft()
        kind = type(thing)
        if kind in _PLAINEST or id(thing) in seen or (issubclass(kind, _PLAIN) and not _open_class(thing)):
            continue
        seen.add(id(thing))
        if kind not in looked_for:
            looked_for[kind] = issubclass(kind, wanted)
        if looked_for[kind] and found(_spelled(way), thing):
            continue
        for step, inner in _inside(thing, wanted):
            entries += 1
            if type(inner) not in _PLAINEST:
                todo.append(((way, step), inner))


def _entries(thing: Any, wanted: tuple[type, ...]) -> Iterator[tuple[Any, Any]]:
    """What a list or dict, or the like, holds, but for numbers and texts and too many of a kind."""
    if len(thing) > _LONGEST:
        return
    pairs = list(dict.items(thing)) if isinstance(thing, dict) else enumerate(list(thing))
    alike: dict[type, int] = {}
    for key, inner in pairs:
        kind = type(inner)
        if kind in _PLAINEST:
            continue
        alike[kind] = alike.get(kind, 0) + 1
        if alike[kind] <= _ALIKE or issubclass(kind, wanted):
            yield _Key(key), inner


#: how a thing was reached: from where, and by which step (None: under the same name)
_Way = tuple[Any, Any]


def _spelled(way: _Way) -> str:
    steps: list[str] = []
    while way is not None:
        way, step = way
        if isinstance(step, str):
            steps.append(step)
            if not step.startswith("."):
                break
        elif step is not None:
            steps.append(f"[{step.key!r:.40}]")
    return "".join(reversed(steps))


class _Key(NamedTuple):
    key: Any


def _open_class(thing: Any) -> bool:
    return isinstance(thing, type) and thing.__module__ not in sys.stdlib_module_names


def _inside(thing: Any, wanted: tuple[type, ...]) -> Iterator[tuple[Any, Any]]:
    """What a thing holds, each with its step: `.attribute`, a _Key, the name of a variable, or None."""
    kind = type(thing)
    if issubclass(kind, _CLOSED):
        return
    if issubclass(kind, type):
        file = getattr(sys.modules.get(thing.__module__), "__file__", None)
        if written_by_user(file) and not thing.__module__.startswith("loadsheet."):
            yield from _named(vars(thing))
        return
    home = str(getattr(kind, "__module__", "")).partition(".")[0]
    if home == "loadsheet" or (home in sys.stdlib_module_names and home not in _OPEN):
        return
    if issubclass(kind, _MANY):
        yield from _entries(thing, wanted)
    elif kind is types.FunctionType:
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False)
        yield from ((variable, cell) for variable, cell in cells)
        yield from ((None, value) for value in thing.__defaults__ or ())
    elif kind is types.MethodType:
        yield ".__self__", thing.__self__
    elif kind is partial:
        yield from ((None, value) for value in (thing.func, *thing.args, *thing.keywords.values()))
    elif kind is types.GeneratorType:
        if thing.gi_frame is not None and not thing.gi_running:
            with variables(thing.gi_frame) as local:
                yield from list(local.items())
            yield from ((None, value) for value in gc.get_referents(thing))
        return
    attributes = getattr(thing, "__dict__", None) if kind.__dictoffset__ else None
    if isinstance(attributes, dict):
        yield from _named(attributes)
    elif not issubclass(kind, _MANY) and gc.is_tracked(thing):
        yield from ((None, value) for value in gc.get_referents(thing) if not isinstance(value, type))


def _named(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if len(attributes) <= _LONGEST:
        yield from (
            (f".{key}", value) for key, value in list(attributes.items()) if not str(key).startswith("__")
        )

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
from typing import Any, Final

import torch

from loadsheet.run.tell import written_by_user

#: things looked at, entries of one container: a walk must be over in a moment
_MOST: Final = 100_000
_LONGEST: Final = 10_000
_PLAIN: Final = (int, float, complex, bool, str, bytes, bytearray, type(None), torch.Tensor, type, range)
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


def roots(generating: Iterable[types.GeneratorType[Any, Any, Any]]) -> list[tuple[str, Any]]:
    """What the walk begins with: variables of the calls in progress, of the user's modules, of generators."""
    out: list[tuple[str, Any]] = []
    for frame in user_frames():
        with variables(frame) as local:
            out += local.items()
        out += frame.f_globals.items()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and written_by_user(file):
            out += vars(module).items()
    for thing in generating:
        if written_by_user(thing.gi_code.co_filename):
            out.append((thing.__name__, thing))
    return [(name, thing) for name, thing in out if not name.startswith("__")]


def walk(begin: list[tuple[str, Any]], found: Callable[[str, Any], bool]) -> None:
    """Call `found(name, thing)` for each thing that can be reached, the nearest first; True: not beyond it.

    Modules, classes of libraries, and our own objects are not entered.
    """
    seen: set[int] = set()
    todo = deque(begin)
    while todo and len(seen) < _MOST:
        name, thing = todo.popleft()
        if isinstance(thing, _PLAIN) and not (
            isinstance(thing, type) and thing.__module__ not in sys.stdlib_module_names
        ):
            continue
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if not found(name, thing):
            todo.extend(_inside(name, thing))


def _inside(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    kind = type(thing)
    if issubclass(kind, _CLOSED):
        return
    if issubclass(kind, type):
        file = getattr(sys.modules.get(thing.__module__), "__file__", None)
        if written_by_user(file) and not thing.__module__.startswith("loadsheet."):
            yield from _named(name, vars(thing))
        return
    home = str(getattr(kind, "__module__", "")).partition(".")[0]
    if home == "loadsheet" or (home in sys.stdlib_module_names and home not in _OPEN):
        return
    if issubclass(kind, dict):
        if len(thing) <= _LONGEST:
            yield from ((f"{name}[{key!r:.40}]", value) for key, value in list(dict.items(thing)))
    elif issubclass(kind, list | tuple | set | frozenset | deque):
        if len(thing) <= _LONGEST:
            yield from ((f"{name}[{k}]", value) for k, value in enumerate(list(thing)))
    elif kind is types.FunctionType:
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False)
        yield from ((variable, cell) for variable, cell in cells)
        yield from ((name, value) for value in thing.__defaults__ or ())
    elif kind is types.MethodType:
        yield f"{name}.__self__", thing.__self__
    elif kind is partial:
        yield from ((name, value) for value in (thing.func, *thing.args, *thing.keywords.values()))
    elif kind is types.GeneratorType:
        if thing.gi_frame is not None and not thing.gi_running:
            with variables(thing.gi_frame) as local:
                yield from list(local.items())
            yield from ((name, value) for value in gc.get_referents(thing))
        return
    attributes = getattr(thing, "__dict__", None) if kind.__dictoffset__ else None
    if isinstance(attributes, dict):
        yield from _named(name, attributes)
    elif not issubclass(kind, dict | list | tuple | set | frozenset) and gc.is_tracked(thing):
        yield from ((name, value) for value in gc.get_referents(thing) if not isinstance(value, type))


def _named(name: str, attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if len(attributes) <= _LONGEST:
        yield from (
            (f"{name}.{key}", value)
            for key, value in list(attributes.items())
            if not str(key).startswith("__")
        )

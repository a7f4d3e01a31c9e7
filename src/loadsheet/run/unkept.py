"""What lives in this process, belongs to the training, and was not kept: named, so that it can be.

Nothing fails when a scheduler is forgotten: the resumed run goes on with another learning rate, and ends
as another model. So the living objects are looked through, once, when a run starts.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from itertools import compress
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from loadsheet.errors import a_type
from loadsheet.run.parts import bare, inner_schedulers


def living(*classes: type) -> list[Any]:
    """The objects of these classes that the garbage collector knows, oldest first."""
    alive = gc.get_objects()
    kinds = {kind for kind in set(map(type, alive)) if issubclass(kind, classes)}
    return list(compress(alive, map(kinds.__contains__, map(type, alive))))


def name_of(thing: object) -> str:
    """What the code calls an object, if a variable of a calling function or its module holds it."""
    frame = sys._getframe(1)
    while True:
        if not str(frame.f_globals.get("__name__")).startswith("loadsheet."):  # our own names say nothing
            for variables in (frame.f_locals, frame.f_globals):
                for name, value in list(variables.items()):
                    if value is thing and not name.startswith("_"):
                        return f"`{name}` ({type(thing).__qualname__})"
        if frame.f_back is None:
            return a_type(thing)
        frame = frame.f_back


def unkept(kept: Mapping[str, Any]) -> list[Any]:
    """What lives and was not kept.

    Optimizers, schedulers, scalers, averaged models, and the modules whose weights a kept optimizer holds.
    """
    gc.collect()  # what only a cycle of references keeps alive is dead
    alive = living(torch.optim.Optimizer, torch.amp.GradScaler, LRScheduler, nn.Module)
    known = {id(thing) for value in kept.values() for thing in _all(value)}
    modules = [thing for thing in alive if isinstance(thing, nn.Module)]
    schedulers = [thing for thing in alive if isinstance(thing, LRScheduler)]
    children = {id(child) for module in modules for child in module._modules.values()}
    covered = {
        id(p) for value in kept.values() if isinstance(value, nn.Module) for p in bare(value).parameters()
    }
    held = {
        id(p)
        for value in kept.values()
        if isinstance(value, torch.optim.Optimizer)
        for group in value.param_groups
        for p in group["params"]
    }
    loose = held - covered
    out: list[Any] = []
    for thing in alive:
        if not isinstance(thing, nn.Module | LRScheduler) and id(thing) not in known and _in_use(thing):
            out.append(thing)
    driven = {id(inner) for s in schedulers for inner in list(inner_schedulers(s))[1:]}
    out += [s for s in schedulers if id(s) not in known and id(s) not in driven]
    for module in modules:
        if id(module) in known or id(module) in children:
            continue
        if isinstance(module, AveragedModel) or (loose and any(id(p) in loose for p in module.parameters())):
            out.append(module)
    return out


def _in_use(thing: Any) -> bool:
    """A scaler that is switched off, as code for both cases has it, has nothing to lose."""
    return not isinstance(thing, torch.amp.GradScaler) or bool(thing.is_enabled())


def _all(value: Any) -> Iterable[Any]:
    if isinstance(value, LRScheduler):
        return inner_schedulers(value)
    return (value, bare(value)) if isinstance(value, nn.Module) else (value,)

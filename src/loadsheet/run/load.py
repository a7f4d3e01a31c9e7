"""Reading the weights of a run, finished or still running: read only, no lock, nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from loadsheet.errors import BadInput, a_type, shorten
from loadsheet.run.errors import BadCheckpoint, NoCheckpoint
from loadsheet.run.parts import load_weights
from loadsheet.run.reading import read_events
from loadsheet.run.retention import best_ever, better, last_values, ranked
from loadsheet.run.state import State
from loadsheet.run.stored import MirroredCheckpoints, StoredCheckpoints
from loadsheet.run.tell import tell

Which = Literal["latest", "best"] | int | str
#: an older run, or (run, step)
Old = str | os.PathLike[str] | tuple[str | os.PathLike[str], int | str]


def load(
    run: object,
    which: Which = "latest",
    into: nn.Module | None = None,
    *,
    name: str | None = None,
    metric: str = "val_loss",
    mode: Literal["min", "max"] = "min",
) -> State:
    """Read a checkpoint of a run (its directory, or the open run); with `into`, put its weights there.

    `which`: "latest", a number of completed steps, or "best": of the checkpoints that remain, the one whose
    last logged `metric` is lowest (`mode` "max": highest). A value logged in step s belongs to the first
    checkpoint from s on. If the best one ever logged belongs to none that remains, a RunWarning says so.
    `name` is the one under which the module was kept, needed only if there are several. The state returned
    says its `step` and `names`.
    Raises NoCheckpoint, BadCheckpoint for a damaged one or a module that differs, BadInput.
    """
    state = state_of(run, which, metric, mode)
    if into is not None:
        modules = [n for n in state.names if state.kind(n) == "module"]
        if name is None and len(modules) > 1 and "model" in modules:
            name = "model"
        if name is None and len(modules) != 1:
            raise BadInput(
                f"load: got {len(modules)} modules in the checkpoint, expected `name` to say which",
                f"there are: {shorten(', '.join(modules))}",
            )
        name = modules[0] if name is None else name
        if name not in modules:
            raise BadInput(f"load: name: got {shorten(name)}, expected one of {shorten(', '.join(modules))}")
        load_weights(into, state.value(name), name)
    return state


def state_of(
    run: object, which: Which = "latest", metric: str = "val_loss", mode: Literal["min", "max"] = "min"
) -> State:
    """The state that `which` names; a damaged newest one is reported and left where it is."""
    if mode not in ("min", "max"):
        raise BadInput(f'load: mode: got {shorten(mode)}, expected "min" or "max"')
    path, store = _located(run, which)
    if which == "best":
        return store.load(_best(path, store.steps(), metric, mode))
    return store.load(which if isinstance(which, int) else None, set_aside=False)


def refuse_old(old: Old) -> None:
    """Raise as `state_of` does if an older run has no such checkpoint; none is read."""
    where, which = old if isinstance(old, tuple) else (old, "latest")
    _, store = _located(where, which)
    step = which if isinstance(which, int) else None
    steps = store.steps()
    if not steps or (step is not None and step not in steps):
        store.load(step)  # which says so


def _located(run: object, which: object) -> tuple[Path, StoredCheckpoints]:
    """The directory of a run and its checkpoints, if it has what `which` asks for."""
    where = getattr(run, "path", run)
    if not isinstance(where, str | os.PathLike):
        raise BadInput(f"load: got {a_type(run)}, expected a run or the path of its directory")
    path = Path(where)
    if not path.is_dir():
        raise NoCheckpoint(f"load: got `{path}`, expected the directory of a run")
    mirror = (path / "log").is_dir() and not (path / "log.jsonl").exists()
    store = (MirroredCheckpoints if mirror else StoredCheckpoints)(path / "checkpoints")
    if not (path / "checkpoints").exists() and (below := _runs_below(path)):
        raise NoCheckpoint(
            f"load: got `{path}`, expected the directory of one run",
            f"below it there are: {', '.join(below)}",
        )
    if mirror and which == "best":
        raise NoCheckpoint(
            f"load: got `{path}`, the mirror of a run, whose log is in pieces: expected a step or 'latest'",
            f"those there are: {shorten(store.steps())}; `Run.open(..., mirror=...)` brings all of it back",
        )
    if which not in ("latest", "best") and (isinstance(which, bool) or not isinstance(which, int)):
        raise BadInput(f'load: which: got {shorten(which)}, expected "latest", "best" or a number of steps')
    return path, store


def _runs_below(path: Path) -> list[str]:
    """Names of run directories, at most ten."""
    try:
        found = sorted(each.name for each in path.iterdir() if (each / "config.json").is_file())
    except OSError:
        return []
    return [*found[:10], *(["…"] if len(found) > 10 else [])]


def _best(path: Path, steps: list[int], metric: str, mode: str) -> int:
    """The checkpoint whose last value of the metric, up to its own step, is best; see `retention`."""
    values = last_values(path, steps, metric)
    found = ranked(values, mode)
    if not found:
        raise NoCheckpoint(
            f"load: got no checkpoint with a logged {shorten(metric)}, expected at least one",
            "name what was logged: which='best', metric=...",
        )
    ever = best_ever(path, metric, mode)
    if ever is not None and not _there(path, steps, ever[0], better(ever[1], values[found[0]], mode)):
        wanted = shorten(metric) if mode == "min" else f"({shorten(metric)}, 'max')"
        tell(
            f"load: the best {shorten(metric)} ever logged, {ever[1]:.6g} in step {ever[0]}, belongs to a checkpoint "
            f"that is not kept; of those that remain {found[0]} is the best, with {values[found[0]]:.6g} "
            f"(hint: `run.steps(..., keep_best={wanted})` keeps it)"
        )
    return found[0]


def _there(path: Path, steps: list[int], logged: int, is_better: bool) -> bool:
    """Whether the checkpoint that a value was logged for remains, and no later value took its place."""
    saved = {event.get("step") for event in read_events(path) if event["event"] == "checkpoint"}
    made = sorted({step for step in saved if isinstance(step, int)}.union(steps))
    owner = next((step for step in made if step >= logged), None)
    return owner in steps and not is_better


def put_weights(state: State, objects: Mapping[str, Any]) -> list[str]:
    """Put the saved modules into those of the same names; BadCheckpoint if there are none."""
    names = [n for n, o in objects.items() if isinstance(o, nn.Module) and n in state.names]
    if not names:
        raise BadCheckpoint(
            f"start_from: got a state with {shorten(', '.join(state.names))}, expected one of the kept modules",
            "`run.keep(model=model)` under the name that the older run used",
        )
    for name in names:
        load_weights(objects[name], state.value(name), name)
    return names

"""What is done before a run can begin: the options looked at, the directory locked, the log opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadsheet.errors import BadInput, shorten
from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.directory import MIRROR_VARIABLE, ROOT_VARIABLE, RunDirectory
from loadsheet.run.errors import RunError
from loadsheet.run.log import Log
from loadsheet.run.mirror import Mirror
from loadsheet.run.objects import settled
from loadsheet.run.progress import Progress
from loadsheet.run.sheetfile import Facts, Source, adopt

PathLike = str | os.PathLike[str]
#: an older run, or (run, step)
Old = PathLike | tuple[PathLike, int | str]


@dataclass(frozen=True, slots=True)
class Opened:
    """A run directory that is ours, with its log, its signed sheet and where its mirror is, if there are any."""

    directory: RunDirectory
    log: Log
    sheet: Facts | None
    mirror: PathLike | None


def open_directory(
    root: PathLike,
    config: object,
    exclude: Iterable[str],
    *,
    mirror: PathLike | None,
    mirror_options: dict[str, Any] | None,
    sheet: Source | None,
    durable_log: bool,
    wait: float,
    progress: Progress,
) -> Opened:
    """Lock the directory of this config, bring what the mirror has, remove what was never finished.

    Raises as `Run.open` says.
    """
    mirror = _mirror(mirror, progress)
    directory = RunDirectory.open(root, config, exclude, wait, prepare=_pull(mirror, mirror_options))
    try:
        CheckpointStore(directory.checkpoints).sweep()
        facts = adopt(sheet, directory.path)
        log = Log(directory.log_path, directory.attempt, durable=durable_log)
    except BaseException:
        directory.close()
        raise
    return Opened(directory, log, facts, mirror)


def check_options(wait: object, start_from: object) -> None:
    """Raise BadInput for options that make no sense, RunError for several processes."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise RunError(
            f"run: got WORLD_SIZE={shorten(os.environ['WORLD_SIZE'])}, expected one process",
            "training over several processes is not supported: their states would have to be saved together",
        )
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not wait >= 0:
        raise BadInput(f"open: wait: got {shorten(wait)}, expected seconds from 0 on")
    old = start_from[0] if isinstance(start_from, tuple) and len(start_from) == 2 else start_from
    if old is not None and not isinstance(old, str | os.PathLike):
        raise BadInput(
            f"open: start_from: got {shorten(start_from)}, expected the directory of a run, or (directory, step)"
        )


def _mirror(given: PathLike | None, progress: Progress) -> PathLike | None:
    """Where the mirror is: as the script says, else as the environment does; none while something is tried out."""
    mirror = os.environ.get(MIRROR_VARIABLE) or None if given is None else given
    if mirror is not None and os.environ.get(ROOT_VARIABLE):
        progress.say(f"mirror left out: {ROOT_VARIABLE} is set, and what is tried out must not reach it")
        mirror = None
    return None if mirror is None else settled(mirror)


def _pull(mirror: PathLike | None, options: dict[str, Any] | None) -> Callable[[Path], None] | None:
    """What brings a run here from its mirror, once its directory is ours and before anything is read."""
    if mirror is None:
        return None

    def prepare(path: Path) -> None:
        Mirror(mirror, path, options=options).pull()

    return prepare

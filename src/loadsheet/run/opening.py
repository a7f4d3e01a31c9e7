"""What is done before a run can begin: the options looked at, the directory locked, the log opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadsheet.errors import BadInput, a_type, shorten
from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.directory import MIRROR_VARIABLE, ROOT_VARIABLE, RunDirectory
from loadsheet.run.errors import RunError
from loadsheet.run.load import Old, refuse_old
from loadsheet.run.log import Log
from loadsheet.run.mirror import Mirror
from loadsheet.run.notices import refuse_where
from loadsheet.run.objects import place, settled
from loadsheet.run.progress import Progress
from loadsheet.run.sheetfile import Facts, Given, Source, adopt, fits, given

PathLike = str | os.PathLike[str]


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
    start_from: Old | None,
    durable_log: bool,
    wait: float,
    progress: Progress,
) -> Opened:
    """Lock the directory of this config, bring what the mirror has, remove what was never finished.

    What can be refused is refused before there is a directory, and what depends on the directory before
    there is an attempt: a start that is refused is none. Raises as `Run.open` says.
    """
    mirror = _mirror(mirror, mirror_options, progress)
    signed = given(sheet)
    prepare = _prepare(mirror, mirror_options, signed, start_from)
    directory = RunDirectory.open(root, config, exclude, wait, prepare=prepare)
    try:
        CheckpointStore(directory.checkpoints).sweep()
        facts = adopt(signed, directory.path)
        log = Log(directory.log_path, directory.attempt, durable=durable_log)
    except BaseException:
        directory.close()
        raise
    return Opened(directory, log, facts, mirror)


def check_options(wait: object, start_from: object, notice: object) -> None:
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
    refuse_where(notice)


def _mirror(named: object, options: object, progress: Progress) -> PathLike | None:
    """Where the mirror is: as the script says, else as the environment does; none while something is tried out."""
    mirror = os.environ.get(MIRROR_VARIABLE) or None if named is None else named
    if mirror is not None and not isinstance(mirror, str | os.PathLike):
        raise BadInput(f"mirror: got {a_type(mirror)}, expected a path or a URL like `s3://bucket/folder`")
    if options is not None and not isinstance(options, dict):
        raise BadInput(f"mirror_options: got {a_type(options)}, expected a dict of obstore's options")
    if mirror is not None and os.environ.get(ROOT_VARIABLE):
        progress.say(f"mirror left out: {ROOT_VARIABLE} is set, and what is tried out must not reach it")
        mirror = None
    if mirror is None:
        return None
    mirror = settled(mirror)
    place(mirror, options)
    return mirror


def _prepare(
    mirror: PathLike | None, options: dict[str, Any] | None, sheet: Given | None, start_from: Old | None
) -> Callable[[Path], None]:
    """What is done once the directory is ours and before anything in it is read: the copy brought, the rest refused."""

    def prepare(path: Path) -> None:
        if mirror is not None:
            Mirror(mirror, path, options=options).pull()
        fits(sheet, path)
        if start_from is not None and not CheckpointStore(path / "checkpoints").steps():
            refuse_old(start_from)  # a run that goes on does not need it any more

    return prepare

"""The run that was written to last: how large its checkpoints are, how long it waited for data.

Read with the standard library alone, and nothing of it is trusted: sizes and counts are bounded, nothing
outside the run's own directory is followed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadsheet.errors import LoadsheetError
from loadsheet.safejson import load_json

_CHECKPOINT: Final = re.compile(r"step-([0-9]{1,18})")
_MOST: Final = 20_000  # directories looked at
_LARGEST: Final = 1 << 60


@dataclass(frozen=True)
class LastRun:
    """A run directory: base units; None for what it does not say."""

    name: str
    path: Path
    written: float  # seconds since 1970, of its log
    done: bool
    steps: int | None  # of the newest checkpoint
    checkpoint_bytes: int | None
    saved: float | None  # when the newest checkpoint was made
    measured: dict[str, Any]  # of its last attempt


def newest_run(root: Path) -> LastRun | None:
    """The run under `root` whose log was written to last; None if there is none."""
    found: list[tuple[float, str]] = []
    try:
        with os.scandir(root) as entries:
            for number, entry in enumerate(entries):
                if number >= _MOST:
                    break
                if entry.is_dir(follow_symlinks=False):
                    try:
                        log = os.stat(os.path.join(entry.path, "log.jsonl"), follow_symlinks=False)
                    except OSError:
                        continue
                    found.append((log.st_mtime, entry.name))
    except OSError:
        return None
    if not found:
        return None
    written, name = max(found)
    path = root / name
    steps, size, saved = _newest_checkpoint(path / "checkpoints")
    done = (path / "done.json").is_file()
    return LastRun(name, path, written, done, steps, size, saved, _measured(path / "measured.json"))


def _newest_checkpoint(folder: Path) -> tuple[int | None, int | None, float | None]:
    """Steps, bytes and time of the newest whole checkpoint."""
    try:
        names = os.listdir(folder)
    except OSError:
        return None, None, None
    steps = sorted((int(m[1]), name) for name in names[:_MOST] if (m := _CHECKPOINT.fullmatch(name)))
    for step, name in reversed(steps[-20:]):
        try:
            manifest = load_json(folder / name / "manifest.json", "manifest")["manifest"]
            sizes = [int(entry["bytes"]) for entry in manifest["files"].values()]
            when = float(manifest["time"])
        except (LoadsheetError, KeyError, TypeError, ValueError, AttributeError):
            continue
        if all(0 <= size < _LARGEST for size in sizes):
            return step, sum(sizes), when
    return None, None, None


def _measured(path: Path) -> dict[str, Any]:
    try:
        attempts = load_json(path, "measured.json")["attempts"]
        newest = max(attempts, key=int)
        found = attempts[newest]
    except (LoadsheetError, KeyError, TypeError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}

"""One run directory as one row: what it is, how far it came, what it measured, what is wrong with it.

Nothing here trusts the directory: files are bounded in size, links that leave the root are not followed,
and what cannot be read becomes a line in `problems`, never an exception and never a row left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from loadsheet.errors import LoadsheetError, shorten
from loadsheet.history.inside import Inside
from loadsheet.history.logs import LogSummary, Metric, summarise

State = Literal["done", "running", "interrupted", "failed", "empty"]
STATES: Final = ("done", "running", "interrupted", "failed", "empty")
FINGERPRINT: Final = re.compile(r"[0-9a-f]{10}")
_ATTEMPT: Final = re.compile(r"attempt-([0-9]{4,9})\.json")
_CHECKPOINT: Final = re.compile(r"step-([0-9]{8,18})")
_MOST_FILES: Final = 100_000  # of one run directory; a row must not cost minutes


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run; times in seconds since 1970, sizes in bytes.

    `step` counts completed steps that were logged or saved, `total` is what the done marker says, `seconds`
    is the sum of the attempts' time from their start to their last sign of life, `lost_steps` were run
    again after an interruption.
    """

    path: Path
    fingerprint: str
    config: dict[str, Any]
    excluded: dict[str, Any]
    attempts: int
    step: int
    total: int | None
    state: State
    started: float | None
    updated: float | None
    seconds: float
    resumes: int
    lost_steps: int
    metrics: dict[str, Metric]
    checkpoints: tuple[int, ...]
    nbytes: int
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class _Notes:
    """What went wrong while one directory was read, a line each."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: object) -> None:
        text = str(line)
        if text not in self.lines and len(self.lines) < 20:
            self.lines.append(text)


def read_row(path: Path, root: Path | None = None) -> RunRow:
    """The row of a run directory; `root` is what links inside it may not leave, by default itself.

    Raises nothing for what stands in the directory: see `problems`.
    """
    notes = _Notes()
    inside = Inside(path, root or path)
    config = _object(inside, "config.json", 4 << 20, notes, needed=True)
    done = _object(inside, "done.json", 1 << 16, notes)
    total = done.get("steps") if done else None
    if done and (type(total) is not int or total < 0):
        notes.add(f"done.json: got steps {shorten(total)}, expected a whole number from 0 on")
        total = None
    measured = _object(inside, "measured.json", 16 << 20, notes)
    starts, excluded = _attempts(inside, notes)
    checkpoints = _checkpoints(inside, notes)
    log = _log(inside, notes)
    if config and FINGERPRINT.fullmatch(path.name) and (name := _digest(config)) != path.name:
        notes.add(
            f"config.json: got a config of fingerprint {name}, expected {path.name}: it was edited or moved"
        )
    step = max(log.last_step + 1, checkpoints[-1] if checkpoints else 0, log.resumed_from)
    if total is not None and log.last_step <= total:  # what is logged after the loop belongs to step `total`
        step = total
    attempts = max([len(starts), *starts, *log.times], default=0)
    times = [time for pair in log.times.values() for time in pair] + [
        t for t in starts.values() if t is not None
    ]
    finished = done.get("time") if done else None
    if isinstance(finished, int | float) and finished > 0:
        times.append(float(finished))
    return RunRow(
        path=path,
        fingerprint=path.name if FINGERPRINT.fullmatch(path.name) or not config else _digest(config),
        config=config or {},
        excluded=excluded,
        attempts=attempts,
        step=step,
        total=total,
        state=_state(step, total, attempts, log, measured),
        started=min(times, default=None),
        updated=max(times, default=None),
        seconds=_machine_seconds(starts, log),
        resumes=log.resumes,
        lost_steps=log.lost_steps,
        metrics=log.metrics,
        checkpoints=checkpoints,
        nbytes=_bytes(inside, notes),
        problems=tuple(notes.lines),
    )


def _state(
    step: int, total: int | None, attempts: int, log: LogSummary, measured: dict[str, Any] | None
) -> State:
    """What became of it, as far as its files tell; whether it runs now is for the lock to say.

    A killed attempt says nothing. One that was left by an error in the script, or by `break`, says so in the
    log, or (before that was logged) has written what it measured without having been asked to stop.
    """
    if total is not None and step <= total:
        return "done"
    if not attempts:
        return "empty"
    if log.ending == "left":
        return "failed"
    known = (measured or {}).get("attempts")
    if log.ending != "stopped" and isinstance(known, dict) and str(attempts) in known:
        return "failed"
    return "interrupted"


def _machine_seconds(starts: dict[int, float | None], log: LogSummary) -> float:
    """The attempts' time, from the start of each to its last line in the log; seconds."""
    seconds = 0.0
    for attempt, (first, last) in log.times.items():
        begun = starts.get(attempt)
        seconds += max(last - (first if begun is None else min(begun, first)), 0.0)
    return seconds


def _digest(config: dict[str, Any]) -> str:
    from loadsheet.run.fingerprint import digest

    return digest(config)


def _object(
    inside: Inside, name: str, limit: int, notes: _Notes, *, needed: bool = False
) -> dict[str, Any] | None:
    """The JSON object in a file of the run; None, and a note, if there is none that can be read."""
    try:
        return inside.json(name, limit)
    except FileNotFoundError:
        if needed:
            notes.add(f"{name}: there is none")
    except LoadsheetError as error:
        notes.add(error)
    return None


def _log(inside: Inside, notes: _Notes) -> LogSummary:
    try:
        summary = summarise(inside.file("log.jsonl"))
    except FileNotFoundError:
        return LogSummary()
    except LoadsheetError as error:
        notes.add(error)
        return LogSummary()
    for line in summary.problems:
        notes.add(line)
    return summary


def _names(inside: Inside, folder: str, notes: _Notes) -> Iterator[str]:
    try:
        with os.scandir(inside.folder(folder)) as entries:
            for count, entry in enumerate(entries):
                if count >= _MOST_FILES:
                    notes.add(f"{folder}: got more than {_MOST_FILES:,} entries, the others were not read")
                    return
                yield entry.name
    except FileNotFoundError:
        return
    except LoadsheetError as error:
        notes.add(error)
    except OSError as error:
        notes.add(f"{folder}: got {error.strerror!r}, expected a folder to read")


def _attempts(inside: Inside, notes: _Notes) -> tuple[dict[int, float | None], dict[str, Any]]:
    """For each attempt when it started (None: unknown), and what the newest one excluded from the config."""
    starts: dict[int, float | None] = {}
    excluded: dict[str, Any] = {}
    numbers = sorted(
        int(m[1]) for name in _names(inside, "provenance", notes) if (m := _ATTEMPT.fullmatch(name))
    )
    for number in numbers[-1000:]:
        facts = _object(inside, f"provenance/attempt-{number:04d}.json", 4 << 20, notes) or {}
        begun = facts.get("time")
        starts[number] = float(begun) if isinstance(begun, int | float) and 0 < begun < 1e12 else None
        if isinstance(found := facts.get("excluded"), dict):
            excluded = found
    return starts, excluded


def _checkpoints(inside: Inside, notes: _Notes) -> tuple[int, ...]:
    found = [m for name in _names(inside, "checkpoints", notes) if (m := _CHECKPOINT.fullmatch(name))]
    return tuple(sorted(int(match[1]) for match in found))


def _bytes(inside: Inside, notes: _Notes) -> int:
    """Bytes of the files below a run directory; links are not followed."""
    total, seen, waiting = 0, 0, [inside.path]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _MOST_FILES:
                        notes.add(f"got more than {_MOST_FILES:,} files, their sizes were not all added up")
                        return total
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total

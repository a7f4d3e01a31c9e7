"""What a run left: its signed sheet, its lives, what each attempt measured, whether it is done.

The directory may be somebody else's: files are read behind limits, and a link that leaves it is refused.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from loadsheet import signature
from loadsheet.closing.lives import Life, read_lives
from loadsheet.errors import BadFile, BadInput
from loadsheet.run.machine_time import alive
from loadsheet.run.sheetfile import NAME
from loadsheet.safejson import load_json

_MEASURED_BYTES: Final = 64 << 20
_SMALL_BYTES: Final = 8 << 20
_MOST_ATTEMPTS: Final = 10_000
_ATTEMPT: Final = re.compile(r"attempt-([0-9]{4,9})\.json")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process life: what it measured, if anything, and from when to when it ran (Unix seconds)."""

    number: int
    lives: tuple[Life, ...]
    measured: Mapping[str, Any] | None
    started: float | None
    ended: float | None

    @property
    def seconds(self) -> float | None:
        """Machine time, from the start of the process as far as it is known to the last sign of life."""
        if self.started is None or self.ended is None:
            return None
        return max(self.ended - self.started, 0.0)


@dataclass(frozen=True)
class Evidence:
    """All that a run left, as far as it can be read."""

    path: Path
    signed: dict[str, Any]
    attempts: tuple[Attempt, ...]
    lives: tuple[Life, ...]
    done: int | None  # steps, by the done marker
    unread: tuple[str, ...] = ()  # what could not be read, and why

    @cached_property
    def completed(self) -> int:
        """Steps that are complete: all of them, or as far as the newest life came."""
        if self.done is not None and (not self.lives or self.lives[-1].reached <= self.done):
            return self.done
        return self.lives[-1].reached if self.lives else 0

    @cached_property
    def interruptions(self) -> dict[str, int]:
        """How the lives ended that another one had to follow, by kind."""
        found = {"signal": 0, "notice": 0, "killed": 0, "left": 0}
        for life in self.lives[:-1]:
            if life.ending != "done":
                found[life.ending] += 1
        return found

    @cached_property
    def lost_steps(self) -> int:
        """Steps carried out that a later life carried out again."""
        return sum(max(life.reached - after.begun, 0) for life, after in pairwise(self.lives))

    @cached_property
    def seconds(self) -> float | None:
        """Machine time of all attempts together, without the time between them; None if of one it is unknown."""
        known = [a.seconds for a in self.attempts if a.lives or a.seconds is not None]
        return None if not known or None in known else math.fsum(s for s in known if s is not None)

    @cached_property
    def starting_seconds(self) -> float:
        """From the start of each process, as far as it is known, until its state was restored."""
        pairs = [(a.started, a.lives[0].first) for a in self.attempts if a.lives]
        return math.fsum(first - began for began, first in pairs if began is not None and first is not None)

    def entries(self) -> Iterator[Mapping[str, Any]]:
        """What the attempts measured, in order."""
        return (attempt.measured for attempt in self.attempts if attempt.measured is not None)

    def highest(self, name: str) -> float | None:
        """The greatest of a measured number over the attempts; None if none has it."""
        found = [value for entry in self.entries() if (value := number(entry, name)) is not None]
        return max(found, default=None)

    def total(self, *names: str) -> float | None:
        """The sum of a measured number over the attempts; None if none has it."""
        found = [value for entry in self.entries() if (value := number(entry, *names)) is not None]
        return math.fsum(found) if found else None

    def mean(self, *names: str, by: Callable[[Mapping[str, Any]], float | None]) -> float | None:
        """The mean of a measured number over the attempts, weighted; None if none has it."""
        pairs = [(number(entry, *names), by(entry)) for entry in self.entries()]
        known = [(value, weight) for value, weight in pairs if value is not None and weight]
        whole = math.fsum(weight for _, weight in known)
        return math.fsum(value * weight for value, weight in known) / whole if whole else None

    def why(self, name: str) -> str:
        """Why a number was not measured, in the words of the newest attempt."""
        for attempt in reversed(self.attempts):
            missing = (attempt.measured or {}).get("missing")
            if isinstance(missing, dict) and isinstance(missing.get(name), str):
                return str(missing[name])[:200]
        return (
            "the run has no measured.json" if not any(True for _ in self.entries()) else "the run did not say"
        )


def gather(run: str | os.PathLike[str], sheet: str | os.PathLike[str] | None = None) -> Evidence:
    """Read a run directory; `sheet` is a signed sheet that lies elsewhere. Raises BadInput, BadFile."""
    path = Path(run)
    if not path.is_dir():
        raise BadInput(
            f"run `{path}`: got no folder, expected a run directory", "`loadsheet runs list` shows them"
        )
    signed = _sheet(path, sheet)
    unread: list[str] = []

    def small(name: str, limit: int) -> dict[str, Any] | None:
        try:
            return load_json(_inside(path, name), name, limit)
        except FileNotFoundError:
            return None
        except BadFile as error:
            unread.append(str(error))
            return None

    try:
        log = _inside(path, "log.jsonl")
    except FileNotFoundError:
        raise BadInput(
            f"run `{path}`: got no log.jsonl, expected a run that has begun",
            "there is nothing to hold the sheet against yet",
        ) from None
    lives, damage = read_lives(log)
    if damage:
        unread.append(damage)
    if not lives:
        raise BadInput(f"run `{path}`: got a log without a step, expected a run that has begun")
    found = small("measured.json", _MEASURED_BYTES) or {}
    entries = found.get("attempts")
    entries = entries if isinstance(entries, dict) else {}
    measured = {name: entry for name, entry in entries.items() if isinstance(entry, dict)}
    lived: dict[int, list[Life]] = {}
    for life in lives:
        lived.setdefault(life.attempt, []).append(life)
    for attempt, own in lived.items():
        _complete(own[-1], measured.get(str(attempt)))
    numbers = sorted({*lived, *_attempts(path)})
    attempts = tuple(_attempt(n, lived.get(n, []), measured.get(str(n)), small) for n in numbers)
    marker = small("done.json", _SMALL_BYTES) or {}
    steps = marker.get("steps")
    done = steps if isinstance(steps, int) and not isinstance(steps, bool) and steps >= 0 else None
    return Evidence(path, signed, attempts, tuple(lives), done, tuple(unread))


def _complete(life: Life, entry: Mapping[str, Any] | None) -> None:
    """What the measurements know of an attempt's last life that its log does not tell."""
    reached = number(entry, "to_step")
    if reached is not None:
        life.reached = max(life.reached, int(reached))
    if entry is not None and entry.get("ended") == "done":
        life.ending = "done"


def _sheet(path: Path, sheet: str | os.PathLike[str] | None) -> dict[str, Any]:
    """The signed sheet: the run's own, or the one that is named; BadInput if they differ or there is none."""
    try:
        own = signature.read(_inside(path, NAME))
    except FileNotFoundError:
        own = None
    if sheet is None:
        if own is None:
            raise BadInput(
                f"run `{path}`: got no {NAME}, expected a signed sheet in it",
                "name one with --sheet FILE, or open the run with `Run.open(…, sheet=FILE)`",
            )
        return own
    given = signature.read(sheet)
    if own is not None and own["signed"]["sha256"] != given["signed"]["sha256"]:
        raise BadInput(
            f"sheet: got another one than the run's {NAME}, expected the same",
            "a run is held against the sheet that it was begun with: leave --sheet out",
        )
    return given


def _attempt(
    number_: int,
    lives: list[Life],
    measured: Mapping[str, Any] | None,
    small: Callable[[str, int], dict[str, Any] | None],
) -> Attempt:
    """One attempt, and when it had a machine: see `run.machine_time`."""
    record = small(f"provenance/attempt-{number_:04d}.json", _SMALL_BYTES)
    span = alive(measured, record, [time for life in lives for time in (life.first, life.last)])
    return Attempt(number_, tuple(lives), measured, *(span or (None, None)))


def _attempts(path: Path) -> set[int]:
    """The numbers of the attempts that are on record."""
    try:
        names = os.listdir(_inside(path, "provenance"))
    except (FileNotFoundError, NotADirectoryError, BadFile):
        return set()
    found = sorted(int(match[1]) for match in map(_ATTEMPT.fullmatch, names) if match)
    return set(found[-_MOST_ATTEMPTS:])


def _inside(path: Path, name: str) -> Path:
    """A file of the run directory. Raises FileNotFoundError; BadFile for a link that leaves it."""
    found = path / name
    if not os.path.lexists(found):
        raise FileNotFoundError(name)
    root = os.path.realpath(path)
    if not os.path.realpath(found).startswith(root.rstrip("/") + "/"):
        raise BadFile(f"{name}: got a link that leaves the run directory, expected a file in it")
    return found


def number(entry: Mapping[str, Any] | None, *names: str) -> float | None:
    """A finite number, not below 0, under a path of keys; None if there is none."""
    value: Any = entry
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    good = (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )
    return float(value) if good else None

"""How long a run's machines stayed, and how often they went: what `odds --history` learns from.

The hours are those of `runs list` and `close`: see `run.machine_time`. How an attempt ended stands in the log,
or does not: an attempt that says nothing and was followed by another has vanished (killed, power, a machine
taken without notice). Ctrl-C and errors of the script are no interruptions of the machine; SIGTERM and SIGUSR1
are counted as such, whoever sent them. Of an attempt that ended before its first step nobody knows why (mostly
an error in the script): its hours count, and no interruption.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from loadsheet.errors import BadInput, LoadsheetError
from loadsheet.history.index import find
from loadsheet.history.inside import Inside
from loadsheet.history.logs import Quiet, summarise
from loadsheet.history.rows import Notes, attempt_numbers

#: ends of attempts that are interruptions of the machine
COUNTED: Final = ("notice", "signal", "vanished")
_MEASURED_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Exposure:
    """What a run has seen of its machines; times in seconds, None where it has not measured something."""

    path: Path
    seconds: float  # for which a machine was there
    ends: dict[str, int]  # notice, signal, vanished, by hand, error, done, open, not begun: how many attempts
    save_stall: float | None
    save_total: float | None
    step: float | None

    @property
    def interruptions(self) -> int:
        """How often the machine went."""
        return sum(self.ends.get(kind, 0) for kind in COUNTED)

    def __str__(self) -> str:
        """The ends of the attempts in words: "2 notice, 1 vanished, 1 done"."""
        return ", ".join(f"{count} {kind}" for kind, count in self.ends.items())


def exposure(root: str | os.PathLike[str], word: str) -> Exposure:
    """The exposure of one run: a path, a fingerprint below `root`, or the beginning of one.

    Raises UnknownName, BadFile, and BadInput for a run without a single attempt in its log.
    """
    row = find(root, word)
    inside = Inside(row.path, row.path if not Path(root).is_dir() else Path(root))
    try:
        log = inside.file("log.jsonl")
    except FileNotFoundError:
        raise BadInput(f"history: got `{row.path}` without a log, expected a run that was started") from None
    times = dict(summarise(log).times)
    said: dict[int, str] = {}
    with Quiet(log) as reader:
        for event in reader.events():
            attempt = event.get("attempt")
            if isinstance(attempt, int) and event.get("event") in ("stopped", "left", "done"):
                said[attempt] = _kind(event)
    if not times:
        raise BadInput(f"history: got `{row.path}` with an empty log, expected a run that was started")
    ends = Counter[str]()
    attempts = sorted({*times, *attempt_numbers(inside, Notes())})
    done = _done(inside)
    for attempt in attempts:
        newest = attempt == attempts[-1]
        if done is not None and attempt >= done:  # what is started after that finds it done
            ends["done"] += 1
        elif attempt in times or (newest and row.state == "running"):
            ends[said.get(attempt) or _unsaid(newest, row.state)] += 1
        else:
            ends["not begun"] += 1
    return Exposure(row.path, row.seconds, dict(ends), *_measured(inside))


def _kind(event: dict[str, Any]) -> str:
    if event["event"] == "left":
        return "error"
    if event["event"] == "done":
        return "done"
    reason = str(event.get("reason", ""))
    if reason.startswith("a notice"):
        return "notice"
    return "by hand" if reason == "SIGINT" else "signal"


def _unsaid(newest: bool, state: str) -> str:
    """How an attempt ended that says nothing about it."""
    if not newest:
        return "vanished"
    return {"done": "done", "running": "open", "failed": "error"}.get(state, "vanished")


def _done(inside: Inside) -> int | None:
    """The attempt that completed the run; None if none did."""
    try:
        found = inside.json("done.json", 1 << 16).get("attempt")
    except (FileNotFoundError, LoadsheetError):
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _measured(inside: Inside) -> tuple[float | None, float | None, float | None]:
    """Medians over the attempts of a save's stall and total, and of a step; seconds."""
    try:
        attempts = inside.json("measured.json", _MEASURED_BYTES).get("attempts")
    except (FileNotFoundError, LoadsheetError):
        return None, None, None
    found = [a for a in attempts.values() if isinstance(a, dict)] if isinstance(attempts, dict) else []

    def middle(values: list[Any]) -> float | None:
        good = [value for value in map(_positive, values) if value is not None]
        return median(good) if good else None

    steps = [a["step_seconds"].get("median") for a in found if isinstance(a.get("step_seconds"), dict)]
    return (
        middle([a.get("save_stall_seconds") for a in found]),
        middle([a.get("save_total_seconds") for a in found]),
        middle(steps),
    )


def _positive(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12
    return float(value) if good else None

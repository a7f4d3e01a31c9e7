"""Following a run's log as it grows, in constant memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from loadsheet.errors import BadFile
from loadsheet.run.reading import Reader

_KEPT: Final = 200  # values and pauses that rules look back on
_FIRST: Final = 1 << 20  # bytes of an old log that are read when the watch begins


class _Quiet(Reader):
    def _report(self) -> None:
        pass


@dataclass(slots=True)
class Progress:
    """What the log has said so far; `at` and `pauses` by the watch's own clock, seconds.

    `step` is the newest one logged (−1: none), `records` how many were seen, `pauses` the seconds between
    records while they came, `values` (step, value) of the watched metric, `ending` the event that closed it.
    """

    step: int = -1
    attempt: int = 0
    total: int | None = None
    records: int = 0
    at: float | None = None
    pauses: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    values: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    ending: str = ""

    @property
    def usual_pause(self) -> float | None:
        """Seconds that usually pass from record to record; None before there are three."""
        return median(self.pauses) if len(self.pauses) >= 3 else None


class Tail:
    """The log of one run from where the watch began; `clock` gives seconds that never go back."""

    def __init__(self, path: Path, metric: str, clock: Callable[[], float]) -> None:
        self.path = path
        self.metric = metric
        self.progress = Progress()
        self._clock = clock
        self._offset: int | None = None

    def read(self) -> Progress:
        """Read what is new; a log that is not there yet has said nothing."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return self.progress
        if self._offset is None or size < self._offset:  # the first look, or another file under that name
            self._offset = max(size - _FIRST, 0)
        if size == self._offset:
            return self.progress
        now, before = self._clock(), self.progress.records
        first = self._offset
        try:
            with _Quiet(self.path, first, size) as reader:
                for block in reader.blocks():
                    for segment in reader.segments(block):
                        if isinstance(segment, dict):
                            self._event(segment)
                        else:
                            for record in reader.decode(segment, restore=True):
                                self._record(record)
                self._offset = reader.end - reader.unfinished
        except BadFile:
            return self.progress
        new = self.progress.records - before
        if new:
            if self.progress.at is not None:
                self.progress.pauses.extend([(now - self.progress.at) / new] * min(new, _KEPT))
            self.progress.at = now
        return self.progress

    def _event(self, event: dict[str, Any]) -> None:
        name = event.get("event")
        if name == "resume":
            self.progress.ending = ""
            if type(event.get("from")) is int:
                self.progress.step = event["from"] - 1
        elif name == "steps" and type(event.get("total")) is int:
            self.progress.total = event["total"]
        elif name in ("stopped", "left"):
            self.progress.ending = str(name)

    def _record(self, record: dict[str, Any]) -> None:
        p = self.progress
        step, p.attempt = record["step"], record["attempt"]
        p.step = step if p.total is None else min(step, p.total - 1)  # what follows the loop is no step
        p.records += 1
        value = record.get(self.metric)
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                p.values.append((step, float(value)))
            except OverflowError:
                p.values.append((step, math.inf))

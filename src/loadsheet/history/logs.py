"""What a log says, in a few numbers: the metrics of the steps that count, the lives, the steps lost.

One pass over the file in memory that does not grow with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadsheet.run.reading import Limits, Reader

_OF_LOG: Final = frozenset({"step", "attempt", "time", "timing", "event"})
_MOST_NAMES: Final = 2000


@dataclass(slots=True)
class Metric:
    """A number that was logged: its last value, its least and greatest finite ones, and how often."""

    last: float
    last_step: int
    min: float | None = None
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    count: int = 0

    def add(self, value: float, step: int) -> None:
        """One more value, later than all before."""
        self.last, self.last_step = value, step
        self.count += 1
        if not math.isfinite(value):
            return
        if self.min is None or value < self.min:
            self.min, self.min_step = value, step
        if self.max is None or value > self.max:
            self.max, self.max_step = value, step


@dataclass(slots=True)
class LogSummary:
    """What a log says; times in seconds since 1970."""

    last_step: int = -1  # the highest step of which a record counts
    resumed_from: int = 0
    metrics: dict[str, Metric] = field(default_factory=dict)
    times: dict[int, tuple[float, float]] = field(default_factory=dict)  # attempt: its first and last line
    resumes: int = 0
    lost_steps: int = 0
    ending: str = ""  # the event after which nothing more was logged: "stopped", "left", "done"
    problems: list[str] = field(default_factory=list)


class Quiet(Reader):
    """A reader whose findings are looked at, and not warned about."""

    def _report(self) -> None:
        pass


def summarise(path: Path) -> LogSummary:
    """The summary of a log. Raises BadFile if it cannot be read, or its steps go back without a `resume`."""
    summary = LogSummary()
    with Quiet(path) as reader:
        events = list(reader.events())
        limits = Limits(events)
        _events(events, summary)
        waiting: dict[str, Any] | None = None
        highest = -1
        for batch in reader.records(restore=True):
            for record in batch:
                _record(record, summary)
        del waiting, highest, limits
        if reader.damaged:
            summary.problems.append(f"log.jsonl: {reader.damaged} damaged lines were left out")
    return summary


def _record(record: dict[str, Any], summary: LogSummary) -> None:
    step = record["step"]
    summary.last_step = step
    _seen(record, summary)
    for name, value in record.items():
        kind = type(value)
        if (kind is float or kind is int) and name not in _OF_LOG:
            _value(name, float(value), step, summary)
    timing = record.get("timing")
    if isinstance(timing, dict):
        for name, value in timing.items():
            if type(value) in (float, int):
                _value(f"timing.{name}", float(value), step, summary)


def _value(name: str, value: float, step: int, summary: LogSummary) -> None:
    metric = summary.metrics.get(name)
    if metric is None:
        if len(summary.metrics) >= _MOST_NAMES:
            return
        metric = summary.metrics[name] = Metric(value, step)
    metric.add(value, step)


def _seen(line: dict[str, Any], summary: LogSummary) -> None:
    attempt, time = line.get("attempt"), line.get("time")
    if type(attempt) is int and type(time) in (int, float) and 0 < time < 1e12:  # type: ignore[operator]
        first, last = summary.times.get(attempt, (time, time))
        summary.times[attempt] = min(first, time), max(last, time)  # type: ignore[type-var,assignment]


def _events(events: list[dict[str, Any]], summary: LogSummary) -> None:
    for event in events:
        _seen(event, summary)
        name = event.get("event")
        if name == "resume":
            summary.ending = ""
        elif name in ("stopped", "left"):
            summary.ending = str(name)
    starts = [e["from"] for e in events if e.get("event") == "resume" and type(e.get("from")) is int]
    summary.resumes = max(len(starts) - 1, 0)
    summary.resumed_from = starts[-1] if starts else 0

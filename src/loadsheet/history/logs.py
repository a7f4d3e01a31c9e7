"""What a log says, in a few numbers: the metrics of the steps that count, the attempts' times, lost steps.

One pass over the file, in memory that does not grow with it. The pass can be put aside and taken up again
where the file has grown: a running run with a million lines is not read anew each time it is looked at.
"""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import dataclass, field, replace
from operator import lt
from pathlib import Path
from typing import Any, Final

from loadsheet.errors import BadFile
from loadsheet.run.reading import Limits, Reader, born

#: what the log itself writes; everything else is a name that somebody logged
OF_LOG: Final = frozenset({"step", "attempt", "time", "timing", "event"})
#: bytes of a log that is read; beyond it a row would cost minutes
MOST_BYTES: Final = 4 << 30
_MOST_NAMES: Final = 2000
_MOST_ATTEMPTS: Final = 100_000
_TAIL: Final = 256  # bytes before the end that must be the same for a pass to be taken up again
_NOT_YET: Final = -1
_NEVER: Final = 1 << 62


@dataclass(slots=True)
class Metric:
    """A number that was logged: the last value, the least and the greatest finite one, and how often.

    `nonfinite` of the `count` values are NaN or infinite, the first of them at `nonfinite_step`.
    """

    last: float
    last_step: int
    min: float | None = None
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    count: int = 0
    nonfinite: int = 0
    nonfinite_step: int | None = None


@dataclass(slots=True)
class LogSummary:
    """What a log says; times in seconds since 1970.

    `last_step` is the highest step of which a record counts (−1: none), `times` the first and last line of
    each attempt, `ending` the event after which nothing more was logged, `planned` the steps that the
    newest attempt was to make. `lost_steps` were logged, and run again after an interruption. What is logged
    after the loop stands at step `planned`: `reached` leaves it out.
    """

    last_step: int = _NOT_YET
    resumed_from: int = 0
    metrics: dict[str, Metric] = field(default_factory=dict)
    times: dict[int, tuple[float, float]] = field(default_factory=dict)
    resumes: int = 0
    lost_steps: int = 0
    planned: int | None = None
    #: the newest checkpoint that another trainer keeps by itself, by its step; None: this log tells of none
    saved_elsewhere: int | None = None
    ending: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def reached(self) -> int:
        """Steps that were completed, as far as records tell."""
        return self.last_step + 1 if self.planned is None else min(self.last_step + 1, self.planned)


@dataclass(slots=True)
class Pass:
    """A pass over a log up to `offset`, and what it takes to go on from there."""

    summary: LogSummary = field(default_factory=LogSummary)
    offset: int = 0
    tail: str = ""
    attempt: int = 0
    lives: int = 0
    damaged: int = 0
    disordered: int = 0
    pending_step: int = _NOT_YET
    pending: dict[str, float] = field(
        default_factory=dict
    )  # of the last step, which the next line may add to


class Quiet(Reader):
    """A reader whose findings are looked at, and not warned about."""

    def _report(self) -> None:
        pass


def read_pass(path: Path, earlier: Pass | None = None) -> Pass:
    """A pass over the whole log, from where an earlier one ended if the file has only grown since.

    Raises BadFile if there is no log that can be read.
    """
    if earlier is not None and earlier.offset and (going_on := _go_on(path, earlier)) is not None:
        return going_on
    found = Pass()
    with Quiet(path) as reader:
        if reader.end > MOST_BYTES:
            raise BadFile(f"log.jsonl: got {reader.end:,} bytes, expected at most {MOST_BYTES:,}: not read")
        limits = Limits(reader.events())
        _Fold(found, limits).read(reader)
    return found


def summary_of(found: Pass) -> LogSummary:
    """The summary of a pass, the values of its last step counted in; the pass itself stays as it is."""
    s = found.summary
    summary = replace(s, metrics={}, problems=[*s.problems])
    for name, m in s.metrics.items():
        summary.metrics[name] = copy.copy(m)
    for name, value in found.pending.items():
        _values(summary, name, [value], [found.pending_step])
    if found.damaged:
        summary.problems.append(f"log.jsonl: {found.damaged:,} damaged lines were left out")
    if found.disordered:
        summary.problems.append(
            f"log.jsonl: {found.disordered:,} records go back to an earlier step without a resume: left out"
        )
    if len(summary.metrics) >= _MOST_NAMES:
        summary.problems.append(f"log.jsonl: only {_MOST_NAMES:,} of the names logged were read")
    return summary


def summarise(path: Path) -> LogSummary:
    """The summary of a log. Raises BadFile if it cannot be read."""
    return summary_of(read_pass(path))


def _go_on(path: Path, earlier: Pass) -> Pass | None:
    """The earlier pass taken up again; None if the file is another one, or steps were run again since."""
    with Quiet(path, earlier.offset) as reader:
        if reader.end < earlier.offset or _tail(path, earlier.offset) != earlier.tail:
            return None
        for event in reader.events():
            if event.get("event") == "resume":
                return None
        found = _copy(earlier)
        fold = _Fold(found, None)
        fold.read(reader)
    return None if fold.foreign else found


def _copy(p: Pass) -> Pass:
    return copy.deepcopy(p)


def _tail(path: Path, offset: int) -> str:
    with path.open("rb") as file:
        file.seek(max(offset - _TAIL, 0))
        return hashlib.sha256(file.read(min(offset, _TAIL))).hexdigest()[:16]


class _Fold:
    """Adds lines to a pass, in the order of the file."""

    def __init__(self, found: Pass, limits: Limits | None) -> None:
        self.found = found
        self.limits = limits
        self.foreign = False  # a line of another attempt than the newest: only a pass from the start can tell
        self._lives: dict[int, int] = {}
        self._highest = _NOT_YET if limits is not None else max(found.summary.last_step, found.pending_step)

    def read(self, reader: Reader) -> None:
        """All that the reader has."""
        for block in reader.blocks():
            for segment in reader.segments(block):
                if isinstance(segment, dict):
                    self._event(segment)
                else:
                    self._records(reader.decode(segment, restore=True))
        self.found.damaged += reader.damaged + reader.overlong
        self.found.offset = reader.end - reader.unfinished
        self.found.tail = _tail(reader.path, self.found.offset)

    def _event(self, event: dict[str, Any]) -> None:
        summary = self.found.summary
        self._seen(event)
        name = event.get("event")
        life = born(event, self._lives)
        if life is not None:
            start = event["from"]
            if not (0 <= start < _NEVER and abs(life[0]) < _NEVER):
                self.found.damaged += 1
                return
            self.found.attempt = life[0]
            summary.resumes += self.found.lives > 0
            self.found.lives += 1
            done = self._highest + 1 if summary.planned is None else min(self._highest + 1, summary.planned)
            summary.lost_steps = min(summary.lost_steps + max(done - start, 0), _NEVER)
            self._highest = min(self._highest, start - 1)
            summary.resumed_from = start
            if summary.saved_elsewhere is not None:
                summary.saved_elsewhere = start
            summary.ending = ""
        elif name == "steps":
            total = event.get("total")
            summary.planned = total if type(total) is int and 0 <= total < _NEVER else None
        elif name == "checkpoint" and event.get("elsewhere") is True:
            step = event.get("step")
            if type(step) is int and 0 <= step < _NEVER:
                summary.saved_elsewhere = max(summary.saved_elsewhere or 0, step)
        elif name in ("stopped", "left"):
            summary.ending = str(name)

    def _records(self, records: list[dict[str, Any]]) -> None:
        """Records of one stretch of the file; those of one attempt in order are taken together."""
        found = self.found
        while records:
            attempt = records[0]["attempt"]
            end = next((n for n, r in enumerate(records) if r["attempt"] != attempt), len(records))
            group, records = records[:end], records[end:]
            if self.limits is None:
                self.foreign |= attempt != found.attempt
                limit = _NEVER
            else:
                limit = min(self.limits.of((attempt, self._lives.get(attempt, 0))), _NEVER)
            for side in (group, reversed(group)):  # the first and the last line that say when
                any(map(self._seen, side))
            steps = [record["step"] for record in group]
            self._highest = max(self._highest, *steps)
            if found.pending_step < steps[0] and steps[-1] < limit and all(map(lt, steps, steps[1:])):
                self._in_order(group, steps)
            else:
                self._one_by_one(group, limit)

    def _in_order(self, group: list[dict[str, Any]], steps: list[int]) -> None:
        """Records each of a step of its own: value by value into columns, then each column at once."""
        found = self.found
        self._settle()
        columns: dict[str, tuple[list[float], list[int]]] = {}
        for record, step in zip(group[:-1], steps, strict=False):
            for name, value in _numbers(record):
                if (column := columns.get(name)) is None:
                    column = columns[name] = ([], [])
                column[0].append(value)
                column[1].append(step)
        for name, (values, at) in columns.items():
            _values(found.summary, name, values, at)
        found.pending = dict(_numbers(group[-1]))
        found.pending_step = found.summary.last_step = steps[-1]

    def _one_by_one(self, group: list[dict[str, Any]], limit: int) -> None:
        """Records whatever their steps are: several of one step are one, the later value counts."""
        found = self.found
        for record in group:
            step = record["step"]
            if step >= limit:
                found.damaged += limit == _NEVER
                continue
            if step < found.pending_step or step < 0:
                found.disordered += 1
                continue
            if step > found.pending_step:
                self._settle()
                found.pending_step = found.summary.last_step = step
            else:  # another line of the same step: what it says counts, also that something is no number
                said = set(record)
                if isinstance(record.get("timing"), dict):
                    said.update(f"timing.{name}" for name in record["timing"])
                for name in found.pending.keys() & said:
                    del found.pending[name]
            found.pending.update(_numbers(record))

    def _settle(self) -> None:
        """Count the values of the last step: no later line can change them."""
        found = self.found
        for name, value in found.pending.items():
            _values(found.summary, name, [value], [found.pending_step])
        found.pending = {}

    def _seen(self, line: dict[str, Any]) -> bool:
        """Note when an attempt was alive; False if the line does not say."""
        attempt, time = line.get("attempt"), line.get("time")
        if type(attempt) is not int or not 0 <= attempt < _NEVER or not isinstance(time, int | float):
            return False
        if not 0 < time < 1e12:
            return False
        times = self.found.summary.times
        known = times.get(attempt)
        if known is None:
            if len(times) < _MOST_ATTEMPTS:
                times[attempt] = (float(time), float(time))
        elif time > known[1]:
            times[attempt] = (known[0], float(time))
        return True


def _numbers(record: dict[str, Any]) -> list[tuple[str, float]]:
    """What is a number among the values of a record."""
    found = []
    for name, value in record.items():
        kind = type(value)
        if kind is float:
            if name != "time":
                found.append((name, value))
        elif kind is int:
            if name not in OF_LOG:
                found.append((name, _number(value)))
        elif kind is dict and name == "timing":
            found += [(f"timing.{at}", _number(v)) for at, v in value.items() if type(v) in (float, int)]
    return found


def _number(value: float) -> float:
    """A logged whole number as the float that is compared and drawn; infinite beyond what a float can hold."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _values(summary: LogSummary, name: str, values: list[float], steps: list[int]) -> None:
    """Values of a metric, of steps in order."""
    metric = summary.metrics.get(name)
    if metric is None:
        if len(summary.metrics) >= _MOST_NAMES:
            return
        metric = summary.metrics[name] = Metric(values[0], steps[0])
    metric.last, metric.last_step = values[-1], steps[-1]
    metric.count += len(values)
    if not all(map(math.isfinite, values)):
        pairs = [(value, step) for value, step in zip(values, steps, strict=True) if math.isfinite(value)]
        metric.nonfinite += len(values) - len(pairs)
        if metric.nonfinite_step is None:
            metric.nonfinite_step = next(
                step for value, step in zip(values, steps, strict=True) if not math.isfinite(value)
            )
        if not pairs:
            return
        values, steps = [value for value, _ in pairs], [step for _, step in pairs]
    low, high = min(values), max(values)
    if metric.min is None or low < metric.min:
        metric.min, metric.min_step = low, steps[values.index(low)]
    if metric.max is None or high > metric.max:
        metric.max, metric.max_step = high, steps[values.index(high)]

"""A log as columns, the form in which it is plotted and computed with.

The speed (more than half a million lines a second) comes from decoding into objects with one slot per
column instead of a dict per line: they need no hashing, and the garbage collector does not know them.
The columns are learned on the way; lines that do not fit them (a new name, a damaged line, two attempts in
one block) take the general way through dicts.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable
from itertools import compress
from operator import attrgetter, eq, le
from typing import Any, Final, cast

import msgspec

from loadsheet.run.reading import MARKS, Limits, Reader, born, log_path, merge, restored

_FIRST: Final = ("step", "attempt", "time")
#: what msgspec allows in no name of a field
_UNFIT: Final = re.compile(r'[\x00-\x1f"\\]')
_Decode = Callable[[bytes], list[Any]]


def read_columns(path: str | os.PathLike[str]) -> dict[str, list[Any]]:
    """The columns of a log, as `reading.read_log` gives them."""
    with Reader(log_path(path)) as reader:
        table = _Table(reader)
        limits = Limits(reader.events())
        lives: dict[int, int] = {}
        for block in reader.blocks():
            for segment in reader.segments(block):
                if isinstance(segment, dict):
                    born(segment, lives)
                elif not table.add_fast(segment, limits, lives):
                    table.add(segment, limits, lives)
    return table.columns


class _Table:
    """Columns that grow line by line."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.columns: dict[str, list[Any]] = {name: [] for name in _FIRST}
        self._decode: _Decode | None = None
        self._learn()

    def _learn(self) -> None:
        """Make the object with one slot for each column known now; none for names that no slot can have."""
        if any(_UNFIT.search(name) for name in self.columns):
            self._decode = None
            return
        plain = [name for name in self.columns if name not in _FIRST and not name.startswith("timing.")]
        timed = [name for name in self.columns if name.startswith("timing.")]
        inner = _shape("Timing", [(name.removeprefix("timing."), Any) for name in timed])
        fields: list[tuple[str, Any]] = [("step", int), ("attempt", int), ("time", Any)]
        outer = _shape("Record", [*fields, *((name, Any) for name in plain)], inner)
        self._decode = cast("_Decode", msgspec.json.Decoder(outer).decode_lines)
        self._slots = {name: f"slot{n}" for n, name in enumerate([*_FIRST, *plain])}
        self._slots |= {name: f"timing.slot{n}" for n, name in enumerate(timed)}

    def add_fast(self, segment: bytes, limits: Limits, lives: dict[int, int]) -> bool:
        """Append the lines of a segment if all are as expected; False, and nothing done, if not."""
        if self._decode is None:
            return False
        try:
            rows = self._decode(segment)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        steps = [row.slot0 for row in rows]
        attempts = [row.slot1 for row in rows]
        attempt, known = attempts[0], self.columns["step"]
        if attempts.count(attempt) != len(attempts) or not all(map(le, steps, steps[1:])):
            return False
        joins = bool(known) and steps[0] <= known[-1]
        if joins and (steps[0] < known[-1] or attempt != self.columns["attempt"][-1]):
            return False
        limit = limits.of((attempt, lives.get(attempt, 0)))
        if steps[-1] >= limit:
            rows = rows[: bisect_left(steps, limit)]
            steps = steps[: len(rows)]
            if not rows:
                return True
        again = list(compress(range(1, len(rows)), map(eq, steps[1:], steps)))
        if (again or joins) and b"null" in segment:
            return False  # here None means that a line says nothing, and must not be a value as well
        special = any(mark in segment for mark in MARKS)
        last = [True] * len(rows)  # whether a row is the last one of its step
        for at in again:
            last[at - 1] = False
        for name, column in self.columns.items():
            found = list(map(attrgetter(self._slots[name]), rows))
            if special:
                found = list(map(restored, found))
            if joins:
                before = column.pop()
                if found[0] is None:
                    found[0] = before
            for at in again:
                if found[at] is None:
                    found[at] = found[at - 1]
            column.extend(compress(found, last) if again else found)
        return True

    def add(self, segment: bytes, limits: Limits, lives: dict[int, int]) -> None:
        """Append the lines of a segment, whatever they are."""
        rows: list[dict[str, Any]] = []
        steps = self.columns["step"]
        top = steps[-1] if steps else -1
        attempts = self.columns["attempt"]
        top_attempt = attempts[-1] if attempts else 0
        for record in self.reader.decode(segment, restore=True):
            step, attempt = record["step"], record["attempt"]
            if step >= limits.of((attempt, lives.get(attempt, 0))):
                continue
            if step > top:
                rows.append(record)
                top, top_attempt = step, attempt
                continue
            self.reader.check_order(step, attempt, top, top_attempt)
            if rows:
                merge(rows[-1], record)
            else:
                self._complete(record)
        self._append(rows)

    def _append(self, rows: list[dict[str, Any]]) -> None:
        count = len(self.columns["step"])
        flat = [_flat(row) for row in rows]
        self._know({name for row in flat for name in row}, flat, count)
        for name, column in self.columns.items():
            column.extend([row.get(name) for row in flat])

    def _complete(self, record: dict[str, Any]) -> None:
        """Add a line to the last entry, whose step it belongs to."""
        flat = _flat(record)
        self._know(set(flat), [flat], len(self.columns["step"]))
        for name, value in flat.items():
            self.columns[name][-1] = value

    def _know(self, names: set[str], rows: list[dict[str, Any]], count: int) -> None:
        """Begin a column for each new name, in the order in which they were logged."""
        if names <= self.columns.keys():
            return
        for row in rows:
            for name in row:
                self.columns.setdefault(name, [None] * count)
        self._learn()


def _shape(name: str, fields: list[tuple[str, Any]], timing: type[Any] | None = None) -> type[Any]:
    """An object with one slot per field, whose names may be anything; what it does not know is refused."""
    slots: list[Any] = []
    for n, (_, kind) in enumerate(fields):
        slots.append((f"slot{n}", kind) if kind is int else (f"slot{n}", kind, None))
    rename = {f"slot{n}": field for n, (field, _) in enumerate(fields)}
    if timing is not None:
        slots.append(("timing", timing, msgspec.field(default_factory=timing)))
    return msgspec.defstruct(name, slots, rename=rename, gc=False, forbid_unknown_fields=True)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record with each entry of its timing under a name of its own."""
    timing = record.pop("timing", None)
    if isinstance(timing, dict):
        record.update((f"timing.{name}", value) for name, value in timing.items())
    return record

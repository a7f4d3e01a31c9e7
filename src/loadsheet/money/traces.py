"""A trace: when a machine could be had and when not, as the user has recorded it.

A CSV or JSON file of at most 16 MB, in one of three forms:

* intervals: CSV with the columns `state` (up or down) and `seconds` (or a duration such as `2h`), or a JSON
  array of `["up", 3600]` or `{"state": "up", "seconds": 3600}`; neighbours of one state are joined
* times: CSV with the columns `start` and `end`, Unix seconds or ISO 8601, of each time the machine was up;
  what lies between them is down
* samples: a JSON object `{"metadata": {"gap_seconds": 600}, "data": [1, 1, 0, …]}`, the number of machines
  that were there at each look (the form of the traces of Wu et al., NSDI 2024)

A job of the simulation starts at a random time of the trace, and passes from its end to its beginning.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from loadsheet.errors import BadFile, BadInput, LoadsheetError, one_line, shorten
from loadsheet.safejson import open_regular, parse_json
from loadsheet.units import parse_duration

MAX_BYTES: Final = 16 << 20
MAX_ROWS: Final = 1_000_000
_LONGEST: Final = 100 * 365 * 86400.0
_HINT: Final = '`state,seconds` or `start,end` as CSV, or a JSON array of ["up", seconds]'


@dataclass(frozen=True, slots=True)
class Trace:
    """Pairs of an up-time and the down-time after it, seconds, as a circle."""

    up: tuple[float, ...]
    down: tuple[float, ...]
    source: str

    @property
    def seconds(self) -> float:
        """Its length."""
        return math.fsum(self.up) + math.fsum(self.down)

    @property
    def mtbf(self) -> float:
        """Mean up-time."""
        return math.fsum(self.up) / len(self.up)

    @property
    def wait(self) -> float:
        """Mean down-time."""
        return math.fsum(self.down) / len(self.down)

    @property
    def available(self) -> float:
        """The share of time in which there was a machine."""
        return math.fsum(self.up) / self.seconds


def read_trace(path: str | os.PathLike[str], machines: int = 1) -> Trace:
    """The trace in a file; of samples, up is where at least `machines` were there.

    Raises BadFile if the file cannot be read or is none of the forms, BadInput for a row that makes no sense
    or where there was no interruption at all.
    """
    name = one_line(os.path.basename(os.fsdecode(path))) or "trace"
    with open_regular(path, "trace") as (file, size):
        data = b"" if size > MAX_BYTES else file.read(MAX_BYTES + 1)
    if max(size, len(data)) > MAX_BYTES:
        raise BadFile(f"{name}: got more than {MAX_BYTES >> 20} MiB, expected a trace of at most that", _HINT)
    first = data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if first in (b"[", b"{"):
        return circle(
            _of_json(parse_json(data, name, max_depth=8, max_values=3 * MAX_ROWS), name, machines), name
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(f"{name}: got a byte that is no UTF-8 at {error.start}, expected text", _HINT) from None
    return circle(_of_csv(text, name), name)


def circle(intervals: Iterable[tuple[bool, float]], name: str) -> Trace:
    """Up- and down-times in turn, the last joined with the first where both are of one state.

    >>> circle([(True, 1.0), (False, 2.0), (True, 3.0)], "x").up
    (4.0,)
    """
    joined: list[tuple[bool, float]] = []
    for state, seconds in intervals:
        if joined and joined[-1][0] == state:
            joined[-1] = (state, joined[-1][1] + seconds)
        else:
            joined.append((state, seconds))
    if len(joined) < 2:
        kind = "nothing but up-time" if joined and joined[0][0] else "no up-time"
        raise BadInput(
            f"{name}: got {kind}, expected a trace with interruptions",
            "a longer trace, or `--mtbf` for what you believe",
        )
    if joined[0][0] == joined[-1][0]:
        state, seconds = joined.pop()
        joined[0] = (state, joined[0][1] + seconds)
    if not joined[0][0]:
        joined.append(joined.pop(0))
    total = math.fsum(seconds for _, seconds in joined)
    if total > _LONGEST:
        raise BadInput(f"{name}: got {total:.3g} seconds in all, expected at most 100 years", _HINT)
    return Trace(tuple(s for state, s in joined if state), tuple(s for state, s in joined if not state), name)


# --- the three forms ------------------------------------------------------------------------------------


def _of_json(value: Any, name: str, machines: int) -> list[tuple[bool, float]]:
    if isinstance(value, dict):
        return _samples(value, name, machines)
    if len(value) > MAX_ROWS:
        raise BadInput(f"{name}: got {len(value):,} intervals, expected at most {MAX_ROWS:,}")
    found = []
    for number, entry in enumerate(value, start=1):
        pair = [entry.get("state"), entry.get("seconds")] if isinstance(entry, dict) else entry
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadInput(f'{name} entry {number}: got {shorten(entry)}, expected ["up", seconds]', _HINT)
        found.append(_interval(pair[0], pair[1], f"{name} entry {number}"))
    return found


def _samples(value: dict[str, Any], name: str, machines: int) -> list[tuple[bool, float]]:
    metadata, data = value.get("metadata"), value.get("data")
    gap: Any = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not isinstance(data, list) or not _is_number(gap) or not 0 < gap <= 86400:
        raise BadInput(
            f"{name}: got an object without `metadata.gap_seconds` above 0 and `data`, expected a trace",
            _HINT,
        )
    for number, count in enumerate(data, start=1):
        if not _is_number(count) or count < 0:
            raise BadInput(f"{name} sample {number}: got {shorten(count)}, expected a number of machines")
    return [(count >= machines, float(gap)) for count in data]


def _of_csv(text: str, name: str) -> list[tuple[bool, float]]:
    import csv
    import io

    rows: list[tuple[int, dict[str, str]]] = []
    columns: list[str] = []
    try:
        for number, cells in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True), start=1):
            if not any(cell.strip() for cell in cells):
                continue
            if not columns:
                columns = [cell.strip().lower() for cell in cells]
                if columns not in (["state", "seconds"], ["start", "end"]):
                    raise BadInput(
                        f"{name} row {number}: got columns {shorten(', '.join(columns))}, "
                        "expected `state,seconds` or `start,end`",
                        _HINT,
                    )
                continue
            if len(cells) != 2:
                raise BadInput(f"{name} row {number}: got {len(cells)} cells, expected 2")
            if len(rows) >= MAX_ROWS:
                raise BadInput(f"{name}: got more than {MAX_ROWS:,} rows, expected at most that")
            rows.append((number, {c: cell.strip() for c, cell in zip(columns, cells, strict=True)}))
    except csv.Error as error:
        raise BadFile(f"{name}: got {str(error)!r}, expected CSV", _HINT) from None
    if "state" in columns:
        return [_interval(row["state"], row["seconds"], f"{name} row {number}") for number, row in rows]
    return _of_times(rows, name)


def _of_times(rows: Sequence[tuple[int, dict[str, str]]], name: str) -> list[tuple[bool, float]]:
    found: list[tuple[bool, float]] = []
    before = None
    for number, row in rows:
        start, end = (
            _time(row[column], f"{name} row {number}, column `{column}`") for column in ("start", "end")
        )
        if end <= start:
            raise BadInput(
                f"{name} row {number}: got an end that is not after the start, expected one that is"
            )
        if before is not None:
            if start < before:
                raise BadInput(
                    f"{name} row {number}: got a start before the end of the row above, expected order"
                )
            if start > before:
                found.append((False, start - before))
        found.append((True, end - start))
        before = end
    return found


def _interval(state: Any, seconds: Any, where: str) -> tuple[bool, float]:
    word = state.lower() if isinstance(state, str) else ""
    if word not in ("up", "down"):
        raise BadInput(f"{where}: got state {shorten(state)}, expected `up` or `down`", _HINT)
    try:
        length = parse_duration(seconds, where)
    except LoadsheetError as error:
        raise BadInput(str(error), _HINT) from None
    if not 0 < length <= _LONGEST:
        raise BadInput(f"{where}: got {shorten(seconds)}, expected a duration above 0", _HINT)
    return word == "up", length


def _time(text: str, where: str) -> float:
    """Unix seconds from a number or an ISO 8601 time; without an offset it is UTC."""
    try:
        value = float(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise BadInput(
                f"{where}: got {shorten(text)}, expected Unix seconds or ISO 8601", _HINT
            ) from None
        value = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    if not 0 <= value < 1e11:
        raise BadInput(f"{where}: got {shorten(text)}, expected Unix seconds", _HINT)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

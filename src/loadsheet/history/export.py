"""Runs as CSV or JSON, one record per step.

Numbers that are not finite are told apart everywhere: CSV and JSON have the words NaN, Infinity and
-Infinity, in JSON as texts, which is how the log itself writes them (a text that says one of these words
has a "~" in front). Nothing in a CSV is run when a spreadsheet opens it.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from loadsheet.history.index import RunRow
from loadsheet.history.logs import Quiet
from loadsheet.history.plot_curves import log_of
from loadsheet.run.reading import NON_FINITE

_FIRST: Final = ("run", "step", "attempt", "time")
#: a spreadsheet runs what begins with one of these (OWASP, "CSV Injection"; the last four are full-width)
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_BATCH: Final = 1000


# --- CSV ----------------------------------------------------------------------------------------------------


def csv_parts(rows: Sequence[RunRow]) -> Iterator[bytes]:
    """A CSV file (RFC 4180, UTF-8, lines end in a line feed) of the records of some runs, in pieces.

    Columns: run, step, attempt, time (seconds since 1970), then what was logged, by name, then timing.* by
    name: the same names give the same columns whatever was logged first. Raises BadFile.
    """
    names, ends = _seen(rows)
    plain = sorted(name for name in names if name not in _FIRST and not name.startswith("timing."))
    timed = sorted(name for name in names if name.startswith("timing."))
    columns = [*_FIRST, *plain, *timed]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([cell(name) for name in columns])
    for row, end in zip(rows, ends, strict=True):
        # not more than was seen above: a run that goes on may log new names
        with Quiet(log_of(row.path), 0, end) as reader:
            for batch in reader.records(restore=True):
                for record in batch:
                    values = {**flat(record), "run": row.fingerprint}
                    writer.writerow([cell(values.get(name)) for name in columns])
                    if buffer.tell() > 1 << 20:
                        yield _taken(buffer)
    yield _taken(buffer)


def _seen(rows: Sequence[RunRow]) -> tuple[set[str], list[int]]:
    """The names in the logs, and their ends in bytes: whatever is wrong with one shows before anything is written."""
    names, ends = set[str](), []
    for row in rows:
        with Quiet(log_of(row.path)) as reader:
            ends.append(reader.end)
            for batch in reader.records(restore=False):
                for record in batch:
                    names.update(flat(record) if "timing" in record else record)
    return names, ends


def _taken(buffer: io.StringIO) -> bytes:
    data = buffer.getvalue().encode(errors="replace")
    buffer.seek(0)
    buffer.truncate()
    return data


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with each entry of its timing under a name of its own.

    >>> flat({"step": 1, "timing": {"rate": 2.0}})
    {'step': 1, 'timing.rate': 2.0}
    """
    out = {name: value for name, value in record.items() if name != "timing"}
    timing = record.get("timing")
    if isinstance(timing, dict):
        out.update((f"timing.{name}", value) for name, value in timing.items())
    elif timing is not None:
        out["timing"] = timing
    return out


def cell(value: Any) -> str:
    """A value as the text of a cell: numbers with every digit, nothing for None, no formulas.

    A text that a spreadsheet would run gets a `'` in front; numbers need none.

    >>> cell(-0.1), cell(float("-inf")), cell(True), cell(None), cell("=1+1"), cell([1, 2])
    ('-0.1', '-Infinity', 'true', '', "'=1+1", '[1,2]')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else NON_FINITE[repr(value)]
    if isinstance(value, int):
        return str(value)
    text = (
        value
        if isinstance(value, str)
        else json.dumps(_worded(value), ensure_ascii=False, separators=(",", ":"))
    )
    return f"'{text}" if text.startswith(_FORMULA) else text


def _worded(value: Any) -> Any:
    """A value with words for the numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return NON_FINITE[repr(value)]
    if isinstance(value, dict):
        return {name: _worded(entry) for name, entry in value.items()}
    return [_worded(entry) for entry in value] if isinstance(value, list) else value


# --- JSON ---------------------------------------------------------------------------------------------------


def json_parts(rows: Sequence[RunRow]) -> Iterator[bytes]:
    """A JSON object {"schema": 1, "runs": [{"run", "config", …, "records": [...]}]}, in pieces.

    Times in seconds since 1970, `seconds` is machine time. Records are as in the log, one per step.
    Raises BadFile before the first piece.
    """
    encode = msgspec.json.Encoder().encode
    _, ends = _seen(rows)
    yield b'{"schema": 1, "runs": ['
    for number, (row, end) in enumerate(zip(rows, ends, strict=True)):
        head = {
            "run": row.fingerprint, "state": row.state, "config": row.config, "excluded": row.excluded,
            "attempts": row.attempts, "resumes": row.resumes, "step": row.step, "total": row.total,
            "lost_steps": row.lost_steps, "unsaved_steps": row.unsaved_steps,
            "started": row.started, "updated": row.updated, "seconds": row.seconds,
            "checkpoints": list(row.checkpoints), "problems": list(row.problems),
        }  # fmt: skip
        yield (b",\n" if number else b"\n") + encode(head)[:-1] + b', "records": ['
        between = b"\n"
        with Quiet(log_of(row.path), 0, end) as reader:
            for batch in reader.records(restore=False):
                for at in range(0, len(batch), _BATCH):
                    yield between + b",\n".join(map(encode, batch[at : at + _BATCH]))
                    between = b",\n"
        yield b"]}"
    yield b"\n]}\n"

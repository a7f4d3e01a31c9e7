"""Readers of a run's log; they take no lock, and may read while the run writes.

A log holds everything that was ever written, also the steps of which a killed attempt knew and its
successor did not. What counts: a record at step s, unless the run was later resumed from s or before.
So a reader finds one record per step, in order. First the `resume` lines are looked up (a search for
bytes, which runs at the speed of memory), then the records are decoded, a block of lines at a time.

Lines that are no JSON (half a line after a crash, a hole after the loss of power) are left out, counted,
and reported by a warning at the end.
"""

from __future__ import annotations

import bisect
import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import lt
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from loadsheet.errors import BadFile
from loadsheet.run.tell import tell

#: how the numbers that JSON does not have are written, by their `repr`
NON_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_NUMBERS: Final = {text: float(text.lower().replace("infinity", "inf")) for text in NON_FINITE.values()}
MARKS: Final = (b'NaN"', b'Infinity"')
_BLOCK: Final = 1 << 20
_LONGEST: Final = 1 << 27  # bytes; the log writes no line even half as long
_NEVER: Final = 1 << 200
_REMEMBERED: Final = 100_000  # steps of a re-run that are held in memory to be compared

_one: Final = msgspec.json.Decoder().decode
_many: Final = msgspec.json.Decoder(dict[str, Any]).decode_lines


def log_path(path: str | os.PathLike[str]) -> Path:
    """The log itself, or the one in a run directory."""
    found = Path(path)
    return found / "log.jsonl" if found.is_dir() else found


def read_log(path: str | os.PathLike[str]) -> dict[str, list[Any]]:
    """The columns of a log or run directory, one entry per step, in order; None where nothing was logged.

    `step`, `attempt` and `time` (seconds since 1970) come first, then every name that was logged; what
    was logged as `timing={"rate": …}` is the column "timing.rate". Raises BadFile as `stream_log`.
    """
    from loadsheet.run.columns import read_columns  # it builds on this module

    return read_columns(path)


def stream_log(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The records of a log or run directory, one per step in order, in memory that does not grow.

    Each is a dict with `step`, `attempt`, `time`, what was logged, and `timing` if it was. Raises BadFile
    if there is no log, or one whose steps go back without a `resume`.
    """
    reader = Reader(log_path(path))
    with reader:
        for batch in reader.records(restore=True):
            yield from batch


def read_events(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a log that belong to no step ({"event": "resume", ...}), all of them, in order."""
    reader = Reader(log_path(path))
    with reader:
        return [restored(event) for event in reader.events()]


def compare_rerun(path: str | os.PathLike[str]) -> int | None:
    """The first step that was run again and logged something else than before; None if none did.

    Every preemption is a free audit: steps between the last checkpoint and the end of an attempt are run
    twice, and must give the same bits. `time`, `attempt` and `timing` are not compared.
    """
    from loadsheet.run.rerun import explain_rerun  # it builds on this module

    found = explain_rerun(path)
    return None if found is None else found.step


def superseded(
    path: str | os.PathLike[str], step: int, *, since: int = 0, end: int | None = None
) -> dict[int, dict[str, Any]]:
    """The records that count now, from `step` on, as they stand in the file; at most 100,000 of them.

    Only bytes `since` to `end` are looked at.
    """
    found: dict[int, dict[str, Any]] = {}
    reader = Reader(log_path(path), since, end)
    with reader:
        for batch in reader.records(restore=False):
            if batch[-1]["step"] >= step:
                found.update((record["step"], record) for record in batch if record["step"] >= step)
                if len(found) > _REMEMBERED:
                    break
    return found


# --- the reader ---------------------------------------------------------------------------------------------

#: a stretch of an attempt between two `resume` lines: the attempt, and how many it has written before
Life = tuple[int, int]


class Reader:
    """One pass over a log, from one byte to another."""

    def __init__(self, path: Path, start: int = 0, end: int | None = None) -> None:
        self.path = path
        self.start = start
        try:
            self._file: BinaryIO = path.open("rb", buffering=0)
        except OSError as error:
            raise BadFile(f"log `{path}`: got {error.strerror!r}, expected the log of a run") from None
        size = os.fstat(self._file.fileno()).st_size
        self.end = size if end is None else min(end, size)
        self.damaged = 0
        self.overlong = 0
        self.first_damaged = 0
        self.unfinished = 0
        self._offset = start

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is None:
            self._report()

    def _report(self) -> None:
        parts = []
        if self.damaged:
            parts.append(f"{self.damaged} damaged lines, the first near byte {self.first_damaged}")
        if self.overlong:
            parts.append(f"{self.overlong} of more than {_LONGEST >> 20} MiB")
        if self.unfinished:
            parts.append(f"an unfinished last line of {self.unfinished} bytes")
        if parts:
            tell(f"left out of `{self.path}`: {' and '.join(parts)}")

    # --- blocks, segments ------------------------------------------------------------------------------

    def blocks(self) -> Iterator[bytes]:
        """The bytes in blocks of whole lines; what follows the last line end is counted, not given."""
        self._file.seek(self.start)
        self._offset = self.start
        left = self.end - self.start
        rest: list[bytes] = []
        held = 0  # bytes since the last line end
        self.overlong = 0
        while left > 0 and (data := self._file.read(min(_BLOCK, left))):
            left -= len(data)
            cut = data.rfind(b"\n") + 1
            if not cut:
                held += len(data)
                rest = [*rest, data] if held <= _LONGEST else []
                continue
            if held > _LONGEST:  # that was no line, and must not fill the memory
                first = data.find(b"\n") + 1
                self.overlong += 1
                self._offset += held + first
                data, cut = data[first:], cut - first
            block = b"".join((*rest, data[:cut]))
            rest = [data[cut:]]
            held = len(rest[0])
            if block:
                yield block
            self._offset += len(block)
        self.unfinished = held

    def segments(self, block: bytes) -> Iterator[bytes | dict[str, Any]]:
        """A block in its order: lines of records together, each event by itself, decoded."""
        begin = at = 0
        # within a text the quotes are escaped, so these bytes are a name or a whole value
        while (at := block.find(b'"event"', at)) >= 0:
            first = block.rfind(b"\n", 0, at) + 1
            after = block.find(b"\n", at) + 1
            event = _decoded(block[first:after])
            at = after
            if event is not None and "event" in event:
                if first > begin:
                    yield block[begin:first]
                yield event
                begin = after
        if begin < len(block):
            yield block[begin:] if begin else block

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of the file."""
        for block in self.blocks():
            if b'"event"' in block:
                for found in self.segments(block):
                    if isinstance(found, dict):
                        yield found

    # --- records -----------------------------------------------------------------------------------------

    def decode(self, segment: bytes, restore: bool) -> list[dict[str, Any]]:
        """The records of a segment; damaged lines are left out and counted."""
        try:
            with without_gc():
                found = _many(segment)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            decoded = [_decoded(line) for line in segment.split(b"\n")[:-1]]
            found = [record for record in decoded if record is not None]
            self._damaged(len(decoded) - len(found))
        if not _sound(found):
            good = [record for record in found if _sound([record])]
            self._damaged(len(found) - len(good))
            found = good
        if restore and any(mark in segment for mark in MARKS):
            found = [restored(record) for record in found]
        return found

    def _damaged(self, lines: int) -> None:
        if lines and not self.damaged:
            self.first_damaged = self._offset
        self.damaged += lines

    def groups(self, restore: bool) -> Iterator[tuple[Life, list[dict[str, Any]]]]:
        """Records in the order of the file, together as long as they are of one life."""
        lives: dict[int, int] = {}
        for block in self.blocks():
            for segment in self.segments(block):
                if isinstance(segment, dict):
                    born(segment, lives)
                    continue
                records = self.decode(segment, restore)
                while records:
                    attempt = records[0]["attempt"]
                    if records[-1]["attempt"] != attempt or len({r["attempt"] for r in records}) > 1:
                        end = next(n for n, r in enumerate(records) if r["attempt"] != attempt)
                    else:
                        end = len(records)
                    yield (attempt, lives.get(attempt, 0)), records[:end]
                    records = records[end:]

    def records(self, restore: bool) -> Iterator[list[dict[str, Any]]]:
        """The records that count, one per step, in order, in batches."""
        limits = Limits(self.events())
        last: dict[str, Any] | None = None  # the record that the next line may still add to
        for life, group in self.groups(restore):
            limit = limits.of(life)
            steps = [record["step"] for record in group]
            if last is not None and steps[0] <= last["step"]:
                steps = []  # not the simple case
            if steps and steps[-1] < limit and all(map(lt, steps, steps[1:])):
                batch = group if last is None else [last, *group]
            else:
                batch = self._joined(last, group, limit)
            if batch:
                last = batch.pop()
                if batch:
                    yield batch
        if last is not None:
            yield [last]

    def _joined(
        self, last: dict[str, Any] | None, group: list[dict[str, Any]], limit: int
    ) -> list[dict[str, Any]]:
        """A group without what does not count, the lines of one step made one."""
        batch = [] if last is None else [last]
        top = -1 if last is None else last["step"]
        for record in group:
            step = record["step"]
            if step >= limit:
                continue
            if step > top:
                batch.append(record)
                top = step
            else:
                self.check_order(step, record["attempt"], top, batch[-1]["attempt"])
                merge(batch[-1], record)
        return batch

    def check_order(self, step: int, attempt: int, last: int, last_attempt: int) -> None:
        """BadFile unless another line belongs to the same step of the same attempt."""
        if step != last or attempt != last_attempt:
            raise BadFile(
                f"log `{self.path}`: got step {step} of attempt {attempt} after step {last} of attempt "
                f"{last_attempt} (near byte {self._offset}), expected steps in order"
            )


class Limits:
    """For each life the step from which on its records no longer count."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        counts: dict[int, int] = {}
        self._starts: dict[Life, int] = {}
        for event in events:
            if (resumed := born(event, counts)) is not None:
                self._starts[resumed] = event["from"]
        self._lives = sorted(self._starts)
        self._lowest = [_NEVER]  # of the starts from each life on
        for life in reversed(self._lives):
            self._lowest.append(min(self._lowest[-1], self._starts[life]))
        self._lowest.reverse()

    def of(self, life: Life) -> int:
        """The lowest step from which a later life went on; a huge number if none did."""
        return self._lowest[bisect.bisect_right(self._lives, life)]

    def start(self, life: Life) -> int | None:
        """The step this life went on from."""
        return self._starts.get(life)


def born(event: dict[str, Any], counts: dict[int, int]) -> Life | None:
    """The life that begins with an event; None if it is no `resume`."""
    attempt, step = event.get("attempt"), event.get("from")
    if event.get("event") != "resume" or type(attempt) is not int or type(step) is not int:
        return None
    counts[attempt] = counts.get(attempt, 0) + 1
    return attempt, counts[attempt]


def _sound(records: list[dict[str, Any]]) -> bool:
    """Whether every one of these objects is a record: it has a step and an attempt."""
    try:
        kinds = {type(record["step"]) for record in records} | {type(record["attempt"]) for record in records}
    except KeyError:
        return False
    return kinds <= {int}


def merge(record: dict[str, Any], more: dict[str, Any]) -> None:
    """Add a later line of the same step: by name, inside `timing` too; the later value counts."""
    timing, added = record.get("timing"), more.get("timing")
    record.update(more)
    if isinstance(timing, dict) and isinstance(added, dict):
        record["timing"] = timing | added


def _decoded(line: bytes) -> dict[str, Any] | None:
    """A line as an object; None if it is none."""
    try:
        found = _one(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def restored(value: Any) -> Any:
    """A decoded value with the numbers that JSON does not have."""
    if isinstance(value, str):
        if value in _NUMBERS:
            return _NUMBERS[value]
        return value[1:] if value.startswith("~") and value.lstrip("~") in _NUMBERS else value
    if isinstance(value, dict):
        return {name: restored(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [restored(entry) for entry in value]
    return value


@contextmanager
def without_gc() -> Iterator[None]:
    """No garbage collection while thousands of objects come into being: it would look at each, in vain."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

"""TensorBoard's event files, written by hand: scalars only, which is all that a log has.

An event file is a row of records. A record is framed as TensorFlow's TFRecord (length, its checksum, the
bytes, their checksum) and holds one protobuf message `Event`; field numbers are those of TensorFlow's
`event.proto` and `summary.proto`:

    Event:   1 wall_time (double)  2 step (int64)  3 file_version (string)  5 summary (Summary)
    Summary: 1 value (repeated Value)
    Value:   1 tag (string)  2 simple_value (float)

The libraries that write these files bring protobuf and a thread, and stamp the first event with the time
of writing; this one needs nothing, and the same log gives the same bytes. The tests read its files with
TensorBoard itself.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from loadsheet.history.logs import Quiet
from loadsheet.history.plot_curves import log_of
from loadsheet.history.rows import RunRow

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli's, bits reversed: RFC 3720, appendix B.4
_MASK: Final = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h: a checksum is masked where it is stored
_LARGEST: Final = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]  # finite number that 32 bits hold


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE: Final = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C of some bytes (RFC 3720, appendix B.4).

    >>> hex(crc32c(b"123456789")), hex(crc32c(bytes(32)))
    ('0xe3069283', '0x8a9136aa')
    """
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A checksum as it is stored: rotated right by 15 bits, plus a constant, modulo 2³²."""
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def framed(message: bytes) -> bytes:
    """A message as a record of a TFRecord file."""
    return b"".join((_head(len(message)), message, struct.pack("<I", masked(crc32c(message)))))


@lru_cache(maxsize=1024)
def _head(length: int) -> bytes:
    """What stands before a message: its length, and the checksum of that."""
    data = struct.pack("<Q", length)
    return data + struct.pack("<I", masked(crc32c(data)))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _with_length(field: int, content: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + _varint(len(content)) + content


def first_event(time: float) -> bytes:
    """The event that every file begins with; `time` in seconds since 1970."""
    return b"\x09" + struct.pack("<d", time) + _with_length(3, b"brain.Event:2")


def scalar_event(time: float, step: int, values: Mapping[str, float]) -> bytes:
    """The event of one step; a value is stored in 32 bits, and is infinite if it does not fit in them."""
    summary = b"".join([_of_tag(tag) + _float(value) for tag, value in values.items()])
    return b"".join((b"\x09", struct.pack("<d", time), b"\x10", _varint(step), _with_length(5, summary)))


@lru_cache(maxsize=1024)
def _of_tag(tag: str) -> bytes:
    """A Value up to its number, which takes five bytes with its own tag."""
    name = _with_length(1, tag.encode(errors="replace"))
    return b"\x0a" + _varint(len(name) + 5) + name + b"\x15"


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.inf if value > 0 else -math.inf)


def overflows(value: float) -> bool:
    """Whether a finite number is too large for 32 bits.

    >>> overflows(3.4e38), overflows(3.5e38), overflows(float("inf"))
    (False, True, False)
    """
    return math.isfinite(value) and abs(value) > _LARGEST


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by tag: what was logged, then "timing/…"; True and False are 1 and 0.

    >>> numbers({"step": 3, "attempt": 1, "time": 0.5, "loss": 2, "note": "x", "timing": {"rate": 7.0}})
    {'loss': 2.0, 'timing/rate': 7.0}
    """
    found: dict[str, float] = {}
    for name, value in record.items():
        if name not in ("step", "attempt", "time") and isinstance(value, int | float):
            found[name] = _finite_or_not(value)
    timing = record.get("timing")
    if isinstance(timing, dict):
        for name, value in timing.items():
            if isinstance(value, int | float):
                found[f"timing/{name}"] = _finite_or_not(value)
    return found


def _finite_or_not(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def event_file(records: Iterable[Mapping[str, Any]], start: float) -> Iterator[bytes]:
    """The bytes of an event file of records in order, each with its own step and time; `start` is the run's.

    Steps without any number are left out: TensorBoard shows nothing of them.
    """
    yield framed(first_event(start))
    for record in records:
        if values := numbers(record):
            time = record.get("time")
            yield framed(
                scalar_event(float(time) if isinstance(time, int | float) else start, record["step"], values)
            )


# --- a run ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counts:
    """Of a run: its records, values that become infinite in 32 bits, names of what is no number."""

    records: int = 0
    too_large: int = 0
    texts: set[str] = field(default_factory=set)


def events_name(row: RunRow) -> str:
    """The name of a run's event file: TensorBoard looks for "tfevents", and reads files by name."""
    return f"events.out.tfevents.{int(row.started or 0):010d}.loadsheet.{row.fingerprint}"


def run_events(row: RunRow, counts: Counts) -> Iterator[bytes]:
    """The event file of a run, in pieces, and what it holds and what not added to `counts`. Raises BadFile."""
    return event_file(_counted(row, counts), row.started or 0.0)


def _counted(row: RunRow, counts: Counts) -> Iterator[dict[str, Any]]:
    """The records of a run, looked at on the way."""
    with Quiet(log_of(row.path)) as reader:
        for batch in reader.records(restore=True):
            counts.records += len(batch)
            for record in batch:
                counts.too_large += sum(map(overflows, numbers(record).values()))
                counts.texts |= {
                    name
                    for name, value in record.items()
                    if name not in ("timing", "time") and not isinstance(value, int | float)
                }
            yield from batch

"""The log of a run: JSON Lines, append only, one `write` per call.

    {"event":"resume","attempt":2,"time":…,"from":200}       the attempt goes on after 200 completed steps
    {"step":200,"attempt":2,"time":…,"loss":3.1,"timing":{"tokens_per_second":…}}

A line is handed to the system whole and at once, so it survives the death of the process from then on
(SIGKILL too). It survives the loss of power once it is fsynced: by a thread at most a second later, by
`sync` before a checkpoint commits, and with `durable=True` before every `write` returns.

JSON has no NaN and no infinity. They are written as the texts "NaN", "Infinity" and "-Infinity" and come
back as numbers; a text that says one of these gets a "~" in front, which is taken off again.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from loadsheet.errors import BadInput, a_type, shorten
from loadsheet.run.background import Background
from loadsheet.run.directory import cannot_write, fsync_directory, write_all, write_whole
from loadsheet.run.errors import RunError
from loadsheet.run.reading import NON_FINITE, merge, superseded
from loadsheet.run.rerun import Difference, compare
from loadsheet.run.tell import tell

#: names that the log itself gives to what it writes
RESERVED: Final = frozenset({"step", "attempt", "time", "timing", "event"})
_OF_EVENTS: Final = frozenset({"event", "attempt", "time"})
_LATEST: Final = 1.0  # seconds until a line is fsynced in the background
_DEEPEST: Final = 20
_LINE: Final = 64 * 1024 * 1024  # a longer line is a mistake: a tensor of parameters, not a measurement
_encode: Final = msgspec.json.Encoder().encode
_fsync_data: Final = getattr(os, "fdatasync", os.fsync)  # the length of a file is part of its data


class Log:
    """The log as one attempt writes it: `resume` first, then `write` with steps that never go back.

    `difference` is the first step of a re-run that was not the same as before, once there is one.
    """

    def __init__(self, path: str | os.PathLike[str], attempt: int, *, durable: bool = False) -> None:
        self.path = Path(path)
        self.attempt = attempt
        self.durable = durable
        self.difference: Difference | None = None
        self._next = -1  # the lowest step that may be written; -1 before `resume`
        self._from = 0
        self.repeated = 0  # steps that an earlier attempt logged and this one runs again
        self._earlier: dict[int, dict[str, Any]] = {}  # what an earlier attempt wrote for steps to come
        self._last_earlier = -1
        self._compared = 0
        self.audited = 0  # steps repeated and found the same, once the last one was
        self._current: dict[str, Any] = {}  # what this attempt wrote for step `_next`, while it is compared
        self._broken = False  # the last write stopped in the middle of a line
        self._failure: OSError | RunError | None = None  # of the thread
        self._guard = threading.Lock()
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._fd = -1
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            fsync_directory(self.path.parent)  # whoever made the file may have been killed before this
            self._mend()
        except OSError as error:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            cannot_write(error, f"log `{self.path}`")

    # --- writing ---------------------------------------------------------------------------------------

    def resume(self, step: int, *, since: int = 0, compare: bool = True) -> None:
        """Begin after `step` completed steps: what was logged from there on no longer counts; durable.

        It stays in the file, and the steps that are run again are compared with it, unless `compare` is
        False. `since` is a byte offset before which nothing of these steps was logged (the one in the
        checkpoint's manifest).
        """
        _whole("resume", step)
        self.end_step()
        size = os.fstat(self._descriptor()).st_size
        if size < since:
            tell(
                f"`{self.path}` has {size} bytes, and {since} when the checkpoint was made: "
                "records were lost or taken out"
            )
        self._earlier = superseded(self.path, step, since=min(since, size), end=size) if size else {}
        self._last_earlier = max(self._earlier, default=-1)
        self.repeated = max(self._last_earlier + 1 - step, 0)
        if not compare:
            self._earlier = {}
        self._next = self._from = step
        head = {"event": "resume", "attempt": self.attempt, "time": time.time(), "from": step}
        self._append(_encode(head) + b"\n", durable=True)

    def write(self, step: int, values: Mapping[str, Any], timing: Mapping[str, Any] | None = None) -> None:
        """Append what was measured in a step; several calls for one step are one record to a reader.

        Values are numbers (NumPy and torch scalars too), text, booleans, None, and lists and dicts of
        them; BadInput names what is none of these. `timing` is never compared with another attempt.
        Raises NoSpace or RunError if the line could not be written, or an earlier one not be fsynced.
        """
        if step != self._next or type(step) is not int:
            self._advance(step)
        record: dict[str, Any] = {"step": step, "attempt": self.attempt, "time": time.time()}
        for name, value in values.items():
            _named(name, "log")
            if name in RESERVED or name.startswith("timing."):
                raise BadInput(
                    f"log: got a value named {shorten(name)}, expected another name",
                    f"the log itself writes {', '.join(sorted(RESERVED))}",
                )
            record[name] = value if _is_plain(value) else _value(value, f"log.{name}", 0)
        if timing is not None:
            if not isinstance(timing, Mapping):
                raise BadInput(
                    f"log: timing: got {shorten(timing)}, expected a dict of names and seconds",
                    'timing={"step_seconds": 3.0}',
                )
            record["timing"] = _value(timing, "log.timing", 0)
        self._append(_encode(record) + b"\n", self.durable)
        if self._earlier:
            merge(self._current, record)

    def event(self, name: str, **fields: Any) -> None:
        """Append a line that belongs to no step: {"event": name, ...}; readers of records leave it out."""
        if name == "resume" or not isinstance(name, str):
            raise BadInput(f"log: got an event named {shorten(name)}, expected a text other than 'resume'")
        record: dict[str, Any] = {"event": name, "attempt": self.attempt, "time": time.time()}
        for key, value in fields.items():
            if key in _OF_EVENTS:
                raise BadInput(f"log: got a field named {key!r} in an event, expected another name")
            record[key] = _value(value, f"log.{name}.{key}", 0)
        self._append(_encode(record) + b"\n", self.durable)

    def sync(self) -> int:
        """Make every line written so far durable; the number of bytes in the file that now are."""
        self.end_step()
        fd = self._descriptor()
        self._raise_failure()
        try:
            size = os.fstat(fd).st_size  # before the fsync: what comes during it is not promised
            os.fsync(fd)
            self._check_there()
        except OSError as error:
            cannot_write(error, f"log `{self.path}`")
        return size

    def close(self) -> None:
        """Make everything durable and close; a second call does nothing."""
        if self._fd < 0:
            return
        try:
            self.sync()
        finally:
            self._closing.set()
            self._dirty.set()
            if self._thread is not None:
                self._thread.join()
            with self._guard:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _advance(self, step: int) -> None:
        """Go on to a later step."""
        if self._next < 0:
            raise RunError("log: got a record before `resume`, expected to know the step it goes on from")
        _whole("step", step)
        if step < self._next:
            raise BadInput(
                f"log: got step {step} after step {self._next}, expected steps that do not go back",
                "what belongs to an earlier step can be logged under a name of its own",
            )
        self.end_step()
        self._next = step

    def _append(self, line: bytes, durable: bool) -> None:
        if len(line) > _LINE:
            raise BadInput(f"log: got a line of {len(line)} bytes, expected at most {_LINE}")
        self._raise_failure()
        with self._guard:
            fd = self._descriptor()
            if self._broken:  # end the half line, so that it cannot swallow this one
                line = b"\n" + line
            try:
                written = os.write(fd, line)
                if written < len(line):
                    self._broken = True
                    write_all(fd, memoryview(line)[written:])
                self._broken = False
                if durable:
                    _fsync_data(fd)
            except OSError as error:
                cannot_write(error, f"log `{self.path}`")
        if not durable and not self._dirty.is_set():
            if self._thread is None:
                self._thread = Background(target=self._flush, name="loadsheet-log", daemon=True)
                self._thread.start()
            self._dirty.set()

    def _flush(self) -> None:
        """The thread: fsync what was written, at most a second after it was."""
        while True:
            self._dirty.wait()
            if self._closing.wait(_LATEST / 2):
                return
            self._dirty.clear()
            if self._closing.is_set():  # in between: what was cleared was the call of `close`, the last one
                return
            try:
                os.fsync(self._fd)
                self._check_there()
            except (OSError, RunError) as error:
                self._failure = error
                return

    def _raise_failure(self) -> None:
        if self._failure is not None:
            if isinstance(self._failure, OSError):
                cannot_write(self._failure, f"log `{self.path}`")
            raise self._failure

    def _check_there(self) -> None:
        """A file that was deleted can still be written to, and nobody will ever read it."""
        if os.fstat(self._descriptor()).st_nlink == 0:
            raise RunError(f"log `{self.path}`: got a file that was deleted, expected it to stay")

    def _descriptor(self) -> int:
        if self._fd < 0:
            raise RunError(f"log `{self.path}`: got a call after `close`, expected none")
        return self._fd

    # --- the end of a killed attempt -----------------------------------------------------------------------

    def _mend(self) -> None:
        """Set aside half a line at the end of the file, so that the next one starts on its own.

        A whole record that only lacks its line end gets it. The half is in its own file, durably, before
        it leaves this one: nothing is ever deleted.
        """
        size = os.fstat(self._fd).st_size
        start = size
        tail = b""
        while start > 0 and b"\n" not in tail:
            step = min(start, 65536)
            start -= step
            tail = os.pread(self._fd, step, start) + tail
        tail = tail[tail.rfind(b"\n") + 1 :]
        if not tail:
            return
        try:
            whole = isinstance(msgspec.json.decode(tail), dict)
        except (msgspec.DecodeError, RecursionError):
            whole = False
        if whole:
            write_all(self._fd, b"\n")
            return
        aside = self.path.with_name(f"{self.path.stem}.torn-{self.attempt:04d}")
        write_whole(aside, tail)
        os.ftruncate(self._fd, size - len(tail))
        tell(
            f"the last line of `{self.path}` was cut off by the end of an earlier attempt; "
            f"its {len(tail)} bytes are kept in `{aside.name}`"
        )

    # --- the free audit --------------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Compare the step that has just ended with what an earlier attempt logged for it.

        Called by whatever comes next; call it to hear of a difference at once. A difference is warned
        about and written to the log once, and kept in `difference`.
        """
        if not self._earlier:
            return
        step, current, self._current = self._next, self._current, {}
        if not current:
            return
        earlier = self._earlier.pop(step, None)
        if earlier is None or self.difference is not None:
            return
        # of the step in which the earlier attempt ended, not everything may have been logged
        names = compare(earlier, current, whole=step != self._last_earlier)
        if names:
            self.difference = Difference(
                step, earlier["attempt"], self.attempt, names, earlier, current, self._from
            )
            self.event("differs", step=step, names=list(names), earlier_attempt=earlier["attempt"])
            tell(self.difference.text())
            return
        self._compared += 1
        if step == self._last_earlier:
            self.audited = self._compared


# --- values -----------------------------------------------------------------------------------------------


def _whole(what: str, step: object) -> None:
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 63:
        raise BadInput(f"log: got {what} {shorten(step)}, expected a whole number from 0 on")


def _named(name: object, where: str) -> str:
    if not isinstance(name, str):
        raise BadInput(f"{where}: got the name {shorten(name)}, expected text")
    if not name.isascii():
        _check_text(name, where)
    return name


def _check_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{where}: got {shorten(text)}, expected text that UTF-8 can hold") from None


def _is_plain(value: object) -> bool:
    """Whether a value can be written as it is: the common case, decided at once."""
    kind = type(value)
    return (kind is float and math.isfinite(value)) or kind is bool  # type: ignore[arg-type]


def _value(value: Any, where: str, depth: int) -> Any:
    """A value in the form in which JSON can hold it and a reader can give it back."""
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else NON_FINITE[repr(value)]
    if kind is bool or value is None:
        return value
    if kind is str:
        _check_text(value, where)
        return f"~{value}" if value.lstrip("~") in NON_FINITE.values() else value
    if kind is int:
        if value.bit_length() > 1024:
            raise BadInput(f"{where}: got an integer of {value.bit_length()} bits, expected at most 1024")
        return value
    if depth > _DEEPEST:
        raise BadInput(f"{where}: got more than {_DEEPEST} levels, expected a flatter value")
    if isinstance(value, Mapping):
        return {
            _named(name, where): _value(entry, f"{where}.{name}", depth + 1) for name, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [_value(entry, f"{where}[{at}]", depth + 1) for at, entry in enumerate(value)]
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return _value(base(value), where, depth)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if (numpy is not None and isinstance(value, numpy.generic | numpy.ndarray)) or (
        torch is not None and isinstance(value, torch.Tensor) and not value.is_meta
    ):
        plain = value.tolist()
        if type(plain) is not kind:
            return _value(plain, where, depth + 1)
    raise BadInput(
        f"{where}: got {a_type(value)}, expected numbers, text, booleans, None, lists or dicts",
        "a checkpoint is the place for objects: `run.keep(name=...)`",
    )

"""Notices: somebody else knows that the machine will go, and says so before the signal comes.

A notice is a JSON file, written atomically by whoever watches the provider::

    {"kind": "terminate", "deadline": 1767225600, "source": "aws"}

`kind` is `terminate` (the machine goes at `deadline`, in Unix seconds, null if unknown), `rebalance` (it
may go soon) or `cancelled` (it stays after all). `LOADSHEET_NOTICE` names the file; a callable that
returns such a mapping, or None, does as well.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from loadsheet.errors import BadInput, a_type, shorten
from loadsheet.run.tell import tell

Kind = Literal["terminate", "rebalance", "cancelled"]
#: where a notice comes from: a file, or something to ask
Where = str | os.PathLike[str] | Callable[[], Mapping[str, Any] | None]

VARIABLE = "LOADSHEET_NOTICE"
#: how often a callable is asked, in seconds; providers are to be asked every 5 s
ASK_SECONDS = 2.0
_LARGEST = 65_536


@dataclass(frozen=True, slots=True)
class Notice:
    """What was announced; `deadline` in Unix seconds, None if nobody knows."""

    kind: Kind
    deadline: float | None = None
    source: str = ""
    #: when the file was, in Unix seconds; None for a callable
    written: float | None = field(default=None, compare=False)


def refuse_where(where: object) -> None:
    """BadInput for what is no place to hear of a notice; whether the file is there does not matter yet."""
    if where is None or callable(where) or (isinstance(where, str | os.PathLike) and os.fspath(where)):
        return
    raise BadInput(f"open: notice: got {shorten(where)}, expected a JSON file or a callable")


def read_notice(value: object) -> Notice:
    """A notice out of a mapping; BadInput names the field that makes no sense."""
    if not isinstance(value, Mapping):
        raise BadInput(f"notice: got {a_type(value)}, expected an object with `kind`")
    kind, deadline = value.get("kind"), value.get("deadline")
    if kind not in get_args(Kind):
        raise BadInput(f"notice: kind: got {kind!r}, expected one of {', '.join(get_args(Kind))}")
    if deadline is not None and (
        isinstance(deadline, bool) or not isinstance(deadline, int | float) or not math.isfinite(deadline)
    ):
        raise BadInput(f"notice: deadline: got {deadline!r}, expected Unix seconds or null")
    source = value.get("source")
    return Notice(
        cast("Kind", kind),
        None if deadline is None else float(deadline),
        "" if source is None else str(source)[:200],
    )


class Notices:
    """The newest notice; to look costs one `stat` (a file) or nothing (a callable, asked in a thread)."""

    def __init__(self, where: Where | None = None) -> None:
        if where is None:
            where = os.environ.get(VARIABLE) or None
        self._path: Path | None = None
        self._ask: Callable[[], Mapping[str, Any] | None] | None = None
        if callable(where):
            self._ask = where
        elif where is not None:
            self._path = Path(where).absolute()  # the script may change its directory
        self.began = time.time()  # this attempt
        self._seen: tuple[int, int, int] | None = None
        self._notice: Notice | None = None
        self._heeded: Notice | None = None
        self._complained: set[str] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen."""
        if self._ask is not None and self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._listen, name="loadsheet-notices", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Listen no longer."""
        self._ended.set()
        self._thread = None

    def current(self) -> Notice | None:
        """The newest notice, None if there is none or it was taken back by deleting the file."""
        if self._path is not None:
            self._look(self._path)
        return self._notice

    def heed(self, notice: Notice) -> bool:
        """Whether this notice is news; it is not, once it was."""
        if notice == self._heeded:
            return False
        self._heeded = notice
        return True

    def _look(self, path: Path) -> None:
        try:
            found = path.stat()
        except OSError:
            self._seen = self._notice = None
            return
        mark = (found.st_mtime_ns, found.st_ino, found.st_size)
        if mark == self._seen:
            return
        try:
            with path.open("rb") as file:
                text = file.read(_LARGEST + 1)
            if len(text) > _LARGEST:
                raise BadInput(f"notice: got more than {_LARGEST} bytes, expected a short JSON object")
            self._notice = replace(read_notice(json.loads(text)), written=found.st_mtime)
        except (OSError, ValueError, RecursionError, BadInput) as error:
            self._complain(f"{path}: {error}")
        self._seen = mark

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                answer = self._ask() if self._ask is not None else None
                self._notice = None if answer is None else read_notice(answer)
            except Exception as error:  # whatever the user's function raises must not end the training
                self._complain(f"{type(error).__name__}: {error}")
            self._ended.wait(ASK_SECONDS)

    def _complain(self, what: str) -> None:
        if what not in self._complained:
            self._complained.add(what)
            tell(f"notice that cannot be read, ignored: {what}")

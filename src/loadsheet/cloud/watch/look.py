"""One look at a training: what its directory, its disk, its GPUs and the clock say, and what that means."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from loadsheet.cloud.watch import signs
from loadsheet.cloud.watch.meter import Cap, Meter
from loadsheet.cloud.watch.power import Draw, draws
from loadsheet.cloud.watch.signs import Finding
from loadsheet.cloud.watch.tail import Tail
from loadsheet.errors import LoadsheetError
from loadsheet.run.directory import read_done
from loadsheet.run.lock import in_use
from loadsheet.run.notices import VARIABLE, Notices
from loadsheet.safejson import load_json


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at `time` (Unix seconds); money in the user's currency, None where there is no price.

    `room` is the seconds that the budget still allows, `stop` the reason to save and stop now, if there is one.
    """

    time: float
    run: str
    step: int
    total: int | None
    attempt: int
    done: bool
    spent: float | None
    room: float | None
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]
    stop: str | None

    @property
    def alarmed(self) -> bool:
        """Whether something is worth waking somebody."""
        return any(f.level == "alarm" for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        """As JSON; a budget that nothing is taken from has no end, and `room_seconds` is null."""
        room = None if self.room is None or math.isinf(self.room) else self.room
        return {
            "schema": 1, "time": self.time, "run": self.run, "step": self.step, "total": self.total,
            "attempt": self.attempt, "done": self.done, "spent": self.spent, "room_seconds": room,
            "findings": [f.to_json() for f in self.findings], "unknown": list(self.unknown), "stop": self.stop,
        }  # fmt: skip


class Watcher:
    """Looks again and again; keeps what must be compared with the look before.

    `window`: seconds without a record that are too long; `start`: the same before the first ones came;
    `segment`: seconds between checkpoints (None: learnt from those there are). `started`: the caller started
    the training itself, and knows when it ends.
    """

    def __init__(
        self,
        path: Path,
        *,
        metric: str = "loss",
        window: float = 300.0,
        start: float = 900.0,
        meter: Meter | None = None,
        cap: Cap | None = None,
        segment: float | None = None,
        started: bool = False,
        clock: Callable[[], float] = time.monotonic,
        ask_gpus: Callable[[], Sequence[Draw] | None] = draws,
    ) -> None:
        self.path = path
        self.metric = metric
        self.window = window
        self.start = start
        self.meter = meter
        self.cap = cap
        self.segment = segment
        self.started = started
        self._clock = clock
        self._ask_gpus = ask_gpus
        self._tail = Tail(path / "log.jsonl", metric, clock)
        self._notices = Notices(os.environ.get(VARIABLE) or None)
        self._began = clock()
        self._free: list[tuple[float, int]] = []
        self._newest: int | None = None

    def look(self) -> Look:
        """Look once."""
        progress = self._tail.read()
        done = read_done(self.path) is not None
        held = in_use(self.path / "lock")
        gpus = self._ask_gpus()
        unknown = [] if gpus is not None else ["power of the GPU: none answers here"]
        if held is None:
            unknown.append("whether a process has the run: the file system does not say")
        measured = self._measured()
        since = None if done or held is False else self._clock() - (progress.at or self._began)
        free, filling = self._disk()
        notice = self._notices.current()
        rules = (
            signs.silent(since, progress.usual_pause, gpus, window=self.window, start=self.start),
            signs.gone(held, progress.ending, done)
            if not self.started and (self.path / "lock").exists()
            else None,
            signs.not_a_number(progress.values, self.metric),
            signs.spike(progress.values, self.metric),
            signs.waiting(measured.get("data_wait_share")),
            signs.filling(free, measured.get("save_bytes"), filling),
            signs.noticed(None if notice is None else notice.kind, "" if notice is None else notice.source),
        )
        found = [f for f in rules if f is not None]
        spent, room, stop = self._money(found)
        return Look(
            time.time(), str(self.path), progress.step, progress.total, progress.attempt, done, spent, room,
            tuple(found), tuple(unknown), None if done else stop,
        )  # fmt: skip

    # --- parts --------------------------------------------------------------------------------------------

    def _measured(self) -> dict[str, Any]:
        """The figures of the newest attempt that has any; only numbers."""
        try:
            attempts = load_json(self.path / "measured.json")["attempts"]
            newest = max(attempts, key=int)
            return {k: v for k, v in attempts[newest].items() if type(v) in (int, float)}
        except (LoadsheetError, OSError, KeyError, TypeError, ValueError, AttributeError):
            return {}

    def _disk(self) -> tuple[int | None, float | None]:
        """(bytes free, bytes per second that become fewer over the last looks, None before ten minutes)."""
        try:
            space = os.statvfs(self.path)
        except OSError:
            return None, None
        free, now = space.f_bavail * space.f_frsize, self._clock()
        self._free.append((now, free))
        while len(self._free) > 2 and now - self._free[1][0] > 1800:
            self._free.pop(0)
        then, before = self._free[0]
        return free, (before - free) / (now - then) if now - then >= 600 else None

    def _checkpoints(self) -> list[tuple[int, float]]:
        """(step, time) of the checkpoints there are, in order."""
        found = []
        try:
            with os.scandir(self.path / "checkpoints") as entries:
                for entry in entries:
                    name = entry.name.removeprefix("step-")
                    if name != entry.name and name.isdecimal() and len(name) < 20:
                        found.append((int(name), entry.stat(follow_symlinks=False).st_mtime))
        except OSError:
            return []
        return sorted(found)

    def _money(self, found: list[Finding]) -> tuple[float | None, float | None, str | None]:
        """(spent, seconds of room, why to stop)."""
        if self.meter is None:
            return None, None, None
        spent = self.meter.spent()
        if self.cap is None:
            return spent, None, None
        room = self.cap.room(spent, self.meter.price)
        there = self._checkpoints()
        newest = there[-1][0] if there else None
        begins = newest != self._newest and self._newest is not None
        self._newest = newest
        segment = self.segment
        if segment is None and len(there) >= 2:
            segment = median(b[1] - a[1] for a, b in itertools.pairwise(there))
        stop = None
        if room <= 0:
            stop = "what is left of the budget is needed for the last save and the stop"
        elif begins and segment is not None and room < segment:
            stop = "the budget does not last until the next checkpoint"
        if stop is not None:
            found.append(Finding("budget", "alarm", stop))
        return spent, room, stop

"""A run that is held at a step from outside, so that a rehearsal can interrupt it where it wants to.

A tiny run is over within the time that another process needs to look at it once. So `LOADSHEET_HOLD` may
name a directory. As long as a file `at` there says a number, the run waits after so many completed steps, and says in
`held.json` that it does. What the other process does then, a notice, a signal, SIGKILL, is as real as ever.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from loadsheet.run.directory import write_whole

VARIABLE: Final = "LOADSHEET_HOLD"
AT: Final = "at"
HELD: Final = "held.json"
_PAUSE: Final = 0.005


class Hold:
    """Waits where it is told to; costs nothing where nobody says so."""

    def __init__(self) -> None:
        where = os.environ.get(VARIABLE)
        self._folder = Path(where) if where else None

    def wait(self, run: Path, completed: int, go_on: Callable[[], bool]) -> None:
        """After `completed` steps: wait until `at` is gone or beyond, or `go_on()` says so."""
        if self._folder is None or not self._wanted(completed):
            return
        text = json.dumps({"run": str(run.resolve()), "completed": completed, "pid": os.getpid()})
        write_whole(self._folder / HELD, text.encode() + b"\n")
        while self._wanted(completed) and not go_on():
            time.sleep(_PAUSE)

    def _wanted(self, completed: int) -> bool:
        try:
            return self._folder is not None and completed >= int((self._folder / AT).read_bytes()[:20])
        except (OSError, ValueError):
            return False

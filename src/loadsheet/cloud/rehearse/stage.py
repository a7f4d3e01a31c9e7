"""What a rehearsal says: stages with evidence, figures in base units, and a failure that ends it."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadsheet.cloud.rehearse.process import Life
from loadsheet.errors import one_line

STAGES: Final = ("data", "train", "evaluate", "save", "notice", "kill", "resume", "bitwise", "done")


@dataclass(frozen=True)
class Stage:
    """One of `STAGES`: `state` is ok, warn, fail, or unknown (it was not come to)."""

    id: str
    state: str
    evidence: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {"id": self.id, "state": self.state, "evidence": list(self.evidence)}


class Failed(Exception):
    """A stage that failed, with its evidence."""

    def __init__(self, stage: str, *evidence: str) -> None:
        super().__init__(*evidence)
        self.stage = Stage(stage, "fail", evidence)


@dataclass
class Figures:
    """What was measured, in base units; None where nothing could be."""

    steps: int | None = None
    step_seconds: float | None = None
    data_wait_share: float | None = None
    save_stall: float | None = None
    save_total: float | None = None
    checkpoint_bytes: int | None = None
    startup_seconds: float | None = None  # from the start of the command to the end of its first step
    notice_seconds: float | None = None  # from a notice until everything was saved


def interruptions(total: int) -> tuple[int, int]:
    """After which of `total` steps the notice comes, and after which SIGKILL."""
    told = max(total // 3, 1)
    return told, min(max(2 * total // 3, told + 1), total - 1)


def quoted(life: Life) -> list[str]:
    """The last lines that a life printed, as evidence."""
    return [f"| {line}" for line in life.tail()]


def status_text(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def cut(text: object, limit: int) -> str:
    """A text on one line, without quotes around it, cut to fit.

    >>> cut("a long name", 6)
    'a lon…'
    """
    line = one_line(str(text))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def number(value: object) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def read_object(path: Path) -> dict[str, Any]:
    """A small JSON file; empty if it is none."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(1 << 24))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

"""Logs for tests: written by the package, and written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadsheet.run.log import Log


def lines(path: Path) -> list[Any]:
    """What Python's own json finds, line by line, with the non-standard NaN and Infinity refused."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().split("\n")[:-1]]


def attempt(path: Path, number: int, start: int, end: int, value: Any = lambda step: step / 7) -> None:
    """One attempt that logs a loss for the steps from start to end."""
    with Log(path, number) as log:
        log.resume(start)
        for step in range(start, end):
            log.write(step, {"loss": value(step)})


def by_hand(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def resumed(attempt: int, step: int) -> dict[str, Any]:
    return {"event": "resume", "from": step, "attempt": attempt, "time": 0}


def record(attempt: int, step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "attempt": attempt, "time": 0, **values}

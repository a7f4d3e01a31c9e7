"""Run directories written by hand, as a run leaves them: for scale, for damage, for numbers that are known."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadsheet.run.fingerprint import digest

BEGUN = 1_750_000_000.0  # seconds since 1970


def written(
    root: Path,
    config: Mapping[str, Any],
    values: Mapping[str, Sequence[float]] | None = None,
    *,
    done: bool = True,
    begun: float = BEGUN,
    step_seconds: float = 1.0,
    events: Sequence[Mapping[str, Any]] = (),
    facts: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Path:
    """A run of one attempt that logged `values`, a list per name, one entry per step; done or without a word."""
    path = root / (name or digest(dict(config)))
    (path / "provenance").mkdir(parents=True)
    (path / "checkpoints").mkdir()
    (path / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    record = {"attempt": 1, "time": begun, "excluded": {}, **(facts or {})}
    (path / "provenance" / "attempt-0001.json").write_text(json.dumps(record))
    values = values or {}
    count = max(map(len, values.values()), default=0)
    lines: list[Mapping[str, Any]] = [{"event": "resume", "attempt": 1, "time": begun, "from": 0}]
    for step in range(count):
        line = {"step": step, "attempt": 1, "time": begun + (step + 1) * step_seconds}
        lines.append(line | {key: column[step] for key, column in values.items() if step < len(column)})
    lines += events
    (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if done:
        facts_done = {"steps": count, "attempt": 1, "time": begun + count * step_seconds}
        (path / "done.json").write_text(json.dumps(facts_done))
    return path


def aged(root: Path, seconds: float = 3600.0) -> None:
    """Make everything look as if it was written a while ago: what is fresh is never taken from an index."""
    old = time.time() - seconds
    for entry in [*root.rglob("*"), root]:
        if not entry.is_symlink():
            os.utime(entry, (old, old))

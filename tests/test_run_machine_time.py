"""Hours are counted by one rule: in `runs list`, `close` and `odds --history`, for one run or several a process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from closing_runs import BEGAN, entry, event, finished, life, write

from loadsheet.closing.evidence import gather
from loadsheet.history.exposure import exposure
from loadsheet.history.rows import read_row
from loadsheet.run.machine_time import START_UP, alive, working_since


@pytest.mark.parametrize(
    ("measured", "recorded", "logged", "expected"),
    [
        ({}, {}, (), None),
        ({}, {"time": 100.0}, (), (100.0, 100.0)),
        ({}, {"time": 100.0, "started": 90.0}, (101.0, 150.0), (90.0, 150.0)),
        ({"started": 91.0, "opened": 99.0, "written": 160.0}, {"time": 100.0}, (101.0, 150.0), (91.0, 160.0)),
        ({"started": 1.0, "opened": 5000.0}, {"started": True}, (5001.0,), (5000.0, 5001.0)),  # not believed
        ({"started": 99.0, "opened": 50.0}, None, (None,), (50.0, 50.0)),
    ],
)
def test_from_when_to_when(
    measured: dict[str, Any],
    recorded: dict[str, Any] | None,
    logged: tuple[float | None, ...],
    expected: tuple[float, float] | None,
) -> None:
    """From the process's start to the last sign of life, whoever recorded them."""
    assert alive(measured, recorded, logged) == expected


def test_only_the_first_run_of_a_process_began_with_it() -> None:
    """What comes before the first is the first one's; a process that is old by then was not started for it."""
    now = time.time()
    assert working_since(now, first=False) == now
    assert working_since(now + 2 * START_UP + 1e6, first=True) == now + 2 * START_UP + 1e6


def test_list_close_and_odds_say_the_same_hours(tmp_path: Path) -> None:
    """310 s by hand: 10 s before the first line the process began; and a killed attempt, of which only a record is."""
    path = finished(tmp_path / "one")
    assert gather(path).seconds == 310
    assert read_row(path).seconds == 310
    assert exposure(tmp_path, str(path)).seconds == 310
    lines = [*life(1, 0, BEGAN, *range(20)), *life(2, 10, BEGAN + 900, *range(10, 100))]
    lines.append(event("checkpoint", 2, BEGAN + 1150, step=100, bytes=1, stall=0.0, total=0.0))
    path = write(
        tmp_path / "two",
        lines,
        {2: entry(started=BEGAN + 880, opened=BEGAN + 895, written=BEGAN + 1160)},
        done=100,
    )
    for number, began in ((1, BEGAN - 30), (2, BEGAN + 880)):
        record = {"attempt": number, "started": began, "time": began + 25}
        (path / "provenance" / f"attempt-{number:04d}.json").write_text(json.dumps(record))
    (path / "done.json").write_text(json.dumps({"steps": 100, "attempt": 2, "time": BEGAN + 1150}))
    assert gather(path).seconds == (30 + 50) + (20 + 260)
    assert read_row(path).seconds == (30 + 50) + (20 + 260)
    assert exposure(tmp_path, str(path)).seconds == (30 + 50) + (20 + 260)


def test_a_process_with_two_runs_counts_no_second_twice(tmp_path: Path) -> None:
    """Both together take no longer than the process did; list and close agree; the imports are the first one's."""
    script = (
        "import sys, time\nimport loadsheet as ls\n"
        "for lr in (1, 2):\n"
        "    with ls.Run.open(sys.argv[1], {'lr': lr}, progress=False) as run:\n"
        "        for step in run.steps(3, checkpoint_every=None):\n"
        "            run.log(loss=1.0)\n"
    )
    begun = time.time()
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=True, timeout=300, capture_output=True
    )
    took = time.time() - begun
    rows = sorted((read_row(path) for path in tmp_path.glob("*/")), key=lambda row: row.config["lr"])
    spans = []
    for row in rows:
        record = json.loads((row.path / "provenance" / "attempt-0001.json").read_text())
        spans.append((record["started"], record["time"], row.seconds))
    (first, first_open, first_seconds), (second, second_open, second_seconds) = spans
    assert first < first_open
    assert second == second_open
    assert (
        first + first_seconds <= second + 0.05
    )  # the kernel counts the start of a process in ticks of 10 ms
    assert first_seconds + second_seconds <= took + 0.05

"""What a run's own history tells: how long machines stayed, how attempts ended, what saves took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from terminal import answered, refused

from loadsheet.errors import BadInput
from loadsheet.history.exposure import exposure
from loadsheet.run.fingerprint import digest
from loadsheet.run.lock import RunLock

HOUR = 3600.0
CONFIG = {"seed": 1}
NAME = digest(CONFIG)
START = 1_790_000_000.0


def make(root: Path, attempts: list[dict[str, Any]], done: int | None = None, measured: bool = False) -> Path:
    """A run directory with attempts of so many hours, each with what it said at its end."""
    path = root / NAME
    (path / "provenance").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    lines = []
    clock, step = START, 0
    for number, attempt in enumerate(attempts, start=1):
        facts = {"attempt": number, "time": clock}
        (path / "provenance" / f"attempt-{number:04d}.json").write_text(json.dumps(facts))
        lines.append({"event": "resume", "attempt": number, "time": clock + 60, "from": step})
        clock += attempt["hours"] * HOUR
        lines.append({"step": step, "attempt": number, "time": clock, "loss": 1.0})
        step += 1
        if "says" in attempt:
            lines.append({"attempt": number, "time": clock, **attempt["says"]})
        clock += HOUR  # until there is a machine again
    (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if done is not None:
        (path / "done.json").write_text(json.dumps({"steps": step, "attempt": done, "time": clock}))
    if measured:
        data = {
            "1": {"save_stall_seconds": 2.0, "save_total_seconds": 12.0, "step_seconds": {"median": 0.5}},
            "2": {"save_stall_seconds": 4.0, "save_total_seconds": 14.0, "step_seconds": None},
            "3": {"save_stall_seconds": None, "save_total_seconds": None},
            "4": "nonsense",
        }
        (path / "measured.json").write_text(json.dumps({"schema": 1, "attempts": data}))
    return path


def stopped(reason: str) -> dict[str, Any]:
    return {"event": "stopped", "step": 1, "reason": reason}


ENDS = [
    {"hours": 5.0, "says": stopped("a notice from aws")},
    {"hours": 3.0, "says": stopped("SIGTERM")},
    {"hours": 2.0},
    {"hours": 1.0, "says": stopped("SIGINT")},
    {"hours": 4.0, "says": {"event": "left", "step": 1}},
    {"hours": 9.0},
]


def test_ends_of_attempts(tmp_path: Path) -> None:
    """Notices, signals and attempts that vanished are interruptions; Ctrl-C, errors and the end are not."""
    make(tmp_path, ENDS, done=6)
    found = exposure(tmp_path, NAME)
    assert found.seconds == 24 * HOUR
    assert found.ends == {"notice": 1, "signal": 1, "vanished": 1, "by hand": 1, "error": 1, "done": 1}
    assert found.interruptions == 3


def test_a_done_run_that_was_started_again(tmp_path: Path) -> None:
    """What comes after the end is no interruption of the attempt that completed it."""
    make(tmp_path, [{"hours": 2.0}, {"hours": 3.0}, {"hours": 0.1}, {"hours": 0.1}], done=2)
    assert exposure(tmp_path, NAME).ends == {"vanished": 1, "done": 3}


def test_the_last_attempt_that_says_nothing(tmp_path: Path) -> None:
    """Nobody holds the lock, and it did not finish: it has vanished too."""
    make(tmp_path, [{"hours": 2.0}])
    assert exposure(tmp_path, NAME).ends == {"vanished": 1}


def test_an_attempt_that_never_began(tmp_path: Path) -> None:
    """It ended 20 s after its process began, before its first step: paid for, but nobody knows who ended it."""
    path = make(tmp_path, [{"hours": 2.0}, {"hours": 3.0}])
    record = {"attempt": 3, "started": START + 9 * HOUR, "time": START + 9 * HOUR + 20}
    (path / "provenance" / "attempt-0003.json").write_text(json.dumps(record))
    found = exposure(tmp_path, NAME)
    assert (found.ends, found.seconds) == ({"vanished": 2, "not begun": 1}, 5 * HOUR + 20)


def test_an_attempt_that_runs_is_open(tmp_path: Path) -> None:
    """While a living process holds the lock, its hours count and no interruption does."""
    path = make(tmp_path, [{"hours": 2.0}, {"hours": 3.0}])
    lock = RunLock(path / "lock")
    lock.acquire(0.0)
    try:
        found = exposure(tmp_path, NAME)
    finally:
        lock.release()
    assert (found.ends, found.seconds) == ({"vanished": 1, "open": 1}, 5 * HOUR)


def test_measured(tmp_path: Path) -> None:
    """Medians of what the attempts measured; what is missing or damaged is left out."""
    make(tmp_path, ENDS, done=6, measured=True)
    found = exposure(tmp_path, NAME)
    assert (found.save_stall, found.save_total, found.step) == (3.0, 13.0, 0.5)


def test_damage(tmp_path: Path) -> None:
    """Torn lines, no provenance, a measured.json that is none: what can be read is read."""
    path = make(tmp_path, ENDS, done=6)
    with (path / "log.jsonl").open("ab") as file:
        file.write(b'{"event": "stopped", "att\n\xff\xfe\n')
    for file_name in ("provenance/attempt-0001.json", "measured.json", "done.json"):
        (path / file_name).write_text("[1")
    found = exposure(tmp_path, NAME)
    assert found.seconds == 24 * HOUR - 60.0  # the first begins with its first line in the log
    assert (found.save_stall, found.ends["vanished"]) == (None, 2)
    (path / "log.jsonl").write_text("")
    with pytest.raises(BadInput, match="empty log"):
        exposure(tmp_path, NAME)
    (path / "log.jsonl").unlink()
    with pytest.raises(BadInput, match="without a log"):
        exposure(tmp_path, NAME)


def test_odds_from_history(tmp_path: Path) -> None:
    """M is 24 h / 3 with its interval (Garwood 90 %: 0.818 to 7.754 per 24 h), saves are as measured."""
    make(tmp_path, ENDS, done=6, measured=True)
    args = ("odds", "--work", "24h", "--history", NAME[:6], "--runs", str(tmp_path), "--jobs", "2000")
    data = json.loads(answered(*args, "--json").stdout)
    assert data["inputs"]["mtbf"]["value"] == 8 * HOUR
    assert data["history"]["low_seconds"] == pytest.approx(24 * HOUR / 7.7537, rel=1e-4)
    assert data["history"]["high_seconds"] == pytest.approx(24 * HOUR / 0.8177, rel=1e-4)
    assert (data["inputs"]["save"]["value"], data["inputs"]["commit"]["value"]) == (3.0, 10.0)
    assert data["interval_seconds"]["used"] % 0.5 == 0
    page = answered(*args).stdout
    assert "3 interruptions in 24.00 h" in page
    assert "M is between 3.10 h and 29.35 h with 90 %" in " ".join(page.split())


def test_no_interruption_is_only_a_bound(tmp_path: Path) -> None:
    """Three hours without one say that M is above 1.3 h with 90 %, and that is said."""
    make(tmp_path, [{"hours": 3.0}], done=1)
    args = ("odds", "--work", "24h", "--save", "1min", "--history", NAME, "--runs", str(tmp_path))
    result = answered(*args, "--json")
    data = json.loads(result.stdout)
    assert data["history"]["mtbf_seconds"] is data["history"]["high_seconds"] is None
    assert data["inputs"]["mtbf"]["value"] == pytest.approx(3 * HOUR / 2.302585)
    assert "that is no estimate of M" in result.stderr
    assert "that is no estimate of M" in " ".join(answered(*args).stdout.split())
    data = json.loads(answered(*args, "--mtbf", "6h", "--json").stdout)
    assert data["inputs"]["mtbf"] == {"value": 6 * HOUR, "source": "--mtbf", "defaulted": False}


def test_history_refusals(tmp_path: Path) -> None:
    """No such run, no run at all, one that ran for no time."""
    base = ("odds", "--work", "24h", "--save", "1min", "--runs", str(tmp_path), "--history")
    refused(*base, "nothing")
    make(tmp_path, [{"hours": 0.0}], done=1)
    refused(*base, "zzz", words=NAME)
    text = (tmp_path / NAME / "log.jsonl").read_text()
    (tmp_path / NAME / "log.jsonl").write_text(text.replace(str(START + 60), str(START)))
    refused(*base, NAME, words="no time at all")

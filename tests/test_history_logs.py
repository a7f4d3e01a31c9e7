"""A log in a few numbers, against a second way to the same; a pass taken up again; hostile logs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_logs import by_hand, record, resumed

from loadsheet.errors import BadFile
from loadsheet.history import logs
from loadsheet.history.logs import LogSummary, Metric, read_pass, summarise, summary_of
from loadsheet.run.reading import stream_log

# a log as lives: from which step, how many steps, how many lines each
LIVES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8), st.integers(1, 2)), max_size=6)
NUMBERS = st.one_of(st.floats(allow_nan=True), st.integers(-3, 3), st.just("text"), st.none(), st.booleans())


def _lines(lives: list[tuple[int, int, int]], draw: Any) -> list[dict[str, Any]]:
    """The lines of a log in which every life goes on from a step that the ones before have reached."""
    lines: list[dict[str, Any]] = []
    reached = 0
    for attempt, (start, count, repeats) in enumerate(lives, start=1):
        begin = min(start, reached)
        lines.append({"event": "resume", "attempt": attempt, "time": 1e9 + len(lines), "from": begin})
        for step in range(begin, begin + count):
            for _ in range(repeats):
                value = draw(NUMBERS)
                text = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), value)
                lines.append({"step": step, "attempt": attempt, "time": 1e9 + len(lines), "loss": text})
        reached = max(begin + count, 0)
    return lines


@given(LIVES, st.data())
def test_the_summary_is_that_of_the_records_that_count(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Metrics by the records that `stream_log` gives; steps lost counted on a list of what was reached."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    by_hand(path, *_lines(lives, data.draw))
    found = summarise(path)
    records = list(stream_log(path))
    numbers = [(r["step"], float(r["loss"])) for r in records if type(r.get("loss")) in (int, float)]
    metric = found.metrics.get("loss")
    if not numbers:
        assert metric is None
    else:
        assert metric is not None
        assert (numbers[-1][0], len(numbers)) == (metric.last_step, metric.count)
        assert numbers[-1][1] == metric.last or (math.isnan(metric.last) and math.isnan(numbers[-1][1]))
        finite = [(value, step) for step, value in numbers if math.isfinite(value)]
        low = min(finite, key=lambda pair: (pair[0], pair[1]), default=(None, None))
        high = min(finite, key=lambda pair: (-pair[0], pair[1]), default=(None, None))
        assert (low, high) == ((metric.min, metric.min_step), (metric.max, metric.max_step))
    assert max((r["step"] for r in records), default=-1) == found.last_step
    lost, reached = 0, 0
    for start, count, _ in lives:
        begin = min(start, reached)
        lost += reached - begin
        reached = begin + count
    assert (lost, max(len(lives) - 1, 0)) == (found.lost_steps, found.resumes)


@given(LIVES, st.data(), st.floats(0, 1))
def test_a_pass_taken_up_again_is_the_whole_pass(
    tmp_path_factory: pytest.TempPathFactory,
    lives: list[tuple[int, int, int]],
    data: st.DataObject,
    share: float,
) -> None:
    """Wherever a log was cut when it was read first, in the middle of a line too, the second look agrees."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    text = "".join(json.dumps(line) + "\n" for line in _lines(lives, data.draw))
    path.write_text(text[: int(len(text) * share)])
    first = read_pass(path)
    before = repr(first)
    path.write_text(text)
    assert repr(summary_of(read_pass(path))) == repr(summary_of(read_pass(path, first)))
    assert before == repr(first)


def test_a_pass_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of 20,000 lines that grew by one is not decoded anew."""
    lines = [record(1, step, loss=step / 7) for step in range(20_000)]
    path = by_hand(tmp_path / "log.jsonl", resumed(1, 0), *lines)
    first = read_pass(path)
    with path.open("a") as file:
        file.write(json.dumps(record(1, 20_000, loss=-1.0)) + "\n")
    decoded: list[int] = []
    whole = logs.Quiet.decode

    def counted(self: logs.Quiet, segment: bytes, restore: bool) -> list[dict[str, Any]]:
        decoded.append(segment.count(b"\n"))
        return whole(self, segment, restore)

    monkeypatch.setattr(logs.Quiet, "decode", counted)
    found = summary_of(read_pass(path, first))
    assert decoded == [1]
    assert Metric(-1.0, 20_000, -1.0, 20_000, 19_999 / 7, 19_999, 20_001) == found.metrics["loss"]


def test_another_log_under_the_name_is_read_anew(tmp_path: Path) -> None:
    """Longer and with another beginning: nothing of the earlier pass is used."""
    path = by_hand(tmp_path / "log.jsonl", resumed(1, 0), record(1, 0, loss=1.0))
    first = read_pass(path)
    by_hand(path, resumed(1, 0), record(1, 0, loss=5.0), record(1, 1, loss=6.0))
    assert Metric(6.0, 1, 5.0, 0, 6.0, 1, 2) == summary_of(read_pass(path, first)).metrics["loss"]
    path.write_text("")
    assert LogSummary() == summary_of(read_pass(path, first))


def test_times_ends_and_plans(tmp_path: Path) -> None:
    """First and last line of each attempt, the total asked for, and what the newest attempt said at its end."""
    lines = [
        {"event": "resume", "attempt": 1, "time": 100.0, "from": 0},
        {"event": "steps", "attempt": 1, "time": 100.5, "total": 9},
        {"step": 0, "attempt": 1, "time": 101.0, "loss": 2.0, "timing": {"rate": 5, "name": "x"}},
        {"event": "stopped", "attempt": 1, "time": 102.0, "step": 1, "reason": "SIGTERM"},
        {"event": "resume", "attempt": 2, "time": 200.0, "from": 1},
        {"event": "steps", "attempt": 2, "time": 200.5, "total": 12},
        {"step": 1, "attempt": 2, "time": 203.0, "loss": True, "n": 3},
        {"event": "left", "attempt": 2, "time": 204.0, "step": 1},
    ]
    found = summarise(by_hand(tmp_path / "log.jsonl", *lines))
    assert found.times == {1: (100.0, 102.0), 2: (200.0, 204.0)}
    assert (
        found.planned, found.ending, found.resumes, found.lost_steps, found.resumed_from,
    ) == (12, "left", 1, 0, 1)  # fmt: skip
    assert {"loss", "timing.rate", "n"} == set(found.metrics)  # True is no number, "x" neither
    assert Metric(2.0, 0, 2.0, 0, 2.0, 0, 1) == found.metrics["loss"]


DAMAGE = {
    "no JSON": b"{{{\n",
    "a list": b"[1,2]\n",
    "bytes that are no text": b'{"step":1,"attempt":1,"x":"\xff\xfe"}\n',
    "a step that is text": b'{"step":"3","attempt":1}\n',
    "a step below 0": b'{"step":-3,"attempt":1,"loss":9}\n',
    "a step beyond all numbers": b'{"step":' + b"9" * 60 + b',"attempt":1,"loss":9}\n',
    "deep": b'{"step":4,"attempt":1,"x":' + b"[" * 5000 + b"]" * 5000 + b"}\n",
    "a time that is none": b'{"step":4,"attempt":1,"time":"then","loss":0.5}\n',
    "an event of odd types": b'{"event":"resume","attempt":"x","from":null,"time":[]}\n',
    "a plan of odd types": b'{"event":"steps","attempt":1,"total":"many"}\n',
    "an attempt beyond all numbers": b'{"step":4,"attempt":' + b"9" * 40 + b',"time":1e9,"loss":0.5}\n',
    "a resume beyond all numbers": b'{"event":"resume","attempt":2,"time":1e9,"from":' + b"9" * 40 + b"}\n",
    "half a line": b'{"step":5,"att',
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_lines_do_not_matter_to_the_others(tmp_path: Path, damage: str) -> None:
    """Whatever stands between good lines, what the good ones say is read."""
    path = by_hand(tmp_path / "log.jsonl", resumed(1, 0), record(1, 0, loss=3.0), record(1, 1, loss=2.0))
    with path.open("ab") as file:
        file.write(DAMAGE[damage])
    found = summarise(path)
    assert (found.metrics["loss"].max, found.metrics["loss"].max_step) == (3.0, 0)
    assert found.metrics["loss"].last in (2.0, 0.5)
    silent = {
        "a time that is none",
        "an event of odd types",
        "a plan of odd types",
        "half a line",
        "an attempt beyond all numbers",
    }
    assert (damage not in silent) == bool(found.problems), found.problems
    msgspec.msgpack.encode(read_pass(path))  # what the index does with it


def test_steps_that_go_back_without_a_resume(tmp_path: Path) -> None:
    """They are left out and counted; nothing is raised."""
    path = by_hand(
        tmp_path / "log.jsonl",
        resumed(1, 0),
        record(1, 5, loss=1.0),
        record(1, 3, loss=9.0),
        record(1, 6, loss=2.0),
    )
    found = summarise(path)
    assert (found.metrics["loss"].count, found.metrics["loss"].max) == (2, 2.0)
    assert found.problems == ["log.jsonl: 1 records go back to an earlier step without a resume: left out"]


def test_thousands_of_names(tmp_path: Path) -> None:
    """A log that makes up a name per step fills no memory and is said."""
    lines = [record(1, step, **{f"name{step}": 1.0}) for step in range(2500)]
    found = summarise(by_hand(tmp_path / "log.jsonl", resumed(1, 0), *lines))
    assert len(found.metrics) == 2000
    assert any("only 2,000" in line for line in found.problems)


def test_a_huge_sparse_log_is_not_read(tmp_path: Path) -> None:
    """A file that claims a terabyte is refused by its size."""
    path = by_hand(tmp_path / "log.jsonl", resumed(1, 0))
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadFile, match="not read"):
        summarise(path)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    """600 MiB without a line end, in a process that may have 450: skipped, the line after it is read."""
    path = by_hand(tmp_path / "log.jsonl", resumed(1, 0), record(1, 0, loss=4.0))
    with path.open("r+b") as file:
        file.seek(0, 2)
        file.truncate(file.tell() + (600 << 20))
        file.seek(0, 2)
        file.write(b'\n{"step":1,"attempt":1,"loss":3.0}\n')
    program = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from loadsheet.history.logs import summarise
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
        found = summarise(Path(sys.argv[1]))
        print(found.metrics["loss"].last, found.problems)
    """)
    limit = 450 << 20
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), str(limit)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "3.0 ['log.jsonl: 1 damaged lines were left out']\n"), (
        done.stderr
    )

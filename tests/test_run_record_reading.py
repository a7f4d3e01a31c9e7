"""Reading a log: one record per step, whatever was killed, torn or damaged; fast, in constant memory."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_logs import attempt, by_hand, record, resumed

from loadsheet.errors import BadFile
from loadsheet.run.errors import RunWarning
from loadsheet.run.log import Log
from loadsheet.run.reading import compare_rerun, read_events, read_log, stream_log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


# --- what is read ---------------------------------------------------------------------------------------


def test_a_record_counts_until_a_later_attempt_resumes_before_it(path: Path) -> None:
    """Written by hand: attempt 2 went on from 2, attempt 3 from 1; a late line of attempt 1 among them."""
    by_hand(
        path,
        resumed(1, 0), *(record(1, step, x=f"1.{step}") for step in range(5)),
        resumed(2, 2), *(record(2, step, x=f"2.{step}") for step in range(2, 4)), record(1, 5, x="late"),
        resumed(3, 1), *(record(3, step, x=f"3.{step}") for step in range(1, 3)), record(2, 4, x="late"),
        record(3, 3, x="3.3"),
    )  # fmt: skip
    expected = ["1.0", "3.1", "3.2", "3.3"]
    assert [entry["x"] for entry in stream_log(path)] == expected
    columns = read_log(path)
    assert (columns["x"], columns["step"], columns["attempt"]) == (expected, [0, 1, 2, 3], [1, 3, 3, 3])
    assert read_log(path.parent)["x"] == expected  # the run directory will do


def test_one_attempt_may_resume_twice(path: Path) -> None:
    """`run.steps` left by `break` and called again restores an older state in the same process."""
    by_hand(
        path,
        resumed(1, 0), *(record(1, step, x="first") for step in range(4)),
        resumed(1, 2), *(record(1, step, x="second") for step in range(2, 4)),
    )  # fmt: skip
    assert read_log(path)["x"] == ["first", "first", "second", "second"]
    assert compare_rerun(path) == 2


def test_names_that_come_late_or_seldom(path: Path) -> None:
    """A column has an entry for every step, None where nothing was logged, in order of appearance."""
    with Log(path, 1) as log:
        log.resume(0)
        for step in range(20_000):  # some blocks of lines
            log.write(step, {"loss": step}, {"a": 1} if step else None)
            if step % 5000 == 4999:
                log.write(step, {"eval/loss": -step}, {"b": 2})
                log.event("checkpoint", step=step)
    columns = read_log(path)
    assert list(columns) == ["step", "attempt", "time", "loss", "timing.a", "eval/loss", "timing.b"]
    assert columns["loss"] == columns["step"] == list(range(20_000))
    assert columns["timing.a"] == [None] + [1] * 19_999
    late = {4999: -4999, 9999: -9999, 14_999: -14_999, 19_999: -19_999}
    assert columns["eval/loss"] == [late.get(step) for step in range(20_000)]
    assert [event["step"] for event in read_events(path)[1:]] == list(late)


def model_of_a_log(entries: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The semantics, written down a second time and as plainly as can be."""
    life = -1
    lives: list[tuple[int, int, dict[int, dict[str, Any]]]] = []
    for entry in entries:
        if "event" in entry:
            lives.append((entry["attempt"], entry["from"], {}))
            life += 1
        else:
            lives[life][2].setdefault(entry["step"], {}).update(entry)
    found: dict[int, dict[str, Any]] = {}
    for _, start, records in lives:
        found = {step: record for step, record in found.items() if step < start} | records
    return found


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 2)), min_size=1, max_size=6))
def test_readers_agree_with_a_plain_model(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, int, int]]
) -> None:
    """Attempts that go on from anywhere that was reached, with one or two lines a step."""
    entries: list[dict[str, Any]] = []
    reached = 0
    for number, (start, length, calls) in enumerate(lives, start=1):
        begin = min(start, reached)
        entries.append(resumed(number, begin))
        for step in range(begin, begin + length):
            entries += [record(number, step, **{f"x{call}": [number, step]}) for call in range(calls)]
        reached = begin + length
    path = by_hand(tmp_path_factory.mktemp("log") / "log.jsonl", *entries)
    expected = model_of_a_log(entries)
    assert list(stream_log(path)) == list(expected.values())
    columns = read_log(path)
    for name in ("step", "attempt", "x0"):
        assert columns.get(name, []) == [entry[name] for entry in expected.values()]
    assert compare_rerun(path) == first_difference(entries)


def first_difference(entries: list[dict[str, Any]]) -> int | None:
    """The lowest step of which two attempts say different things (here: all that were run twice)."""
    seen: dict[int, set[int]] = {}
    for entry in entries:
        if "event" not in entry:
            seen.setdefault(entry["step"], set()).add(entry["attempt"])
    return min((step for step, attempts in seen.items() if len(attempts) > 1), default=None)


def test_steps_out_of_order_are_an_error(path: Path) -> None:
    """A log that no run of ours can have written: better no answer than a doubled record."""
    by_hand(path, resumed(1, 0), record(1, 5, x=1), record(1, 4, x=1))
    for read in (read_log, lambda path: list(stream_log(path))):
        with pytest.raises(BadFile, match="step 4 of attempt 1 after step 5"):
            read(path)


def test_a_missing_log_is_one_line(path: Path) -> None:
    """The readers say what they looked for."""
    for read in (read_log, lambda path: list(stream_log(path)), compare_rerun, read_events):
        with pytest.raises(BadFile, match="log"):
            read(path)


def test_an_empty_log_has_no_steps(path: Path) -> None:
    """A run that was started and logged nothing."""
    Log(path, 1).close()
    assert read_log(path) == {"step": [], "attempt": [], "time": []}
    assert (list(stream_log(path)), compare_rerun(path)) == ([], None)


# --- torn, damaged --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail", [b'{"step":2,"att', b"{", b"\0" * 5000, b'{"step":2,"loss":0.1', b"\xff\xfe"]
)
def test_half_a_line_is_set_aside_and_reported(path: Path, tail: bytes) -> None:
    """The next attempt keeps its bytes in a file of their own and starts on a line of its own."""
    attempt(path, 1, 0, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    with pytest.warns(RunWarning, match="unfinished last line"):
        assert read_log(path)["step"] == [0, 1]
    with pytest.warns(RunWarning, match=f"{len(tail)} bytes are kept in"):
        log = Log(path, 2)
    assert (path.parent / "log.torn-0002").read_bytes() == tail
    assert path.read_bytes() == whole
    log.resume(2)
    log.write(2, {"loss": 1})
    log.close()
    assert read_log(path)["step"] == [0, 1, 2]


def test_a_whole_record_without_its_line_end_counts(path: Path) -> None:
    """All of it arrived but one byte: it is completed, not set aside."""
    by_hand(path, resumed(1, 0), record(1, 0, x=1))
    path.write_bytes(path.read_bytes()[:-1])
    Log(path, 2).close()
    assert read_log(path)["x"] == [1]


def test_a_hole_in_the_middle_is_left_out_and_reported(path: Path) -> None:
    """After the loss of power, blocks that were not fsynced may be zeros while later ones are there."""
    by_hand(path, resumed(1, 0), *(record(1, step, x=step) for step in range(10)))
    data = bytearray(path.read_bytes())
    at = data.index(b'"step": 4')
    data[at : at + 60] = bytes(60)
    path.write_bytes(data)
    for read in (lambda: read_log(path)["step"], lambda: [entry["step"] for entry in stream_log(path)]):
        with pytest.warns(RunWarning, match="damaged lines"):
            found = read()
        assert found[:4] == [0, 1, 2, 3]
        assert found[-3:] == [7, 8, 9]


@settings(max_examples=40)
@given(st.data())
def test_flipped_bits_never_crash_a_reader(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Damage is a warning or one line, never a traceback; what is not damaged is still there."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    by_hand(path, *(record(1, step, x=1.5, timing={"a": 1}) for step in range(6)))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    for read in (read_log, lambda path: list(stream_log(path)), compare_rerun, read_events):
        with warnings.catch_warnings(), contextlib.suppress(BadFile):  # of steps that are out of order now
            warnings.simplefilter("ignore", RunWarning)
            found = read(path)
            assert len(found["step"] if isinstance(found, dict) else found or []) <= 6


# --- killed writers ---------------------------------------------------------------------------------------

WRITER = textwrap.dedent("""
    import os, sys
    from loadsheet.run.log import Log
    log = Log(sys.argv[1], int(sys.argv[2]), durable=sys.argv[4] == "durable")
    step = int(sys.argv[3])
    log.resume(step)
    while True:
        log.write(step, {"loss": step / 7}, {"rate": 1.0})
        log.write(step, {"norm": step * 3})
        os.write(1, b"%d\\n" % step)  # said only after both calls came back
        step += 1
""")


# a kill in the middle of a write tears the last line, which nobody had been promised
@pytest.mark.filterwarnings(r"ignore:left out of .* an unfinished last line:loadsheet.run.errors.RunWarning")
@pytest.mark.parametrize("durability", ["flushed", "durable"])
def test_no_promised_record_is_lost_when_writers_are_killed(path: Path, durability: str) -> None:
    """Ten real processes, killed at random instants; what each had said is there, once, with its bits."""
    generator = random.Random(4)
    start = promised = 0
    for number in range(1, 6):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(number), str(start), durability],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        drain: list[bytes] = []
        reader = threading.Thread(target=lambda p=process, d=drain: d.append(p.stdout.read()))  # type: ignore[misc]
        reader.start()
        time.sleep(generator.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        reader.join()
        process.stdout.close()
        said = [int(text) for text in drain[0].split(b"\n")[:-1] if text]
        promised = said[-1] if said else start
        columns = read_log(path)
        assert columns["step"][: promised + 1] == list(range(promised + 1))
        assert columns["loss"][: promised + 1] == [step / 7 for step in range(promised + 1)]
        assert columns["norm"][: promised + 1] == [step * 3 for step in range(promised + 1)]
        assert len(columns["step"]) == len(set(columns["step"])) <= promised + 2
        start = max(promised - generator.randrange(5), 1)  # "the last checkpoint"
        assert start > 0  # no attempt but the first begins at step 0
    assert compare_rerun(path) is None
    resumes = [event["from"] for event in read_events(path)]
    assert len(resumes) == 5
    assert all(step > 0 for step in resumes[1:])


# --- size -------------------------------------------------------------------------------------------------


def test_a_large_log_in_constant_memory(path: Path) -> None:
    """A few megabytes are enough for any number of lines, here of some blocks; and nothing is left out."""
    with path.open("w") as file:
        file.write(json.dumps(resumed(1, 0)) + "\n")
        for step in range(60_000):
            line = record(1, step, loss=3.1 + step * 1e-7, lr=3e-4, timing={"rate": 1e5 + step, "wait": 0.01})
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            if step % 1000 == 999:
                file.write(json.dumps({"event": "checkpoint", "attempt": 1, "time": 0, "step": step}) + "\n")
    assert path.stat().st_size > 6_000_000
    columns = read_log(path)
    assert columns["step"] == list(range(60_000))
    assert columns["loss"] == [3.1 + step * 1e-7 for step in range(60_000)]
    peaks = []
    for count in (15_000, 59_000):
        tracemalloc.start()
        for n, entry in enumerate(stream_log(path), start=1):
            if n == count:
                assert entry["step"] == count - 1
                break
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] < 8_000_000

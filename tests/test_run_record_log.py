"""The log of a run: nothing promised is lost, nothing is doubled, everything comes back as it was."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
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

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadsheet.errors import BadFile, BadInput
from loadsheet.run import log as log_module
from loadsheet.run.errors import NoSpace, RunError, RunWarning
from loadsheet.run.log import Log
from loadsheet.run.reading import compare_rerun, explain_rerun, read_events, read_log, stream_log

NAN, INF = math.nan, math.inf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


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


# --- what is written ------------------------------------------------------------------------------------


def test_lines_are_json_that_anyone_can_read(path: Path) -> None:
    """The format, as json.loads sees it: a resume, a record, another call for the step, an event."""
    with Log(path, 3) as log:
        log.resume(5)
        log.write(5, {"loss": 0.1}, {"rate": 2.0})
        log.write(5, {"norm": 1})
        log.event("checkpoint", step=6)
    found = lines(path)
    assert all(abs(line.pop("time") - time.time()) < 60 for line in found)
    assert found == [
        {"event": "resume", "attempt": 3, "from": 5},
        {"step": 5, "attempt": 3, "loss": 0.1, "timing": {"rate": 2.0}},
        {"step": 5, "attempt": 3, "norm": 1},
        {"event": "checkpoint", "attempt": 3, "step": 6},
    ]


def bits(value: Any) -> Any:
    """A value in a form in which == means the same bits: floats in hexadecimal, types told apart."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else ("float", value.hex())
    if isinstance(value, list | tuple):
        return [bits(entry) for entry in value]
    if isinstance(value, dict):
        return {name: bits(entry) for name, entry in value.items()}
    return type(value).__name__, value


ODD = {
    "nan": NAN, "inf": INF, "ninf": -INF, "zero": -0.0, "tiny": 5e-324, "huge": 1.7976931348623157e308,
    "one": 1.0, "int": 1, "true": True, "none": None, "big": 2**80, "neg": -(2**63),
    "text": "NaN", "text2": "~NaN", "text3": "~~Infinity", "text4": "-Infinity", "tilde": "~", "quote": '"NaN"',
    "lines": "a\nb\r\n\u2028\x00", "unicode": "naïve 損失", "é/loss": 1.5, "": 0, "event ": 1,
    "list": [1, 2.5, NAN, [INF, "Infinity"], {"x": -INF}], "dict": {"event": "resume", "from": 0, "a": NAN},
}  # fmt: skip


def test_every_value_comes_back_with_the_same_bits(path: Path) -> None:
    """NaN and the infinities too, though each line is JSON; and a text "NaN" stays a text."""
    with Log(path, 1) as log:
        log.resume(0)
        log.write(0, ODD, ODD)
    lines(path)
    (found,) = stream_log(path)
    assert bits({name: found[name] for name in ODD}) == bits(ODD)
    assert bits(found["timing"]) == bits(ODD)
    columns = read_log(path)
    assert bits({name: columns[name][0] for name in ODD}) == bits(ODD)
    assert bits({name: columns[f"timing.{name}"][0] for name in ODD}) == bits(ODD)


loggable = st.recursive(
    st.floats() | st.integers(-(2**70), 2**70) | st.booleans() | st.none() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
named = st.dictionaries(
    st.text(max_size=6).filter(
        lambda name: name not in log_module.RESERVED and not name.startswith("timing.")
    ),
    loggable,
    max_size=4,
)


@given(st.lists(st.tuples(st.integers(0, 3), named, st.none() | named), max_size=8))
def test_what_is_logged_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, calls: list[Any]) -> None:
    """Any sequence of calls, against a dict that is filled by hand; columns and stream agree."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    expected: dict[int, dict[str, Any]] = {}
    step = 0
    with Log(path, 1) as log:
        log.resume(0)
        for forward, values, timing in calls:
            step += forward
            log.write(step, values, timing)
            entry = expected.setdefault(step, {})
            entry.update(values)
            if timing is not None:
                entry["timing"] = {**entry.get("timing", {}), **timing}
    found = {}
    for entry in stream_log(path):
        assert (entry.pop("attempt"), type(entry.pop("time"))) == (1, float)
        found[entry.pop("step")] = entry
    assert bits(list(found.values())) == bits(list(expected.values()))
    assert list(found) == list(expected)
    columns = read_log(path)
    assert columns["step"] == list(expected)
    for name in {name for entry in expected.values() for name in entry} - {"timing"}:
        assert bits(columns[name]) == bits([entry.get(name) for entry in expected.values()])


def test_numpy_and_torch_values_are_logged_as_numbers(path: Path) -> None:
    """The exact value, as float() and int() of them; a small array as a list."""
    loss = torch.tensor(0.1, requires_grad=True)
    given = {
        "a": loss,
        "b": np.float32(0.1),
        "c": np.int64(7),
        "d": torch.tensor([1.5, NAN]),
        "e": np.bool_(True),
    }
    with Log(path, 1) as log:
        log.resume(0)
        log.write(0, given)
    (found,) = stream_log(path)
    expected = {"a": 0.10000000149011612, "b": 0.10000000149011612, "c": 7, "d": [1.5, NAN], "e": True}
    assert bits({name: found[name] for name in given}) == bits(expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 1}, "named 'step'"),
        ({"timing.x": 1}, "named 'timing.x'"),
        ({1: 2}, "the name 1"),
        ({"a": object()}, r"log\.a: got a object"),
        ({"a": {"b": [1j]}}, r"log\.a\.b\[0\]: got a complex"),
        ({"a": "\ud800"}, r"log\.a: .*UTF-8"),
        ({"\ud800": 1}, "UTF-8"),
        ({"a": 1 << 2000}, "2001 bits"),
    ],
)
def test_what_cannot_be_logged_is_refused_by_name(path: Path, values: Any, message: str) -> None:
    """And nothing of the call is written."""
    with Log(path, 1) as log:
        log.resume(0)
        with pytest.raises(BadInput, match=message):
            log.write(0, {"fine": 1, **values})
    assert len(lines(path)) == 1


def test_steps_do_not_go_back_and_resume_comes_first(path: Path) -> None:
    """Else a reader could not tell which record counts; numbers beyond 2^31 are ordinary."""
    with Log(path, 1) as log:
        with pytest.raises(RunError, match="resume"):
            log.write(0, {"a": 1})
        log.resume(10**10)
        log.write(10**10 + 5, {"a": 1})
        for wrong in (10**10 + 4, -1, 1.5, True):
            with pytest.raises(BadInput, match="step"):
                log.write(wrong, {"a": 1})  # type: ignore[arg-type]
    assert read_log(path)["step"] == [10**10 + 5]


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


# --- durability -------------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The fsyncs of regular files, each with the file's length when it was called."""
    import stat

    calls: list[tuple[str, int]] = []
    real, real_data = os.fsync, os.fdatasync

    def note(name: str, function: Any) -> Any:
        def call(fd: int) -> None:
            facts = os.fstat(fd)
            if stat.S_ISREG(facts.st_mode):
                calls.append((name, facts.st_size))
            function(fd)

        return call

    monkeypatch.setattr(os, "fsync", note("fsync", real))
    monkeypatch.setattr(log_module, "_fsync_data", note("fdatasync", real_data))
    return calls


def test_durable_is_fsynced_before_each_call_returns(path: Path, synced: list[tuple[str, int]]) -> None:
    """One fsync per line, over the whole length of the file."""
    with Log(path, 1, durable=True) as log:
        log.resume(0)
        for step in range(3):
            log.write(step, {"x": step})
            assert synced[-1][1] == path.stat().st_size
        log.event("checkpoint")
        assert synced[-1][1] == path.stat().st_size
        assert len(synced) == 5


def test_sync_returns_the_bytes_that_are_durable(path: Path, synced: list[tuple[str, int]]) -> None:
    """The offset for the checkpoint's manifest: the length of the file, fsynced."""
    with Log(path, 1) as log:
        log.resume(0)
        log.write(0, {"x": 1})
        assert log.sync() == path.stat().st_size == synced[-1][1]


def test_the_default_is_fsynced_within_a_second(path: Path, synced: list[tuple[str, int]]) -> None:
    """By a thread: the call itself waits for no disk, and nobody has to call anything."""
    with Log(path, 1) as log:
        log.resume(0)
        synced.clear()
        log.write(0, {"x": 1})
        assert synced == []
        size = path.stat().st_size
        deadline = time.monotonic() + 1.0
        while not synced and time.monotonic() < deadline:
            time.sleep(0.01)
        assert synced == [("fsync", size)]


def test_a_resume_is_durable_before_anything_else(path: Path, synced: list[tuple[str, int]]) -> None:
    """Without it, records after the loss of power would be counted twice."""
    with Log(path, 1) as log:
        log.resume(0)
        assert synced == [("fdatasync", path.stat().st_size)]


def test_a_failed_fsync_in_the_background_is_raised_at_the_next_call(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that reports its error late must not go unnoticed."""
    monkeypatch.setattr(log_module, "_LATEST", 0.02)
    log = Log(path, 1)
    log.resume(0)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        log.write(0, {"x": 1})
        assert log._thread is not None
        log._thread.join(timeout=10)
    with pytest.raises(RunError, match=os.strerror(errno.EIO)):
        log.write(1, {"x": 1})
    with pytest.raises(RunError):
        log.close()


def test_a_full_disk_is_one_line_and_leaves_a_log_that_can_be_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line may have been written; once there is room again the next line is whole."""
    log = Log(path, 1)
    log.resume(0)
    real = os.write
    left = [30]

    def fill(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(fd, bytes(data)[: left[0]])
        left[0] -= count
        return count

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill)
        with pytest.raises(NoSpace, match=os.strerror(errno.ENOSPC)):
            log.write(0, {"x": 1})
    log.write(0, {"x": 2})
    log.close()
    with pytest.warns(RunWarning, match="1 damaged line"):
        assert read_log(path)["x"] == [2]


def test_a_log_deleted_under_the_run_is_noticed(path: Path) -> None:
    """Writing to a deleted file works for ever, and nobody will read it."""
    log = Log(path, 1)
    log.resume(0)
    path.unlink()
    log.write(0, {"x": 1})
    with pytest.raises(RunError, match="deleted"):
        log.sync()
    with pytest.raises(RunError):
        log.close()


def test_closing_twice_is_nothing_and_writing_after_it_an_error(path: Path) -> None:
    """The end of a run is closed by several hands."""
    log = Log(path, 1)
    log.resume(0)
    log.write(0, {"x": 1})
    log.close()
    log.close()
    with pytest.raises(RunError, match="close"):
        log.write(1, {"x": 1})


# --- the free audit ---------------------------------------------------------------------------------------


def test_a_rerun_with_the_same_bits_is_silent(path: Path) -> None:
    """NaN equals NaN here; time, attempt and timing are never compared; a shorter re-run is fine."""
    values = [0.1, NAN, INF, -0.0, 1e-300]
    for number, start, end in ((1, 0, 5), (2, 2, 5), (3, 3, 4)):
        with Log(path, number) as log:
            log.resume(start)
            for step in range(start, end):
                log.write(step, {"loss": values[step]}, {"rate": random.random()})
        assert log.difference is None
    assert compare_rerun(path) is None


@pytest.mark.parametrize(
    ("value", "changed"), [(0.1, math.nextafter(0.1, 1)), (0.0, -0.0), (1, 1.0), (NAN, 0.0), ("a", "b")]
)
def test_one_changed_bit_is_said_at_once(path: Path, value: Any, changed: Any) -> None:
    """The first differing step, at the moment the step is over; and again when the log is read."""
    attempt(path, 1, 0, 10, lambda step: value)
    log = Log(path, 2)
    log.resume(4)
    for step in range(4, 7):
        log.write(step, {"loss": value})
    log.write(7, {"loss": changed})
    with pytest.warns(RunWarning, match="step 7 of attempt 2 differs from attempt 1"):
        log.write(8, {"loss": value})
    assert log.difference is not None
    assert (log.difference.step, log.difference.names) == (7, ("loss",))
    log.write(9, {"loss": changed})
    log.close()  # said once
    assert compare_rerun(path) == 7
    assert [event["step"] for event in read_events(path) if event["event"] == "differs"] == [7]


def test_the_likely_cause_is_named(path: Path) -> None:
    """The learning rate points at the scheduler, the first step at the state, a later one at memory."""
    with Log(path, 1) as log:
        log.resume(0)
        for step in range(10):
            log.write(step, {"loss": 1.0, "lr": 0.1, "tokens_per_second": 5.0})
    said = {}
    for name, step in (("lr", 5), ("tokens_per_second", 5), ("loss", 5), ("loss", 6)):
        copy = path.with_name(f"{name}{step}.jsonl")
        copy.write_bytes(path.read_bytes())
        log = Log(copy, 2)
        log.resume(5)
        for at in range(5, step + 1):
            values = {"loss": 1.0, "lr": 0.1, "tokens_per_second": 5.0}
            log.write(at, {**values, name: 2.0} if at == step else values)
        with pytest.warns(RunWarning, match=name):
            log.close()
        found = explain_rerun(copy)
        assert found is not None
        said[name, step] = found.cause()
    assert "scheduler" in said["lr", 5]
    assert "timing=" in said["tokens_per_second", 5]
    assert "first step after resuming" in said["loss", 5]
    assert "optimizer" in said["loss", 6]


def test_the_step_in_which_an_attempt_died_may_be_incomplete(path: Path) -> None:
    """Killed between two calls of one step: only what both attempts logged is compared."""
    with Log(path, 1) as log:
        log.resume(0)
        log.write(0, {"loss": 1.0})
        log.write(0, {"norm": 1.0})
        log.write(1, {"loss": 2.0})  # and killed here
    with Log(path, 2) as log:
        log.resume(0)
        for step in (0, 1):
            log.write(step, {"loss": step + 1.0})
            log.write(step, {"norm": 1.0})
    assert log.difference is None
    assert compare_rerun(path) is None


def test_a_missing_value_in_a_whole_step_is_a_difference(path: Path) -> None:
    """An evaluation that ran the first time and not the second."""
    with Log(path, 1) as log:
        log.resume(0)
        for step in (0, 1):
            log.write(step, {"loss": 1.0, "eval": 2.0} if step == 0 else {"loss": 1.0})
    with pytest.warns(RunWarning, match="eval"):
        attempt(path, 2, 0, 2, lambda step: 1.0)
    assert compare_rerun(path) == 0


def test_since_skips_what_cannot_matter(path: Path) -> None:
    """The manifest's offset: the comparison is the same, without reading the log from its beginning."""
    with Log(path, 1) as log:
        log.resume(0)
        for step in range(100):
            log.write(step, {"loss": float(step)})
        offset = log.sync()
        for step in range(100, 110):
            log.write(step, {"loss": float(step)})
    log = Log(path, 2)
    log.resume(100, since=offset)
    for step in range(100, 105):
        log.write(step, {"loss": float(step)})
    log.write(105, {"loss": 0.0})
    with pytest.warns(RunWarning, match="step 105"):
        log.close()


# --- size and speed ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 200,000 lines of the usual kind, with an event among every 1,000."""
    path = tmp_path_factory.mktemp("large") / "log.jsonl"
    with path.open("w") as file:
        file.write(json.dumps(resumed(1, 0)) + "\n")
        for step in range(200_000):
            line = record(1, step, loss=3.1 + step * 1e-7, lr=3e-4, timing={"rate": 1e5 + step, "wait": 0.01})
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            if step % 1000 == 999:
                file.write(json.dumps({"event": "checkpoint", "attempt": 1, "time": 0, "step": step}) + "\n")
    return path


def test_reading_is_fast(large: Path) -> None:
    """The aim is 500,000 lines a second; a shared machine is given four times as long."""
    best = math.inf
    for _ in range(3):
        before = time.perf_counter()
        columns = read_log(large)
        best = min(best, time.perf_counter() - before)
    assert len(columns["loss"]) == 200_000
    assert columns["loss"][123_456] == 3.1 + 123_456 * 1e-7
    assert 200_000 / best > 125_000


def test_streaming_takes_constant_memory(large: Path) -> None:
    """A few megabytes are enough for any number of lines (the file has 22 MB)."""
    assert large.stat().st_size > 20_000_000
    peaks = []
    for count in (15_000, 75_000):
        tracemalloc.start()
        for n, entry in enumerate(stream_log(large), start=1):
            if n == count:
                assert entry["step"] == count - 1
                break
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] < 8_000_000


def test_writing_takes_microseconds(path: Path) -> None:
    """7 µs was measured for a plain write and flush; on a shared machine the median may take 50."""
    spent = []
    with Log(path, 1) as log:
        log.resume(0)
        for step in range(5000):
            before = time.perf_counter()
            log.write(step, {"loss": 0.1, "lr": 3e-4}, {"rate": 1.0})
            spent.append(time.perf_counter() - before)
    assert sorted(spent)[2500] < 50e-6

"""The log of a run: nothing promised is lost, nothing is doubled, everything comes back as it was."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from run_logs import lines

from loadsheet.errors import BadInput
from loadsheet.run import log as log_module
from loadsheet.run.errors import NoSpace, RunError, RunWarning
from loadsheet.run.log import Log
from loadsheet.run.reading import read_log, stream_log

NAN, INF = math.nan, math.inf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


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
    st.sampled_from(["loss", "lr"])
    | st.text(max_size=6).filter(
        lambda name: name not in log_module.RESERVED and not name.startswith("timing.")
    ),
    loggable,
    max_size=4,
)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), named, st.none() | named, st.booleans()), max_size=8))
def test_what_is_logged_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, calls: list[Any]) -> None:
    """Any sequence of calls, against a dict that is filled by hand; columns and stream agree."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    expected: dict[int, dict[str, Any]] = {}
    step = 0
    with Log(path, 1) as log:
        log.resume(0)
        for forward, values, timing, divide in calls:
            step += forward
            log.write(step, values, timing)
            if divide:  # an event divides the lines, and readers take them in other portions
                log.event("checkpoint")
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
        ({"a": object()}, r"log\.a: got an object"),
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
    assert log_module._LATEST == 1.0
    with Log(path, 1) as log:
        waited: list[float | None] = []
        asleep, awake = threading.Event(), threading.Event()

        def wait(seconds: float | None = None) -> bool:
            waited.append(seconds)
            asleep.set()
            return not awake.wait(60)

        log._closing.wait = wait  # type: ignore[method-assign]
        log.resume(0)
        synced.clear()
        log.write(0, {"x": 1})
        assert asleep.wait(60)
        assert (synced, waited) == ([], [0.5])
        log._closing.wait = threading.Event.wait.__get__(log._closing)  # type: ignore[method-assign]
        awake.set()
        deadline = time.monotonic() + 60
        while not synced and time.monotonic() < deadline:
            time.sleep(0.001)
        assert synced == [("fsync", path.stat().st_size)]


def test_closed_at_the_worst_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` comes when the thread has waited and is about to note that it is at work: it ends all the same."""
    monkeypatch.setattr(log_module, "_LATEST", 0.01)
    log = Log(path, 1)
    clear = log._dirty.clear

    def interrupted() -> None:
        log._closing.set()  # what `close` does, before it waits for the thread
        log._dirty.set()
        clear()

    log._dirty.clear = interrupted  # type: ignore[method-assign]
    log.resume(0)
    log.write(0, {"x": 1})
    assert log._thread is not None
    log._thread.join(timeout=60)
    assert not log._thread.is_alive()
    log.close()


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
        log._thread.join(timeout=60)
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

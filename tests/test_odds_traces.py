"""Traces of when a machine was there, the replay of them, and rates from what was seen."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadsheet.errors import BadInput, LoadsheetError
from loadsheet.money.interruptions import Job
from loadsheet.money.odds import Replay, simulate
from loadsheet.money.rates import at_most, rate
from loadsheet.money.traces import Trace, circle, read_trace

HOUR = 3600.0


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- forms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "state,seconds\nup,7200\ndown,600\nup,3600\ndown,1200\n"),
        ("b.csv", "State, Seconds\nup,1h\nup,1h\n\nDOWN,10min\nup,1h\ndown,20min\n"),
        ("c.csv", "start,end\n1000,8200\n8800,12400\n"),
        ("d.csv", "start,end\n2026-01-01T00:00:00Z,2026-01-01T02:00:00Z\n2026-01-01T02:10:00,2026-01-01T03:10:00\n"),
        ("e.json", '[["up", 7200], ["down", 600], ["up", "1h"], ["down", 1200]]'),
        ("f.json", '[{"state": "up", "seconds": 7200}, ["down", 600], ["up", 3600], ["down", 1200]]'),
        ("g.json", '{"metadata": {"gap_seconds": 600}, "data": [1,1,1,1,1,1,1,1,1,1,1,1,0,2,1,1,1,1,1,0,0]}'),
    ],
)  # fmt: skip
def test_forms(tmp_path: Path, name: str, text: str) -> None:
    """Intervals, times and samples say the same: up 2 h, down 10 min, up 1 h (and down 20 min)."""
    trace = read_trace(write(tmp_path, text, name))
    if name in ("c.csv", "d.csv"):  # times end with an up-time, which is joined to the first one
        assert (trace.up, trace.down) == ((3 * HOUR,), (600.0,))
        return
    assert (trace.up, trace.down) == ((2 * HOUR, HOUR), (600.0, 1200.0))
    assert (trace.mtbf, trace.wait, trace.available) == (1.5 * HOUR, 900.0, 3 / 3.5)


def test_samples_of_several_machines(tmp_path: Path) -> None:
    """A job of two machines is up where at least two were there."""
    text = '{"metadata": {"gap_seconds": 60}, "data": [2, 1, 3, 0]}'
    assert read_trace(write(tmp_path, text), machines=2).up == (60.0, 60.0)
    assert read_trace(write(tmp_path, text), machines=1).up == (180.0,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no up-time"),
        ("state,seconds\n", "no up-time"),
        ("state,seconds\nup,100\n", "nothing but up-time"),
        ("state,seconds\ndown,100\n", "no up-time"),
        ("state,seconds\nup,-5\ndown,1\n", "row 2"),
        ("state,seconds\nup,0\ndown,1\n", "above 0"),
        ("state,seconds\nup,nan\ndown,1\n", "row 2"),
        ("state,seconds\nup,1e300\ndown,1\n", "row 2"),
        ("state,seconds\nsideways,5\n", "`up` or `down`"),
        ("state,seconds\nup,5,6\n", "expected 2"),
        ("colour,seconds\nup,5\n", "`state,seconds` or `start,end`"),
        ("start,end\n5,4\n", "not after the start"),
        ("start,end\n5,9\n8,12\n", "expected order"),
        ("start,end\nyesterday,today\n", "ISO 8601"),
        ('state,seconds\n"up,5\n', "CSV"),
        ("[]", "no up-time"),
        ("[1]", '["up", seconds]'),
        ('[["up"]]', '["up", seconds]'),
        ('[["up", null]]', "entry 1"),
        ('[["up", true]]', "entry 1"),
        ("{}", "gap_seconds"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "above 0"),
        ('{"metadata": {"gap_seconds": true}, "data": [1]}', "above 0"),
        ('{"metadata": {"gap_seconds": 60}, "data": [1, "x"]}', "sample 2"),
        ('{"metadata": {"gap_seconds": 60}, "data": [1, -1]}', "sample 2"),
        ('{"metadata": 3, "data": [1, 0]}', "gap_seconds"),
        ("[" * 5000, "nesting"),
        ('[["up", 1e999], ["down", 1]]', "64-bit"),
    ],
)
def test_refusals(tmp_path: Path, text: str, words: str) -> None:
    """What is no trace is one line that says where and what was expected."""
    with pytest.raises(LoadsheetError) as caught:
        read_trace(write(tmp_path, text))
    assert words in f"{caught.value} / {caught.value.hint}"


def test_hostile_files(tmp_path: Path) -> None:
    """Too large, not there, a folder, bytes that are no text: no traceback, no memory."""
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    binary = tmp_path / "binary"
    binary.write_bytes(b"state,seconds\nup,\xff\n")
    for path in (large, binary, tmp_path, tmp_path / "none", "null\0byte"):
        with pytest.raises(LoadsheetError):
            read_trace(path)


@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:updown019.e-\n', max_size=60).map(str.encode))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Whatever the bytes, a trace or an error of ours."""
    path = tmp_path_factory.mktemp("any") / "trace"
    path.write_bytes(data)
    try:
        trace = read_trace(path)
    except LoadsheetError:
        return
    assert len(trace.up) == len(trace.down) > 0
    assert min(*trace.up, *trace.down, 1) > 0


@given(st.lists(st.tuples(st.booleans(), st.floats(1.0, 1e6)), max_size=30))
def test_circle_keeps_the_time(intervals: list[tuple[bool, float]]) -> None:
    """Joining neighbours loses none of the up-time and none of the down-time."""
    try:
        trace = circle(intervals, "x")
    except BadInput:
        assert len({state for state, _ in intervals}) < 2
        return
    assert math.fsum(trace.up) == pytest.approx(math.fsum(s for up, s in intervals if up))
    assert math.fsum(trace.down) == pytest.approx(math.fsum(s for up, s in intervals if not up))


# --- replay -------------------------------------------------------------------------------------------------


def test_replay_starts_anywhere() -> None:
    """Entered at a random time: as often in a wait as machines are missing, and by the length of the up-times."""
    law = Replay(Trace((HOUR, 3 * HOUR), (HOUR, 5 * HOUR), "x"))
    wait, up, memory = law.start(np.random.default_rng(4), 100_000)
    waiting = wait > 0
    assert abs(waiting.mean() - 0.6) < 4 * math.sqrt(0.6 * 0.4 / 100_000)
    assert abs(wait[waiting & (memory == 1)].mean() - HOUR / 2) < 40  # the first wait, half of it left
    assert abs(wait[waiting & (memory == 0)].mean() - 2.5 * HOUR) < 80
    assert abs((memory[~waiting] == 1).mean() - 0.75) < 0.01
    assert (up[waiting & (memory == 1)] == 3 * HOUR).all()
    after, length, again = law.again(np.random.default_rng(4), np.array([0, 1]))
    assert (after.tolist(), length.tolist(), again.tolist()) == ([HOUR, 5 * HOUR], [3 * HOUR, HOUR], [1, 0])


def test_replay_by_hand() -> None:
    """Up 60 min, down 30 min, for ever; 100 min of work, saves of 2 min every 25, restarts of 6 min.

    An up-time of 60 holds a restart of 6 and two segments of 27, to the second; the job needs four. One that
    waits first takes two up-times. One that falls into an up-time with x min left completes a segment in it
    where x ≥ 33, and needs 60 + 33 min more; else none, and 60 + 60 more. Mean of x uniform on (0, 60):
    0.55·(16.5 + 120) + 0.45·(46.5 + 93) = 137.85; one in ten takes up to 126.
    """
    minute, jobs = 60.0, 40_000
    law = Replay(Trace((60 * minute,), (30 * minute,), "x"))
    job = Job(100 * minute, 2 * minute, 25 * minute, HOUR, 6 * minute, 6 * minute)
    sample = simulate(job, law, jobs, 8)
    waited = sample.first_wait > 0
    assert np.allclose(sample.machine[waited], 120 * minute)
    assert np.allclose(sample.waiting[waited], 30 * minute)
    inside = sample.machine[~waited] / minute
    assert (sample.interruptions[~waited] == 2).all()
    assert np.allclose(sample.waiting[~waited], 60 * minute)
    assert 120 <= inside.min() < inside.max() < 153
    assert abs(inside.mean() - 137.85) < 4 * inside.std() / math.sqrt(len(inside))
    assert abs((inside < 126).mean() - 0.1) < 0.01


def test_replay_of_notices_leaves_the_notice_inside() -> None:
    """A machine of the trace that stays an hour gives notice before its hour is over, not after it."""
    law = Replay(Trace((HOUR,), (600.0,), "x"))
    job = Job(10 * HOUR, 1.0, 10 * HOUR, HOUR, notice_works=1.0, notice=120.0)
    sample = simulate(job, law, 100, 1)
    assert sample.unfinished == 0
    whole = sample.machine[sample.first_wait > 0]
    # 58 minutes of each hour count: 36,001 s are ten of them and 1,201 s of the eleventh
    assert np.allclose(whole, 10 * HOUR + 36_001 - 10 * 3480)


# --- what was seen --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "low", "high"),
    [
        (1, 0.0253, 5.572),
        (5, 1.623, 11.668),
        (10, 4.795, 18.390),
        (20, 12.217, 30.888),
        (100, 81.364, 121.627),
    ],
)
def test_garwood(seen: int, low: float, high: float) -> None:
    """The 95 % limits of a Poisson mean, Garwood 1936 (and every table since)."""
    found = rate(1.0, seen, 0.95)
    assert 1 / found.high == pytest.approx(low, abs=6e-4)
    assert 1 / found.low == pytest.approx(high, abs=6e-4)
    assert found.mtbf == 1 / seen


def test_none_seen_is_only_a_bound() -> None:
    """No interruption in 3 h says M > 3 h / 2.996 with 95 %, and no more."""
    found = rate(3 * HOUR, 0, 0.95)
    assert (found.mtbf, found.high) == (None, math.inf)
    assert found.low == found.pessimistic == pytest.approx(3 * HOUR / 2.9957, rel=1e-4)


@given(st.integers(0, 400), st.floats(0.01, 500.0))
def test_poisson_sums(count: int, mean: float) -> None:
    """The probability of at most n is the sum of its terms."""
    terms = [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1)]
    assert at_most(count, mean) == pytest.approx(min(math.fsum(terms), 1.0), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(("hours", "seen"), [(0.0, 1), (-1.0, 1), (math.inf, 1), (1.0, -1), (1.0, 10**9)])
def test_rates_refuse_nonsense(hours: float, seen: int) -> None:
    """No time, or a negative count, is no observation."""
    with pytest.raises(BadInput):
        rate(hours, seen)


def test_json_of_a_trace_is_small(tmp_path: Path) -> None:
    """100,000 samples are read and joined."""
    data = [int(k // 50 % 2) for k in range(100_000)]
    path = write(tmp_path, json.dumps({"metadata": {"gap_seconds": 60}, "data": data}), "big.json")
    assert len(read_trace(path).up) == 1000

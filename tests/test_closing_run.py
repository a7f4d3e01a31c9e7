"""The run takes its signed sheet along, and measures what the sheet predicted."""

from __future__ import annotations

import json
import resource
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from terminal import TINY

import loadsheet as ls
from loadsheet import signature
from loadsheet.errors import BadFile, BadInput
from loadsheet.run import measured, peaks
from loadsheet.run.errors import RunWarning
from loadsheet.run.measured import spread


@pytest.fixture
def signed() -> dict[str, Any]:
    """A sheet of the tiny model, 4 × 64 tokens a step, signed for 12 steps."""
    return ls.sign(ls.plan(TINY, "t4", batch=4, seq=64, precision="fp32"), steps=12)


class Seconds:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """The clock of the steps."""
    seconds = Seconds()
    fake = types.SimpleNamespace(**{name: getattr(measured.time, name) for name in ("time",)})
    fake.perf_counter = lambda: seconds.now
    monkeypatch.setattr(measured, "time", fake)
    return seconds


def train(
    root: Path, steps: int = 12, config: Any = None, body: Any = None, **options: Any
) -> tuple[Path, dict[str, Any]]:
    """A run without any computing; its path and what its newest attempt measured."""
    with ls.Run.open(root, {"lr": 0.1} if config is None else config, progress=False, **options) as run:
        run.keep(model=torch.nn.Linear(3, 2))
        for step in run.steps(steps, checkpoint_every=None):
            if body is not None:
                body(run, step)
    found = json.loads((run.path / "measured.json").read_text())["attempts"]
    return run.path, found[str(run.attempt)]


# --- the sheet comes along ------------------------------------------------------------------


def test_the_file_is_copied_whole(tmp_path: Path, signed: dict[str, Any]) -> None:
    """Byte for byte, in whatever layout it was; the same again, or nothing at all, goes on."""
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(signed))
    path, _ = train(tmp_path / "runs", 2, sheet=file)
    assert (path / "sheet.json").read_bytes() == file.read_bytes()
    train(tmp_path / "runs", 3, sheet=signed)
    train(tmp_path / "runs", 4)
    assert (path / "sheet.json").read_bytes() == file.read_bytes()


def test_another_sheet_is_refused(tmp_path: Path, signed: dict[str, Any]) -> None:
    """A run keeps the sheet that it was begun with; the refusal changes nothing and gives the run back."""
    path, _ = train(tmp_path, 2, sheet=signed)
    before = (path / "sheet.json").read_bytes()
    other = ls.sign(ls.plan(TINY, "t4", batch=4, seq=64, precision="fp32"), steps=13)
    with pytest.raises(BadInput, match="which this run was begun with"):
        train(tmp_path, 3, sheet=other)
    assert (path / "sheet.json").read_bytes() == before
    assert len(list(path.glob("provenance/attempt-*"))) == 1  # a start that is refused is no attempt
    train(tmp_path, 3)


def test_an_edited_sheet_is_refused(tmp_path: Path, signed: dict[str, Any]) -> None:
    """Given: an error. In the directory: an error if one is given, else a warning and a run without it."""
    edited = json.loads(json.dumps(signed))
    edited["sheet"]["compute"]["mfu"] = 0.9
    with pytest.raises(BadFile, match=r"another sheet\.compute than was signed"):
        train(tmp_path, 2, sheet=edited)
    assert list(tmp_path.iterdir()) == []
    path, _ = train(tmp_path, 2)
    (path / "sheet.json").write_text(json.dumps(edited))
    with pytest.raises(BadFile, match=r"another sheet\.compute"):
        train(tmp_path, 3, sheet=signed)
    with pytest.warns(RunWarning, match=r"sheet\.compute .* the run goes on without it"):
        _, found = train(tmp_path, 3)
    assert (found["mfu"], found["missing"]["mfu"]) == (None, "the run has no signed sheet")


def test_a_dict_that_never_was_a_file(tmp_path: Path, signed: dict[str, Any]) -> None:
    """Values that JSON does not have are refused in one line, and nothing is written."""
    with pytest.raises(BadFile, match="values that JSON does not have"):
        train(tmp_path, 2, sheet={**signed, "intent": {"steps": {1, 2}}})
    assert list(tmp_path.rglob("sheet.json")) == []


@pytest.mark.parametrize("wrong", [5, ["sheet.json"], b"sheet.json", ls.plan(TINY, "t4", seq=32)], ids=type)
def test_what_is_no_signed_sheet(tmp_path: Path, wrong: Any) -> None:
    """A sheet that was not signed, or something else, names the way to sign one."""
    with pytest.raises(BadInput, match="expected a signed sheet") as caught:
        train(tmp_path, 2, sheet=wrong)
    assert "ls.sign" in caught.value.hint


def test_the_mirror_has_it(tmp_path: Path, signed: dict[str, Any]) -> None:
    """A machine with an empty disk goes on with the sheet, and with what was measured up to the last save."""
    mirror = tmp_path / "mirror"
    path, _ = train(tmp_path / "first", 6, sheet=signed, mirror=mirror)
    again, found = train(tmp_path / "second", 8, mirror=mirror)
    assert signature.read(again / "sheet.json") == signed
    assert found["from_step"] == 6
    assert found["mfu"] is not None
    assert set(json.loads((again / "measured.json").read_text())["attempts"]) == {"1", "2"}
    assert path.name == again.name


# --- what is measured ------------------------------------------------------------------


def test_steps_tokens_and_mfu(tmp_path: Path, signed: dict[str, Any], clock: Seconds) -> None:
    """12 steps of 2 s, the first of 9 s: the median leaves the warm-up out, the sum does not; MFU by hand."""
    path, found = train(tmp_path, sheet=signed, body=lambda run, step: clock.sleep(2.0 if step else 9.0))
    assert found["step_seconds"] == {
        "median": 2.0, "p10": 2.0, "p90": 2.0, "warmup_steps": 1, "steps": 11, "sum": 31.0,
    }  # fmt: skip
    assert (found["tokens_per_step"], found["tokens_per_step_source"]) == (256, "sheet")
    assert found["tokens_per_second"] == 128
    compute = signed["sheet"]["compute"]
    assert compute["peak_flops_per_second"] == 8.1e12  # the data sheet of the T4, fp32
    assert found["mfu"] == pytest.approx(128 * compute["flops_per_token"] / 8.1e12)
    assert found["parameters"] == {"model": 3 * 2 + 2}
    assert found["ended"] == "done"
    assert path.joinpath("sheet.json").exists()


def test_what_was_logged_counts_more_than_the_sheet(
    tmp_path: Path, signed: dict[str, Any], clock: Seconds
) -> None:
    """`tokens` of each step, the last value of several in one step; without a sheet there is no MFU."""

    def body(run: ls.Run, step: int) -> None:
        clock.sleep(1.0)
        run.log(tokens=1)
        run.log(tokens=100 if step % 2 else 300)

    _, found = train(tmp_path, sheet=signed, body=body)
    assert (found["tokens_per_step"], found["tokens_per_step_source"]) == (200, "logged")
    assert found["tokens_per_second"] == 200
    _, found = train(tmp_path, config={"lr": 2}, body=body)
    assert (found["tokens_per_second"], found["mfu"]) == (200, None)


def test_a_running_total_is_no_count(tmp_path: Path, clock: Seconds) -> None:
    """`tokens` that grow with each step are the tokens so far: no rate is made of them, and the reason stands there."""

    def body(run: ls.Run, step: int) -> None:
        clock.sleep(1.0)
        run.log(tokens=256 * (step + 1))

    _, found = train(tmp_path, body=body)
    assert found["tokens_per_second"] is None
    assert "grow from step to step" in found["missing"]["tokens_per_second"]


def test_evaluation_and_waiting_apart(
    tmp_path: Path, clock: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time aside is no time of a step, inside the loop or after it; waiting for data is."""
    monkeypatch.setattr("loadsheet.run.loop.time", measured.time)
    monkeypatch.setattr("loadsheet.run.batches.time", measured.time)

    class Slow:
        def __iter__(self) -> Any:
            while True:
                clock.sleep(0.5)
                yield 1

    with ls.Run.open(tmp_path, {}, progress=False) as run:
        batches = run.batches(Slow())
        for _ in run.steps(4, checkpoint_every=None):
            next(batches)
            clock.sleep(1.5)
            with run.aside():
                clock.sleep(3.0)
        with run.aside():
            clock.sleep(8.0)
    found = json.loads((run.path / "measured.json").read_text())["attempts"]["1"]
    assert (found["step_seconds"]["median"], found["step_seconds"]["sum"]) == (2.0, 8.0)
    assert (found["data_wait_share"], found["data_wait_seconds"]) == (0.25, 2.0)
    assert found["aside_seconds"] == 20.0
    assert found["aside_share"] == pytest.approx(20 / 28, rel=0.01)  # saves take no time on this clock


def test_two_loops_of_one_attempt_are_one(tmp_path: Path, clock: Seconds) -> None:
    """A loop that goes on in the same process adds to the attempt's entry."""
    with ls.Run.open(tmp_path, {}, progress=False) as run:
        for total in (3, 5):
            for _ in run.steps(total, checkpoint_every=None):
                clock.sleep(1.0)
    found = json.loads((run.path / "measured.json").read_text())["attempts"]
    assert list(found) == ["1"]
    assert (found["1"]["from_step"], found["1"]["to_step"], found["1"]["steps_timed"]) == (0, 5, 5)


def test_measured_as_far_as_the_last_save(tmp_path: Path) -> None:
    """What a killed attempt leaves: its entry is there once a checkpoint is durable, and says that it has not ended."""
    with ls.Run.open(tmp_path, {}, progress=False) as run:
        for step in run.steps(10, checkpoint_every=4):
            if step == 5:
                run._saves.wait()  # type: ignore[union-attr]
                found = json.loads((run.path / "measured.json").read_text())["attempts"]["1"]
                assert (found["to_step"] in (4, 5), found["ended"]) == (True, None)
                break
    left = json.loads((run.path / "measured.json").read_text())["attempts"]["1"]
    assert left["ended"] == "left"


def test_lost_steps_are_counted_when_they_are_run_again(tmp_path: Path) -> None:
    """Seven steps logged, a checkpoint after four: three are run again."""
    for stop in (6, None):
        with ls.Run.open(tmp_path, {}, progress=False) as run:
            for step in run.steps(9, checkpoint_every=4):
                run.log(loss=step)
                if step == stop:
                    run._saves.wait()  # type: ignore[union-attr]
                    break
    found = json.loads((run.path / "measured.json").read_text())["attempts"]
    assert [found[n]["lost_steps"] for n in ("1", "2")] == [0, 3]
    assert found["2"]["from_step"] == 4


def test_spread_against_a_count() -> None:
    """The median and the tenths of the steps 11 … 111 after ten of warm-up: 61, 21, 101."""
    found = spread([1e9] * 10 + [float(n) for n in range(11, 112)])
    assert found == {"median": 61.0, "p10": 21.0, "p90": 101.0, "warmup_steps": 10, "steps": 101}
    assert spread([]) is spread([5.0]) is None
    assert spread([9.0, 1.0, 2.0])["median"] == 1.5  # type: ignore[index]


# --- counters of memory ------------------------------------------------------------------


def test_peak_of_the_process_grows_with_what_is_touched() -> None:
    """256 MiB beyond the peak that are written to raise it by about as much; the counter is named."""
    before = peaks.host_peak()
    assert before.nbytes is not None
    resident = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[1])
    block = bytearray(
        max(before.nbytes - resident, 0) + (256 << 20)
    )  # earlier tests may have given back much
    block[::4096] = b"x" * len(block[::4096])
    after = peaks.host_peak()
    assert after.nbytes is not None
    assert after.nbytes - before.nbytes > 128 << 20
    assert "resident set" in after.counter


def test_without_a_gpu_its_peaks_are_unknown() -> None:
    """None, with the reason, where PyTorch has used no CUDA device."""
    for peak in (peaks.allocated_peak(), peaks.reserved_peak(), peaks.device_peak()):
        assert peak.nbytes is None
        assert "no CUDA device" in peak.why


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([(7, 100), (8, 200)], 250),  # ours by its number, and what was given back since the peak
        ([(1, 100)], 150),  # the only one, under another number: a container
        ([(1, 100), (2, 300)], None),
        ([(8, None)], None),
        ([], None),
    ],
)
def test_memory_by_nvml(
    monkeypatch: pytest.MonkeyPatch, listed: list[tuple[int, int | None]], expected: int | None
) -> None:
    """NVML's list of processes: ours, or the only one there is; else not known, and said."""
    process = types.SimpleNamespace
    nvml = types.SimpleNamespace(
        NVMLError=type("NVMLError", (Exception,), {}),
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID={"GPU-1": "handle"}.__getitem__,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            process(pid=p, usedGpuMemory=m) for p, m in listed
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(peaks, "on_gpu", lambda: True)
    monkeypatch.setattr(peaks, "_uuid", lambda device: f"GPU-{device}")
    monkeypatch.setattr(peaks.os, "getpid", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", [5, 90, 8].__getitem__)
    monkeypatch.setattr(torch.cuda, "memory_reserved", [5, 40, 8].__getitem__)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", [100, 70, 8].__getitem__)
    assert (peaks.allocated_peak().nbytes, peaks.reserved_peak().nbytes) == (
        70,
        90,
    )  # of the one that holds most
    found = peaks.device_peak()
    assert found.nbytes == expected
    assert (found.why == "") == (expected is not None)

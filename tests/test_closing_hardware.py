"""Hardware from a file of one's own, and the MFU of one's own closed runs: what plans make of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from terminal import TINY, answered, refused, run

import loadsheet as ls
from loadsheet.cli import main
from loadsheet.errors import BadFile, BadInput, UnknownGpu, UnknownKey
from loadsheet.hardware import listed
from loadsheet.measure.describe import host_memory
from loadsheet.sheet.calibration import read_calibration
from loadsheet.units import GIB

MACHINE = {"id": "my-box", "memory_usable_bytes": 8 << 30, "bandwidth": 1e10, "peaks": {"fp32": 1e11}}


def write(path: Path, entry: Any) -> Path:
    """A file with this JSON."""
    path.write_text(json.dumps(entry))
    return path


# --- hardware of one's own ------------------------------------------------------------------


def test_the_least_that_describes_hardware(tmp_path: Path) -> None:
    """Id, memory, bandwidth and peaks; the sheet computes with them and shows whose they are."""
    path = write(tmp_path / "box.json", MACHINE)
    sheet = ls.plan(TINY, path, precision="fp32", batch=4, seq=64)
    assert (sheet.gpu.id, sheet.gpu.own, sheet.gpu.kind) == ("my-box", "box.json", "own")
    assert (sheet.memory.usable_bytes, sheet.memory.capacity_bytes) == (8 << 30, 8 << 30)
    assert sheet.compute.step_seconds.mid == pytest.approx(sheet.compute.flops_per_step / (1e11 * 0.4))
    assert sheet.to_dict()["cluster"]["own"] == sheet.gpu.to_json()
    assert "1* × my-box (yours: box.json; 8.0 GiB usable)" in " ".join(sheet.text().split())
    dated = write(tmp_path / "dated.json", MACHINE | {"date": "2026-11-29", "verified": True})
    assert ls.gpu(dated).yours == "yours: dated.json, measured 2026-11-29"


def test_any_entry_of_ours_under_another_id(tmp_path: Path) -> None:
    """What `gpus --json` prints for a card is a file that describes it; the same sheet comes of it."""
    entry = json.loads(answered("gpus", "l40s", "--json").stdout)["gpus"][0]
    path = write(tmp_path / "mine.json", {k: v for k, v in entry.items() if k != "own"} | {"id": "my-l40s"})
    mine, ours = ls.plan("gpt2", path), ls.plan("gpt2", "l40s")
    assert mine.memory.peak == ours.memory.peak
    assert mine.compute.step_seconds == ours.compute.step_seconds


def test_a_cpu_has_a_process_and_no_context(tmp_path: Path) -> None:
    """On a CPU the device must hold the tensors, the process and what malloc keeps: no CUDA context, no NCCL."""
    path = write(tmp_path / "cpu.json", MACHINE | {"device": "cpu"})
    sheet = ls.plan(TINY, path, precision="fp32", batch=4, seq=64)
    names = {item.name for instant in sheet.memory.instants for item in instant.around.items}
    assert names == {"process", "allocator"}
    assert 0.2 * GIB <= sheet.memory.peak.low < sheet.memory.peak.high < 0.85 * GIB
    assert sheet.recipe.execution.device == "cpu"
    served = ls.plan(TINY, path, task="serve", weights="fp32")
    assert {item.name for item in served.memory.worst.around.items} == {"process", "allocator"}
    # and what fits at most was looked for on the same device
    largest = sheet.capacity.largest_batch
    assert sheet.changed(batch=largest).verdict == "fits"
    assert sheet.changed(batch=largest + 1).verdict != "fits"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": None}, "got id None"),
        ({"id": "My Box"}, "got id 'My Box', expected lower-case"),
        ({"id": "h100-sxm"}, "expected one that none of the listed GPUs has"),
        ({"memory_usable_bytes": "8GiB"}, "memory_usable_bytes '8GiB', expected a whole number"),
        ({"memory_usable_bytes": 8.5e9}, "expected a whole number of bytes"),
        ({"memory_usable_bytes": 5}, "expected a number from"),
        ({"bandwidth": True}, "got bandwidth True"),
        ({"bandwidth": 900}, "got bandwidth 900, expected a number from 1e+06"),
        ({"peaks": {}}, "expected FLOP/s by dtype"),
        ({"peaks": {"fp32": 989.4}}, "a peak of 989.4 for fp32"),
        ({"peaks": {"fp33": 1e12}}, "unknown dtype in the peaks"),
        ({"peaks": [1e12]}, "expected FLOP/s by dtype"),
        ({"device": "gpu"}, "got device 'gpu', expected one of cuda, cpu"),
        ({"kind": "phone"}, "got kind 'phone'"),
        ({"pcie": "9"}, "got pcie '9'"),
        ({"date": "yesterday"}, "got date 'yesterday'"),
        ({"verified": "yes"}, "got verified 'yes'"),
        ({"note": ["x"]}, "got note ['x']"),
        ({"memory_marketed_gb": 0}, "got memory_marketed_gb 0"),
        ({"tdp_watts": -1}, "got tdp_watts -1"),
        ({"memory": 5}, "unknown key of hardware"),
        ({"gpus": []}, "expected one entry by itself"),
    ],
)
def test_senseless_descriptions(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """The error names the file, the key, what it got and what it expected."""
    path = write(tmp_path / "box.json", MACHINE | change)
    with pytest.raises((BadFile, UnknownKey)) as caught:
        ls.plan(TINY, path)
    assert words in str(caught.value)
    assert "box.json" in str(caught.value)


@pytest.mark.parametrize("name", ["id", "memory_usable_bytes", "bandwidth", "peaks"])
def test_what_must_be_there(tmp_path: Path, name: str) -> None:
    """Each of the four is asked for by name."""
    path = write(tmp_path / "box.json", {k: v for k, v in MACHINE.items() if k != name})
    with pytest.raises(BadFile, match=f"got no {name}, expected it"):
        ls.gpu(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"id": "a", "id": "b"}', "[" * 5000, " " * 70_000, '{"id": 1e999}']
)
def test_hostile_files(tmp_path: Path, text: str) -> None:
    """What is no object of JSON within the limits is one line of error."""
    path = tmp_path / "box.json"
    path.write_text(text)
    with pytest.raises(BadFile) as caught:
        ls.gpu(path)
    assert len(str(caught.value).splitlines()) == 1


def test_names_are_still_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown id stays an error with the nearest; a file counts only by its path or its ending."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "h100", MACHINE)
    with pytest.raises(UnknownGpu) as caught:
        ls.gpu("h100")
    assert "`h100-sxm`" in caught.value.hint
    refused("plan", "gpt2", "--gpu", "nothing.json", words="no such file")
    with pytest.raises(UnknownGpu):
        listed(str(write(tmp_path / "box.json", MACHINE)))  # never a file, where the name is from a file


def test_a_price_file_names_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU in a row of a price file is an id of our table; a path there is an unknown GPU."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "box.json", MACHINE)
    (tmp_path / "prices.csv").write_text("gpu,price\nbox.json,2\n")
    refused("plan", "gpt2", "--gpu", "t4", "--price-file", "prices.csv", words="a known GPU id")


def test_compared_with_ours(tmp_path: Path) -> None:
    """A file stands in a comparison beside ids, whatever the case of its name."""
    path = write(tmp_path / "Box.JSON", MACHINE)
    data = json.loads(answered("plan", "gpt2", "--gpu", f"t4, {path} ,T4", "--json").stdout)
    assert [sheet["cluster"]["gpu"] for sheet in data["compare"]] == ["t4", "my-box"]


def test_measure_saves_this_machine(tmp_path: Path) -> None:
    """`measure machine --save` writes a file that a plan reads: measured peaks, this machine's memory."""
    path = tmp_path / "m.json"
    words = ["measure", "machine", "--quick", "--save", str(path)]
    assert CliRunner().invoke(main, words).exit_code == 0
    entry = json.loads(path.read_text())
    found = ls.gpu(path)
    assert found.memory_usable_bytes == entry["memory_usable_bytes"] == host_memory()
    assert dict(found.peaks) == entry["peaks"]
    assert found.device == "cpu"
    assert found.yours.startswith("yours: m.json, measured 20")
    assert 1e6 < found.peak("fp32") < 1e14
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 64 << 20 < host_memory() <= total
    assert run(*words).exit_code == 2  # it is there
    assert json.loads(path.read_text()) == entry


# --- the user's own closed runs ------------------------------------------------------------------


def closed(**changed: Any) -> dict[str, Any]:
    """A line of a calibration file."""
    return {
        "schema": 1, "sheet_sha256": "a" * 64, "run": "0123456789", "model": {"name": "tiny", "params": 86_848},
        "recipe": {"task": "train"}, "gpu": "t4", "peak_dtype": "fp32", "peak_flops_per_second": 8.1e12, "mfu": 0.2,
        "mfu_for_plan": {"low": 0.15, "mid": 0.2, "high": 0.25}, "save_bytes": 1000, "save_stall_seconds": 0.1,
        "save_total_seconds": 0.5,
    } | changed  # fmt: skip


def calibration(path: Path, *lines: dict[str, Any]) -> Path:
    """A file of these lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The tiny model, under its name."""
    return write(tmp_path / "tiny.json", TINY)


def test_mfu_of_ones_own_runs(tmp_path: Path, tiny: Path) -> None:
    """Median, slowest and fastest of the runs of this model on this GPU; the star goes, their number is shown."""
    file = calibration(
        tmp_path / "cal.jsonl",
        closed(run="a"),
        closed(run="b", mfu_for_plan={"low": 0.1, "mid": 0.3, "high": 0.35}),
        closed(run="c", mfu_for_plan={"low": 0.22, "mid": 0.24, "high": 0.26}),
        closed(run="d", gpu="l4", mfu_for_plan={"low": 0.9, "mid": 0.9, "high": 0.9}),
        closed(run="e", peak_dtype="bf16", mfu_for_plan={"low": 0.9, "mid": 0.9, "high": 0.9}),
        closed(run="f", recipe={"task": "lora"}, mfu_for_plan={"low": 0.9, "mid": 0.9, "high": 0.9}),
        closed(run="g", mfu=None),
    )
    sheet = ls.plan(tiny, "t4", precision="fp32", calibration=file)
    plain = ls.plan(tiny, "t4", precision="fp32", mfu=0.24)
    assert sheet.compute.mfu == 0.24
    assert sheet.compute.step_seconds.mid == plain.compute.step_seconds.mid
    assert sheet.compute.step_seconds.low == pytest.approx(plain.compute.step_seconds.mid * 0.24 / 0.35)
    assert sheet.compute.step_seconds.high == pytest.approx(plain.compute.step_seconds.mid * 0.24 / 0.1)
    assert "mfu" not in sheet.recipe.defaulted
    assert "at MFU 24% (measured by you, 3 runs of tiny)" in " ".join(sheet.text().split())
    found = sheet.to_dict()["compute"]
    assert (found["mfu_basis"], found["mfu_source"]) == (
        "measured",
        "measured by you in 3 closed runs of tiny",
    )
    signed = ls.sign(sheet, steps=5)
    assert (signed["calibration"]["runs"], signed["calibration"]["same_model"]) == (3, True)
    stall = signed["intent"]["expected"]["save_stall_seconds"]
    assert stall["mid"] == pytest.approx(0.1 / 1000 * 12 * 86_848)


def test_the_newest_line_of_a_run_counts(tmp_path: Path, tiny: Path) -> None:
    """A run that was closed twice, so far and done, is one."""
    more = closed(mfu_for_plan={"low": 0.3, "mid": 0.3, "high": 0.3})
    file = calibration(tmp_path / "cal.jsonl", closed(), closed(run="b"), more)
    assert len(read_calibration(file).closed) == 2
    assert ls.plan(tiny, "t4", precision="fp32", calibration=file).compute.mfu == pytest.approx(0.25)


def test_the_nearest_model_and_another_peak(tmp_path: Path, tiny: Path) -> None:
    """Without a run of this model, those of the nearest in size, and so named; a changed peak changes the MFU."""
    file = calibration(
        tmp_path / "cal.jsonl",
        closed(model={"name": "huge", "params": 10**9}),
        closed(run="b", model={"name": "small", "params": 200_000}, peak_flops_per_second=4.05e12),
    )
    sheet = ls.plan(tiny, "t4", precision="fp32", calibration=file)
    assert sheet.compute.mfu == pytest.approx(0.1)  # 20 % of half the peak
    assert "1 run of small, the nearest" in " ".join(sheet.text().split())


def test_no_comparable_run(tmp_path: Path, tiny: Path) -> None:
    """The default stays, starred, and a warning says why."""
    file = calibration(tmp_path / "cal.jsonl", closed())
    result = answered("plan", str(tiny), "--gpu", "l4", "--calibration", str(file))
    assert "at MFU 40%*" in result.stdout
    assert "cal.jsonl has no closed run of task train in bf16 on l4" in result.stderr


def test_only_one_of_mfu_and_calibration(tmp_path: Path, tiny: Path) -> None:
    """Both at once contradict each other; serving has no use for closed runs."""
    file = calibration(tmp_path / "cal.jsonl", closed())
    words = ("plan", str(tiny), "--gpu", "t4", "--calibration", str(file))
    refused(*words, "--mfu", "0.3", words="--mfu: got 0.3 and a calibration")
    refused(
        *words,
        "--task",
        "serve",
        words="--calibration: got 'cal.jsonl', expected only with a task that trains",
    )
    with pytest.raises(BadInput):
        ls.plan(tiny, "t4", mfu=0.3, calibration=file)


@pytest.mark.parametrize(
    "line",
    [
        "poem", "[]", '{"schema": 2}', json.dumps(closed(mfu_for_plan=None)), json.dumps(closed(model={"name": "x"})),
        json.dumps(closed(mfu_for_plan={"low": 0.3, "mid": 0.2, "high": 0.4})), json.dumps(closed(gpu=5)),
        json.dumps(closed(mfu_for_plan={"low": 0.3, "mid": 0.4, "high": 50})), json.dumps(closed(save_bytes=-1)),
        json.dumps(closed(recipe=[])), json.dumps(closed(peak_flops_per_second=math.pi)), "{" * 1000,
    ],
    ids=range(12),
)  # fmt: skip
def test_hostile_lines(tmp_path: Path, line: str) -> None:
    """A line that is none is refused with its number."""
    file = tmp_path / "cal.jsonl"
    file.write_text(json.dumps(closed()) + "\n\n" + line + "\n")
    with pytest.raises(BadFile, match="line 3"):
        read_calibration(file)

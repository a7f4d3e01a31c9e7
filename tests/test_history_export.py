"""`runs export`: other programs read back what the log and the checkpoints hold, to the last bit."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
import stat
import statistics
import struct
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from run_logs import record
from runs_left import STEPS, Tied, train
from safetensors import safe_open
from terminal import answered, refused, run
from test_history_plot import a_run
from torch import nn

import loadsheet as ls
from loadsheet.errors import BadFile, BadInput
from loadsheet.history.export_file import write_file
from loadsheet.history.export_weights import separate, write_weights
from loadsheet.history.index import find
from loadsheet.history.tensorboard import crc32c, event_file, framed, masked
from loadsheet.run.encode import DTYPES
from loadsheet.run.snapshot import same_bits

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what TensorBoard imports is not ours to mend
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted and finished; two more seeds; another config that broke off."""
    root = tmp_path_factory.mktemp("runs")
    train(root, {"lr": 0.1, "seed": 0}, until=8)
    for seed in range(3):
        train(root, {"lr": 0.1, "seed": seed})
    train(root, {"lr": 0.5, "seed": 0}, until=5)
    return root


@pytest.fixture(scope="module")
def name(left: Path) -> str:
    """The run that was interrupted."""
    (found,) = [path.name for path in left.glob("*/") if len(list((path / "provenance").glob("*.json"))) == 2]
    return found


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A run whose log has every kind of value that may be logged."""
    values: list[dict[str, Any]] = [
        {"loss": 0.1, "note": "=1+1", "n": 1, "ok": True, "list": [1, "NaN"], "timing": {"rate": 2.5}},
        {
            "loss": "NaN",
            "note": "@SUM(A1)",
            "n": 2**60,
            "@evil": 1,
            "none": None,
            "timing": {"rate": "Infinity"},
        },
        {"loss": "Infinity", "note": "~NaN", "n": -1, "a": -5e-324, "timing": {"=x": 1}},
        {"loss": "-Infinity", "note": 'a "b",\nc', "n": 0, "a": 1e300, "text": "\t=x", "dict": {"k": 1}},
        {"loss": -0.0, "note": "ünï ＝1", "n": 10**400 if False else 10**30, "text": "-1+2"},
    ]
    return a_run(
        tmp_path / "runs" / "strange",
        *(record(1, n, **value) | {"time": 1e9 + n} for n, value in enumerate(values)),
    )


def exported(left: Path, *options: str) -> str:
    return answered("runs", "export", *options, "--runs", str(left)).stdout


# --- CSV ------------------------------------------------------------------------------------------------------


def test_csv(left: Path, name: str) -> None:
    """Python's csv reads one row per step, and every number is the one of the log."""
    rows = list(csv.DictReader(io.StringIO(exported(left, name, "--to", "csv"))))
    log = ls.read_log(left / name)
    assert list(rows[0]) == [
        "run",
        "step",
        "attempt",
        "time",
        "loss",
        "tokens",
        "val_loss",
        "timing.tokens_per_second",
    ]
    assert [row["run"] for row in rows] == [name] * STEPS
    for column, values in log.items():
        assert [float(row[column]) if row[column] else None for row in rows] == values, column


def test_csv_of_strange_values(strange: Path) -> None:
    """Words for what is not finite, no formula in any cell, line ends and quotes inside of them."""
    text = exported(strange.parent, "strange", "--to", "csv")
    head, *rows = csv.reader(io.StringIO(text))
    assert [row[head.index("loss")] for row in rows] == ["0.1", "NaN", "Infinity", "-Infinity", "-0.0"]
    assert [float(row[head.index("n")]) for row in rows] == [1, 2**60, -1, 0, 1e30]
    assert rows[3][head.index("note")] == 'a "b",\nc'
    assert [row[head.index("a")] for row in rows] == ["", "", "-5e-324", "1e+300", ""]
    assert rows[0][head.index("ok")] == "true"
    assert json.loads(rows[0][head.index("list")]) == [1, "NaN"]
    assert rows[0][head.index("note")] == "'=1+1"
    for cell in [cell for row in (head, *rows) for cell in row]:
        if not cell[:1].isalnum() and cell[:1] in tuple("=+-@\t\r\n＝＋－＠"):
            assert math.isfinite(float(cell)) or cell == "-Infinity"


def test_csv_columns_do_not_depend_on_the_order_of_logging(tmp_path: Path) -> None:
    """The same names give the same columns, whatever was logged first and by which of several runs."""
    one, other = record(1, 0, b=1, a=2), record(1, 0, a=2, c=3)
    a_run(tmp_path / "one", one, other | {"step": 1})
    a_run(tmp_path / "two", other, one | {"step": 1})
    heads = {
        exported(tmp_path, *names, "--to", "csv").splitlines()[0]
        for names in (("one",), ("two",), ("one", "two"), ("two", "one"))
    }
    assert heads == {"run,step,attempt,time,a,b,c"}


# --- JSON -----------------------------------------------------------------------------------------------------


def test_json(left: Path, name: str, strange: Path) -> None:
    """Standard JSON, with the records of the log as they are read; what is not finite in words."""
    data = json.loads(exported(left, name, "--to", "json"), parse_constant=pytest.fail)
    (found,) = data["runs"]
    assert found["records"] == list(ls.stream_log(left / name))
    assert (found["run"], found["attempts"], found["total"]) == (name, 2, STEPS)
    assert found["config"] == {"lr": 0.1, "seed": 0}
    (found,) = json.loads(exported(strange.parent, "strange", "--to", "json"), parse_constant=pytest.fail)[
        "runs"
    ]
    assert [r["loss"] for r in found["records"]] == [0.1, "NaN", "Infinity", "-Infinity", -0.0]
    assert found["records"][2]["note"] == "~NaN"  # a text that says NaN; the one without ~ is the number
    assert found["records"][4]["n"] == 10**30


def test_several_runs(left: Path) -> None:
    """All of them in one file, each with its own records; without names all that --where leaves."""
    names = sorted(path.name for path in left.glob("*/"))
    data = json.loads(exported(left, *names, "--to", "json"))
    assert [r["run"] for r in data["runs"]] == names
    assert sorted(len(r["records"]) for r in data["runs"]) == [5, STEPS, STEPS, STEPS]
    rows = list(csv.DictReader(io.StringIO(exported(left, *names, "--to", "csv"))))
    assert len(rows) == 5 + 3 * STEPS
    assert json.loads(exported(left, "--to", "json")) == data
    seeds = json.loads(exported(left, "--to", "json", "--where", "lr=0.1", "--where", "seed>0"))
    assert [r["config"]["seed"] for r in seeds["runs"]] in ([1, 2], [2, 1])
    refused("runs", "export", "--runs", str(left), "--to", "json", "--where", "lr=7", words="no run")


# --- Markdown -------------------------------------------------------------------------------------------------


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_markdown(left: Path, name: str) -> None:
    """A table as GitHub reads it: one line for each run, what differs, last and best, how far it came."""
    names = sorted(path.name for path in left.glob("*/"))
    lines = exported(
        left, *names, "--to", "markdown", "--metric", "val_loss", "--metric", "loss"
    ).splitlines()
    head, rule, *body = (cells(line) for line in lines[: 2 + len(names)])
    assert all(re.fullmatch(r"-+:?", cell) for cell in rule)
    assert {len(row) for row in body} == {len(head)} == {len(rule)}
    assert head[:5] == ["run", "lr", "seed", "steps", "resumed"]
    table = {row[0]: dict(zip(head, row, strict=True)) for row in body}
    assert (table[name]["lowest val_loss\\*"], table[name]["last val_loss"]) == ("0.1", "36.1")
    assert (table[name]["steps"], table[name]["resumed"]) == ("12", "1")
    broken = next(row for row in table.values() if row["lr"] == "0.5")
    assert broken["steps"].startswith("5")
    assert "(" in broken["steps"]
    assert lines[-1].startswith("Steps that were run again count once")


def test_markdown_of_seeds(left: Path) -> None:
    """With --seeds a line for each group: mean and n as the statistics module computes them."""
    names = sorted(path.name for path in left.glob("*/"))
    lines = exported(
        left, *names, "--to", "markdown", "--metric", "loss", "--mode", "min", "--seeds"
    ).splitlines()
    head, _, *body = (cells(line) for line in lines[:4])
    table = {row[1]: dict(zip(head, row, strict=True)) for row in body}
    best = [min(ls.read_log(left / n)["loss"]) for n in names if find(left, n).config["lr"] == 0.1]
    mean, deviation = map(float, table["0.1"]["lowest loss"].split(" ± "))
    assert mean == pytest.approx(statistics.mean(best), abs=0.05 * deviation)
    assert deviation == pytest.approx(statistics.stdev(best), rel=0.05)
    assert [row[1] for row in body] == ["0.1", "0.5"]  # the one without a value stands last
    assert (table["0.1"]["n"], table["0.1"]["runs"]) == ("3", "3")
    assert table["0.5"]["n"] == "0"
    assert "Left out: " in lines[-1]


def test_markdown_of_seeds_with_those_that_are_not_done(left: Path) -> None:
    """--unfinished lets the run count that broke off, as in `list --groups`; without --seeds it has no use."""
    options = ("--metric", "loss", "--mode", "min", "--unfinished")
    (broken,) = [path.name for path in left.glob("*/") if find(left, path.name).config["lr"] == 0.5]
    lines = exported(left, "--to", "markdown", "--seeds", *options).splitlines()
    (line,) = [cells(line) for line in lines if line.startswith("|") and cells(line)[1] == "0.5"]
    least = min(ls.read_log(left / broken)["loss"])
    assert (line[cells(lines[0]).index("n")], float(line[3])) == ("1", pytest.approx(least, rel=1e-5))
    assert "done or not" in lines[-1]
    assert "Left out" not in lines[-1]
    listed = json.loads(answered("runs", "list", "--groups", *options, "--runs", str(left), "--json").stdout)
    assert sorted(group["n"] for group in listed["groups"]) == [1, 3]
    refused(
        "runs", "export", "--runs", str(left), "--to", "markdown", "--unfinished", words="without --seeds"
    )


def test_markdown_of_a_key_named_as_a_column(tmp_path: Path) -> None:
    """No two columns have one name; `runs list` keeps both as well."""
    for n in (3, 4):
        a_run(tmp_path / f"run{n}", record(1, 0, loss=1.0), steps=n, resumed=n)
    for options in ((), ("--seeds",)):
        head = cells(exported(tmp_path, "run3", "run4", "--to", "markdown", *options).splitlines()[0])
        assert len(set(head)) == len(head)
        assert "steps (config)" in head
    page = answered("runs", "list", "--runs", str(tmp_path)).stdout
    assert "steps (config)" in page


def test_markdown_is_escaped(tmp_path: Path) -> None:
    """Nothing in a config breaks the table or is read as markup."""
    for n, text in enumerate(("a|b", "<script>", "*x*\n`y`", "@someone #1")):
        a_run(tmp_path / f"run{n}", record(1, 0, loss=1.0), key=text)
    lines = exported(tmp_path, "run0", "run1", "run2", "run3", "--to", "markdown").splitlines()[:6]
    assert len({len(cells(line)) for line in lines}) == 1
    assert not re.search(r"(?<!\\)[<*`@#]", "".join(lines[2:]))


# --- TensorBoard ----------------------------------------------------------------------------------------------


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def test_tensorboard(left: Path, name: str, tmp_path: Path) -> None:
    """TensorBoard's own loader finds the steps, the values to 32 bits and the times of the log."""
    answered("runs", "export", name, "--runs", str(left), "--to", "tensorboard", "--out", str(tmp_path))
    (path,) = (tmp_path / name).iterdir()
    first, *events = EventFileLoader(str(path)).Load()
    assert first.file_version == "brain.Event:2"
    assert first.wall_time == find(left, name).started
    log = ls.read_log(left / name)
    assert [event.step for event in events] == log["step"] == list(range(STEPS))
    assert [event.wall_time for event in events] == log["time"]
    board = EventAccumulator(str(tmp_path / name), size_guidance={"scalars": 0})
    board.Reload()
    columns = {tag: log[tag.replace("/", ".")] for tag in board.Tags()["scalars"]}
    assert set(columns) == {"loss", "tokens", "val_loss", "timing/tokens_per_second"}
    for tag, values in columns.items():
        expected = [
            (step, float32(value), time)
            for step, value, time in zip(log["step"], values, log["time"], strict=True)
            if value is not None
        ]
        assert [(s.step, s.value, s.wall_time) for s in board.Scalars(tag)] == expected


def test_tensorboard_of_strange_values(strange: Path, tmp_path: Path) -> None:
    """NaN and infinities arrive; what does not fit in 32 bits, or is no number, is said."""
    result = run(
        "runs",
        "export",
        "strange",
        "--runs",
        str(strange.parent),
        "--to",
        "tensorboard",
        "--out",
        str(tmp_path / "tb"),
    )
    assert result.exit_code == 0
    assert "1 values do not fit in 32 bits" in result.stderr
    assert "dict, list, none, note, text" in result.stderr
    fingerprint = find(strange.parent, "strange").fingerprint
    board = EventAccumulator(str(tmp_path / "tb" / fingerprint), size_guidance={"scalars": 0})
    board.Reload()
    values = [s.value for s in board.Scalars("loss")]
    assert values[0] == float32(0.1)
    assert math.isnan(values[1])
    assert values[2:] == [math.inf, -math.inf, 0.0]
    assert [s.value for s in board.Scalars("a")] == [0.0, math.inf]
    assert [s.value for s in board.Scalars("ok")] == [1.0]


def test_tensorboard_steps_and_many_lines(tmp_path: Path) -> None:
    """Steps beyond 32 bits and names beyond one byte of length are read back."""
    steps = [0, 127, 128, 300, 2**31, 2**40, 2**62]
    records = [{"step": step, "time": 1.5 + n, "x" * 200: float(n)} for n, step in enumerate(steps)]
    path = tmp_path / "events.out.tfevents.1.x"
    path.write_bytes(b"".join(event_file(records, 1.0)))
    _, *events = EventFileLoader(str(path)).Load()
    assert [event.step for event in events] == steps
    assert [event.summary.value[0].tag for event in events] == ["x" * 200] * len(steps)


def test_the_loader_would_notice(tmp_path: Path) -> None:
    """One wrong bit in a record, and TensorBoard reads it no more: its checksums are looked at."""
    path = tmp_path / "events.out.tfevents.1.x"
    good = b"".join(event_file([{"step": 1, "time": 1.0, "loss": 2.0}], 1.0))
    path.write_bytes(good)
    assert len(list(EventFileLoader(str(path)).Load())) == 2
    path.write_bytes(good[:-10] + bytes([good[-10] ^ 1]) + good[-9:])
    try:
        count = len(list(EventFileLoader(str(path)).Load()))
    except Exception:
        count = 0
    assert count < 2


def test_checksums() -> None:
    """CRC-32C's test vectors of RFC 3720, B.4, and the mask inverted."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(bytes(range(31, -1, -1))) == 0x113FDB5C
    crc = crc32c(b"message")
    rotated = (masked(crc) - 0xA282EAD8) % 2**32
    assert (rotated << 15 | rotated >> 17) % 2**32 == crc
    assert framed(b"")[:8] == bytes(8)


# --- safetensors ----------------------------------------------------------------------------------------------


def saved(tmp_path: Path, module: nn.Module, **more: Any) -> Path:
    """A run whose only checkpoint holds a module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = ls.Run.open(tmp_path / "runs", {}, progress=False)
        run.keep(model=module, **more)
        for _ in run.steps(0):
            pass
        run.close()
    return run.path


def same(file: Path, expected: dict[str, torch.Tensor]) -> None:
    found = safetensors.torch.load_file(file)
    assert set(found) == set(expected)
    for key, tensor in expected.items():
        assert same_bits(found[key], tensor.detach()), key


def bits(dtype: torch.dtype) -> torch.Tensor:
    """A tensor of a dtype whose bits are of every kind: not a number, infinite, subnormal among them."""
    raw = torch.arange(256, dtype=torch.uint8).repeat(dtype.itemsize)
    if dtype == torch.bool:
        return raw % 2 == 1
    return raw[: 48 * dtype.itemsize].view(dtype).reshape(6, 8)


@pytest.mark.parametrize("which", ["latest", "best", "3"])
def test_weights(left: Path, name: str, tmp_path: Path, which: str) -> None:
    """The tensors of the checkpoint that was asked for, bit for bit, the tied one once."""
    out = tmp_path / "model.safetensors"
    text = exported(left, name, "--to", "safetensors", "--checkpoint", which, "--out", str(out))
    step = {"latest": STEPS, "best": 6, "3": 3}[which]
    assert f"step {step}, 4 tensors" in text
    state = ls.load(left / name, step).value("model")["state"]
    same(out, {key: value for key, value in state.items() if key != "head.weight"})
    with safe_open(out, "pt") as file:
        assert file.metadata() == {
            "format": "pt", "loadsheet.run": name, "loadsheet.step": str(step), "head.weight": "embed.weight"
        }  # fmt: skip
    model = Tied()
    safetensors.torch.load_model(model, out)
    assert model.head.weight is model.embed.weight
    assert all(same_bits(value, state[key]) for key, value in model.state_dict().items())


def test_every_dtype(tmp_path: Path) -> None:
    """Whatever a checkpoint can hold and safetensors can: the same bits; the others are refused by name."""
    known, unknown = [], []
    for text, dtype in DTYPES.items():  # what the library itself writes and reads
        try:
            safetensors.torch.load(safetensors.torch.save({"x": bits(dtype)}))
            known.append(text)
        except Exception:
            unknown.append(text)
    assert len(known) >= 15
    assert {"complex32", "complex128"} <= set(unknown)
    module = nn.Module()
    for text in known:
        module.register_buffer(f"of_{text}", bits(DTYPES[text]))
    write_weights(saved(tmp_path / "good", module), tmp_path / "good.safetensors")
    same(tmp_path / "good.safetensors", module.state_dict())
    module.register_buffer(f"of_{unknown[0]}", bits(DTYPES[unknown[0]]))
    with pytest.raises(BadInput, match=f"of_{unknown[0]}.* of torch.{unknown[0]}"):
        write_weights(saved(tmp_path / "all", module), tmp_path / "all.safetensors")
    assert not (tmp_path / "all.safetensors").exists()


def test_views(tmp_path: Path) -> None:
    """Transposed, overlapping, empty and scalar tensors: contiguous, each with all of its values."""
    whole = torch.arange(12.0)
    module = nn.Module()
    views = {
        "transposed": torch.arange(6.0).reshape(2, 3).t(), "whole": whole, "part": whole[2:7],
        "strided": whole[::3], "same": whole[:], "empty": torch.empty(0, 3), "empty_too": torch.empty(0, 3),
        "scalar": torch.tensor(7), "other_shape": whole.view(3, 4),
    }  # fmt: skip
    for key, view in views.items():
        module.register_buffer(key, view)
    tensors, aliases, left_out = separate({**module.state_dict(), "extra": {"a": 1}})
    assert aliases == {"same": "whole"}
    assert left_out == ("extra",)
    assert all(tensor.is_contiguous() for tensor in tensors.values())
    found = write_weights(saved(tmp_path, module), tmp_path / "views.safetensors")
    assert found.aliases == {"same": "whole"}
    same(tmp_path / "views.safetensors", {key: view for key, view in views.items() if key != "same"})


def test_transformers_reads_it(tmp_path: Path) -> None:
    """A tied GPT-2 of transformers: from_pretrained on the exported file gives the same weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=16)
    model = GPT2LMHeadModel(config)
    config.save_pretrained(tmp_path / "hf")
    found = write_weights(saved(tmp_path, model), tmp_path / "hf" / "model.safetensors")
    assert found.aliases == {"lm_head.weight": "transformer.wte.weight"}
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "hf")
    assert all(same_bits(value, model.state_dict()[key]) for key, value in again.state_dict().items())
    assert again.lm_head.weight is again.transformer.wte.weight


def test_several_modules(tmp_path: Path) -> None:
    """Which of several is meant must be said, unless one is called model."""
    path = saved(tmp_path, nn.Linear(2, 2), teacher=nn.Linear(3, 3))
    assert write_weights(path, tmp_path / "a").name == "model"
    assert write_weights(path, tmp_path / "b", name="teacher").tensors == 2
    with pytest.raises(BadInput, match="--name: got 'none'"):
        write_weights(path, tmp_path / "c", name="none")


def test_a_damaged_newest(left: Path, name: str, tmp_path: Path) -> None:
    """A damaged newest checkpoint is said and the one before it is written; if it was named, nothing is."""
    path = Path(shutil.copytree(left / name, tmp_path / name))
    file = path / "checkpoints" / "step-00000012" / "tensors.bin"
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    out = str(tmp_path / "a.safetensors")
    result = run("runs", "export", str(path), "--to", "safetensors", "--out", out)
    assert result.exit_code == 0
    assert "step 9, 4 tensors" in result.stdout
    assert "step-00000012/tensors.bin: got checksum" in result.stderr
    refused(
        "runs",
        "export",
        str(path),
        "--to",
        "safetensors",
        "--out",
        out + "2",
        "--checkpoint",
        "12",
        words="checksum",
    )
    assert not Path(out + "2").exists()
    assert file.exists()


def test_pipes_and_links(left: Path, name: str, tmp_path: Path) -> None:
    """A pipe is not waited for and a link not followed, in a run that somebody else may have made."""
    path = Path(shutil.copytree(left / name, tmp_path / name))
    manifest = path / "checkpoints" / "step-00000012" / "manifest.json"
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(BadFile, match="something that is no file"):
        write_weights(path, tmp_path / "a")
    manifest.unlink()
    manifest.symlink_to("/dev/zero")
    with pytest.raises(BadFile, match="a link that leaves"):
        write_weights(path, tmp_path / "a")
    (path / "log.jsonl").unlink()
    os.mkfifo(path / "log.jsonl")
    for form in ("csv", "json"):
        refused("runs", "export", str(path), "--to", form, words="no file")


# --- files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "json", "markdown", "safetensors", "tensorboard"])
def test_nothing_is_overwritten(left: Path, name: str, tmp_path: Path, form: str) -> None:
    """What is there stays, unless --force says otherwise; the file has the permissions of any new file."""
    out = tmp_path / "out"
    args = ("runs", "export", name, "--runs", str(left), "--to", form, "--out", str(out))
    answered(*args)
    (written,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    whole = written.read_bytes()
    written.write_bytes(b"mine")
    refused(*args, words="--force")
    assert written.read_bytes() == b"mine"
    data = json.loads(answered(*args, "--force", "--json").stdout)
    if form == "safetensors":  # the library puts its metadata in any order
        assert safetensors.torch.load_file(written).keys() == safetensors.torch.load(whole).keys()
        assert written.stat().st_size == len(whole)
    else:
        assert written.read_bytes() == whole
    assert data["written"][0]["bytes"] == len(whole)
    assert data["written"][0]["path"] == str(written)
    assert (data["schema"], data["format"], data["runs"]) == (1, form, [name])
    assert {p.name for p in written.parent.iterdir()} <= {written.name, "plain"}


@pytest.mark.parametrize("form", ["csv", "safetensors"])
def test_a_full_disk(
    left: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """An error on the way leaves neither half a file nor the beginning of one."""

    def full(_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("os.fsync", full)
    out = tmp_path / "out"
    refused(
        "runs", "export", name, "--runs", str(left), "--to", form, "--out", str(out), words="No space left"
    )
    assert list(tmp_path.iterdir()) == []


def test_somebody_else_was_faster(tmp_path: Path) -> None:
    """A file that came to be while this one was written is not overwritten either."""

    def parts() -> Iterator[bytes]:
        yield b"ours"
        (tmp_path / "a").write_bytes(b"theirs")

    with pytest.raises(BadInput, match="exists"):
        write_file(tmp_path / "a", parts(), force=False)
    assert (tmp_path / "a").read_bytes() == b"theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_places_that_are_no_file(left: Path, name: str, tmp_path: Path) -> None:
    """A folder, a device, a folder that is not there: said before anything is read."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for out in ("folder", "pipe", "none/a", "x" * 300):
        args = (
            "runs",
            "export",
            name,
            "--runs",
            str(left),
            "--to",
            "csv",
            "--force",
            "--out",
            str(tmp_path / out),
        )
        refused(*args, words="--out")
    refused(
        "runs",
        "export",
        name,
        "--runs",
        str(left),
        "--to",
        "csv",
        "--force",
        "--out",
        "/dev/null",
        words="no file",
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--to", "xml"), "xml"),
        ((), "--to"),
        (("--to", "tensorboard"), "--out"),
        (("--to", "safetensors"), "--out"),
        (("--to", "csv", "--json"), "--out"),
        (("--to", "csv", "--checkpoint", "latest"), "--checkpoint"),
        (("--to", "json", "--metric", "loss"), "--metric"),
        (("--to", "safetensors", "--out", "a", "--checkpoint", "first"), "--checkpoint"),
        (("--to", "safetensors", "--out", "a", "--checkpoint", "4"), "got step 4"),
        (("--to", "safetensors", "--out", "a", "--metric", "loss"), "--checkpoint best"),
        (
            ("--to", "safetensors", "--out", "a", "--checkpoint", "best", "--metric", "los"),
            "did you mean `loss`",
        ),
        (("--to", "markdown", "--metric", "los"), "did you mean `loss`"),
    ],
)
def test_refusals(left: Path, name: str, options: tuple[str, ...], words: str) -> None:
    """What makes no sense is said in one line."""
    refused("runs", "export", name, "--runs", str(left), *options, words=words)


def test_without_safetensors(left: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library it says what to install."""
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    out = str(tmp_path / "a")
    refused(
        "runs",
        "export",
        name,
        "--runs",
        str(left),
        "--to",
        "safetensors",
        "--out",
        out,
        words="loadsheet[export]",
    )

"""Rehearsals: what passes, and what each kind of script that would lose something fails at."""

from __future__ import annotations

import json
import re
import shutil
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("msgspec")

import rehearse_lives
import torch
from rehearse_lives import PATIENCE, Forked
from terminal import run as command_line

import loadsheet as ls
from loadsheet.cli.rehearse import _interrupts_wait
from loadsheet.cloud.rehearse import process
from loadsheet.cloud.rehearse.carry_out import Rehearsal, environment
from loadsheet.cloud.rehearse.compare import first_difference
from loadsheet.cloud.rehearse.report import lines, not_come_to
from loadsheet.cloud.rehearse.scratch import Scratch, runs_among, traces
from loadsheet.cloud.rehearse.stage import STAGES, Stage


@pytest.fixture(scope="module", autouse=True)
def _server() -> None:
    rehearse_lives.begin()


SCRIPT = """
import random, sys, time
import torch
import loadsheet as ls
{first}
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = [(torch.full((4,), float(i)), torch.ones(1)) for i in range(10)]
run = ls.Run.open("runs", {config}, progress=False{options})
run.keep({keep})
batches = run.batches(torch.utils.data.DataLoader(data, 4, shuffle=True))
{before}
for step in run.steps({total}):
    x, y = {batch}
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log({log})
    {inside}
    if step % 4 == 3:
        with run.aside():
            run.log(val_loss=model(x).sum())
{after}
"""
USUAL = {
    "first": "", "config": "{'lr': 0.01}", "options": "", "keep": "model=model, optimizer=optimizer", "before": "",
    "total": "12", "batch": "next(batches)", "log": "loss=loss", "inside": "", "after": "",
}  # fmt: skip
SEEDED = "torch.manual_seed(0)"


def rehearse(
    folder: Path,
    text: str | None = None,
    *,
    timeout: float = PATIENCE,
    notice: float = PATIENCE,
    **parts: str,
) -> Rehearsal:
    """A rehearsal of the script with these parts, carried out."""
    script = SCRIPT.format(**{**USUAL, **parts}) if text is None else textwrap.dedent(text)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "train.py").write_text(script)
    rehearsal = Rehearsal(
        ["python", "train.py"], work, Scratch(folder / "scratch"), environment(), timeout, notice, Forked()
    )
    assert list(rehearsal.carry_out()) == [s for s in rehearsal.stages if s.state != "unknown"]
    return rehearsal


def failed(rehearsal: Rehearsal, stage: str) -> str:
    """The evidence of the one stage that failed; those before it are through, those after it not come to."""
    states = [s.state for s in rehearsal.stages]
    assert [s.id for s in rehearsal.stages] == list(STAGES)
    assert [s.id for s in rehearsal.stages if s.state == "fail"] == [stage], rehearsal.stages
    at = STAGES.index(stage)
    if stage not in ("train", "save"):
        assert "unknown" not in states[:at]
    assert set(states[at + 1 :]) <= {"unknown"} or stage in ("train", "save")
    assert not rehearsal.passed
    return "\n".join(rehearsal.stages[at].evidence)


# -- what passes ---------------------------------------------------------------------------------------------


def test_an_adapted_script_passes(tmp_path: Path) -> None:
    """Though it seeds nothing; its figures are those that its run has measured, and its own runs are untouched."""
    runs = tmp_path / "work" / "runs"
    runs.mkdir(parents=True)
    (runs / "mine").write_text("untouched")
    rehearsal = rehearse(tmp_path, options=f", mirror={str(tmp_path / 'mirror')!r}")
    assert [s.state for s in rehearsal.stages] == ["ok"] * 9, rehearsal.stages
    assert rehearsal.passed
    assert sorted(path.name for path in runs.iterdir()) == ["mine"]
    assert not (tmp_path / "mirror").exists()
    scratch = tmp_path / "scratch"
    (reference,) = scratch.joinpath("reference").iterdir()
    measured = json.loads((reference / "measured.json").read_bytes())["attempts"]["1"]
    figures = rehearsal.figures
    assert (figures.steps, figures.step_seconds, figures.data_wait_share, figures.save_total) == (
        12,
        measured["step_seconds"]["median"],
        measured["data_wait_share"],
        measured["save_total_seconds"],
    )
    # 4·8 + 8 + 8·1 + 1 weights, as many m and v, in 4 bytes each, are the least that a checkpoint holds
    assert figures.checkpoint_bytes is not None
    assert figures.checkpoint_bytes >= 3 * 4 * 49
    assert figures.notice_seconds is not None
    evidence = {s.id: s.evidence[0] for s in rehearsal.stages}
    assert "SIGKILL after step 8" in evidence["kill"]
    assert "went on from step 4;" in evidence["kill"]
    assert evidence["bitwise"].startswith("12 records and ")
    (resumed,) = scratch.joinpath("resumed").iterdir()
    assert ls.read_log(resumed)["loss"] == ls.read_log(reference)["loss"]


def test_what_is_only_remarked(tmp_path: Path) -> None:
    """Speeds that are logged as results; files beside the run."""
    rehearsal = rehearse(
        tmp_path,
        log="loss=loss, tokens_per_second=time.perf_counter()",
        after="open('final.pt', 'w').close()",
    )
    assert rehearsal.passed, rehearsal.stages
    evidence = {s.id: "\n".join(s.evidence) for s in rehearsal.stages}
    assert "it also wrote final.pt, at each start again: in your folder" in evidence["train"]
    assert re.search(r"four more starts follow, about [0-9.]+ m?s or more\n", evidence["train"])
    assert "but for tokens_per_second, measured with a clock" in evidence["bitwise"]
    assert [s.id for s in rehearsal.stages if s.state == "warn"] == ["bitwise"]


def test_what_was_not_seen(tmp_path: Path) -> None:
    """No loader, no evaluation, nothing logged: each is said, none is a failure."""
    rehearsal = rehearse(
        tmp_path,
        """
        import torch, loadsheet as ls
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        run = ls.Run.open("runs", {}, progress=False)
        run.keep(model=model, optimizer=optimizer)
        for step in run.steps(5, checkpoint_every=2):
            optimizer.zero_grad()
            model(torch.randn(3, 2)).sum().backward()
            optimizer.step()
        """,
    )
    assert rehearsal.passed, rehearsal.stages
    assert {s.id for s in rehearsal.stages if s.state == "warn"} == {"data", "evaluate", "bitwise"}


# -- what is forgotten ---------------------------------------------------------------------------------------


def test_a_batch_fetched_ahead(tmp_path: Path) -> None:
    """The first step after the notice differs, and so do the weights."""
    text = failed(
        rehearse(
            tmp_path, before="ahead = None", batch="ahead or next(batches)", inside="ahead = next(batches)"
        ),
        "bitwise",
    )
    assert "step 4 is the first that differs: loss " in text
    assert "it went on from step 4 after the notice; likely: it is the first step after resuming" in text
    assert "of the state after 12 steps model.0.weight differs: 32 of 32 values, by " in text
    assert "optimizer.exp_avg of model.0.weight differs" in text


def test_an_average_that_was_not_kept(tmp_path: Path) -> None:
    """It is in no checkpoint, so only what is logged of it shows it: the second step after the notice."""
    text = failed(
        rehearse(
            tmp_path,
            first=SEEDED,
            before="ema = [p.detach().clone() for p in model.parameters()]",
            inside=(
                "[e.lerp_(p.detach(), 0.5) for e, p in zip(ema, model.parameters())]; "
                "run.log(ema_norm=sum(float(e.norm()) for e in ema))"
            ),
        ),
        "bitwise",
    )
    assert "step 4 is the first that differs: ema_norm " in text
    assert "of the state" not in text


def test_an_optimizer_that_was_not_kept(tmp_path: Path) -> None:
    """The run has warned of it by name, and that is quoted."""
    text = failed(rehearse(tmp_path, keep="model=model"), "bitwise")
    assert "step 5 is the first that differs" in text  # in step 4 the loss is still that of the saved weights
    assert "the run itself warned: `optimizer` (AdamW) lives but was not kept" in text


def test_data_drawn_anew_at_each_start(tmp_path: Path) -> None:
    """Then two fresh starts differ as well, and nothing can be compared."""
    drawn = {"first": "noise = torch.randn(4)", "batch": "[b + noise[0] for b in next(batches)]"}
    text = failed(rehearse(tmp_path, **drawn), "bitwise")
    assert "step 0 is the first that differs" in text
    assert "a fresh start differs as well" in text
    assert "ls.deterministic(0)" in text


def test_a_batch_from_before_the_loop(tmp_path: Path) -> None:
    """A fresh start gives the same, so it is the state that lacks something."""
    text = failed(
        rehearse(
            tmp_path,
            first=f"{SEEDED}; random.seed(0)",
            before="first = [float(step) for step in range(9)]\nif run.attempt > 1: first = [1.0] * 9",
            batch="(lambda b: (b[0] + first[step % 9], b[1]))(next(batches))",
        ),
        "bitwise",
    )
    assert "step 0 is the first that differs" in text
    assert "A fresh start gives what the first one gave, so something is not kept" in text


# -- what does not come so far -------------------------------------------------------------------------------


def test_an_unadapted_script(tmp_path: Path) -> None:
    """No run appears; the lines to add bear the script's own names."""
    rehearsal = rehearse(
        tmp_path,
        """
        import argparse, torch
        args = argparse.ArgumentParser().parse_args()
        net = torch.nn.Linear(4, 1)
        opt = torch.optim.AdamW(net.parameters(), lr=0.01)
        train_loader = torch.utils.data.DataLoader(torch.ones(8, 4), 2)
        for epoch in range(3):
            for x in train_loader:
                net(x).sum().backward()
                opt.step()
        """,
    )
    text = failed(rehearsal, "train")
    for line in (
        'run = ls.Run.open("runs", vars(args))',
        "run.keep(model=net, optimizer=opt)",
        "batches = run.batches(train_loader)",
        "for step in run.steps(3 * len(train_loader)):",
    ):
        assert line in text
    assert rehearsal.starts == 1


@pytest.mark.parametrize(
    ("stage", "parts", "words"),
    [
        ("train", {"inside": "if step == 5: raise ValueError('no')"}, ("ended with status 1", "| ValueError: no")),
        ("train", {"inside": "if step == 5: break"}, ("6 steps logged, then the loop was left",)),
        ("train", {"total": "3"}, ("3 steps are too few to be interrupted twice: 4 at least",)),
        ("notice", {"options": ", notice=lambda: None"}, ("was not obeyed", "`notice=` of its own")),
        ("notice", {"config": "{'started': time.time()}"}, ("opened another run", "started: ", "exclude=[...]")),
        ("notice", {"before": "if run.attempt > 1: sys.exit('no')"}, ("ended with status 1 before step 4", "| no")),
        ("resume", {"before": "if run.attempt > 3: sys.exit(7)"}, ("ended with status 7",)),
    ],
)  # fmt: skip
def test_what_ends_otherwise(
    stage: str, parts: dict[str, str], words: tuple[str, ...], tmp_path: Path
) -> None:
    """Each fails at the stage that it is about, with what it printed."""
    text = failed(rehearse(tmp_path, **parts), stage)
    assert [word for word in words if word not in text] == [], text


def test_a_script_that_catches_the_end(tmp_path: Path) -> None:
    """A launcher would take status 0 for the end of the job."""
    body = SCRIPT.format(**USUAL)
    wrapped = f"try:\n{textwrap.indent(body, '    ')}\nexcept SystemExit:\n    pass\n"
    text = failed(rehearse(tmp_path, wrapped), "notice")
    assert "it ended with status 0, expected status 75" in text
    assert "catch SystemExit" in text


def test_a_script_that_hangs(tmp_path: Path) -> None:
    """It is killed after its time; the last step that it logged is said."""
    text = failed(rehearse(tmp_path, inside="time.sleep(3600 if step == 2 else 0)", timeout=8.0), "train")
    assert "still running after 8" in text
    assert "(--timeout); the last sign, " in text
    assert "ago: step 2" in text


def test_a_trainer_with_checkpoints_of_its_own(tmp_path: Path) -> None:
    """What a callback records cannot be rehearsed, and that is said."""
    text = failed(
        rehearse(
            tmp_path,
            """
            from loadsheet.integrations.record import Record
            record = Record("runs", {})
            for _ in range(9):
                record.begin_step()
                record.end_step()
                record.log({"loss": 1.0})
            record.finish()
            """,
        ),
        "save",
    )
    assert "a trainer with checkpoints of its own" in text


def test_a_run_that_was_kept_elsewhere(tmp_path: Path) -> None:
    """A script that takes the variable away is noticed by what it wrote."""
    text = failed(rehearse(tmp_path, first="import os; del os.environ['LOADSHEET_RUNS_ROOT']"), "train")
    assert "it kept its run in runs/" in text
    shutil.rmtree(tmp_path / "work" / "runs")


# -- pieces --------------------------------------------------------------------------------------------------


def test_the_first_difference() -> None:
    """In the order of the tree; bits count: NaN equals itself, 0.0 and -0.0 differ."""
    nan = float("nan")
    assert (
        first_difference({"a": nan, "t": torch.tensor([nan])}, {"a": nan, "t": torch.tensor([nan])}) is None
    )
    assert first_difference({"a": [0.0]}, {"a": [-0.0]}) == (("a", "0"), 0.0, -0.0)
    assert first_difference([1, 2], [1]) == ((), [1, 2], [1])
    assert first_difference(1, True) == ((), 1, True)
    found = first_difference({"t": torch.zeros(2)}, {"t": torch.zeros(2, dtype=torch.float64)})
    assert found is not None
    assert found[0] == ("t",)


def test_what_was_written(tmp_path: Path) -> None:
    """New and changed files, without caches; run directories among them."""
    (tmp_path / "old").write_text("1")
    before = traces(tmp_path)
    for name in ("new", "runs/ab/log.jsonl", "runs/ab/measured.json", "__pycache__/x", "x.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("2")
    (tmp_path / "old").write_text("22")
    written = traces(tmp_path).written_since(before)
    assert written == ["new", "old", "runs/ab/log.jsonl", "runs/ab/measured.json"]
    assert runs_among(written) == ["runs/ab"]


@pytest.mark.parametrize("width", [40, 60, 100, 400])
def test_lines_fit(width: int) -> None:
    """Sentences wrap, code and quotations keep their form, remarks go below where there is no room."""
    stage = Stage("train", "fail", ("word " * 40, "    x = 1  # " + "remark " * 30, "| quoted as it is"))
    shown = lines(stage, width)
    assert max(len(line) for line in shown) <= width
    assert shown[-1].strip() == "| quoted as it is"
    assert any(line.strip().startswith("x = 1") for line in shown)
    last = not_come_to([Stage(name, "unknown", ()) for name in STAGES], width)
    assert max(len(line) for line in last) <= width


# -- from the command line -----------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes with status 0, and leaves nothing but its file, which `preflight` and `odds` can read."""
    monkeypatch.setattr(process.Lives, "spawn", Forked.spawn)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT.format(**USUAL))
    result = command_line("rehearse", "--json", "--", "python", "train.py")
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    file = tmp_path / ".loadsheet" / "rehearsal.json"
    assert json.loads(file.read_bytes()) == found
    assert [path.name for path in file.parent.iterdir()] == ["rehearsal.json"]
    assert found["schema"] == 1
    assert (found["passed"], found["steps"], found["commit"], found["dirty"]) == (True, 12, None, None)
    assert found["command"] == ["python", "train.py"]
    assert [stage["id"] for stage in found["stages"]] == list(STAGES)
    assert set(found["save_seconds"]) == {"stall", "total"}
    assert {"checkpoint_bytes", "step_seconds", "data_wait_share", "time"} <= found.keys()
    odds = command_line("odds", "--work", "2h", "--mtbf", "6h", "--jobs", "100", "--json")
    assert odds.exit_code == 0, odds.stderr
    preflight = command_line("preflight", "--only", "code.rehearsed", "--json")
    (check,) = json.loads(preflight.stdout)["checks"]
    assert (check["id"], check["state"]) == ("code.rehearsed", "warn")  # on which code is not known


def test_the_page_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 1; the stage that failed, those not come to, where it was written."""
    monkeypatch.setattr(process.Lives, "spawn", Forked.spawn)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('nothing')\n")
    result = command_line("rehearse", "--scratch", "kept", "--", "python", "train.py", COLUMNS="80")
    assert result.exit_code == 1, result.stderr
    assert "FAIL    train     no run appeared" in result.stdout
    assert "unknown data, evaluate, save, notice, kill, resume, bitwise, done: not come to" in result.stdout
    assert result.stdout.rstrip().endswith("written to .loadsheet/rehearsal.json")
    assert (tmp_path / "kept" / "reference.out").read_text() == "nothing\n"


def test_a_failure_keeps_the_save_that_was_measured_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped command, twice: `odds` still has the save, its size and step; `preflight` says that it failed."""
    monkeypatch.setattr(process.Lives, "spawn", Forked.spawn)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing.py").write_text("print('nothing')\n")
    file = tmp_path / ".loadsheet" / "rehearsal.json"
    file.parent.mkdir()
    passed = {
        "time": 1_790_000_000.0, "commit": "c" * 40, "command": ["python", "train.py"], "passed": True,
        "save_seconds": {"stall": 0.5, "total": 2.0}, "checkpoint_bytes": 10**6, "step_seconds": 0.25,
    }  # fmt: skip
    file.write_text(json.dumps(passed))
    for _ in range(2):
        result = command_line("rehearse", "--", "python", "nothing.py", COLUMNS="80")
        assert result.exit_code == 1, result.stderr
        assert "what one takes stays that of `python train.py`" in " ".join(result.stdout.split())
        found = json.loads(file.read_bytes())
        assert (found["passed"], found["command"]) == (False, ["python", "nothing.py"])
        for name in ("save_seconds", "checkpoint_bytes", "step_seconds"):
            assert found[name] == passed[name]
        assert found["save_from"] == {name: passed[name] for name in ("time", "commit", "command")}
    odds = command_line("odds", "--work", "2h", "--mtbf", "6h", "--jobs", "100", "--json")
    assert odds.exit_code == 0, odds.stderr
    inputs = json.loads(odds.stdout)["inputs"]
    assert (inputs["save"]["value"], inputs["commit"]["value"], inputs["step"]["value"]) == (0.5, 1.5, 0.25)
    preflight = command_line("preflight", "--only", "code.rehearsed", "--json")
    assert preflight.exit_code == 1
    (check,) = json.loads(preflight.stdout)["checks"]
    assert check["state"] == "fail"
    assert "did not pass" in check["evidence"][0]["fact"]


@pytest.mark.parametrize(
    "before",
    [None, "{", "[]", '{"save_seconds": null, "command": []}', '{"command": [1], "save_seconds": {}}'],
)
def test_no_save_to_keep(before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No record, a broken one, or one without a save: null, as ever."""
    monkeypatch.setattr(process.Lives, "spawn", Forked.spawn)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing.py").write_text("print('nothing')\n")
    if before is not None:
        (tmp_path / ".loadsheet").mkdir()
        (tmp_path / ".loadsheet" / "rehearsal.json").write_text(before)
    found = json.loads(command_line("rehearse", "--json", "--", "python", "nothing.py").stdout)
    assert (found["save_seconds"], found["save_from"]) == (None, None)


@pytest.mark.parametrize("where", ["report.commit_of", "scratch.Scratch.__init__", "carry_out.environment"])
def test_ctrl_c_while_it_begins(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 130, and no folder of a rehearsal that never was."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"loadsheet.cloud.rehearse.{where}", interrupted)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('nothing')\n")
    assert command_line("rehearse", "--", "python", "train.py").exit_code == 130
    assert list((tmp_path / ".loadsheet").iterdir()) == []


def test_ctrl_c_is_not_lost_in_an_import() -> None:
    """What swallows every exception, as some extensions do while they are imported, does not swallow this one."""
    seen = []

    def import_it() -> None:
        with _interrupts_wait():
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                seen.append("swallowed")
            seen.append("the end of the block")

    with pytest.raises(KeyboardInterrupt):
        import_it()
    assert seen == ["the end of the block"]
    with pytest.raises(KeyboardInterrupt):  # and behind it, all is as before
        signal.raise_signal(signal.SIGINT)

"""The tracker for Accelerate, with the real library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("msgspec")

import accelerate
import torch

import loadsheet as ls
from loadsheet.errors import BadInput
from loadsheet.history.index import scan
from loadsheet.run.directory import read_done
from loadsheet.run.errors import RunWarning
from loadsheet.run.reading import read_events

CONFIG = {"lr": 0.1, "seed": 0, "out": "somewhere"}


class Crash(Exception):
    pass


def train(folder: Path, crash_after: int | None = None, *, epochs: int = 2, accumulate: int = 1) -> Path:
    """A loop as people write it, which saves by itself; ten batches an epoch."""
    from loadsheet.integrations.accelerate import LoadsheetTracker

    tracker = LoadsheetTracker(folder / "runs", exclude=["out"])
    accelerator = accelerate.Accelerator(
        cpu=True, log_with=tracker, gradient_accumulation_steps=accumulate, project_dir=folder
    )
    accelerator.init_trackers("test", config=CONFIG | {"accumulate": accumulate})
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = torch.utils.data.DataLoader(torch.arange(40.0).reshape(20, 2) / 40, 2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    completed = 0
    saved = folder / "saved"
    if saved.exists():
        accelerator.load_state(saved)
        completed = int((folder / "completed").read_text())
        tracker.resume(completed)
    for epoch in range(completed * accumulate // 10, epochs):
        for x in tracker.batches(loader):
            with accelerator.accumulate(model):
                loss = model(x).pow(2).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                accelerator.log({"loss": loss.item(), "samples_per_second": 3.5}, step=completed)
                completed += 1
                if completed == crash_after:
                    raise Crash
        with tracker.aside():
            accelerator.log({"val": epoch / 10}, step=completed - 1)
        with tracker.saving(saved):
            accelerator.save_state(saved)
        (folder / "completed").write_text(str(completed))
    accelerator.end_training()
    (path,) = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    return path


def test_a_crash_and_a_resume(tmp_path: Path) -> None:
    """Each step once, with the values of a training in one go; the lost steps are counted."""
    whole = ls.read_log(train(tmp_path / "whole"))
    with pytest.raises(Crash):
        train(tmp_path / "cut", 13)
    path = train(tmp_path / "cut")
    log = ls.read_log(path)
    assert log["step"] == whole["step"] == list(range(20))
    assert (log["loss"], log["val"]) == (whole["loss"], whole["val"])
    assert [v for v in log["val"] if v is not None] == [0.0, 0.1]
    assert log["timing.samples_per_second"] == [3.5] * 20
    assert log["attempt"] == [1] * 10 + [2] * 10
    events = read_events(path)
    assert [e["from"] for e in events if e["event"] == "resume"] == [0, 10]
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [10, 20]
    assert events[-1]["bytes"] == sum(f.stat().st_size for f in (tmp_path / "cut" / "saved").rglob("*"))
    second = json.loads((path / "measured.json").read_bytes())["attempts"]["2"]
    facts = [second[k] for k in ("from_step", "to_step", "steps_timed", "lost_steps", "saves", "ended")]
    assert facts == [10, 20, 10, 3, 1, "done"]
    (row,) = scan(path.parent, index=False)
    assert (row.state, row.step, row.total, row.attempts, row.problems) == ("done", 20, 20, 2, ())


def test_what_makes_the_run(tmp_path: Path) -> None:
    """What init_trackers was given, without what is excluded."""
    path = train(tmp_path, epochs=1)
    config = json.loads((path / "config.json").read_bytes())
    assert config == {"trainer": "accelerate", "lr": 0.1, "seed": 0, "accumulate": 1}


def test_accumulated_gradients(tmp_path: Path) -> None:
    """Two batches are one step."""
    path = train(tmp_path, accumulate=2)
    assert (ls.read_log(path)["step"], read_done(path)) == (list(range(10)), 10)


@pytest.mark.parametrize(("steps", "done"), [(range(5), 5), (range(1, 6), 5), (range(10, 60, 10), 50)])
def test_only_log(steps: Any, done: int, tmp_path: Path) -> None:
    """Nothing else is needed; whether steps are counted from 0 or from 1 is seen by the first."""
    from loadsheet.integrations.accelerate import LoadsheetTracker

    accelerator = accelerate.Accelerator(cpu=True, log_with=LoadsheetTracker(tmp_path))
    accelerator.init_trackers("test", config={})
    for step in steps:
        accelerator.log({"loss": 1.0}, step=step)
    accelerator.end_training()
    (path,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert (ls.read_log(path)["step"], read_done(path)) == (list(steps), done)


def test_left_by_break(tmp_path: Path) -> None:
    """The step in which the loop over batches is left is complete."""
    from loadsheet.integrations.accelerate import LoadsheetTracker

    tracker = LoadsheetTracker(tmp_path)
    accelerator = accelerate.Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("test", config={})
    for _ in range(2):
        for number in tracker.batches(range(5)):
            if number == 2:
                break
    accelerator.end_training()
    (path,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert read_done(path) == 6


def test_what_cannot_be_logged(tmp_path: Path) -> None:
    """An object is left out with a warning, and so is a step that goes back; the rest is there."""
    from loadsheet.integrations.accelerate import LoadsheetTracker

    tracker = LoadsheetTracker(tmp_path)
    accelerator = accelerate.Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("test", config={})
    with pytest.warns(RunWarning, match=r"not recorded: log\.picture: got an object"):
        accelerator.log({"loss": 1.0, "picture": object(), "step": 3}, step=4)
    with pytest.warns(RunWarning, match="values of step 2 after step 4"):
        accelerator.log({"loss": 2.0}, step=2)
    with pytest.raises(BadInput, match="whole number of completed steps"):
        tracker.resume(-1)
    accelerator.end_training()
    (path,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    log = ls.read_log(path)
    assert (log["step"], log["loss"], log["step_"]) == ([4], [1.0], [3])

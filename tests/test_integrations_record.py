"""The record of somebody else's training: what it writes, and that it never ends that training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("msgspec")

import loadsheet as ls
from loadsheet.errors import BadInput
from loadsheet.history.check import check
from loadsheet.integrations.record import Record, merged, plain
from loadsheet.run.directory import read_done
from loadsheet.run.errors import NoSpace, RunWarning
from loadsheet.run.reading import read_events


def steps(record: Record, number: int, **values: Any) -> None:
    """So many steps, each logged."""
    for _ in range(number):
        record.begin_step()
        record.end_step()
        record.log({"loss": record.completed / 7, **values})


def test_which_step_a_value_belongs_to(tmp_path: Path) -> None:
    """Before the first, inside one, after one, after the end; of a resumed attempt before its first step to none."""
    record = Record(tmp_path, {}, total=2)
    record.log({"before": 1.0})
    record.begin_step()
    record.log({"inside": 2.0})
    record.end_step()
    record.log({"after": 3.0, "eval_runtime": 4.0})
    record.begin_step()
    record.end_step()
    record.log({"after": 5.0})
    record.finish()
    record.log({"after": 6.0})
    record.close()
    assert [finding.state for finding in check(record.path).findings] == [
        "ok"
    ] * 4  # its checkpoints are elsewhere
    log = ls.read_log(record.path)
    assert (log["step"], log["before"], log["inside"], log["after"], log["timing.eval_runtime"]) == (
        [0, 1, 2],
        [1.0, None, None],
        [2.0, None, None],
        [3.0, 5.0, 6.0],
        [4.0, None, None],
    )
    again = Record(tmp_path, {}, start=1)
    again.log({"before": 7.0})
    again.close()
    assert ls.read_log(record.path)["step"] == [0]
    (event,) = [e for e in read_events(record.path) if e["event"] == "evaluation"]
    assert (event["step"], event["before"]) == (1, 7.0)


def test_a_full_disk_does_not_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once, and nothing is recorded after it."""
    record = Record(tmp_path, {})
    steps(record, 2)

    def full(*_: Any) -> None:
        raise NoSpace("log: got 'No space left on device', expected room to write")

    monkeypatch.setattr(record._log, "write", full)
    with pytest.warns(
        RunWarning, match="No space left on device.*training goes on, and nothing more"
    ) as said:
        steps(record, 3)
    monkeypatch.undo()
    steps(record, 1)
    record.finish()
    record.close()
    assert len(said) == 1
    assert (ls.read_log(record.path)["step"], read_done(record.path)) == ([0, 1], None)


def test_the_same_run_again_in_one_process(tmp_path: Path) -> None:
    """As in a notebook: the record that was left open is closed, and has measured what it had done."""
    first = Record(tmp_path, {"lr": 1})
    steps(first, 3)
    second = Record(tmp_path, {"lr": 1}, start=2)
    steps(second, 2)
    second.close()
    attempts = json.loads((second.path / "measured.json").read_bytes())["attempts"]
    facts = [[a[k] for k in ("from_step", "to_step", "lost_steps")] for a in attempts.values()]
    assert facts == [[0, 3, 0], [2, 4, 1]]
    assert ls.read_log(second.path)["attempt"] == [1, 1, 2, 2]


def test_steps_that_are_run_again_are_compared_if_that_makes_sense(tmp_path: Path) -> None:
    """A mean over several steps begins anew with the process: then they are not."""
    steps(Record(tmp_path, {}), 3)
    steps(Record(tmp_path, {}, start=1, compare=False), 2, loss=9.0)
    with pytest.warns(RunWarning, match="not the same bits: step 1 of attempt 3 differs from attempt 2"):
        steps(Record(tmp_path, {}, start=1, compare=True), 2, loss=8.0)
    Record(tmp_path, {}).close()


def test_settings_of_others() -> None:
    """As plain values; what has no fixed text is left out."""
    import argparse
    import enum

    import torch

    class Size(enum.Enum):
        BIG = 1

    class Config:
        def to_dict(self) -> dict[str, Any]:
            return {"hidden": 4}

    got = plain(
        {
            "config": Config(),
            "dtype": torch.bfloat16,
            "scale": torch.tensor(0.5),
            "weights": torch.ones(3),
            "names": {"b", "a"},
            "path": Path("x/y"),
            "args": argparse.Namespace(lr=0.1),
            "size": Size.BIG,
            "bad": float("nan"),
            3: lambda: 0,
        }
    )
    assert got == {
        "config": {"hidden": 4}, "dtype": "torch.bfloat16", "scale": 0.5, "weights": None, "names": ["a", "b"],
        "path": "x/y", "args": {"lr": 0.1}, "size": "BIG", "bad": "nan", "3": None,
    }  # fmt: skip
    with pytest.raises(BadInput, match="config: got 'lr', expected another name"):
        merged({"lr": 1}, {"lr": 2})

"""What is said of runs that are not done, or not finite: steps that no checkpoint has, values that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from history_runs import BEGUN, aged, written
from terminal import answered

from loadsheet.history.rows import read_row
from loadsheet.run.lock import RunLock


def interrupted(root: Path, *saved: int, total: int = 60, steps: int = 36, **config: Any) -> Path:
    """A run that logged 36 of 60 steps and was killed; with checkpoints after some of them."""
    planned = {"event": "steps", "attempt": 1, "time": BEGUN, "total": total}
    path = written(root, {"lr": 1, **config}, {"loss": [1.0] * steps}, done=False, events=[planned])
    for step in saved:
        (path / "checkpoints" / f"step-{step:08d}").mkdir()
    return path


def listed(root: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(answered("runs", "list", "--runs", str(root), "--json").stdout)[
        "runs"
    ]
    return found


@pytest.mark.parametrize(
    ("saved", "unsaved", "words"),
    [
        ((15, 30), 6, "36/60, saved to 30"),
        ((0,), 36, "36/60, saved to 0"),
        ((), 36, "36/60, saved to 0"),
        ((36,), 0, "36/60"),
    ],
)
def test_steps_that_no_checkpoint_has(
    tmp_path: Path, saved: tuple[int, ...], unsaved: int, words: str
) -> None:
    """36 steps logged, the newest checkpoint after 30 of them: 6 will be run again. In list, JSON and show."""
    path = interrupted(tmp_path, *saved)
    aged(tmp_path)
    for _ in range(2):  # read from the files, then from the index
        (row,) = listed(tmp_path)
        assert (row["unsaved_steps"], row["lost_steps"], row["state"]) == (unsaved, 0, "interrupted")
    page = answered("runs", "list", "--runs", str(tmp_path)).stdout
    assert f" {words} " in page
    assert ("saved to" in page) is bool(unsaved)
    head = answered("runs", "show", path.name, "--runs", str(tmp_path)).stdout.split("\n\n")[0]
    assert (f"{unsaved} steps will be run again" in " ".join(head.split())) is bool(unsaved)


def test_unsaved_steps_that_cannot_be_told(tmp_path: Path) -> None:
    """While it runs the number would be old at once; and a checkpoint that is gone may be in a mirror: null."""
    path = interrupted(tmp_path, 30)
    lock = RunLock(path / "lock")
    lock.acquire(0)
    try:
        (row,) = listed(tmp_path)
    finally:
        lock.release()
    assert (row["state"], row["unsaved_steps"]) == ("running", None)
    other = tmp_path / "mirrored"
    path = interrupted(other, 30)
    with (path / "log.jsonl").open("a") as log:
        log.write(json.dumps({"event": "resume", "attempt": 2, "time": BEGUN + 99, "from": 36}) + "\n")
    assert read_row(path).unsaved_steps is None
    third = tmp_path / "unread"
    path = interrupted(third)
    (path / "checkpoints").rmdir()
    (path / "checkpoints").write_text("no folder")
    assert read_row(path).unsaved_steps is None


def test_nothing_is_unsaved_of_a_run_that_is_done_or_empty(tmp_path: Path) -> None:
    """Also where a value was logged after the loop: that is no step."""
    done = written(tmp_path, {"lr": 2}, {"loss": [1.0] * 3})
    empty = written(tmp_path, {"lr": 3}, done=False)
    (empty / "log.jsonl").unlink()
    (empty / "provenance" / "attempt-0001.json").unlink()
    over = interrupted(tmp_path, 20, steps=21, total=20)
    assert [read_row(path).unsaved_steps for path in (done, empty, over)] == [0, 0, 0]


def test_a_run_that_ends_in_nan_is_marked(tmp_path: Path) -> None:
    """10 steps, from the seventh on NaN or infinite: `list` marks it, `show` and JSON count and say since when."""
    path = written(tmp_path, {"lr": 1}, {"loss": [2.0] * 6})
    with (path / "log.jsonl").open("a") as log:
        for step, value in enumerate(["NaN", "Infinity", "NaN", "NaN"], start=6):
            log.write(json.dumps({"step": step, "attempt": 1, "time": BEGUN, "loss": value}) + "\n")
    (path / "done.json").write_text(json.dumps({"steps": 10, "attempt": 1, "time": BEGUN + 9}))
    written(tmp_path, {"lr": 2}, {"loss": [1.0] * 10})
    metrics = {row["config"]["lr"]: row["metrics"]["loss"] for row in listed(tmp_path)}
    assert {lr: (found["nonfinite"], found["nonfinite_step"]) for lr, found in metrics.items()} == {
        1: (4, 6),
        2: (0, None),
    }
    page = answered("runs", "list", "--runs", str(tmp_path)).stdout
    assert [line.split()[1:3] for line in page.splitlines()[3:5]] == [["done", "2"], ["done", "(NaN)"]]
    assert "(NaN): the last loss of the run is no finite number" in page
    shown = " ".join(answered("runs", "show", path.name, "--runs", str(tmp_path)).stdout.split())
    assert (
        "! loss: 4 of 10 values are no finite number, the first at step 6, and the last one is none" in shown
    )

"""What is said of runs that are not done, or not finite: steps that no checkpoint has, values that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from history_runs import BEGUN, aged, written
from terminal import answered, refused, run

from loadsheet.history.rows import read_row
from loadsheet.history.story import read_story
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


def test_what_is_logged_after_the_loop_is_no_step(tmp_path: Path) -> None:
    """60 of 60 steps and a test loss after them, but no last checkpoint: 60 of 60, of which 20 run again."""
    path = interrupted(tmp_path, 40, steps=61)
    aged(tmp_path)
    for _ in range(2):  # read from the files, then from the index
        (row,) = listed(tmp_path)
        assert (row["state"], row["step"], row["unsaved_steps"]) == ("interrupted", 60, 20)
    assert "60, saved to 40" in answered("runs", "list", "--runs", str(tmp_path)).stdout
    shown = answered("runs", "show", path.name, "--runs", str(tmp_path)).stdout
    assert "interrupted after 60 steps" in shown
    assert "61" not in shown.partition("metrics")[0].replace(path.name, "")
    assert "★" not in shown  # it was killed: nothing says that it is complete


def test_a_done_run_that_is_started_again_has_lost_no_step(tmp_path: Path) -> None:
    """The second attempt finds all 20 steps done; the loss that the first logged after them is no step run again."""
    path = interrupted(tmp_path, 20, steps=21, total=20)
    (path / "done.json").write_text(json.dumps({"steps": 20, "attempt": 1, "time": BEGUN + 21}))
    with (path / "log.jsonl").open("a") as log:
        log.write(json.dumps({"event": "resume", "attempt": 2, "time": BEGUN + 99, "from": 20}) + "\n")
        log.write(json.dumps({"event": "steps", "attempt": 2, "time": BEGUN + 99, "total": 20}) + "\n")
        log.write(json.dumps({"step": 20, "attempt": 2, "time": BEGUN + 99, "loss": 1.0}) + "\n")
    row = read_row(path)
    assert (row.state, row.step, row.lost_steps, row.resumes) == ("done", 20, 0, 1)
    assert read_story(row).repeated == 0


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


def test_the_default_metric_is_one_that_most_runs_have(tmp_path: Path) -> None:
    """One of six runs was evaluated: the loss is compared, and if the other is asked for, how few have it is said."""
    for lr in range(6):
        values = {"loss": [float(lr + 1)]} | ({"val_loss": [9.0]} if lr == 0 else {})
        written(tmp_path, {"lr": lr}, values)
    page = answered("runs", "list", "--runs", str(tmp_path)).stdout
    assert "best: loss*, the lowest* of each run" in page
    asked = answered("runs", "list", "--runs", str(tmp_path), "--metric", "val_loss").stdout
    assert "best: val_loss: 1 of 6 runs, the lowest* of each run" in asked


def test_seeds_are_counted_and_the_number_is_named(tmp_path: Path) -> None:
    """Four seeds, one killed: three count (1, 2, 3: mean 2, s 1), and it says in which number."""
    paths = [
        written(tmp_path, {"seed": seed}, {"loss": [float(seed)] * 3}, done=seed < 4) for seed in range(1, 5)
    ]
    shown = " ".join(answered("runs", "show", paths[0].name, "--runs", str(tmp_path)).stdout.split())
    assert "3 of 4 runs that differ only in the seed count; their spread is known as well as 3 runs" in shown
    assert "loss*, the lowest* of each run: n = 3, mean 2, s = 1, 1 to 3" in shown
    assert f"does not count: {paths[3].name}, interrupted after 3 steps" in shown


def test_a_config_of_another_program_is_no_run(tmp_path: Path) -> None:
    """A folder with a config.json and nothing else of a run is not listed; and no run at all is said so."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert listed(tmp_path) == []
    refused("runs", "compare", "a", "b", "--runs", str(tmp_path), words="hint: there is no run at all")


def test_a_narrow_page_of_groups_keeps_the_key(tmp_path: Path) -> None:
    """What tells groups apart goes after the spread does; and the sentence says whose spread it is."""
    for size in (100_000, 200_000):
        for seed in range(2):
            written(tmp_path, {"batch_size": size, "seed": seed}, {"loss": [size / 1e5 + seed * size / 1e7]})
    page = run("runs", "list", "--groups", "--runs", str(tmp_path), COLUMNS="42").stdout
    head = next(line for line in page.splitlines() if line.startswith("group"))
    assert head.split() == ["group", "n", "batch_size", "mean"]
    # 100 times as far apart as the seeds of the second group, which spread twice as far: s = 0.02/√2 = 0.01414
    assert "s = 0.01414 between the seeds of batch_size=200000" in " ".join(page.split())

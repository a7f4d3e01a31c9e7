"""`runs gc`: exactly what the rule does not keep goes, what stays is whole, and nobody loses a run by it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from run_processes import HOLD, end, start
from runs_left import STEPS, train
from terminal import answered, refused, run

import loadsheet as ls
from loadsheet.cli import main
from loadsheet.cli.runs import gc
from loadsheet.history.check import check
from loadsheet.history.tidy import Freed, Rule, carry_out, plan
from loadsheet.run.files import Disk
from loadsheet.run.lock import RunLock
from loadsheet.run.retention import Best

DAY = 86400.0


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A done run with checkpoints 0, 3, 6, 9 and 12, whose val_loss is 9.1, 0.1, 9.1, 36.1 from 3 on."""
    return train(tmp_path_factory.mktemp("runs"), {"lr": 0.1})


@pytest.fixture
def path(left: Path, tmp_path: Path) -> Path:
    """A copy of it that may be tidied."""
    return Path(shutil.copytree(left, tmp_path / "runs" / left.name))


def steps(path: Path) -> list[int]:
    return sorted(int(p.name.removeprefix("step-")) for p in (path / "checkpoints").glob("step-*"))


def folder(path: Path, step: int) -> Path:
    return path / "checkpoints" / f"step-{step:08d}"


def bytes_below(path: Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def damage(path: Path, step: int) -> None:
    file = folder(path, step) / "tensors.bin"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def leftover(path: Path, name: str) -> Path:
    found = path / "checkpoints" / name
    found.mkdir()
    (found / "tensors.bin").write_bytes(bytes(1000))
    return found


def gone(path: Path, rule: Rule, **options: float) -> Freed:
    return carry_out(plan(path, rule, **options), rule, **options)


# --- the rule -------------------------------------------------------------------------------------------------

RULES = {
    "nothing said": (Rule(), [0, 3, 6, 9, 12]),
    "last": (Rule(keep_last=1), [12]),
    "last two": (Rule(keep_last=2), [9, 12]),
    "more than there are": (Rule(keep_last=99), [0, 3, 6, 9, 12]),
    "every": (Rule(keep_every=6), [0, 6, 12]),
    "every, and none is one": (Rule(keep_every=100), [0, 12]),
    "best": (Rule(best=(Best("val_loss"),)), [6, 12]),
    "best two, of equals the later": (Rule(best=(Best("val_loss", "min", 2),)), [6, 9, 12]),
    # the fewest tokens are those of step 0, which count for the checkpoint of 0 steps
    "best by two metrics": (Rule(best=(Best("val_loss"), Best("tokens"))), [0, 6, 12]),
    "highest": (Rule(best=(Best("val_loss", "max"),)), [12]),
    "all together": (Rule(keep_last=1, keep_every=9, best=(Best("val_loss"),)), [0, 6, 9, 12]),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(path: Path, name: str) -> None:
    """What stays, worked out by hand; what is shown is what goes, and its bytes are those that are freed."""
    rule, expected = RULES[name]
    before = bytes_below(path / "checkpoints")
    shown = plan(path, rule)
    assert [item.step for item in shown.stay] == expected
    assert steps(path) == [0, 3, 6, 9, 12]
    done = carry_out(shown, rule)
    assert steps(path) == expected
    assert done.problems == []
    assert done.nbytes == shown.nbytes == before - bytes_below(path / "checkpoints")
    assert check(path).ok
    assert not list((path / "checkpoints").glob(".*"))


@pytest.mark.parametrize(("metric", "mode"), [("val_loss", "min"), ("val_loss", "max"), ("loss", "min")])
def test_best_is_what_load_calls_best(path: Path, metric: str, mode: str) -> None:
    """The one that `load(run, "best")` reads stays, and is still the best afterwards."""
    best = ls.load(path, "best", metric=metric, mode=mode)  # type: ignore[arg-type]
    gone(path, Rule(best=(Best(metric, mode),)))  # type: ignore[arg-type]
    assert steps(path) == sorted({best.step, STEPS})
    again = ls.load(path, "best", metric=metric, mode=mode)  # type: ignore[arg-type]
    assert again.step == best.step
    weights = [state.value("model")["state"]["embed.weight"].tolist() for state in (best, again)]
    assert weights[0] == weights[1]


def test_older_than(path: Path) -> None:
    """Age counts from when a checkpoint was made, as its manifest says; what is younger stays."""
    made = {
        s: json.loads((folder(path, s) / "manifest.json").read_text())["manifest"]["time"]
        for s in steps(path)
    }
    assert sorted(made.values()) == list(made.values())
    old = leftover(path, ".saving-step-00000015-ab")
    rule = Rule(older_than=DAY)
    assert plan(path, rule, now=made[0] + DAY - 1).free == []
    shown = plan(path, rule, now=made[6] + DAY)
    assert [item.step for item in shown.free] == [0, 3, 6]
    assert not gone(path, rule, now=made[6] + DAY).problems
    assert steps(path) == [9, 12]
    assert old.exists()
    gone(path, rule, now=time.time() + 2 * DAY)
    assert steps(path) == [12]  # the newest, however old
    assert not old.exists()


def test_a_metric_that_was_not_logged(path: Path) -> None:
    """Which is best is not known, so nothing of that run goes, whatever the rest of the rule says."""
    rule = Rule(keep_last=1, best=(Best("accuracy", "max"),))
    shown = plan(path, rule)
    assert shown.free == []
    assert "accuracy" in shown.reason
    assert gone(path, rule).items == []
    assert steps(path) == [0, 3, 6, 9, 12]


# --- leftovers ------------------------------------------------------------------------------------------------


def test_leftovers(path: Path) -> None:
    """Without any rule: what was not finished, what was set aside; one being replaced will get its name back."""
    names = {
        ".saving-step-00000015-0011aabb": "unfinished",
        ".old-step-00000001-0011aabb": "unfinished",
        ".replaced-step-00000012-0011aabb": "unfinished",
        "torn-step-00000007-1": "set aside",
    }
    for name in names:
        leftover(path, name)
    other = leftover(path, "notes")
    folder(path, 6).rename(path / "checkpoints" / ".replaced-step-00000006-0011aabb")
    shown = plan(path, Rule())
    assert {item.name: item.kind for item in shown.free} == names
    assert shown.nbytes == 4 * 1000
    done = carry_out(shown, Rule())
    assert sorted(item.name for item in done.items) == sorted(names)
    left = sorted(p.name for p in (path / "checkpoints").iterdir() if not p.name.startswith("step-"))
    assert left == [".replaced-step-00000006-0011aabb", "notes"]
    assert other.exists()


def test_only_what_was_shown(path: Path) -> None:
    """What comes to be between the question and the answer stays."""
    rule = Rule(keep_last=4)
    shown = plan(path, rule)
    assert [item.step for item in shown.free] == [0]
    new = leftover(path, ".saving-step-00000015-0011aabb")
    shutil.copytree(folder(path, 12), folder(path, 11))  # one more, and not whole: its manifest says 12
    done = carry_out(shown, rule)
    assert [item.step for item in done.items] == [0]
    assert new.exists()
    assert steps(path) == [3, 6, 9, 11, 12]


# --- damage ---------------------------------------------------------------------------------------------------


def test_the_newest_is_damaged(path: Path) -> None:
    """The newest whole one stays in its place; the damaged one is left where it is, and said."""
    damage(path, 12)
    done = gone(path, Rule(keep_last=1))
    assert steps(path) == [9, 12]
    (problem,) = done.problems
    assert problem.startswith("step-00000012/tensors.bin: got checksum")


def test_one_after_another_is_damaged(path: Path) -> None:
    """The rule is answered with those that are whole, however many are not."""
    for step in (6, 9, 12):
        damage(path, step)
    done = gone(path, Rule(keep_last=1, keep_every=6))
    assert steps(path) == [0, 3, 6, 9, 12]  # 0 is a multiple, 3 the newest whole one
    assert len(done.problems) == 3
    assert done.items == []


def test_none_is_whole(path: Path) -> None:
    """Nothing goes where no checkpoint is whole: there may be something to save in one of them."""
    for step in (0, 3, 6, 9, 12):
        damage(path, step)
    assert gone(path, Rule(keep_last=1)).items == []
    assert steps(path) == [0, 3, 6, 9, 12]


def test_a_cut_file_is_seen_at_once(path: Path) -> None:
    """A wrong size shows in the list already, without reading; it counts for no rule."""
    file = folder(path, 12) / "tensors.bin"
    file.write_bytes(file.read_bytes()[:-1])
    shown = plan(path, Rule(keep_last=1))
    assert [item.step for item in shown.free] == [0, 3, 6]
    assert len(shown.damaged) == 1
    assert {item.step: item.kind for item in shown.stay} == {9: "checkpoint", 12: "damaged"}


def test_damaged_ones_are_freed_if_asked_for(path: Path) -> None:
    """With `damaged` all are read, those that are not whole go, and the rule counts the others."""
    damage(path, 12)
    damage(path, 3)
    rule = Rule(keep_last=1, damaged=True)
    shown = plan(path, rule)
    assert {item.step: item.kind for item in shown.free} == {
        0: "checkpoint", 3: "damaged", 6: "checkpoint", 12: "damaged"
    }  # fmt: skip
    done = carry_out(shown, rule)
    assert steps(path) == [9]
    assert done.problems == []


def test_read_back_before_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing big is read while a run that starts would have to wait, unless it has changed since."""
    read: list[str] = []
    locked = False
    acquire, chunks = RunLock.acquire, Disk.chunks
    change = False

    def lock(self: RunLock, wait: float) -> None:
        nonlocal locked
        locked = True
        if change:
            damage(path, 12)
        acquire(self, wait)

    def reading(self: Disk, name: str) -> Any:
        if locked and not name.endswith("manifest.json"):
            read.append(name)
        return chunks(self, name)

    monkeypatch.setattr(RunLock, "acquire", lock)
    monkeypatch.setattr(Disk, "chunks", reading)
    assert [item.step for item in gone(path, Rule(keep_last=3)).items] == [0, 3]
    assert read == []
    locked, change = False, True
    done = gone(path, Rule(keep_last=1))
    assert {name.split("/")[-2] for name in read} == {"step-00000012", "step-00000009"}
    assert steps(path) == [9, 12]
    assert len(done.problems) == 1


# --- whose it is ----------------------------------------------------------------------------------------------


def test_in_use(tmp_path: Path, left: Path) -> None:
    """A run whose lock is held is not touched, whether it was when shown or only when it came to deleting."""
    process = start(HOLD, tmp_path)
    try:
        (path,) = tmp_path.iterdir()
        shutil.rmtree(path / "checkpoints")
        shutil.copytree(left / "checkpoints", path / "checkpoints")
        shown = plan(path, Rule(keep_last=1))
        assert shown.reason == "in use by a living process"
        assert shown.free == []
        free = plan(left, Rule(keep_last=1))
        free.path = path  # as if it had been free then
        done = carry_out(free, Rule(keep_last=1))
        assert str(process.pid) in done.problems[0]
        assert done.items == []
        assert steps(path) == [0, 3, 6, 9, 12]
    finally:
        end(process)
    assert not plan(path, Rule(keep_last=1)).reason


def test_links(path: Path, tmp_path: Path) -> None:
    """What lies elsewhere is nobody's to delete: neither one checkpoint nor the folder of all."""
    shutil.move(folder(path, 3), tmp_path / "elsewhere")
    folder(path, 3).symlink_to(tmp_path / "elsewhere")
    gone(path, Rule(keep_last=1))
    assert steps(path) == [3, 12]
    assert len(list((tmp_path / "elsewhere").iterdir())) == 3
    shutil.move(path / "checkpoints", tmp_path / "all")
    (path / "checkpoints").symlink_to(tmp_path / "all")
    assert "link" in plan(path, Rule(keep_last=1)).reason


def test_the_run_goes_on(path: Path, left: Path, tmp_path: Path) -> None:
    """A run that was tidied goes on to the same weights and losses as one that was not."""
    other = Path(shutil.copytree(left, tmp_path / "other" / left.name))
    gone(path, Rule(keep_last=1))
    ended = [train(p.parent, {"lr": 0.1}, steps=STEPS + 3) for p in (path, other)]
    assert ended == [path, other]
    found = [ls.load(p) for p in ended]
    assert [state.step for state in found] == [15, 15]
    weights = [state.value("model")["state"]["embed.weight"].tolist() for state in found]
    assert weights[0] == weights[1]
    assert ls.read_log(path)["loss"] == ls.read_log(other)["loss"]


def test_killed_at_any_instant(left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever operation is the last: what bears a name is whole, what stays is there, a second try ends it."""
    rule = Rule(keep_last=1, keep_every=6)
    allowed = 0

    def limited(name: str) -> Callable[..., None]:
        whole = getattr(Disk, name)

        def call(self: Disk, *arguments: str) -> None:
            nonlocal allowed
            if not allowed:
                raise KeyboardInterrupt
            allowed -= 1
            whole(self, *arguments)

        return call

    for count in itertools.count():
        path = Path(shutil.copytree(left, tmp_path / str(count) / left.name))
        leftover(path, "torn-step-00000007-1")
        shown = plan(path, rule)
        allowed = count
        with monkeypatch.context() as patch:
            for name in ("rename", "remove", "sync_directory"):
                patch.setattr(Disk, name, limited(name))
            try:
                carry_out(shown, rule)
                finished = True
            except KeyboardInterrupt:
                finished = False
        assert set(steps(path)) >= {0, 6, 12}
        assert check(path).ok
        assert gone(path, rule).problems == []
        assert steps(path) == [0, 6, 12]
        assert not [p for p in (path / "checkpoints").iterdir() if not p.name.startswith("step-")]
        if finished:
            break
    assert count == 7  # two renames, their fsync, two removals, one fsync more, one removal


# --- the command line -----------------------------------------------------------------------------------------


def test_asks_nobody(path: Path) -> None:
    """Without a terminal and without --yes nothing is deleted, and the exit status says so."""
    result = run("runs", "gc", "--runs", str(path.parent), "--keep-last", "1")
    assert result.exit_code == 1
    assert "nothing was deleted" in result.stderr
    assert "4 checkpoints" in result.stdout
    assert steps(path) == [0, 3, 6, 9, 12]
    answered("runs", "gc", "--runs", str(path.parent), "--keep-last", "1", "--dry-run")
    assert (
        json.loads(run("runs", "gc", "--runs", str(path.parent), "--keep-last", "1", "--json").stdout)[
            "deleted"
        ]
        is False
    )
    assert steps(path) == [0, 3, 6, 9, 12]


@pytest.mark.parametrize(
    ("reply", "expected"), [("y\n", [12]), ("n\n", [0, 3, 6, 9, 12]), ("\n", [0, 3, 6, 9, 12])]
)
def test_asks_a_person(path: Path, monkeypatch: pytest.MonkeyPatch, reply: str, expected: list[int]) -> None:
    """On a terminal the question names number and bytes; only a yes deletes."""
    monkeypatch.setattr(gc, "_terminal", lambda: True)
    result = CliRunner().invoke(
        main, ["runs", "gc", "--runs", str(path.parent), "--keep-last", "1"], input=reply
    )
    assert result.exit_code == 0
    assert "delete these 4 directories, " in result.stderr
    assert steps(path) == expected


def test_yes(path: Path) -> None:
    """For scripts: --yes deletes, and says what was freed; a second time there is nothing to do."""
    before = bytes_below(path / "checkpoints")
    result = answered("runs", "gc", path.name, "--runs", str(path.parent), "--keep-best", "val_loss", "--yes")
    assert steps(path) == [6, 12]
    assert "freed " in result.stdout
    again = answered("runs", "gc", "--runs", str(path.parent), "--keep-best", "val_loss", "--yes", "--json")
    data = json.loads(again.stdout)
    assert (data["bytes"], data["freed_bytes"]) == (0, 0)
    assert bytes_below(path / "checkpoints") < before


def test_json(path: Path) -> None:
    """Every directory with its bytes, and whether it was deleted; damage is exit status 1."""
    damage(path, 12)
    result = run("runs", "gc", "--runs", str(path.parent), "--keep-last", "2", "--yes", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert {"schema", "deleted", "bytes", "freed_bytes", "runs", "problems"} == set(data)
    (found,) = data["runs"]
    assert {item["step"]: item["deleted"] for item in found["free"]} == {0: True, 3: True, 6: False}
    assert len(data["problems"]) == 1
    assert steps(path) == [6, 9, 12]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("val_loss", Best("val_loss", "min", 1)),
        ("acc:max", Best("acc", "max", 1)),
        ("val_loss:min:3", Best("val_loss", "min", 3)),
        ("loss:2", Best("loss", "min", 2)),
        ("a:b", Best("a:b", "min", 1)),
        ("a:b:max:2", Best("a:b", "max", 2)),
    ],
)
def test_keep_best(text: str, expected: Best) -> None:
    """METRIC[:min|max][:N]; a metric may have colons of its own."""
    assert gc.best_of(text) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--keep-last", "0"), "--keep-last"),
        (("--keep-last", "-1"), "--keep-last"),
        (("--keep-every", "1.5"), "--keep-every"),
        (("--keep-best", ""), "--keep-best"),
        (("--keep-best", "loss:0"), "--keep-best"),
        (("--older-than", "soon"), "--older-than"),
        (("--yes", "--dry-run"), "--dry-run"),
        (("none",), "unknown run"),
    ],
)
def test_refusals(path: Path, options: tuple[str, ...], words: str) -> None:
    """What makes no sense is said in one line, and nothing is deleted."""
    refused("runs", "gc", "--runs", str(path.parent), *options, words=words)
    assert steps(path) == [0, 3, 6, 9, 12]


@pytest.mark.parametrize("columns", ["40", "60", "100"])
def test_width(path: Path, columns: str) -> None:
    """Pages keep to the width of the terminal."""
    leftover(path, "torn-step-00000007-1")
    page = run(
        "runs", "gc", "--runs", str(path.parent), "--keep-last", "1", "--dry-run", COLUMNS=columns
    ).stdout
    assert max(map(len, page.splitlines())) <= max(int(columns), 60)


def test_nobody_may_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refuses is a problem that is said, not a traceback."""

    def rename(self: Disk, old: str, new: str) -> None:
        raise OSError(30, os.strerror(30), old)

    monkeypatch.setattr(Disk, "rename", rename)
    done = gone(path, Rule(keep_last=3))
    assert done.items == []
    assert "step-00000000: cannot be removed: Read-only file system" in done.problems

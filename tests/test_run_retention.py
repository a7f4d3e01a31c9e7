"""Best-of retention: the best by a logged metric is never removed, whatever kills the run."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("msgspec")

from hypothesis import given
from hypothesis import strategies as st
from run_logs import by_hand, record, resumed
from test_run_checkpoint import flip
from torture.small import Training

import loadsheet as ls
from loadsheet.errors import BadInput
from loadsheet.run.checkpoint import CheckpointStore
from loadsheet.run.errors import RunWarning
from loadsheet.run.log import Log
from loadsheet.run.objects import place
from loadsheet.run.retention import Best, BestOf, kept, last_values, ranked

pytestmark = pytest.mark.filterwarnings("ignore:.*lives but was not kept")


# -- the rule ------------------------------------------------------------------------------------------------


def test_what_a_user_may_write() -> None:
    """A name, with its direction, with how many; anything else is refused by name."""
    assert [Best.parse(value) for value in ("val_loss", ("acc", "max"), ["acc", "max", 3])] == [
        Best("val_loss", "min", 1),
        Best("acc", "max", 1),
        Best("acc", "max", 3),
    ]
    for value in (
        "",
        3,
        (),
        ("a", "least"),
        ("a", "min", 0),
        ("a", "min", True),
        ("a", "min", 1, 2),
        {"a": 1},
    ):
        with pytest.raises(BadInput, match=r"^keep_best: got"):
            Best.parse(value)


def test_what_counts_for_which_checkpoint(tmp_path: Path) -> None:
    """The first from its step on, the last value there; no number, NaN and steps that were run again do not."""
    log = by_hand(
        tmp_path / "log.jsonl",
        resumed(1, 0),
        record(1, 0, loss=9.0),
        record(1, 1, loss=8.0),
        record(1, 10, loss=7),
        record(1, 11, loss=1.0),
        resumed(2, 10),
        record(2, 10, loss=6.0, note="x"),
        record(2, 12, loss="NaN"),
        record(2, 13, loss="good"),
        record(2, 20, loss=10**400),
        record(2, 21, loss=0.0),
    )
    assert last_values(log, [0, 10, 20], "loss") == {0: 9.0, 10: 6.0, 20: math.inf}
    assert last_values(log, [0, 20], "loss") == {0: 9.0, 20: math.inf}
    assert last_values(log, [], "loss") == {}


def test_of_equals_the_later() -> None:
    """Which is what `load` has always said."""
    values = {1: 5.0, 2: 4.0, 3: 4.0, 4: -math.inf}
    assert (ranked(values, "min"), ranked(values, "max")) == ([4, 3, 2, 1], [1, 3, 2, 4])


# -- the log decides -----------------------------------------------------------------------------------------

VALUES = st.sampled_from([None, 1.0, 2.0, 3.0, math.nan])


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    """Lives of a run: where each ends, what each logs and when each saves; a step run again may differ."""
    total = draw(st.integers(2, 24))
    lives = draw(st.integers(1, 4))
    steps = st.lists(VALUES, min_size=total, max_size=total)
    return {
        "total": total,
        "ends": [draw(st.integers(1, total)) for _ in range(lives - 1)] + [total],
        "values": [draw(steps) for _ in range(lives)],
        "saves": [draw(st.sets(st.integers(1, total))) for _ in range(lives)],
        "keep_last": draw(st.integers(1, 3)),
        "every": draw(st.sampled_from([None, 5])),
        "best": Best("loss", draw(st.sampled_from(["min", "max"])), draw(st.integers(1, 3))),
    }


@pytest.mark.filterwarnings("ignore:not the same bits")
@given(histories())
def test_the_best_of_all_that_ever_were_is_there(
    tmp_path_factory: pytest.TempPathFactory, h: dict[str, Any]
) -> None:
    """Against a list of all checkpoints ever taken and of all values that count, kept apart from the log."""
    path = tmp_path_factory.mktemp("run") / "log.jsonl"
    best: Best = h["best"]
    sign = -1 if best.mode == "max" else 1
    ever: list[int] = []
    there: list[int] = []
    counts: dict[int, float] = {}  # step -> value that counts

    def prune(reader: BestOf, end: int) -> list[int]:
        of_each = {}
        for before, one in zip([-1, *ever], ever[:-1], strict=False):
            found = [counts[step] for step in range(before + 1, one + 1) if step in counts]
            if found:
                of_each[one] = found[-1]
        wanted = sorted(of_each, key=lambda one: (sign * of_each[one], -one))[: best.count]
        assert reader.of(there, end) == wanted == BestOf(path, best).of(there, end)
        return sorted(kept(there, h["keep_last"], h["every"], wanted))

    for life, end in enumerate(h["ends"]):
        reader = BestOf(path, best)
        start = there[-1] if there else 0
        counts = {step: value for step, value in counts.items() if step < start}
        with Log(path, life + 1) as log:
            log.resume(start)
            offset = None  # of a save under way: training goes on, and logs, before anything is removed
            for step in range(start, end):
                value = h["values"][life][step]
                if value is not None:
                    log.write(step, {"loss": value})
                    if not math.isnan(value):
                        counts[step] = value
                if offset is not None:
                    there = prune(reader, offset)
                    offset = None
                if step + 1 in h["saves"][life] or step + 1 == h["total"]:
                    offset = path.stat().st_size
                    ever.append(step + 1)
                    there.append(step + 1)


def test_what_counted_for_one_that_is_gone(tmp_path: Path) -> None:
    """It counts for the next that has nothing newer, whether the log is read again or not."""
    log = by_hand(tmp_path / "log.jsonl", resumed(1, 0), record(1, 9, loss=1.0), record(1, 19, loss=2.0))
    reader, end = BestOf(log, Best("loss")), os.path.getsize(log)
    assert reader.of([10, 20, 30, 40], end) == [10]
    assert reader.of([10, 20, 30, 40], end, without={10}) == [20]
    assert reader.of([10, 30, 40], end, without={10}) == [30]
    assert BestOf(log, Best("loss")).of([10, 30, 40], end, without={10}) == [30]


# -- in a run ------------------------------------------------------------------------------------------------


def train(training: Training, values: list[float], **options: Any) -> None:
    """Steps that log a value each, measured before the update, as nanoGPT does; a checkpoint after each."""
    for step in training.run.steps(len(values), checkpoint_every=1, **options):
        training.run.log(val_loss=values[step])
        training.step()


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (None, [5, 6]),
        ("val_loss", [2, 5, 6]),
        (("val_loss", "min", 3), [1, 2, 4, 5, 6]),
        (("val_loss", "max"), [0, 5, 6]),
        (("loss", "min"), None),
    ],
)
def test_the_best_stays(best: Any, expected: list[int] | None, tmp_path: Path) -> None:
    """Beside the last two; any logged value can be the metric, and `load` finds the same one."""
    with Training(tmp_path) as training:
        train(training, [5.0, 2.0, 1.0, 4.0, 3.0, 4.0], keep_best=best)
        if expected is None:
            losses = ls.read_log(training.run.path)["loss"]  # logged in step s: counts for checkpoint s
            expected = sorted({min(range(5), key=lambda s: (losses[s], -s)), 5, 6})
        assert training.checkpoints == expected
        if best == "val_loss":
            assert ls.load(training.run, "best").step == 2


def test_a_worse_value_that_comes_after_the_save(tmp_path: Path) -> None:
    """Of the newest checkpoint the next step still logs: until then, nothing is removed for its sake."""
    with Training(tmp_path) as training:
        for step in training.run.steps(5, checkpoint_every=2, keep_last=1, keep_best="val_loss"):
            training.run.log(
                val_loss=[3.0, 9.0, 3.0, 0.0, 9.0][step]
            )  # step 3 counts for 4, but so does step 4
            training.step()
        assert training.checkpoints == [2, 5]


SCRIPT = """
import os, signal, sys, warnings
import loadsheet as ls
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "1 unfinished save")
run = ls.Run.open(sys.argv[1], {}, progress=False)
values = [5.0, 1.0, 3.0, 4.0, 2.0, 6.0, 7.0, 2.5, 8.0, 9.0, 3.0, 4.0]
for step in run.steps(12, checkpoint_every=1, keep_last=1, keep_best=("val", "min", 2)):
    run.log(val=values[step])
    if run.attempt == {3: 1, 7: 2}.get(step):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_best_survives_kills(tmp_path: Path) -> None:
    """SIGKILL twice, while a save may be under way: at the end the two best of all twelve are there."""
    codes = [
        subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=False).returncode
        for _ in range(3)
    ]
    assert codes == [-signal.SIGKILL] * 2 + [0]
    (path,) = tmp_path.iterdir()
    assert CheckpointStore(path / "checkpoints").steps() == [1, 4, 12]
    assert ls.load(path, "best", metric="val").step == 1


def test_a_name_that_nobody_logs(tmp_path: Path) -> None:
    """It is said once, when the first checkpoint is removed."""
    with (
        Training(tmp_path) as training,
        pytest.warns(RunWarning, match="keep_best: got no 'validation' logged in 2 steps") as said,
    ):
        train(training, [1.0] * 6, keep_best="validation")
    assert (len(said), training.checkpoints) == (1, [5, 6])


def test_a_best_one_that_is_damaged(tmp_path: Path) -> None:
    """It is reported and stays where it is; the next best one is kept in its place."""
    with Training(tmp_path) as training:
        train(training, [5.0, 1.0, 2.0, 4.0], keep_best="val_loss")
        assert training.checkpoints == [1, 3, 4]
        flip(training.run.path / "checkpoints" / "step-00000001" / "tensors.bin", 999)
    with Training(tmp_path) as training:
        with pytest.warns(RunWarning, match="step-00000001.*it was one of the best") as said:
            train(training, [5.0, 1.0, 2.0, 4.0, 3.0, 9.0, 9.0, 9.0], keep_best="val_loss")
        # 2 was removed while 1 was good; of what is left, 4 is the best
        assert (len(said), training.checkpoints) == (1, [4, 7, 8])


def test_room_for_the_best(tmp_path: Path) -> None:
    """What must fit on the disk is what will be kept: two, three best, and the one being written."""
    store = CheckpointStore(tmp_path, best=BestOf(tmp_path, Best("val_loss", "min", 3)))
    assert store.needed_bytes(100) == 600


def test_nonsense_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """With the name of the option."""
    with Training(tmp_path) as training, pytest.raises(BadInput, match=r"^keep_best: got"):
        training.run.steps(3, keep_best=("val_loss", "lowest"))  # type: ignore[arg-type]


# -- and in its mirror ---------------------------------------------------------------------------------------


def test_the_mirror_keeps_the_best_and_brings_it_back(tmp_path: Path) -> None:
    """A machine with an empty disk has the best one again, and ends as one that was never interrupted."""
    values = [5.0, 1.0, 3.0, 4.0, 2.0, 6.0, 7.0, 8.0]
    mirror = str(tmp_path / "mirror")
    with Training(tmp_path / "first", mirror=mirror) as first:
        for step in first.run.steps(8, checkpoint_every=1, keep_best="val_loss"):
            first.run.log(val_loss=values[step])
            first.step()
            if step == 5:
                break
        first.run._saves.wait()  # type: ignore[union-attr]
        name = first.run.path.name
    assert stored(mirror, name) == [1, 4, 5]
    with Training(tmp_path / "second", mirror=mirror) as second:
        train(second, values, keep_best="val_loss")
        assert second.checkpoints == [1, 7, 8]
    assert stored(mirror, name) == [1, 7, 8]


def stored(mirror: str, name: str) -> list[int]:
    """The steps whose manifest is in the mirror."""
    names = place(mirror).list(f"{name}/checkpoints/")
    return sorted(int(n.split("/")[2][5:]) for n in names if n.endswith("/manifest.json"))


def test_a_best_one_that_was_left_out_of_the_mirror(tmp_path: Path) -> None:
    """Pushes that are slower than saves leave some out; once it is known to be the best, it is pushed."""
    with Training(tmp_path / "run", mirror=str(tmp_path / "mirror")) as training:
        for step in training.run.steps(6, checkpoint_every=1, keep_best="val_loss"):
            training.run.log(val_loss=[5.0, 4.0, 1.0, 3.0, 2.0, 6.0][step])
            training.step()
            saves = training.run._saves
            assert saves is not None
            saves.wait()
            if step == 0:  # from here on nothing is pushed
                saves._push = lambda _: None  # type: ignore[method-assign]
                saves._saver._on_committed = None
            if step == 4:
                mirror = saves._mirror
                saves._saver._on_committed = lambda step, _, mirror=mirror: mirror.push(step)  # type: ignore[misc,union-attr]
        name = training.run.path.name
    assert stored(str(tmp_path / "mirror"), name) == [2, 5, 6]


def test_nothing_is_read_while_nothing_is_removed(tmp_path: Path) -> None:
    """The log is looked at only when there is something to remove, and then only what is new of it."""
    store = CheckpointStore(tmp_path / "none", best=BestOf(tmp_path / "no log", Best("loss")))
    assert store.prune() == []
    log = tmp_path / "log.jsonl"
    by_hand(log, resumed(1, 0), record(1, 0, loss=1.0))
    reader = BestOf(log, Best("loss"))
    size = os.path.getsize(log)
    assert reader.of([0, 1, 2], size) == [0]
    log.write_bytes(b"")  # what was read is not read again
    assert reader.of([0, 1, 2], size) == [0]

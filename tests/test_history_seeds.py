"""Groups of seeds: who belongs, who counts, and what may be said of two of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from history_runs import written

from loadsheet.errors import BadInput, UnknownKey
from loadsheet.history.index import scan
from loadsheet.history.logs import Metric
from loadsheet.history.measures import Measure, choose, default_metric, default_mode
from loadsheet.history.seeds import Comparison, compare, group, is_seed, without_seeds
from loadsheet.history.seeds import named as named_groups

LOSS = Measure("loss", "min")
# Student's sleep data, as in R: means 0.75 and 2.33, the 95 % interval of the difference has 0 in it
SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)


def runs_of(root: Path, **values: Sequence[float]) -> None:
    """For each name a group of runs, one per value, which is the best loss of the run."""
    for name, column in values.items():
        for seed, value in enumerate(column):
            written(root, {"name": name, "data": {"seed": seed}}, {"loss": [value + 1, value, value + 2]})


def compared(root: Path, confidence: float = 0.95, measure: Measure = LOSS) -> list[Comparison]:
    return compare(named_groups(group(scan(root), measure)), measure, confidence)


@pytest.mark.parametrize(
    ("key", "seed"),
    [("seed", True), ("data.seed", True), ("seeds", False), ("seed.data", False), ("random_seed", False)],
)
def test_what_is_a_seed(key: str, seed: bool) -> None:
    """The last part of the key is `seed`, and nothing else, unless it is named."""
    assert is_seed(key) is seed
    assert is_seed(key, [key])
    assert is_seed(key, [key.rpartition(".")[2]])


def test_a_config_without_its_seeds() -> None:
    """Named ones too, at every depth; what is left keeps its form."""
    config = {"seed": 1, "a": {"seed": 2, "b": {"init": 3, "c": [1]}}, "init": 4}
    assert without_seeds(config) == {"a": {"b": {"init": 3, "c": [1]}}, "init": 4}
    assert without_seeds(config, ["init"]) == {"a": {"b": {"c": [1]}}}
    assert without_seeds(config, ["a.b.init"]) == {"a": {"b": {"c": [1]}}, "init": 4}


def test_groups_and_their_spread(tmp_path: Path) -> None:
    """2, 4, 4, 4, 5, 5, 7, 9: n 8, mean 5, s = √(32/7)."""
    runs_of(tmp_path, a=[2, 4, 4, 4, 5, 5, 7, 9], b=[1])
    one, two = sorted(group(scan(tmp_path), LOSS), key=lambda each: -len(each.members))
    assert one.spread is not None
    assert two.spread is not None
    assert (one.spread.n, one.spread.mean, one.spread.low, one.spread.high) == (8, 5, 2, 9)
    assert one.spread.deviation == pytest.approx(math.sqrt(32 / 7))
    assert (two.spread.n, two.spread.mean, two.spread.deviation) == (1, 1, None)
    assert one.config == {"name": "a", "data": {}}
    assert len(one.seeds) == 8


def test_who_does_not_count(tmp_path: Path) -> None:
    """Unfinished, diverged, without the number, a copy, and one of another length: named, and left out."""
    config: dict[str, Any] = {"lr": 1}
    for seed in (0, 1):
        written(tmp_path, config | {"seed": seed}, {"loss": [2.0, 1.0]})
    killed = written(tmp_path, config | {"seed": 2}, {"loss": [2.0]}, done=False)
    written(tmp_path, config | {"seed": 3}, {"acc": [2.0, 1.0]})
    written(tmp_path, config | {"seed": 4}, {"loss": [1e200, 1e199]})
    copy = written(tmp_path, config | {"seed": 0}, {"loss": [2.0, 1.0]}, name="zz-copy")
    longer = written(tmp_path, config | {"seed": 5}, {"loss": [2.0, 1.0, 0.5]})
    (found,) = group(scan(tmp_path), LOSS)
    assert (len(found.members), len(found.values)) == (7, 2)
    reasons = sorted(reason for _, reason in found.left_out)
    assert len(reasons) == 5
    assert any(reason.startswith("logged no finite loss") for reason in reasons)
    assert any(reason.startswith("diverged") for reason in reasons)
    assert any(reason.startswith("has the seeds of") for reason in reasons)
    assert any(reason.startswith("interrupted after 1") for reason in reasons)
    assert any(reason.startswith("made 3 steps, the others 2") for reason in reasons)
    assert copy.exists()
    (all_of_them,) = group(scan(tmp_path), LOSS, unfinished=True)
    assert {killed.name, longer.name} <= set(all_of_them.seeds)


def test_a_difference_that_is_not_shown(tmp_path: Path) -> None:
    """The sleep data: R's interval, −3.3654832 to 0.2054832, has 0 in it."""
    runs_of(tmp_path, a=SLEEP[0], b=SLEEP[1])
    (found,) = compared(tmp_path)
    assert found.finding == "not shown"
    assert found.welch is not None
    assert found.gain is not None
    assert (found.best.name, found.other.name) == ("name=a", "name=b")
    assert [round(x, 7) for x in found.gain] == [1.58, -0.2054832, 3.3654832]
    assert found.p == pytest.approx(0.07939, abs=1e-5)
    assert "not shown" in found.sentence
    assert "-0.2055 to 3.365, has 0 in it" in found.sentence


def test_a_difference_that_is_shown(tmp_path: Path) -> None:
    """The same data at 90 %: p = 0.07939 is below 0.1, so the interval leaves out 0."""
    runs_of(tmp_path, a=SLEEP[0], b=SLEEP[1])
    (found,) = compared(tmp_path, confidence=0.9)
    assert found.finding == "better"
    assert found.gain is not None
    assert found.gain[1] > 0
    assert "name=a is better than name=b by 1.58 (90 % interval" in found.sentence


def test_more_is_better(tmp_path: Path) -> None:
    """With `max` the other group is the best, and the gain is turned round with it."""
    runs_of(tmp_path, a=SLEEP[0], b=SLEEP[1])
    (found,) = compared(tmp_path, 0.9, Measure("loss", "max", "last"))
    assert (found.best.name, found.finding) == ("name=b", "better")
    assert found.gain is not None
    assert found.gain[0] == pytest.approx(1.58)


@pytest.mark.parametrize("b", [[9.0], [9.0, 9.1, 9.2]])
def test_never_a_claim_from_one_run(tmp_path: Path, b: list[float]) -> None:
    """However large the difference."""
    runs_of(tmp_path, a=[1.0], b=b)
    (found,) = compared(tmp_path)
    assert (found.finding, found.welch, found.p) == ("cannot say", None, None)
    assert found.sentence.startswith("cannot say: one seed")


def test_two_seeds_are_said_to_be_few(tmp_path: Path) -> None:
    """They give an interval, and a remark."""
    runs_of(tmp_path, a=[1.0, 1.1], b=[9.0, 9.3])
    (found,) = compared(tmp_path)
    assert any("2 seeds tell little" in remark for remark in found.remarks)


def test_seeds_that_change_nothing(tmp_path: Path) -> None:
    """The same number to the last bit from every seed: no claim where both are so, a question where one is."""
    runs_of(tmp_path / "both", a=[1.0, 1.0, 1.0], b=[2.0, 2.0, 2.0])
    (found,) = compared(tmp_path / "both")
    assert found.finding == "cannot say"
    assert "is the seed used at all?" in found.sentence
    runs_of(tmp_path / "one", a=[1.0, 1.0, 1.0], b=[2.0, 2.1, 1.9])
    (found,) = compared(tmp_path / "one")
    assert any("name=a gave the same number" in remark for remark in found.remarks)


def test_of_many_comparisons_each_must_stand_holm(tmp_path: Path) -> None:
    """A difference that stands alone and falls among twenty, by p times the number of comparisons left."""
    runs_of(tmp_path / "two", a=[1.0, 1.1, 1.2], b=[1.4, 1.5, 1.3])
    (alone,) = compared(tmp_path / "two")
    assert alone.finding == "better"
    others = {f"c{n}": [1.2 + n / 1000, 2.2, 0.7] for n in range(19)}
    runs_of(tmp_path / "many", a=[1.0, 1.1, 1.2], b=[1.4, 1.5, 1.3], **others)
    found = compared(tmp_path / "many")
    assert len(found) == 20
    (same,) = (each for each in found if each.other.name == "name=b")
    assert same.welch is not None
    assert alone.welch is not None
    assert same.welch.p == pytest.approx(alone.welch.p)
    assert same.p == pytest.approx(20 * alone.welch.p)
    assert same.finding == "not shown"
    assert "not as one of several comparisons" in same.sentence


# --- the measure ---------------------------------------------------------------------------------------------------


def metric(low: float = 1.0, high: float = 2.0, last: float = 1.5) -> Metric:
    return Metric(last, 9, low, 3, high, 5, 10)


@pytest.mark.parametrize(
    ("names", "chosen", "mode"),
    [
        (["lr", "loss", "val_loss"], "val_loss", "min"),
        (["loss", "val/accuracy"], "val/accuracy", "max"),
        (["loss", "eval-loss", "val_acc"], "eval-loss", "min"),
        (["train_loss", "lr"], "train_loss", "min"),
        (["lr", "accuracy"], "accuracy", "max"),
        (["grad_norm"], "grad_norm", "min"),
        (["timing.tokens_per_second"], "timing.tokens_per_second", "max"),
        (["validity", "loss"], "loss", "min"),
        (["test.ppl", "loss"], "test.ppl", "min"),
    ],
)
def test_a_sensible_measure(names: list[str], chosen: str, mode: str) -> None:
    """Held-out loss before any other held-out number, before a loss; by the words of the names."""
    assert default_metric(dict.fromkeys(names, 1)) == chosen
    assert default_mode(chosen) == mode
    found = choose([dict.fromkeys(names, metric())])
    assert found is not None
    assert (found.metric, found.mode) == (chosen, mode)
    assert found.defaulted == {"metric", "mode", "value"}
    assert "*" in found.said


def test_a_measure_that_was_asked_for() -> None:
    """What is given is taken, the rest follows from it, and only that has a star."""
    found = choose([{"loss": metric(), "acc": metric()}], "acc", None, "last")
    assert found is not None
    assert (found.metric, found.mode, found.value, found.defaulted) == ("acc", "max", "last", {"mode"})
    assert found.said == "acc, the last of each run, higher* is better"
    assert found.of({"acc": metric()}) == (1.5, 9)
    assert Measure("acc", "max").of({"acc": metric()}) == (2.0, 5)
    assert Measure("acc", "min").of({"acc": metric()}) == (1.0, 3)
    assert Measure("acc", "min", "last").of({"acc": metric(last=math.nan)}) is None
    assert Measure("acc", "min").of({}) is None


def test_a_measure_that_there_is_not() -> None:
    """The nearest names are shown; without any metric there is no measure, and no error."""
    with pytest.raises(UnknownKey) as unknown:
        choose([{"val_loss": metric()}], "val_los")
    assert "`val_loss`" in unknown.value.hint
    for mode, value in (("up", None), (None, "first")):
        with pytest.raises(BadInput, match="expected"):
            choose([{"loss": metric()}], None, mode, value)
    assert choose([{}, {}]) is None

"""`loadsheet runs compare`: configs, curves at common points, bits, groups of seeds."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from history_runs import BEGUN, written
from hypothesis import given
from hypothesis import strategies as st
from terminal import answered, refused, run

from loadsheet import signature
from loadsheet.history.compare import align, bits, first_difference, letters, same_bits, sparkline
from loadsheet.history.index import find
from loadsheet.history.plot_curves import Axis, Curve
from loadsheet.history.tokens import seen


def compared(root: Path, *words: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        answered("runs", "compare", *words, "--runs", str(root), "--json").stdout
    )
    return data


def curve(x: list[float], y: list[float]) -> Curve:
    return Curve("run", "loss", [], x, y, y)


# --- curves ----------------------------------------------------------------------------------------------------------


def test_curves_at_common_steps(tmp_path: Path) -> None:
    """A logs every step to 20, B every step to 9: eight steps of 0 … 9, both ends among them, and each one's last."""
    a = written(tmp_path, {"lr": 1}, {"loss": [float(100 - n) for n in range(21)]})
    b = written(tmp_path, {"lr": 2}, {"loss": [float(200 - n) for n in range(10)]})
    curves = compared(tmp_path, a.name, b.name)["curves"]
    assert (curves["metric"], curves["by"], curves["interpolated"]) == ("loss", "step", False)
    assert len(curves["points"]) == 8
    assert (curves["points"][0], curves["points"][-1]) == (0, 9)
    assert curves["runs"][0]["values"] == [100 - x for x in curves["points"]]
    assert curves["runs"][1]["values"] == [200 - x for x in curves["points"]]
    assert [(r["last"], r["last_at"], r["best"], r["best_step"]) for r in curves["runs"]] == [
        (80, 20, 80, 20), (191, 9, 191, 9),
    ]  # fmt: skip


def test_curves_that_were_logged_at_different_steps(tmp_path: Path) -> None:
    """A at even, B at odd steps, both on the line y = 3x + 1: interpolation gives the line, and is said."""
    for config, first in (({"n": 0}, 0), ({"n": 1}, 1)):
        events = [
            {"step": s, "attempt": 1, "time": BEGUN + s, "loss": 3.0 * s + 1} for s in range(first, 20, 2)
        ]
        written(tmp_path, config, done=False, events=events)
    names = [path.name for path in sorted(tmp_path.iterdir())]
    curves = compared(tmp_path, *names)["curves"]
    assert curves["interpolated"] is True
    assert (curves["points"][0], curves["points"][-1]) == (1, 18)
    for found in curves["runs"]:
        assert found["values"] == pytest.approx([3 * x + 1 for x in curves["points"]])
    page = answered("runs", "compare", *names, "--runs", str(tmp_path)).stdout
    assert "values at common points lie on the line between two records" in page


def test_curves_by_tokens(tmp_path: Path) -> None:
    """512 a step as a running total, 1024 a step each by itself, 256 by the signed sheet: one axis."""
    a = written(tmp_path, {"n": 0}, {"loss": [8.0, 7.0, 6.0, 5.0], "tokens": [512, 1024, 1536, 2048]})
    b = written(tmp_path, {"n": 1}, {"loss": [8.0, 6.0], "tokens": [1024, 1024]})
    c = written(tmp_path, {"n": 2}, {"loss": [float(n) for n in range(8)]})
    signed = signature.seal({}, {"tokens_per_step": 256, "steps": 8}, None)
    (c / "sheet.json").write_text(signature.to_text(signed))
    curves = compared(tmp_path, a.name, b.name, c.name, "--by", "tokens")["curves"]
    assert (curves["by"], curves["points"][0], curves["points"][-1]) == ("tokens", 1024, 2048)
    first, second, third = (found["values"] for found in curves["runs"])
    assert (first[0], first[-1]) == (7, 5)
    assert (second[0], second[-1]) == (8, 6)
    assert (third[0], third[-1]) == (3, 7)
    # one number for all of them: 100 a step
    curves = compared(tmp_path, a.name, b.name, "--by", "tokens", "--tokens-per-step", "100")["curves"]
    assert (curves["points"][0], curves["points"][-1]) == (100, 200)


def test_curves_by_time(tmp_path: Path) -> None:
    """A twice as fast as B: at 10 s A has made 10 steps, B five."""
    a = written(tmp_path, {"n": 0}, {"loss": [float(n) for n in range(40)]}, step_seconds=1.0)
    b = written(
        tmp_path, {"n": 1}, {"loss": [float(n) for n in range(40)]}, step_seconds=2.0, begun=BEGUN + 9e6
    )
    rows = [find(tmp_path, path.name) for path in (a, b)]
    found = align(rows, "loss", Axis("time"))
    assert found.points[-1] == 40.0
    assert (found.values[0][-1], found.values[1][-1]) == (39.0, 19.0)


def test_a_run_without_the_metric(tmp_path: Path) -> None:
    """It stands there with nothing; one without any log too."""
    a = written(tmp_path, {"n": 0}, {"loss": [2.0, 1.0]})
    b = written(tmp_path, {"n": 1}, {"other": [2.0, 1.0]})
    c = written(tmp_path, {"n": 2})
    (c / "log.jsonl").unlink()
    curves = compared(tmp_path, a.name, b.name, c.name)["curves"]
    assert [found["values"] for found in curves["runs"]] == [[2, 1], None, None]
    assert curves["runs"][1]["last"] is None
    answered("runs", "compare", b.name, c.name, "--runs", str(tmp_path))
    nothing = compared(tmp_path, c.name, written(tmp_path, {"n": 3}).name)
    assert nothing["curves"] is None


def test_curves_that_share_no_stretch(tmp_path: Path) -> None:
    """One ends before the other begins: no values, and it is said."""
    a = written(tmp_path, {"n": 0}, {"loss": [2.0, 1.0]})
    events = [{"step": s, "attempt": 1, "time": BEGUN + s, "loss": 1.0} for s in range(10, 13)]
    b = written(tmp_path, {"n": 1}, done=False, events=events)
    assert compared(tmp_path, a.name, b.name)["curves"]["points"] == []
    page = answered("runs", "compare", a.name, b.name, "--runs", str(tmp_path)).stdout
    assert "there is no stretch that all of them cover" in page


@given(
    st.lists(st.integers(0, 30), min_size=1, unique=True).map(sorted),
    st.lists(st.integers(0, 30), min_size=1, unique=True).map(sorted),
)
def test_interpolation_stays_between_its_records(one: list[int], other: list[int]) -> None:
    """Every value lies between those of the records around it, and is the record's where there is one."""
    from loadsheet.history.compare import _at, _common

    curves = [
        curve([float(x) for x in steps], [float((x * 37) % 11) for x in steps]) for steps in (one, other)
    ]
    for point in _common(curves, 8):
        for found in curves:
            value = _at(found, point)
            assert value is not None
            table = dict(zip(found.x, found.y, strict=True))
            left = max(x for x in found.x if x <= point)
            right = min(x for x in found.x if x >= point)
            assert min(table[left], table[right]) - 1e-9 <= value <= max(table[left], table[right]) + 1e-9
            assert table.get(point, value) == value


def test_sparklines() -> None:
    """Eight levels from the lowest to the highest; one scale for all; a space where there is nothing."""
    line = curve([float(n) for n in range(8)], [float(n) for n in range(8)])
    assert sparkline(line, 0, 8, 0, 8, 8) == "▁▂▃▄▅▆▇█"
    # means 0.5, 2.5, 4.5 and 6.5 of 7, in eighths 0, 2, 5 and 7
    assert sparkline(line, 0, 7, 0, 7, 4) == "▁▃▆█"
    assert sparkline(curve([0.0, 1.0], [5.0, 5.0]), 5, 5, 0, 1, 2) == "▅▅"
    assert sparkline(curve([9.0], [1.0]), 0, 1, 0, 9, 3) == "  █"
    huge = curve([0.0, 0.0, 1.0], [1.7e308, 1.7e308, -1.7e308])  # sums and differences of these are infinite
    assert sparkline(huge, -1.7e308, 1.7e308, 0, 1, 2) == "█▁"


def test_tokens_seen() -> None:
    """A running total is taken as it is; else steps add up; with gaps the mean counts for each step."""
    assert seen([0, 1, 2], [10, 25, 27]) == [10, 25, 27]
    assert seen([0, 1, 2], [10, 25, 5]) == [10, 35, 40]
    assert seen([4, 9], [10, 10]) == [50, 100]
    assert seen([0], [7]) == [7]
    assert seen([], []) == []


# --- configs --------------------------------------------------------------------------------


def test_only_what_differs(tmp_path: Path) -> None:
    """Keys with one value are left out; excluded values count, a missing key shows as missing."""
    a = written(tmp_path, {"lr": 0.1, "m": {"w": 4, "d": 1}, "x": 1}, facts={"excluded": {"device": "cpu"}})
    b = written(tmp_path, {"lr": 0.2, "m": {"w": 4, "d": 1.0}}, facts={"excluded": {"device": "cuda"}})
    data = compared(tmp_path, a.name, b.name)
    assert data["differs"] == {
        "device": {str(a): "cpu", str(b): "cuda"},
        "lr": {str(a): 0.1, str(b): 0.2},
        "m.d": {str(a): 1, str(b): 1.0},
        "x": {str(a): 1},
    }
    page = answered("runs", "compare", a.name, b.name, "--runs", str(tmp_path)).stdout
    assert re.search(r"^  x +1 +–$", page, re.M)
    assert "w " not in page


def test_excluded_values_are_no_other_config(tmp_path: Path) -> None:
    """They are marked as such, and runs that differ in nothing else, or in the seed, still do so."""
    for seed in (0, 1):
        written(tmp_path, {"seed": seed}, {"loss": [1.0]}, facts={"excluded": {"sheet": f"{seed}.json"}})
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    page = answered("runs", "compare", *paths).stdout
    assert re.search(r"^  sheet \(excluded\) +\d\.json +\d\.json$", page, re.M)
    assert "These runs differ only in the seed" in page
    copy = written(tmp_path / "there", {"seed": 0}, {"loss": [1.0]}, facts={"excluded": {"sheet": "mine"}})
    page = answered("runs", "compare", str(tmp_path / copy.name), str(copy)).stdout
    assert "One config: whatever differs comes from the machine" in page


def test_runs_in_two_folders(tmp_path: Path) -> None:
    """One config on two machines, by path: the same but for what is excluded."""
    paths = [written(tmp_path / name, {"lr": 1}, {"loss": [2.0, 1.0]}) for name in ("here", "there")]
    data = compared(tmp_path, *map(str, paths))
    assert data["differs"] == {}
    assert data["bits"][0]["same_seeds"] is True
    page = answered("runs", "compare", *map(str, paths)).stdout
    assert "the same values, bit for bit, in all 2 steps that both logged" in " ".join(page.split())
    assert "One config: whatever differs comes from the machine, the code or chance." in page


# --- bits --------------------------------------------------------------------------------


def pair_of(tmp_path: Path, one: list[Any], other: list[Any], **facts: Any) -> Any:
    a = written(tmp_path / "a", {"lr": 1, "seed": 1}, {"loss": one, "same": [0.5] * len(one)})
    b = written(
        tmp_path / "b", {"lr": 1, "seed": 1}, {"loss": other, "same": [0.5] * len(other)}, facts=facts
    )
    return bits(find(tmp_path, str(a)), find(tmp_path, str(b)))


def test_the_first_step_of_other_bits(tmp_path: Path) -> None:
    """One unit in the last place in step 2 is seen, and named."""
    found = pair_of(tmp_path, [3.0, 2.0, 0.1, 0.5], [3.0, 2.0, math.nextafter(0.1, 1), 0.6])
    assert (found.step, found.names, found.compared, found.same_seeds) == (2, ("loss",), 3, True)


def test_the_same_bits(tmp_path: Path) -> None:
    """All steps that both have; a longer log does not differ by being longer."""
    found = pair_of(tmp_path, [3.0, 2.0, 1.0], [3.0, 2.0])
    assert (found.step, found.names, found.compared) == (None, (), 2)


def test_what_was_recorded_differently(tmp_path: Path) -> None:
    """Threads and commit of the newest attempts."""
    a = written(
        tmp_path / "a", {"lr": 1}, {"loss": [1.0]}, facts={"libraries": {"threads": 8}, "machine": {}}
    )
    b = written(
        tmp_path / "b", {"lr": 1}, {"loss": [1.5]}, facts={"libraries": {"threads": 4}, "machine": {}}
    )
    found = bits(find(tmp_path, str(a)), find(tmp_path, str(b)))
    assert found is not None
    assert found.changed == ("threads: 8 → 4",)
    page = answered("runs", "compare", str(a), str(b)).stdout
    assert "recorded differently: threads: 8 → 4" in page
    assert "the first step that differs is 0 (loss), after 0 that agree" in " ".join(page.split())


def test_configs_that_differ_in_more_than_seeds_have_no_common_bits(tmp_path: Path) -> None:
    """Nothing is compared, and it is said; seeds of another name can be named."""
    a = written(tmp_path, {"lr": 1, "init": 1}, {"loss": [1.0]})
    b = written(tmp_path, {"lr": 1, "init": 2}, {"loss": [2.0]})
    assert compared(tmp_path, a.name, b.name)["bits"] == []
    assert compared(tmp_path, a.name, b.name, "--seed-key", "init")["bits"][0]["first_step"] == 0
    page = answered("runs", "compare", a.name, b.name, "--runs", str(tmp_path)).stdout
    assert "not compared: their configs differ in more than the seed" in page
    assert "One run a side shows no improvement" in page


def test_bits_of_values() -> None:
    """As a log holds them: NaN is NaN, the sign of 0 counts, a whole number is no decimal."""
    assert same_bits([1.0, {"a": math.nan}], [1.0, {"a": math.nan}])
    assert not same_bits({"a": 1}, {"b": 1})
    assert not same_bits([1], [1, 2])
    assert not same_bits(math.nan, 1.0)
    assert not same_bits("1", 1)
    one = {
        "step": [0, 2, 4],
        "attempt": [1, 1, 1],
        "time": [1, 2, 3],
        "loss": [1.0, 2.0, 3.0],
        "timing.t": [1, 2, 3],
    }
    other = {
        "step": [1, 2, 4],
        "attempt": [2, 2, 2],
        "time": [9, 9, 9],
        "loss": [7.0, 2.0, None],
        "timing.t": [0, 0, 0],
    }
    assert first_difference(one, other) == (None, (), 1)


# --- groups --------------------------------------------------------------------------------

SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)


@pytest.fixture(scope="module")
def sleep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Student's sleep data as two groups of ten seeds: what R's t.test prints is known."""
    root = tmp_path_factory.mktemp("sleep")
    facts = {"libraries": {"torch": "2.13.0", "threads": 1}, "machine": {"cpu": "C", "gpus": []}}
    for drug, values in enumerate(SLEEP, start=1):
        for seed, value in enumerate(values):
            written(root, {"drug": drug, "seed": seed}, {"loss": [value]}, facts=facts)
    return root


def members(root: Path, drug: int) -> list[str]:
    rows = json.loads(
        answered("runs", "list", "--runs", str(root), "--json", "--where", f"drug={drug}").stdout
    )["runs"]
    return [row["run"] for row in rows]


def test_groups_by_their_members(sleep: Path) -> None:
    """Any member stands for its group, and so does the group's own name; the figures are R's."""
    one, two = members(sleep, 1), members(sleep, 2)
    data = compared(sleep, one[3], two[7], "--seeds")
    assert [(g["n"], round(g["mean"], 9)) for g in data["groups"]] == [(10, 0.75), (10, 2.33)]
    (found,) = data["comparisons"]
    assert found["finding"] == "not shown"
    assert [round(x, 7) for x in found["interval"]] == [-3.3654832, 0.2054832]
    assert (round(found["t"], 4), round(found["degrees_of_freedom"], 3)) == (-1.8608, 17.776)
    assert round(found["p"], 5) == 0.07939
    assert data["differs"] == {
        "drug": {data["groups"][0]["fingerprint"]: 1, data["groups"][1]["fingerprint"]: 2}
    }
    names = [group["fingerprint"] for group in data["groups"]]
    assert compared(sleep, *names, "--seeds") == data
    assert (
        compared(sleep, one[0], two[0], "--seeds", "--confidence", "90%")["comparisons"][0]["finding"]
        == "better"
    )


def test_the_page_of_groups(sleep: Path) -> None:
    """Spread, sentence, what the seeds ran on."""
    page = answered(
        "runs", "compare", members(sleep, 1)[0], members(sleep, 2)[0], "--seeds", "--runs", str(sleep)
    ).stdout
    flowing = " ".join(page.split())
    assert "Not shown: drug=1 and drug=2 differ by 1.58 in the mean" in flowing
    assert "-0.2055 to 3.365, has 0 in it: other seeds alone may do that" in flowing
    assert "statistical, over seeds, A: yes. 10 runs differ only in the seed" in flowing
    assert "recorded alike in all: processor C, threads 1, torch 2.13.0" in flowing


def test_seeds_on_different_machines(sleep: Path, tmp_path: Path) -> None:
    """Part of the spread may come from there, and that is said."""
    for drug in (1, 2):
        for seed in range(2):
            facts = {"libraries": {"threads": 4 * (seed + 1)}, "machine": {"cpu": "C"}}
            written(tmp_path, {"drug": drug, "seed": seed}, {"loss": [drug + seed / 10]}, facts=facts)
    words = (members(tmp_path, 1)[0], members(tmp_path, 2)[0])
    page = answered("runs", "compare", *words, "--seeds", "--runs", str(tmp_path)).stdout
    assert "recorded differently: threads (4, 8): part of the spread may come from there" in " ".join(
        page.split()
    )


def test_refusals(sleep: Path) -> None:
    """One run, one twice, one group, unknown ones, options that do not go together."""
    one, two = members(sleep, 1), members(sleep, 2)
    root = ("--runs", str(sleep))
    refused("runs", "compare", one[0], *root, words="two or more")
    refused("runs", "compare", one[0], one[0], *root, words="twice")
    refused("runs", "compare", one[0], one[1], "--seeds", *root, words="1 group")
    refused("runs", "compare", one[0], "--seeds", *root, words="1 group")
    refused("runs", "compare", one[0], "zzz", *root, words="unknown run")
    refused("runs", "compare", one[0], "zzz", "--seeds", *root, words="unknown run")
    refused("runs", "compare", one[0], two[0], "--by", "epochs", *root, words="--by")
    refused("runs", "compare", one[0], two[0], "--by", "tokens", *root, words="--tokens-per-step")
    refused("runs", "compare", one[0], two[0], "--tokens-per-step", "8", *root, words="--by tokens")
    refused("runs", "compare", one[0], two[0], "--metric", "los", *root, words="did you mean `loss`")
    refused("runs", "compare", *root)


@pytest.mark.parametrize("width", [40, 57, 80, 200])
def test_every_width(sleep: Path, width: int) -> None:
    """No line is wider than the terminal: two runs, ten runs, two groups."""
    one, two = members(sleep, 1), members(sleep, 2)
    for words in ((one[0], two[0]), (*one[:5], *two[:5]), (one[0], two[0], "--seeds")):
        result = run("runs", "compare", *words, "--runs", str(sleep), COLUMNS=str(width))
        assert result.exit_code == 0, result.stderr
        assert [line for line in result.stdout.splitlines() if len(line) > width] == []


def test_hostile_text(tmp_path: Path) -> None:
    """What would paint the terminal does not reach it."""
    nasty = "\x1b[31m\r\n\u202e" + "y" * 200
    facts = {"machine": {"cpu": nasty}, "libraries": {"torch": nasty}, "code": {"commit": nasty}}
    paths = [
        written(tmp_path, {"seed": n, nasty: nasty * (n + 1), "g": n // 2}, {nasty: [1.0 + n]}, facts=facts)
        for n in range(4)
    ]
    for words in ((paths[0].name, paths[2].name), (paths[0].name, paths[2].name, "--seeds")):
        page = answered("runs", "compare", *words, "--runs", str(tmp_path)).stdout
        assert [line for line in page.splitlines() if not line.isprintable()] == []


def test_letters() -> None:
    """A to Z, then with numbers: never the same twice."""
    names = letters(100)
    assert names[:3] == ["A", "B", "C"]
    assert (names[25], names[26], names[52]) == ("Z", "A1", "A2")
    assert len(set(names)) == 100

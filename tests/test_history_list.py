"""`loadsheet runs list`, as a user calls it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from history_runs import BEGUN, aged, written
from terminal import answered, refused, run

from loadsheet import signature
from loadsheet.history.configs import cell, differing, flat, parse_condition, same, short_names


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine runs: three learning rates, three seeds; the last was killed; 0.02 is best, by 0.5 and more."""
    root = tmp_path_factory.mktemp("sweep")
    for lr, base in ((0.01, 2.0), (0.02, 1.0), (0.04, 1.5)):
        for seed in range(3):
            value = base + seed / 100
            config = {"lr": lr, "seed": seed, "model": {"layers": 2, "name": "tiny"}}
            curve = [value + 2, value + 1, value, value + 0.25]
            written(
                root,
                config,
                {"loss": [9.0, 8.0, 7.0, 6.0], "val_loss": curve},
                done=(lr, seed) != (0.04, 2),
                step_seconds=1800.0,
            )
    aged(root)
    return root


def listed(root: Path, *options: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        answered("runs", "list", "--runs", str(root), "--json", *options).stdout
    )
    return data


def order(root: Path, *options: str) -> list[tuple[float, int]]:
    return [(r["config"]["lr"], r["config"]["seed"]) for r in listed(root, *options)["runs"]]


def test_the_table(sweep: Path) -> None:
    """The best first, only the keys that differ, steps, state, hours; what nobody chose has a star."""
    lines = answered("runs", "list", "--runs", str(sweep)).stdout.splitlines()
    assert lines[0].startswith("9 runs in ")
    assert lines[0].endswith(": 8 done, 1 interrupted")
    head = lines[2].split()
    assert head == ["run", "state", "lr", "seed", "attempts", "steps", "best", "at", "step", "hours"]
    first = lines[3].split()
    assert first[1:] == ["done", "0.02", "0", "1", "4", "1", "2", "2.00", "h"]
    assert [line.split()[2] for line in lines[3:12]] == ["0.02"] * 3 + ["0.04"] * 3 + ["0.01"] * 3
    assert "best: val_loss*, the lowest* of each run; * nobody chose it: --metric, --mode, --value" in lines
    assert "tiny" not in "\n".join(lines)


def test_json(sweep: Path) -> None:
    """Everything in base units, no NaN, the groups beside the runs."""
    data = listed(sweep)
    assert {"schema", "root", "measure", "currency", "found", "runs", "groups", "comparisons"} == set(data)
    row = data["runs"][0]
    assert (row["state"], row["step"], row["total"], row["seconds"]) == ("done", 4, 4, 7200.0)
    assert (row["best"], row["best_step"], row["started"], row["updated"]) == (1.0, 2, BEGUN, BEGUN + 7200)
    assert row["metrics"]["val_loss"] == {
        "last": 1.25, "last_step": 3, "min": 1.0, "min_step": 2, "max": 3.0, "max_step": 0, "count": 4,
        "nonfinite": 0, "nonfinite_step": None,
    }  # fmt: skip
    assert data["measure"] == {
        "metric": "val_loss", "mode": "min", "value": "best", "defaulted": ["metric", "mode", "value"],
    }  # fmt: skip
    assert [each["n"] for each in data["groups"]] == [3, 2, 3]
    assert data["comparisons"][0]["finding"] == "better"


def test_money(sweep: Path, tmp_path: Path) -> None:
    """2 h at 2.50 are 5.00; with a signed sheet for four GPUs at 3, 24, and the price on the command line wins."""
    data = listed(sweep, "--price", "2.50 USD")
    assert {row["cost"] for row in data["runs"]} == {5.0}
    assert data["currency"] == "USD"
    page = answered("runs", "list", "--runs", str(sweep), "--price", "2.5 USD").stdout
    assert "5.00 USD" in page
    assert "cost: hours × 2.50 USD per GPU hour, given on the command line" in page
    path = written(tmp_path, {"lr": 1}, {"loss": [1.0, 1.0]}, step_seconds=3600.0)
    signed = signature.seal(
        {"cluster": {"gpus": 4}}, {"price": {"amount": 3.0, "currency": "EUR"}, "steps": 2}, None
    )
    (path / "sheet.json").write_text(signature.to_text(signed))
    assert listed(tmp_path)["runs"][0]["cost"] == 24.0
    assert listed(tmp_path, "--price", "1")["runs"][0]["cost"] == 8.0
    assert "24.00 EUR" in answered("runs", "list", "--runs", str(tmp_path)).stdout
    # what was edited after it was signed is no sheet: no money, and a problem
    (path / "sheet.json").write_text(signature.to_text(signed).replace('"amount": 3.0', '"amount": 0.1'))
    (row,) = listed(tmp_path)["runs"]
    assert row["cost"] is None
    assert "intent.price" in row["problems"][0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--sort", "lr", "--where", "seed=0"), [(0.01, 0), (0.02, 0), (0.04, 0)]),
        (("--sort", "lr", "--reverse", "--where", "seed=0"), [(0.04, 0), (0.02, 0), (0.01, 0)]),
        (("--where", "lr<0.03", "--where", "seed>=2"), [(0.02, 2), (0.01, 2)]),
        (("--where", "lr!=2e-2", "--where", "seed=1"), [(0.04, 1), (0.01, 1)]),
        (("--where", "model.name=tiny", "--where", "layers=2.0", "--limit", "1"), [(0.02, 0)]),
        (("--state", "interrupted"), [(0.04, 2)]),
        (("--mode", "max", "--limit", "2"), [(0.01, 2), (0.01, 1)]),
        (("--metric", "val_loss", "--value", "last", "--limit", "1"), [(0.02, 0)]),
        (("--sort", "seed", "--where", "lr=0.01", "--reverse"), [(0.01, 2), (0.01, 1), (0.01, 0)]),
    ],
)
def test_sorted_and_filtered(
    sweep: Path, options: tuple[str, ...], expected: list[tuple[float, int]]
) -> None:
    """By columns and keys of the config; conditions hold together."""
    assert order(sweep, *options) == expected


@pytest.mark.parametrize(
    "key",
    ["run", "state", "attempts", "steps", "hours", "cost", "lost", "bytes", "started", "updated", "val_loss"],
)
def test_every_sort_key(sweep: Path, key: str) -> None:
    """Each gives all nine runs, in the reverse order with --reverse where all have a value."""
    one, other = order(sweep, "--sort", key), order(sweep, "--sort", key, "--reverse")
    assert sorted(one) == sorted(other)
    assert len(one) == 9


def test_what_a_run_lacks_stands_last(tmp_path: Path) -> None:
    """A run without the metric is neither the best nor the worst."""
    written(tmp_path, {"n": 1}, {"loss": [1.0]})
    written(tmp_path, {"n": 2})
    written(tmp_path, {"n": 3}, {"loss": [0.5]})
    for options in ((), ("--reverse",)):
        assert [r["config"]["n"] for r in listed(tmp_path, *options)["runs"]][-1] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--where", "lrr=1"), "did you mean `lr`"),
        (("--where", "lr"), "expected a condition"),
        (("--where", "lr<abc"), "expected a number"),
        (("--state", "dead"), "`done`"),
        (("--sort", "loss2"), "did you mean `loss`"),
        (("--metric", "valloss"), "did you mean `val_loss`"),
        (("--mode", "up"), "--mode"),
        (("--value", "first"), "--value"),
        (("--price", "cheap"), "price"),
        (("--limit", "-1"), "--limit"),
        (("--confidence", "2"), "confidence"),
        (("--runs", "nowhere"), "--runs DIR"),
    ],
)
def test_refusals(sweep: Path, options: tuple[str, ...], words: str) -> None:
    """One line and a hint."""
    refused("runs", "list", "--runs", str(sweep), *options, words=words)


@pytest.mark.parametrize("width", [40, 50, 64, 80, 120, 400])
@pytest.mark.parametrize("options", [(), ("--groups",)])
def test_every_width(sweep: Path, width: int, options: tuple[str, ...]) -> None:
    """No line is wider than the terminal, and what was left out is said."""
    result = run("runs", "list", "--runs", str(sweep), "--price", "2", *options, COLUMNS=str(width))
    body = [line for line in result.stdout.splitlines() if str(sweep) not in line]
    assert max(map(len, body)) <= width, result.stdout
    if not options:
        assert ("left out for want of room" in result.stdout) == (width < 100)


def test_groups(sweep: Path) -> None:
    """Best group first, n, mean and spread of those that count, the sentence, and who does not count."""
    page = answered("runs", "list", "--runs", str(sweep), "--groups").stdout
    lines = page.splitlines()
    rows = [line.split() for line in lines[3:6]]
    # 1.00, 1.01, 1.02: mean 1.01, s 0.01
    assert rows[0][1:] == ["3", "0.02", "1.01", "0.01", "1", "1.02", "–"]
    assert rows[1][1:4] == ["2", "0.04", "1.505"]
    flowing = " ".join(page.split())
    assert "lr=0.02 is better than lr=0.04 by 0.495" in flowing
    assert "lr=0.02 is better than lr=0.01 by 1 " in flowing
    assert re.search(r"left out: [0-9a-f]{10}, interrupted after 4 steps", flowing)
    assert "Holm" in flowing
    assert "the best was chosen by the same numbers" in flowing


def test_one_seed_is_said_once(tmp_path: Path) -> None:
    """Where the best group has one seed, that is the answer to every comparison: it is not printed twice."""
    for name, values in {"a": [1.0], "b": [2.0, 2.1], "c": [3.0, 3.1]}.items():
        for seed, value in enumerate(values):
            written(tmp_path, {"name": name, "seed": seed}, {"loss": [value]})
    page = answered("runs", "list", "--runs", str(tmp_path), "--groups").stdout
    assert page.count("Cannot say: one seed of name=a") == 1


def test_many_groups_are_a_table(tmp_path: Path) -> None:
    """More than two comparisons: a row each, and one sentence."""
    for n in range(5):
        for seed in range(3):
            written(tmp_path, {"n": n, "seed": seed}, {"loss": [n + seed / 10]})
    page = answered("runs", "list", "--runs", str(tmp_path), "--groups").stdout
    assert len(re.findall(r"^n=\d +shown ", page, re.M)) == 4
    assert "shown for 4 of the 4 other groups" in " ".join(page.split())


def test_an_empty_root_and_one_run(tmp_path: Path) -> None:
    """No runs are an answer; one run has nothing that differs."""
    assert answered("runs", "list", "--runs", str(tmp_path)).stdout.startswith("0 runs in ")
    assert listed(tmp_path)["runs"] == []
    assert answered("runs", "list", "--runs", str(tmp_path), "--groups").stdout.startswith("0 groups")
    written(tmp_path, {"lr": 1}, {"loss": [1.0]})
    page = answered("runs", "list", "--runs", str(tmp_path)).stdout
    assert page.startswith("1 run in ")
    page = answered("runs", "list", "--runs", str(tmp_path), "--groups").stdout
    assert page.startswith("1 group of 1 run in ")
    assert "one group alone" in page


def test_hostile_text(tmp_path: Path) -> None:
    """Names and values that would paint the terminal are shown without their control characters."""
    nasty = "\x1b[31mred\x1b[0m\r\n\u202e" + "x" * 300
    written(tmp_path, {"name": nasty, nasty: 1}, {"loss": [1.0]})
    written(tmp_path, {"name": "b"}, {nasty: [1.0], "loss": [2.0]})
    bad = written(tmp_path, {"name": "c"}, {"loss": [2.0]}, name="bad\x1b]0;title\x07")
    (bad / "done.json").write_text(f'{{"steps": "{nasty.encode("unicode_escape").decode()}"}}')
    for options in ((), ("--groups",), ("--sort", "name")):
        page = answered("runs", "list", "--runs", str(tmp_path), *options).stdout
        assert [line for line in page.splitlines() if not line.isprintable()] == []
    assert "!" in answered("runs", "list", "--runs", str(tmp_path)).stdout
    assert len(listed(tmp_path)["runs"]) == 3


def test_values_without_number_are_no_json_nan(tmp_path: Path) -> None:
    """A loss that is NaN at the end: null in JSON, the best finite value counts."""
    path = written(tmp_path, {"lr": 1}, {"loss": [1.0]})
    with (path / "log.jsonl").open("a") as file:
        file.write('{"step":1,"attempt":1,"loss":"NaN"}\n{"step":2,"attempt":1,"loss":"Infinity"}\n')
    (row,) = listed(tmp_path)["runs"]
    assert (row["metrics"]["loss"]["last"], row["metrics"]["loss"]["max"], row["best"]) == (None, 1.0, 1.0)


def test_configs_of_every_form(tmp_path: Path) -> None:
    """Lists, nulls, nested and missing keys, whole numbers beside decimals: a column each."""
    for n, value in enumerate([[1, 2], None, {"b": 1}, {}, 1, 1.0, True, "1", "", 10**40]):
        written(tmp_path, {"a": value, "n": n}, {"loss": [float(n)]})
    page = answered("runs", "list", "--runs", str(tmp_path)).stdout
    assert len(listed(tmp_path, "--where", "a=1")["runs"]) == 3  # 1, 1.0 and the text "1"
    assert "[1,2]" in page
    assert "–" in page


# --- helpers with rules of their own --------------------------------------------------------------------------------


def test_differing_keys() -> None:
    """As the fingerprint sees it: 1 and 1.0 differ, order does not matter, a missing key differs."""
    configs = [
        flat(c) for c in ({"a": 1, "b": {"c": 2}}, {"b": {"c": 2}, "a": 1.0}, {"a": 1, "b": {"c": 2}, "d": 0})
    ]
    assert differing(configs) == ["a", "d"]
    assert differing(configs[:1]) == differing([]) == []
    assert not same(0.0, -0.0)
    assert same({"x": [1]}, {"x": [1]})


def test_short_names_stay_apart() -> None:
    """Never two columns of one name, nor one of the table's own."""
    assert short_names(["a.lr", "b.lr", "state"], ["state"]) == {
        "a.lr": "a.lr",
        "b.lr": "b.lr",
        "state": "state (config)",
    }
    assert short_names(["x.state"], ["state"]) == {"x.state": "x.state"}


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("lr=1e-3", 0.001, True), ("a=true", True, True), ("a=true", "true", True), ("a=1", True, False),
        ("a=null", None, True), ("a=x=y", "x=y", True), ("a= text ", "text", False), ("a=text", "text", True),
        ("a!=1", 2, True), ("a>=2", 2.0, True), ("a<2", "1", False), ("a=[1,2]", [1, 2], True),
        ("a=", "", True), ("a=0", 0.0, True),
    ],
)  # fmt: skip
def test_conditions(text: str, value: object, holds: bool) -> None:
    """Numbers as numbers, text as text, the rest as JSON."""
    assert parse_condition(text).holds(value) is holds


def test_cells_are_short() -> None:
    """A long value loses its middle, not its ends."""
    assert cell("a" * 30 + "b" * 30, 11) == "aaaaa…bbbbb"

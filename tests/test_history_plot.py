"""`runs plot`: one value per step, nothing lost by thinning, pictures that are whole and always the same."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from history_runs import written
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from run_logs import by_hand, lines, record, resumed
from runs_left import STEPS, train
from terminal import answered, refused, run

from loadsheet.errors import BadInput
from loadsheet.history import plot
from loadsheet.history.index import find
from loadsheet.history.plot_curves import (
    Axis,
    Curve,
    exponential_average,
    labels,
    mean_of,
    read_curves,
    thinned,
    thinned_band,
)
from loadsheet.history.plot_text import page


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of one config, one interrupted after 8 steps, and another config that broke off after 5."""
    root = tmp_path_factory.mktemp("runs")
    train(root, {"lr": 0.1, "seed": 0}, until=8)
    for seed in range(3):
        train(root, {"lr": 0.1, "seed": seed})
    train(root, {"lr": 0.5, "seed": 0}, until=5)
    return root


@pytest.fixture(scope="module")
def names(left: Path) -> dict[tuple[float, int], str]:
    """The fingerprints by learning rate and seed."""
    configs = {path.name: json.loads((path / "config.json").read_text()) for path in left.glob("*/")}
    return {(config["lr"], config["seed"]): name for name, config in configs.items()}


def a_run(path: Path, *records: dict[str, Any], **config: Any) -> Path:
    """A run directory with a log written by hand."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    by_hand(path / "log.jsonl", resumed(1, 0), *records)
    return path


def curve(values: list[float], label: str = "run", metric: str = "loss", **more: Any) -> Curve:
    x = [float(n) for n in range(len(values))]
    return Curve(label, metric, list(range(len(values))), x, values, values, **more)


# --- what is drawn --------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.floats(0, 0.999))
def test_smoothing_is_a_weighted_mean(values: list[float], beta: float) -> None:
    """Without its bias the average is Σ β^(t−i)·y_i / Σ β^(t−i), summed here directly."""
    expected = []
    for t in range(len(values)):
        weights = [beta ** (t - i) if t > i else 1.0 for i in range(t + 1)]
        expected.append(math.fsum(w * y for w, y in zip(weights, values, strict=False)) / math.fsum(weights))
    assert exponential_average(values, beta) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=400),
    st.integers(1, 12),
)
def test_thinning_loses_no_extreme(values: list[int], columns: int) -> None:
    """Of every column of pixels the first, last, lowest and highest value stay, in order, and at most four."""
    x = [float(n) for n in range(len(values))]
    xs, ys = thinned(x, values, 0.0, float(len(values)), columns)
    assert len(xs) <= max(4 * columns, 4)
    assert xs == sorted(set(xs))
    kept = dict(zip(xs, ys, strict=True))
    assert all(values[int(place)] == value for place, value in kept.items())
    for column in range(columns):
        inside = [n for n in range(len(values)) if n * columns // len(values) == column]
        if inside:
            found = [kept[n] for n in inside if n in kept]
            assert found[0] == values[inside[0]]
            assert found[-1] == values[inside[-1]]
            assert (min(found), max(found)) == (
                min(values[n] for n in inside),
                max(values[n] for n in inside),
            )


def test_a_thinned_band_is_no_narrower() -> None:
    """Each step of a thinned band reaches from the lowest to the highest of what it stands for."""
    low, high = [math.sin(n) for n in range(1000)], [2 + math.cos(n / 7) for n in range(1000)]
    xs, lows, highs = thinned_band(range(1000), low, high, 0, 1000, 10)
    assert xs == list(range(0, 1000, 100))
    assert lows == [min(low[n : n + 100]) for n in range(0, 1000, 100)]
    assert highs == [max(high[n : n + 100]) for n in range(0, 1000, 100)]


def test_one_value_per_step(left: Path, names: dict[tuple[float, int], str]) -> None:
    """Steps that were run again are there once, from the later attempt; the place of the resume is known."""
    row = find(left, names[0.1, 0])
    loss, val_loss = read_curves(row, "x", ["loss", "val_loss", "none"], Axis(), 0.5)
    expected: dict[int, float] = {}
    for line in lines(row.path / "log.jsonl"):  # the last line of a step counts
        if "loss" in line:
            expected[line["step"]] = line["loss"]
    assert loss.steps == list(range(STEPS))
    assert loss.y == [expected[step] for step in range(STEPS)]
    assert loss.smooth == exponential_average(loss.y, 0.5)
    assert loss.resumed == [6.0]
    assert val_loss.x == [2.0, 5.0, 8.0, 11.0]
    assert val_loss.y == pytest.approx([9.1, 0.1, 9.1, 36.1])


def test_not_finite(tmp_path: Path) -> None:
    """NaN and infinities are kept apart with their places, and do not touch the average."""
    values: list[Any] = [1.0, "NaN", 3.0, "Infinity", "-Infinity", None, True, "text", 10**400, 5.0]
    path = a_run(tmp_path / "run", *(record(1, n, loss=value) for n, value in enumerate(values)))
    (found,) = read_curves(find(tmp_path, "run"), "x", ["loss"], Axis(), 0.5)
    assert found.x == [0.0, 2.0, 9.0]
    assert found.y == [1.0, 3.0, 5.0]
    assert found.smooth == exponential_average([1.0, 3.0, 5.0], 0.5)
    assert [place for place, _ in found.odd] == [1.0, 3.0, 4.0, 8.0]
    assert math.isnan(found.odd[0][1])
    assert [value for _, value in found.odd[1:]] == [math.inf, -math.inf, math.inf]
    picture = tmp_path / "a.svg"
    plot.draw([[found]], Axis(), 0.5, picture)
    text = picture.read_text()
    assert "not a number: 1" in text
    assert "· infinite: 2" in text
    assert "minus infinite: 1" in text
    assert path.exists()


def test_axes(tmp_path: Path) -> None:
    """Tokens: the option, else logged, else of the config, else of the signed sheet; time from the first line."""
    records = [record(1, n, loss=1.0) | {"time": 1000.0 + 60 * n} for n in range(3)]
    a_run(tmp_path / "plain", *records)
    a_run(tmp_path / "config", *records, data={"tokens_per_step": 7})
    a_run(
        tmp_path / "logged",
        *({**r, "tokens": 5 * r["step"], "epoch": r["step"] / 2} for r in records),
        tokens_per_step=7,
    )
    sheet = a_run(tmp_path / "sheet", *records)
    (sheet / "sheet.json").write_text(json.dumps({"intent": {"tokens_per_step": 11}}))

    def places(name: str, axis: Axis) -> list[float]:
        return read_curves(find(tmp_path, name), "x", ["loss"], axis, 0.0)[0].x

    assert places("plain", Axis("tokens", 3)) == [3, 6, 9]
    assert places("config", Axis("tokens")) == [7, 14, 21]
    assert places("logged", Axis("tokens")) == [0, 5, 10]
    assert places("logged", Axis("tokens", 3)) == [3, 6, 9]
    assert places("sheet", Axis("tokens")) == [11, 22, 33]
    assert places("logged", Axis("epoch")) == [0, 0.5, 1]
    log = (tmp_path / "plain" / "log.jsonl").read_text()
    (tmp_path / "plain" / "log.jsonl").write_text(log.replace('"time": 0', '"time": 940', 1))
    assert places("plain", Axis("time")) == [60, 120, 180]
    for axis in (Axis("tokens"), Axis("epoch")):
        with pytest.raises(BadInput, match=f"--by {axis.by}: .*expected one"):
            places("plain", axis)


def test_seeds(left: Path, names: dict[tuple[float, int], str]) -> None:
    """Mean, lowest and highest of the seeds at each step, as NumPy computes them; shared steps only."""
    curves = [read_curves(find(left, names[0.1, s]), str(s), ["loss"], Axis(), 0.0)[0] for s in range(3)]
    found = mean_of(curves, "three")
    values = np.array([one.y for one in curves])
    assert found.smooth == pytest.approx(values.mean(axis=0).tolist(), rel=1e-12)
    assert found.low == values.min(axis=0).tolist()
    assert found.high == values.max(axis=0).tolist()
    assert found.runs == 3
    assert found.resumed == [6.0]
    short = read_curves(find(left, names[0.5, 0]), "s", ["loss"], Axis(), 0.0)[0]
    assert mean_of([*curves, short], "four").steps == [0, 1, 2, 3, 4]


def test_labels(left: Path, names: dict[tuple[float, int], str]) -> None:
    """A run is named by its fingerprint and the values of the keys that differ."""
    rows = [find(left, names[0.1, 0]), find(left, names[0.1, 1])]
    assert labels(rows) == [f"{names[0.1, 0]} seed=0", f"{names[0.1, 1]} seed=1"]
    assert labels(rows[:1]) == [names[0.1, 0]]


# --- pictures -------------------------------------------------------------------------------------------------

STRANGE = ("_hidden", "$x^2$ & <b>", "a\x1b[31m\nb", "损失", "", "x" * 500, "50 % \\alpha{")


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_pictures(tmp_path: Path, ending: str) -> None:
    """Each kind of file is what it says, with names as they are, whatever is in them."""
    curves = [curve([3.0, 1.0, 2.0], name, f"{name}_seconds", resumed=[1.0]) for name in STRANGE]
    path = tmp_path / f"curves.{ending}"
    nbytes = plot.draw([curves, curves[:1]], Axis("tokens"), 0.0, path)
    assert nbytes == path.stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if ending == "png":
        height, width, _ = imread(path).shape
        assert width == 8 * 150
        assert height > 2 * 3.2 * 150
    elif ending == "pdf":
        assert path.read_bytes().startswith(b"%PDF-")
    else:
        texts = [e.text or "" for e in ET.parse(path).iter() if e.tag.endswith("}text")]
        shown = " ".join(texts)
        assert "$x^2$ & <b>" in shown
        assert "_hidden" in shown
        assert "50 % \\alpha{" in shown
        assert "tokens" in texts
        assert "an attempt was resumed" in texts
        assert "(s)" in shown  # the unit that the name of the metric says
        assert "\x1b" not in shown


def test_the_same_curves_give_the_same_bytes(tmp_path: Path) -> None:
    """In another process, at another time, under other settings of the user: no date, no chance."""
    script = (
        "import sys; from pathlib import Path; from loadsheet.history.plot import draw;"
        "from loadsheet.history.plot_curves import Axis, Curve;"
        "y = [3.0, 1.0, 2.0]; c = Curve('run', 'loss', [0, 1, 2], [0.0, 1.0, 2.0], y, y, resumed=[1.0]);"
        "[draw([[c]], Axis(), 0.0, Path(sys.argv[1]) / f'there.{e}') for e in ('png', 'svg', 'pdf')]"
    )
    environment = {"MPLCONFIGDIR": str(tmp_path), "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1"}
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        check=True,
        env={**os.environ, **environment},
        timeout=120,
    )
    with mpl.rc_context({"lines.linewidth": 9.0, "axes.facecolor": "red", "svg.hashsalt": None}):
        for ending in ("png", "svg", "pdf"):
            path = tmp_path / f"here.{ending}"
            plot.draw([[curve([3.0, 1.0, 2.0], resumed=[1.0])]], Axis(), 0.0, path)
            assert path.read_bytes() == (tmp_path / f"there.{ending}").read_bytes()
    assert not re.search(r"20\d\d-\d\d-\d\d", (tmp_path / "here.svg").read_text())


def test_a_spike_in_a_long_log_is_seen(tmp_path: Path) -> None:
    """One value among 200,000 that is high: pixels of the curve in the upper half, where none is without it."""

    def blue_in_upper_half(values: list[float]) -> int:
        plot.draw([[curve(values)]], Axis(), 0.0, tmp_path / "a.png")
        picture = imread(tmp_path / "a.png")[80:240, 150:, :3]
        rgb = np.array([int(plot.COLOURS[0][n : n + 2], 16) / 255 for n in (1, 3, 5)])
        return int((np.abs(picture - rgb).max(axis=2) < 0.2).sum())

    flat = [n % 2 / 10 for n in range(200_000)]
    flat[0] = 10.0  # at the left edge, outside of what is looked at: it makes the scale
    assert blue_in_upper_half(flat) == 0
    flat[123_456] = 10.0
    assert blue_in_upper_half(flat) > 50


def test_colours() -> None:
    """The colours of Okabe and Ito (2008), as their page gives them in RGB, without yellow."""
    published = {
        (0, 0, 0), (230, 159, 0), (86, 180, 233), (0, 158, 115), (0, 114, 178), (213, 94, 0), (204, 121, 167)
    }  # fmt: skip
    assert {tuple(bytes.fromhex(colour[1:])) for colour in plot.COLOURS} == published


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture is replaced whole or not at all."""
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def full(_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BadInput, match="No space left"):
        plot.draw([[curve([1.0, 2.0])]], Axis(), 0.0, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


# --- text -----------------------------------------------------------------------------------------------------


def dots(lines: list[str]) -> set[tuple[int, int]]:
    """The dots of Braille characters as places in a grid, by Unicode's own numbering of them."""
    places = {1: (0, 0), 2: (0, 1), 3: (0, 2), 4: (1, 0), 5: (1, 1), 6: (1, 2), 7: (0, 3), 8: (1, 3)}
    found = set()
    for row, line in enumerate(lines):
        for column, sign in enumerate(line):
            for number, (x, y) in places.items():
                if ord(sign) >= 0x2800 and (ord(sign) - 0x2800) >> (number - 1) & 1:
                    found.add((2 * column + x, 4 * row + y))
    return found


@pytest.mark.parametrize("rule", [lambda x: x, lambda x: 1 - x, lambda x: 4 * (x - 0.5) ** 2])
def test_dots_are_where_the_curve_is(rule: Callable[[float], float]) -> None:
    """Each column of dots lies within a dot or two of the function that was drawn."""
    values = [rule(n / 499) for n in range(500)]
    drawn = page([curve(values)], Axis(), 0.0, 72)
    body = [line[12:] for line in drawn[1:17]]
    assert all(line[11] == "│" for line in drawn[1:17])
    found = dots(body)
    columns, rows = 2 * 60, 4 * 16
    assert {x for x, _ in found} == set(range(columns))
    for x, y in found:
        low, high = (rule(min(max((x + d) / columns, 0), 1)) for d in (-1.0, 2.0))
        expected = sorted(rows - 1 - value * (rows - 1) for value in (low, high, rule((x + 0.5) / columns)))
        assert expected[0] - 2 <= y <= expected[-1] + 2


@pytest.mark.parametrize("width", [40, 60, 100, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_pages(width: int, unicode: bool) -> None:
    """Pages keep to the width, in ASCII where nothing else is understood; marks stand under their steps."""
    one = curve([float(n) for n in range(101)], "first", resumed=[50.0], odd=[(100.0, math.nan)])
    two = curve([100.0 - n for n in range(101)], "second")
    for panel in ([one], [one, two], [two]):
        text = page(panel, Axis(), 0.9, width, unicode=unicode)
        assert max(map(len, text)) <= width
        assert "\n".join(text).isascii() or unicode
    text = page([one, two], Axis(), 0.0, width, unicode=unicode)
    marks = {line[:10].strip(): line[12:] for line in text if line[:10].strip() in ("resumed", "not finite")}
    room = width - 12
    assert marks["resumed"].index("^") == room // 2
    assert marks["not finite"].index("x") == room - 1
    assert text[1].split()[0] == "100"
    assert text[16].split()[0] == "0"
    assert text[1][12] == "b"  # the second begins high
    assert text[1][11 + room] == "a"
    assert "a first" in "\n".join(text)


def test_flat_and_single() -> None:
    """One value, equal values and none at all are pages too."""
    for values in ([5.0], [5.0] * 9, [0.0, 0.0], [1e-300, 1e300], [1.0, 1.0 + 1e-9]):
        assert len(page([curve(values)], Axis(), 0.0, 80)) > 16
    assert len(page([Curve("x", "loss", odd=[(3.0, math.nan)])], Axis(), 0.0, 80)) > 16


# --- the command line -----------------------------------------------------------------------------------------


def test_on_the_terminal(left: Path, names: dict[tuple[float, int], str]) -> None:
    """Without --out the curve is a page; TERM=dumb gets ASCII; what says most is drawn if nobody says what."""
    result = run("runs", "plot", names[0.1, 0], "--runs", str(left), "--metric", "loss", TERM="xterm")
    assert (result.exit_code, result.stderr) == (0, "")
    assert dots(result.stdout.splitlines())
    assert "resumed" in result.stdout
    result = run("runs", "plot", names[0.1, 0], "--runs", str(left), TERM="dumb", COLUMNS="70")
    assert result.stdout.isascii()
    assert result.stdout.splitlines()[0] == "val_loss"
    assert "--metric was not given: val_loss is drawn" in result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 70


def test_a_picture(left: Path, names: dict[tuple[float, int], str], tmp_path: Path) -> None:
    """Panels by --metric given again; the file is named on standard output."""
    out = tmp_path / "a.svg"
    runs = [names[0.1, 0], names[0.1, 1], names[0.5, 0]]
    result = answered(
        "runs", "plot", *runs, "--runs", str(left), "--metric", "loss,val_loss", "--metric",
        "timing.tokens_per_second", "--smooth", "0.6", "--by", "tokens", "--out", str(out),
    )  # fmt: skip
    assert result.stdout.startswith(f"{out}: 9 curves, ")
    text = out.read_text()
    assert "β = 0.6" in text
    assert "timing.tokens_per_second (1/s)" in text
    assert all(f"{name} lr=" in text for name in runs)


def test_seeds_on_the_command_line(left: Path, names: dict[tuple[float, int], str], tmp_path: Path) -> None:
    """--seeds makes one curve of the runs that differ only there, and says what the band is."""
    out = tmp_path / "a.svg"
    args = ("runs", "plot", *names.values(), "--runs", str(left), "--metric", "loss", "--seeds")
    said = run(*args, "--out", str(out)).stderr
    broken = names[0.5, 0]
    assert f"left out: {broken}, failed after 5 steps" in " ".join(said.split())
    text = " ".join("".join(ET.parse(out).getroot().itertext()).split())
    assert "lr=0.1 · mean of 3 seeds" in text
    assert "band from the lowest to the highest" in text
    data = json.loads(answered(*args, "--json").stdout)
    (panel,) = data["panels"]
    assert [one["runs"] for one in panel] == [3]
    assert data["left_out"] == {broken: "failed after 5 steps"}
    assert {"schema", "by", "smooth", "panels", "out", "bytes", "left_out"} == set(data)
    (panel,) = json.loads(answered(*args, "--unfinished", "--json").stdout)["panels"]
    assert [(one["label"], one["runs"]) for one in panel] == [("lr=0.1", 3), ("lr=0.5", 1)]
    alone = run(
        "runs", "plot", names[0.1, 0], names[0.5, 0], "--runs", str(left), "--metric", "loss", "--seeds"
    )
    assert "no two of these runs differ only in their seed" in alone.stderr


def test_an_unfinished_seed_does_not_cut_the_curve(tmp_path: Path) -> None:
    """Two seeds of 20 steps and one that was killed after 4: the mean is that of two, over 20 steps."""
    for seed, steps in ((0, 20), (1, 20), (2, 4)):
        written(tmp_path, {"lr": 1, "seed": seed}, {"loss": [float(seed)] * steps}, done=steps == 20)
    args = ("runs", "plot", "--runs", str(tmp_path), "--metric", "loss", "--seeds", "--json")
    ((one,),) = json.loads(answered(*args).stdout)["panels"]
    assert (one["runs"], one["steps"], set(one["smooth"])) == (2, list(range(20)), {0.5})
    result = run(*args, "--unfinished")
    ((one,),) = json.loads(result.stdout)["panels"]
    assert (one["runs"], one["steps"], set(one["smooth"])) == (3, list(range(4)), {1.0})
    said = " ".join(result.stderr.split())
    assert "the mean of loss ends at step 3, where" in said
    assert "the others go on to step 19" in said
    refused("runs", "plot", "--runs", str(tmp_path), "--unfinished", words="--seeds")
    for path in tmp_path.glob("*/done.json"):
        path.unlink()
    refused(*args, words="--unfinished lets such runs count")


def test_one_style_and_one_legend_entry_for_a_configuration(tmp_path: Path) -> None:
    """Two panels, eight learning rates: alike in both panels, no two alike in one, the legend by learning rate."""
    rates = [0.001, 0.002, 0.003, 0.01, 0.02, 0.03, 0.1, 0.2]
    for rate in rates:
        for seed in range(2):
            written(tmp_path, {"lr": rate, "seed": seed}, {"loss": [rate, 0.0], "val_loss": [rate, 1.0]})
    out = tmp_path / "a.svg"
    args = ("runs", "plot", "--runs", str(tmp_path), "--metric", "loss", "--metric", "val_loss", "--seeds")
    result = run(*args, "--out", str(out))
    assert result.stderr == ""
    texts = ["".join(text.itertext()) for text in ET.parse(out).iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if "mean of" in text and "lr" in text] == [
        f"lr={rate} · mean of 2 seeds" for rate in rates
    ]
    panels = [[curve([1.0], f"{n}", metric) for n in range(28)] for metric in ("loss", "val_loss")]
    assert plot.look_alikes(panels) == 0
    assert plot.alike_text(panels, seeds=False) is None


def test_what_is_said_of_curves_that_look_alike() -> None:
    """One or several, and only advice that can be followed."""
    one = [[curve([1.0], f"{n}") for n in range(29)]]
    said = plot.alike_text(one, seeds=False)
    assert said == (
        "1 curve looks like another one in the same panel: draw fewer runs (--where), or one curve for runs that "
        "differ only in the seed (--seeds)"
    )
    several = [[curve([1.0], f"{n}", metric) for n in range(15) for metric in ("loss", "val_loss")]]
    said = plot.alike_text(several, seeds=True)
    assert said is not None
    assert re.match(r"\d+ curves look like others in the same panel: give --metric once for each", said)
    assert "--seeds" not in said


def test_json(tmp_path: Path) -> None:
    """The curves as numbers, not finite ones as words, nothing that is no JSON."""
    a_run(tmp_path / "run", record(1, 0, loss=1.5), record(1, 1, loss="NaN"), record(1, 2, loss="Infinity"))
    text = answered("runs", "plot", "run", "--runs", str(tmp_path), "--metric", "loss", "--json").stdout
    (one,) = json.loads(text, parse_constant=pytest.fail)["panels"][0]
    assert (one["x"], one["y"]) == ([0.0], [1.5])
    assert one["not_finite"] == [[1.0, "NaN"], [2.0, "Infinity"]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--metric", "los"), "did you mean `loss`"),
        (("--metric", ","), "--metric"),
        (("--smooth", "1"), "--smooth"),
        (("--smooth", "much"), "--smooth"),
        (("--by", "epoch"), "--by step"),
        (("--tokens-per-step", "5"), "--by tokens"),
        (("--by", "tokens", "--tokens-per-step", "0"), "--tokens-per-step"),
        (("--out", "curves.gif"), ".png, .svg, .pdf"),
        (("--out", "none/curves.png"), "mkdir"),
        (("nowhere",), "unknown run"),
    ],
)
def test_refusals(
    left: Path, names: dict[tuple[float, int], str], options: tuple[str, ...], words: str
) -> None:
    """What makes no sense is said in one line."""
    refused("runs", "plot", names[0.1, 0], "--runs", str(left), *options, words=words)


def test_runs_without_the_metric(left: Path, names: dict[tuple[float, int], str], tmp_path: Path) -> None:
    """A run that did not log it is left out and named; if nobody did that is an error, and so is a log of nothing."""
    shutil.copytree(left / names[0.1, 0], tmp_path / names[0.1, 0])
    a_run(tmp_path / "other", record(1, 0, accuracy=0.5))
    result = run("runs", "plot", names[0.1, 0], "other", "--runs", str(tmp_path), "--metric", "loss")
    assert result.exit_code == 0
    assert "other: has logged no loss" in result.stderr.replace(find(tmp_path, "other").fingerprint, "other")
    a_run(tmp_path / "empty")
    refused("runs", "plot", "empty", "--runs", str(tmp_path), words="logged no number")
    refused("runs", "plot", "empty", "--runs", str(tmp_path), "--metric", "loss", words="unknown metric")


def test_damaged_lines(left: Path, names: dict[tuple[float, int], str], tmp_path: Path) -> None:
    """A log with damage and half a last line is still drawn."""
    path = Path(shutil.copytree(left / names[0.1, 1], tmp_path / names[0.1, 1]))
    log = (path / "log.jsonl").read_bytes()
    (path / "log.jsonl").write_bytes(log.replace(b'{"step":3,', b"\0\0\0\0", 1) + b'{"step":12,"lo')
    text = answered("runs", "plot", path.name, "--runs", str(tmp_path), "--metric", "loss", "--json").stdout
    assert json.loads(text)["panels"][0][0]["steps"] == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]


def test_without_matplotlib(
    left: Path, names: dict[tuple[float, int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture needs matplotlib and says so; the terminal does not."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    args = ("runs", "plot", names[0.1, 0], "--runs", str(left), "--metric", "loss")
    refused(*args, "--out", "a.png", words="loadsheet[plot]")
    answered(*args)


def test_help_loads_nothing_heavy() -> None:
    """The pages of help come without matplotlib, NumPy, torch and msgspec."""
    code = (
        "import sys; from loadsheet.cli import main\n"
        "for name in ('plot', 'export', 'gc', 'verify'):\n"
        "    try: main(['runs', name, '--help'])\n"
        "    except SystemExit: pass\n"
        "sys.exit(bool({'matplotlib', 'numpy', 'torch', 'msgspec', 'safetensors'} & sys.modules.keys()))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False).returncode
        == 0
    )

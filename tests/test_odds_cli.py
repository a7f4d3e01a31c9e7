"""`loadsheet odds` and `plan --mtbf` as they are typed: pages, JSON, pictures, files, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from terminal import answered, plan, refused, run

import loadsheet as ls
from loadsheet import signature
from loadsheet.errors import BadInput
from loadsheet.money.interruptions import Job, expected
from loadsheet.money.interval import best_every
from loadsheet.sheet.spot import Interruptions

HOUR = 3600.0
BASE = ("odds", "--work", "24h", "--save", "5min", "--restart", "2min", "--mtbf", "6h", "--jobs", "2000")
FULL = (
    *BASE, "--price", "1.2 USD", "--on-demand-price", "3.5", "--budget", "36", "--deadline", "32h",
    "--down-mean", "20min", "--commit", "1min", "--notice-works", "50%", "--machines", "2", "--storage", "500GB",
    "--storage-price", "0.08", "--egress", "50GB", "--egress-price", "0.09", "--other-hourly", "0.01",
    "--failures", "1000h",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no rehearsal lies about."""
    monkeypatch.chdir(tmp_path)


def data(*args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answered(*args, "--json").stdout)
    return found


def test_json_of_the_design() -> None:
    """The keys of design §3 with their kinds, before all others."""
    found = data(*FULL)
    names = (
        "interval_seconds", "expected_seconds", "std_seconds", "quantiles", "cost", "p_within_budget",
        "p_by_deadline", "reasons",
    )  # fmt: skip
    assert [key for key in found if key in names] == list(names)
    assert {"young", "daly", "exact"} <= found["interval_seconds"].keys()
    assert list(found["cost"]) == ["low", "mid", "high"]
    assert found["cost"]["low"] < found["cost"]["mid"] < found["cost"]["high"]
    assert 0 < found["p_within_budget"] < 1 or "p_within_budget" in found["reasons"]
    assert 0 < found["p_by_deadline"] < 1
    assert list(found["quantiles"]) == ["p5", "p25", "p50", "p75", "p90", "p95", "p99"]
    assert list(found["quantiles"].values()) == sorted(found["quantiles"].values())


def test_published_optima() -> None:
    """Daly 2006: 57 min for δ = 5 min, M = 6 h; Young 60."""
    found = data(*BASE)["interval_seconds"]
    assert (round(found["daly"] / 60), round(found["exact"] / 60), round(found["young"] / 60)) == (57, 57, 60)


def test_expected_time() -> None:
    """Without an option more it is the formula at 25 equal segments, the first start included."""
    found = data(*BASE)
    span = expected(Job(24 * HOUR, 300.0, 24 * HOUR / 25, 6 * HOUR, 120.0, 120.0)).total
    assert found["expected_seconds"] == pytest.approx(span.mean)
    assert found["std_seconds"] == pytest.approx(span.std)
    simulation = found["simulation"]
    assert abs(simulation["mean_seconds"] - span.mean) < 4 * simulation["standard_error_seconds"]


def test_machines_that_stay() -> None:
    """M beyond every age: undisturbed, without spread, one save at the end, and nothing left to chance."""
    found = data("odds", "--work", "24h", "--save", "5min", "--restart", "2min", "--mtbf", "1e25d", "--deadline", "25h",
                 "--down-mean", "0", "--jobs", "500")  # fmt: skip
    assert found["expected_seconds"] == pytest.approx(24 * HOUR + 300 + 120)
    assert found["std_seconds"] < 1
    assert found["quantiles"]["p5"] == found["quantiles"]["p99"] == pytest.approx(found["expected_seconds"])


def test_null_has_its_reason() -> None:
    """Whatever is null says why."""
    found = data(*BASE, "--deadline", "36h")
    for key in ("cost", "p_within_budget", "p_by_deadline"):
        assert found[key] is None
        assert found["reasons"][key]
    assert found["wall_seconds"] is None


def test_defaults_are_starred() -> None:
    """What nobody gave has a star on the page and says so in JSON."""
    page = answered("odds", "--work", "24h", "--save", "5min", "--mtbf", "6h", "--jobs", "500").stdout
    assert "restart 10.00 min*" in page
    assert "start-up 10.00 min*" in page
    assert re.search(r"^\* defaulted", page, re.M)
    assert "restart 2.00 min ·" in answered(*BASE).stdout
    inputs = data(*BASE)["inputs"]
    assert [inputs[n]["defaulted"] for n in ("mtbf", "restart", "startup", "commit")] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("columns", ["40", "60", "80", "120", "400"])
@pytest.mark.parametrize("args", [BASE, FULL, (*BASE, "--every", "3h")])
def test_width(columns: str, args: tuple[str, ...]) -> None:
    """The page keeps to the terminal's width from 60 on, and in the narrow one no number is lost."""
    room = max(int(columns), 60)
    assert max(map(len, run(*args, COLUMNS=columns).stdout.splitlines())) <= room


def test_page_says_what_matters() -> None:
    """The headline, where the time goes, the odds with their errors, and what would change them."""
    page = " ".join(answered(*FULL).stdout.split())
    for words in ("EXPECT", "Where it goes", "repeated work", "Odds", " ± ", "stressed", "If M is",
                  "What would change it", "on demand", "waiting for capacity"):  # fmt: skip
        assert words in page


def test_never_nought_and_never_all() -> None:
    """A chance that no simulated job met is "below", one that all met "all but"; neither is 0 % or 100 %."""
    page = " ".join(answered(*BASE, "--price", "1", "--budget", "500").stdout.split())
    assert "within 500.00: all but 0.15 % (all of 2,000)" in page
    page = " ".join(answered(*BASE, "--down-mean", "0", "--deadline", "26h13min10s"[:3]).stdout.split())
    assert "impossible" in page


def test_cut_is_said() -> None:
    """More jobs than ten million random numbers allow are cut, and that is said."""
    args = (
        "odds",
        "--work",
        "300h",
        "--save",
        "1min",
        "--restart",
        "1min",
        "--mtbf",
        "30min",
        "--jobs",
        "10M",
    )
    result = answered(*args, "--json")
    found = json.loads(result.stdout)
    assert found["simulation"]["asked"] == 10_000_000 > found["simulation"]["jobs"] > 100
    assert "10,000,000 random numbers" in result.stderr


def test_a_bare_number_explains_an_error() -> None:
    """`--mtbf 6` is six seconds, and that is said where the answer is an error as well."""
    for args in (("--work", "24h", "--save", "5min", "--mtbf", "6"), ("--mtbf", "6")):
        result = run("odds", *args)
        assert result.exit_code == 2
        warning, error, hint = result.stderr.splitlines()
        assert warning == "warning: no unit in --mtbf '6': it is taken for seconds; write h, min or s"
        assert (error[:7], hint[:6]) == ("error: ", "hint: ")


def test_seed() -> None:
    """The same command prints the same page; another seed another sample, and the same formula."""
    assert answered(*FULL).stdout == answered(*FULL).stdout
    one, two = data(*BASE), data(*BASE, "--seed", "7")
    assert one["quantiles"] != two["quantiles"]
    assert one["expected_seconds"] == two["expected_seconds"]


def test_trace(tmp_path: Path) -> None:
    """A trace takes the place of M and of the waits: up 6 h, down 1 h, for ever."""
    (tmp_path / "t.csv").write_text("state,seconds\nup,6h\ndown,1h\nup,6h\ndown,1h\n")
    args = (
        "odds",
        "--work",
        "24h",
        "--save",
        "5min",
        "--trace",
        "t.csv",
        "--deadline",
        "60h",
        "--jobs",
        "500",
    )
    found = data(*args)
    assert found["trace"]["mean_up_seconds"] == 6 * HOUR
    assert found["trace"]["available"] == pytest.approx(6 / 7)
    assert 0 < found["p_by_deadline"] < 1
    assert found["wall_seconds"]["expected"] > found["expected_seconds"] > 24 * HOUR
    page = " ".join(answered(*args).stdout.split())
    assert "there 86% of the time" in page
    assert "exponential interruptions would say" in page
    assert data(*args, "--jobs", "1")["std_seconds"] is None
    refused(*args, "--mtbf", "6h", words="a trace says")
    refused(*args, "--down-mean", "6h", words="a trace says")
    (tmp_path / "bad.csv").write_text("state,seconds\nup,60\ndown,60\n")
    refused("odds", "--work", "24h", "--save", "5min", "--trace", "bad.csv", words="never finishes")


def test_rehearsal(tmp_path: Path) -> None:
    """What a rehearsal measured is used and told; an option has the last word."""
    folder = tmp_path / ".loadsheet"
    folder.mkdir()
    rehearsal = {
        "save_seconds": {"stall": 2.0, "total": 20.0},
        "checkpoint_bytes": 10**9,
        "step_seconds": 3.0,
    }
    (folder / "rehearsal.json").write_text(json.dumps(rehearsal))
    args = ("odds", "--work", "24h", "--mtbf", "6h", "--jobs", "500")
    found = data(*args)
    assert [found["inputs"][n]["value"] for n in ("save", "commit", "step")] == [2.0, 18.0, 3.0]
    assert "rehearsal.json" in found["inputs"]["save"]["source"]
    assert found["interval_seconds"]["used"] % 3 == 0
    assert "measured in rehearsal.json" in " ".join(answered(*args).stdout.split())
    assert (
        data(*args, "--save", "5min", "--rehearsal", ".loadsheet/rehearsal.json")["inputs"]["save"]["value"]
        == 300.0
    )
    assert "step" not in data(*args, "--save", "5min")["inputs"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "expected an object"), ("{}", "save_seconds"), ('{"save_seconds": 5}', "save_seconds"),
        ('{"save_seconds": {"stall": "x", "total": 1}}', "save_seconds.stall"),
        ('{"save_seconds": {"stall": -1, "total": 1}}', "from 0"),
        ('{"save_seconds": {"stall": 1, "total": 1}, "checkpoint_bytes": 0}', "above 0"),
        ('{"save_seconds": {"stall": 1, "total": 1}, "step_seconds": null, "checkpoint_bytes": true}', "above 0"),
        ("{", "no valid JSON"), ("[" * 9999, "nesting"),
    ],
)  # fmt: skip
def test_damaged_rehearsals(tmp_path: Path, text: str, words: str) -> None:
    """A rehearsal that is none is refused in one line."""
    (tmp_path / "r.json").write_text(text)
    result = run("odds", "--work", "24h", "--mtbf", "6h", "--rehearsal", "r.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def _rehearsed(folder: Path, **more: Any) -> None:
    """A rehearsal lies where it is looked for: 0.1 s for 1 MB."""
    found = {
        "passed": True,
        "save_seconds": {"stall": 0.1, "total": 0.3},
        "checkpoint_bytes": 10**6,
        "step_seconds": 2.0,
    }
    (folder / ".loadsheet").mkdir()
    (folder / ".loadsheet" / "rehearsal.json").write_text(json.dumps({**found, **more}))


def test_a_rehearsal_s_own_checkpoint(tmp_path: Path) -> None:
    """Unscaled it is starred, its size named, and warned of on the page, in JSON and on stderr; scaled it is not."""
    _rehearsed(tmp_path)
    args = ("odds", "--work", "24h", "--mtbf", "6h", "--jobs", "500")
    result = run(*args)
    page = " ".join(result.stdout.split())
    assert "a save stalls 100 ms* (rehearsal of 976.56 KiB)" in page
    assert "2 s*, the rehearsal's" in page
    for text in (page, result.stderr):
        assert "`--checkpoint-bytes SIZE` or `--sheet FILE` scales it" in " ".join(text.split())
    found = data(*args)
    assert found["inputs"]["save"]["defaulted"]
    assert any("--checkpoint-bytes" in note for note in found["notes"])
    found = data(*args, "--checkpoint-bytes", "20MB")
    assert found["inputs"]["save"]["value"] == pytest.approx(2.0)
    assert found["inputs"]["commit"]["value"] == pytest.approx(4.0)
    assert not found["inputs"]["save"]["defaulted"]
    assert "step" not in found["inputs"]  # of another model
    assert not any("rehearsal" in note for note in found["notes"])
    far = data(*args, "--checkpoint-bytes", "1GB")
    assert any("may be far too long" in note for note in far["notes"])
    assert run(*args, "--save", "5min").stderr == ""


def test_a_rehearsal_that_failed(tmp_path: Path) -> None:
    """Before its save there is nothing to take, and that is what is said."""
    _rehearsed(tmp_path, passed=False, save_seconds=None)
    refused("odds", "--work", "24h", "--mtbf", "6h", words="failed before its save")
    refused("odds", "--work", "24h", "--mtbf", "6h", words="--save 5min")
    answered("odds", "--work", "24h", "--mtbf", "6h", "--save", "5min", "--jobs", "500")


def test_never_done() -> None:
    """M below a save: said first, with exit status 1; a job of years that is cut off is none of these."""
    args = ("odds", "--work", "24h", "--mtbf", "2min", "--restart", "2min", "--save", "5min", "--jobs", "500")
    assert answered(*args, code=1).stdout.startswith(
        "DOES NOT FINISH   M, 2.00 min, is less than a save, 5.00 min"
    )
    assert json.loads(answered(*args, "--json", code=1).stdout)["finishes"] is False
    assert data(*BASE)["finishes"] is True
    asked = answered("odds", "--help").stdout
    assert "1 most simulated jobs do not finish, 2 usage or bad input, and a job" in " ".join(asked.split())
    years = (
        "odds",
        "--work",
        "3000d",
        "--mtbf",
        "6h",
        "--restart",
        "1min",
        "--save",
        "1min",
        "--jobs",
        "100",
    )
    found = data(*years)
    assert (found["finishes"], found["simulation"]["unfinished"]) == (True, 100)


@pytest.mark.parametrize(
    ("word", "first"), [(None, 1200.0 / 4), ("--machine-now", 0.0), ("--no-machine-now", 1200.0)]
)
def test_the_first_machine(word: str | None, first: float, tmp_path: Path) -> None:
    """M = 1 h, D = 20 min: asked at a random time one waits D·D/(M + D) on average, else 0 or D."""
    args = (
        "odds",
        "--work",
        "10h",
        "--save",
        "1min",
        "--restart",
        "0",
        "--mtbf",
        "1h",
        "--down-mean",
        "20min",
    )
    more = () if word is None else (word,)
    found = data(*args, "--jobs", "20000", *more)
    waits = found["wall_seconds"]["expected"] - found["expected_seconds"] - 1200 * found["interruptions"]
    assert waits == pytest.approx(first, abs=1e-6)
    (tmp_path / "t.csv").write_text("state,seconds\nup,3600\ndown,1200\nup,1800\ndown,600\n")
    trace = ("odds", "--work", "10s", "--every", "10s", "--save", "0", "--restart", "0", "--trace", "t.csv")
    found = data(*trace, "--jobs", "20000", *more)
    # a quarter of the time there is no machine; one falls into the long wait twice as often: (2·600 + 300)/3 = 500
    share = {None: 0.25, "--machine-now": 0.0, "--no-machine-now": 1.0}[word]
    assert found["wall_seconds"]["expected"] - found["expected_seconds"] == pytest.approx(500 * share, abs=12)


def test_times_without_a_unit() -> None:
    """They are seconds, and it is said; 0 needs none."""
    result = run("odds", "--work", "86400", "--save", "30", "--mtbf", "6h", "--restart", "0", "--jobs", "500")
    assert "no unit in --work" in result.stderr
    assert "--save" in result.stderr
    assert "--restart" not in result.stderr
    assert "for seconds" in " ".join(result.stdout.split())
    assert run(*BASE).stderr == ""


def test_sheet(tmp_path: Path) -> None:
    """Work and price of a plan, signed or not: hours / GPUs, price × GPUs; a rehearsal's save grows with the size."""
    args = ("--gpus", "8", "--tokens", "1B", "--recompute", "full", "--price", "2.5 USD")
    sheet = json.loads(run("plan", "llama-3-8b", "--gpu", "h100-sxm", *args, "--json").stdout)
    (tmp_path / "plain.json").write_text(json.dumps(sheet))
    sealed = signature.seal(sheet, {}, None)
    (tmp_path / "signed.json").write_text(json.dumps(sealed))
    (tmp_path / "edited.json").write_text(json.dumps({**sealed, "intent": {"steps": 700}}))
    refused("odds", "--sheet", "edited.json", "--save", "1min", "--mtbf", "4h", words="signed")
    plain, signed = (
        data("odds", "--sheet", name, "--save", "1min", "--mtbf", "4h", "--jobs", "500")
        for name in ("plain.json", "signed.json")
    )
    hours = sheet["compute"]["gpu_hours"]
    assert plain["inputs"]["work"]["value"] == signed["inputs"]["work"]["value"] == pytest.approx(hours * 450)
    assert plain["inputs"]["price"]["value"] == 20.0
    assert plain["currency"] == "USD"
    size = sheet["checkpoint_bytes"]["resume"]
    rehearsal = {"save_seconds": {"stall": 0.1, "total": 0.1}, "checkpoint_bytes": size // 100}
    (tmp_path / "r.json").write_text(json.dumps(rehearsal))
    found = data("odds", "--sheet", "plain.json", "--rehearsal", "r.json", "--mtbf", "4h", "--jobs", "500")
    assert found["inputs"]["save"]["value"] == pytest.approx(10.0, rel=1e-3)
    refused(
        "odds", "--sheet", "plain.json", "--save", "1min", "--mtbf", "4h", "--budget", "3 EUR", words="USD"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "expected a sheet"), ('{"sheet": 3}', "expected a sheet"),
        ('{"compute": {"gpu_hours": null}, "cluster": {"gpus": 1}}', "--tokens"),
        ('{"compute": {"gpu_hours": 1}, "cluster": {"gpus": 0}}', "cluster.gpus"),
        ('{"compute": {"gpu_hours": {"mid": "x"}}, "cluster": {"gpus": 1}}', "gpu_hours.mid"),
    ],
)  # fmt: skip
def test_damaged_sheets(tmp_path: Path, text: str, words: str) -> None:
    """A sheet that is none is refused in one line."""
    (tmp_path / "s.json").write_text(text)
    result = run("odds", "--save", "1s", "--mtbf", "6h", "--sheet", "s.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot(tmp_path: Path, suffix: str) -> None:
    """A picture of the kind that its name says, with and without money."""
    pytest.importorskip("matplotlib")
    begins = {"png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    for args in (FULL, BASE):
        result = run(*args, "--plot", f"odds.{suffix}")
        assert result.exit_code == 0, result.stderr
        assert (tmp_path / f"odds.{suffix}").read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--save", "5min", "--mtbf", "6h"), "--work 24h"),
        (("--work", "24h", "--mtbf", "6h"), "loadsheet rehearse"),
        (("--work", "24h", "--save", "5min"), "--history RUN"),
        (("--work", "0", "--save", "5min", "--mtbf", "6h"), "--work"),
        (("--work", "24h", "--save", "5min", "--mtbf", "0"), "--mtbf"),
        (("--work", "1e9d", "--save", "5min", "--mtbf", "6h"), "100 years"),
        (("--work", "24h", "--save", "5min", "--mtbf", "6h", "--every", "0"), "--every"),
        (("--work", "24h", "--save", "5min", "--mtbf", "6h", "--failures", "0"), "--failures"),
        (("--work", "24h", "--save", "5min", "--mtbf", "6h", "--jobs", "0"), "--jobs"),
        (("--work", "24h", "--save", "5min", "--mtbf", "6h", "--jobs", "1.5"), "--jobs"),
        (("--work", "24h", "--save", "5min", "--mtbf", "6h", "--machines", "0"), "--machines"),
        (("--work", "24h", "--save", "5min", "--mtbf", "6h", "--seed", "x"), "--seed"),
        (("--work", "24h", "--save", "5min", "--mtbf", "6h", "--notice-works", "1.5"), "--notice-works"),
        (("--work", "24h", "--save", "5min", "--mtbf", "6h", "--price", "1 XXX"), "--price"),
        (("--work", "24h", "--save", "5min", "--mtbf", "6h", "--price", "1 USD", "--budget", "1 EUR"), "EUR"),
        (
            ("--work", "24h", "--save", "5min", "--mtbf", "6h", "--price", "1", "--egress", "5GB"),
            "--egress-price",
        ),
        (
            ("--work", "24h", "--save", "5min", "--mtbf", "6h", "--price", "1", "--storage-price", "5"),
            "--storage",
        ),
        (("--work", "24h", "--save", "5min", "--mtbf", "3min", "--restart", "3h"), "never finishes"),
        (("--work", "24h", "--save", "5min", "--mtbf", "1h", "--every", "20h"), "never finishes"),
        (("--work", "24h", "--save", "5min", "--mtbf", "6h", "--plot", "x.exe"), ".png"),
        (("--work", "24h", "--save", "5min", "--mtbf", "6h", "--plot", "no/x.png"), "--plot"),
        (("--work", "24h", "--save", "5min", "--trace", "none.csv"), "none.csv"),
    ],
)
def test_refusals(args: tuple[str, ...], words: str) -> None:
    """One line of error, one of hint; the option is named as it is typed."""
    refused("odds", *args, words=words)


# --- plan ---------------------------------------------------------------------------------------------------


def test_plan_with_interruptions() -> None:
    """The hours of the plan, stretched as the formula says, and their cost; nothing of it unless asked for."""
    args = plan("--tokens", "100M", "--price", "2 USD")
    whole = json.loads(answered(*args, "--json").stdout)
    assert whole["money"]["interruptions"] is None
    assert "Spot" not in answered(*args).stdout
    spot = ("--mtbf", "20min", "--save", "10s", "--restart", "90s")
    found = json.loads(answered(*args, *spot, "--json").stdout)["money"]["interruptions"]
    work = whole["money"]["gpu_hours"]["mid"] * HOUR
    assert work / found["every_seconds"] == pytest.approx(round(work / found["every_seconds"]))
    job = Job(work, 10.0, found["every_seconds"], 1200.0, 90.0, 90.0)
    assert found["hours"]["mid"] == pytest.approx(expected(job).total.mean / HOUR)
    assert found["cost"]["mid"] == pytest.approx(2 * found["hours"]["mid"])
    assert found["hours"]["low"] < found["hours"]["mid"]
    longest = whole["money"]["gpu_hours"]["high"] * HOUR
    at_worst = expected(
        Job(longest, 10.0, best_every(longest, 10.0, 1200.0, 0, 0), 1200.0, 90.0, 90.0)
    ).total.mean
    assert found["hours"]["high"] == pytest.approx(1.09 * at_worst / HOUR)
    page = answered(*args, *spot).stdout
    assert re.search(r"^Spot   interrupted every 20\.00 min, saved in 10 s every", page, re.M)
    assert "restarted in 10.00 min*" in " ".join(answered(*args, *spot[:4]).stdout.split())
    explained = " ".join(answered(*args, *spot, "--explain").stdout.split())
    assert "spot GPU hours" in explained
    assert "Daly 2006" in explained


def test_plan_of_several_gpus_with_interruptions() -> None:
    """Machine hours are shared by the GPUs, GPU hours are not."""
    options = ("--gpus", "4", "--tokens", "1B", "--price", "2", "--mtbf", "30min", "--save", "10s")
    found = json.loads(answered(*plan(*options, "--json")).stdout)["money"]["interruptions"]
    assert found["gpu_hours"]["mid"] == pytest.approx(4 * found["hours"]["mid"])
    assert found["cost"]["mid"] == pytest.approx(2 * found["gpu_hours"]["mid"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mtbf", "6h"), "--save"), (("--save", "6s"), "--mtbf"), (("--restart", "6s"), "--mtbf"),
        (("--mtbf", "6h", "--save", "1s"), "a price"),
        (("--mtbf", "6h", "--save", "1s", "--price", "2"), "--tokens"),
        (("--mtbf", "0", "--save", "1s", "--price", "2", "--tokens", "1B"), "--mtbf"),
        (("--mtbf", "x", "--save", "1s", "--price", "2", "--tokens", "1B"), "--mtbf"),
        (("--mtbf", "1min", "--save", "1s", "--price", "2", "--tokens", "1B", "--restart", "1h"), "never finishes"),
        (("--mtbf", "6h", "--save", "1s", "--price", "2", "--task", "serve"), "a task that serves"),
    ],
)  # fmt: skip
def test_plan_refusals(options: tuple[str, ...], words: str) -> None:
    """Half a question, one about serving, one that never ends."""
    refused(*plan(*options), words=words)


def test_plan_from_python() -> None:
    """The same from Python; a changed sheet keeps its interruptions."""
    spot = Interruptions(mtbf=HOUR, save=5.0)
    sheet = ls.plan("gpt2", "h100-sxm", tokens=10**9, price=2.0, interruptions=spot)
    assert sheet.money is not None
    assert sheet.money.interruptions is not None
    other = sheet.changed(batch=2)
    assert other.money is not None
    assert other.money.interruptions is not None
    for wrong in ({"mtbf": -1.0, "save": 1.0}, {"mtbf": 1.0, "save": float("nan")}):
        with pytest.raises(BadInput):
            Interruptions(**wrong)


def test_plan_needs_no_numpy() -> None:
    """`plan --mtbf` loads neither NumPy nor the simulation."""
    import os
    import subprocess
    import sys

    code = (
        "import sys; from loadsheet.cli import main\n"
        "try: main(['plan', 'gpt2', '--gpu', 'h100-sxm', '--tokens', '1B', '--price', '2', '--mtbf', '6h', "
        "'--save', '1s'])\nexcept SystemExit: pass\n"
        "assert not {'numpy', 'loadsheet.money.odds', 'loadsheet.money.answer'} & set(sys.modules), 'heavy'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={**os.environ},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Spot   interrupted" in done.stdout


def test_plan_takes_the_save_of_the_last_rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --save: 2 s for 1 GB, so 12 bytes for each of GPT-2's 124,439,808 parameters take 2.99 s."""
    monkeypatch.chdir(tmp_path)
    args = ("plan", "gpt2", "--gpu", "t4", "--precision", "fp32", "--batch", "1", "--seq", "128", "--tokens", "1B",
            "--price", "1", "--mtbf", "4h", "--json")  # fmt: skip
    refused(*args, words="--mtbf: got one without --save")
    (tmp_path / ".loadsheet").mkdir()
    (tmp_path / ".loadsheet" / "rehearsal.json").write_text(
        json.dumps(
            {
                "schema": 1,
                "passed": True,
                "save_seconds": {"stall": 2.0, "total": 3.0},
                "checkpoint_bytes": 10**9,
            }
        )
    )
    said = answered(*args)
    assert "2.99 s" in said.stderr
    by_hand = answered(*args, "--save", "2.986555392s")  # 2 s · 12 · 124,439,808 / 1e9
    assert (
        json.loads(said.stdout)["money"]["interruptions"]
        == json.loads(by_hand.stdout)["money"]["interruptions"]
    )


# --- from Python ----------------------------------------------------------------------------------------------


def _words(options: tuple[str, ...]) -> dict[str, str]:
    """Options as they are typed, by the names of the function."""
    return {
        name[2:].replace("-", "_"): value for name, value in zip(options[::2], options[1::2], strict=True)
    }


def test_python_says_what_the_command_says(tmp_path: Path) -> None:
    """`ls.odds` with the same options, as text or in base units: the same JSON, and the same page."""
    typed = _words(FULL[1:])
    asked = ls.odds(**typed)  # type: ignore[arg-type]
    assert json.loads(json.dumps(asked.to_json())) == data(*FULL)
    assert str(asked).strip() == run(*FULL, COLUMNS="100").stdout.strip()
    plain = ls.odds(
        work=24 * HOUR, save=300, restart=120.0, mtbf=6 * HOUR, jobs=2000, price="1.2 USD", on_demand_price=3.5,
        budget=36, deadline=32 * HOUR, down_mean=1200, commit=60, notice_works=0.5, machines=2, storage=500 * 10**9,
        storage_price=0.08, egress=50 * 10**9, egress_price=0.09, other_hourly=0.01, failures=1000 * HOUR,
    )  # fmt: skip
    assert plain.to_json() == asked.to_json()


def test_python_reads_the_same_files(tmp_path: Path) -> None:
    """A sheet as an object or as its file, a trace, a rehearsal that lies there."""
    sheet = ls.plan("llama-3.2-1b", gpu="h100-sxm", tokens=10**9, price="2 USD")
    (tmp_path / "sheet.json").write_text(sheet.to_json())
    (tmp_path / "trace.csv").write_text("state,seconds\nup,30000\ndown,600\nup,9000\ndown,60\n")
    (tmp_path / ".loadsheet").mkdir()
    rehearsed = {"save_seconds": {"stall": 1.0, "total": 5.0}, "checkpoint_bytes": 10**9}
    (tmp_path / ".loadsheet" / "rehearsal.json").write_text(json.dumps(rehearsed))
    command = data("odds", "--sheet", "sheet.json", "--trace", "trace.csv", "--jobs", "500")
    by_file = ls.odds(sheet="sheet.json", trace=tmp_path / "trace.csv", jobs=500).to_json()
    assert by_file == command
    assert command["inputs"]["save"]["value"] == command["inputs"]["checkpoint_bytes"]["value"] / 10**9
    by_object = ls.odds(sheet=sheet, trace="trace.csv", jobs=500).to_json()
    assert by_object["expected_seconds"] == command["expected_seconds"]
    assert by_object["cost"] == command["cost"]


def test_python_refuses_what_the_command_refuses() -> None:
    """By the name of the argument; nothing is assumed that the command asks for."""
    for wrong, words in (
        ({"work": "24h", "save": "1min"}, "mtbf: got none, expected one"),
        ({"work": -1, "save": "1min", "mtbf": "6h"}, "work: got -1, expected no negative duration"),
        ({"work": "24h", "save": "1min", "mtbf": "6h", "seed": -1}, "seed: got -1"),
        ({"work": "24h", "save": "1min", "mtbf": "6h", "notice_works": 2}, "notice_works: got 2"),
    ):
        with pytest.raises(BadInput, match=re.escape(words)):
            ls.odds(**wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="on_demand_price: got EUR, expected USD"):
        ls.odds(work="24h", save="1min", mtbf="6h", price="1 USD", on_demand_price="3 EUR")

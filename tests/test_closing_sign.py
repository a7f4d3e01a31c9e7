"""Signing: what is frozen, what an edit does, what is refused; the intent in numbers worked out by hand."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal import TINY, answered, refused, run

import loadsheet as ls
from loadsheet import signature
from loadsheet.closing import DoesNotFit, sign
from loadsheet.closing.intent import count_saves, parse_every, poisson_interval
from loadsheet.errors import BadFile, BadInput
from loadsheet.ledger import Estimate
from loadsheet.money.price import Price

MACHINE = {
    "id": "my-box", "memory_usable_bytes": 8 << 30, "bandwidth": 1e10, "peaks": {"fp32": 1e11}, "device": "cpu",
    "date": "2026-11-29", "verified": True,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with a tiny model and a machine."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.json").write_text(json.dumps(TINY))
    Path("box.json").write_text(json.dumps(MACHINE))
    return tmp_path


def command(*more: str) -> tuple[str, ...]:
    """The words of a signing of the tiny model: 4 × 64 tokens a step, in fp32."""
    return (
        "sign",
        "tiny.json",
        "--gpu",
        "box.json",
        "--batch",
        "4",
        "--seq",
        "64",
        "--precision",
        "fp32",
        *more,
    )


# --- what is signed ------------------------------------------------------------------


def test_the_whole_plan_is_frozen(folder: Path) -> None:
    """The file holds what `plan --json` says for the tokens of these steps, and the intent in base units."""
    answered(*command("--steps", "600", "--checkpoint-every", "100", "--price", "3.6 EUR", "--out", "s.json"))
    found = json.loads(Path("s.json").read_text())
    words = ("plan", *command()[1:], "--tokens", str(600 * 256), "--price", "3.6 EUR", "--json")
    assert found["sheet"] == json.loads(answered(*words).stdout)
    assert set(found) == {"schema", "signed", "sheet", "intent", "calibration"}
    assert found["calibration"] is None
    intent = found["intent"]
    assert (intent["steps"], intent["tokens_per_step"], intent["tokens"]) == (600, 256, 153_600)
    assert (intent["batch"], intent["seq"], intent["accumulation"], intent["gpus"]) == (4, 64, 1, 1)
    assert intent["checkpoint_bytes"] == 12 * 86_848  # fp32 weights and two moments
    assert intent["price"] == {
        "amount": 3.6,
        "currency": "EUR",
        "source": "given on the command line",
        "billing_unit_seconds": None,
    }
    step = found["sheet"]["compute"]["step_seconds"]
    expected = intent["expected"]
    assert expected["seconds"] == {end: pytest.approx(600 * step[end]) for end in step}
    assert expected["cost"]["mid"] == pytest.approx(600 * step["mid"] / 3600 * 3.6)
    assert expected["gpu_hours"]["mid"] == pytest.approx(found["sheet"]["compute"]["gpu_hours"])
    assert expected["saves"]["mid"] == 7  # 0, 100, …, 500, 600
    assert set(intent["not_predicted"]) == {"save_stall_seconds", "interruptions"}


def test_started_units_are_expected_as_the_sheet_has_them() -> None:
    """Where a started hour is paid whole, a run of seconds costs one, as in the sheet."""
    found = sign(ls.plan(TINY, "t4", batch=4, seq=64, price=Price(2.0, billing_seconds=3600.0)), steps=600)
    expected = found["intent"]["expected"]
    assert expected["seconds"]["high"] < 3600
    assert expected["cost"]["mid"] == 2.0
    assert expected["cost"] == found["sheet"]["money"]["cost"]


def test_hash_by_hand(folder: Path) -> None:
    """SHA-256 of the sorted, unspaced JSON of calibration, intent and sheet; it knows neither time nor version."""
    sheet = ls.plan(TINY, "t4", batch=2, seq=32)
    first, second = (ls.sign(sheet, steps=10) for _ in range(2))
    content = {name: first[name] for name in ("calibration", "intent", "sheet")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert first["signed"]["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert second["signed"]["sha256"] == first["signed"]["sha256"]
    assert (first["signed"]["version"], first["signed"]["time"] < second["signed"]["time"]) == (
        ls.__version__,
        True,
    )
    assert signature.check(json.loads(signature.to_text(first))) == first


def test_steps_or_tokens() -> None:
    """Tokens give the steps, rounded up; both must agree; neither is an error."""
    sheet = ls.plan(TINY, "t4", batch=4, seq=64, gpus=2, accumulation=3)
    each = 4 * 64 * 3 * 2
    assert sign(sheet.changed(tokens=10 * each + 1))["intent"]["steps"] == 11
    assert sign(sheet, steps=11)["intent"]["tokens"] == 11 * each
    assert sign(sheet.changed(tokens=10 * each + 1), steps=11)["sheet"]["recipe"]["tokens"] == 11 * each
    with pytest.raises(BadInput, match="got 12 and 15,361 tokens"):
        sign(sheet.changed(tokens=10 * each + 1), steps=12)
    for steps in (None, 0, -1, 1.5, True, "10"):
        with pytest.raises(BadInput):
            sign(sheet, steps=steps)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="expected one that trains"):
        sign(ls.plan(TINY, "t4", task="serve"), steps=1)


# --- an edit ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("intent", "steps"), 5, "intent.steps"),
        (("intent", "expected", "seconds", "high"), 1e9, "intent.expected"),
        (("sheet", "compute", "mfu"), 0.1, "sheet.compute"),
        (("sheet", "verdict"), "tight", "sheet.verdict"),
        (("sheet", "more"), 1, "sheet.more"),
        (("calibration",), {"runs": 3}, "calibration"),
        (("signed", "sha256"), "0" * 64, "hash"),
    ],
)
def test_an_edit_is_named(tmp_path: Path, path: tuple[str, ...], value: Any, named: str) -> None:
    """Whatever is changed after signing is found, and named as far down as its part."""
    signed = ls.sign(ls.plan(TINY, "t4", seq=32), steps=10)
    place: Any = signed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = tmp_path / "sheet.json"
    file.write_text(json.dumps(signed))
    with pytest.raises(BadFile) as caught:
        signature.read(file)
    assert str(caught.value) == (
        f"signed sheet {str(file)!r}: got another {named} than was signed, expected it unedited"
        if len(str(file)) <= 56
        else f"{str(caught.value).partition(':')[0]}: got another {named} than was signed, expected it unedited"
    )


def test_layout_is_no_edit(tmp_path: Path) -> None:
    """Other white space and another order of keys are the same sheet."""
    signed = ls.sign(ls.plan(TINY, "t4", seq=32), steps=10)
    file = tmp_path / "sheet.json"
    file.write_text(json.dumps(dict(reversed(signed.items())), sort_keys=False, indent=7))
    assert signature.read(file)["signed"] == signed["signed"]


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"signed": {}}', '{"schema": 2, "signed": {}}', "[" * 10_000, '{"schema": 1e999}', "\0",
     '{"schema": 1, "signed": {}, "sheet": [], "intent": {}, "calibration": null}', "x" * (5 << 20)],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_signed_sheet(tmp_path: Path, text: str) -> None:
    """Anything else is one line of error, however large or deep."""
    file = tmp_path / "sheet.json"
    file.write_text(text)
    with pytest.raises(BadFile) as caught:
        signature.read(file)
    assert len(str(caught.value).splitlines()) == 1


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_the_hash_survives_the_file(value: Any) -> None:
    """Whatever JSON a sheet holds, it hashes the same after having been written and read."""
    try:
        signed = signature.seal({"value": value}, {"steps": 1}, None)
        text = signature.to_text(signed).encode()
    except UnicodeEncodeError:  # half a surrogate pair is no text that a file can hold
        return
    assert signature.parse(text, "sheet") == signed


# --- what is refused, and what is written ------------------------------------------------------------------


def test_what_does_not_fit_is_not_signed(tmp_path: Path) -> None:
    """Exit 1 and no file; with --sign-anyway a file that says so, exit 0 and a warning."""
    out = tmp_path / "s.json"
    words = ("sign", "llama-3-8b", "--gpu", "t4", "--steps", "5", "--out", str(out))
    result = run(*words)
    assert (result.exit_code, out.exists()) == (1, False)
    assert "DOES NOT FIT" in result.stdout
    assert "error: not signed: llama-3-8b does not fit on t4" in result.stderr
    unsigned = run(*words, "--json")
    assert (unsigned.exit_code, json.loads(unsigned.stdout)["signed"]) == (1, None)
    assert not out.exists()
    with pytest.raises(DoesNotFit):
        ls.sign(ls.plan("llama-3-8b", "t4"), out, steps=5)
    assert "DOES NOT FIT" in answered(*words, "--sign-anyway").stdout
    assert json.loads(out.read_text())["sheet"]["verdict"] == "does_not_fit"


def test_strict_leaves_the_tight_unsigned(folder: Path) -> None:
    """A machine whose memory lies within the predicted range: signed, and not under --strict."""
    peak = ls.plan(TINY, "box.json", batch=4, seq=64, precision="fp32").memory.peak
    Path("box.json").write_text(json.dumps(MACHINE | {"memory_usable_bytes": int(peak.mid)}))
    assert "TIGHT" in answered(*command("--steps", "5", "--out", "s.json")).stdout
    assert answered(*command("--steps", "5", "--out", "s.json")).exit_code == 0
    strict = run(*command("--steps", "5", "--out", "t.json", "--strict"))
    assert (strict.exit_code, Path("t.json").exists()) == (1, False)


def test_a_signed_sheet_is_never_overwritten(folder: Path) -> None:
    """The same one may be signed again and stays as it is; another one is refused; so is any other file."""
    answered(*command("--steps", "5", "--out", "s.json"))
    first = Path("s.json").read_bytes()
    answered(*command("--steps", "5", "--out", "s.json"))
    refused(*command("--steps", "6", "--out", "s.json"), words="another signed sheet")
    assert Path("s.json").read_bytes() == first
    refused(*command("--steps", "5", "--out", "tiny.json"), words="no signature")
    refused(*command("--steps", "5", "--out", "nowhere/s.json"), words="a folder that is not there")
    assert sorted(path.name for path in folder.iterdir()) == ["box.json", "s.json", "tiny.json"]


def test_into_a_run(folder: Path) -> None:
    """--run puts it into a run directory, and into nothing else; one of --out and --run is needed."""
    with ls.Run.open("runs", {"lr": 1}, progress=False) as run_:
        path = run_.path
    answered(*command("--steps", "5", "--run", str(path)))
    assert signature.read(path / "sheet.json")["intent"]["steps"] == 5
    refused(*command("--steps", "5", "--run", "runs"), words="no run directory")
    refused(*command("--steps", "5"), words="neither of --out and --run")
    refused(*command("--steps", "5", "--out", "x", "--run", str(path)), words="both of --out and --run")
    refused(*command("--steps", "5", "--out", "x", "--gpu", "box.json,t4"), words="got several GPUs")
    refused(*command("--steps", "five", "--out", "x"), words="--steps")
    refused(*command("--steps", "5", "--checkpoint-every", "soon", "--out", "x"), words="checkpoint-every")
    refused(*command("--out", "x"), words="neither steps nor tokens")


# --- the intent ------------------------------------------------------------------


@given(st.integers(1, 3000), st.integers(1, 500))
def test_saves_as_the_loop_counts_them(steps: int, every: int) -> None:
    """Before the first step, after every so many that are not the last, and at the end."""
    counted = 1 + sum(1 for completed in range(1, steps) if completed % every == 0) + 1
    assert count_saves(steps, every, Estimate(1, 1, 1)) == Estimate(counted, counted, counted)


def test_saves_by_the_clock() -> None:
    """Every ten minutes of an hour, give or take: 2 more than those in between; `auto` and nothing are unknown."""
    hour = Estimate(1800.0, 3600.0, 7200.0)
    assert count_saves(10**6, "10 min", hour) == Estimate(2 + 3, 2 + 6, 2 + 12)
    assert count_saves(10, "end", hour) == Estimate(2, 2, 2)
    assert count_saves(10, "auto", hour) is count_saves(10, None, hour) is None
    for wrong in ("0", "-1", "soon", 0, True, "0 s", "1e400 h", 1.5):
        with pytest.raises(BadInput):
            parse_every(wrong)


@pytest.mark.parametrize("mean", [0.0, 0.05, 0.5, 2.0, 7.3, 60.0, 480.0, 520.0, 4000.0])
def test_poisson_interval_against_its_sum(mean: float) -> None:
    """The ends are the 5 % and 95 % quantiles of the distribution, summed here by logarithms (±1 beyond 500)."""
    found = poisson_interval(mean)
    below, ends, n = 0.0, [], 0
    while len(ends) < 2:
        below += math.exp(-mean + n * math.log(mean) - math.lgamma(n + 1)) if mean else 1.0
        while len(ends) < 2 and below >= (0.05, 0.95)[len(ends)] - 1e-12:
            ends.append(n)
        n += 1
    slack = 1 if mean > 500 else 0
    assert abs(found.low - ends[0]) <= slack
    assert abs(found.high - ends[1]) <= slack
    assert found.mid == mean


def test_interruptions_when_said(folder: Path) -> None:
    """With --mtbf: hours as the sheet counts them with interruptions, a count and the steps it costs."""
    words = command(
        "--steps",
        "36000",
        "--price",
        "2",
        "--mtbf",
        "1h",
        "--save",
        "1s",
        "--checkpoint-every",
        "100",
        "--mfu",
        "1%",
    )
    answered(*words, "--out", "s.json")
    found = json.loads(Path("s.json").read_text())
    expected, spot = found["intent"]["expected"], found["sheet"]["money"]["interruptions"]
    assert expected["seconds"]["mid"] == pytest.approx(3600 * spot["hours"]["mid"])
    assert expected["cost"]["mid"] == pytest.approx(2 * spot["hours"]["mid"])
    assert expected["interruptions"]["mid"] == spot["interruptions"]
    assert expected["interruptions"]["low"] < spot["interruptions"] < expected["interruptions"]["high"]
    assert expected["lost_steps"]["mid"] == pytest.approx(spot["interruptions"] * 50)
    assert expected["save_stall_seconds"] == {"low": 1.0, "mid": 1.0, "high": 1.0}


@pytest.mark.parametrize("columns", ["40", "60", "80", "120"])
def test_width(folder: Path, columns: str) -> None:
    """The page keeps to the terminal from 60 on."""
    page = run(*command("--steps", "5", "--out", "s.json"), COLUMNS=columns).stdout
    lines = page.splitlines()
    assert max(map(len, lines[:-1])) <= max(int(columns), 60)
    assert lines[-1].startswith("signed  s.json, SHA-256 ")

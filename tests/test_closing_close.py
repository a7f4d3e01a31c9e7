"""Closing a sheet: runs written by hand whose every item, part and sentence was worked out on paper."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from closing_runs import BEGAN, entry, estimate, event, finished, life, signed, write
from hypothesis import given
from hypothesis import strategies as st
from terminal import answered, refused, run

import loadsheet as ls
from loadsheet.closing import close
from loadsheet.closing.calibrate import append
from loadsheet.closing.hours import Hours
from loadsheet.errors import BadFile, BadInput, LoadsheetError

# --- the items ------------------------------------------------------------------


def test_every_item_of_a_finished_run(tmp_path: Path) -> None:
    """Each number beside its prediction by the same counter, the ratio, and inside or outside."""
    found = close(finished(tmp_path / "run"))
    values = {row.name: (row.measured, row.ratio, row.inside) for row in found.rows}
    approx = pytest.approx
    assert values == {
        "parameters": (1000, 1.0, True),
        "peak_allocated_bytes": (105e6, approx(1.05), True),
        "peak_reserved_bytes": (140e6, approx(140 / 120), False),
        "peak_bytes": (None, None, None),  # never the host's in place of the device's
        "step_seconds": (2.5, approx(1.25), True),
        "tokens_per_step": (1000, 1.0, True),
        "tokens_per_second": (approx(400), approx(0.8), True),
        "mfu": (approx(0.32), approx(0.8), True),  # 1,000·8e9/(2.5·10e12)
        "seconds": (approx(310), approx(1.55), True),  # from 10 s before the first line to the last word
        "cost": (approx(0.31), approx(1.55), True),  # 310 s at 3.6 an hour
        "checkpoint_bytes": (12_500, approx(12_500 / 12_000), True),
        "save_stall_seconds": (0.5, None, None),
        "save_total_seconds": (2.0, None, None),
        "interruptions": (0, None, None),
        "lost_steps": (0, None, None),
    }
    assert found["peak_bytes"].why == "NVML is not there"
    assert found["save_stall_seconds"].why == "never saved here"
    assert found["peak_allocated_bytes"].counter == "torch.cuda.max_memory_allocated"
    assert found.outside == ("peak_reserved_bytes",)


def test_where_the_hours_went(tmp_path: Path) -> None:
    """310 s instead of 200: 100·(2.5 − 0.5 − 2) + 100·0.5 + 3.5 + 12 + (260 − 250) + 10 of starting + 24.5."""
    hours = close(finished(tmp_path / "run")).hours
    assert isinstance(hours, Hours)
    assert {part.name: part.seconds for part in hours.parts} == pytest.approx(
        {
            "steps": 0, "step time": 0, "data wait": 50, "lost steps": 0, "saving": 3.5, "evaluation": 12,
            "uneven steps": 10, "starting": 10,
            "the rest": 24.5,
        }
    )  # fmt: skip
    assert (hours.predicted, hours.measured, hours.ratio) == pytest.approx((200, 310, 1.55))
    assert hours.largest.name == "data wait"
    said = close(tmp_path / "run").assumptions
    assert said[0] == "The run took 1.55 times the predicted machine time, inside the predicted range."
    assert said[1].startswith("Most of the difference is data wait (+25% of the predicted time)")


@given(
    median=st.floats(0.1, 20),
    wait=st.floats(0, 1e4),
    stall=st.floats(0, 1e3),
    aside=st.floats(0, 1e3),
    total=st.floats(0, 1e4),
    lost=st.integers(0, 50),
)
def test_the_parts_add_up(
    tmp_path_factory: pytest.TempPathFactory,
    median: float,
    wait: float,
    stall: float,
    aside: float,
    total: float,
    lost: int,
) -> None:
    """Whatever was measured, the parts sum to the difference of the hours."""
    steps = {"median": median, "p10": median, "p90": median, "sum": total, "warmup_steps": 1, "steps": 90}
    measured = entry(
        to_step=50,
        step_seconds=steps,
        data_wait_seconds=wait,
        save_stall_sum_seconds=stall,
        aside_seconds=aside,
    )
    lines = life(1, 0, BEGAN, *range(50 + lost)) + life(2, 50, BEGAN + 500, *range(50, 100))
    path = write(tmp_path_factory.mktemp("sum") / "run", lines, {1: measured, 2: measured}, done=100)
    found = close(path)
    assert isinstance(found.hours, Hours)
    assert found["lost_steps"].measured == lost
    parts = math.fsum(part.seconds for part in found.hours.parts)
    assert parts == pytest.approx(found.hours.measured - found.hours.predicted, rel=1e-9, abs=1e-6)


def test_a_slow_step_is_the_mfu(tmp_path: Path) -> None:
    """A step of 8 s where 2 were predicted at an assumed 40 %: an MFU of 10 %, outside, and named as the largest."""
    steps = {"median": 8.0, "p10": 8.0, "p90": 8.0, "sum": 800.0, "warmup_steps": 10, "steps": 90}
    path = finished(tmp_path / "run", step_seconds=steps, data_wait_seconds=0.0, written=BEGAN + 850)
    found = close(path)
    assert (found["mfu"].measured, found["mfu"].inside) == (pytest.approx(0.1), False)
    assert found.assumptions[1] == (
        "Most of the difference is step time (+300% of the predicted time): a step of 8 s instead of 2 s, so an MFU of "
        "10.0% where 40.0% was assumed."
    )


def test_predicted_interruptions_and_saves_are_compared(tmp_path: Path) -> None:
    """What was predicted of them is held against what the log tells, and taken out of their parts of the hours."""
    sheet = signed(
        intent__expected__interruptions=estimate(0, 1, 3),
        intent__expected__lost_steps=estimate(0, 10, 60),
        intent__expected__saving_seconds=estimate(1, 2, 4),
        intent__expected__save_stall_seconds=estimate(0.1, 0.2, 0.3),
        intent__expected__seconds=estimate(150, 300, 500),
    )
    lines = life(1, 0, BEGAN, *range(30)) + life(2, 20, BEGAN + 100, *range(20, 100))
    measured = {
        1: entry(to_step=20, ended=None, aside_seconds=0.0, save_stall_sum_seconds=1.0),
        2: entry(from_step=20, aside_seconds=0.0),
    }
    found = close(write(tmp_path / "run", lines, measured, sheet=sheet, done=100))
    assert (found["interruptions"].ratio, found["interruptions"].inside) == (1.0, True)
    assert (found["lost_steps"].measured, found["lost_steps"].ratio, found["lost_steps"].inside) == (
        10,
        1.0,
        True,
    )
    assert (found["save_stall_seconds"].ratio, found["save_stall_seconds"].inside) == (
        pytest.approx(2.5),
        False,
    )
    assert isinstance(found.hours, Hours)
    parts = {part.name: part.seconds for part in found.hours.parts}
    assert parts["lost steps"] == pytest.approx(10 * 2.5 - 10 * 2.0)
    assert parts["saving"] == pytest.approx(4.5 - 2)


# --- lives, and how they ended ------------------------------------------------------------------


def test_interruptions_by_kind(tmp_path: Path) -> None:
    """Killed, by a signal, by a notice, left by an error: each once; a run that was only opened again is none."""
    lines = [
        *life(1, 0, BEGAN, *range(25)),  # killed: 5 steps after the checkpoint at 20
        *life(2, 20, BEGAN + 100, *range(20, 40)),
        event("stopped", 2, BEGAN + 160, step=40, reason="SIGTERM"),
        *life(3, 40, BEGAN + 200, *range(40, 61)),
        event("notice", 3, BEGAN + 255, kind="terminate", deadline=None, source="aws"),
        event("stopped", 3, BEGAN + 256, step=61, reason="a notice from aws"),
        *life(4, 61, BEGAN + 300, *range(61, 70)),
        event("left", 4, BEGAN + 330, step=70),
        *life(5, 61, BEGAN + 400, *range(61, 100)),
        event("checkpoint", 5, BEGAN + 500, step=100, bytes=1, stall=0.0, total=0.0),
        {"step": 100, "attempt": 5, "time": BEGAN + 501, "test_loss": 1.0},  # after the loop: no step
        *life(6, 100, BEGAN + 900),
        event("checkpoint", 6, BEGAN + 901, step=100, bytes=1, stall=0.0, total=0.0),
    ]
    found = close(write(tmp_path / "run", lines, {}, done=100))
    evidence = found.sides.evidence
    assert evidence.interruptions == {"signal": 1, "notice": 1, "killed": 1, "left": 1}
    assert evidence.lost_steps == 5 + 0 + 0 + 9
    assert (evidence.completed, found.sides.finished) == (100, True)
    assert [life.executed for life in evidence.lives] == [25, 20, 21, 9, 39, 0]
    assert found["interruptions"].note == "1 signal, 1 notice, 1 killed, 1 left"
    # from the first line of each life to its last
    assert evidence.seconds == pytest.approx(62.5 + 60 + 56 + 30 + 101 + 1)


def test_what_the_log_does_not_tell_is_taken_from_the_measurements(tmp_path: Path) -> None:
    """A script that logs every tenth step, a trainer that keeps its own checkpoints: nothing made up, nothing lost."""
    lines = [*life(1, 0, BEGAN, 9, 19, 29), *life(2, 25, BEGAN + 100, 29, 39)]
    measured = {1: entry(to_step=35, ended="left"), 2: entry(from_step=25, to_step=44, ended=None)}
    found = close(write(tmp_path / "run", lines, measured)).sides.evidence
    assert (found.lost_steps, found.completed) == (10, 44)
    again = [*life(1, 0, BEGAN, *range(100)), *life(2, 100, BEGAN + 400)]  # a trainer that found itself done
    found = close(write(tmp_path / "again", again, {1: entry()}, done=100)).sides.evidence
    assert (sum(found.interruptions.values()), found.completed) == (0, 100)


def test_damaged_lines_are_said(tmp_path: Path) -> None:
    """A line of a log that is none is left out, counted, and named on the page."""
    path = finished(tmp_path / "run")
    log = path / "log.jsonl"
    log.write_text(log.read_text().replace('"loss": 1.0}', '"loss": 1.0', 1))
    found = close(path)
    assert found.to_dict()["unread"] == ["log.jsonl: 1 damaged lines were left out"]
    assert found.sides.evidence.completed == 100


def test_so_far(tmp_path: Path) -> None:
    """A run that is not done is held against as many steps as it has: 40 of 100 are 80 of 200 s."""
    measured = entry(to_step=40, steps_timed=40, ended="left", written=BEGAN + 110)
    found = close(write(tmp_path / "run", life(1, 0, BEGAN, *range(40)), {1: measured}))
    assert (found.sides.finished, found.sides.share) == (False, 0.4)
    assert (found["seconds"].predicted, found["seconds"].measured) == (ls.Estimate(40.0, 80.0, 160.0), 120.0)
    assert found["cost"].predicted == ls.Estimate(*(pytest.approx(0.4 * c) for c in (0.1, 0.2, 0.4)))
    assert isinstance(found.hours, Hours)
    assert {part.name: part.seconds for part in found.hours.parts}["steps"] == 0
    assert found.assumptions[0].startswith("The run took so far 1.50 times")
    assert "not done: compared so far, 40 of 100 steps" in found.text()


def test_more_steps_than_meant(tmp_path: Path) -> None:
    """A run of 150 steps under a sheet for 100: 50·2 s are the number of steps."""
    lines = life(1, 0, BEGAN, *range(150), total=150)
    measured = entry(to_step=150, steps_timed=150, written=BEGAN + 400)
    found = close(write(tmp_path / "run", lines, {1: measured}, done=150))
    assert isinstance(found.hours, Hours)
    assert {part.name: part.seconds for part in found.hours.parts}["steps"] == 100


# --- what was not measured ------------------------------------------------------------------


def test_nothing_measured_is_never_right(tmp_path: Path) -> None:
    """Without measured.json only the log speaks; what it does not say is not measured, and inside nothing."""
    path = write(tmp_path / "run", life(1, 0, BEGAN, *range(100)), None, done=100)
    found = close(path)
    unknown = [row for row in found.rows if row.measured is None]
    assert {row.name for row in found.rows} - {row.name for row in unknown} == {
        "seconds", "cost", "interruptions", "lost_steps",
    }  # fmt: skip
    assert all(row.inside is None and row.ratio is None and row.why for row in unknown)
    assert found.hours == "no step time was measured: the run has no measured.json"
    assert any(text.startswith("Where the hours went cannot be said") for text in found.assumptions)
    page = found.text()
    assert page.count("not measured") == len(unknown)


def test_damaged_files_are_said(tmp_path: Path) -> None:
    """measured.json with a hole is not read, and that is said; the rest goes on."""
    path = finished(tmp_path / "run")
    (path / "measured.json").write_text('{"schema": 1, "attempts": {"1": {"step_seconds": NaN}}}')
    found = close(path)
    assert found["step_seconds"].measured is None
    (problem,) = found.to_dict()["unread"]
    assert problem.startswith("measured.json")
    assert "Not read: measured.json" in found.text()


@pytest.mark.parametrize(
    "measured",
    [
        {"attempts": []},
        {"attempts": {"1": 5}},
        {
            "attempts": {
                "1": {
                    "step_seconds": {"median": "2"},
                    "saves": -1,
                    "missing": 3,
                    "parameters": [1],
                    "counters": 1,
                }
            }
        },
        {"attempts": {"1": {"step_seconds": {"median": True}, "started": -5, "save_bytes": 1e400}}},
        [],
    ],
)
def test_hostile_measurements(tmp_path: Path, measured: Any) -> None:
    """Values of the wrong kind count as not measured; nothing of it fails."""
    path = finished(tmp_path / "run")
    (path / "measured.json").write_text(json.dumps(measured).replace("Infinity", "1e400"))
    found = close(path)
    assert found["step_seconds"].measured is None
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.text()


def test_another_model_another_step_another_device(tmp_path: Path) -> None:
    """Where the run is not what was signed, that is said first."""
    found = close(
        finished(tmp_path / "run", parameters={"ema": 5, "net": 900}, tokens_per_step=500.0, device="cpu")
    )
    assert found.assumptions[:3] == (
        "Another model: the kept module `net` has 900 parameters, the sheet's 1,000.",
        "Another step: 500 tokens were logged for one, the sheet was signed for 1,000.",
        "Another device: the run computed on cpu, the sheet is for cuda.",
    )
    assert found["mfu"].measured == pytest.approx(0.16)  # by the tokens that were logged
    with pytest.raises(BadInput, match="not what the sheet describes") as caught:
        found.append_to(tmp_path / "closed.jsonl")  # it would teach later plans nonsense
    assert caught.value.hint == found.assumptions[0]
    assert not (tmp_path / "closed.jsonl").exists()


def test_an_impossible_mfu_is_said(tmp_path: Path) -> None:
    """Steps of 20 ms would be an MFU of 4,000 %: it is shown, called impossible, and not handed on."""
    steps = {"median": 0.02, "p10": 0.02, "p90": 0.02, "sum": 2.0, "warmup_steps": 10, "steps": 90}
    found = close(finished(tmp_path / "run", step_seconds=steps, data_wait_seconds=0.0))
    assert found.assumptions[0].startswith("An MFU of 4000% cannot be")
    with pytest.raises(BadInput, match="not what the sheet describes"):
        found.append_to(tmp_path / "closed.jsonl")


def test_an_impossible_mfu_of_a_peak_that_was_measured(tmp_path: Path) -> None:
    """A busy machine shows too low a peak: where it is no data sheet's, that is the first cause named."""
    steps = {"median": 0.02, "p10": 0.02, "p90": 0.02, "sum": 2.0, "warmup_steps": 10, "steps": 90}
    measured = {
        "id": "my-cpu-2-threads",
        "source": "loadsheet 0.1 measure machine, PyTorch 2.13: the shortest",
    }
    for own, words in (
        (
            measured,
            "the peak of 'my-cpu-2-threads' was measured too low (`measure machine --quick`, or a busy machine)",
        ),
        ({"id": "my-card", "source": "its box"}, "the peak in your file of 'my-card' is too low"),
    ):
        sheet = signed(sheet__cluster={"gpu": own["id"], "gpus": 1, "own": own})
        path = write(
            tmp_path / own["id"],
            life(1, 0, BEGAN, *range(100)),
            {1: entry(step_seconds=steps)},
            sheet=sheet,
            done=100,
        )
        assert close(path).assumptions[0].startswith(f"An MFU of 4000% cannot be: {words}")


def test_another_number_of_tokens_is_taken_into_account(tmp_path: Path) -> None:
    """Steps of 500 tokens instead of 1,000 in the same time: half the MFU, also for later plans."""
    line = close(finished(tmp_path / "run", tokens_per_step=500.0)).calibration
    assert line["mfu"] == pytest.approx(0.16)
    assert line["mfu_for_plan"] == pytest.approx({"low": 0.1, "mid": 0.16, "high": 0.2})


def test_signed_after_the_run_began(tmp_path: Path) -> None:
    """A sheet signed when the run was under way is no prediction, and the page says so."""
    path = finished(tmp_path / "run")
    assert close(path).signed_before is True
    late = signed()
    late["signed"]["time"] = BEGAN + 5
    (path / "sheet.json").write_text(json.dumps(late))
    assert close(path).signed_before is False
    assert "AFTER the run had begun" in close(path).text()


# --- what cannot be closed ------------------------------------------------------------------


def test_refusals(tmp_path: Path) -> None:
    """No folder, no log, no step, no sheet, another sheet, an edited one, a link out of the directory."""
    path = finished(tmp_path / "run")
    with pytest.raises(BadInput, match="got no folder"):
        close(tmp_path / "none")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(signed(intent__steps=7)))
    with pytest.raises(BadInput, match=r"got another one than the run's sheet.json"):
        close(path, sheet=other)
    sheet = json.loads((path / "sheet.json").read_text())
    sheet["intent"]["steps"] = 1000
    (path / "sheet.json").write_text(json.dumps(sheet))
    with pytest.raises(BadFile, match=r"another intent\.steps than was signed"):
        close(path)
    (path / "sheet.json").unlink()
    with pytest.raises(BadInput, match=r"got no sheet\.json"):
        close(path)
    other.write_text(json.dumps(signed()))
    assert close(path, sheet=other).outside == ("peak_reserved_bytes",)
    (path / "sheet.json").symlink_to(other)
    with pytest.raises(BadFile, match="a link that leaves the run directory"):
        close(path)
    (path / "sheet.json").unlink()
    (path / "log.jsonl").write_text("")
    with pytest.raises(BadInput, match="a log without a step"):
        close(path, sheet=other)
    (path / "log.jsonl").unlink()
    with pytest.raises(BadInput, match=r"got no log\.jsonl"):
        close(path, sheet=other)


@given(
    st.dictionaries(
        st.sampled_from(["signed", "sheet", "intent", "calibration", "schema"]), st.integers() | st.none()
    )
)
def test_any_sheet_is_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any]
) -> None:
    """What is no signed sheet raises one of our errors, whatever it is."""
    path = tmp_path_factory.mktemp("sheet") / "sheet.json"
    path.write_text(json.dumps(content))
    with pytest.raises(LoadsheetError) as caught:
        close(finished(path.parent / "run"), sheet=path)
    assert "\n" not in str(caught.value)


def test_started_units_are_paid_whole(tmp_path: Path) -> None:
    """310 s at 3.6 an hour are six started minutes, 0.36; 200 s were to be four (100: two, 400: seven)."""
    price = {"amount": 3.6, "currency": "EUR", "source": "given", "billing_unit_seconds": 60.0}
    expected = estimate(0.12, 0.24, 0.42)
    path = finished(tmp_path / "run")
    (path / "sheet.json").write_text(json.dumps(signed(intent__price=price, intent__expected__cost=expected)))
    row = close(path)["cost"]
    assert (row.measured, row.predicted) == (pytest.approx(0.36), ls.Estimate(0.12, 0.24, 0.42))
    assert row.note == "started units of 1.00 min are paid whole"


# --- the command line ------------------------------------------------------------------


def test_command(tmp_path: Path) -> None:
    """The page with both sides, exit 0; 1 under --strict where something is outside; a price of one's own."""
    finished(tmp_path / "0123456789")
    where = ("--runs", str(tmp_path))
    page = answered("close", "0123", *where).stdout
    assert "machine time" in page
    assert "OUTSIDE" in page
    assert "NVML is not there" in page
    answered("close", "0123456789", *where, "--strict", code=1)
    paid = json.loads(answered("close", "0123", *where, "--json", "--price", "7.2 EUR").stdout)
    cost = next(item for item in paid["items"] if item["name"] == "cost")
    assert (cost["measured"], cost["note"]) == (
        pytest.approx(0.62),
        "measured at 7.2 per GPU hour, predicted at 3.6",
    )
    refused("close", "nothing", *where, words="unknown run")
    refused("close", "0123", *where, "--price", "much", words="price")
    refused("close", "0123", *where, "--price", "7 USD", words="price: got USD, expected EUR as in the sheet")
    assert "cost, EUR" in page


def test_json_schema(tmp_path: Path) -> None:
    """The keys of the answer and of its parts, all numbers finite."""
    data = close(finished(tmp_path / "run")).to_dict()
    assert list(data) == [
        "schema", "run", "sheet", "share", "items", "outside", "hours", "assumptions", "unread", "calibration",
    ]  # fmt: skip
    assert data["schema"] == 1
    assert set(data["run"]) == {
        "path", "fingerprint", "finished", "steps", "attempts", "lives", "interruptions", "lost_steps",
    }  # fmt: skip
    assert set(data["sheet"]) == {
        "sha256", "signed", "version", "signed_before_the_run", "model", "gpu", "gpus", "steps", "currency",
    }  # fmt: skip
    for item in data["items"]:
        assert set(item) == {
            "name", "label", "unit", "predicted", "measured", "ratio", "inside", "basis", "counter", "why", "note",
        }  # fmt: skip
        assert item["unit"] in {"bytes", "s", "count", "per_second", "share", "money"}
        assert item["predicted"] is None or set(item["predicted"]) == {"low", "mid", "high"}
    assert set(data["hours"]) == {"predicted_seconds", "measured_seconds", "ratio", "parts", "largest"}
    assert set(data["hours"]["parts"][0]) == {"name", "seconds", "share_of_predicted", "what"}
    assert data == json.loads(json.dumps(data, allow_nan=False))


@pytest.mark.parametrize("columns", ["40", "60", "80", "120"])
def test_width(tmp_path: Path, columns: str) -> None:
    """The page keeps to the terminal from 60 on, and names every item at any width."""
    finished(tmp_path / "0123456789")
    page = run("close", "0123", "--runs", str(tmp_path), COLUMNS=columns).stdout
    assert max(map(len, page.splitlines())) <= max(int(columns), 60)
    assert all(word in page for word in ("parameters", "machine time", "checkpoint", "interruptions"))


# --- the line for later plans ------------------------------------------------------------------


def test_calibration_line(tmp_path: Path) -> None:
    """MFU of 32 % with its spread (2.5/4 and 2.5/2 of it), the peak beyond the predicted tensors, the save's rate."""
    line = close(finished(tmp_path / "run")).calibration
    assert line["mfu"] == pytest.approx(0.32)
    assert line["mfu_for_plan"] == pytest.approx({"low": 0.2, "mid": 0.32, "high": 0.4})
    assert (line["overhead_bytes"], line["counter"]) == (5e6, "peak_gpu_allocated_bytes")
    assert line["save_bytes_per_second"] == 6250
    assert (line["gpu"], line["model"]["params"], line["finished"]) == ("paper-card", 1000, True)
    assert line["sheet_sha256"] == signed()["signed"]["sha256"]


def test_append_only(tmp_path: Path) -> None:
    """Lines are appended, a file that is something else is not; what was not measured is not appended."""
    finished(tmp_path / "0123456789")
    file = tmp_path / "runs.jsonl"
    command = ("close", "0123", "--runs", str(tmp_path), "--calibration", str(file))
    assert answered(*command).stdout.splitlines()[-1] == f"appended to {file}"
    first = file.read_bytes()
    file.write_bytes(first[:-1])  # whoever appended was cut off
    answered(*command)
    assert file.read_bytes().startswith(first)
    assert [json.loads(line)["mfu"] for line in file.read_text().splitlines()] == [pytest.approx(0.32)] * 2
    poem = tmp_path / "poem.txt"
    poem.write_text("roses\n")
    with pytest.raises(BadFile, match="poem"):
        close(tmp_path / "0123456789").append_to(poem)
    assert poem.read_text() == "roses\n"
    unmeasured = write(tmp_path / "run", life(1, 0, BEGAN, *range(100)), None, done=100)
    with pytest.raises(BadInput, match="no measured MFU"):
        close(unmeasured).append_to(file)
    impossible = close(tmp_path / "0123456789").calibration
    impossible["mfu_for_plan"] = dict.fromkeys(("low", "mid", "high"), 2.83)
    before = file.read_bytes()
    with pytest.raises(BadInput, match="got an MFU of 283%"):
        append(impossible, file)
    assert file.read_bytes() == before

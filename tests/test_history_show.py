"""`loadsheet runs show`: attempts, the event lane, metrics, what was measured, reproducibility."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from history_runs import BEGUN, written
from terminal import answered, refused, run

from loadsheet import signature
from loadsheet.history.attempts import Attempt, sane
from loadsheet.history.index import find
from loadsheet.history.lane import draw
from loadsheet.history.story import Life, Story, read_story
from loadsheet.run.directory import RunDirectory
from loadsheet.run.log import Log

# --- real runs: a signal, a kill, an error, a notice ------------------------------------------------------------

SCRIPT = textwrap.dedent("""
    import json, os, signal, sys, time
    import torch
    import loadsheet as ls
    from loadsheet.run import loop, provenance

    def life(root, how):
        ls.deterministic(0, threads=1)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        notice = os.path.join(root, "notice.json")
        run = ls.Run.open(os.path.join(root, "runs"), {"lr": 0.1, "seed": 0}, progress=False, notice=notice)
        run.keep(model=model, optimizer=optimizer)
        for step in run.steps(12, checkpoint_every=3):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            run.log(loss=loss.item())
            if step == 4 and how == "kill":
                while not os.path.exists(run.path / "checkpoints" / "step-00000003"):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 7 and how == "term":
                os.kill(os.getpid(), signal.SIGTERM)
            if step == 8 and how == "notice":
                with open(notice + ".new", "w") as file:
                    json.dump({"kind": "rebalance", "source": "test"}, file)
                os.replace(notice + ".new", notice)
            if step == 10 and how == "error":
                raise SystemExit(9)
        run.close()

    provenance.packages(), provenance.machine()  # found out once, for all of them
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.square().sum().backward()
    torch.optim.SGD([parameter], lr=0.1).step()
    for root, how in zip(sys.argv[1::2], sys.argv[2::2]):
        if (child := os.fork()) == 0:  # one import of PyTorch is enough for all of them
            life(root, how)
            sys.stdout.flush()
            os._exit(0)
        print(how, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
""")


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One killed in step 4, stopped by SIGTERM after step 7, failed in step 10, then done; one that had a notice."""
    folder = tmp_path_factory.mktemp("story")
    first, second = folder / "first", folder / "second"
    for root in (first, second):
        root.mkdir()
    lives = [
        str(first),
        "kill",
        str(first),
        "term",
        str(first),
        "error",
        str(first),
        "end",
        str(second),
        "notice",
    ]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *lives],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=folder,  # no repository, whose commit may change meanwhile
    )
    assert done.stdout.split() == ["kill", "-9", "term", "75", "error", "9", "end", "0", "notice", "0"], (
        done.stderr
    )
    ((one,), (other,)) = ((root / "runs").iterdir() for root in (first, second))
    return one, other


@pytest.fixture(scope="module")
def story(stories: tuple[Path, Path]) -> Path:
    """The one with four lives."""
    return stories[0]


def shown(path: Path, *options: str, code: int = 0) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        answered("runs", "show", str(path), "--json", *options, code=code).stdout
    )
    return data


def test_the_lives_of_a_real_run(story: Path) -> None:
    """From which step each attempt went on, how far it came, what it lost, how it ended."""
    lives = shown(story)["lives"]
    names = ("attempt", "from_step", "to_step", "lost_steps", "ending")
    assert [tuple(life[name] for name in names) for life in lives] == [
        (1, 0, 5, 2, "gone"),
        (2, 3, 8, 0, "stopped"),
        (3, 8, 11, 2, "left"),
        (4, 9, 12, 0, "done"),
    ]  # fmt: skip
    assert lives[1]["reason"] == "SIGTERM"


def test_the_events_of_a_real_run(story: Path) -> None:
    """Every start, checkpoint, stop and end is there, in the order of time; the checkpoints by step."""
    data = shown(story)
    events = data["events"]
    kinds = [event["kind"] for event in events if event["kind"] != "checkpoint"]
    assert kinds == ["start", "gone", "resume", "stopped", "resume", "left", "resume", "done"]
    assert sorted(event["step"] for event in events if event["kind"] == "checkpoint") == [0, 3, 6, 8, 9, 12]
    times = [event["time"] for event in events]
    assert times == sorted(times)
    assert (data["lost_steps"], data["resumes"], data["attempts"]) == (4, 3, 4)


def test_steps_that_were_run_twice_were_compared(story: Path) -> None:
    """Four steps were run again, with the same bits: level 1 says yes, and what was recorded."""
    first, second, third = shown(story)["reproducibility"]
    assert (first["found"], second["found"], third["found"]) == ("yes", "does not apply", "not checked")
    assert first["why"].startswith("4 steps were run again after 2 interruptions")
    assert "CPU threads 1" in first["recorded"][0]
    assert "torch" in first["recorded"][0]
    assert first["recorded"][1] == "none of it changed between attempts"


def test_the_page_of_a_real_run(story: Path) -> None:
    """All sections, the lane of each attempt, the sizes of checkpoints."""
    page = answered("runs", "show", str(story)).stdout
    heads = ["config", "attempts", "steps", "events", "metrics", "measured", "checkpoints", "reproducibility"]
    assert [line for line in page.splitlines() if line in [*heads, "problems"]] == heads
    assert "done after 12 of 12 steps · 4 attempts" in page
    lanes = re.findall(r"^  attempt \d +(.*)$", page, re.M)
    assert [lane.strip()[0] + lane.strip()[-1] for lane in lanes] == ["▶✕", "▶■", "▶✕", "▶★"]
    assert "╌" in lanes[0]
    assert "╌" not in lanes[1]
    starts = [lane.index("▶") for lane in lanes]
    assert starts == sorted(starts)
    assert "stopped by SIGTERM, saved after 8 steps" in page


def test_a_notice_is_in_the_lane(stories: tuple[Path, Path]) -> None:
    """`rebalance` is noted, and training goes on."""
    path = stories[1]
    (notice,) = (event for event in shown(path)["events"] if event["kind"] == "notice")
    assert notice["text"] == "notice from 'test': 'rebalance'"
    assert "!" in re.findall(r"^  time +(.*)$", answered("runs", "show", str(path)).stdout, re.M)[0]


def test_seeds_beside_it(tmp_path: Path) -> None:
    """Three runs that differ in the seed, best losses 1, 2 and 4: mean 7/3, s = √(7/3), by hand."""
    paths = [
        written(tmp_path, {"lr": 1, "seed": n}, {"loss": [9.0, x]}) for n, x in enumerate((1.0, 2.0, 4.0))
    ]
    data = shown(paths[0])
    assert data["group"]["n"] == 3
    assert data["group"]["mean"] == pytest.approx(7 / 3)
    assert data["group"]["deviation"] == pytest.approx((7 / 3) ** 0.5)
    assert data["reproducibility"][2]["found"] == "yes"
    assert not (tmp_path / ".loadsheet-index.sqlite").exists()  # nobody asked for a list


# --- by hand -------------------------------------------------------------------------------------------------------


def line(kind: str, attempt: int, at: float, **more: Any) -> dict[str, Any]:
    return {"event": kind, "attempt": attempt, "time": BEGUN + at, **more}


def record(step: int, attempt: int, at: float, loss: float) -> dict[str, Any]:
    return {"step": step, "attempt": attempt, "time": BEGUN + at, "loss": loss}


def two_lives(root: Path, second: float) -> Path:
    """Three steps, killed; on from step 1, where step 2 logs `second` (1.0 before)."""
    again = [
        line("resume", 2, 100, **{"from": 1}),
        record(1, 2, 101, 2.0),
        record(2, 2, 102, second),
        record(3, 2, 103, 0.5),
    ]
    path = written(root, {"lr": 1}, {"loss": [3.0, 2.0, 1.0]}, done=False, events=again)
    facts = {
        "attempt": 2,
        "time": BEGUN + 99,
        "machine": {"host": "b", "cpu": "C"},
        "libraries": {"threads": 4},
    }
    before = {"attempt": 1, "time": BEGUN, "machine": {"host": "a", "cpu": "C"}, "libraries": {"threads": 8}}
    (path / "provenance" / "attempt-0001.json").write_text(json.dumps(before))
    (path / "provenance" / "attempt-0002.json").write_text(json.dumps(facts))
    return path


def test_steps_that_differ_when_run_again(tmp_path: Path) -> None:
    """Step 2 logged 1.0 and then 1.5: level 1 says no, which step, and what changed on the machine."""
    data = shown(two_lives(tmp_path, 1.5))
    level = data["reproducibility"][0]
    assert level["found"] == "no"
    assert "step 2 of attempt 2 differs from attempt 1 (loss 1.0 → 1.5)" in level["why"]
    assert "changed between attempts: threads: 8 → 4" in level["recorded"]
    assert data["attempt_records"][1]["changes"] == ["threads: 8 → 4", "host: a → b"]
    assert [life["lost_steps"] for life in data["lives"]] == [2, 0]


def test_steps_that_agree_when_run_again(tmp_path: Path) -> None:
    """The same bits, on a machine with another number of threads: yes, and the change is said."""
    level = shown(two_lives(tmp_path, 1.0))["reproducibility"][0]
    assert level["found"] == "yes"
    assert level["why"].startswith("2 steps were run again after 1 interruption")


GPU = {"gpus": [{"name": "NVIDIA A10G", "driver": "550.1"}, {"name": "NVIDIA A10G", "driver": "550.1"}]}


@pytest.mark.parametrize(
    ("libraries", "found"),
    [
        ({"cuda": "12.4", "deterministic": True, "cudnn": 90100}, "asked for"),
        ({"cuda": "12.4", "deterministic": False}, "no"),
        ({"cuda": None, "deterministic": True}, "does not apply"),
    ],
)
def test_the_level_of_gpus(tmp_path: Path, libraries: dict[str, Any], found: str) -> None:
    """What was asked for and recorded; never that it was enough."""
    facts = {"machine": GPU, "libraries": libraries, "environment": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}}
    path = written(tmp_path, {"lr": 1}, {"loss": [1.0]}, facts=facts)
    level = shown(path)["reproducibility"][1]
    assert level["found"] == found
    assert "2 × NVIDIA A10G, driver 550.1" in level["recorded"][0]
    assert "CUBLAS_WORKSPACE_CONFIG :4096:8" in level["recorded"][0]


def lane_of(*lives: Life, total: int, width: int = 52) -> list[str]:
    story = Story(lives=list(lives))
    return [text[11:] for text in draw(story, total, width) if text.startswith("attempt")]


def test_the_lane_is_to_scale() -> None:
    """41 places for 40 steps: a life from 10 to 30 of which 5 are lost begins at 10, is broken from 26 on."""
    first = Life(1, 0, 20, ending="stopped")
    second = Life(2, 10, 30, lost=5, ending="gone")
    third = Life(3, 25, 40, ending="done")
    lanes = lane_of(first, second, third, total=40)
    assert lanes[0] == "▶" + "─" * 19 + "■"
    assert lanes[1] == " " * 10 + "▶" + "─" * 15 + "╌" * 4 + "✕"
    assert lanes[2] == " " * 25 + "▶" + "─" * 14 + "★"


def test_a_lane_of_a_hundred_lives() -> None:
    """The first two and the newest are drawn, and how many are not."""
    lives = [Life(n, n, n + 2) for n in range(1, 101)]
    lines = draw(Story(lives=lives), 200, 80)
    assert "… 76 more" in lines
    assert sum(text.startswith("attempt") for text in lines) == 24
    assert lines[0].startswith("attempt 1 ")


@pytest.mark.parametrize("width", [40, 57, 80, 200, 400])
def test_every_width(story: Path, width: int) -> None:
    """No line is wider than the terminal, whatever the width; the path may be."""
    for options in ((), ("--events",)):
        result = run("runs", "show", str(story), *options, COLUMNS=str(width))
        assert result.exit_code == 0
        wide = [text for text in result.stdout.splitlines() if len(text) > width and str(story) not in text]
        assert wide == []


def test_times_are_drawn_with_their_gaps(tmp_path: Path) -> None:
    """100 s of nothing between 3 s and 4 s of life: most of the line of time is empty."""
    page = answered("runs", "show", str(two_lives(tmp_path, 1.0))).stdout
    (lane,) = re.findall(r"^  time +(▶.*)$", page, re.M)
    assert lane.count(" ") > 0.8 * len(lane)
    assert "1.72 min" in page  # 103 s


def test_a_signed_sheet(tmp_path: Path) -> None:
    """Its hash and intent; one that was edited is a problem, and the exit status says so."""
    path = written(tmp_path, {"lr": 1}, {"loss": [1.0]})
    signed = signature.seal({"cluster": {"gpus": 1}}, {"steps": 2, "price": 3.0}, None)
    (path / "sheet.json").write_text(signature.to_text(signed))
    page = answered("runs", "show", str(path)).stdout
    assert signed["signed"]["sha256"][:10] in page
    assert "steps 2, price 3.0" in page
    (path / "sheet.json").write_text(signature.to_text(signed).replace('"steps": 2', '"steps": 3'))
    assert "intent.steps" in answered("runs", "show", str(path), code=1).stdout


@pytest.mark.parametrize(
    ("price", "words"),
    [
        (
            {
                "amount": 2.0,
                "currency": "USD",
                "source": "given on the command line",
                "billing_unit_seconds": None,
            },
            "price 2.00 USD per GPU hour",
        ),
        ({"amount": 1.125, "currency": ""}, "price 1.125 per GPU hour"),
        ({"amount": 2.0, "currency": "a\x1b[31mb"}, "price 2.00 a"),
        ({"amount": True}, 'price {"amount":true}'),
        (None, "price none"),
    ],
)
def test_the_price_of_a_signed_sheet_is_words(tmp_path: Path, price: object, words: str) -> None:
    """Amount and currency; a price that is none is shown as it stands."""
    path = written(tmp_path, {"lr": 1}, {"loss": [1.0]})
    signed = signature.seal({"cluster": {"gpus": 1}}, {"steps": 2, "price": price}, None)
    (path / "sheet.json").write_text(signature.to_text(signed))
    page = answered("runs", "show", str(path)).stdout
    assert words in " ".join(page.split())
    assert "\x1b" not in page


def test_damage_is_shown_and_counts(tmp_path: Path) -> None:
    """A page with what can be read, the problems at its end, exit status 1."""
    path = written(tmp_path, {"lr": 1}, {"loss": [1.0]})
    (path / "measured.json").write_text("{")
    (path / "provenance" / "attempt-0001.json").write_text(
        '{"machine": {"gpus": [3]}, "code": [], "time": {}}'
    )
    (path / "checkpoints" / "step-00000001").symlink_to("/etc")
    with (path / "log.jsonl").open("a") as file:
        for event in (
            '"resume"',
            '"stopped"',
            '"notice"',
            '"differs"',
            '"checkpoint"',
            '"start_from"',
            "[]",
            "null",
            "7",
        ):
            file.write(
                f'{{"event": {event}, "attempt": {{}}, "time": "x", "step": [], "names": 3, "reason": [1]}}\n'
            )
    result = run("runs", "show", str(path))
    assert result.exit_code == 1, result.exception
    assert "problems" in result.stdout.splitlines()
    assert "measured.json" in result.stdout
    data = json.loads(run("runs", "show", str(path), "--json").stdout)
    assert data["problems"]
    assert data["state"] == "done"


def test_an_empty_run(tmp_path: Path) -> None:
    """Nothing logged, nothing saved: a page, and no crash."""
    path = tmp_path / "0123456789"
    path.mkdir()
    page = answered("runs", "show", str(path), code=1).stdout
    assert "empty after 0 steps" in page
    assert "config.json: there is none" in page


def test_refusals(tmp_path: Path) -> None:
    """No such run, no such metric."""
    path = written(tmp_path, {"lr": 1}, {"loss": [1.0]})
    refused("runs", "show", "abc", "--runs", str(tmp_path), words=path.name)
    refused(
        "runs", "show", path.name, "--runs", str(tmp_path), "--metric", "los", words="did you mean `loss`"
    )
    refused("runs", "show", path.name, "--runs", str(tmp_path / "no"), words="--runs DIR")


def test_hostile_text(tmp_path: Path) -> None:
    """What would paint the terminal does not reach it."""
    nasty = "\x1b[31m\r\n\u202e" + "y" * 200
    facts = {
        "machine": {"host": nasty, "cpu": nasty, "gpus": [{"name": nasty, "driver": nasty}]},
        "code": {"commit": nasty, "diff_sha256": "1"},
        "libraries": {"torch": nasty, "cuda": nasty},
        "excluded": {nasty: nasty},
    }
    events = [
        line("stopped", 1, 5, step=1, reason=nasty),
        line(nasty, 1, 6),
        line("notice", 1, 7, source=nasty) | {"kind": nasty},
    ]
    path = written(tmp_path, {nasty: nasty}, {nasty: [1.0]}, facts=facts, events=events)
    (path / "measured.json").write_text(
        json.dumps({"attempts": {nasty: {"mfu": 0.4, "step_seconds": {"median": 1}}}})
    )
    for options in ((), ("--events",)):
        result = run("runs", "show", str(path), *options, COLUMNS="100")
        assert [text for text in result.stdout.splitlines() if not text.isprintable()] == []


def test_records_that_are_not_sane() -> None:
    """Parts of the wrong type are left out; nothing of them raises."""
    assert sane({"machine": [], "libraries": 3, "code": "x", "time": 1}) == {"time": 1}
    assert sane({"machine": {"gpus": [1, {}]}})["machine"]["gpus"] == []
    assert Attempt(1, {}).machine == "?, CPU not known"
    assert Attempt(1, {}).code == "no repository"


def test_reading_disturbs_nobody(tmp_path: Path) -> None:
    """A run is read at every step by the process that writes it: it is running, keeps its lock, and ends well."""
    config = {"lr": 1, "seed": 0}
    states, lives = [], []
    with (
        Log(written(tmp_path, config, done=False) / "log.jsonl", 2) as log,
        RunDirectory.open(tmp_path, config) as run,
    ):
        log.resume(0)
        for step in range(20):
            log.write(step, {"loss": 1 / (1 + step)})
            row = find(tmp_path, run.fingerprint)
            states.append((row.state, row.step))
            lives.append(read_story(row).lives[-1].ending)
            run.check_owner()
        run.mark_done(20)
    assert states == [("running", step + 1) for step in range(20)]
    assert lives == ["running"] * 20
    assert find(tmp_path, run.fingerprint).state == "done"

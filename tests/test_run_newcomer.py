"""What a newcomer met: states that are lost in silence, and messages that do not say the way out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torture.small import Training

import loadsheet as ls
from loadsheet.errors import BadInput, LoadsheetError, UnknownKey
from loadsheet.run.errors import BadCheckpoint, Busy, NoCheckpoint, NoSpace, RunWarning, SaveFailed
from loadsheet.run.files import Disk
from loadsheet.run.mirror import Mirror, MirrorFailed

pytestmark = pytest.mark.filterwarnings("ignore:.*lives but was not kept")


def logged(root: Path, values: list[float], **options: Any) -> Path:
    """A run that logs these values, one a step, and saves every second step."""
    with Training(root) as training:
        for step in training.run.steps(len(values), **{"checkpoint_every": 2, **options}):
            training.step()
            training.run.log(val_loss=values[step])
    return training.run.path


def test_the_best_is_gone(tmp_path: Path) -> None:
    """The best value belongs to a checkpoint that was removed: step and value are said, and what keeps it."""
    path = logged(tmp_path / "a", [9.0, 1.25, 5.0, 4.0, 3.0, 2.0, 2.5, 2.25])
    with pytest.warns(RunWarning, match=r"1\.25 in step 1.*keep_best='val_loss'"):
        assert ls.load(path, "best").step == 8  # 6 and 8 remain; 2.5 and 2.25 were logged for 8, 2.0 for 6
    kept = logged(tmp_path / "b", [9.0, 8.0, 1.25, 4.0, 3.0, 2.0, 2.5, 2.25, 7.0], keep_last=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ls.load(kept, "best", mode="max").step == 0


def test_checkpoints_that_are_gone(tmp_path: Path) -> None:
    """A run that had them does not begin again without a word; a directory that is removed does."""
    with Training(tmp_path) as training:
        training.train(9, stop_after=7)
        path = training.run.path
    shutil.rmtree(path / "checkpoints")
    with (
        Training(tmp_path) as training,
        pytest.raises(NoCheckpoint, match=r"speaks of checkpoint [36];") as caught,
    ):
        training.run.steps(9)
    assert f"remove `{path}`" in caught.value.hint
    shutil.rmtree(path)
    with Training(tmp_path) as training:
        assert training.train(2) == [0, 1]
    (path / "log.jsonl").unlink()
    shutil.rmtree(path / "checkpoints")
    with Training(tmp_path) as training, pytest.raises(NoCheckpoint, match=r"done\.json with 2 steps"):
        training.run.steps(9)


def test_values_that_make_no_sense(tmp_path: Path) -> None:
    """Each is refused by its name."""
    with Training(tmp_path / "a") as training:
        for _ in training.run.steps(1):
            with pytest.raises(BadInput, match=r"log: timing: got 3\.0, expected a dict"):
                training.run.log(timing=3.0)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="when_save_fails: got 'ignore'"):
            training.run.steps(2, when_save_fails="ignore")  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="mode: got 'low'"):
            ls.load(training.run, mode="low")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="got an object, expected a run"):
        ls.load(object())
    for options in ({"wait": -1}, {"wait": float("nan")}, {"start_from": 5}):
        with pytest.raises(BadInput, match=f"open: {next(iter(options))}: got"):
            ls.Run.open(tmp_path / "b", {}, **options)  # type: ignore[arg-type]
    with pytest.raises(NoCheckpoint) as caught:
        ls.load(tmp_path / "a")
    assert training.run.fingerprint in caught.value.hint


def test_what_steps_refuses_has_not_touched_the_mirror(tmp_path: Path) -> None:
    """`when_save_fails` is looked at before the mirror is claimed for this attempt."""
    mirror = tmp_path / "mirror"
    with ls.Run.open(tmp_path / "runs", {"lr": 1}, mirror=mirror) as run:
        before = sorted(mirror.rglob("*"))
        with pytest.raises(BadInput, match="when_save_fails: got 'ignore'"):
            run.steps(5, when_save_fails="ignore")  # type: ignore[arg-type]
        assert sorted(mirror.rglob("*")) == before


def test_a_bucket_that_is_none_is_one_line(tmp_path: Path) -> None:
    """obstore's own structures, which follow on further lines, are left out."""
    with pytest.raises(
        BadInput, match=r"^mirror: got 's3://a/b' \(.*nonsense.*\), expected a bucket"
    ) as caught:
        ls.Run.open(tmp_path / "runs", {"lr": 1}, mirror="s3://a/b", mirror_options={"nonsense": 1})
    assert "Debug" not in str(caught.value)
    assert "\\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"sheet": "none.json"},
        {"sheet": {"schema": 1}},
        {"sheet": 5},
        {"mirror": "ftp://bucket"},
        {"mirror": ""},
        {"mirror": 5},
        {"mirror": __file__},
        {"mirror": "copies", "mirror_options": ["endpoint"]},
        {"mirror": "s3://bucket/folder", "mirror_options": {"endpiont": "http://127.0.0.1"}},
        {"notice": 5},
        {"notice": ""},
        {"start_from": "none"},
        {"start_from": ("none", "first")},
        {"wait": -1},
        {"exclude": ["device"]},
    ],
    ids=str,
)
def test_a_refused_start_is_none(tmp_path: Path, options: dict[str, Any]) -> None:
    """What is wrong is said before anything is written: no directory of a run, no attempt in one that there is."""
    with pytest.raises(LoadsheetError):
        ls.Run.open(tmp_path / "new", {"lr": 0.1}, **options)
    assert list(tmp_path.glob("new/*")) == []  # the root of all runs may be there
    root = tmp_path / "there"
    with ls.Run.open(root, {"lr": 0.1}, progress=False) as run:
        before = sorted(run.path.rglob("*"))
    with pytest.raises(LoadsheetError):
        ls.Run.open(root, {"lr": 0.1}, **options)
    assert sorted(run.path.rglob("*")) == before
    with ls.Run.open(root, {"lr": 0.1}, progress=False) as run:
        assert run.attempt == 2


def test_a_mirror_that_fails_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked under the lock: the directory made for that goes again, one that was there stays."""

    def pull(self: Mirror) -> None:
        raise MirrorFailed("mirror: got `Forbidden`, expected to list checkpoints/")

    monkeypatch.setattr(Mirror, "pull", pull)
    for _ in range(2):
        with pytest.raises(MirrorFailed):
            ls.Run.open(tmp_path / "runs", {}, mirror=tmp_path / "copy")
        assert list(tmp_path.glob("runs/*")) == []
    with ls.Run.open(tmp_path / "runs", {}, progress=False) as run:
        pass
    with pytest.raises(MirrorFailed):
        ls.Run.open(tmp_path / "runs", {}, mirror=tmp_path / "copy")
    assert (run.path / "lock").exists()
    assert [path.name for path in run.path.glob("provenance/attempt-*")] == ["attempt-0001.json"]


def test_nothing_to_start_from(tmp_path: Path) -> None:
    """A run without checkpoints, or without that step, is refused at once; one that goes on needs none any more."""
    with Training(tmp_path / "old") as old:
        old.train(2)
    shutil.copytree(old.run.path, empty := tmp_path / "empty" / old.run.fingerprint)
    shutil.rmtree(empty / "checkpoints")
    for start_from in (empty, (old.run.path, 7), (old.run.path, 1.5)):
        with pytest.raises((NoCheckpoint, BadInput)):
            ls.Run.open(tmp_path / "new", {}, start_from=start_from)  # type: ignore[arg-type]
    assert list(tmp_path.glob("new/*")) == []
    with Training(tmp_path / "new", start_from=old.run.path) as training:
        training.train(4, stop_after=3)
    shutil.rmtree(old.run.path)
    with Training(tmp_path / "new", start_from=old.run.path) as training:
        training.train(4)


def test_start_from_on_a_run_that_exists(tmp_path: Path) -> None:
    """It is said to be ignored where the run began without it; a run that began so is silent when it resumes."""
    with Training(tmp_path / "old") as old:
        old.train(2)
    with Training(tmp_path / "new", start_from=old.run.path) as training:
        training.train(4, stop_after=3)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "start_from")
        with Training(tmp_path / "new", start_from=old.run.path) as training:
            training.train(4)
    again = Training(tmp_path / "old", start_from=tmp_path / "new")
    with again, pytest.warns(RunWarning, match="start_from is ignored"):
        again.run.steps(3)


@pytest.mark.parametrize(
    ("deadline", "age", "heeded"),
    [
        (-61.0, 0.0, False),
        (-30.0, 0.0, True),
        (None, 700.0, False),
        (None, 30.0, True),
        (3600.0, 9000.0, True),
    ],
)
def test_old_notices(
    deadline: float | None, age: float, heeded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose deadline was long over when the attempt began is about another machine: said once, and no more."""
    monkeypatch.setattr("loadsheet.run.ending.booted", lambda: 0.0)
    path = tmp_path / "notice.json"
    path.write_text(
        json.dumps({"kind": "rebalance", "deadline": None if deadline is None else time.time() + deadline})
    )
    os.utime(path, (time.time() - age, time.time() - age))
    with Training(tmp_path / "run", notice=path) as training, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training.train(4, checkpoint_every=None, keep_last=9)
    said = [str(each.message) for each in caught if "notice" in str(each.message)]
    assert (training.checkpoints == [0, 1, 4]) is heeded
    assert len(said) == (0 if heeded else 1)


def test_hints_in_tracebacks() -> None:
    """An error that nobody catches shows its hint, once; one whose hint was changed shows the new one."""
    for error in (
        BadInput("what", "the way out"),
        UnknownKey("adm", ["adam"]),
        NoSpace("full", "the way out"),
    ):
        text = "".join(traceback.format_exception(error))
        assert text.count(f"hint: {error.hint}") == 1
    error = LoadsheetError("what", "old")
    error.hint = "new"
    assert error.__notes__ == ["hint: new"]
    assert "hint" not in "".join(traceback.format_exception(LoadsheetError("what")))


def full(*_: Any) -> None:
    """A disk without room."""
    raise OSError(28, "No space left on device")


def test_a_full_disk_says_the_same_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save that fails and the start after it: (kept + 1) × size minus what is there, the same bytes."""
    size = 0
    with Training(tmp_path) as training, pytest.raises(NoSpace, match=r"\(2 kept \+ 1\)") as first:
        for step in training.run.steps(30, checkpoint_every=3):
            training.step()
            if step == 4:
                training.settle()
                folder = training.run.path / "checkpoints/step-00000003"
                size = sum((folder / name).stat().st_size for name in ("state.json", "tensors.bin"))
                monkeypatch.setattr(Disk, "create", full)
                monkeypatch.setattr(Disk, "free", lambda *_: 5)
    with Training(tmp_path) as training, pytest.raises(NoSpace) as second:
        training.train(30)
    first_stored, second_stored = (str(e.value).rpartition(" - ")[2] for e in (first, second))
    assert first_stored == second_stored
    assert size > 0
    assert "when_save_fails='warn'" in first.value.hint


def test_the_final_save_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause, and the steps that are at stake; the same failure is not said at each save."""
    with (
        Training(tmp_path) as training,
        pytest.warns(RunWarning) as caught,
        pytest.raises(SaveFailed, match=r"got .* bytes free.*the 9 steps since checkpoint 3"),
    ):
        for step in training.run.steps(12, checkpoint_every=2, when_save_fails="warn", keep_last=9):
            training.step()
            if step == 2:
                training.run._saves.take(3, wait=True)  # type: ignore[union-attr]
                monkeypatch.setattr(Disk, "create", full)
    assert len([each for each in caught if "bytes free" in str(each.message)]) == 1


def test_a_name_the_checkpoint_does_not_have(tmp_path: Path) -> None:
    """A new name, and one that was changed: what to do about each."""
    with Training(tmp_path) as training:
        training.train(2)
    run = ls.Run.open(tmp_path, {"lr": 0.01}, progress=False)
    with run:
        run.keep(net=training.model)
        with pytest.raises(BadCheckpoint, match="restore net") as caught:
            run.steps(3)
    assert "run.keep(model=...)" in caught.value.hint
    assert "start_from=" in caught.value.hint


def test_another_directory_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative root, and a relative mirror, mean what they meant when the run was opened."""
    monkeypatch.chdir(tmp_path)
    with Training(Path("runs"), mirror="copy") as training:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        training.train(3)
    assert (tmp_path / "runs" / training.run.fingerprint / "done.json").exists()
    assert list((tmp_path / "other").iterdir()) == []
    mirrored = tmp_path / "copy" / training.run.fingerprint
    fresh = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    assert ls.load(mirrored, into=fresh).step == 3
    assert [w for p in fresh.parameters() for w in p.detach().flatten().tolist()] == training.weights
    with pytest.raises(NoCheckpoint, match="the mirror of a run"):
        ls.load(mirrored, "best")
    # what a killed upload leaves behind goes with the next life, and is no checkpoint meanwhile
    torn = mirrored / "checkpoints" / "step-00000009" / ("0" * 32)
    torn.mkdir(parents=True)
    (torn / "tensors.bin").write_bytes(b"half")
    (torn / ".state.json-1234.unfinished").write_bytes(b"less")
    assert ls.load(mirrored).step == 3
    monkeypatch.chdir(tmp_path)
    with Training(Path("runs"), mirror="copy") as training:
        training.train(3)
    assert sorted(p.name for p in (mirrored / "checkpoints").iterdir()) == ["step-00000000", "step-00000003"]


SCRIPT = """
import os, signal, sys
import loadsheet as ls
with ls.Run.open(sys.argv[1], {}) as run:
    if sys.argv[2] == "before":
        os.kill(os.getpid(), getattr(signal, sys.argv[3]))
    for step in run.steps(2):
        if sys.argv[2] == "inside" and step == 0:
            os.kill(os.getpid(), getattr(signal, sys.argv[3]))
    os.kill(os.getpid(), getattr(signal, sys.argv[3]))
print("alive")
"""


@pytest.mark.parametrize(
    ("when", "number"), [("before", "SIGTERM"), ("after", "SIGUSR1"), ("inside", "SIGHUP")]
)
def test_signals_around_the_loop(when: str, number: str, tmp_path: Path) -> None:
    """Nothing is to be saved there, and the launcher is to start it again all the same: 75, and one line."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), when, number], capture_output=True, text=True, check=False,
        preexec_fn=lambda: [signal.signal(n, signal.SIG_DFL) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)],
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (75, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"stopped by {number}" in done.stderr


def test_nohup_is_respected(tmp_path: Path) -> None:
    """A SIGHUP that is ignored stays ignored."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), "inside", "SIGHUP"], capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_a_cell_run_again(tmp_path: Path) -> None:
    """The same process opens the run twice: what to do is said."""
    with Training(tmp_path), pytest.raises(Busy) as caught:
        Training(tmp_path)
    assert "run.close()" in caught.value.hint


def test_a_passed_audit_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Repeated steps that are the same are worth a line."""
    for stop in (7, None):
        torch.manual_seed(0)
        with ls.Run.open(tmp_path, {}) as run:
            for step in run.steps(9, checkpoint_every=6):
                run.log(drawn=torch.rand(1))
                if step == stop:
                    break
    assert "2 steps repeated after the resume, identical" in capsys.readouterr().err


def test_the_example_in_the_docs(tmp_path: Path) -> None:
    """Copied as it stands, killed at step 120, started again: the weights and the log of an uninterrupted one."""
    text = (Path(__file__).parent.parent / "docs" / "run.md").read_text()
    code = next(part for part in text.split("```")[1::2] if part.startswith("python\nimport math"))
    command = [sys.executable, "-c", code.removeprefix("python")]
    hold = tmp_path / "hold"
    for folder in ("whole", "cut", "hold"):
        (tmp_path / folder).mkdir()
    (hold / "at").write_text("120")
    with subprocess.Popen(
        command, cwd=tmp_path / "cut", env={**os.environ, "LOADSHEET_HOLD": str(hold)}
    ) as process:
        while process.poll() is None and not (hold / "held.json").exists():
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    printed = [
        subprocess.run(command, cwd=tmp_path / each, capture_output=True, text=True, check=True)
        for each in ("whole", "cut")
    ]
    assert printed[0].stdout == printed[1].stdout
    assert "Warning" not in printed[0].stderr + printed[1].stderr
    assert "20 steps repeated after the resume, identical" in printed[1].stderr
    whole, cut = (next((tmp_path / each / "runs").iterdir()) for each in ("whole", "cut"))
    assert ls.read_log(whole)["loss"] == ls.read_log(cut)["loss"]
    models = [ls.load(path).value("model")["state"] for path in (whole, cut)]
    assert [torch.equal(models[0][key], models[1][key]) for key in models[0]] == [True] * 3

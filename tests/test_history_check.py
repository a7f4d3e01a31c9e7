"""`runs verify`: damage of every kind is found, what cannot be looked at is not ok, what is no damage is not."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from run_logs import record, resumed
from run_processes import HOLD, end, start
from runs_left import STEPS, train
from terminal import answered, refused, run

from loadsheet.history.check import Checked, check, checkpoint_bytes
from loadsheet.history.check_files import Counter
from loadsheet.history.rows import attempt_file
from loadsheet.run.files import Disk
from loadsheet.units import format_bytes


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after 8 steps and finished by a second attempt."""
    root = tmp_path_factory.mktemp("runs")
    train(root, {"lr": 0.1}, until=8)
    return train(root, {"lr": 0.1})


@pytest.fixture
def path(left: Path, tmp_path: Path) -> Path:
    """A copy of it that may be damaged."""
    return Path(shutil.copytree(left, tmp_path / "runs" / left.name))


def states(checked: Checked) -> dict[str, str | None]:
    return {what: checked.state(what) for what in ("config", "attempts", "log", "done", "checkpoint")}


ALL_OK = dict.fromkeys(("config", "attempts", "log", "done", "checkpoint"), "ok")


def lines_of(path: Path) -> list[bytes]:
    return (path / "log.jsonl").read_bytes().splitlines(keepends=True)


def test_killed_before_the_log(path: Path) -> None:
    """An attempt that ended before there was a log is no damage; a log that is gone is."""
    (path / "log.jsonl").unlink()
    assert states(check(path))["log"] == "damaged"
    shutil.rmtree(path / "checkpoints")
    assert states(check(path))["log"] == "damaged"
    for name in ("done.json", "measured.json"):
        (path / name).unlink()
    assert (states(check(path))["log"], check(path).ok) == ("note", True)


# --- whole ----------------------------------------------------------------------------------------------------


def test_whole(path: Path) -> None:
    """A run that was interrupted and finished is whole; every checkpoint's bytes were read."""
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    checked = check(path)
    assert states(checked) == ALL_OK
    assert checked.ok
    found = {f.step: f.nbytes for f in checked.findings if f.what == "checkpoint"}
    assert sorted(found) == [0, 3, 6, 9, STEPS]  # type: ignore[type-var]
    for step, nbytes in found.items():
        folder = path / "checkpoints" / f"step-{step:08d}"
        assert nbytes == sum((folder / name).stat().st_size for name in ("state.json", "tensors.bin"))
    assert before == {p: p.stat().st_mtime_ns for p in path.rglob("*")}


def test_a_run_that_is_not_done(tmp_path: Path) -> None:
    """A run that broke off has no done marker, and that is no damage."""
    checked = check(train(tmp_path, {"lr": 0.2}, until=5))
    assert states(checked) == {**ALL_OK, "done": None}
    assert checked.ok


# --- damage ---------------------------------------------------------------------------------------------------


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "tensors.bin"])
def test_any_flipped_bit_of_a_checkpoint(path: Path, name: str) -> None:
    """One bit anywhere in any file of a checkpoint: that checkpoint is damaged, and no other."""
    file = path / "checkpoints" / "step-00000006" / name
    dice = random.Random(name)
    for bit in [
        0,
        8 * file.stat().st_size - 1,
        *(dice.randrange(8 * file.stat().st_size) for _ in range(12)),
    ]:
        flip(file, bit)
        checked = check(path)
        bad = [(f.step, f.state) for f in checked.findings if f.state != "ok"]
        assert bad == [(6, "damaged")], (name, bit)
        assert not checked.ok
        flip(file, bit)
    assert check(path).ok


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        (path / name).write_bytes(change((path / name).read_bytes()))

    return apply


def without(name: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        found = path / name
        shutil.rmtree(found) if found.is_dir() else found.unlink()

    return apply


def pipe(name: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        (path / name).unlink()
        os.mkfifo(path / name)

    return apply


def link(name: str, target: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        found = path / name
        shutil.rmtree(found) if found.is_dir() else found.unlink()
        found.symlink_to(target)

    return apply


def swapped_lines(data: bytes) -> bytes:
    """The first records of steps 3 and 4, one in the place of the other."""
    lines = data.splitlines(keepends=True)
    three, four = (
        next(n for n, line in enumerate(lines) if b'"step":%d,"att' % step in line) for step in (3, 4)
    )
    lines[three], lines[four] = lines[four], lines[three]
    return b"".join(lines)


def copied(old: str, new: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        shutil.copy(path / old, path / new)

    return apply


EARLIER, CHECKPOINT = "checkpoints/step-00000006", "checkpoints/step-00000009"
DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "cut tensors": ("checkpoint", edit(f"{CHECKPOINT}/tensors.bin", lambda d: d[:-1])),
    "longer tensors": ("checkpoint", edit(f"{CHECKPOINT}/tensors.bin", lambda d: d + b"\0")),
    "empty state": ("checkpoint", edit(f"{CHECKPOINT}/state.json", lambda d: b"")),
    "no tensors": ("checkpoint", without(f"{CHECKPOINT}/tensors.bin")),
    "no manifest": ("checkpoint", without(f"{CHECKPOINT}/manifest.json")),
    "manifest of another step": ("checkpoint", copied(f"{EARLIER}/manifest.json", f"{CHECKPOINT}/manifest.json")),
    "a pipe for tensors": ("checkpoint", pipe(f"{CHECKPOINT}/tensors.bin")),
    "a pipe for a manifest": ("checkpoint", pipe(f"{CHECKPOINT}/manifest.json")),
    "a link for tensors": ("checkpoint", link(f"{CHECKPOINT}/tensors.bin", "/dev/zero")),
    "a damaged line": ("log", edit("log.jsonl", lambda d: d.replace(b'{"step":3,', b'{"step":3x', 1))),
    "a hole in the log": ("log", edit("log.jsonl", lambda d: d[:300] + bytes(200) + d[500:])),
    "a line that is no object": ("log", edit("log.jsonl", lambda d: d + b"[1,2]\n")),
    "steps out of order": ("log", edit("log.jsonl", swapped_lines)),
    "a shorter log": ("log", edit("log.jsonl", lambda d: b"".join(d.splitlines(keepends=True)[:8]))),
    "no log": ("log", without("log.jsonl")),
    "an edited config": ("config", edit("config.json", lambda d: d.replace(b"0.1", b"0.2"))),
    "a config that is no JSON": ("config", edit("config.json", lambda d: d[:-3])),
    "an empty config": ("config", edit("config.json", lambda d: b"")),
    "no config": ("config", without("config.json")),
    "an attempt missing": ("attempts", without("provenance/attempt-0001.json")),
    "an attempt that logged and is empty": ("attempts", edit("provenance/attempt-0002.json", lambda d: b"")),
    "an attempt cut off": ("attempts", edit("provenance/attempt-0002.json", lambda d: d[:-9])),
    "an attempt of another number": ("attempts", copied(attempt_file(1), attempt_file(2))),
    "no attempts": ("attempts", without("provenance")),
    "done is no JSON": ("done", edit("done.json", lambda d: b"{")),
    "done with steps that are none": ("done", edit("done.json", lambda d: d.replace(b"12", b'"12"'))),
    "done with more steps than saved": ("done", edit("done.json", lambda d: d.replace(b"12", b"13"))),
    "done by an attempt that never was": ("done", edit("done.json", lambda d: d.replace(b'": 2', b'": 7'))),
    "done with fewer steps than logged": ("done", edit("done.json", lambda d: d.replace(b"12", b"9"))),
    "the final state is gone": ("done", without("checkpoints/step-00000012")),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage(path: Path, kind: str) -> None:
    """Each kind of damage is found where it is, with a reason; the other parts are still looked at."""
    what, damage = DAMAGE[kind]
    damage(path)
    checked = check(path)
    found = {name: state for name, state in states(checked).items() if state != "ok"}
    assert found.pop(what) == "damaged"
    assert not checked.ok
    assert all(f.why for f in checked.findings if f.state != "ok")
    assert set(found.values()) <= {None}, found


def test_another_run_under_this_name(path: Path, tmp_path: Path) -> None:
    """The config of one run in the folder of another: the fingerprint tells."""
    other = train(tmp_path / "other", {"lr": 0.7}, until=1)
    shutil.copy(other / "config.json", path / "config.json")
    (finding,) = [f for f in check(path).findings if f.what == "config"]
    assert finding.state == "damaged"
    assert other.name in finding.why


# --- what is no damage ----------------------------------------------------------------------------------------


NOTES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "half a last line": ("log", edit("log.jsonl", lambda d: d + b'{"step":12,"att')),
    "half a line set aside": ("log", lambda p: (p / "log.torn-0002").write_bytes(b"{") and None),
    "a checkpoint set aside": ("checkpoint", lambda p: (p / "checkpoints/torn-step-00000003-1").mkdir()),
    "an unfinished save": ("checkpoint", lambda p: (p / "checkpoints/.saving-step-00000015-ab").mkdir()),
    "an attempt that ended as it began": (
        "attempts",
        lambda p: (p / "provenance/attempt-0003.json").touch(),
    ),
}


@pytest.mark.parametrize("kind", NOTES)
def test_notes(path: Path, kind: str) -> None:
    """What a killed attempt leaves behind is said, and is no damage."""
    what, leave = NOTES[kind]
    leave(path)
    checked = check(path)
    assert states(checked) == {**ALL_OK, what: "note"}
    assert checked.ok


def test_a_longer_run_later(path: Path) -> None:
    """A run that was done and goes on: its marker is older than what was logged since, and is right."""
    with (path / "log.jsonl").open("a") as log:
        for line in (resumed(3, 12), record(3, 12, loss=1.0), record(3, 13, loss=1.0)):
            log.write(json.dumps(line) + "\n")
    facts = json.loads((path / "provenance/attempt-0002.json").read_text())
    (path / "provenance/attempt-0003.json").write_text(json.dumps({**facts, "attempt": 3}))
    assert states(check(path)) == ALL_OK


def test_while_it_runs(tmp_path: Path) -> None:
    """A run in use is looked at without its lock; half a last line is then one that is being written."""
    process = start(HOLD, tmp_path)
    try:
        (path,) = tmp_path.iterdir()
        (path / "log.jsonl").write_bytes(b'{"event":"resume","attempt":1,"time":1,"from":0}\n{"st')
        checked = check(path)
        assert states(checked) == {**ALL_OK, "done": None, "checkpoint": None}
        assert [f.state for f in checked.findings] == ["ok"] * 3
    finally:
        end(process)
    assert check(path).state("log") == "note"


def test_removed_while_looked_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that the run itself removes meanwhile is not damaged: it is not there any more."""
    whole = Disk.chunks

    def chunks(self: Disk, name: str) -> object:
        if "step-00000003" in name and name.endswith("state.json"):
            shutil.rmtree(path / "checkpoints" / "step-00000003")
        return whole(self, name)

    monkeypatch.setattr(Disk, "chunks", chunks)
    checked = check(path)
    assert checked.ok
    assert [f.step for f in checked.findings if f.what == "checkpoint"] == [0, 6, 9, 12]


# --- what could not be looked at -------------------------------------------------------------------------------


def test_no_permission_is_not_ok(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not be read is neither damaged nor ok."""

    def size(self: Disk, name: str) -> int:
        if name.endswith("step-00000009/tensors.bin"):
            raise PermissionError(13, "Permission denied", name)
        return os.stat(name).st_size

    monkeypatch.setattr(Disk, "size", size)
    checked = check(path)
    assert [(f.step, f.state) for f in checked.findings if f.state != "ok"] == [(9, "unknown")]
    assert not checked.ok


@pytest.mark.parametrize("name", ["config.json", "log.jsonl", "provenance", "checkpoints", "done.json"])
def test_links_are_not_followed(path: Path, tmp_path: Path, name: str) -> None:
    """What lies elsewhere is not this run's: not looked at, and so not ok."""
    shutil.move(path / name, tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    what = {"log.jsonl": "log", "provenance": "attempts", "checkpoints": "checkpoint"}.get(name, name[:-5])
    checked = check(path)
    assert checked.state(what) == "unknown"  # type: ignore[arg-type]
    assert not checked.ok


def test_a_renamed_folder(path: Path) -> None:
    """Without the fingerprint in its name nobody can say whether the config was changed."""
    path.rename(path.with_name("best-run"))
    checked = check(path.with_name("best-run"))
    assert states(checked) == {**ALL_OK, "config": "unknown"}
    assert not checked.ok


# --- the command line -----------------------------------------------------------------------------------------


def test_command(path: Path) -> None:
    """All runs below a folder, or those named; exit status 1 as soon as one is not in order."""
    root = str(path.parent)
    page = answered("runs", "verify", "--runs", root).stdout
    assert page.splitlines()[0].split() == ["run", "config", "attempts", "log", "done", "checkpoints"]
    assert page.splitlines()[1].split() == [path.name, "ok", "ok", "ok", "ok", "5", "ok"]
    flip(path / CHECKPOINT / "tensors.bin", 99)
    page = answered("runs", "verify", path.name[:4], "--runs", root, code=1).stdout
    assert "DAMAGED" in page
    assert "step-00000009/tensors.bin: got checksum" in " ".join(page.split())
    assert "1 of 1 not in order" in page
    data = json.loads(answered("runs", "verify", str(path), "--json", code=1).stdout)
    assert {"schema", "ok", "runs"} == set(data)
    assert data["ok"] is False
    bad = [f for f in data["runs"][0]["findings"] if f["state"] != "ok"]
    assert [(f["what"], f["step"], f["state"]) for f in bad] == [("checkpoint", 9, "damaged")]
    assert {"run", "path", "ok", "findings"} == set(data["runs"][0])


@pytest.mark.parametrize("columns", ["40", "60", "100", "200"])
def test_width(path: Path, columns: str) -> None:
    """Pages keep to the width of the terminal."""
    flip(path / CHECKPOINT / "tensors.bin", 99)
    page = run("runs", "verify", "--runs", str(path.parent), COLUMNS=columns).stdout
    assert max(map(len, page.splitlines())) <= max(int(columns), 70)


def test_nothing_to_look_at(tmp_path: Path) -> None:
    """No run is not "all runs are whole"."""
    refused("runs", "verify", "--runs", str(tmp_path), words="expected at least one")
    refused("runs", "verify", "--runs", str(tmp_path / "none"), words="--runs")
    refused("runs", "verify", "abc", "--runs", str(tmp_path), words="unknown run")


def test_progress(path: Path) -> None:
    """What is said while checkpoints are read back: which one, and how many of how many bytes."""
    said: list[str] = []
    counter = Counter(said.append)
    counter.total = checkpoint_bytes(path)
    check(path, counter)
    total = sum(p.stat().st_size for p in (path / "checkpoints").rglob("*.*"))
    assert (
        said[-1]
        == f"reading back {path.name} step-00000012: {format_bytes(total, 1)} of {format_bytes(total, 1)}"
    )
    assert {line.split()[3].rstrip(":") for line in said} == {f"step-{step:08d}" for step in (0, 3, 6, 9, 12)}

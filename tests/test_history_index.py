"""Rows of runs: real ones, damaged ones, hostile ones; the index, which may be anything and changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from history_runs import BEGUN, aged, written
from run_processes import HOLD, end, start
from runs_left import train

import loadsheet as ls
from loadsheet.errors import BadFile, BadInput, LoadsheetError, UnknownName
from loadsheet.history import index
from loadsheet.history.index import INDEX, find, scan
from loadsheet.run.directory import RunDirectory
from loadsheet.run.fingerprint import digest
from loadsheet.run.lock import in_use

# --- real runs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that went through, and one that broke off after 8 of 12 steps and was begun again twice."""
    root = tmp_path_factory.mktemp("real")
    train(root, {"lr": 0.1, "seed": 0})
    train(root, {"lr": 0.2, "seed": 0}, until=8)
    train(root, {"lr": 0.2, "seed": 0}, until=11)
    train(root, {"lr": 0.3, "seed": 0}, until=5)
    return root


def test_rows_of_real_runs(real: Path) -> None:
    """What the runs did is in their rows: steps, attempts, checkpoints, state, what was lost."""
    rows = {row.config["lr"]: row for row in ls.runs(real)}
    done, twice, once = rows[0.1], rows[0.2], rows[0.3]
    assert (done.state, done.step, done.total, done.goal, done.attempts) == ("done", 12, 12, 12, 1)
    assert done.checkpoints == (0, 3, 6, 9, 12)
    assert (done.resumes, done.lost_steps, done.problems) == (0, 0, ())
    assert done.fingerprint == done.path.name == ls_fingerprint({"lr": 0.1, "seed": 0})
    log = ls.read_log(done.path)
    assert done.metrics["loss"].min == min(log["loss"])
    assert done.metrics["loss"].last == log["loss"][-1]
    assert done.metrics["loss"].count == 12
    # left after step 8 (0 … 7 or so), on from checkpoint 6; left again, and no third attempt was made
    assert (twice.state, twice.attempts, twice.resumes, twice.total, twice.goal) == ("failed", 2, 1, None, 12)
    logged = {8: 9, 11: 12}
    assert twice.step in (logged[11], 11)
    assert twice.lost_steps in (2, 3)
    assert (once.state, once.resumes, once.lost_steps) == ("failed", 0, 0)
    assert 0 < done.seconds < 600
    assert done.nbytes == sum(f.stat().st_size for f in done.path.rglob("*") if f.is_file())


def ls_fingerprint(config: dict[str, Any]) -> str:
    """The fingerprint by hand: SHA-256 of the sorted, compact JSON."""
    import hashlib

    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:10]


def test_a_row_is_the_same_from_the_index(real: Path) -> None:
    """Read from the files, written to the index, read from the index: one answer."""
    root = real.parent / "copy"
    shutil.copytree(real, root, ignore=shutil.ignore_patterns(INDEX))
    aged(root)
    direct = scan(root, index=False)
    assert not (root / INDEX).exists()
    first = scan(root)
    assert (root / INDEX).exists()
    assert direct == first == scan(root)
    assert [find(root, row.fingerprint) for row in direct] == direct


def test_a_run_that_is_held_is_running(tmp_path: Path) -> None:
    """The lock says so, not a file; when its process is killed the run is not running any more."""
    process = start(HOLD, tmp_path)
    try:
        (row,) = scan(tmp_path)
        assert (row.state, find(tmp_path, row.fingerprint).state) == ("running", "running")
        assert in_use(row.path / "lock") is True
    finally:
        end(process)
    (row,) = scan(tmp_path)
    assert row.state == "interrupted"
    assert in_use(row.path / "lock") is False


def test_looking_does_not_take_the_lock_away(tmp_path: Path) -> None:
    """A process that lists runs while it holds one still holds it: closing any descriptor would lose the lock."""
    ask = (
        "import sys, pathlib; from loadsheet.run.lock import in_use; print(in_use(pathlib.Path(sys.argv[1])))"
    )

    def seen_from_outside(path: Path) -> str:
        done = subprocess.run(
            [sys.executable, "-c", ask, str(path)], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.strip()

    with RunDirectory.open(tmp_path, {"lr": 1}) as run:
        assert [row.state for row in scan(tmp_path)] == ["running"]
        assert in_use(run.path / "lock") is True
        assert seen_from_outside(run.path / "lock") == "True"
    assert seen_from_outside(run.path / "lock") == "False"
    assert in_use(tmp_path / "nothing") is False


# --- states and sums, on directories written by hand ------------------------------------------------------------


def events(*names: str, attempt: int = 1, **more: Any) -> list[dict[str, Any]]:
    return [{"event": name, "attempt": attempt, "time": BEGUN + 100, "step": 2, **more} for name in names]


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda root: written(root, {"a": 1}, {"loss": [3, 2, 1]}), "done"),
        (lambda root: written(root, {"a": 1}, {"loss": [3, 2]}, done=False), "interrupted"),
        (
            lambda root: written(root, {"a": 1}, {"loss": [3, 2]}, done=False, events=events("stopped")),
            "interrupted",
        ),
        (lambda root: written(root, {"a": 1}, {"loss": [3, 2]}, done=False, events=events("left")), "failed"),
        (lambda root: (root / digest({"a": 1})).mkdir() or root / digest({"a": 1}), "empty"),
    ],
)
def test_states(tmp_path: Path, make: Callable[[Path], Path], state: str) -> None:
    """Done, killed, stopped, left by an error, never begun."""
    path = make(tmp_path)
    (row,) = scan(tmp_path)
    assert (row.path, row.state) == (path, state)


def test_a_done_run_that_is_extended_is_not_done(tmp_path: Path) -> None:
    """Marked done after 2 steps, gone on to 4 of 9, killed: interrupted, and 9 is what it aims at."""
    more = [
        {"event": "resume", "attempt": 2, "time": BEGUN + 50, "from": 2},
        {"event": "steps", "attempt": 2, "time": BEGUN + 50, "total": 9},
        {"step": 2, "attempt": 2, "time": BEGUN + 51, "loss": 1.0},
        {"step": 3, "attempt": 2, "time": BEGUN + 53, "loss": 1.0},
    ]
    written(tmp_path, {"a": 1}, {"loss": [3, 2]}, events=more)
    (row,) = scan(tmp_path)
    assert (row.state, row.step, row.total, row.goal) == ("interrupted", 4, 2, 9)
    # attempt 1 from 0 to 2 s, attempt 2 from 50 to 53 s: what lies between is nobody's
    assert (row.seconds, row.attempts, row.resumes, row.lost_steps) == (2.0 + 3.0, 2, 1, 0)
    assert (row.started, row.updated) == (BEGUN, BEGUN + 53)


def test_what_is_logged_after_the_loop_is_no_step(tmp_path: Path) -> None:
    """A final evaluation belongs to step `total`; the run has made `total` steps all the same."""
    written(
        tmp_path,
        {"a": 1},
        {"loss": [3, 2]},
        events=[{"step": 2, "attempt": 1, "time": BEGUN + 9, "test": 0.5}],
    )
    (row,) = scan(tmp_path)
    assert (row.state, row.step, row.metrics["test"].last) == ("done", 2, 0.5)


# --- damage and ill will -----------------------------------------------------------------------------------------


def _replace(name: str, data: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        (path / name).write_bytes(data)

    return damage


def _link(name: str, target: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        found = path / name
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink(missing_ok=True)
        found.symlink_to(target)

    return damage


def _special(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)

    return damage


def _folder(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        (path / name).unlink(missing_ok=True)
        (path / name).mkdir()

    return damage


def _sparse(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with (path / name).open("ab") as file:
            file.truncate(1 << 42)

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "config empty": (_replace("config.json", b""), "config.json"),
    "config no JSON": (_replace("config.json", b"lr: 0.1"), "config.json"),
    "config a list": (_replace("config.json", b"[1]"), "config.json"),
    "config NaN": (_replace("config.json", b'{"lr": NaN}'), "config.json"),
    "config infinite": (_replace("config.json", b'{"lr": 1e999}'), "config.json"),
    "config half a surrogate": (_replace("config.json", b'{"lr": "\\ud800"}'), "config.json"),
    "config deep": (_replace("config.json", b'{"a":' * 9000 + b"1" + b"}" * 9000), "config.json"),
    "config deep enough": (_replace("config.json", b'{"a":' * 400 + b"1" + b"}" * 400), "config.json"),
    "config not UTF-8": (_replace("config.json", b'{"a": "\xff"}'), "config.json"),
    "config of another run": (_replace("config.json", b'{"lr": 0.2}'), "was edited or moved"),
    "config huge": (_sparse("config.json"), "config.json"),
    "config a pipe": (_special("config.json"), "config.json"),
    "config a folder": (_folder("config.json"), "config.json"),
    "config a link out": (_link("config.json", "/etc/hostname"), "leaves the directory"),
    "config a dangling link": (_link("config.json", "nowhere"), "config.json: there is none"),
    "config a link to itself": (_link("config.json", "config.json"), "config.json"),
    "log a link out": (_link("log.jsonl", "/etc/passwd"), "leaves the directory"),
    "log a pipe": (_special("log.jsonl"), "log.jsonl"),
    "log a folder": (_folder("log.jsonl"), "log.jsonl"),
    "log huge": (_sparse("log.jsonl"), "log.jsonl"),
    "log noise": (_replace("log.jsonl", os.urandom(5000) + b"\n"), "damaged lines"),
    "done a list": (_replace("done.json", b"[]"), "done.json"),
    "done text": (_replace("done.json", b'{"steps": "12"}'), "done.json"),
    "done below 0": (_replace("done.json", b'{"steps": -1}'), "done.json"),
    "done true": (_replace("done.json", b'{"steps": true}'), "done.json"),
    "measured noise": (_replace("measured.json", b"\x00\x01"), "measured.json"),
    "provenance a link out": (_link("provenance", "/etc"), "leaves the directory"),
    "provenance a file": (_link("provenance", "config.json"), "expected a folder"),
    "attempt noise": (_replace("provenance/attempt-0001.json", b"{"), "attempt-0001.json"),
    "attempt a link out": (_link("provenance/attempt-0001.json", "/etc/hostname"), "leaves the directory"),
    "checkpoints a link out": (_link("checkpoints", "/"), "leaves the directory"),
    "sheet unsigned": (_replace("sheet.json", b'{"schema": 1}'), "sheet.json"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_a_row_with_a_problem(tmp_path: Path, name: str) -> None:
    """Never a crash, never a run left out, never a file of somebody else's; and the run beside it is unharmed."""
    damage, said = DAMAGE[name]
    good = written(tmp_path, {"lr": 0.5}, {"loss": [2, 1]})
    path = written(tmp_path, {"lr": 0.1}, {"loss": [3, 2, 1]})
    damage(path)
    for rows in (scan(tmp_path, index=False), scan(tmp_path), scan(tmp_path)):
        bad, fine = sorted(rows, key=lambda row: row.path == good)
        assert (bad.path, fine.path, fine.problems, fine.state) == (path, good, (), "done")
        assert any(said in line for line in bad.problems), bad.problems
        assert all(line.isprintable() and len(line) < 500 for line in bad.problems)
        assert "root:" not in repr(bad)
        json.dumps(bad.config, allow_nan=False)
    assert find(tmp_path, path.name).problems


WRONG_TYPES = (
    b'{"time": "now", "excluded": [], "machine": [], "libraries": 3, "code": "x", "packages": null}',
    b'{"time": -5, "excluded": null}',
    b'{"time": 1e300}',
    b'{"time": true}',
    b"{}",
)


@pytest.mark.parametrize("data", WRONG_TYPES)
def test_records_of_wrong_types(tmp_path: Path, data: bytes) -> None:
    """A record that is JSON, and nothing that was expected in it: its time is simply not known."""
    path = written(tmp_path, {"lr": 0.1}, {"loss": [3, 2, 1]})
    (path / "provenance" / "attempt-0001.json").write_bytes(data)
    (path / "measured.json").write_bytes(
        b'{"attempts": {"1": {"ended": 3, "opened": "x"}, "x": []}, "schema": []}'
    )
    (row,) = scan(tmp_path)
    assert (row.state, row.started, row.seconds, row.excluded) == ("done", BEGUN, 3.0, {})


def test_a_run_directory_that_is_a_link(tmp_path: Path) -> None:
    """To a run in the same root: a run. To elsewhere: a row that says so, and nothing is read there."""
    root, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    inside = written(root, {"lr": 0.1}, {"loss": [1]})
    outside = written(elsewhere, {"lr": 0.2}, {"loss": [1]})
    (root / "also").symlink_to(inside)
    (root / "away").symlink_to(outside)
    rows = {row.path.name: row for row in scan(root)}
    assert set(rows) == {inside.name, "also", "away"}
    assert (rows["also"].state, rows["also"].problems) == ("done", ())
    assert (rows["away"].config, rows["away"].nbytes, rows["away"].state) == ({}, 0, "empty")
    assert "link that leaves the folder of runs" in rows["away"].problems[0]
    assert find(root, str(outside)).config == {"lr": 0.2}  # whoever names it means it


def test_what_is_no_run_is_no_row(tmp_path: Path) -> None:
    """Files, hidden folders, plots beside the runs."""
    path = written(tmp_path, {"lr": 0.1}, {"loss": [1]}, name="by-hand")
    (tmp_path / "plots").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (row,) = scan(tmp_path)
    assert (row.path, row.fingerprint) == (path, digest({"lr": 0.1}))


# --- the index ---------------------------------------------------------------------------------------------------


def read_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs whose files are read from now on."""
    names: list[str] = []
    whole = index.read_again

    def noted(path: Path, *rest: Any) -> Any:
        names.append(path.name)
        return whole(path, *rest)

    monkeypatch.setattr(index, "read_again", noted)
    return names


def a_few(root: Path) -> list[Path]:
    paths = [written(root, {"lr": n / 10}, {"loss": [3.0, 2.0, 1.0 + n]}) for n in range(5)]
    aged(root)
    return paths


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a record more": lambda path: _append(path / "log.jsonl", '{"step":3,"attempt":1,"loss":0.5}\n'),
    "another config": lambda path: (path / "config.json").write_text('{"lr": 77}'),
    "a checkpoint": lambda path: (path / "checkpoints" / "step-00000003").mkdir(),
    "an attempt": lambda path: (path / "provenance" / "attempt-0002.json").write_text("{}"),
    "not done any more": lambda path: (path / "done.json").unlink(),
    "measured": lambda path: (path / "measured.json").write_text("{}"),
    "no log": lambda path: (path / "log.jsonl").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_what_changed_is_read_again(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of the changed run is new, and that run alone was read."""
    paths = a_few(tmp_path)
    scan(tmp_path)
    names = read_again(monkeypatch)
    scan(tmp_path)
    assert names == []
    CHANGES[change](paths[2])
    assert scan(tmp_path) == scan(tmp_path, index=False)
    assert set(names) - {paths[2].name} <= {path.name for path in paths}
    assert names[0] == paths[2].name


def test_a_file_that_was_just_written_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writings within one tick of the clock may look alike: rows of fresh files are not taken from the index."""
    path = written(tmp_path, {"lr": 0.1}, {"loss": [3.0]})
    scan(tmp_path)
    names = read_again(monkeypatch)
    stat = (path / "log.jsonl").stat()
    text = (path / "log.jsonl").read_text()
    (path / "log.jsonl").write_text(text.replace('"loss": 3.0', '"loss": 7.0'))
    os.utime(path / "log.jsonl", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as if within the same tick
    (row,) = scan(tmp_path)
    assert (row.metrics["loss"].last, names) == (7.0, [path.name])


def test_runs_that_go_and_come(tmp_path: Path) -> None:
    """Removed ones leave the index, new ones enter it."""
    paths = a_few(tmp_path)
    scan(tmp_path)
    shutil.rmtree(paths[0])
    new = written(tmp_path, {"lr": 9}, {"loss": [1.0]})
    assert scan(tmp_path) == scan(tmp_path, index=False)
    with sqlite3.connect(tmp_path / INDEX) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM runs")}
    connection.close()
    assert names == {path.name for path in [*paths[1:], new]}


def _another_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.execute("ALTER TABLE runs RENAME COLUMN row TO line")
    connection.commit()
    connection.close()


def _rows_of_noise(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE runs SET row = x'ff00', pass = 'text'")
    connection.commit()
    connection.close()


def _no_table(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE runs")
    connection.commit()
    connection.close()


def _torn(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + os.urandom(len(data) // 2))


BROKEN: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(os.urandom(20_000)),
    "torn": _torn,
    "text": lambda path: path.write_text("not a database"),
    "another version": _another_version,
    "rows of noise": _rows_of_noise,
    "no table": _no_table,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_index_changes_nothing(tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is that of the files; and where an index can be made again, it is and is used."""
    a_few(tmp_path)
    expected = scan(tmp_path)
    BROKEN[broken](tmp_path / INDEX)
    assert scan(tmp_path) == expected
    assert find(tmp_path, expected[0].fingerprint) == expected[0]
    if broken in ("a folder", "a pipe"):
        return
    scan(tmp_path)
    names = read_again(monkeypatch)
    assert scan(tmp_path) == expected
    assert names == []


def test_an_index_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """Nothing is written outside the root."""
    root, target = tmp_path / "runs", tmp_path / "precious"
    root.mkdir()
    a_few(root)
    target.write_text("precious")
    (root / INDEX).symlink_to(target)
    assert len(scan(root)) == 5
    assert target.read_text() == "precious"
    target.unlink()
    assert len(scan(root)) == 5
    assert not target.exists()


def test_an_index_that_is_locked_or_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that holds it, a disk that is full or read-only: the answer comes all the same."""
    a_few(tmp_path)
    expected = scan(tmp_path)
    written(tmp_path, {"lr": 9}, {"loss": [1.0]})
    holder = sqlite3.connect(tmp_path / INDEX, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        assert len(scan(tmp_path)) == len(expected) + 1
    finally:
        holder.close()

    def refused(*_: Any, **__: Any) -> Any:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(sqlite3, "connect", refused)
    assert len(scan(tmp_path)) == len(expected) + 1


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """A folder whose name is not UTF-8 is a row; the index holds the others."""
    a_few(tmp_path)
    try:
        odd = written(tmp_path, {"lr": 9}, {"loss": [1.0]}, name=os.fsdecode(b"odd\xff"))
    except OSError:
        pytest.skip("this file system takes only UTF-8")
    assert odd in [row.path for row in scan(tmp_path)]
    assert scan(tmp_path) == scan(tmp_path, index=False)


# --- one run -------------------------------------------------------------------------------------------------------


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, by the beginning of one, by a path; a path wins only if it is written as one."""
    root = tmp_path / "runs"
    first, second = written(root, {"lr": 0.1}), written(root, {"lr": 0.2})
    named = written(tmp_path / "else", {"lr": 0.3}, name=first.name)
    assert find(root, first.name).path == first
    assert find(root, second.name[:4]).path == second
    assert find(root, str(named)).path == named
    monkeypatch.chdir(tmp_path / "else")
    assert find(root, first.name).path == first
    assert find(root, f"./{first.name}").config == {"lr": 0.3}
    assert find(tmp_path / "no-such-root", f"./{first.name}").config == {"lr": 0.3}


@pytest.mark.parametrize("word", ["", "0000000000", "nothing", "a/b", "..", "/", "\0", "x" * 5000, "\u202e"])
def test_find_nothing(tmp_path: Path, word: str) -> None:
    """One line, whatever was asked for."""
    written(tmp_path, {"lr": 0.1})
    with pytest.raises(LoadsheetError) as caught:
        find(tmp_path, word)
    assert str(caught.value).isprintable()


def test_find_says_what_is_near(tmp_path: Path) -> None:
    """Of names that begin alike all are shown; of none that fits the nearest ones."""
    for name in ("abc0000001", "abc0000002", "ffff000000"):
        written(tmp_path, {"name": name}, name=name)
    with pytest.raises(BadInput, match="2 runs begin") as several:
        find(tmp_path, "abc")
    assert "abc0000001, abc0000002" in several.value.hint
    with pytest.raises(UnknownName) as unknown:
        find(tmp_path, "ffff000001")
    assert "`ffff000000`" in unknown.value.hint
    with pytest.raises(BadFile, match="expected a folder of runs"):
        find(tmp_path / "nowhere", "abc")
    with pytest.raises(BadInput, match="without a run"):
        find(tmp_path, f"{tmp_path}/")


@pytest.mark.parametrize("root", ["nowhere", "file", "\0"])
def test_no_root(tmp_path: Path, root: str) -> None:
    """A root that is none is an error that names the option."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadFile, match="expected a folder of runs") as caught:
        scan(tmp_path / root)
    assert "--runs" in caught.value.hint

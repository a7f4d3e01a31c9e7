"""The directory of a run, its attempts, and who has it: real processes, one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_processes import FORK, HOLD, OPEN, by_hand, end, start

from loadsheet.errors import BadFile, LoadsheetError
from loadsheet.run import lock
from loadsheet.run.directory import RunDirectory
from loadsheet.run.errors import Busy, Fenced, ForeignConfig, NoSpace, RunError, RunWarning

# --- directory ----------------------------------------------------------------------------------------


def test_a_directory_is_found_again_and_its_attempts_are_counted(tmp_path: Path) -> None:
    """The same config is the same directory; config.json can be read by anyone, attempts count from 1."""
    config = {"name": "../x\nü", "lr": 3e-3}
    with RunDirectory.open(tmp_path / "a" / "b", config) as run:
        assert run.path == tmp_path / "a" / "b" / by_hand('{"lr":0.003,"name":"../x\\nü"}')
        assert run.attempt == 1
        assert run.checkpoints.is_dir()
        assert run.log_path == run.path / "log.jsonl"
        run.check_owner()
    assert json.loads((run.path / "config.json").read_text()) == config
    with RunDirectory.open(tmp_path / "a" / "b", config) as run:
        assert run.attempt == 2
    facts = json.loads((run.path / "provenance" / "attempt-0002.json").read_text())
    assert (facts["attempt"], facts["pid"]) == (2, os.getpid())


def test_a_config_of_ten_megabytes(tmp_path: Path) -> None:
    """Large configs are slow to write by hand and nothing else."""
    config = {"ids": list(range(300_000)), "text": "x" * 9_000_000}
    text = '{"ids":[' + ",".join(map(str, range(300_000))) + '],"text":"' + "x" * 9_000_000 + '"}'
    assert len(text) > 10_000_000
    with RunDirectory.open(tmp_path, config) as run:
        assert run.fingerprint == by_hand(text)
    with RunDirectory.open(tmp_path, config) as run:
        assert run.attempt == 2


def test_an_edited_config_is_refused_with_the_difference(tmp_path: Path) -> None:
    """The directory's name says one config and the file another: nobody knows what was trained there."""
    with RunDirectory.open(tmp_path, {"lr": 0.1}) as run:
        path = run.path / "config.json"
    path.write_text('{"lr": 0.2}')
    with pytest.raises(ForeignConfig, match=r"lr: 0\.2 → 0\.1"):
        RunDirectory.open(tmp_path, {"lr": 0.1})
    path.write_text('{"lr": 0.')
    with pytest.raises(ForeignConfig, match="no JSON"):
        RunDirectory.open(tmp_path, {"lr": 0.1})
    path.write_text('{"lr": 0.1}')
    with RunDirectory.open(tmp_path, {"lr": 0.1}) as run:
        assert run.attempt == 2  # what was refused was no attempt, and its lock was given back


def test_done_is_remembered_and_may_grow(tmp_path: Path) -> None:
    """The marker holds the number of steps; one that cannot be read counts as none."""
    with RunDirectory.open(tmp_path, {}) as run:
        assert run.done() is None
        run.mark_done(10**10)
        assert run.done() == 10**10
    with RunDirectory.open(tmp_path, {}) as run:
        run.mark_done(10**10 + 1)
        assert run.done() == 10**10 + 1
    (run.path / "done.json").write_bytes(b"{")
    assert run.done() is None


def test_a_newer_attempt_fences_the_older(tmp_path: Path) -> None:
    """A paused machine wakes up after another took over: it must notice before it commits."""
    with RunDirectory.open(tmp_path, {}) as run:
        (run.provenance / "attempt-0002.json").write_text("{}")  # as a process the lock did not keep out
        with pytest.raises(Fenced, match="attempt 2"):
            run.check_owner()
        with pytest.raises(Fenced):
            run.mark_done(5)
        assert run.done() is None


def test_a_directory_deleted_under_the_run_is_noticed(tmp_path: Path) -> None:
    """Also when another process has made it anew meanwhile, with a lock of its own."""
    import shutil

    with RunDirectory.open(tmp_path, {}) as run:
        shutil.rmtree(run.path)
        with pytest.raises(RunError, match="deleted"):
            run.check_owner()
        other = subprocess.run(
            [sys.executable, "-c", OPEN, str(tmp_path), "1"], capture_output=True, text=True, check=True
        )
        assert other.stdout == "attempt 1\n"
        with pytest.raises(RunError, match="replaced"):
            run.check_owner()


def test_a_fetched_log_keeps_its_attempts_apart(tmp_path: Path) -> None:
    """`prepare` runs under the lock, before the number is taken: a fetched log says which were used."""

    def fetch(path: Path) -> None:
        (path / "log.jsonl").write_text(
            '{"step":1,"attempt":6,"time":0}\n{"step":2,"attempt":7,"time":0}\n{"st'
        )

    with RunDirectory.open(tmp_path, {}, prepare=fetch) as run:
        assert run.attempt == 8


def test_what_a_killed_attempt_was_writing_aside_is_swept(tmp_path: Path) -> None:
    """Files that never got their name were never part of the run."""
    with RunDirectory.open(tmp_path, {}) as run:
        leftovers = [run.path / ".done.json.unfinished", run.provenance / ".attempt-0001.json.unfinished"]
    for path in leftovers:
        path.write_bytes(b"{")
    with RunDirectory.open(tmp_path, {}):
        assert [path.exists() for path in leftovers] == [False, False]


def test_a_claim_without_its_record_still_counts(tmp_path: Path) -> None:
    """An attempt killed right after it took its number leaves an empty file; the number is used."""
    with RunDirectory.open(tmp_path, {}) as run:
        (run.provenance / "attempt-0002.json").write_bytes(b"")
    with RunDirectory.open(tmp_path, {}) as run:
        assert run.attempt == 3


@pytest.mark.parametrize(("code", "kind"), [("ENOSPC", NoSpace), ("EDQUOT", NoSpace), ("EROFS", RunError)])
def test_a_disk_that_takes_nothing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, kind: type[LoadsheetError]
) -> None:
    """Full, over quota, read-only: an error that says so, and the lock is free again."""
    import errno

    number = getattr(errno, code)

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with pytest.raises(kind, match=os.strerror(number)) as caught:
            RunDirectory.open(tmp_path, {})
    assert "\n" not in str(caught.value)
    with RunDirectory.open(tmp_path, {}) as run:
        assert run.attempt == 1


def test_a_file_in_the_place_of_the_root_is_one_line(tmp_path: Path) -> None:
    """`runs` may be a file."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(LoadsheetError, match="runs"):
        RunDirectory.open(tmp_path / "runs", {})


# --- lock -------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_with_status_2_naming_the_owner(tmp_path: Path) -> None:
    """Two real processes; the second waits as long as it was told, and leaves no attempt behind."""
    first = start(HOLD, tmp_path)
    try:
        before = time.monotonic()
        second = subprocess.run(
            [sys.executable, "-c", OPEN, str(tmp_path), "0.5"], capture_output=True, text=True, check=False
        )
        assert time.monotonic() - before >= 0.5
        assert second.returncode == 2
        assert f"process {first.pid} on" in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        end(first)
    with RunDirectory.open(tmp_path, {}, wait=0) as run:
        assert run.attempt == 2


@pytest.mark.parametrize(
    "call",
    ["directory.RunDirectory.open(root, {}, wait=0)", "loop.Run.open(root, {}, wait=0, progress=False)"],
)
def test_who_does_not_catch_it_ends_with_the_owner_and_a_hint(tmp_path: Path, call: str) -> None:
    """Whoever opened it and however quiet it was to be: status 2, two lines, no traceback."""
    first = start(HOLD, tmp_path)
    code = f"import sys\nfrom loadsheet.run import directory, loop\nroot = sys.argv[1]\n{call}\n"
    try:
        second = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
        )
    finally:
        end(first)
    assert (second.returncode, second.stdout) == (2, "")
    error, hint = second.stderr.splitlines()
    assert error.startswith(f"error: run: got one that is in use by process {first.pid} on ")
    assert hint == "hint: one config is one run: wait for it, stop it, or change the config"


def test_who_catches_it_hears_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text is for whoever asks for the exit status, and only once."""
    with RunDirectory.open(tmp_path, {}), pytest.raises(Busy) as caught:
        RunDirectory.open(tmp_path, {}, wait=0)
    assert capsys.readouterr().err == ""
    assert (caught.value.exit_code, caught.value.code, caught.value.code) == (2, 2, 2)
    assert capsys.readouterr().err.count("error: ") == 1


def test_a_waiting_process_goes_on_when_the_owner_is_killed(tmp_path: Path) -> None:
    """SIGKILL gives no chance to clean up; the kernel drops the lock, and the waiting one has it."""
    first = start(HOLD, tmp_path)
    second = subprocess.Popen(
        [sys.executable, "-c", OPEN, str(tmp_path), "300"], stdout=subprocess.PIPE, text=True
    )
    time.sleep(0.5)
    assert second.poll() is None
    end(first)
    assert second.communicate(timeout=300)[0] == "attempt 2\n"


def test_a_worker_that_outlives_its_killed_parent_does_not_hold_the_lock(tmp_path: Path) -> None:
    """With `flock` it would: the forked child shares it, and the run would wait for ever."""
    first = start(FORK, tmp_path)
    assert first.stdout is not None
    worker = int(first.stdout.readline().split()[1])
    try:
        first.kill()
        first.wait()
        os.kill(worker, 0)  # it is alive
        with RunDirectory.open(tmp_path, {}, wait=0) as run:
            assert run.attempt == 2
    finally:
        os.kill(worker, 9)
        first.communicate()


def test_the_same_process_cannot_open_a_run_twice(tmp_path: Path) -> None:
    """A second descriptor, once closed, would drop the lock of the first: it is not even opened."""
    with RunDirectory.open(tmp_path, {}):
        with pytest.raises(Busy, match="this process"):
            RunDirectory.open(tmp_path, {}, wait=0)
        second = subprocess.run(
            [sys.executable, "-c", OPEN, str(tmp_path), "0"], capture_output=True, text=True, check=False
        )
        assert second.returncode == 2  # the lock is still there
    with RunDirectory.open(tmp_path, {}, wait=0) as run:
        assert run.attempt == 2


def test_waiting_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody should look at a silent terminal for a minute."""
    monkeypatch.setattr(lock, "_PATIENCE", 0.0)
    first = start(HOLD, tmp_path)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: end(first))  # whoever waits has said so
    with pytest.warns(RunWarning, match=f"process {first.pid}"):
        run = RunDirectory.open(tmp_path, {}, wait=300)
    run.close()
    assert run.attempt == 2


@pytest.mark.parametrize("code", ["ENOLCK", "EOPNOTSUPP", "EINVAL"])
def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Some network and bucket mounts answer so; the message has the reason."""
    import errno
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(BadFile, match="without locks"):
        RunDirectory.open(tmp_path, {})


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /mnt/my\\040bucket rw - fuse.gcsfuse bucket rw,user_id=0
31 22 0:41 / /mnt/nolock rw,relatime - nfs host:/x rw,vers=3,nolock,local_lock=none
32 22 0:42 / /mnt/nfs rw,relatime - nfs4 host:/y rw,vers=4.2,local_lock=none
33 22 0:43 / /mnt/over rw - fuse.s3fs s3fs rw
34 22 0:44 / /mnt/over rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/home/x", None),
        ("/mnt/my bucket/runs", "FUSE"),
        ("/mnt/my bucket2", None),
        ("/mnt/nolock/runs", "no other machine"),
        ("/mnt/nfs/runs", None),
        ("/mnt/over", None),
    ],
)
def test_mounts_that_cannot_keep_a_run(tmp_path: Path, path: str, reason: str | None) -> None:
    """Lines as proc(5) describes /proc/self/mountinfo: escapes, options, one mount over another."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    if reason is None:
        lock.refuse_unsafe(Path(path), mounts)
        assert lock._file_system(Path(path), mounts)[0] in {"ext4", "nfs4", "tmpfs"}
    else:
        with pytest.raises(BadFile, match=reason):
            lock.refuse_unsafe(Path(path), mounts)


def test_an_unsafe_place_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before there is a directory: on FUSE even that may not come away again."""
    monkeypatch.setattr(lock, "_file_system", lambda path, mounts: ("fuse.s3fs", frozenset()))
    with pytest.raises(BadFile, match="FUSE"):
        RunDirectory.open(tmp_path / "runs", {})
    assert list(tmp_path.iterdir()) == []


def test_many_processes_at_once_come_one_after_another(tmp_path: Path) -> None:
    """Five start at the same moment: none is refused while it may wait, no number is given out twice."""
    code = OPEN + "run.check_owner()\n"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), "300"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    found = sorted(process.communicate(timeout=300) for process in processes)
    assert [said for said, _ in found] == [f"attempt {number}\n" for number in range(1, 6)], found


def test_where_locks_do_nothing_the_number_still_keeps_attempts_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that grants every lock to everyone: the newer attempt has the run, the older stops."""
    import fcntl

    monkeypatch.setattr(fcntl, "lockf", lambda *_: None)
    with RunDirectory.open(tmp_path, {}) as run:
        other = subprocess.run(
            [sys.executable, "-c", OPEN, str(tmp_path), "0"], capture_output=True, text=True, check=True
        )
        assert (run.attempt, other.stdout) == (1, "attempt 2\n")
        with pytest.raises(Fenced, match="attempt 2"):
            run.check_owner()


def test_a_lock_file_deleted_while_one_waits_is_not_what_one_gets(tmp_path: Path) -> None:
    """The lock of a file without a name keeps nobody out: the waiting one takes the lock of the new file."""
    first = start(HOLD, tmp_path)
    (path,) = tmp_path.glob("*/lock")
    waiting = lock.RunLock(path)
    with pytest.raises(Busy):
        waiting.acquire(wait=0)  # it has the file open now
    path.unlink()
    end(first)
    waiting.acquire(wait=5)
    try:
        assert path.exists()
        assert waiting.in_place()
    finally:
        waiting.release()

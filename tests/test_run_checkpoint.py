"""Checkpoints on a real disk: damage of every kind is found, a full disk costs nothing that was there."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msgspec")

from loadsheet.errors import BadInput  # noqa: E402
from loadsheet.run.checkpoint import CheckpointStore  # noqa: E402
from loadsheet.run.errors import BadCheckpoint, Fenced, NoCheckpoint, NoSpace, RunWarning, SaveFailed  # noqa: E402
from loadsheet.run.files import Disk  # noqa: E402
from loadsheet.run.manifest import pack, unpack  # noqa: E402
from loadsheet.run.policy import Policy, overhead, young_interval  # noqa: E402
from loadsheet.run.saver import Saver  # noqa: E402
from loadsheet.run.state import Keeper  # noqa: E402


@pytest.fixture
def keeper() -> Keeper:
    """Something to save: a tensor whose every element is the step."""
    keeper = Keeper()
    keeper.keep(weights=torch.zeros(5000), facts={"step": 0})
    return keeper


def save(store: CheckpointStore, keeper: Keeper, *steps: int, **options: Any) -> None:
    """Checkpoints that say which they are."""
    for step in steps:
        keeper.objects["weights"].fill_(step)
        keeper.objects["facts"]["step"] = step
        snapshot = keeper.capture(step)
        try:
            store.write(snapshot, **options)
        finally:
            snapshot.release()


def loaded(store: CheckpointStore, step: int | None = None) -> tuple[int, float, float, int]:
    """Step, smallest and largest weight, and the noted step of a checkpoint."""
    state = store.load(step)
    weights = state.value("weights")
    return state.step, float(weights.min()), float(weights.max()), state.value("facts")["step"]


def whole(step: int) -> tuple[int, float, float, int]:
    """What `loaded` gives for an intact one."""
    return step, float(step), float(step), step


# --- writing and reading ----------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path, keeper: Keeper) -> None:
    """The newest, any by its step, and the facts of the manifest."""
    store = CheckpointStore(tmp_path / "checkpoints")
    save(store, keeper, 100, 200, log_offset=lambda: 1234, attempt=3)
    assert (store.steps(), loaded(store), loaded(store, 100)) == ([100, 200], whole(200), whole(100))
    manifest = store.manifest(200)
    assert (manifest.step, manifest.attempt, manifest.log_offset) == (200, 3, 1234)
    assert sorted(os.listdir(store.path / "step-00000200")) == ["manifest.json", "state.json", "tensors.bin"]


def test_the_system_is_really_asked(tmp_path: Path, keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol that the crash tests replay in memory, as system calls, in order."""
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def name(path: str) -> str:
        return Path(path).name.replace("-", " ").split(" ")[0]

    def note_fsync(fd: int) -> None:
        calls.append(("fsync", name(os.readlink(f"/proc/self/fd/{fd}"))))
        fsync(fd)

    def note_rename(old: str, new: str) -> None:
        calls.append(("rename", f"{name(old)} → {name(new)}"))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    (tmp_path / "run").mkdir()
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=1)
    save(store, keeper, 1)
    first = [
        ("fsync", "run"),
        ("fsync", "tensors.bin"),
        ("fsync", "state.json"),
        ("fsync", "manifest.json"),
        ("fsync", ".saving"),
        ("rename", ".saving → step"),
        ("fsync", "checkpoints"),
    ]
    assert calls == first
    save(store, keeper, 2)
    store.prune()
    store.sweep()
    assert calls[len(first) :] == [
        *first[1:],
        ("rename", "step → .old"),
        ("fsync", "checkpoints"),
        ("fsync", "checkpoints"),
    ]


def test_nothing_is_pickled(tmp_path: Path, keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """In neither direction: a file from elsewhere must not be able to run code here."""
    import pickle

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pickle")

    for module, names in ((pickle, ("dump", "dumps", "load", "loads")), (torch, ("load", "save"))):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    store = CheckpointStore(tmp_path)
    save(store, keeper, 3)
    state = store.load()
    fresh = Keeper()
    fresh.keep(weights=torch.zeros(5000), facts={})
    fresh.restore(state)
    assert (float(fresh.objects["weights"].sum()), fresh.objects["facts"]) == (15000.0, {"step": 3})


def test_the_checksums_are_those_of_the_files(tmp_path: Path, keeper: Keeper) -> None:
    """XXH3 of 128 bits, as `xxh128sum` computes it over a file."""
    import xxhash

    store = CheckpointStore(tmp_path)
    save(store, keeper, 1)
    for name, entry in store.manifest(1).files.items():
        data = (tmp_path / "step-00000001" / name).read_bytes()
        assert (entry.bytes, entry.xxh3_128) == (len(data), xxhash.xxh3_128(data).hexdigest())


def test_steps_beyond_eight_digits_and_strange_names(tmp_path: Path, keeper: Keeper) -> None:
    """Ordered as numbers; what is no checkpoint's name is none."""
    store = CheckpointStore(tmp_path / "a\nb ü %2e" / "..", keep_last=9)
    (tmp_path / "a\nb ü %2e").mkdir()
    save(store, keeper, 999_999_999, 10_000_000_000, 7)
    for name in ("step-7", "step-0000000007", "step-00000008x", "step-٠٠٠٠٠٠٠٩"):
        (tmp_path / name).mkdir()
    assert store.steps() == [7, 999_999_999, 10_000_000_000]
    assert loaded(store)[0] == 10_000_000_000


def test_the_same_step_again(tmp_path: Path, keeper: Keeper) -> None:
    """An equal checkpoint is left alone, another one takes its place, and nothing is left over."""
    store = CheckpointStore(tmp_path)
    save(store, keeper, 5)
    before = os.stat(tmp_path / "step-00000005").st_ino
    save(store, keeper, 5)
    same = os.stat(tmp_path / "step-00000005").st_ino
    keeper.objects["facts"]["more"] = 1
    save(store, keeper, 5)
    assert (same, store.load().value("facts")["more"], os.listdir(tmp_path)) == (before, 1, ["step-00000005"])


def test_retention_keeps_the_last_and_every_mth(tmp_path: Path, keeper: Keeper) -> None:
    """The last two, and the multiples of 300."""
    store = CheckpointStore(tmp_path, keep_last=2, every_mth=300)
    for step in range(100, 1100, 100):
        save(store, keeper, step)
        store.prune()
    assert (store.steps(), sorted(os.listdir(tmp_path))) == (
        [300, 600, 900, 1000],
        ["step-00000300", "step-00000600", "step-00000900", "step-00001000"],
    )


def test_nothing_old_is_removed_before_the_new_is_found_whole(tmp_path: Path, keeper: Keeper) -> None:
    """A new checkpoint that the disk has damaged must not cost the older ones."""
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, keeper, 1, 2)
    flip(tmp_path / "step-00000002" / "tensors.bin", 8 * 777)
    with pytest.warns(RunWarning, match="no older checkpoint is removed"):
        assert store.prune() == []
    with pytest.warns(RunWarning, match="set aside as torn-step-00000002-1"):
        assert loaded(store) == whole(1)


def test_unfinished_saves_are_swept_with_a_warning(tmp_path: Path, keeper: Keeper) -> None:
    """What a killed process left behind does not fill the disk for ever."""
    store = CheckpointStore(tmp_path)
    save(store, keeper, 1)
    (tmp_path / ".saving-step-00000002-abcd").mkdir()
    (tmp_path / ".saving-step-00000002-abcd" / "tensors.bin").write_bytes(b"half")
    (tmp_path / ".old-step-00000000-abcd").mkdir()
    with pytest.warns(RunWarning, match=r"1 unfinished save"):
        assert store.sweep() == [".saving-step-00000002-abcd"]
    assert os.listdir(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize("when", [1, 2])
def test_a_fenced_process_commits_nothing(tmp_path: Path, keeper: Keeper, when: int) -> None:
    """The owner is asked before the first byte and again before the commit."""
    calls = []

    def fence() -> None:
        calls.append(1)
        if len(calls) == when:
            raise Fenced("run: got attempt 4, expected to be the newest")

    store = CheckpointStore(tmp_path)
    save(store, keeper, 1)
    with pytest.raises(Fenced):
        save(store, keeper, 2, fence=fence)
    assert (os.listdir(tmp_path), len(calls)) == (["step-00000001"], when)


@pytest.mark.parametrize(
    ("name", "value"), [("keep_last", 0), ("keep_last", True), ("every_mth", 0), ("every_mth", "x")]
)
def test_nonsense_is_refused(tmp_path: Path, name: str, value: object) -> None:
    """Before anything is written, by the name of the argument."""
    with pytest.raises(BadInput, match=f"^{name}: got"):
        CheckpointStore(tmp_path, **{name: value})  # type: ignore[arg-type]


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    """A missing directory has no checkpoints, and says so."""
    store = CheckpointStore(tmp_path / "none")
    with pytest.raises(NoCheckpoint, match="got none"):
        store.load()
    assert (store.steps(), store.sweep(), store.prune()) == ([], [], [])


# --- damage -----------------------------------------------------------------------------------------


def flip(path: Path, bit: int) -> None:
    """Change one bit of a file, in place."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_every_flipped_bit_of_a_manifest_is_found() -> None:
    """Not one of them may change a step, an offset or a checksum, or hide a file."""
    from loadsheet.run.manifest import FileEntry, Manifest

    files = {"state.json": FileEntry(7, "0a" * 16), "tensors.bin": FileEntry(9, "bc" * 16)}
    good = Manifest(1, 100, 2, 55, 1.5, "de" * 16, files, "2.13")
    data = pack(good)
    assert unpack(data, "here") == good
    found = 0
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            unpack(bytes(bad), "here")
        except BadCheckpoint:
            found += 1
    assert found == 8 * len(data)


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "tensors.bin"])
def test_damage_of_every_file_is_found_and_the_older_one_used(
    tmp_path: Path, keeper: Keeper, name: str
) -> None:
    """Flipped bits, truncations at random offsets, zeros, nothing, too much, gone: never loaded, never lost."""
    dice = random.Random(name)
    origin = tmp_path / "origin"
    save(CheckpointStore(origin), keeper, 1, 2)
    size = os.stat(origin / "step-00000002" / name).st_size
    damages: list[tuple[str, int]] = [("flip", dice.randrange(8 * size)) for _ in range(25)]
    damages += [("cut", dice.randrange(size)) for _ in range(10)]
    damages += [("cut", 0), ("cut", size - 1), ("zero", 0), ("zero", size // 2), ("append", 1), ("gone", 0)]
    for number, (kind, where) in enumerate(damages):
        root = tmp_path / str(number)
        shutil.copytree(origin, root)
        path = root / "step-00000002" / name
        data = path.read_bytes()
        if kind == "flip":
            flip(path, where)
        elif kind == "cut":
            path.write_bytes(data[:where])
        elif kind == "zero":
            path.write_bytes(data[:where] + b"\0" * (size - where))
        elif kind == "append":
            path.write_bytes(data + b"{")
        else:
            path.unlink()
        store = CheckpointStore(root)
        with pytest.raises(BadCheckpoint):
            store.load(2)
        with pytest.warns(RunWarning, match="set aside"):
            assert loaded(store) == whole(1), (kind, where)
        assert (store.steps(), sorted(os.listdir(root))) == ([1], ["step-00000001", "torn-step-00000002-1"])
        shutil.rmtree(root)


def test_if_all_are_damaged_nothing_is_touched(tmp_path: Path, keeper: Keeper) -> None:
    """To begin at step 0 is a decision for a person: again and again the same error, not a silent restart."""
    store = CheckpointStore(tmp_path)
    save(store, keeper, 1, 2)
    for step in (1, 2):
        flip(tmp_path / f"step-{step:08d}" / "tensors.bin", 99)
    for _ in range(2):
        with pytest.raises(NoCheckpoint, match="2, all of them damaged"):
            store.load()
    assert store.steps() == [1, 2]


def test_reading_only_does_not_rename(tmp_path: Path, keeper: Keeper) -> None:
    """Whoever only looks at a run must not change it."""
    store = CheckpointStore(tmp_path)
    save(store, keeper, 1, 2)
    flip(tmp_path / "step-00000002" / "state.json", 99)
    with pytest.warns(RunWarning, match="left where it is"):
        assert store.load(set_aside=False).step == 1
    assert store.steps() == [1, 2]


def test_a_checkpoint_under_a_wrong_name_is_not_believed(tmp_path: Path, keeper: Keeper) -> None:
    """Copied or renamed by hand: the manifest says which step it is."""
    store = CheckpointStore(tmp_path)
    save(store, keeper, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "step-00000009")
    with pytest.raises(BadCheckpoint, match="expected step 9"):
        store.load(9)


# --- a disk that says no ----------------------------------------------------------------------------


class Faulty(Disk):
    """The real disk until operation number `at`, which fails; what removes, and what reads, does not."""

    def __init__(self, at: int, code: int) -> None:
        self.left, self.code, self.failed = at, code, False

    def count(self) -> None:
        self.left -= 1
        if self.left < 0 and not self.failed:
            self.failed = True
            raise OSError(self.code, os.strerror(self.code))

    def create(self, path: str) -> Any:
        self.count()
        file, disk = super().create(path), self

        class File:
            def write(self, data: memoryview) -> None:
                file.write(data[: len(data) // 2])
                disk.count()
                file.write(data[len(data) // 2 :])

            def sync(self) -> None:
                disk.count()
                file.sync()

            def close(self) -> None:
                file.close()

        return File()

    def make_directory(self, path: str) -> None:
        self.count()
        super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        self.count()
        super().sync_directory(path)

    def rename(self, old: str, new: str) -> None:
        self.count()
        super().rename(old, new)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_whatever_operation_fails_the_old_checkpoint_stays(tmp_path: Path, keeper: Keeper, code: int) -> None:
    """Each operation of a save fails once; the error says what is needed, the next save succeeds."""
    kind = NoSpace if code in (errno.ENOSPC, errno.EDQUOT) else SaveFailed
    number = 0
    while True:
        root = tmp_path / str(number)
        save(CheckpointStore(root), keeper, 1)
        faulty = Faulty(number, code)
        store = CheckpointStore(root, files=faulty)
        error: SaveFailed | None = None
        try:
            save(store, keeper, 2)
        except SaveFailed as failed:
            error = failed
        if error is not None:
            assert (type(error), "expected" in str(error)) == (kind, True), number
            assert loaded(store)[0] in (1, 2), number
        else:
            assert faulty.failed is (number == 1 - 1), number  # the directory exists: that error is none
            if not faulty.failed:
                break
        save(store, keeper, 3)
        assert (loaded(store), [n for n in os.listdir(root) if n[0] == "."]) == (whole(3), []), number
        number += 1
    assert number >= 15


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_keeps_what_it_has(small_disk: Path) -> None:
    """The message gives the bytes needed: (kept + 1) × size; asked beforehand, it comes before step 1."""
    keeper = Keeper()
    keeper.keep(weights=torch.zeros(100_000))  # 400 kB
    store = CheckpointStore(small_disk / "checkpoints")
    snapshot = keeper.capture(1)
    nbytes = snapshot.nbytes
    with pytest.raises(NoSpace) as before:
        store.check_space(nbytes)
    store.write(snapshot)
    store.write(keeper.capture(2))
    with pytest.raises(NoSpace) as caught:
        store.write(keeper.capture(3))
    assert store.needed_bytes(nbytes) == 3 * nbytes
    for error in (before, caught):
        assert "(2 kept + 1) × " in str(error.value)
    assert (store.steps(), store.load().step) == ([1, 2], 2)
    assert sorted(os.listdir(store.path)) == ["step-00000001", "step-00000002"]


def test_a_disk_made_read_only_under_the_run(small_disk: Path, keeper: Keeper) -> None:
    """As the kernel does after errors: the save fails, what is there can be read."""
    store = CheckpointStore(small_disk / "checkpoints")
    save(store, keeper, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(SaveFailed, match="Read-only file system"):
        save(store, keeper, 2)
    assert loaded(store) == whole(1)


def test_a_directory_removed_under_the_run(tmp_path: Path, keeper: Keeper) -> None:
    """The save fails and says so; it does not make a new directory that nobody looks for."""
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    (tmp_path / "run").mkdir()
    save(store, keeper, 1)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(SaveFailed, match="No such file or directory") as caught:
        save(store, keeper, 2)
    assert (caught.value.hint, (tmp_path / "run").exists()) == (
        "was the run directory removed or unmounted?",
        False,
    )


# --- in the background ------------------------------------------------------------------------------


def test_saves_are_written_in_the_background_one_at_a_time(tmp_path: Path, keeper: Keeper) -> None:
    """Training changes the tensors at once; the checkpoint has what they were."""
    committed = []
    saver = Saver(
        CheckpointStore(tmp_path), on_committed=lambda step, path: committed.append((step, path.name))
    )
    for step in range(1, 6):
        keeper.objects["weights"].fill_(step)
        keeper.objects["facts"]["step"] = step
        saver.save(keeper.capture(step))
        keeper.objects["weights"].fill_(-1)
    saver.wait()
    assert (loaded(saver.store), loaded(saver.store, 4)) == (whole(5), whole(4))
    assert committed == [(step, f"step-{step:08d}") for step in range(1, 6)]
    assert [times.step for times in saver.history] == [1, 2, 3, 4, 5]
    assert all(0 < times.stall <= times.total for times in saver.history)


def test_without_memory_for_a_copy_the_save_is_finished_at_once(
    tmp_path: Path, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live tensors are written, so training must not go on before they are."""
    from loadsheet.run import buffer

    monkeypatch.setattr(buffer, "available_memory", lambda: 1000)
    saver = Saver(CheckpointStore(tmp_path))
    keeper.objects["weights"].fill_(4)
    keeper.objects["facts"]["step"] = 4
    with pytest.warns(RunWarning, match="training waits"):
        snapshot = keeper.capture(4)
    saver.save(snapshot)
    keeper.objects["weights"].fill_(5)
    assert (saver.busy, loaded(saver.store), saver.history[0].stall == saver.history[0].total) == (
        False,
        whole(4),
        True,
    )


ACCOUNT = "anon 900\nfile 700\nactive_file 300\ninactive_file 200\nslab 1\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "1000", "memory.current": "900", "memory.stat": ACCOUNT}, 100 + 300 + 200),
        ({"memory.max": "1000", "memory.current": "900"}, 100),
        ({"memory.max": "max", "memory.current": "900", "memory.stat": ACCOUNT}, 5_000_000 * 1024),
        (
            {
                "memory/memory.limit_in_bytes": "1000",
                "memory/memory.usage_in_bytes": "900",
                "memory/memory.stat": "active_file 7\ntotal_active_file 30\ntotal_inactive_file 20\n",
            },
            100 + 30 + 20,
        ),
        ({}, 5_000_000 * 1024),
    ],
    ids=["version 2", "no account", "no limit", "version 1", "no group"],
)
def test_the_memory_that_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    """A container's page cache counts as free: it fills the limit, and goes when memory is needed."""
    from loadsheet.run import buffer

    (tmp_path / "memory").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable:    5000000 kB\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(buffer, "_GROUP", tmp_path)
    monkeypatch.setattr(buffer, "_MEMORY", tmp_path / "meminfo")
    assert buffer.available_memory() == expected


def test_a_failed_background_save_is_raised_at_the_next_call(tmp_path: Path, keeper: Keeper) -> None:
    """Once; and the buffer is free again."""
    saver = Saver(CheckpointStore(tmp_path, files=Faulty(3, errno.ENOSPC)))
    saver.save(keeper.capture(1))
    while saver.busy:
        time.sleep(0.001)
    with pytest.raises(NoSpace):
        saver.check()
    saver.check()
    saver.save(keeper.capture(2), wait=True)
    assert saver.store.steps() == [2]


def test_a_failed_save_may_be_a_warning(tmp_path: Path, keeper: Keeper) -> None:
    """Training goes on, if it was asked to, with the checkpoints there are."""
    saver = Saver(CheckpointStore(tmp_path, files=Faulty(3, errno.ENOSPC)), on_failure="warn")
    saver.save(keeper.capture(1))
    with pytest.warns(RunWarning, match="training goes on without this checkpoint"):
        saver.wait()
    with pytest.raises(BadInput, match=r"^steps: when_save_fails: got"):
        Saver(saver.store, on_failure="ignore")  # type: ignore[arg-type]


def test_the_next_snapshot_waits_for_the_buffer(tmp_path: Path, keeper: Keeper) -> None:
    """A slow disk must not let the next copy overwrite what is being written."""
    gate = threading.Event()

    class Slow(Disk):
        def create(self, path: str) -> Any:
            gate.wait(60)
            return super().create(path)

    saver = Saver(CheckpointStore(tmp_path, files=Slow()))
    keeper.objects["weights"].fill_(1)
    keeper.objects["facts"]["step"] = 1
    saver.save(keeper.capture(1))
    keeper.objects["weights"].fill_(2)
    threading.Timer(0.2, gate.set).start()
    second = keeper.capture(2)
    assert gate.is_set()
    second.release()
    saver.wait()
    assert loaded(saver.store) == whole(1)


def test_a_snapshot_nobody_saves_blocks_nothing(keeper: Keeper) -> None:
    """It keeps its bytes, and the next one gets others."""
    first = keeper.capture(1)
    expected = b"".join(map(bytes, first.chunks()))
    keeper.objects["weights"].fill_(9)
    keeper.capture(2)
    assert b"".join(map(bytes, first.chunks())) == expected


@pytest.mark.filterwarnings("ignore:.*unfinished save")
def test_killed_at_any_moment_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    """SIGKILL in the middle of saving, ten times over; the next life goes on where it was."""
    dice = random.Random(5)
    acknowledged = 0
    store = CheckpointStore(tmp_path)
    command = [sys.executable, str(Path(__file__).with_name("save_for_ever.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for life in range(10):
            print(tmp_path, file=server.stdin, flush=True)
            child, begin = map(int, server.stdout.readline().split())
            assert (begin >= acknowledged, begin > 0 or life == 0) == (True, True)
            for _ in range(dice.randint(1, 3)):
                acknowledged = int(server.stdout.readline())
            time.sleep(dice.uniform(0, 0.02))
            os.kill(child, signal.SIGKILL)
            while (line := server.stdout.readline()) != "dead\n":
                acknowledged = int(line)
            store.sweep()
            step = store.load().step
            assert (loaded(store), step in (acknowledged, acknowledged + 1)) == (whole(step), True)


# --- when to save -----------------------------------------------------------------------------------


def test_young_interval() -> None:
    """A stall of 5 minutes every 24 hours between failures: √(2 · 300 · 86400) = 7200 s, two hours."""
    assert young_interval(300, 0, 86400) == 7200.0


def test_the_interval_is_the_cheapest() -> None:
    """No other interval has a smaller first-order overhead."""
    best = young_interval(0.5, 1.0, 3600)
    costs = [overhead(best * factor, 0.5, 1.0, 3600) for factor in (0.5, 0.9, 1.0, 1.1, 2.0)]
    assert min(costs) == costs[2]


def test_saves_never_follow_one_another_without_pause() -> None:
    """At least twice the total time of a save lies between two."""
    assert young_interval(0.001, 30.0, 3600) == 60.0


def test_policies() -> None:
    """Every N steps, every T seconds since the last save, or as often as pays."""
    now = [0.0]
    steps = Policy(100, clock=lambda: now[0])
    assert [step for step in range(1, 301) if steps.due(step)] == [100, 200, 300]
    timed = Policy("10 min", clock=lambda: now[0])
    due = []
    for minute in range(1, 31):
        now[0] = 60.0 * minute
        if timed.due(minute):
            due.append(minute)
            timed.saved()
    assert due == [10, 20, 30]
    auto = Policy("auto", mtbf=7200, clock=lambda: now[0])
    first = auto.due(1)
    auto.saved()
    auto.measured(0.089, 0.5)
    now[0] += 35
    early = auto.due(2)
    now[0] += 1
    assert (first, early, auto.due(3), Policy(None).due(5)) == (True, False, True, False)


@pytest.mark.parametrize("every", [0, -1, True, 2.5, "soon", "0 s", [], "inf h"])
def test_senseless_policies_are_refused(every: Any) -> None:
    """With the words that are accepted."""
    with pytest.raises(BadInput, match=r"^checkpoint_every: got"):
        Policy(every)

"""The record of a run: what identifies it, who has it, and where it came from."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import time
from collections import OrderedDict
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import loadsheet
from loadsheet.errors import BadFile, BadInput, LoadsheetError
from loadsheet.run import lock, provenance
from loadsheet.run.directory import RunDirectory
from loadsheet.run.errors import Busy, Fenced, ForeignConfig, NoSpace, RunError, RunWarning
from loadsheet.run.fingerprint import canonical, canonical_text, differences, fingerprint


def by_hand(text: str) -> str:
    """The fingerprint of a canonical text that was written down by hand."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


class Schedule(enum.Enum):
    COSINE = enum.auto()


class Precision(enum.StrEnum):
    BF16 = "bf16"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Optimizer:
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)


class Record(msgspec.Struct):
    lr: float
    layers: int
    name: str | msgspec.UnsetType = msgspec.UNSET


class Point(NamedTuple):
    lr: float
    layers: int


# --- fingerprint --------------------------------------------------------------------------------------

WRITTEN = [
    ({}, "{}"),
    ({"lr": 3e-3, "layers": 12}, '{"layers":12,"lr":0.003}'),
    ({"layers": 12, "lr": 0.003}, '{"layers":12,"lr":0.003}'),
    ({"a": 1}, '{"a":1}'),
    ({"a": 1.0}, '{"a":1.0}'),
    ({"a": True}, '{"a":true}'),
    ({"a": None, "b": "x"}, '{"a":null,"b":"x"}'),
    ({"a": 1e22, "b": 1e-5, "c": -0.0, "d": 10**30}, '{"a":1e+22,"b":1e-05,"c":-0.0,"d":' + "1" + "0" * 30 + "}"),
    ({"betas": (0.9, 0.95)}, '{"betas":[0.9,0.95]}'),
    ({"B": 1, "a": 2, "_": 3}, '{"B":1,"_":3,"a":2}'),
    ({"path": PurePosixPath("data/x.bin")}, '{"path":"data/x.bin"}'),
    ({"path": PureWindowsPath("data\\x.bin")}, '{"path":"data/x.bin"}'),
    ({"s": Schedule.COSINE, "p": Precision.BF16, "l": Level.HIGH}, '{"l":"HIGH","p":"bf16","s":"COSINE"}'),
    ({2: "a", None: "c", 0.5: "d", True: "e"}, '{"0.5":"d","2":"a","null":"c","true":"e"}'),
    ({"é": "naïve\n\"q\""}, '{"é":"naïve\\n\\"q\\""}'),
    ({"e\u0301": 1}, '{"\u00e9":1}'),
    ({"name": "../../etc/passwd"}, '{"name":"../../etc/passwd"}'),
    ({"optimizer": Optimizer()}, '{"optimizer":{"betas":[0.9,0.95],"lr":0.0003}}'),
    ({"n": np.int64(3), "x": np.float64(0.1), "b": np.bool_(True)}, '{"b":true,"n":3,"x":0.1}'),
    ({"x": np.float32(0.1)}, '{"x":0.10000000149011612}'),
    ({"x": np.array([[1, 2], [3, 4]])}, '{"x":[[1,2],[3,4]]}'),
    ({"x": torch.tensor(0.5), "y": torch.tensor([1, 2])}, '{"x":0.5,"y":[1,2]}'),
    (
        {"a": torch.bfloat16, "b": np.dtype("float32"), "c": np.float16, "d": torch.device("cuda", 1)},
        '{"a":"torch.bfloat16","b":"numpy.float32","c":"numpy.float16","d":"cuda:1"}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "text"), WRITTEN, ids=[text[:40] for _, text in WRITTEN])
def test_fingerprint_is_sha256_of_the_text_written_by_hand(config: dict[Any, Any], text: str) -> None:
    """Ten digits of hashlib's SHA-256 over canonical JSON that stands in this test."""
    assert canonical_text(canonical(config)[0]) == text
    assert fingerprint(config) == by_hand(text)


def test_every_kind_of_config_gives_the_same_fingerprint() -> None:
    """A dict, a dataclass, a Struct, a Namespace, a named tuple: what counts is names and values."""
    expected = by_hand('{"layers":2,"lr":0.1}')

    @dataclasses.dataclass
    class Config:
        lr: float
        layers: int

    configs = [
        {"lr": 0.1, "layers": 2},
        OrderedDict(layers=2, lr=0.1),
        Config(0.1, 2),
        Record(0.1, 2),
        argparse.Namespace(lr=0.1, layers=2),
        Point(0.1, 2),
    ]
    assert [fingerprint(config) for config in configs] == [expected] * len(configs)


def test_omegaconf_counts_as_the_dict_it_holds() -> None:
    """Interpolations are resolved; a value that is missing is an error with its name."""
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"d": 8, "wide": {"ff": "${d}", "list": [1, "${d}"]}})
    assert fingerprint(config) == by_hand('{"d":8,"wide":{"ff":8,"list":[1,8]}}')
    assert fingerprint({"x": config.wide.list}) == by_hand('{"x":[1,8]}')
    with pytest.raises(BadInput, match="lr"):
        fingerprint(omegaconf.OmegaConf.create({"lr": "???"}))


def test_it_is_the_same_in_every_process() -> None:
    """Python's own hash of text changes from process to process; the fingerprint does not."""
    code = (
        "from loadsheet.run.fingerprint import fingerprint as f; print(f({'b': [1, 'x'], 'a': {'c': 0.5}}))"
    )
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        found.add(done.stdout.decode().strip())
    assert found == {by_hand('{"a":{"c":0.5},"b":[1,"x"]}')}


class Opaque:
    pass


CYCLE: dict[str, Any] = {"inner": {}}
CYCLE["inner"]["back"] = CYCLE
DEEP: dict[str, Any] = {}
for _ in range(300):
    DEEP = {"a": DEEP}

REFUSED = [
    ({"a": {"lr": float("nan")}}, r"config\.a\.lr: got nan"),
    ({"a": [1.0, float("-inf")]}, r"config\.a\[1\]: got -inf"),
    ({"a": np.float32("nan")}, r"config\.a: got nan"),
    ({"a": {1, 2}}, r"config\.a: got a set"),
    ({"a": {"f": lambda: 0}}, r"config\.a\.f: got the function"),
    ({"a": [Opaque()]}, r"config\.a\[0\]: got a Opaque of tests?"),
    ({"a": Opaque}, r"config\.a: got the type"),
    ({"a": b"x"}, r"config\.a: got a bytes"),
    ({"a": 1j}, r"config\.a: got a complex"),
    ({"a": np.longdouble("0.1")}, r"config\.a: got a longdouble"),
    ({"a": torch.empty(2, device="meta")}, r"config\.a: got a Tensor"),
    ({"a": {1: "x", "1": "y"}}, r"config\.a: got keys 1 and '1'"),
    ({"e\u0301": 1, "\u00e9": 2}, r"config: got keys"),
    ({"a": {(1, 2): 3}}, r"config\.a: got a key \(1, 2\)"),
    ({"a": "\ud800"}, r"config\.a: got .*UTF-8"),
    ({"a": 1 << 20_000}, r"config\.a: got an integer of 20001 bits"),
    (CYCLE, r"config\.inner\.back: got an object that contains itself"),
    (DEEP, r"more than 100 levels"),
    ([1, 2], r"config: got a list"),
    (None, r"config: got a NoneType"),
    (Optimizer, r"config: got the type"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_what_has_no_fixed_text_is_refused_by_its_path(config: Any, message: str) -> None:
    """One line that names the key; never an address in memory, which would change every time."""
    with pytest.raises(BadInput, match=message) as caught:
        fingerprint(config)
    assert " at 0x" not in str(caught.value)


def test_excluded_values_do_not_count_and_are_recorded() -> None:
    """By name at the top or by path; also what could not be written down as a value."""
    config = {"lr": 0.1, "out": Path("runs"), "data": {"workers": 4, "seed": 1}, "device": Opaque()}
    values, excluded = canonical(config, ["out", "data.workers", "device"])
    assert values == {"lr": 0.1, "data": {"seed": 1}}
    assert excluded["out"] == "runs"
    assert excluded["data.workers"] == 4
    assert "Opaque" in excluded["device"]
    assert fingerprint(config, ["out", "data.workers", "device"]) == by_hand('{"data":{"seed":1},"lr":0.1}')
    assert canonical({"out": 1}, "out") == ({}, {"out": 1})


def test_an_excluded_name_that_is_not_there_is_an_error() -> None:
    """A typing error would make the output path part of the identity, and nothing would ever resume."""
    with pytest.raises(BadInput, match="num_worker") as caught:
        canonical({"data": {"num_workers": 4}}, ["num_worker"])
    assert "data.num_workers" in caught.value.hint


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="ascii")),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(codec="ascii")), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
configs = st.dictionaries(st.text(st.characters(codec="ascii"), max_size=5), json_values, max_size=5)


@given(configs)
def test_plain_json_is_its_own_canonical_form(config: dict[str, Any]) -> None:
    """Whatever json can write, comes back from config.json as the same run; order never matters."""
    expected = json.dumps(config, sort_keys=True, separators=(",", ":"))
    assert fingerprint(config) == hashlib.sha256(
        expected.encode().replace(b"\\u007f", b"\x7f")
    ).hexdigest()[:10]  # fmt: skip
    assert fingerprint(dict(reversed(config.items()))) == fingerprint(config)
    assert differences(json.loads(json.dumps(config)), canonical(config)[0]) == []


def test_differences_show_where_and_what() -> None:
    """A line per place, with both values; 1 and 1.0 differ as their texts do."""
    old = {"lr": 0.1, "n": 1, "a": [1, {"b": 2}], "gone": None}
    new = {"lr": 0.2, "n": 1.0, "a": [1, {"b": 3}], "new": "x"}
    assert differences(old, new, limit=9) == [
        "a[1].b: 2 → 3",
        "gone: null → absent",
        "lr: 0.1 → 0.2",
        "n: 1 → 1.0",
        'new: absent → "x"',
    ]


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


# --- lock ---------------------------------------------------------------------------------------------

OPEN = textwrap.dedent("""
    import sys
    from loadsheet.errors import LoadsheetError
    from loadsheet.run.directory import RunDirectory
    try:
        run = RunDirectory.open(sys.argv[1], {}, wait=float(sys.argv[2]))
    except LoadsheetError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print("attempt", run.attempt, flush=True)
""")
HOLD = OPEN + "sys.stdin.read()\n"
# the holder forks a loader worker, which lives on after it
FORK = OPEN + textwrap.dedent("""
    import os, time
    if os.fork() == 0:
        print("worker", os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
    sys.stdin.read()
""")


def start(code: str, root: Path, wait: float = 0) -> subprocess.Popen[str]:
    """A process that opens the run, once it has said that it did."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(root), str(wait)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "attempt 1\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


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


def test_a_waiting_process_goes_on_when_the_owner_is_killed(tmp_path: Path) -> None:
    """SIGKILL gives no chance to clean up; the kernel drops the lock, and the waiting one has it."""
    first = start(HOLD, tmp_path)
    second = subprocess.Popen(
        [sys.executable, "-c", OPEN, str(tmp_path), "60"], stdout=subprocess.PIPE, text=True
    )
    time.sleep(0.5)
    assert second.poll() is None
    end(first)
    assert second.communicate(timeout=30)[0] == "attempt 2\n"


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
    monkeypatch.setattr(lock, "_PATIENCE", 0.1)
    first = start(HOLD, tmp_path)
    try:
        with pytest.warns(RunWarning, match=f"process {first.pid}"), pytest.raises(Busy):
            RunDirectory.open(tmp_path, {}, wait=0.5)
    finally:
        end(first)


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


# --- provenance ---------------------------------------------------------------------------------------


def test_provenance_records_commit_diff_and_command(tmp_path: Path) -> None:
    """In a repository made for this test: the commit git prints, the edit in the saved diff."""
    repository = tmp_path / "code"
    repository.mkdir()

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        return subprocess.run(
            ["git", "-C", str(repository), *identity, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "-q")
    git("remote", "add", "origin", "https://someone:pass@example.org/x.git")
    script = repository / "train.py"
    code = "import sys\nif sys.argv[3] == '--token': import torch\n" + OPEN
    script.write_text(code)
    git("add", ".")
    git("commit", "-qm", "one")
    script.write_text(code + "# an edit\n")
    (repository / "new.py").write_text("")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MY_API_KEY": "abcdef"}
    environment["PYTHONPATH"] = str(Path(loadsheet.__file__).parents[1])  # wherever the tests were started
    for arguments in (["--token", "xyz123"], ["again"]):
        subprocess.run(
            [sys.executable, script, tmp_path / "runs", "5", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, check=True,
        )  # fmt: skip
    folder = tmp_path / "runs" / by_hand("{}") / "provenance"
    text = (folder / "attempt-0001.json").read_text()
    facts = json.loads(text)
    assert facts["code"]["commit"] == git("rev-parse", "HEAD")
    assert facts["code"]["untracked"] == ["new.py"]
    assert facts["code"]["remote"] == "https://***@example.org/x.git"
    diff = (folder / facts["code"]["diff_file"]).read_bytes()
    assert b"\n+# an edit\n" in diff
    assert hashlib.sha256(diff).hexdigest() == facts["code"]["diff_sha256"]
    assert len(list(folder.glob("*.diff"))) == 1  # the second attempt ran the same code
    assert facts["command"][1:] == [str(script), str(tmp_path / "runs"), "5", "--token", "***"]
    assert facts["libraries"]["torch"] == torch.__version__
    assert facts["libraries"]["threads"] == 1
    assert facts["packages"]["msgspec"] == msgspec.__version__
    assert facts["environment"]["OMP_NUM_THREADS"] == "1"
    assert "MY_API_KEY" in facts["environment_names"]
    assert [secret in text for secret in ("abcdef", "xyz123", "pass@")] == [False, False, False]


SECRETS = {
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
    "WANDB_API_KEY": "0123456789abcdef",
    "DATABASE": "postgres://user:hunter2@host/x",
    "SLURM_JWT_TOKEN": "qwertz",
    "HF_ENDPOINT": "https://user:hunter3@mirror.example.org",
    "CUDA_COMMENT": "sk-abcdefghijklmnopqrstuv",
}


def test_no_secret_of_the_environment_is_written_down() -> None:
    """By the variable's name, by its form, inside an address; and what has no known name at all."""
    text = json.dumps(provenance.environment(SECRETS))
    found = [value for value in (*SECRETS.values(), "hunter2", "hunter3") if value in text]
    assert found == []
    assert '"HF_ENDPOINT": "https://***@mirror.example.org"' in text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--hf-token", "x"], ["--hf-token", "***"]),
        (["--password=x"], ["--password=***"]),
        (["API_KEY=x"], ["API_KEY=***"]),
        (["--tokens", "15T"], ["--tokens", "15T"]),
        (["--max-tokens", "5"], ["--max-tokens", "5"]),
        (["--tokenizer", "gpt2"], ["--tokenizer", "gpt2"]),
        (["--monkey", "5"], ["--monkey", "5"]),
        (["sk-abcdefghijklmnop"], ["***"]),
        (["s3://u:p@host/x"], ["s3://***@host/x"]),
    ],
)
def test_the_command_line_without_secrets(given: list[str], shown: list[str]) -> None:
    """What a person may pass on the command line; ordinary words that contain such a word stay."""
    assert provenance.without_secrets(given) == shown


def test_excluded_secrets_are_not_recorded(tmp_path: Path) -> None:
    """A key in the config is excluded by name, and its value is not written down either."""
    with RunDirectory.open(tmp_path, {"wandb_key": "abc123xyz", "out": "runs"}, ["wandb_key", "out"]) as run:
        text = (run.provenance / "attempt-0001.json").read_text()
    assert "abc123xyz" not in text
    assert json.loads(text)["excluded"] == {"wandb_key": "***", "out": "runs"}


def test_another_number_of_threads_is_warned_about(tmp_path: Path) -> None:
    """1 and 2 threads sum in another order: other bits. A person must hear of it when the run goes on."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        RunDirectory.open(tmp_path, {}).close()
        torch.set_num_threads(2)
        with pytest.warns(RunWarning, match="threads: 1 → 2"):
            run = RunDirectory.open(tmp_path, {})
        run.close()
        assert run.changes == ["threads: 1 → 2"]
        RunDirectory.open(tmp_path, {}).close()  # nothing changed: no warning, which would be an error here
    finally:
        torch.set_num_threads(threads)


def test_gpus_as_the_driver_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines in the format `nvidia-smi --query-gpu=... --format=csv,noheader,nounits` prints."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'NVIDIA H200, 570.86.15, 143771, GPU-0f1e'\necho 'NVIDIA H200, 570.86.15, 143771, GPU-1a2b'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = provenance._gpus()
    assert [gpu["uuid"] for gpu in found] == ["GPU-0f1e", "GPU-1a2b"]
    assert found[0] == {
        "name": "NVIDIA H200", "driver": "570.86.15", "memory_bytes": 143771 * 2**20, "uuid": "GPU-0f1e",
    }  # fmt: skip
    before = {"machine": {"gpus": [{"name": "NVIDIA A100", "driver": "570.86.15"}] * 2}}
    assert provenance.changes(before, {"machine": {"gpus": found}}) == [
        "gpu: NVIDIA A100, NVIDIA A100 → NVIDIA H200, NVIDIA H200"
    ]

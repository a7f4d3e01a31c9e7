"""Disks: room, quota, speed, and whether what lies there outlives the machine."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_world import MOUNTINFO, Space, draw, facts, machine, result

from loadsheet.cloud import mounts, probe
from loadsheet.cloud.context import Context, Inputs
from loadsheet.cloud.machine import Machine
from loadsheet.cloud.probe import WriteRate

pytestmark = pytest.mark.usefixtures("offline")

SIZE = 10_000_000_000


def space(tmp_path: Path, free: int) -> Machine:
    """A machine with so many bytes free."""
    return machine(tmp_path / "root", statvfs=lambda path: Space(free))


# --- room ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "state"),
    [(0.9, "fail"), (0.999, "fail"), (1.0, "warn"), (1.19, "warn"), (1.21, "ok"), (100, "ok"), (0, "fail")],
)
def test_room_for_one_more_than_is_kept(free: float, state: str, tmp_path: Path) -> None:
    """(retained + 1) · size, by hand: 4 × 10 GB = 40 GB. Story 10: 0.9 of it is too little."""
    host = space(tmp_path, int(free * 40_000_000_000) // 4096 * 4096 + 4096 * (free >= 1))
    found = result(tmp_path, host, "disk.space", keep=3, checkpoint_bytes=SIZE)
    assert found.state == state
    assert found.evidence[0]["needed_bytes"] == 40_000_000_000


def test_room_without_a_size(tmp_path: Path) -> None:
    """unknown: free bytes alone say nothing, and what to give is said."""
    found = result(tmp_path, space(tmp_path, 1 << 60), "disk.space")
    assert (found.state, "--sheet" in found.next) == ("unknown", True)


def sheet(path: Path, **change: object) -> Path:
    """A small sheet, as `plan --json` prints it."""
    found = {
        "schema": 1, "model": {"name": "gpt2"}, "cluster": {"gpu": "t4", "gpus": 1}, "verdict": "fits",
        "memory": {"peak_bytes": {"low": 3e9, "mid": 4e9, "high": 5e9}},
        "checkpoint_bytes": {"weights": 1_000, "resume": SIZE},
    }  # fmt: skip
    path.write_text(json.dumps({**found, **change}))
    return path


def last_run(root: Path, sizes: tuple[int, ...], name: str = "0123456789", **measured: object) -> Path:
    """A run directory with one checkpoint."""
    folder = root / name / "checkpoints" / "step-00000100"
    folder.mkdir(parents=True)
    files = {f"f{n}": {"bytes": size, "xxh3_128": "0"} for n, size in enumerate(sizes)}
    (folder / "manifest.json").write_text(
        json.dumps({"manifest": {"files": files, "time": 5.0}, "xxh3_128": "0"})
    )
    (root / name / "log.jsonl").write_text("{}\n")
    (root / name / "measured.json").write_text(
        json.dumps({"schema": 1, "attempts": {"1": {}, "2": measured}})
    )
    return root / name


def test_where_the_size_comes_from(tmp_path: Path) -> None:
    """Given, else the sheet's, else the last run's: what resumes, not the weights alone."""
    host = space(tmp_path, 1 << 60)
    last_run(tmp_path / "runs", (300, 700))
    cases: list[tuple[dict[str, object], int, str]] = [
        ({}, 3 * 1000, "from run 0123456789"),
        ({"sheet": sheet(tmp_path / "s.json")}, 3 * SIZE, "from the sheet"),
        ({"sheet": tmp_path / "s.json", "checkpoint_bytes": 5}, 15, "as given"),
    ]
    for values, needed, words in cases:
        found = result(tmp_path, host, "disk.space", **values)
        assert found.evidence[0]["needed_bytes"] == needed
        assert words in facts(found)
        assert "(2* + 1)" in facts(found)


def test_the_newest_run_counts(tmp_path: Path) -> None:
    """By the time of its log; half written and foreign directories are passed over."""
    root = tmp_path / "runs"
    last_run(root, (1,), "aaaaaaaaaa")
    newest = last_run(root, (2,), "bbbbbbbbbb")
    (root / "not a run").mkdir()
    os.utime(root / "aaaaaaaaaa" / "log.jsonl", (1000, 1000))
    os.utime(newest / "log.jsonl", (2000, 2000))
    damaged = newest / "checkpoints" / "step-00000200"
    damaged.mkdir()
    (damaged / "manifest.json").write_text("{")
    context = Context(tmp_path, Inputs(), space(tmp_path, 1))
    assert context.last_run is not None
    assert (context.last_run.name, context.last_run.checkpoint_bytes) == ("bbbbbbbbbb", 2)


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "{}", '{"memory": 1, "cluster": 2}', '{"signed": 1}', '{"signed": {}, "schema": 1}',
        '{"memory": {}, "cluster": {}, "checkpoint_bytes": {"resume": "many"}}',
        '{"memory": {}, "cluster": {}, "checkpoint_bytes": {"resume": -5}}',
        '{"memory": {}, "cluster": {}, "checkpoint_bytes": {"resume": true}}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_sheet(text: str, tmp_path: Path) -> None:
    """unknown with the reason, in every check that would need it; never a crash, never ok."""
    (tmp_path / "s.json").write_text(text)
    for id in ("disk.space", "disk.quota", "disk.speed", "plan.fits"):
        found = result(tmp_path, space(tmp_path, 1 << 60), id, sheet=tmp_path / "s.json")
        assert found.state == "unknown", (id, found)
        assert "this check itself failed" not in facts(found)


def test_a_broken_sheet_is_an_error_before_any_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 2 and one line with a hint, as `export` says it; not a page of `unknown` and status 0."""
    from terminal import refused, run

    from loadsheet import signature

    def none(*_: object) -> None:
        raise AssertionError("a check was begun")

    monkeypatch.setattr("loadsheet.cloud.carry_out.carry_out", none)
    monkeypatch.chdir(tmp_path)
    refused("preflight", "--sheet", "nope.json", words="'nope.json': got no such file or directory")
    for text, words in (
        ("{", "JSON"),
        ("", "JSON"),
        ("{}", "got no sheet"),
        ('{"memory": 1}', "got no sheet"),
    ):
        Path("s.json").write_text(text)
        refused("preflight", "--sheet", "s.json", "--json", words=words)
    plain = json.loads(sheet(Path("plain.json")).read_text())
    text = signature.to_text(signature.seal(plain, {"steps": 1000}, None))
    Path("edited.json").write_text(text.replace('"steps": 1000', '"steps": 10'))
    words = "than was signed"
    said = refused("preflight", "--only", "plan.fits", "--sheet", "edited.json", words=words)
    assert (
        said == run("export", "slurm", "edited.json", "--command", "python train.py").stderr.splitlines()[0]
    )


def test_a_signed_sheet(tmp_path: Path) -> None:
    """Its figures count; edited after it was signed, none does."""
    from loadsheet import signature

    plain = json.loads(sheet(tmp_path / "s.json").read_text())
    signed = signature.seal(plain, {"steps": 10}, None)
    path = tmp_path / "signed.json"
    path.write_text(signature.to_text(signed))
    found = result(tmp_path, space(tmp_path, 1 << 60), "plan.fits", sheet=path)
    assert (found.state, "not signed" in facts(found)) == ("ok", False)
    path.write_text(path.read_text().replace(str(SIZE), "5"))
    found = result(tmp_path, space(tmp_path, 1 << 60), "disk.space", sheet=path)
    assert found.state == "unknown"


@pytest.mark.parametrize(
    ("verdict", "state"),
    [("fits", "ok"), ("tight", "warn"), ("does_not_fit", "fail"), ("perhaps", "unknown"), (3, "unknown")],
)
def test_the_verdict_of_the_sheet(verdict: object, state: str, tmp_path: Path) -> None:
    """As `plan` gives it."""
    path = sheet(tmp_path / "s.json", verdict=verdict)
    assert result(tmp_path, space(tmp_path, 1), "plan.fits", sheet=path).state == state


def test_a_real_sheet(tmp_path: Path) -> None:
    """What `plan --json` prints today is understood: GPT-2, 14 bytes for each of 124,439,808 parameters."""
    from terminal import answered

    path = tmp_path / "s.json"
    path.write_text(answered("plan", "gpt2", "--gpu", "h100-sxm", "--json").stdout)
    found = result(tmp_path, space(tmp_path, 1 << 60), "disk.space", sheet=path)
    assert found.evidence[0]["needed_bytes"] == 3 * 14 * 124_439_808


@pytest.mark.parametrize(
    ("files", "free", "state"), [(0, 0, "not_applicable"), (10**6, 5, "fail"), (10**6, 10**5, "ok")]
)
def test_inodes(files: int, free: int, state: str, tmp_path: Path) -> None:
    """None are left, some are, or the file system does not count them."""
    host = machine(tmp_path / "root", statvfs=lambda path: Space(1 << 40, f_files=files, f_favail=free))
    assert result(tmp_path, host, "disk.inodes").state == state


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (errno.EDQUOT, "fail"),
        (errno.ENOSPC, "fail"),
        (errno.EFBIG, "warn"),
        (errno.EIO, "unknown"),
        (0, "ok"),
        (-1, "unknown"),
    ],
)
def test_quota(number: int, state: str, tmp_path: Path) -> None:
    """Errno 122 with free space (mmdetection #12069) fails; a file system that cannot say is unknown."""

    def reserve(place: Path, size: int) -> bool:
        assert size == 30
        if number > 0:
            raise OSError(number, os.strerror(number))
        return number == 0

    host = machine(tmp_path / "root", reserve=reserve)
    assert result(tmp_path, host, "disk.quota", checkpoint_bytes=10).state == state


def test_quota_is_not_tried_where_it_would_do_harm(tmp_path: Path) -> None:
    """Not without the room, and not on a file system in memory."""

    def reserve(place: Path, size: int) -> bool:
        raise AssertionError

    host = machine(tmp_path / "a", reserve=reserve, statvfs=lambda path: Space(100_000))
    assert result(tmp_path, host, "disk.quota", checkpoint_bytes=40_000).state == "unknown"
    tmpfs = "30 1 0:30 / / rw - tmpfs tmpfs rw\n"
    host = machine(tmp_path / "b", {"/proc/self/mountinfo": tmpfs}, reserve=reserve)
    assert result(tmp_path, host, "disk.quota", checkpoint_bytes=1).state == "not_applicable"


# --- speed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "values", "state", "seconds"),
    [
        (1e9, {}, "ok", 10.0),  # 1.7 % of ten minutes, and within two
        (1e8, {}, "warn", 100.0),  # 1.3 · 100 s > 120 s: too long for a notice
        (1e8, {"notice": 131.0, "every": 86400.0}, "ok", 100.0),
        (1e8, {"notice": 129.0, "every": 86400.0}, "warn", 100.0),
        (1e9, {"notice": 30.0, "every": 100.0}, "warn", 10.0),  # a tenth of the time
        (1e7, {}, "fail", 1000.0),  # longer than the time between saves
        (1e8, {"every": 100.0, "notice": 1e6}, "fail", 100.0),
    ],
)
def test_time_of_a_save(
    rate: float, values: dict[str, float], state: str, seconds: float, tmp_path: Path
) -> None:
    """Size / rate, against the time between saves and the notice."""
    host = machine(tmp_path / "root", write_rate=lambda place, s: WriteRate(int(rate), 1.0, 0.001))
    found = result(tmp_path, host, "disk.speed", checkpoint_bytes=SIZE, **values)
    assert (found.state, found.evidence[0]["save_seconds"]) == (state, pytest.approx(seconds))
    assert ("10.00 min*" in facts(found)) == ("every" not in values)


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (errno.EACCES, "fail"),
        (errno.EROFS, "fail"),
        (errno.ENOSPC, "fail"),
        (errno.EDQUOT, "fail"),
        (errno.EIO, "unknown"),
    ],
)
def test_a_folder_that_takes_nothing(number: int, state: str, tmp_path: Path) -> None:
    """No permission, read-only, full; anything else could not be looked at."""

    def refuse(place: Path, seconds: float) -> WriteRate:
        raise OSError(number, os.strerror(number))

    assert result(tmp_path, machine(tmp_path / "root", write_rate=refuse), "disk.speed").state == state


def test_trying_the_real_disk(tmp_path: Path) -> None:
    """Bytes were written and synced, and nothing is left behind, also when a process is killed meanwhile."""
    rate = probe.write_rate(tmp_path, 0.05)
    assert rate.bytes >= 8 << 20
    assert rate.per_second == rate.bytes / rate.seconds
    assert rate.append_seconds > 0
    assert list(tmp_path.iterdir()) == []
    code = (
        "import os, sys; from pathlib import Path; from loadsheet.cloud import probe\n"
        "os.fsync = lambda fd: os._exit(9)\nprobe.write_rate(Path(sys.argv[1]), 5)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (9, [])


def test_reserving_on_the_real_disk(tmp_path: Path) -> None:
    """A megabyte is there for a moment; more than the disk has is refused; nothing is left."""
    assert probe.reserve(tmp_path, 1 << 20) in {True, False}
    if probe.reserve(tmp_path, 1 << 20):
        with pytest.raises(OSError, match=r"\[Errno") as error:
            probe.reserve(tmp_path, shutil.disk_usage(tmp_path).total * 2)
        assert error.value.errno in {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
def test_free_bytes_are_those_of_df(tmp_path: Path) -> None:
    """Against another program."""
    context = Context(Path("/dev/shm"), Inputs(runs=Path("/dev/shm")), Machine())
    said = subprocess.run(
        ["df", "--output=avail", "-B1", "/dev/shm"], capture_output=True, text=True, check=True
    )
    assert context.free_bytes == pytest.approx(int(said.stdout.split()[1]), rel=0.2)


# --- what it lies on ------------------------------------------------------------------------------------------


def mounted(line: str) -> dict[str, str]:
    """A machine whose checkpoints lie on another mount, at /data; the folder is made below the root of the test."""
    return {"/proc/self/mountinfo": MOUNTINFO + line + "\n"}


#: a line of mountinfo for the folder -> state; forms as the kernel and the tools write them
PLACES = {
    "30 20 0:30 / {} rw,relatime - tmpfs tmpfs rw,size=1024k": "fail",
    "30 20 0:30 / {} rw - ramfs none rw": "fail",
    "30 20 0:30 / {} rw,relatime - overlay overlay rw,lowerdir=/a,upperdir=/b": "fail",
    "30 20 0:30 / {} ro,relatime - ext4 /dev/sdb rw": "fail",
    "30 20 0:30 / {} rw - squashfs /dev/loop1 ro": "fail",
    "30 20 0:30 / {} rw,nosuid,nodev - fuse.s3fs s3fs rw,user_id=0": "fail",
    "30 20 0:30 / {} rw,nosuid,nodev - fuse.gcsfuse my-bucket rw,user_id=0": "fail",
    "30 20 0:30 / {} rw - fuse mountpoint-s3 rw": "fail",
    "30 20 0:30 / {} rw - fuse.rclone remote:bucket rw": "fail",
    "30 20 0:30 / {} rw - fuse.sshfs ada@host:/data rw": "fail",
    "30 20 0:30 / {} rw - fuse mfs#10.0.0.1:9421 rw": "fail",
    "30 20 0:30 / {} rw,relatime - nfs4 10.0.0.5:/export rw,vers=4.1": "warn",
    "30 20 0:30 / {} rw - lustre 10.0.0.1@tcp:/lfs rw": "warn",
    "30 20 0:30 / {} rw - cifs //server/share rw": "warn",
    "30 20 254:0 /var/lib/kubelet/pods/1-2/volumes/kubernetes.io~empty-dir/ck {} rw - ext4 /dev/root rw": "fail",
    "30 20 254:0 /var/lib/docker/volumes/" + "a" * 64 + "/_data {} rw - ext4 /dev/root rw": "warn",
    "30 20 254:0 /var/lib/docker/volumes/checkpoints/_data {} rw - ext4 /dev/root rw": "ok",
    "30 20 254:0 / {} rw - ext4 /dev/sda1 rw": "ok",
    "30 20 0:77 / {} rw - zfs tank/data rw": "unknown",
}


@pytest.mark.parametrize("line", PLACES)
def test_file_systems(line: str, tmp_path: Path) -> None:
    """Memory, layers of a container, buckets, FUSE, network, volumes, disks."""
    place = tmp_path / "my data"
    place.mkdir()
    host = machine(tmp_path / "root", mounted(line.format(str(place).replace(" ", "\\040"))))
    found = result(tmp_path, host, "storage.persistent", checkpoint_dir=place)
    assert found.state == PLACES[line], facts(found)
    assert str(place) in facts(found)


#: vendor and model of a disk -> state (EC2, Google Cloud and Azure as they document them; a laptop; a virtual machine)
MODELS = {
    "Amazon EC2 NVMe Instance Storage": "fail",
    "Amazon Elastic Block Store": "ok",
    "nvme_card": "fail",
    "nvme_card-pd": "ok",
    "EphemeralDisk": "fail",
    "PersistentDisk": "ok",
    "Microsoft NVMe Direct Disk v2": "fail",
    "MSFT NVMe Accelerator v1.0": "ok",
    "Virtual Disk": "unknown",
    "QEMU HARDDISK": "unknown",
    "Samsung SSD 980 PRO": "ok",
}


@pytest.mark.parametrize("model", MODELS)
def test_disks_by_their_model(model: str, tmp_path: Path) -> None:
    """An instance store goes with the machine, a volume stays, and of a virtual disk nobody knows."""
    host = machine(tmp_path / "root", {"/sys/block/sda/device/model": f"{model}  \n"})
    assert result(tmp_path, host, "storage.persistent").state == MODELS[model]


def test_partitions_raid_and_lvm_are_looked_through(tmp_path: Path) -> None:
    """A logical volume on a RAID of two instance stores, one of them a partition: the stores are what counts."""
    root = tmp_path / "root"
    host = machine(root, {"/sys/block/sda/device/model": None})
    block, links = root / "sys/block", root / "sys/dev/block/254:0"
    for name in ("nvme1n1", "nvme2n1"):
        (block / name / "device").mkdir(parents=True)
        (block / name / "device/model").write_text("Amazon EC2 NVMe Instance Storage\n")
    (block / "nvme2n1/nvme2n1p1").mkdir()
    (block / "nvme2n1/nvme2n1p1/partition").write_text("1\n")
    for name in ("md0", "dm-0"):
        (block / name / "slaves").mkdir(parents=True)
    (block / "md0/slaves/nvme1n1").symlink_to("../../nvme1n1")
    (block / "md0/slaves/nvme2n1p1").symlink_to("../../nvme2n1/nvme2n1p1")
    (block / "dm-0/slaves/md0").symlink_to("../../md0")
    links.unlink()
    links.symlink_to("../../block/dm-0")
    found = result(tmp_path, host, "storage.persistent")
    assert found.state == "fail"
    assert "nvme1n1" in facts(found)
    assert "nvme2n1" in facts(found)


def test_btrfs_has_a_device_number_of_its_own(tmp_path: Path) -> None:
    """The disk is found by the name of its device."""
    host = machine(tmp_path / "root", {"/proc/self/mountinfo": "20 1 0:33 /@ / rw - btrfs /dev/sda2 rw\n"})
    disk = tmp_path / "root/sys/block/sda/sda2"
    disk.mkdir(parents=True)
    (disk / "partition").write_text("2")
    link = tmp_path / "root/sys/class/block/sda2"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../block/sda/sda2")
    assert result(tmp_path, host, "storage.persistent").state == "ok"


def test_azure_s_temporary_disk(tmp_path: Path) -> None:
    """It is known by the warning that Azure puts onto it."""
    host = machine(tmp_path / "root", {"/DATALOSS_WARNING_README.txt": "beware"})
    assert result(tmp_path, host, "storage.persistent").state == "fail"


def test_the_last_of_two_mounts_at_one_place_counts(tmp_path: Path) -> None:
    """As the kernel sees it; and /data is not /database."""
    lines = "30 20 0:30 / /data rw - tmpfs tmpfs rw\n31 20 0:31 / /data rw - nfs4 a:/b rw\n"
    host = machine(tmp_path / "root", {"/proc/self/mountinfo": MOUNTINFO + lines})
    kinds = [mounts.mount_of(host, Path(p)).kind for p in ("/data/x", "/data", "/database", "/", "/da")]
    assert kinds == ["nfs4", "nfs4", "ext4", "ext4", "ext4"]


@given(st.text(alphabet=" \t\n\\abü/", min_size=1, max_size=20))
def test_escapes_of_mountinfo(name: str) -> None:
    """Blank, tabulator, line end and backslash are written in octal (fs/proc_namespace.c: mangle)."""
    escaped = name
    for sign, code in (("\\", "\\134"), (" ", "\\040"), ("\t", "\\011"), ("\n", "\\012")):
        escaped = escaped.replace(sign, code)
    assert mounts._plain(escaped) == name


def test_where_nothing_can_be_seen(tmp_path: Path) -> None:
    """Off Linux, and where /proc may not be read: unknown with its question, not ok."""
    host = machine(tmp_path / "a", {"/proc/self/mountinfo": None}, system="darwin")
    shutil.rmtree(tmp_path / "a" / "proc")
    found = result(tmp_path, host, "storage.persistent")
    assert (found.state, "no /proc here (darwin)" in facts(found)) == ("unknown", True)
    host = machine(tmp_path / "b", {"/proc/self/mountinfo": ""})
    assert result(tmp_path, host, "storage.persistent").state == "unknown"


# --- a second copy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mirror", "line", "state"),
    [
        ("s3://bucket/runs", "", "ok"),
        ("gs://bucket", "", "ok"),
        (None, "", "unknown"),
        (None, "30 20 0:30 / {} rw - lustre 10.0.0.1@tcp:/lfs rw", "warn"),  # story 15
        (None, "30 20 0:30 / {} rw - nfs4 10.0.0.1:/x rw", "warn"),
        ("s3://bucket", "30 20 0:30 / {} rw - lustre 10.0.0.1@tcp:/lfs rw", "ok"),
        ("other/folder", "", "fail"),
        ("file:///tmp", "", "fail"),
    ],
)
def test_a_second_copy_elsewhere(mirror: str | None, line: str, state: str, tmp_path: Path) -> None:
    """A bucket is one; the same disk is none; the only copy on a cluster's storage warns (OPT-175B, December 2021)."""
    host = machine(tmp_path / "root", mounted(line.format(tmp_path)) if line else None)
    values = {} if mirror is None else {"mirror": mirror}
    if mirror == "file:///tmp" and os.stat("/tmp").st_dev != os.stat(tmp_path).st_dev:
        pytest.skip("/tmp is another disk here")
    assert result(tmp_path, host, "storage.copy", **values).state == state


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
def test_a_mirror_on_another_disk(tmp_path: Path) -> None:
    """Another file system is elsewhere."""
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("the same file system here")
    assert result(tmp_path, machine(tmp_path / "root"), "storage.copy", mirror="/dev/shm/x").state == "ok"


def test_a_password_in_a_mirror_is_not_shown(tmp_path: Path) -> None:
    """Only scheme, host and path."""
    word = draw(13)
    host = machine(tmp_path / "root")
    found = result(tmp_path, host, "storage.copy", mirror=f"s3://ada:{word}@host/x?key=1")
    assert word not in str(found)


# --- data ---------------------------------------------------------------------------------------------------------


def test_data_near_the_machine(tmp_path: Path) -> None:
    """Here is ok, a network disk warns, a bucket is a question, what is not there fails."""
    full, empty, far = tmp_path / "full", tmp_path / "empty", tmp_path / "far"
    for folder in (full, empty, far):
        folder.mkdir()
    for folder in (full, far):
        (folder / "a.bin").write_bytes(b"1")
    host = machine(tmp_path / "root", mounted(f"30 20 0:30 / {far} rw - nfs4 10.0.0.1:/x rw"))

    def state(*data: str) -> str:
        return result(tmp_path, host, "data.near", data=data).state

    assert state("full") == "ok"
    assert state("full", "full/a.bin") == "ok"
    assert state("far") == "warn"
    assert state("s3://bucket/x") == "unknown"
    assert state("full", "far", "s3://bucket/x") == "unknown"
    assert state("missing") == state("empty") == state("full", "missing") == "fail"
    assert result(tmp_path, host, "data.near").state == "unknown"


# --- runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "state"),
    [
        (0.02, "ok"),
        (0.1, "ok"),
        (0.11, "warn"),
        (None, "unknown"),
        ("x", "unknown"),
        (7, "unknown"),
        (True, "unknown"),
    ],
)
def test_waiting_for_data(share: object, state: str, tmp_path: Path) -> None:
    """What the last attempt measured: more than a tenth of the time warns."""
    host = machine(tmp_path / "root")
    assert result(tmp_path, host, "run.data-wait").state == "not_applicable"
    last_run(tmp_path / "runs", (1,), data_wait_share=share)
    assert result(tmp_path, host, "run.data-wait").state == state


@pytest.mark.parametrize(
    ("age", "done", "state"),
    [
        (60, False, "ok"),
        (3600, False, "warn"),
        (8 * 86400, False, "not_applicable"),
        (60, True, "ok"),
        (8 * 86400, True, "not_applicable"),
    ],
)
def test_a_run_that_stands_still(age: float, done: bool, state: str, tmp_path: Path) -> None:
    """No new record for a quarter of an hour warns; done, or long ago, does not (story 7)."""
    folder = last_run(tmp_path / "runs", (1,))
    if done:
        (folder / "done.json").write_text('{"steps": 1}')
    os.utime(folder / "log.jsonl", (1_000_000, 1_000_000))
    host = machine(tmp_path / "root", time=lambda: 1_000_000 + age)
    assert result(tmp_path, host, "run.progress").state == state

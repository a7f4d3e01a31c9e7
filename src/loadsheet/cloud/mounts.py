"""What a folder lies on: the mount, and the disk below it, as Linux describes them.

Where strings of a maker are compared, they are those that the cloud's own documentation names; on a machine
of another cloud nothing matches, and the answer is that it is not known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.machine import Machine

MEMORY: Final = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
LAYERED: Final = {"overlay", "aufs", "unionfs", "fuse.fuse-overlayfs"}
READ_ONLY: Final = {"squashfs", "iso9660", "erofs", "cramfs"}
NETWORK: Final = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "fuse.glusterfs",
    "afs", "orangefs", "pvfs2", "ocfs2", "gfs2", "9p", "virtiofs", "wekafs", "panfs",
}  # fmt: skip
#: buckets that look like folders: no locks, no fsync, renames that copy
BUCKETS: Final = {
    "fuse.s3fs": "s3fs", "fuse.goofys": "goofys", "fuse.gcsfuse": "gcsfuse", "gcsfuse": "gcsfuse",
    "fuse.mountpoint-s3": "Mountpoint for S3", "fuse.rclone": "rclone", "fuse.blobfuse": "blobfuse",
    "fuse.blobfuse2": "blobfuse2", "fuse.geesefs": "geesefs", "fuse.catfs": "catfs", "fuse.s3backer": "s3backer",
    "fuse.hf-mount": "hf-mount",
}  # fmt: skip
BUCKET_SOURCES: Final = ("mountpoint-s3", "s3fs", "gcsfuse", "goofys", "blobfuse", "rclone")

#: model or vendor of a disk -> (what it is, whether it outlives the machine). Sources: EC2 user guide "Map NVMe
#: volumes"; Google Cloud "Disk symlinks"; Azure "NVMe overview"; as recalled 2026-11, not tried on these clouds
_MODELS: Final[tuple[tuple[str, str, bool], ...]] = (
    ("Amazon EC2 NVMe Instance Storage", "an EC2 instance store", False),
    ("Amazon Elastic Block Store", "an EBS volume", True),
    ("nvme_card-pd", "a Google Persistent Disk", True),
    ("PersistentDisk", "a Google Persistent Disk", True),
    ("nvme_card", "a Google local SSD", False),
    ("EphemeralDisk", "a Google local SSD", False),
    ("Microsoft NVMe Direct Disk", "an Azure local disk", False),
    ("MSFT NVMe Accelerator", "an Azure managed disk", True),
)
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo; see proc(5)."""

    device: str  # major:minor
    root: str  # the part of the file system that is mounted
    point: str
    options: frozenset[str]
    kind: str
    source: str


def mounts(machine: Machine) -> list[Mount]:
    """All mounts, later ones over earlier ones; CannotLook where there is no /proc."""
    machine.need_linux()
    text = machine.read("/proc/self/mountinfo")
    if text is None:
        raise CannotLook("/proc/self/mountinfo is not there")
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) >= 6 and len(right) >= 2:
            options = frozenset([*left[5].split(","), *(right[2].split(",") if len(right) > 2 else [])])
            found.append(
                Mount(left[2], _plain(left[3]), _plain(left[4]), options, right[0], _plain(right[1]))
            )
    return found


def mount_of(machine: Machine, path: Path) -> Mount:
    """The mount that a path lies on: the longest that it begins with, of equal ones the last."""
    best: Mount | None = None
    for mount in mounts(machine):
        inside = str(path) == mount.point or str(path).startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    if best is None:
        raise CannotLook(f"{path} is on no mount that /proc names")
    return best


def _plain(text: str) -> str:
    """A path as /proc writes it, without the octal escapes."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


# --- the disk below -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disk:
    """A whole disk: its name, what it is, whether it outlives the machine (None: not known)."""

    name: str
    what: str
    outlives: bool | None


def disks(machine: Machine, mount: Mount) -> list[Disk]:
    """The whole disks below a mount (partitions, RAID and LVM are looked through); none if it does not show."""
    links = [f"/sys/dev/block/{mount.device}"]
    if mount.source.startswith("/dev/"):  # btrfs has a device number of its own
        name = Path(os.path.realpath(machine.path(mount.source))).name
        links.append(f"/sys/class/block/{name}")
    for link in links:
        try:
            folder = Path(os.path.realpath(machine.path(link), strict=True))
        except OSError:
            continue
        return [_describe(machine, disk) for disk in dict.fromkeys(_whole(folder, 0))]
    return []


def _whole(folder: Path, depth: int) -> Iterator[Path]:
    """From a device to those it is made of."""
    try:
        slaves = sorted((folder / "slaves").iterdir())
    except OSError:
        slaves = []
    if slaves and depth < 8:
        for slave in slaves:
            yield from _whole(Path(os.path.realpath(slave)), depth + 1)
    elif (folder / "partition").exists():
        yield from _whole(folder.parent, depth + 1)
    else:
        yield folder


def _describe(machine: Machine, folder: Path) -> Disk:
    name = folder.name
    model = " ".join(filter(None, (_text(folder / "device" / entry) for entry in ("vendor", "model"))))
    for words, what, outlives in _MODELS:
        if words in model:
            return Disk(name, f"{what} ({name})", outlives)
    if "Virtual Disk" in model or "Msft" in model:
        return Disk(name, f"a virtual disk of Hyper-V or Azure ({name})", None)
    if name.startswith(("vd", "xvd")) or "virtio" in str(folder) or "QEMU" in model or is_virtual(machine):
        return Disk(name, f"a virtual disk ({f'{model}, ' if model else ''}{name})", None)
    if name.startswith(("loop", "zram", "nbd", "ram")):
        return Disk(name, f"{name}, which is no disk", None)
    return Disk(name, f"the disk {f'{model}, ' if model else ''}{name}", True)


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(200).decode(errors="replace").strip()
    except OSError:
        return ""


def is_virtual(machine: Machine) -> bool:
    """Whether the processor says that it is one of a virtual machine."""
    text = machine.read("/proc/cpuinfo") or ""
    return bool(re.search(r"^flags\s*:.*\bhypervisor\b", text, re.MULTILINE))


Container = Literal["docker", "kubernetes", "podman", "a container", ""]


def container(machine: Machine) -> Container:
    """In what kind of container this process is; empty for none that can be told."""
    if "KUBERNETES_SERVICE_HOST" in machine.environment:
        return "kubernetes"
    if machine.path("/.dockerenv").exists():
        return "docker"
    if machine.path("/run/.containerenv").exists():
        return "podman"
    groups = machine.read("/proc/1/cgroup") or ""
    if re.search(r"docker|containerd|kubepods|lxc|libpod", groups):
        return "a container"
    return "a container" if machine.environment.get("container") else ""

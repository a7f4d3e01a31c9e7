"""What is stored in blocks: volumes, snapshots, images, file systems."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.leftovers.item import Item, command, moment
from loadsheet.cloud.leftovers.machines import ending, guard
from loadsheet.cloud.leftovers.makers import backup, managed, owner, through
from loadsheet.cloud.leftovers.registry import OneUnseen, Place, kind
from loadsheet.text import many
from loadsheet.units import GIB

_FREE_OPS: Final = 3000
_FREE_SPEED: Final = 125  # MiB/s
_OF_IMAGE: Final = re.compile(r"\bami-[0-9a-f]{8,17}\b")


def _size(row: dict[str, Any], key: str) -> float | None:
    """Bytes of a size that EC2 tells in GiB."""
    value = row.get(key)
    return float(value) * GIB if isinstance(value, int | float) else None


def _speed(row: dict[str, Any]) -> str:
    """What a volume is billed for beside its size: the speed that was ordered; "" if there is none.

    gp3 has 3,000 IOPS and 125 MiB/s in its price: docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html

    >>> _speed({"VolumeType": "gp3", "Iops": 16000, "Throughput": 250}), _speed({"VolumeType": "gp2", "Iops": 300})
    ('13,000 IOPS and 125 MiB/s', '')
    """
    form, ops, speed = row.get("VolumeType"), row.get("Iops") or 0, row.get("Throughput") or 0
    parts: list[str] = []
    if form == "gp3":
        parts += [f"{ops - _FREE_OPS:,} IOPS"] if ops > _FREE_OPS else []
        parts += [f"{speed - _FREE_SPEED:,} MiB/s"] if speed > _FREE_SPEED else []
    elif form in ("io1", "io2"):
        parts += [f"{ops:,} IOPS"] if ops else ["its IOPS"]
    return " and ".join(parts)


@kind("volume", calls=["ec2:DescribeVolumes"], why="a volume is billed by its size, attached or not")
def volumes(place: Place) -> Iterator[Item]:
    """Volumes that hang on no instance."""
    free = [{"Name": "status", "Values": ["creating", "available", "error"]}]
    for row in place.rows("ec2", "describe_volumes", "Volumes", Filters=free):
        form = str(row.get("VolumeType", ""))
        yield place.item(
            row.get("VolumeId", ""), row.get("State", ""),
            "; ".join(filter(None, ["it hangs on no machine", owner(row.get("Tags"))])),
            row.get("Tags") or [],
            created=moment(row.get("CreateTime")), size=_size(row, "Size"), type=form,
            billed=(form, "volume"), extra=_speed(row), **through(managed(row)),
            remove=() if managed(row) else command(
                "ec2", "delete-volume", place.region, volume_id=row.get("VolumeId", "")),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Held:
    """A machine that holds a volume, with the commands that let its volumes go with it and the service that runs it."""

    machine: str
    state: str
    stopped: bool
    stays: bool
    ends: tuple[str, ...]
    service: str
    guard: str


def _volume(disk: dict[str, Any]) -> str:
    """The id of a machine's volume; "" for what is no volume."""
    return str((disk.get("Ebs") or {}).get("VolumeId") or "")


@kind(
    "attached-volume",
    calls=["ec2:DescribeInstances", "ec2:DescribeVolumes"],
    why="the volumes of a stopped machine are billed, and some stay when their machine is terminated",
    turn=1,
)
def attached_volumes(place: Place) -> Iterator[Item]:
    """Volumes of stopped instances, and those that would outlive their instance.

    One command lets all volumes of a machine go with it: once the first has ended it, no other could be changed.
    """
    held: dict[str, _Held] = {}
    for reservation in place.rows("ec2", "describe_instances", "Reservations"):
        for row in reservation.get("Instances") or ():
            state, machine = str((row.get("State") or {}).get("Name", "")), str(row.get("InstanceId", ""))
            stopped = state in ("stopped", "stopping")
            disks = [disk for disk in row.get("BlockDeviceMappings") or () if _volume(disk)]
            staying = [disk for disk in disks if disk["Ebs"].get("DeleteOnTermination") is False]
            ends = ending(row, place.region)[1] if stopped else ()
            if staying:
                change = [
                    {"DeviceName": str(disk.get("DeviceName")), "Ebs": {"DeleteOnTermination": True}}
                    for disk in staying
                ]
                first = command("ec2", "modify-instance-attribute", place.region, instance_id=machine,
                                block_device_mappings=json.dumps(change))  # fmt: skip
                ends = (*first, *ends)
            for disk in disks if stopped else staying:
                stays = disk in staying
                held[_volume(disk)] = _Held(
                    machine, state, stopped, stays, ends, managed(row), guard(row, ends)
                )
    if not held:
        return
    used = [{"Name": "status", "Values": ["in-use"]}]
    for row in place.rows("ec2", "describe_volumes", "Volumes", Filters=used):
        if row.get("VolumeId") not in held:
            continue
        on = held[row["VolumeId"]]
        why = [f"{on.machine} is stopped, its volume is billed"] if on.stopped else []
        why += [f"it stays when {on.machine} is terminated"] if on.stays else []
        why += [f"{on.machine}: {on.guard}"] if on.guard else []
        form = str(row.get("VolumeType", ""))
        yield place.item(
            row["VolumeId"], f"on a {on.state} machine", "; ".join(why), row.get("Tags") or [],
            created=moment(row.get("CreateTime")), size=_size(row, "Size"), type=form,
            billed=(form, "volume"), extra=_speed(row), remove=on.ends, **through(on.service),
        )  # fmt: skip


@kind(
    "snapshot",
    calls=["ec2:DescribeSnapshots"],
    why="a snapshot is billed by what it stores until it is deleted",
    turn=3,
)
def snapshots(place: Place) -> Iterator[Item]:
    """The account's own snapshots; the size told is the volume's, which what is stored does not exceed."""
    for row in place.rows("ec2", "describe_snapshots", "Snapshots", OwnerIds=["self"]):
        image = _OF_IMAGE.search(str(row.get("Description", "")))
        why = "kept until somebody deletes it; at most this size is billed"
        if image:
            why = f"belongs to image {image[0]}, if that is still there: deregister it first"
        archived = row.get("StorageTier") == "archive"
        yield place.item(
            row.get("SnapshotId", ""), row.get("State", ""), why, row.get("Tags") or [],
            created=moment(row.get("StartTime")), size=_size(row, "VolumeSize"),
            type="archive" if archived else "", billed=("snapshot-archive",) if archived else ("snapshot",),
            **through(backup(row)),
            remove=() if backup(row) else command(
                "ec2", "delete-snapshot", place.region, snapshot_id=row.get("SnapshotId", "")),
        )  # fmt: skip


@kind("image", calls=["ec2:DescribeImages"], why="the snapshots of an image cannot be deleted before it")
def images(place: Place) -> Iterator[Item]:
    """The account's own machine images, disabled ones, too."""
    for row in place.rows("ec2", "describe_images", "Images", Owners=["self"], IncludeDisabled=True):
        disks = [
            str(disk["Ebs"]["SnapshotId"])
            for disk in row.get("BlockDeviceMappings") or ()
            if (disk.get("Ebs") or {}).get("SnapshotId")
        ]
        shown = ", ".join(disks[:3]) + (" …" if len(disks) > 3 else "")
        yield place.item(
            row.get("ImageId", ""), row.get("State", ""),
            f"its snapshots are billed, and stay when it is gone: {shown}" if disks else "an image without snapshots",
            row.get("Tags") or [], created=moment(row.get("CreationDate")),
            **through(backup(row)),
            remove=() if backup(row) else command(
                "ec2", "deregister-image", place.region, image_id=row.get("ImageId", "")),
        )  # fmt: skip


@kind(
    "fast-snapshot-restore",
    calls=["ec2:DescribeFastSnapshotRestores"],
    why="billed by the hour, for each snapshot and zone, used or not",
)
def fast_snapshot_restores(place: Place) -> Iterator[Item]:
    """Snapshots that are kept warm in a zone."""
    for row in place.rows("ec2", "describe_fast_snapshot_restores", "FastSnapshotRestores"):
        if row.get("State") in ("disabled", "disabling"):
            continue
        snapshot, zone = str(row.get("SnapshotId", "")), str(row.get("AvailabilityZone", ""))
        yield place.item(
            f"{snapshot} in {zone}", row.get("State", ""), "billed by the hour, used or not",
            created=moment(row.get("EnabledTime") or row.get("EnablingTime")),
            billed=("fast-snapshot-restore",),
            remove=command("ec2", "disable-fast-snapshot-restores", place.region,
                           availability_zones=zone, source_snapshot_ids=snapshot),
        )  # fmt: skip


@kind(
    "file-system",
    calls=["efs:DescribeFileSystems", "efs:DescribeMountTargets"],
    why="a file system of EFS is billed by what is in it, mounted or not",
    turn=3,
)
def file_systems(place: Place) -> Iterator[Item | OneUnseen]:
    """EFS file systems, each with the commands for its mount targets, which must go before it."""
    for row in place.rows("efs", "describe_file_systems", "FileSystems"):
        if row.get("LifeCycleState") in ("deleting", "deleted"):
            continue
        size = (row.get("SizeInBytes") or {}).get("Value")
        mode = row.get("ThroughputMode", "")
        why = "billed by what is in it"
        id = str(row.get("FileSystemId", ""))
        first: list[str] = []
        if row.get("NumberOfMountTargets"):
            why += f"; {many(row['NumberOfMountTargets'], 'mount target')} first, the file system when that is gone"
            try:
                for target in place.rows("efs", "describe_mount_targets", "MountTargets", FileSystemId=id):
                    first += command("efs", "delete-mount-target", place.region,
                                     mount_target_id=target.get("MountTargetId", ""))  # fmt: skip
            except CallFailed as error:
                yield place.unseen(error, id)
        why += f"; {whose}" if (whose := owner(row.get("Tags"))) else ""
        yield place.item(
            id, row.get("LifeCycleState", ""), why, row.get("Tags") or [],
            created=moment(row.get("CreationTime")), billed=("file-system",),
            extra="provisioned throughput" if mode == "provisioned" else "",
            size=float(size) if isinstance(size, int | float) else None,
            remove=(*first, *command("efs", "delete-file-system", place.region, file_system_id=id)),
        )  # fmt: skip


@kind(
    "fsx-file-system",
    calls=["fsx:DescribeFileSystems", "fsx:DescribeVolumes", "fsx:DescribeStorageVirtualMachines"],
    why="a file system of FSx is billed by its capacity, full or empty; Lustre is dear",
)
def fsx_file_systems(place: Place) -> Iterator[Item | OneUnseen]:
    """FSx file systems: Lustre, ONTAP, OpenZFS, Windows; what must go before one is asked for ONTAP alone."""
    for row in place.rows("fsx", "describe_file_systems", "FileSystems"):
        if row.get("Lifecycle") == "DELETING":
            continue
        id, form = str(row.get("FileSystemId", "")), str(row.get("FileSystemType", "")).lower()
        why = "billed by its capacity, full or empty"
        first: tuple[str, ...] = ()
        options: dict[str, object] = {}
        if form == "ontap":
            why += "; its volumes and virtual machines go first, and each volume leaves a backup, which is billed"
            try:
                first = _of_ontap(place, id)
            except CallFailed as error:
                yield place.unseen(error, id)
                why += "; which these are is not known"
        elif form == "openzfs":
            why += "; its volumes and their snapshots go with it, and it leaves a backup, which is billed"
            options = {"open_zfs_configuration": "Options=DELETE_CHILD_VOLUMES_AND_SNAPSHOTS"}
        elif form == "windows":
            why += "; it leaves a backup, which is billed"
        yield place.item(
            id, row.get("Lifecycle", ""), why, row.get("Tags") or [], created=moment(row.get("CreationTime")),
            size=_size(row, "StorageCapacity"), type=form, billed=(f"fsx-{form}", "fsx-file-system"),
            extra="backups" if form == "lustre" else "throughput and backups",
            remove=(*first, *command("fsx", "delete-file-system", place.region, file_system_id=id, **options)),
        )  # fmt: skip


def _of_ontap(place: Place, id: str) -> tuple[str, ...]:
    """The commands for what must go before a file system of ONTAP; a root volume goes with its virtual machine."""
    own = [{"Name": "file-system-id", "Values": [id]}]
    first: list[str] = []
    for row in place.rows("fsx", "describe_volumes", "Volumes", Filters=own):
        if not (row.get("OntapConfiguration") or {}).get("StorageVirtualMachineRoot"):
            first += command("fsx", "delete-volume", place.region, volume_id=row.get("VolumeId", ""))
    for row in place.rows("fsx", "describe_storage_virtual_machines", "StorageVirtualMachines", Filters=own):
        machine = row.get("StorageVirtualMachineId", "")
        first += command(
            "fsx", "delete-storage-virtual-machine", place.region, storage_virtual_machine_id=machine
        )
    return tuple(first)

"""What is stored in blocks: volumes, snapshots, images, file systems."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from loadsheet.cloud.leftovers.item import Item, command, moment
from loadsheet.cloud.leftovers.registry import Place, kind
from loadsheet.units import GIB

_OF_IMAGE: Final = re.compile(r"\bami-[0-9a-f]{8,17}\b")


def _size(row: dict[str, Any], key: str) -> float | None:
    """Bytes of a size that EC2 tells in GiB."""
    value = row.get(key)
    return float(value) * GIB if isinstance(value, int | float) else None


@kind("volume", calls=["ec2:DescribeVolumes"], why="a volume is billed by its size, attached or not")
def volumes(place: Place) -> Iterator[Item]:
    """Volumes that hang on no instance."""
    free = [{"Name": "status", "Values": ["creating", "available", "error"]}]
    for row in place.rows("ec2", "describe_volumes", "Volumes", Filters=free):
        form = str(row.get("VolumeType", ""))
        yield place.item(
            row.get("VolumeId", ""), row.get("State", ""), "it hangs on no machine", row.get("Tags") or [],
            created=moment(row.get("CreateTime")), size=_size(row, "Size"), type=form,
            billed=(form, "volume"),
            remove=command("ec2", "delete-volume", place.region, volume_id=row.get("VolumeId", "")),
        )  # fmt: skip


@kind(
    "attached-volume",
    calls=["ec2:DescribeInstances", "ec2:DescribeVolumes"],
    why="the volumes of a stopped machine are billed, and some stay when their machine is terminated",
)
def attached_volumes(place: Place) -> Iterator[Item]:
    """Volumes of stopped instances, and those that would outlive their instance."""
    held: dict[str, tuple[str, str, str, bool]] = {}
    for reservation in place.rows("ec2", "describe_instances", "Reservations"):
        for row in reservation.get("Instances") or ():
            state = str((row.get("State") or {}).get("Name", ""))
            for disk in row.get("BlockDeviceMappings") or ():
                at = disk.get("Ebs") or {}
                stays = at.get("DeleteOnTermination") is False
                if at.get("VolumeId") and (stays or state in ("stopped", "stopping")):
                    held[at["VolumeId"]] = str(row["InstanceId"]), state, str(disk.get("DeviceName")), stays
    if not held:
        return
    used = [{"Name": "status", "Values": ["in-use"]}]
    for row in place.rows("ec2", "describe_volumes", "Volumes", Filters=used):
        if row.get("VolumeId") not in held:
            continue
        machine, state, device, stays = held[row["VolumeId"]]
        stopped = state in ("stopped", "stopping")
        why = f"{machine} is stopped, its volume is billed" if stopped else ""
        if stays:
            why = "; ".join(filter(None, [why, f"it stays when {machine} is terminated"]))
        change = [{"DeviceName": device, "Ebs": {"DeleteOnTermination": True}}]
        form = str(row.get("VolumeType", ""))
        yield place.item(
            row["VolumeId"], f"on a {state} machine", why, row.get("Tags") or [],
            created=moment(row.get("CreateTime")), size=_size(row, "Size"), type=form,
            billed=(form, "volume"),
            remove=(
                *(command("ec2", "modify-instance-attribute", place.region, instance_id=machine,
                          block_device_mappings=json.dumps(change)) if stays else ()),
                *(command("ec2", "terminate-instances", place.region, instance_ids=machine) if stopped else ()),
            ),
        )  # fmt: skip


@kind(
    "snapshot",
    calls=["ec2:DescribeSnapshots"],
    why="a snapshot is billed by what it stores until it is deleted",
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
            remove=command("ec2", "delete-snapshot", place.region, snapshot_id=row.get("SnapshotId", "")),
        )  # fmt: skip


@kind("image", calls=["ec2:DescribeImages"], why="the snapshots of an image cannot be deleted before it")
def images(place: Place) -> Iterator[Item]:
    """The account's own machine images."""
    for row in place.rows("ec2", "describe_images", "Images", Owners=["self"]):
        disks = [
            str(disk["Ebs"]["SnapshotId"])
            for disk in row.get("BlockDeviceMappings") or ()
            if (disk.get("Ebs") or {}).get("SnapshotId")
        ]
        shown = ", ".join(disks[:3]) + (" …" if len(disks) > 3 else "")
        yield place.item(
            row.get("ImageId", ""), row.get("State", ""),
            f"its snapshots are billed as long as it is registered: {shown}" if disks else "an image without snapshots",
            row.get("Tags") or [], created=moment(row.get("CreationDate")),
            remove=command("ec2", "deregister-image", place.region, image_id=row.get("ImageId", "")),
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
    calls=["efs:DescribeFileSystems"],
    why="a file system of EFS is billed by what is in it, mounted or not",
)
def file_systems(place: Place) -> Iterator[Item]:
    """EFS file systems."""
    for row in place.rows("efs", "describe_file_systems", "FileSystems"):
        size = (row.get("SizeInBytes") or {}).get("Value")
        mode = row.get("ThroughputMode", "")
        why = "billed by what is in it" + (
            ", and for provisioned throughput" if mode == "provisioned" else ""
        )
        if row.get("NumberOfMountTargets"):
            why += f"; its {row['NumberOfMountTargets']} mount targets go first"
        yield place.item(
            row.get("FileSystemId", ""), row.get("LifeCycleState", ""), why, row.get("Tags") or [],
            created=moment(row.get("CreationTime")), billed=("file-system",),
            size=float(size) if isinstance(size, int | float) else None,
            remove=command("efs", "delete-file-system", place.region, file_system_id=row.get("FileSystemId", "")),
        )  # fmt: skip


@kind(
    "fsx-file-system",
    calls=["fsx:DescribeFileSystems"],
    why="a file system of FSx is billed by its capacity, full or empty; Lustre is dear",
)
def fsx_file_systems(place: Place) -> Iterator[Item]:
    """FSx file systems: Lustre, ONTAP, OpenZFS, Windows."""
    for row in place.rows("fsx", "describe_file_systems", "FileSystems"):
        form = str(row.get("FileSystemType", "")).lower()
        yield place.item(
            row.get("FileSystemId", ""), row.get("Lifecycle", ""), "billed by its capacity, full or empty",
            row.get("Tags") or [], created=moment(row.get("CreationTime")),
            size=_size(row, "StorageCapacity"), type=form, billed=(f"fsx-{form}", "fsx-file-system"),
            remove=command("fsx", "delete-file-system", place.region, file_system_id=row.get("FileSystemId", "")),
        )  # fmt: skip

"""Where checkpoints lie: whether that outlives the machine, and whether there is a second copy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from loadsheet.cloud import mounts
from loadsheet.cloud.checklist import Result, fail, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.mounts import Mount
from loadsheet.cloud.registry import check
from loadsheet.errors import one_line

_ELSEWHERE: Final = "write to a volume or a disk that outlives the machine, or give the run `mirror=`"
_QUESTION: Final = "Does the disk that the checkpoints are written to outlive the machine?"


@check(
    "storage.persistent",
    phase="before",
    why="what lies on a disk that goes with the machine is gone when the machine is",
    question=_QUESTION,
)
def persistent(context: Context) -> Result:
    """The file system and the disk below the checkpoint directory."""
    place, machine = context.checkpoint_place, context.machine
    mount = mounts.mount_of(machine, place)
    row: dict[str, Any] = {"path": str(place), "file_system": mount.kind, "mount": mount.point}

    def said(text: str) -> Mapping[str, Any]:
        return {"fact": f"{one_line(str(place))}: {text}", **row}

    if mount.kind in mounts.MEMORY:
        return fail(said(f"{mount.kind}, which is memory: gone at the next start"), next=_ELSEWHERE)
    if mount.kind in mounts.READ_ONLY or "ro" in mount.options:
        return fail(said(f"{mount.kind}, mounted read-only: nothing can be saved"), next=_ELSEWHERE)
    if mount.kind in mounts.LAYERED:
        return fail(
            said(f"{mount.kind}, the container's own layer: gone with the container"), next=_ELSEWHERE
        )
    if "kubernetes.io~empty-dir" in mount.root:
        return fail(
            said("an emptyDir: gone with the pod"), next="mount a PersistentVolumeClaim, or use `mirror=`"
        )
    bucket = bucket_of(mount)
    if bucket:
        text = f"{bucket}, a bucket that looks like a folder: no locks, no fsync, and renames that copy"
        return fail(said(text), next="keep runs on a disk, and give `mirror=s3://…` for the copy")
    if mount.kind.startswith("fuse"):
        text = f"{mount.kind}: a FUSE file system keeps neither locks nor fsync for certain; runs refuse it"
        return fail(said(text), next=_ELSEWHERE)
    if mount.kind in mounts.NETWORK:
        text = f"{mount.kind} from {one_line(mount.source)}: it outlives the machine, but not whoever runs it; slower"
        return warn(
            said(text), next="see that there is a second copy (storage.copy) and that it is fast enough"
        )
    return _disk(context, mount, said)


def bucket_of(mount: Mount) -> str:
    """The name of the bucket file system; empty for anything else."""
    if mount.kind in mounts.BUCKETS:
        return mounts.BUCKETS[mount.kind]
    source = mount.source.lower()
    if mount.kind.startswith("fuse") and (source.startswith(mounts.BUCKET_SOURCES) or "s3://" in source):
        return one_line(mount.source)
    return ""


def _disk(context: Context, mount: Mount, said: Any) -> Result:
    """A file system on a disk: which one, and does it stay?"""
    machine = context.machine
    if _azure_temporary(context, mount):
        return fail(
            said("the temporary disk of an Azure machine: gone when it is deallocated"), next=_ELSEWHERE
        )
    if "/docker/volumes/" in mount.root:
        name = mount.root.partition("/docker/volumes/")[2].partition("/")[0]
        if len(name) == 64:
            text = "an unnamed Docker volume: `docker run --rm` removes it"
            return warn(said(text), next="name it: `docker run -v checkpoints:/path`")
    found = mounts.disks(machine, mount)
    if not found:
        text = f"{mount.kind} on {one_line(mount.source)}: which disk that is cannot be seen here"
        return unknown(said(text), next=_ELSEWHERE)
    names = ", ".join(disk.what for disk in found)
    gone = [disk.what for disk in found if disk.outlives is False]
    if gone:
        return fail(said(f"{', '.join(gone)}: gone when the machine stops or is taken"), next=_ELSEWHERE)
    if any(disk.outlives is None for disk in found):
        return unknown(
            said(f"{mount.kind} on {names}: whether it stays is known to whoever rents it out"),
            next="look at the kind of disk in the provider's console",
        )
    note = "; it is deleted with the instance unless DeleteOnTermination is off" if "EBS" in names else ""
    return ok(said(f"{mount.kind} on {names}{note}"))


def _azure_temporary(context: Context, mount: Mount) -> bool:
    """Azure puts a warning onto the disk that it throws away."""
    return context.machine.path(f"{mount.point}/DATALOSS_WARNING_README.txt").exists()


@check(
    "storage.copy",
    phase="before",
    why="in December 2021 a provider deleted the whole cluster on which OPT-175B was being trained",
    question="Is there a second copy of the checkpoints, with another provider or on another disk?",
)
def copy(context: Context) -> Result:
    """A mirror, on something else than the checkpoints themselves."""
    mirror, place = context.inputs.mirror, context.checkpoint_place
    if mirror:
        parts = urlsplit(mirror)
        if parts.scheme and parts.scheme != "file":
            where = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
            text = f"mirror {one_line(where)}: not on this machine, by its name; whether it takes a copy was not tried"
            return ok({"fact": text, "mirror": where})
        target = context.place(Path(parts.path or mirror))
        nearest = target
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        if os.stat(nearest).st_dev == os.stat(place).st_dev:
            text = f"the mirror {one_line(str(target))} lies on the same disk as the checkpoints"
            return fail(text, next="mirror to another disk or to a bucket")
        return ok({"fact": f"mirror {one_line(str(target))}, on another file system", "mirror": str(target)})
    how = 'give the run `mirror="s3://…"`, and preflight `--mirror`'
    mount = mounts.mount_of(context.machine, place)
    if mount.kind in mounts.NETWORK:
        text = f"no mirror is named: the only copy is on {mount.kind} from {one_line(mount.source)}"
        return warn(text, next=how)
    return unknown("no mirror is named", next=how)

"""Where the checkpoints of a job are: a mirror, a block volume, a path; never a bucket mounted as a folder."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Final

from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.export.job import VOLUME_AT
from loadsheet.cloud.export.words import clean
from loadsheet.cloud.machine import Machine
from loadsheet.cloud.mounts import BUCKETS, mount_of
from loadsheet.errors import BadInput, shorten

_FUSE: Final = (
    "s3", "s3a", "gs", "gcs", "r2", "az", "azure", "abfs", "abfss", "oci", "cos", "nebius", "http", "https",
)  # fmt: skip
#: what the kernel mounts in every container, and what an image brings along
_TAKEN: Final = frozenset({"dev", "proc", "sys"})
_SYSTEM: Final = frozenset(
    {"bin", "boot", "etc", "lib", "lib32", "lib64", "run", "sbin", "tmp", "usr", "var"}
)
_MIRRORS: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "https")


def label(text: str, what: str) -> str:
    """A name as Kubernetes' labels have it (RFC 1123)."""
    if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", text):
        raise BadInput(f"{what}: got {shorten(text)}, expected lower-case letters, digits and hyphens")
    return text


def subdomain(text: str, what: str) -> str:
    """A name as Kubernetes' objects have it (RFC 1123): labels with dots between."""
    if len(text) > 253 or not re.fullmatch(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", text):
        raise BadInput(f"{what}: got {shorten(text)}, expected lower-case letters, digits, hyphens and dots")
    return text


def clean_path(text: str, what: str, *, absolute: bool = True) -> str:
    """A path in the job, without a slash at its end; BadInput for another text."""
    clean(text, what)
    if not text or not text.isprintable() or (absolute and not text.startswith("/")):
        expected = "an absolute path" if absolute else "a path"
        raise BadInput(f"{what}: got {shorten(text)}, expected {expected}")
    return text.rstrip("/") or "/"


def mount_point(path: str, volume: str) -> str:
    """Where a volume is mounted in a container; BadInput for a place over which none can be, or must not be."""
    found = clean_path(path, "--volume")
    parts = PurePosixPath("/" + found.lstrip("/")).parts
    system = len(parts) < 3 and parts[-1] in {"/", *_SYSTEM}
    if ".." in parts or ":" in found or system or parts[1] in _TAKEN:
        raise BadInput(
            f"--volume: got {shorten(volume)}, expected NAME:/PATH with a folder of its own",
            f"over /, /{', /'.join(sorted(_TAKEN))} or the system's folders nothing can be mounted: NAME:{VOLUME_AT}",
        )
    return str(PurePosixPath(*parts))


def refuse_bucket(volume: str) -> None:
    """BadInput for a bucket where a block volume is expected."""
    scheme, slashes, _ = volume.partition("://")
    if slashes or scheme in _FUSE:
        raise BadInput(
            f"--volume: got {shorten(volume)}, expected a block volume",
            "a bucket that is mounted (FUSE) has no locks and renames by copying, so a checkpoint there may be half of "
            f"one: --mirror {shorten(volume, 80)} copies to it instead",
        )


def refuse_mounted_bucket(folder: str, what: str, machine: Machine) -> None:
    """BadInput for a path that lies on a mounted bucket, as far as this machine sees it."""
    try:
        mount = mount_of(machine, Path(folder))
    except CannotLook:
        return
    if mount.kind in BUCKETS:
        raise BadInput(
            f"{what}: got {shorten(folder)} on {BUCKETS[mount.kind]}, expected a disk",
            "a bucket that is mounted (FUSE) has no locks and renames by copying: --mirror s3://… copies to it instead",
        )


def mirror_place(mirror: str, engine: str) -> str:
    """The mirror as it may stand in a file: a bucket, on Slurm a path too; no key in it."""
    clean(mirror, "--mirror")
    scheme, slashes, rest = mirror.partition("://")
    local = not slashes
    if local and engine != "slurm":
        raise BadInput(
            f"--mirror: got {shorten(mirror)}, expected a bucket such as s3://BUCKET/FOLDER",
            "a folder goes with its machine",
        )
    if local:
        return clean_path(mirror, "--mirror")
    host = rest.partition("/")[0]
    if scheme not in _MIRRORS or not host:
        raise BadInput(f"--mirror: got {shorten(mirror)}, expected s3://…, gs://… or az://…")
    if ("@" in host and not scheme.startswith("abfs")) or "?" in rest or "#" in rest:
        raise BadInput(
            f"--mirror: got {scheme}://… with a key or a query, expected the place alone",
            "no key is written into a job file: the machine's role or the engine's secrets give them",
        )
    if not re.fullmatch(r"[\x21-\x7e]+", rest):
        raise BadInput(f"--mirror: got {shorten(mirror)}, expected a URL without spaces")
    return mirror

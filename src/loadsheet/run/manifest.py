"""The manifest of a checkpoint: what it consists of, with a checksum for everything, itself included."""

from __future__ import annotations

import msgspec
import xxhash

from loadsheet.errors import shorten
from loadsheet.run.errors import BadCheckpoint

MANIFEST, DOCUMENT, TENSORS = "manifest.json", "state.json", "tensors.bin"
FORMAT = 1


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a checkpoint: its size in bytes and its checksum (XXH3, 128 bits, hexadecimal)."""

    bytes: int
    xxh3_128: str


class Manifest(msgspec.Struct, frozen=True):
    """What a checkpoint consists of, and to which point of the log it belongs (bytes)."""

    format: int
    step: int
    attempt: int
    log_offset: int
    time: float
    digest: str
    files: dict[str, FileEntry]
    torch: str = ""


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    manifest: msgspec.Raw
    xxh3_128: str


def pack(manifest: Manifest) -> bytes:
    """A manifest as a file: readable, and with a checksum of its own."""
    inner = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    return _wrap(inner)


def _wrap(inner: bytes) -> bytes:
    digest = xxhash.xxh3_128_hexdigest(inner)
    return b'{"manifest": ' + inner + b', "xxh3_128": "' + digest.encode() + b'"}\n'


def unpack(data: bytes, where: str) -> Manifest:
    """The manifest in a file. Raises BadCheckpoint if one bit of it is wrong."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        inner = bytes(envelope.manifest)
        if _wrap(inner) != data:  # byte for byte, so that not even white space may differ
            raise BadCheckpoint(
                f"{where}: got a manifest with another checksum than its own, expected it whole"
            )
        manifest = msgspec.json.decode(inner, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        message = f"{where}: got no manifest ({shorten(str(error))}), expected one whole"
        raise BadCheckpoint(message) from None
    if manifest.format != FORMAT or set(manifest.files) != {DOCUMENT, TENSORS}:
        raise BadCheckpoint(
            f"{where}: got format {manifest.format} with {shorten(sorted(manifest.files))}, expected format {FORMAT}"
        )
    return manifest

"""Read what a .safetensors file, or an index of several, says it holds: headers only, nothing trusted.

The rules are those of the format's own description and reference implementation
(https://github.com/huggingface/safetensors): a header of at most 100 MB, tensors that cover the data
from its first byte to its last without gap or overlap, nothing after them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from loadsheet.arch.stored import Scalar, StoredTensor, StoredWeights
from loadsheet.errors import BadFile, shorten
from loadsheet.safejson import file_label, load_json, open_regular, parse_json

MAX_HEADER_BYTES: Final = 100_000_000  # the format's own limit
MAX_INDEX_BYTES: Final = 128 << 20  # an index of 150,000 tensors has about 17 MB
MAX_VALUES: Final = 4_000_000
MAX_SHARDS: Final = 4_096
_MAX_ELEMENTS: Final = 2**64 - 1

#: type -> bits per element (safetensors 0.8.0)
DTYPE_BITS: Final[dict[str, int]] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip


def read_safetensors(path: str | os.PathLike[str]) -> StoredWeights:
    """The tensors of one .safetensors file, from its header alone; BadFile if the header lies.

    Source: https://github.com/huggingface/safetensors#format
    """
    label = file_label(path, "safetensors file")
    with open_regular(path, "safetensors file") as (file, size):
        first = file.read(8)
        if len(first) < 8:
            raise BadFile(f"{label}: got {size:,} bytes, expected at least 8", "is the download complete?")
        length = int.from_bytes(first, "little")
        if length > MAX_HEADER_BYTES:
            raise BadFile(
                f"{label}: got a header of {length:,} bytes, expected at most {MAX_HEADER_BYTES:,}",
                "this does not look like a safetensors file",
            )
        if length > size - 8:
            raise BadFile(
                f"{label}: got {size:,} bytes, expected at least {8 + length:,} for the header alone",
                "is the download complete?",
            )
        text = file.read(length)
    header = parse_json(text, f"{label}, header", max_values=MAX_VALUES)
    if not isinstance(header, dict):
        raise BadFile(f"{label}: got a header that is no JSON object, expected {{name: tensor}}")
    metadata = _text_metadata(header.pop("__metadata__", None), label)
    tensors = _tensors(header, size - 8 - length, label)
    return StoredWeights(os.fspath(path), "safetensors", tensors, metadata)


def _text_metadata(value: object, label: str) -> dict[str, Scalar]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise BadFile(f"{label}: got {shorten(value)} as `__metadata__`, expected texts by name")
    return value


def _tensors(header: dict[str, Any], available: int, label: str) -> tuple[StoredTensor, ...]:
    """Check every entry, and that together they cover exactly the `available` bytes of data."""
    found: list[tuple[int, int, StoredTensor]] = []
    for name, entry in header.items():
        where = f"{label}, tensor {shorten(name)}"
        if not isinstance(entry, dict):
            raise BadFile(f"{where}: got {shorten(entry)}, expected dtype, shape and data_offsets")
        bits = DTYPE_BITS.get(entry["dtype"]) if isinstance(entry.get("dtype"), str) else None
        if bits is None:
            raise BadFile(
                f"{where}: got dtype {shorten(entry.get('dtype'))}, expected one that is known",
                "known: " + ", ".join(DTYPE_BITS),
            )
        shape = _whole_numbers(entry.get("shape"), f"{where}, shape")
        elements = 1
        for dimension in shape:
            elements *= dimension
            if (
                max(dimension, elements) > _MAX_ELEMENTS
            ):  # also beside a dimension of 0, as the reference does
                raise BadFile(f"{where}: got shape {shorten(shape)}, expected a product below 2^64")
        begin, end = _pair(entry.get("data_offsets"), f"{where}, data_offsets")
        nbytes, rest = divmod(elements * bits, 8)
        if rest:
            raise BadFile(
                f"{where}: got {elements:,} elements of {bits} bits, expected them to fill whole bytes"
            )
        if end - begin != nbytes:
            raise BadFile(
                f"{where}: got {end - begin:,} bytes by its offsets, expected {nbytes:,} by shape and dtype"
            )
        found.append((begin, end, StoredTensor(name, shape, entry["dtype"], nbytes)))
    found.sort(key=lambda item: item[:2])
    reached = 0
    for begin, end, tensor in found:
        if begin != reached:
            fault = "overlapping the one before" if begin < reached else "after a gap"
            raise BadFile(
                f"{label}, tensor {shorten(tensor.name)}: got offset {begin:,}, {fault}, expected {reached:,}"
            )
        reached = end
    if reached != available:
        hint = "is the download complete?" if reached > available else "the file was changed or overwritten"
        raise BadFile(f"{label}: got {available:,} bytes of data, expected {reached:,} by its header", hint)
    return tuple(tensor for _, _, tensor in found)


def _whole_numbers(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise BadFile(f"{where}: got {shorten(value)}, expected a list of whole numbers, none negative")
    return tuple(value)


def _pair(value: object, where: str) -> tuple[int, int]:
    numbers = _whole_numbers(value, where)
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        raise BadFile(f"{where}: got {shorten(value)}, expected [begin, end] with begin <= end")
    return numbers[0], numbers[1]


def read_safetensors_index(path: str | os.PathLike[str]) -> StoredWeights:
    """The tensors of all shards that a `model.safetensors.index.json` names; BadFile if any is wrong.

    Exactly the tensors of its `weight_map` are counted. If no shard is there at all, the index's own
    `metadata.total_size` gives the bytes and nothing else (`complete` is False); a missing part is
    an error. Shards are plain file names in the index's folder; a symbolic link may lead elsewhere
    in that folder, or to the `blobs` of a Hugging Face cache, not further.
    """
    label = file_label(path, "safetensors index")
    index = load_json(path, "safetensors index", limit=MAX_INDEX_BYTES, max_values=MAX_VALUES)
    wanted = _shards(index.get("weight_map"), label)
    claims = index.get("metadata")
    metadata: dict[str, Scalar] = {
        key: value
        for key, value in (claims.items() if isinstance(claims, dict) else ())
        if isinstance(value, (str, int, float))
    }
    folder = Path(path).parent
    present = [shard for shard in wanted if os.path.lexists(folder / shard)]
    if not present:
        total = metadata.get("total_size")
        if type(total) is not int or not 0 < total < 2**63:
            raise BadFile(
                f"{label}: got none of its {len(wanted)} shards, expected them beside it",
                f"download {shorten(next(iter(wanted)))} and the others",
            )
        return StoredWeights(os.fspath(path), "safetensors", (), metadata, total_bytes=total)
    missing = [shard for shard in wanted if shard not in set(present)]
    if missing:
        raise BadFile(
            f"{label}: got {len(present)} of {len(wanted)} shards, expected {shorten(missing[0])} too",
            "download the missing shards, or point to the model's config.json",
        )
    tensors: list[StoredTensor] = []
    for shard, names in wanted.items():
        _require_inside(folder, shard, label)
        held = {tensor.name: tensor for tensor in read_safetensors(folder / shard).tensors}
        for name in names:
            if name not in held:
                raise BadFile(f"{label}: got {shorten(shard)} without {shorten(name)}, expected it there")
            tensors.append(held[name])
    return StoredWeights(os.fspath(path), "safetensors", tuple(tensors), metadata)


def _shards(weight_map: object, label: str) -> dict[str, list[str]]:
    """Shard file -> its tensors, in order of the file names; every name checked."""
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFile(f"{label}: got weight_map {shorten(weight_map)}, expected {{tensor: file name}}")
    shards: dict[str, list[str]] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise BadFile(
                f"{label}: got {shorten(shard)} as the shard of {shorten(tensor)}, "
                "expected a plain file name ending in .safetensors"
            )
        shards.setdefault(shard, []).append(tensor)
    if len(shards) > MAX_SHARDS:
        raise BadFile(f"{label}: got {len(shards):,} shards, expected at most {MAX_SHARDS:,}")
    return dict(sorted(shards.items()))


def _is_plain_name(name: str) -> bool:
    return (
        name.endswith(".safetensors")
        and len(name) <= 255
        and name.isprintable()
        and not any(sign in name for sign in '/\\:*?"<>|')
    )


def _require_inside(folder: Path, shard: str, label: str) -> None:
    """BadFile if a link leads a shard out of its folder; a hub cache links snapshots to its blobs."""
    try:
        home = folder.resolve()
        target = (folder / shard).resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, in Python 3.11 and 3.12
        raise BadFile(f"{label}: got a shard {shorten(shard)} that leads nowhere, expected a file") from error
    homes = [home]
    if home.parent.name == "snapshots":
        homes.append(home.parent.parent / "blobs")
    if not any(target.is_relative_to(place) for place in homes):
        raise BadFile(
            f"{label}: got a shard {shorten(shard)} linked to {shorten(str(target))}, "
            "expected a file inside the folder"
        )

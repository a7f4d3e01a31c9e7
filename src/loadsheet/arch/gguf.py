"""Read the header of a GGUF file: metadata, and every tensor's type and exact bytes; nothing trusted.

The layout and its rules are those of ggml's own reader (https://github.com/ggml-org/llama.cpp,
`ggml/include/gguf.h` and `ggml/src/gguf.cpp`): tensors lie one after the other, each padded to the
alignment; names and keys are unique; a row fills whole blocks. What a header claims is compared with
what the file still holds before anything is read, and long arrays (the tokens) are passed over and
only counted, so memory stays small whatever the file says.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from loadsheet.arch.stored import Scalar, StoredTensor, StoredWeights
from loadsheet.errors import BadFile, shorten
from loadsheet.safejson import file_label, open_regular

#: ggml type -> (name, elements per block, bytes per block); `ggml/src/ggml-common.h`, QK_K = 256
GGML_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip
_REMOVED: Final = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
                   36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"}  # fmt: skip

#: metadata type -> how `struct` reads it; 8 is a string, 9 an array
_NUMBERS: Final = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<?"),
    10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9
_U32: Final = _NUMBERS[4]
_U64: Final = _NUMBERS[10]
_LENGTH_AT: Final = _U64.unpack_from

MAX_HEADER_BYTES: Final = 256 << 20  # the largest known (tokens, merges, a tokenizer as JSON) near 40 MB
MAX_KEYS: Final = 16_384
MAX_TENSORS: Final = 1 << 17
MAX_STRINGS: Final = 4_000_000  # in all arrays together; a vocabulary and its merges are under a million
_KEPT_TEXT: Final = 1_024  # bytes of a string that is kept; a longer one (a chat template) is only measured
_KEPT_ARRAY: Final = 4_096  # numbers of an array that is kept: enough for one per layer
_KEPT_NUMBERS: Final = 1 << 18  # in all kept arrays together
MAX_PARTS: Final = 4_096
_MAX_NAME: Final = 255
_WINDOW: Final = 1 << 20
_SHARD: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The header of a GGUF file (all parts of a split one together).

    `metadata` has the scalars, `arrays` the short arrays of numbers, `lengths` the number of
    entries of every array (and the bytes of texts too long to keep).
    """

    path: str
    version: int
    architecture: str
    metadata: Mapping[str, Scalar]
    arrays: Mapping[str, tuple[int | float | bool, ...]]
    lengths: Mapping[str, int]
    weights: StoredWeights

    def config(self) -> dict[str, Any]:
        """A Hugging Face style config of the model.

        UnsupportedArchitecture if no such model is described here, BadFile if metadata and tensors
        contradict each other. The keys are those that the families read, `model_type` first.
        """
        from loadsheet.arch.gguf_config import hugging_face_config

        return hugging_face_config(self)

    @property
    def extra_tensors(self) -> tuple[StoredTensor, ...]:
        """Tensors that are stored but no parameters of the model: rotary factors, scales, copies."""
        from loadsheet.arch.gguf_facts import extra_tensors

        return extra_tensors(self)

    @property
    def model_params(self) -> int:
        """Parameters of the model itself: all stored elements but those of `extra_tensors`."""
        return self.weights.params - sum(tensor.params for tensor in self.extra_tensors)


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """The header of a GGUF file, with that of its sibling parts if it is split; BadFile if it lies.

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    first = _read_one(path)
    parts = first.metadata.get("split.count", 0)
    if type(parts) is not int or parts <= 1:
        return first
    label = file_label(path, "GGUF file")
    match = _SHARD.fullmatch(Path(path).name)
    if match is None or int(match[3]) != parts or parts > MAX_PARTS:
        raise BadFile(
            f"{label}: got one of {parts} parts, expected a name ending in -00001-of-{parts:05}.gguf",
            "give the parts their original names, or merge them with llama-gguf-split",
        )
    siblings = [Path(path).parent / f"{match[1]}-{n:05}-of-{parts:05}.gguf" for n in range(1, parts + 1)]
    missing = next((sibling for sibling in siblings if not os.path.lexists(sibling)), None)
    if missing is not None:
        raise BadFile(f"{label}: got only some of {parts} parts, expected {shorten(missing.name)} beside it")
    files = [first if sibling.name == Path(path).name else _read_one(sibling) for sibling in siblings]
    for number, file in enumerate(files):
        found = file.metadata.get("split.no"), file.metadata.get("split.count")
        if found != (number, parts):
            raise BadFile(
                f"{file_label(siblings[number], 'GGUF file')}: got part {shorten(found[0])} of "
                f"{shorten(found[1])} (counted from 0), expected {number} of {parts}"
            )
    tensors = tuple(tensor for file in files for tensor in file.weights.tensors)
    names = {tensor.name for tensor in tensors}
    claimed = files[0].metadata.get("split.tensors.count", len(tensors))
    if len(names) != len(tensors) or claimed != len(tensors):
        raise BadFile(
            f"{label}: got {len(names)} different tensors in {parts} parts, expected {shorten(claimed)}"
        )
    weights = replace(first.weights, tensors=tensors, metadata=files[0].metadata)
    return replace(files[0], path=os.fspath(path), weights=weights)


def _read_one(path: str | os.PathLike[str]) -> GgufFile:
    label = file_label(path, "GGUF file")
    with open_regular(path, "GGUF file") as (file, size):
        reader = _Reader(file, size, label)
        version = _read_start(reader)
        tensor_count = reader.number(_U64, "the number of tensors")
        key_count = reader.number(_U64, "the number of keys")
        for count, limit, what in ((tensor_count, MAX_TENSORS, "tensors"), (key_count, MAX_KEYS, "keys")):
            if count > limit:
                raise reader.error(f"{count:,} {what} by its header", f"at most {limit:,}")
        header = _Metadata(reader)
        for _ in range(key_count):
            header.read_pair()
        tensors = _read_tensors(reader, tensor_count, header.alignment())
    architecture = header.scalars.get("general.architecture", "")
    if not isinstance(architecture, str):
        raise reader.error(f"architecture {shorten(architecture)}", "a name as `general.architecture`")
    weights = StoredWeights(os.fspath(path), "gguf", tensors, header.scalars)
    return GgufFile(
        weights.path, version, architecture, header.scalars, header.arrays, header.lengths, weights
    )


class _Reader:
    """Takes bytes from a file in order, never more than it holds nor than a header may have."""

    def __init__(self, file: BinaryIO, size: int, label: str) -> None:
        self.file, self.size, self.label = file, size, label
        self.at = 0

    def error(self, got: str, expected: str, hint: str = "") -> BadFile:
        return BadFile(f"{self.label}: got {got}, expected {expected}", hint)

    def claim(self, count: int, what: str) -> None:
        """BadFile unless `count` more bytes are there and may belong to a header."""
        if count > self.size - self.at:
            raise self.error(
                f"{self.size:,} bytes",
                f"at least {self.at + count:,}, to hold {what}",
                "the file is truncated, or its header lies",
            )
        if self.at + count > MAX_HEADER_BYTES:
            raise self.error(f"a header of more than {MAX_HEADER_BYTES:,} bytes", "less than that")

    def take(self, count: int, what: str) -> bytes:
        self.claim(count, what)
        data = self.file.read(count)
        if len(data) != count:  # the file shrank while it was read
            raise self.error(f"only {self.at + len(data):,} bytes", f"at least {self.at + count:,}")
        self.at += count
        return data

    def skip(self, count: int, what: str) -> None:
        self.claim(count, what)
        self.at += count
        self.file.seek(self.at)

    def number(self, form: struct.Struct, what: str) -> Any:
        return form.unpack(self.take(form.size, what))[0]

    def text(self, what: str, limit: int) -> str:
        length = self.number(_U64, f"the length of {what}")
        if length > limit:
            raise self.error(f"{length:,} bytes as the length of {what}", f"at most {limit}")
        data = self.take(length, what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what} {shorten(data)}", "UTF-8 text") from None

    def skip_strings(self, count: int, what: str) -> None:
        """Pass over `count` strings without keeping one, a window of the file at a time."""
        self.claim(8 * count, what)
        window, at = b"", 0
        for done in range(count):
            if at + 8 > len(window):
                self.at += at
                self.claim(8 * (count - done), what)
                self.file.seek(self.at)
                window, at = self.file.read(min(_WINDOW, self.size - self.at)), 0
                if len(window) < 8:
                    raise self.error(f"only {self.at + len(window):,} bytes", "more, to hold " + what)
            at += 8 + _LENGTH_AT(window, at)[0]
        self.at += at
        self.claim(0, what)  # the last string, too, must end inside the file
        self.file.seek(self.at)


def _read_start(reader: _Reader) -> int:
    """Check the first bytes; the format's version."""
    magic = reader.take(4, "the four letters GGUF")
    if magic != b"GGUF":
        older = magic in (b"lmgg", b"fmgg", b"tjgg", b"algg")  # ggml, ggmf, ggjt, ggla: 32-bit, little endian
        hint = "convert this older ggml file to GGUF first" if older else "is this a GGUF file?"
        raise reader.error(f"{shorten(magic)} at its start", "b'GGUF'", hint)
    version: int = reader.number(_U32, "the version")
    if version and not version & 0xFFFF:
        raise reader.error(
            "numbers in big-endian order", "little-endian", "convert it with gguf_convert_endian.py"
        )
    if version not in (2, 3):
        raise reader.error(
            f"GGUF version {version}", "2 or 3", "convert the model again" if version < 2 else ""
        )
    return version


class _Metadata:
    """Collects the key-value pairs."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader
        self.scalars: dict[str, Scalar] = {}
        self.arrays: dict[str, tuple[int | float | bool, ...]] = {}
        self.lengths: dict[str, int] = {}
        self.strings = 0
        self.kept = 0

    def read_pair(self) -> None:
        reader = self.reader
        key = reader.text("a key", _MAX_NAME)
        if not key or key in self.scalars or key in self.lengths:
            raise reader.error(f"the key {shorten(key)} twice" if key else "an empty key", "each key once")
        what = f"the value of {shorten(key)}"
        kind = reader.number(_U32, what)
        if kind == _ARRAY:
            self._read_array(key, what)
        elif kind == _STRING:
            length = reader.number(_U64, what)
            if length > _KEPT_TEXT:
                reader.skip(length, what)
                self.lengths[key] = length
            else:
                self.scalars[key] = reader.take(length, what).decode("utf-8", errors="replace")
        elif kind in _NUMBERS:
            self.scalars[key] = reader.number(_NUMBERS[kind], what)
        else:
            raise reader.error(f"type {kind} as {what}", "one from 0 to 12")

    def _read_array(self, key: str, what: str) -> None:
        reader = self.reader
        kind = reader.number(_U32, what)
        count = reader.number(_U64, what)
        self.lengths[key] = count
        if kind == _STRING:
            self.strings += count
            reader.claim(8 * count, what)  # first: a claim of 2^60 strings is a lie before it is too many
            if self.strings > MAX_STRINGS:
                raise reader.error(f"{self.strings:,} strings in arrays", f"at most {MAX_STRINGS:,}")
            reader.skip_strings(count, what)
        elif kind in _NUMBERS:
            form = _NUMBERS[kind]
            if count > _KEPT_ARRAY or self.kept + count > _KEPT_NUMBERS:
                reader.skip(form.size * count, what)
            else:
                self.kept += count
                data = reader.take(form.size * count, what)
                self.arrays[key] = tuple(value for (value,) in form.iter_unpack(data))
        else:
            raise reader.error(f"an array of type {kind} as {what}", "an array of numbers or strings")

    def alignment(self) -> int:
        value = self.scalars.get("general.alignment", 32)
        if type(value) is not int or value < 1 or value & (value - 1) or "general.alignment" in self.lengths:
            raise self.reader.error(f"general.alignment {shorten(value)}", "a power of two")
        return value


def _read_tensors(reader: _Reader, count: int, alignment: int) -> tuple[StoredTensor, ...]:
    """The tensors' entries, checked one against the other and against the size of the file."""
    tensors: list[StoredTensor] = []
    names: set[str] = set()
    end = reached = 0
    for _ in range(count):
        name = reader.text("a tensor's name", _MAX_NAME)
        if not name or name in names:
            raise reader.error(
                f"the tensor {shorten(name)} twice" if name else "an unnamed tensor", "unique names"
            )
        names.add(name)
        what = f"tensor {shorten(name)}"
        dimensions = reader.number(_U32, what)
        if dimensions > 4:
            raise reader.error(f"{dimensions:,} dimensions for {what}", "at most 4")
        shape = struct.unpack(f"<{dimensions}Q", reader.take(8 * dimensions, what))
        kind = reader.number(_U32, what)
        offset = reader.number(_U64, what)
        tensor = _tensor(reader, name, shape, kind)
        if offset != reached:
            raise reader.error(f"offset {offset:,} for {what}", f"{reached:,}, where the one before it ends")
        end = offset + tensor.nbytes
        reached = -(-end // alignment) * alignment
        tensors.append(tensor)
    start = -(-reader.at // alignment) * alignment
    if tensors and start + end > reader.size:
        raise reader.error(
            f"{reader.size:,} bytes", f"at least {start + end:,} by its header", "is the download complete?"
        )
    return tuple(tensors)


def _tensor(reader: _Reader, name: str, shape: tuple[int, ...], kind: int) -> StoredTensor:
    """One tensor; its shape turned round, since GGUF writes the fastest dimension first."""
    what = f"tensor {shorten(name)}"
    if kind not in GGML_TYPES:
        known = f"{kind} ({_REMOVED[kind]}, which ggml has removed)" if kind in _REMOVED else str(kind)
        raise reader.error(f"type {known} for {what}", f"a ggml type from 0 to {max(GGML_TYPES)}")
    dtype, block, block_bytes = GGML_TYPES[kind]
    elements = 1
    for dimension in shape:
        elements *= max(dimension, 1)
    if elements >= 2**63:
        raise reader.error(f"shape {shorten(shape)} for {what}", "fewer than 2^63 elements")
    row = shape[0] if shape else 1
    if row % block:
        raise reader.error(
            f"rows of {row:,} elements for {what}", f"a multiple of {block}, the block of {dtype}"
        )
    stored = StoredTensor(name, shape[::-1], dtype, 0)
    return replace(stored, nbytes=stored.params // block * block_bytes)

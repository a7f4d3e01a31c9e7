"""JSON and safetensors: right on honest files, one line of error on every other file."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import (
    TINY_SAFETENSORS,
    cheaply,
    json_values,
    one_line_error,
    safetensors_bytes,
    spoiled,
    written,
)

from loadsheet.arch.gguf import read_gguf
from loadsheet.arch.safetensors import DTYPE_BITS, read_safetensors, read_safetensors_index
from loadsheet.errors import BadFile, LoadsheetError
from loadsheet.safejson import load_json, parse_json

FILE_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

# --- JSON ------------------------------------------------------------------------------------------------


def test_json_file_with_byte_order_mark(tmp_path: Path) -> None:
    """A config saved by an editor that puts a mark before it is read all the same."""
    path = written(tmp_path, "config.json", b'\xef\xbb\xbf{"a": [1, 2.5, "\xc3\xa9", true, null]}')
    assert load_json(path) == {"a": [1, 2.5, "é", True, None]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "got nothing"),
        (b" \n", "got only white space"),
        (b'{"a": 1', "line 1, column 8"),
        (b'{"a": 1} x', "column 10"),
        (b'{"a": 1,\n "a": 2}', "the key 'a' twice"),
        (b'{"a": {"b": 1, "c": 2, "b": 1}}', "the key 'b' twice"),
        (b'{"a": NaN}', "the value NaN"),
        (b'{"a": -Infinity}', "the value -Infinity"),
        (b'{"a": 1e999}', "the number '1e999'"),
        (b'{"a": 0.' + b"1" * 100 + b"}", "the number '0.111"),
        (b'{"a": -' + b"1" * 21 + b"}", "a whole number of 21 digits"),
        (b'{"a": ' + b"1" * 5000 + b"}", "a whole number of 5000 digits"),
        (b'{"a": "\xff"}', "not UTF-8 at offset 7"),
        (b'{"a": ["\\ud800"]}', "surrogate"),
        (b'{"\\uDFFF": 1}', "surrogate"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nesting deeper than 64"),
        (b"[" * 8_000_000, "nesting deeper than 64"),
        (b'"' + b'[\\"' * 200_000, "unterminated string"),
        (b"[1, 2]", "an array at the top level"),
        (b"7", "a number at the top level"),
        (b'{"a": "tab\tinside"}', "invalid control character"),
    ],
)
def test_json_refused(tmp_path: Path, text: bytes, words: str) -> None:
    """Every text that is no sound JSON object gives one line that says what was found, at small cost."""
    path = written(tmp_path, "config.json", text)
    cheaply(lambda: one_line_error(lambda: load_json(path), words, "config.json"), seconds=3, mib=32)


@pytest.mark.parametrize("item", [b"1", b"{}", b"[]", b'""'])
def test_json_of_too_many_values(tmp_path: Path, item: bytes) -> None:
    """Values are counted before one is made: small texts that would become large lists cost little."""
    path = written(tmp_path, "config.json", b"[" + (item + b",") * 2_000_000 + item + b"]")
    cheaply(
        lambda: one_line_error(lambda: load_json(path, max_values=10_000), "more than 10,000 values"), mib=16
    )
    one_line_error(lambda: load_json(path), "more than 1,000,000 values")


def test_json_limits_are_met_exactly() -> None:
    """64 levels, 20 digits and the allowed number of values pass; signs inside strings do not count."""
    assert parse_json(b"[[]," + b"[" * 63 + b"]" * 63 + b"]", "text") is not None
    assert parse_json(b"-" + b"9" * 20, "text") == -(10**20) + 1
    assert parse_json(b"[1,2,3]", "text", max_values=4) == [1, 2, 3]
    with pytest.raises(BadFile, match="more than 3 values"):
        parse_json(b"[1,2,3]", "text", max_values=3)
    signs = '[{,\\"' * 50
    assert parse_json(b'["' + signs.encode() + b'"]', "text", max_values=3) == ['[{,"' * 50]


@given(json_values)
def test_json_equals_the_standard_library(value: object) -> None:
    """Whatever `json.dumps` writes is read back the same."""
    assert parse_json(json.dumps(value).encode(), "text") == value
    assert parse_json(json.dumps(value, ensure_ascii=False, indent=1).encode(), "text") == value


@given(st.binary(max_size=200) | st.text('{}[]",:\\u0d8e1-.NaI\n ', max_size=60).map(str.encode))
def test_json_of_any_bytes(data: bytes) -> None:
    """Any bytes at all: a value that the standard library also sees, or our own error."""
    try:
        value = parse_json(data, "text")
    except LoadsheetError:
        return
    assert value == json.loads(data.decode("utf-8-sig"))


# --- files that are none ---------------------------------------------------------------------------------

READERS: list[Callable[[Any], object]] = [load_json, read_safetensors, read_safetensors_index, read_gguf]


def refused(read: Callable[[Any], object], path: Path, words: str) -> None:
    cheaply(lambda: one_line_error(lambda: read(path), words), mib=1)


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_file(tmp_path: Path, read: Callable[[Any], object]) -> None:
    """Pipes, sockets, devices, folders, loops of links, absent and impossible names: refused at once."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "pool")
    (tmp_path / "pool").symlink_to(tmp_path / "loop")
    here = os.getcwd()
    os.chdir(tmp_path)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("socket")
    finally:
        os.chdir(here)
    for name, words in {
        "folder": "a folder", "pipe": "a pipe", "socket": "a socket", "loop": "symbolic links",
        "absent": "no such file", "folder/x/y": "no such file", "pipe/x": "not a directory",
        "a\0b": "no usable path", "x" * 5000: "too long", "\ud800": "no usable path",
    }.items():  # fmt: skip
        refused(read, tmp_path / name, words)
    one_line_error(lambda: read("/dev/zero"), "a character device")


@pytest.mark.parametrize("read", READERS)
def test_sparse_file_of_ten_gigabytes(tmp_path: Path, read: Callable[[Any], object]) -> None:
    """A huge file of zeros is refused without being read."""
    path = written(tmp_path, "config.json", b"")
    os.truncate(path, 10**10)
    cheaply(lambda: one_line_error(lambda: read(path)), seconds=0.5, mib=1)
    cheaply(
        lambda: one_line_error(lambda: load_json(path), "10,000,000,000 bytes", "8,388,608"),
        seconds=0.5,
        mib=1,
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the kernel's own files are Linux's")
def test_file_that_hides_its_size() -> None:
    """A regular file whose size is told as 0, as the kernel does for its own, is read up to the limit."""
    assert os.path.getsize("/proc/self/status") == 0
    one_line_error(lambda: load_json("/proc/self/status", limit=10), "got 11 bytes, expected at most 10")
    one_line_error(lambda: load_json("/proc/self/mem"), "got input/output error")


# --- safetensors -----------------------------------------------------------------------------------------


def test_safetensors_counts(tmp_path: Path) -> None:
    """Names, shapes in order of the data, types and bytes of a file written by the format's description."""
    weights = read_safetensors(written(tmp_path, "m.safetensors", TINY_SAFETENSORS))
    assert [(t.name, t.shape, t.dtype, t.nbytes) for t in weights.tensors] == [
        ("a", (), "F32", 4), ("b", (2, 3), "BF16", 12), ("c", (4,), "F4", 2),
    ]  # fmt: skip
    assert (weights.params, weights.nbytes, weights.complete) == (1 + 6 + 4, 18, True)
    assert weights.by_dtype == {"BF16": (6, 12), "F32": (1, 4), "F4": (4, 2)}
    assert weights.metadata == {"format": "pt"}


def test_safetensors_types() -> None:
    """Every type of safetensors 0.8.0, by the list that its own error message prints, and no other."""
    known = (
        "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ "
        "I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64"
    )
    assert set(DTYPE_BITS) == set(known.split())


def test_safetensors_accepts_what_the_reference_does(tmp_path: Path) -> None:
    """No tensor at all, empty tensors between others, padding by spaces, unknown keys: all sound."""
    for header, data, params in (
        ({}, b"", 0),
        (b'{"__metadata__":null}   ', b"", 0),
        ({"a": {"dtype": "F32", "shape": [0, 9], "data_offsets": [0, 0]}}, b"", 0),
        ({"b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
          "a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]},
          "c": {"dtype": "I8", "shape": [0], "data_offsets": [4, 4], "more": 1}}, b"0000", 1),
    ):  # fmt: skip
        path = written(tmp_path, "m.safetensors", safetensors_bytes(header, data))
        assert read_safetensors(path).params == params


def entry(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ([], "no JSON object"),
        ({"a": 7}, "tensor 'a': got 7"),
        ({"a": {}}, "got dtype None"),
        ({"a": entry(dtype="F7")}, "got dtype 'F7'"),
        ({"a": entry(dtype=["F32"])}, "got dtype ['F32']"),
        ({"a": entry(shape="1")}, "shape: got '1'"),
        ({"a": entry(shape=[-1])}, "shape: got [-1]"),
        ({"a": entry(shape=[1.0])}, "shape: got [1.0]"),
        ({"a": entry(shape=[True])}, "shape: got [True]"),
        ({"a": entry(shape=[2**63, 2])}, "a product below 2^64"),
        ({"a": entry(shape=[2**63, 4, 0], offsets=[0, 0])}, "a product below 2^64"),
        ({"a": entry(shape=[0, 2**64], offsets=[0, 0])}, "a product below 2^64"),
        ({"a": entry(shape=[10**18] * 100_000)}, "a product below 2^64"),
        ({"a": entry(shape=[2])}, "got 4 bytes by its offsets, expected 8"),
        ({"a": entry(dtype="F4", shape=[3], offsets=[0, 1])}, "3 elements of 4 bits"),
        ({"a": entry(offsets=[-4, 0])}, "data_offsets: got [-4, 0]"),
        ({"a": entry(offsets=[4, 0])}, "data_offsets: got [4, 0]"),
        ({"a": entry(offsets=[0, 4, 8])}, "expected [begin, end]"),
        ({"a": entry(offsets=None)}, "data_offsets: got None"),
        ({"a": entry(offsets=[2**62, 2**62 + 4])}, "after a gap, expected 0"),
        ({"a": entry(), "b": entry(offsets=[2, 6])}, "tensor 'b': got offset 2, overlapping"),
        ({"a": entry(), "b": entry(offsets=[0, 4])}, "overlapping the one before, expected 4"),
        ({"a": entry(shape=[2], offsets=[0, 8])}, "got 4 bytes of data, expected 8"),
        ({}, "got 4 bytes of data, expected 0"),
        ({"__metadata__": {"a": 1}}, "as `__metadata__`"),
        ({"__metadata__": "pt"}, "as `__metadata__`"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":1}', "the key 'a' twice"),
        (b"{}\0\0", "no valid JSON"),
    ],
)
def test_safetensors_lies(tmp_path: Path, header: object, words: str) -> None:
    """A header that contradicts itself or the file (which holds 4 bytes of data) is refused."""
    path = written(tmp_path, "m.safetensors", safetensors_bytes(header, b"0000"))
    cheaply(lambda: one_line_error(lambda: read_safetensors(path), words, "m.safetensors"), mib=32)


@pytest.mark.parametrize("length", [3, 100_000_000, 100_000_001, 2**63, 2**64 - 1])
def test_safetensors_header_longer_than_the_file(tmp_path: Path, length: int) -> None:
    """A header length beyond the file or the format's 100 MB is refused before anything is read."""
    path = written(tmp_path, "m.safetensors", struct.pack("<Q", length) + b"{}")
    cheaply(lambda: one_line_error(lambda: read_safetensors(path)), seconds=0.2, mib=1)


def test_safetensors_cut_anywhere(tmp_path: Path) -> None:
    """Cut at any byte, or longer by one, the file is refused: its header accounts for every byte."""
    for length in range(len(TINY_SAFETENSORS)):
        path = written(tmp_path, "m.safetensors", TINY_SAFETENSORS[:length])
        one_line_error(lambda path=path: read_safetensors(path))
    path = written(tmp_path, "m.safetensors", TINY_SAFETENSORS + b"\0")
    one_line_error(lambda: read_safetensors(path), "got 19 bytes of data, expected 18")


@FILE_FIXTURE
@given(data=st.binary(max_size=300) | spoiled(TINY_SAFETENSORS, len(TINY_SAFETENSORS) - 18))
def test_safetensors_of_any_bytes(tmp_path: Path, data: bytes) -> None:
    """Any bytes at all: bytes that fit the file's size, or our own error."""
    path = written(tmp_path, "m.safetensors", data)
    try:
        weights = read_safetensors(path)
    except LoadsheetError:
        return
    assert weights.nbytes == len(data) - 8 - int.from_bytes(data[:8], "little")


# --- safetensors in shards -------------------------------------------------------------------------------


def shard(*names: str) -> bytes:
    header = {name: entry(offsets=[4 * n, 4 * n + 4]) for n, name in enumerate(names)}
    return safetensors_bytes(header, b"\0" * 4 * len(names))


def index(folder: Path, weight_map: object, metadata: object = None) -> Path:
    text = {"metadata": {"total_size": 12} if metadata is None else metadata, "weight_map": weight_map}
    return written(folder, "model.safetensors.index.json", json.dumps(text).encode())


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_index_counts_its_own_tensors(tmp_path: Path) -> None:
    """The tensors of the map, each once, from the shard that the map names."""
    written(tmp_path, ONE, shard("a", "b"))
    written(tmp_path, TWO, shard("b", "c"))
    weights = read_safetensors_index(index(tmp_path, {"c": TWO, "a": ONE, "b": ONE}))
    assert sorted(tensor.name for tensor in weights.tensors) == ["a", "b", "c"]
    assert (weights.params, weights.nbytes, weights.complete) == (3, 12, True)
    assert weights.metadata == {"total_size": 12}


def test_index_without_shards(tmp_path: Path) -> None:
    """With no shard beside it the index gives its bytes, and an error where parameters are asked for."""
    weights = read_safetensors_index(index(tmp_path, {"a": ONE, "b": TWO}))
    assert (weights.nbytes, weights.complete, weights.tensors) == (12, False, ())
    one_line_error(lambda: weights.params, "index without its shards")
    one_line_error(lambda: weights.by_dtype, "index without its shards")
    for total in (None, "12", 0, -1, 1.5, True, 2**63):
        path = index(tmp_path, {"a": ONE, "b": TWO}, {"total_size": total})
        one_line_error(lambda path=path: read_safetensors_index(path), "none of its 2 shards")


def test_index_with_a_shard_missing_or_wrong(tmp_path: Path) -> None:
    """One shard missing, without its tensor, or damaged: an error that names it."""
    path = index(tmp_path, {"a": ONE, "b": TWO})
    written(tmp_path, ONE, shard("a"))
    one_line_error(lambda: read_safetensors_index(path), "1 of 2 shards", TWO)
    written(tmp_path, TWO, shard("c"))
    one_line_error(lambda: read_safetensors_index(path), TWO, "without 'b'")
    written(tmp_path, TWO, shard("b")[:-1])
    one_line_error(lambda: read_safetensors_index(path), TWO, "got 3 bytes of data")


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/x.safetensors", "a/../x.safetensors", "..\\x.safetensors", "C:x.safetensors",
     "x.bin", "", "..", ".", "x\0.safetensors", "x\n.safetensors", "x" * 300 + ".safetensors", 7, None, ["x"],
     "\u202ex.safetensors"],
)  # fmt: skip
def test_index_naming_files_elsewhere(tmp_path: Path, name: object) -> None:
    """A shard must be a plain file name: no way out of the folder."""
    path = index(tmp_path, {"a": name})
    one_line_error(lambda: read_safetensors_index(path), "a plain file name")


@pytest.mark.parametrize("weight_map", [None, {}, [], "x", 7])
def test_index_without_a_map(tmp_path: Path, weight_map: object) -> None:
    """An index without a map of tensors is none."""
    path = index(tmp_path, weight_map)
    one_line_error(lambda: read_safetensors_index(path), "got weight_map")


def test_index_with_links(tmp_path: Path) -> None:
    """Links inside the folder and into a hub cache's blobs are followed; others and loops are refused."""
    snapshot = tmp_path / "models--x--y" / "snapshots" / "0123"
    blobs = tmp_path / "models--x--y" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    path = index(snapshot, {"a": ONE, "b": TWO})
    written(blobs, "abcd", shard("a"))
    (snapshot / ONE).symlink_to("../../blobs/abcd")
    written(snapshot, "real", shard("b"))
    (snapshot / TWO).symlink_to("real")
    assert read_safetensors_index(path).params == 2
    written(tmp_path, "outside", shard("b"))
    for target in ("../../../outside", str(tmp_path / "outside")):
        (snapshot / TWO).unlink()
        (snapshot / TWO).symlink_to(target)
        one_line_error(lambda: read_safetensors_index(path), "a file inside the folder")
    for target in (TWO, "nowhere"):
        (snapshot / TWO).unlink()
        (snapshot / TWO).symlink_to(target)
        one_line_error(lambda: read_safetensors_index(path), "leads nowhere")

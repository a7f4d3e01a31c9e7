"""Files built byte by byte, ways to spoil them, and what a refusal must be: shared by the readers' tests."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st

from loadsheet.errors import BadFile

MIB = 1 << 20
T = TypeVar("T")

#: metadata type of GGUF -> form of its number
NUMBER_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
#: the ggml types that the built files use -> (elements, bytes) of a block; ggml/src/ggml-common.h
BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34), 12: (256, 144), 30: (1, 2), 39: (32, 17)}

Pair = tuple[str, Sequence[int], Any]
Tensor = tuple[str, Sequence[int], int]


def safetensors_bytes(header: object, data: bytes = b"") -> bytes:
    """A .safetensors file: the length of the header, the header, the data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def gguf_text(text: str | bytes) -> bytes:
    """A string as GGUF stores it."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def gguf_value(types: Sequence[int], value: Any) -> bytes:
    """A metadata value with its type, or types: [9, kind] is an array; a number stands for so many tokens."""
    head = struct.pack(f"<{len(types)}I", *types)
    if types[0] == 8:
        return head + gguf_text(value)
    if types[0] != 9:
        return head + struct.pack("<" + NUMBER_FORMS[types[0]], value)
    if types[1] == 8:
        items = [f"token {n}" for n in range(value)] if isinstance(value, int) else value
        return head + struct.pack("<Q", len(items)) + b"".join(map(gguf_text, items))
    return head + struct.pack(f"<Q{len(value)}{NUMBER_FORMS[types[1]]}", len(value), *value)


def tensor_bytes(dimensions: Sequence[int], kind: int) -> int:
    """Bytes of the data of a tensor."""
    elements = 1
    for dimension in dimensions:
        elements *= dimension
    block, size = BLOCKS[kind]
    return elements // block * size


def gguf_header(
    metadata: Sequence[Pair], tensors: Sequence[Tensor], version: int = 3, alignment: int = 32
) -> tuple[bytes, int]:
    """The header of a GGUF file, padded, and the bytes of data that must follow it."""
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    parts += [gguf_text(key) + gguf_value(types, value) for key, types, value in metadata]
    offset = size = 0
    for name, dimensions, kind in tensors:
        parts.append(gguf_text(name) + struct.pack("<I", len(dimensions)))
        parts.append(struct.pack(f"<{len(dimensions)}QIQ", *dimensions, kind, offset))
        size = offset + tensor_bytes(dimensions, kind)
        offset = -(-size // alignment) * alignment
    header = b"".join(parts)
    return header + b"\0" * (-len(header) % alignment), size


def gguf_bytes(metadata: Sequence[Pair], tensors: Sequence[Tensor], **options: int) -> bytes:
    """A whole GGUF file; its data is zeros."""
    header, size = gguf_header(metadata, tensors, **options)
    return header + b"\0" * size


#: a model of one block, small enough to be cut at every byte
TINY_METADATA: list[Pair] = [
    ("general.architecture", [8], "llama"),
    ("llama.block_count", [4], 1),
    ("llama.embedding_length", [4], 32),
    ("llama.feed_forward_length", [4], 64),
    ("llama.attention.head_count", [4], 4),
    ("llama.attention.head_count_kv", [9, 5], [2]),
    ("llama.context_length", [10], 128),
    ("llama.rope.freq_base", [6], 10000.0),
    ("general.flag", [7], True),
    ("tokenizer.ggml.tokens", [9, 8], ["a", "bc", ""]),
]
TINY_TENSORS: list[Tensor] = [
    ("token_embd.weight", [32, 3], 8),
    ("output_norm.weight", [32], 0),
    ("blk.0.attn_norm.weight", [32], 0),
    ("blk.0.attn_q.weight", [32, 32], 8),
    ("blk.0.attn_k.weight", [32, 16], 8),
    ("blk.0.attn_v.weight", [32, 16], 8),
    ("blk.0.attn_output.weight", [32, 32], 8),
    ("blk.0.ffn_norm.weight", [32], 0),
    ("blk.0.ffn_gate.weight", [32, 64], 39),
    ("blk.0.ffn_up.weight", [32, 64], 39),
    ("blk.0.ffn_down.weight", [64, 32], 1),
]
TINY_GGUF = gguf_bytes(TINY_METADATA, TINY_TENSORS)
TINY_SAFETENSORS = safetensors_bytes(
    {
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [4, 16]},
        "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        "c": {"dtype": "F4", "shape": [4], "data_offsets": [16, 18]},
    },
    b"\0" * 18,
)

_numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
_texts = st.text(st.characters(exclude_categories=["Cs"])) | st.text('abc{}[],"\\', max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_texts, inner, max_size=5),
    max_leaves=30,
)


@st.composite
def spoiled(draw: st.DrawFn, whole: bytes, header: int) -> bytes:
    """A valid file with some bytes of its header changed, cut out or put in, or its end cut off."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(header, len(data))))
        put = draw(st.binary(max_size=9) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff" * 4, b"9" * 30]))
        data[at : at + draw(st.integers(0, 9))] = put
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


def cheaply(action: Callable[[], T], seconds: float = 2.0, mib: float = 64) -> T:
    """Do it twice: once against the clock (of this process alone), once counting its memory."""
    started = time.process_time()
    action()
    assert time.process_time() - started < seconds
    tracemalloc.start()
    try:
        result = action()
        assert tracemalloc.get_traced_memory()[1] < mib * MIB
    finally:
        tracemalloc.stop()
    return result


def one_line_error(read: Callable[[], object], *words: str) -> BadFile:
    """The BadFile that `read` must raise, checked for its form and words."""
    with pytest.raises(BadFile) as caught:
        read()
    message = str(caught.value)
    assert "got " in message
    assert "expected " in message
    assert "\n" not in message
    assert len(message) < 400
    for word in words:
        assert word in message
    return caught.value


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path

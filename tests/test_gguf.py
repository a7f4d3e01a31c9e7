"""GGUF: the header that llama.cpp writes is understood to the byte, every other one is refused."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import (
    TINY_GGUF,
    TINY_METADATA,
    TINY_TENSORS,
    cheaply,
    gguf_bytes,
    gguf_header,
    gguf_text,
    one_line_error,
    spoiled,
    written,
)

from loadsheet.arch.gguf import GGML_TYPES, read_gguf
from loadsheet.errors import LoadsheetError, UnsupportedArchitecture

DATA = Path(__file__).parent / "data" / "gguf_headers.json"
HEADERS: list[dict[str, Any]] = json.loads(DATA.read_text())["cases"]
FILE_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

# --- GGUF ------------------------------------------------------------------------------------------------

#: bits per weight: https://huggingface.co/docs/hub/gguf (k- and i-quants), OCP MX (4 bits and 8 per 32)
BITS_PER_WEIGHT = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "Q8_0": 8.5, "Q5_0": 5.5, "Q5_1": 6, "Q4_0": 4.5, "Q4_1": 5,
    "Q2_K": 2.625, "Q3_K": 3.4375, "Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625,
    "IQ4_NL": 4.5, "IQ4_XS": 4.25, "IQ3_S": 3.4375, "IQ3_XXS": 3.0625, "IQ2_XXS": 2.0625,
    "IQ2_XS": 2.3125, "IQ2_S": 2.5625, "IQ1_S": 1.5625, "IQ1_M": 1.75,
    "TQ1_0": 1.6875, "TQ2_0": 2.0625, "MXFP4": 4.25, "NVFP4": 4.5, "Q1_0": 1.125, "Q2_0": 2.25,
    "Q8_1": 9, "Q8_K": 9.125,
}  # fmt: skip


def test_gguf_types() -> None:
    """Each type takes the bits per weight that its publication says."""
    assert {name: 8 * size / block for name, block, size in GGML_TYPES.values()} == BITS_PER_WEIGHT


@pytest.mark.parametrize("case", HEADERS, ids=lambda case: case["case"])
def test_gguf_of_the_converter(tmp_path: Path, case: dict[str, Any]) -> None:
    """What llama.cpp's converter wrote of a transformers model gives that model's config and parameters."""
    file = read_gguf(written(tmp_path, "m.gguf", gguf_bytes(case["metadata"], case["tensors"])))
    config = file.config()
    assert {key: config.get(key) for key in case["config"]} == case["config"]
    assert file.model_params == case["params"]


def test_gguf_extra_tensors(tmp_path: Path) -> None:
    """Rotary factors and the router's buffer stay in the stored bytes and out of the parameters."""
    by_case = {case["case"]: case for case in HEADERS}
    for name, extra in {
        "llama": {"rope_freqs.weight"},
        "phi3_swa": {"rope_factors_long.weight", "rope_factors_short.weight"},
        "deepseek_v3": {"blk.1.exp_probs_b.bias", "blk.2.exp_probs_b.bias"},
        "qwen3": set(),
    }.items():
        case = by_case[name]
        file = read_gguf(written(tmp_path, "m.gguf", gguf_bytes(case["metadata"], case["tensors"])))
        assert {tensor.name for tensor in file.extra_tensors} == extra
        assert len(file.weights.tensors) == len(case["tensors"])


def case_with(name: str, tensors: list[Any], without: str = "-", metadata: list[Any] | None = None) -> bytes:
    """The file of one case with tensors added and others (whose name contains `without`) left out."""
    case = next(case for case in HEADERS if case["case"] == name)
    kept = [tensor for tensor in case["tensors"] if without not in tensor[0]]
    return gguf_bytes(case["metadata"] + (metadata or []), kept + tensors)


@pytest.mark.parametrize(
    ("case", "added", "without"),
    [
        # files of before 2025 hold DeepSeek's joined projection beside its two halves
        ("deepseek_v3", [[f"blk.{n}.attn_kv_b.weight", [32, 224], 1] for n in range(3)], "-"),
        # files of before 2025 hold a copy of GPT-2's tied head
        ("gpt2", [["output.weight", [64, 96], 1]], "-"),
        # files of before April 2024 hold Mixtral's experts one by one
        ("mixtral", [[f"blk.{n}.ffn_{kind}.{e}.weight", [160, 64] if kind == "down" else [64, 160], 1]
                     for n in range(2) for kind in ("gate", "up", "down") for e in range(4)], "_exps"),
        # NVFP4 keeps one scale for each tensor
        ("qwen3", [["blk.0.attn_q.scale", [1], 0], ["blk.0.attn_q.input_scale", [1], 0]], "-"),
        # GLM-4.5 and later append blocks that predict further tokens
        ("glm4", [["blk.2.attn_q.weight", [64, 128], 1], ["blk.2.nextn.eh_proj.weight", [128, 64], 1]], "-"),
    ],
)  # fmt: skip
def test_gguf_of_other_times(tmp_path: Path, case: str, added: list[Any], without: str) -> None:
    """Older and newer layouts of the same model give the same parameters and config."""
    metadata = [["glm4.nextn_predict_layers", [4], 1]] if case == "glm4" else []
    data = case_with(case, added, without, metadata)
    if case == "glm4":
        data = data.replace(
            gguf_text("glm4.block_count") + b"\4\0\0\0\2", gguf_text("glm4.block_count") + b"\4\0\0\0\3"
        )
    expected = next(entry for entry in HEADERS if entry["case"] == case)
    file = read_gguf(written(tmp_path, "m.gguf", data))
    assert file.model_params == expected["params"]
    config = file.config()
    assert {key: config.get(key) for key in expected["config"]} == expected["config"]


def llama_3_8b() -> tuple[list[Any], list[Any]]:
    """Metadata and tensors of Llama 3.1 8B at 8.5 bits; sizes: its published config.json."""
    metadata: list[Any] = [
        ("general.architecture", [8], "llama"), ("llama.block_count", [4], 32),
        ("llama.context_length", [4], 131072), ("llama.embedding_length", [4], 4096),
        ("llama.feed_forward_length", [4], 14336), ("llama.attention.head_count", [4], 32),
        ("llama.attention.head_count_kv", [4], 8), ("llama.rope.freq_base", [6], 500000.0),
        ("llama.attention.layer_norm_rms_epsilon", [6], 1e-5), ("llama.vocab_size", [4], 128256),
        ("llama.rope.dimension_count", [4], 128), ("tokenizer.chat_template", [8], "x" * 5000),
        ("tokenizer.ggml.tokens", [9, 8], 128256), ("tokenizer.ggml.merges", [9, 8], 280147),
        ("tokenizer.ggml.token_type", [9, 5], [1] * 128256),
    ]  # fmt: skip
    tensors = [("rope_freqs.weight", [64], 0), ("token_embd.weight", [4096, 128256], 8)]
    sizes = {
        "attn_q": [4096, 4096], "attn_k": [4096, 1024], "attn_v": [4096, 1024], "attn_output": [4096, 4096],
        "ffn_gate": [4096, 14336], "ffn_up": [4096, 14336], "ffn_down": [14336, 4096],
    }  # fmt: skip
    for block in range(32):
        tensors += [(f"blk.{block}.{norm}.weight", [4096], 0) for norm in ("attn_norm", "ffn_norm")]
        tensors += [(f"blk.{block}.{name}.weight", shape, 8) for name, shape in sizes.items()]
    return metadata, [*tensors, ("output_norm.weight", [4096], 0), ("output.weight", [4096, 128256], 8)]


def test_gguf_of_llama_3_8b(tmp_path: Path) -> None:
    """A header as large as a real one: 8,030,261,248 parameters (its model card), read in a moment."""
    metadata, tensors = llama_3_8b()
    header, size = gguf_header(metadata, tensors)
    path = written(tmp_path, "llama.gguf", header)
    os.truncate(path, len(header) + size)  # a sparse file: no data is ever read
    file = cheaply(lambda: read_gguf(path), seconds=5, mib=16)
    assert file.model_params == 8_030_261_248
    assert file.weights.params == 8_030_261_248 + 64
    matrices = 8_030_261_248 - 65 * 4096
    assert file.weights.by_dtype == {
        "Q8_0": (matrices, matrices // 32 * 34),
        "F32": (65 * 4096 + 64, 4 * (65 * 4096 + 64)),
    }
    assert file.lengths["tokenizer.ggml.tokens"] == 128256
    assert file.lengths["tokenizer.ggml.merges"] == 280147
    assert file.config() == {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False,
        "intermediate_size": 14336, "head_dim": 128, "max_position_embeddings": 131072,
        "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    os.truncate(path, len(header) + size - 1)
    expected = f"got {len(header) + size - 1:,} bytes, expected at least {len(header) + size:,}"
    one_line_error(lambda: read_gguf(path), expected)


def test_gguf_values(tmp_path: Path) -> None:
    """Scalars of all kinds are kept, arrays counted, shapes turned to PyTorch's order, bytes exact."""
    kinds = [
        ("u8", [0], 255), ("i8", [1], -1), ("u16", [2], 65535), ("i16", [3], -2), ("u32", [4], 2**32 - 1),
        ("i32", [5], -3), ("f32", [6], 0.5), ("bool", [7], True), ("text", [8], "é"),
        ("u64", [10], 2**64 - 1), ("i64", [11], -(2**63)), ("f64", [12], 0.1),
        ("array", [9, 3], [1, -2]), ("none", [9, 8], []),
    ]  # fmt: skip
    tensors = [("a", [256, 3], 12), ("b", [], 0), ("c", [2, 3, 4, 5], 30)]
    for version in (2, 3):
        file = read_gguf(written(tmp_path, "m.gguf", gguf_bytes(kinds, tensors, version=version)))
        assert file.metadata == {key: value for key, types, value in kinds if types[0] != 9}
        assert (file.arrays, file.lengths) == ({"array": (1, -2)}, {"array": 2, "none": 0})
        assert (file.version, file.architecture) == (version, "")
        assert [(t.shape, t.dtype, t.nbytes) for t in file.weights.tensors] == [
            ((3, 256), "Q4_K", 432), ((), "F32", 4), ((5, 4, 3, 2), "BF16", 240),
        ]  # fmt: skip


def test_gguf_cut_anywhere(tmp_path: Path) -> None:
    """Cut at any byte of its header or of its data, the file is refused."""
    header = len(TINY_GGUF) - gguf_header(TINY_METADATA, TINY_TENSORS)[1]
    for length in [*range(header + 1), *range(header, len(TINY_GGUF), 997), len(TINY_GGUF) - 1]:
        path = written(tmp_path, "m.gguf", TINY_GGUF[:length])
        one_line_error(lambda path=path: read_gguf(path))
    assert read_gguf(written(tmp_path, "m.gguf", TINY_GGUF)).config()["vocab_size"] == 3


def gguf(*parts: bytes, tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    """The start of a GGUF file with any counts, and what is put after it."""
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def raw_tensor(name: str, dimensions: list[int], kind: int = 0, offset: int = 0) -> bytes:
    form = f"<I{len(dimensions)}QIQ"
    return gguf_text(name) + struct.pack(form, len(dimensions), *dimensions, kind, offset)


def raw_key(key: str | bytes, kind: int, rest: bytes) -> bytes:
    return gguf_text(key) + struct.pack("<I", kind) + rest


HUGE = struct.pack("<Q", 2**60)
ONE_STRING = struct.pack("<QQ", 1, 1)  # its one letter is missing
TWO_STRINGS = struct.pack("<QQ", 2, 2**62)  # the first of them far too long
ZEROS = b"\0" * 4096
ONE_BLOCK = raw_tensor("a", [16])  # 64 bytes of data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "got 0 bytes"),
        (b"GGML" + ZEROS, "b'GGML' at its start"),
        (b"tjgg" + ZEROS, "b'tjgg' at its start"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + ZEROS, "big-endian"),
        (gguf(version=0) + ZEROS, "GGUF version 0"),
        (gguf(version=1) + ZEROS, "GGUF version 1"),
        (gguf(version=4) + ZEROS, "GGUF version 4"),
        (gguf(tensors=2**63), "9,223,372,036,854,775,808 tensors"),
        (gguf(keys=2**63), "9,223,372,036,854,775,808 keys"),
        (gguf(keys=16_000) + ZEROS, "an empty key"),
        (gguf(tensors=100_000) + ZEROS, "an unnamed tensor"),
        (gguf(HUGE, ZEROS, keys=1), "as the length of a key"),
        (gguf(struct.pack("<Q", 200), b"key", keys=1), "to hold a key"),
        (gguf(raw_key(b"\xff", 4, ZEROS), keys=1), "UTF-8 text"),
        (gguf(raw_key("k", 13, ZEROS), keys=1), "type 13"),
        (gguf(raw_key("k", 8, HUGE + ZEROS), keys=1), "the value of 'k'"),
        (gguf(raw_key("k", 9, b"\x08\0\0\0" + HUGE + ZEROS), keys=1), "the value of 'k'"),
        (gguf(raw_key("k", 9, b"\x0c\0\0\0" + HUGE + ZEROS), keys=1), "the value of 'k'"),
        (gguf(raw_key("k", 9, b"\x08\0\0\0" + TWO_STRINGS + ZEROS), keys=1), "the value of 'k'"),
        (gguf(raw_key("k", 9, b"\x08\0\0\0" + ONE_STRING), keys=1), "the value of 'k'"),
        (gguf(raw_key("k", 9, b"\x09\0\0\0" + ZEROS), keys=1), "an array of type 9"),
        (gguf(raw_key("k", 7, b"\1") * 2, keys=2), "the key 'k' twice"),
        (gguf(raw_key("general.alignment", 4, b"\3\0\0\0"), ZEROS, keys=1), "a power of two"),
        (gguf(raw_key("general.alignment", 4, b"\0\0\0\0"), ZEROS, keys=1), "a power of two"),
        (gguf(raw_key("general.alignment", 8, gguf_text("32")), ZEROS, keys=1), "a power of two"),
        (gguf(raw_key("general.architecture", 4, b"\1\0\0\0"), ZEROS, keys=1), "a name as `general.arch"),
        (gguf(raw_tensor("a", [1] * 5), ZEROS, tensors=1), "5 dimensions"),
        (gguf(gguf_text("a"), b"\xff" * 4, ZEROS, tensors=1), "4,294,967,295 dimensions"),
        (gguf(raw_tensor("a", [2**32, 2**31]), ZEROS, tensors=1), "fewer than 2^63"),
        (gguf(raw_tensor("a", [2**63]), ZEROS, tensors=1), "fewer than 2^63"),
        (gguf(raw_tensor("a", [2**62, 2, 0]), ZEROS, tensors=1), "fewer than 2^63"),
        (gguf(raw_tensor("a", [2**61]), ZEROS, tensors=1), "expected at least 9,223,372,036,854,775,"),
        (gguf(raw_tensor("a", [31], kind=8), ZEROS, tensors=1), "a multiple of 32, the block of Q8_0"),
        (gguf(raw_tensor("a", [32], kind=43), ZEROS, tensors=1), "type 43 for tensor 'a'"),
        (gguf(raw_tensor("a", [32], kind=31), ZEROS, tensors=1), "Q4_0_4_4, which ggml has removed"),
        (gguf(raw_tensor("a", [1], offset=2**64 - 32), ZEROS, tensors=1), "where the one before it ends"),
        (gguf(ONE_BLOCK, raw_tensor("b", [16], offset=32), ZEROS, tensors=2), "offset 32 for tensor 'b'"),
        (gguf(ONE_BLOCK, raw_tensor("b", [16], offset=96), ZEROS, tensors=2), "offset 96 for tensor 'b'"),
        (gguf(ONE_BLOCK, raw_tensor("a", [16], offset=64), ZEROS, tensors=2), "the tensor 'a' twice"),
    ],
)  # fmt: skip
def test_gguf_lies(tmp_path: Path, data: bytes, words: str) -> None:
    """A header that claims what cannot be costs neither time nor memory and gives one line."""
    path = written(tmp_path, "m.gguf", data)
    cheaply(lambda: one_line_error(lambda: read_gguf(path), words, "m.gguf"), seconds=1, mib=4)


def test_gguf_strings_without_end(tmp_path: Path) -> None:
    """Millions of empty strings that a sparse file really holds are too many, and refused at once."""
    for count, words in ((10**9, "a header of more than"), (5_000_000, "got 5,000,000 strings in arrays")):
        start = gguf(raw_key("k", 9, b"\x08\0\0\0" + struct.pack("<Q", count)), keys=1)
        path = written(tmp_path, "m.gguf", start)
        os.truncate(path, 10**10)
        refused(path, words)


def refused(path: Path, words: str) -> None:
    cheaply(lambda: one_line_error(lambda: read_gguf(path), words), seconds=1, mib=4)


@FILE_FIXTURE
@given(data=st.binary(max_size=300).map(lambda tail: TINY_GGUF[:24] + tail) | spoiled(TINY_GGUF, 900))
def test_gguf_of_any_bytes(tmp_path: Path, data: bytes) -> None:
    """Any bytes at all: tensors that fit into the file, or our own error; for its config too."""
    path = written(tmp_path, "m.gguf", data)
    try:
        file = read_gguf(path)
        assert file.weights.nbytes <= len(data)
        assert 0 <= file.model_params <= file.weights.params
        config = file.config()
    except LoadsheetError:
        return
    assert config["num_hidden_layers"] == 1


@FILE_FIXTURE
@given(data=st.data())
def test_gguf_config_of_any_metadata(tmp_path: Path, data: st.DataObject) -> None:
    """Values of the wrong kind or size in the metadata of any architecture: a config, or our own error."""
    case = data.draw(st.sampled_from(HEADERS))
    metadata = [list(pair) for pair in case["metadata"]]
    tensors = [list(tensor) for tensor in case["tensors"]]
    values = st.sampled_from(
        [([4], 0), ([4], 1), ([4], 2**32 - 1), ([5], -1), ([6], float("nan")), ([7], True), ([8], "x"),
         ([9, 4], []), ([9, 4], [1, 2]), ([9, 5], [-1, -1]), ([9, 8], ["a"]), ([11], 2**31 - 1),
         ([12], 1e308)]
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 3))):
        pair = data.draw(st.sampled_from(metadata[1:]))
        pair[1:] = data.draw(values)
        tensor = data.draw(st.sampled_from(tensors))
        tensor[1:] = data.draw(
            st.sampled_from([([], 0), ([1], 0), ([32, 32], 8), ([0, 3], 1), ([2, 2, 2], 0)])
        )
    path = written(tmp_path, "m.gguf", gguf_bytes(metadata, data.draw(st.permutations(tensors))))
    file = read_gguf(path)
    try:
        config = file.config()
    except LoadsheetError:
        return
    assert config["model_type"]


def tiny(*changed: tuple[str, list[int], Any], tensors: list[Any] | None = None) -> bytes:
    """The small Llama with some of its metadata put in other words."""
    new = {pair[0]: pair for pair in changed}
    kept = [new.pop(pair[0], pair) for pair in TINY_METADATA]
    return gguf_bytes([*kept, *new.values()], TINY_TENSORS if tensors is None else tensors)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (tiny(("llama.embedding_length", [4], 64)), "for 'token_embd.weight', expected (3, 64)"),
        (tiny(("llama.feed_forward_length", [4], 32)), "shape (32, 64) for 'blk.0.ffn_down.weight'"),
        (tiny(("llama.attention.head_count_kv", [4], 4)), "shape (16, 32) for 'blk.0.attn_k.weight'"),
        (tiny(("llama.attention.key_length", [4], 16)), "shape (32, 32) for 'blk.0.attn_q.weight'"),
        (tiny(("llama.attention.head_count", [4], 0)), "0 as `llama.attention.head_count`"),
        (tiny(("llama.attention.head_count", [5], -4)), "-4 as `llama.attention.head_count`"),
        (tiny(("llama.attention.head_count", [8], "4")), "'4' as `llama.attention.head_count`"),
        (tiny(("llama.block_count", [4], 2)), "tensors of 1 blocks, expected those of all 2"),
        (tiny(("llama.block_count", [4], 2**31 - 1)), "expected those of all 2,147,483,647"),
        (tiny(tensors=[]), "no `token_embd.weight`"),
        (tiny(("general.architecture", [8], "")), "no `general.architecture`"),
    ],
)  # fmt: skip
def test_gguf_config_contradicting_its_tensors(tmp_path: Path, data: bytes, words: str) -> None:
    """Where metadata and tensors disagree there is an error, not a guess."""
    file = read_gguf(written(tmp_path, "m.gguf", data))
    cheaply(lambda: one_line_error(file.config, words), seconds=1, mib=4)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (tiny(("general.architecture", [8], "mamba")), "'mamba'"),
        (tiny(("general.architecture", [8], "clip")), "'clip'"),
        (tiny(("llama.attention.head_count", [9, 4], [4, 8])), "differs from layer to layer"),
        (tiny(tensors=[*TINY_TENSORS, ("blk.0.attn_q.bias", [32], 0)]), "biases on some attention"),
    ],
)
def test_gguf_of_an_unknown_architecture(tmp_path: Path, data: bytes, words: str) -> None:
    """A model that nothing here describes has no config, but its types and bytes are told."""
    file = read_gguf(written(tmp_path, "m.gguf", data))
    with pytest.raises(UnsupportedArchitecture, match=words):
        file.config()
    assert file.weights.by_dtype["MXFP4"] == (2 * 32 * 64, 2 * 32 * 64 // 32 * 17)


# --- GGUF in parts ---------------------------------------------------------------------------------------


def parts(folder: Path, *tensors: list[Any], total: int | None = None, name: str = "m") -> list[Path]:
    """A split file: every part knows its number, the first has the metadata too."""
    count, paths = len(tensors), []
    for number, held in enumerate(tensors):
        metadata: list[Any] = [("split.no", [2], number), ("split.count", [2], count)]
        metadata.append(("split.tensors.count", [5], sum(map(len, tensors)) if total is None else total))
        data = gguf_bytes(metadata + (TINY_METADATA if number == 0 else []), held)
        paths.append(written(folder, f"{name}-{number + 1:05}-of-{count:05}.gguf", data))
    return paths


def test_gguf_in_parts(tmp_path: Path) -> None:
    """Any part leads to all of them: the same model as in one file."""
    whole = read_gguf(written(tmp_path, "whole.gguf", TINY_GGUF))
    for path in parts(tmp_path, TINY_TENSORS[:5], TINY_TENSORS[5:6], TINY_TENSORS[6:]):
        file = read_gguf(path)
        assert file.weights.tensors == whole.weights.tensors
        assert file.config() == whole.config()
        assert file.path == str(path)


def test_gguf_in_parts_that_do_not_fit(tmp_path: Path) -> None:
    """A part missing, renamed, swapped, holding a tensor twice, or a wrong total: an error that says so."""
    first, second = parts(tmp_path, TINY_TENSORS[:5], TINY_TENSORS[5:])
    renamed = written(tmp_path, "renamed.gguf", first.read_bytes())
    one_line_error(lambda: read_gguf(renamed), "one of 2 parts", "-00001-of-00002.gguf")
    kept = second.read_bytes()
    second.write_bytes(first.read_bytes())
    one_line_error(lambda: read_gguf(first), "got part 0 of 2 (counted from 0), expected 1 of 2")
    second.unlink()
    one_line_error(lambda: read_gguf(first), second.name)
    second.write_bytes(kept[:-1])
    one_line_error(lambda: read_gguf(first), second.name, "bytes")
    second.unlink()
    second.symlink_to(second.name)
    one_line_error(lambda: read_gguf(first), second.name)
    twice = parts(tmp_path, TINY_TENSORS, TINY_TENSORS[5:], name="twice")
    one_line_error(lambda: read_gguf(twice[0]), "got 11 different tensors in 2 parts, expected 17")
    short = parts(tmp_path, TINY_TENSORS[:5], TINY_TENSORS[5:], total=12, name="short")
    one_line_error(lambda: read_gguf(short[0]), "got 11 different tensors in 2 parts, expected 12")
    data = gguf_bytes([("split.count", [10], 2**63), *TINY_METADATA], TINY_TENSORS)
    one_line_error(
        lambda: read_gguf(written(tmp_path, "m-00001-of-00002.gguf", data)), "one of 9223372036854775808"
    )

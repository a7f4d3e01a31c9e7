"""Serving from a file: its own bytes count, but only if it holds the whole model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from strategies import safetensors_bytes
from terminal import TINY, answered, refused

import loadsheet as ls
from loadsheet.arch.stored import StoredTensor, StoredWeights
from loadsheet.memory.whole import lacks

#: TINY's tensors by the names and shapes that a Llama checkpoint has
_BLOCK = {
    "self_attn.q_proj": [64, 64], "self_attn.k_proj": [32, 64], "self_attn.v_proj": [32, 64],
    "self_attn.o_proj": [64, 64], "mlp.gate_proj": [128, 64], "mlp.up_proj": [128, 64], "mlp.down_proj": [64, 128],
}  # fmt: skip
_BYTES = {"BF16": 2, "I32": 4, "F32": 4}
#: 100·64 embedding and head, 2 blocks of 12,288 + 24,576 + 128, a last norm
_PARAMS = 2 * 6_400 + 2 * 36_992 + 64


def _tensors(layers: tuple[int, ...] = (0, 1), packed: bool = False) -> dict[str, tuple[str, list[int]]]:
    """Name -> (type, shape); packed: eight 4-bit weights in one I32, as GPTQ stores them."""
    found: dict[str, tuple[str, list[int]]] = {
        "model.embed_tokens.weight": ("BF16", [100, 64]), "model.norm.weight": ("BF16", [64]),
    }  # fmt: skip
    for layer in layers:
        for name, (rows, columns) in _BLOCK.items():
            kind = "qweight" if packed else "weight"
            shape = [columns // 8, rows] if packed else [rows, columns]
            found[f"model.layers.{layer}.{name}.{kind}"] = ("I32" if packed else "BF16", shape)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{layer}.{norm}.weight"] = ("BF16", [64])
    return found


def _write(path: Path, tensors: dict[str, tuple[str, list[int]]], **config: Any) -> str:
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = _BYTES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    path.write_bytes(safetensors_bytes(header, b"\0" * offset))
    (path.parent / "config.json").write_text(json.dumps({**TINY, "tie_word_embeddings": False, **config}))
    return str(path)


_SERVE = ("--gpu", "a10g", "--task", "serve")
_HEAD = {"lm_head.weight": ("BF16", [100, 64])}


def test_a_whole_file_is_served_as_stored(tmp_path: Path) -> None:
    """86,848 parameters in 16 bits, in one file, however it is called: their bytes."""
    for name in ("model.safetensors", "model-00001-of-00001.safetensors"):
        path = _write(tmp_path / name, {**_tensors(), **_HEAD})
        sheet = json.loads(answered("plan", path, *_SERVE, "--json").stdout)
        assert sheet["memory"]["model_states_bytes"] == 2 * _PARAMS
        assert sheet["warnings"] == []
        assert sheet["recipe"]["weights"] == "as stored"
        assert "weights" not in sheet["recipe"]["defaulted"]
        assert json.loads(answered("params", path, "--json").stdout)["stored"]["lacks"] is None


def test_a_file_without_its_head_is_served(tmp_path: Path) -> None:
    """A checkpoint of the base model has no head; the warning of what it holds stays."""
    path = _write(tmp_path / "model.safetensors", _tensors())
    assert "80,448 elements" in answered("plan", path, *_SERVE).stderr


@pytest.mark.parametrize(
    ("name", "tensors", "words"),
    [
        ("model-00001-of-00030.safetensors", {**_tensors(), **_HEAD}, "part 1 of 30"),
        ("renamed.safetensors", _tensors((0,)), "43,456 elements"),
        ("packed.safetensors", {**_tensors((0,), packed=True), **_HEAD}, "1 of 2 layers (layers.1)"),
        (
            "with-a-tower.safetensors",
            {**_tensors((0,)), **_HEAD, "vision.patches.weight": ("F32", [64, 1000])},
            "1 of 2 layers (layers.1)",
        ),
        ("embedding.safetensors", {"model.embed_tokens.weight": ("BF16", [100, 64])}, "6,400 elements"),
    ],
)  # fmt: skip
def test_a_part_of_a_model_is_refused(name: str, tensors: Any, words: str, tmp_path: Path) -> None:
    """By its name, by its elements, or by a layer that it lacks; other tasks plan as the config.json says."""
    path = _write(tmp_path / name, tensors)
    refused("plan", path, *_SERVE, words=words)
    assert f"not the whole model ({words if 'layers' not in words else 'nothing of ' + words})" in (
        " ".join(answered("params", path).stdout.split())
    )
    assert "not the whole model" in answered("plan", path, "--gpu", "a10g").stderr
    asked = json.loads(answered("plan", path, *_SERVE, "--weights", "bf16", "--json").stdout)
    assert asked["memory"]["model_states_bytes"] == 2 * _PARAMS
    assert asked["recipe"]["weights"] == "bf16"


@pytest.mark.parametrize("preset", [preset.name for preset in ls.models()])
def test_no_whole_model_is_refused(preset: str) -> None:
    """Every tensor by its name in the checkpoint is a whole model; the first half of them is not."""
    model = ls.model(preset)
    tensors = tuple(StoredTensor(p.name, p.shape, "BF16", 2 * p.numel) for p in model.parameters())
    for held, whole in ((tensors, True), (tensors[: len(tensors) // 2], False)):
        stored = StoredWeights("model.safetensors", "safetensors", held, {})
        assert (lacks(replace(model, stored=stored)) == "") is whole


def test_packed_weights_are_whole(tmp_path: Path) -> None:
    """Eight weights in each I32 of GPTQ are fewer elements than parameters, and all there."""
    path = _write(tmp_path / "model.safetensors", {**_tensors(packed=True), **_HEAD}, quantization_config={})
    sheet = json.loads(answered("plan", path, *_SERVE, "--json").stdout)
    assert sheet["memory"]["model_states_bytes"] == 2 * 36_864 // 2 + 2 * (2 * 6_400 + 5 * 64)
    assert not [w for w in sheet["warnings"] if "quantised" in w]  # it is served as stored


@pytest.mark.parametrize(
    ("total", "config", "whole"),
    [
        (2 * _PARAMS, {}, True),
        (_PARAMS, {}, True),  # 8 bits
        (_PARAMS // 2, {}, False),  # 4 bits, and the config names no quantisation
        (_PARAMS // 2, {"quantization_config": {"bits": 4}}, True),
        (_PARAMS // 2, {"quantization": {"bits": 4}}, True),  # as MLX writes it
        (_PARAMS // 15, {"quantization_config": {"bits": 4}}, False),  # about half a bit
    ],
)
def test_an_index_alone(total: int, config: dict[str, Any], whole: bool, tmp_path: Path) -> None:
    """No format has less than 8 bits unless the config names one, and none less than one bit."""
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **config}))
    path = tmp_path / "model.safetensors.index.json"
    names = dict.fromkeys(_tensors(), "model-00001-of-00002.safetensors")
    path.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": names}))
    if whole:
        answered("plan", str(path), *_SERVE)
    else:
        refused("plan", str(path), *_SERVE, words="bits for each parameter")

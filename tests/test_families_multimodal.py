"""Windowed, key-sharing and multimodal decoders: exact by name and shape, and what text costs in them."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from loadsheet.arch.families import build
from loadsheet.arch.model import Model, Taped
from loadsheet.arch.ops import Ops
from loadsheet.arch.work import Execution, Work
from loadsheet.errors import BadConfig, UnsupportedArchitecture

DATA = Path(__file__).parent / "data"
#: transformers 5.24.0, built on the meta device by tools/draws_multimodal.py
MODELS: dict[str, Any] = json.loads(gzip.decompress((DATA / "arch_multimodal.json.gz").read_bytes()))[
    "models"
]
S, F = "sliding_attention", "full_attention"


def facts(config: dict[str, Any]) -> dict[str, Any]:
    """What the recording holds of a model, from our own count."""
    model = build(config)
    lines = sorted(f"{p.name} {'x'.join(map(str, p.shape))}" for p in model.parameters())
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return {"total": model.params, "tied": model.tied, "digest": digest, "windows": windows(model)}


def windows(model: Model) -> list[int | None]:
    """How far back the cache of each layer reaches; None without limit, and without a cache."""
    order = model.order or tuple(i for i, (_, count) in enumerate(model.runs) for _ in range(count))
    blocks = [model.runs[i][0] for i in order]
    return [
        (block.mixer.window or block.mixer.chunk) if block.cache(Work(1, 1)) else None for block in blocks
    ]


def expected(record: dict[str, Any]) -> dict[str, Any]:
    """A record without its configuration."""
    return {key: value for key, value in record.items() if key != "config"}


# -- exact ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["default", "depth3"])
@pytest.mark.parametrize("model_type", sorted(MODELS))
def test_names_and_shapes(model_type: str, variant: str) -> None:
    """Names, shapes, total, tie and caches equal transformers; the parts add up to the total."""
    record = MODELS[model_type][variant]
    assert expected(record) == facts(record["config"])
    model = build(record["config"])
    assert record["total"] == sum(model.split.values())
    assert record["total"] == sum(size * count for size, count in model.tensor_sizes.items())


@pytest.mark.parametrize("model_type", sorted(MODELS))
def test_random_configs(model_type: str) -> None:
    """Random configurations: names, shapes, total, tie and caches equal transformers."""
    for record in MODELS[model_type]["random"]:
        assert expected(record) == facts(record["config"])


def gemma_3_4b() -> dict[str, Any]:
    """config.json of google/gemma-3-4b-it: its language model leaves heads and vocabulary to the class."""
    return {
        "model_type": "gemma3", "mm_tokens_per_image": 256,
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
        "vision_config": {
            "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
        },
    }  # fmt: skip


def test_published_totals() -> None:
    """Totals of the published safetensors files (hub pages of the models).

    Gemma 3n's file still has the k_proj, v_proj and k_norm of its 15 layers that read other layers' keys;
    Llama 4's has the vision tower and projector, 871,932,416 parameters, which the causal class has not.
    """
    published = {"gemma3": 4_300_079_472, "gemma3n": 7_849_978_192, "llama4": 108_641_793_536}
    left_out = {"gemma3": 0, "gemma3n": 15 * (2 * 2048 * 2 * 256 + 256), "llama4": 871_932_416}
    configs = {kind: MODELS[kind]["default"]["config"] for kind in ("gemma3n", "llama4")}
    configs["gemma3"] = gemma_3_4b()
    assert published == {kind: build(configs[kind]).params + left_out[kind] for kind in published}


# -- missing keys --------------------------------------------------------------------------------------

#: sizes without which nothing is counted, whatever the class would put in their place
SIZES = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size", "global_head_dim",
    "hidden_size_per_layer_input", "vocab_size_per_layer_input", "laurel_rank", "altup_num_inputs",
    "num_experts", "top_k_experts", "moe_intermediate_size", "num_local_experts", "num_experts_per_tok",
    "intermediate_size_mlp", "patch_size", "image_size", "position_embedding_size", "mlp_dim", "window_size",
    "output_channels", "output_proj_dims", "subsampling_conv_channels", "mm_embed_dim", "mm_posemb_size",
    "pooling_kernel_size", "audio_embed_dim", "num_blocks", "ext_pw_out_channel", "nemo_conv_channels",
    "depthwise_separable_out_channel", "num_mel_bins", "max_source_positions", "backbone_hidden_size",
    "text_config", "vision_config", "audio_config",
}  # fmt: skip
#: where the class itself has a way out that is no size: a switch that is off, an encoder that need not be
OPTIONAL = {
    ("gemma4", "vision_config"), ("gemma4", "audio_config"), ("gemma4_unified", "vision_config"),
    ("gemma4_unified", "audio_config"), ("gemma4", "vision_config.output_proj_dims"),
} | {  # transformers 4.49 published GOT without what is the class's default
    ("got_ocr2", f"vision_config.{key}") for key in (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size", "output_channels",
        "mlp_dim", "window_size",
    )
}  # fmt: skip


def facts_or_error(config: dict[str, Any]) -> dict[str, Any] | str:
    """Our count, or why there is none."""
    try:
        return facts(config)
    except BadConfig as error:
        return str(error)


@pytest.mark.parametrize("model_type", sorted(k for k, model in MODELS.items() if "spoiled" in model))
def test_a_missing_key(model_type: str) -> None:
    """A missing size is an error that names it; any other missing key means what transformers takes."""
    whole = MODELS[model_type]["random"][0]["config"]
    for place, outcome in MODELS[model_type]["spoiled"].items():
        config = json.loads(json.dumps(whole))
        part, *_, key = (
            (config, place) if "." not in place else (config[place.split(".")[0]], place.split(".")[1])
        )
        del part[key]
        made = facts_or_error(config)
        if isinstance(made, str):
            assert key in made, place
            continue
        assert key not in SIZES or (model_type, place) in OPTIONAL or outcome["total"] == made["total"], place
        assert outcome in (None, made), place


# -- keys and values that layers share --------------------------------------------------------------------


def test_cache_of_gemma_3n() -> None:
    """Of 35 layers the first 20 keep keys and values: 4 of them all, 16 the last 512 (config of gemma-3n-E4B)."""
    model = build(MODELS["gemma3n_text"]["default"]["config"])
    layers, elements = 20, 2 * 2 * 256 * (4 * 8192 + 16 * 512)
    tensors = model.cache(Work(1, 1, 8191))
    assert layers == sum(count for _, count in tensors)
    assert elements == sum(tensor.elements * count for tensor, count in tensors)


def test_an_assistant_keeps_no_cache() -> None:
    """Every layer of Gemma 4's assistant reads the keys of the model that it helps."""
    model = build(MODELS["gemma4_assistant"]["default"]["config"])
    assert not model.cache(Work(2, 1, 100))
    assert not [p.name for p in model.parameters() if ".k_proj." in p.name or ".v_proj." in p.name]


# -- the walk --------------------------------------------------------------------------------------------

BASE = {
    "hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 500, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA4 = {
    **BASE, "model_type": "gemma4_text", "sliding_window": 4096, "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": 500, "global_head_dim": 32, "num_hidden_layers": 3,
}  # fmt: skip
GEMMA3N = {
    **BASE, "model_type": "gemma3n_text", "sliding_window": 4096, "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": 500, "laurel_rank": 8, "altup_num_inputs": 4, "num_hidden_layers": 3,
}  # fmt: skip
WALKS: dict[str, tuple[dict[str, Any], int, float, float]] = {
    # config, forward FLOPs of 2 x 64 tokens, bytes kept per token of 2 x 256 in bf16 and in fp32.
    # Measured on transformers 5.24.0 with written-out attention by FlopCounterMode and saved_tensors_hooks
    # (each storage once, parameters left out), torch 2.13 on the CPU
    "exaone4": (
        {**BASE, "model_type": "exaone4", "num_hidden_layers": 2, "layer_types": [S, F]},
        108_658_688,
        40932.0,
        43140.0,
    ),
    "granite_swa": (
        {**BASE, "model_type": "granite_swa", "num_hidden_layers": 2},
        108_658_688,
        47764.0,
        58036.0,
    ),
    "vaultgemma": (
        {**BASE, "model_type": "vaultgemma", "num_hidden_layers": 2},
        108_658_688,
        49409.0,
        58889.0,
    ),
    "gemma 3n, keys shared": (
        {**GEMMA3N, "layer_types": [S, F, F], "num_kv_shared_layers": 1},
        188_936_192,
        97506.0,
        116168.4,
    ),
    "gemma 3n, sparse": (
        {
            **GEMMA3N,
            "layer_types": [S, S, F],
            "num_kv_shared_layers": 0,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0],
        },
        191_033_344,
        98564.2,
        117868.4,
    ),
    "gemma 4": ({**GEMMA4, "layer_types": [S, S, F]}, 176_553_984, 77193.2, 79640.0),
    "gemma 4, keys shared": (
        {**GEMMA4, "layer_types": [S, F, F], "num_kv_shared_layers": 1},
        187_039_744,
        78825.2,
        82296.0,
    ),
    "gemma 4, values of keys": (
        {**GEMMA4, "layer_types": [S, F, F], "attention_k_eq_v": True},
        187_039_744,
        79625.5,
        82584.0,
    ),
}


def walk(config: dict[str, Any], length: int, dtype: str) -> Taped:
    """The walk over a small model with everything written out, as transformers computes on the CPU."""
    execution = Execution(attention="eager", kernels="eager", device="cpu")
    return build(config).walk(lambda: Ops(Work(2, length), execution, dtype=dtype))


def parts(taped: Taped) -> list[tuple[Any, int]]:
    """(summary, how often) from beginning to end."""
    return [(taped.before, 1), *taped.runs, (taped.after, 1)]


def kept(taped: Taped) -> float:
    """Bytes kept for backward, what blocks share counted once."""
    shared = {storage for summary, _ in parts(taped) for storage in summary.shared}
    return sum(s.saved * count for s, count in parts(taped)) + sum(storage.bytes for storage in shared)


@pytest.mark.parametrize("name", sorted(WALKS))
def test_flops(name: str) -> None:
    """Forward FLOPs, the full score matrix counted, equal FlopCounterMode's."""
    config, flops, _, _ = WALKS[name]
    assert flops == sum(s.forward_flops_full * count for s, count in parts(walk(config, 64, "fp32")))


@pytest.mark.parametrize("name", sorted(WALKS))
def test_saved_bytes(name: str) -> None:
    """What autograd keeps is within 1 % of what saved_tensors_hooks finds."""
    config, _, bf16, fp32 = WALKS[name]
    assert bf16 == pytest.approx(kept(walk(config, 256, "bf16")) / 512, rel=0.01)
    assert fp32 == pytest.approx(kept(walk(config, 256, "fp32")) / 512, rel=0.01)


def test_text_passes_no_encoder() -> None:
    """A tower adds weights and nothing else: FLOPs, caches and matmul parameters are the language model's."""
    config = gemma_3_4b()
    usual = {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
    both, alone = build(config), build({**usual, **config["text_config"]})
    tower = 419_816_304  # the published file's total less that of its language model
    assert tower == both.params - alone.params == both.split["other"]
    assert tower == both.looked_up_params - alone.looked_up_params
    assert alone.matmul_params == both.matmul_params
    work = Work(1, 16)
    flops = [
        sum(s.forward_flops * n for s, n in parts(m.walk(lambda: Ops(work, Execution()))))
        for m in (both, alone)
    ]
    assert flops[1] == flops[0]


def test_image_blocks_are_skipped() -> None:
    """Llama 3.2 Vision skips its 8 cross-attention blocks where there is no image: no cache, no FLOPs."""
    model = build(MODELS["mllama"]["default"]["config"])
    blocks = 32
    assert blocks == sum(count for _, count in model.cache(Work(1, 1)))
    head_and_blocks = 128256 * 4096 + blocks * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert head_and_blocks == model.matmul_params


# -- what cannot be --------------------------------------------------------------------------------------

TEXT4 = {k: v for k, v in GEMMA4.items() if k not in ("num_hidden_layers", "layer_types")} | {
    "num_hidden_layers": 3, "layer_types": [S, F, F],
}  # fmt: skip


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (TEXT4, {"num_kv_shared_layers": 4}, "config.num_kv_shared_layers: got 4, expected fewer than"),
        (TEXT4, {"num_kv_shared_layers": 2}, "config.num_kv_shared_layers: got 2, expected few enough"),
        (GEMMA3N, {"num_kv_shared_layers": 3}, "config.num_kv_shared_layers: got 3, expected fewer than"),
        (GEMMA3N, {"num_kv_shared_layers": 0, "intermediate_size": [8]}, "config.intermediate_size: got a list of 1"),
        (GEMMA3N, {"num_kv_shared_layers": 0, "intermediate_size": [8, 0, 8]}, "config.intermediate_size: got 0"),
        (TEXT4, {"head_dim": None}, "config.head_dim: got None, expected a whole number"),
        (TEXT4, {"global_head_dim": None}, "config.global_head_dim: got None, expected a whole number"),
        (TEXT4, {"per_layer_config": {"3": {}}}, "config.per_layer_config: got '3': {}, expected a layer below 3"),
        (TEXT4, {"per_layer_config": {"1": {"head_dim": 64}}}, "config.per_layer_config.2: got other sizes"),
        (TEXT4, {"layer_types": [S, "chunked_attention", F]}, "config.layer_types: got 'chunked_attention'"),
        (TEXT4, {"enable_moe_block": True}, "config.num_experts: missing, expected a whole number"),
        ({"model_type": "gemma3"}, {}, "config.text_config: missing, expected an object"),
        (gemma_3_4b(), {"vision_config": None}, "config.vision_config: got None, expected an object"),
        (gemma_3_4b(), {"text_config": {"hidden_size": 8}}, "config.text_config.num_hidden_layers: missing"),
        ({"model_type": "ministral", **BASE}, {"head_dim": None}, "config.head_dim: got None"),
    ],
)  # fmt: skip
def test_contradictions(base: dict[str, Any], change: dict[str, Any], message: str) -> None:
    """Missing and contradictory keys are errors with their path, also inside nested configs."""
    config = {"num_hidden_layers": 3, **base, **change}
    with pytest.raises(BadConfig) as caught:
        build(config)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**TEXT4, "use_bidirectional_attention": "all"}, "config.use_bidirectional_attention: got 'all'"),
        (
            {**TEXT4, "per_layer_config": {"0": {"intermediate_size": 7}}},
            "config.per_layer_config.0.'intermediate_size': got 7",
        ),
        (
            {"model_type": "llama", "per_layer_config": {"0": {"head_dim": 8}}},
            "config.per_layer_config: got {'0'",
        ),
        (
            {**gemma_3_4b(), "text_config": {"model_type": "llama"}},
            "config.text_config.model_type: got 'llama'",
        ),
        (
            {**gemma_3_4b(), "vision_config": {"model_type": "clip_vision_model"}},
            "config.vision_config.model_type: got 'clip_vision_model', expected `siglip_vision_model`",
        ),
        (
            MODELS["gemma3n"]["default"]["config"] | {"vision_config": {"architecture": "resnet50"}},
            "config.vision_config.architecture: got 'resnet50'",
        ),
    ],
)
def test_what_is_not_described(config: dict[str, Any], message: str) -> None:
    """What the families do not describe is refused, not left out of the count."""
    with pytest.raises(UnsupportedArchitecture) as caught:
        build(config)
    assert str(caught.value).startswith(message)


def test_the_way_out_of_an_unknown_wrapper() -> None:
    """A wrapper that is not known may hold a language model that is."""
    with pytest.raises(UnsupportedArchitecture, match="llava") as caught:
        build({"model_type": "llava", "text_config": {"model_type": "llama"}})
    assert "its language model, `llama`, is known" in caught.value.hint


@pytest.mark.parametrize("model_type", sorted(MODELS))
def test_deep_towers_take_no_time(model_type: str) -> None:
    """Equal layers of an encoder are counted once, however many there are."""
    import time

    config = json.loads(json.dumps(MODELS[model_type]["random"][0]["config"]))
    for key in ("vision_config", "audio_config"):
        for depth in ("num_hidden_layers", "num_blocks", "conf_num_hidden_layers"):
            if depth in (config.get(key) or {}):
                config[key][depth] = 10_000
    start = time.process_time()
    model = build(config)
    assert sum(model.split.values()) == model.params
    assert time.process_time() - start < 1.0

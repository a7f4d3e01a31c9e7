"""Mixtures of experts and latent attention: exact against recordings of transformers (tools/draws_experts.py)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_families import attempt, digest, load, values, windows

from loadsheet.arch.families import FAMILIES, build
from loadsheet.arch.model import Model
from loadsheet.arch.ops import Ops
from loadsheet.arch.work import Execution, Work
from loadsheet.errors import BadConfig, LoadsheetError, UnsupportedArchitecture

#: transformers 5.24.0, built on the meta device; FLOPs and cache from a forward of 12 tokens on the CPU
RECORDED: dict[str, dict[str, Any]] = load("arch_experts.json.gz")["models"]
CONFIGS = {kind: [one["config"] for one in recorded["random"]] for kind, recorded in RECORDED.items()}
TOKENS = 12


def facts_of(model: Model) -> dict[str, Any]:
    """Total, tie, names and shapes, and how far layers look back, from our own count."""
    return {"total": model.params, "tied": model.tied, "digest": digest(model), "windows": windows(model)}


def facts(config: dict[str, Any]) -> dict[str, Any]:
    """The same of a config."""
    return facts_of(build(config))


def expected(recorded: dict[str, Any]) -> dict[str, Any]:
    """The same of the recording; without any window the list says only how many caches there are."""
    return {key: recorded[key] for key in ("total", "tied", "digest", "windows")}


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether they are equal, but for lists of windows that hold none."""
    bare = [{**each, "windows": each["windows"] if any(each["windows"]) else []} for each in (ours, theirs)]
    return bare[0] == bare[1]


def forward_flops(model: Model) -> Any:
    """FLOPs of a forward with attention counted in full, the head included, as FlopCounterMode counts."""
    execution = Execution(attention="eager", kernels="eager")
    work = Work(1, TOKENS)
    taped = model.walk(lambda: Ops(work, execution, training=False, full=False), loss=False)
    blocks = sum(summary.forward_flops_full * count for summary, count in taped.runs)
    head = 2 * TOKENS * model.head.in_features * model.head.out_features
    return taped.before.forward_flops_full + blocks + taped.after.forward_flops_full + head


# -- exact -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["default", "depth3"])
@pytest.mark.parametrize("model_type", sorted(RECORDED))
def test_default_configurations(model_type: str, variant: str) -> None:
    """The class's own configuration: names, shapes, total, tie; the split and the sizes add up to it."""
    recorded = RECORDED[model_type][variant]
    assert same(expected(recorded), facts(recorded["config"]))
    model = build(recorded["config"])
    assert recorded["total"] == sum(p.numel for p in model.parameters())
    assert recorded["total"] == sum(model.split.values())
    assert recorded["total"] == sum(size * count for size, count in model.tensor_sizes.items())


@pytest.mark.parametrize("model_type", sorted(RECORDED))
def test_random_configurations(model_type: str) -> None:
    """Random configurations: names, shapes, total, tie and windows."""
    for recorded in RECORDED[model_type]["random"]:
        assert same(expected(recorded), facts(recorded["config"]))


@pytest.mark.parametrize("model_type", sorted(RECORDED))
def test_flops(model_type: str) -> None:
    """FLOPs of a forward equal PyTorch's FlopCounterMode, written-out attention and every expert's products."""
    counted = [one for one in RECORDED[model_type]["random"] if "flops" in one]
    assert counted
    for recorded in counted:
        assert recorded["flops"] == forward_flops(build(recorded["config"]))


@pytest.mark.parametrize("model_type", sorted(RECORDED))
def test_cache(model_type: str) -> None:
    """Elements kept after 12 tokens: keys and values, latents, indexer keys, entries, states."""
    for recorded in RECORDED[model_type]["random"]:
        model = build(recorded["config"])
        assert recorded["cache"] == sum(t.elements * n for t, n in model.cache(Work(1, TOKENS)))


DBRX = {  # databricks/dbrx-base, config.json
    "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
    "attn_config": {"kv_n_heads": 8, "rope_theta": 5e5, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (DBRX, 132, 36),  # Databricks 2024, "Introducing DBRX"
        (RECORDED["mimo_v2_flash"]["default"]["config"], 309, 15),  # Xiaomi 2025, model card of MiMo-V2-Flash
    ],
)
def test_published_totals(config: dict[str, Any], total: int, active: int) -> None:
    """Parameters in all and used per token (input embedding left out), in billions, as the authors give them."""
    model = build(config)
    assert total == round(model.params / 1e9)
    assert active == round((model.active_params - model.embedding.numel) / 1e9)


def test_longcat_flash() -> None:
    """560 B in all, 27 B active on average (arXiv 2509.01322); transformers' matrices have empty slots besides."""
    model = build(RECORDED["longcat_flash"]["default"]["config"])
    empty = 28 * 256 * 2 * 2048 * 6144  # layers, choices of no expert, gate and up
    assert model.params - empty == 560_664_958_976
    assert round((model.active_params - model.embedding.numel) / 1e9) == 27


GLM_4_5 = {  # zai-org/GLM-4.5, config.json
    "model_type": "glm4_moe", "hidden_size": 5120, "intermediate_size": 12288, "head_dim": 128,
    "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 1, "num_attention_heads": 96,
    "num_key_value_heads": 8, "num_experts_per_tok": 8, "num_hidden_layers": 92, "first_k_dense_replace": 3,
    "attention_bias": True, "use_qk_norm": True, "vocab_size": 151552,
}  # fmt: skip


def test_glm_4_5() -> None:
    """355 B in all, 32 B active (arXiv 2508.06471, table 1: with the MTP layer, which is not loaded; no embeddings)."""
    model = build(GLM_4_5)
    mixture = model.runs[-1][0]
    joined = 2 * model.hidden_size**2  # the MTP layer's own projection
    tables = 2 * model.embedding.numel
    total = model.params - tables + joined + sum(p.numel for p in mixture.parameters())
    active = model.active_params - tables + joined + sum(p.active_numel for p in mixture.parameters())
    assert round(total / 1e9) == 355
    assert round(active / 1e9) == 32


# -- keys that miss or are null -----------------------------------------------------------------------

#: keys without which we refuse to count, since a class would put in the size of one model
SIZES = {
    "attn_config", "d_model", "dense_intermediate_size", "expert_ffn_hidden_size", "ffn_config", "ffn_hidden_size",
    "first_k_dense_replace", "gated_norm_rank", "gating", "hc_mult", "head_dim", "hidden_size", "index_head_dim",
    "index_n_heads", "index_block_size", "index_topk_blocks", "intermediate_size", "kv_channels", "kv_lora_rank",
    "moe_intermediate_size", "moe_k", "moe_layer_start_index", "moe_num_experts", "moe_num_shared_experts",
    "moe_shared_expert_intermediate_size", "moe_topk", "n_heads", "n_layers", "n_routed_experts",
    "n_shared_experts", "num_attention_heads", "num_dense_layers", "num_experts", "num_experts_per_tok",
    "num_hidden_layers", "num_key_value_heads", "num_layers", "num_local_experts", "num_shared_experts", "o_groups",
    "o_lora_rank", "per_layer_config", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "router_hidden_size",
    "shared_expert_intermediate_size", "shared_experts_intermediate_size", "shared_intermediate_size",
    "sliding_window", "sparse_attention_config", "swa_head_dim", "swa_kv_lora_rank", "swa_num_attention_heads",
    "swa_q_lora_rank", "swa_qk_nope_head_dim", "swa_v_head_dim", "v_head_dim", "vocab_size", "zero_expert_num",
}  # fmt: skip


@pytest.mark.parametrize("how", ["missing", "null"])
@pytest.mark.parametrize("model_type", sorted(RECORDED))
def test_a_missing_or_null_key(model_type: str, how: str) -> None:
    """Without a size there is no count; any other key that misses or is null means what transformers takes."""
    whole = CONFIGS[model_type][0]
    refused = set()
    for key, outcome in RECORDED[model_type]["spoiled"].items():
        config = {k: v for k, v in whole.items() if k != key}
        model = attempt(config if how == "missing" else {**config, key: None})
        if isinstance(model, LoadsheetError):
            assert str(model).startswith("config.")
            refused.add(key)
        elif outcome[how] is not None:
            assert same(expected(outcome[how]), facts_of(model)), key
    assert refused <= SIZES
    assert {"vocab_size"} <= refused


# -- contradictions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "change", "message"),
    [
        ("glm4_moe", {"num_experts_per_tok": 99}, "config.num_experts_per_tok: got 99, expected at most"),
        ("glm4_moe", {"num_key_value_heads": 99}, "config.num_key_value_heads: got 99, expected a divisor"),
        ("glm4_moe", {"first_k_dense_replace": -1}, "config.first_k_dense_replace: got -1, expected a whole"),
        (
            "glm4_moe",
            {"n_shared_experts": 0},
            "config.n_shared_experts: got 0, expected a whole number from 1",
        ),
        ("beam", {"mlp_layer_types": ["dense"] * 99}, "config.mlp_layer_types: got a list of 99, expected"),
        ("beam", {"layer_types": None, "mlp_layer_types": [7]}, "config.mlp_layer_types: got "),
        ("hy_v3", {"mlp_layer_types": ["thin"] * 20}, "config.mlp_layer_types: got 'thin', expected one of"),
        ("laguna", {"gating": "per-token"}, "config.gating: got 'per-token', expected true, `per-head`"),
        ("laguna", {"gating": []}, "config.gating: got [], expected true, `per-head`"),
        ("dbrx", {"tie_word_embeddings": True}, "config.tie_word_embeddings: got True, expected false"),
        ("dbrx", {"attn_config": 3}, "config.attn_config: got 3, expected an object"),
        ("dbrx", {"ffn_config": {}}, "config.ffn_config.ffn_hidden_size: missing, expected a whole number"),
        ("hunyuan_v1_moe", {"moe_topk": []}, "config.moe_topk: got [], expected one count for each of"),
        ("zaya", {"num_experts_per_tok": 2}, "config.num_experts_per_tok: got 2, expected 1"),
        ("zaya", {"layer_types": None, "sliding_window": -1, "head_dim": 0}, "config.head_dim: got 0"),
        ("mimo_v2_flash", {"num_attention_heads": 3, "num_key_value_heads": 3}, "config.num_key_value_heads"),
        (
            "longcat_flash",
            {"num_hidden_layers": 6, "num_layers": 2},
            "config.num_layers: got 2, expected half",
        ),
        ("longcat_flash", {"qk_head_dim": 7}, "config.qk_head_dim: got 7, expected `qk_nope_head_dim`"),
        (
            "glm_moe_dsa",
            {"indexer_types": "FS"},
            "config.indexer_types: got 'FS', expected one entry for each",
        ),
        (
            "glm_moe_dsa",
            {"indexer_types": None, "index_topk_pattern": "FX" * 9},
            "config.index_topk_pattern: got",
        ),
        ("deepseek_v4", {"o_groups": 7}, "config.num_attention_heads: got "),
        ("deepseek_v4", {"layer_types": None, "compress_ratios": [5] * 20}, "config.compress_ratios: got 5"),
        ("dots3_note_text", {"per_layer_config": {"99": {}}}, "config.per_layer_config: got '99', expected"),
        ("dots3_note_text", {"per_layer_config": {"9" * 9999: {}}}, "config.per_layer_config: got '9999"),
        ("youtu", {"kv_lora_rank": 0}, "config.kv_lora_rank: got 0, expected a whole number"),
    ],
)
def test_contradictions(model_type: str, change: dict[str, Any], message: str) -> None:
    """Values that contradict each other, or have the wrong type, are errors with the key's path."""
    with pytest.raises(BadConfig) as caught:
        build({**CONFIGS[model_type][0], **change})
    assert str(caught.value).startswith(message)


def test_layers_that_differ_in_an_unknown_way() -> None:
    """A difference between layers that we do not know is an error, not left out."""
    config = {**CONFIGS["dots3_note_text"][0], "per_layer_config": {"0": {"intermediate_size": 8}}}
    with pytest.raises(UnsupportedArchitecture, match=r"^config\.per_layer_config\.0\.'intermediate_size'"):
        build(config)


# -- other names of the same structures -------------------------------------------------------------------


def test_dots3_by_its_published_name() -> None:
    """`dots3_note` holds the text model's keys at the top level or under `text_config`: the same model."""
    for config in CONFIGS["dots3_note_text"]:
        inner = facts(config)
        assert inner == facts({**config, "model_type": "dots3_note"})
        assert inner == facts({"model_type": "dots3_note", "text_config": config})


KIMI_K2 = {  # moonshotai/Kimi-K2-Instruct, config.json
    "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "vocab_size": 163840,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 64,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
}  # fmt: skip


def test_kimi_k2_is_deepseek_v3() -> None:
    """Kimi K2 (1.04 T, 32 B active: arXiv 2507.20534) is DeepSeek V3's class with other sizes, if its file says so."""
    model = build(KIMI_K2)
    same_sizes = build({**KIMI_K2, "model_type": "deepseek_v3"})
    assert same_sizes.params == model.params == 1_026_408_209_408
    assert round((model.active_params - model.embedding.numel) / 1e9) == 32


@pytest.mark.parametrize("named", [None, [], ["KimiForCausalLM"], "DeepseekV3ForCausalLM", {}])
def test_kimi_k2_of_another_class(named: Any) -> None:
    """If the file does not name that class, the structure is not certain: an error that names the nearest."""
    with pytest.raises(UnsupportedArchitecture, match=r"^config\.model_type: got 'kimi_k2'") as caught:
        build({**KIMI_K2, "architectures": named})
    assert "`deepseek_v3`" in caught.value.hint


# -- anything at all -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", sorted(RECORDED))
def test_ten_thousand_layers_take_no_time(model_type: str) -> None:
    """Equal layers are built and counted once, however many there are."""
    lists = ("layer_types", "mlp_layer_types", "per_layer_config", "indexer_types", "index_topk_pattern")
    more = ("compress_ratios", "moe_layer_freq", "num_attention_heads_per_layer", "sparse_attention_config")
    config = {k: v for k, v in CONFIGS[model_type][0].items() if k not in lists + more}
    if isinstance(config.get("moe_topk"), list):
        config["moe_topk"] = 1
    known = ("n_layers", "num_layers", "num_hidden_layers")
    if model_type == "minimax_m3_vl_text":
        config |= {"index_n_heads": 1, "index_head_dim": 8, "index_block_size": 4, "index_topk_blocks": 2}
    if model_type.startswith("dots3_note"):
        config["use_sliding_window"] = False
    start = time.process_time()
    model = build({**config, **{key: 10_000 for key in known if key in config}})
    assert sum(model.split.values()) == model.params
    assert time.process_time() - start < 1.0


KEYS = sorted({key for made in CONFIGS.values() for config in made for key in config})


@st.composite
def spoiled(draw: st.DrawFn) -> dict[str, Any]:
    """A valid config with some keys changed, cut out or put in."""
    config = dict(draw(st.sampled_from(CONFIGS[draw(st.sampled_from(sorted(CONFIGS)))])))
    for _ in range(draw(st.integers(1, 4))):
        key = draw(st.sampled_from(sorted(config) or KEYS) | st.sampled_from(KEYS))
        if draw(st.booleans()):
            config[key] = draw(values)
        else:
            config.pop(key, None)
    return config


@given(spoiled())
def test_any_config_gives_a_model_or_our_error(config: dict[str, Any]) -> None:
    """Whatever stands in a config: a model whose parts add up and that can be walked, or our own error."""
    model = attempt(config)
    if isinstance(model, LoadsheetError):
        assert str(model).startswith("config.")
        return
    assert sum(model.split.values()) == model.params > 0
    assert 0 < model.active_params <= model.params
    taped = model.walk(lambda: Ops(Work(2, 8), Execution(attention="eager", kernels="eager")))
    assert taped.after.saved > 0


@pytest.mark.parametrize("model_type", sorted(RECORDED))
def test_arrays_of_sizes(model_type: str) -> None:
    """Sizes of the work as arrays give what the same sizes give one by one."""
    model = build(CONFIGS[model_type][0])
    sizes = [(1, 8, 0), (2, 40, 5), (3, 1, 1000)]

    def amounts(work: Work) -> list[Any]:
        taped = model.walk(lambda: Ops(work, Execution()))
        cache = [tensor.elements * count for tensor, count in model.cache(work)]
        return [*cache, *(f for s, _ in taped.runs for f in (s.saved, s.backward_peak, s.forward_flops))]

    together = amounts(Work(*(np.array(column) for column in zip(*sizes, strict=True))))
    for i, one in enumerate(sizes):
        assert amounts(Work(*one)) == [int(np.broadcast_to(amount, 3)[i]) for amount in together]


def test_the_group_is_registered() -> None:
    """Every recorded model type is one that we know."""
    assert set(RECORDED) <= set(FAMILIES)

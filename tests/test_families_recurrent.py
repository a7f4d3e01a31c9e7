"""State spaces, linear attention, convolutions, recurrences: exact against recordings (tools/draws_recurrent.py)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_families import attempt, digest, load, values

from loadsheet.arch.families import build
from loadsheet.arch.model import Model
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_recurrent import CHUNK, linear_attention, selective_scan
from loadsheet.arch.work import Execution, Work
from loadsheet.errors import BadConfig, LoadsheetError

RECORDING = load("arch_recurrent.json.gz")
#: transformers 5.24.0, built on the meta device; FLOPs and caches from a forward on the CPU
RECORDED: dict[str, dict[str, Any]] = RECORDING["models"]
SPOILED: dict[str, dict[str, Any]] = RECORDING["spoiled"]
SEQUENCES, TOKENS = RECORDING["run"]
CONFIGS = {kind: [one["config"] for one in recorded["random"]] for kind, recorded in RECORDED.items()}
KINDS = sorted(RECORDED)
EAGER = Execution(attention="eager", kernels="eager")
#: what the recording left out of the FLOPs: scans, which it replaced by zeros, and a convolution that
#: PyTorch carries out as an elementwise product; MiniMax's linear attention is all matrix products
LEFT_OUT = {"scan", "linear_attention", "recurrence", "dynamic_convolution"}


def facts(model: Model) -> dict[str, Any]:
    """Total, tie, names and shapes, from our own count."""
    return {"total": model.params, "tied": model.tied, "digest": digest(model)}


def bare(recorded: dict[str, Any]) -> dict[str, Any]:
    """The same of the recording."""
    return {key: recorded[key] for key in ("total", "tied", "digest")}


# -- exact -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["default", "depth3"])
@pytest.mark.parametrize("kind", KINDS)
def test_default_configurations(kind: str, variant: str) -> None:
    """The class's own configuration: names, shapes, total, tie; the split and the sizes add up to it."""
    recorded = RECORDED[kind][variant]
    model = build(recorded["config"])
    assert bare(recorded) == facts(model)
    assert recorded["total"] == sum(p.numel for p in model.parameters())
    assert recorded["total"] == sum(model.split.values())
    assert recorded["total"] == sum(size * count for size, count in model.tensor_sizes.items())


@pytest.mark.parametrize("kind", KINDS)
def test_random_configurations(kind: str) -> None:
    """Random configurations: names, shapes, total and tie."""
    for recorded in RECORDED[kind]["random"]:
        assert bare(recorded) == facts(build(recorded["config"]))


def counted_flops(model: Model, left_out: set[str]) -> Any:
    """FLOPs of a forward as FlopCounterMode counts them, without some ops."""
    tapes: list[Ops] = []

    def tape() -> Ops:
        tapes.append(Ops(Work(SEQUENCES, TOKENS), EAGER, training=False, full=False))
        return tapes[-1]

    taped = model.walk(tape)
    counts = [1, *(count for _, count in taped.runs), 1]
    return sum(
        count * sum(r.forward_flops_full for r in each.records if r.op not in left_out)
        for each, count in zip(tapes, counts, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_flops(kind: str) -> None:
    """All that is no scan equals PyTorch's FlopCounterMode, with attention and experts written out."""
    ran = [one for one in RECORDED[kind]["random"] if "flops" in one]
    assert len(ran) >= 4
    for one in ran:
        left_out = set() if kind == "minimax" else LEFT_OUT
        assert one["flops"] == counted_flops(build(one["config"]), left_out)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "recurrent_gemma"])
def test_cache(kind: str) -> None:
    """Elements kept after 12 tokens: keys and values, states, convolutions' last inputs (not token ids)."""
    ran = [one for one in RECORDED[kind]["random"] if "cache" in one]
    assert len(ran) >= 4
    for one in ran:
        found = build(one["config"]).cache(Work(SEQUENCES, TOKENS))
        assert one["cache"] == sum(t.elements * n for t, n in found if t.dtype != "int64")


@pytest.mark.parametrize("kind", KINDS)
def test_states_do_not_grow(kind: str) -> None:
    """What is called a state is as large after a million tokens as after one; keys and values are not."""
    model = build(CONFIGS[kind][0])
    short, long = (model.cache(Work(3, 1, past)) for past in (0, 10**6))
    for (before, _), (after, _) in zip(short, long, strict=True):
        assert before.role != "state" or before.elements == after.elements
        assert before.role == "state" or before.elements < after.elements


# -- published figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (  # state-spaces/mamba-130m-hf, config.json and safetensors total of the hub page
            {
                "model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50280,
                "state_size": 16, "conv_kernel": 4, "expand": 2, "time_step_rank": 48, "use_conv_bias": True,
            },
            129_135_360,
        ),
        (  # RWKV/rwkv-4-169m-pile
            {
                "model_type": "rwkv", "hidden_size": 768, "attention_hidden_size": 768, "num_hidden_layers": 12,
                "vocab_size": 50277, "intermediate_size": 3072, "tie_word_embeddings": False,
            },
            169_342_464,
        ),
        (  # mistralai/Mamba-Codestral-7B-v0.1: its card gives 7,285,403,648 parameters
            {
                "model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 32768, "expand": 2,
                "num_heads": 128, "head_dim": 64, "n_groups": 8, "state_size": 128, "conv_kernel": 4,
            },
            7_285_403_648,
        ),
        (  # tiiuae/falcon-mamba-7b: an `expand` that its own `intermediate_size` overrules
            {
                "model_type": "falcon_mamba", "hidden_size": 4096, "intermediate_size": 8192, "expand": 16,
                "num_hidden_layers": 64, "vocab_size": 65024, "state_size": 16, "conv_kernel": 4,
                "tie_word_embeddings": False,
            },
            7_272_665_088,
        ),
    ],
)  # fmt: skip
def test_older_files(config: dict[str, Any], total: int) -> None:
    """Published files give the published count."""
    assert total == build(config).params


@pytest.mark.parametrize(
    ("kind", "total", "active"),
    [
        ("jamba", 52, 12),  # arXiv 2403.19887: 12 B active, 52 B in all
        (
            "qwen3_next",
            80,
            4,
        ),  # Qwen3-Next-80B-A3B: 80 B in all, 3 B activated, embedding and head not counted
        ("kimi_linear", 49, 3),  # arXiv 2510.26692: 48 B in all, 3 B activated; the hub page counts 49 B
        ("zamba2", 2, 2),
        ("recurrent_gemma", 2, 2),  # arXiv 2404.07839: 2.0 B, 0.7 B of which are the embedding
    ],
)
def test_published_totals(kind: str, total: int, active: int) -> None:
    """Parameters in all and used per token, in billions, as the authors round them."""
    model = build(RECORDED[kind]["default"]["config"])
    assert total == round(model.params / 1e9)
    assert active == round(model.active_params / 1e9)


def test_shared_transformers_count_once_and_work_often() -> None:
    """Zamba 2: weights that hybrid layers share are owned once, and multiplied with in each of them."""
    config = {**RECORDED["zamba2"]["default"]["config"], "use_shared_attention_adapter": False}
    model = build(config)
    hybrids = [block for block, _ in model.runs if hasattr(block, "shared")]
    counts = [count for block, count in model.runs if hasattr(block, "shared")]
    assert counts == [1, 8]  # the owner; the others, of 9 hybrid layers of Zamba2-2.7B's class
    shared = sum(p.numel for p in hybrids[0].shared.parameters() if p.matmul)
    alone = build({**config, "layers_block_type": ["linear_attention"] * 54, "hybrid_layer_ids": None})
    linear = 9 * 2560 * 2560
    assert model.matmul_params - alone.matmul_params - linear - 9 * shared == 0
    without = [count for block, count in model.runs if block is hybrids[1]]
    assert without == [8]


# -- the ops against their definitions ---------------------------------------------------------------------


def chunks_of(tokens: int, chunk: int) -> list[int]:
    """Lengths of the chunks of a sequence."""
    return [min(chunk, tokens - start) for start in range(0, tokens, chunk)]


@pytest.mark.parametrize("tokens", [1, 63, 64, 200])
def test_duality_flops(tokens: int) -> None:
    """State-space duality (arXiv 2405.21060, section 6): the products of each chunk, counted one by one."""
    heads, groups, states, head_dim, chunk = 6, 2, 16, 8, 64
    expected = 0
    for length in chunks_of(tokens, chunk):
        for query in range(length):
            expected += (query + 1) * groups * states  # C·B of the tokens before, and itself
            expected += (query + 1) * heads * head_dim  # times their x
        expected += 2 * length * heads * head_dim * states  # into the state, and out of it
    tape = Ops(Work(3, tokens), Execution())
    x = tape.new(3 * tokens, heads * head_dim, "I", "bf16", True)
    shape: dict[str, Any] = {"heads": heads, "key_dim": states, "value_dim": head_dim, "groups": groups}
    linear_attention(tape, (x,), chunk=chunk, symbol="I", **shape)
    assert tape.records[-1].forward_flops == 2 * 3 * expected


@pytest.mark.parametrize("tokens", [64, 256])
def test_delta_rule_flops(tokens: int) -> None:
    """Gated delta rule (arXiv 2406.06484, section 3.2): the products of each chunk, counted one by one."""
    heads, key_dim, value_dim = 3, 16, 24
    expected = 0.0
    for length in chunks_of(tokens, CHUNK):
        for query in range(length):
            before = query + 1
            expected += before * key_dim * 3  # K·Kᵀ, Q·Kᵀ, and T times K
            expected += before * value_dim * 2  # T times V, and scores times V'
        expected += 3 * length * key_dim * value_dim  # W·S, Q·S, Kᵀ·V'
        # T by forward substitution: row i is a sum over the i rows above it
        expected += sum(row * (row - 1) / 2 for row in range(1, length + 1))
    tape = Ops(Work(1, tokens), Execution())
    x = tape.new(tokens, heads * value_dim, "v", "bf16", True)
    shape: dict[str, Any] = {"heads": heads, "key_dim": key_dim, "value_dim": value_dim}
    linear_attention(tape, (x,), chunk=CHUNK, symbol="v", delta=True, **shape)
    assert tape.records[-1].forward_flops == pytest.approx(2 * heads * expected, rel=0.02)


def test_one_token_costs_one_step() -> None:
    """Decoding: with one new token the chunked count is the recurrent one and a single pair per head."""
    heads, key_dim, value_dim = 4, 128, 128
    tape = Ops(Work(1, 1, 10_000), Execution(), training=False)
    x = tape.new(1, heads * value_dim, "v", "bf16")
    linear_attention(
        tape, (x,), heads=heads, key_dim=key_dim, value_dim=value_dim, chunk=CHUNK, symbol="v", delta=True
    )
    step = 2 * 3 * heads * key_dim * value_dim  # read S·k, write, read S·q
    assert 1 < tape.records[-1].forward_flops / step < 1.03


def test_scan_keeps_what_the_kernel_keeps() -> None:
    """mamba-ssm's scan keeps u, Δ, B, C, z, the output before z and two states every 2048 tokens, in fp32."""
    tokens, width, states = 4096, 64, 16
    tape = Ops(Work(1, tokens), Execution())
    u, dt, gate = (tape.new(tokens, width, "I", "bf16", True) for _ in range(3))
    b, c = (tape.new(tokens, states, "N", "bf16", True) for _ in range(2))
    selective_scan(tape, u, dt, b, c, gate, states=states, numel=0)
    expected = 2 * tokens * (4 * width + 2 * states) + 2 * 2 * width * states * 4
    assert expected == sum(storage.bytes for storage in tape.records[-1].saved)


COMMON = {
    "hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 8, "num_key_value_heads": 2,
    "vocab_size": 500,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
}  # fmt: skip
INKLING = {
    **COMMON, "head_dim": 16, "swa_num_attention_heads": 8, "swa_num_key_value_heads": 2, "swa_head_dim": 16,
    "sliding_window_size": 64, "d_rel": 4, "rel_extent": 64, "conv_kernel_size": 4, "moe_intermediate_size": 64,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "dense_mlp_idx": 9,
}  # fmt: skip
#: bytes that one more block keeps, by `saved_tensors_hooks` (each storage once, parameters left out) on the
#: CPU, B = 2, T = 256, fp32 and bf16, eager attention: transformers 5.24.0, PyTorch 2.13
SAVED: list[tuple[str, int, dict[str, Any], int, int]] = [
    ("mamba", 1, {"hidden_size": 64, "state_size": 16, "conv_kernel": 4, "expand": 2, "vocab_size": 500},
     15_709_184, 16_728_064),
    ("mamba2", 1, {"hidden_size": 64, "state_size": 32, "conv_kernel": 4, "expand": 2, "vocab_size": 500,
                   "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 64}, 10_770_098, 9_841_330),
    ("qwen3_5_text", 1, {**COMMON, **DELTA, "head_dim": 16}, 12_023_456, 8_871_328),
    ("minimax", 1, {**COMMON, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 64},
     12_775_536, 6_809_664),
    ("recurrent_gemma", 1, {**COMMON, "lru_width": 128, "conv1d_width": 4, "block_types": ["recurrent"]},
     7_349_248, 4_462_848),
    ("rwkv", 2, {"hidden_size": 64, "vocab_size": 500}, 4_859_392, 3_216_128),
    ("xlstm", 1, {"hidden_size": 128, "num_heads": 4, "vocab_size": 500}, 9_835_136, 5_458_368),
    ("lfm3", 1, {**COMMON, "head_dim": 16, "conv_L_cache": 3}, 6_825_984, 3_941_376),
    ("inkling_text", 1, INKLING, 12_738_560, 11_624_448),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("case", SAVED, ids=lambda case: case[0])
def test_kept_bytes(case: tuple[str, int, dict[str, Any], int, int], dtype: str) -> None:
    """What one more block keeps for backward is within 2 % of what PyTorch's hooks measured."""
    kind, layers, config, fp32, bf16 = case
    execution = Execution(attention="eager", kernels="eager", device="cpu")

    def kept(count: int) -> Any:
        model = build(
            {**config, "model_type": kind, "num_hidden_layers": count, "tie_word_embeddings": False}
        )
        taped = model.walk(lambda: Ops(Work(2, 256), execution, dtype=dtype))
        return sum(summary.saved * n for summary, n in taped.runs)

    expected = fp32 if dtype == "fp32" else bf16
    assert kept(layers + 1) - kept(layers) == pytest.approx(expected, rel=0.02)


# -- keys that miss or are null -----------------------------------------------------------------------------

#: keys without which we refuse to count, since a class would put in the size of one model
SIZES = {
    "adapter_rank", "attn_layer_offset", "attn_layer_period", "conv1d_width", "conv_L_cache", "conv_kernel",
    "conv_kernel_size", "d_rel", "expand", "expert_layer_offset", "expert_layer_period", "hc_count", "hc_lowrank",
    "head_dim", "heads_per_ngram", "hidden_size", "hybrid_override_pattern", "indexer_budget",
    "indexer_compress_ratio", "indexer_head_dim", "indexer_kv_heads", "indexer_n_heads", "intermediate_size",
    "kv_lora_rank", "layer_types", "layers_block_type", "linear_attn_config", "linear_conv_kernel_dim",
    "linear_head_dim", "linear_key_head_dim", "linear_num_heads", "linear_num_key_heads", "linear_num_value_heads",
    "linear_value_head_dim", "loop_config", "loop_gate_rank", "loop_layer_index_end", "loop_layer_index_start",
    "loop_num_passes", "mamba_d_conv", "mamba_d_ssm", "mamba_d_state", "mamba_expand", "mamba_head_dim",
    "mamba_n_groups", "mamba_n_heads", "mamba_ngroups", "mamba_num_heads", "moe_intermediate_size",
    "moe_shared_expert_intermediate_size", "n_groups", "n_mamba_heads", "n_routed_experts", "n_shared_experts",
    "ngram_size", "ngram_vocab_size_base", "num_attention_heads", "num_blocks", "num_dense_layers", "num_experts",
    "num_experts_per_tok", "num_experts_per_token", "num_heads", "num_hidden_layers", "num_key_value_heads",
    "num_local_experts", "num_mem_blocks", "num_shared_experts", "ple_conv_kernel_size", "qk_nope_head_dim",
    "qk_rope_head_dim", "rel_extent", "shared_expert_intermediate_size", "shared_intermediate_size",
    "short_conv_kernel_size", "sliding_window_size", "ssm_state_size", "state_size", "swa_head_dim",
    "swa_num_attention_heads", "swa_num_key_value_heads", "text_config", "unpadded_vocab_size", "v_head_dim",
    "vocab_size",
}  # fmt: skip


@pytest.mark.parametrize("how", ["missing", "null"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_or_null_key(kind: str, how: str) -> None:
    """Without a size there is no count; any other key that misses or is null means what transformers takes."""
    whole, refused = CONFIGS[kind][0], set()
    for key, outcome in SPOILED[kind].items():
        config = {k: v for k, v in whole.items() if k != key}
        model = attempt(config if how == "missing" else {**config, key: None})
        if isinstance(model, LoadsheetError):
            assert str(model).startswith("config.")
            refused.add(key)
        elif outcome[how] is not None:
            assert bare(outcome[how]) == facts(model), key
    assert {key for key in refused if SPOILED[kind][key][how] is not None} <= SIZES
    assert refused & {"vocab_size", "text_config"}


# -- contradictions and other names -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("mamba2", {"expand": 9}, "config.expand: got 9, expected `num_heads`·`head_dim` / `hidden_size`"),
        ("mamba2", {"n_groups": 999}, "config.n_groups: got 999, expected a divisor of `num_heads`"),
        ("mamba", {"time_step_rank": "some"}, "config.time_step_rank: got 'some', expected a whole number"),
        ("jamba", {"attn_layer_offset": 99}, "config.attn_layer_offset: got 99, expected less than"),
        ("bamba", {"mamba_d_head": 7}, "config.mamba_d_head: got 7, expected Mamba's width"),
        ("bamba", {"attn_layer_indices": "all"}, "config.attn_layer_indices: got 'all', expected a list"),
        ("granitemoehybrid", {"layer_types": ["mamba"] * 99}, "config.layer_types: got a list of 99"),
        (
            "granitemoehybrid",
            {"layer_types": None, "layers_block_type": 3},
            "config.layers_block_type: got 3",
        ),
        ("zamba", {"attention_hidden_size": 7}, "config.attention_hidden_size: got 7, expected 2·`hidden"),
        ("zamba2", {"hybrid_layer_ids": [99]}, "config.hybrid_layer_ids: got [99], expected the places"),
        (
            "qwen3_next",
            {"linear_num_key_heads": 3, "linear_num_value_heads": 4},
            "config.linear_num_value_he",
        ),
        ("qwen3_5", {"text_config": {}}, "config.text_config.hidden_size: missing, expected a whole number"),
        ("qwen3_5", {"text_config": [1]}, "config.text_config: got [1], expected an object"),
        (
            "recurrent_gemma",
            {"block_types": []},
            "config.block_types: got [], expected a list of `recurrent`",
        ),
        ("recurrent_gemma", {"block_types": [[]]}, "config.block_types: got [[]], expected a list"),
        ("inkling2_loop_text", {"loop_layer_index_end": 1, "loop_config": None}, "config.loop_layer_index"),
        ("qwen4_exp_text", {"hc_count": 1}, "config.hc_count: got 1, expected a whole number from 2"),
    ],
)
def test_contradictions(kind: str, change: dict[str, Any], message: str) -> None:
    """Values that contradict each other, or have the wrong type, are errors with the key's path."""
    with pytest.raises(BadConfig) as caught:
        build({**CONFIGS[kind][0], **change})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("word", ["", "M*X", 7, "M" * 10_001, ["M"]])
def test_a_pattern_that_is_none(word: Any) -> None:
    """Nemotron-H's word of layers: only its four letters, and no absurd length."""
    config = {**RECORDED["nemotron_h"]["default"]["config"], "hybrid_override_pattern": word}
    del config["layers_block_type"]
    with pytest.raises(BadConfig, match=r"^config\.hybrid_override_pattern: got .+, expected a letter"):
        build(config)


#: types whose layers are listed one by one, and files that hold a text model
OWN_DEPTH = {"nemotron_h", "lfm2_moe", "zamba2", "qwen3_5", "qwen3_5_moe", "qwen4_exp"}
#: keys with one entry per layer
LISTS = {
    "layer_types", "layers_block_type", "mlp_layer_types", "hybrid_layer_ids", "linear_attn_config",
    "ple_layer_ids", "attn_layer_indices", "local_layer_ids",
}  # fmt: skip


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in OWN_DEPTH])
def test_ten_thousand_layers_take_no_time(kind: str) -> None:
    """Equal layers are built and counted once, however many there are."""
    whole = RECORDED[kind]["default"]["config"]
    depth = "num_blocks" if kind == "xlstm" else "num_hidden_layers"
    config = {k: v for k, v in whole.items() if k not in LISTS}
    if kind == "xlstm":
        del config["num_hidden_layers"]
    if kind == "recurrent_gemma":  # its pattern is repeated a hundred times at most
        config["block_types"] = ["recurrent", "attention"] * 50
    start = time.process_time()
    model = build({**config, depth: 10_000})
    assert sum(model.split.values()) == model.params
    assert model.num_layers == 10_000
    assert time.process_time() - start < 1.5


KEYS = sorted({key for made in CONFIGS.values() for one in made for key in one})


@st.composite
def spoiled(draw: st.DrawFn) -> dict[str, Any]:
    """A valid config with some keys changed, cut out or put in."""
    config = dict(draw(st.sampled_from(CONFIGS[draw(st.sampled_from(KINDS))])))
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
    taped = model.walk(lambda: Ops(Work(2, 8), EAGER))
    assert taped.after.saved > 0

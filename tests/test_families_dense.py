"""More dense architectures: exact to the last parameter, FLOPs and cache as PyTorch counts them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_families import GARBAGE, attempt, digest, load, values

from loadsheet.arch.families import blt, build
from loadsheet.arch.layers import patches
from loadsheet.arch.model import Model, Taped
from loadsheet.arch.ops import Ops
from loadsheet.arch.work import Execution, Work
from loadsheet.errors import BadConfig, LoadsheetError, UnsupportedArchitecture

DATA = load("arch_dense.json.gz")  # tools/record_dense.py
MODELS: dict[str, list[dict[str, Any]]] = DATA["models"]
SEQUENCES, TOKENS = DATA["run"]
DRAWN = {kind: [entry for entry in entries if "flops" in entry] for kind, entries in MODELS.items()}


def facts(config: dict[str, Any]) -> dict[str, Any]:
    """Total, tie and digest from our own count, after a look at whether the parts add up to the total."""
    model = build(config)
    assert model.params == sum(p.numel for p in model.parameters())
    assert model.params == sum(model.split.values())
    assert model.params == sum(size * count for size, count in model.tensor_sizes.items())
    return {"total": model.params, "tied": model.tied, "digest": digest(model)[:16]}


def outline(entry: dict[str, Any]) -> dict[str, Any]:
    """The same from the recording."""
    return {key: entry[key] for key in ("total", "tied", "digest")}


def eager(model: Model, work: Work, *, training: bool = False) -> Taped:
    """A walk with everything written out, as FlopCounterMode sees it."""
    execution = Execution(attention="eager", kernels="eager")
    return model.walk(lambda: Ops(work, execution, training=training, full=training))


def forward_flops(taped: Taped) -> int:
    """FLOPs of one forward, the score matrices counted in full."""
    parts = [(taped.before, 1), *taped.runs, (taped.after, 1)]
    return int(sum(summary.forward_flops_full * count for summary, count in parts))


# -- exact ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_names_and_shapes(kind: str) -> None:
    """The default, three layers, random ones: total, tie, names and shapes equal transformers 5.24.0."""
    assert len(MODELS[kind]) == 10
    for entry in MODELS[kind]:
        assert outline(entry) == facts(entry["config"])


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_forward_flops(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOPs of a forward equal torch.utils.flop_counter.FlopCounterMode on transformers' model."""
    if kind == "blt":  # untrained, its patcher cuts after every byte and once more at the end
        for module in (blt, patches):
            monkeypatch.setattr(module, "patched", lambda work, size: replace(work, new=work.new + 1))
    for entry in DRAWN[kind]:
        model = build(entry["config"])
        assert entry["flops"] == forward_flops(eager(model, Work(SEQUENCES, TOKENS)))


@pytest.mark.parametrize("kind", sorted(k for k in MODELS if any("cache" in e for e in DRAWN[k])))
def test_cache(kind: str) -> None:
    """Elements of all cached tensors equal those of transformers' cache after a forward of that many tokens."""
    for entry in DRAWN[kind]:
        if entry["config"].get("new_decoder_architecture"):
            continue  # its class caches each key once for every query head; serving engines do not
        cached = build(entry["config"]).cache(Work(SEQUENCES, TOKENS))
        assert entry["cache"] == sum(tensor.elements * count for tensor, count in cached)


@pytest.mark.parametrize("kind", sorted(k for k in MODELS if any("windows" in e for e in DRAWN[k])))
def test_windows(kind: str) -> None:
    """How far each layer looks back equals the cache's layers in transformers 5.24.0."""
    for entry in DRAWN[kind]:
        model = build(entry["config"])
        order = model.order or tuple(i for i, (_, n) in enumerate(model.runs) for _ in range(n))
        assert entry["windows"] == [model.runs[i][0].mixer.window for i in order]


def test_gpt_neo_windows() -> None:
    """GPT-Neo's local layers see `window_size` tokens (its modeling file; its cache keeps everything)."""
    entry = next(e for e in DRAWN["gpt_neo"] if "local" in e["config"]["attention_types"][0][0])
    pattern, times = entry["config"]["attention_types"][0]
    model = build(entry["config"])
    expected = [entry["config"]["window_size"] if kind == "local" else None for kind in pattern * times]
    order = model.order or (0,) * model.num_layers
    assert expected == [model.runs[i][0].mixer.window for i in order]


# -- published -----------------------------------------------------------------------------------------

FALCON = {"model_type": "falcon", "alibi": False, "bias": False, "parallel_attn": True, "vocab_size": 65024}
LFM2 = {
    "model_type": "lfm2", "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
    "conv_L_cache": 3, "conv_bias": False, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "num_hidden_layers": 16,
    "num_key_value_heads": 8, "vocab_size": 65536,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (  # BigScience, BLOOM's model card: 176,247,271,424 parameters
            {
                "model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112,
                "vocab_size": 250880,
            },
            176_247_271_424,
        ),
        (  # BigScience, BLOOM-560m's model card: 559,214,592 parameters
            {"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880},
            559_214_592,
        ),
        (  # MosaicML 2023, MPT-7B, and its safetensors on the hub; llm-foundry's keys beside the class's
            {
                "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4,
                "max_seq_len": 2048, "vocab_size": 50432, "no_bias": True,
                "attn_config": {"alibi": True, "attn_type": "multihead_attention", "qk_ln": False},
            },
            6_649_286_656,
        ),
        (  # tiiuae/falcon-180B, safetensors on the hub: its head is stored apart
            FALCON | {
                "hidden_size": 14848, "num_attention_heads": 232, "num_hidden_layers": 80, "num_kv_heads": 8,
                "multi_query": True, "new_decoder_architecture": True, "tie_word_embeddings": False,
            },
            179_522_565_120,
        ),
        (  # tiiuae/falcon-40b, safetensors on the hub, with the older names of its sizes
            FALCON | {
                "hidden_size": 8192, "n_head": 128, "n_layer": 60, "n_head_kv": 8, "multi_query": True,
                "new_decoder_architecture": True,
            },
            41_303_293_952,
        ),
        (  # Liquid AI 2025, LFM2-1.2B's model card: 1,170,340,608 parameters
            LFM2 | {"hidden_size": 2048, "num_attention_heads": 32, "block_ff_dim": 12288},
            1_170_340_608,
        ),
        (  # Liquid AI 2025, LFM2-350M's model card: 354,483,968 parameters
            LFM2 | {"hidden_size": 1024, "num_attention_heads": 16, "block_ff_dim": 6656},
            354_483_968,
        ),
        (  # LG AI Research 2024, EXAONE-3.0-7.8B, safetensors on the hub; its own names of depth and activation
            {
                "model_type": "exaone", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
                "num_key_value_heads": 8, "num_layers": 32, "vocab_size": 102400, "activation_function": "silu",
                "tie_word_embeddings": False,
            },
            7_818_448_896,
        ),
    ],
)  # fmt: skip
def test_published_counts(config: dict[str, Any], total: int) -> None:
    """Files as they stand on the hub, older names included, give the published number of parameters."""
    assert total == build(config).params


# -- missing and wrong keys ----------------------------------------------------------------------------

#: keys that change the count and that no class derives from others, by model type where a class does
SIZES = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size", "n_embd", "n_head",
    "n_layer", "d_model", "n_heads", "n_layers", "num_layers", "num_heads", "attention_heads", "ffn_dim", "dff",
    "dim_head", "dim_ff", "intermediate_multiple_size", "prompt_types", "prompt_length", "segment_types",
    "position_bias_num_buckets", "conv_L_cache", "num_experts", "num_experts_per_tok", "cross_attn_k",
    "encoder_hash_byte_group_vocab", "encoder_hash_byte_group_size", "text_config", "encoder_config",
    "decoder_config", "global_config",
}  # fmt: skip
DERIVED = {("gpt_neo", "intermediate_size")}
HEAD_DIM = {
    "dory", "ernie4_5", "helium", "hrm_text", "hunyuan_v1_dense", "internlm3", "iquestcoder", "ministral3", "seed_oss",
}  # fmt: skip
KV_HEADS = {
    "bitnet", "dory", "emu3_text_model", "ernie4_5", "exaone", "helium", "internlm3", "iquestcoder", "lfm2",
    "ministral3", "nemotron", "seed_oss", "smollm3",
}  # fmt: skip
LEARNED = {"biogpt", "gpt-sw3", "gpt_bigcode", "gpt_neo", "openai-gpt"}


def must_be_there(kind: str, key: str) -> bool:
    """Whether we refuse a config without that key."""
    if key == "head_dim":
        return kind in HEAD_DIM
    if key == "num_key_value_heads":
        return kind in KV_HEADS
    if key in ("n_positions", "max_position_embeddings"):
        return kind in LEARNED
    return key in SIZES and (kind, key) not in DERIVED


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_a_missing_key(kind: str) -> None:
    """A missing size is an error that names it; any other missing key means what transformers takes."""
    whole = DRAWN[kind][0]["config"]
    for key, outcome in DATA["spoiled"][kind].items():
        config = {k: v for k, v in whole.items() if k != key}
        if must_be_there(kind, key):
            with pytest.raises(BadConfig, match=rf"^config\.{key}: missing, expected "):
                build(config)
        elif outcome["missing"] is not None:
            assert outcome["missing"] == facts(config), key


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_a_null_key(kind: str) -> None:
    """A null means what transformers takes it for, or is an error that names the key."""
    whole = DRAWN[kind][0]["config"]
    for key, outcome in DATA["spoiled"][kind].items():
        made = attempt({**whole, key: None})
        if isinstance(made, LoadsheetError):
            assert must_be_there(kind, key) or outcome["null"] is None
            assert str(made).startswith("config.")
        elif outcome["null"] is not None:
            assert outcome["null"] == facts({**whole, key: None}), key


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("falcon", {"num_attention_heads": 7}, "config.hidden_size: got"),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 77}, "config.num_kv_heads: got 77, expected a"),
        ("bloom", {"n_embed": 8}, "config.n_embed: got 8, expected the same as `hidden_size`"),
        ("gpt_neo", {"num_layers": 9}, "config.attention_types: got"),
        ("gpt_neo", {"attention_types": [[["local"], 10**9]]}, "config.attention_types: got"),
        ("gpt_neo", {"attention_types": "local"}, "config.attention_types: got 'local', expected a list of"),
        ("gpt_neo", {"attention_layers": ["far"] * 4, "num_layers": 4}, "config.attention_types: got 'far', expected"),
        ("internlm3", {"attention_bias": True, "mlp_bias": False, "qkv_bias": None, "bias": None}, "config.attention"),
        ("internlm3", {"attention_bias": True, "qkv_bias": False}, "config.qkv_bias: got False, expected the same"),
        ("diffllama", {"num_key_value_heads": 1}, "config.num_key_value_heads: got 1, expected an even number"),
        ("diffllama", {"attention_dropout": 0.1}, "config.attention_dropout: got 0.1, expected 0"),
        ("moshi", {"ffn_dim": 33}, "config.ffn_dim: got 33, expected an even number"),
        ("apertus", {"hidden_act": "prelu"}, "config.hidden_act: got 'prelu', expected one of"),
        ("apertus1p5_text", {"output_vocab_size": 10**6}, "config.output_vocab_size: got 1000000, expected at most"),
        ("doge", {"is_moe": True, "num_experts": 4, "num_experts_per_tok": 9}, "config.num_experts_per_tok: got 9"),
        ("dory", {"n_recurrent_layers": 77}, "config.n_recurrent_layers: got"),
        ("lfm2", {"layer_types": ["lstm"] * 4, "num_hidden_layers": 4}, "config.layer_types: got"),
        ("exaone", {"num_layers": 3, "num_hidden_layers": 4}, "config.num_layers: got 3, expected the same as"),
        ("hrm_text", {"L_bp_cycles": 3}, "config.L_bp_cycles: got 3, expected a list"),
        ("blt", {"cross_attn_k": 7}, "config.encoder_config.cross_attn_k: expected the same"),
        ("emu3", {"text_config": {"hidden_size": 64}}, "config.text_config.num_attention_heads: missing"),
        ("emu3", {"text_config": [64]}, "config.text_config: got [64], expected an object"),
    ],
)  # fmt: skip
def test_contradictions(kind: str, change: dict[str, Any], expected: str) -> None:
    """Values that contradict each other are errors with the key's path."""
    with pytest.raises(BadConfig) as caught:
        build({**DRAWN[kind][0]["config"], **change})
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("xglm", {"add_cross_attention": True}),
        ("gpt_bigcode", {"add_cross_attention": True}),
        ("mpt", {"attn_config": {"qk_ln": True}}),
        ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}),
        ("iquestcoder", {"clip_qkv": 8}),
        ("iquestcoder", {"use_sliding_window": True}),
    ],
)
def test_what_a_class_does_not_support(kind: str, change: dict[str, Any]) -> None:
    """A switch that the family does not describe is an error, not a count without it."""
    with pytest.raises(UnsupportedArchitecture, match=r"^config"):
        build({**DRAWN[kind][0]["config"], **change})


# -- loops and gradients -------------------------------------------------------------------------------


def test_a_loop_is_counted_once_and_computed_often() -> None:
    """Dory's looped layers have one set of weights; matrices count as often as they are passed."""
    entry = next(e for e in DRAWN["dory"] if e["config"]["n_recurrent_loops"] == 3)
    once = build({**entry["config"], "n_recurrent_loops": 1})
    thrice = build(entry["config"])
    assert once.params == thrice.params == entry["total"]
    layers = entry["config"]["n_recurrent_layers"]
    if "mlp" in entry["config"].get("layer_types", []):  # attention and MLP counted as two
        layers //= 2
    block = sum(p.numel for p in thrice.runs[0][0].parameters() if p.matmul)
    assert 2 * layers * block == thrice.matmul_params - once.matmul_params


def test_passes_without_gradients_keep_nothing() -> None:
    """HRM-Text runs its first low passes under no_grad: nothing is kept there, forward is computed all the same."""
    config = {
        **DRAWN["hrm_text"][0]["config"], "num_hidden_layers": 2, "H_cycles": 2, "L_cycles": 3, "L_bp_cycles": [1],
        "num_layers_per_stack": None,
    }  # fmt: skip
    taped = eager(build(config), Work(2, 8), training=True)
    low = taped.runs[0][0]
    counts = {"kept": 0, "nothing": 0}
    for summary, count in taped.runs:
        counts["kept" if summary.saved else "nothing"] += count
    assert low.forward_flops > 0 == low.weight_grad_flops
    # per high cycle: two low passes of two layers without gradients, one with them, and the high pass
    assert counts == {"nothing": 2 * 2 * 2, "kept": 2 * 2 * (1 + 1)}


# -- anything at all -----------------------------------------------------------------------------------

DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
PATTERNS = ("layer_types", "no_rope_layers", "full_attn_idxs", "attention_types")


@pytest.mark.parametrize("kind", sorted(set(MODELS) - {"blt", "emu3", "gpt_neo", "dory"}))
def test_ten_thousand_layers_take_no_time(kind: str) -> None:
    """Equal layers are built and counted once, however many there are."""
    config = {k: v for k, v in DRAWN[kind][0]["config"].items() if k not in PATTERNS}
    depth = next(key for key in DEPTHS if key in config)
    start = time.process_time()
    model = build({**config, depth: 10_000, "num_layers_per_stack": None})
    assert model.params == sum(model.split.values())
    assert model.num_layers == (20_000 if kind == "hrm_text" else 10_000)
    assert time.process_time() - start < 1.0


KEYS = sorted({key for entries in MODELS.values() for entry in entries for key in entry["config"]})


@st.composite
def spoiled(draw: st.DrawFn) -> dict[str, Any]:
    """A valid config with some keys changed, cut out or put in; in a nested one too."""
    config = dict(draw(st.sampled_from(DRAWN[draw(st.sampled_from(sorted(DRAWN)))]))["config"])
    inner = [key for key, value in config.items() if isinstance(value, dict)]
    target = config
    if inner and draw(st.booleans()):
        key = draw(st.sampled_from(inner))
        target = config[key] = dict(config[key])
    for _ in range(draw(st.integers(1, 4))):
        key = draw(st.sampled_from(sorted(target) or KEYS) | st.sampled_from(KEYS))
        if draw(st.booleans()):
            target[key] = draw(values | st.sampled_from(GARBAGE))
        else:
            target.pop(key, None)
    return config


@given(spoiled())
def test_any_config_gives_a_model_or_our_error(config: dict[str, Any]) -> None:
    """Whatever stands in a config: a model whose parts add up and that can be walked, or our own error."""
    model = attempt(config)
    if isinstance(model, LoadsheetError):
        assert str(model).startswith("config")
        return
    assert sum(model.split.values()) == model.params > 0
    assert 0 < model.active_params <= model.params
    assert eager(model, Work(2, 8), training=True).after.saved > 0

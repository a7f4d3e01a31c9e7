"""Random configurations of more dense architectures, for `record_dense.py` (not a test)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from make_random_configs import (
    alternating,
    base,
    flags,
    layer_types,
    plain,
    some_window,
)

Draw = dict[str, Any]


# -- drawing ---------------------------------------------------------------------------------------


def some(r: Random, *keys: str) -> Draw:
    """The usual sizes, of those only these."""
    drawn = base(r)
    return {key: drawn[key] for key in keys}


def maybe(r: Random, found: Draw) -> Draw:
    """These keys, or none of them."""
    return found if r.random() < 0.5 else {}


def older(*names: str, inner: Draw | None = None, multiple: int = 1) -> Callable[[Random], Draw]:
    """A GPT with its own names of width, depth, heads and positions; heads as wide as the model."""
    width, depth, head, positions = names

    def draw(r: Random) -> Draw:
        heads = multiple * r.choice([1, 2, 3, 4])
        config = {
            width: heads * r.choice([8, 16, 24]), depth: r.randint(1, 6), head: heads,
            **some(r, "vocab_size", "tie_word_embeddings"),
        }  # fmt: skip
        if positions:
            config[positions] = r.choice([32, 100, 512])
        for key, values in (inner or {}).items():
            config[key] = r.choice(values)
        return config

    return draw


def also(draw: Callable[[Random], Draw], more: Callable[[Random], Draw]) -> Callable[[Random], Draw]:
    """Both draws together."""
    return lambda r: {**draw(r), **more(r)}


GPT2 = ("n_embd", "n_layer", "n_head", "n_positions")
WIDTHS = [None, 50, 128]


def falcon(r: Random) -> Draw:
    """Falcon: one KV head, groups or all, norms alone or in pairs."""
    heads = r.choice([2, 4, 6])
    config = {
        "hidden_size": heads * r.choice([8, 16]), "num_hidden_layers": r.randint(1, 5), "num_attention_heads": heads,
        **some(r, "vocab_size", "tie_word_embeddings"), **flags(r, "multi_query", "parallel_attn", "alibi", "bias"),
        "new_decoder_architecture": False,
    }  # fmt: skip
    if r.random() < 0.5:
        config |= {"new_decoder_architecture": True, "parallel_attn": True}
        config |= {"num_kv_heads": r.choice([k for k in range(1, heads + 1) if heads % k == 0])}
        config |= r.choice([{}, {"num_ln_in_parallel_attn": 1}, {"num_ln_in_parallel_attn": 2}])
    return config | r.choice([{}, {"ffn_hidden_size": 72}])


def gpt_neo(r: Random) -> Draw:
    """GPT-Neo: groups of global and local layers."""
    pattern = [r.choice(["global", "local"]) for _ in range(r.choice([1, 2, 3]))]
    times = r.choice([1, 2])
    heads = r.choice([1, 2, 4])
    return {
        "hidden_size": heads * r.choice([8, 16]), "num_heads": heads, "num_layers": len(pattern) * times,
        "attention_types": [[pattern, times]], "intermediate_size": r.choice(WIDTHS), "window_size": r.choice([16, 32]),
        "max_position_embeddings": r.choice([32, 100]), **some(r, "vocab_size", "tie_word_embeddings"),
    }  # fmt: skip


def gptj(r: Random) -> Draw:
    """GPT-J and CodeGen (whose heads come in fours), part of each head rotary."""
    return older(*GPT2, inner={"n_inner": WIDTHS}, multiple=4)(r) | {"rotary_dim": r.choice([4, 8])}


def mpt(r: Random) -> Draw:
    """MPT: what its attention is called does not matter."""
    config = older("d_model", "n_layers", "n_heads", "max_seq_len")(r)
    return config | maybe(r, {"attn_config": {"alibi": True, "attn_pdrop": 0}})


def cpmant(r: Random) -> Draw:
    """CPM-Ant: prompts, segments and buckets of distances."""
    return some(r, "hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size") | {
        "dim_head": r.choice([8, 16]), "dim_ff": r.choice([17, 64]), "prompt_types": r.choice([3, 8]),
        "prompt_length": r.choice([2, 5]), "segment_types": r.choice([3, 32]),
        "position_bias_num_buckets": r.choice([8, 64]),
    }  # fmt: skip


def square(draw: Callable[[Random], Draw], keep: bool = False) -> Callable[[Random], Draw]:
    """Heads that are together as wide as the model; head_dim is written or left out."""

    def drawn(r: Random) -> Draw:
        config = draw(r)
        config["hidden_size"] = config["num_attention_heads"] * config["head_dim"]
        if not keep:
            del config["head_dim"]
        return config

    return drawn


def divided(draw: Callable[[Random], Draw]) -> Callable[[Random], Draw]:
    """head_dim or KV heads sometimes left out."""

    def drawn(r: Random) -> Draw:
        config = draw(r)
        for key in ("head_dim", "num_key_value_heads"):
            if r.random() < 0.25:
                del config[key]
        return config

    return drawn


def nulled(draw: Callable[[Random], Draw], *keys: str) -> Callable[[Random], Draw]:
    """These keys sometimes null."""
    return lambda r: {k: None if k in keys and r.random() < 0.25 else v for k, v in draw(r).items()}


def without_kv(draw: Callable[[Random], Draw]) -> Callable[[Random], Draw]:
    """No KV heads of its own."""
    return lambda r: {k: v for k, v in draw(r).items() if k != "num_key_value_heads"}


def internlm3(r: Random) -> Draw:
    """InternLM 3: both biases or none, under either name."""
    bias = r.random() < 0.5
    names = r.choice([("attention_bias", "mlp_bias"), ("qkv_bias", "bias")])
    return plain()(r) | dict.fromkeys(names, bias)


def exaone(r: Random) -> Draw:
    """EXAONE 3: its own names of the depth and the activation, or the usual ones."""
    config = divided(plain("attention_bias", "mlp_bias"))(r)
    if r.random() < 0.5:
        config |= {"num_layers": config.pop("num_hidden_layers"), "activation_function": "gelu"}
    return config


def moshi(r: Random) -> Draw:
    """Moshi: an even width of the MLP."""
    config = divided(plain())(r)
    del config["intermediate_size"]
    return config | {"ffn_dim": r.choice([18, 64, 200])} | some_window(r)


def apertus_text(r: Random) -> Draw:
    """The text model of Apertus 1.5: perhaps fewer rows in the head than in the embedding."""
    config = divided(plain("attention_bias"))(r) | {"hidden_act": r.choice(["xielu", "silu", "relu2"])}
    if not config["tie_word_embeddings"]:
        config |= r.choice([{}, {"output_vocab_size": 50}, {"output_vocab_size": config["vocab_size"]}])
    return config


def smollm3(r: Random) -> Draw:
    """SmolLM 3: layers without positions, by interval or listed, perhaps with windows."""
    config = divided(plain("attention_bias", "mlp_bias"))(r)
    layers = config["num_hidden_layers"]
    config |= r.choice([
        {}, {"no_rope_layer_interval": r.choice([1, 2, 3])},
        {"no_rope_layers": [r.randint(0, 1) for _ in range(layers)]},
    ])  # fmt: skip
    config |= r.choice([{}, {"use_sliding_window": True, "sliding_window": 16}, {"use_sliding_window": True}])
    if "sliding_window" in config:
        config |= layer_types(r, config, "sliding_attention", "full_attention")
    return config


def doge(r: Random) -> Draw:
    """Doge: with and without experts found by product keys."""
    config = divided(plain("attention_bias", "mlp_bias"))(r) | r.choice([{}, {"sliding_window": 16}])
    if r.random() < 0.5:
        config |= {"is_moe": True, "num_experts": r.choice([16, 64]), "num_experts_per_tok": r.choice([1, 4])}
    return config


def diffllama(r: Random) -> Draw:
    """DiffLlama: an even number of KV heads."""
    config = plain("attention_bias")(r)
    config["num_key_value_heads"] = 2 * r.choice([1, 2])
    config["num_attention_heads"] = config["num_key_value_heads"] * r.choice([1, 2])
    config["hidden_size"] = config["num_attention_heads"] * r.choice([8, 16])
    return config


def lfm2(r: Random) -> Draw:
    """LFM2: convolutions and attention, listed in either way, the MLP's width adjusted or not."""
    config = square(plain("conv_bias", "block_auto_adjust_ff_dim"))(r)
    layers = config["num_hidden_layers"]
    config |= {
        "conv_L_cache": r.choice([2, 3, 5]), "block_multiple_of": r.choice([8, 32]),
        "block_ffn_dim_multiplier": r.choice([0.7, 1.0, 1.3, None]),
    }  # fmt: skip
    if r.random() < 0.5:
        config["block_ff_dim"] = config.pop("intermediate_size")
        config["tie_embedding"] = config.pop("tie_word_embeddings")
    return config | r.choice([
        {}, {"full_attn_idxs": sorted(r.sample(range(layers), r.randint(0, layers)))},
        {"layer_types": [r.choice(["conv", "full_attention"]) for _ in range(layers)]},
    ])  # fmt: skip


def hrm_text(r: Random) -> Draw:
    """HRM-Text: layers per stack, named or derived, and cycles."""
    config = without_kv(square(plain("attention_bias", "mlp_bias"), keep=True))(r)
    config["num_hidden_layers"] = r.randint(1, 3)
    config |= {"H_cycles": r.choice([1, 2, 3]), "L_cycles": r.choice([1, 2, 4])}
    if r.random() < 0.5:  # as saved: all passes of two layers
        passes = config["H_cycles"] * (config["L_cycles"] + 1)
        config |= {"num_layers_per_stack": 2, "num_hidden_layers": 2 * passes}
    return config | r.choice([{}, {"L_bp_cycles": [1]}, {"L_bp_cycles": [2, 1]}])


def dory(r: Random) -> Draw:
    """Dory: layers before, in and after the loop; as saved, or as written by hand."""
    parts = [r.choice([2, 4]), r.choice([2, 4, 6]), r.choice([2, 4])]
    config = plain("attention_bias", "mlp_bias")(r) | {
        "num_hidden_layers": sum(parts), "n_input_layers": parts[0], "n_recurrent_layers": parts[1],
        "n_output_layers": parts[2], "n_recurrent_loops": r.choice([1, 2, 3]), "sliding_window": r.choice([16, 100]),
    }  # fmt: skip
    kinds = [r.choice(["sliding_attention", "full_attention"]) for _ in range(sum(parts))]
    saved = [kind if i % 2 == 0 else "mlp" for i, kind in enumerate(kinds)]
    return config | r.choice([{}, {"layer_types": kinds}, {"layer_types": saved}])


def emu3(r: Random) -> Draw:
    """Emu3: its language model inside the config of the whole."""
    return {"text_config": emu3_text(r)}


def emu3_text(r: Random) -> Draw:
    """Emu3's language model; its class wants a padding token."""
    return plain("attention_bias", "mlp_bias")(r) | {"pad_token_id": 0}


def blt(r: Random) -> Draw:
    """BLT: four transformers that fit together."""
    k, heads = r.choice([1, 2]), r.choice([2, 4])
    width = heads * r.choice([8, 16])
    wide = r.choice([k * width, 2 * k * width])

    def part(hidden: int, **more: Any) -> Draw:
        kv_heads = r.choice([None, 1, heads])
        return {
            "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "num_hidden_layers": r.randint(1, 3), "intermediate_size": r.choice([24, 60]), **more,
        }  # fmt: skip

    cross = {"cross_attn_k": k, "hidden_size_global": wide, "vocab_size": 260}
    encoder = part(width, **cross, cross_attn_all_layers=r.random() < 0.5)
    if r.random() < 0.5:
        del encoder["intermediate_size"]
    return {
        "vocab_size": 260, "cross_attn_k": k, "patch_size": r.choice([2, 4]), **flags(r, "patch_in_forward"),
        "encoder_hash_byte_group_size": r.choice([[3, 4], [3, 5, 8], [2]]), "encoder_hash_byte_group_vocab": 50,
        "encoder_hash_byte_group_nb_functions": r.choice([1, 2]), "tie_word_embeddings": r.random() < 0.5,
        "encoder_config": encoder, "decoder_config": part(width, **cross, cross_attn_all_layers=r.random() < 0.5),
        "global_config": part(wide), "patcher_config": part(heads * 8, vocab_size=260),
    }  # fmt: skip


BIASES = ("attention_bias", "mlp_bias")
DRAWS: dict[str, Callable[[Random], Draw]] = {
    "apertus": also(divided(plain("attention_bias")), lambda r: {"hidden_act": r.choice(["xielu", "silu"])}),
    "apertus1p5_text": apertus_text,
    "arcee": divided(plain(*BIASES)),
    "biogpt": also(
        older("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"),
        lambda r: some(r, "intermediate_size"),
    ),
    "bitnet": nulled(square(plain("attention_bias")), "num_key_value_heads"),
    "bloom": older("hidden_size", "n_layer", "n_head", ""),
    "blt": blt,
    "codegen": gptj,
    "cohere_compass_text": also(
        square(alternating("attention_bias")),
        lambda r: {
            "rope_parameters": {
                kind: {"rope_theta": 10000.0, "rope_type": "default"}
                for kind in ("full_attention", "sliding_attention")
            }
        },
    ),
    "cpmant": cpmant,
    "ctrl": older(*GPT2, inner={"dff": [17, 64]}),
    "diffllama": diffllama,
    "doge": doge,
    "dory": dory,
    "emu3": emu3,
    "emu3_text_model": emu3_text,
    "ernie4_5": nulled(plain("use_bias"), "num_key_value_heads", "head_dim"),
    "exaone": exaone,
    "falcon": falcon,
    "gpt-sw3": older(*GPT2, inner={"n_inner": WIDTHS}),
    "gpt_bigcode": also(older(*GPT2, inner={"n_inner": WIDTHS}), lambda r: flags(r, "multi_query")),
    "gpt_neo": gpt_neo,
    "gpt_neox_japanese": also(
        older("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"),
        lambda r: {"intermediate_multiple_size": r.choice([1, 3, 4])},
    ),
    "gptj": gptj,
    "helium": square(plain(*BIASES), keep=True),
    "hrm_text": hrm_text,
    "hunyuan_v1_dense": plain("attention_bias"),
    "hyperclovax": divided(plain(*BIASES, "use_post_norm")),
    "internlm3": internlm3,
    "iquestcoder": nulled(plain(*BIASES), "num_key_value_heads"),
    "jais2": divided(plain(*BIASES)),
    "lfm2": lfm2,
    "ministral3": also(plain(), lambda r: r.choice([{}, {"sliding_window": 16}])),
    "moshi": moshi,
    "mpt": mpt,
    "nanochat": divided(plain("attention_bias")),
    "nemotron": plain(*BIASES),
    "openai-gpt": older(*GPT2),
    "persimmon": without_kv(square(plain("qk_layernorm"))),
    "seed_oss": nulled(plain(*BIASES, "attention_out_bias"), "num_key_value_heads", "head_dim"),
    "smollm3": smollm3,
    "xglm": older("d_model", "num_layers", "attention_heads", "", inner={"ffn_dim": [17, 64]}),
}

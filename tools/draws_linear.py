"""Random configurations of linear attention, other recurrences and convolutions, for tools/draws_recurrent.py."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from draws_states import Draw, attended, common, maybe, one, pick
from make_random_configs import base, experts, flags, layer_types, some_window

# -- gated delta nets --------------------------------------------------------------------------------


def delta_keys(r: Random) -> Draw:
    """The keys of a gated delta net."""
    heads = r.choice([1, 2, 3])
    return {
        "linear_num_key_heads": heads, "linear_num_value_heads": heads * r.choice([1, 2]),
        "linear_key_head_dim": r.choice([8, 12]), "linear_value_head_dim": r.choice([8, 20]),
        "linear_conv_kernel_dim": r.choice([2, 4]),
    }  # fmt: skip


def kinds_or_interval(r: Random, config: Draw, *kinds: str) -> Draw:
    """Kinds of layers listed, every n-th, or left to the class."""
    listed = {"layer_types": [r.choice(kinds) for _ in range(config["num_hidden_layers"])]}
    return r.choice([{}, listed, {"full_attention_interval": r.randint(1, 4)}])


def qwen3_next(r: Random) -> Draw:
    """Qwen3-Next: which layers are mixtures."""
    config = base(r) | experts(r, "num_experts") | delta_keys(r) | flags(r, "attention_bias") | {
        "moe_intermediate_size": r.choice([16, 33]), "shared_expert_intermediate_size": r.choice([24, 50]),
    }  # fmt: skip
    layers = config["num_hidden_layers"]
    config |= r.choice([{}, {"decoder_sparse_step": r.choice([1, 2, 3])}, {"num_experts": 0}])
    config |= r.choice([{}, {"mlp_only_layers": sorted(r.sample(range(layers), r.randint(0, layers)))}])
    return config | kinds_or_interval(r, config, "linear_attention", "full_attention")


def qwen3_5(r: Random) -> Draw:
    """Qwen 3.5, dense."""
    config = base(r) | delta_keys(r) | flags(r, "attention_bias")
    return config | kinds_or_interval(r, config, "linear_attention", "full_attention")


def qwen3_5_moe(r: Random) -> Draw:
    """Qwen 3.5 with mixtures."""
    config = qwen3_5(r) | experts(r, "num_experts")
    del config["intermediate_size"]
    return config | {
        "moe_intermediate_size": r.choice([16, 33]), "shared_expert_intermediate_size": r.choice([24, 50]),
    }  # fmt: skip


def wrapped(draw: Callable[[Random], Draw]) -> Callable[[Random], Draw]:
    """The same as the text part of a multimodal file."""

    def outer(r: Random) -> Draw:
        return {"text_config": draw(r)} | maybe(r, {"tie_word_embeddings": r.random() < 0.5})

    return outer


def lara_mini(r: Random) -> Draw:
    """Lara Mini: three kinds of layers."""
    config = qwen3_5_moe(r) | some_window(r)
    config.pop("full_attention_interval", None)
    kinds = ("linear_attention", "full_attention", "sliding_attention")
    listed = {"layer_types": [r.choice(kinds) for _ in range(config["num_hidden_layers"])]}
    return config | r.choice([{"layer_types": None}, listed])


def olmo_hybrid(r: Random) -> Draw:
    """OLMo hybrid: sizes of the delta net given or derived."""
    config = attended(r) | flags(r, "attention_bias") | {"linear_conv_kernel_dim": r.choice([2, 4])}
    layers = config["num_hidden_layers"] = r.randint(2, 8)
    if r.random() < 0.5:
        config |= delta_keys(r)
    kinds = [
        "linear_attention",
        "full_attention",
        *r.choices(("linear_attention", "full_attention"), k=layers - 2),
    ]
    r.shuffle(kinds)
    return config | r.choice([{}, {"layer_types": kinds}])


def latent_keys(r: Random) -> Draw:
    """The keys of latent attention, and of the mixtures beside it."""
    return {
        "q_lora_rank": r.choice([None, 12, 40]), "kv_lora_rank": r.choice([8, 20]),
        "qk_nope_head_dim": r.choice([8, 24]), "qk_rope_head_dim": r.choice([4, 8]),
        "v_head_dim": r.choice([8, 12, 40]), "moe_intermediate_size": r.choice([16, 33]),
    }  # fmt: skip


def mlp_kinds(r: Random, layers: int) -> Draw:
    """Which layers are mixtures: listed, the first few dense, or left to the class."""
    listed = {"mlp_layer_types": [r.choice(["sparse", "dense"]) for _ in range(layers)]}
    return r.choice([{}, listed, {"first_k_dense_replace": r.randint(0, layers)}])


def kimi_linear(r: Random) -> Draw:
    """Kimi Linear: by its present names, or as the first files have them."""
    config = base(r) | latent_keys(r) | flags(r, "attention_bias")
    config["num_key_value_heads"] = config["num_attention_heads"]
    del config["head_dim"]
    layers, count = config["num_hidden_layers"], r.choice([1, 4, 5])
    k, shared = r.randint(1, count), r.choice([1, 2])
    heads, dim, kernel = r.choice([1, 2, 3]), r.choice([8, 12]), r.choice([2, 4])
    full = sorted(r.sample(range(1, layers + 1), r.randint(0, layers)))
    if r.random() < 0.5:
        config |= {
            "num_experts": count, "num_experts_per_token": k, "num_shared_experts": shared,
            "linear_attn_config": {
                "num_heads": heads, "head_dim": dim, "short_conv_kernel_size": kernel, "full_attn_layers": full,
                "kda_layers": [i for i in range(1, layers + 1) if i not in full],
            },
        }  # fmt: skip
    else:
        config |= {
            "num_local_experts": count, "num_experts_per_tok": k, "n_shared_experts": shared,
            "linear_num_heads": heads, "linear_head_dim": dim, "linear_conv_kernel_dim": kernel,
        } | maybe(r, {
            "layer_types": ["full_attention" if i in full else "linear_attention" for i in range(layers)]
        })  # fmt: skip
    return config | mlp_kinds(r, layers)


def bailing_hybrid(r: Random) -> Draw:
    """Ling 3: head_dim is that of its delta attention."""
    config = base(r) | latent_keys(r) | flags(r, "attention_bias")
    layers, count = config["num_hidden_layers"], 4 * r.choice([1, 2])
    kinds = ("linear_attention", "full_attention")
    return config | {
        "num_key_value_heads": config["num_attention_heads"], "head_dim": r.choice([8, 12]),
        "short_conv_kernel_size": r.choice([2, 4]), "num_experts": count,
        "num_experts_per_tok": r.randint(1, count), "n_shared_experts": r.choice([1, 2]), "n_group": 1, "topk_group": 1,
    } | mlp_kinds(r, layers) | r.choice([
        {}, {"layer_group_size": r.randint(1, 4)}, {"layer_types": [r.choice(kinds) for _ in range(layers)]},
    ])  # fmt: skip


# -- other recurrences, short convolutions -----------------------------------------------------------


def recurrent_gemma(r: Random) -> Draw:
    """RecurrentGemma: the recurrence's width, the pattern of layers."""
    heads = r.choice([1, 2, 4])
    config = base(r) | flags(r, "attention_bias") | {
        "num_attention_heads": heads, "hidden_size": heads * r.choice([8, 16]), "conv1d_width": r.choice([2, 4]),
        "num_key_value_heads": r.choice([None, 1, heads]), "lru_width": r.choice([None, 12 * heads]),
        "attention_window_size": r.choice([16, 64]),
    } | r.choice([
        {}, {"block_types": ["recurrent", "attention"]}, {"block_types": ["attention"]},
        {"block_types": ["recurrent", "recurrent", "recurrent"]},
    ])  # fmt: skip
    del config["head_dim"]
    return config


def rwkv(r: Random) -> Draw:
    """RWKV 4."""
    return common(r, "num_hidden_layers", "vocab_size", "tie_word_embeddings", "hidden_size") | pick(
        r, "intermediate_size", None, 40, 96
    ) | {"context_length": r.choice([32, 100])} | one(
        r, {}, {"attention_hidden_size": None}, {"attention_hidden_size": 24}
    )  # fmt: skip


def xlstm(r: Random) -> Draw:
    """xLSTM: its widths are factors of the model's."""
    heads = r.choice([1, 2, 4])
    config = common(r, "vocab_size", "tie_word_embeddings") | flags(r, "use_bias") | {
        "num_heads": heads, "weight_mode": r.choice(["single", "fused"]), "qk_dim_factor": r.choice([0.5, 1.0, 0.75]),
        "v_dim_factor": r.choice([1.0, 0.5, 2.0]), "chunk_size": r.choice([16, 64]),
    } | maybe(r, {"ffn_proj_factor": r.choice([1.3, 2.667, 4.0])}) | maybe(
        r, {"ffn_round_up_to_multiple_of": r.choice([1, 16, 64])}
    )  # fmt: skip
    hidden, layers = 64 * r.choice([1, 2, 3]), r.randint(1, 6)
    return (
        config | {"hidden_size": hidden} | r.choice([{"num_hidden_layers": layers}, {"num_blocks": layers}])
    )


def minimax(r: Random) -> Draw:
    """MiniMax: which layers have softmax attention."""
    config = attended(r, kv=0.0) | experts(r, "num_local_experts") | maybe(r, {"block_size": 16})
    return config | layer_types(r, config, "linear_attention", "full_attention")


def lfm2_moe(r: Random) -> Draw:
    """LFM2-MoE: the kinds of layers must be listed."""
    config = attended(r, kv=0.0) | experts(r, "num_experts") | flags(r, "conv_bias", "use_expert_bias")
    layers = config["num_hidden_layers"]
    return config | {
        "conv_L_cache": r.choice([2, 3]), "moe_intermediate_size": r.choice([16, 33]),
        "num_dense_layers": r.randint(0, layers),
        "layer_types": [r.choice(["conv", "full_attention"]) for _ in range(layers)],
    } | maybe(r, {"tie_embedding": r.random() < 0.5})  # fmt: skip


def lfm3(r: Random) -> Draw:
    """LFM3: gates, norms after the sub-layers, three kinds of layers."""
    config = base(r) | flags(r, "conv_bias", "attention_bias", "use_attention_gate", "use_sandwich_norm")
    config |= {
        "conv_L_cache": r.choice([3, 7]),
        "hidden_size": 8 * config["num_attention_heads"],
    } | some_window(r)
    return config | layer_types(r, config, "conv", "full_attention", "sliding_attention")


# -- Inkling, Qwen 4 ---------------------------------------------------------------------------------


def inkling(r: Random) -> Draw:
    """Inkling: heads of their own for windowed layers, where the windows and mixtures are."""
    config = inkling2(r, loop=False)
    del config["unpadded_vocab_size"]
    layers = config["num_hidden_layers"]
    config |= {"intermediate_size": r.choice([40, 72]), "n_shared_experts": r.choice([1, 2])}
    config |= r.choice([
        {}, {"dense_intermediate_size": 56}, {"dense_mlp_idx": r.randint(0, layers)},
        {"mlp_layer_types": [r.choice(["sparse", "dense"]) for _ in range(layers)]},
    ])  # fmt: skip
    if "layer_types" not in config:
        config |= maybe(r, {"local_layer_ids": sorted(r.sample(range(layers), r.randint(0, layers)))})
    return config


def inkling2(r: Random, *, loop: bool = False) -> Draw:
    """Inkling 2: groups of layers, the narrower head."""
    config = base(r)
    heads = r.choice([1, 2, 4])
    del config["intermediate_size"]
    layers, count, group = r.randint(2, 9), r.choice([1, 4, 5]), r.choice([1, 2, 3])
    config |= {
        "num_hidden_layers": layers, "swa_num_attention_heads": heads,
        "swa_num_key_value_heads": r.choice([k for k in (1, 2, 4) if heads % k == 0]),
        "swa_head_dim": r.choice([8, 16]), "sliding_window_size": r.choice([16, 20]), "d_rel": r.choice([4, 6]),
        "rel_extent": r.choice([8, 20]), "conv_kernel_size": r.choice([2, 4]),
        "moe_intermediate_size": r.choice([16, 33]), "n_routed_experts": count,
        "num_experts_per_tok": r.randint(1, count),
        "unpadded_vocab_size": config["vocab_size"] - r.choice([0, 5]), "n_layers_per_attn_res_block": group,
    } | layer_types(r, config | {"num_hidden_layers": layers}, "hybrid", "hybrid_sliding")  # fmt: skip
    if loop:
        places = list(range(group, layers + 1, group))
        first, last = sorted([r.choice(places), r.choice(places)]) if places else (group, group)
        config |= r.choice([
            {"loop_config": {"core_start": first, "core_end": last, "num_passes": r.randint(1, 3), "gate_rank": 6}},
            {
                "loop_layer_index_start": first, "loop_layer_index_end": last, "loop_num_passes": r.randint(1, 3),
                "loop_gate_rank": r.choice([4, 8]),
            },
        ])  # fmt: skip
        config["num_hidden_layers"] = max(layers, last)
        config.pop("layer_types", None)
    return config


def qwen4_exp(r: Random) -> Draw:
    """Qwen 4: streams, the indexer, n-grams in some layers."""
    config = qwen3_5_moe(r)
    config.pop("full_attention_interval", None)
    layers, ratio = config["num_hidden_layers"], r.choice([2, 4])
    kinds = [r.choice(["linear_attention", "full_attention", "indexed_attention"]) for _ in range(layers)]
    linear = [i + 1 for i, kind in enumerate(kinds) if kind == "linear_attention"]
    config |= {
        "hc_count": r.choice([2, 3, 4]), "hc_lowrank": r.choice([4, 10]), "indexer_n_heads": r.choice([1, 3]),
        "indexer_kv_heads": 1, "indexer_head_dim": config["head_dim"] + r.choice([0, 8]),
        "indexer_budget": ratio * r.choice([2, 5]), "indexer_compress_ratio": ratio,
    } | maybe(r, {"output_gate_type": r.choice(["sigmoid", "silu"])})  # fmt: skip
    if r.random() < 0.3:
        return config
    config["layer_types"] = kinds
    return config | {
        "ple_layer_ids": sorted(r.sample(linear, r.randint(0, min(2, len(linear))))), "eos_token_id": 2,
        "ngram_size": r.choice([2, 3]), "heads_per_ngram": r.choice([1, 2]), "ple_embed_dim": r.choice([8, 24]),
        "ngram_vocab_size_base": r.choice([50, 97, 1000]), "ple_conv_kernel_size": r.choice([2, 4]),
        "make_ngram_vocab_size_divisible_by": r.choice([1, 16, 128]),
    }  # fmt: skip


def inkling2_loop(r: Random) -> Draw:
    """Inkling 2 with looped layers."""
    return inkling2(r, loop=True)

"""Random configurations of state-space models and their hybrids, for tools/draws_recurrent.py (not a test)."""

from __future__ import annotations

from random import Random
from typing import Any

from make_random_configs import base, experts, flags

Draw = dict[str, Any]


def pick(r: Random, key: str, *values: Any) -> Draw:
    """The key with one of the values."""
    return {key: r.choice(values)}


def one(r: Random, *drawn: Draw) -> Draw:
    """One of these."""
    return r.choice(drawn)


def maybe(r: Random, found: Draw) -> Draw:
    """These keys, or none of them."""
    return found if r.random() < 0.5 else {}


def common(r: Random, *keys: str) -> Draw:
    """The usual sizes, of those only these."""
    drawn = base(r)
    return {key: drawn[key] for key in keys}


# -- Mamba 1 and 2 -----------------------------------------------------------------------------------


def mamba(r: Random) -> Draw:
    """Mamba 1: its rank given or derived, the width perhaps said twice."""
    hidden = r.choice([16, 24, 40, 100])
    return common(r, "num_hidden_layers", "vocab_size", "tie_word_embeddings") | {
        "hidden_size": hidden, "state_size": r.choice([3, 8, 16]), "conv_kernel": r.choice([2, 4, 5]),
        "expand": r.choice([1, 2, 3]),
    } | flags(r, "use_bias", "use_conv_bias", "residual_in_fp32") | one(
        r, {}, {"time_step_rank": "auto"}, {"time_step_rank": r.choice([1, 7, 12])}
    ) | one(r, {}, {}, {"intermediate_size": r.choice([32, 48])})  # fmt: skip


def mamba2(r: Random) -> Draw:
    """Mamba 2: heads that share groups."""
    groups = r.choice([1, 2, 3])
    heads, head_dim, expand = groups * r.choice([1, 2, 4]), r.choice([8, 16, 24]), r.choice([1, 2, 4])
    return common(r, "num_hidden_layers", "vocab_size", "tie_word_embeddings") | {
        "hidden_size": heads * head_dim // expand, "expand": expand, "num_heads": heads, "head_dim": head_dim,
        "n_groups": groups, "state_size": r.choice([8, 16, 24]), "conv_kernel": r.choice([2, 4, 5]),
        "chunk_size": r.choice([8, 32]),
    } | flags(r, "use_bias", "use_conv_bias", "residual_in_fp32")  # fmt: skip


# -- state-space mixers beside attention -------------------------------------------------------------


def attended(r: Random, *, head_dim: float = 0.5, kv: float = 0.2) -> Draw:
    """Sizes of a model with attention: head_dim given or derived, KV heads perhaps null."""
    config = base(r)
    if r.random() > head_dim:
        del config["head_dim"]
        heads = config["num_attention_heads"]
        config["hidden_size"] = heads * r.choice([8, 16, 24])
    if r.random() < kv:
        config["num_key_value_heads"] = None
    return config


def jamba(r: Random) -> Draw:
    """Jamba: where attention and mixtures are."""
    every, moe_every = r.randint(1, 4), r.randint(1, 3)
    return attended(r) | experts(r, "num_experts") | {
        "attn_layer_period": every, "attn_layer_offset": r.randrange(every), "expert_layer_period": moe_every,
        "expert_layer_offset": r.randrange(moe_every), "mamba_d_state": r.choice([4, 16]),
        "mamba_d_conv": r.choice([2, 4]), "mamba_expand": r.choice([1, 2, 3]),
    } | flags(r, "mamba_conv_bias", "mamba_proj_bias") | one(
        r, {}, {"mamba_dt_rank": "auto"}, {"mamba_dt_rank": r.choice([1, 6, 20])}
    )  # fmt: skip


def mamba2_keys(r: Random, width: int) -> Draw:
    """The keys of a Mamba 2 mixer in Bamba, Granite and Falcon-H1."""
    heads = r.choice([h for h in (1, 2, 4, 8) if width % h == 0])
    groups = r.choice([g for g in (1, 2, 4) if heads % g == 0])
    return {
        "mamba_n_heads": heads, "mamba_n_groups": groups, "mamba_d_state": r.choice([8, 16]),
        "mamba_d_conv": r.choice([2, 4]), "mamba_chunk_size": r.choice([8, 32]),
    } | one(r, {}, {"mamba_d_head": "auto"}, {"mamba_d_head": width // heads}) | flags(
        r, "mamba_conv_bias", "mamba_proj_bias"
    )  # fmt: skip


def bamba(r: Random) -> Draw:
    """Bamba: attention in listed layers."""
    config, expand = attended(r), r.choice([1, 2])
    layers = config["num_hidden_layers"]
    return config | mamba2_keys(r, expand * config["hidden_size"]) | {"mamba_expand": expand} | flags(
        r, "attention_bias", "mlp_bias"
    ) | r.choice([
        {}, {"attn_layer_indices": sorted(r.sample(range(layers), r.randint(0, layers)))},
    ])  # fmt: skip


def granitemoehybrid(r: Random) -> Draw:
    """Granite 4: with and without mixtures, kinds of layers by their old and new names."""
    config, expand = attended(r), r.choice([1, 2])
    count = r.choice([0, 0, 2, 5])
    kinds = r.choice([("mamba", "attention"), ("linear_attention", "full_attention")])
    listed = {"layer_types": [r.choice(kinds) for _ in range(config["num_hidden_layers"])]}
    return config | mamba2_keys(r, expand * config["hidden_size"]) | {
        "mamba_expand": expand, "num_local_experts": count, "num_experts_per_tok": r.randint(0, count) or 1,
        "shared_intermediate_size": r.choice([24, 50]),
    } | flags(r, "attention_bias") | maybe(r, {"position_embedding_type": "rope"}) | r.choice(
        [{}, listed, listed, {"layers_block_type": listed["layer_types"]}]
    )  # fmt: skip


def falcon_h1(r: Random) -> Draw:
    """Falcon-H1: Mamba's width of its own or derived, its norm there or not."""
    config, expand = attended(r), r.choice([1, 2])
    width = r.choice([None, 16, 48])
    return config | mamba2_keys(r, width or expand * config["hidden_size"]) | {
        "mamba_expand": expand, "mamba_d_ssm": width,
    } | flags(
        r, "attention_bias", "mlp_bias", "projectors_bias", "mamba_rms_norm", "mamba_norm_before_gate"
    )  # fmt: skip


def nemotron_h(r: Random) -> Draw:
    """Nemotron-H: its layers as a word or as lists with old and new names, perhaps narrower experts."""
    config = attended(r, head_dim=1.0)
    layers, groups = config.pop("num_hidden_layers"), r.choice([1, 2])
    word = "".join(r.choice("M*E-") for _ in range(layers))
    new = dict(zip("M*E-", ("linear_attention", "full_attention", "moe", "mlp"), strict=True))
    old = dict(zip("M*E-", ("mamba", "attention", "moe", "mlp"), strict=True))
    names = r.choice([new, old])
    listed = [names[letter] for letter in word]
    return config | experts(r, "n_routed_experts") | {
        "ssm_state_size": r.choice([8, 16]), "mamba_num_heads": groups * r.choice([1, 2, 3]),
        "mamba_head_dim": r.choice([8, 12]), "moe_intermediate_size": r.choice([20, 33]),
        "moe_shared_expert_intermediate_size": r.choice([12, 40]), "chunk_size": r.choice([8, 32]),
        "moe_latent_size": r.choice([None, None, 12]),
    } | r.choice([{"n_groups": groups, "conv_kernel": 3}, {"mamba_n_groups": groups, "mamba_d_conv": 2}]) | flags(
        r, "mlp_bias", "use_bias", "use_conv_bias", "attention_bias"
    ) | r.choice([
        {"hybrid_override_pattern": word}, {"layers_block_type": listed}, {"layer_types": listed},
        {"hybrid_override_pattern": word, "num_hidden_layers": layers},
    ])  # fmt: skip


def zamba(r: Random) -> Draw:
    """Zamba: Mamba heads, where the shared transformer stands."""
    heads, every = r.choice([1, 2, 4]), r.randint(1, 4)
    config = base(r) | {"hidden_size": 16 * heads * r.choice([1, 2]), "num_attention_heads": heads}
    config |= {"num_key_value_heads": r.choice([k for k in (1, 2, 4) if heads % k == 0])}
    config |= r.choice([{"tie_word_embeddings": True}, {}])
    del config["head_dim"]
    layers = config["num_hidden_layers"] = r.randint(3, 9)
    mamba_heads = r.choice([1, 2, 4])
    listed = {"layers_block_type": [r.choice(["mamba", "linear_attention", "hybrid"]) for _ in range(layers)]}
    return config | {
        "n_mamba_heads": mamba_heads, "mamba_d_state": r.choice([4, 16]), "mamba_d_conv": r.choice([2, 4]),
        "mamba_expand": r.choice([1, 2]), "attn_layer_period": every, "attn_layer_offset": r.randrange(every),
    } | flags(r, "mamba_conv_bias", "mamba_proj_bias") | r.choice([
        {}, {"mamba_dt_rank": "auto"}, {"mamba_dt_rank": r.choice([1, 6])},
    ]) | r.choice([{}, {}, listed]) | r.choice([{}, {}, {"attention_head_dim": 12}])  # fmt: skip


def zamba2(r: Random) -> Draw:
    """Zamba 2: how many transformers are shared, and their additions."""
    heads = r.choice([1, 2, 4])
    config = base(r) | {"hidden_size": 16 * heads * r.choice([1, 2]), "num_attention_heads": heads}
    config |= r.choice([{"tie_word_embeddings": True}, {}])
    additions = flags(r, "use_shared_attention_adapter")
    config["num_key_value_heads"] = r.choice([None, heads, heads if any(additions.values()) else 1])
    del config["head_dim"]
    layers = config["num_hidden_layers"] = r.randint(2, 14)
    groups = r.choice([1, 2])
    kinds = r.choice([("mamba", "hybrid"), ("linear_attention", "hybrid"), ("hybrid", "hybrid", "mamba")])
    return config | {
        "n_mamba_heads": groups * r.choice([1, 2, 4]), "mamba_ngroups": groups, "mamba_d_state": r.choice([4, 16]),
        "mamba_d_conv": r.choice([2, 4]), "mamba_expand": r.choice([1, 2]), "chunk_size": r.choice([8, 32]),
        "num_mem_blocks": r.choice([1, 2, 3]), "adapter_rank": r.choice([3, 8]),
        "layers_block_type": [r.choice(kinds) for _ in range(layers)],
    } | additions | flags(r, "add_bias_linear", "use_conv_bias", "use_mem_rope")  # fmt: skip

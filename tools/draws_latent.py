"""Random configurations of latent attention and what came after it, for tools/draws_experts.py."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import make_random_configs as recorder
from draws_mixtures import ONE_GROUP, WIDTH, Draw, kinds, leading, mixture, sizes, some


def latent(r: Random, *, query: bool = True, dense: bool = True) -> Draw:
    """Sizes of latent attention; `query`: the queries always come from a latent."""
    config = sizes(r, dense=dense)
    config.pop("head_dim")
    config["num_key_value_heads"] = config["num_attention_heads"]
    return config | recorder.flags(r, "attention_bias") | {
        "q_lora_rank": r.choice([12, 40] if query else [None, 12, 40]), "kv_lora_rank": r.choice([8, 20]),
        "qk_nope_head_dim": r.choice([8, 24]), "qk_rope_head_dim": r.choice([4, 8]),
        "v_head_dim": r.choice([8, 12, 40]),
    }  # fmt: skip


def routed(r: Random, key: str = "n_routed_experts", shared: str = "n_shared_experts") -> Draw:
    """DeepSeek's mixture."""
    return mixture(r, key, **WIDTH) | {shared: r.choice([1, 2])} | ONE_GROUP


def chooser(r: Random, config: Draw) -> Draw:
    """An indexer, which chooses fewer keys than there are or more."""
    dims = [config["qk_rope_head_dim"], 16, 24]
    return {
        "index_n_heads": r.choice([1, 2, 3]),
        "index_head_dim": r.choice(dims),
        "index_topk": r.choice([4, 64]),
    }


def dense_kinds(r: Random, config: Draw) -> Draw:
    """Dense layers listed, or the first ones, or these and every n-th."""
    layers = config["num_hidden_layers"]
    listed = {"mlp_layer_types": [r.choice(["dense", "sparse"]) for _ in range(layers)]}
    return r.choice(
        [listed, leading(r, config), leading(r, config) | {"moe_layer_freq": r.choice([1, 2, 3])}]
    )


def axk1(r: Random) -> Draw:
    """A.X-K1."""
    config = latent(r)
    return config | routed(r, r.choice(["n_routed_experts", "num_local_experts"])) | dense_kinds(r, config)


def axk2(r: Random) -> Draw:
    """A.X-K2."""
    config = latent(r)
    config |= routed(r) | dense_kinds(r, config) | chooser(r, config)
    return config | {"gated_norm_rank": r.choice([3, 8])}


def deepseek_v32(r: Random) -> Draw:
    """DeepSeek V3.2."""
    config = latent(r)
    config |= routed(r, r.choice(["n_routed_experts", "num_experts"])) | chooser(r, config)
    return config | leading(r, config) | kinds(r, config, "mlp_layer_types", "dense", "sparse")


def glm_moe_dsa(r: Random) -> Draw:
    """GLM-5: some layers use the choice of the one before."""
    config = deepseek_v32(r)
    layers = config["num_hidden_layers"]
    types = ["full", *(r.choice(["full", "shared"]) for _ in range(layers - 1))]
    return config | r.choice([
        {}, {"indexer_types": types}, {"index_topk_pattern": "".join(kind[0].upper() for kind in types)},
        {"index_topk_freq": r.choice([1, 2, 4])}, {"index_topk_freq": 3, "index_skip_topk_offset": r.choice([1, 3])},
    ])  # fmt: skip


def glm4_moe_lite(r: Random) -> Draw:
    """GLM-4.7-Flash."""
    config = latent(r, query=False)
    config |= routed(r, r.choice(["n_routed_experts", "num_local_experts"]))
    config |= kinds(r, config, "mlp_layer_types", "dense", "sparse")
    if r.random() < 0.3:
        config["head_dim"] = config.pop("qk_rope_head_dim")
    return config


def hy_v4(r: Random) -> Draw:
    """HY 4."""
    config = latent(r)
    config |= routed(r) | chooser(r, config) | {"hc_mult": r.choice([1, 2, 4])}
    config |= kinds(r, config, "mlp_layer_types", "dense", "sparse")
    layers = config["num_hidden_layers"]
    return config | r.choice([
        {}, {"indexer_types": ["full", *(r.choice(["full", "shared"]) for _ in range(layers - 1))]},
    ])  # fmt: skip


def longcat_flash(r: Random) -> Draw:
    """LongCat-Flash."""
    config = latent(r)
    config["head_dim"] = config["qk_rope_head_dim"]
    config["ffn_hidden_size"] = config.pop("intermediate_size")
    layers, count = config.pop("num_hidden_layers"), r.choice([2, 4, 5])
    config |= r.choice([{"num_layers": layers}, {"num_hidden_layers": 2 * layers}])
    return config | {
        "n_routed_experts": count, "moe_topk": r.randint(1, count), "expert_ffn_hidden_size": r.choice([16, 33]),
        "zero_expert_num": r.choice([0, 0, 0, 3]), **some(r, router_bias=r.random() < 0.5),
    }  # fmt: skip


def minicpm3(r: Random) -> Draw:
    """MiniCPM 3."""
    config = latent(r, query=False) | recorder.flags(r, "mlp_bias")
    config["hidden_size"] = config["num_attention_heads"] * r.choice([8, 24])
    return config | r.choice([{}, {"v_head_dim": None}])


def youtu(r: Random) -> Draw:
    """Youtu."""
    return latent(r, query=False)


def sarvam_mla(r: Random) -> Draw:
    """Sarvam 105B."""
    config = latent(r, query=False)
    if config["q_lora_rank"] is None and r.random() < 0.5:
        config.pop("q_lora_rank")
    key = r.choice(["n_routed_experts", "num_experts", "num_local_experts"])
    config |= routed(r, key, r.choice(["n_shared_experts", "num_shared_experts"]))
    return config | leading(r, config) | some(r, head_dim=512)


def dots3_note_text(r: Random) -> Draw:
    """dots3-note: the sizes of the layers with windows by either name."""
    config = latent(r)
    layers = config["num_hidden_layers"]
    config |= routed(r) | chooser(r, config) | dense_kinds(r, config)
    config |= r.choice([{"sliding_window": 16}, {"sliding_window_size": 20}, {}])
    config |= some(r, use_sliding_window=r.random() < 0.7)
    config[r.choice(["moe_shared_expert_intermediate_size", "shared_experts_intermediate_size"])] = r.choice(
        [16, 24]
    )
    if "moe_layer_freq" in config and r.random() < 0.5:
        config["moe_layer_freq"] = [r.randint(0, 1) for _ in range(layers)]
    heads, nope, rope = r.choice([1, 2, 3]), r.choice([8, 12]), r.choice([4, 8])
    names = ["indexed_attention", "sliding_attention", "full_attention"]
    if r.random() < 0.3:
        config["layer_types"] = [r.choice(names) for _ in range(layers)]
        change = {
            "num_attention_heads": heads, "num_key_value_heads": heads, "kv_lora_rank": r.choice([8, 16]),
            "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "head_dim": nope + rope,
        }  # fmt: skip
        config["per_layer_config"] = {
            str(i): change for i, kind in enumerate(config["layer_types"]) if kind == "sliding_attention"
        }
        return config
    config |= {
        "swa_num_attention_heads": heads, "swa_num_key_value_heads": heads, "swa_q_lora_rank": r.choice([8, 14]),
        "swa_kv_lora_rank": r.choice([8, 16]), "swa_qk_nope_head_dim": nope, "swa_head_dim": nope + rope,
        "swa_v_head_dim": r.choice([8, 12]), **some(r, swa_qk_rope_head_dim=rope),
    }  # fmt: skip
    config |= kinds(r, config, "layer_types", "deepseek_sparse_attention", *names)
    return config | some(r, use_dsa=r.random() < 0.5)


def deepseek_v4(r: Random) -> Draw:
    """DeepSeek V4, with the older names of its kinds of layers and rates."""
    config = sizes(r, dense=False)
    groups = r.choice([1, 2])
    config |= {"num_attention_heads": groups * r.choice([1, 2, 3]), "num_key_value_heads": 1}
    config |= recorder.flags(r, "mlp_bias") | mixture(r, "n_routed_experts", **WIDTH) | {
        "q_lora_rank": r.choice([12, 40]), "o_groups": groups, "o_lora_rank": r.choice([8, 12]),
        "index_n_heads": r.choice([1, 3]), "index_head_dim": r.choice([8, 16]), "index_topk": r.choice([2, 64]),
        "hc_mult": r.choice([2, 4]), "sliding_window": r.choice([16, 100]), "qk_rope_head_dim": 4,
        "hc_sinkhorn_iters": 2,
    }  # fmt: skip
    layers = config["num_hidden_layers"]
    csa, hca = "compressed_sparse_attention", "heavily_compressed_attention"
    config |= r.choice([
        {}, {"layer_types": [r.choice([csa, hca, "sliding_attention"]) for _ in range(layers)]},
        {"compress_ratios": [r.choice([0, 4, 128]) for _ in range(layers + 1)]},
    ])  # fmt: skip
    config |= r.choice(
        [{}, {"compress_rates": {csa: 2, hca: 5}}, {"compress_rate_csa": 3, "compress_rate_hca": 8}]
    )
    config |= r.choice([{}, {"num_hash_layers": r.randint(0, 3)}])
    return config


DRAWS: dict[str, Callable[[Random], Draw]] = {
    "axk1": axk1,
    "axk2": axk2,
    "deepseek_v32": deepseek_v32,
    "deepseek_v4": deepseek_v4,
    "dots3_note_text": dots3_note_text,
    "glm4_moe_lite": glm4_moe_lite,
    "glm_moe_dsa": glm_moe_dsa,
    "hy_v4": hy_v4,
    "longcat_flash": longcat_flash,
    "minicpm3": minicpm3,
    "sarvam_mla": sarvam_mla,
    "youtu": youtu,
}

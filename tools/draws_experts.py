"""Record what transformers makes of mixtures of experts and latent attention (not a test itself).

    python tools/draws_experts.py tests/data [model_type ...]

writes `arch_experts.json.gz`: for each model type its default configuration, the same with three layers,
and random ones, small, that reach into the corners; each with total, tie, a digest of names and shapes,
how far each layer looks back, and, from a real forward of 12 tokens on the CPU, FLOPs (PyTorch's
FlopCounterMode, attention written out) and the elements that the cache then holds. With model types given,
these alone are tried and nothing is written. Needs torch and transformers; the draws are seeded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import make_random_configs as recorder

COUNT = 10  # random configurations of each model type
TOKENS = 12  # of the forward; windows of the draws are wider, so that no cache is cut
Draw = dict[str, Any]


# -- drawing ---------------------------------------------------------------------------------------


def sizes(r: Random, *, head_dim: bool = True, dense: bool = True) -> Draw:
    """The usual sizes; heads that are no divisor of the width where the class allows it."""
    config = recorder.base(r)
    config["num_hidden_layers"] = r.randint(1, 9)
    if not head_dim:
        config.pop("head_dim")
        config["hidden_size"] = config["num_attention_heads"] * r.choice([8, 24]) + r.choice([0, 0, 8])
    if not dense:
        config.pop("intermediate_size")
    return config


def mixture(r: Random, key: str, per_token: str = "num_experts_per_tok", **widths: str) -> Draw:
    """Experts, how many are chosen, and each named width."""
    count = r.choice([2, 4, 5, 8])
    drawn: Draw = {key: count, per_token: r.randint(1, count)}
    return drawn | {name: r.choice([16, 33, 40]) for name in widths.values()}


def kinds(r: Random, config: Draw, key: str, *names: str) -> Draw:
    """A list with one of the names for each layer, or left to the class."""
    if r.random() < 0.4:
        return {}
    return {key: [r.choice(names) for _ in range(config["num_hidden_layers"])]}


def windows(r: Random, *, null: bool = True) -> Draw:
    """A window wider than the tokens of the forward, perhaps null, or left to the class."""
    return r.choice(
        [{"sliding_window": 16}, {"sliding_window": 100}, {}, *([{"sliding_window": None}] * null)]
    )


def some(r: Random, **keys: Any) -> Draw:
    """Each key with its value or not at all; a function is drawn from."""
    return {k: v(r) if callable(v) else v for k, v in keys.items() if r.random() < 0.5}


def patterned(r: Random, config: Draw) -> Draw:
    """Windows and dense layers listed, each perhaps left to the class."""
    return (
        config
        | kinds(r, config, "layer_types", "sliding_attention", "full_attention")
        | kinds(r, config, "mlp_layer_types", "dense", "sparse")
    )


def leading(r: Random, config: Draw) -> Draw:
    """Some dense layers first."""
    return {"first_k_dense_replace": r.randint(0, config["num_hidden_layers"])}


WIDTH = {"width": "moe_intermediate_size"}
SHARED = {"shared": "shared_expert_intermediate_size"}
ONE_GROUP = {"n_group": 1, "topk_group": 1}


def afmoe(r: Random) -> Draw:
    """Trinity."""
    config = sizes(r) | recorder.flags(r, "attention_bias") | windows(r)
    config |= mixture(r, "num_experts", **WIDTH) | some(r, global_attn_every_n_layers=r.choice([2, 3]))
    config |= kinds(r, config, "layer_types", "sliding_attention", "full_attention")
    shared = {"num_shared_experts": r.choice([1, 2, 3]), "num_dense_layers": r.randint(0, 3)}
    return config | shared | r.choice([{}, {"num_key_value_heads": None}])


def aria_text(r: Random) -> Draw:
    """Aria."""
    config = sizes(r) | recorder.flags(r, "attention_bias", "mlp_bias")
    config["hidden_size"] = config["num_attention_heads"] * r.choice([8, 24])
    config |= r.choice([{}, {"head_dim": None}])
    return (
        config | mixture(r, "moe_num_experts", "moe_topk") | {"moe_num_shared_experts": r.choice([1, 2, 3])}
    )


def beam(r: Random) -> Draw:
    """Beam."""
    config = sizes(r) | recorder.flags(r, "attention_bias") | windows(r, null=False) | ONE_GROUP
    return patterned(r, config | mixture(r, "num_experts", **WIDTH))


def cohere2_moe(r: Random) -> Draw:
    """Command A+."""
    config = sizes(r) | recorder.flags(r, "attention_bias") | windows(r, null=False)
    config |= mixture(r, "num_experts") | some(
        r, num_shared_experts=r.randint(0, 2), prefix_dense_intermediate_size=r.choice([None, 24, 70]),
        rms_norm_eps=r.choice([None, 1e-5]), sliding_window_pattern=r.choice([2, 3]),
        prefix_dense_sliding_window_pattern=r.choice([1, 2]),
    )  # fmt: skip
    return patterned(r, config | some(r, **leading(r, config)))


def dbrx(r: Random) -> Draw:
    """DBRX."""
    heads, count = r.choice([1, 2, 4, 6]), r.choice([2, 4, 5])
    return {
        "d_model": heads * r.choice([8, 24]), "n_heads": heads, "n_layers": r.randint(1, 6),
        "vocab_size": r.choice([61, 257]), "max_seq_len": r.choice([32, 100]),
        "attn_config": {
            "kv_n_heads": r.choice([k for k in range(1, heads + 1) if heads % k == 0]), "rope_theta": 10000.0,
            "clip_qkv": 8.0,
        },
        "ffn_config": {
            "ffn_hidden_size": r.choice([17, 40]), "moe_num_experts": count, "moe_top_k": r.randint(1, count),
            **r.choice([{}, {"ffn_act_fn": {"name": "gelu"}}]),
        },
        "resid_pdrop": r.choice([0.0, 0.1]),
    }  # fmt: skip


def dots1(r: Random) -> Draw:
    """dots.llm1."""
    config = sizes(r, head_dim=r.random() < 0.5) | recorder.flags(r, "attention_bias") | windows(r)
    config |= mixture(r, "n_routed_experts", **WIDTH) | leading(r, config) | ONE_GROUP
    config |= {"n_shared_experts": r.choice([1, 2])} | some(r, max_window_layers=r.randint(0, 4))
    return config | kinds(r, config, "layer_types", "sliding_attention", "full_attention")


def ernie4_5_moe(r: Random) -> Draw:
    """ERNIE 4.5."""
    config = sizes(r, head_dim=r.random() < 0.5) | recorder.flags(r, "use_bias")
    config |= mixture(r, "moe_num_experts", "moe_k", **WIDTH) | {
        "moe_num_shared_experts": r.choice([0, 1, 2]), "moe_layer_start_index": r.randint(0, 3),
    } | some(r, moe_layer_interval=r.choice([1, 2, 3]), moe_layer_end_index=r.choice([-1, 2, 5, 20]))  # fmt: skip
    return config


def exaone_moe(r: Random) -> Draw:
    """K-EXAONE."""
    config = sizes(r, head_dim=r.random() < 0.5) | windows(r, null=False) | ONE_GROUP
    config |= (
        mixture(r, "num_experts", **WIDTH) | {"num_shared_experts": r.choice([1, 2])} | leading(r, config)
    )
    return patterned(r, config | some(r, sliding_window_pattern=r.choice([2, 3])))


def flex_olmo(r: Random) -> Draw:
    """FlexOlmo."""
    config = sizes(r, head_dim=r.random() < 0.5) | recorder.flags(r, "attention_bias")
    return (
        config
        | mixture(r, r.choice(["num_experts", "num_local_experts"]))
        | r.choice([{}, {"num_key_value_heads": None}])
    )


def flint(r: Random) -> Draw:
    """Flint."""
    config = sizes(r) | recorder.flags(r, "attention_bias") | windows(r, null=False)
    config |= mixture(r, "num_experts", **WIDTH, **SHARED) | some(
        r, decoder_sparse_step=r.choice([1, 2, 3]), mlp_only_layers=r.choice([None, [], [0], [1, 3]])
    )
    return config | kinds(r, config, "layer_types", "sliding_attention", "full_attention")


def glm4_moe(r: Random, *names: str, own_head_dim: bool = False) -> Draw:
    """GLM-4.5 and Sarvam."""
    config = sizes(r, head_dim=own_head_dim or r.random() < 0.5) | recorder.flags(r, "attention_bias")
    config |= mixture(r, r.choice(["n_routed_experts", *names]), **WIDTH) | leading(r, config) | ONE_GROUP
    return config | {"n_shared_experts": r.choice([1, 2])} | some(r, use_qk_norm=r.random() < 0.5)


def granitemoe(r: Random, *, second: bool) -> Draw:
    """Granite with an MLP beside the mixture."""
    config = sizes(r, head_dim=r.random() < 0.5) | recorder.flags(r, "attention_bias")
    config |= mixture(r, "num_local_experts") | some(r, shared_intermediate_size=r.choice([0, 24, 50]))
    if not second:
        return config
    config |= windows(r, null=False)
    return config | kinds(r, config, "layer_types", "sliding_attention", "full_attention")


def hunyuan_v1_moe(r: Random) -> Draw:
    """Hunyuan A13B."""
    config = sizes(r) | recorder.flags(r, "attention_bias") | mixture(r, "num_experts", "moe_topk")
    if r.random() < 0.4:
        layers, count = config["num_hidden_layers"], config["num_experts"]
        config["moe_topk"] = [r.randint(1, count) for _ in range(layers)]
    return config


def hy_v3(r: Random) -> Draw:
    """HY 3."""
    config = sizes(r) | recorder.flags(r, "attention_bias", "mlp_bias")
    config |= mixture(r, "num_experts", **WIDTH) | {"num_shared_experts": r.choice([0, 1, 2])}
    config |= kinds(r, config, "mlp_layer_types", "dense", "sparse")
    if "mlp_layer_types" in config and r.random() < 0.3:
        config["mlp_layer_types"] += ["sparse", "dense"]  # longer than the model: read from the front
    return config


def jetmoe(r: Random) -> Draw:
    """JetMoE."""
    config = sizes(r)
    config["kv_channels"] = config.pop("head_dim")
    config.pop("num_attention_heads")
    config["num_key_value_heads"] = r.choice([1, 2, 3])
    return config | mixture(r, "num_local_experts")


def kolibri1(r: Random) -> Draw:
    """Kolibri 1."""
    config = sizes(r, dense=False) | windows(r, null=False)
    config |= mixture(r, r.choice(["num_experts", "num_local_experts"]), **WIDTH, **SHARED)
    return config | kinds(r, config, "layer_types", "sliding_attention", "full_attention")


def laguna(r: Random) -> Draw:
    """Laguna."""
    config = sizes(r) | recorder.flags(r, "attention_bias") | windows(r, null=False)
    config |= mixture(r, "num_experts", **WIDTH, **SHARED)
    config |= some(r, gating=r.choice([True, False, "per-head", "per-element"]))
    if r.random() < 0.5:
        groups = config["num_key_value_heads"]
        heads = [groups * r.choice([1, 2, 3]) for _ in range(config["num_hidden_layers"])]
        config["num_attention_heads_per_layer"] = heads
    return patterned(r, config)


def mellum(r: Random) -> Draw:
    """Mellum 2."""
    config = sizes(r) | recorder.flags(r, "attention_bias") | windows(r)
    return patterned(r, config | mixture(r, r.choice(["num_experts", "num_local_experts"]), **WIDTH))


def mimo_v2_flash(r: Random) -> Draw:
    """MiMo V2 Flash."""
    config = sizes(r) | recorder.flags(r, "attention_bias")
    config["num_key_value_heads"] = r.choice([1, 2])
    config["num_attention_heads"] = 2 * config["num_key_value_heads"] * r.choice([1, 2, 3])
    config |= mixture(r, "n_routed_experts", **WIDTH) | {"v_head_dim": r.choice([8, 12, 48])} | ONE_GROUP
    config |= r.choice([{}, {"sliding_window": 16}, {"sliding_window_size": 20}])
    return patterned(r, config)


def minimax_m2(r: Random) -> Draw:
    """MiniMax M2."""
    return sizes(r) | mixture(r, r.choice(["num_experts", "num_local_experts"]))


def minimax_m3(r: Random) -> Draw:
    """MiniMax M3, with the older form of its patterns too."""
    config = sizes(r) | mixture(
        r, "num_local_experts", a="shared_intermediate_size", b="dense_intermediate_size"
    )
    layers, groups = config["num_hidden_layers"], config["num_key_value_heads"]
    config["rotary_dim"] = 8
    dims = {"index_head_dim": r.choice([config["head_dim"], 8]), "index_n_heads": groups}
    rest = {"index_block_size": 4, "index_topk_blocks": 2, "index_local_blocks": 1}
    if r.random() < 0.5:
        older = {
            "sparse_num_index_heads": groups, "sparse_index_dim": dims["index_head_dim"], "sparse_block_size": 4,
            "sparse_topk_blocks": 2, "sparse_local_block": 1,
        }  # fmt: skip
        older |= some(r, sparse_attention_freq=[r.randint(0, 1) for _ in range(layers)])
        config |= {"sparse_attention_config": older} | some(
            r, moe_layer_freq=[r.randint(0, 1) for _ in range(layers)]
        )
    else:
        config |= dims | rest
    config |= some(r, hidden_act="swigluoai")
    config |= kinds(r, config, "layer_types", "minimax_m3_sparse", "full_attention")
    return config | kinds(r, config, "mlp_layer_types", "dense", "sparse")


def solar_open(r: Random) -> Draw:
    """Solar Open."""
    config = sizes(r, dense=False) | recorder.flags(r, "attention_bias") | ONE_GROUP
    key = r.choice(["n_routed_experts", "num_local_experts"])
    return config | mixture(r, key, **WIDTH) | {"n_shared_experts": r.choice([1, 2])}


def zaya(r: Random) -> Draw:
    """ZAYA1."""
    config = sizes(r, dense=False) | recorder.flags(r, "attention_bias", "lm_head_bias")
    config |= {"num_experts": r.choice([1, 2, 5]), "moe_intermediate_size": r.choice([16, 33])}
    config |= {"router_hidden_size": r.choice([8, 20])} | some(
        r, cca_time0=r.choice([1, 2, 3]), cca_time1=r.choice([1, 2, 4]), num_experts_per_tok=1
    )
    config |= kinds(r, config, "layer_types", "hybrid", "hybrid_sliding")
    return config | {"sliding_window": r.choice([16, 100])}


def latent(r: Random, *, query: bool = True, dense: bool = True) -> Draw:
    """Sizes of latent attention; `query`: the queries always come from a latent."""
    config = sizes(r, dense=dense)
    config.pop("head_dim")
    config["num_key_value_heads"] = config["num_attention_heads"]
    return config | recorder.flags(r, "attention_bias") | {
        "q_lora_rank": r.choice([12, 40] if query else [None, 12, 40]), "kv_lora_rank": r.choice([8, 20]),
        "qk_nope_head_dim": r.choice([8, 24]), "qk_rope_head_dim": r.choice([4, 8]), "v_head_dim": r.choice([8, 12, 40]),
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
    "afmoe": afmoe,
    "aria_text": aria_text,
    "beam": beam,
    "cohere2_moe": cohere2_moe,
    "dbrx": dbrx,
    "dots1": dots1,
    "ernie4_5_moe": ernie4_5_moe,
    "exaone_moe": exaone_moe,
    "flex_olmo": flex_olmo,
    "flint": flint,
    "glm4_moe": lambda r: glm4_moe(r, "num_local_experts"),
    "granitemoe_swa": lambda r: granitemoe(r, second=True),
    "granitemoeshared": lambda r: granitemoe(r, second=False),
    "hunyuan_v1_moe": hunyuan_v1_moe,
    "hy_v3": hy_v3,
    "jetmoe": jetmoe,
    "kolibri1": kolibri1,
    "laguna": laguna,
    "mellum": mellum,
    "mimo_v2_flash": mimo_v2_flash,
    "minimax_m2": minimax_m2,
    "minimax_m3_vl_text": minimax_m3,
    "sarvam_moe": lambda r: glm4_moe(r, "num_local_experts", "num_experts", own_head_dim=True),
    "solar_open": solar_open,
    "zaya": zaya,
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

#: what the defaults of a class miss to build at all (dots.llm1 and Hunyuan's published values)
MISSING: dict[str, Draw] = {
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "hunyuan_v1_moe": {"head_dim": 128},
}
#: how each class calls its number of layers
LAYERS = {"dbrx": "n_layers", "longcat_flash": "num_layers"}


# -- recording -------------------------------------------------------------------------------------


def run(model_type: str, config: Draw) -> Draw:
    """FLOPs of a real forward of `TOKENS` tokens, and the elements in its cache, on the CPU."""
    torch = import_module("torch")
    counter = import_module("torch.utils.flop_counter").FlopCounterMode(display=False)
    torch.manual_seed(0)
    _, model = recorder.build(
        model_type, {**config, "attn_implementation": "eager", "experts_implementation": "eager"}, "cpu"
    )
    for parameter in model.parameters():  # what a class leaves empty would be any number
        torch.nn.init.normal_(parameter.requires_grad_(False), std=0.02)
    ids = torch.tensor([list(range(1, TOKENS + 1))])
    with torch.no_grad(), counter:
        out = model.eval()(input_ids=ids, use_cache=True)
    cache = next(value for key, value in out.items() if key in ("cache", "past_key_values"))
    return {"flops": counter.get_total_flops(), "cache": sum(held(layer) for layer in cache.layers)}


def held(layer: Any) -> int:
    """Elements of the tensors that one layer of a cache holds, each storage once; flags and counters left out."""
    torch, found = import_module("torch"), {}

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            for inner in value.values():
                collect(inner)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                collect(inner)
        elif isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1:
            found[value.data_ptr(), value.shape] = value.numel()

    collect(vars(layer))
    return sum(found.values())


def attempt(model_type: str, config: Draw) -> Draw | None:
    """The record with FLOPs and cache, or None where transformers cannot build or run it."""
    try:
        found = recorder.record(model_type, config) | run(model_type, config)
        if config.get("zero_expert_num"):  # then FLOPs depend on what the routers choose
            found.pop("flops")
        return found
    except Exception as error:  # whatever it raises, it could not build this
        if "-v" in sys.argv:
            print(model_type, type(error).__name__, str(error)[:200], config)
        return None


def random_configs(model_type: str) -> list[Draw]:
    """`COUNT` configurations that transformers builds and runs."""
    made: list[Draw] = []
    for number in range(20 * COUNT):
        config = DRAWS[model_type](Random(f"{model_type}/{number}"))
        if (result := attempt(model_type, config)) is not None:
            made.append({"config": {"model_type": model_type, **config}, **result})
        if len(made) == COUNT:
            return made
    raise RuntimeError(f"{model_type}: only {len(made)} drawn configurations could be built")


def whole(model_type: str) -> dict[str, Draw]:
    """The default configuration and the same with three layers."""
    found: dict[str, Draw] = {}
    missing = MISSING.get(model_type, {})
    for variant, change in (("default", {}), ("depth3", {LAYERS.get(model_type, "num_hidden_layers"): 3})):
        config = {**missing, **change}
        made, _ = recorder.build(model_type, config)
        saved = {
            k: v
            for k, v in made.to_dict().items()
            if v is not None and not k.startswith(("_", "id2", "label2"))
        }
        found[variant] = {"config": saved, **recorder.record(model_type, config)}
    return found


def main(folder: Path, *only: str) -> None:
    """Write the file into `folder`, or try the given model types."""
    version = import_module("transformers").__version__
    import_module("transformers").logging.set_verbosity_error()
    source = f"transformers {version}, built on the meta device; FLOPs and cache from a forward on the CPU"
    chosen = [kind for kind in sorted(DRAWS) if not only or kind in only]
    models = {}
    for kind in chosen:
        randoms = random_configs(kind)
        first = recorder_spoiled(kind, randoms[0]["config"])
        models[kind] = {**whole(kind), "random": randoms, "spoiled": first}
        print(kind, len(randoms))
    if only:
        return
    recorder.write(folder / "arch_experts.json.gz", {"source": source, "models": models})


def recorder_spoiled(model_type: str, config: Draw) -> dict[str, Draw]:
    """What becomes of a configuration when one key is missing or null, as the first recording has it."""
    return recorder.spoiled(model_type, config)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(name for name in sys.argv[2:] if name != "-v"))

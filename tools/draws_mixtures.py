"""Random configurations of mixtures of experts with ordinary attention, for tools/draws_experts.py."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import make_random_configs as recorder

Draw = dict[str, Any]


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
}

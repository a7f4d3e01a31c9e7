"""Mixtures of experts with ordinary attention: Mixtral, Qwen, OLMoE, Granite, Phi, gpt-oss, Llama 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from loadsheet.arch.config import LIMITS, Config
from loadsheet.arch.families.llama import attention, gated_mlp, pre_norm, qwen_window
from loadsheet.arch.families.parts import (
    FULL,
    LAYER_NORM,
    RMS,
    WIDE_RMS,
    Reach,
    Sizes,
    assemble,
    optional_window,
    reaches,
    read_sizes,
    square_heads,
)
from loadsheet.arch.layers.base import Linear
from loadsheet.arch.layers.mlp import Experts, GatedMLP, MoE, Router
from loadsheet.arch.model import Block, Model

#: names of the number of routed experts; the classes take any of them for their own
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def expert_counts(c: Config, key: str, null_per_token: int | None = None) -> tuple[int, int]:
    """(experts, experts per token), checked against each other; `key` is the family's own name of the first.

    `null_per_token`: what a null means, if the published class itself leaves the second open.
    """
    experts = c.size(key, *(name for name in EXPERTS if name != key), maximum=LIMITS["num_experts"])
    if null_per_token is not None and c.size_or_null("num_experts_per_tok") is None:
        c.defaulted.append("num_experts_per_tok")
        per_token = min(null_per_token, experts)
    else:
        per_token = c.size("num_experts_per_tok")
    if per_token > experts:
        raise c.error("num_experts_per_tok", f"at most `{key}` = {experts}")
    return experts, per_token


def routed(s: Sizes, width: int, experts: int, per_token: int, **switches: Any) -> Experts:
    """The routed experts with a config's sizes."""
    return Experts(s.hidden_size, width, experts, per_token, s.activation, **switches)


def mixtral(c: Config) -> Model:
    """Mixtral: every block's MLP is a mixture."""
    s = read_sizes(c, kv_heads="error")
    experts, k = expert_counts(c, "num_local_experts")
    keys: list[Reach] = [(optional_window(c), None)] * s.num_layers

    def block(reach: Reach) -> Block:
        mlp = MoE(Router(s.hidden_size, experts), routed(s, s.intermediate_size, experts, k))
        return pre_norm(s, attention(s, reach), mlp)

    return assemble(c, s, block, keys, norm=RMS, symbols={"f_e": s.intermediate_size, "E": experts, "k": k})


def sparse_layers(c: Config, count: int, *, step_default: int = 1) -> list[bool]:
    """Qwen's rule for which layers are mixtures: every `decoder_sparse_step`-th, but those in `mlp_only_layers`."""
    step = c.size("decoder_sparse_step", default=step_default)
    dense = set(c.ints("mlp_only_layers"))
    return [i not in dense and (i + 1) % step == 0 for i in range(count)]


def qwen2_moe_windows(c: Config, s: Sizes) -> list[Reach]:
    """By `layer_types`, else in every second of the first `max_window_layers` layers (Qwen 2 has them after)."""
    window, last = qwen_window(c), c.size("max_window_layers", default=28, minimum=0)
    return reaches(
        c,
        s.num_layers,
        lambda i: "sliding_attention" if i % 2 == 0 and i < last else "full_attention",
        window,
    )


def qwen_moe(c: Config) -> Model:
    """Qwen 1.5/2 MoE (with a gated shared expert) and Qwen 3 MoE (without)."""
    second = c.data.get("model_type") == "qwen2_moe"
    s = read_sizes(c, kv_heads="error")
    experts, k = expert_counts(c, "num_experts")
    width = c.size("moe_intermediate_size")
    shared_width = c.size("shared_expert_intermediate_size") if second else 0
    bias = c.flag("qkv_bias", default=True) if second else c.flag("attention_bias", default=False)
    windows: list[Reach] = [(qwen_window(c), None)] * s.num_layers
    if second:
        windows = qwen2_moe_windows(c, s)
    keys = list(zip(sparse_layers(c, s.num_layers), windows, strict=True))

    def block(key: tuple[bool, Reach]) -> Block:
        sparse, reach = key
        if second:
            mixer = attention(s, reach, bias=bias, out_bias=False)
        else:
            mixer = attention(s, reach, bias=bias, qk_norm="head")
        if not sparse:
            return pre_norm(s, mixer, gated_mlp(s))
        shared = GatedMLP(s.hidden_size, shared_width, s.activation, symbol="f_s") if second else None
        gate = Linear(s.hidden_size, 1, symbol="1", tag="", quantisable=False) if second else None
        mlp = MoE(
            Router(s.hidden_size, experts),
            routed(s, width, experts, k),
            shared=shared,
            shared_name="shared_expert",
            shared_gate=gate,
        )
        return pre_norm(s, mixer, mlp)

    return assemble(
        c, s, block, keys, norm=RMS, symbols={"f_e": width, "E": experts, "k": k, "f_s": shared_width}
    )


def olmoe(c: Config) -> Model:
    """OLMoE: all mixtures, q and k normed over all heads."""
    s = read_sizes(c)
    square_heads(c, s)
    experts, k = expert_counts(c, "num_experts")
    bias = c.flag("attention_bias", default=False)

    def block(_: Any) -> Block:
        mlp = MoE(Router(s.hidden_size, experts), routed(s, s.intermediate_size, experts, k))
        return pre_norm(s, attention(s, bias=bias, qk_norm="all"), mlp)

    return assemble(
        c,
        s,
        block,
        [FULL] * s.num_layers,
        norm=RMS,
        symbols={"f_e": s.intermediate_size, "E": experts, "k": k},
    )


def phimoe(c: Config) -> Model:
    """Phi-3.5-MoE: LayerNorm, biases in attention and perhaps in the head."""
    s = read_sizes(c, kv_heads="error")
    experts, k = expert_counts(c, "num_local_experts")
    bias = c.flag("attention_bias", default=False)
    keys: list[Reach] = [(optional_window(c), None)] * s.num_layers

    def block(reach: Reach) -> Block:
        mlp = MoE(
            Router(s.hidden_size, experts), routed(s, s.intermediate_size, experts, k), router_name="router"
        )
        return pre_norm(s, attention(s, reach, bias=bias), mlp, LAYER_NORM)

    return assemble(
        c,
        s,
        block,
        keys,
        norm=LAYER_NORM,
        head_bias=c.flag("lm_head_bias", default=False),
        symbols={"f_e": s.intermediate_size, "E": experts, "k": k},
    )


def gpt_oss(c: Config) -> Model:
    """gpt-oss: attention sinks, biases in everything, windows in every second layer."""
    s = replace(read_sizes(c, head_dim="error", kv_heads="error"), activation="swiglu_clamped")
    experts, k = expert_counts(c, "num_local_experts")
    bias = c.flag("attention_bias", default=True)
    window = optional_window(c, 128)
    keys = reaches(c, s.num_layers, lambda i: "full_attention" if i % 2 else "sliding_attention", window)

    def block(reach: Reach) -> Block:
        mlp = MoE(
            Router(s.hidden_size, experts, bias=True),
            routed(s, s.intermediate_size, experts, k, layout="in_out", bias=True),
            router_name="router",
        )
        mixer = attention(s, reach, bias=bias, sinks=True, upcast_softmax=False)
        return pre_norm(s, mixer, mlp, WIDE_RMS)

    return assemble(
        c, s, block, keys, norm=WIDE_RMS, symbols={"f_e": s.intermediate_size, "E": experts, "k": k}
    )


def llama4(c: Config) -> Model:
    """Llama 4 (text): mixtures in every n-th layer with one shared expert; chunked attention in 3 of 4 layers."""
    s = read_sizes(c, head_dim="error", kv_heads="error")
    experts, k = expert_counts(c, "num_local_experts")
    dense_width = c.size("intermediate_size_mlp")
    bias = c.flag("attention_bias", default=False)
    step = c.size("interleave_moe_layer_step", default=1)
    listed = c.data.get("moe_layers")
    sparse = set(c.ints("moe_layers")) if listed is not None else set(range(step - 1, s.num_layers, step))
    chunk = optional_window(c, 8192, "attention_chunk_size")
    every = c.size("no_rope_layer_interval", default=4)
    # an empty list stands for the pattern, as in the published class
    listed_rope = c.pattern("no_rope_layers", s.num_layers) if c.data.get("no_rope_layers") != [] else None
    rope = listed_rope or [int((i + 1) % every != 0) for i in range(s.num_layers)]
    kinds = reaches(
        c,
        s.num_layers,
        lambda i: "chunked_attention" if rope[i] else "full_attention",
        chunk,
        "chunked_attention",
    )
    keys = [(i in sparse, kinds[i], bool(rope[i])) for i in range(s.num_layers)]

    def block(key: tuple[bool, Reach, bool]) -> Block:
        is_sparse, reach, rotary = key
        mixer = attention(s, reach, bias=bias, rotary=rotary, upcast_softmax=False)
        layout: Literal["in_out"] = "in_out"
        mlp: Any
        if is_sparse:
            mlp = MoE(
                Router(s.hidden_size, experts),
                routed(s, s.intermediate_size, experts, k, layout=layout),
                router_name="router",
                shared=gated_mlp(s, symbol="f_s"),
                shared_name="shared_expert",
            )
        else:
            mlp = GatedMLP(s.hidden_size, dense_width, s.activation)
        return pre_norm(s, mixer, mlp, names=("self_attn", "feed_forward"))

    symbols = {"f": dense_width, "f_e": s.intermediate_size, "f_s": s.intermediate_size, "E": experts, "k": k}
    return assemble(c, s, block, keys, norm=RMS, symbols=symbols)


def granitemoe(c: Config) -> Model:
    """Granite 3 MoE: Mixtral's structure, the mixture stored under another name."""
    s = read_sizes(c)
    experts, k = expert_counts(c, "num_local_experts")
    bias = c.flag("attention_bias", default=False)

    def block(_: Any) -> Block:
        mlp = MoE(
            Router(s.hidden_size, experts), routed(s, s.intermediate_size, experts, k), router_name="router"
        )
        return pre_norm(s, attention(s, bias=bias), mlp, names=("self_attn", "block_sparse_moe"))

    symbols = {"f_e": s.intermediate_size, "E": experts, "k": k}
    return assemble(c, s, block, [FULL] * s.num_layers, norm=RMS, symbols=symbols)

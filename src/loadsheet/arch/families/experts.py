"""Mixtures of experts with ordinary attention, of 2024 to 2026: one structure with switches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.llama import attention, capped, gated_mlp
from loadsheet.arch.families.mixtures import (
    AFTER_AFMOE,
    AFTER_GEMMA,
    AFTER_GLM,
    Mixture,
    counts,
    decoder,
    dense_first,
    listed_sparse,
    sizes,
)
from loadsheet.arch.families.moe import sparse_layers
from loadsheet.arch.families.parts import FULL, RMS, WIDE_RMS, Reach, assemble, optional_window, reaches
from loadsheet.arch.layers.base import Layer, Norm
from loadsheet.arch.layers.gates import OutputGate
from loadsheet.arch.layers.mlp import Router
from loadsheet.arch.model import Block, Model


def glm4_moe(c: Config) -> Model:
    """GLM-4.5, Sarvam (as `sarvam_moe`) and Solar Open: dense layers first, shared experts."""
    kind = c.data.get("model_type")
    solar, sarvam = kind == "solar_open", kind == "sarvam_moe"
    sparse = [True] * c.size("num_hidden_layers") if solar else dense_first(c, c.size("num_hidden_layers"))
    s = sizes(c, head_dim="floor" if kind == "glm4_moe" else "own", dense=not all(sparse))
    names = ("n_routed_experts", "num_local_experts", *(("num_experts",) if sarvam else ()))
    experts, k = counts(c, *names)
    width = c.size("moe_intermediate_size")
    shared = c.size("n_shared_experts", *(("num_shared_experts",) if sarvam else ()))
    mix = Mixture(width, experts, k, width * shared)
    bias = c.flag("attention_bias", *(("use_qkv_bias",) if sarvam else ()), default=False)
    qk_norm = "head" if not solar and c.flag("use_qk_norm", default=sarvam) else None
    return decoder(
        c,
        s,
        sparse,
        lambda _: attention(s, bias=bias, out_bias=False, qk_norm=qk_norm, joined_heads=kind == "glm4_moe"),
        lambda is_sparse: mix.layer(s) if is_sparse else gated_mlp(s),
        symbols=mix.symbols,
    )


def dots1(c: Config) -> Model:
    """dots.llm1: GLM-4.5's mixtures, norms on q and k, windows in the last layers if the config says so."""
    layers = c.size("num_hidden_layers")
    sparse = dense_first(c, layers)
    s = sizes(c, kv_heads="null", dense=not all(sparse))
    experts, k = counts(c, "n_routed_experts", "num_local_experts")
    width = c.size("moe_intermediate_size")
    mix = Mixture(width, experts, k, width * c.size("n_shared_experts"))
    bias = c.flag("attention_bias", default=False)
    window, last = optional_window(c, 4096), c.size("max_window_layers", default=62, minimum=0)
    seen = reaches(
        c, layers, lambda i: "sliding_attention" if window and i >= last else "full_attention", window
    )
    return decoder(
        c,
        s,
        list(zip(seen, sparse, strict=True)),
        lambda key: attention(s, key[0], bias=bias, qk_norm="head"),
        lambda key: mix.layer(s) if key[1] else gated_mlp(s),
        symbols=mix.symbols,
    )


def exaone_moe(c: Config) -> Model:
    """K-EXAONE: windows in three of four layers, no rotation in the others."""
    layers = c.size("num_hidden_layers")
    sparse = dense_first(c, layers, listed=True)
    s = sizes(c, dense=not all(sparse))
    experts, k = counts(c, "num_experts")
    width = c.size("moe_intermediate_size")
    mix = Mixture(width, experts, k, width * c.size("num_shared_experts"))
    window = c.size("sliding_window", default=4096)
    every = c.size("sliding_window_pattern", default=4) if c.data.get("layer_types") is None else 1
    seen = reaches(c, layers, lambda i: "sliding_attention" if (i + 1) % every else "full_attention", window)
    return decoder(
        c,
        s,
        list(zip(seen, sparse, strict=True)),
        lambda key: attention(s, key[0], qk_norm="head", rotary=key[0] != FULL),
        lambda key: mix.layer(s) if key[1] else gated_mlp(s),
        symbols=mix.symbols,
    )


def hy_v3(c: Config) -> Model:
    """Hunyuan HY 3: a dense layer first, norms on q and k, one shared expert."""
    layers = c.size("num_hidden_layers")
    sparse = listed_sparse(c, layers, lambda i: i > 0, longer=True)
    s = sizes(c, head_dim="own")
    experts, k = counts(c, "num_experts", "num_local_experts")
    width = c.size("moe_intermediate_size")
    # a shared expert of width 0 gets the width of the dense layers, in the published class
    shared = width * c.size("num_shared_experts", minimum=0) or s.intermediate_size
    mix = Mixture(width, experts, k, shared)
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    return decoder(
        c,
        s,
        sparse,
        lambda _: attention(s, bias=bias, qk_norm="head"),
        lambda is_sparse: mix.layer(s, mlp_bias=mlp_bias) if is_sparse else gated_mlp(s, bias=mlp_bias),
        symbols=mix.symbols,
    )


def mellum(c: Config) -> Model:
    """Mellum 2: Qwen 3's mixtures, with patterns of windows and of dense layers."""
    layers = c.size("num_hidden_layers")
    sparse = listed_sparse(c, layers, lambda _: True)
    s = sizes(c, head_dim="own", dense=not all(sparse))
    experts, k = counts(c, "num_experts", "num_local_experts")
    mix = Mixture(c.size("moe_intermediate_size"), experts, k)
    bias = c.flag("attention_bias", default=False)
    seen = reaches(c, layers, lambda _: "full_attention", optional_window(c, 1024))
    return decoder(
        c,
        s,
        list(zip(seen, sparse, strict=True)),
        lambda key: attention(s, key[0], bias=bias, qk_norm="head"),
        lambda key: mix.layer(s) if key[1] else gated_mlp(s),
        symbols=mix.symbols,
    )


def flint(c: Config) -> Model:
    """Flint: attention sinks, windows but in the first two, every fourth and the last layer, dense layers first."""
    layers = c.size("num_hidden_layers")
    if c.data.get("mlp_only_layers") is None:
        c = Config({**c.data, "mlp_only_layers": [0, 1]}, c.where)
    sparse = sparse_layers(c, layers)
    s = sizes(c, head_dim="own", dense=not all(sparse))
    experts, k = counts(c, "num_experts")
    mix = Mixture(c.size("moe_intermediate_size"), experts, k, c.size("shared_expert_intermediate_size"))
    bias = c.flag("attention_bias", default=False)
    window = c.size("sliding_window", default=513)

    def kind(i: int) -> str:
        return "full_attention" if i < 2 or i % 4 == 1 or i == layers - 1 else "sliding_attention"

    return decoder(
        c,
        s,
        list(zip(reaches(c, layers, kind, window), sparse, strict=True)),
        lambda key: attention(s, key[0], bias=bias, qk_norm="head", sinks=True),
        lambda key: mix.layer(s, shared_name="shared_expert") if key[1] else gated_mlp(s),
        symbols=mix.symbols,
    )


def kolibri1(c: Config) -> Model:
    """Kolibri 1: all mixtures, norms before and after, windows in four of five layers, the fifth not rotated."""
    layers = c.size("num_hidden_layers")
    s = sizes(c, head_dim="own", dense=False)
    experts, k = counts(c, "num_experts", "num_local_experts")
    mix = Mixture(c.size("moe_intermediate_size"), experts, k, c.size("shared_expert_intermediate_size"))
    window = optional_window(c, 513)
    seen = reaches(c, layers, lambda i: "sliding_attention" if (i + 1) % 5 else "full_attention", window)
    if window is None and any(kind != "full_attention" for kind in c.data.get("layer_types") or [""]):
        raise c.error("sliding_window", "a whole number, for the layers with a window")
    return decoder(
        c,
        s,
        seen,
        lambda reach: attention(s, reach, qk_norm="head", rotary=reach != FULL or window is None),
        lambda _: mix.layer(s),
        after=AFTER_GLM,
        symbols=mix.symbols,
    )


def flex_olmo(c: Config) -> Model:
    """FlexOlmo: OLMo 2's norms, all mixtures."""
    s = sizes(c, kv_heads="heads")
    experts, k = counts(c, "num_experts", "num_local_experts")
    mix = Mixture(s.intermediate_size, experts, k)
    bias = c.flag("attention_bias", default=False)

    def block(_: Any) -> Block:
        d = s.hidden_size
        return Block(
            attention(s, bias=bias, qk_norm="all"),
            mix.layer(s),
            post_1=Norm(d, RMS),
            post_2=Norm(d, RMS),
            norm_names=("", "", "post_attention_layernorm", "post_feedforward_layernorm"),
        )

    return assemble(c, s, block, [FULL] * s.num_layers, norm=RMS, symbols=mix.symbols)


def minimax_m2(c: Config) -> Model:
    """MiniMax M2: all mixtures, q and k normed over all heads."""
    s = sizes(c, head_dim="own")
    experts, k = counts(c, "num_local_experts", "num_experts")
    mix = Mixture(s.intermediate_size, experts, k)
    return decoder(
        c,
        s,
        [FULL] * s.num_layers,
        lambda _: attention(s, qk_norm="all", joined_heads=True),
        lambda _: mix.layer(s),
        symbols=mix.symbols,
    )


def afmoe(c: Config) -> Model:
    """Arcee Trinity: gated attention, windows in three of four layers, norms before and after."""
    layers = c.size("num_hidden_layers")
    sparse = dense_first(c, layers, "num_dense_layers")
    s = sizes(c, head_dim="own", kv_heads="heads", dense=not all(sparse))
    experts, k = counts(c, "num_experts")
    width = c.size("moe_intermediate_size")
    mix = Mixture(width, experts, k, width * c.size("num_shared_experts"))
    bias = c.flag("attention_bias", default=False)
    every = c.size("global_attn_every_n_layers", default=4)
    window = optional_window(c, 1024)
    kinds = reaches(c, layers, lambda i: "sliding_attention" if (i + 1) % every else "full_attention", window)

    def mixer(key: tuple[Reach, bool]) -> Layer:
        gate = OutputGate(s.hidden_size, s.heads, s.head_dim)
        switches: dict[str, Any] = {"qk_norm": "head", "norm_style": WIDE_RMS, "gate": gate}
        return attention(s, key[0], bias=bias, rotary=key[0] != FULL, **switches)

    def mlp(key: tuple[Reach, bool]) -> Layer:
        if not key[1]:
            return gated_mlp(s)
        layer = mix.layer(s, router=Router(s.hidden_size, experts, name="gate.weight"), router_name="router")
        layer.own("expert_bias", (experts,), "mlp")
        return layer

    keys = list(zip(kinds, sparse, strict=True))
    return decoder(c, s, keys, mixer, mlp, after=AFTER_AFMOE, norm=WIDE_RMS, symbols=mix.symbols)


def beam(c: Config) -> Model:
    """Beam: gated attention with a bias per head, windows in five of six layers, norms before and after.

    Norms and activations multiply in fp32.
    """
    layers = c.size("num_hidden_layers")
    sparse = listed_sparse(c, layers, lambda i: i >= 3)
    s = sizes(c, head_dim="own", dense=not all(sparse))
    experts, k = counts(c, "num_experts")
    mix = Mixture(c.size("moe_intermediate_size"), experts, k)
    bias = c.flag("attention_bias", default=False)
    window = optional_window(c, 512)

    def kind(i: int) -> str:
        return "sliding_attention" if (i + 1) % 6 and i != layers - 1 else "full_attention"

    def mixer(key: tuple[Reach, bool]) -> Layer:
        gate = OutputGate(s.hidden_size, s.heads, s.head_dim, bias="gate_bias")
        return attention(
            s, key[0], bias=bias, qk_norm="head", norm_style=WIDE_RMS, rotary=key[0] != FULL, gate=gate
        )

    keys = list(zip(reaches(c, layers, kind, window), sparse, strict=True))
    model = decoder(
        c,
        s,
        keys,
        mixer,
        lambda key: mix.layer(s, wide=True) if key[1] else gated_mlp(s, wide=True),
        after=AFTER_GEMMA,
        norm=WIDE_RMS,
        logit_softcap=capped(c, "final_logit_softcapping", default=True),
        symbols=mix.symbols,
    )
    model.softcap_in_fp32 = True
    return model


def laguna(c: Config) -> Model:
    """Laguna: a softplus gate per head or number, and a number of heads for each layer."""
    layers = c.size("num_hidden_layers")
    sparse = listed_sparse(c, layers, lambda i: i > 0)
    s = sizes(c, head_dim="own", dense=not all(sparse))
    experts, k = counts(c, "num_experts")
    mix = Mixture(c.size("moe_intermediate_size"), experts, k, c.size("shared_expert_intermediate_size"))
    bias = c.flag("attention_bias", default=False)
    gating = c.data.get("gating", True)
    if not isinstance(gating, (bool, str)) or gating not in (True, False, "per-head", "per-element"):
        raise c.error("gating", "true, `per-head` or `per-element`")
    heads = c.pattern("num_attention_heads_per_layer", layers) or [s.heads] * layers
    for count in heads:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1 or count % s.kv_heads:
            raise c.error(
                "num_attention_heads_per_layer", f"multiples of `num_key_value_heads` = {s.kv_heads}"
            )
    seen = reaches(c, layers, lambda _: "full_attention", c.size("sliding_window", default=512))

    def mixer(key: tuple[Reach, bool, int]) -> Layer:
        own = replace(s, heads=key[2])
        gate = OutputGate(
            s.hidden_size,
            own.heads,
            s.head_dim,
            name="g_proj",
            per="head" if gating in (True, "per-head") else "element",
            activation="softplus",
            wide=True,
        )
        return attention(own, key[0], bias=bias, qk_norm="head", gate=gate, joined_heads=key[0] == FULL)

    def mlp(key: tuple[Reach, bool, int]) -> Layer:
        router = Router(s.hidden_size, experts, correction="e_score_correction_bias")
        return mix.layer(s, router=router) if key[1] else gated_mlp(s)

    return decoder(c, s, list(zip(seen, sparse, heads, strict=True)), mixer, mlp, symbols=mix.symbols)

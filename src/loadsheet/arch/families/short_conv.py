"""Liquid's later models: short convolutions and attention, with mixtures (LFM2-MoE) or windows and gates (LFM3)."""

from __future__ import annotations

from dataclasses import replace

from loadsheet.arch.config import Config
from loadsheet.arch.families.hybrid import ATTENTION, layer_kinds
from loadsheet.arch.families.llama import attention, pre_norm
from loadsheet.arch.families.moe import expert_counts, routed
from loadsheet.arch.families.parts import RMS, Reach, assemble, optional_window, read_sizes
from loadsheet.arch.layers.attention import AttentionNames
from loadsheet.arch.layers.base import Layer, Norm
from loadsheet.arch.layers.conv import ShortConvolution
from loadsheet.arch.layers.gates import OutputGate
from loadsheet.arch.layers.mlp import GatedMLP, MoE, Router
from loadsheet.arch.model import Block, Model

LABELS = ("w1", "w3", "w2")
NORMS = ("operator_norm", "ffn_norm", "post_operator_norm", "post_ffn_norm")


def lfm2_moe(c: Config) -> Model:
    """LFM2-MoE: LFM2 with mixtures after the first dense layers."""
    older = "tie_embedding" if c.data.get("tie_embedding") is not None else "tie_word_embeddings"
    s = replace(read_sizes(c, kv_heads="required"), tied=c.flag(older, default=True))
    experts, k = expert_counts(c, "num_experts")
    width, dense = c.size("moe_intermediate_size"), c.size("num_dense_layers", minimum=0)
    kernel, bias = c.size("conv_L_cache"), c.flag("conv_bias", default=False)
    kinds = layer_kinds(c, s.num_layers, ("conv", ATTENTION), keys=("layer_types",))
    names = AttentionNames(o="out_proj", q_norm="q_layernorm", k_norm="k_layernorm")

    def block(key: tuple[str, bool]) -> Block:
        kind, sparse = key
        d = s.hidden_size
        mixer: Layer = (
            ShortConvolution(d, kernel, bias=bias)
            if kind == "conv"
            else attention(s, qk_norm="head", names=names)
        )
        mlp: Layer = GatedMLP(d, s.intermediate_size, "silu", names=LABELS)
        if sparse:
            mlp = MoE(Router(d, experts), routed(s, width, experts, k))
        labels = ("conv" if kind == "conv" else "self_attn", "feed_forward")
        return pre_norm(s, mixer, mlp, names=labels, norm_names=NORMS)

    keys = [(kind, i >= dense) for i, kind in enumerate(kinds)]
    symbols = {"f_e": width, "E": experts, "k": k, "p": 3 * s.hidden_size}
    return assemble(c, s, block, keys, norm=RMS, final_norm_name="model.embedding_norm", symbols=symbols)


def lfm3(c: Config) -> Model:
    """LFM3: short convolutions, windows and full attention with a gate per head; norms after the sub-layers too."""
    s = read_sizes(c, tied=True, head_dim="required", kv_heads="required")
    kernel, bias = c.size("conv_L_cache"), c.flag("conv_bias", default=False)
    attention_bias, window = c.flag("attention_bias", default=False), optional_window(c, 256)
    gated, sandwich = c.flag("use_attention_gate", default=True), c.flag("use_sandwich_norm", default=True)

    def pattern(i: int) -> str:
        return ATTENTION if i % 4 == 2 else "sliding_attention" if i % 4 == 0 and i else "conv"

    kinds = layer_kinds(
        c, s.num_layers, ("conv", ATTENTION, "sliding_attention"), pattern, keys=("layer_types",)
    )
    reach: dict[str, Reach] = {"sliding_attention": (window, None), ATTENTION: (None, None)}

    def block(kind: str) -> Block:
        d = s.hidden_size
        mixer: Layer
        if kind == "conv":
            mixer = ShortConvolution(d, kernel, bias=bias)
        else:
            gate = OutputGate(d, s.heads, s.head_dim, name="g_proj", per="head") if gated else None
            mixer = attention(s, reach[kind], bias=attention_bias, qk_norm="head", gate=gate)
        mlp = GatedMLP(d, s.intermediate_size, "silu", names=LABELS)
        labels = ("conv" if kind == "conv" else "self_attn", "feed_forward")
        post_1, post_2 = (Norm(d, RMS) if sandwich else None for _ in range(2))
        return pre_norm(s, mixer, mlp, names=labels, norm_names=NORMS, post_1=post_1, post_2=post_2)

    return assemble(
        c, s, block, kinds, norm=RMS, final_norm_name="model.embedding_norm", symbols={"p": 3 * s.hidden_size}
    )

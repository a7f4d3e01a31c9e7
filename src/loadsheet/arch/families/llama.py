"""Dense decoders of Llama's kind: pre-norm blocks, rotary attention, gated MLP, with small variations."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.parts import (
    FULL,
    GEMMA_RMS,
    LAYER_NORM,
    RMS,
    WIDE_RMS,
    Reach,
    Sizes,
    assemble,
    input_dropout,
    optional_window,
    reaches,
    read_sizes,
    square_heads,
)
from loadsheet.arch.layers.attention import Attention, AttentionNames
from loadsheet.arch.layers.base import Layer, Norm, NormStyle
from loadsheet.arch.layers.mlp import MLP, GatedMLP
from loadsheet.arch.model import Block, Model


def attention(s: Sizes, reach: Reach = FULL, **switches: Any) -> Attention:
    """Attention with a config's sizes."""
    window, chunk = reach
    return Attention(s.hidden_size, s.heads, s.kv_heads, s.head_dim, window=window, chunk=chunk, **switches)


def gated_mlp(s: Sizes, **switches: Any) -> GatedMLP:
    """The gated MLP with a config's sizes."""
    return GatedMLP(s.hidden_size, s.intermediate_size, s.activation, **switches)


def pre_norm(s: Sizes, mixer: Layer, mlp: Layer, norm: NormStyle = RMS, **switches: Any) -> Block:
    """x + mixer(norm(x)), then x + mlp(norm(x))."""
    d = s.hidden_size
    return Block(mixer, mlp, norm_1=Norm(d, norm), norm_2=Norm(d, norm), **switches)


def llama(c: Config) -> Model:
    """Llama 1-3, and what loads as it (TinyLlama, SmolLM2, Yi, DeepSeek-LLM, ...)."""
    s = read_sizes(c)
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)

    def block(_: Any) -> Block:
        return pre_norm(s, attention(s, bias=bias), gated_mlp(s, bias=mlp_bias))

    return assemble(c, s, block, [FULL] * s.num_layers, norm=RMS)


def granite(c: Config) -> Model:
    """Granite 3 dense: Llama with scaled residuals, which cost nothing that we count."""
    return llama(c)


def mistral(c: Config) -> Model:
    """Mistral: Llama without biases, perhaps with one sliding window for all layers."""
    s = read_sizes(c, kv_heads="error")
    keys = [(optional_window(c, 4096), None)] * s.num_layers
    return assemble(c, s, lambda k: pre_norm(s, attention(s, k), gated_mlp(s)), keys, norm=RMS)


def qwen_window(c: Config) -> int | None:
    """Qwen's window, used only if `use_sliding_window` says so."""
    return optional_window(c, 4096) if c.flag("use_sliding_window", default=False) else None


def qwen2_windows(c: Config, s: Sizes) -> list[Reach]:
    """Qwen's windows: by `layer_types`, else from layer `max_window_layers` on."""
    window, first = qwen_window(c), c.size("max_window_layers", default=28, minimum=0)
    return reaches(
        c, s.num_layers, lambda i: "sliding_attention" if window and i >= first else "full_attention", window
    )


def qwen2(c: Config) -> Model:
    """Qwen 1.5, 2, 2.5: biases on q, k, v."""
    s = read_sizes(c, kv_heads="error")

    def block(k: Reach) -> Block:
        return pre_norm(s, attention(s, k, bias=True, out_bias=False), gated_mlp(s))

    return assemble(c, s, block, qwen2_windows(c, s), norm=RMS)


def qwen3(c: Config) -> Model:
    """Qwen 3 dense: a norm on each query and key head instead of the biases."""
    s = read_sizes(c, head_dim="error", kv_heads="error")
    bias = c.flag("attention_bias", default=False)

    def block(k: Reach) -> Block:
        return pre_norm(s, attention(s, k, bias=bias, qk_norm="head"), gated_mlp(s))

    return assemble(c, s, block, qwen2_windows(c, s), norm=RMS)


def phi3(c: Config) -> Model:
    """Phi-3, Phi-3.5-mini, Phi-4: q, k, v in one matrix, gate and up in another."""
    s = read_sizes(c)
    keys = [(optional_window(c), None)] * s.num_layers

    def block(k: Reach) -> Block:
        return pre_norm(
            s, attention(s, k, fused_qkv=True, joined_heads=True), gated_mlp(s, fused="gate_up_proj")
        )

    return assemble(c, s, block, keys, norm=RMS)


def olmo(c: Config) -> Model:
    """OLMo 1: LayerNorm without any parameter."""
    s = read_sizes(c)
    bias = c.flag("attention_bias", default=False)
    norm = NormStyle("layer", weight=False, upcast=True)
    return assemble(
        c,
        s,
        lambda _: pre_norm(s, attention(s, bias=bias), gated_mlp(s), norm),
        [FULL] * s.num_layers,
        norm=norm,
    )


def olmo2(c: Config) -> Model:
    """OLMo 2 and 3: norms after the sub-layers, q and k normed over all heads; OLMo 3 with windows."""
    s = read_sizes(c)
    bias = c.flag("attention_bias", default=False)
    keys = [FULL] * s.num_layers
    if c.data.get("model_type") == "olmo3":
        window = optional_window(c, 4096)
        keys = reaches(
            c, s.num_layers, lambda i: "full_attention" if i % 4 == 3 else "sliding_attention", window
        )

    def block(k: Reach) -> Block:
        d = s.hidden_size
        return Block(
            attention(s, k, bias=bias, qk_norm="all", norm_style=WIDE_RMS),
            gated_mlp(s),
            post_1=Norm(d, WIDE_RMS),
            post_2=Norm(d, WIDE_RMS),
            norm_names=("", "", "post_attention_layernorm", "post_feedforward_layernorm"),
        )

    return assemble(c, s, block, keys, norm=WIDE_RMS)


def starcoder2(c: Config) -> Model:
    """StarCoder 2: LayerNorm, plain MLP, biases, tied head."""
    s = read_sizes(c, tied=True, kv_heads="error", activation="gelu_pytorch_tanh")
    bias = c.flag("use_bias", default=True)
    dropout = c.number("residual_dropout", default=0.0, maximum=1)
    attention_dropout = c.number("attention_dropout", default=0.0, maximum=1)
    keys = [(optional_window(c), None)] * s.num_layers

    def block(k: Reach) -> Block:
        mlp = MLP(s.hidden_size, s.intermediate_size, s.activation, bias=bias, names=("c_fc", "c_proj"))
        mixer = attention(s, k, bias=bias, dropout=attention_dropout)
        return pre_norm(s, mixer, mlp, LAYER_NORM, dropout=dropout)

    return assemble(c, s, block, keys, norm=LAYER_NORM, extras=input_dropout(c, "embedding_dropout"))


class HeadNorms(Norm):
    """StableLM's q/k norms: one LayerNorm module for each head, without bias."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__(head_dim, NormStyle("layer", weight=False), groups=heads)
        self.numel = heads * head_dim
        for head in range(heads):
            self.own(f"norms.{head}.weight", (head_dim,), "norm")


def stablelm(c: Config) -> Model:
    """StableLM: LayerNorm with bias, gated MLP; attention and MLP side by side if the config says so."""
    s = read_sizes(c, head_dim="ignore", kv_heads="error")
    bias, parallel = c.flag("use_qkv_bias", default=False), c.flag("use_parallel_residual", default=False)
    qk_norm = c.flag("qk_layernorm", default=False)

    def block(_: Any) -> Block:
        mixer = attention(s, bias=bias, out_bias=False, joined_heads=True)
        if qk_norm:
            mixer.q_norm = mixer.add("q_layernorm", HeadNorms(s.heads, s.head_dim))
            mixer.k_norm = mixer.add("k_layernorm", HeadNorms(s.kv_heads, s.head_dim))
        d = s.hidden_size
        second = None if parallel else Norm(d, LAYER_NORM)
        return Block(mixer, gated_mlp(s), norm_1=Norm(d, LAYER_NORM), norm_2=second, parallel=parallel)

    return assemble(c, s, block, [FULL] * s.num_layers, norm=LAYER_NORM)


def cohere(c: Config) -> Model:
    """Command R and R7B: attention and MLP side by side after one LayerNorm without bias, tied head."""
    second = c.data.get("model_type") == "cohere2"
    s = read_sizes(c, tied=True)
    bias = c.flag("attention_bias", default=False)
    norm = NormStyle("layer", written_out=True)
    qk_norm = "per_head" if not second and c.flag("use_qk_norm", default=False) else None
    keys = [FULL] * s.num_layers
    if second:
        window, every = optional_window(c, 4096), c.size("sliding_window_pattern", default=4)
        keys = reaches(
            c, s.num_layers, lambda i: "sliding_attention" if (i + 1) % every else "full_attention", window
        )

    def block(k: Reach) -> Block:
        mixer = attention(s, k, bias=bias, qk_norm=qk_norm, norm_style=norm)
        return Block(mixer, gated_mlp(s), norm_1=Norm(s.hidden_size, norm), parallel=True)

    return assemble(c, s, block, keys, norm=norm)


def glm(c: Config) -> Model:
    """GLM-4 (as `glm`) and GLM-4-0414 (as `glm4`, with norms after the sub-layers too)."""
    s = read_sizes(c, head_dim="error", kv_heads="error")
    bias = c.flag("attention_bias", default=True)
    after = c.data.get("model_type") == "glm4"

    def block(_: Any) -> Block:
        d = s.hidden_size
        return Block(
            attention(s, bias=bias, out_bias=False, joined_heads=True),
            gated_mlp(s, fused="gate_up_proj"),
            norm_1=Norm(d, RMS),
            norm_2=Norm(d, RMS),
            post_1=Norm(d, RMS) if after else None,
            post_2=Norm(d, RMS) if after else None,
            norm_names=(
                "input_layernorm",
                "post_attention_layernorm",
                "post_self_attn_layernorm",
                "post_mlp_layernorm",
            ),
        )

    return assemble(c, s, block, [FULL] * s.num_layers, norm=RMS)


def gemma(c: Config) -> Model:
    """Gemma 1: Llama with a tied head and a norm that multiplies by 1 + w."""
    key = "hidden_activation" if c.data.get("hidden_activation") else "hidden_act"
    s = read_sizes(
        c, tied=True, head_dim="error", kv_heads="error", activation_key=key, activation="gelu_pytorch_tanh"
    )
    bias = c.flag("attention_bias", default=False)
    return assemble(
        c,
        s,
        lambda _: pre_norm(s, attention(s, bias=bias), gated_mlp(s), GEMMA_RMS),
        [FULL] * s.num_layers,
        norm=GEMMA_RMS,
    )


def capped(c: Config, key: str, *, default: bool) -> bool:
    """Whether a tanh squeezes what the key names: a number says so, null says no."""
    if key not in c.data:
        return default
    return c.data[key] is not None and c.number(key, default=0.0) > 0


def gemma2(c: Config) -> Model:
    """Gemma 2 and 3 (text): norms around both sub-layers, windows in most layers; 3 also norms q and k."""
    third = c.data.get("model_type") == "gemma3_text"
    s = read_sizes(
        c,
        tied=True,
        head_dim="error",
        kv_heads="error",
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
    )
    bias = c.flag("attention_bias", default=False)
    every = c.size("_sliding_window_pattern", "sliding_window_pattern", default=6) if third else 2
    window = optional_window(c, 4096)
    keys = reaches(
        c, s.num_layers, lambda i: "sliding_attention" if (i + 1) % every else "full_attention", window
    )
    softcap = capped(c, "attn_logit_softcapping", default=not third)
    qk_norm = "head" if third else None

    def block(k: Reach) -> Block:
        d = s.hidden_size
        return Block(
            attention(s, k, bias=bias, qk_norm=qk_norm, norm_style=GEMMA_RMS, softcap=softcap),
            gated_mlp(s),
            norm_1=Norm(d, GEMMA_RMS),
            norm_2=Norm(d, GEMMA_RMS),
            post_1=Norm(d, GEMMA_RMS),
            post_2=Norm(d, GEMMA_RMS),
            norm_names=(
                "input_layernorm",
                "pre_feedforward_layernorm",
                "post_attention_layernorm",
                "post_feedforward_layernorm",
            ),
        )

    logits = capped(c, "final_logit_softcapping", default=not third)
    return assemble(c, s, block, keys, norm=GEMMA_RMS, logit_softcap=logits)


def phi(c: Config) -> Model:
    """Phi-1, 1.5, 2: LayerNorm, attention and MLP side by side, biases everywhere, the head's included."""
    s = read_sizes(c, activation="gelu_new")
    dropout = c.number("resid_pdrop", default=0.0, maximum=1)
    names = AttentionNames(o="dense", q_norm="q_layernorm", k_norm="k_layernorm")
    qk_norm = "head" if c.flag("qk_layernorm", default=False) else None
    if qk_norm:  # the published class gives these norms hidden_size/heads numbers, whatever head_dim says
        square_heads(c, s)

    def block(_: Any) -> Block:
        mixer = attention(
            s, bias=True, names=names, qk_norm=qk_norm, norm_style=LAYER_NORM, joined_heads=True
        )
        mlp = MLP(s.hidden_size, s.intermediate_size, s.activation, bias=True, names=("fc1", "fc2"))
        return Block(mixer, mlp, norm_1=Norm(s.hidden_size, LAYER_NORM), parallel=True, dropout=dropout)

    return assemble(
        c,
        s,
        block,
        [FULL] * s.num_layers,
        norm=LAYER_NORM,
        final_norm_name="model.final_layernorm",
        head_bias=True,
        extras=input_dropout(c, "embd_pdrop"),
    )

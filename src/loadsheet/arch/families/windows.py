"""Dense decoders whose layers mix windows and full attention: CWM, EXAONE 4, Granite SWA, Ministral, VaultGemma."""

from __future__ import annotations

from loadsheet.arch.config import Config
from loadsheet.arch.families.llama import attention, capped, gated_mlp, pre_norm
from loadsheet.arch.families.parts import (
    GEMMA_RMS,
    RMS,
    Reach,
    assemble,
    optional_window,
    reaches,
    read_sizes,
)
from loadsheet.arch.layers.base import Norm
from loadsheet.arch.layers.sinks import ScaledSinks
from loadsheet.arch.model import Block, Model


def _full_every_fourth(layer: int) -> str:
    """Full attention in layers 0, 4, 8, ..."""
    return "sliding_attention" if layer % 4 else "full_attention"


def cwm(c: Config) -> Model:
    """Code World Model: Llama with windows in three of four layers."""
    s = read_sizes(c, head_dim="error", kv_heads="error")
    mlp_bias = c.flag("mlp_bias", default=False)
    keys = reaches(c, s.num_layers, _full_every_fourth, optional_window(c, 8192))
    return assemble(c, s, lambda k: pre_norm(s, attention(s, k), gated_mlp(s, bias=mlp_bias)), keys, norm=RMS)


def ministral(c: Config) -> Model:
    """Ministral: Mistral whose window may be confined to some layers; its class derives no head_dim."""
    c.size("head_dim")
    s = read_sizes(c, kv_heads="error")
    window = optional_window(c, 4096)
    usual = "sliding_attention" if window else "full_attention"
    keys = reaches(c, s.num_layers, lambda _: usual, window)
    return assemble(c, s, lambda k: pre_norm(s, attention(s, k), gated_mlp(s)), keys, norm=RMS)


def exaone4(c: Config) -> Model:
    """EXAONE 4: norms after the sub-layers, q and k normed by head; no rotary positions where windows are off."""
    s = read_sizes(c, kv_heads="error")
    window = optional_window(c, 4096)

    def usual(layer: int) -> str:
        # read only where `layer_types` is missing: published files may spell the pattern as "LLLG"
        sliding = window and (layer + 1) % c.size("sliding_window_pattern", default=4)
        return "sliding_attention" if sliding else "full_attention"

    keys = reaches(c, s.num_layers, usual, window)

    def block(k: Reach) -> Block:
        d = s.hidden_size
        rotary = window is None or k[0] is not None
        return Block(
            attention(s, k, qk_norm="head", rotary=rotary),
            gated_mlp(s),
            post_1=Norm(d, RMS),
            post_2=Norm(d, RMS),
            norm_names=("", "", "post_attention_layernorm", "post_feedforward_layernorm"),
        )

    return assemble(c, s, block, keys, norm=RMS)


def granite_swa(c: Config) -> Model:
    """Granite with attention sinks and windows in three of four layers, without positions where theta is 0."""
    s = read_sizes(c, tied=True, kv_heads="error")
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    windows = reaches(c, s.num_layers, _full_every_fourth, optional_window(c, 128))
    thetas = c.pattern("layer_rope_theta", s.num_layers) or [1] * s.num_layers
    keys = [(reach, bool(theta)) for reach, theta in zip(windows, thetas, strict=True)]

    def block(k: tuple[Reach, bool]) -> Block:
        window, d = k[0][0], s.hidden_size
        mixer = ScaledSinks(
            d, s.heads, s.kv_heads, s.head_dim, bias=bias, rotary=k[1], window=window, sinks=True
        )
        return pre_norm(s, mixer, gated_mlp(s, bias=mlp_bias))

    return assemble(c, s, block, keys, norm=RMS)


def vaultgemma(c: Config) -> Model:
    """VaultGemma: Gemma 2 without the norms after the sub-layers."""
    s = read_sizes(
        c,
        tied=True,
        head_dim="error",
        kv_heads="error",
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
    )
    bias = c.flag("attention_bias", default=False)
    window = optional_window(c, 4096)
    keys = reaches(c, s.num_layers, lambda i: "full_attention" if i % 2 else "sliding_attention", window)
    softcap = capped(c, "attn_logit_softcapping", default=True)
    names = ("input_layernorm", "pre_feedforward_layernorm", "", "")

    def block(k: Reach) -> Block:
        mixer = attention(s, k, bias=bias, softcap=softcap)
        return pre_norm(s, mixer, gated_mlp(s), GEMMA_RMS, norm_names=names)

    logits = capped(c, "final_logit_softcapping", default=True)
    return assemble(c, s, block, keys, norm=GEMMA_RMS, logit_softcap=logits)

"""Other recurrences: RecurrentGemma, RWKV 4, xLSTM, and MiniMax's lightning attention beside softmax."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.hybrid import ATTENTION, MAMBA, layer_kinds
from loadsheet.arch.families.llama import attention, gated_mlp, pre_norm
from loadsheet.arch.families.mamba import headless_sizes
from loadsheet.arch.families.moe import expert_counts, routed
from loadsheet.arch.families.parts import GEMMA_RMS, LAYER_NORM, RMS, Sizes, assemble, read_sizes
from loadsheet.arch.layers.base import Layer, Norm, NormStyle
from loadsheet.arch.layers.mlp import ACTIVATIONS, GatedMLP, MoE, Router
from loadsheet.arch.layers.recurrent import ChannelMix, GriffinMixer, LightningAttention, MatrixLSTM, TimeMix
from loadsheet.arch.model import Block, Model


def recurrent_gemma(c: Config) -> Model:
    """RecurrentGemma: two RG-LRU layers to one of windowed attention; gated MLPs of half the named width."""
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    c.divides("num_attention_heads", heads, "hidden_size", hidden)
    kv_heads = c.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise c.error("num_key_value_heads", f"a divisor of `num_attention_heads` = {heads}")
    s = headless_sizes(
        c,
        tied=True,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=c.size("head_dim", default=hidden // heads),
        intermediate_size=c.size("intermediate_size", minimum=2) // 2,
        activation=c.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"),
    )
    width, kernel = c.size("lru_width", default=hidden), c.size("conv1d_width")
    c.divides("num_attention_heads", heads, "lru_width", width)
    window = c.size("attention_window_size", "sliding_window", default=2048)
    bias = c.flag("attention_bias", default=False)
    given = c.data.get("block_types")
    pattern = ["recurrent", "recurrent", "attention"] if given is None else given
    if (
        not isinstance(pattern, list | tuple)
        or not pattern
        or any(kind not in ("recurrent", "attention") for kind in pattern)
        or len(pattern) * 100 < s.num_layers
    ):
        raise c.error(
            "block_types", "a list of `recurrent` and `attention`, at least a 100th of the layers long"
        )
    keys = [pattern[i % len(pattern)] for i in range(s.num_layers)]

    def block(kind: str) -> Block:
        mixer: Layer
        if kind == "attention":
            mixer = attention(s, (window, None), bias=bias, out_bias=True)
        else:
            mixer = GriffinMixer(hidden, width, heads, kernel=kernel, activation=s.activation)
        return pre_norm(
            s,
            mixer,
            gated_mlp(s, bias=True),
            GEMMA_RMS,
            names=("temporal_block", "mlp_block"),
            norm_names=("temporal_pre_norm", "channel_pre_norm", "", ""),
        )

    return assemble(
        c, s, block, keys, norm=GEMMA_RMS, final_norm_name="model.final_norm", symbols={"w": width}
    )


def rwkv(c: Config) -> Model:
    """RWKV 4: no attention; layer norms, one more of them before the first block."""
    hidden = c.size("hidden_size")
    s = headless_sizes(
        c,
        tied=False,
        intermediate_size=c.size("intermediate_size", default=4 * hidden),
        activation="relu",
        max_length=c.size("context_length", "max_position_embeddings", default=0, minimum=0) or None,
    )
    width = c.size("attention_hidden_size", default=hidden)

    def block(first: bool) -> Block:
        made = pre_norm(
            s,
            TimeMix(hidden, width),
            ChannelMix(hidden, s.intermediate_size),
            LAYER_NORM,
            names=("attention", "feed_forward"),
            norm_names=("ln1", "ln2", "", ""),
        )
        if first:
            made.add("pre_ln", Norm(hidden, LAYER_NORM))
        return made

    return assemble(
        c,
        s,
        block,
        [i == 0 for i in range(s.num_layers)],
        norm=LAYER_NORM,
        embedding_name="rwkv.embeddings",
        prefix="rwkv.blocks",
        final_norm_name="rwkv.ln_out",
        head_name="head",
        symbols={"a": width},
    )


def rounded(c: Config, hidden: int, factor: str, default: float) -> int:
    """hidden_size times a factor, cut to a whole number."""
    return int(hidden * c.number(factor, default=default, minimum=1e-6, maximum=1e4))


def xlstm(c: Config) -> Model:
    """xLSTM-7B's kind: mLSTM and a gated MLP in every block; head never tied."""
    hidden = c.size("hidden_size", "embedding_dim")
    if c.data.get("hidden_size") is None and hidden != 4096:  # the class fills in 4096 and takes both
        raise c.error("hidden_size", f"the same as `embedding_dim` = {hidden}")
    heads, layers = c.size("num_heads"), c.size("num_hidden_layers", "num_blocks")
    keys, values = rounded(c, hidden, "qk_dim_factor", 0.5), rounded(c, hidden, "v_dim_factor", 1.0)
    for name, width in (("qk_dim_factor", keys), ("v_dim_factor", values)):
        if width % heads or not width:
            raise c.error(name, f"one that makes a multiple of `num_heads` = {heads}, not {width}")
    multiple = c.size("ffn_round_up_to_multiple_of", default=64)
    factor = c.number("ffn_proj_factor", default=2.667, minimum=1e-6, maximum=1e4)
    width = int(((hidden * factor + multiple - 1) // multiple) * multiple)
    bias = c.flag("use_bias", default=False)
    fused = c.choice("weight_mode", {"single": "", "fused": "fused"}, "single") == "fused"
    s = Sizes(
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=keys // heads,
        vocab_size=c.size("vocab_size"),
        intermediate_size=width,
        activation="silu",
        tied=False,
        max_length=None,
    )
    chunk = c.size("chunk_size", default=64)
    norm = NormStyle("rms", bias=bias)

    def block(_: Any) -> Block:
        mixer = MatrixLSTM(hidden, heads, keys, values, chunk=chunk, bias=bias, fused=fused)
        mlp = GatedMLP(
            hidden,
            width,
            "silu",
            bias=bias,
            fused="proj_up_gate_z" if fused else None,
            names=("proj_up_gate", "proj_up", "proj_down"),
        )
        return pre_norm(
            s,
            mixer,
            mlp,
            norm,
            names=("mlstm_layer", "ffn"),
            norm_names=("norm_mlstm", "norm_ffn", "", ""),
        )

    return assemble(
        c,
        s,
        block,
        [None] * layers,
        norm=RMS,
        embedding_name="backbone.embeddings",
        prefix="backbone.blocks",
        final_norm_name="backbone.out_norm",
        symbols={"K": keys, "v": values, "p": 2 * (keys + values)},
    )


def minimax(c: Config) -> Model:
    """MiniMax-Text-01: lightning attention in most layers, softmax attention in the rest, mixtures throughout."""
    s = read_sizes(c, kv_heads="required")
    experts, k = expert_counts(c, "num_local_experts")
    block_size = c.size("block_size", default=256)
    kinds = layer_kinds(
        c, s.num_layers, (MAMBA, ATTENTION), lambda i: MAMBA if i % 2 else ATTENTION, keys=("layer_types",)
    )

    def block(kind: str) -> Block:
        mixer: Layer
        if kind == ATTENTION:
            mixer = attention(s)
        else:
            mixer = LightningAttention(
                s.hidden_size, s.heads, s.head_dim, block=block_size, activation=s.activation, norm=RMS
            )
        mlp = MoE(Router(s.hidden_size, experts), routed(s, s.intermediate_size, experts, k))
        return pre_norm(s, mixer, mlp)

    symbols = {"f_e": s.intermediate_size, "E": experts, "k": k, "qkv": 3 * s.heads * s.head_dim}
    return assemble(c, s, block, kinds, norm=RMS, symbols=symbols)

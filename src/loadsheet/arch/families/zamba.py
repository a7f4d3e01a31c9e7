"""Zamba and Zamba 2: Mamba throughout, and a few transformer blocks whose weights several layers share."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.blocks import MambaLayer, SharingBlock
from loadsheet.arch.config import Config
from loadsheet.arch.families.hybrid import MAMBA, layer_kinds
from loadsheet.arch.families.mamba import check_groups, headless_sizes, mamba2_symbols, time_step_rank
from loadsheet.arch.families.parts import RMS, Sizes, assemble
from loadsheet.arch.layers.base import Layer, Linear, Norm
from loadsheet.arch.layers.mlp import ACTIVATIONS, GatedMLP
from loadsheet.arch.layers.shared import SharedMLP, SharedTransformer, WideAttention
from loadsheet.arch.layers.ssm import Mamba, Mamba2
from loadsheet.arch.model import Block, Model

HYBRID = "hybrid"


def zamba_sizes(c: Config) -> Sizes:
    """Sizes of Zamba 1 and 2: attention reads 2·hidden_size numbers, the stream beside the embedding."""
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    first = c.data.get("model_type") == "zamba"  # its class takes one model's sizes for missing ones
    if c.size("attention_hidden_size", default=2 * hidden) != 2 * hidden:
        raise c.error("attention_hidden_size", f"2·`hidden_size` = {2 * hidden}")
    return headless_sizes(
        c,
        tied=True,
        heads=heads,
        kv_heads=c.size("num_key_value_heads") if first else c.size("num_key_value_heads", default=heads),
        head_dim=c.size("attention_head_dim", "head_dim", default=0) or 2 * hidden // heads,
        intermediate_size=c.size("intermediate_size")
        if first
        else c.size("intermediate_size", default=4 * hidden),
        activation=c.choice("hidden_act", ACTIVATIONS, "gelu"),
    )


def hybrids(
    c: Config,
    s: Sizes,
    kinds: list[str],
    blocks: int,
    mamba: Any,
    shared: Any,
    *,
    name: str,
    symbols: dict[str, int],
) -> Model:
    """Put it together: of the hybrid layers the first `blocks` own a transformer each, the rest use them again.

    `shared(slots)` makes a transformer for the applications of these numbers. Where the embedding is not
    tied, transformers ties nothing, so that every hybrid layer owns its transformer.
    """
    total = kinds.count(HYBRID)
    keys: list[int | None] = []  # None: Mamba; else which transformer this layer owns, -1 for none
    number = 0
    for kind in kinds:
        keys.append(None if kind == MAMBA else number if number < blocks or not s.tied else -1)
        number += kind == HYBRID
    d = s.hidden_size

    def block(owned: int | None) -> Block:
        inner = MambaLayer(mamba(), Norm(d, RMS))
        if owned is None:
            return PlainBlock(inner)
        first = max(owned, 0) % blocks
        slots = tuple(range(first, total, blocks))
        linear = Linear(d, d, role="attention", tag="linear")
        return SharingBlock(inner, shared(slots), linear, name=name, owner=owned >= 0)

    return assemble(
        c,
        s,
        block,
        keys,
        norm=RMS,
        final_norm_name="model.final_layernorm",
        symbols={"2d": 2 * d, **symbols},
    )


class PlainBlock(Block):
    """A layer of Mamba alone."""

    def __init__(self, inner: MambaLayer) -> None:
        Layer.__init__(self)
        self.mixer, self.mlp = inner.mamba, None
        self.inner: MambaLayer = self.add("", inner)
        self.forward = inner.forward  # type: ignore[method-assign]


def zamba(c: Config) -> Model:
    """Zamba: Mamba 1 with several heads; one transformer shared by all hybrid layers."""
    s = zamba_sizes(c)
    heads, width = c.size("n_mamba_heads"), c.size("mamba_expand") * s.hidden_size
    if width % heads:
        raise c.error("n_mamba_heads", f"a divisor of Mamba's width = {width}")
    if s.heads % s.kv_heads:
        raise c.error("num_key_value_heads", f"a divisor of `num_attention_heads` = {s.heads}")
    states, rank = c.size("mamba_d_state"), time_step_rank(c, s.hidden_size, "mamba_dt_rank")
    switches: dict[str, Any] = {
        "states": states,
        "kernel": c.size("mamba_d_conv"),
        "rank": rank,
        "bias": c.flag("mamba_proj_bias", default=False),
        "conv_bias": c.flag("mamba_conv_bias", default=True),
        "activation": c.choice("hidden_mamba_act", ACTIVATIONS, "silu"),
        "heads": heads,
        "one_kernel": False,
    }
    listed = c.data.get("layers_block_type") is not None or c.data.get("layer_types") is not None
    every = c.size("attn_layer_period", default=None) if listed else c.size("attn_layer_period")
    at = (
        c.size("attn_layer_offset", default=None, minimum=0)
        if listed
        else c.size("attn_layer_offset", minimum=0)
    )
    if not listed and s.num_layers < 3:
        raise c.error("num_hidden_layers", "at least 3, the class's pattern begins with a hybrid third layer")

    def pattern(i: int) -> str:
        return HYBRID if i == 2 or (i > 2 and (i - 3) % every == at) else MAMBA

    kinds = layer_kinds(c, s.num_layers, (MAMBA, HYBRID), pattern, keys=("layers_block_type", "layer_types"))

    def shared(_: tuple[int, ...]) -> SharedTransformer:
        wide = WideAttention(s.hidden_size, 2 * s.hidden_size, s.heads, s.kv_heads, s.head_dim, rotary=False)
        mlp = GatedMLP(s.hidden_size, s.intermediate_size, s.activation)
        return SharedTransformer(wide, mlp, s.hidden_size, 2 * s.hidden_size, RMS)

    symbols = {"I": width, "p": 2 * width, "N": states, "R": heads * (rank + 2 * states)}
    return hybrids(
        c,
        s,
        kinds,
        1,
        lambda: Mamba(s.hidden_size, width, **switches),
        shared,
        name="shared_transf",
        symbols=symbols,
    )


#: layers of the class's own pattern, which fits 54 layers only
ZAMBA2_HYBRIDS = {6, 12, 18, 24, 30, 36, 42, 47, 51}


def zamba2(c: Config) -> Model:
    """Zamba 2: Mamba 2; `num_mem_blocks` transformers taken in turn, with low-rank additions for each turn."""
    s = zamba_sizes(c)
    heads, width = c.size("n_mamba_heads"), c.size("mamba_expand") * s.hidden_size
    head_dim = c.size("mamba_headdim", default=0) or width // heads
    if head_dim * heads != width:
        raise c.error("n_mamba_heads", f"a divisor of Mamba's width = {width}")
    groups, blocks, rank = c.size("mamba_ngroups"), c.size("num_mem_blocks"), c.size("adapter_rank")
    check_groups(c, "mamba_ngroups", groups, "n_mamba_heads", heads)
    bias, rotary = c.flag("add_bias_linear", default=False), c.flag("use_mem_rope", default=False)
    additions = c.flag("use_shared_attention_adapter", default=False)
    if additions and s.heads * s.head_dim != 2 * s.hidden_size:
        raise c.error(
            "attention_head_dim", f"2·`hidden_size` / `num_attention_heads` = {2 * s.hidden_size / s.heads:g}"
        )
    if s.heads % s.kv_heads or (additions and s.kv_heads != s.heads):
        raise c.error(
            "num_key_value_heads", f"`num_attention_heads` = {s.heads}, or a divisor without adapters"
        )
    switches: dict[str, Any] = {
        "states": c.size("mamba_d_state"),
        "groups": groups,
        "kernel": c.size("mamba_d_conv"),
        "chunk": c.size("chunk_size", default=256),
        "bias": bias,
    }

    def pattern(i: int) -> str:
        if s.num_layers != 54:
            raise c.error("layers_block_type", "a list with the kind of each layer")
        return HYBRID if i in ZAMBA2_HYBRIDS else MAMBA

    kinds = layer_kinds(c, s.num_layers, (MAMBA, HYBRID), pattern, keys=("layers_block_type", "layer_types"))
    ids = [i for i, kind in enumerate(kinds) if kind == HYBRID]
    if c.data.get("hybrid_layer_ids") is not None and c.ints("hybrid_layer_ids") != ids:
        raise c.error("hybrid_layer_ids", "the places of `hybrid` in the list of layers")

    def shared(slots: tuple[int, ...]) -> SharedTransformer:
        wide = WideAttention(
            s.hidden_size,
            2 * s.hidden_size,
            s.heads,
            s.kv_heads,
            s.head_dim,
            rotary=rotary,
            rank=rank if additions else 0,
            slots=slots,
        )
        mlp = SharedMLP(s.hidden_size, s.intermediate_size, s.activation, bias=bias, rank=rank, slots=slots)
        return SharedTransformer(wide, mlp, s.hidden_size, 2 * s.hidden_size, RMS)

    def mixer() -> Mamba2:
        return Mamba2(s.hidden_size, heads, head_dim, **switches)

    symbols = {"r": rank, "f2": 2 * s.intermediate_size, **mamba2_symbols(mixer())}
    return hybrids(c, s, kinds, blocks, mixer, shared, name="shared_transformer", symbols=symbols)

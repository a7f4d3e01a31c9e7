"""Inkling 1 and 2 (text), and Inkling 2 with layers that are passed several times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.delta import mlp_kinds
from loadsheet.arch.families.hybrid import layer_kinds
from loadsheet.arch.families.parts import RMS, Sizes, assemble
from loadsheet.arch.layers.base import Layer, Norm, Stem
from loadsheet.arch.layers.inkling import (
    CappedExperts,
    ConvolvedBlock,
    EarlierBlocks,
    Inkling2Attention,
    Inkling2Block,
    InklingAttention,
    InklingMoE,
    ResidualConvolution,
    ScaledGatedMLP,
    SharedExperts,
)
from loadsheet.arch.layers.mlp import ACTIVATIONS, Experts, MoE, Router
from loadsheet.arch.model import Block, Model, Pass
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.errors import BadConfig

FULL, SLIDING = "hybrid", "hybrid_sliding"
Heads = tuple[int, int, int]


def inkling_sizes(c: Config, width: str | None) -> tuple[Sizes, Heads, Heads, int, int]:
    """(sizes, heads of full layers, of windowed ones, window, experts per token); the head is never tied."""
    heads = tuple(c.size(name) for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    others = tuple(
        c.size(name) for name in ("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim")
    )
    for prefix, (h, kv, _) in (("", heads), ("swa_", others)):
        if h % kv:
            raise BadConfig(
                f"{c.where}.{prefix}num_key_value_heads: got {kv}, expected a divisor of"
                f" `{prefix}num_attention_heads` = {h}"
            )
    s = Sizes(
        hidden_size=c.size("hidden_size"),
        num_layers=c.size("num_hidden_layers"),
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=heads[2],
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size(width) if width else 0,
        activation=c.choice("hidden_act", ACTIVATIONS, "silu"),
        tied=False,
        max_length=c.size("max_position_embeddings", "model_max_length", default=0, minimum=0) or None,
    )
    window = c.size("sliding_window_size", "sliding_window")
    experts, k = c.size("n_routed_experts", "num_local_experts"), c.size("num_experts_per_tok")
    if k > experts:
        raise c.error("num_experts_per_tok", f"at most `n_routed_experts` = {experts}")
    return s, (heads[0], heads[1], heads[2]), (others[0], others[1], others[2]), window, k


def every_sixth(i: int) -> str:
    """The class's pattern: every sixth layer looks back without limit."""
    return SLIDING if (i + 1) % 6 else FULL


def inkling(c: Config) -> Model:
    """Inkling (text): short convolutions on keys, values and after both sub-layers; mixtures with shared experts."""
    s, full, sliding, window, k = inkling_sizes(c, None)
    width, dense = c.size("moe_intermediate_size", default=0), c.size("intermediate_size")
    if c.data.get("dense_intermediate_size") is not None:  # older files: the first name is the experts'
        width, dense = dense, c.size("dense_intermediate_size")
    elif not width:
        raise c.error(
            "moe_intermediate_size", "a whole number", "the count of parameters depends on this key"
        )
    s = replace(s, intermediate_size=dense)
    experts, shared = c.size("n_routed_experts", "num_local_experts"), c.size("n_shared_experts")
    kernel, relative = c.size("conv_kernel_size", "sconv_kernel_size"), c.size("d_rel")
    extent = c.size("rel_extent")
    listed = c.data.get("local_layer_ids")
    local = set(c.ints("local_layer_ids"))
    kinds = layer_kinds(
        c,
        s.num_layers,
        (FULL, SLIDING),
        lambda i: every_sixth(i) if listed is None else SLIDING if i in local else FULL,
        keys=("layer_types",),
    )
    sparse = mlp_kinds(c, s.num_layers, c.size("dense_mlp_idx", default=0, minimum=0))

    def block(key: tuple[str, bool]) -> Block:
        windowed = key[0] == SLIDING
        d = s.hidden_size
        mixer = InklingAttention(
            d, *(sliding if windowed else full), window=window if windowed else None,
            relative_width=relative, extent=window if windowed else extent, kernel=kernel,
        )  # fmt: skip
        mlp: Layer = ScaledGatedMLP(d, dense, s.activation)
        if key[1]:
            routed = Experts(d, width, experts, k, s.activation)
            mlp = InklingMoE(
                Router(d, experts + shared), routed, SharedExperts(d, width, shared, s.activation)
            )
        after: list[Any] = [ResidualConvolution(d, kernel) for _ in range(2)]
        return ConvolvedBlock(
            mixer, mlp, norm_1=Norm(d, RMS), norm_2=Norm(d, RMS), post_1=after[0], post_2=after[1],
            norm_names=("input_layernorm", "post_attention_layernorm", "attn_sconv", "mlp_sconv"),
        )  # fmt: skip

    symbols = {
        "f_e": width, "f_s": shared * width, "E": experts + shared, "k": k, "h·r": s.heads * relative,
    }  # fmt: skip
    return assemble(
        c,
        s,
        block,
        list(zip(kinds, sparse, strict=True)),
        norm=RMS,
        extras=(("model.embed_tokens.embed_norm", Norm(s.hidden_size, RMS)),),
        symbols=symbols,
    )


class LastMix(Stem):
    """The mix of the last state with those at all boundaries, before the final norm."""

    def __init__(self, hidden_size: int, states: int) -> None:
        super().__init__()
        self.states = states
        self.mix: EarlierBlocks = self.add("", EarlierBlocks(hidden_size))

    def end(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        return self.mix.forward(x, self.states, tape)[0]


class Messages(Layer):
    """Four learned vectors for each looped layer: what they take from the states of the pass before."""

    def __init__(self, layers: int, hidden_size: int) -> None:
        super().__init__()
        self.own("query", (layers, 4, hidden_size), "other")


def inkling2(c: Config) -> Model:
    """Inkling 2 (text): mixtures only, attention over the states at earlier boundaries, a narrower head.

    `inkling2_loop_text` passes its middle layers several times, each pass with caches of its own.
    """
    s, full, sliding, window, k = inkling_sizes(c, None)
    width = c.size("moe_intermediate_size", "intermediate_size")
    experts, kernel = (
        c.size("n_routed_experts", "num_local_experts"),
        c.size("conv_kernel_size", "sconv_kernel_size"),
    )
    relative, extent = c.size("d_rel"), c.size("rel_extent")
    per_group = c.size("n_layers_per_attn_res_block", default=6)
    kinds = layer_kinds(c, s.num_layers, (FULL, SLIDING), every_sixth, keys=("layer_types",))
    first, last, passes, rank = looped_part(c, per_group)

    def states(i: int) -> int:
        if s.num_layers > 1000 and i < s.num_layers:  # an average, so that there are few distinct blocks
            i = s.num_layers // 2
        groups: int = -(-i // per_group)
        return groups + 1  # the groups that began before this layer, and its own state

    keys = [(kind, i == 0, i % per_group == 0, states(i), first <= i < last) for i, kind in enumerate(kinds)]

    def block(key: tuple[str, bool, bool, int, bool], *, messages: bool = False) -> Block:
        windowed = key[0] == SLIDING
        d = s.hidden_size
        mixer = Inkling2Attention(
            d, *(sliding if windowed else full), window=window if windowed else None,
            relative_width=relative, extent=window if windowed else extent, kernel=kernel, full=not windowed,
        )  # fmt: skip
        mlp = MoE(Router(d, experts), CappedExperts(d, width, experts, k, s.activation))
        return Inkling2Block(
            d, mixer, mlp, kernel=kernel, full=not windowed, first=key[1], boundary=key[2], states=key[3],
            rank=rank if key[4] else 0, message_states=(last - first) // per_group if messages else 0,
        )  # fmt: skip

    d = s.hidden_size
    extras: tuple[tuple[str, Layer], ...] = (
        ("model.embed_tokens.embed_norm", Norm(d, RMS)),
        ("model.final_input", LastMix(d, states(s.num_layers))),
    )
    if rank:
        extras = (*extras, ("model.message_input", Messages(last - first, d)))
    rows = c.size("unpadded_vocab_size")
    symbols = {"f_e": width, "E": experts, "k": k, "h·r": s.heads * relative, "r": rank, "2d": 2 * d}
    model = assemble(c, s, block, keys, norm=RMS, head_rows=rows, extras=extras, symbols=symbols)
    looped = {key: count for key, (_, count) in zip(dict.fromkeys(keys), model.runs, strict=True) if key[4]}
    if passes > 1 and looped:  # later passes of the same layers, with messages: nothing of their own
        once = tuple(Pass(i, count) for i, (_, count) in enumerate(model.runs))
        again = tuple(Pass(len(once) + i, (passes - 1) * n) for i, n in enumerate(looped.values()))
        model.runs += tuple((block(key, messages=True), 0) for key in looped)
        model.passes = (*once, *again)
    return model


def looped_part(c: Config, per_group: int) -> tuple[int, int, int, int]:
    """(first looped layer, first one after, passes, rank of the message gates), all 0 or 1 without a loop."""
    if c.data.get("model_type") != "inkling2_loop_text":
        return 0, 0, 1, 0
    older = c.part("loop_config") if c.data.get("loop_config") is not None else None

    def size(name: str, older_name: str, **more: Any) -> int:
        part, key = (older, older_name) if older and older_name in older.data else (c, name)
        found: int = part.size(key, **more)
        return found

    first = size("loop_layer_index_start", "core_start")
    last = size("loop_layer_index_end", "core_end", minimum=0)
    passes, rank = size("loop_num_passes", "num_passes", maximum=1000), size("loop_gate_rank", "gate_rank")
    for key, value in (("loop_layer_index_start", first), ("loop_layer_index_end", last)):
        if value % per_group:
            raise c.error(key, f"a multiple of `n_layers_per_attn_res_block` = {per_group}")
    if last < first:
        raise c.error("loop_layer_index_end", f"at least `loop_layer_index_start` = {first}")
    return first, last, passes, rank

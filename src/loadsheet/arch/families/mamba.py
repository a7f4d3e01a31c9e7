"""Pure state-space models: Mamba, FalconMamba, Mamba 2. No attention, no MLP, no KV cache."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.blocks import MambaBlock
from loadsheet.arch.config import Config
from loadsheet.arch.families.parts import RMS, Sizes, assemble, read_max_length
from loadsheet.arch.layers.base import Layer, Norm
from loadsheet.arch.layers.mlp import ACTIVATIONS
from loadsheet.arch.layers.ssm import Mamba, Mamba2
from loadsheet.arch.model import Model
from loadsheet.errors import BadConfig
from loadsheet.units import ceil_div


def headless_sizes(c: Config, *, tied: bool, act: str = "hidden_act", **more: Any) -> Sizes:
    """The sizes of a model without attention heads or MLP, unless given in `more`."""
    given: dict[str, Any] = {
        "heads": 0,
        "kv_heads": 0,
        "head_dim": 0,
        "intermediate_size": 0,
        "activation": c.choice(act, ACTIVATIONS, "silu"),
        "max_length": read_max_length(c),
        **more,
    }
    return Sizes(
        hidden_size=c.size("hidden_size"),
        num_layers=c.size("num_hidden_layers"),
        vocab_size=c.size("vocab_size"),
        tied=c.flag("tie_word_embeddings", default=tied),
        **given,
    )


def time_step_rank(c: Config, hidden_size: int, key: str = "time_step_rank") -> int:
    """Mamba's rank of Δ: a number, or "auto" for hidden_size/16, rounded up."""
    if c.data.get(key, "auto") == "auto":
        return int(ceil_div(hidden_size, 16))
    return int(c.size(key))


def backbone(c: Config, s: Sizes, mixer: Layer, symbols: dict[str, int]) -> Model:
    """The same block throughout, perhaps with its residual stream in fp32."""
    wide = c.flag("residual_in_fp32", default=True)
    return assemble(
        c,
        s,
        lambda _: MambaBlock(mixer, Norm(s.hidden_size, RMS), wide=wide),
        [None] * s.num_layers,
        norm=RMS,
        embedding_name="backbone.embeddings",
        prefix="backbone.layers",
        final_norm_name="backbone.norm_f",
        symbols=symbols,
    )


def mamba(c: Config) -> Model:
    """Mamba 1, and FalconMamba, which norms Δ, B and C without weights."""
    s = headless_sizes(c, tied=True)
    falcon = c.data.get("model_type") == "falcon_mamba"
    # the class derives the width from `expand` only where a file does not say it
    width = c.size("intermediate_size", default=0) or c.size("expand") * s.hidden_size
    states, rank = c.size("state_size"), time_step_rank(c, s.hidden_size)
    mixer = Mamba(
        s.hidden_size,
        width,
        states=states,
        kernel=c.size("conv_kernel"),
        rank=rank,
        bias=c.flag("use_bias", default=False),
        conv_bias=c.flag("use_conv_bias", default=True),
        activation=s.activation,
        norms="plain" if falcon else None,
    )
    return backbone(c, s, mixer, {"I": width, "p": 2 * width, "N": states, "R": rank + 2 * states})


def check_groups(c: Config, groups_key: str, groups: int, heads_key: str, heads: int) -> None:
    """BadConfig unless the heads of a Mamba 2 mixer can share its groups equally."""
    if heads % groups:
        raise BadConfig(
            f"{c.where}.{groups_key}: got {groups}, expected a divisor of `{heads_key}` = {heads}"
        )


def mamba2(c: Config) -> Model:
    """Mamba 2 (and Codestral Mamba)."""
    s = headless_sizes(c, tied=False)
    heads, head_dim, groups = c.size("num_heads"), c.size("head_dim"), c.size("n_groups")
    expand = c.size("expand")
    if expand * s.hidden_size != heads * head_dim:
        raise c.error(
            "expand", f"`num_heads`·`head_dim` / `hidden_size` = {heads * head_dim / s.hidden_size:g}"
        )
    check_groups(c, "n_groups", groups, "num_heads", heads)
    states = c.size("state_size")
    mixer = Mamba2(
        s.hidden_size,
        heads,
        head_dim,
        states=states,
        groups=groups,
        kernel=c.size("conv_kernel"),
        chunk=c.size("chunk_size", default=256),
        bias=c.flag("use_bias", default=False),
        conv_bias=c.flag("use_conv_bias", default=True),
        activation=s.activation,
    )
    return backbone(c, s, mixer, mamba2_symbols(mixer))


def mamba2_symbols(mixer: Mamba2) -> dict[str, int]:
    """The letters that the formulas of a Mamba 2 mixer use."""
    return {
        "I": mixer.width,
        "c": mixer.conv_width,
        "p": mixer.in_proj.out_features,
        "N": mixer.states,
        "P": mixer.head_dim,
    }

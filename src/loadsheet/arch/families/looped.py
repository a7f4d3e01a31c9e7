"""Decoders that pass some of their layers more than once: HRM-Text and Dory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.dense import whole_heads
from loadsheet.arch.families.llama import gated_mlp, pre_norm
from loadsheet.arch.families.parts import Reach, Sizes, assemble, reaches, read_sizes
from loadsheet.arch.layers.attention_kinds import GatedAttention
from loadsheet.arch.layers.base import Layer
from loadsheet.arch.layers.mlp_kinds import ScaledMLP
from loadsheet.arch.model import Block, Model, Pass
from loadsheet.arch.residual import UNIT, InterpolatedBlock
from loadsheet.errors import BadConfig


class Start(Layer):
    """The state from which HRM's low module starts: a vector that never trains."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own("z_L_init", (width,), "other")


def hrm_text(c: Config) -> Model:
    """HRM-Text: a low stack passed L times, then a high stack once, and all that H times (arXiv 2506.21734).

    Autograd is off in the first low passes: the last `L_bp_cycles` of each high cycle have gradients.
    """
    data = {k: v for k, v in c.data.items() if k != "num_key_value_heads"}  # the class does not read it
    part = Config(data, c.where)
    part.defaulted = c.defaulted
    s = read_sizes(part, head_dim="required")
    whole_heads(c, s)
    layers: int = c.size("num_layers_per_stack", default=s.num_layers, maximum=10_000)
    s = replace(s, num_layers=2 * layers)
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    high, low = c.size("H_cycles", default=2, maximum=1000), c.size("L_cycles", default=3, maximum=1000)
    graded = _graded_cycles(c, high, low)

    def block(_: str) -> Block:
        mixer = GatedAttention(s.hidden_size, s.heads, s.heads, s.head_dim, bias=bias, gate_bias=bias)
        return pre_norm(s, mixer, gated_mlp(s, bias=mlp_bias), UNIT)

    keys = ["L_module"] * layers + ["H_module"] * layers
    model = assemble(c, s, block, keys, norm=UNIT, extras=(("model", Start(s.hidden_size)),))
    model.layer_names = tuple(f"model.{key}.layers.{i % layers}" for i, key in enumerate(keys))
    without = Pass(0, layers * (high * low - graded), grad=False)
    passes = (Pass(0, layers * graded), Pass(1, layers * high))
    model.passes = (without, *passes) if without.times else passes
    return model


def _graded_cycles(c: Config, high: int, low: int) -> int:
    """Low passes with gradients: the list holds the last high cycles; those before it have one each."""
    listed = c.ints("L_bp_cycles") if c.data.get("L_bp_cycles") is not None else [2]
    if len(listed) > 1000:
        raise c.error("L_bp_cycles", "a list of at most 1,000 whole numbers")
    padded = [1] * max(0, high - len(listed)) + listed
    return sum(min(max(padded[i] if i < len(padded) else 1, 0), low) for i in range(high))


def dory(c: Config) -> Model:
    """Dory: layers on the unit sphere (nGPT), windows in three of four, the middle ones passed several times."""
    c = _halved(c)
    s = read_sizes(c, head_dim="required", kv_heads="required")
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    window = c.size("sliding_window", default=1024)
    usual = ("sliding_attention", "sliding_attention", "sliding_attention", "full_attention")
    kinds = reaches(c, s.num_layers, lambda i: usual[i % 4], window)
    first, last, loops = _middle(c, s)

    def block(key: tuple[Reach, bool]) -> Block:
        d = s.hidden_size
        mixer = GatedAttention(
            d, s.heads, s.kv_heads, s.head_dim, bias=bias, scaled=True, qk_norm="head", norm_style=UNIT,
            window=key[0][0],
        )  # fmt: skip
        return InterpolatedBlock(d, mixer, ScaledMLP(d, s.intermediate_size, s.activation, bias=mlp_bias))

    keys = [(kind, first <= i < last) for i, kind in enumerate(kinds)]
    model = assemble(c, s, block, keys, norm=UNIT)
    model.head.own("logit_scale", (s.vocab_size,), "head")
    model.head.numel += s.vocab_size
    shared = c.text("recurrent_kv_cache_mode", default="per_loop") == "last_loop"
    looped = [key[1] for key in dict.fromkeys(keys)]
    model.passes = tuple(
        Pass(i, count * (loops if again else 1), cached=count if shared else None)
        for i, ((_, count), again) in enumerate(zip(model.runs, looped, strict=True))
    )
    return model


#: what a saved file of Dory counts twice: attention and MLP stand in it as layers of their own
_DOUBLED = ("num_hidden_layers", "n_input_layers", "n_recurrent_layers", "n_output_layers")


def _halved(c: Config) -> Config:
    """A config that lists `mlp` as layers, read as its class does: pairs of attention and MLP are one layer."""
    kinds = c.data.get("layer_types")
    if not isinstance(kinds, (list, tuple)) or "mlp" not in kinds:
        return c
    changed: dict[str, Any] = {key: c.size(key) // 2 for key in _DOUBLED if c.data.get(key) is not None}
    made = Config(
        {"n_input_layers": 4, "n_output_layers": 4, **c.data, **changed, "layer_types": kinds[::2]}, c.where
    )
    made.defaulted = c.defaulted
    return made


def _middle(c: Config, s: Sizes) -> tuple[int, int, int]:
    """(first layer that is looped, the layer after the last, how often)."""
    first = c.size("n_input_layers", default=8, minimum=0)
    after = c.size("n_output_layers", default=8, minimum=0)
    between = c.size("n_recurrent_layers", default=s.num_layers - first - after, minimum=0)
    if first + between + after != s.num_layers or between < 0:
        raise BadConfig(
            f"{c.where}.n_recurrent_layers: got {first} + {between} + {after} layers before, in and after the "
            f"loop, expected `num_hidden_layers` = {s.num_layers} together"
        )
    return first, first + between, c.size("n_recurrent_loops", default=2, maximum=1000)

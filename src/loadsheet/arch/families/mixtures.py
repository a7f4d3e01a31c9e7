"""What the families with mixtures share: sizes, patterns of dense layers, the mixture of one layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from loadsheet.arch.config import LIMITS, Config
from loadsheet.arch.families.llama import pre_norm
from loadsheet.arch.families.parts import RMS, Sizes, assemble, read_max_length
from loadsheet.arch.layers.base import Layer, Norm, NormStyle
from loadsheet.arch.layers.mlp import ACTIVATIONS, Experts, GatedMLP, MoE, Router
from loadsheet.arch.model import Block, Model
from loadsheet.errors import BadConfig, shorten

#: names of the norms of a block that has one before and one after each sub-layer
AFTER_GLM = ("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")
AFTER_AFMOE = ("input_layernorm", "pre_mlp_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
AFTER_GEMMA = (
    "input_layernorm",
    "pre_feedforward_layernorm",
    "post_attention_layernorm",
    "post_feedforward_layernorm",
)

#: what each class does about a head_dim: its own field without default of use to others ("own"), or
#: hidden_size // num_attention_heads, rounded down, unless the config says otherwise ("floor")
HeadDim = Literal["own", "floor"]


def sizes(
    c: Config,
    *,
    head_dim: HeadDim = "floor",
    kv_heads: Literal["own", "null", "heads"] = "own",
    dense: bool = True,
    tied: bool = False,
) -> Sizes:
    """The sizes of these families, read and checked.

    `kv_heads`: must be there ("own"; "null": a null means as many as query heads), or may be missing
    ("heads"). `dense`: some layer has an MLP of `intermediate_size`.
    """
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    dim = c.size("head_dim") if head_dim == "own" else c.size("head_dim", default=hidden // heads)
    if not dim:
        raise c.error("num_attention_heads", f"at most `hidden_size` = {hidden}")
    if kv_heads == "own":
        groups = c.size("num_key_value_heads")
    elif kv_heads == "null":
        groups = c.size_or_null("num_key_value_heads") or heads
    else:
        groups = c.size("num_key_value_heads", default=heads)
    if heads % groups:
        raise c.error("num_key_value_heads", f"a divisor of `num_attention_heads` = {heads}")
    return Sizes(
        hidden_size=hidden,
        num_layers=c.size("num_hidden_layers"),
        heads=heads,
        kv_heads=groups,
        head_dim=dim,
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size("intermediate_size") if dense else 0,
        activation=c.choice("hidden_act", ACTIVATIONS, "silu"),
        tied=c.flag("tie_word_embeddings", default=tied),
        max_length=read_max_length(c),
    )


@dataclass(frozen=True, slots=True)
class Mixture:
    """The sizes of the mixtures of one model: width of an expert, how many, how many per token, shared width."""

    width: int
    experts: int
    per_token: int
    shared: int = 0

    @property
    def symbols(self) -> dict[str, int]:
        """Letters of formulas."""
        return {"f_e": self.width, "E": self.experts, "k": self.per_token, "f_s": self.shared}

    def layer(
        self,
        s: Sizes,
        *,
        kind: Callable[..., MoE] = MoE,
        router: Router | None = None,
        router_name: str = "gate",
        shared_name: str = "shared_experts",
        mlp_bias: bool = False,
        fused: str | None = None,
        layout: Literal["out_in", "in_out"] = "out_in",
        wide: bool = False,
    ) -> MoE:
        """The mixture of one layer; a shared expert if it has a width."""
        shared = None
        if self.shared:
            shared = GatedMLP(
                s.hidden_size, self.shared, s.activation, bias=mlp_bias, symbol="f_s", fused=fused
            )
        return kind(
            router or Router(s.hidden_size, self.experts),
            Experts(
                s.hidden_size,
                self.width,
                self.experts,
                self.per_token,
                s.activation,
                layout=layout,
                wide=wide,
            ),
            router_name=router_name,
            shared=shared,
            shared_name=shared_name,
        )


def counts(c: Config, *keys: str, per_token: tuple[str, ...] = ("num_experts_per_tok",)) -> tuple[int, int]:
    """(experts, experts per token) under one of the names that the class knows, checked against each other."""
    experts = c.size(*keys, maximum=LIMITS["num_experts"])
    chosen = c.size(*per_token)
    if chosen > experts:
        raise c.error(per_token[0], f"at most `{keys[0]}` = {experts}")
    return experts, chosen


def listed_sparse(
    c: Config, count: int, default: Callable[[int], bool], *, longer: bool = False
) -> list[bool]:
    """Which layers are mixtures, from `mlp_layer_types`, else by the class's default.

    `longer`: the class reads the first entries of a longer list without complaint.
    """
    listed = c.data.get("mlp_layer_types")
    if longer and isinstance(listed, (list, tuple)) and len(listed) > count:
        c = Config({**c.data, "mlp_layer_types": list(listed)[:count]}, c.where)
    kinds = c.pattern("mlp_layer_types", count)
    if kinds is None:
        return [default(i) for i in range(count)]
    for kind in kinds:
        if not isinstance(kind, str) or kind not in ("dense", "sparse"):
            raise BadConfig(
                f"{c.where}.mlp_layer_types: got {shorten(kind)}, expected one of `dense`, `sparse`"
            )
    return [kind == "sparse" for kind in kinds]


def dense_first(
    c: Config, count: int, key: str = "first_k_dense_replace", *, listed: bool = False
) -> list[bool]:
    """Which layers are mixtures: those after the leading dense ones; `listed`: `mlp_layer_types` goes before."""
    if listed and c.data.get("mlp_layer_types") is not None:
        return listed_sparse(c, count, lambda _: True)
    first = c.size(key, minimum=0)
    return [i >= first for i in range(count)]


def decoder(
    c: Config,
    s: Sizes,
    keys: list[Any],
    mixer_of: Callable[[Any], Layer],
    mlp_of: Callable[[Any], Layer],
    *,
    after: tuple[str, str, str, str] | None = None,
    norm: NormStyle = RMS,
    symbols: dict[str, int] | None = None,
    **more: Any,
) -> Model:
    """Pre-norm blocks of what the two functions give for each key; `after`: norms after the sub-layers too."""

    def block(key: Any) -> Block:
        d = s.hidden_size
        if after is None:
            return pre_norm(s, mixer_of(key), mlp_of(key), norm)
        one, two, three, four = (Norm(d, norm) for _ in range(4))
        return Block(
            mixer_of(key), mlp_of(key), norm_1=one, norm_2=two, post_1=three, post_2=four, norm_names=after
        )

    return assemble(c, s, block, keys, norm=norm, symbols=symbols, **more)

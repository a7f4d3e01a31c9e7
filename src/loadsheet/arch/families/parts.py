"""What most decoders share: the sizes in their config, the pattern of their layers, the assembly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from loadsheet.arch.config import Config
from loadsheet.arch.layers.base import Embedding, InputDropout, Layer, Linear, Norm, NormStyle
from loadsheet.arch.layers.mlp import ACTIVATIONS
from loadsheet.arch.model import Block, Model
from loadsheet.errors import BadConfig, shorten

RMS = NormStyle("rms")
LAYER_NORM = NormStyle("layer", bias=True)
GEMMA_RMS = WIDE_RMS = NormStyle("rms", plus_one=True)

#: (window, chunk) of one layer, in tokens; None looks back without limit
Reach = tuple[int | None, int | None]
FULL: Reach = (None, None)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that nearly every config.json names."""

    hidden_size: int
    num_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    intermediate_size: int
    activation: str
    tied: bool
    max_length: int | None


#: what a missing key means: hidden_size/num_attention_heads (or as many KV heads as query heads), or an
#: error, because the published class would put in the size of one model ("error": null still divides;
#: "required": null is an error too); a head_dim may also be ignored
Missing = Literal["divide", "error", "required", "ignore"]


def read_sizes(
    c: Config,
    *,
    tied: bool = False,
    head_dim: Missing = "divide",
    kv_heads: Missing = "divide",
    activation_key: str = "hidden_act",
    activation: str = "silu",
) -> Sizes:
    """Read and check them; the arguments say what the published class does where a key is missing."""
    hidden = c.size("hidden_size")
    heads = c.size("num_attention_heads")
    dim = 0
    if head_dim == "required":
        dim = c.size("head_dim")
    elif head_dim == "error":
        dim = c.size_or_null("head_dim") or 0
    elif head_dim == "divide":
        dim = c.size("head_dim", default=0)
    if not dim:
        c.divides("num_attention_heads", heads, "hidden_size", hidden)
        dim = hidden // heads
    if kv_heads == "required":
        groups = c.size("num_key_value_heads")
    elif kv_heads == "error":
        groups = c.size_or_null("num_key_value_heads") or heads
    else:
        groups = c.size("num_key_value_heads", default=heads)
    if heads % groups:
        raise BadConfig(
            f"{c.where}.num_key_value_heads: got {groups}, expected a divisor of `num_attention_heads` = {heads}"
        )
    return Sizes(
        hidden_size=hidden,
        num_layers=c.size("num_hidden_layers"),
        heads=heads,
        kv_heads=groups,
        head_dim=dim,
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size("intermediate_size"),
        activation=c.choice(activation_key, ACTIVATIONS, activation),
        tied=c.flag("tie_word_embeddings", default=tied),
        max_length=read_max_length(c),
    )


def switch(c: Config, key: str, *, default: bool) -> bool:
    """A flag that may be null, which its class takes for false; the default is for a missing key only."""
    return c.flag(key, default=default) if c.data.get(key) is not None or key not in c.data else False


def square_heads(c: Config, s: Sizes) -> None:
    """BadConfig unless the heads together are as wide as the model, where the class takes that for granted."""
    if s.heads * s.head_dim != s.hidden_size:
        raise c.error("head_dim", f"`hidden_size` / `num_attention_heads` = {s.hidden_size / s.heads:g}")


def read_max_length(c: Config) -> int | None:
    """The longest sequence that the config allows, or None if it does not say."""
    names = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
    key = next((name for name in names if c.data.get(name) is not None), names[0])
    return c.size(key, default=0, minimum=0) or None


def reaches(
    c: Config,
    count: int,
    default: Callable[[int], str],
    limit: int | None,
    kind: Literal["sliding_attention", "chunked_attention"] = "sliding_attention",
) -> list[Reach]:
    """How far each layer looks back, from `layer_types` or else from the family's default pattern.

    `kind` is the family's name for layers that see at most `limit` tokens.
    """
    table: dict[str, Reach] = {
        "full_attention": FULL,
        "attention": FULL,  # its name in older files
        kind: (limit, None) if kind == "sliding_attention" else (None, limit),
    }
    kinds = c.pattern("layer_types", count) or [default(i) for i in range(count)]
    for found in kinds:
        if not isinstance(found, str) or found not in table:
            raise BadConfig(
                f"{c.where}.layer_types: got {shorten(found)}, expected one of "
                + ", ".join(f"`{k}`" for k in table)
            )
    return [table[found] for found in kinds]


def optional_window(c: Config, default: int = 0, key: str = "sliding_window") -> int | None:
    """A window in tokens, or None where it is null or 0; a missing key takes the class's default."""
    return c.size_or_null(key, default=default, minimum=0) or None


def input_dropout(c: Config, key: str, default: float = 0.0) -> tuple[tuple[str, Layer], ...]:
    """The dropout of the embedding, if there is any."""
    return (("", InputDropout()),) if c.number(key, default=default, maximum=1) > 0 else ()


def assemble(
    c: Config,
    s: Sizes,
    block_of: Callable[[Any], Block],
    keys: list[Any],
    *,
    norm: NormStyle | None,
    embedding_name: str = "model.embed_tokens",
    prefix: str = "model.layers",
    final_norm_name: str = "model.norm",
    head_name: str = "lm_head",
    head_bias: bool = False,
    embedding_width: int | None = None,
    embedding_rows: int | None = None,
    head_rows: int | None = None,
    extras: tuple[tuple[str, Layer], ...] = (),
    logit_softcap: bool = False,
    symbols: dict[str, int] | None = None,
) -> Model:
    """Build one block for each distinct key in `keys` (one key per layer) and put the model together."""
    distinct = list(dict.fromkeys(keys))
    blocks = [block_of(key) for key in distinct]
    place, times = {key: i for i, key in enumerate(distinct)}, Counter(keys)
    order = tuple(place[key] for key in keys) if len(distinct) > 1 else None
    width = embedding_width or s.hidden_size
    letters = {
        "V": s.vocab_size, "d": s.hidden_size, "L": s.num_layers, "h": s.heads, "h_kv": s.kv_heads,
        "d_h": s.head_dim, "q": s.heads * s.head_dim, "kv": s.kv_heads * s.head_dim, "f": s.intermediate_size,
        **(symbols or {}),
    }  # fmt: skip
    return Model(
        name=c.text("_name", default="") or c.text("model_type", default="?"),
        model_type=c.text("model_type", default="?"),
        hidden_size=s.hidden_size,
        vocab_size=s.vocab_size,
        max_length=s.max_length,
        embedding=Embedding(embedding_rows or s.vocab_size, width),
        embedding_name=embedding_name,
        runs=tuple((block, times[key]) for block, key in zip(blocks, distinct, strict=True)),
        final_norm=Norm(s.hidden_size, norm) if norm is not None else None,
        final_norm_name=final_norm_name,
        head=Linear(
            width,
            head_rows or s.vocab_size,
            bias=head_bias,
            role="head",
            symbol="V",
            tp="vocab",
            quantisable=False,
        ),
        head_name=head_name,
        tied=s.tied,
        prefix=prefix,
        extras=extras,
        logit_softcap=logit_softcap,
        symbols=letters,
        order=order,
        defaulted=tuple(k for k in c.defaulted if not k.startswith("_")),
    )

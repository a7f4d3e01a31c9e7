"""More decoders of GPT's kind: LayerNorm and a plain MLP, positions learned or by sines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.parts import FULL, LAYER_NORM, Reach, Sizes, assemble, read_max_length
from loadsheet.arch.layers.attention import Attention, AttentionNames
from loadsheet.arch.layers.base import Embedding, Layer, Norm
from loadsheet.arch.layers.mlp import ACTIVATIONS, MLP
from loadsheet.arch.model import Block, Model
from loadsheet.arch.residual import PostNormBlock
from loadsheet.errors import BadConfig, UnsupportedArchitecture, shorten

Names = tuple[str, ...]
#: names of width, depth and heads in GPT-2's config.json and in those that follow it
GPT2_NAMES: tuple[Names, Names, Names] = (
    ("n_embd", "hidden_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
)
PLAIN_NAMES: tuple[Names, Names, Names] = (
    ("hidden_size",),
    ("num_hidden_layers",),
    ("num_attention_heads",),
)


def gpt_sizes(
    c: Config,
    names: tuple[Names, Names, Names] = GPT2_NAMES,
    *,
    inner: str | int = "n_inner",
    named: bool = False,
    act: tuple[str, str] = ("activation_function", "gelu_new"),
    tied: bool = True,
    positions: Names = (),
) -> Sizes:
    """The sizes of a GPT whose heads together are as wide as the model.

    `inner`: the key of the MLP's width, which is 4·d where that key is missing unless it must be `named`;
    or the factor itself.
    `act`: key and default of the activation, or ("", the only one). `positions`: keys of the number of
    learned positions, which must be there; otherwise the longest sequence is read if the file names it.
    """
    width, depth, head = names
    d = c.size(*width, maximum=1 << 20)
    heads = c.size(*head, maximum=1 << 16)
    c.divides(head[0], heads, width[0], d)
    if isinstance(inner, int):
        width_of_mlp = inner * d
    elif named:
        width_of_mlp = c.size(inner)
    else:
        width_of_mlp = c.size(inner, default=4 * d)
    return Sizes(
        hidden_size=d,
        num_layers=c.size(*depth, maximum=10_000),
        heads=heads,
        kv_heads=heads,
        head_dim=d // heads,
        vocab_size=c.size("vocab_size"),
        intermediate_size=width_of_mlp,
        activation=c.choice(act[0], ACTIVATIONS, act[1]) if act[0] else act[1],
        tied=c.flag("tie_word_embeddings", default=tied),
        max_length=c.size(*positions) if positions else read_max_length(c),
    )


def square_attention(s: Sizes, **switches: Any) -> Attention:
    """Attention with these sizes."""
    return Attention(s.hidden_size, s.heads, s.kv_heads, s.head_dim, **switches)


def no_cross_attention(c: Config) -> None:
    """UnsupportedArchitecture where the config asks for attention to an encoder."""
    if c.flag("add_cross_attention", default=False):
        kind = c.text("model_type", default="?")
        raise UnsupportedArchitecture(
            f"{c.where}.add_cross_attention: got true, expected false: "
            f"cross-attention is not supported for `{kind}`"
        )


def probability(c: Config, key: str, default: float) -> float:
    """A dropout rate."""
    return c.number(key, default=default, maximum=1)


def learned(s: Sizes, name: str, extra: int = 0) -> dict[str, Any]:
    """What `assemble` must know of learned positions."""
    rows = (s.max_length or 0) + extra
    return {"extras": ((name, Embedding(rows, s.hidden_size)),), "symbols": {"P": rows}}


def model(c: Config, s: Sizes, block: Callable[[Any], Block], root: str, names: Names, **more: Any) -> Model:
    """Put it together; `names` are those of the embedding, the list of blocks and the final norm."""
    embedding, blocks, norm = names
    more = {"norm": LAYER_NORM, "keys": [FULL] * s.num_layers, **more}
    return assemble(
        c, s, block,
        embedding_name=f"{root}.{embedding}", prefix=f"{root}.{blocks}", final_norm_name=f"{root}.{norm}", **more,
    )  # fmt: skip


def biogpt(c: Config) -> Model:
    """BioGPT: fairseq's decoder with learned positions, two more than the maximum length."""
    positions = ("max_position_embeddings",)
    s = gpt_sizes(
        c, PLAIN_NAMES, inner="intermediate_size", named=True, act=("hidden_act", "gelu"), positions=positions
    )
    rates = probability(c, "attention_probs_dropout_prob", 0.1), probability(c, "hidden_dropout_prob", 0.1)
    more = learned(s, "biogpt.embed_positions", 2)
    return _fairseq(c, s, "biogpt", rates, head_name="output_projection", **more)


def xglm(c: Config) -> Model:
    """XGLM: fairseq's decoder with sines for positions."""
    no_cross_attention(c)
    names = (
        ("d_model", "hidden_size"),
        ("num_layers", "num_hidden_layers"),
        ("attention_heads", "num_attention_heads"),
    )
    s = gpt_sizes(c, names, inner="ffn_dim", named=True, act=("activation_function", "gelu"))
    rates = probability(c, "attention_dropout", 0.1), probability(c, "dropout", 0.1)
    return _fairseq(c, s, "model", rates)


def _fairseq(c: Config, s: Sizes, root: str, rates: tuple[float, float], **more: Any) -> Model:
    def block(_: Any) -> Block:
        d = s.hidden_size
        mixer = square_attention(
            s,
            bias=True,
            rotary=False,
            names=AttentionNames(o="out_proj"),
            dropout=rates[0],
            upcast_softmax=False,
        )
        return Block(
            mixer, MLP(d, s.intermediate_size, s.activation, bias=True, names=("fc1", "fc2")),
            norm_1=Norm(d, LAYER_NORM), norm_2=Norm(d, LAYER_NORM), dropout=rates[1],
            names=("self_attn", ""), norm_names=("self_attn_layer_norm", "final_layer_norm", "", ""),
        )  # fmt: skip

    return model(c, s, block, root, ("embed_tokens", "layers", "layer_norm"), **more)


def gpt_bigcode(c: Config) -> Model:
    """StarCoder 1 and SantaCoder: GPT-2 with one key/value head for all query heads."""
    no_cross_attention(c)
    s = gpt_sizes(
        c, act=("activation_function", "gelu_pytorch_tanh"), positions=("n_positions", "max_position_embeddings")
    )  # fmt: skip
    kv_heads = 1 if c.flag("multi_query", default=True) else s.heads

    def block(_: Any) -> Block:
        d = s.hidden_size
        mixer = Attention(
            d, s.heads, kv_heads, s.head_dim, bias=True, fused_qkv=True, rotary=False,
            names=AttentionNames(qkv="c_attn", o="c_proj"), dropout=probability(c, "attn_pdrop", 0.1),
        )  # fmt: skip
        mlp = MLP(d, s.intermediate_size, s.activation, bias=True, names=("c_fc", "c_proj"))
        return _gpt2_block(c, s, mixer, mlp)

    more = learned(s, "transformer.wpe")
    more["symbols"] = {**more["symbols"], "h_kv": kv_heads, "kv": kv_heads * s.head_dim}
    return model(c, s, block, "transformer", ("wte", "h", "ln_f"), **more)


def _gpt2_block(c: Config, s: Sizes, mixer: Layer, mlp: Layer, dropout: float | None = None) -> Block:
    d = s.hidden_size
    rate = probability(c, "resid_pdrop", 0.1) if dropout is None else dropout
    return Block(
        mixer, mlp, norm_1=Norm(d, LAYER_NORM), norm_2=Norm(d, LAYER_NORM), dropout=rate,
        names=("attn", "mlp"), norm_names=("ln_1", "ln_2", "", ""),
    )  # fmt: skip


class Nested(Layer):
    """A layer that stands one name deeper in the checkpoint (`attn.attention`, `self_att.self_attention`)."""

    def __init__(self, name: str, inner: Any, norm: tuple[str, Norm] | None = None) -> None:
        super().__init__()
        self.norm = self.add(*norm) if norm else None
        self.inner = self.add(name, inner)
        self.window = getattr(inner, "window", None)

    def forward(self, x: Any, tape: Any) -> Any:
        """The inner layer's, after the norm if there is one."""
        return self.inner.forward(x if self.norm is None else self.norm.forward(x, tape), tape)

    def cache(self, work: Any) -> Any:
        """The inner layer's."""
        return self.inner.cache(work)


def gpt_neo(c: Config) -> Model:
    """GPT-Neo: GPT-2 without biases on q, k, v, its layers global or with a window."""
    names = (("hidden_size",), ("num_layers", "num_hidden_layers"), ("num_heads", "num_attention_heads"))
    s = gpt_sizes(c, names, inner="intermediate_size", positions=("max_position_embeddings",))
    window = c.size("window_size", default=256)
    table: dict[str, Reach] = {"global": FULL, "local": (window, None)}
    kinds = _attention_layers(c)
    if len(kinds) != s.num_layers:
        raise BadConfig(
            f"{c.where}.attention_types: got {len(kinds)} layers, expected `num_layers` = {s.num_layers}"
        )
    for kind in kinds:
        if not isinstance(kind, str) or kind not in table:
            raise BadConfig(f"{c.where}.attention_types: got {shorten(kind)}, expected `global` or `local`")

    def block(reach: Reach) -> Block:
        mixer = square_attention(
            s, out_bias=True, rotary=False, window=reach[0], names=AttentionNames(o="out_proj"),
            dropout=probability(c, "attention_dropout", 0.0),
        )  # fmt: skip
        mlp = MLP(s.hidden_size, s.intermediate_size, s.activation, bias=True, names=("c_fc", "c_proj"))
        dropout = probability(c, "resid_dropout", 0.0)
        return _gpt2_block(c, s, Nested("attention", mixer), mlp, dropout)

    keys = [table[kind] for kind in kinds]
    more = learned(s, "transformer.wpe")
    return model(c, s, block, "transformer", ("wte", "h", "ln_f"), keys=keys, **more)


def _attention_layers(c: Config) -> list[Any]:
    """One kind per layer: listed, or [[kinds, how often], ...]; the class's default is 12 pairs."""
    if c.data.get("attention_layers") is not None:
        listed = c.data["attention_layers"]
        if not isinstance(listed, (list, tuple)):
            raise c.error("attention_layers", "a list with one kind per layer")
        return list(listed)
    groups = c.data.get("attention_types")
    if groups is None:
        return ["global", "local"] * 12
    expected = "a list of [kinds, how often]"
    if not isinstance(groups, (list, tuple)):
        raise c.error("attention_types", expected)
    made: list[Any] = []
    for group in groups:
        if not isinstance(group, (list, tuple)) or len(group) != 2 or not isinstance(group[0], (list, tuple)):
            raise c.error("attention_types", expected)
        times = group[1]
        if isinstance(times, bool) or not isinstance(times, int) or not 0 <= times <= 10_000:
            raise c.error("attention_types", expected)
        if len(group[0]) * times > 10_000:
            raise c.error("attention_types", "at most 10,000 layers")
        made.extend(list(group[0]) * times)
    return made


def openai_gpt(c: Config) -> Model:
    """The first GPT: norms after the residual additions, none at the end."""
    s = gpt_sizes(
        c, inner=4, act=("afn", "gelu"), positions=("n_positions", "max_position_embeddings")
    )  # fmt: skip

    def block(_: Any) -> Block:
        d = s.hidden_size
        mixer = square_attention(
            s, bias=True, fused_qkv=True, rotary=False, transposed=True, upcast_softmax=False,
            names=AttentionNames(qkv="c_attn", o="c_proj"), dropout=probability(c, "attn_pdrop", 0.1),
        )  # fmt: skip
        mlp = MLP(d, s.intermediate_size, s.activation, bias=True, names=("c_fc", "c_proj"), transposed=True)
        return PostNormBlock(
            mixer, mlp, post_1=Norm(d, LAYER_NORM), post_2=Norm(d, LAYER_NORM),
            dropout=probability(c, "resid_pdrop", 0.1), names=("attn", "mlp"), norm_names=("", "", "ln_1", "ln_2"),
        )  # fmt: skip

    more = learned(s, "transformer.positions_embed")
    return model(c, s, block, "transformer", ("tokens_embed", "h", ""), norm=None, **more)


def ctrl(c: Config) -> Model:
    """CTRL: sines for positions, a bias in the tied head."""
    s = gpt_sizes(c, inner="dff", named=True, act=("", "relu"))

    def block(_: Any) -> Block:
        d = s.hidden_size
        mixer = square_attention(
            s,
            bias=True,
            rotary=False,
            names=AttentionNames(q="Wq", k="Wk", v="Wv", o="dense"),
            upcast_softmax=False,
        )
        return Block(
            mixer, MLP(d, s.intermediate_size, s.activation, bias=True, names=("0", "2")),
            norm_1=Norm(d, LAYER_NORM), norm_2=Norm(d, LAYER_NORM), dropout=probability(c, "resid_pdrop", 0.1),
            names=("multi_head_attention", "ffn"), norm_names=("layernorm1", "layernorm2", "", ""),
        )  # fmt: skip

    names = ("w", "h", "layernorm")
    return model(c, s, block, "transformer", names, head_bias=True)

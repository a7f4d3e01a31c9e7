"""Decoders of GPT's kind: LayerNorm, plain MLP, biases, learned positions (GPT-2, OPT) or rotary (NeoX)."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.parts import FULL, LAYER_NORM, Sizes, assemble, input_dropout, read_max_length
from loadsheet.arch.layers.attention import Attention, AttentionNames
from loadsheet.arch.layers.base import Embedding, Layer, Linear, Norm, NormStyle, Stem
from loadsheet.arch.layers.mlp import ACTIVATIONS, MLP
from loadsheet.arch.model import Block, Model
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.errors import UnsupportedArchitecture


def _heads(c: Config, hidden: int, *keys: str, hidden_key: str = "hidden_size") -> int:
    heads: int = c.size(*keys)
    c.divides(keys[0], heads, hidden_key, hidden)
    return heads


def gpt2(c: Config) -> Model:
    """GPT-2 (and GPT-3 by its sizes): learned positions, q, k, v in one transposed matrix, tied head."""
    if c.flag("add_cross_attention", default=False):
        raise UnsupportedArchitecture(
            f"{c.where}.add_cross_attention: cross-attention is not supported for `gpt2`"
        )
    d = c.size("n_embd", "hidden_size")
    heads = _heads(c, d, "n_head", "num_attention_heads", hidden_key="n_embd")
    s = Sizes(
        hidden_size=d,
        num_layers=c.size("n_layer", "num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=d // heads,
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size("n_inner", default=4 * d),
        activation=c.choice("activation_function", ACTIVATIONS, "gelu_new"),
        tied=c.flag("tie_word_embeddings", default=True),
        max_length=c.size("n_positions", "max_position_embeddings"),
    )
    dropout = c.number("resid_pdrop", default=0.1, maximum=1)
    attention_dropout = c.number("attn_pdrop", default=0.1, maximum=1)

    def block(_: Any) -> Block:
        mixer = Attention(
            d,
            heads,
            heads,
            d // heads,
            bias=True,
            fused_qkv=True,
            rotary=False,
            transposed=True,
            dropout=attention_dropout,
            upcast_softmax=False,
            names=AttentionNames(qkv="c_attn", o="c_proj"),
        )
        mlp = MLP(d, s.intermediate_size, s.activation, bias=True, names=("c_fc", "c_proj"), transposed=True)
        return Block(
            mixer,
            mlp,
            norm_1=Norm(d, LAYER_NORM),
            norm_2=Norm(d, LAYER_NORM),
            dropout=dropout,
            names=("attn", "mlp"),
            norm_names=("ln_1", "ln_2", "", ""),
        )

    model = assemble(
        c,
        s,
        block,
        [FULL] * s.num_layers,
        norm=LAYER_NORM,
        embedding_name="transformer.wte",
        prefix="transformer.h",
        final_norm_name="transformer.ln_f",
        extras=(("transformer.wpe", Embedding(s.max_length or 0, d)), *input_dropout(c, "embd_pdrop", 0.1)),
        symbols={"P": s.max_length or 0},
    )
    model.checkpoint_keeps_mask = True
    return model


def gpt_neox(c: Config) -> Model:
    """GPT-NeoX and Pythia: rotary, attention and MLP side by side, two norms of the same stream."""
    d = c.size("hidden_size")
    heads = _heads(c, d, "num_attention_heads")
    s = Sizes(
        hidden_size=d,
        num_layers=c.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=d // heads,
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size("intermediate_size"),
        activation=c.choice("hidden_act", ACTIVATIONS, "gelu"),
        tied=c.flag("tie_word_embeddings", default=False),
        max_length=read_max_length(c),
    )
    bias = c.flag("attention_bias", default=True)
    parallel = c.flag("use_parallel_residual", default=True)
    dropout = c.number("hidden_dropout", default=0.0, maximum=1)

    def block(_: Any) -> Block:
        mixer = Attention(
            d,
            heads,
            heads,
            d // heads,
            bias=bias,
            fused_qkv=True,
            joined_heads=True,
            names=AttentionNames(qkv="query_key_value", o="dense"),
        )
        mlp = MLP(d, s.intermediate_size, s.activation, bias=True, names=("dense_h_to_4h", "dense_4h_to_h"))
        return Block(
            mixer,
            mlp,
            norm_1=Norm(d, LAYER_NORM),
            norm_2=Norm(d, LAYER_NORM),
            parallel=parallel,
            dropout=dropout,
            names=("attention", "mlp"),
        )

    return assemble(
        c,
        s,
        block,
        [FULL] * s.num_layers,
        norm=LAYER_NORM,
        embedding_name="gpt_neox.embed_in",
        prefix="gpt_neox.layers",
        final_norm_name="gpt_neox.final_layer_norm",
        extras=input_dropout(c, "hidden_dropout"),
    )


class Projection(Stem):
    """OPT-350m's matrices between the width of its embedding and that of its blocks: one in, one out."""

    def __init__(self, width_in: int, width_out: int, *, last: bool) -> None:
        super().__init__()
        self.linear: Linear = self.add("", Linear(width_in, width_out, role="embedding", quantisable=False))
        self.last = last

    def begin(self, x: Tensor, ids: Tensor, tape: Ops) -> Tensor:
        """(B·T, embedding width) → (B·T, d), before the positions are added."""
        return x if self.last else self.linear.forward(x, tape)

    def end(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, embedding width)."""
        return self.linear.forward(x, tape) if self.last else x


def opt(c: Config) -> Model:
    """OPT: learned positions (two more than the maximum length), LayerNorm, ReLU, tied head."""
    d = c.size("hidden_size")
    heads = _heads(c, d, "num_attention_heads")
    s = Sizes(
        hidden_size=d,
        num_layers=c.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=d // heads,
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size("ffn_dim"),
        activation=c.choice("activation_function", ACTIVATIONS, "relu"),
        tied=c.flag("tie_word_embeddings", default=True),
        max_length=c.size("max_position_embeddings"),
    )
    bias = c.flag("enable_bias", default=True)
    affine = c.flag("layer_norm_elementwise_affine", default=True)
    before = c.flag("do_layer_norm_before", default=True)
    final = before and not c.flag("_remove_final_layer_norm", default=False)
    norm = NormStyle("layer", weight=affine, bias=affine)
    width = c.size("word_embed_proj_dim", default=d)
    dropout = c.number("dropout", default=0.1, maximum=1)
    attention_dropout = c.number("attention_dropout", default=0.0, maximum=1)

    def block(_: Any) -> Block:
        mixer = Attention(
            d,
            heads,
            heads,
            d // heads,
            bias=bias,
            rotary=False,
            names=AttentionNames(o="out_proj"),
            dropout=attention_dropout,
        )
        mlp = MLP(d, s.intermediate_size, s.activation, bias=bias, names=("fc1", "fc2"))
        first, second = Norm(d, norm), Norm(d, norm)
        labels = ("self_attn_layer_norm", "final_layer_norm")
        return Block(
            mixer,
            mlp,
            dropout=dropout,
            names=("self_attn", ""),
            norm_names=(*labels, "", "") if before else ("", "", *labels),
            norm_1=first if before else None,
            norm_2=second if before else None,
            post_1=None if before else first,
            post_2=None if before else second,
        )

    extras: list[tuple[str, Layer]] = [
        ("model.decoder.embed_positions", Embedding((s.max_length or 0) + 2, d))
    ]
    if width != d:
        extras.insert(0, ("model.decoder.project_in", Projection(width, d, last=False)))
        extras.append(("model.decoder.project_out", Projection(d, width, last=True)))
    return assemble(
        c,
        s,
        block,
        [FULL] * s.num_layers,
        norm=norm if final else None,
        embedding_name="model.decoder.embed_tokens",
        prefix="model.decoder.layers",
        final_norm_name="model.decoder.final_layer_norm",
        embedding_width=width,
        extras=tuple(extras),
        symbols={"P": (s.max_length or 0) + 2},
    )

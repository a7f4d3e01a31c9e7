"""Decoders of GPT's kind whose positions are rotary or by ALiBi."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.gpt_dense import (
    PLAIN_NAMES,
    gpt_sizes,
    model,
    probability,
    square_attention,
)
from loadsheet.arch.families.parts import LAYER_NORM, switch
from loadsheet.arch.layers.attention import Attention, AttentionNames
from loadsheet.arch.layers.base import Norm, NormStyle
from loadsheet.arch.layers.mlp import MLP
from loadsheet.arch.model import Block, Model
from loadsheet.errors import BadConfig, UnsupportedArchitecture


def gptj(c: Config) -> Model:
    """GPT-J and CodeGen: attention and MLP side by side after one norm, a bias in the head."""
    codegen = c.data.get("model_type") == "codegen"
    s = gpt_sizes(c, tied=False)

    def block(_: Any) -> Block:
        d = s.hidden_size
        mixer = square_attention(
            s,
            fused_qkv=codegen,
            names=AttentionNames(o="out_proj"),
            dropout=probability(c, "attn_pdrop", 0.0),
        )
        return Block(
            mixer, MLP(d, s.intermediate_size, s.activation, bias=True, names=("fc_in", "fc_out")),
            norm_1=Norm(d, LAYER_NORM), parallel=True, dropout=probability(c, "resid_pdrop", 0.0),
            names=("attn", "mlp"), norm_names=("ln_1", "", "", ""),
        )  # fmt: skip

    return model(c, s, block, "transformer", ("wte", "h", "ln_f"), head_bias=True)


def bloom(c: Config) -> Model:
    """BLOOM: ALiBi, a norm after the embedding, biases everywhere, MLP four times as wide."""
    names = (("hidden_size", "n_embed"), ("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads"))
    s = gpt_sizes(c, names, inner=4, act=("", "gelu_tanh"))

    def block(_: Any) -> Block:
        d = s.hidden_size
        mixer = square_attention(
            s, bias=True, fused_qkv=True, rotary=False, names=AttentionNames(qkv="query_key_value", o="dense"),
            dropout=probability(c, "attention_dropout", 0.0),
        )  # fmt: skip
        mlp = MLP(d, s.intermediate_size, s.activation, bias=True, names=("dense_h_to_4h", "dense_4h_to_h"))
        return Block(
            mixer, mlp, norm_1=Norm(d, LAYER_NORM), norm_2=Norm(d, LAYER_NORM),
            dropout=probability(c, "hidden_dropout", 0.0), names=("self_attention", "mlp"),
        )  # fmt: skip

    norm = Norm(s.hidden_size, LAYER_NORM)
    extras = (("transformer.word_embeddings_layernorm", norm),)
    return model(c, s, block, "transformer", ("word_embeddings", "h", "ln_f"), extras=extras)


def mpt(c: Config) -> Model:
    """MPT as transformers builds it: ALiBi, no biases, MLP four times as wide, whatever llm-foundry's switches."""
    names = (
        ("d_model", "hidden_size"),
        ("n_layers", "num_hidden_layers"),
        ("n_heads", "num_attention_heads"),
    )
    s = gpt_sizes(c, names, inner=4, act=("", "gelu"))
    attention = c.part("attn_config") if c.data.get("attn_config") is not None else Config({}, c.where)
    if attention.text("attn_type", default="multihead_attention") != "multihead_attention" or attention.flag(
        "qk_ln", default=False
    ):
        raise UnsupportedArchitecture(
            f"{attention.where}: got multi-query attention or norms on q and k, expected neither in `mpt`",
            "the class in transformers knows neither",
        )
    norm = NormStyle("layer", bias=False)
    dropout = attention.number("attn_pdrop", default=0.0, maximum=1)

    def block(_: Any) -> Block:
        d = s.hidden_size
        mixer = square_attention(
            s, fused_qkv=True, rotary=False, names=AttentionNames(qkv="Wqkv", o="out_proj"), dropout=dropout
        )
        return Block(
            mixer, MLP(d, s.intermediate_size, s.activation), norm_1=Norm(d, norm), norm_2=Norm(d, norm),
            dropout=dropout, names=("attn", "ffn"), norm_names=("norm_1", "norm_2", "", ""),
        )  # fmt: skip

    return model(c, s, block, "transformer", ("wte", "blocks", "norm_f"), norm=norm)


def gpt_neox_japanese(c: Config) -> Model:
    """GPT-NeoX Japanese: no biases but one, on the last layer's attention output."""
    multiple = c.size("intermediate_multiple_size", maximum=1 << 10)
    s = gpt_sizes(c, PLAIN_NAMES, inner=multiple, act=("hidden_act", "gelu"))

    def block(last: bool) -> Block:
        d = s.hidden_size
        mixer = square_attention(
            s, fused_qkv=True, names=AttentionNames(qkv="query_key_value", o="dense"), upcast_softmax=False,
            dropout=probability(c, "attention_dropout", 0.1),
        )  # fmt: skip
        if last:  # added with the residual, outside of the projection
            mixer.own("dense_bias", (d,), "attention")
        mlp = MLP(d, s.intermediate_size, s.activation, names=("dense_h_to_4h", "dense_4h_to_h"))
        return Block(
            mixer, mlp, norm_1=Norm(d, LAYER_NORM), norm_2=Norm(d, LAYER_NORM),
            dropout=probability(c, "hidden_dropout", 0.0), names=("attention", "mlp"),
        )  # fmt: skip

    keys = [False] * (s.num_layers - 1) + [True]
    names = ("embed_in", "layers", "final_layer_norm")
    return model(c, s, block, "gpt_neox_japanese", names, keys=keys, head_name="embed_out")


def falcon(c: Config) -> Model:
    """Falcon: one KV head (7B), groups (40B, 180B) or all; side by side with one or two norms, or in turn."""
    names = (("hidden_size", "n_embed"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head"))
    s = gpt_sizes(c, names, inner="ffn_hidden_size", act=("activation", "gelu"))
    grouped, alone = c.flag("new_decoder_architecture", default=False), switch(c, "multi_query", default=True)
    parallel, bias = switch(c, "parallel_attn", default=True), c.flag("bias", default=False)
    alibi = c.flag("alibi", default=False)
    kv_heads = c.size("num_kv_heads", "n_head_kv", default=s.heads) if grouped else 1 if alone else s.heads
    if s.heads % kv_heads:
        raise BadConfig(
            f"{c.where}.num_kv_heads: got {kv_heads}, expected a divisor of `num_attention_heads` = {s.heads}"
        )
    count = c.size("num_ln_in_parallel_attn", default=2 if grouped else 1)
    labels = ("input_layernorm", "post_attention_layernorm", "", "")
    if parallel:
        labels = ("ln_attn", "ln_mlp", "", "") if count == 2 else ("input_layernorm", "", "", "")

    def block(_: Any) -> Block:
        d = s.hidden_size
        mixer = Attention(
            d, s.heads, kv_heads, s.head_dim, bias=bias, fused_qkv=True, rotary=not alibi, upcast_softmax=False,
            names=AttentionNames(qkv="query_key_value", o="dense"), dropout=probability(c, "attention_dropout", 0.0),
        )  # fmt: skip
        mlp = MLP(d, s.intermediate_size, s.activation, bias=bias, names=("dense_h_to_4h", "dense_4h_to_h"))
        return Block(
            mixer, mlp, norm_1=Norm(d, LAYER_NORM), norm_2=Norm(d, LAYER_NORM) if labels[1] else None,
            parallel=parallel, dropout=probability(c, "hidden_dropout", 0.0), names=("self_attention", "mlp"),
            norm_names=labels,
        )  # fmt: skip

    symbols = {"h_kv": kv_heads, "kv": kv_heads * s.head_dim}
    return model(c, s, block, "transformer", ("word_embeddings", "h", "ln_f"), symbols=symbols)

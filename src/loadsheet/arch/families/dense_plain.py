"""Dense decoders of Llama's kind with a plain MLP, or with LayerNorm: Nemotron, Jais 2, Apertus, Moshi, nanochat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.dense import WIDE_RMS, renamed, stack, whole_heads
from loadsheet.arch.families.llama import attention, gated_mlp, pre_norm
from loadsheet.arch.families.parts import LAYER_NORM, Reach, Sizes, optional_window, reaches, read_sizes
from loadsheet.arch.layers.attention import AttentionNames
from loadsheet.arch.layers.base import Layer, Norm, NormStyle
from loadsheet.arch.layers.mlp import ACTIVATIONS, MLP
from loadsheet.arch.layers.mlp_kinds import TrainedMLP
from loadsheet.arch.model import Block, Model
from loadsheet.arch.residual import UNIT
from loadsheet.errors import BadConfig


def plain_mlp(s: Sizes, **switches: Any) -> MLP:
    """The plain MLP with a config's sizes."""
    return MLP(s.hidden_size, s.intermediate_size, s.activation, **switches)


# -- LayerNorm and a plain MLP ---------------------------------------------------------------------


def jais2(c: Config) -> Model:
    """Jais 2: LayerNorm, squared ReLU, biases everywhere."""
    s = read_sizes(c, activation="relu2")
    whole_heads(c, s)
    bias, mlp_bias = c.flag("attention_bias", default=True), c.flag("mlp_bias", default=True)

    def block(_: Any) -> Block:
        return pre_norm(s, attention(s, bias=bias), plain_mlp(s, bias=mlp_bias), LAYER_NORM)

    return stack(c, s, block, norm=LAYER_NORM)


def nemotron(c: Config) -> Model:
    """Nemotron 3 and 4, Minitron: LayerNorm that multiplies by 1 + w, squared ReLU, no biases."""
    s = read_sizes(c, kv_heads="required", activation="relu2")
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)

    def block(_: Any) -> Block:
        return pre_norm(s, attention(s, bias=bias), plain_mlp(s, bias=mlp_bias), LAYER_NORM)

    return stack(c, s, block, norm=LAYER_NORM)


def persimmon(c: Config) -> Model:
    """Persimmon: LayerNorm also on q and k, squared ReLU, q, k, v in one matrix, biases but in the head."""
    data = {
        k: v for k, v in c.data.items() if k not in ("head_dim", "num_key_value_heads")
    }  # the class reads neither
    c = renamed(Config(data, c.where))
    s = read_sizes(c, activation="relu2")
    qk_norm = "head" if c.flag("qk_layernorm", default=True) else None
    names = AttentionNames(qkv="query_key_value", o="dense", q_norm="q_layernorm", k_norm="k_layernorm")
    rates = (
        c.number("attention_dropout", default=0.0, maximum=1),
        c.number("hidden_dropout", default=0.0, maximum=1),
    )

    def block(_: Any) -> Block:
        mixer = attention(
            s,
            bias=True,
            fused_qkv=True,
            qk_norm=qk_norm,
            norm_style=LAYER_NORM,
            names=names,
            dropout=rates[0],
        )
        mlp = plain_mlp(s, bias=True, names=("dense_h_to_4h", "dense_4h_to_h"))
        return pre_norm(s, mixer, mlp, LAYER_NORM, dropout=rates[1])

    return stack(c, s, block, norm=LAYER_NORM, final_norm_name="model.final_layernorm")


def cohere_compass(c: Config) -> Model:
    """Command's text model in Cohere's Compass: one LayerNorm without bias, attention and MLP side by side."""
    s = read_sizes(c, tied=True)
    bias, norm = c.flag("attention_bias", default=False), NormStyle("layer", written_out=True)
    keys = reaches(c, s.num_layers, lambda _: "full_attention", optional_window(c, 4096))

    def block(k: Reach) -> Block:
        return Block(
            attention(s, k, bias=bias), gated_mlp(s), norm_1=Norm(s.hidden_size, norm), parallel=True
        )

    return stack(c, s, block, keys, norm=norm)


# -- RMSNorm and another MLP -----------------------------------------------------------------------


def arcee(c: Config) -> Model:
    """Arcee's AFM: Llama with a plain MLP and squared ReLU."""
    s = read_sizes(c, activation="relu2")
    whole_heads(c, s)
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    return stack(c, s, lambda _: pre_norm(s, attention(s, bias=bias), plain_mlp(s, bias=mlp_bias)))


def apertus(c: Config) -> Model:
    """Apertus 1 and the text model of 1.5: norms on q and k, a plain MLP with a trained activation."""
    trained = c.text("hidden_act", default="xielu") == "xielu"
    known = {**ACTIVATIONS, "xielu": "xielu"}
    act = c.choice("hidden_act", known, "xielu")
    sizes = Config({**c.data, "hidden_act": "silu"}, c.where)  # the activation is read above
    sizes.defaulted = c.defaulted
    s = read_sizes(sizes)
    bias = c.flag("attention_bias", default=False)
    heads = _output_vocabulary(c, s) if c.data.get("model_type") == "apertus1p5_text" else None
    names = ("attention_layernorm", "feedforward_layernorm", "", "")

    def block(_: Any) -> Block:
        d, f = s.hidden_size, s.intermediate_size
        mlp = TrainedMLP(d, f) if trained else MLP(d, f, act)
        return pre_norm(s, attention(s, bias=bias, qk_norm="head"), mlp, norm_names=names)

    return stack(c, s, block, head_rows=heads)


def _output_vocabulary(c: Config, s: Sizes) -> int | None:
    rows: int = c.size("output_vocab_size", default=s.vocab_size)
    if rows > s.vocab_size:
        raise c.error("output_vocab_size", f"at most `vocab_size` = {s.vocab_size}")
    if rows != s.vocab_size and s.tied:
        raise c.error("output_vocab_size", f"`vocab_size` = {s.vocab_size}, since the head is the embedding")
    return rows


def moshi(c: Config) -> Model:
    """Moshi's language model: one more row in the embedding than in the head, gate and up in one matrix."""
    c = renamed(c, ffn_dim="intermediate_size")
    if "intermediate_size" not in c.data:
        raise c.error("ffn_dim", "a whole number", "the count of parameters depends on this key")
    s = read_sizes(c, head_dim="divide")
    whole_heads(c, s)
    if s.intermediate_size % 2:
        raise BadConfig(f"{c.where}.ffn_dim: got {s.intermediate_size}, expected an even number")
    s = replace(s, intermediate_size=s.intermediate_size // 2, tied=False)  # the class ties nothing
    keys: list[Any] = [(c.size("sliding_window", default=3000), None)] * s.num_layers
    names = AttentionNames(q="q_proj.linear", k="k_proj.linear", v="v_proj.linear", o="o_proj.linear")

    def block(k: Reach) -> Block:
        return pre_norm(
            s, attention(s, k, names=names), gated_mlp(s, fused="fc1", names=("", "", "fc2")), WIDE_RMS
        )

    return stack(c, s, block, keys, embedding_rows=s.vocab_size + 1, norm=WIDE_RMS)


def nanochat(c: Config) -> Model:
    """nanochat: norms without any parameter, on q and k too, and a plain MLP with squared ReLU."""
    s = read_sizes(c, activation="relu2")
    bias = c.flag("attention_bias", default=False)

    def block(_: Any) -> Block:
        mixer = attention(s, bias=bias, qk_norm="head", norm_style=UNIT)
        return pre_norm(s, mixer, plain_mlp(s, names=("fc1", "fc2")), UNIT)

    capped = "final_logit_softcapping" not in c.data or c.data["final_logit_softcapping"] is not None
    first: tuple[tuple[str, Layer], ...] = (("model", Norm(s.hidden_size, UNIT)),)  # of the embedding, too
    return stack(c, s, block, norm=UNIT, logit_softcap=capped, extras=first)

"""More dense decoders of Llama's kind: the same blocks with other norms, biases, names or MLPs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.llama import attention, gated_mlp, pre_norm
from loadsheet.arch.families.parts import (
    FULL,
    RMS,
    Reach,
    Sizes,
    assemble,
    optional_window,
    reaches,
    read_sizes,
    square_heads,
)
from loadsheet.arch.layers.attention import AttentionNames
from loadsheet.arch.layers.attention_kinds import (
    DifferentialAttention,
    DynamicMaskAttention,
    SubNormAttention,
)
from loadsheet.arch.layers.base import Linear, Norm, NormStyle
from loadsheet.arch.layers.conv import ShortConvolution
from loadsheet.arch.layers.mlp import GatedMLP
from loadsheet.arch.layers.mlp_kinds import RetrievedMLP, SubNormMLP
from loadsheet.arch.model import Block, Model
from loadsheet.arch.residual import ScaledResidualBlock
from loadsheet.errors import BadConfig, UnsupportedArchitecture

#: RMSNorm whose weight multiplies in fp32, before the cast back (Gemma's without the one)
WIDE_RMS = NormStyle("rms", plus_one=True)


def renamed(c: Config, **names: str) -> Config:
    """The same config with older names of keys (`old="new"`); BadConfig where both stand and differ."""
    data = dict(c.data)
    for old, new in names.items():
        value = data.pop(old, None)
        if value is None:
            continue
        if data.get(new) not in (None, value):
            raise c.error(old, f"the same as `{new}`", "two names of one thing contradict each other")
        data[new] = value
    made = Config(data, c.where)
    made.defaulted = c.defaulted
    return made


def whole_heads(c: Config, s: Sizes) -> None:
    """BadConfig unless the heads divide the width, which these classes ask for even where head_dim is given."""
    c.divides("num_attention_heads", s.heads, "hidden_size", s.hidden_size)


def stack(
    c: Config, s: Sizes, block: Callable[[Any], Block], keys: list[Any] | None = None, **more: Any
) -> Model:
    """Equal blocks with full attention, unless `keys` says otherwise."""
    return assemble(c, s, block, keys or [FULL] * s.num_layers, **{"norm": RMS, **more})


# -- RMSNorm and a gated MLP -----------------------------------------------------------------------


def llama_like(
    c: Config, s: Sizes, *, bias: bool = False, mlp_bias: bool = False, **attention_switches: Any
) -> Model:
    """Llama's block with these biases."""

    def block(_: Any) -> Block:
        return pre_norm(s, attention(s, bias=bias, **attention_switches), gated_mlp(s, bias=mlp_bias))

    return stack(c, s, block)


def exaone(c: Config) -> Model:
    """EXAONE 3, IQuest Coder and InternLM 3: Llama under other names of some keys."""
    kind = c.data.get("model_type")
    if kind == "exaone":
        c = renamed(c, num_layers="num_hidden_layers", activation_function="hidden_act")
        s = read_sizes(c, kv_heads="error")
    else:
        if kind == "internlm3":
            c = renamed(c, qkv_bias="attention_bias", bias="mlp_bias")
        s = read_sizes(c, head_dim="error", kv_heads="error")
    whole_heads(c, s)
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    if kind == "internlm3" and bias != mlp_bias:
        raise c.error("attention_bias", "the same as `mlp_bias`: the published class knows no other case")
    if kind == "iquestcoder" and (
        c.data.get("clip_qkv") is not None or c.flag("use_sliding_window", default=False)
    ):
        raise UnsupportedArchitecture(
            f"{c.where}: got `clip_qkv` or `use_sliding_window`, which the class of `iquestcoder` does not support"
        )
    return llama_like(c, s, bias=bias, mlp_bias=mlp_bias)


def emu3(c: Config) -> Model:
    """Emu3's language model, alone or as `text_config`; images are tokens of its vocabulary."""
    if c.data.get("model_type") == "emu3":
        c = c.part("text_config")
    s = read_sizes(c, kv_heads="required")
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    return llama_like(c, s, bias=bias, mlp_bias=mlp_bias)


def ernie(c: Config) -> Model:
    """ERNIE 4.5 dense: Llama with one switch for all biases and a tied head."""
    s = read_sizes(c, tied=True, head_dim="error", kv_heads="error")
    bias = c.flag("use_bias", default=False)
    return llama_like(c, s, bias=bias, mlp_bias=bias)


def helium(c: Config) -> Model:
    """Helium: Llama whose output projection is square, whatever the heads make, and never has a bias."""
    s = read_sizes(c, head_dim="required", kv_heads="required")
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)

    def block(_: Any) -> Block:
        d = s.hidden_size
        mixer = attention(s, bias=bias, out_bias=False)
        mixer.o = mixer.add("o_proj", Linear(d, d, role="attention", tag="o_proj", tp="row"))
        return pre_norm(s, mixer, gated_mlp(s, bias=mlp_bias), WIDE_RMS)

    return stack(c, s, block, norm=WIDE_RMS)


def seed_oss(c: Config) -> Model:
    """Seed-OSS: biases on q, k, v, another switch for the output's; dropout on the residual stream."""
    s = read_sizes(c, head_dim="error", kv_heads="error")
    bias, out_bias = c.flag("attention_bias", default=True), c.flag("attention_out_bias", default=False)
    mlp_bias = c.flag("mlp_bias", default=False)
    rates = (
        c.number("attention_dropout", default=0.1, maximum=1),
        c.number("residual_dropout", default=0.1, maximum=1),
    )

    def block(_: Any) -> Block:
        mixer = attention(s, bias=bias, out_bias=out_bias, dropout=rates[0])
        return pre_norm(s, mixer, gated_mlp(s, bias=mlp_bias), dropout=rates[1])

    return stack(c, s, block)


def hunyuan_dense(c: Config) -> Model:
    """Hunyuan dense: Llama with norms on q and k; its class derives no head_dim."""
    s = read_sizes(c, head_dim="required")
    names = AttentionNames(q_norm="query_layernorm", k_norm="key_layernorm")
    bias = c.flag("attention_bias", default=False)
    return llama_like(c, s, bias=bias, qk_norm="head", names=names)


def hyperclovax(c: Config) -> Model:
    """HyperCLOVA X: Llama with norms after the sub-layers too, unless `use_post_norm` is off."""
    s = read_sizes(c)
    whole_heads(c, s)
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    after = c.flag("use_post_norm", default=True)

    def block(_: Any) -> Block:
        d = s.hidden_size
        return pre_norm(
            s,
            attention(s, bias=bias),
            gated_mlp(s, bias=mlp_bias),
            post_1=Norm(d, RMS) if after else None,
            post_2=Norm(d, RMS) if after else None,
            norm_names=("input_layernorm", "post_attention_layernorm", "post_norm1", "post_norm2"),
        )

    return stack(c, s, block)


def ministral3(c: Config) -> Model:
    """Ministral 3: Mistral without a window unless the config names one."""
    s = read_sizes(c, head_dim="required", kv_heads="required")
    keys = [(optional_window(c), None)] * s.num_layers
    return stack(c, s, lambda k: pre_norm(s, attention(s, k), gated_mlp(s)), keys)


def smollm3(c: Config) -> Model:
    """SmolLM 3: no rotary positions in every fourth layer, where windows stand if they are switched on."""
    s = read_sizes(c, tied=True, kv_heads="error")
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    every = c.size("no_rope_layer_interval", default=4)
    rotary = c.pattern("no_rope_layers", s.num_layers) or [(i + 1) % every != 0 for i in range(s.num_layers)]
    window, windows = optional_window(c), c.flag("use_sliding_window", default=False)

    def usual(layer: int) -> str:
        return "sliding_attention" if windows and window and not rotary[layer] else "full_attention"

    kinds = reaches(c, s.num_layers, usual, window)
    keys = [(kind, bool(turned)) for kind, turned in zip(kinds, rotary, strict=True)]

    def block(k: tuple[Reach, bool]) -> Block:
        return pre_norm(s, attention(s, k[0], bias=bias, rotary=k[1]), gated_mlp(s, bias=mlp_bias))

    return stack(c, s, block, keys)


# -- other mixers ----------------------------------------------------------------------------------


def bitnet(c: Config) -> Model:
    """BitNet b1.58: Llama with one more norm in each sub-layer (before its last matrix), squared ReLU."""
    s = read_sizes(c, kv_heads="error", activation="relu2")
    square_heads(c, s)
    bias = c.flag("attention_bias", default=False)

    def block(_: Any) -> Block:
        d = s.hidden_size
        mixer = SubNormAttention(d, s.heads, s.kv_heads, s.head_dim, bias=bias)
        return pre_norm(s, mixer, SubNormMLP(d, s.intermediate_size, s.activation))

    return stack(c, s, block)


def diffllama(c: Config) -> Model:
    """DiffLlama: Llama with differential attention."""
    s = read_sizes(c)
    if s.kv_heads % 2:
        raise BadConfig(f"{c.where}.num_key_value_heads: got {s.kv_heads}, expected an even number")
    if c.number("attention_dropout", default=0.0, maximum=1):
        raise c.error("attention_dropout", "0: differential attention knows no dropout")
    bias = c.flag("attention_bias", default=False)

    def block(_: Any) -> Block:
        mixer = DifferentialAttention(s.hidden_size, s.heads, s.kv_heads, s.head_dim, bias=bias)
        return pre_norm(s, mixer, gated_mlp(s))

    return stack(c, s, block)


def doge(c: Config) -> Model:
    """Doge: attention under a mask made of the values, scaled residuals, and perhaps experts by product keys."""
    s = read_sizes(c)
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    dropout = c.number("hidden_dropout", default=0.0, maximum=1)
    experts = c.size("num_experts", maximum=1 << 26) if c.flag("is_moe", default=False) else 0
    per_token = c.size("num_experts_per_tok") if experts else 0
    if per_token > experts:
        raise c.error("num_experts_per_tok", f"at most `num_experts` = {experts}")
    window = optional_window(c)

    def block(_: Any) -> Block:
        d = s.hidden_size
        mixer = DynamicMaskAttention(
            d, s.heads, s.kv_heads, s.head_dim, bias=bias, qk_norm="head", window=window
        )
        mlp = gated_mlp(s, bias=mlp_bias)
        if experts:
            mlp = RetrievedMLP(d, s.intermediate_size, s.activation, experts, per_token, bias=mlp_bias)
        return ScaledResidualBlock(d, mixer, mlp, (Norm(d, RMS), Norm(d, RMS)), dropout=dropout)

    return stack(c, s, block, symbols={"E": experts, "k": per_token} if experts else None)


def lfm2_width(c: Config, width: int) -> int:
    """The MLP's real width: two thirds of the named one, times a factor, rounded up, unless switched off."""
    if not c.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(2 * width / 3)
    if "block_ffn_dim_multiplier" in c.data and c.data["block_ffn_dim_multiplier"] is None:
        return width
    width = int(c.number("block_ffn_dim_multiplier", default=1.0, maximum=1e6) * width)
    multiple: int = c.size("block_multiple_of", default=256)
    return -(-width // multiple) * multiple


def lfm2(c: Config) -> Model:
    """LFM2: gated short convolutions in most layers, attention with norms on q and k in the others."""
    c = renamed(c, block_ff_dim="intermediate_size", tie_embedding="tie_word_embeddings")
    s = read_sizes(c, tied=True, kv_heads="required")
    width, kernel = lfm2_width(c, s.intermediate_size), c.size("conv_L_cache")
    if not width:
        raise c.error("intermediate_size", "a width that leaves the MLP some neurons")
    bias = c.flag("conv_bias", default=False)
    full = c.ints("full_attn_idxs") if c.data.get("full_attn_idxs") is not None else range(s.num_layers)
    kinds = c.pattern("layer_types", s.num_layers)
    if kinds is None:
        attended = set(full)
        kinds = ["full_attention" if i in attended else "conv" for i in range(s.num_layers)]
    for kind in kinds:
        if kind not in ("full_attention", "attention", "conv"):
            raise c.error("layer_types", "`full_attention` or `conv` for each layer")
    names = AttentionNames(o="out_proj", q_norm="q_layernorm", k_norm="k_layernorm")

    def block(conv: bool) -> Block:
        d = s.hidden_size
        mlp = GatedMLP(d, width, "silu", names=("w1", "w3", "w2"))
        labels = ("conv" if conv else "self_attn", "feed_forward")
        norms = ("operator_norm", "ffn_norm", "", "")
        if conv:
            return pre_norm(s, ShortConvolution(d, kernel, bias=bias), mlp, names=labels, norm_names=norms)
        return pre_norm(s, attention(s, qk_norm="head", names=names), mlp, names=labels, norm_names=norms)

    keys = [kind == "conv" for kind in kinds]
    return stack(c, s, block, keys, final_norm_name="model.embedding_norm", symbols={"f": width})

"""Mixtures of experts that are stored, joined or attended to in ways of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadsheet.arch.blocks import Beside
from loadsheet.arch.config import LIMITS, Config
from loadsheet.arch.families.llama import attention, gated_mlp, pre_norm
from loadsheet.arch.families.mixtures import Mixture, counts, decoder, listed_sparse, sizes
from loadsheet.arch.families.parts import (
    FULL,
    GEMMA_RMS,
    RMS,
    Reach,
    Sizes,
    assemble,
    optional_window,
    reaches,
    read_max_length,
)
from loadsheet.arch.layers.attention import AttentionNames
from loadsheet.arch.layers.base import Layer, Norm, NormStyle
from loadsheet.arch.layers.expert_parts import BiasedMixture, FlatExperts, MixtureOfAttention
from loadsheet.arch.layers.indexer import BlockIndexer, BlockSparseAttention
from loadsheet.arch.layers.mlp import ACTIVATIONS, GatedMLP, MoE, Router
from loadsheet.arch.layers.sinks import ScaledSinks
from loadsheet.arch.layers.zaya import ConvolvedAttention, MemoryRouter, ResidualStem, ZayaBlock
from loadsheet.arch.model import Block, Model
from loadsheet.errors import BadConfig, shorten

LAYER_NORM_NO_BIAS = NormStyle("layer", bias=False)


def aria_text(c: Config) -> Model:
    """Aria (text): Llama's attention, all mixtures, shared experts that may have biases."""
    s = sizes(c, kv_heads="heads")
    c.divides("num_attention_heads", s.heads, "hidden_size", s.hidden_size)
    experts, k = counts(c, "moe_num_experts", per_token=("moe_topk",))
    mix = Mixture(s.intermediate_size, experts, k, s.intermediate_size * c.size("moe_num_shared_experts"))
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    return decoder(
        c,
        s,
        [FULL] * s.num_layers,
        lambda _: attention(s, bias=bias),
        lambda _: mix.layer(s, router_name="router", mlp_bias=mlp_bias, layout="in_out"),
        symbols=mix.symbols,
    )


def cohere2_moe(c: Config) -> Model:
    """Command A+: attention and mixture side by side after one norm, dense layers first, tied head."""
    layers = c.size("num_hidden_layers")
    first = c.size("first_k_dense_replace", default=0, minimum=0, maximum=layers)
    sparse = listed_sparse(c, layers, lambda i: i >= first)
    s = sizes(c, head_dim="own", kv_heads="heads", tied=True)
    dense = replace(
        s, intermediate_size=c.size("prefix_dense_intermediate_size", default=s.intermediate_size)
    )
    experts, k = counts(c, "num_experts")
    shared = s.intermediate_size * c.size("num_shared_experts", default=0, minimum=0)
    mix = Mixture(s.intermediate_size, experts, k, shared)
    bias = c.flag("attention_bias", default=False)
    norm = RMS if c.data.get("rms_norm_eps") is not None else LAYER_NORM_NO_BIAS
    every = c.size("sliding_window_pattern", default=4)
    every_dense = c.size("prefix_dense_sliding_window_pattern", default=1)

    def kind(i: int) -> str:
        place, period = (i, every_dense) if i < first else (i - first, every)
        return "sliding_attention" if (place + 1) % period else "full_attention"

    def block(key: tuple[Reach, bool]) -> Block:
        reach, is_sparse = key
        rotary = reach != FULL or (not is_sparse and every_dense == 1)
        mlp = mix.layer(s) if is_sparse else gated_mlp(dense)
        mixer = attention(s, reach, bias=bias, rotary=rotary)
        return Block(mixer, mlp, norm_1=Norm(s.hidden_size, norm), parallel=True)

    keys = list(zip(reaches(c, layers, kind, optional_window(c, 4096)), sparse, strict=True))
    symbols = {**mix.symbols, "f": dense.intermediate_size}
    return assemble(c, s, block, keys, norm=norm, symbols=symbols)


def ernie4_5_moe(c: Config) -> Model:
    """ERNIE 4.5: one switch for all biases, mixtures from one layer to another, tied head."""
    layers = c.size("num_hidden_layers")
    first, last = (
        c.size("moe_layer_start_index", minimum=0),
        c.size("moe_layer_end_index", default=-1, minimum=-1),
    )
    every = c.size("moe_layer_interval", default=1)
    last = layers - 1 if last == -1 else last
    sparse = [(i + 1) % every == 0 and first <= i <= last for i in range(layers)]
    s = sizes(c, tied=True, dense=not all(sparse))
    experts, k = counts(c, "moe_num_experts", "num_experts", per_token=("moe_k", "num_experts_per_tok"))
    width = c.size("moe_intermediate_size")
    mix = Mixture(width, experts, k, width * c.size("moe_num_shared_experts", minimum=0))
    bias = c.flag("use_bias", default=False)

    def mlp(is_sparse: bool) -> Layer:
        if not is_sparse:
            return gated_mlp(s, bias=bias)
        router = Router(
            s.hidden_size,
            experts,
            correction="moe_statics.e_score_correction_bias",
            correction_shape=(1, experts),
        )
        return mix.layer(s, router=router, mlp_bias=bias)

    return decoder(c, s, sparse, lambda _: attention(s, bias=bias), mlp, symbols=mix.symbols, head_bias=bias)


def granitemoeshared(c: Config) -> Model:
    """Granite 3 and 4 MoE with an MLP beside the mixture; as `granitemoe_swa` with sinks and windows."""
    second = c.data.get("model_type") == "granitemoe_swa"
    s = sizes(c, kv_heads="heads")
    experts, k = counts(c, "num_local_experts")
    mix = Mixture(s.intermediate_size, experts, k)
    width = c.size("shared_intermediate_size", default=0, minimum=0)
    bias = c.flag("attention_bias", default=False)
    keys: list[Any] = [FULL] * s.num_layers
    if second:
        window = optional_window(c, 128)
        keys = reaches(c, s.num_layers, lambda i: "sliding_attention" if i % 4 else "full_attention", window)

    def block(reach: Reach) -> Block:
        shared = None
        if width:
            names = ("", "", "output_linear")
            shared = GatedMLP(
                s.hidden_size, width, s.activation, fused="input_linear", names=names, symbol="f_s"
            )
        mixture = mix.layer(s, router_name="router")
        mlp = Beside(block_sparse_moe=mixture, shared_mlp=shared)
        mixer = attention(s, reach, bias=bias)
        if second:
            d, window = s.hidden_size, reach[0]
            mixer = ScaledSinks(d, s.heads, s.kv_heads, s.head_dim, bias=bias, window=window, sinks=True)
        return pre_norm(s, mixer, mlp, names=("self_attn", ""))

    return assemble(c, s, block, keys, norm=RMS, symbols={**mix.symbols, "f_s": width})


def hunyuan_v1_moe(c: Config) -> Model:
    """Hunyuan A13B: all mixtures, one shared MLP; experts per token perhaps listed by layer."""
    s = sizes(c, head_dim="own", kv_heads="heads")
    experts = c.size("num_experts", "num_local_experts", maximum=LIMITS["num_experts"])
    name = "moe_topk" if c.data.get("moe_topk") is not None else "num_experts_per_tok"
    chosen = c.data.get(name)
    if isinstance(chosen, (list, tuple)):
        ks = c.ints(name)
        if len(ks) < s.num_layers or not all(1 <= k <= experts for k in ks):
            raise c.error(name, f"one count for each of {s.num_layers} layers, each at most {experts}")
        ks = ks[: s.num_layers]
    else:
        ks = [c.size(name, maximum=experts)] * s.num_layers
    bias = c.flag("attention_bias", default=False)
    names = AttentionNames(q_norm="query_layernorm", k_norm="key_layernorm")

    def mlp(k: int) -> Layer:
        router = Router(s.hidden_size, experts, name="wg.weight")
        mix = Mixture(s.intermediate_size, experts, k, s.intermediate_size)
        return mix.layer(s, router=router, shared_name="shared_mlp")

    symbols = Mixture(s.intermediate_size, experts, max(ks), s.intermediate_size).symbols
    return decoder(
        c, s, ks, lambda _: attention(s, bias=bias, qk_norm="head", names=names), mlp, symbols=symbols
    )


def mimo_v2_flash(c: Config) -> Model:
    """MiMo V2 Flash: values narrower than keys; layers with a window have sinks and twice the KV heads."""
    layers = c.size("num_hidden_layers")
    sparse = listed_sparse(c, layers, lambda i: i > 0)
    s = sizes(c, head_dim="own", dense=not all(sparse))
    value_dim = c.size("v_head_dim")
    experts, k = counts(c, "n_routed_experts", "num_local_experts")
    mix = Mixture(c.size("moe_intermediate_size"), experts, k)
    bias = c.flag("attention_bias", default=False)
    window = c.size("sliding_window", default=129)
    if c.data.get("sliding_window_size") is not None:  # an older name, without the query itself
        window = c.size("sliding_window_size") + 1

    def kind(i: int) -> str:
        return "full_attention" if i == 0 or (i + 1) % 6 == 0 else "sliding_attention"

    seen = reaches(c, layers, kind, window)
    if any(reach != FULL for reach in seen) and s.heads % (2 * s.kv_heads):
        raise c.error("num_key_value_heads", f"half a divisor of `num_attention_heads` = {s.heads}")

    def mixer(key: tuple[Reach, bool]) -> Layer:
        local = key[0] != FULL
        own = replace(s, kv_heads=2 * s.kv_heads) if local else s
        switches: dict[str, Any] = {"sinks": local, "upcast_softmax": not local, "joined_heads": True}
        return attention(own, key[0], bias=bias, out_bias=False, value_dim=value_dim, **switches)

    return decoder(
        c,
        s,
        list(zip(seen, sparse, strict=True)),
        mixer,
        lambda key: mix.layer(s) if key[1] else gated_mlp(s),
        symbols={**mix.symbols, "d_v": value_dim},
    )


def dbrx(c: Config) -> Model:
    """DBRX: q, k, v in one matrix, LayerNorm without bias, experts one below the other."""
    if c.flag("tie_word_embeddings", default=False):
        raise c.error("tie_word_embeddings", "false: the published class knows no tied head")
    hidden, heads = c.size("d_model", "hidden_size"), c.size("n_heads", "num_attention_heads")
    c.divides("n_heads", heads, "d_model", hidden)
    inner, ffn = c.part("attn_config"), c.part("ffn_config")
    groups = inner.size("kv_n_heads")
    if heads % groups:
        raise inner.error("kv_n_heads", f"a divisor of `n_heads` = {heads}")
    act = Config(ffn.data.get("ffn_act_fn") or {}, f"{ffn.where}.ffn_act_fn")
    s = Sizes(
        hidden_size=hidden,
        num_layers=c.size("n_layers", "num_hidden_layers"),
        heads=heads,
        kv_heads=groups,
        head_dim=hidden // heads,
        vocab_size=c.size("vocab_size"),
        intermediate_size=ffn.size("ffn_hidden_size"),
        activation=act.choice("name", ACTIVATIONS, "silu"),
        tied=False,
        max_length=c.size("max_seq_len", default=0, minimum=0) or read_max_length(c),
    )
    experts, k = counts(ffn, "moe_num_experts", per_token=("moe_top_k",))
    dropout = c.number("resid_pdrop", default=0.0, maximum=1)

    def block(_: Any) -> Block:
        routed = FlatExperts(hidden, s.intermediate_size, experts, k, s.activation)
        router = Router(hidden, experts, name="layer.weight")
        mixer = attention(s, fused_qkv=True, names=AttentionNames(qkv="Wqkv", o="out_proj"))
        return pre_norm(
            s,
            mixer,
            MoE(router, routed, router_name="router"),
            LAYER_NORM_NO_BIAS,
            names=("norm_attn_norm.attn", "ffn"),
            norm_names=("norm_attn_norm.norm_1", "norm_attn_norm.norm_2", "", ""),
            dropout=dropout,
        )

    return assemble(
        c,
        s,
        block,
        [FULL] * s.num_layers,
        norm=LAYER_NORM_NO_BIAS,
        embedding_name="transformer.wte",
        prefix="transformer.blocks",
        final_norm_name="transformer.norm_f",
        symbols={"f_e": s.intermediate_size, "E": experts, "k": k},
    )


def jetmoe(c: Config) -> Model:
    """JetMoE: mixtures of MLPs and of attention heads, tied head."""
    groups, dim = c.size("num_key_value_heads"), c.size("kv_channels", "head_dim")
    experts, k = counts(c, "num_local_experts")
    s = Sizes(
        hidden_size=c.size("hidden_size"),
        num_layers=c.size("num_hidden_layers"),
        heads=groups * k,
        kv_heads=groups,
        head_dim=dim,
        vocab_size=c.size("vocab_size"),
        intermediate_size=c.size("intermediate_size"),
        activation=c.choice("activation_function", ACTIVATIONS, "silu"),
        tied=c.flag("tie_word_embeddings", default=True),
        max_length=read_max_length(c),
    )

    def block(_: Any) -> Block:
        mixer = MixtureOfAttention(s.hidden_size, groups, dim, experts, k)
        mlp = BiasedMixture(s.hidden_size, s.intermediate_size, experts, k, s.activation)
        return pre_norm(s, mixer, mlp, names=("self_attention", "mlp"))

    symbols = {"f_e": s.intermediate_size, "E": experts, "k": k}
    return assemble(c, s, block, [FULL] * s.num_layers, norm=RMS, symbols=symbols)


def minimax_m3(c: Config) -> Model:
    """MiniMax M3 (text): some layers attend only to blocks of keys that an indexer chooses."""
    layers = c.size("num_hidden_layers")
    older = c.part("sparse_attention_config") if c.data.get("sparse_attention_config") is not None else None
    if c.data.get("mlp_layer_types") is None and c.data.get("moe_layer_freq") is not None:
        frequency = c.pattern("moe_layer_freq", layers) or []
        sparse = [bool(f) for f in frequency]
    else:
        sparse = listed_sparse(c, layers, lambda _: True)
    indexed = _indexed_layers(c, older, layers)
    s = replace(sizes(_no_activation(c), head_dim="own"), activation="swiglu_clamped")
    dense = 0 if all(sparse) else c.size("dense_intermediate_size")
    experts, k = counts(c, "num_local_experts", "num_experts")
    mix = Mixture(s.intermediate_size, experts, k, c.size("shared_intermediate_size"))

    def older_or(key: str, name: str) -> int:
        known: int = older.size(name) if older is not None and name in older.data else c.size(key)
        return known

    def mixer(key: tuple[bool, bool]) -> Layer:
        if not key[0]:
            return attention(s, qk_norm="head", norm_style=GEMMA_RMS)
        indexer = BlockIndexer(
            s.hidden_size,
            older_or("index_n_heads", "sparse_num_index_heads"),
            older_or("index_head_dim", "sparse_index_dim"),
            GEMMA_RMS,
        )
        sparse_attention = BlockSparseAttention(
            s.hidden_size, s.heads, s.kv_heads, s.head_dim, qk_norm="head", norm_style=GEMMA_RMS
        )
        size = older_or("index_block_size", "sparse_block_size")
        return sparse_attention.choose_by(indexer, size, older_or("index_topk_blocks", "sparse_topk_blocks"))

    def mlp(key: tuple[bool, bool]) -> Layer:
        if key[1]:
            return mix.layer(s, fused="gate_up_proj")
        return GatedMLP(s.hidden_size, dense, s.activation, fused="gate_up_proj")

    keys = list(zip(indexed, sparse, strict=True))
    symbols = {**mix.symbols, "f": dense}
    return decoder(c, s, keys, mixer, mlp, norm=GEMMA_RMS, symbols=symbols)


def _no_activation(c: Config) -> Config:
    """The config without `hidden_act`: the published class has its own activation, whatever stands there."""
    return Config({key: value for key, value in c.data.items() if key != "hidden_act"}, c.where)


def _indexed_layers(c: Config, older: Config | None, layers: int) -> list[bool]:
    """Which layers have an indexer, by `layer_types` or its older form."""
    kinds = c.pattern("layer_types", layers)
    if kinds is None and older is not None and "sparse_attention_freq" in older.data:
        return [bool(f) for f in older.pattern("sparse_attention_freq", layers) or []]
    for kind in kinds or []:
        if not isinstance(kind, str) or kind not in ("full_attention", "minimax_m3_sparse"):
            raise BadConfig(
                f"{c.where}.layer_types: got {shorten(kind)}, expected one of `full_attention`, `minimax_m3_sparse`"
            )
    return [kind == "minimax_m3_sparse" for kind in kinds or ["full_attention"] * layers]


def zaya(c: Config) -> Model:
    """ZAYA1: convolved attention, one expert per token chosen by an MLP, a scaled fp32 stream, tied head."""
    layers = c.size("num_hidden_layers")
    s = sizes(c, head_dim="own", dense=False, tied=True)
    experts = c.size("num_experts", maximum=LIMITS["num_experts"])
    if c.size("num_experts_per_tok", default=1) != 1:
        raise c.error("num_experts_per_tok", "1, the only count that the published class knows")
    mix = Mixture(c.size("moe_intermediate_size"), experts, 1)
    kernels = c.size("cca_time0", default=2), c.size("cca_time1", default=2)
    router_width = c.size("router_hidden_size")
    bias, head_bias = c.flag("attention_bias", default=False), c.flag("lm_head_bias", default=False)
    kinds = c.pattern("layer_types", layers) or ["hybrid"] * layers
    for kind in kinds:
        if not isinstance(kind, str) or kind not in ("hybrid", "hybrid_sliding"):
            raise BadConfig(
                f"{c.where}.layer_types: got {shorten(kind)}, expected one of `hybrid`, `hybrid_sliding`"
            )
    window = c.size("sliding_window") if "hybrid_sliding" in kinds else None

    def block(key: tuple[str, bool]) -> Block:
        kind, first = key
        mixer = ConvolvedAttention(
            s.hidden_size,
            s.heads,
            s.kv_heads,
            s.head_dim,
            kernels=kernels,
            bias=bias,
            window=window if kind == "hybrid_sliding" else None,
        )
        router: Any = MemoryRouter(s.hidden_size, router_width, experts, first=first)
        return ZayaBlock(s.hidden_size, mixer, mix.layer(s, router=router))

    keys = [(kind, i == 0) for i, kind in enumerate(kinds)]
    extras = (("model", ResidualStem(s.hidden_size)),)
    return assemble(c, s, block, keys, norm=RMS, symbols=mix.symbols, extras=extras, head_bias=head_bias)

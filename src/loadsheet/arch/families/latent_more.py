"""Latent attention with layers of different sizes (dots3), and models on hyper-connections (HY 4, DeepSeek V4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.latent import (
    DSA,
    Latent,
    choosing,
    latent_sizes,
    read_latent,
    read_mixture,
    same_kinds,
    shared_choices,
)
from loadsheet.arch.families.llama import gated_mlp
from loadsheet.arch.families.mixtures import Mixture, counts, decoder, dense_first, listed_sparse
from loadsheet.arch.families.parts import RMS, Sizes, assemble, read_max_length
from loadsheet.arch.layers.base import Layer
from loadsheet.arch.layers.compressed import CompressedAttention, EntryIndexer
from loadsheet.arch.layers.gates import OutputGate
from loadsheet.arch.layers.hyper import HyperBlock, HyperStem
from loadsheet.arch.layers.mlp import ACTIVATIONS
from loadsheet.arch.model import Model
from loadsheet.errors import BadConfig, UnsupportedArchitecture, shorten

#: what may differ between the layers of dots3
LAYERWISE = {
    "num_attention_heads": "heads", "q_lora_rank": "query_rank", "kv_lora_rank": "rank", "qk_nope_head_dim": "nope",
    "qk_rope_head_dim": "rope", "v_head_dim": "value",
}  # fmt: skip
#: and what follows from it, or changes no size
FOLLOWS = frozenset({"num_key_value_heads", "head_dim"})


def dots3_note(c: Config) -> Model:
    """dots3-note, the text model: layers with windows have heads and ranks of their own, the others an indexer.

    Published configs hold the text model's keys at the top level.
    """
    if c.data.get("model_type") == "dots3_note" and c.data.get("text_config") is not None:
        c = c.part("text_config")
    layers = c.size("num_hidden_layers")
    sparse = _dots3_sparse(c, layers)
    a = read_latent(c)
    s = latent_sizes(c, a, dense=not all(sparse))
    mix = read_mixture(c)
    own = "moe_shared_expert_intermediate_size"
    shared = c.size(own if c.data.get(own) is not None else "shared_experts_intermediate_size")
    mix = replace(mix, shared=shared * c.size("n_shared_experts"))
    window = c.size("sliding_window") if c.data.get("sliding_window") is not None else None
    if window is None:
        window = c.size("sliding_window_size", default=512)
    kinds = _dots3_kinds(c, layers)
    latents = _dots3_latents(c, a, kinds)

    def mixer(key: tuple[str, Latent, bool]) -> Layer:
        kind, own_sizes, _ = key
        switches = choosing(c, s, own_sizes, own=True) if kind == "indexed_attention" else {}
        return own_sizes.layer(
            s.hidden_size,
            window=window if kind == "sliding_attention" else None,
            rope_norm="k_rope_only_layernorm",
            gate=OutputGate(s.hidden_size, own_sizes.heads, own_sizes.value, name="g_proj", per="head"),
            **switches,
        )

    return decoder(
        c,
        s,
        list(zip(kinds, latents, sparse, strict=True)),
        mixer,
        lambda key: mix.layer(s) if key[2] else gated_mlp(s),
        symbols={**a.symbols, **mix.symbols},
    )


def _dots3_sparse(c: Config, layers: int) -> list[bool]:
    """Which layers are mixtures; `moe_layer_freq` may be a list."""
    if c.data.get("mlp_layer_types") is not None:
        return listed_sparse(c, layers, lambda _: True)
    frequency = c.data.get("moe_layer_freq", 1)
    if isinstance(frequency, (list, tuple)):
        listed = c.ints("moe_layer_freq")
        if len(listed) < layers:
            raise c.error("moe_layer_freq", f"one entry for each of {layers} layers")
        chosen = [bool(listed[i]) for i in range(layers)]
    else:
        every = c.size("moe_layer_freq", default=1)
        chosen = [i % every == 0 for i in range(layers)]
    return [a and b for a, b in zip(dense_first(c, layers), chosen, strict=True)]


def _dots3_kinds(c: Config, layers: int) -> list[str]:
    """Kind of each layer; older files call the layers with an indexer `full_attention` and say `use_dsa`."""
    listed = c.data.get("per_layer_config") is not None
    use_dsa = c.flag("use_dsa", default=True) if c.data.get("use_dsa") is not None or not listed else None
    same_kinds(c, layers, "sliding_attention", "full_attention", *DSA)
    kinds = c.pattern("layer_types", layers)
    if kinds is None:
        wide = "full_attention" if use_dsa is False else "indexed_attention"
        all_wide = not c.flag("use_sliding_window", default=True)
        kinds = [wide if all_wide or i < 2 or i % 4 == 1 else "sliding_attention" for i in range(layers)]
    if use_dsa is not None:
        old, new = (
            ("full_attention", "indexed_attention") if use_dsa else ("indexed_attention", "full_attention")
        )
        kinds = [new if kind == old else kind for kind in kinds]
    return ["indexed_attention" if kind in DSA else kind for kind in kinds]


def _dots3_latents(c: Config, a: Latent, kinds: list[str]) -> list[Latent]:
    """The sizes of each layer's attention: by `per_layer_config`, else `swa_…` for those with a window."""
    if c.data.get("per_layer_config") is not None:
        return _listed_latents(c, a, len(kinds))
    if "sliding_attention" not in kinds:
        return [a] * len(kinds)
    nope = c.size("swa_qk_nope_head_dim")
    rope_key = "swa_qk_rope_head_dim"
    rope = c.size(rope_key) if c.data.get(rope_key) is not None else c.size("swa_head_dim") - nope
    if rope < 1:
        raise c.error("swa_head_dim", f"more than `swa_qk_nope_head_dim` = {nope}")
    local = replace(
        a,
        heads=c.size("swa_num_attention_heads"),
        query_rank=c.size("swa_q_lora_rank"),
        rank=c.size("swa_kv_lora_rank"),
        nope=nope,
        rope=rope,
        value=c.size("swa_v_head_dim"),
    )
    return [local if kind == "sliding_attention" else a for kind in kinds]


def _listed_latents(c: Config, a: Latent, layers: int) -> list[Latent]:
    """The sizes of each layer's attention with the overrides of `per_layer_config`."""
    found = [a] * layers
    listed = c.part("per_layer_config")
    for name in listed.data:
        number = str(name)
        if not number.isdecimal() or len(number) > 9 or int(number) >= layers:
            raise BadConfig(f"{listed.where}: got {shorten(name)}, expected numbers of layers below {layers}")
        change = listed.part(name)
        for key in change.data:
            if key not in LAYERWISE and key not in FOLLOWS:
                raise UnsupportedArchitecture(
                    f"{change.where}.{shorten(key)}: a difference between layers that is not known here"
                )
        sizes: dict[str, Any] = {
            field: change.size(key, minimum=0 if field == "nope" else 1)
            for key, field in LAYERWISE.items()
            if key in change.data
        }
        found[int(number)] = replace(a, **sizes)
    return found


def hy_v4(c: Config) -> Model:
    """Hunyuan HY 4: hyper-connections without mixing, gated latent attention with sinks, shared choices of keys."""
    layers = c.size("num_hidden_layers")
    sparse = listed_sparse(c, layers, lambda i: i > 0)
    same_kinds(c, layers, *DSA)
    own = shared_choices(c, layers, lambda i: i == 0 or (i - 1) % 4 == 0)
    a = read_latent(c)
    s = latent_sizes(c, a, dense=not all(sparse))
    mix, streams = read_mixture(c), c.size("hc_mult", maximum=1 << 10)

    def block(key: tuple[bool, bool]) -> HyperBlock:
        gate = OutputGate(s.hidden_size, a.heads, a.value)
        mixer = a.layer(s.hidden_size, gate=gate, sinks=True, **choosing(c, s, a, own=key[0]))
        mlp = mix.layer(s) if key[1] else gated_mlp(s)
        return HyperBlock(s.hidden_size, mixer, mlp, RMS, streams=streams, iterations=None)

    keys = list(zip(own, sparse, strict=True))
    extras = (("model.hc_head", HyperStem(streams, s.hidden_size, norm_after=True)),)
    return assemble(
        c, s, block, keys, norm=RMS, extras=extras, symbols={**a.symbols, **mix.symbols, "n": streams}
    )


#: DeepSeek V4's kinds of layers, and the numbers by which its published files call them
RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def deepseek_v4(c: Config) -> Model:
    """DeepSeek V4: hyper-connections, windows with compressed entries behind, all mixtures (some routed by a table)."""
    layers = c.size("num_hidden_layers")
    heads, dim = c.size("num_attention_heads"), c.size("head_dim")
    experts, k = counts(c, "n_routed_experts", "num_local_experts")
    width = c.size("moe_intermediate_size", "intermediate_size")
    mix = Mixture(width, experts, k, width)
    groups, streams = c.size("o_groups"), c.size("hc_mult", maximum=1 << 10)
    c.divides("o_groups", groups, "num_attention_heads", heads)
    s = Sizes(
        hidden_size=c.size("hidden_size"),
        num_layers=layers,
        heads=heads,
        kv_heads=1,
        head_dim=dim,
        vocab_size=c.size("vocab_size"),
        intermediate_size=width,
        activation=c.choice("hidden_act", ACTIVATIONS, "silu"),
        tied=c.flag("tie_word_embeddings", default=False),
        max_length=read_max_length(c),
    )
    rates = _rates(c)
    window, rank = c.size("sliding_window", default=128), c.size("q_lora_rank")
    group_rank, mlp_bias = c.size("o_lora_rank"), c.flag("mlp_bias", default=False)

    def block(kind: str) -> HyperBlock:
        indexer = None
        if kind == "compressed_sparse_attention":
            indexer = EntryIndexer(
                s.hidden_size,
                rank,
                c.size("index_n_heads"),
                c.size("index_head_dim"),
                rates[kind],
                c.size("index_topk", default=512),
            )
        mixer = CompressedAttention(
            s.hidden_size,
            heads,
            dim,
            q_lora_rank=rank,
            groups=groups,
            group_rank=group_rank,
            window=window,
            rate=rates.get(kind),
            indexer=indexer,
        )
        mlp = mix.layer(s, mlp_bias=mlp_bias)
        turns = c.size("hc_sinkhorn_iters", default=20, maximum=10_000)
        return HyperBlock(s.hidden_size, mixer, mlp, RMS, streams=streams, iterations=turns)

    symbols = {**mix.symbols, "c_q": rank, "c_o": groups * group_rank, "n": streams, "kv": dim}
    extras = (("model.hc_head", HyperStem(streams, s.hidden_size, norm_after=False)),)
    return assemble(c, s, block, _v4_kinds(c, layers), norm=RMS, extras=extras, symbols=symbols)


def _rates(c: Config) -> dict[str, int]:
    """Tokens per compressed entry, by kind of layer."""
    rates = dict(RATES)
    if c.data.get("compress_rates") is not None:
        given = c.part("compress_rates")
        rates = {kind: given.size(kind) for kind in RATES if kind in given.data}
    for kind, older in zip(RATES, ("compress_rate_csa", "compress_rate_hca"), strict=True):
        if c.data.get(older) is not None:
            rates[kind] = c.size(older)
    return rates


def _v4_kinds(c: Config, layers: int) -> list[str]:
    """Kind of each layer, the lists perhaps longer than the model: read from the front."""
    known = tuple(KINDS.values())
    key = "layer_types" if c.data.get("layer_types") is not None else "compress_ratios"
    listed = c.data.get(key)
    if listed is None:
        odd, even = known[1], known[2]
        return [even if i < 2 or i % 2 == 0 else odd for i in range(layers)]
    if not isinstance(listed, (list, tuple)) or len(listed) < layers:
        raise c.error(key, f"one entry for each of {layers} layers")
    kinds = []
    for entry in listed:
        number = isinstance(entry, int) and not isinstance(entry, bool)
        kind = KINDS.get(entry) if key == "compress_ratios" and number else entry
        if not isinstance(kind, str) or kind not in known:
            expected = ", ".join(f"`{k}`" for k in (KINDS if key == "compress_ratios" else known))
            raise BadConfig(f"{c.where}.{key}: got {shorten(entry)}, expected one of {expected}")
        kinds.append(kind)
    return kinds[:layers]

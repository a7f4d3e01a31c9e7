"""Qwen 4 experimental (text): delta nets and indexed attention on several residual streams, hashed n-grams."""

from __future__ import annotations

from math import isqrt

from loadsheet.arch.config import Config
from loadsheet.arch.families.delta import (
    DELTA,
    delta_symbols,
    hybrid_sizes,
    interval_kinds,
    qwen_delta,
    shared_moe,
    text_of,
)
from loadsheet.arch.families.parts import GEMMA_RMS, Sizes, assemble
from loadsheet.arch.layers.low_rank_streams import (
    GatedStreams,
    IndexedAttention,
    NGrams,
    QueryIndexer,
    StreamsBlock,
    StreamsStem,
)
from loadsheet.arch.model import Block, Model

INDEXED = "indexed_attention"
#: what files call layers of indexed attention
ALIASES = {"full_attention": INDEXED, "attention": INDEXED, "qwen_sparse_attention": INDEXED}


def is_prime(n: int) -> bool:
    """Whether n is a prime number."""
    if n < 4 or n % 2 == 0:
        return n in (2, 3)
    return all(n % divisor for divisor in range(3, isqrt(n) + 1, 2))


def primes_from(start: int, count: int) -> list[int]:
    """The first `count` primes that are at least `start`.

    >>> primes_from(10, 3), primes_from(2, 2)
    ([11, 13, 17], [2, 3])
    """
    found: list[int] = []
    while len(found) < count:
        if is_prime(start):
            found.append(start)
        start += 1
    return found


def qwen4_exp(c: Config) -> Model:
    """The text model."""
    data = dict(c.data)
    if isinstance(data.get("layer_types"), list):
        data["layer_types"] = [ALIASES.get(k, k) if isinstance(k, str) else k for k in data["layer_types"]]
    part = Config(data, c.where)
    part.defaulted = c.defaulted
    return _build(part)


def qwen4_exp_wrapper(c: Config) -> Model:
    """The text model of a file with vision."""
    return qwen4_exp(text_of(c))


def _build(c: Config) -> Model:
    s = hybrid_sizes(c, tied=False, width=None)
    bias = c.flag("attention_bias", default=False)
    make, symbols = shared_moe(c, s)
    delta = qwen_delta(c, s, "split")
    kinds = interval_kinds(c, s.num_layers, INDEXED)
    streams, rank = c.size("hc_count", minimum=2, maximum=1024), c.size("hc_lowrank")
    if INDEXED in kinds:
        index_heads, index_dim = c.size("indexer_n_heads"), c.size("indexer_head_dim")
        budget, ratio = c.size("indexer_budget"), c.size("indexer_compress_ratio")
        if c.size("indexer_kv_heads") != 1:
            raise c.error("indexer_kv_heads", "1")
        c.divides("indexer_compress_ratio", ratio, "indexer_budget", budget)
    tables = ngram_tables(c, s, kinds)

    def around() -> tuple[GatedStreams, GatedStreams]:
        one, two = (GatedStreams(streams, s.hidden_size, rank, GEMMA_RMS) for _ in range(2))
        return one, two

    def block(key: tuple[str, int | None]) -> Block:
        kind, rows = key
        if kind == DELTA:
            ngrams = None if rows is None else make_ngrams(c, s, streams, rows)
            return StreamsBlock(delta, make(), around(), name="linear_attn", ngrams=ngrams)
        mixer = IndexedAttention(
            s.hidden_size, s.heads, s.kv_heads, s.head_dim, bias=bias, qk_norm="head",
            norm_style=GEMMA_RMS, output_gate=True,
        )  # fmt: skip
        mixer.choose_by(QueryIndexer(s.hidden_size, index_heads, index_dim, budget, ratio, GEMMA_RMS))
        return StreamsBlock(mixer, make(), around(), name="self_attn")

    keys = [(kind, tables.get(i)) for i, kind in enumerate(kinds)]
    stem = StreamsStem(streams, s.hidden_size, rank, GEMMA_RMS)
    symbols |= {**delta_symbols(delta), "n": streams, "n·d": streams * s.hidden_size, "r": rank}
    return assemble(
        c, s, block, keys, norm=None, extras=(("model.hyper_connection_mixer", stem),), symbols=symbols
    )


def ngram_tables(c: Config, s: Sizes, kinds: list[str]) -> dict[int, int]:
    """Layer -> rows of its table of n-grams: as many tables as heads, each as long as a prime of its own."""
    layers = sorted(set(c.ints("ple_layer_ids")))  # counted from 1
    if not layers:
        return {}
    if layers[0] < 1 or layers[-1] > s.num_layers or any(kinds[i - 1] != DELTA for i in layers):
        raise c.error("ple_layer_ids", "layers of linear attention, counted from 1")
    heads = ngram_heads(c)
    if heads * len(layers) > 4096:
        raise c.error("heads_per_ngram", "no more than 4,096 tables in all")
    multiple = c.size("make_ngram_vocab_size_divisible_by", default=128)
    primes = primes_from(c.size("ngram_vocab_size_base"), heads * len(layers))
    totals = [sum(primes[i * heads : (i + 1) * heads]) for i in range(len(layers))]
    return {layer - 1: -(-total // multiple) * multiple for layer, total in zip(layers, totals, strict=True)}


def ngram_heads(c: Config) -> int:
    """Tables per layer: some for each length of n-gram from 2 on."""
    heads: int = (c.size("ngram_size", minimum=2, maximum=64) - 1) * c.size("heads_per_ngram", maximum=4096)
    return heads


def make_ngrams(c: Config, s: Sizes, streams: int, rows: int) -> NGrams:
    """The n-grams of one layer."""
    heads, width = ngram_heads(c), c.size("ple_embed_dim", default=s.hidden_size)
    if width % heads:
        raise c.error("ple_embed_dim", f"a multiple of the n-gram heads = {heads}")
    return NGrams(
        streams,
        s.hidden_size,
        rows=rows,
        tables=heads,
        embed_dim=width,
        kernel=c.size("ple_conv_kernel_size"),
        dilation=c.size("ngram_size"),
        norm=GEMMA_RMS,
    )

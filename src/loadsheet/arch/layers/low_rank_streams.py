"""Qwen 4's residual: several streams, each input of a sub-layer a learned mix of them; hashed n-grams; its indexer."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.layers.attention import CacheTensor
from loadsheet.arch.layers.base import Embedding, Layer, Linear, Norm, NormStyle, Stem
from loadsheet.arch.layers.delta import QueryGatedAttention
from loadsheet.arch.model import Block
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_sparse import compressed_pairs, convolution, index_scores, without_gradients
from loadsheet.arch.ops_streams import average, token_product
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work


class GatedStreams(Layer):
    """Collapses n streams into one, number by number, with weights made through a narrow layer; spreads it again."""

    def __init__(
        self, streams: int, hidden_size: int, rank: int, norm: NormStyle, *, spreads: bool = True
    ) -> None:
        super().__init__()
        self.streams, self.hidden_size, self.width = streams, hidden_size, streams * hidden_size
        width = self.width

        def linear(name: str, n_in: int, n_out: int, symbol: str) -> Linear:
            # one number per stream is narrower than any adapter: no target of LoRA
            tag = "" if symbol == "n" else name
            made = Linear(n_in, n_out, role="other", symbol=symbol, tag=tag, tp="replicated")
            self.add(name, made)
            return made

        self.norm: Norm = self.add("hc_norm", Norm(hidden_size, norm, groups=streams, shape=(width,)))
        self.down = linear("input_mix_weight_down", width, rank, "r")
        self.up = linear("input_mix_weight_up", rank, width, "n·d")
        self.inject: Linear | None = linear("block_inject_weight", width, streams, "n") if spreads else None

    def collapse(self, x: Tensor, tape: Ops) -> tuple[Tensor, Tensor]:
        """(B·T, n·d) → (B·T, d), and the normed streams."""
        normed = self.norm.forward(x, tape)
        weights = self.up.forward(tape.pointwise("silu", self.down.forward(normed, tape)), tape)
        weighed = tape.multiply(normed, tape.pointwise("sigmoid", weights))
        return average(tape, weighed, self.hidden_size, "d"), normed

    def spread(self, out: Tensor, x: Tensor, normed: Tensor, tape: Ops) -> Tensor:
        """The sub-layer's output (B·T, d), added to every stream by a weight of the token."""
        assert self.inject is not None
        weights = tape.pointwise("sigmoid", self.inject.forward(normed, tape))
        return tape.add(x, token_product(tape, weights, out, width=self.width, symbol="n·d", macs=0))


class StreamsStem(Stem):
    """Copies the embedding to every stream; after the last block one mix of them goes to the head."""

    def __init__(self, streams: int, hidden_size: int, rank: int, norm: NormStyle) -> None:
        super().__init__()
        self.mixer: GatedStreams = self.add("", GatedStreams(streams, hidden_size, rank, norm, spreads=False))

    def begin(self, x: Tensor, ids: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, n·d)."""
        return tape.copy(x, self.mixer.width, "n·d")

    def end(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, n·d) → (B·T, d)."""
        return self.mixer.collapse(x, tape)[0]


class NGrams(Layer):
    """Adds to every stream what hashed n-grams of the last tokens look up, gated by the stream itself."""

    def __init__(
        self,
        streams: int,
        hidden_size: int,
        *,
        rows: int,
        tables: int,
        embed_dim: int,
        kernel: int,
        dilation: int,
        norm: NormStyle,
    ) -> None:
        super().__init__()
        n, d, self.width = streams, hidden_size, streams * hidden_size
        self.tables, self.embed_dim, self.hidden_size = tables, embed_dim, d
        self.kernel, self.reach, self.context = kernel, (kernel - 1) * dilation, dilation - 1
        self.table: Embedding = self.add(
            "ple_embedding.ngram_embedding", Embedding(rows, embed_dim // tables, symbol="e")
        )

        def linear(name: str, n_out: int, symbol: str) -> Linear:
            made = Linear(embed_dim, n_out, role="other", symbol=symbol, tag=name)
            self.add(name, made)
            return made

        self.key, self.value = linear("key_proj", self.width, "n·d"), linear("value_proj", d, "d")
        self.norms: list[Norm] = [
            self.add(name, Norm(d, norm, groups=n, shape=(self.width,)))
            for name in ("norm_key", "norm_query", "norm_conv")
        ]
        self.numel = self.own("conv1d.weight", (self.width, 1, kernel), "other").numel

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, n·d) → (B·T, n·d)."""
        ids = tape.new(x.rows, self.tables, "t", "int64")
        found = self.table.forward(ids, tape, rows=x.rows * self.tables)
        found = tape.view(found, self.embed_dim, "e", rows=x.rows)
        key = self.norms[0].forward(self.key.forward(found, tape), tape)
        value = self.value.forward(found, tape)
        query = self.norms[1].forward(x, tape)
        gate = tape.pointwise(
            "sigmoid", average(tape, tape.multiply(key, query), x.width // self.hidden_size, "n")
        )
        gated = token_product(tape, gate, value, width=self.width, symbol="n·d", macs=0)
        normed = self.norms[2].forward(gated, tape)
        mixed = convolution(tape, normed, extra=0, kernel=self.kernel, per_group=1, numel=self.numel)
        return tape.add(x, tape.add(gated, tape.pointwise("silu", mixed)))

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The convolution's last inputs, and the last tokens."""
        operands = {"B": work.sequences, "n·d": self.width, "K": self.reach}
        elements = work.sequences * self.width * self.reach
        last = {"B": work.sequences, "t": self.context}
        count = work.sequences * self.context
        tokens = CacheTensor("last tokens", count, "state", "B·t", last, "int64")
        return (CacheTensor("convolution state", elements, "state", "B·n·d·K", operands, "bf16"), tokens)


class QueryIndexer(Layer):
    """Scores blocks of `ratio` keys, meaned, with a few heads, and chooses `budget` tokens by whole blocks."""

    def __init__(
        self, hidden_size: int, heads: int, head_dim: int, budget: int, ratio: int, norm: NormStyle
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.ratio = heads, head_dim, ratio
        self.sees = budget + ratio - 1  # the chosen ones and the tail that is no whole block yet
        self.qk: Linear = self.add(
            "index_qk_proj",
            Linear(hidden_size, (heads + 1) * head_dim, role="attention", symbol="i", tag="index_qk_proj"),
        )
        self.q_norm: Norm = self.add("q_layernorm", Norm(head_dim, norm, groups=heads))
        self.k_norm: Norm = self.add("k_layernorm", Norm(head_dim, norm))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → scores: nothing that a gradient flows through."""
        work = tape.work
        with without_gradients(tape):
            packed = self.qk.forward(x, tape)
            q = self.q_norm.forward(tape.view(packed, self.heads * self.head_dim, "i"), tape)
            self.k_norm.forward(tape.view(packed, self.head_dim, "i"), tape)
            return index_scores(
                tape,
                tape.rotary(q, None),
                work.context // self.ratio,
                heads=self.heads,
                dim=self.head_dim,
                pairs=compressed_pairs(work, self.ratio),
                pairs_full=compressed_pairs(work, self.ratio),
                summed=False,
                tensors=0,  # transformers goes query by query
            )

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """One key per token."""
        operands = {"B": work.sequences, "S": work.context, "d_i": self.head_dim}
        elements = work.sequences * work.context * self.head_dim
        return (CacheTensor("indexer keys", elements, "kv", "B·S·d_i", operands),)


class IndexedAttention(QueryGatedAttention):
    """Attention with a gate beside the queries, over the keys that an indexer chooses."""

    def choose_by(self, indexer: QueryIndexer) -> IndexedAttention:
        """Register the indexer; returns itself."""
        self.indexer: QueryIndexer = self.add("indexer", indexer)
        self.sees = indexer.sees
        return self

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        self.indexer.forward(x, tape)
        return super().forward(x, tape)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Keys and values of every token, and the indexer's keys."""
        return (*super().cache(work), *self.indexer.cache(work))


class StreamsBlock(Block):
    """Mixer and MLP, each between a collapse of the streams and a spread; n-grams added before, in some layers."""

    def __init__(
        self,
        mixer: Layer,
        mlp: Layer,
        around: tuple[GatedStreams, GatedStreams],
        *,
        name: str,
        ngrams: NGrams | None = None,
    ) -> None:
        super().__init__(mixer, mlp, names=(name, "mlp"))
        self.around: tuple[GatedStreams, GatedStreams] = around
        self.add("attn_hyper_connection", around[0])
        self.add("mlp_hyper_connection", around[1])
        self.ngrams: NGrams | None = self.add("ple", ngrams)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, n·d) → (B·T, n·d)."""
        if self.ngrams is not None:
            x = self.ngrams.forward(x, tape)
        parts: tuple[Any, Any] = (self.mixer, self.mlp)
        for part, around in zip(parts, self.around, strict=True):
            one, normed = around.collapse(x, tape)
            x = around.spread(part.forward(one, tape), x, normed, tape)
        return x

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """What the mixer keeps, and the n-grams."""
        extra = self.ngrams.cache(work) if self.ngrams is not None else ()
        return (*self.mixer.cache(work), *extra)

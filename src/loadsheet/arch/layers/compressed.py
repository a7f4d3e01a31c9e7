"""DeepSeek V4's attention: a window of tokens, and behind it compressed entries that each stand for several.

Queries of every head from a latent, one head whose keys are also the values, sinks, and an output
projection in groups. A compressor turns every `rate` tokens into one entry; on layers with overlap an
indexer chooses among the entries.
"""

from __future__ import annotations

from typing import Any

from loadsheet.arch.layers.attention import CacheTensor
from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_sparse import (
    attention_over,
    compressed_pairs,
    index_scores,
    pool,
    without_gradients,
)
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work
from loadsheet.units import smallest, where

_RMS = NormStyle("rms")
_UNIT = NormStyle("rms", weight=False)


class Compressor(Layer):
    """Every `rate` tokens become one entry: their values, weighted by a softmax over gates and positions.

    `overlap`: each entry also reads the `rate` tokens before, through projections of their own.
    """

    def __init__(self, hidden_size: int, head_dim: int, rate: int, *, overlap: bool) -> None:
        super().__init__()
        self.head_dim, self.rate, self.overlap = head_dim, rate, overlap
        self.width = 2 * head_dim if overlap else head_dim
        self.own("position_bias", (rate, self.width), "attention")
        self.kv: Linear = self.add("kv_proj", _linear("kv_proj", hidden_size, self.width, "c"))
        self.gate: Linear = self.add("gate_proj", _linear("gate_proj", hidden_size, self.width, "c"))
        self.norm: Norm = self.add("kv_norm", Norm(head_dim, _RMS))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·⌊T/rate⌋, head_dim)."""
        kv, gate = self.kv.forward(x, tape), self.gate.forward(x, tape)
        entries = tape.work.sequences * (tape.work.new // self.rate)
        if self.overlap:  # laid out anew: each entry's own tokens beside those before
            kv, gate = tape.copy(kv), tape.copy(gate)
        biased = tape.add(gate, gate)  # of the broadcast positions: another tensor of this size
        weights = tape.cast(tape.softmax(biased, "fp32"), kv.dtype)
        entry = pool(tape, tape.multiply(kv, weights), entries, self.head_dim, "c")
        return tape.rotary(self.norm.forward(entry, tape), None)

    def cache(self, work: Work, name: str) -> tuple[CacheTensor, ...]:
        """The entries made so far, and the tokens that wait until their entry is full."""
        made, waiting = work.context // self.rate, work.context % self.rate
        operands = {"B": work.sequences, "S": work.context, "m": self.rate, "d_c": self.head_dim}
        elements = work.sequences * made * self.head_dim
        states = 2 * work.sequences * waiting * self.width  # values and gates
        if self.overlap:  # half of the last full window's, kept for the next entry
            states = states + where(made > 0, 2 * work.sequences * self.rate * self.head_dim, 0)
        return (
            CacheTensor(f"{name} entries", elements, "kv", "B·⌊S/m⌋·d_c", operands),
            CacheTensor(f"{name} state", states, "state", "2·B·(S mod m)·w + overlap", operands),
        )


class EntryIndexer(Compressor):
    """Chooses the `chosen` best entries of a query by narrow entries of its own; without gradients."""

    def __init__(
        self, hidden_size: int, q_lora_rank: int, heads: int, head_dim: int, rate: int, chosen: int
    ) -> None:
        super().__init__(hidden_size, head_dim, rate, overlap=True)
        self.heads, self.chosen = heads, chosen
        self.q: Linear = self.add("q_b_proj", _linear("q_b_proj", q_lora_rank, heads * head_dim, "i"))
        self.weights: Linear = self.add(
            "scorer.weights_proj", _linear("weights_proj", hidden_size, heads, "i")
        )

    def choose(self, x: Tensor, latent: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) and the query latent → scores of the entries."""
        work, training = tape.work, tape.training
        with without_gradients(tape):
            self.forward(x, tape)
            q = tape.rotary(self.q.forward(latent, tape), None)
            self.weights.forward(x, tape)
            entries = work.context // self.rate
            taken = q
            if tape.execution.kernels == "eager":
                taken = tape.copy(tape.cast(q, "fp32"))  # from (B, h, T, d) to the order of the product
            scores = index_scores(
                tape,
                taken,
                entries,
                heads=self.heads,
                dim=self.head_dim,
                pairs=compressed_pairs(work, self.rate),
                pairs_full=work.new * entries,
                summed=False,
                tensors=3 if training else 2,
                spread=True,
                graph=training,
            )
            tape.records[-1].alive = (q.storage,)
            return scores


class CompressedAttention(Layer):
    """One layer of it; `rate` None: the window alone."""

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        head_dim: int,
        *,
        q_lora_rank: int,
        groups: int,
        group_rank: int,
        window: int,
        rate: int | None = None,
        indexer: EntryIndexer | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.window = heads, head_dim, window
        width = heads * head_dim
        self.own("sinks", (heads,), "other")
        self.q_down: Linear = self.add("q_a_proj", _linear("q_a_proj", hidden_size, q_lora_rank, "c_q"))
        self.q_norm: Norm = self.add("q_a_norm", Norm(q_lora_rank, _RMS))
        self.q_up: Linear = self.add("q_b_proj", _linear("q_b_proj", q_lora_rank, width, "q", "column"))
        self.q_unit = Norm(head_dim, _UNIT, groups=heads)
        self.kv: Linear = self.add("kv_proj", _linear("kv_proj", hidden_size, head_dim, "kv"))
        self.kv_norm: Norm = self.add("kv_norm", Norm(head_dim, _RMS))
        # each group of heads has a matrix of its own, one below the other: no target for an adapter
        self.o_down: Linear = self.add("o_a_proj", _linear("", width // groups, groups * group_rank, "c_o"))
        self.o_up: Linear = self.add(
            "o_b_proj", _linear("o_b_proj", groups * group_rank, hidden_size, "d", "row")
        )
        compressor = None
        if rate is not None:
            compressor = Compressor(hidden_size, head_dim, rate, overlap=indexer is not None)
        self.compressor: Compressor | None = self.add("compressor", compressor)
        self.indexer = indexer
        if compressor is not None:
            compressor.add("indexer", indexer)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        work = tape.work
        latent = self.q_norm.forward(self.q_down.forward(x, tape), tape)
        table = tape.table("rotary", self.head_dim)
        q = tape.rotary(self.q_unit.forward(self.q_up.forward(latent, tape), tape), table)
        kv = tape.rotary(self.kv_norm.forward(self.kv.forward(x, tape), tape), table)
        keys, pairs, pairs_full = work.context, work.pairs(self.window), work.pairs_full()
        if self.compressor is not None:
            entries = self.compressor.forward(x, tape)
            made, rate = work.context // self.compressor.rate, self.compressor.rate
            chosen = None
            if self.indexer is not None:
                self.indexer.choose(x, latent, tape)
                chosen = self.indexer.chosen
            joined = tape.new(kv.rows + entries.rows, self.head_dim, "kv", kv.dtype, kv.grad or entries.grad)
            tape.add_record("copy", (kv, entries), joined)
            kv, keys = joined, keys + made
            pairs, pairs_full = pairs + compressed_pairs(work, rate, chosen), pairs_full + work.new * made
        if tape.execution.attention == "eager":
            kv = tape.copy(kv, self.heads * self.head_dim, "q")
        mixed = attention_over(
            tape,
            q,
            kv,
            heads=self.heads,
            dim=self.head_dim,
            keys=keys,
            pairs=pairs,
            pairs_full=pairs_full,
        )
        mixed = tape.rotary(mixed, table)  # turned back, since the values were turned with the keys
        return self.o_up.forward(self.o_down.forward(mixed, tape), tape)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The window's keys, which are also its values; entries and states of the compressors.

        In transformers a layer of the window alone keeps them as keys and once more as values.
        """
        length = smallest(work.context, self.window)
        operands: dict[str, Any] = {"B": work.sequences, "S": length, "d_h": self.head_dim}
        elements = work.sequences * length * self.head_dim
        if self.compressor is None:
            return (CacheTensor("keys and values", 2 * elements, "kv", "2·B·S·d_h", operands),)
        own = CacheTensor("keys", elements, "kv", "B·S·d_h", operands)
        more = self.indexer.cache(work, "index") if self.indexer is not None else ()
        return (own, *self.compressor.cache(work, "compressed"), *more)


def _linear(name: str, n_in: int, n_out: int, symbol: str, tp: str = "replicated") -> Linear:
    split: Any = tp
    return Linear(n_in, n_out, role="attention", symbol=symbol, tag=name, tp=split)

"""Indexers: a few narrow heads that score every key and choose those that attention then uses."""

from __future__ import annotations

from loadsheet.arch.layers.attention import Attention, CacheTensor
from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_sparse import index_scores, without_gradients
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work


class Indexer(Layer):
    """DeepSeek V3.2's lightning indexer (arXiv 2512.02556, section 2.1): the `chosen` best keys of a query.

    Its queries come from the latent of the attention's queries, its single key head from x. It runs
    without gradients.
    """

    def __init__(self, hidden_size: int, q_lora_rank: int, heads: int, head_dim: int, chosen: int) -> None:
        super().__init__()
        self.heads, self.head_dim, self.chosen = heads, head_dim, chosen
        self.q: Linear = self.add("wq_b", _linear("wq_b", q_lora_rank, heads * head_dim))
        self.k: Linear = self.add("wk", _linear("wk", hidden_size, head_dim))
        self.k_norm: Norm = self.add("k_norm", Norm(head_dim, NormStyle("layer", bias=True)))
        self.weights: Linear = self.add("weights_proj", _linear("weights_proj", hidden_size, heads))

    def forward(self, x: Tensor, latent: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) and the query latent (B·T, c_q) → scores, of which the best are taken."""
        work = tape.work
        with without_gradients(tape):
            projected = self.q.forward(latent, tape)
            q = tape.rotary(projected, None)
            tape.rotary(self.k_norm.forward(self.k.forward(x, tape), tape), None)
            self.weights.forward(x, tape)
            scores = index_scores(
                tape,
                q,
                work.context,
                heads=self.heads,
                dim=self.head_dim,
                pairs=work.pairs(),
                pairs_full=work.pairs_full(),
                spread=True,
            )
            tape.records[-1].alive = (projected.storage, q.storage)  # parts of them have names until the end
            return scores

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """One key per token."""
        return (_index_keys(work, self.head_dim),)


class BlockIndexer(Layer):
    """MiniMax M3's indexer: scores keys, takes the best of each block of them and chooses whole blocks."""

    def __init__(self, hidden_size: int, heads: int, head_dim: int, norm: NormStyle) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.q: Linear = self.add("q_proj", _linear("q_proj", hidden_size, heads * head_dim))
        self.k: Linear = self.add("k_proj", _linear("k_proj", hidden_size, head_dim))
        self.q_norm: Norm = self.add("q_norm", Norm(head_dim, norm, groups=heads))
        self.k_norm: Norm = self.add("k_norm", Norm(head_dim, norm))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → scores, of which the best blocks are taken: nothing that a gradient flows through."""
        work = tape.work
        with without_gradients(tape):
            q = tape.rotary(self.q_norm.forward(self.q.forward(x, tape), tape), None)
            tape.rotary(self.k_norm.forward(self.k.forward(x, tape), tape), None)
            return index_scores(
                tape,
                q,
                work.context,
                heads=self.heads,
                dim=self.head_dim,
                pairs=work.pairs(),
                pairs_full=work.pairs_full(),
                summed=False,
            )

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """One key per token."""
        return (_index_keys(work, self.head_dim),)


class BlockSparseAttention(Attention):
    """Attention whose queries use at most `blocks` blocks of `block_size` keys, chosen by an indexer."""

    def choose_by(self, indexer: BlockIndexer, block_size: int, blocks: int) -> BlockSparseAttention:
        """Register the indexer; returns itself."""
        self.indexer: BlockIndexer = self.add("indexer", indexer)
        self.sees = block_size * blocks
        return self

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        self.indexer.forward(x, tape)
        return super().forward(x, tape)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Keys and values of every token, and the indexer's keys."""
        return (*super().cache(work), *self.indexer.cache(work))


def _linear(name: str, n_in: int, n_out: int) -> Linear:
    return Linear(n_in, n_out, role="attention", symbol="i", tag=name, tp="replicated")


def _index_keys(work: Work, head_dim: int) -> CacheTensor:
    operands = {"B": work.sequences, "S": work.context, "d_i": head_dim}
    return CacheTensor("indexer keys", work.sequences * work.context * head_dim, "kv", "B·S·d_i", operands)

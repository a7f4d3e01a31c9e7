"""CPM-Ant: a prompt before every text, and a learned bias of the scores for positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.families.gpt_dense import Nested, probability, square_attention
from loadsheet.arch.families.parts import FULL, RMS, Sizes, assemble
from loadsheet.arch.layers.attention import AttentionNames, CacheTensor
from loadsheet.arch.layers.base import Embedding, Layer, Norm, Stem
from loadsheet.arch.layers.mlp import GatedMLP
from loadsheet.arch.model import Block, Model
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work
from loadsheet.units import where


def prompted(work: Work, length: int) -> Work:
    """The same work with a prompt before each text: new with the first token, in the cache afterwards."""
    first = where(work.past == 0, length, 0)
    return replace(work, new=work.new + first, past=work.past + length - first)


class Prompt(Stem):
    """The prompt's vectors, looked up in the embedding of the tokens, before the text and off again after it."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def begin(self, x: Tensor, ids: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·(P + T), d)."""
        longer = tape.new(prompted(tape.work, self.length).tokens, x.width, x.symbol, x.dtype, x.grad)
        tape.add_record("concatenate", (x,), longer)
        return longer

    def end(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·(P + T), d) → (B·T, d)."""
        return tape.view(x, x.width, x.symbol, rows=tape.work.tokens)


class PromptedBlock(Block):
    """A block that sees prompt and text."""

    def __init__(self, mixer: Layer, mlp: Layer, length: int, **switches: Any) -> None:
        super().__init__(mixer, mlp, **switches)
        self.length = length

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·(P + T), d) → (B·(P + T), d)."""
        work = tape.work
        tape.work = prompted(work, self.length)
        try:
            return super().forward(x, tape)
        finally:
            tape.work = work

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Keys and values of prompt and text."""
        return super().cache(prompted(work, self.length))


class RelativeBias(Layer):
    """The bias of the scores by pair of segments and by bucket of distance: looked up, added to the mask."""

    def __init__(self, rows: int, heads: int) -> None:
        super().__init__()
        self.own("relative_attention_bias", (rows, heads), "embedding")


def cpmant(c: Config) -> Model:
    """CPM-Ant: RMSNorm, a gated MLP, prompts and segments in the embedding, a head that is never tied."""
    d, heads, dim = c.size("hidden_size"), c.size("num_attention_heads"), c.size("dim_head", maximum=1 << 16)
    vocab = c.size("vocab_size")
    s = Sizes(
        hidden_size=d, num_layers=c.size("num_hidden_layers"), heads=heads, kv_heads=heads, head_dim=dim,
        vocab_size=vocab, intermediate_size=c.size("dim_ff"), activation="gelu", tied=False, max_length=None,
    )  # fmt: skip
    segments, buckets = c.size("segment_types"), c.size("position_bias_num_buckets")
    prompts, length = c.size("prompt_types", minimum=0), c.size("prompt_length", minimum=0)
    dropout = probability(c, "dropout_p", 0.0)

    def block(_: Any) -> Block:
        names = AttentionNames(q="project_q", k="project_k", v="project_v", o="attention_out")
        mixer = square_attention(s, rotary=False, names=names, dropout=dropout, upcast_softmax=False)
        mlp = GatedMLP(d, s.intermediate_size, s.activation, names=("w_in.w_0", "w_in.w_1", "w_out"))
        return PromptedBlock(
            Nested("self_attention", mixer, ("layernorm_before_attention", Norm(d, RMS))),
            Nested("ffn", mlp, ("layernorm_before_ffn", Norm(d, RMS))),
            length, dropout=dropout, names=("self_att", "ffn"),
        )  # fmt: skip

    extras: tuple[tuple[str, Layer], ...] = (
        ("cpmant.segment_embedding", Embedding(segments, d)),
        ("cpmant.position_bias", RelativeBias(segments * segments + buckets, heads)),
        ("cpmant", Prompt(length)),
    )
    return assemble(
        c, s, block, [FULL] * s.num_layers, norm=RMS, embedding_name="cpmant.input_embedding",
        prefix="cpmant.encoder.layers", final_norm_name="cpmant.encoder.output_layernorm",
        embedding_rows=vocab + prompts * length, extras=extras,
    )  # fmt: skip

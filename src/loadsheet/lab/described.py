"""The lab's small models in our own terms: a config for the families, and the small GPT op by op."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from loadsheet.arch.families import build
from loadsheet.arch.layers.attention import Attention, AttentionNames
from loadsheet.arch.layers.base import Norm, NormStyle
from loadsheet.arch.layers.mlp import MLP
from loadsheet.arch.model import Block, Model, Taped
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Execution, Work
from loadsheet.compute.flops import StepFlops, step_flops

#: everything spelled out, fp32 logits taken as they are: what the lab's modules do
SPELLED_OUT = Execution(attention="eager", kernels="fused", loss="eager", upcast_logits=False)


@dataclass(frozen=True, slots=True)
class GPTSizes:
    """The lecture's small GPT; `positions` is the length of its table."""

    width: int = 256
    heads: int = 8
    layers: int = 4
    vocab: int = 1000
    positions: int = 1024
    tied: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """As the config.json of a GPT-2 with exact GELU and without dropout."""
        return {
            "model_type": "gpt2", "n_embd": self.width, "n_head": self.heads, "n_layer": self.layers,
            "vocab_size": self.vocab, "n_positions": self.positions, "n_inner": None,
            "activation_function": "gelu", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
            "tie_word_embeddings": self.tied,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LlamaSizes:
    """A Llama: RMSNorm, `kv_heads` key-value heads for `heads` query heads, SwiGLU, rotary positions."""

    width: int = 256
    heads: int = 8
    kv_heads: int = 2
    layers: int = 4
    vocab: int = 1000
    inner: int = 688
    tied: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """As a config.json."""
        return {
            "model_type": "llama", "hidden_size": self.width, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "num_hidden_layers": self.layers, "vocab_size": self.vocab,
            "intermediate_size": self.inner, "hidden_act": "silu", "max_position_embeddings": 8192,
            "tie_word_embeddings": self.tied,
        }  # fmt: skip

    @classmethod
    def of(cls, model: Model) -> LlamaSizes:
        """The sizes of a preset of that kind."""
        c = model.config or {}
        return cls(
            width=c["hidden_size"],
            heads=c["num_attention_heads"],
            kv_heads=c["num_key_value_heads"],
            layers=c["num_hidden_layers"],
            vocab=c["vocab_size"],
            inner=c["intermediate_size"],
            tied=c["tie_word_embeddings"],
        )


class WrittenOutAttention(Attention):
    """The lab's attention: q·kᵀ divided by √d_h, a bool mask made anew in each layer, softmax, times v."""

    def core(self, q: Tensor, k: Tensor, v: Tensor, tape: Ops) -> Tensor:
        """Scores, mask, softmax and mix, each an op of its own."""
        length = tape.work.new
        scores = tape.scores(q, k, heads=self.heads, key_dim=self.head_dim, window=None, chunk=None)
        mask = tape.new(length, length, "T", "bool")
        weights = tape.softmax(tape.masked(tape.pointwise("scale", scores), mask))
        mixed = tape.mix(
            weights, v, heads=self.heads, value_dim=self.head_dim, symbol="q", window=None, chunk=None
        )
        return tape.copy(mixed)  # heads side by side again


def tiny_gpt(sizes: GPTSizes) -> Model:
    """The small GPT, its blocks with the written-out attention."""
    base = build(sizes.config, "tiny GPT")
    d, norm = sizes.width, NormStyle("layer", bias=True)
    block = Block(
        WrittenOutAttention(
            d, sizes.heads, sizes.heads, d // sizes.heads, bias=True, fused_qkv=True, rotary=False,
            names=AttentionNames(qkv="c_attn", o="c_proj"),
        ),
        MLP(d, 4 * d, "gelu", bias=True, names=("c_fc", "c_proj")),
        norm_1=Norm(d, norm),
        norm_2=Norm(d, norm),
        names=("attn", "mlp"),
        norm_names=("ln_1", "ln_2", "", ""),
    )  # fmt: skip
    return replace(base, runs=((block, sizes.layers),))


def walk(model: Model, batch: int, seq: int) -> Taped:
    """One training step in fp32 on the tape; attention counted in full."""
    work = Work(batch, seq)
    return model.walk(lambda: Ops(work, SPELLED_OUT, dtype="fp32", grad_bytes=4))


def saved_bytes(taped: Taped, *, checkpointing: bool = False) -> int:
    """Bytes kept for backward; with checkpointing each block keeps its input only.

    Indices and targets are one tensor in the lab, and counted once: the targets, which the tape sees
    as somebody else's, are left out.
    """
    blocks = sum((s.input_bytes if checkpointing else s.saved) * count for s, count in taped.runs)
    return int(taped.before.saved + blocks + taped.after.saved)


def training_flops(model: Model, batch: int, seq: int) -> StepFlops:
    """FLOPs of one step, read off the tape."""
    return step_flops(walk(model, batch, seq), batch * seq, "none")


def kept_by_op(sizes: GPTSizes, batch: int, seq: int) -> list[tuple[str, str, int]]:
    """(op, width in symbols, bytes) of what each op of one block is the first to keep for backward."""
    tape = Ops(Work(batch, seq), SPELLED_OUT, dtype="fp32", grad_bytes=4)
    block, _ = tiny_gpt(sizes).runs[0]
    block.forward(tape.new(batch * seq, sizes.width, "d", "fp32", grad=True), tape)
    seen: set[int] = set()
    rows = []
    for record in tape.records:
        for storage in record.saved:
            if id(storage) not in seen:
                seen.add(id(storage))
                rows.append((record.op, storage.symbol, int(storage.bytes)))
    return rows

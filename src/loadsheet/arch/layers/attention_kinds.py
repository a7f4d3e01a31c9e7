"""Attention with something more: a norm or a gate on the mix, two maps subtracted, a mask made of the values."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.layers.attention import Attention
from loadsheet.arch.layers.base import Linear, Norm, NormStyle
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor

UNIT = NormStyle("rms", weight=False)


class SubNormAttention(Attention):
    """A norm between the mix and the output projection (BitNet b1.58, arXiv 2402.17764)."""

    def __init__(self, *sizes: int, **switches: Any) -> None:
        super().__init__(*sizes, **switches)
        self.sub_norm: Norm = self.add("attn_sub_norm", Norm(self.q_width, NormStyle()))

    def gated(self, mixed: Tensor, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, q) → (B·T, q)."""
        return self.sub_norm.forward(mixed, tape)


class GatedAttention(Attention):
    """sigmoid(gate(x)) ⊙ mix before the output projection; `scaled` is Dory's, with vectors on q and the gate."""

    def __init__(self, *sizes: int, gate_bias: bool = False, scaled: bool = False, **switches: Any) -> None:
        super().__init__(*sizes, **switches)
        self.gate: Linear = self.add(
            "gate_proj",
            Linear(
                self.hidden_size,
                self.q_width,
                bias=gate_bias,
                role="attention",
                symbol="q",
                tag="gate_proj",
            ),
        )
        self.scaled = scaled
        if scaled:
            self.own("sqk", (self.q_width,), "attention")
            self.own("s_gate", (self.q_width,), "attention")
            self.unit = Norm(self.q_width, UNIT)

    def core(self, q: Tensor, k: Tensor, v: Tensor, tape: Ops) -> Tensor:
        """Scores, softmax and mix, of queries that a vector scales first."""
        return super().core(tape.scale_by_weight(q, self.q_width) if self.scaled else q, k, v, tape)

    def gated(self, mixed: Tensor, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, q) → (B·T, q)."""
        gate = self.gate.forward(x, tape)
        if self.scaled:
            gate = tape.scale_by_weight(gate, self.q_width)
        out = tape.multiply(mixed, tape.pointwise("sigmoid", gate))
        return self.unit.forward(out, tape) if self.scaled else out


class DifferentialAttention(Attention):
    """The mix of one half of the heads less λ times that of the other (arXiv 2410.05258).

    As transformers' DiffLlama carries it out: attention twice over all heads, with each half of the
    values repeated, so the scores are computed twice.
    """

    def __init__(self, *sizes: int, **switches: Any) -> None:
        super().__init__(*sizes, **switches)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            self.own(name, (self.head_dim,), "attention")
        self.group_norm = Norm(2 * self.head_dim, UNIT, groups=self.heads // 2)

    def core(self, q: Tensor, k: Tensor, v: Tensor, tape: Ops) -> Tensor:
        """(B·T, q) → (B·T, q): two mixes, subtracted and normed by pairs of heads."""
        halves = [tape.copy(v), tape.copy(v)]  # (B·T, kv) each: one half, twice
        mixes = [super(DifferentialAttention, self).core(q, k, half, tape) for half in halves]
        width = 2 * self.q_width
        joined = tape.new(mixes[0].rows, width, "2q", mixes[0].dtype, mixes[0].grad or mixes[1].grad)
        tape.add_record("concatenate", (mixes[0], mixes[1]), joined)
        first, second = (tape.view(joined, self.q_width, "q") for _ in range(2))
        less = tape.add(first, tape.scale_by_weight(second, 4 * self.head_dim))
        return tape.pointwise("scale", self.group_norm.forward(less, tape))


class DynamicMaskAttention(Attention):
    """A mask made of the values is added to the scores of every query (Doge, dynamic mask attention).

    The mask is as large as the scores and has a gradient, so no kernel can leave it out.
    """

    def __init__(self, *sizes: int, **switches: Any) -> None:
        super().__init__(*sizes, **switches)
        bias = bool(switches.get("bias"))
        self.own("A", (self.kv_heads,), "attention")
        self.dt: Linear = self.add(
            "dt_proj",
            Linear(
                self.kv_width,
                self.kv_heads,
                bias=bias,
                role="attention",
                symbol="h_kv",
                tag="dt_proj",
                tp="row",
            ),
        )

    def core(self, q: Tensor, k: Tensor, v: Tensor, tape: Ops) -> Tensor:
        """Scores, softmax and mix under the mask."""
        work = tape.work
        steps = tape.pointwise("exp", tape.scale_by_weight(self.dt.forward(v, tape), self.kv_heads))
        rows = work.sequences * self.heads * work.new
        mask = tape.new(rows, work.context, "h·S", steps.dtype, steps.grad)
        mask.storage.units = self.heads * work.context
        causal = tape.new(work.tokens, work.context, "S", "bool")  # of each layer anew
        tape.add_record("masked", (steps,), mask, (causal,))
        mixed = super().core(q, k, v, tape)
        if tape.execution.attention != "eager" and mixed.grad:
            tape.records[-1].saved += (mask.storage,)
        return mixed

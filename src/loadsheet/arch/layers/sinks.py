"""Attention sinks as Granite computes them: what attention returns is scaled by how much of it is no sink."""

from __future__ import annotations

from loadsheet.arch.layers.attention import Attention
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor


class ScaledSinks(Attention):
    """softmax(q·kᵀ)·v times sigmoid(log-sum-exp of the scores - sink of the head); a fused kernel keeps no more."""

    def core(self, q: Tensor, k: Tensor, v: Tensor, tape: Ops) -> Tensor:
        """Written out, the masked scores are kept once more, by the log-sum-exp."""
        mixed = super().core(q, k, v, tape)
        execution, work = tape.execution, tape.work
        if execution.attention != "eager" or (execution.recompute == "selective" and tape.training):
            return mixed
        rows, context = work.sequences * self.heads * work.new, work.context
        scores = tape.new(rows, context, "h·S", mixed.dtype)
        scores.storage.units = self.heads * context
        sums = tape.new(work.tokens, self.heads, "h", mixed.dtype, mixed.grad)
        tape.add_record("log_sum_exp", (q, k), sums, (scores, sums))
        scale = tape.pointwise("sigmoid", tape.cast(sums, "fp32"))
        return tape.multiply(mixed, tape.cast(scale, mixed.dtype))

"""FLOPs, 2 per multiply-accumulate: exact from the tape, and the rules of thumb beside them.

Model FLOPs: what the mathematics needs. Causal attention is counted as the pairs that are needed;
`full` counts the whole score matrix, as FlopCounterMode and 12·L·T·q do. Recomputation is work that
hardware does and the model does not need: it is listed apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadsheet.arch.model import Taped
from loadsheet.ledger import Item
from loadsheet.units import where

_OPS = "2 FLOP per multiply-accumulate of every matrix product on the tape"


def six_nd(params: Any, tokens: Any) -> Any:
    """Training FLOPs by the rule of thumb: C = 6·N·D.

    N parameters, D tokens; 2·N·D forward and 4·N·D backward. Kaplan et al. 2020, arXiv 2001.08361,
    section 2.1. Leaves out attention, which adds about T/(6·d) of it, and counts the embedding if N does.

    >>> float(six_nd(175e9, 300e9))
    3.15e+23
    """
    return 6 * params * tokens


def attention_flops_per_token(num_layers: Any, seq: Any, q_width: Any) -> Any:
    """Forward and backward FLOPs of the attention scores per token, the full matrix counted: 12·L·T·q.

    q = heads·head_dim. Chowdhery et al. 2022, arXiv 2204.02311, appendix B. Half of it if causal.

    >>> attention_flops_per_token(4, 512, 256)
    6291456
    """
    return 12 * num_layers * seq * q_width


@dataclass(frozen=True, slots=True)
class StepFlops:
    """FLOPs of one micro-batch on one GPU: model FLOPs (causal), the same in full, and recomputation."""

    forward: Any
    input_grads: Any
    weight_grads: Any
    forward_full: Any
    input_grads_full: Any
    recomputed: Any
    tokens: Any

    @property
    def model(self) -> Any:
        """Forward and backward, causal."""
        return self.forward + self.input_grads + self.weight_grads

    @property
    def full(self) -> Any:
        """Forward and backward with attention counted in full."""
        return self.forward_full + self.input_grads_full + self.weight_grads

    @property
    def hardware(self) -> Any:
        """Model FLOPs and what is computed again."""
        return self.model + self.recomputed

    @property
    def per_token(self) -> Any:
        """Model FLOPs per token."""
        return self.model / self.tokens

    def items(self) -> tuple[Item, ...]:
        """The account: forward, backward to the inputs, backward to the weights."""
        parts = {
            "forward": self.forward,
            "gradients of activations": self.input_grads,
            "gradients of weights": self.weight_grads,
        }
        return tuple(Item(name, n, "2·MACs", {"MACs": n / 2}, _OPS) for name, n in parts.items())


def step_flops(taped: Taped, tokens: Any, recompute: str) -> StepFlops:
    """Sum a walk: the blocks by how often they stand, what lies before and after them once."""
    parts = [(taped.before, 1), *taped.runs, (taped.after, 1)]

    def total(name: str) -> Any:
        return sum(getattr(summary, name) * count for summary, count in parts)

    again: Any = 0
    if recompute == "full":
        again = sum(summary.forward_flops * count for summary, count in taped.runs)
    elif recompute == "selective":
        again = sum(summary.recomputed_flops * count for summary, count in taped.runs)
    return StepFlops(
        total("forward_flops"),
        total("input_grad_flops"),
        total("weight_grad_flops"),
        total("forward_flops_full"),
        total("input_grad_flops_full"),
        again,
        tokens,
    )


def attention_share(flops: StepFlops, matmul_params: Any) -> Any:
    """The part of the model FLOPs that no parameter accounts for: attention scores and mix."""
    rest = flops.forward - 2 * matmul_params * flops.tokens
    return where(flops.forward > 0, rest / flops.forward, 0)

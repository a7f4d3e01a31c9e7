"""Causal depthwise convolutions along the sequence, and LFM2's gated short convolution."""

from __future__ import annotations

from loadsheet.arch.layers.attention import CacheTensor
from loadsheet.arch.layers.base import Layer, Linear
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_recurrent import causal_convolution
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work


class CausalConvolution(Layer):
    """Every channel over its own last `kernel` tokens; weight (width, 1, kernel) as nn.Conv1d has it."""

    def __init__(self, width: int, kernel: int, *, bias: bool = False, activation: str | None = None) -> None:
        super().__init__()
        self.width, self.kernel, self.activation = width, kernel, activation
        self.numel = self.own("weight", (width, 1, kernel), "attention").numel
        if bias:
            self.numel += self.own("bias", (width,), "attention").numel

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, width) → (B·T, width), activation included."""
        return causal_convolution(tape, x, kernel=self.kernel, numel=self.numel, activation=self.activation)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The last `kernel` inputs of every channel, however long the sequence."""
        operands = {"B": work.sequences, "C": self.width, "K": self.kernel}
        elements = work.sequences * self.width * self.kernel
        return (CacheTensor("convolution state", elements, "state", "B·C·K", operands, "bf16"),)


class ShortConvolution(Layer):
    """LFM2's mixer: (b, c, x) = in_proj(x), then out_proj(c ⊙ conv(b ⊙ x)) (Liquid AI 2025, LFM2)."""

    def __init__(self, hidden_size: int, kernel: int, *, bias: bool = False) -> None:
        super().__init__()
        d = hidden_size
        self.hidden_size = d
        self.in_proj: Linear = self.add(
            "in_proj", Linear(d, 3 * d, bias=bias, role="attention", symbol="p", tag="in_proj")
        )
        self.conv: CausalConvolution = self.add("conv", CausalConvolution(d, kernel, bias=bias))
        self.out_proj: Linear = self.add(
            "out_proj", Linear(d, d, bias=bias, role="attention", tag="out_proj", tp="row")
        )

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        packed = self.in_proj.forward(x, tape)  # (B·T, p = 3d)
        b, c, x = (tape.view(packed, self.hidden_size, "d") for _ in range(3))
        mixed = self.conv.forward(tape.multiply(b, x), tape)
        return self.out_proj.forward(tape.multiply(c, mixed), tape)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The last `kernel` products b ⊙ x."""
        return self.conv.cache(work)

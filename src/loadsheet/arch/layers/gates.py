"""Gates: on the output of attention, and on that of a norm."""

from __future__ import annotations

from typing import Literal

from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor


class OutputGate(Layer):
    """mixed ⊙ act(W·x + b): one factor for each number of the mix, or for each head.

    `bias` names a parameter with one number per head; `wide`: the activation in fp32. Registered under
    the empty name, so that its matrix stands beside the attention's own.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        value_dim: int,
        *,
        name: str = "gate_proj",
        per: Literal["head", "element"] = "element",
        bias: str | None = None,
        activation: str = "sigmoid",
        wide: bool = False,
    ) -> None:
        super().__init__()
        self.activation, self.dtype = activation, "fp32" if wide else None
        width, symbol = (heads, "h") if per == "head" else (heads * value_dim, "q")
        self.weight: Linear = self.add(
            name, Linear(hidden_size, width, role="attention", symbol=symbol, tag=name)
        )
        self.bias = self.own(bias, (heads,), "attention") if bias else None

    def forward(self, mixed: Tensor, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, h·d_v) and the attention's input → (B·T, h·d_v)."""
        gate = self.weight.forward(x, tape)
        if self.bias is not None:
            gate = tape.add(gate, gate)  # of the broadcast bias: another tensor of this size
        factor = tape.pointwise(self.activation, tape.cast(gate, self.dtype or gate.dtype))
        return tape.multiply(mixed, tape.cast(factor, mixed.dtype))


class GatedNorm(Norm):
    """y ⊙ sigmoid(W₂·silu(W₁·y)) with y = norm(x) and a narrow W₁ (A.X-K2)."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__(width, NormStyle("rms", names=("norm.weight", "norm.bias")))
        self.down: Linear = self.add(
            "mlp.fc1", Linear(width, rank, role="other", symbol="r", tag="fc1", tp="replicated")
        )
        self.up: Linear = self.add("mlp.fc2", Linear(rank, width, role="other", tag="fc2", tp="replicated"))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        normed = super().forward(x, tape)
        gate = self.up.forward(tape.pointwise("silu", self.down.forward(normed, tape)), tape)
        gate = tape.pointwise("sigmoid", tape.cast(gate, "fp32"))
        return tape.cast(tape.multiply(normed, gate), x.dtype)

"""Blocks whose residual stream is not the plain x + f(norm(x))."""

from __future__ import annotations

from loadsheet.arch.layers.base import Layer, Norm, NormStyle
from loadsheet.arch.model import Block
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor

UNIT = NormStyle("rms", weight=False)  # to length one, or root mean square one: no parameter


class PostNormBlock(Block):
    """norm(x + f(x)) after each sub-layer, as the first GPT had it."""

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        mixed = self._after(self.mixer.forward(x, tape), None, tape)
        x = self._norm(self.post_1, tape.add(x, mixed), tape)
        fed = self._after(self.mlp.forward(x, tape), None, tape)
        return self._norm(self.post_2, tape.add(x, fed), tape)


class ScaledResidualBlock(Block):
    """w₁ ⊙ x + f(norm(x)): the stream itself is multiplied by a vector before each addition (Doge)."""

    def __init__(
        self, hidden_size: int, mixer: Layer, mlp: Layer, norms: tuple[Norm, Norm], *, dropout: float
    ) -> None:
        super().__init__(mixer, mlp, norm_1=norms[0], norm_2=norms[1], dropout=dropout)
        self.width = self.own("input_residual", (hidden_size,), "other").numel
        self.own("post_attention_residual", (hidden_size,), "other")

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        mixed = self._after(self.mixer.forward(self._norm(self.norm_1, x, tape), tape), None, tape)
        x = tape.add(tape.scale_by_weight(x, self.width), mixed)
        fed = self._after(self.mlp.forward(self._norm(self.norm_2, x, tape), tape), None, tape)
        return tape.add(tape.scale_by_weight(x, self.width), fed)


class InterpolatedBlock(Block):
    """x + w ⊙ (f(x) - x) with x and f(x) brought to length one, as in nGPT (arXiv 2410.01131) and Dory."""

    def __init__(self, hidden_size: int, mixer: Layer, mlp: Layer) -> None:
        super().__init__(mixer, mlp)
        self.width = self.own("lambda_1", (hidden_size,), "other").numel
        self.own("lambda_2", (hidden_size,), "other")
        self.unit = Norm(hidden_size, UNIT)  # without parameters, so no child

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        for part in (self.mixer, self.mlp):
            x = self.unit.forward(x, tape)
            made = self.unit.forward(part.forward(x, tape), tape)
            x = tape.add(x, tape.scale_by_weight(tape.add(made, x), self.width))
        return x

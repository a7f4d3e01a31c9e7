"""Gemma 3n's residual stream: several copies side by side (AltUp, arXiv 2301.13310) and a low-rank path (LAuReL)."""

from __future__ import annotations

from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle, Stem
from loadsheet.arch.layers.mlp import GatedMLP, gated
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_streams import average, divide, stack, token_product
from loadsheet.arch.tape import Tensor


class AltUp(Layer):
    """Predicts all n streams from all, lets the block work on one, and corrects the others by what it did.

    Its matrices are too small for an adapter of any usual rank, so they have no tags.
    """

    def __init__(self, hidden_size: int, streams: int, norm_style: NormStyle, *, scaled: bool = True) -> None:
        super().__init__()
        self.hidden_size, self.streams, self.scaled = hidden_size, streams, scaled

        def small(name: str, n_in: int, n_out: int, symbol: str) -> Linear:
            linear = Linear(n_in, n_out, role="other", symbol=symbol, tp="replicated", quantisable=False)
            self.add(name, linear)
            return linear

        self.own("correct_output_scale", (hidden_size,), "other")
        self.correction = small("correction_coefs", streams, streams, "n_s")
        self.prediction = small("prediction_coefs", streams, streams * streams, "n_s²")
        self.router = small("modality_router", hidden_size, streams, "n_s")
        self.norm: Norm = self.add("router_norm", Norm(hidden_size, norm_style))

    def _modalities(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, n): how much each stream counts."""
        routed = self.router.forward(tape.pointwise("scale", self.norm.forward(x, tape)), tape)
        return tape.cast(tape.pointwise("tanh", tape.cast(routed, "fp32")), x.dtype)

    def predict(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, n·d) → the streams as this block expects them."""
        coefficients = self.prediction.forward(self._modalities(self.active(x, tape), tape), tape)
        macs = self.hidden_size * self.streams**2
        mixed = token_product(tape, x, coefficients, width=x.width, symbol=x.symbol, macs=macs)
        return tape.copy(tape.add(mixed, x))

    def correct(self, predicted: Tensor, done: Tensor, tape: Ops) -> Tensor:
        """Each stream moves by its share of what the block changed in the active one."""
        coefficients = self.correction.forward(self._modalities(done, tape), tape)
        change = tape.add(done, tape.pointwise("negate", self.active(predicted, tape)))
        repeated = tape.copy(change, predicted.width, predicted.symbol)
        return tape.add(tape.multiply(repeated, coefficients), predicted)

    def active(self, x: Tensor, tape: Ops) -> Tensor:
        """The one stream that the block works on."""
        return tape.view(x, self.hidden_size, "d")

    def output(self, corrected: Tensor, tape: Ops) -> Tensor:
        """A copy of the active stream, scaled if the config says so."""
        first = tape.copy(self.active(corrected, tape))
        return tape.scale_by_weight(first, self.hidden_size) if self.scaled else first


class Laurel(Layer):
    """x + norm(right(left(x))): a residual of low rank beside attention."""

    def __init__(self, hidden_size: int, rank: int, norm_style: NormStyle) -> None:
        super().__init__()
        self.left: Linear = self.add(
            "linear_left", Linear(hidden_size, rank, role="other", symbol="r_l", tag="linear_left")
        )
        self.right: Linear = self.add(
            "linear_right", Linear(rank, hidden_size, role="other", tag="linear_right", tp="row")
        )
        self.norm: Norm = self.add("post_laurel_norm", Norm(hidden_size, norm_style))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        low = self.right.forward(self.left.forward(x, tape), tape)
        return tape.add(x, self.norm.forward(low, tape))


class AltUpStreams(Stem):
    """Makes the n streams from the embedding, and one of them again at the end."""

    def __init__(self, hidden_size: int, streams: int) -> None:
        super().__init__()
        self.hidden_size, self.streams = hidden_size, streams
        self.into, self.back = (
            [
                self.add(f"{name}.{i}", Linear(hidden_size, hidden_size, role="other", quantisable=False))
                for i in range(streams - 1)
            ]
            for name in ("altup_projections", "altup_unembed_projections")
        )

    def _joined(self, parts: list[Tensor], tape: Ops) -> Tensor:
        """The parts side by side, each brought to the magnitude of the first."""
        first, *others = parts
        target = tape.mean_square_root(first)
        scaled = [divide(tape, tape.multiply(x, target), tape.mean_square_root(x)) for x in others]
        return stack(tape, [first, *scaled], "n_s·d")

    def begin(self, x: Tensor, ids: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, n·d)."""
        return self._joined([x, *(projection.forward(x, tape) for projection in self.into)], tape)

    def end(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, n·d) → (B·T, d): the mean of the streams."""
        d = self.hidden_size
        others = (projection.forward(tape.view(x, d, "d"), tape) for projection in self.back)
        return average(tape, self._joined([tape.view(x, d, "d"), *others], tape), d, "d")


class SparseGatedMLP(GatedMLP):
    """A gated MLP that lets only the largest pre-activations through (above mean + z·deviation)."""

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, f) → (B·T, d)."""
        gate = self.gate.forward(x, tape)
        cutoff = tape.mean_square_root(gate)
        gate = tape.pointwise("relu", tape.add(gate, cutoff))
        return self.down.forward(gated(gate, self.up.forward(x, tape), self.activation, tape), tape)

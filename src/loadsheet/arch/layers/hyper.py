"""Hyper-connections: the residual stream is several streams, mixed anew around each sub-layer.

Manifold-constrained hyper-connections (arXiv 2512.24880) in DeepSeek V4; without the mixing matrix in HY 4.
"""

from __future__ import annotations

from loadsheet.arch.layers.base import Layer, Norm, NormStyle, Stem
from loadsheet.arch.model import Block
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_sparse import in_full_precision
from loadsheet.arch.ops_streams import average, token_product
from loadsheet.arch.tape import Tensor

_UNIT = NormStyle("rms", weight=False)


class StreamWeights(Layer):
    """A small matrix on all n streams together, (out, n·d), in fp32: what is mixed by how much.

    The streams are normed before it, or, `norm_after`, its output is divided by their root mean square.
    """

    def __init__(
        self,
        streams: int,
        hidden_size: int,
        out: int,
        scales: int,
        *,
        norm_after: bool,
        prefix: str = "",
    ) -> None:
        super().__init__()
        self.norm_after = norm_after
        self.in_features, self.out_features, self.out_symbol = streams * hidden_size, out, "n"
        self.quantisable = False
        self.numel = self.own(f"{prefix}fn", (out, streams * hidden_size), "other", matmul=True).numel
        self.own(f"{prefix}base", (out,), "other")
        self.own(f"{prefix}scale", (scales,), "other")
        self.norm = Norm(streams * hidden_size, _UNIT)

    def forward(self, streams: Tensor, tape: Ops) -> Tensor:
        """(B·T, n·d) → (B·T, out) in fp32."""
        with in_full_precision(tape):
            flat = tape.cast(streams, "fp32")
            if self.norm_after:
                weights = tape.multiply(tape.linear(flat, self), tape.mean_square_root(flat))
            else:
                weights = tape.linear(self.norm.forward(flat, tape), self)
            return tape.pointwise("sigmoid", weights)


class HyperConnection(Layer):
    """Collapses n streams into one for a sub-layer, spreads its output over them, and mixes them.

    `iterations` of Sinkhorn-Knopp make the n × n mixing matrix doubly stochastic; None: streams are not
    mixed, only added to.
    """

    def __init__(self, streams: int, hidden_size: int, iterations: int | None) -> None:
        super().__init__()
        n = streams
        self.streams, self.hidden_size, self.iterations = n, hidden_size, iterations
        out, scales = (2 * n, 2) if iterations is None else ((2 + n) * n, 3)
        self.weights: StreamWeights = self.add(
            "", StreamWeights(n, hidden_size, out, scales, norm_after=iterations is None)
        )

    def collapse(self, streams: Tensor, tape: Ops) -> tuple[Tensor, Tensor]:
        """(B·T, n·d) → the weights, and one stream (B·T, d)."""
        weights = self.weights.forward(streams, tape)
        before = tape.view(weights, self.streams, "n")
        weighed = tape.multiply(streams, before)
        return weights, average(tape, weighed, self.hidden_size, "d")

    def spread(self, weights: Tensor, out: Tensor, streams: Tensor, tape: Ops) -> Tensor:
        """One output (B·T, d) and the streams before → the streams after (B·T, n·d)."""
        n, width = self.streams, self.streams * self.hidden_size
        after = tape.cast(tape.view(weights, n, "n"), out.dtype)
        spread = token_product(tape, after, out, width=width, symbol="n·d", macs=0)
        if self.iterations is not None:
            mixing = self._doubly_stochastic(tape.view(weights, n * n, "n²"), tape)
            mixing = tape.cast(mixing, streams.dtype)
            streams = token_product(tape, mixing, streams, width=width, symbol="n·d", macs=n * width)
        return tape.add(spread, streams)

    def _doubly_stochastic(self, matrix: Tensor, tape: Ops) -> Tensor:
        """Softmax, then rows and columns divided by their sums in turn: each division keeps both its factors."""
        matrix = tape.softmax(matrix)
        turns = 2 * (self.iterations or 1) - 1
        kept = tape.new(matrix.rows, turns * (matrix.width + self.streams), "n²", "fp32")
        out = tape.new(matrix.rows, matrix.width, "n²", "fp32", matrix.grad)
        tape.add_record("sinkhorn", (matrix,), out, (kept,))
        return out


class HyperBlock(Block):
    """A pre-norm block whose residual connections are hyper-connections."""

    def __init__(
        self,
        hidden_size: int,
        mixer: Layer,
        mlp: Layer,
        norm: NormStyle,
        *,
        streams: int,
        iterations: int | None,
    ) -> None:
        d = hidden_size
        super().__init__(mixer, mlp, norm_1=Norm(d, norm), norm_2=Norm(d, norm))
        self.around_mixer: HyperConnection = self.add("attn_hc", HyperConnection(streams, d, iterations))
        self.around_mlp: HyperConnection = self.add("ffn_hc", HyperConnection(streams, d, iterations))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, n·d) → (B·T, n·d)."""
        weights, one = self.around_mixer.collapse(x, tape)
        mixed = self.mixer.forward(self._norm(self.norm_1, one, tape), tape)
        x = self.around_mixer.spread(weights, mixed, x, tape)
        weights, one = self.around_mlp.collapse(x, tape)
        fed = self.mlp.forward(self._norm(self.norm_2, one, tape), tape)
        return self.around_mlp.spread(weights, fed, x, tape)


class HyperStem(Stem):
    """Copies the embedding to every stream; before the final norm a weighted sum makes one of them again."""

    def __init__(self, streams: int, hidden_size: int, *, norm_after: bool) -> None:
        super().__init__()
        self.streams, self.hidden_size = streams, hidden_size
        self.weights: StreamWeights = self.add(
            "", StreamWeights(streams, hidden_size, streams, 1, norm_after=norm_after, prefix="hc_")
        )

    def begin(self, x: Tensor, ids: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, n·d)."""
        return tape.copy(x, self.streams * self.hidden_size, "n·d")

    def end(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, n·d) → (B·T, d)."""
        return average(tape, tape.multiply(x, self.weights.forward(x, tape)), self.hidden_size, "d")

"""MLPs with something more: a trained activation, norms or scales inside, experts picked by product keys."""

from __future__ import annotations

from math import isqrt

from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle
from loadsheet.arch.layers.mlp import MLP, GatedMLP, activate, gated
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor

UNIT = NormStyle("rms", weight=False)


class XIELU(Layer):
    """αp·x² + β·x for x > 0, αn·(eˣ - 1 - x) + β·x below, both α trained (arXiv 2411.13010)."""

    def __init__(self) -> None:
        super().__init__()
        self.own("alpha_p", (1,), "mlp")
        self.own("alpha_n", (1,), "mlp")

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """Same shape; fused: one kernel that keeps its input; eager: both sides of the case distinction."""
        if tape.execution.kernels == "fused":
            return activate(x, "xielu", tape)
        above = tape.multiply(tape.scale_by_weight(x, 1), x)
        below = tape.scale_by_weight(tape.add(tape.pointwise("tanh", x), x), 1)  # eˣ - 1 keeps its output too
        out = tape.add(above, below)
        sign = tape.new(x.rows, x.width, x.symbol, "bool")
        return tape.masked(out, sign)


class TrainedMLP(MLP):
    """down(xIELU(up(x))): Apertus."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__(hidden_size, intermediate_size, "xielu")
        self.act: XIELU = self.add("act_fn", XIELU())

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, f) → (B·T, d)."""
        return self.down.forward(self.act.forward(self.up.forward(x, tape), tape), tape)


class SubNormMLP(GatedMLP):
    """A norm before the down projection (BitNet b1.58)."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str) -> None:
        super().__init__(hidden_size, intermediate_size, activation)
        self.sub_norm: Norm = self.add("ffn_sub_norm", Norm(intermediate_size, NormStyle()))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, f) → (B·T, d)."""
        hidden = gated(self.gate.forward(x, tape), self.up.forward(x, tape), self.activation, tape)
        return self.down.forward(self.sub_norm.forward(hidden, tape), tape)


class ScaledMLP(GatedMLP):
    """Gate and up scaled by vectors, their product brought to length one (nGPT, arXiv 2410.01131; Dory)."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: str, *, bias: bool = False
    ) -> None:
        super().__init__(hidden_size, intermediate_size, activation, bias=bias)
        self.own("suv_gate", (intermediate_size,), "mlp")
        self.own("suv_up", (intermediate_size,), "mlp")
        self.unit = Norm(intermediate_size, UNIT)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, f) → (B·T, d)."""
        f = self.intermediate_size
        gate, up = (tape.scale_by_weight(p.forward(x, tape), f) for p in (self.gate, self.up))
        return self.down.forward(self.unit.forward(gated(gate, up, self.activation, tape), tape), tape)


class RetrievedMLP(GatedMLP):
    """A gated MLP and, beside it, many experts of one neuron each, found by product keys (arXiv 2407.04153).

    Of the two tables of experts a token uses `per_token` rows: they are looked up and multiplied.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        experts: int,
        per_token: int,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__(hidden_size, intermediate_size, activation, bias=bias)
        self.hidden_size, self.experts, self.per_token = hidden_size, experts, per_token
        self.keys = isqrt(experts)
        self.router: Linear = self.add(
            "router_gate",
            Linear(hidden_size, 2 * self.keys, symbol="2K", tag="router_gate", quantisable=False),
        )
        for name in ("down_embed", "up_embed"):
            self.own(
                f"{name}.weight",
                (experts, hidden_size),
                "mlp",
                matmul=True,
                active=(min(per_token, experts), experts),
            )

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        k, d = self.per_token, self.hidden_size
        scores = tape.softmax(self.router.forward(x, tape))
        down, up = (self._rows(x, tape) for _ in range(2))  # (B·T, k·d) each
        weights = tape.multiply(
            activate(self._product(down, x, k, "k", tape), self.activation, tape),
            tape.view(scores, k, "k"),
        )
        mixed = self._product(up, weights, d, "d", tape)
        return tape.add(super().forward(x, tape), mixed)

    def _rows(self, x: Tensor, tape: Ops) -> Tensor:
        ids = tape.new(x.rows, self.per_token, "k", "int64")
        width = self.per_token * self.hidden_size
        return tape.embedding(ids, width, "k·d", self.experts * self.hidden_size, rows=x.rows)

    def _product(self, table: Tensor, y: Tensor, width: int, symbol: str, tape: Ops) -> Tensor:
        out = tape.new(y.rows, width, symbol, y.dtype, y.grad or table.grad)
        record = tape.add_record("matmul", (table, y), out, (table, y))
        record.forward_flops = record.forward_flops_full = 2 * y.rows * self.per_token * self.hidden_size
        if out.grad:
            record.input_grad_flops = 2 * record.forward_flops
        return out

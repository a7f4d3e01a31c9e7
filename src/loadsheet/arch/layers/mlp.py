"""The feed-forward part: plain or gated, and mixtures of experts."""

from __future__ import annotations

from typing import Any, Literal

from loadsheet.arch.layers.base import Layer, Linear
from loadsheet.arch.ops import KEEPS_INPUT, KEEPS_OUTPUT, Ops
from loadsheet.arch.tape import Tensor

#: config.json's `hidden_act` -> the elementwise function of `ops.py`
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_new", "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_python": "gelu", "gelu_accurate": "gelu_new", "relu": "relu",
    "relu2": "relu2", "quick_gelu": "quick_gelu", "sigmoid": "sigmoid", "tanh": "tanh", "gelu_10": "gelu",
    "geglu": "gelu", "swiglu": "silu",
}  # fmt: skip


class MLP(Layer):
    """down(act(up(x))): the plain MLP of GPT."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        bias: bool = False,
        names: tuple[str, str] = ("up_proj", "down_proj"),
        transposed: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation, self.intermediate_size = activation, intermediate_size
        up, down = names
        self.up: Linear = self.add(
            up, Linear(hidden_size, intermediate_size, bias=bias, symbol="f", tag=up, transposed=transposed)
        )
        self.down: Linear = self.add(
            down, Linear(intermediate_size, hidden_size, bias=bias, tag=down, tp="row", transposed=transposed)
        )

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, f) → (B·T, d)."""
        return self.down.forward(activate(self.up.forward(x, tape), self.activation, tape), tape)


class GatedMLP(Layer):
    """down(act(gate(x)) ⊙ up(x)) (arXiv 2002.05202); `fused` keeps gate and up in one matrix.

    `wide`: the activation and the product are in fp32.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        bias: bool = False,
        fused: str | None = None,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
        symbol: str = "f",
        down_bias: bool | None = None,
        wide: bool = False,
    ) -> None:
        super().__init__()
        self.activation, self.intermediate_size, self.symbol = activation, intermediate_size, symbol
        self.wide = wide
        gate, up, down = names
        self.gate_up: Linear | None = None
        if fused:
            self.gate_up = self.add(
                fused, Linear(hidden_size, 2 * intermediate_size, bias=bias, symbol=f"2{symbol}", tag=fused)
            )
        else:
            self.gate: Linear = self.add(
                gate, Linear(hidden_size, intermediate_size, bias=bias, symbol=symbol, tag=gate)
            )
            self.up: Linear = self.add(
                up, Linear(hidden_size, intermediate_size, bias=bias, symbol=symbol, tag=up)
            )
        self.down: Linear = self.add(
            down,
            Linear(
                intermediate_size,
                hidden_size,
                bias=bias if down_bias is None else down_bias,
                tag=down,
                tp="row",
            ),
        )

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, f) → (B·T, d)."""
        if self.gate_up is not None:
            packed = self.gate_up.forward(x, tape)
            gate = tape.view(packed, self.intermediate_size, self.symbol)
            up = tape.view(packed, self.intermediate_size, self.symbol)
        else:
            gate, up = self.gate.forward(x, tape), self.up.forward(x, tape)
        return self.down.forward(gated(gate, up, self.activation, tape, wide=self.wide), tape)


class Experts(Layer):
    """All experts of one layer in fused tensors, as transformers 5 stores them.

    `layout`: "out_in" (E, 2f, d) as Mixtral, "in_out" (E, d, 2f) as gpt-oss and Llama 4. `wide`: as in GatedMLP.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        experts: int,
        per_token: int,
        activation: str,
        *,
        layout: Literal["out_in", "in_out"] = "out_in",
        bias: bool = False,
        gated: bool = True,
        wide: bool = False,
    ) -> None:
        super().__init__()
        self.in_fp32 = wide
        self.experts, self.per_token, self.activation, self.gated = experts, per_token, activation, gated
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        n_up = 2 * intermediate_size if gated else intermediate_size
        up_name = "gate_up_proj" if gated else "up_proj"
        active = (min(per_token, experts), experts)

        def matrix(name: str, n_in: int, n_out: int) -> None:
            shape = (experts, n_out, n_in) if layout == "out_in" else (experts, n_in, n_out)
            self.own(name, shape, "mlp", matmul=True, active=active, quantise=True)
            if bias:
                self.own(f"{name}_bias", (experts, n_out), "mlp", active=active)

        matrix(up_name, hidden_size, n_up)
        matrix("down_proj", intermediate_size, hidden_size)
        # one expert's matrices, as the ops see them; not children, since the fused tensors hold them
        self.up = Linear(hidden_size, n_up, bias=bias, symbol="2k·f_e" if gated else "k·f_e")
        self.down = Linear(intermediate_size, hidden_size, bias=bias, symbol="k·d")

    def forward(self, x: Tensor, scores: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → each token through its k experts → (B·T, d)."""
        k = self.per_token
        routed = tape.route(x, scores, k)  # (k·B·T, d)
        packed = tape.linear(routed, self.up, experts=self.experts)
        packed.storage.units = k * self.up.out_features
        if self.gated:
            gate = tape.view(packed, self.intermediate_size, "k·f_e")
            up = tape.view(packed, self.intermediate_size, "k·f_e")
            hidden = gated(gate, up, self.activation, tape, scale=k, wide=self.in_fp32)
        else:
            hidden = activate(packed, self.activation, tape)
        out = tape.linear(hidden, self.down, experts=self.experts)
        out.storage.units = k * self.hidden_size
        return tape.combine(out, scores, k)


class Router(Layer):
    """Scores of every expert for every token: a small matrix, kept in 16 or 32 bits, never quantised."""

    def __init__(
        self,
        hidden_size: int,
        experts: int,
        *,
        bias: bool = False,
        correction: str | None = None,
        correction_shape: tuple[int, ...] | None = None,
        name: str = "weight",
    ) -> None:
        super().__init__()
        self.experts = experts
        self.in_features, self.out_features, self.out_symbol = hidden_size, experts, "E"
        self.quantisable = False
        self.numel = hidden_size * experts + (experts if bias else 0)
        self.own(name, (experts, hidden_size), "mlp", matmul=True)
        if bias:
            self.own(name.removesuffix("weight") + "bias", (experts,), "mlp")
        if correction:
            self.own(correction, correction_shape or (experts,), "mlp")

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, E) probabilities in fp32."""
        return tape.softmax(tape.cast(tape.linear(x, self), "fp32"))


class MoE(Layer):
    """Router, routed experts, and what every token passes besides: shared experts, perhaps gated."""

    def __init__(
        self,
        router: Router,
        experts: Experts,
        *,
        router_name: str = "gate",
        shared: Layer | None = None,
        shared_name: str = "shared_experts",
        shared_gate: Linear | None = None,
        shared_gate_name: str = "shared_expert_gate",
    ) -> None:
        super().__init__()
        self.router: Router = self.add(router_name, router)
        self.experts: Experts = self.add("experts", experts)
        self.shared: Any = self.add(shared_name, shared)
        self.shared_gate: Linear | None = self.add(shared_gate_name, shared_gate)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d): the sum of the chosen experts and the shared ones."""
        scores = self.router.forward(x, tape)
        out = self.experts.forward(x, tape.cast(scores, x.dtype), tape)
        if self.shared is None:
            return out
        shared = self.shared.forward(x, tape)
        if self.shared_gate is not None:
            gate = tape.pointwise("sigmoid", self.shared_gate.forward(x, tape))
            shared = tape.multiply(shared, gate)
        return tape.add(out, shared)


def activate(x: Tensor, kind: str, tape: Ops) -> Tensor:
    """An elementwise activation; the fused form recomputes what its written-out form would keep."""
    if tape.execution.kernels == "fused" and kind not in KEEPS_INPUT | KEEPS_OUTPUT:
        kind = "gelu_tanh"  # one kernel: keeps its input only
    return tape.pointwise(kind, x)


def gated(gate: Tensor, up: Tensor, kind: str, tape: Ops, *, scale: int = 1, wide: bool = False) -> Tensor:
    """act(gate) ⊙ up: eager keeps gate, act(gate) and up (`wide`: in fp32); one fused kernel gate and up only."""
    if tape.execution.kernels == "fused":
        out = tape.new(gate.rows, gate.width, gate.symbol, gate.dtype, gate.grad or up.grad)
        tape.add_record("gated", (gate, up), out, (gate, up))
    elif kind == "swiglu_clamped":  # gpt-oss: g·σ(α·g)·(u + 1) of the clamped gate and up
        gate, up = (tape.pointwise("swiglu_clamped", t) for t in (gate, up))
        glu = tape.multiply(gate, tape.pointwise("sigmoid", tape.pointwise("scale", gate)))
        out = tape.multiply(glu, tape.pointwise("shift", up))
    elif wide:
        product = tape.multiply(activate(tape.cast(gate, "fp32"), kind, tape), tape.cast(up, "fp32"))
        out = tape.cast(product, gate.dtype)
    else:
        out = tape.multiply(activate(gate, kind, tape), up)
    out.storage.units = scale * gate.width
    return out

"""Parts of Inkling 1 and 2: convolutions after every sub-layer, biases by distance, attention over earlier blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadsheet.arch.layers.attention import AttentionCore, CacheTensor
from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle
from loadsheet.arch.layers.conv import CausalConvolution
from loadsheet.arch.layers.mlp import Experts, GatedMLP, MoE, Router, gated
from loadsheet.arch.model import Block
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_relative import attend_states, relative_bias
from loadsheet.arch.ops_sparse import in_full_precision
from loadsheet.arch.ops_streams import stack
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work

_UNIT = NormStyle("rms", weight=False)
RMS = NormStyle("rms")


def _linear(name: str, n_in: int, n_out: int, symbol: str, *, row: bool = False) -> Linear:
    return Linear(n_in, n_out, role="attention", symbol=symbol, tag=name, tp="row" if row else "column")


class ResidualConvolution(Layer):
    """x + conv(x), both in fp32."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.conv: CausalConvolution = self.add("conv1d", CausalConvolution(width, kernel))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """Same shape."""
        with in_full_precision(tape):
            wide = tape.cast(x, "fp32")
            out = tape.add(self.conv.forward(wide, tape), wide)
        return tape.cast(out, x.dtype)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The last `kernel` inputs of every channel, in fp32."""
        return tuple(replace(tensor, dtype="fp32") for tensor in self.conv.cache(work))


class DynamicConvolution(Layer):
    """x + a convolution whose weights are learned ones plus what each token makes for each of `heads` heads."""

    def __init__(self, width: int, input_size: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.width, self.kernel = width, kernel
        self.numel = self.own("static_weight", (kernel, width), "attention").numel
        self.made: Linear = self.add("weight_proj", _linear("weight_proj", input_size, heads * kernel, "h·K"))

    def forward(self, x: Tensor, source: Tensor, tape: Ops) -> Tensor:
        """(B·T, width) and what makes the weights (B·T, d) → (B·T, width)."""
        dynamic = tape.cast(self.made.forward(source, tape), "fp32")
        wide = tape.cast(x, "fp32")
        # a weight for each token, channel and place, and the windows they are multiplied with
        weights = tape.new(x.rows, self.width * self.kernel, "K·c", "fp32", dynamic.grad or tape.full)
        windows = tape.new(x.rows, self.width * self.kernel, "K·c", "fp32", x.grad)
        tape.add_record("copy", (dynamic,), weights)
        tape.add_record("copy", (wide,), windows)
        out = tape.new(x.rows, x.width, x.symbol, "fp32", x.grad or weights.grad)
        record = tape.add_record("dynamic_convolution", (windows, weights), out, (windows, weights))
        record.forward_flops = record.forward_flops_full = 2 * x.rows * self.width * self.kernel
        record.input_grad_flops = 2 * record.forward_flops if out.grad else 0
        if tape.full:
            record.weight_grad_bytes = self.numel * tape.grad_bytes
        return tape.cast(tape.add(out, wide), x.dtype)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The last `kernel` inputs of every channel."""
        operands = {"B": work.sequences, "C": self.width, "K": self.kernel}
        elements = work.sequences * self.width * self.kernel
        return (CacheTensor("convolution state", elements, "state", "B·C·K", operands, "fp32"),)


class InklingAttention(AttentionCore):
    """Attention with convolved keys and values, norms on q and k, and a learned bias by distance."""

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        window: int | None,
        relative_width: int,
        extent: int,
        kernel: int,
    ) -> None:
        super().__init__(heads, kv_heads, head_dim, window=window)
        d, self.relative_width, self.extent = hidden_size, relative_width, extent
        self.q: Linear = self.add("q_proj", _linear("q_proj", d, self.q_width, "q"))
        self.k: Linear = self.add("k_proj", _linear("k_proj", d, self.kv_width, "kv"))
        self.v: Linear = self.add("v_proj", _linear("v_proj", d, self.kv_width, "kv"))
        self.r: Linear = self.add("r_proj", _linear("r_proj", d, heads * relative_width, "h·r"))
        self.o: Linear = self.add("o_proj", _linear("o_proj", self.q_width, d, "d", row=True))
        self.k_conv: ResidualConvolution = self.add("k_sconv", ResidualConvolution(self.kv_width, kernel))
        self.v_conv: ResidualConvolution = self.add("v_sconv", ResidualConvolution(self.kv_width, kernel))
        self.q_norm: Norm = self.add("q_norm", Norm(head_dim, RMS, groups=heads))
        self.k_norm: Norm = self.add("k_norm", Norm(head_dim, RMS, groups=kv_heads))
        self.own("rel_logits_proj.proj", (relative_width, extent), "attention", matmul=True)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        q = self.q_norm.forward(self.q.forward(x, tape), tape)
        k = self.k_norm.forward(self.k_conv.forward(self.k.forward(x, tape), tape), tape)
        v = self.v_conv.forward(self.v.forward(x, tape), tape)
        self.bias(self.r.forward(x, tape), tape)
        return self.o.forward(self.core(q, k, v, tape), tape)

    def bias(self, r: Tensor, tape: Ops) -> Tensor:
        """What is added to the scores."""
        numel = self.relative_width * self.extent
        return relative_bias(
            tape, r, heads=self.heads, width=self.relative_width, extent=self.extent, numel=numel
        )

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Keys and values, and the last inputs of their convolutions."""
        return (*super().cache(work), *self.k_conv.cache(work), *self.v_conv.cache(work))


class ClippedProjection(Layer):
    """A projection, scaled by a weight for each head and number, each head's length clipped (Inkling 2's q and r)."""

    def __init__(self, hidden_size: int, heads: int, width: int, symbol: str) -> None:
        super().__init__()
        self.linear: Linear = self.add("linear", _linear("linear", hidden_size, heads * width, symbol))
        style = NormStyle("rms", names=("norm.scale", ""))
        self.norm: Norm = self.add("", Norm(width, style, groups=heads, shape=(heads, width)))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, h·width)."""
        return self.norm.forward(self.linear.forward(x, tape), tape)


class ConvolvedProjection(Layer):
    """Inkling 2's keys or values: a projection, a convolution, fixed or made by the token, a norm without weights."""

    def __init__(self, hidden_size: int, heads: int, head_dim: int, kernel: int, *, dynamic: bool) -> None:
        super().__init__()
        width = heads * head_dim
        self.linear: Linear = self.add("linear", _linear("linear", hidden_size, width, "kv"))
        self.dynamic = dynamic
        made: Layer = ResidualConvolution(width, kernel)
        if dynamic:
            made = DynamicConvolution(width, hidden_size, heads, kernel)
        self.conv: Any = self.add("sconv", made)
        self.norm = Norm(head_dim, _UNIT, groups=heads)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, h_kv·d_h)."""
        states = self.linear.forward(x, tape)
        sources = (states, x) if self.dynamic else (states,)
        return self.norm.forward(self.conv.forward(*sources, tape), tape)


class Inkling2Attention(AttentionCore):
    """Attention with its own inputs for q, k and v, a gate per number, a sink per head and token, a bias by distance.

    `full`: layers that look back without limit, whose convolutions are made by the tokens.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        window: int | None,
        relative_width: int,
        extent: int,
        kernel: int,
        full: bool,
    ) -> None:
        super().__init__(heads, kv_heads, head_dim, window=window)
        d, self.relative_width, self.extent = hidden_size, relative_width, extent
        self.q: ClippedProjection = self.add("q_proj", ClippedProjection(d, heads, head_dim, "q"))
        self.k, self.v = (
            self.add(name, ConvolvedProjection(d, kv_heads, head_dim, kernel, dynamic=full))
            for name in ("k_proj", "v_proj")
        )
        self.gate: Linear = self.add("o_proj.gate_proj", _linear("gate_proj", d, self.q_width, "q"))
        self.o: Linear = self.add("o_proj.linear", _linear("linear", self.q_width, d, "d", row=True))
        self.sink: Linear = self.add("sink_proj", _linear("sink_proj", d, heads, "h"))
        self.r: ClippedProjection = self.add(
            "relative_position_bias", ClippedProjection(d, heads, relative_width, "h·r")
        )
        self.own("relative_position_bias.proj", (relative_width, extent), "attention", matmul=True)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d), one input for q, k and v."""
        return self.attend(x, x, x, tape)

    def attend(self, x: Tensor, for_keys: Tensor, for_values: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) three times → (B·T, d)."""
        q = self.q.forward(x, tape)
        k: Tensor = self.k.forward(for_keys, tape)
        v: Tensor = self.v.forward(for_values, tape)
        relative_bias(
            tape,
            self.r.forward(x, tape),
            heads=self.heads,
            width=self.relative_width,
            extent=self.extent,
            numel=self.relative_width * self.extent,
        )
        self.sink.forward(x, tape)
        mixed = tape.cast(self.core(q, k, v, tape), "fp32")
        gate = tape.pointwise("sigmoid", tape.cast(self.gate.forward(x, tape), "fp32"))
        return self.o.forward(tape.cast(tape.multiply(mixed, gate), x.dtype), tape)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Keys and values, and the last inputs of their convolutions."""
        return (*super().cache(work), *self.k.conv.cache(work), *self.v.conv.cache(work))


class ScaledGatedMLP(GatedMLP):
    """A gated MLP, its output times one learned number."""

    def __init__(self, hidden_size: int, width: int, activation: str) -> None:
        super().__init__(hidden_size, width, activation)
        self.own("global_scale", (1,), "mlp")

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        return tape.scale_by_weight(super().forward(x, tape), 1)


class SharedExperts(Layer):
    """Experts that every token passes, in three fused tensors (n, f, d); the router weighs them too."""

    def __init__(self, hidden_size: int, width: int, count: int, activation: str) -> None:
        super().__init__()
        self.width, self.activation = count * width, activation
        for name, shape in (
            ("gate_proj", (width, hidden_size)),
            ("up_proj", (width, hidden_size)),
            ("down_proj", (hidden_size, width)),
        ):
            self.own(name, (count, *shape), "mlp", matmul=True, quantise=True)
        # as the ops see them: side by side; not children, since the fused tensors hold them
        self.gate, self.up = (Linear(hidden_size, self.width, symbol="f_s") for _ in range(2))
        self.down = Linear(self.width, hidden_size)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        hidden = gated(tape.linear(x, self.gate), tape.linear(x, self.up), self.activation, tape)
        return tape.linear(hidden, self.down)


class CappedExperts(Experts):
    """Inkling 2's experts: down(cap(gate)·sigmoid(gate) ⊙ cap(up)) in fp32, cap a scaled tanh."""

    def forward(self, x: Tensor, scores: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → each token through its k experts → (B·T, d)."""
        k, width = self.per_token, self.intermediate_size
        packed = tape.linear(tape.route(x, scores, k), self.up, experts=self.experts)
        packed.storage.units = k * self.up.out_features
        gate, up = (tape.view(packed, width, "k·f_e") for _ in range(2))
        if tape.execution.kernels == "fused":
            hidden = gated(gate, up, "silu", tape, scale=k)
        else:
            gate, up = tape.cast(gate, "fp32"), tape.cast(up, "fp32")
            capped = [tape.pointwise("scale", tape.pointwise("tanh", t)) for t in (gate, up)]
            opened = tape.multiply(capped[0], tape.pointwise("sigmoid", gate))
            hidden = tape.cast(tape.multiply(opened, capped[1]), x.dtype)
        out = tape.linear(hidden, self.down, experts=self.experts)
        out.storage.units = k * self.hidden_size
        return tape.combine(out, scores, k)


class InklingMoE(MoE):
    """Routed and shared experts, weighed by one router with a learned scale."""

    def __init__(self, router: Router, experts: Experts, shared: SharedExperts) -> None:
        super().__init__(router, experts, shared=shared)
        router.own("global_scale", (1,), "mlp")


class ConvolvedBlock(Block):
    """A pre-norm block whose sub-layers' outputs pass a convolution each (given as `post_1` and `post_2`)."""

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """What attention keeps, and the last inputs of both convolutions."""
        after: tuple[Any, Any] = (self.post_1, self.post_2)
        return (*self.mixer.cache(work), *(t for conv in after for t in conv.cache(work)))


class EarlierBlocks(Layer):
    """Attention of `queries` learned vectors over a token's state and its states after earlier groups of layers."""

    def __init__(self, hidden_size: int, queries: int = 1) -> None:
        super().__init__()
        self.queries, self.hidden_size = queries, hidden_size
        shape = (hidden_size,) if queries == 1 else (queries, hidden_size)
        self.numel = self.own("query", shape, "other").numel

    def forward(self, x: Tensor, states: int, tape: Ops) -> tuple[Tensor, ...]:
        """(B·T, d) → one tensor of fp32 (B·T, d) for each query."""
        wide = tape.cast(x, "fp32")
        out = attend_states(tape, wide, states=states, queries=self.queries, numel=self.numel)
        return tuple(tape.view(out, self.hidden_size, "d") for _ in range(self.queries))


class MessageGate(Layer):
    """(1 - tanh(a))·x + tanh(b)·message; a and b from both, through a narrow layer (Inkling 2's loop)."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        d = hidden_size
        self.norm = Norm(d, _UNIT)
        self.down: Linear = self.add("down_proj", _linear("down_proj", 2 * d, rank, "r"))
        self.forget: Linear = self.add("forget_gate_proj", _linear("forget_gate_proj", rank, d, "d"))
        self.let: Linear = self.add("message_gate_proj", _linear("message_gate_proj", rank, d, "d"))

    def forward(self, x: Tensor, message: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) twice → (B·T, d) in fp32."""
        with in_full_precision(tape):
            both = stack(tape, [self.norm.forward(x, tape), self.norm.forward(message, tape)], "2d")
            narrow = self.down.forward(both, tape)
            forget = tape.pointwise("tanh", self.forget.forward(narrow, tape))
            let = tape.pointwise("tanh", self.let.forward(narrow, tape))
            return tape.add(tape.multiply(forget, x), tape.multiply(let, message))


class Inkling2Block(Block):
    """Sub-layers read a mix of the token's state and its states at earlier boundaries, `states` in all.

    `first`: the first layer, whose attention reads its input as it is. `full`: q, k and v each have a mix
    and a norm of their own. `boundary`: the sum begins anew here, and its input is one more earlier state.
    `rank`: a looped layer, with gates for the messages that a pass takes from `message_states` states of
    the pass before (0 in the first pass).
    """

    def __init__(
        self,
        hidden_size: int,
        mixer: Inkling2Attention,
        mlp: MoE,
        *,
        kernel: int,
        full: bool,
        first: bool,
        boundary: bool,
        states: int,
        rank: int = 0,
        message_states: int = 0,
    ) -> None:
        d = hidden_size
        super().__init__(mixer, mlp, norm_2=Norm(d, RMS))
        self.states, self.boundary, self.message_states = states, boundary, message_states
        self.input: EarlierBlocks | None = self.add(
            "attention_input", None if first else EarlierBlocks(d, 3 if full else 1)
        )
        self.fed: EarlierBlocks = self.add("mlp_input", EarlierBlocks(d))
        names = (
            ("q_input_layernorm", "k_input_layernorm", "v_input_layernorm") if full else ("input_layernorm",)
        )
        self.norms: list[Norm] = [self.add(name, Norm(d, RMS)) for name in names]
        self.after: list[ResidualConvolution] = [
            self.add(name, ResidualConvolution(d, kernel))
            for name in ("post_attention_convolution", "post_mlp_convolution")
        ]
        self.gates: list[MessageGate] = [
            self.add(f"{name}_message_gate", MessageGate(d, rank)) for name in ("q", "k", "v", "mlp") if rank
        ]

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        inputs = (x,) if self.input is None else self.input.forward(x, self.states, tape)
        messages: tuple[Tensor, ...] = ()
        if self.message_states:
            wide = tape.cast(x, "fp32")
            packed = attend_states(tape, wide, states=self.message_states, queries=4, numel=4 * x.width)
            messages = tuple(tape.view(packed, x.width, "d") for _ in range(4))
            inputs = tuple(
                self.gates[i].forward(inputs[i % len(inputs)], messages[i], tape) for i in range(3)
            )
        normed = [
            tape.cast(self.norms[i % len(self.norms)].forward(y, tape), x.dtype) for i, y in enumerate(inputs)
        ]
        q, k, v = (normed[i % len(normed)] for i in range(3))
        mixed = tape.cast(self.after[0].forward(self.mixer.attend(q, k, v, tape), tape), "fp32")
        stream = mixed if self.boundary else tape.add(tape.cast(x, "fp32"), mixed)
        fed = self.fed.forward(stream, self.states + int(self.boundary), tape)[0]
        if messages:
            fed = self.gates[3].forward(fed, messages[3], tape)
        made = self.mlp.forward(tape.cast(self._norm(self.norm_2, fed, tape), x.dtype), tape)
        return tape.cast(tape.add(stream, self.after[1].forward(made, tape)), x.dtype)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """What attention keeps, and the last inputs of both convolutions."""
        return (*self.mixer.cache(work), *(t for conv in self.after for t in conv.cache(work)))

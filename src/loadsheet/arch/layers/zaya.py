"""ZAYA1: attention in a compressed space with convolutions on queries and keys, and a router with a memory.

Compressed convolutional attention (arXiv 2510.04476): queries and keys pass two short convolutions,
half of each value comes from the token before.
"""

from __future__ import annotations

from loadsheet.arch.layers.attention import AttentionCore, CacheTensor
from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle, Stem
from loadsheet.arch.layers.mlp import Router
from loadsheet.arch.model import Block
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_sparse import convolution
from loadsheet.arch.ops_streams import stack
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work
from loadsheet.units import where

_RMS = NormStyle("rms")
_UNIT = NormStyle("rms", weight=False)


class Convolution(Layer):
    """nn.Conv1d on `channels` channels, each of which reads `per_group` of them over `kernel` tokens."""

    def __init__(self, channels: int, per_group: int, kernel: int) -> None:
        super().__init__()
        self.per_group, self.kernel = per_group, kernel
        self.numel = self.own("weight", (channels, per_group, kernel), "attention").numel
        self.numel += self.own("bias", (channels,), "attention").numel

    def forward(self, x: Tensor, tape: Ops, extra: int) -> Tensor:
        """(B·T', c) → (B·(T + extra), c)."""
        return convolution(
            tape, x, extra=extra, kernel=self.kernel, per_group=self.per_group, numel=self.numel
        )


class ConvolvedAttention(AttentionCore):
    """Attention whose queries and keys are convolved, each plus the mean of both before that."""

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        kernels: tuple[int, int],
        bias: bool,
        window: int | None,
    ) -> None:
        super().__init__(heads, kv_heads, head_dim, window=window)
        d, half = hidden_size, self.kv_width // 2
        self.half, self.channels, self.kernels = half, self.q_width + self.kv_width, kernels

        def projection(name: str, width: int, symbol: str) -> Linear:
            linear = Linear(d, width, bias=bias, role="attention", symbol=symbol, tag=name)
            self.add(f"qkv_proj.{name}", linear)
            return linear

        self.q, self.k = projection("q_proj", self.q_width, "q"), projection("k_proj", self.kv_width, "kv")
        self.v_now = projection("v_proj_current", half, "kv/2")
        self.v_before = projection("v_proj_delayed", half, "kv/2")
        self.depthwise: Convolution = self.add(
            "qkv_proj.conv_qk_depthwise", Convolution(self.channels, 1, kernels[0])
        )
        self.grouped: Convolution = self.add(
            "qkv_proj.conv_qk_grouped", Convolution(self.channels, head_dim, kernels[1])
        )
        self.q_norm, self.k_norm = Norm(head_dim, _UNIT, groups=heads), Norm(head_dim, _UNIT, groups=kv_heads)
        self.own("qk_norm.temp", (kv_heads,), "norm")
        self.o: Linear = self.add(
            "o_proj", Linear(self.q_width, d, bias=bias, role="attention", tag="o_proj", tp="row")
        )

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        q, k = self.q.forward(x, tape), self.k.forward(x, tape)
        both = stack(tape, [q, k], "q+kv")
        means = tape.add(q, tape.copy(k, self.q_width, "q")), tape.copy(k)
        convolved = self.depthwise.forward(both, tape, self.kernels[1] - 1)
        convolved = self.grouped.forward(convolved, tape, 0)
        q = tape.add(tape.view(convolved, self.q_width, "q"), means[0])
        k = tape.add(tape.view(convolved, self.kv_width, "kv"), means[1])
        v = stack(tape, [self.v_now.forward(x, tape), self.v_before.forward(x, tape)], "kv")
        work = tape.work  # a zero stands for the token before the first
        before = tape.new(where(work.past > 0, 0, work.sequences), x.width, "d", x.dtype)
        self.v_before.forward(before, tape)
        q, k = self.q_norm.forward(q, tape), self.k_norm.forward(k, tape)
        table = tape.table("rotary", self.head_dim)
        mixed = self.core(tape.rotary(q, table), tape.rotary(k, table), v, tape)
        return self.o.forward(mixed, tape)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Keys and values, the last inputs of the convolutions, and the half values of the last token."""
        length = sum(self.kernels) - 2
        operands = {"B": work.sequences, "C": self.channels, "K": length, "kv": self.kv_width}
        elements = work.sequences * (self.channels * length + self.half)
        state = CacheTensor("convolution state", elements, "state", "B·(C·K + kv/2)", operands)
        return (*super().cache(work), state)


class MemoryRouter(Layer):
    """Scores of E experts and of none at all, by an MLP on a narrow copy of x and that of the layer before.

    A token for which no expert is chosen still passes the first one, with weight 0.
    """

    def __init__(self, hidden_size: int, width: int, experts: int, *, first: bool) -> None:
        super().__init__()
        if not first:
            self.own("router_states_scale", (width,), "mlp")
        self.first = first
        self.down: Linear = self.add("down_proj", self._linear(hidden_size, width))
        self.norm: Norm = self.add("router_mlp.norm", Norm(width, _RMS))
        self.fc1: Linear = self.add("router_mlp.fc1", self._linear(width, width))
        self.fc2: Linear = self.add("router_mlp.fc2", self._linear(width, width))
        self.out: Router = self.add("router_mlp.out_proj", Router(width, experts + 1))

    @staticmethod
    def _linear(n_in: int, n_out: int) -> Linear:
        return Linear(n_in, n_out, bias=True, symbol="r", quantisable=False)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, E + 1) probabilities."""
        narrow = self.down.forward(x, tape)
        if not self.first:
            narrow = tape.add(narrow, tape.copy(narrow))
        hidden = tape.pointwise("gelu", self.fc1.forward(self.norm.forward(narrow, tape), tape))
        return self.out.forward(tape.pointwise("gelu", self.fc2.forward(hidden, tape)), tape)


class ResidualScale(Layer):
    """(y + b) ⊙ s + (x + b′) ⊙ s′ with four vectors, in fp32: how a sub-layer's output joins the stream."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        for name in ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"):
            self.own(name, (hidden_size,), "other")

    def forward(self, y: Tensor, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) twice → (B·T, d) in fp32."""
        parts = [_scaled(tape, t, self.hidden_size) for t in (y, x)]
        return tape.add(*parts)


class ResidualStem(Stem):
    """The embedding, shifted and scaled into the fp32 stream."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.own("input_hidden_states_scale", (hidden_size,), "other")
        self.own("input_hidden_states_bias", (hidden_size,), "other")

    def begin(self, x: Tensor, ids: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d) in fp32."""
        return tape.cast(_scaled(tape, x, self.hidden_size), "fp32")

    def end(self, x: Tensor, tape: Ops) -> Tensor:
        """The stream in the weights' own precision."""
        return tape.cast(x, tape.dtype)


class ZayaBlock(Block):
    """Pre-norm sub-layers whose outputs and stream are scaled before they are added."""

    def __init__(self, hidden_size: int, mixer: Layer, mlp: Layer) -> None:
        d = hidden_size
        super().__init__(mixer, mlp, norm_1=Norm(d, _RMS), norm_2=Norm(d, _RMS))
        self.join_1: ResidualScale = self.add("post_attention_residual_scale", ResidualScale(d))
        self.join_2: ResidualScale = self.add("post_mlp_residual_scale", ResidualScale(d))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) in fp32 → the same."""
        normed = self._norm(self.norm_1, tape.cast(x, tape.dtype), tape)
        x = self.join_1.forward(self.mixer.forward(normed, tape), x, tape)
        fed = self._norm(self.norm_2, tape.cast(x, tape.dtype), tape)
        return self.join_2.forward(self.mlp.forward(fed, tape), x, tape)


def _scaled(tape: Ops, x: Tensor, width: int) -> Tensor:
    """(x + b) ⊙ s."""
    shifted = tape.add(x, x)
    return tape.scale_by_weight(shifted, width)

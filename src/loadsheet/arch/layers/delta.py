"""Gated delta nets (arXiv 2412.06464), Kimi's with a gate per channel (arXiv 2510.26692), and the attention beside."""

from __future__ import annotations

from typing import Literal

from loadsheet.arch.layers.attention import Attention, CacheTensor
from loadsheet.arch.layers.base import Layer, Linear
from loadsheet.arch.layers.conv import CausalConvolution
from loadsheet.arch.layers.ssm import GatedRMSNorm
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_recurrent import CHUNK, decay_gate, kept, linear_attention, written_out
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work

#: how q, k, v, the output gate z, the step b and the decay a are projected: two matrices ("packed",
#: Qwen3-Next), q|k|v and z, b, a by themselves ("split", Qwen 3.5), six matrices ("separate", OLMo)
Style = Literal["packed", "split", "separate"]


class DeltaNet(Layer):
    """q|k|v = silu(conv(·)); S ← S·decay·(I - β·k·kᵀ) + β·v·kᵀ; out_proj(norm(S·q) ⊙ silu(z)).

    Keys and queries have `key_heads` heads of key_dim numbers, values and states `value_heads` of value_dim.
    """

    def __init__(
        self,
        hidden_size: int,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        *,
        kernel: int,
        style: Style,
        activation: str = "silu",
        gate: str = "silu",
    ) -> None:
        super().__init__()
        self.hidden_size, self.style = hidden_size, style
        self.key_heads, self.heads, self.key_dim, self.value_dim = key_heads, value_heads, key_dim, value_dim
        self.keys, self.values = key_heads * key_dim, value_heads * value_dim
        self.mixed = 2 * self.keys + self.values
        self.decays = value_heads  # numbers per token that tell how fast states decay
        self.declare(style)
        self.conv: CausalConvolution = self.add(
            "conv1d", CausalConvolution(self.mixed, kernel, activation=activation)
        )
        norm, out = ("o_norm", "o_proj") if style == "separate" else ("norm", "out_proj")
        self.norm: GatedRMSNorm = self.add(
            norm,
            GatedRMSNorm(
                self.values, groups=value_heads, weights=value_dim, activation=gate, norm_first=True
            ),
        )
        self.out: Linear = self.linear(out, self.values, hidden_size, "d")

    def linear(self, name: str, n_in: int, n_out: int, symbol: str) -> Linear:
        """A projection of this mixer."""
        layer = Linear(
            n_in, n_out, role="attention", symbol=symbol, tag=name, tp="row" if symbol == "d" else "column"
        )
        self.add(name, layer)
        return layer

    def declare(self, style: Style) -> None:
        """The projections of the input, and what decays per head."""
        d, h = self.hidden_size, self.heads
        if style == "packed":
            self.qkvz = self.linear("in_proj_qkvz", d, self.mixed + self.values, "p")
            self.ba = self.linear("in_proj_ba", d, 2 * h, "h")
        else:
            if style == "split":
                self.qkv: tuple[Linear, ...] = (self.linear("in_proj_qkv", d, self.mixed, "c"),)
                names = ("in_proj_z", "in_proj_b", "in_proj_a")
            else:
                widths = {"q_proj": self.keys, "k_proj": self.keys, "v_proj": self.values}
                self.qkv = tuple(self.linear(name, d, width, "c") for name, width in widths.items())
                names = ("g_proj", "b_proj", "a_proj")
            self.z = self.linear(names[0], d, self.values, "v")
            self.b, self.a = self.linear(names[1], d, h, "h"), self.linear(names[2], d, h, "h")
        self.own("dt_bias", (h,), "attention")
        self.own("A_log", (h,), "attention")

    def project(self, x: Tensor, tape: Ops) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(B·T, d) → q|k|v, z, b and a."""
        if self.style == "packed":
            packed, small = self.qkvz.forward(x, tape), self.ba.forward(x, tape)
            # the numbers of a head stand together, so each part is copied out
            mixed = tape.copy(tape.view(packed, self.mixed, "p"), self.mixed, "c")
            z = tape.copy(tape.view(packed, self.values, "p"), self.values, "v")
            b, a = (tape.copy(tape.view(small, self.heads, "h")) for _ in range(2))
            return mixed, z, b, a
        parts = [linear.forward(x, tape) for linear in self.qkv]
        mixed = parts[0] if len(parts) == 1 else self.join(parts, tape)
        return mixed, self.z.forward(x, tape), self.b.forward(x, tape), self.a.forward(x, tape)

    def join(self, parts: list[Tensor], tape: Ops) -> Tensor:
        """q, k and v written beside each other."""
        out = tape.new(parts[0].rows, self.mixed, "c", parts[0].dtype, any(t.grad for t in parts))
        tape.add_record("copy", tuple(parts), out)
        return out

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        mixed, z, b, a = self.project(x, tape)
        mixed = self.conv.forward(mixed, tape)  # (B·T, c = 2·keys + values)
        beta = tape.pointwise("sigmoid", b)
        decay = decay_gate(tape, a, numel=self.decays + self.heads)
        y = linear_attention(
            tape,
            (mixed, beta, decay),
            heads=self.heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            chunk=CHUNK,
            delta=True,
            symbol="v",
            keeps=self.keeps(mixed, beta, decay, tape),
        )
        return self.out.forward(self.norm.forward(y, z, tape), tape)

    def keeps(self, mixed: Tensor, beta: Tensor, decay: Tensor, tape: Ops) -> tuple[Tensor, ...]:
        """What flash-linear-attention's kernel keeps: normed q and k, v, β, the decay, one C×C matrix per chunk.

        Kimi's keeps two such matrices, and the decay before and after its sum along the chunk.
        """
        if tape.execution.kernels == "eager":
            return (beta, decay, *self.written_out(tape))
        normed = kept(tape, 2 * self.keys, "K", mixed.dtype, units=self.keys)
        square = self.heads * CHUNK
        if self.decays == self.heads:
            return (mixed, normed, beta, decay, kept(tape, square, "h·C", mixed.dtype))
        summed = kept(tape, self.decays, "K", "fp32")
        return (
            mixed, normed, beta, decay, summed, kept(tape, 2 * square, "h·C", mixed.dtype, units=square),
        )  # fmt: skip

    def written_out(self, tape: Ops) -> tuple[Tensor, ...]:
        """What the PyTorch code keeps in fp32, q and k repeated to every head."""
        numbers = {
            ("h·C", self.heads * CHUNK): 5.0,
            ("K", self.heads * self.key_dim): 12 if tape.compute_dtype == "fp32" else 8,
            ("v", self.values): 3,
            ("h", self.heads): 6,
        }
        return written_out(tape, CHUNK, numbers, states=self.key_dim * self.values)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The convolution's last inputs and one state of key_dim × value_dim per head, in fp32 in the kernels."""
        operands = {"B": work.sequences, "h": self.heads, "d_k": self.key_dim, "d_v": self.value_dim}
        elements = work.sequences * self.heads * self.key_dim * self.value_dim
        return (
            *self.conv.cache(work),
            CacheTensor("state", elements, "state", "B·h·d_k·d_v", operands, "fp32"),
        )


class ForgetGate(Layer):
    """How fast each channel of the state decays: one matrix ("f_proj"), or two with a narrow one between."""

    def __init__(self, hidden_size: int, heads: int, head_dim: int, *, narrow: bool) -> None:
        super().__init__()
        width = heads * head_dim

        def linear(name: str, n_in: int, n_out: int) -> Linear:
            return Linear(n_in, n_out, role="attention", symbol="K", tag=name)

        if narrow:
            steps = {"f_a_proj": (hidden_size, head_dim), "f_b_proj": (head_dim, width)}
        else:
            steps = {"f_proj": (hidden_size, width)}
        self.steps: list[Linear] = [self.add(name, linear(name, *sizes)) for name, sizes in steps.items()]
        self.own("A_log", (1, 1, heads, 1) if narrow else (heads,), "attention")
        self.own("dt_bias", (width,), "attention")

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, h·head_dim)."""
        for step in self.steps:
            x = step.forward(x, tape)
        return x


class KimiDelta(DeltaNet):
    """Kimi delta attention: a decay for each channel, heads alike; the gates through a narrow layer if `narrow`."""

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        head_dim: int,
        *,
        kernel: int,
        narrow: bool,
        activation: str = "silu",
    ) -> None:
        self.narrow = narrow
        super().__init__(
            hidden_size,
            heads,
            heads,
            head_dim,
            head_dim,
            kernel=kernel,
            style="separate",
            activation=activation,
            gate="sigmoid",
        )
        self.decays = heads * head_dim

    def declare(self, style: Style) -> None:
        """q, k, v, the forget gate, the step b and the output gate."""
        del style
        d, width = self.hidden_size, self.keys
        self.qkv = tuple(self.linear(name, d, width, "c") for name in ("q_proj", "k_proj", "v_proj"))
        self.forget: ForgetGate = self.add(
            "forget_gate", ForgetGate(d, self.heads, self.key_dim, narrow=self.narrow)
        )
        self.b = self.linear("b_proj", d, self.heads, "h")
        if self.narrow:
            self.gates: tuple[Linear, ...] = (
                self.linear("g_a_proj", d, self.key_dim, "d_h"),
                self.linear("g_b_proj", self.key_dim, width, "v"),
            )
        else:
            self.gates = (self.linear("g_proj", d, width, "v"),)

    def project(self, x: Tensor, tape: Ops) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(B·T, d) → q|k|v, z, b and a."""
        mixed = self.join([linear.forward(x, tape) for linear in self.qkv], tape)
        z = x
        for gate in self.gates:
            z = gate.forward(z, tape)
        return mixed, z, self.b.forward(x, tape), self.forget.forward(x, tape)

    def written_out(self, tape: Ops) -> tuple[Tensor, ...]:
        """What the PyTorch code keeps in fp32: C·key_dim numbers per token thrice, and every step of an inverse."""
        numbers = {
            ("h·C·d", self.heads * CHUNK * self.key_dim): 3.0,
            ("h·C²", self.heads * CHUNK * CHUNK): 1 / 3,
            ("h·C", self.heads * CHUNK): 3,
            ("K", self.keys): 14,
        }
        return written_out(tape, CHUNK, numbers, states=self.key_dim * self.values)


class QueryGatedAttention(Attention):
    """Attention whose q_proj makes a gate beside the queries: o_proj(mix ⊙ sigmoid(gate))."""

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        packed = self.q.forward(x, tape)  # (B·T, 2q)
        packed.storage.units = 2 * self.q_width
        q, k, v = tape.view(packed, self.q_width, "q"), self.k.forward(x, tape), self.v.forward(x, tape)
        gate = tape.copy(tape.view(packed, self.q_width, "q"))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm.forward(q, tape), self.k_norm.forward(k, tape)
        table = tape.table("rotary", self.head_dim)
        mixed = self.core(tape.rotary(q, table), tape.rotary(k, table), v, tape)
        return self.o.forward(tape.multiply(mixed, tape.pointwise("sigmoid", gate)), tape)

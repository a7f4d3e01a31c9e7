"""Mixers with other recurrences: lightning attention, Griffin's RG-LRU, RWKV 4, xLSTM's mLSTM."""

from __future__ import annotations

from loadsheet.arch.layers.attention import CacheTensor
from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle
from loadsheet.arch.layers.conv import CausalConvolution
from loadsheet.arch.layers.mlp import activate
from loadsheet.arch.layers.ssm import HeadLinear
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_recurrent import kept, linear_attention, recurrence, written_out
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work


def _linear(
    owner: Layer, name: str, n_in: int, n_out: int, symbol: str, *, bias: bool = False, row: bool = False
) -> Linear:
    # one number per head is narrower than any adapter: no target of LoRA
    made = Linear(
        n_in,
        n_out,
        bias=bias,
        role="attention",
        symbol=symbol,
        tag="" if symbol == "h" else name,
        tp="row" if row else "column",
    )
    owner.add(name, made)
    return made


class LightningAttention(Layer):
    """MiniMax's linear attention by blocks with a fixed decay per head (arXiv 2501.08313, section 2.2.1).

    q|k|v = act(qkv_proj(x)); out_proj(sigmoid(output_gate(x)) ⊙ norm(S·q)).
    """

    def __init__(
        self, hidden_size: int, heads: int, head_dim: int, *, block: int, activation: str, norm: NormStyle
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.block, self.activation = heads, head_dim, block, activation
        width = heads * head_dim
        self.norm: Norm = self.add("norm", Norm(width, norm))
        self.qkv = _linear(self, "qkv_proj", hidden_size, 3 * width, "qkv")
        self.out = _linear(self, "out_proj", width, hidden_size, "d", row=True)
        self.gate = _linear(self, "output_gate", hidden_size, width, "q")

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        packed = activate(self.qkv.forward(x, tape), self.activation, tape)  # (B·T, 3q)
        packed.storage.units = 3 * self.heads * self.head_dim
        keeps: tuple[Tensor, ...] = (packed,)
        if tape.execution.kernels == "eager":  # scores of each block after their decay, q, k, v by blocks
            numbers = {("h·C", self.heads * self.block): 1.0, ("q", self.heads * self.head_dim): 4}
            states = self.heads * self.head_dim**2
            rest = written_out(tape, self.block, numbers, states=states, dtype=packed.dtype)
            keeps = (*keeps, *rest)
        mixed = linear_attention(
            tape,
            (packed,),
            heads=self.heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            chunk=self.block,
            symbol="q",
            keeps=keeps,
        )
        gate = tape.pointwise("sigmoid", self.gate.forward(x, tape))
        return self.out.forward(tape.multiply(gate, self.norm.forward(mixed, tape)), tape)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """One state of head_dim × head_dim per head, however long the sequence."""
        operands = {"B": work.sequences, "h": self.heads, "d_h": self.head_dim}
        elements = work.sequences * self.heads * self.head_dim**2
        return (CacheTensor("state", elements, "state", "B·h·d_h²", operands, "bf16"),)


class RecurrentUnit(Layer):
    """RG-LRU: h ← a·h + √(1 - a²)·(i ⊙ x), a = exp(-8·softplus(Λ)·r); both gates block-diagonal in x."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        block = width // heads
        self.numel = self.own("recurrent_param", (width,), "attention").numel
        self.input_gate = HeadLinear(
            self, heads, block, block, weight="input_gate_weight", bias="input_gate_bias", symbol="w"
        )
        self.recurrent_gate = HeadLinear(
            self, heads, block, block, weight="recurrent_gate_weight", bias="recurrent_gate_bias", symbol="w"
        )

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, w) → (B·T, w)."""
        opened = tape.pointwise("sigmoid", self.input_gate.forward(x, tape))
        decay = tape.pointwise("sigmoid", self.recurrent_gate.forward(x, tape))
        fed = tape.multiply(x, opened)
        keeps = [fed, decay]
        if tape.execution.kernels == "eager":  # a, a², √(1 - a²) and a step's state in fp32
            keeps += [kept(tape, x.width, "w", x.dtype) for _ in range(4 + (x.dtype == "fp32"))]
            keeps += [kept(tape, x.width, "w", "fp32") for _ in range(3)]
        else:  # one scan keeps a and its own output
            keeps += [kept(tape, x.width, "w", "fp32")]
        return recurrence(tape, (fed, decay), flops=4, keeps=tuple(keeps), numel=self.numel, dtype=x.dtype)


class GriffinMixer(Layer):
    """linear_out(rg_lru(conv(linear_x(x))) ⊙ act(linear_y(x))) (arXiv 2402.19427, section 2.4)."""

    def __init__(self, hidden_size: int, width: int, heads: int, *, kernel: int, activation: str) -> None:
        super().__init__()
        self.width, self.hidden_size, self.activation = width, hidden_size, activation
        self.y = _linear(self, "linear_y", hidden_size, width, "w", bias=True)
        self.x = _linear(self, "linear_x", hidden_size, width, "w", bias=True)
        self.out = _linear(self, "linear_out", width, hidden_size, "d", bias=True, row=True)
        self.conv: CausalConvolution = self.add("conv_1d", CausalConvolution(width, kernel, bias=True))
        self.unit: RecurrentUnit = self.add("rg_lru", RecurrentUnit(width, heads))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        gate = activate(self.y.forward(x, tape), self.activation, tape)
        mixed = self.unit.forward(self.conv.forward(self.x.forward(x, tape), tape), tape)
        return self.out.forward(tape.multiply(mixed, gate), tape)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The convolution's last inputs but one, and one number per channel."""
        operands = {"B": work.sequences, "w": self.width, "K": self.conv.kernel}
        before = work.sequences * self.width * (self.conv.kernel - 1)
        return (
            CacheTensor("convolution state", before, "state", "B·w·(K - 1)", operands, "bf16"),
            CacheTensor("state", work.sequences * self.width, "state", "B·w", operands, "fp32"),
        )


class TimeMix(Layer):
    """RWKV 4's mixer: key, value and receptance of x mixed with the token before; WKV; output (arXiv 2305.13048)."""

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.hidden_size, self.width = hidden_size, width
        self.numel = sum(self.own(name, (width,), "attention").numel for name in ("time_decay", "time_first"))
        for name in ("key", "value", "receptance"):
            self.own(f"time_mix_{name}", (1, 1, hidden_size), "attention")
        self.key, self.value, self.receptance = (
            _linear(self, name, hidden_size, width, "a") for name in ("key", "value", "receptance")
        )
        self.output = _linear(self, "output", width, hidden_size, "d", row=True)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        shifted = tape.copy(x)
        k, v, r = (
            linear.forward(mix_with_last(x, shifted, tape), tape)
            for linear in (self.key, self.value, self.receptance)
        )
        r = tape.pointwise("sigmoid", r)
        keeps = [k, v]
        if tape.execution.kernels == "eager":  # a loop: exponentials, numerator, denominator of every step
            keeps = [v] + [kept(tape, self.width, "a", "fp32") for _ in range(12)]
        else:
            keeps += [kept(tape, self.width, "a", k.dtype)]
        mixed = recurrence(tape, (k, v), flops=10, keeps=tuple(keeps), numel=self.numel, dtype=k.dtype)
        return self.output.forward(tape.multiply(r, mixed), tape)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The last input of the mixer and of the MLP; numerator, denominator and exponent of each channel."""
        operands = {"B": work.sequences, "d": self.hidden_size, "a": self.width}
        return (
            CacheTensor(
                "last inputs", 2 * work.sequences * self.hidden_size, "state", "2·B·d", operands, "bf16"
            ),
            CacheTensor("state", 3 * work.sequences * self.width, "state", "3·B·a", operands, "fp32"),
        )


class ChannelMix(Layer):
    """RWKV 4's MLP: sigmoid(receptance(x')) ⊙ value(relu(key(x'))²), x' mixed with the token before."""

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        for name in ("key", "receptance"):
            self.own(f"time_mix_{name}", (1, 1, hidden_size), "mlp")

        def linear(name: str, n_in: int, n_out: int, symbol: str) -> Linear:
            made = Linear(n_in, n_out, symbol=symbol, tag=name, tp="row" if symbol == "d" else "column")
            self.add(name, made)
            return made

        self.key = linear("key", hidden_size, width, "f")
        self.receptance = linear("receptance", hidden_size, hidden_size, "d")
        self.value = linear("value", width, hidden_size, "d")

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        shifted = tape.copy(x)
        key = self.key.forward(mix_with_last(x, shifted, tape), tape)
        key = tape.pointwise("square", tape.pointwise("relu", key))
        gate = self.receptance.forward(mix_with_last(x, shifted, tape), tape)
        return tape.multiply(tape.pointwise("sigmoid", gate), self.value.forward(key, tape))


def mix_with_last(x: Tensor, shifted: Tensor, tape: Ops) -> Tensor:
    """x ⊙ m + shifted ⊙ (1 - m), m a parameter: both products keep their token's input."""
    numel = x.width
    return tape.add(tape.scale_by_weight(x, numel), tape.scale_by_weight(shifted, 0))


class MatrixLSTM(Layer):
    """mLSTM: S ← f·S + i·v·kᵀ with gates per head, n ← f·n + i·k; out_proj(sigmoid(o) ⊙ norm(S·q / |n·q|)).

    (arXiv 2405.04517, section 2.3; by chunks, arXiv 2503.14376.) `fused`: projections in two matrices.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        key_width: int,
        value_width: int,
        *,
        chunk: int,
        bias: bool,
        fused: bool,
    ) -> None:
        super().__init__()
        d, h = hidden_size, heads
        self.heads, self.keys, self.values, self.chunk = heads, key_width, value_width, chunk
        self.fused = fused
        if fused:
            wide = 2 * (key_width + value_width)
            self.projections = (_linear(self, "qkv_opreact", d, wide, "p", bias=bias),)
            self.gates: tuple[Linear, ...] = (_linear(self, "ifgate_preact", d, 2 * h, "h", bias=True),)
        else:
            widths = {"q": key_width, "k": key_width, "v": value_width, "ogate_preact": value_width}
            self.projections = tuple(  # type: ignore[assignment]
                _linear(self, name, d, width, "K" if width == key_width else "v", bias=bias)
                for name, width in widths.items()
            )
            self.gates = tuple(
                _linear(self, name, d, h, "h", bias=True) for name in ("igate_preact", "fgate_preact")
            )
        style = NormStyle("layer", bias=bias)
        self.norm: Norm = self.add(
            "multihead_norm", Norm(value_width // h, style, groups=h, shape=(value_width,))
        )
        self.out = _linear(self, "out_proj", value_width, d, "d", bias=bias, row=True)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        if self.fused:
            packed = self.projections[0].forward(x, tape)
            q, k = tape.view(packed, self.keys, "p"), tape.view(packed, self.keys, "p")
            v, o = tape.view(packed, self.values, "p"), tape.view(packed, self.values, "p")
        else:
            q, k, v, o = (linear.forward(x, tape) for linear in self.projections)
        gates = tuple(tape.pointwise("tanh", gate.forward(x, tape)) for gate in self.gates)
        # the kernel keeps its inputs, its output, and two fp32 numbers per head and token
        extra: tuple[Tensor, ...] = (kept(tape, 2 * self.heads, "h", "fp32", units=self.heads),)
        if tape.execution.kernels == "eager":
            numbers = {
                ("h·C", self.heads * self.chunk): 3.0,
                ("K", self.keys): 6,
                ("v", self.values): 3,
                ("h", self.heads): 8,
            }
            states = 2 * self.keys * self.values // self.heads
            extra = written_out(tape, self.chunk, numbers, states=states, dtype=q.dtype)
        mixed = linear_attention(
            tape,
            (q, k, v, *gates),
            heads=self.heads,
            key_dim=self.keys // self.heads,
            value_dim=self.values // self.heads,
            chunk=self.chunk,
            symbol="v",
            keeps=(q, k, v, *gates, *extra),
        )
        normed = self._normed(mixed, tape)
        return self.out.forward(tape.multiply(tape.pointwise("sigmoid", o), normed), tape)

    def _normed(self, x: Tensor, tape: Ops) -> Tensor:
        """LayerNorm of each head, which PyTorch code writes out in fp32."""
        if tape.execution.kernels == "fused":
            return self.norm.forward(x, tape)
        wide = tape.cast(x, "fp32")
        centred = tape.add(wide, wide)  # less its mean
        normed = tape.multiply(centred, tape.mean_square_root(centred, self.heads))
        return tape.scale_by_weight(tape.cast(normed, x.dtype), self.norm.numel)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Matrix, normaliser and exponent of each head, however long the sequence."""
        h, d_k, d_v = self.heads, self.keys // self.heads, self.values // self.heads
        operands = {"B": work.sequences, "h": h, "d_k": d_k, "d_v": d_v}
        elements = work.sequences * h * (d_k * d_v + d_k + 1)
        return (CacheTensor("state", elements, "state", "B·h·(d_k·d_v + d_k + 1)", operands, "fp32"),)

"""Zamba's shared transformer: one set of weights that several layers apply (arXiv 2405.16712, 2411.15242)."""

from __future__ import annotations

from loadsheet.arch.layers.attention import Attention, CacheTensor
from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle
from loadsheet.arch.layers.mlp import GatedMLP, gated
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work


class LowRank(Layer):
    """Two matrices in a row, in → r → out: what one application of the shared weights adds to them."""

    def __init__(self, in_features: int, rank: int, out_features: int, symbol: str) -> None:
        super().__init__()
        self.down: Linear = self.add("0", Linear(in_features, rank, role="attention", symbol="r", tag="0"))
        self.up: Linear = self.add("1", Linear(rank, out_features, role="attention", symbol=symbol, tag="1"))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, in) → (B·T, out)."""
        return self.up.forward(self.down.forward(x, tape), tape)


class WideAttention(Attention):
    """Attention whose input, of `input_size`, is wider than its output; low-rank additions to q, k and v.

    `slots`: the numbers of the applications that have additions of their own here; each uses one of them.
    """

    def __init__(
        self,
        hidden_size: int,
        input_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        rotary: bool,
        rank: int = 0,
        slots: tuple[int, ...] = (),
    ) -> None:
        super().__init__(input_size, heads, kv_heads, head_dim, rotary=rotary)
        self.o = self.add(
            "o_proj", Linear(self.q_width, hidden_size, role="attention", tag="o_proj", tp="row")
        )
        self.additions: list[LowRank] = []
        for name in ("q", "k", "v") if rank else ():
            for slot in slots:
                made = LowRank(input_size, rank, input_size, "q")
                self.add(f"linear_{name}_adapter_list.{slot}", made)
            self.additions.append(made)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, input) → (B·T, d)."""
        q, k, v = self.q.forward(x, tape), self.k.forward(x, tape), self.v.forward(x, tape)
        if self.additions:
            q, k, v = (
                tape.add(t, low.forward(x, tape)) for t, low in zip((q, k, v), self.additions, strict=True)
            )
        if self.rotary:
            table = tape.table("rotary", self.head_dim)
            q, k = tape.rotary(q, table), tape.rotary(k, table)
        return self.o.forward(self.core(q, k, v, tape), tape)


class SharedMLP(GatedMLP):
    """A gated MLP, gate and up in one matrix, with a low-rank addition to it for each application."""

    def __init__(
        self, hidden_size: int, width: int, activation: str, *, bias: bool, rank: int, slots: tuple[int, ...]
    ) -> None:
        super().__init__(hidden_size, width, activation, bias=bias, fused="gate_up_proj")
        for slot in slots:
            self.addition = LowRank(hidden_size, rank, 2 * width, "2f")
            self.add(f"gate_up_proj_adapter_list.{slot}", self.addition)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        assert self.gate_up is not None
        packed = tape.add(self.gate_up.forward(x, tape), self.addition.forward(x, tape))
        gate, up = (tape.view(packed, self.intermediate_size, self.symbol) for _ in range(2))
        return self.down.forward(gated(gate, up, self.activation, tape), tape)


class SharedTransformer(Layer):
    """mlp(norm(attention(norm(x | embedding)))), without residuals of its own."""

    def __init__(
        self, attention: WideAttention, mlp: GatedMLP, hidden_size: int, input_size: int, norm: NormStyle
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.attention: WideAttention = self.add("self_attn", attention)
        self.mlp: GatedMLP = self.add("feed_forward", mlp)
        self.norm_1: Norm = self.add("input_layernorm", Norm(input_size, norm))
        self.norm_2: Norm = self.add("pre_ff_layernorm", Norm(hidden_size, norm))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) and the tokens' embedding beside it → (B·T, d)."""
        both = tape.copy(x, self.input_size, "2d")
        mixed = self.attention.forward(self.norm_1.forward(both, tape), tape)
        return self.mlp.forward(self.norm_2.forward(mixed, tape), tape)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Keys and values: each application has its own."""
        return self.attention.cache(work)

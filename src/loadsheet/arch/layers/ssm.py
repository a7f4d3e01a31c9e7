"""Selective state spaces: the mixers of Mamba 1 (arXiv 2312.00752) and Mamba 2 (arXiv 2405.21060)."""

from __future__ import annotations

from typing import Literal

from loadsheet.arch.layers.attention import CacheTensor
from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle
from loadsheet.arch.layers.conv import CausalConvolution
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_recurrent import gated_norm, linear_attention, recomputed, selective_scan, written_out
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work


class HeadLinear:
    """One small matrix per head, (B·T, h·in) → (B·T, h·out); one tensor (h, out, in) of the `owner` holds them."""

    quantisable = False

    def __init__(
        self,
        owner: Layer,
        heads: int,
        in_features: int,
        out_features: int,
        *,
        weight: str,
        bias: str = "",
        symbol: str,
        transposed: bool = False,
    ) -> None:
        self.heads, self.in_features, self.out_features = heads, in_features, out_features
        self.out_symbol = symbol
        self.numel = in_features * out_features  # of one head, as the ops see it
        shape = (in_features, out_features) if transposed else (out_features, in_features)
        owner.own(weight, (heads, *shape), "attention", matmul=True)
        if bias:
            owner.own(bias, (heads, out_features), "attention")
            self.numel += out_features

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """Every head's part of a row through its own matrix."""
        split = tape.view(x, self.in_features, x.symbol, rows=x.rows * self.heads)
        out = tape.linear(split, self, experts=self.heads)
        out.storage.units = self.heads * self.out_features
        return tape.view(out, self.heads * self.out_features, self.out_symbol, rows=x.rows)


class Mamba(Layer):
    """(x, z) = in_proj; x = silu(conv(x)); Δ, B, C from x; y = scan(x, Δ, B, C) ⊙ silu(z); out_proj.

    `norms`: on Δ, B and C, "weighted" (Jamba) or "plain", without weights (FalconMamba). `heads`: Zamba's
    x_proj and dt_proj are one matrix per head. `one_kernel`: training runs in mamba-ssm's single kernel,
    which keeps (x, z), Δ|B|C and the output before the gate, and makes the rest again.
    """

    def __init__(
        self,
        hidden_size: int,
        width: int,
        *,
        states: int,
        kernel: int,
        rank: int,
        bias: bool = False,
        conv_bias: bool = True,
        activation: str = "silu",
        norms: Literal["weighted", "plain"] | None = None,
        heads: int = 0,
        one_kernel: bool = True,
    ) -> None:
        super().__init__()
        self.width, self.states, self.rank, self.one_kernel = width, states, rank, one_kernel

        def linear(name: str, n_in: int, n_out: int, symbol: str, has_bias: bool) -> Linear:
            layer = Linear(n_in, n_out, bias=has_bias, role="attention", symbol=symbol, tag=name)
            self.add(name, layer)
            return layer

        self.in_proj = linear("in_proj", hidden_size, 2 * width, "p", bias)
        self.conv: CausalConvolution = self.add(
            "conv1d", CausalConvolution(width, kernel, bias=conv_bias, activation=activation)
        )
        small = rank + 2 * states
        self.x_proj: Linear | HeadLinear
        self.dt_proj: Linear | HeadLinear
        lead: tuple[int, ...] = (width,)
        if heads:
            head = width // heads
            lead = (heads, head)
            self.x_proj = HeadLinear(self, heads, head, small, weight="x_proj_weight", symbol="R")
            self.dt_proj = HeadLinear(
                self, heads, rank, head, weight="dt_proj_weight", bias="dt_proj_bias", symbol="I"
            )
        else:
            self.x_proj = linear("x_proj", width, small, "R", False)
            self.dt_proj = linear("dt_proj", rank, width, "I", True)
        self.numel = self.own("A_log", (*lead, states), "attention").numel
        self.numel += self.own("D", lead, "attention").numel
        self.heads = heads or 1
        self.norms: tuple[Norm, ...] = ()
        if norms:
            style = NormStyle(weight=norms == "weighted")
            sizes = {"dt_layernorm": rank, "b_layernorm": states, "c_layernorm": states}
            self.norms = tuple(self.add(name, Norm(size, style)) for name, size in sizes.items())
        self.out_proj = linear("out_proj", width, hidden_size, "d", bias)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        packed = self.in_proj.forward(x, tape)  # (B·T, p = 2I)
        since = len(tape.records)
        gate = tape.view(packed, self.width, "I")
        u = self.conv.forward(tape.view(packed, self.width, "I"), tape)  # (B·T, I)
        small = self.x_proj.forward(u, tape)  # (B·T, R = rank + 2N)
        parts = [tape.view(small, self.heads * n, "R") for n in (self.rank, self.states, self.states)]
        if self.norms:
            parts = [norm.forward(part, tape) for norm, part in zip(self.norms, parts, strict=True)]
        dt = self.dt_proj.forward(parts[0], tape)  # (B·T, I)
        y = selective_scan(tape, u, dt, parts[1], parts[2], gate, states=self.states, numel=self.numel)
        out = self.out_proj.forward(y, tape)
        if self.one_kernel and tape.training and tape.execution.kernels == "fused":
            recomputed(tape, since, u, dt, y)
        return out

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The convolution's last inputs and one state of N numbers per channel, however long the sequence."""
        operands = {"B": work.sequences, "I": self.width, "N": self.states}
        elements = work.sequences * self.width * self.states
        return (*self.conv.cache(work), CacheTensor("state", elements, "state", "B·I·N", operands, "fp32"))


class GatedRMSNorm(Layer):
    """RMSNorm of x and act(gate), multiplied; `groups` norms per row, each over width/groups numbers."""

    def __init__(
        self,
        width: int,
        *,
        groups: int = 1,
        weights: int | None = None,
        activation: str = "silu",
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.groups, self.activation, self.norm_first = groups, activation, norm_first
        self.numel = self.own("weight", (weights or width,), "norm").numel

    def forward(self, x: Tensor, gate: Tensor, tape: Ops) -> Tensor:
        """(B·T, width) twice → (B·T, width)."""
        return gated_norm(
            tape,
            x,
            gate,
            activation=self.activation,
            groups=self.groups,
            numel=self.numel,
            weight_first=self.norm_first,
        )


class Mamba2(Layer):
    """(z, x|B|C, Δ) = in_proj; x|B|C = silu(conv(·)); y = duality(x, Δ, B, C); out_proj(norm(y ⊙ silu(z))).

    h heads of P numbers with one decay each; B and C are shared by h/`groups` heads. In training one
    kernel (mamba-ssm) keeps what in_proj made and y, and makes the rest again. Without `norm`: y ⊙ silu(z).
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        head_dim: int,
        *,
        states: int,
        groups: int,
        kernel: int,
        chunk: int,
        bias: bool = False,
        out_bias: bool | None = None,
        conv_bias: bool = True,
        activation: str = "silu",
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.states, self.groups, self.chunk = (
            heads,
            head_dim,
            states,
            groups,
            chunk,
        )
        self.width = heads * head_dim
        self.conv_width = self.width + 2 * groups * states
        self.in_proj: Linear = self.add(
            "in_proj",
            Linear(
                hidden_size,
                self.width + self.conv_width + heads,
                bias=bias,
                role="attention",
                symbol="p",
                tag="in_proj",
            ),
        )
        self.conv: CausalConvolution = self.add(
            "conv1d", CausalConvolution(self.conv_width, kernel, bias=conv_bias, activation=activation)
        )
        for name in ("dt_bias", "A_log", "D"):
            self.own(name, (heads,), "attention")
        self.norm: GatedRMSNorm | None = self.add(
            "norm", GatedRMSNorm(self.width, groups=groups) if norm else None
        )
        self.out_proj: Linear = self.add(
            "out_proj",
            Linear(
                self.width,
                hidden_size,
                bias=bias if out_bias is None else out_bias,
                role="attention",
                tag="out_proj",
                tp="row",
            ),
        )

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        packed = self.in_proj.forward(x, tape)  # (B·T, p = I + I + 2gN + h)
        since = len(tape.records)
        gate = tape.view(packed, self.width, "I")
        dt = tape.view(packed, self.heads, "p")
        mixed = self.conv.forward(tape.view(packed, self.conv_width, "c"), tape)  # (B·T, c = I + 2gN)
        y = self._duality(mixed, dt, tape)  # (B·T, I)
        if self.norm is not None:
            gated = self.norm.forward(y, gate, tape)
        else:
            gated = tape.multiply(y, tape.pointwise("silu", gate))
        out = self.out_proj.forward(gated, tape)
        if tape.training and tape.execution.kernels == "fused":
            recomputed(tape, since, mixed, gated)
        return out

    def _duality(self, mixed: Tensor, dt: Tensor, tape: Ops) -> Tensor:
        eager = tape.execution.kernels == "eager"
        keeps: tuple[Tensor, ...] = (mixed, dt)
        if eager:  # in fp32: x, B and C of every head, scores, decays and both multiplied; states of chunks
            numbers = {
                ("I", self.width): 5 - (mixed.dtype == "fp32"),
                ("h·N", self.heads * self.states): 5,
                ("h·C", self.heads * self.chunk): 3,
                ("h", self.heads): 5,
            }
            states = 2 * self.width * self.states
            rest = written_out(tape, self.chunk, numbers, states=states)
            keeps = (*((mixed,) if mixed.dtype == "fp32" else ()), dt, *rest)
        return linear_attention(
            tape,
            (mixed, dt),
            heads=self.heads,
            key_dim=self.states,
            value_dim=self.head_dim,
            groups=self.heads if eager else self.groups,
            chunk=self.chunk,
            symbol="I",
            keeps=keeps,
            numel=3 * self.heads,
            dtype="fp32" if eager else None,
        )

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The convolution's last inputs and one state of P·N numbers per head, however long the sequence."""
        operands = {"B": work.sequences, "h": self.heads, "P": self.head_dim, "N": self.states}
        elements = work.sequences * self.width * self.states
        return (*self.conv.cache(work), CacheTensor("state", elements, "state", "B·h·P·N", operands, "fp32"))

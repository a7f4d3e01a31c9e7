"""Parameters, the base of every layer, and the three simplest layers: Linear, Embedding, Norm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_lora import adapt
from loadsheet.arch.tape import Tensor

Role = Literal["embedding", "attention", "mlp", "norm", "head", "other"]
ROLES: tuple[Role, ...] = ("embedding", "attention", "mlp", "norm", "head", "other")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of weights, named and shaped as in the checkpoint.

    matmul    a matrix that multiplies activations (an embedding look-up is none)
    tp        how tensor parallelism splits it: column, row, vocab or replicated
    active    for experts: (used per token, all); None: every token uses it
    quantise  whether weight-only quantisation replaces it (linear layers inside the blocks)
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    matmul: bool = False
    tp: Literal["column", "row", "vocab", "replicated"] = "replicated"
    active: tuple[int, int] | None = None
    quantise: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def expert(self) -> bool:
        """Whether it belongs to a routed expert."""
        return self.active is not None

    @property
    def active_numel(self) -> int:
        """Elements that one token uses."""
        return self.numel if self.active is None else self.numel // self.active[1] * self.active[0]


class Layer:
    """A composition of ops: named children and parameters of its own, in the module's order."""

    def __init__(self) -> None:
        self._children: dict[str, Layer] = {}
        self._own: list[Parameter] = []

    def add(self, name: str, layer: Any) -> Any:
        """Register a child under the name that it has in the checkpoint; returns it. None is allowed."""
        if layer is not None:
            self._children[name] = layer
        return layer

    def own(self, name: str, shape: tuple[int, ...], role: Role, **more: Any) -> Parameter:
        """Register a parameter of this layer itself; returns it."""
        parameter = Parameter(name, shape, role, **more)
        self._own.append(parameter)
        return parameter

    def parameters(self, prefix: str = "") -> Iterator[Parameter]:
        """Every parameter below this layer, with its full name."""
        for p in self._own:
            yield Parameter(prefix + p.name, p.shape, p.role, p.matmul, p.tp, p.active, p.quantise)
        for name, child in self._children.items():
            yield from child.parameters(f"{prefix}{name}." if name else prefix)

    def counted(self) -> Iterator[tuple[Parameter, int]]:
        """(parameter, how many like it), for sums; names are not those of the checkpoint."""
        for p in self.parameters():
            yield p, 1

    def linears(self, prefix: str = "") -> Iterator[tuple[str, Linear]]:
        """Every linear layer below this one, with its full name."""
        for name, child in self._children.items():
            if isinstance(child, Linear):
                yield prefix + name, child
            yield from child.linears(f"{prefix}{name}." if name else prefix)

    def parts(self) -> Iterator[Layer]:
        """This layer and every layer below it."""
        yield self
        for child in self._children.values():
            yield from child.parts()


class Stem(Layer):
    """What stands around the blocks and takes part in the walk: after the embedding, before the final norm."""

    def begin(self, x: Tensor, ids: Tensor, tape: Ops) -> Tensor:
        """The embedding of the tokens → the residual stream of the first block."""
        return x

    def end(self, x: Tensor, tape: Ops) -> Tensor:
        """The residual stream after the last block → the input of the final norm."""
        return x


class InputDropout(Stem):
    """Dropout of the embedding, before the first block."""

    def begin(self, x: Tensor, ids: Tensor, tape: Ops) -> Tensor:
        """Same shape."""
        return tape.dropout(x) if tape.dropout_on and tape.training else x


class Linear(Layer):
    """y = x·Wᵀ + b. `tag` is its module name, which LoRA targets; `symbol` names its width in formulas."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        role: Role = "mlp",
        symbol: str = "d",
        tag: str = "",
        tp: Literal["column", "row", "vocab", "replicated"] = "column",
        transposed: bool = False,
        quantisable: bool = True,
        raw: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.out_symbol, self.tag, self.quantisable = symbol, tag, quantisable
        self.numel = in_features * out_features + (out_features if bias else 0)
        shape = (in_features, out_features) if transposed else (out_features, in_features)
        self.own("" if raw else "weight", shape, role, matmul=True, tp=tp, quantise=quantisable)
        if bias:
            self.own("bias", (out_features,), role)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(rows, in) → (rows, out), with its LoRA path if the recipe has one for this module."""
        out = tape.linear(x, self)
        if tape.adapter is not None and tape.adapter.applies(self.tag):
            out = adapt(tape, out, x, self)
        return out


class Embedding(Layer):
    """A table looked up by index: parameters, but no matrix product."""

    def __init__(self, count: int, width: int, *, symbol: str = "d") -> None:
        super().__init__()
        self.count, self.width, self.symbol = count, width, symbol
        self.numel = count * width
        self.own("weight", (count, width), "embedding", tp="vocab")

    def forward(self, ids: Tensor, tape: Ops, *, rows: Any = None) -> Tensor:
        """(rows,) indices → (rows, width)."""
        return tape.embedding(ids, self.width, self.symbol, self.numel, rows=rows)


@dataclass(slots=True)
class NormStyle:
    """Which norm a family uses: rms or layer, with weight and bias, and how its eager form computes."""

    kind: Literal["rms", "layer"] = "rms"
    weight: bool = True
    bias: bool = False
    plus_one: bool = False  # multiplies by 1 + w (Gemma) or w (OLMo 2, gpt-oss) in fp32, before casting back
    upcast: bool = False  # OLMo 1: the kernel runs on an fp32 copy
    written_out: bool = False  # Cohere: a LayerNorm in elementwise steps, in fp32
    names: tuple[str, str] = field(default=("weight", "bias"))


class Norm(Layer):
    """RMSNorm or LayerNorm over the last `width` numbers (`groups` of them per row for q/k norms)."""

    def __init__(
        self, width: int, style: NormStyle, *, groups: int = 1, shape: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        self.style, self.groups = style, groups
        self.numel = 0
        full_shape = shape or (width,)
        if style.weight:
            self.numel += self.own(style.names[0], full_shape, "norm").numel
        if style.bias:
            self.numel += self.own(style.names[1], full_shape, "norm").numel

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """Same shape; fused: one kernel; eager RMSNorm: cast up, square, rsqrt, multiply, cast, weight."""
        style = self.style
        layer = style.kind == "layer"
        if tape.execution.kernels == "fused" or (
            layer and not style.written_out
        ):  # PyTorch has that kernel too
            source = tape.cast(x, "fp32") if style.upcast else x
            normed = tape.norm(source, statistics=2 if layer else 1, numel=self.numel, groups=self.groups)
            return tape.cast(normed, x.dtype)
        wide = squared = tape.cast(x, "fp32")
        if layer:  # x minus its mean, computed twice: for the variance and for the output
            squared, wide = tape.pointwise("centre", wide), tape.pointwise("centre", wide)
        normed = tape.multiply(wide, tape.mean_square_root(squared, self.groups))
        if not style.weight:
            return tape.cast(normed, x.dtype)
        if style.plus_one or layer or tape.execution.wide_norms:
            return tape.cast(tape.scale_by_weight(normed, self.numel), x.dtype)
        return tape.scale_by_weight(tape.cast(normed, x.dtype), self.numel)

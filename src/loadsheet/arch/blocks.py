"""Blocks that are no plain pre-norm pair of mixer and MLP."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.layers.attention import CacheTensor
from loadsheet.arch.layers.base import Layer, Linear, Norm
from loadsheet.arch.model import Block
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work


class MambaBlock(Block):
    """x + mixer(norm(x)) with the residual stream in fp32, whatever the weights are in, if `wide` says so."""

    def __init__(self, mixer: Layer, norm: Norm, *, wide: bool) -> None:
        super().__init__(mixer, None, norm_1=norm, names=("mixer", ""), norm_names=("norm", "", "", ""))
        self.wide = wide

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        normed = self._norm(self.norm_1, tape.cast(x, tape.dtype), tape)
        stream = tape.cast(x, "fp32") if self.wide else x
        return tape.add(stream, self.mixer.forward(normed, tape))


class Beside(Layer):
    """Several mixers that read the same input and whose outputs are added (Falcon-H1; an MLP beside a mixture)."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        self.beside = tuple(self.add(name, part) for name, part in parts.items() if part is not None)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        total: Tensor = self.beside[0].forward(x, tape)
        for part in self.beside[1:]:
            total = tape.add(total, part.forward(x, tape))
        return total

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """What each of them keeps."""
        return tuple(t for part in self.beside if hasattr(part, "cache") for t in part.cache(work))


class MambaLayer(Layer):
    """x + mamba(norm(x + extra)), the part that every layer of Zamba has."""

    def __init__(self, mamba: Any, norm: Norm) -> None:
        super().__init__()
        self.mamba, self.norm = self.add("mamba", mamba), self.add("input_layernorm", norm)

    def forward(self, x: Tensor, tape: Ops, extra: Tensor | None = None) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        fed = x if extra is None else tape.add(x, extra)
        return tape.add(x, self.mamba.forward(self.norm.forward(fed, tape), tape))


class SharingBlock(Block):
    """Zamba's hybrid layer: the shared transformer's output, through a matrix of its own, goes to Mamba.

    The first layer that applies the shared weights has them in its account (`owner`); later ones compute
    with the same and own only the rest.
    """

    def __init__(self, inner: MambaLayer, shared: Any, linear: Linear, *, name: str, owner: bool) -> None:
        Layer.__init__(self)
        self.mixer, self.mlp = inner.mamba, None
        self.inner: MambaLayer = self.add("mamba_decoder", inner)
        self.linear: Linear = self.add("linear", linear)
        self.shared = shared
        if owner:
            self.add(name, shared)
        else:
            self.reused_matmul = sum(p.numel for p in shared.parameters() if p.matmul)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        since = len(tape.records)
        out = self.shared.forward(x, tape)
        if self.reused_matmul:  # its gradients are made again and added to those of the owner
            for record in tape.records[since:]:
                record.backward_temporary = record.backward_temporary + record.weight_grad_bytes
                record.weight_grad_bytes = 0
        return self.inner.forward(x, tape, self.linear.forward(out, tape))

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Mamba's states, and keys and values of this application of the shared attention."""
        return (*self.inner.mamba.cache(work), *self.shared.cache(work))

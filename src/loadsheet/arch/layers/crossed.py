"""Blocks that attend to an image: in a pass of text alone they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from loadsheet.arch.layers.attention import CacheTensor
from loadsheet.arch.layers.base import Norm, Parameter
from loadsheet.arch.model import Block
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work


class ImageBlock(Block):
    """Cross-attention to an image and an MLP, each behind a gate (Llama 3.2 Vision).

    Without an image transformers skips it: it costs its weights, but no FLOPs, activations or cache.
    """

    def __init__(self, mixer: Any, mlp: Any, norms: tuple[Norm, Norm]) -> None:
        super().__init__(mixer, mlp, norm_1=norms[0], norm_2=norms[1], names=("cross_attn", "mlp"))
        self.own("cross_attn_attn_gate", (1,), "other")
        self.own("cross_attn_mlp_gate", (1,), "other")

    def parameters(self, prefix: str = "") -> Iterator[Parameter]:
        """Every parameter; none multiplies a text token."""
        for p in super().parameters(prefix):
            yield replace(p, matmul=False)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → the same."""
        return x

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Nothing without an image."""
        return ()

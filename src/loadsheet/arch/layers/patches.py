"""Layers between bytes and patches (Byte Latent Transformer, arXiv 2412.09871): cross-attention, hashed n-grams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadsheet.arch.layers.base import Embedding, Layer, Linear, Norm, NormStyle
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work
from loadsheet.units import ceil_div


def patched(work: Work, patch_size: int) -> Work:
    """The same work counted in patches of `patch_size` bytes on average."""
    return replace(work, new=ceil_div(work.new, patch_size), past=work.past // patch_size)


class CrossAttention(Layer):
    """softmax(q·kᵀ)·v between two sequences, each normed first, plus the queries' input.

    A patch and its bytes see each other only, but the kernel is handed a mask and computes all pairs:
    the first is counted as FLOPs needed, the second as FLOPs in full.
    """

    def __init__(self, hidden_size: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, hidden_size // heads
        width, kv_width = heads * self.head_dim, kv_heads * self.head_dim
        self.width = width

        def linear(name: str, n_in: int, n_out: int, symbol: str) -> Linear:
            row = "row" if name == "o_proj" else "column"
            layer = Linear(n_in, n_out, role="attention", symbol=symbol, tag=name, tp=row)  # type: ignore[arg-type]
            self.add(name, layer)
            return layer

        kv_symbol = "q" if kv_heads == heads else "kv"
        self.q = linear("q_proj", hidden_size, width, "q")
        self.k = linear("k_proj", hidden_size, kv_width, kv_symbol)
        self.v = linear("v_proj", hidden_size, kv_width, kv_symbol)
        self.o = linear("o_proj", width, hidden_size, "d")
        self.q_norm: Norm = self.add("q_norm", Norm(hidden_size, NormStyle()))
        self.k_norm: Norm = self.add("k_norm", Norm(hidden_size, NormStyle()))

    def join(self, x: Tensor, states: Tensor, needed: Any, tape: Ops) -> Tensor:
        """Queries of x over the keys of `states`; `needed` pairs in all sequences together."""
        q = self.q.forward(self.q_norm.forward(x, tape), tape)
        normed = self.k_norm.forward(states, tape)
        k, v = self.k.forward(normed, tape), self.v.forward(normed, tape)
        q, k, v = (tape.cast(t, tape.compute_dtype) for t in (q, k, v))
        full = x.rows * (states.rows // tape.work.sequences)
        eager = tape.execution.attention == "eager"
        grad = q.grad or k.grad
        out = tape.new(x.rows, self.width, "q", q.dtype, grad)
        kept = [q, k, v, out]
        if eager:
            kept.append(tape.new(full * self.heads, 1, "h·S", "fp32"))
        else:
            kept.append(tape.new(x.rows, self.heads, "h", "fp32"))
        record = tape.add_record("attention", (q, k, v), out, kept)
        per_pair = 4 * self.heads * self.head_dim
        record.forward_flops, record.forward_flops_full = per_pair * needed, per_pair * full
        if grad:
            record.input_grad_flops = 2 * record.forward_flops
        return tape.add(self.o.forward(out, tape), x)


class HashEmbedding(Embedding):
    """Hashed n-grams of bytes, `lookups` for each byte, added to its embedding."""

    def __init__(self, count: int, width: int, lookups: int) -> None:
        super().__init__(count, width)
        self.lookups = lookups

    def forward(self, ids: Tensor, tape: Ops, *, rows: Any = None) -> Tensor:
        """(B·T,) → (B·T, d), the sum of all look-ups."""
        total = super().forward(ids, tape, rows=tape.work.tokens)
        for _ in range(self.lookups - 1):
            total = tape.add(total, super().forward(ids, tape, rows=tape.work.tokens))
        return total

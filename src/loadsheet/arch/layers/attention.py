"""Attention with any number of KV heads (MHA, GQA, MQA), full, sliding-window or chunked; its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_lora import adapt_parts
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work
from loadsheet.units import smallest


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """One tensor kept per layer while generating: elements for all sequences, and what it is.

    `role` is "kv" (keys and values, may be stored in a KV dtype), "latent" or "state", which does not grow
    with the sequence. `dtype` is what it is kept in whatever the KV format ("": in that).
    """

    name: str
    elements: Any
    role: str
    expression: str = ""
    operands: dict[str, Any] | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class AttentionNames:
    """Module names of the projections in the checkpoint."""

    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    o: str = "o_proj"
    qkv: str = "qkv_proj"
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"


class AttentionCore(Layer):
    """Scores, softmax and mix of given queries, keys and values, and the cache of keys and values.

    `window`/`chunk`: how far a query looks back; `sees`: how many keys it uses at most, if fewer are
    chosen than are kept. `upcast_softmax`: written out, the softmax is in fp32 and copied back.
    `joined_heads`: transformers' module joins each head anew from a rotated and an unrotated part, heads
    first; what attention returns lies the same way and is copied for the output projection (LitGPT: always).
    `softcap`: scores are squeezed by a tanh (Gemma 2).
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        value_dim: int | None = None,
        window: int | None = None,
        chunk: int | None = None,
        dropout: float = 0.0,
        upcast_softmax: bool = True,
        joined_heads: bool = False,
        softcap: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.window, self.chunk, self.dropout = window, chunk, dropout
        self.upcast_softmax, self.joined_heads = upcast_softmax, joined_heads
        self.softcap = softcap
        self.sees = window
        self.q_width, self.kv_width = heads * head_dim, kv_heads * head_dim
        self.mixed_width, self.v_width = heads * self.value_dim, kv_heads * self.value_dim
        self.mixed_symbol = "q" if self.value_dim == head_dim else "h·d_v"

    def core(self, q: Tensor, k: Tensor, v: Tensor, tape: Ops) -> Tensor:
        """Scores, softmax and mix: written out or as one kernel."""
        execution = tape.execution
        q, k, v = (tape.cast(t, tape.compute_dtype) for t in (q, k, v))
        eager = execution.attention == "eager" or (self.softcap and execution.written_softcap)
        # under a mask transformers repeats keys and values (integrations/sdpa_attention.py)
        repeats = execution.repeat_kv or execution.masked or eager
        if repeats and self.kv_heads != self.heads:
            k = tape.copy(k, self.q_width, "q")
            if self.kv_heads == 1 and execution.fused_qkv:  # one head, spread by a stride of 0: no copy
                v = tape.view(v, self.mixed_width, self.mixed_symbol)
            else:
                v = tape.copy(v, self.mixed_width, self.mixed_symbol)
        shape: dict[str, Any] = {"window": self.sees, "chunk": self.chunk}
        if not eager:
            mixed = tape.attention(
                q, k, v, heads=self.heads, key_dim=self.head_dim, value_dim=self.value_dim, **shape
            )
            tape.keep_mask(self.sees if self.chunk is None else self.chunk)
            joined = (self.joined_heads and execution.kernels == "eager") or execution.fused_qkv
            return tape.copy(mixed) if joined else mixed
        if execution.recompute == "selective" and tape.training:
            mixed = tape.recomputed_attention(
                q, k, v, heads=self.heads, head_dim=self.head_dim, value_dim=self.value_dim, **shape
            )
            return tape.copy(mixed)
        # a batched product takes heads in one piece: of q, k, v in one tensor it keeps a copy of the part
        q, k, v = (t if t.symbol == t.storage.symbol else tape.copy(t) for t in (q, k, v))
        scores = tape.scores(q, k, heads=self.heads, key_dim=self.head_dim, **shape)
        scores = tape.pointwise("scale", scores)
        if self.softcap:
            scores = tape.pointwise("scale", tape.pointwise("tanh", scores))
        scores = tape.add(scores, tape.table("mask", 1))
        weights = tape.cast(tape.softmax(scores, "fp32" if self.upcast_softmax else None), v.dtype)
        if self.dropout > 0 and tape.dropout_on:
            weights = tape.dropout(weights)
        mixed = tape.mix(
            weights, v, heads=self.heads, value_dim=self.value_dim, symbol=self.mixed_symbol, **shape
        )
        return tape.copy(mixed)  # back to (B, T, heads, head_dim): a copy, kept by the output projection

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Keys and values of every token that a later query may still see."""
        length = work.context
        if self.window is not None:
            length = smallest(length, self.window)
        if self.chunk is not None:
            length = smallest(length, self.chunk)
        operands = {"B": work.sequences, "S": length, "h_kv": self.kv_heads, "d_h": self.head_dim}
        elements = work.sequences * length * (self.kv_width + self.v_width)
        expression = "2·B·S·h_kv·d_h"
        if self.value_dim != self.head_dim:
            expression, operands["d_v"] = "B·S·h_kv·(d_h + d_v)", self.value_dim
        return (CacheTensor("keys and values", elements, "kv", expression, operands),)


class _Joined:
    """The matrices of q, k and v as the one product that they are multiplied in."""

    def __init__(self, *parts: Linear) -> None:
        self.in_features = parts[0].in_features
        self.out_features = sum(p.out_features for p in parts)
        self.numel = sum(p.numel for p in parts)
        self.out_symbol, self.quantisable = "qkv", all(p.quantisable for p in parts)


class Attention(AttentionCore):
    """softmax(q·kᵀ·scale)·v with h query heads and h_kv key/value heads of head_dim numbers.

    `qk_norm`: None, "head" (one weight of head_dim for all heads), "all" (over all heads at once) or
    "per_head" (a weight for each head). `window`/`chunk`: how far a query looks back. `gate`: an OutputGate.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        bias: bool = False,
        out_bias: bool | None = None,
        kv_bias: bool | None = None,
        fused_qkv: bool = False,
        qk_norm: str | None = None,
        norm_style: NormStyle | None = None,
        window: int | None = None,
        chunk: int | None = None,
        rotary: bool = True,
        sinks: bool = False,
        output_gate: bool = False,
        dropout: float = 0.0,
        transposed: bool = False,
        names: AttentionNames | None = None,
        value_dim: int | None = None,
        gate: Any = None,
        upcast_softmax: bool = True,
        joined_heads: bool = False,
        softcap: bool = False,
    ) -> None:
        super().__init__(
            heads,
            kv_heads,
            head_dim,
            value_dim=value_dim,
            window=window,
            chunk=chunk,
            dropout=dropout,
            upcast_softmax=upcast_softmax,
            joined_heads=joined_heads,
            softcap=softcap,
        )
        self.names = names = names or AttentionNames()
        self.hidden_size, self.rotary = hidden_size, rotary
        kv_symbol = "q" if kv_heads == heads else "kv"
        kv_bias = bias if kv_bias is None else kv_bias
        out_bias = bias if out_bias is None else out_bias
        if sinks:
            self.own("sinks", (heads,), "other")
        self.qkv: Linear | None = None
        if fused_qkv:
            width = self.q_width + self.kv_width + self.v_width
            self.qkv = self.add(
                names.qkv,
                Linear(
                    hidden_size,
                    width,
                    bias=bias,
                    role="attention",
                    symbol="qkv",
                    tag=names.qkv,
                    transposed=transposed,
                ),
            )
        else:

            def projection(name: str, width: int, symbol: str, has_bias: bool) -> Linear:
                linear = Linear(hidden_size, width, bias=has_bias, role="attention", symbol=symbol, tag=name)
                self.add(name, linear)
                return linear

            q_out = 2 * self.q_width if output_gate else self.q_width
            self.q = projection(names.q, q_out, "q", bias)
            self.k = projection(names.k, self.kv_width, kv_symbol, kv_bias)
            self.v = projection(names.v, self.v_width, kv_symbol, kv_bias)
        self.o: Linear = self.add(
            names.o,
            Linear(
                self.mixed_width,
                hidden_size,
                bias=out_bias,
                role="attention",
                tag=names.o,
                tp="row",
                transposed=transposed,
            ),
        )
        self.kv_symbol = kv_symbol
        self.q_norm: Norm | None = None
        self.k_norm: Norm | None = None
        if qk_norm:
            style = norm_style or NormStyle()

            def head_norm(count: int) -> Norm:
                if qk_norm == "all":
                    return Norm(count * head_dim, style)
                shape = (count, head_dim) if qk_norm == "per_head" else (head_dim,)
                return Norm(head_dim, style, groups=count, shape=shape)

            self.q_norm = self.add(names.q_norm, head_norm(heads))
            self.k_norm = self.add(names.k_norm, head_norm(kv_heads))
        self.gate: Any = self.add("", gate)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        if self.qkv is not None or tape.execution.fused_qkv:
            packed = self._packed(x, tape)  # (B·T, q + 2·kv)
            q = tape.view(packed, self.q_width, "q")
            k = tape.view(packed, self.kv_width, self.kv_symbol)
            v = tape.view(packed, self.v_width, self.kv_symbol)
        else:
            q, k, v = self.q.forward(x, tape), self.k.forward(x, tape), self.v.forward(x, tape)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm.forward(q, tape), self.k_norm.forward(k, tape)
        if self.rotary:
            table = tape.table("rotary", self.head_dim)
            q, k = tape.rotary(q, table), tape.rotary(k, table)
        mixed = self.core(q, k, v, tape)  # (B·T, q)
        return self.o.forward(self.gated(mixed, x, tape), tape)

    def _packed(self, x: Tensor, tape: Ops) -> Tensor:
        """q, k and v in one tensor; under `fused_qkv` each of them may have its own adapter."""
        if self.qkv is not None and not tape.execution.fused_qkv:
            return self.qkv.forward(x, tape)
        joined = self.qkv or _Joined(self.q, self.k, self.v)
        packed = tape.linear(x, joined)
        if tape.adapter is None:
            return packed
        names = (self.names.q, self.names.k, self.names.v)
        widths = (self.q_width, self.kv_width, self.v_width)
        parts = tuple((w, tape.adapter.applies(n)) for n, w in zip(names, widths, strict=True))
        return adapt_parts(tape, packed, x, self.hidden_size, parts, "qkv")

    def gated(self, mixed: Tensor, x: Tensor, tape: Ops) -> Tensor:
        """What stands between the mix and the output projection: nothing, or the gate of `layers/gates.py`."""
        return mixed if self.gate is None else self.gate.forward(mixed, x, tape)

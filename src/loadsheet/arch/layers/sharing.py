"""Attention of Gemma 3n and 4: layers that reuse the keys and values of an earlier layer, values made of keys."""

from __future__ import annotations

from typing import Literal

from loadsheet.arch.layers.attention import AttentionCore, CacheTensor
from loadsheet.arch.layers.base import Linear, Norm, NormStyle
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work

#: "own": keys and values of its own; "store": the same, and later layers read them; "reuse": no keys and
#: values, it reads those of the last storing layer of its kind
Sharing = Literal["own", "store", "reuse"]


class SharedAttention(AttentionCore):
    """Attention with norms on q, k and v, whose keys and values may come from another layer.

    `kind` tells which storing layer belongs to which reusing ones. `values_from_keys`: the values are
    the projected keys, normed apart (Gemma 4's `attention_k_eq_v`), so there is no v_proj.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        kind: str,
        sharing: Sharing = "own",
        window: int | None = None,
        bias: bool = False,
        values_from_keys: bool = False,
        norm_style: NormStyle | None = None,
    ) -> None:
        super().__init__(heads, kv_heads, head_dim, window=window)
        self.hidden_size, self.kind, self.sharing = hidden_size, kind, sharing
        self.kv_symbol = "q" if kv_heads == heads else "kv"
        style = norm_style or NormStyle()
        self.q: Linear = self._projection("q_proj", self.q_width, "q", bias)
        self.queries_norm: Norm = self.add("q_norm", Norm(head_dim, style, groups=heads))
        self.own_v: Linear | None = None
        if sharing != "reuse":
            self.k: Linear = self._projection("k_proj", self.kv_width, self.kv_symbol, bias)
            self.keys_norm: Norm = self.add("k_norm", Norm(head_dim, style, groups=kv_heads))
            self.values_norm = Norm(head_dim, NormStyle("rms", weight=False), groups=kv_heads)
            if not values_from_keys:
                self.own_v = self._projection("v_proj", self.kv_width, self.kv_symbol, bias)
        self.o: Linear = self.add(
            "o_proj",
            Linear(self.q_width, hidden_size, bias=bias, role="attention", tag="o_proj", tp="row"),
        )

    def _projection(self, name: str, width: int, symbol: str, bias: bool) -> Linear:
        linear = Linear(self.hidden_size, width, bias=bias, role="attention", symbol=symbol, tag=name)
        self.add(name, linear)
        return linear

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        table = tape.table("rotary", self.head_dim)
        q = self.q.forward(x, tape)
        q = tape.rotary(self.queries_norm.forward(q, tape), table)
        if self.sharing == "reuse":
            k, v = self._stored("keys", tape), self._stored("values", tape)
        else:
            k = self.k.forward(x, tape)
            v = k if self.own_v is None else self.own_v.forward(x, tape)
            k = tape.rotary(self.keys_norm.forward(k, tape), table)
            v = self.values_norm.forward(v, tape)
        if self.sharing == "store":  # kept once for all layers that read them
            for name, tensor in (("keys", k), ("values", v)):
                tensor.storage.outside = True
                tape.tables[f"{name}, {self.kind}", self.kv_width] = tensor
        return self.o.forward(self.core(q, k, v, tape), tape)

    def _stored(self, name: str, tape: Ops) -> Tensor:
        """What the storing layer left; where there is none (an assistant's target has it), a new tensor."""
        key = (f"{name}, {self.kind}", self.kv_width)
        if key not in tape.tables:
            rows = tape.work.tokens
            made = tape.new(rows, self.kv_width, self.kv_symbol, tape.compute_dtype, outside=True)
            tape.tables[key] = made
        return tape.tables[key]

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """Keys and values, but none where another layer's are read."""
        return () if self.sharing == "reuse" else super().cache(work)

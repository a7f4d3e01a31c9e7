"""Multi-head latent attention (DeepSeek V2, arXiv 2405.04434, §2.1): one small latent per token is cached."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.layers.attention import CacheTensor
from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle
from loadsheet.arch.layers.indexer import Indexer
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work
from loadsheet.units import smallest


class LatentAttention(Layer):
    """Queries from a latent of q_lora_rank, keys and values from one of kv_lora_rank plus a shared rope key.

    cache per token: kv_lora_rank + rope_dim numbers, whatever the number of heads. `gate`: an OutputGate;
    `query_gate`: queries and a gate from one matrix that reads the latent before and after its norm;
    `rope_norm` names a norm of the shared rope key; `indexer` chooses the keys that a query uses, `chosen`
    of them, or as many as the layer before chose.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        *,
        q_lora_rank: int | None,
        kv_lora_rank: int,
        nope_dim: int,
        rope_dim: int,
        value_dim: int,
        bias: bool = False,
        norm_style: NormStyle | None = None,
        window: int | None = None,
        sinks: bool = False,
        gate: Any = None,
        query_gate: str | None = None,
        rope_norm: str | None = None,
        indexer: Indexer | None = None,
        chosen: int | None = None,
    ) -> None:
        super().__init__()
        style = norm_style or NormStyle()
        self.heads, self.kv_lora_rank, self.rope_dim, self.value_dim = (
            heads,
            kv_lora_rank,
            rope_dim,
            value_dim,
        )
        self.key_dim = nope_dim + rope_dim
        self.nope_dim, self.window = nope_dim, window
        width = heads * self.key_dim
        if sinks:
            self.own("sinks", (heads,), "other")

        def linear(
            name: str, n_in: int, n_out: int, symbol: str, has_bias: bool = False, tp: str = "column"
        ) -> Linear:
            layer = Linear(
                n_in,
                n_out,
                bias=has_bias,
                role="attention",
                symbol=symbol,
                tag=name,
                tp="row" if tp == "row" else "column" if tp == "column" else "replicated",
            )
            self.add(name, layer)
            return layer

        self.q: Linear | None = None
        if q_lora_rank is None:
            self.q = linear("q_proj", hidden_size, width, "q")
        else:
            self.q_down = linear("q_a_proj", hidden_size, q_lora_rank, "c_q", bias, "replicated")
            self.q_norm: Norm = self.add("q_a_layernorm", Norm(q_lora_rank, style))
            if query_gate:
                self.q_up = linear(query_gate, 2 * q_lora_rank, width + heads * value_dim, "q+g")
            else:
                self.q_up = linear("q_b_proj", q_lora_rank, width, "q")
        self.kv_down = linear(
            "kv_a_proj_with_mqa", hidden_size, kv_lora_rank + rope_dim, "c_kv", bias, "replicated"
        )
        self.kv_norm: Norm = self.add("kv_a_layernorm", Norm(kv_lora_rank, style))
        self.kv_up = linear("kv_b_proj", kv_lora_rank, heads * (nope_dim + value_dim), "kv_b")
        self.o = linear("o_proj", heads * value_dim, hidden_size, "d", bias, "row")
        self.rope_norm: Norm | None = self.add(rope_norm, Norm(rope_dim, style)) if rope_norm else None
        self.gate: Any = self.add("", gate)
        self.query_gate = bool(query_gate)
        self.indexer: Indexer | None = self.add("indexer", indexer)
        chosen = indexer.chosen if indexer is not None else chosen
        self.sees = window if chosen is None else chosen  # keys that a query uses at most
        self.chosen = chosen is not None

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d), with keys and values unpacked to every head, as in training and prefill."""
        q, factor = self._queries(x, tape)
        latent = self.kv_down.forward(x, tape)  # (B·T, c + rope)
        compressed = tape.view(latent, self.kv_lora_rank, "c_kv")
        unpacked = self.kv_up.forward(self.kv_norm.forward(compressed, tape), tape)  # (B·T, h·(nope + v))
        if self.rope_norm is not None:
            self.rope_norm.forward(tape.view(latent, self.rope_dim, "c_kv"), tape)
        v = tape.view(unpacked, self.heads * self.value_dim, "kv_b")
        table = tape.table("rotary", self.rope_dim)
        q = tape.rotary(q, table)  # joined with its rotated part: a new tensor of the same width
        k = tape.copy(unpacked, self.heads * self.key_dim, "q")  # (nope, rope) of every head written out
        q, k, v = (tape.cast(t, tape.compute_dtype) for t in (q, k, v))
        mixed = self._mix(q, k, v, tape)
        if self.gate is not None:
            mixed = self.gate.forward(mixed, x, tape)
        if factor is not None:
            gate = tape.pointwise("sigmoid", tape.cast(factor, "fp32"))
            mixed = tape.cast(tape.multiply(gate, mixed), mixed.dtype)
        return self.o.forward(mixed, tape)

    def _queries(self, x: Tensor, tape: Ops) -> tuple[Tensor, Tensor | None]:
        """Queries of every head, and their gate where one matrix gives both; the indexer reads their latent."""
        if self.q is not None:
            return self.q.forward(x, tape), None
        down = self.q_down.forward(x, tape)
        residual = self.q_norm.forward(down, tape)
        if self.indexer is not None:
            self.indexer.forward(x, residual, tape)
        if not self.query_gate:
            return self.q_up.forward(residual, tape), None
        packed = self.q_up.forward(tape.copy(residual, 2 * residual.width, "2c_q"), tape)
        q = tape.view(packed, self.heads * self.key_dim, "q")
        return q, tape.copy(packed, self.heads * self.value_dim, "h·d_v")

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, tape: Ops) -> Tensor:
        execution = tape.execution
        if execution.attention == "eager":
            return self._eager(q, k, v, tape)
        if execution.device == "cpu" and self.key_dim != self.value_dim:
            # PyTorch's CPU has no kernel for values of another width: written out, in fp32
            q, k, v = (tape.cast(t, "fp32") for t in (q, k, v))
            return tape.cast(self._eager(q, k, v, tape), tape.compute_dtype)
        mixed = tape.attention(
            q, k, v, heads=self.heads, key_dim=self.key_dim, value_dim=self.value_dim, window=self.sees
        )
        if self.chosen:
            tape.keep_mask(0)  # what is not chosen is masked, in each layer its own
        return mixed

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, tape: Ops) -> Tensor:
        # a batched product takes heads in one piece: of keys and values in one tensor it keeps a copy of the part
        v = v if v.symbol == v.storage.symbol and v.width == v.storage.units else tape.copy(v)
        scores = tape.scores(q, k, heads=self.heads, key_dim=self.key_dim, window=self.sees, chunk=None)
        scores = tape.add(tape.pointwise("scale", scores), tape.table("mask", 1))
        weights = tape.cast(tape.softmax(scores, "fp32"), v.dtype)
        mixed = tape.mix(
            weights,
            v,
            heads=self.heads,
            value_dim=self.value_dim,
            symbol="h·d_v",
            window=self.sees,
            chunk=None,
        )
        return tape.copy(mixed)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The normed latent and the shared rope key of every token (DeepSeek V2, Table 1: d_c + d_h^R)."""
        length = work.context if self.window is None else smallest(work.context, self.window)
        width = self.kv_lora_rank + self.rope_dim
        operands = {"B": work.sequences, "S": length, "d_c": self.kv_lora_rank, "d_r": self.rope_dim}
        elements = work.sequences * length * width
        latent = CacheTensor("latent and rope key", elements, "latent", "B·S·(d_c + d_r)", operands)
        return (latent,) if self.indexer is None else (latent, *self.indexer.cache(work))

"""Multi-head latent attention (DeepSeek V2, arXiv 2405.04434, §2.1): one small latent per token is cached."""

from __future__ import annotations

from loadsheet.arch.layers.attention import CacheTensor
from loadsheet.arch.layers.base import Layer, Linear, Norm, NormStyle
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work


class LatentAttention(Layer):
    """Queries from a latent of q_lora_rank, keys and values from one of kv_lora_rank plus a shared rope key.

    cache per token: kv_lora_rank + rope_dim numbers, whatever the number of heads.
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
        self.nope_dim = nope_dim
        width = heads * self.key_dim

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
            self.q_up = linear("q_b_proj", q_lora_rank, width, "q")
        self.kv_down = linear(
            "kv_a_proj_with_mqa", hidden_size, kv_lora_rank + rope_dim, "c_kv", bias, "replicated"
        )
        self.kv_norm: Norm = self.add("kv_a_layernorm", Norm(kv_lora_rank, style))
        self.kv_up = linear("kv_b_proj", kv_lora_rank, heads * (nope_dim + value_dim), "kv_b")
        self.o = linear("o_proj", heads * value_dim, hidden_size, "d", bias, "row")

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d), with keys and values unpacked to every head, as in training and prefill."""
        if self.q is not None:
            q = self.q.forward(x, tape)
        else:
            q = self.q_up.forward(self.q_norm.forward(self.q_down.forward(x, tape), tape), tape)
        latent = self.kv_down.forward(x, tape)  # (B·T, c + rope)
        compressed = tape.view(latent, self.kv_lora_rank, "c_kv")
        unpacked = self.kv_up.forward(self.kv_norm.forward(compressed, tape), tape)  # (B·T, h·(nope + v))
        v = tape.view(unpacked, self.heads * self.value_dim, "kv_b")
        table = tape.table("rotary", self.rope_dim)
        q = tape.rotary(q, table)  # joined with its rotated part: a new tensor of the same width
        k = tape.copy(unpacked, self.heads * self.key_dim, "q")  # (nope, rope) of every head written out
        q, k, v = (tape.cast(t, tape.compute_dtype) for t in (q, k, v))
        if tape.execution.attention == "eager":
            mixed = self._eager(q, k, v, tape)
        else:
            mixed = tape.attention(q, k, v, heads=self.heads, key_dim=self.key_dim, value_dim=self.value_dim)
        return self.o.forward(mixed, tape)

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, tape: Ops) -> Tensor:
        scores = tape.scores(q, k, heads=self.heads, key_dim=self.key_dim, window=None, chunk=None)
        scores = tape.add(tape.pointwise("scale", scores), tape.table("mask", 1))
        weights = tape.cast(tape.softmax(scores, "fp32"), v.dtype)
        mixed = tape.mix(
            weights, v, heads=self.heads, value_dim=self.value_dim, symbol="h·d_v", window=None, chunk=None
        )
        return tape.copy(mixed)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """The normed latent and the shared rope key of every token (DeepSeek V2, Table 1: d_c + d_h^R)."""
        width = self.kv_lora_rank + self.rope_dim
        operands = {"B": work.sequences, "S": work.context, "d_c": self.kv_lora_rank, "d_r": self.rope_dim}
        elements = work.sequences * work.context * width
        return (CacheTensor("latent and rope key", elements, "latent", "B·S·(d_c + d_r)", operands),)

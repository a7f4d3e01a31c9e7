"""Mixtures that are stored or joined in ways of their own: DBRX, JetMoE, LongCat, a norm after the mixture."""

from __future__ import annotations

from loadsheet.arch.layers.attention import AttentionCore, CacheTensor
from loadsheet.arch.layers.base import Layer, Linear, Norm, Role
from loadsheet.arch.layers.mlp import Experts, GatedMLP, MoE, Router, gated
from loadsheet.arch.model import Block
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work


class NormedMoE(MoE):
    """A mixture with a norm of its own after the sum of all experts (A.X-K1)."""

    def with_norm(self, name: str, norm: Norm) -> NormedMoE:
        """Register the norm; returns itself."""
        self.norm: Norm = self.add(name, norm)
        return self

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        return self.norm.forward(super().forward(x, tape), tape)


class FlatExperts(Experts):
    """DBRX's experts: three matrices (E·f, d) in which the experts lie one below the other."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, experts: int, per_token: int, activation: str
    ) -> None:
        super().__init__(hidden_size, intermediate_size, experts, per_token, activation)
        self._own.clear()
        for name in ("w1", "v1", "w2"):
            self.own(
                f"mlp.{name}",
                (experts * intermediate_size, hidden_size),
                "mlp",
                matmul=True,
                active=(per_token, experts),
                quantise=True,
            )


class ExpertsWithNone(Experts):
    """LongCat's experts: some choices are no expert at all, but pass the token on as it is.

    Its fused gate and up matrices have (unused) slots for those too. `per_token` is how many real ones a
    token meets on average, if every choice is equally likely.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        experts: int,
        per_token: int,
        activation: str,
        *,
        choices: int,
    ) -> None:
        super().__init__(hidden_size, intermediate_size, experts, per_token, activation)
        self._own.clear()
        for name, count, rows, columns in (
            ("gate_up_proj", choices, 2 * intermediate_size, hidden_size),
            ("down_proj", experts, hidden_size, intermediate_size),
        ):
            active = (per_token, count)
            self.own(name, (count, rows, columns), "mlp", matmul=True, active=active, quantise=True)


class ParallelExperts(Layer):
    """One matrix for each expert, (E, out, in)."""

    def __init__(
        self, experts: int, per_token: int, n_in: int, n_out: int, *, role: Role = "mlp", symbol: str
    ) -> None:
        super().__init__()
        self.experts, self.per_token = experts, per_token
        self.own(
            "weight", (experts, n_out, n_in), role, matmul=True, active=(per_token, experts), quantise=True
        )
        self.one = Linear(n_in, n_out, role=role, symbol=symbol)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(k·B·T, in) → (k·B·T, out)."""
        out = tape.linear(x, self.one, experts=self.experts)
        out.storage.units = self.per_token * self.one.out_features
        return out


class BiasedMixture(Layer):
    """JetMoE's mixture: fused experts, then one bias for their sum."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, experts: int, per_token: int, activation: str
    ) -> None:
        super().__init__()
        self.per_token, self.activation, self.intermediate_size = per_token, activation, intermediate_size
        self.own("bias", (hidden_size,), "mlp")
        self.into: ParallelExperts = self.add(
            "input_linear",
            ParallelExperts(experts, per_token, hidden_size, 2 * intermediate_size, symbol="2k·f_e"),
        )
        self.out: ParallelExperts = self.add(
            "output_linear", ParallelExperts(experts, per_token, intermediate_size, hidden_size, symbol="k·d")
        )
        self.router: Router = self.add("router", Router(hidden_size, experts, name="layer.weight"))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        k = self.per_token
        scores = tape.cast(self.router.forward(x, tape), x.dtype)
        packed = self.into.forward(tape.route(x, scores, k), tape)
        gate = tape.view(packed, self.intermediate_size, "k·f_e")
        up = tape.view(packed, self.intermediate_size, "k·f_e")
        out = self.out.forward(gated(gate, up, self.activation, tape, scale=k), tape)
        mixed = tape.combine(out, scores, k)
        return tape.add(mixed, mixed)  # of the bias, broadcast


class MixtureOfAttention(AttentionCore):
    """JetMoE's attention: experts make the queries and the output; keys and values are the same for all.

    Each of the k chosen experts has as many query heads as there are key heads.
    """

    def __init__(self, hidden_size: int, kv_heads: int, head_dim: int, experts: int, per_token: int) -> None:
        super().__init__(per_token * kv_heads, kv_heads, head_dim)
        d, kv, k = hidden_size, self.kv_width, per_token
        self.per_token = k
        self.own("experts.bias", (d,), "attention")
        self.q: ParallelExperts = self.add(
            "experts.input_linear", ParallelExperts(experts, k, d, kv, role="attention", symbol="q")
        )
        self.o: ParallelExperts = self.add(
            "experts.output_linear", ParallelExperts(experts, k, kv, d, role="attention", symbol="k·d")
        )
        self.router: Router = self.add("experts.router", Router(d, experts, name="layer.weight"))
        self.kv: Linear = self.add(
            "kv_proj", Linear(d, 2 * kv, role="attention", symbol="2kv", tag="kv_proj")
        )

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        k = self.per_token
        scores = tape.cast(self.router.forward(x, tape), x.dtype)
        routed = self.q.forward(tape.route(x, scores, k), tape)  # (k·B·T, kv)
        q = tape.copy(tape.view(routed, self.q_width, "q", rows=x.rows))  # back in the tokens' order
        packed = self.kv.forward(x, tape)
        keys, values = (tape.view(packed, self.kv_width, "kv") for _ in range(2))
        table = tape.table("rotary", self.head_dim)
        q, keys = tape.rotary(q, table), tape.rotary(keys, table)
        mixed = tape.copy(self.core(q, keys, values, tape))  # in the experts' order again
        out = self.o.forward(tape.view(mixed, self.kv_width, "q", rows=mixed.rows * k), tape)
        joined = tape.combine(out, scores, k)
        return tape.add(joined, joined)  # of the bias, broadcast


class ShortcutBlock(Block):
    """LongCat's block: two attentions and two MLPs in a row, a mixture from the first joined at the end.

    (arXiv 2509.01322, section 2.1.)
    """

    def __init__(
        self, mixers: tuple[Layer, Layer], mlps: tuple[GatedMLP, GatedMLP], mixture: MoE, norms: list[Norm]
    ) -> None:
        super().__init__(
            mixers[0],
            mixture,
            norm_1=norms[0],
            norm_2=norms[1],
            post_1=norms[2],
            post_2=norms[3],
            names=("self_attn.0", "mlp"),
            norm_names=(
                "input_layernorm.0",
                "post_attention_layernorm.0",
                "input_layernorm.1",
                "post_attention_layernorm.1",
            ),
        )
        self.second = self.add("self_attn.1", mixers[1])
        self.mlps = tuple(self.add(f"mlps.{i}", mlp) for i, mlp in enumerate(mlps))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        x = tape.add(x, self.mixer.forward(self._norm(self.norm_1, x, tape), tape))
        fed = self._norm(self.norm_2, x, tape)
        shortcut = self.mlp.forward(fed, tape)
        x = tape.add(x, self.mlps[0].forward(fed, tape))
        x = tape.add(x, self.second.forward(self._norm(self.post_1, x, tape), tape))
        x = tape.add(x, self.mlps[1].forward(self._norm(self.post_2, x, tape), tape))
        return tape.add(x, shortcut)

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """What both attentions keep."""
        return (*self.mixer.cache(work), *self.second.cache(work))

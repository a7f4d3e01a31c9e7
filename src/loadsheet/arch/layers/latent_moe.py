"""A mixture whose experts work on a narrower vector than the model's (Nemotron 3, LatentMoE)."""

from __future__ import annotations

from loadsheet.arch.layers.base import Layer, Linear
from loadsheet.arch.layers.mlp import Experts, MoE, Router
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor


class LatentMoE(MoE):
    """up(experts(down(x))) + shared(x), the router reading x itself."""

    def __init__(
        self,
        router: Router,
        experts: Experts,
        *,
        hidden_size: int,
        latent_size: int,
        bias: bool,
        shared: Layer,
        names: tuple[str, str] = ("fc1_latent_proj", "fc2_latent_proj"),
    ) -> None:
        super().__init__(router, experts, shared=shared)
        down, up = names
        self.down: Linear = self.add(
            down, Linear(hidden_size, latent_size, bias=bias, symbol="l", tag=down, tp="replicated")
        )
        self.up: Linear = self.add(up, Linear(latent_size, hidden_size, bias=bias, tag=up, tp="replicated"))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        scores = tape.cast(self.router.forward(x, tape), x.dtype)
        out = self.experts.forward(self.down.forward(x, tape), scores, tape)
        return tape.add(self.up.forward(out, tape), self.shared.forward(x, tape))

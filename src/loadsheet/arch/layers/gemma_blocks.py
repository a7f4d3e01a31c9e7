"""The blocks of Gemma 3n and 4: Gemma 2's, with a per-layer embedding and streams or a mixture beside."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.layers.altup import AltUp, Laurel
from loadsheet.arch.layers.base import Linear, Norm, NormStyle, Stem
from loadsheet.arch.layers.mlp import Experts, Router
from loadsheet.arch.layers.per_layer import PerLayerGate
from loadsheet.arch.model import Block
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor

NAMES = (
    "input_layernorm",
    "pre_feedforward_layernorm",
    "post_attention_layernorm",
    "post_feedforward_layernorm",
)


class ScaledRouter(Router):
    """Gemma 4's router: scores of the normed and scaled input, and a scale for each expert."""

    def __init__(self, hidden_size: int, experts: int) -> None:
        super().__init__(hidden_size, experts, name="proj.weight")
        self.norm = Norm(hidden_size, NormStyle("rms", weight=False))
        self.scale = self.own("scale", (hidden_size,), "mlp")
        self.expert_scale = self.own("per_expert_scale", (experts,), "mlp")

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, E) probabilities in fp32."""
        scores = super().forward(tape.scale_by_weight(self.norm.forward(x, tape), self.scale.numel), tape)
        return tape.scale_by_weight(scores, self.expert_scale.numel)


class Gemma4Block(Block):
    """Norms around attention and MLP; a mixture may stand beside the MLP; the per-layer embedding comes last."""

    def __init__(
        self,
        hidden_size: int,
        mixer: Any,
        mlp: Any,
        norm: NormStyle,
        *,
        gate: PerLayerGate | None = None,
        mixture: tuple[ScaledRouter, Experts] | None = None,
    ) -> None:
        def new() -> Norm:
            return Norm(hidden_size, norm)

        super().__init__(mixer, mlp, norm_1=new(), norm_2=new(), post_1=new(), post_2=new(), norm_names=NAMES)
        self.gate: PerLayerGate | None = self.add("", gate)
        self.mixture = mixture
        if mixture is not None:
            self.add("router", mixture[0])
            self.add("experts", mixture[1])
            self.dense_post: Norm = self.add("post_feedforward_layernorm_1", new())
            self.mixture_post: Norm = self.add("post_feedforward_layernorm_2", new())
            self.mixture_norm: Norm = self.add("pre_feedforward_layernorm_2", new())

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        mixed = self.mixer.forward(self._norm(self.norm_1, x, tape), tape)
        x = tape.add(x, self._after(mixed, self.post_1, tape))
        fed = self.mlp.forward(self._norm(self.norm_2, x, tape), tape)
        if self.mixture is not None:
            router, experts = self.mixture
            scores = tape.cast(router.forward(x, tape), x.dtype)
            routed = experts.forward(self.mixture_norm.forward(x, tape), scores, tape)
            fed = tape.add(self.dense_post.forward(fed, tape), self.mixture_post.forward(routed, tape))
        x = tape.add(x, self._after(fed, self.post_2, tape))
        if self.gate is not None:
            x = tape.add(x, self.gate.forward(x, tape))
        return tape.pointwise("scale", x)  # by a constant of each layer


class AltUpBlock(Block):
    """Gemma 3n: predict all streams, run attention, LAuReL and MLP on one, correct the others."""

    def __init__(
        self,
        hidden_size: int,
        mixer: Any,
        mlp: Any,
        norm: NormStyle,
        *,
        altup: AltUp,
        laurel: Laurel,
        gate: PerLayerGate,
    ) -> None:
        def new() -> Norm:
            return Norm(hidden_size, norm)

        super().__init__(mixer, mlp, norm_1=new(), norm_2=new(), post_1=new(), post_2=new(), norm_names=NAMES)
        self.altup: AltUp = self.add("altup", altup)
        self.laurel: Laurel = self.add("laurel", laurel)
        self.gate: PerLayerGate = self.add("", gate)

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, n·d) → (B·T, n·d)."""
        predicted = self.altup.predict(x, tape)
        active = self.altup.active(predicted, tape)
        normed = self._norm(self.norm_1, active, tape)
        beside = self.laurel.forward(normed, tape)
        mixed = self._after(self.mixer.forward(normed, tape), self.post_1, tape)
        y = tape.pointwise("scale", tape.add(tape.add(active, mixed), beside))
        fed = self.mlp.forward(self._norm(self.norm_2, y, tape), tape)
        y = tape.add(y, self._after(fed, self.post_2, tape))
        corrected = self.altup.correct(predicted, y, tape)
        return tape.add(corrected, self.gate.forward(self.altup.output(corrected, tape), tape))


class TargetProjections(Stem):
    """What joins an assistant to the model it helps: that model's two states come in, a state of its width goes out."""

    def __init__(self, hidden_size: int, target_size: int, centroids: int) -> None:
        super().__init__()
        self.target_size = target_size
        self.into: Linear = self.add(
            "pre_projection", Linear(2 * target_size, hidden_size, role="other", quantisable=False)
        )
        self.back: Linear = self.add(
            "post_projection", Linear(hidden_size, target_size, role="other", symbol="d_t", quantisable=False)
        )
        self.centroids: Linear | None = None
        if centroids:
            linear = Linear(hidden_size, centroids, role="other", symbol="n_c", quantisable=False)
            self.centroids = self.add("masked_embedding.centroids", linear)

    def begin(self, x: Tensor, ids: Tensor, tape: Ops) -> Tensor:
        """(B·T, 2·target) → (B·T, d), in place of the embedding."""
        states = tape.new(x.rows, 2 * self.target_size, "2d_t", tape.dtype, outside=True)
        return self.into.forward(states, tape)

    def end(self, x: Tensor, tape: Ops) -> Tensor:
        """The stream goes on to the head; the target's next input is made beside it."""
        self.back.forward(x, tape)
        if self.centroids is not None:
            self.centroids.forward(x, tape)
        return x

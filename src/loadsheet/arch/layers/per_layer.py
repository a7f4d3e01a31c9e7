"""Per-layer embeddings of Gemma 3n and 4: a second, narrow embedding of each token for every layer."""

from __future__ import annotations

from loadsheet.arch.layers.base import Embedding, Layer, Linear, Norm, NormStyle, Stem
from loadsheet.arch.layers.mlp import gated
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor

_TABLE = "per-layer inputs"


def _inputs(tape: Ops, width: int, layers: int) -> Tensor:
    """The inputs of all layers, made once before the blocks; all blocks read their part of it."""
    key = (_TABLE, width * layers)
    if key not in tape.tables:
        rows = tape.work.tokens
        tape.tables[key] = tape.new(rows, width * layers, "L·p", tape.dtype, tape.full, outside=True)
    return tape.tables[key]


class PerLayerInputs(Stem):
    """(norm(projection of the embedding) + look-up in a table of its own) / √2, for all layers at once."""

    def __init__(
        self, hidden_size: int, width: int, layers: int, vocab_size: int, norm_style: NormStyle
    ) -> None:
        super().__init__()
        self.width, self.layers = width, layers
        self.table: Embedding = self.add(
            "embed_tokens_per_layer", Embedding(vocab_size, layers * width, symbol="L·p")
        )
        self.projection: Linear = self.add(
            "per_layer_model_projection",
            Linear(hidden_size, layers * width, role="other", symbol="L·p", quantisable=False),
        )
        self.norm: Norm = self.add("per_layer_projection_norm", Norm(width, norm_style, groups=layers))

    def begin(self, x: Tensor, ids: Tensor, tape: Ops) -> Tensor:
        """Leaves the inputs of the layers among the tables; the embedding itself goes on unchanged."""
        identity = self.table.forward(ids, tape)
        context = tape.pointwise("scale", self.projection.forward(x, tape))
        both = tape.pointwise("scale", tape.add(self.norm.forward(context, tape), identity))
        both.storage.outside = True
        tape.tables[_TABLE, self.width * self.layers] = both
        return x


class PerLayerGate(Layer):
    """norm(projection(act(gate(x)) ⊙ this layer's input)): what the per-layer embedding adds in one block."""

    def __init__(
        self, hidden_size: int, width: int, layers: int, activation: str, norm_style: NormStyle
    ) -> None:
        super().__init__()
        self.width, self.layers, self.activation = width, layers, activation
        self.gate: Linear = self.add(
            "per_layer_input_gate", Linear(hidden_size, width, symbol="p", tag="per_layer_input_gate")
        )
        self.projection: Linear = self.add(
            "per_layer_projection", Linear(width, hidden_size, tag="per_layer_projection", tp="row")
        )
        self.norm: Norm = self.add("post_per_layer_input_norm", Norm(hidden_size, norm_style))

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, p) → (B·T, d)."""
        own = tape.view(_inputs(tape, self.width, self.layers), self.width, "p")
        mixed = gated(self.gate.forward(x, tape), own, self.activation, tape)
        return self.norm.forward(self.projection.forward(mixed, tape), tape)

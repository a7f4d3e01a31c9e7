"""Head and loss by chunks, eager and compiled, against what PyTorch holds at once on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadsheet.arch.layers.base import Linear
from loadsheet.arch.ops import Ops
from loadsheet.arch.ops_loss import end
from loadsheet.arch.work import Execution, Work

#: made by tools/measure_chunked_loss.py
MEASURED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "chunked_loss.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize(
    "row",
    MEASURED["rows"],
    ids=lambda r: f"{r['tokens']}-{r['compiled']}-{'frozen' if r['frozen'] else 'full'}",
)
def test_the_peak_is_pytorchs(row: dict[str, Any]) -> None:
    """Within 1.5 %: all chunks' gradients before the head's, and three gradients of a head that trains."""
    tokens, hidden = row["tokens"], MEASURED["hidden_size"]
    execution = Execution(
        loss="chunked", loss_chunks=MEASURED["chunks"], holds_logits=False, compiled_loss=row["compiled"]
    )
    tape = Ops(
        Work(1, tokens), execution, training=True, full=not row["frozen"], dtype="bf16", compute_dtype="bf16",
        grad_bytes=2,
    )  # fmt: skip
    x = tape.new(tokens, hidden, "d", "bf16", grad=True)
    loss = end(
        tape, x, Linear(hidden, MEASURED["vocab_size"]), tape.new(tokens, 1, "1", "int64"), softcap=False
    )
    summary = tape.summary(x, loss)
    # the measured step made its hidden state itself and held it to the end
    held = x.bytes if row["frozen"] else 0
    ours = max(summary.forward_peak, summary.backward_peak + held)
    assert ours == pytest.approx(row["peak"], rel=0.015)

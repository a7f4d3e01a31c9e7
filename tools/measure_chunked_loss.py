"""Measure what a head and a cross-entropy by chunks hold at once, eager and compiled: tests/data/chunked_loss.json.

The highest sum of PyTorch's own allocation events (torch.profiler, profile_memory) over one step on a CPU:
`python tools/measure_chunked_loss.py`. Needs torch and, for torch.compile, a C++ compiler; takes a minute or two.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch._C._profiler import _EventType
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

OUT: Final = Path(__file__).parent.parent / "tests" / "data" / "chunked_loss.json"
VOCABULARY, HIDDEN, CHUNKS = 4096, 64, 8
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float(), targets, reduction="sum")


def _step(head: torch.Tensor, tokens: int, loss: Loss) -> None:
    """As torchtune does it: all logits in chunks, then the loss chunk by chunk, then backward."""
    hidden = torch.randn(1, tokens, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (tokens,))
    head.grad = None
    logits = [functional.linear(part, head).reshape(-1, VOCABULARY) for part in hidden.chunk(CHUNKS, 1)]
    total = torch.zeros(())
    for part, wanted in zip(logits, targets.chunk(CHUNKS), strict=True):
        total = total + loss(part, wanted)
    del logits, part
    total.backward()


def _peak(events: list[Any]) -> int:
    """The highest sum of allocations and frees, in bytes."""
    found: list[tuple[int, int]] = []
    todo = list(events)
    while todo:
        event = todo.pop()
        todo += event.children
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
    now = highest = 0
    for _, size in sorted(found, key=lambda each: each[0]):
        now += size
        highest = max(highest, now)
    return highest


def measure(tokens: int, *, compiled: bool, frozen: bool) -> int:
    """Peak bytes of one step beside the head itself, the second of two."""
    loss: Loss = torch.compile(_loss) if compiled else _loss
    head = torch.randn(VOCABULARY, HIDDEN, dtype=torch.bfloat16, requires_grad=not frozen)
    _step(head, tokens, loss)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        _step(head, tokens, loss)
    return _peak(profiler.profiler.kineto_results.experimental_event_tree())


def main() -> None:
    """Measure all of them and write the file."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [
        {"tokens": t, "compiled": c, "frozen": f, "peak": measure(t, compiled=c, frozen=f)}
        for t in (256, 1024)
        for c in (False, True)
        for f in (False, True)
    ]
    facts = {
        "made_by": "tools/measure_chunked_loss.py", "torch": torch.__version__, "machine": platform.machine(),
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "chunks": CHUNKS, "dtype": "bf16",
    }  # fmt: skip
    OUT.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

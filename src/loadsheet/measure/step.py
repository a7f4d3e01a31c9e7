"""One training step of a module as PyTorch carries it out: loss, kept bytes, FLOPs, tracked peak."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from loadsheet.errors import LoadsheetError
from loadsheet.measure.kept import Kept, KeptTensors

Inputs = dict[str, Any]


@dataclass(slots=True)
class Step:
    """What one step needed."""

    kept: Kept
    forward_flops: int
    backward_flops: int
    flops_by_op: dict[str, int] = field(default_factory=dict)
    peak_bytes: int | None = None
    peak_parts: dict[str, int] = field(default_factory=dict)


def loss_of(output: Any, inputs: Inputs) -> torch.Tensor:
    """The scalar to differentiate: `.loss`, a scalar, or the cross-entropy of (B, T, V) logits."""
    if getattr(output, "loss", None) is not None:
        loss = output.loss
        assert isinstance(loss, torch.Tensor)
        return loss
    candidates = output if isinstance(output, tuple | list) else [output]
    tensors = [t for t in candidates if isinstance(t, torch.Tensor)]
    for t in tensors:
        if t.dim() == 0:
            return t
    logits = getattr(output, "logits", None)
    first = logits if logits is not None else (tensors[0] if tensors else None)
    if first is None:
        raise LoadsheetError(
            "measure: got a module whose output holds no tensor, expected a loss, logits or a tensor",
            "return the loss, or an object with `.loss` or `.logits`",
        )
    ids = next(
        (v for v in inputs.values() if isinstance(v, torch.Tensor) and not v.is_floating_point()), None
    )
    if first.dim() == 3 and ids is not None and first.shape[:2] == ids.shape[:2]:
        return torch.nn.functional.cross_entropy(first.flatten(0, 1), ids.flatten())
    return first.float().pow(2).mean()


def forward(module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
    """The loss; the rest of the output is dropped at once, as a trainer does that returns the loss only."""
    return loss_of(module(**inputs) if "" not in inputs else module(inputs[""]), inputs)


def flops(module: torch.nn.Module, inputs: Inputs) -> tuple[int, int, dict[str, int]]:
    """(forward, backward, by op) with FlopCounterMode; attention written out, so that it is counted in full.

    The CPU's one-kernel attention counts as 0 in FlopCounterMode: the math backend is used here.
    """
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as counter:
            loss = forward(module, inputs)
        first = counter.get_total_flops()
        with FlopCounterMode(display=False) as second:
            loss.backward()
    module.zero_grad(set_to_none=True)
    by_op: dict[str, int] = {}
    for part in (counter, second):
        for op, count in part.get_flop_counts().get("Global", {}).items():
            by_op[str(op)] = by_op.get(str(op), 0) + int(count)
    return int(first), int(second.get_total_flops()), by_op


def kept_bytes(module: torch.nn.Module, inputs: Inputs) -> Kept:
    """What a forward with its loss keeps for backward."""
    context = KeptTensors(module)
    with context as kept:
        loss = forward(module, inputs)
    del loss
    return kept


def tracked_peak(
    module: torch.nn.Module,
    inputs: Inputs,
    make_optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> tuple[int, dict[str, int]]:
    """(bytes, by kind) at the peak of the second AdamW step, by PyTorch's own MemTracker."""
    from torch.distributed._tools.mem_tracker import MemTracker

    optimizer = (make_optimizer or _adamw)(module.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracker = MemTracker()
        tracker.track_external(module, optimizer)
        for _ in range(2):
            tracker.reset_mod_stats()
            with tracker:
                loss = forward(module, inputs)
                loss.backward()
                del loss
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        snapshot = tracker.get_tracker_snapshot("peak")
    parts: dict[str, int] = {}
    for device in snapshot.values():
        for kind, size in device.items():
            name = getattr(kind, "name", str(kind))
            parts[name] = parts.get(name, 0) + int(size)
    total = parts.pop("Total", sum(parts.values()))
    return total, {k.lower(): v for k, v in parts.items() if v}


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    # tensor by tensor: the tracker books foreach's temporaries as optimizer states
    return torch.optim.AdamW(parameters, lr=1e-4, foreach=False)


def measure_step(module: torch.nn.Module, inputs: Inputs, *, peak: bool = True) -> Step:
    """All of it, for one set of inputs."""
    module.train()
    kept = kept_bytes(module, inputs)
    ahead, back, by_op = flops(module, inputs)
    found = Step(kept, ahead, back, by_op)
    if peak:
        found.peak_bytes, found.peak_parts = tracked_peak(module, inputs)
    return found

"""Pieces that training and serving accounts share: overheads, instants, weights by number format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from loadsheet.arch.model import Model
from loadsheet.ledger import Estimate, Item, Ledger
from loadsheet.recipe import pick, tables
from loadsheet.units import GIB, ceil_div, largest


@dataclass(frozen=True, slots=True)
class Instant:
    """What is in memory at one moment of a step: framework tensors, then what lies around them."""

    name: str
    tensors: Ledger
    around: Ledger
    stage: int = 0
    moving: Any = 0  # the part of the tensors that comes and goes within a step
    total: Estimate = field(init=False, compare=False, repr=False)  # what the device must hold at this moment

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.tensors.total + self.around.total)

    @property
    def items(self) -> tuple[Item, ...]:
        """All items, tensors first."""
        return self.tensors.items + self.around.items

    def to_json(self) -> dict[str, Any]:
        """Name, stage and items."""
        return {"name": self.name, "stage": self.stage, "items": [i.to_json() for i in self.items]}


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """Every instant of a step, and the states that live through it."""

    instants: tuple[Instant, ...]
    model_states: Item
    notes: tuple[str, ...] = ()
    on_gpu: bool = True  # on the CPU there are no workspaces of matrix libraries

    @property
    def worst(self) -> Instant:
        """The instant with the highest peak by its middle estimate; of arrays, by their largest entry."""
        return max(self.instants, key=lambda i: _largest_entry(i.total.mid))

    @property
    def peak(self) -> Estimate:
        """What the device must hold: the highest low, mid and high over the instants, never a sum of them."""
        return _highest([i.total for i in self.instants])

    @property
    def allocated(self) -> Estimate:
        """What the framework's allocator has handed out at the worst instant (torch.cuda.max_memory_allocated).

        The tensors and the workspaces of the matrix libraries; its width is what kernels and versions do
        otherwise than the walk assumes.
        """
        if not self.on_gpu:
            return _highest([i.tensors.total for i in self.instants])
        spaces = overhead("workspaces")
        return _highest([i.tensors.total + spaces + _unsure(i) for i in self.instants])

    @property
    def reserved(self) -> Estimate:
        """What the framework's allocator holds (torch.cuda.max_memory_reserved): all but the context."""
        totals = []
        for i in self.instants:
            total = i.tensors.total + i.around["allocator"].amount
            totals.append(Estimate(total.low + _unsure(i).low, total.mid, total.high, total.reason))
        return _highest(totals)


def _largest_entry(value: Any) -> float:
    return float(value.max()) if hasattr(value, "max") else float(value)


def _unsure(instant: Instant) -> Estimate:
    """What kernels and versions may do otherwise than the walk assumes."""
    walk = overhead("walk_share")
    return Estimate(
        walk.low * instant.moving, walk.mid * instant.moving, walk.high * instant.moving, walk.reason
    )


def _highest(totals: list[Estimate]) -> Estimate:
    return Estimate(
        largest(*(t.low for t in totals)),
        largest(*(t.mid for t in totals)),
        largest(*(t.high for t in totals)),
        totals[0].reason,
    )


def overhead(name: str) -> Estimate:
    """A stated range of the data file, in bytes."""
    entry = tables()["overheads"][name]
    scale = {"GiB": GIB, "MiB": GIB / 1024}.get(entry["unit"], 1)
    return Estimate(entry["low"] * scale, entry["mid"] * scale, entry["high"] * scale, entry["source"])


def around(dynamic: Any, gpus: int, paged: Any = 0, device: str = "cuda") -> Ledger:
    """The CUDA context, the allocator's own (fixed, and a share of what comes and goes), NCCL's buffers.

    `paged` bytes are in managed memory: on the GPU as long as there is room, in the host's otherwise.
    On a CPU it is the process itself, and what its malloc keeps.
    """
    if device == "cpu":
        process, part = overhead("process"), overhead("host_allocator_share")
        kept = Estimate(part.low * dynamic, part.mid * dynamic, part.high * dynamic, part.reason)
        operands = {"low": part.low, "high": part.high, "X": dynamic}
        return Ledger(
            "around",
            (
                Item("process", process, "stated range", source=process.reason, basis="assumed"),
                Item("allocator", kept, "(low to high)·X", operands, part.reason, "assumed"),
            ),
        )
    context, fixed, part = overhead("context"), overhead("allocator_fixed"), overhead("allocator_share")
    share = Estimate(part.low * dynamic, part.mid * dynamic, part.high * dynamic, "fragmentation")
    items = [
        Item("CUDA context", context, "stated range", source=context.reason, basis="assumed"),
        Item(
            "allocator",
            fixed + share,
            "F + (low to high)·X",  # the ends of both ranges together give the ends of this one
            {"F": fixed.mid, "low": part.low, "high": part.high, "X": dynamic},
            source=part.reason,
            basis="assumed",
        ),
    ]
    if gpus > 1:
        nccl = overhead("nccl")
        items.append(Item("NCCL buffers", nccl, "stated range", source=nccl.reason, basis="assumed"))
    if hasattr(paged, "shape") or paged:
        room = Estimate(0, paged, paged, "paged: on the GPU as long as there is room")
        items.append(Item("paged optimizer states", room, "b·N", basis="modelled"))
    return Ledger("around", tuple(items))


def instant(
    name: str, items: Iterable[Item | None], resident: Any, gpus: int, paged: Any = 0, device: str = "cuda"
) -> Instant:
    """An instant from its tensors; `resident` bytes stay put and so do not fragment."""
    tensors = Ledger(name, tuple(i for i in items if i is not None))
    moving = tensors.total.mid - resident
    return Instant(name, tensors, around(moving, gpus, paged, device), moving=moving)


def format_bytes_of(shape: tuple[int, ...], name: str, group: int = 128) -> tuple[Any, Any]:
    """(bytes of the numbers, bytes of scales and codes) of one quantised matrix; rounding per row or block.

    >>> format_bytes_of((4096, 4096), "nf4")
    (8388608, 1048640)
    >>> round(sum(format_bytes_of((4096, 4096), "nf4-double")) * 8 / 4096**2, 3)   # QLoRA, section 3
    4.127
    """
    entry = pick("formats", name, "weight format")
    numel = prod(shape)
    numbers = ceil_div(numel * entry["bits"], 8)
    kind = entry.get("scale")
    if kind is None:
        return numbers, 0
    if kind == "row":
        return numbers, numel // shape[-1] * entry["scale_bytes"]
    if kind == "group":
        groups = numel // shape[-1] * ceil_div(shape[-1], group)
        return numbers, groups * entry["scale_bytes"] + ceil_div(groups * entry["zero_bits"], 8)
    blocks = ceil_div(numel, entry["block"])
    scales = blocks * entry["scale_bytes"] + entry["code_bytes"]
    if "second_block" in entry:
        scales += ceil_div(blocks, entry["second_block"]) * entry["second_bytes"]
    return numbers, scales


def _packed_shapes(model: Model, name: str, head: bool) -> list[tuple[tuple[int, ...], int]]:
    """(shape, how many) of the matrices that weight-only quantisation packs."""
    chosen = packs_experts_only(model, name)
    shapes = [
        (shape, count)
        for shape, active, count in model.quantisable_shapes
        if not chosen or active is not None
    ]
    if head and not model.tied:
        shapes.append(((model.head.out_features, model.head.in_features), 1))
    return shapes


def packs_experts_only(model: Model, name: str) -> bool:
    """Whether a format leaves everything of this model but its routed experts as it is."""
    return bool(pick("formats", name, "weight format").get("experts_only")) and model.experts is not None


def quantised_bytes(model: Model, name: str, group: int = 128, *, head: bool = False) -> tuple[int, int, int]:
    """(parameters replaced, bytes of their numbers, bytes of their scales) over all linear layers of the blocks.

    `head`: an untied head is packed as well.
    """
    params = numbers = scales = 0
    for shape, count in _packed_shapes(model, name, head):
        n, s = format_bytes_of(shape, name, group)
        params, numbers, scales = params + count * prod(shape), numbers + count * n, scales + count * s
    return params, numbers, scales


def scale_formula(
    model: Model, name: str, group: int = 128, *, head: bool = False
) -> tuple[str, dict[str, Any]]:
    """How the scales of all quantised matrices add up: expression and operands."""
    entry = pick("formats", name, "weight format")
    kind = entry["scale"]
    rows = groups = blocks = seconds = tensors = 0
    for shape, count in _packed_shapes(model, name, head):
        numel = prod(shape)
        rows += count * (numel // shape[-1])
        tensors += count
        if kind == "group":
            groups += count * (numel // shape[-1]) * ceil_div(shape[-1], group)
        elif kind == "block":
            each = ceil_div(numel, entry["block"])
            blocks += count * each
            seconds += count * ceil_div(each, entry.get("second_block", 1))
    size = entry["scale_bytes"]
    if kind == "row":
        return "s·rows", {"s": size, "rows": rows}
    if kind == "group":
        return "(s + z/8)·groups", {"s": size, "z": entry["zero_bits"], "groups": groups}
    operands = {"s": size, "blocks": blocks, "c": entry["code_bytes"], "tensors": tensors}
    if "second_block" in entry:
        operands |= {"s_2": entry["second_bytes"], "blocks_2": seconds}
        return "s·blocks + s_2·blocks_2 + c·tensors", operands
    return "s·blocks + c·tensors", operands

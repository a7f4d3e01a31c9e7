"""What autograd keeps for backward: each storage once, parameters left out."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True)
class Kept:
    """Bytes kept, in all and by the submodule whose forward was running when they were first kept."""

    total: int = 0
    count: int = 0
    by_module: dict[str, int] = field(default_factory=dict)
    tensors: list[tuple[str, str, tuple[int, ...], int]] = field(
        default_factory=list
    )  # module, dtype, shape, bytes


class _Held:
    """What the graph holds in a saved tensor's place: it goes when the graph does."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class KeptTensors:
    """Context: what a forward inside it keeps for backward, as it is at the end of the block, is in `kept`.

    What the graph of a part kept that is gone by then (scores of which only the order was used) is not
    counted; so the loss must be alive at the end. The pack hook hands on a detached view: returning the
    tensor itself would tie the graph to itself and leak it. Storages are told apart by identity, so views of
    one storage count once and a view counts its whole storage, which it keeps alive.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.kept = Kept()
        self._names: list[str] = []
        self._packed: list[tuple[weakref.ref[_Held], str, str, tuple[int, ...]]] = []
        self._handles: list[Any] = []
        self._module = module
        self._parameters = {p.untyped_storage()._cdata for p in module.parameters()}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda held: held.tensor)

    def _pack(self, tensor: torch.Tensor) -> _Held:
        held = _Held(tensor.detach())
        if tensor.untyped_storage()._cdata not in self._parameters:
            name = self._names[-1] if self._names else ""
            self._packed.append((weakref.ref(held), name, str(tensor.dtype)[6:], tuple(tensor.shape)))
        return held

    def _count(self) -> None:
        kept, seen = self.kept, set()
        for reference, name, dtype, shape in self._packed:
            held = reference()
            storage = None if held is None else held.tensor.untyped_storage()
            if storage is None or storage._cdata in seen:
                continue
            seen.add(storage._cdata)
            size = storage.nbytes()
            kept.total += size
            kept.count += 1
            kept.by_module[name] = kept.by_module.get(name, 0) + size
            kept.tensors.append((name, dtype, shape, size))
        self._packed.clear()

    def __enter__(self) -> Kept:
        def enter(name: str) -> Any:
            def hook(*_: Any) -> None:
                self._names.append(name)

            return hook

        def leave(*_: Any) -> None:
            if self._names:
                self._names.pop()

        for name, child in self._module.named_modules():
            self._handles.append(child.register_forward_pre_hook(enter(name)))
            self._handles.append(child.register_forward_hook(leave))
        self._hooks.__enter__()
        return self.kept

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._count()

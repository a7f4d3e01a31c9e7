"""What autograd keeps for backward, counted as it happens: each storage once, parameters left out."""

from __future__ import annotations

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


class KeptTensors:
    """Context: everything that a forward inside it keeps for backward is recorded in `kept`.

    The pack hook hands on a detached view: returning the tensor itself would tie the graph to itself
    and leak it. Storages are told apart by identity, so views of one storage count once and a view
    counts its whole storage, which it keeps alive.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.kept = Kept()
        self._names: list[str] = []
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # storages seen, so that no address is used twice meanwhile
        self._handles: list[Any] = []
        self._module = module
        self._parameters = {p.untyped_storage()._cdata for p in module.parameters()}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._parameters and key not in self._seen:
            self._seen.add(key)
            self._alive.append(storage)
            size = storage.nbytes()
            name = self._names[-1] if self._names else ""
            self.kept.total += size
            self.kept.count += 1
            self.kept.by_module[name] = self.kept.by_module.get(name, 0) + size
            self.kept.tensors.append((name, str(tensor.dtype)[6:], tuple(tensor.shape), size))
        return tensor.detach()

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
        self._alive.clear()

"""What is known to exist for one maker's hardware only: kernels and libraries that a recipe stands on."""

from __future__ import annotations

from loadsheet.hardware import Gpu
from loadsheet.recipe import Recipe, Training, pick

#: makers whose hardware has a version of each, by its own documentation. bitsandbytes 0.50, installation guide;
#: Triton's two compilers, in which Liger's kernels are written. Of Intel's, our table has Gaudi alone.
_MAKERS = {
    "bitsandbytes": frozenset({"NVIDIA", "AMD", "Intel"}),
    "Triton": frozenset({"NVIDIA", "AMD"}),
}


def _needs(recipe: Recipe) -> list[tuple[str, str]]:
    """(library, what of the recipe is made with it)."""
    if not isinstance(recipe, Training):
        return []
    entry = pick("optimizers", recipe.optimizer, "optimizer")
    found = [("bitsandbytes", "4-bit packing of qlora")] if recipe.task == "qlora" else []
    if entry.get("quantised") or entry.get("paged"):
        found.append(("bitsandbytes", f"optimizer {recipe.optimizer}"))
    if recipe.execution.loss == "fused":
        found.append(("Triton", "fused loss (Liger)"))
    return found


def missing(gpu: Gpu, recipe: Recipe) -> list[str]:
    """What the recipe needs and the hardware's maker is not known to have; nothing of hardware of one's own."""
    if gpu.own or not gpu.vendor:
        return []
    return [
        f"the {what} is known for {library} only, which has no version for {gpu.id}"
        for library, what in _needs(recipe)
        if gpu.vendor not in _MAKERS[library]
    ]


def remarks(gpu: Gpu, recipe: Recipe) -> list[str]:
    """What a person should know who plans for hardware that is not NVIDIA's."""
    if gpu.own or gpu.vendor in ("", "NVIDIA"):
        return []
    general = (
        f"{gpu.id}: the context, allocator and workspaces are those of PyTorch with CUDA; on hardware of {gpu.vendor} "
        "they are not measured"
    )
    return [general, *missing(gpu, recipe)]

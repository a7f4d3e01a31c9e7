"""The memory of a sheet as a picture: one bar per instant, its items stacked, the GPU's limit across."""

from __future__ import annotations

from typing import Any

from loadsheet.errors import LoadsheetError
from loadsheet.units import GIB

#: twelve colours that stay apart in greyscale order of use
PALETTE = (
    "#1f4e79", "#3f7fb5", "#8db9dd", "#2e7d32", "#f2a33a", "#c0504d",
    "#a8d08d", "#7f6084", "#f7d08a", "#5f9ea0", "#9e9e9e", "#d0d0d0",
)  # fmt: skip


def draw(sheet: Any, path: str | None = None) -> Any:
    """A matplotlib figure; written to `path` (its suffix picks the format) if one is given."""
    try:
        from matplotlib.figure import Figure  # no pyplot: no global state, no display
    except ImportError:
        raise LoadsheetError("plot: matplotlib is not installed", "pip install 'loadsheet[plot]'") from None

    instants = [i for i in sheet.memory.instants if not i.name.startswith("first step")]
    names: dict[str, None] = {}
    for ledger in [*(i.tensors for i in instants), *(i.around for i in instants)]:
        names.update(dict.fromkeys(item.name for item in ledger.items))
    figure = Figure(figsize=(9, 1.2 + 0.55 * len(instants)), layout="constrained")
    axes = figure.subplots()
    axes.set_prop_cycle(color=PALETTE)
    left = [0.0] * len(instants)
    labels = [i.name for i in instants]
    for name in names:
        sizes = [sum(x.estimate.mid for x in i.items if x.name == name) / GIB for i in instants]
        if max(sizes) < 0.005:
            continue
        axes.barh(labels, sizes, left=left, label=name)
        left = [a + b for a, b in zip(left, sizes, strict=True)]
    for row, instant in enumerate(instants):  # the width of the estimate
        axes.plot(
            [instant.total.low / GIB, instant.total.high / GIB], [row, row], color="black", linewidth=1.5
        )
    usable = sheet.memory.usable_bytes / GIB
    axes.axvline(usable, color="red", linestyle="--", label=f"{sheet.gpu.id}: {usable:.1f} GiB usable")
    axes.invert_yaxis()
    axes.set_xlabel("GiB")
    axes.set_title(f"{sheet.model.name}, {sheet.recipe.task}: {sheet.verdict.replace('_', ' ')}", fontsize=11)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    if path is not None:
        try:
            figure.savefig(path, dpi=150)
        except (OSError, ValueError) as error:
            raise LoadsheetError(f"plot: cannot write {path!r:.80}: {error}") from None
    return figure

"""`loadsheet gpus`."""

from __future__ import annotations

import click

from loadsheet.cli.output import show, show_json, table, width
from loadsheet.errors import shorten
from loadsheet.hardware import Gpu, gpus
from loadsheet.text import wrap
from loadsheet.units import GIB

#: columns that a narrow terminal goes without, the first ones first
_SPARE = ("checked", "link", "vendor", "fp8", "fp16", "GB", "bf16", "GB/s")


def _cells(g: Gpu) -> dict[str, str]:
    peaks = dict(g.peaks)

    def rate(dtype: str) -> str:
        return f"{peaks[dtype] / 1e12:,.0f}" if dtype in peaks else ""

    return {
        "id": g.id,
        "vendor": g.vendor,
        "GB": f"{g.memory_marketed_gb}",
        "usable GiB": f"{g.memory_usable_bytes / GIB:.1f}",
        "GB/s": f"{g.bandwidth / 1e9:,.0f}",
        "bf16": rate("bf16"),
        "fp16": rate("fp16"),
        "fp8": rate("fp8"),
        "link": g.link,
        "checked": g.date + ("" if g.verified else " ?"),
    }


@click.command(name="gpus")
@click.argument("text", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, sources and notes included.")
@click.option("--sources", is_flag=True, help="Print source and note of each.")
def command(text: str, as_json: bool, sources: bool) -> None:
    """The GPUs that are known; TEXT keeps those whose id or vendor contains it.

    Peaks are dense, in TFLOP/s; bandwidth in GB/s; `?` marks entries with a recalled or derived figure.
    """
    found = [g for g in gpus() if text.lower() in g.id or text.lower() in g.vendor.lower()]
    if as_json:
        show_json({"gpus": [g.to_json() for g in found]})
        return
    if not found:
        show(f"no GPU id contains {shorten(text)}")
        return
    room = width()
    lines = table([_cells(g) for g in found], _SPARE, room)
    for g in found if sources else ():
        lines += ["", *wrap(f"{g.id}: {g.name}. {g.source}. {g.note}".rstrip(), room, "  ")]
    show("\n".join(lines))

"""`loadsheet gpus`."""

from __future__ import annotations

import click

from loadsheet.cli.output import show, show_json
from loadsheet.hardware import Gpu, gpus
from loadsheet.text import columns
from loadsheet.units import GIB


def _row(g: Gpu) -> list[str]:
    peaks = dict(g.peaks)

    def rate(dtype: str) -> str:
        return f"{peaks[dtype] / 1e12:,.0f}" if dtype in peaks else "–"

    return [
        g.id,
        g.vendor,
        f"{g.memory_marketed_gb}",
        f"{g.memory_usable_bytes / GIB:.1f}",
        f"{g.bandwidth / 1e9:,.0f}",
        rate("bf16"),
        rate("fp16"),
        rate("fp8"),
        g.link,
        g.date + ("" if g.verified else " ?"),
    ]


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
    head = ["id", "vendor", "GB", "usable GiB", "GB/s", "bf16", "fp16", "fp8", "link", "checked"]
    for line in columns([head, *(_row(g) for g in found)], left=2):
        show(line)
    if not found:
        show(f"no GPU id contains {text!r:.60}")
    for g in found if sources else ():
        show(f"\n{g.id}: {g.name}. {g.source}. {g.note}".rstrip())

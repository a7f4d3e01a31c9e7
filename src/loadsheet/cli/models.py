"""`loadsheet models`."""

from __future__ import annotations

import click

from loadsheet.arch.families import FAMILIES
from loadsheet.arch.read import Preset, models
from loadsheet.cli.output import show, show_json, table, width
from loadsheet.errors import shorten
from loadsheet.text import wrap


@click.command(name="models")
@click.argument("text", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(text: str, as_json: bool) -> None:
    """The model presets, smallest first; TEXT keeps those whose name or architecture contains it.

    Any other model goes by its config.json, folder, .safetensors or .gguf file, if its
    architecture is one of those listed at the end.
    """
    found = [p for p in models() if text.lower() in p.name or text.lower() in p.model_type]
    if as_json:
        show_json({"models": [p.to_json() for p in found], "architectures": sorted(FAMILIES)})
        return
    if not found:
        show(f"no preset contains {shorten(text)}")
        return
    room = width()
    lines = table([_cells(p) for p in found], ("architecture", "tokens"), room)
    if len(lines) == len(found) + 1:  # nothing was left out, so there may be room for the sources
        for i, source in enumerate(["source", *(p.source for p in found)]):
            lines[i] = f"{lines[i]}  {source}"[: max(room, len(lines[i]))].rstrip()
    if not text:
        foot = f"{len(found)} presets; architectures: " + ", ".join(sorted(FAMILIES))
        lines += ["", *wrap(foot, room, "  ")]
    show("\n".join(lines))


def _cells(p: Preset) -> dict[str, str]:
    tokens = f"{p.max_length:,}" if p.max_length else ""
    return {"name": p.name, "architecture": p.model_type, "parameters": f"{p.params:,}", "tokens": tokens}

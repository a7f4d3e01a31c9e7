"""`loadsheet models`."""

from __future__ import annotations

import click

from loadsheet.arch.families import FAMILIES
from loadsheet.arch.read import models
from loadsheet.cli.output import show, show_json, width
from loadsheet.text import columns


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
    rows = [["name", "architecture", "parameters", "tokens", "source"]]
    for p in found:
        rows.append(
            [p.name, p.model_type, f"{p.params:,}", f"{p.max_length:,}" if p.max_length else "–", p.source]
        )
    room = width()
    table = columns([row[:4] for row in rows], left=2)
    for line, row in zip(table, rows, strict=True):
        show(f"{line}  {row[4]}"[: max(room, len(line))].rstrip())
    if not found:
        show(f"no preset contains {text!r:.60}")
    elif not text:
        show(f"\n{len(found)} presets; architectures: " + ", ".join(sorted(FAMILIES)))

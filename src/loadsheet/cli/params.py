"""`loadsheet params`."""

from __future__ import annotations

from typing import Any

import click

from loadsheet.arch.model import Model
from loadsheet.arch.read import model as find_model
from loadsheet.cli.output import show, show_json, warn_shadowed, width
from loadsheet.errors import BadInput
from loadsheet.memory.whole import lacks
from loadsheet.text import columns, wrap
from loadsheet.units import format_bytes, format_params


def summary(m: Model) -> dict[str, Any]:
    """The JSON of the design, with what the file stores if the model came with its weights."""
    out: dict[str, Any] = {
        "model": m.name, "total": m.params, **m.split, "active": m.active_params, "matmul": m.matmul_params,
        "tied": m.tied, "model_type": m.model_type, "source": m.source, "defaulted": list(m.defaulted),
    }  # fmt: skip
    if m.stored is not None:
        out["stored"] = {"format": m.stored.format, "bytes": m.stored.nbytes, "lacks": lacks(m) or None}
        if m.stored.complete:
            out["stored"]["params"] = m.stored.params
            out["stored"]["by_dtype"] = {
                dtype: {"params": count, "bytes": size} for dtype, (count, size) in m.stored.by_dtype.items()
            }
    return out


@click.command(name="params")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--tensors", is_flag=True, help="List every parameter with its shape.")
@click.option(
    "--trace",
    is_flag=True,
    help="Count what transformers builds (the `hf` extra): for what is not described.",
)
@click.option(
    "--run-its-code", is_flag=True, help="With --trace: run the Python files beside the config.json."
)
def command(model: str, as_json: bool, tensors: bool, trace: bool, run_its_code: bool) -> None:
    """Exact parameters of MODEL, by part: a preset, config.json, folder, .safetensors or .gguf file.

    A tied head is counted once. `active`: what one token uses (of routed experts only the chosen
    ones). `matmul`: what multiplies activations; an embedding look-up does not, a tied head does.
    """
    if run_its_code and not trace:
        raise BadInput(
            "--run-its-code: got it without --trace, expected both", "leave it out: nothing else runs code"
        )
    if trace:
        _trace(model, as_json, tensors, run_its_code)
        return
    warn_shadowed(model)
    m = find_model(model)
    if as_json:
        out = summary(m)
        if tensors:
            out["tensors"] = [
                {"name": p.name, "shape": list(p.shape), "role": p.role} for p in m.parameters()
            ]
        show_json(out)
        return
    if tensors:
        shapes = ([p.name, p.role, " × ".join(map(str, p.shape))] for p in m.parameters())
        show("\n".join(columns(shapes, left=2)))
        return
    show("\n".join(_page(m, width())))


def _trace(source: str, as_json: bool, tensors: bool, run_its_code: bool) -> None:
    from loadsheet.measure.trace import trace

    found = trace(source, remote_code=run_its_code)
    listed = found["tensors"]
    if not tensors:
        found = {key: value for key, value in found.items() if key != "tensors"}
    if as_json:
        show_json(found)
        return
    if tensors:
        show("\n".join(columns(([t["name"], " × ".join(map(str, t["shape"]))] for t in listed), left=1)))
        return
    total = found["total"]
    show(f"{found['model']} ({found['model_type']})   {total:,} parameters ({format_params(total)})")
    show(f"  {len(listed):,} tensors, counted as {found['traced_with']} builds them; ours are not asked")
    show("  the head is the embedding, counted once" if found["tied"] else "  the head has its own weights")


def _page(m: Model, room: int) -> list[str]:
    lines = wrap(
        f"{m.name} ({m.model_type})   {m.params:,} parameters ({format_params(m.params)})", room, "  "
    )
    rows = [["part", "parameters", "share"]]
    rows += [[part, f"{n:,}", f"{n / m.params:.2%}"] for part, n in m.split.items() if n or part == "head"]
    rows += [["total", f"{m.params:,}", ""], ["active per token", f"{m.active_params:,}", ""]]
    rows.append(["in matrix products", f"{m.matmul_params:,}", ""])
    indented = ["  " + line for line in columns(rows)]
    if max(map(len, indented)) > room:
        indented = ["  " + line for line in columns([row[:2] for row in rows])]
    lines += indented
    more = ["the head is the embedding, counted once" if m.tied else "the head has its own weights"]
    if m.stored is not None:
        text = f"stored as {m.stored.format}: {format_bytes(m.stored.nbytes)}"
        if m.stored.complete:
            text += ": " + ", ".join(
                f"{dtype} {count:,} numbers in {format_bytes(size)}"
                for dtype, (count, size) in m.stored.by_dtype.items()
            )
        more.append(text)
        if fault := lacks(m):
            more.append(f"not the whole model ({fault}): the parameters above are those of its config.json")
    if m.defaulted:
        more.append("missing in the config, so defaulted: " + ", ".join(m.defaulted))
    if m.source:
        more.append(f"source: {m.source}")
    return lines + [line for text in more for line in wrap("  " + text, room, "    ")]

"""The sheet as a page of plain text: verdict, why, what to change, then time and money."""

from __future__ import annotations

from typing import Any

from loadsheet.ledger import Item, Ledger
from loadsheet.memory.terms import Instant
from loadsheet.recipe import Training
from loadsheet.text import columns, explain, gib_range, wrap
from loadsheet.units import (
    GIB, format_bytes, format_duration, format_money, format_number, format_params, format_si, gib,
)  # fmt: skip

VERDICTS = {"fits": "FITS", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT"}


def render(sheet: Any, *, width: int = 100, explain: bool = False) -> str:
    """The whole page."""
    lines = wrap(header(sheet), width, "  ")
    lines += ["", *wrap(verdict_line(sheet), width, "  "), ""]
    lines += memory_table(sheet, width)
    lines += _remedies(sheet, width)
    lines += _holds(sheet, width)
    lines += _compute(sheet, width)
    lines += _money(sheet, width)
    if explain:
        lines += ["", *working(sheet, width)]
    lines += _footnotes(sheet, width, explained=explain)
    return "\n".join(lines)


def _star(sheet: Any, name: str) -> str:
    return "*" if name in sheet.recipe.defaulted else ""


def header(sheet: Any) -> str:
    """Model, task, how, sizes, where; a star marks what was defaulted."""
    r = sheet.recipe
    parts = [sheet.model.name, r.task + _star(sheet, "task")]
    if isinstance(r, Training):
        parts.append(f"{r.precision}{_star(sheet, 'precision')}, {r.optimizer}{_star(sheet, 'optimizer')}")
        parts.append(f"stack {r.stack}{_star(sheet, 'stack')}")
        if r.task != "train":
            parts.append(f"rank {r.rank}{_star(sheet, 'rank')}")
        if r.execution.recompute != "none":
            parts.append(f"recompute {r.execution.recompute}")
    else:
        parts.append(f"weights {r.weights}{_star(sheet, 'weights')}, KV {r.kv}{_star(sheet, 'kv')}")
    size = f"batch {r.batch:,}{_star(sheet, 'batch')} × {r.seq:,}{_star(sheet, 'seq')} tokens"
    if isinstance(r, Training) and r.accumulation > 1:
        size += f" × {r.accumulation} accumulated"
    parts.append(size)
    parts.append(f"{sheet.gpus} × {sheet.gpu.id} ({sheet.gpu.memory_usable_bytes / GIB:.1f} GiB usable)")
    return " · ".join(parts)


def verdict_line(sheet: Any) -> str:
    """The verdict and its margin."""
    m = sheet.memory
    peak, usable = m.peak, m.usable_bytes
    text = f"{VERDICTS[sheet.verdict]}   needs {gib_range(peak)} GiB"
    if sheet.verdict == "does_not_fit":
        text += f", at least {(peak.low - usable) / GIB:,.1f} GiB too many"
    elif sheet.verdict == "fits":
        text += f", at least {(usable - peak.high) / GIB:,.1f} GiB to spare"
    else:
        text += f" of {usable / GIB:,.1f} GiB: it may fit and may not"
    return f"{text}.   Worst instant: {m.worst.name}."


#: instants that share one column: of the two block instants, the higher one is shown
_SHORT = {
    "end of forward": "end of forward", "backward of the loss": "backward of loss",
    "backward of the last block": "backward, last block", "backward of the first block": "backward, first block",
    "optimizer step": "optimizer step", "prefill": "prefill", "decode": "decode",
}  # fmt: skip


def _shown_instants(sheet: Any) -> list[Instant]:
    shown = [i for i in sheet.memory.instants if i.name in _SHORT]
    blocks = [i for i in shown if i.name.startswith("backward of the") and "block" in i.name]
    if len(blocks) == 2:
        lower = min(blocks, key=lambda i: i.total.mid)
        shown = [i for i in shown if i is not lower]
    return shown


def memory_table(sheet: Any, width: int) -> list[str]:
    """Rows: items; columns: instants, in GiB. On a narrow terminal, the worst instant alone."""
    instants = _shown_instants(sheet)
    lines = columns(_rows(sheet, instants, formulas=True))
    if max(map(len, lines)) > width:
        lines = columns(_rows(sheet, instants, formulas=False))
    if max(map(len, lines)) > width:
        lines = columns(_rows(sheet, [sheet.memory.worst], formulas=False))
    out = [line[:width] for line in lines]
    if isinstance(sheet.recipe, Training):
        states = sheet.memory.account.model_states
        out.append(f"(model states {_states_formula(sheet)} = {gib(states.estimate.mid)} GiB)")
    return [*out, ""]


def _states_formula(sheet: Any) -> str:
    """16·N where all states belong to the trained weights."""
    from loadsheet.recipe import bytes_per_parameter

    r = sheet.recipe
    if r.task != "train":
        return "of frozen weights and adapters"
    each = sum(bytes_per_parameter(r.precision, r.optimizer).values())
    text = f"{each:g}·N, N = {sheet.model.params:,},"
    return text if r.optimizer != "adamw-8bit" else text + " and the constants of 8-bit states"


def _rows(sheet: Any, instants: list[Instant], *, formulas: bool) -> list[list[str]]:
    names: list[str] = []
    for instant in instants:
        for item in instant.items:
            if item.name not in names:
                names.append(item.name)
    order = {name: i for i, name in enumerate(names)}
    last = {"CUDA context": 1, "allocator": 2, "NCCL buffers": 3}
    names.sort(key=lambda n: (last.get(n, 0), order[n]))
    head = ["GiB", *(["formula"] if formulas else []), *(_SHORT.get(i.name, i.name) for i in instants)]
    rows = [head]
    for name in names:
        cells = [name]
        found = [next((x for x in i.items if x.name == name), None) for i in instants]
        if all(x is None or x.estimate.high < 0.005 * GIB for x in found):
            continue
        if formulas:
            cells.append(_formula(next(x for x in found if x is not None)))
        rows.append(cells + ["–" if x is None else _cell(x) for x in found])
    total = ["device must hold", *([""] if formulas else [])]
    rows.append(total + [gib_range(i.total) for i in instants])
    return rows


def _cell(item: Item) -> str:
    e = item.estimate
    return gib(e.mid) if e.low == e.high else gib_range(e)


def _formula(item: Item) -> str:
    """The expression alone; of an item with children, the first child's if they all share it."""
    text = item.formula[0]
    if not text and item.children:
        texts = {child.formula[0] for child in item.children}
        text = texts.pop() if len(texts) == 1 else " + ".join(c.name for c in item.children)
        if len(item.children) == 2 and item.name == "optimizer states" and text == "b·N":
            text = "2·b·N"
    if "b·N" in text:
        size = (item.formula[1] or (item.children[0].formula[1] if item.children else {})).get("b")
        if size is not None:
            text = text.replace("b·N", f"{size:g}·N") if not text.startswith("2·b") else f"{2 * size:g}·N"
    if text == "g·N":
        text = f"{item.formula[1]['g']:g}·N"
    if text.startswith("c·B·T·V"):
        text = text.replace("c", format_number(item.formula[1]["c"]), 1)
    return text if len(text) <= 44 else text[:43] + "…"


def _remedies(sheet: Any, width: int) -> list[str]:
    if not sheet.remedies:
        return []
    rows = [["To make it fit", "", "saves GiB", "costs"]]
    for r in sheet.remedies:
        mark = {"fits": "fits", "tight": "tight", "pointer": "floor"}.get(r.verdict, "not alone")
        rows.append([r.change, mark, f"{r.saves_bytes / GIB:,.1f}" if r.saves_bytes else "–", r.costs])
    return [*_costs_table(rows, width), ""]


def _costs_table(rows: list[list[str]], width: int) -> list[str]:
    """A table whose last column is text that may wrap."""
    front = columns([row[:-1] for row in rows], left=2)
    room = max(map(len, front)) + 2
    if width - room < 24:
        return [part for row in rows for part in wrap("  ".join(c for c in row if c), width, "    ")]
    out: list[str] = []
    for line, row in zip(front, rows, strict=True):
        first, *rest = wrap(row[-1], width - room)
        out.append(line.ljust(room) + first)
        out += [" " * room + more for more in rest]
    return out


def _holds(sheet: Any, width: int) -> list[str]:
    c = sheet.capacity
    r = sheet.recipe
    parts = [
        f"at {r.seq:,} tokens the largest batch is {c.largest_batch:,}" if c.largest_batch
        else f"at {r.seq:,} tokens no batch fits",
        f"at batch {r.batch:,} the longest sequence is {c.longest_seq:,}" if c.longest_seq
        else f"at batch {r.batch:,} no length fits",
    ]  # fmt: skip
    lines = wrap("Here " + "; ".join(parts) + ".", width, "  ")
    uses = [f"{use}: {name} ({format_params(n)})" if name else f"{use}: none" for use, name, n in c.largest_presets]
    lines += wrap(
        f"Largest presets on one {sheet.gpu.id} (batch {c.at[0]}, {c.at[1]:,} tokens, recompute full when training): "
        + "; ".join(uses) + ".", width, "  ",
    )  # fmt: skip
    sizes = sheet.checkpoint_bytes
    text = f"Checkpoint {format_bytes(sizes['weights'])} of weights"
    if "resume" in sizes:
        text += f"; {format_bytes(sizes['resume'])} to resume from"
    return [*lines, *wrap(text + ".", width, "  "), ""]


def _compute(sheet: Any, width: int) -> list[str]:
    c = sheet.compute
    if isinstance(sheet.recipe, Training):
        lines = wrap(
            f"Time   {c.flops_per_step:.3g} FLOP per step ({c.flops_per_token:.3g} per token, causal; "
            f"{c.flops_per_token_full:.3g} with attention in full; 6·N = {c.six_nd_per_token:.3g}), at MFU {c.mfu:.0%}"
            f"{_star(sheet, 'mfu')} of {format_si(c.peak, 'FLOP/s', 1)} {c.peak_dtype}: "
            f"{format_duration(c.step_seconds.mid)} ({_span(c.step_seconds)}), {c.tokens_per_second:,.0f} tokens/s",
            width, "       ",
        )  # fmt: skip
        if c.recomputed_share:
            lines += wrap(f"       recomputation adds {c.recomputed_share:.0%} to the FLOPs and to the time", width, "       ")
    else:
        lines = _serving_time(sheet, width)
    if c.gpu_hours is not None:
        hours = c.gpu_hours
        text = f"Hours  {sheet.recipe.tokens:,} tokens: {hours.mid:,.1f} GPU hours"
        text += "" if hours.low == hours.high else f" ({hours.low:,.1f} – {hours.high:,.1f})"
        if sheet.gpus > 1:
            text += f", {format_duration(hours.mid / sheet.gpus * 3600)} on {sheet.gpus} GPUs"
        lines += wrap(text, width, "       ")
    elif isinstance(sheet.recipe, Training):
        lines += wrap("Hours  give --tokens for GPU hours", width, "       ")
    return lines


def _span(value: Any) -> str:
    if value.low == value.high:
        return "MFU given"
    return f"{format_duration(value.low)} – {format_duration(value.high)}"


def _serving_time(sheet: Any, width: int) -> list[str]:
    c = sheet.compute
    d = c.decode
    lines = wrap(
        f"Decode reads {format_bytes(d.weight_bytes)} of weights in {format_duration(d.weight_seconds)} and "
        f"{format_bytes(d.cache_bytes)} of cache in {format_duration(d.cache_seconds)}, computes "
        f"{d.flops:.3g} FLOP in {format_duration(d.math_seconds)}: bound by {c.bound_by}, {d.intensity:.3g} FLOP per "
        f"byte where the GPU has {d.peak / d.bandwidth:.0f}.",
        width, "       ",
    )  # fmt: skip
    lines += wrap(
        f"       A step takes at best {format_duration(d.lower)}, {d.batch / d.lower:,.0f} tokens/s (weights alone: "
        f"{format_duration(d.weight_seconds)}, {d.batch / d.weight_seconds:,.0f}); as measured elsewhere "
        f"{format_duration(c.step_seconds.mid)} – {format_duration(c.step_seconds.high)}.",
        width, "       ",
    )  # fmt: skip
    crossing = (
        f"{c.critical_batch_with_cache:,.0f} with caches of this length" if c.critical_batch_with_cache is not None
        else "never with caches of this length: each sequence reads longer than it computes"
    )  # fmt: skip
    lines += wrap(
        f"       Computing takes as long as reading at batch {c.critical_batch:,.0f} (weights only); {crossing}.",
        width, "       ",
    )  # fmt: skip
    p = c.prefill_seconds
    lines += wrap(
        f"Prefill of one prompt of {sheet.recipe.seq:,} tokens: {format_duration(p.mid)} "
        f"({format_duration(p.low)} – {format_duration(p.high)})", width, "       ",
    )  # fmt: skip
    return lines


def _money(sheet: Any, width: int) -> list[str]:
    m = sheet.money
    if m is None:
        return ["Money  give --price PER_GPU_HOUR (no prices are shipped: they change by the week)"]
    currency = m.price.currency
    each = m.per_million_tokens.estimate
    text = f"Money  at {m.price}: "
    if m.cost is not None:
        cost = m.cost.estimate
        text += f"{format_money(cost.mid, currency)}"
        if cost.low != cost.high:
            text += f" ({format_money(cost.low)} – {format_money(cost.high)})"
        text += "; "
    text += f"{format_money(each.mid, currency)} per million tokens"
    return wrap(text, width, "       ")


def working(sheet: Any, width: int) -> list[str]:
    """Every instant's ledger with workings and sources, then the FLOPs."""
    lines = ["Workings"]
    seen: set[int] = set()
    for instant in sheet.memory.instants:
        if instant.name.startswith("first step"):
            continue
        fresh = tuple(i for i in instant.items if id(i) not in seen)
        seen.update(id(i) for i in fresh)
        lines.append(f" {instant.name}: {gib_range(instant.total, 2)} GiB")
        lines += explain(Ledger(instant.name, fresh), width)
    lines.append(" FLOPs of one micro-batch" if isinstance(sheet.recipe, Training) else " FLOPs")
    lines += explain(Ledger("flops", sheet.compute.items, "FLOP"), width)
    if sheet.money is not None:
        items = tuple(i for i in (sheet.money.cost, sheet.money.per_million_tokens) if i is not None)
        lines.append(" Money")
        lines += explain(Ledger("money", items, sheet.money.price.currency or "units"), width)
    return [*lines, ""]


def _footnotes(sheet: Any, width: int, *, explained: bool) -> list[str]:
    if not sheet.recipe.defaulted:
        return []
    hidden = sorted(sheet.recipe.defaulted - {"task", "batch", "seq", "precision", "optimizer", "stack", "mfu", "weights", "kv", "rank"})
    text = "* defaulted"
    if hidden:
        values = {**sheet.recipe.to_json(), **sheet.recipe.to_json().get("execution", {})}
        shown = ", ".join(f"{name} {_plain(values.get(name))}" for name in hidden)
        text += f", as are {shown}"
    if not explained:
        text += "; --explain shows every working and source"
    return wrap(text, width, "  ")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "all linear" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

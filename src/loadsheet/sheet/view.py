"""The sheet as a page of plain text: verdict, why, what to change, then time and money."""

from __future__ import annotations

from typing import Any

from loadsheet.ledger import Item, Ledger
from loadsheet.memory.serving import serves_file
from loadsheet.memory.terms import Instant
from loadsheet.recipe import Training, bytes_per_parameter, pick, tables
from loadsheet.sheet.capacity import LIMIT
from loadsheet.text import columns, explain, gib_range, wrap
from loadsheet.units import (
    GIB,
    format_bytes,
    format_duration,
    format_money,
    format_params,
    format_si,
    gib,
)

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
        weights = "as stored" if serves_file(sheet.model, r) else r.weights + _star(sheet, "weights")
        parts.append(f"weights {weights}, KV {r.kv}{_star(sheet, 'kv')}")
    size = f"batch {r.batch:,}{_star(sheet, 'batch')} × {r.seq:,}{_star(sheet, 'seq')} tokens"
    if isinstance(r, Training) and r.accumulation > 1:
        size += f" × {r.accumulation} accumulated"
    parts.append(size)
    usable = f"{sheet.gpu.memory_usable_bytes / GIB:.1f} GiB usable"
    whose = f"{sheet.gpu.yours}; " if sheet.gpu.own else ""
    parts.append(f"{sheet.gpus} × {sheet.gpu.id} ({whose}{usable})")
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


#: the two lines above an instant's column
_HEADS = {
    "end of forward": ("end of", "forward"), "backward of the loss": ("backward,", "loss"),
    "backward of the last block": ("backward,", "last block"),
    "backward of the first block": ("backward,", "first block"),
    "forward of the loss": ("forward,", "loss"), "backward of the embedding": ("backward,", "embedding"),
    "optimizer step": ("optimizer", "step"), "prefill": ("", "prefill"), "decode": ("", "decode"),
}  # fmt: skip
#: instants that get a column only where they are the worst
_RARE = frozenset({"forward of the loss", "backward of the embedding"})
_AROUND = ("CUDA context", "process", "allocator", "NCCL buffers")
_LONGEST_FORMULA = 14  # a longer one stands below the table


def _shown_instants(sheet: Any) -> list[Instant]:
    """The instants that get a column: of the two block instants, the higher one."""
    worst = sheet.memory.worst
    shown = [i for i in sheet.memory.instants if i.name in _HEADS and (i.name not in _RARE or i is worst)]
    blocks = [i for i in shown if i.name.endswith("block")]
    if len(blocks) == 2:
        lower = min(blocks, key=lambda i: i.total.mid)
        shown = [i for i in shown if i is not lower]
    return shown


def memory_table(sheet: Any, width: int) -> list[str]:
    """Rows: items; columns: instants, in GiB. On a narrow terminal, the worst instant alone."""
    instants = _shown_instants(sheet)
    rows = _rows(sheet, instants)
    if _table_width(rows) > width:
        instants = [sheet.memory.worst]
        rows = _rows(sheet, instants)
    over = _table_width(rows) - width
    if over > 0:  # names give way, numbers never
        room = max(len(row[0]) for row in rows) - over
        rows = [[_cut(row[0], room), *row[1:]] for row in rows]
    out = columns(rows)
    if isinstance(sheet.recipe, Training):
        out += wrap(f"model states: {_states(sheet)}", width, "  ")
    for name, text in _long_formulas(instants):
        out += wrap(f"{name}: {text}", width, "  ")
    return [*out, ""]


def _table_width(rows: list[list[str]]) -> int:
    return max(map(len, columns(rows)))


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 1)] + "…"


def _states(sheet: Any) -> str:
    """What the states add up to, per parameter and in all."""
    r, account = sheet.recipe, sheet.memory.account.model_states
    total = gib(account.estimate.mid)
    n = sheet.model.params
    if r.task != "train":
        return f"{total} GiB, gradients of the adapters included; N = {n:,} parameters, N_a trained"
    each = bytes_per_parameter(r.precision, r.optimizer)
    if r.optimizer_form == "in-backward":
        each = {**each, "gradients": 0}  # dropped as they are made
    parts = " + ".join(f"{value:g} {name}" for name, value in each.items() if value)
    entry = pick("optimizers", r.optimizer, "optimizer")
    more = ", and the constants of 8-bit blocks" if entry.get("quantised") and not entry.get("paged") else ""
    if entry.get("factored") or entry.get("orthogonal"):
        more = f", and the states that {r.optimizer} keeps by shape"
    elif entry.get("paged"):
        more = ", the optimizer's states paged to the host's memory"
    return f"{parts} = {sum(each.values()):g} bytes per parameter, × N = {n:,}{more}: {total} GiB"


def _rows(sheet: Any, instants: list[Instant]) -> list[list[str]]:
    names: dict[str, None] = {}
    for instant in instants:
        names.update(dict.fromkeys(item.name for item in instant.tensors.items))
    names.update(dict.fromkeys(_AROUND))
    heads = [_HEADS.get(i.name, ("", i.name)) for i in instants]
    rows = [["GiB", *(h[1] for h in heads)]]
    if any(h[0] for h in heads):
        rows.insert(0, ["", *(h[0] for h in heads)])
    for name in names:
        found = [next((x for x in i.items if x.name == name), None) for i in instants]
        if all(x is None or x.estimate.high < 0.005 * GIB for x in found):
            continue
        text = _formula(max((x for x in found if x is not None), key=lambda x: x.estimate.mid))
        label = f"{name}  {text}" if text and len(text) <= _LONGEST_FORMULA else name
        rows.append([label, *("–" if x is None else _cell(x) for x in found)])
    rows.append(["device must hold", *(gib_range(i.total) for i in instants)])
    return rows


def _long_formulas(instants: list[Instant]) -> list[tuple[str, str]]:
    """(name, formula with the numbers put in) of the rows whose formula has no place in the table.

    An item of several parts has one line for each kind of part; parts of one name are added up in it.
    """
    out: dict[str, list[str]] = {}
    done: set[str] = set()
    for instant in sorted(instants, key=lambda i: -i.total.mid):
        for item in instant.tensors.items:
            small = item.estimate.high < 0.005 * GIB
            if (
                small
                or item.name in done
                or item.name == "gradients"
                or len(_formula(item)) <= _LONGEST_FORMULA
            ):
                continue
            done.add(item.name)
            if item.formula[0] and item.formula[1]:
                out[item.name] = [item.working]
            alike = {c.name.partition(", kind")[0] for c in item.children}
            for child in item.children:
                if child.formula[1]:
                    label = item.name if len(alike) == 1 else child.name
                    out.setdefault(label, []).append(child.working)
    return [(name, "; plus ".join(workings)) for name, workings in out.items()]


def _cell(item: Item) -> str:
    e = item.estimate
    return gib(e.mid) if e.low == e.high else gib_range(e)


def _formula(item: Item) -> str:
    """An item's expression with its bytes per element put in: 2·N; children of one kind are added up."""
    expression, operands = item.formula
    if not expression and item.children:
        formulas = [child.formula for child in item.children]
        if len({f[0] for f in formulas}) > 1:
            return " + ".join(child.name for child in item.children)
        expression, operands = formulas[0]
        if "b" in operands:
            operands = {**operands, "b": sum(f[1]["b"] for f in formulas)}
    for name in ("b", "g"):
        if name in operands and expression.startswith(f"{name}·"):
            return f"{operands[name]:g}{expression[len(name) :]}"
    if expression.startswith("c·B·T·V"):
        return f"{operands['c']}·B·T·V + …"
    return expression if operands else ""


def _remedies(sheet: Any, width: int) -> list[str]:
    if not sheet.remedies:
        return []
    rows = [["To make it fit", "", "saves GiB", "costs"]]
    for r in sheet.remedies:
        mark = {"fits": "fits", "tight": "tight", "pointer": "floor"}.get(r.verdict, "not alone")
        rows.append([r.change, mark, f"{r.saves_bytes / GIB:,.1f}" if r.saves_bytes else "–", r.costs])
    legend = "not alone: helps, but does not suffice by itself; floor: the least that a split takes"
    return [*_costs_table(rows, width), *wrap(f"({legend})", width, " "), ""]


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

    def answer(what: str, found: int, none: str) -> str:
        if not found:
            return none
        return f"{what} has no limit that matters" if found >= LIMIT else f"{what} is {found:,}"

    parts = [
        f"at {r.seq:,} tokens " + answer("the largest batch", c.largest_batch, "no batch fits"),
        f"at batch {r.batch:,} "
        + answer("the longest sequence", c.longest_seq, "no length fits")
        + _beyond(sheet),
    ]
    lines = wrap("Here " + "; ".join(parts) + ".", width, "  ")
    uses = [
        f"{use}: {name} ({format_params(n)})" if name else f"{use}: none"
        for use, name, n in c.largest_presets
    ]
    lines += wrap(
        f"Largest presets on one {sheet.gpu.id} (batch {c.at[0]}, {c.at[1]:,} tokens, recompute full when training): "
        + "; ".join(uses)
        + ".",
        width,
        "  ",
    )
    sizes = sheet.checkpoint_bytes
    text = f"Checkpoint {format_bytes(sizes['weights'])} of weights"
    if "resume" in sizes:
        text += f"; {format_bytes(sizes['resume'])} to resume from"
    return [*lines, *wrap(text + ".", width, "  "), ""]


def _beyond(sheet: Any) -> str:
    limit = sheet.model.max_length
    return f" (the model was made for {limit:,})" if limit and sheet.capacity.longest_seq > limit else ""


def _compute(sheet: Any, width: int) -> list[str]:
    c = sheet.compute
    if isinstance(sheet.recipe, Training):
        lines = wrap(
            f"Time   {c.flops_per_step:.3g} FLOP per step ({c.flops_per_token:.3g} per token, causal; "
            f"{c.flops_per_token_full:.3g} with attention in full; {_rule(sheet)}), at MFU {_mfu(sheet)}"
            f" of {format_si(c.peak, 'FLOP/s', 1)} {c.peak_dtype}: "
            f"{format_duration(c.step_seconds.mid)} ({_span(sheet)}), {c.tokens_per_second:,.0f} tokens/s",
            width,
            "       ",
        )
        if c.recomputed_share:
            lines += wrap(
                f"       recomputation adds {c.recomputed_share:.0%} to the FLOPs and to the time",
                width,
                "       ",
            )
    else:
        lines = _serving_time(sheet, width)
    if c.gpu_hours is not None:
        hours = c.gpu_hours
        text = f"Hours  {sheet.recipe.tokens:,} tokens: {hours.mid:,.1f} GPU hours"
        if hours.mid < 1:
            text = f"Hours  {sheet.recipe.tokens:,} tokens: {format_duration(hours.mid * 3600)} of one GPU"
        if hours.low != hours.high and hours.mid >= 1:
            text += f" ({hours.low:,.1f} – {hours.high:,.1f})"
        if sheet.gpus > 1:
            text += f", {format_duration(hours.mid / sheet.gpus * 3600)} on {sheet.gpus} GPUs"
        lines += wrap(text, width, "       ")
    elif isinstance(sheet.recipe, Training):
        lines += wrap("Hours  give --tokens for GPU hours", width, "       ")
    return lines


def _rule(sheet: Any) -> str:
    """The rule of thumb beside the exact count: 6·N, or 4·N where the weights are frozen."""
    n = sheet.model.active_params
    return f"6·N = {6 * n:.3g}" if sheet.recipe.task == "train" else f"frozen weights: 4·N = {4 * n:.3g}"


def _mfu(sheet: Any) -> str:
    """The MFU, with a star if defaulted; one below 10 % with the digits that tell it from another."""
    mfu, found = sheet.compute.mfu, sheet.calibration
    text = f"{mfu:.0%}" if mfu >= 0.0995 else f"{mfu * 100:.2g}%"
    return f"{text} ({found.said})" if found is not None else text + _star(sheet, "mfu")


def _span(sheet: Any) -> str:
    value = sheet.compute.step_seconds
    if value.low == value.high:
        return "MFU given" if sheet.calibration is None else "every step alike"
    return f"{format_duration(value.low)} – {format_duration(value.high)}"


def _serving_time(sheet: Any, width: int) -> list[str]:
    c = sheet.compute
    d = c.decode
    lines = wrap(
        f"Decode reads {format_bytes(d.weight_bytes)} of weights in {format_duration(d.weight_seconds)} and "
        f"{format_bytes(d.cache_bytes)} of cache in {format_duration(d.cache_seconds)}, computes "
        f"{d.flops:.3g} FLOP in {format_duration(d.math_seconds)}: bound by {c.bound_by}, {d.intensity:.3g} FLOP per "
        f"byte where the GPU has {d.peak / d.bandwidth:.0f}.",
        width,
        "       ",
    )
    step, gpus = c.step_seconds, sheet.gpus
    replicas = "" if gpus == 1 else f" on {gpus} GPUs, each a replica with its own batch"
    lines += wrap(
        f"       A step takes at best {format_duration(d.lower)} (weights alone {format_duration(d.weight_seconds)}), "
        f"and {format_duration(step.mid)} – {format_duration(step.high)} at {_band('bandwidth', 'mid', 'low')} of the "
        f"data sheet's bandwidth: {c.tokens_per_second:,.0f} tokens/s{replicas} at {_band('bandwidth', 'mid')}, "
        f"{gpus * d.batch / d.lower:,.0f} at best.",
        width,
        "       ",
    )
    crossing = (
        f"{c.critical_batch_with_cache:,.0f} with caches of this length"
        if c.critical_batch_with_cache is not None
        else "never with caches of this length: each sequence reads longer than it computes"
    )
    lines += wrap(
        f"       Computing takes as long as reading at batch {c.critical_batch:,.0f} (weights only); {crossing}.",
        width,
        "       ",
    )
    p = c.prefill_seconds
    lines += wrap(
        f"Prefill of one prompt of {sheet.recipe.seq:,} tokens: {format_duration(p.mid)} "
        f"({format_duration(p.low)} – {format_duration(p.high)}), at {_band('prefill', 'mid')} "
        f"({_band('prefill', 'low', 'high')}) of {format_si(c.peak, 'FLOP/s', 1)} {c.peak_dtype}, or as long as the "
        "weights are read",
        width,
        "       ",
    )
    return lines


def _band(kind: str, *ends: str) -> str:
    """A default efficiency of the data file as text, starred: "80–60 %*"."""
    entry = tables()["efficiency"][kind]
    return "–".join(f"{entry[end] * 100:.0f}" for end in ends) + " %*"


def _money(sheet: Any, width: int) -> list[str]:
    m = sheet.money
    if m is None:
        text = "Money  give --price PER_GPU_HOUR (no prices are shipped: they change by the week)"
        return wrap(text, width, "       ")
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
    lines = wrap(text, width, "       ")
    return (
        lines
        if m.interruptions is None
        else [*lines, *wrap(m.interruptions.text(currency), width, "       ")]
    )


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
    lines.append(" Time")
    lines += explain(Ledger("time", sheet.compute.time_items, "s"), width)
    if sheet.money is not None:
        m = sheet.money
        spot = () if m.interruptions is None else (m.interruptions.cost,)
        items = tuple(i for i in (m.cost, m.per_million_tokens, *spot) if i is not None)
        lines.append(" Money")
        if m.interruptions is not None:
            lines += explain(Ledger("hours", (m.interruptions.gpu_hours,), "GPU hours"), width)
        lines += explain(Ledger("money", items, sheet.money.price.currency or "units"), width)
    return [*lines, ""]


def _footnotes(sheet: Any, width: int, *, explained: bool) -> list[str]:
    if not sheet.recipe.defaulted:
        return []
    hidden = sorted(
        sheet.recipe.defaulted
        - {"task", "batch", "seq", "precision", "optimizer", "stack", "mfu", "weights", "kv", "rank"}
    )
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

"""The sheet as a page of plain text: verdict, why, what to change, then time and money."""

from __future__ import annotations

from typing import Any

from loadsheet.ledger import Item, Ledger
from loadsheet.memory.serving import serves_file
from loadsheet.memory.states import paged_states
from loadsheet.memory.terms import Instant
from loadsheet.recipe import Training, bytes_per_parameter, pick
from loadsheet.sheet.capacity import LIMIT
from loadsheet.sheet.plan import learned_positions
from loadsheet.sheet.view_time import money_lines, star, time_lines
from loadsheet.text import columns, explain, gib_range, wrap
from loadsheet.units import (
    GIB,
    format_bytes,
    format_params,
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
    lines += time_lines(sheet, width)
    lines += money_lines(sheet, width)
    if explain:
        lines += ["", *working(sheet, width)]
    lines += footnotes(sheet, width, explained=explain)
    return "\n".join(lines)


def header(sheet: Any) -> str:
    """Model, task, how, sizes, where; a star marks what was defaulted."""
    usable = f"{sheet.gpu.memory_usable_bytes / GIB:.1f} GiB usable"
    whose = f"{sheet.gpu.yours}; " if sheet.gpu.own else ""
    return " · ".join([*question(sheet), f"{count(sheet)} × {sheet.gpu.id} ({whose}{usable})"])


def count(sheet: Any) -> str:
    """How many GPUs, starred if nobody said so."""
    return f"{sheet.gpus}{'*' if sheet.gpus_defaulted else ''}"


def question(sheet: Any) -> list[str]:
    """What is asked, but for the GPUs: model, task, how, sizes; a star marks what was defaulted."""
    r = sheet.recipe
    parts = [sheet.model.name, r.task + star(sheet, "task")]
    if isinstance(r, Training):
        parts.append(f"{r.precision}{star(sheet, 'precision')}, {r.optimizer}{star(sheet, 'optimizer')}")
        parts.append(f"stack {r.stack}{star(sheet, 'stack')}")
        if r.task != "train":
            parts.append(f"rank {r.rank}{star(sheet, 'rank')}")
        if r.execution.recompute != "none":
            parts.append(f"recompute {r.execution.recompute}")
    else:
        weights = "as stored" if serves_file(sheet.model, r) else r.weights + star(sheet, "weights")
        parts.append(f"weights {weights}, KV {r.kv}{star(sheet, 'kv')}")
    size = f"batch {r.batch:,}{star(sheet, 'batch')} × {r.seq:,}{star(sheet, 'seq')} tokens"
    if isinstance(r, Training) and r.accumulation > 1:
        size += f" × {r.accumulation} accumulated"
    return [*parts, size]


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
    text = f"{parts} = {sum(each.values()):g} bytes per parameter, × N = {n:,}{more}: {total} GiB"
    if entry.get("paged"):
        paged = gib(paged_states(sheet.model, r))
        text += (
            f"; and {paged} GiB of optimizer states, in the host's memory where the GPU has no room for them"
        )
    return text


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
    limit, longest = sheet.model.max_length, sheet.capacity.longest_seq
    if longest == learned_positions(sheet.model):
        return ", all that its table of positions has"
    return f" (the model was made for {limit:,})" if limit and longest > limit else ""


def working(sheet: Any, width: int) -> list[str]:
    """Every instant's ledger with workings and sources, then the FLOPs."""
    lines = ["Workings"]
    seen: set[int] = set()
    for instant in sheet.memory.instants:
        if instant.name.startswith("first step"):
            continue
        fresh = tuple(i for i in instant.items if id(i) not in seen)
        seen.update(id(i) for i in fresh)
        lines += wrap(f" {instant.name}: {gib_range(instant.total, 2)} GiB", width, "   ")
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


def footnotes(sheet: Any, width: int, *, explained: bool) -> list[str]:
    """What a star means, with the defaults that stand nowhere else, and what the config did not say."""
    lines = []
    hidden = sorted(
        sheet.recipe.defaulted
        - {"task", "batch", "seq", "precision", "optimizer", "stack", "mfu", "weights", "kv", "rank"}
    )
    # shares of the data sheet's rates are always starred when serving
    if sheet.recipe.defaulted or sheet.gpus_defaulted or not isinstance(sheet.recipe, Training):
        text = "* defaulted"
        if hidden:
            values = {**sheet.recipe.to_json(), **sheet.recipe.to_json().get("execution", {})}
            shown = ", ".join(f"{name} {_plain(values.get(name))}" for name in hidden)
            text += f", as are {shown}"
        if not explained:
            text += "; --explain shows every working and source"
        lines += wrap(text, width, "  ")
    if sheet.model.defaulted:
        missing = ", ".join(dict.fromkeys(sheet.model.defaulted))
        lines += wrap(f"Missing in the config, so defaulted: {missing}", width, "  ")
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "all linear" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

"""Memory of a training step, instant by instant.

Model states stay: weights, master copy, optimizer states. Gradients come and go, activations fill up
in forward and drain in backward, the loss has its own hill. All of them are read off the tape; the
peak is the highest instant, never a sum of what is not alive together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadsheet.arch.model import Model, Taped
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Summary
from loadsheet.arch.work import DTYPE_BYTES, Adapter, Work
from loadsheet.errors import BadInput, shorten
from loadsheet.ledger import Item
from loadsheet.memory.terms import Instant, MemoryAccount, instant, quantised_bytes, scale_formula
from loadsheet.recipe import Training, pick, precision, tables
from loadsheet.units import ceil_div, largest

_TORCH = "PyTorch's derivative formulas, replayed on the tape"


def tape_training(model: Model, recipe: Training) -> Taped:
    """Walk the model once as the recipe executes it."""
    p = precision(recipe.precision)
    work = Work(recipe.batch, recipe.seq)
    adapter = None
    stream = p.weights
    if recipe.task != "train":
        dtype = "fp32" if recipe.precision != "pure-bf16" else "bf16"
        compute = "fp32" if recipe.precision == "fp32" else "bf16"
        adapter = Adapter(recipe.rank, recipe.targets, recipe.lora_dropout, dtype, compute)
    quantised = recipe.task == "qlora"
    compute_dtype = p.compute
    if quantised and recipe.upcast:
        stream, compute_dtype = "fp32", "bf16"  # the embedding is fp32, so the residual stream is too

    def make() -> Ops:
        return Ops(
            work,
            recipe.execution,
            training=True,
            full=recipe.task == "train",
            dtype=stream,
            compute_dtype=compute_dtype,
            grad_bytes=DTYPE_BYTES[p.gradients],
            adapter=adapter,
            quantised=quantised,
            dropout=recipe.dropout,
        )

    return model.walk(make, grads_alive=recipe.gradients_live_in_forward)


def check_adapter(model: Model, recipe: Training) -> int:
    """Trained parameters of the adapters; BadInput for a rank or a target that cannot be."""
    tags = {linear.tag for _, linear, _ in model.linears() if linear.tag}
    for target in recipe.targets or ():
        if target not in tags:
            raise BadInput(
                f"targets: got {shorten(target)}, expected module names of {model.name}",
                "it has " + ", ".join(sorted(tags)),
            )
    targeted = [
        x for _, x, _ in model.linears() if x.tag and (recipe.targets is None or x.tag in recipe.targets)
    ]
    narrowest = min((min(x.in_features, x.out_features) for x in targeted), default=0)
    if recipe.rank > narrowest:
        raise BadInput(
            f"rank: got {recipe.rank}, expected at most {narrowest}, the narrowest targeted matrix"
        )
    return model.adapter_params(recipe.rank, recipe.targets)


def optimizer_items(name: str, state_dtype: str, tensors: Mapping[int, int]) -> list[Item]:
    """The optimizer's states over `tensors` (elements of a tensor -> how many such tensors)."""
    entry = pick("optimizers", name, "optimizer")
    total = sum(n * count for n, count in tensors.items())
    labels = {0: (), 1: ("momentum",), 2: ("first moment m", "second moment v")}[entry["states"]]
    if not entry.get("quantised"):
        size = DTYPE_BYTES[state_dtype]
        return [
            Item(label, size * total, "b·N", {"b": size, "N": total}, entry["source"]) for label in labels
        ]
    large = {n: c for n, c in tensors.items() if n >= entry["smallest"]}
    many, few = sum(n * c for n, c in large.items()), total - sum(n * c for n, c in large.items())
    blocks = sum(ceil_div(n, entry["block"]) * c for n, c in large.items())
    items = []
    for label in labels:
        parts = (
            Item("8-bit numbers", many, "1·N_large", {"N_large": many}, entry["source"]),
            Item(
                "block constants",
                blocks * entry["constant_bytes"],
                "4·blocks",
                {"blocks": blocks},
                entry["source"],
            ),
            Item("small tensors in fp32", 4 * few, "4·N_small", {"N_small": few}, entry["source"]),
        )
        items.append(Item(label, children=tuple(i for i in parts if i.amount)))
    return items


def _trained_tensors(model: Model, recipe: Training) -> dict[int, int]:
    """Elements -> count of every tensor that the optimizer holds."""
    counts: dict[int, int] = {}
    if recipe.task == "train":
        return model.tensor_sizes
    for _, linear, count in model.linears():
        if linear.tag and (recipe.targets is None or linear.tag in recipe.targets):
            for n in (recipe.rank * linear.in_features, recipe.rank * linear.out_features):
                counts[n] = counts.get(n, 0) + count
    return counts


def state_items(model: Model, recipe: Training) -> tuple[list[Item], int, int, str]:
    """(resident items, trained parameters, bytes of one gradient, dtype of the optimizer states)."""
    p = precision(recipe.precision)
    items: list[Item] = []
    n = model.params
    if recipe.task == "train":
        size = DTYPE_BYTES[p.weights]
        items.append(Item("weights", size * n, "b·N", {"b": size, "N": n}, p.source))
        if p.master:
            items.append(Item("master weights", 4 * n, "4·N", {"N": n}, p.source))
        trained, gradient, states = n, DTYPE_BYTES[p.gradients], p.states
    else:
        trained = check_adapter(model, recipe)
        items.append(_base_weights(model, recipe))
        pure = recipe.precision == "pure-bf16"
        gradient, states = (2, "bf16") if pure else (4, "fp32")
        items.append(
            Item(
                "adapter weights",
                gradient * trained,
                "b·N_a",
                {"b": gradient, "N_a": trained},
                "Hu et al. 2021, arXiv 2106.09685; PEFT keeps adapters in fp32 unless told otherwise",
            )
        )
    moments = optimizer_items(recipe.optimizer, states, _trained_tensors(model, recipe))
    if moments:
        items.append(Item("optimizer states", children=tuple(moments)))
    return items, trained, gradient, states


def _base_weights(model: Model, recipe: Training) -> Item:
    p = precision(recipe.precision)
    size = DTYPE_BYTES[p.weights]
    if recipe.task == "lora":
        n = model.params
        return Item("frozen weights", size * n, "b·N", {"b": size, "N": n}, p.source)
    name = "nf4-double" if recipe.double_quant else "nf4"
    source = tables()["formats"][name]["source"]
    packed, numbers, scales = quantised_bytes(model, name)
    rest = model.params - packed
    other = 4 if recipe.upcast else size
    why = (
        "PEFT prepare_model_for_kbit_training: what is not packed is cast to fp32"
        if recipe.upcast
        else p.source
    )
    return Item(
        "frozen weights",
        children=(
            Item("4-bit numbers", numbers, "N_q/2", {"N_q": packed}, source),
            Item("scales and codes", scales, *scale_formula(model, name), source),
            Item(
                "embedding, head, norms",
                other * rest,
                "b·(N - N_q)",
                {"b": other, "N": model.params, "N_q": packed},
                why,
            ),
        ),
    )


# --- activations ----------------------------------------------------------------------------------


#: widths that are numbers already: per-row statistics, indices
_PLAIN_WIDTHS = frozenset({"n", "1", "ids", "k"})


def _named_width(symbol: str, units: Any, per_token: Any) -> tuple[str, Any, Any]:
    """(name, its value, coefficient) of one kept width: ("d", 4096, 8.0); no name if it is a plain number.

    A name is used only if the coefficient comes out exact in quarters; a symbol such as "2f" (gate and
    up in one matrix) is read as 2·f.
    """
    digits = len(symbol) - len(symbol.lstrip("0123456789"))
    times, name = int(symbol[:digits] or 1), symbol[digits:].replace("·", "")
    if symbol in _PLAIN_WIDTHS or not name or hasattr(units, "shape") or not units:
        return "", 1, per_token
    coefficient = per_token / units * times
    if abs(coefficient * 4 - round(coefficient * 4)) > 1e-9:
        return "", 1, per_token
    return name, units / times, coefficient


def activations_item(name: str, summary: Summary, count: int, recipe: Training) -> Item:
    """What `count` equal blocks keep for backward; the working is written from the tape."""
    amount = (summary.saved - summary.copies) * count

    def formula() -> tuple[str, dict[str, Any]]:
        operands: dict[str, Any] = {"L": count, "B": recipe.batch, "T": recipe.seq}
        coefficients: dict[str, Any] = {}
        plain: Any = 0
        for symbol, units, size in summary.saved_by:
            if symbol == "copy":
                continue
            per_token = size / (recipe.batch * recipe.seq)
            label, value, coefficient = _named_width(symbol, units, per_token)
            if label and operands.setdefault(label, value) == value:
                coefficients[label] = coefficients.get(label, 0) + coefficient
            else:
                plain = plain + per_token
        terms = [f"{c:g}·{label}" for label, c in coefficients.items()]
        text = " + ".join([*terms, *([f"{plain:.12g}"] if plain else [])])
        return f"L·B·T·({text or 0})", operands

    return Item(name, amount, formula, source=_TORCH, basis="modelled")


def _beginning(taped: Taped, recipe: Training) -> Item | None:
    """What the embedding keeps: the token ids, and whatever else stands before the blocks."""
    amount = taped.before.saved
    if not hasattr(amount, "shape") and not amount:
        return None

    def formula() -> tuple[str, dict[str, Any]]:
        rest = amount - 8 * recipe.batch * recipe.seq
        sizes = {"B": recipe.batch, "T": recipe.seq}
        return ("8·B·T + rest", {**sizes, "rest": rest}) if rest else ("8·B·T", sizes)

    return Item("embedding and its input", amount, formula, source=_TORCH, basis="modelled")


def _checkpoints(taped: Taped, layers: int, recipe: Training) -> Item:
    width = 0
    for summary, _ in taped.runs:
        width = summary.input_bytes
    return Item(
        "block inputs (checkpoints)",
        layers * width,
        "L·X",
        {"L": layers, "X": width},
        "Chen et al. 2016, arXiv 1604.06174; Korthikanti et al. 2022, arXiv 2205.05198: 2·s·b·h per layer",
        "modelled",
    )


def training_memory(
    model: Model, recipe: Training, gpus: int = 1, taped: Taped | None = None
) -> MemoryAccount:
    """The account of every instant of one step on one GPU; `gpus` > 1 means as many replicas (DDP).

    Instants: end of forward; backward of the loss; backward of the last block (first in time) and of
    the worst block with nearly all gradients there (last in time); the optimizer's step; and the
    first step, before the optimizer's states exist.
    """
    taped = taped or tape_training(model, recipe)
    states, trained, grad_size, state_dtype = state_items(model, recipe)
    resident = sum(i.amount for i in states)
    grads_full = grad_size * trained
    alive = recipe.gradients_live_in_forward
    grad_source = "set_to_none drops gradients after the step; accumulation or keep_gradients holds them"

    def gradients(amount: Any, text: str, basis: Any = "exact") -> Item | None:
        if not hasattr(amount, "shape") and not amount:
            return None
        operands = {"g": grad_size, "N": trained}
        if text != "g·N":  # part of them: how many have been made by then
            text, operands = "g·n", {"g": grad_size, "n": amount / grad_size}
        return Item("gradients", amount, text, operands, grad_source, basis)

    buckets = None
    if gpus > 1:
        buckets = Item(
            "DDP buckets",
            grads_full,
            "g·N",
            {"g": grad_size, "N": trained},
            "PyTorch DistributedDataParallel: buckets of all gradients unless gradient_as_bucket_view",
            "exact",
        )
        resident = resident + grads_full
    base = [*states, buckets]

    recompute = recipe.execution.recompute == "full"
    before, after = taped.before, taped.after
    layers = model.num_layers
    kept = [activations_item(_run_name(model, i), s, c, recipe) for i, (s, c) in enumerate(taped.runs)]
    copies = sum((s.copies * c for s, c in taped.runs), start=before.copies + after.copies)
    copies_item = None
    if hasattr(copies, "shape") or copies:
        copies_item = Item(
            "16-bit copies of weights", copies, "autocast, until their backward", {}, _TORCH, "modelled"
        )
    shared = _shared_item(taped)
    begin = _beginning(taped, recipe)
    blocks_kept: Item = (
        _checkpoints(taped, layers, recipe) if recompute else Item("activations", children=tuple(kept))
    )
    end_amount = after.saved - after.copies + after.held
    end = Item(
        "logits and loss", end_amount, _end_formula(model, recipe, end_amount), source=_LOSS, basis="modelled"
    )

    full_grads = gradients(grads_full, "g·N") if alive else None
    forward = instant(
        "end of forward", [*base, full_grads, blocks_kept, shared, begin, end, copies_item], resident, gpus
    )

    hill = after.backward_peak - after.copies
    loss_item = Item(
        "logits and loss", hill, _end_formula(model, recipe, hill), source=_LOSS, basis="modelled"
    )
    copies_now = None if recompute else copies_item
    loss = instant(
        "backward of the loss",
        [*base, full_grads, blocks_kept, shared, begin, loss_item, copies_now],
        resident,
        gpus,
    )

    instants = [forward, loss]
    instants += _block_instants(
        model, recipe, taped, base, gradients, full_grads, shared, begin, resident, gpus
    )
    temporary = _step_temporary(model, recipe, trained, state_dtype)
    step = instant("optimizer step", [*base, gradients(grads_full, "g·N"), temporary], resident, gpus)
    instants.append(step)
    first = _first_step(instants, states)
    if first is not None:
        instants.append(first)
    return MemoryAccount(
        tuple(instants), _model_states(states, gradients(grads_full, "g·N")), _notes(model, recipe)
    )


_LOSS = "torch.nn.functional.cross_entropy: 16-bit logits, fp32 log-probabilities and two fp32 gradients"


def _run_name(model: Model, index: int) -> str:
    return "activations of blocks" if len(model.runs) == 1 else f"activations of blocks, kind {index + 1}"


def _end_formula(model: Model, recipe: Training, amount: Any) -> Any:
    def formula() -> tuple[str, dict[str, Any]]:
        logits = recipe.batch * recipe.seq * model.vocab_size
        if recipe.execution.loss != "eager":
            return "chunks of the logits and the hidden state's gradient", {}
        each = int(amount / logits + 1e-9)
        rest = amount - each * logits
        return "c·B·T·V + rest", {
            "c": each,
            "B": recipe.batch,
            "T": recipe.seq,
            "V": model.vocab_size,
            "rest": rest,
        }

    return formula


def _shared_item(taped: Taped) -> Item | None:
    """Tables that all blocks share: rotary cos and sin, masks."""
    size: Any = 0
    for storage in taped.tables:
        size = size + storage.bytes
    if not hasattr(size, "shape") and not size:
        return None
    return Item("rotary tables, masks", size, "once for all blocks", {}, _TORCH, "modelled")


def _block_instants(
    model: Model,
    recipe: Training,
    taped: Taped,
    base: list[Item | None],
    gradients: Any,
    full_grads: Item | None,
    shared: Item | None,
    begin: Item | None,
    resident: Any,
    gpus: int,
) -> list[Instant]:
    """Backward of the last block and of the worst block at the end of backward."""
    recompute = recipe.execution.recompute == "full"
    order = model.order
    # a first block that was taped by itself (frozen embedding) shifts the runs by one
    last_summary = taped.runs[order[-1] if order and len(taped.runs) == len(model.runs) else -1][0]
    total: Any = 0
    for summary, count in taped.runs:
        total = total + (summary.input_bytes if recompute else summary.saved) * count
    held = taped.after.held
    held_item = Item("logits still held", held, "returned by the model", {}, _LOSS, "modelled")
    alive = full_grads is not None
    made = taped.after.weight_grad_bytes
    last = instant(
        "backward of the last block",
        [
            *base,
            full_grads if alive else gradients(made, "head and final norm"),
            Item(
                "activations of earlier blocks",
                total - _kept(last_summary, recompute),
                "kept - this block's",
                {},
                _TORCH,
                "modelled",
            ),
            shared,
            begin,
            held_item,
            _working(last_summary, recompute),
        ],
        resident,
        gpus,
    )
    worst = max(taped.runs, key=lambda run: _scalar(_peak(run[0], recompute)))[0]
    others = full_grads.amount if full_grads is not None else _all_but(taped, worst)
    first = instant(
        "backward of the first block",
        [
            *base,
            full_grads if alive else gradients(others, "g·N - this block's - the embedding's"),
            shared,
            begin,
            held_item,
            _working(worst, recompute),
        ],
        resident,
        gpus,
    )
    return [last, first]


def _all_but(taped: Taped, block: Summary) -> Any:
    """Gradients made before the last block in time: all but this block's and the embedding's."""
    made: Any = taped.after.weight_grad_bytes - block.weight_grad_bytes
    for summary, count in taped.runs:
        made = made + summary.weight_grad_bytes * count
    return made


def _scalar(value: Any) -> float:
    return float(value.max()) if hasattr(value, "max") else float(value)


def _kept(summary: Summary, recompute: bool) -> Any:
    return summary.input_bytes if recompute else summary.saved


def _peak(summary: Summary, recompute: bool) -> Any:
    """Highest point of one block's backward; under recompute, of its second forward too."""
    if not recompute:
        return summary.backward_peak
    again = summary.forward_peak + summary.input_bytes  # and the gradient of its output, the same size
    return largest(again, summary.backward_peak - summary.input_kept + summary.input_bytes)


def _working(summary: Summary, recompute: bool) -> Item:
    name = "one block, computed again, and its backward" if recompute else "one block's backward"
    return Item(name, _peak(summary, recompute), "highest point of its replay", {}, _TORCH, "modelled")


def _step_temporary(model: Model, recipe: Training, trained: int, state_dtype: str) -> Item | None:
    """What the optimizer needs while it steps."""
    entry = pick("optimizers", recipe.optimizer, "optimizer")
    if recipe.optimizer_form == "fused" or not entry["states"]:
        return None
    each = 8 if entry.get("quantised") else DTYPE_BYTES[state_dtype]
    count = trained
    if recipe.optimizer_form == "loop":
        count = max(_trained_tensors(model, recipe))
    return Item(
        "optimizer temporary",
        each * count,
        "b·n",
        {"b": each, "n": count},
        "torch.optim foreach: √v of all tensors at once; 8-bit states unpacked to fp32",
        "modelled",
    )


def _first_step(instants: list[Instant], states: list[Item]) -> Instant | None:
    """The highest instant of the first step's forward and backward: the optimizer has no states yet."""
    moments = next((i for i in states if i.name == "optimizer states"), None)
    if moments is None:
        return None
    highest = max(instants[:-1], key=lambda i: _scalar(i.total.mid))
    items = tuple(i for i in highest.tensors.items if i is not moments)
    ledger = type(highest.tensors)("first step", items)
    return Instant(f"first step: {highest.name}", ledger, highest.around)


def _model_states(states: list[Item], gradient: Item | None) -> Item:
    return Item("model states", children=(*states, *([gradient] if gradient is not None else [])))


def _notes(model: Model, recipe: Training) -> tuple[str, ...]:
    notes = []
    if recipe.execution.recompute == "selective" and recipe.execution.attention != "eager":
        notes.append("selective recompute saves nothing here: the attention kernel keeps no score matrix")
    if recipe.task != "train" and any(p.expert for block, _ in model.runs for p in block.parameters()):
        notes.append("routed experts get no adapter: PEFT's `all-linear` reaches linear modules only")
    return tuple(notes)

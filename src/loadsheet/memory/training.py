"""Memory of a training step, instant by instant.

Model states stay: weights, master copy, optimizer states (`states.py`). Gradients come and go,
activations fill up in forward and drain in backward, the loss has its own hill. All of them are read off
the tape; the peak is the highest instant, never a sum of what is not alive together.
"""

from __future__ import annotations

from typing import Any

from loadsheet.arch.model import Model, Taped
from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Summary
from loadsheet.arch.work import DTYPE_BYTES, Adapter, Work
from loadsheet.ledger import Item
from loadsheet.memory.states import optimizer_items, paged_states, state_items, trained_tensors
from loadsheet.memory.terms import Instant, MemoryAccount, instant
from loadsheet.recipe import Training, pick, precision
from loadsheet.units import largest

__all__ = ["optimizer_items", "state_items", "tape_training", "training_memory"]

_TORCH = "PyTorch's derivative formulas, replayed on the tape"
_LOSS = "torch.nn.functional.cross_entropy: 16-bit logits, fp32 log-probabilities and two fp32 gradients"


def tape_training(model: Model, recipe: Training) -> Taped:
    """Walk the model once as the recipe executes it."""
    p = precision(recipe.precision)
    work = Work(recipe.batch, recipe.seq)
    adapter = None
    stream, compute_dtype = p.weights, p.compute
    if recipe.task != "train":
        autocast = recipe.precision not in ("pure-bf16", "fp32")
        compute = "bf16" if autocast else recipe.adapters
        adapter = Adapter(recipe.rank, recipe.targets, recipe.lora_dropout, recipe.adapters, compute)
    quantised = recipe.task == "qlora"
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

    return model.walk(make, grads_alive=recipe.gradients_live_in_forward or _in_backward(recipe))


def _in_backward(recipe: Training) -> bool:
    """Whether each tensor's step is taken, and its gradient dropped, as soon as backward has made it."""
    return recipe.optimizer_form == "in-backward"


# --- items ----------------------------------------------------------------------------------------


#: widths that are numbers already: per-row statistics, indices
_PLAIN_WIDTHS = frozenset({"n", "1", "ids", "k"})
#: what is kept in blocks and shown apart from their activations
_APART = frozenset({"copy", "mask"})


def _some(amount: Any) -> bool:
    return hasattr(amount, "shape") or bool(amount)


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
    amount = (summary.saved - summary.copies - summary.masks) * count

    def formula() -> tuple[str, dict[str, Any]]:
        operands: dict[str, Any] = {"L": count, "B": recipe.batch, "T": recipe.seq}
        coefficients: dict[str, Any] = {}
        plain: Any = 0
        for symbol, units, size in summary.saved_by:
            if symbol in _APART:
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
    if not _some(amount):
        return None

    def formula() -> tuple[str, dict[str, Any]]:
        rest = amount - 8 * recipe.batch * recipe.seq
        sizes = {"B": recipe.batch, "T": recipe.seq}
        return ("8·B·T + rest", {**sizes, "rest": rest}) if rest else ("8·B·T", sizes)

    return Item("embedding and its input", amount, formula, source=_TORCH, basis="modelled")


def _checkpoint(summary: Summary) -> Any:
    """Bytes that a recomputed call of a block keeps: its input, or nothing where autograd is off."""
    return summary.input_bytes if _some(summary.saved) or _some(summary.held) else 0


def _checkpoints(taped: Taped, at_once: int) -> Item:
    """Inputs of all calls of blocks, at most `at_once` of them on the device (0: all).

    A looped block has one for each call that has gradients.
    """
    kept = [(_checkpoint(summary), count) for summary, count in taped.runs]
    calls = sum(count for size, count in kept if _some(size))
    total: Any = sum(size * count for size, count in kept)
    here = min(calls, at_once) if at_once else calls
    mean = total / max(calls, 1)
    return Item(
        "block inputs (checkpoints)",
        total if here == calls else here * mean,
        "L·X",
        {"L": here, "X": mean},
        "Chen et al. 2016, arXiv 1604.06174; Korthikanti et al. 2022, arXiv 2205.05198: 2·s·b·h per layer",
        "modelled",
    )


def _modelled(name: str, amount: Any, text: str, source: str = _TORCH) -> Item | None:
    return Item(name, amount, text, {}, source, "modelled") if _some(amount) else None


def _run_name(model: Model, index: int) -> str:
    return "activations of blocks" if len(model.runs) == 1 else f"activations of blocks, kind {index + 1}"


def _end_item(model: Model, recipe: Training, amount: Any) -> Item:
    def formula() -> tuple[str, dict[str, Any]]:
        logits = recipe.batch * recipe.seq * model.vocab_size
        if recipe.execution.loss != "eager":
            return "chunks of the logits and the hidden state's gradient", {}
        each = int(amount / logits + 1e-9)
        return "c·B·T·V + rest", {
            "c": each,
            "B": recipe.batch,
            "T": recipe.seq,
            "V": model.vocab_size,
            "rest": amount - each * logits,
        }

    return Item("logits and loss", amount, formula, source=_LOSS, basis="modelled")


# --- the account ----------------------------------------------------------------------------------


def training_memory(
    model: Model, recipe: Training, gpus: int = 1, taped: Taped | None = None
) -> MemoryAccount:
    """The account of every instant of one step on one GPU; `gpus` > 1 means as many replicas (DDP).

    Instants: forward of a block, where it needs more than its backward; end of forward; forward of the loss;
    backward of the loss; backward of the last block (first in time) and of the worst block with nearly all
    gradients there (last in time); backward of the embedding; the optimizer's step; and the first step, before
    the optimizer's states exist.
    """
    step = _Step(model, recipe, gpus, taped or tape_training(model, recipe))
    instants = [*step.forward(), step.loss(), *step.blocks(), *step.embedding(), step.optimizer()]
    if (ahead := step.block_ahead()) is not None:
        instants.insert(0, ahead)
    first = _first_step(instants, step)
    if first is not None:
        instants.append(first)
    states = Item(
        "model states", children=tuple(i for i in (*step.states, step.gradients()) if i is not None)
    )
    on_gpu = recipe.execution.device == "cuda"
    return MemoryAccount(tuple(instants), states, _notes(model, recipe), on_gpu)


class _Step:
    """What the instants of one step have in common."""

    def __init__(self, model: Model, recipe: Training, gpus: int, taped: Taped) -> None:
        self.model, self.recipe, self.gpus, self.taped = model, recipe, gpus, taped
        self.states, self.trained, self.grad_size, self.state_dtype = state_items(model, recipe)
        self.resident: Any = sum(i.amount for i in self.states)
        self.paged = paged_states(model, recipe)
        self.grads_full = self.grad_size * self.trained
        self.recompute = recipe.execution.recompute == "full"
        self.alive = recipe.gradients_live_in_forward and not _in_backward(recipe)
        self.base: list[Item | None] = list(self.states)
        if gpus > 1:
            self.resident = self.resident + self.grads_full
            self.base.append(
                Item(
                    "DDP buckets",
                    self.grads_full,
                    "g·N",
                    {"g": self.grad_size, "N": self.trained},
                    "PyTorch DistributedDataParallel: buckets of all gradients unless gradient_as_bucket_view",
                    "exact",
                )
            )
        self.begin = _beginning(taped, recipe)
        self.copies: Any = sum((s.copies * c for s, c in taped.runs), start=taped.before.copies)
        self.held: Any = sum((s.held * c for s, c in taped.runs), start=0)
        earlier = self.held * max(recipe.execution.quantised_inputs_held - 1, 0)
        if _some(earlier):
            self.base.append(self.still(earlier, "inputs of 4-bit layers, iteration before"))

    def at(self, name: str, items: list[Item | None]) -> Instant:
        """An instant: what is there all the time, and these items."""
        device = self.recipe.execution.device
        return instant(name, [*self.base, *items], self.resident, self.gpus, self.paged, device)

    def gradients(self, amount: Any = None) -> Item | None:
        """All gradients, or the part of them that has been made."""
        made = self.grads_full if amount is None else amount
        if _in_backward(self.recipe) or not _some(made):
            return None
        text, operands = "g·N", {"g": self.grad_size, "N": self.trained}
        if amount is not None:
            text, operands = "g·n", {"g": self.grad_size, "n": amount / self.grad_size}
        source = "set_to_none drops gradients after the step; accumulation or keep_gradients holds them"
        return Item("gradients", made, text, operands, source)

    def early(self) -> Item | None:
        """Gradients that are there before the backward that fills them."""
        return self.gradients() if self.alive else None

    def shared(self, *, forward: bool) -> Item | None:
        """Tables that all blocks share: rotary cos and sin; a mask that nothing keeps goes with forward."""
        kept = {s for summary, _ in self.taped.runs for s in summary.shared}
        size: Any = 0
        for storage in self.taped.tables:
            if forward or self.recompute or storage in kept:
                size = size + storage.bytes
        if not _some(size):
            return None
        return Item("rotary tables, masks", size, "once for all blocks", {}, _TORCH, "modelled")

    def kept(self) -> list[Item | None]:
        """What the blocks keep between forward and backward."""
        if self.recompute:
            return [self.checkpoints()]
        runs = self.taped.runs
        blocks = [
            activations_item(_run_name(self.model, i), s, c, self.recipe) for i, (s, c) in enumerate(runs)
        ]
        masks: Any = sum((s.masks * c for s, c in runs), start=0)
        return [
            Item("activations", children=tuple(blocks)),
            _modelled("attention masks", masks, "L·2·B·T², 16-bit, one for each layer"),
            self.still(self.held),
        ]

    def checkpoints(self) -> Item:
        """Inputs of recomputed blocks that are on the device at once."""
        return _checkpoints(self.taped, self.recipe.execution.inputs_on_device)

    def still(self, held: Any, name: str = "inputs of 4-bit layers") -> Item | None:
        """Inputs of quantised products that stay until the graph goes."""
        source = (
            "bitsandbytes before 0.43.2, autograd/_functions.py: MatMul4Bit puts its input on the context"
        )
        return _modelled(name, held, "held until the graph goes", source)

    def copies_item(self, *, blocks: bool) -> Item | None:
        """Copies of weights until their backward: 16-bit ones under autocast, 8-bit ones in fp8."""
        copies = self.taped.after.copies + (self.copies if blocks else 0)
        if self.recipe.execution.fp8:
            return _modelled("8-bit copies of weights", copies, "two of each matrix, until its backward")
        return _modelled("16-bit copies of weights", copies, "autocast, until their backward")

    def forward(self) -> list[Instant]:
        """The end of forward, and the highest point of the loss before it."""
        after = self.taped.after
        cached = self.recompute and self.recipe.task == "train"  # autocast's cache ends with its context
        items = [self.early(), *self.kept(), self.shared(forward=True), self.begin]
        end = [*items, _end_item(self.model, self.recipe, after.saved - after.copies + after.held)]
        end.append(self.copies_item(blocks=not self.recompute))
        loss = [*items, _end_item(self.model, self.recipe, after.forward_peak - after.copies)]
        loss.append(self.copies_item(blocks=cached or not self.recompute))
        return [self.at("end of forward", end), self.at("forward of the loss", loss)]

    def loss(self) -> Instant:
        """The highest point of the loss's backward."""
        items = [self.early(), *self.kept(), self.shared(forward=False), self.begin]
        after = self.taped.after
        items.append(_end_item(self.model, self.recipe, after.backward_peak - after.copies))
        items.append(self.copies_item(blocks=not self.recompute))
        return self.at("backward of the loss", items)

    def block_ahead(self) -> Instant | None:
        """The block whose forward needs most beside what those before it keep, if that is more than its backward.

        An indexer's scores are made and gone before the block's forward ends.
        """
        runs = self.taped.runs
        if self.recompute or not any(_scalar(s.forward_peak - s.backward_peak) > 0 for s, _ in runs):
            return None
        order = self.model.order if self.model.order and len(runs) == len(self.model.runs) else None
        order = order or tuple(i for i, (_, count) in enumerate(runs) for _ in range(count))
        before: Any = 0
        points = []
        for run in order:
            points.append((before, runs[run][0]))
            before = before + self._kept(runs[run][0])
        kept, worst = max(points, key=lambda point: _scalar(point[0] + point[1].forward_peak))
        items = [
            self.early(),
            _modelled("activations of earlier blocks", kept, "kept by the blocks before"),
            self.shared(forward=True),
            self.begin,
            _modelled("one block's forward", worst.forward_peak, "highest point of its replay"),
            self.copies_item(blocks=True),
        ]
        return self.at("forward of a block", items)

    def _logits(self) -> Item | None:
        return _modelled("logits still held", self.taped.after.held, "returned by the model", _LOSS)

    def blocks(self) -> list[Instant]:
        """Backward of the last block, and of the worst block at the end of backward."""
        taped, order = self.taped, self.model.order
        # a first block that was taped by itself (frozen embedding) shifts the runs by one
        last = taped.runs[order[-1] if order and len(taped.runs) == len(self.model.runs) else -1][0]
        total: Any = (
            self.checkpoints().amount
            if self.recompute
            else sum((self._kept(summary) * count for summary, count in taped.runs), start=0)
        )
        made = taped.after.weight_grad_bytes
        here = [
            self.early() or self.gradients(made),
            Item(
                "activations of earlier blocks",
                total - self._kept(last),
                "kept - this block's",
                {},
                _TORCH,
                "modelled",
            ),
            self.shared(forward=False),
            self.begin,
            self._logits(),
            self._working(last),
        ]
        worst = max(taped.runs, key=lambda run: _scalar(self._peak(run[0])))[0]
        others: Any = made - worst.weight_grad_bytes
        for summary, count in taped.runs:
            others = others + summary.weight_grad_bytes * count
        end = [
            self.early() or self.gradients(others),
            self.shared(forward=False),
            self.begin,
            self._logits(),
            None if self.recompute else self.still(self.held - worst.held),
            self._working(worst),
        ]
        return [self.at("backward of the last block", here), self.at("backward of the first block", end)]

    def embedding(self) -> list[Instant]:
        """Backward of the embedding: every gradient, and its own as a tensor beside the head's if they are one.

        The two gradients of a tied matrix and their sum are there at once: three times V·d.
        """
        if self.recipe.task != "train":
            return []
        dense = self.taped.before.weight_grad_bytes
        extra: Any = 0
        if self.model.tied:
            extra = 2 * self.grad_size * self.model.embedding.numel
        elif self.alive or _in_backward(self.recipe):
            extra = dense
        items = [
            self.gradients(),
            _modelled("gradient of the embedding", extra, "dense, beside what it is added to"),
            _modelled("gradient of the stream", self.taped.stream_bytes, "B·T·d"),
            self.begin,
            self._logits(),
            None if self.recompute else self.still(self.held),
        ]
        return [self.at("backward of the embedding", items)]

    def optimizer(self) -> Instant:
        """The optimizer's step; one that is taken in backward has one gradient at a time, here the largest."""
        made = self.gradients()
        if _in_backward(self.recipe):
            one = self.grad_size * max(trained_tensors(self.model, self.recipe))
            made = _modelled(
                "gradient of the largest tensor", one, "one at a time, each dropped after its step"
            )
        items = [made, _step_temporary(self.model, self.recipe, self.trained, self.state_dtype)]
        return self.at("optimizer step", items)

    def _kept(self, summary: Summary) -> Any:
        return _checkpoint(summary) if self.recompute else summary.saved + summary.held

    def _peak(self, summary: Summary) -> Any:
        """Highest point of one block's backward; under recompute, of its second forward too."""
        if not self.recompute:
            return summary.backward_peak
        again = summary.forward_peak + summary.input_bytes  # and the gradient of its output, the same size
        return largest(again, summary.backward_peak - summary.input_kept + summary.input_bytes)

    def _working(self, summary: Summary) -> Item:
        name = "one block, computed again, and its backward" if self.recompute else "one block's backward"
        return Item(name, self._peak(summary), "highest point of its replay", {}, _TORCH, "modelled")


def _scalar(value: Any) -> float:
    return float(value.max()) if hasattr(value, "max") else float(value)


def _step_temporary(model: Model, recipe: Training, trained: int, state_dtype: str) -> Item | None:
    """What the optimizer needs while it steps."""
    entry = pick("optimizers", recipe.optimizer, "optimizer")
    if "largest_copies" in entry:  # made anew for each tensor, whatever the form
        size, most = entry.get("copy_bytes", DTYPE_BYTES[state_dtype]), max(trained_tensors(model, recipe))
        copies = entry["largest_copies"]
        operands = {"c": copies, "b": size, "n": most}
        return Item(
            "optimizer temporary", copies * size * most, "c·b·n", operands, entry["source"], "modelled"
        )
    times = pick("optimizer_forms", recipe.optimizer_form, "optimizer form")["temporaries"].get(
        "two" if entry["states"] == 2 else "fewer", 0
    )
    if not times or entry.get("paged"):
        return None
    each = DTYPE_BYTES[state_dtype]
    if entry.get("quantised"):
        times, each = 1, 8  # both states of what is in hand, in fp32; what follows of them is done in place
    count = trained if recipe.optimizer_form == "foreach" else max(trained_tensors(model, recipe))
    return Item(
        "optimizer temporary",
        times * each * count,
        "c·b·n",
        {"c": times, "b": each, "n": count},
        "torch.optim foreach: √v of all tensors at once; loop: root, quotient and the denominator before; "
        "8-bit states unpacked to fp32",
        "modelled",
    )


def _first_step(instants: list[Instant], step: _Step) -> Instant | None:
    """The highest instant of the first step's forward and backward: the optimizer has no states yet."""
    moments = next((i for i in step.states if i.name == "optimizer states"), None)
    if moments is None:
        return None
    highest = max(instants[:-1], key=lambda i: _scalar(i.total.mid))
    items = tuple(i for i in highest.tensors.items if i is not moments)
    ledger = type(highest.tensors)("first step", items)
    return Instant(f"first step: {highest.name}", ledger, highest.around, moving=highest.moving)


def _notes(model: Model, recipe: Training) -> tuple[str, ...]:
    notes = []
    if recipe.execution.recompute == "selective" and recipe.execution.attention != "eager":
        notes.append("selective recompute saves nothing here: the attention kernel keeps no score matrix")
    if recipe.task != "train" and any(p.expert for block, _ in model.runs for p in block.parameters()):
        notes.append("routed experts get no adapter: PEFT's `all-linear` reaches linear modules only")
    return tuple(notes)

"""What lives through a whole training step: weights, adapters, optimizer states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from loadsheet.arch.layers.attention import Attention
from loadsheet.arch.model import Model
from loadsheet.arch.work import DTYPE_BYTES, HEAD_TARGET
from loadsheet.errors import BadInput, shorten
from loadsheet.ledger import Item
from loadsheet.memory.terms import quantised_bytes, scale_formula
from loadsheet.recipe import Training, pick, precision, tables
from loadsheet.units import ceil_div


def adapted(model: Model, recipe: Training) -> Iterator[tuple[int, int, int]]:
    """(in, out, how many) of every matrix that the recipe gives a low-rank path.

    Where q, k and v are one product (`fused_qkv`), its parts are targeted by the names that q, k and v
    have elsewhere.
    """
    targets = recipe.targets
    for _, linear, count in model.linears():
        if linear.tag and (targets is None or linear.tag in targets):
            yield linear.in_features, linear.out_features, count
    if recipe.execution.fused_qkv and targets is not None:
        for layer, count in _packed_attention(model):
            widths = (layer.q_width, layer.kv_width, layer.v_width)
            for name, width in zip(_part_names(layer), widths, strict=True):
                if name in targets:
                    yield layer.hidden_size, width, count
    if targets is not None and HEAD_TARGET in targets:
        yield model.head.in_features, model.head.out_features, 1


def _packed_attention(model: Model) -> Iterator[tuple[Attention, int]]:
    for block, count in model.runs:
        for layer in block.parts():
            if isinstance(layer, Attention) and layer.qkv is not None:
                yield layer, count


def _part_names(layer: Attention) -> tuple[str, str, str]:
    return layer.names.q, layer.names.k, layer.names.v


def check_adapter(model: Model, recipe: Training) -> int:
    """Trained parameters of the adapters; BadInput for a rank or a target that cannot be."""
    tags = {linear.tag for _, linear, _ in model.linears() if linear.tag} | {HEAD_TARGET}
    if recipe.execution.fused_qkv:
        tags |= {name for layer, _ in _packed_attention(model) for name in _part_names(layer)}
    for target in recipe.targets or ():
        if target not in tags:
            raise BadInput(
                f"targets: got {shorten(target)}, expected module names of {model.name}",
                "it has " + ", ".join(sorted(tags)),
            )
    shapes = list(adapted(model, recipe))
    narrowest = min((min(a, b) for a, b, _ in shapes), default=0)
    if recipe.rank > narrowest:
        raise BadInput(
            f"rank: got {recipe.rank}, expected at most {narrowest}, the narrowest targeted matrix"
        )
    return sum(count * recipe.rank * (a + b) for a, b, count in shapes)


#: (shape, whether it is a hidden matrix) -> how many such tensors
Shapes = dict[tuple[tuple[int, ...], bool], int]


def trained_shapes(model: Model, recipe: Training) -> Shapes:
    """What the optimizer holds, by shape; embedding, head and vectors are no hidden matrices."""
    found: Shapes = {}

    def add(shape: tuple[int, ...], hidden: bool, count: int) -> None:
        found[shape, hidden] = found.get((shape, hidden), 0) + count

    if recipe.task == "train":
        for p, count in model.counted_parameters():
            hidden = p.matmul and p.role not in ("embedding", "head") and len(p.shape) > 1
            add(p.shape, hidden, count)
    else:
        for width_in, width_out, count in adapted(model, recipe):
            add((recipe.rank, width_in), True, count)
            add((width_out, recipe.rank), True, count)
    return found


def _factored_items(entry: Mapping[str, Any], size: int, shapes: Shapes) -> list[Item]:
    """Adafactor: for (…, r, c) the sums over rows and over columns; for a vector its whole second moment."""
    rows = columns = vectors = 0
    for (shape, _), count in shapes.items():
        numel = prod(shape)
        if len(shape) > 1:
            rows, columns = rows + count * numel // shape[-1], columns + count * numel // shape[-2]
        else:
            vectors += count * numel
    parts = {"row moments": rows, "column moments": columns, "second moment of vectors": vectors}
    return [
        Item(label, size * n, "b·n", {"b": size, "n": n}, entry["source"]) for label, n in parts.items() if n
    ]


def _orthogonal_items(entry: Mapping[str, Any], size: int, shapes: Shapes) -> list[Item]:
    """Muon: one momentum for hidden matrices, AdamW's two moments for the rest."""
    hidden = sum(prod(shape) * count for (shape, is_hidden), count in shapes.items() if is_hidden)
    rest = sum(prod(shape) * count for (shape, is_hidden), count in shapes.items() if not is_hidden)
    source = entry["source"]
    return [
        Item("momentum of hidden matrices", size * hidden, "b·N_h", {"b": size, "N_h": hidden}, source),
        Item("m and v of the rest (AdamW)", 2 * size * rest, "2·b·N_r", {"b": size, "N_r": rest}, source),
    ]


def optimizer_items(
    name: str, state_dtype: str, tensors: Mapping[int, int], shapes: Shapes | None = None
) -> list[Item]:
    """The optimizer's states over `tensors` (elements of a tensor -> how many such tensors).

    `shapes`: the same by shape, for optimizers whose states depend on it (Adafactor, Muon).
    """
    entry = pick("optimizers", name, "optimizer")
    if entry.get("factored"):
        return _factored_items(entry, DTYPE_BYTES[state_dtype], shapes or {})
    if entry.get("orthogonal"):
        return _orthogonal_items(entry, DTYPE_BYTES[state_dtype], shapes or {})
    total = sum(n * count for n, count in tensors.items())
    labels = {0: (), 1: ("momentum",), 2: ("first moment m", "second moment v")}[entry["states"]]
    if not entry.get("quantised"):
        size = DTYPE_BYTES["fp32" if entry.get("paged") else state_dtype]
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


def trained_tensors(model: Model, recipe: Training) -> dict[int, int]:
    """Elements -> count of every tensor that the optimizer holds."""
    if recipe.task == "train":
        return model.tensor_sizes
    counts: dict[int, int] = {}
    for width_in, width_out, count in adapted(model, recipe):
        for n in (recipe.rank * width_in, recipe.rank * width_out):
            counts[n] = counts.get(n, 0) + count
    return counts


def adapter_dtype(recipe: Training) -> str:
    """What the adapters' weights are in: fp32, to which PEFT casts them, unless the stack leaves them alone."""
    return recipe.adapters


def state_items(model: Model, recipe: Training) -> tuple[list[Item], int, int, str]:
    """(resident items, trained parameters, bytes of one gradient, dtype of the optimizer states).

    Paged states are no tensors of the framework's allocator: they are not among the items.
    """
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
        states = adapter_dtype(recipe)
        gradient = DTYPE_BYTES[states]
        items.append(
            Item(
                "adapter weights",
                gradient * trained,
                "b·N_a",
                {"b": gradient, "N_a": trained},
                "Hu et al. 2021, arXiv 2106.09685; PEFT keeps adapters in fp32 unless told otherwise",
            )
        )
    moments = optimizer_items(
        recipe.optimizer, states, trained_tensors(model, recipe), trained_shapes(model, recipe)
    )
    if moments and not pick("optimizers", recipe.optimizer, "optimizer").get("paged"):
        items.append(Item("optimizer states", children=tuple(moments)))
    return items, trained, gradient, states


def paged_states(model: Model, recipe: Training) -> int:
    """Bytes of optimizer states in managed memory, which the driver moves between GPU and host."""
    if not pick("optimizers", recipe.optimizer, "optimizer").get("paged"):
        return 0
    moments = optimizer_items(recipe.optimizer, "fp32", trained_tensors(model, recipe))
    return int(sum(item.amount for item in moments))


def _base_weights(model: Model, recipe: Training) -> Item:
    p = precision(recipe.precision)
    size = DTYPE_BYTES[p.weights]
    if recipe.task == "lora":
        n = model.params
        return Item("frozen weights", size * n, "b·N", {"b": size, "N": n}, p.source)
    name = "nf4-double" if recipe.double_quant else "nf4"
    source = tables()["formats"][name]["source"]
    head = recipe.execution.quantised_head
    packed, numbers, scales = quantised_bytes(model, name, head=head)
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
            Item("scales and codes", scales, *scale_formula(model, name, head=head), source),
            Item(
                "embedding and norms" if head else "embedding, head, norms",
                other * rest,
                "b·(N - N_q)",
                {"b": other, "N": model.params, "N_q": packed},
                why,
            ),
        ),
    )

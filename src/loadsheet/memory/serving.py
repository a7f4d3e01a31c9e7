"""Memory of serving: weights in their format, the cache, and the activations of prefill and decode."""

from __future__ import annotations

import math
from typing import Any

from loadsheet.arch.model import Model
from loadsheet.arch.ops import Ops
from loadsheet.arch.work import DTYPE_BYTES, Work
from loadsheet.ledger import Item
from loadsheet.memory.terms import (
    MemoryAccount,
    format_bytes_of,
    instant,
    packs_experts_only,
    quantised_bytes,
    scale_formula,
)
from loadsheet.recipe import Serving, pick
from loadsheet.units import largest, smallest

_PLAIN = ("fp32", "bf16", "fp16")


def weight_items(model: Model, recipe: Serving) -> Item:
    """The weights in their format; a file's own bytes when the model came with its weights.

    Weight-only formats replace the linear layers of the blocks (`mxfp4` of a mixture: its routed experts);
    embedding, head, norms and routers stay in 16 bits.
    """
    stored = model.stored
    if stored is not None and serves_file(model, recipe):
        return Item("weights", stored.nbytes, "as stored in the file", {}, f"{stored.format} header", "exact")
    entry = pick("formats", recipe.weights, "weight format")
    n = model.params
    if recipe.weights in _PLAIN:
        size = DTYPE_BYTES[recipe.weights]
        return Item("weights", size * n, "b·N", {"b": size, "N": n}, entry["source"])
    packed, numbers, scales = quantised_bytes(model, recipe.weights, recipe.group)
    operands = {"N_q": packed, "bits": entry["bits"]}
    others = packs_experts_only(model, recipe.weights)
    return Item(
        "weights",
        children=(
            Item(f"{recipe.weights} numbers", numbers, "N_q·bits/8", operands, entry["source"]),
            Item("scales", scales, *scale_formula(model, recipe.weights, recipe.group), entry["source"]),
            Item(
                "all else in 16 bits" if others else "embedding, head, norms in 16 bits",
                2 * (n - packed),
                "2·(N - N_q)",
                {"N": n, "N_q": packed},
                entry["source"],
            ),
        ),
    )


def touched_bytes(model: Model, recipe: Serving, share: Any) -> Any:
    """Bytes of weights that one forward reads: no table that is only looked up, and of routed experts a share.

    `share`: the part of the experts that the tokens at hand reach (1 for a dense model).
    """
    total = weight_items(model, recipe).amount
    if serves_file(model, recipe):
        looked_up, experts = _stored_parts(model)
        return total - looked_up - experts * (1 - share)
    size = DTYPE_BYTES[recipe.weights] if recipe.weights in _PLAIN else 2
    experts = 0
    for shape, active, count in model.quantisable_shapes:
        if active is not None:
            experts += count * sum(format_bytes_of(shape, recipe.weights, recipe.group))
    return total - size * model.looked_up_params - experts * (1 - share)


def serves_file(model: Model, recipe: Serving) -> bool:
    """Whether the weights are taken as their file stores them: no other format was asked for."""
    return model.stored is not None and "weights" in recipe.defaulted


_LOOKED_UP = (
    "token_embd.",
    "position_embd.",
    "embed_tokens.",
    "wte.",
    "wpe.",
    "embed_in.",
    "embed_positions.",
)


def _stored_parts(model: Model) -> tuple[int, int]:
    """(bytes of tables that are only looked up, bytes of routed experts) of the file, by tensor names.

    Of an index alone, which names bytes in all only, their shares of the parameters.
    """
    tensors = model.stored.tensors if model.stored is not None else ()
    if model.stored is not None and not model.stored.complete:
        routed = sum(
            n * math.prod(shape) for shape, active, n in model.quantisable_shapes if active is not None
        )
        total = model.stored.nbytes
        return total * model.looked_up_params // model.params, total * routed // model.params
    tied = ("token_embd.", "embed_tokens.", "wte.") if model.tied else ()
    looked_up = sum(
        t.nbytes
        for t in tensors
        if any(n in t.name for n in _LOOKED_UP) and not any(n in t.name for n in tied)
    )
    experts = sum(t.nbytes for t in tensors if "_exps." in t.name or ".experts." in t.name)
    return looked_up, experts


def cache_items(model: Model, work: Work, kv: str) -> Item | None:
    """What the layers keep for `work`: keys and values (or latents) in the KV format, states in theirs."""
    entry = pick("kv_formats", kv, "KV cache format")
    size = entry["bytes"]
    children = []
    for tensor, count in model.cache(work):
        b = DTYPE_BYTES[tensor.dtype] if tensor.dtype else size
        amount = tensor.elements * b * count
        children.append(
            Item(
                tensor.name,
                amount,
                f"L·b·({tensor.expression})",
                {"L": count, "b": b, **(tensor.operands or {})},
                entry["source"],
            )
        )
    if not children:
        return None
    return Item("KV cache", children=tuple(children))


def kv_bytes_per_token(model: Model, kv: str = "bf16") -> Any:
    """Cache bytes that one more token adds while no window is full.

    Llama 2 70B: 2·80·8·128·2 = 327,680 bytes (arXiv 2307.09288).
    """
    size = pick("kv_formats", kv, "KV cache format")["bytes"]
    return sum(t.elements * size * n for t, n in model.cache(Work(1, 1)) if t.role != "state")


def forward_peak(model: Model, work: Work, logits_rows: Any) -> Any:
    """Highest live bytes of activations of one forward without gradients, logits of `logits_rows` rows last."""

    def make() -> Ops:
        return Ops(work, Serving().execution, training=False, full=False)

    taped = model.walk(make, loss=False)
    peak = taped.before.forward_peak
    for summary, _ in taped.runs:
        peak = largest(peak, summary.forward_peak)
    logits = logits_rows * model.vocab_size * (2 + 4)  # 16-bit logits and the sampler's fp32 copy
    return largest(peak, taped.after.forward_peak + logits)


def serving_memory(model: Model, recipe: Serving, gpus: int = 1) -> MemoryAccount:
    """Two instants: the last chunk of a prefill with every cache full, and a decode step.

    `gpus` > 1 means as many independent replicas, each with the whole batch.
    """
    weights = weight_items(model, recipe)
    batch, seq = recipe.batch, recipe.seq
    cache = cache_items(model, Work(batch, 1, seq - 1), recipe.kv)
    chunk = smallest(seq, recipe.prefill_chunk)
    # short prompts share a pass until it is full, in part if need be
    sequences = smallest(batch, largest(recipe.prefill_chunk / chunk, 1))
    source = "highest live point of the tape without gradients"
    prefill = Item(
        "activations of prefill",
        forward_peak(model, Work(sequences, chunk, seq - chunk), sequences),
        "chunk of C tokens",
        {"C": sequences * chunk},
        source,
        "modelled",
    )
    decode = Item(
        "activations of decode",
        forward_peak(model, Work(batch, 1, seq - 1), batch),
        "one token for each of B sequences",
        {"B": batch},
        source,
        "modelled",
    )
    resident = weights.amount + (cache.amount if cache is not None else 0)
    device = recipe.execution.device
    instants = (
        instant("prefill", [weights, cache, prefill], resident, 1, device=device),
        instant("decode", [weights, cache, decode], resident, 1, device=device),
    )
    del gpus
    states = Item("model states", children=(weights,))
    return MemoryAccount(instants, states, on_gpu=device == "cuda")

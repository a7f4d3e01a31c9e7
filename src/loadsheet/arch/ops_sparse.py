"""Attention over chosen or compressed keys, and the scores by which they are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import Work
from loadsheet.units import largest, smallest, where


@contextmanager
def without_gradients(tape: Ops) -> Iterator[None]:
    """What is taped inside keeps nothing and has no backward: its output only picks indices."""
    before = (tape.training, tape.full, tape.adapter)
    tape.training = tape.full = False
    tape.adapter = None
    try:
        yield
    finally:
        tape.training, tape.full, tape.adapter = before


@contextmanager
def in_full_precision(tape: Ops) -> Iterator[None]:
    """What is taped inside computes in fp32, with parameters that are kept in fp32 too."""
    before = (tape.dtype, tape.compute_dtype)
    tape.dtype = tape.compute_dtype = "fp32"
    try:
        yield
    finally:
        tape.dtype, tape.compute_dtype = before


def index_scores(
    tape: Ops,
    q: Tensor,
    keys: Any,
    *,
    heads: int,
    dim: int,
    pairs: Any,
    pairs_full: Any,
    summed: bool = True,
    tensors: int = 2,
    spread: bool = False,
    graph: bool = False,
) -> Tensor:
    """relu(q·kᵀ) of a few narrow heads, summed with a weight per head: a score for each query and key.

    `pairs`, `pairs_full`: (query, key) pairs of one sequence; `keys`: keys of one sequence. FLOPs: 2·pairs·dim
    per head, and 2·pairs for the sum where a matrix product does it (arXiv 2512.02556, equation 1). The
    written-out form, which transformers has whatever the attention, makes `tensors` of the fp32 scores of every
    head that are there at once. `spread`: heads stand beside each other in the product, and torch.matmul
    copies the keys to every query unless there is one sequence only. `graph`: autograd is on until the
    choice is made, so that what the product reads stays.
    """
    work = tape.work
    q = tape.cast(q, "fp32") if tape.execution.kernels == "eager" else q
    out = tape.new(work.tokens, 1, "1", "fp32")
    record = tape.add_record("index", (q,), out)
    per_pair = 2 * heads * (dim + 1 if summed else dim) * work.sequences
    record.forward_flops, record.forward_flops_full = per_pair * pairs, per_pair * pairs_full
    if tape.execution.kernels == "eager":
        size = 4 * work.tokens * heads * keys
        copied: Any = where(work.sequences > 1, 4 * work.tokens * dim * keys, 0) if spread else 0
        whole = tensors * size
        record.forward_temporary = whole + copied if graph else largest(whole, size + copied)
    return out


def compressed_pairs(work: Work, rate: int, limit: int | None = None) -> Any:
    """Pairs of queries and compressed entries that end before them: Σ min(⌊i/rate⌋, limit) over positions i.

    Entry e stands for tokens e·rate … (e+1)·rate - 1; the query after i tokens sees ⌊i/rate⌋ of them.

    >>> compressed_pairs(Work(1, 8), 2), compressed_pairs(Work(1, 8), 2, 2), compressed_pairs(Work(1, 2, 6), 4)
    (16, 12, 3)
    """
    return _compressed_sum(work.context, rate, limit) - _compressed_sum(work.past, rate, limit)


def _compressed_sum(length: Any, rate: int, limit: int | None) -> Any:
    """Σ_{i=1..length} min(⌊i/rate⌋, limit)."""
    if limit is None:
        whole, rest = length // rate, length % rate
        return rate * whole * (whole - 1) // 2 + whole * (rest + 1)
    turn = rate * limit - 1  # the last position that sees fewer than `limit`
    return _compressed_sum(smallest(length, turn), rate, None) + limit * largest(length - turn, 0)


def attention_over(
    tape: Ops, q: Tensor, k: Tensor, *, heads: int, dim: int, keys: Any, pairs: Any, pairs_full: Any
) -> Tensor:
    """Attention of every query head over `keys` shared keys of one sequence that are also the values.

    `k`: (B·keys, dim), already repeated to all heads where it is written out. In one kernel, q, k, the
    output and a statistic per row are kept; written out also the probabilities, sink included.
    """
    work = tape.work
    per_pair = 4 * heads * dim * work.sequences
    grad = q.grad or k.grad
    out = tape.new(work.tokens, heads * dim, "q", q.dtype, grad)
    if tape.execution.attention == "eager":
        rows = work.sequences * heads * work.new
        # the sinks are fp32, so the softmax with their column is; the product takes it in q's precision
        wide = tape.new(rows, keys + 1, "h·S", "fp32", grad)
        taken = wide if q.dtype == "fp32" else tape.new(rows, keys, "h·S", q.dtype, grad)
        wide.storage.units = taken.storage.units = heads * keys
        saved: tuple[Tensor, ...] = (q, k, wide, taken)
        before = 3 * wide.bytes  # scores, with the sink, less their largest
        after = before
    else:
        saved = (q, k, out, tape.new(work.tokens, heads, "h", "fp32"))
        before, after = 0, 4 * q.rows * heads * dim
    record = tape.add_record("attention", (q, k), out, saved)
    record.forward_flops, record.forward_flops_full = per_pair * pairs, per_pair * pairs_full
    record.forward_temporary = before
    if grad:
        record.input_grad_flops = 2 * record.forward_flops
        record.backward_temporary = after
    return out


def pool(tape: Ops, x: Tensor, rows: Any, width: int, symbol: str) -> Tensor:
    """Sums of rows of x that belong together: fewer rows; keeps nothing."""
    out = tape.new(rows, width, symbol, x.dtype, x.grad)
    tape.add_record("sum", (x,), out)
    return out


def convolution(tape: Ops, x: Tensor, *, extra: int, kernel: int, per_group: int, numel: int) -> Tensor:
    """A convolution along the sequence whose output channels read `per_group` channels over `kernel` tokens.

    Its output has `extra` more tokens per sequence than x has new ones (padding that the next one uses up).
    Keeps x; FLOPs: 2·kernel·per_group for each output.
    """
    work, trains = tape.work, tape.full
    rows = work.sequences * (work.new + extra)
    out = tape.new(rows, x.width, x.symbol, x.dtype, x.grad or trains)
    record = tape.add_record("convolution", (x,), out, (x,))
    record.forward_flops = record.forward_flops_full = 2 * rows * x.width * kernel * per_group
    record.touched = numel
    if x.grad and out.grad:
        record.input_grad_flops = record.forward_flops
    if trains:
        record.weight_grad_flops = record.forward_flops
        record.weight_grad_bytes = numel * tape.grad_bytes
    return out

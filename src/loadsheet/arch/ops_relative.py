"""Learned biases by distance, and attention of a token over its own earlier states."""

from __future__ import annotations

from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor
from loadsheet.arch.work import DTYPE_BYTES


def relative_bias(tape: Ops, x: Tensor, *, heads: int, width: int, extent: int, numel: int) -> Tensor:
    """A learned bias for each query, key and head: `width` numbers of a query times (width, extent), by distance.

    The products of all distances are made first, then picked for each key: (B·T, h·S). Kept are the
    products, the picks and, where attention runs in one kernel, the bias itself. FLOPs: 2·width·extent
    per query and head.
    """
    work = tape.work
    out = tape.new(work.tokens, heads * work.context, "h·S", x.dtype, x.grad or tape.full)
    out.storage.units = heads * work.context
    products = tape.new(work.tokens, heads * extent, "h·E", x.dtype)
    indices = tape.new(work.new, work.context, "S", "int64")  # which distance, and whether it counts
    mask = tape.new(work.new, work.context, "S", "bool")
    saved: tuple[Tensor, ...] = (x, products, indices, mask)
    if tape.execution.attention != "eager":
        saved = (*saved, out)
    record = tape.add_record("bias", (x,), out, saved)
    flops = 2 * work.tokens * heads * width * extent
    record.forward_flops = record.forward_flops_full = flops
    record.forward_temporary = work.tokens * heads * extent * DTYPE_BYTES[x.dtype]
    if out.grad:
        record.input_grad_flops = flops if x.grad else 0
        record.backward_temporary = record.forward_temporary
    if tape.full:
        record.weight_grad_flops = flops
        record.weight_grad_bytes = numel * tape.grad_bytes
    record.touched = numel
    return out


def attend_states(tape: Ops, x: Tensor, *, states: int, queries: int, numel: int) -> Tensor:
    """Attention of `queries` learned vectors over the normed x and `states` - 1 earlier states of each token.

    The states are stacked in fp32 and normed; the stack, its statistics and the normed stack are kept.
    FLOPs: 4·states·d per query.
    """
    out = tape.new(x.rows, queries * x.width, x.symbol, x.dtype, x.grad or tape.full)
    out.storage.units = x.width
    stack_of = tape.new(x.rows, 2 * states * x.width, x.symbol, "fp32")
    stack_of.storage.units = x.width
    record = tape.add_record("attend_states", (x,), out, (stack_of, tape.new(x.rows, states, "n", "fp32")))
    record.forward_flops = record.forward_flops_full = 4 * x.rows * states * queries * x.width
    if out.grad:
        record.input_grad_flops = 2 * record.forward_flops
    if tape.full:
        record.weight_grad_bytes = numel * tape.grad_bytes
    record.touched = numel
    return out

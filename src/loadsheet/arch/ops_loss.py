"""The end of a training step's forward: head and cross-entropy, whole, by chunks or in one kernel."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.ops import Ops, Weight
from loadsheet.arch.ops_lora import adapt, adapter_product
from loadsheet.arch.tape import Record, Storage, Tensor
from loadsheet.arch.work import DTYPE_BYTES
from loadsheet.units import ceil_div, largest, smallest


def end(
    tape: Ops, x: Tensor, head: Weight, targets: Tensor, *, softcap: bool, in_fp32: bool = False
) -> Tensor:
    """Final hidden states → loss, as the execution has it; a tanh squeezes the logits if `softcap`, perhaps in fp32."""
    execution = tape.execution
    if execution.loss == "fused":
        return fused_cross_entropy(tape, x, head)
    if execution.loss == "chunked" and execution.chunked_head:
        return chunked_cross_entropy(tape, x, head, softcap=softcap)
    logits = tape.linear(x, head)
    if tape.adapter is not None and tape.adapter.on_head:
        logits = adapt(tape, logits, x, head)
    if softcap:
        logits = tape.cast(logits, "fp32") if in_fp32 else logits
        logits = tape.pointwise("scale", tape.pointwise("tanh", tape.pointwise("scale", logits)))
    if execution.wide_logits:
        logits = tape.cast(logits, "fp32")
    if execution.loss == "chunked":
        return split_cross_entropy(tape, logits)
    return cross_entropy(tape, logits, targets)


def cross_entropy(tape: Ops, logits: Tensor, targets: Tensor) -> Tensor:
    """log-softmax and the negative log-likelihood: keeps the log-probabilities; a copy if upcast.

    With 16-bit logits read as fp32: 2 + 4 bytes per logit kept after forward, and at the worst
    point of backward 2 (logits) + 4 (kept) + 4 (gradient of the log-softmax's output) + 4 (of its
    input) = 14 bytes per token and vocabulary entry.
    """
    x = tape.cast(logits, "fp32") if tape.execution.upcast_logits else logits
    log_probabilities = _like(tape, x)
    record = tape.add_record("log_softmax", (x,), log_probabilities, (log_probabilities,))
    record.held = _held(tape, logits)
    return _likelihood(tape, log_probabilities, targets)


def split_cross_entropy(tape: Ops, logits: Tensor) -> Tensor:
    """Whole logits, the loss by chunks: they are copied to drop the last token, then split (LitGPT).

    Backward joins the chunks' gradients, which took the place of the log-probabilities, in one tensor and
    then spreads that over the whole logits: beside the logits themselves, two tensors as large as they are.
    """
    dtype = "fp32" if tape.execution.upcast_logits else logits.dtype
    kept = tape.new(logits.rows, logits.width, logits.symbol, dtype)
    loss = tape.new(1, 1, "1", dtype, logits.grad)
    record = tape.add_record("split_loss", (logits,), loss, (kept,))
    record.held = _held(tape, logits)
    record.forward_temporary = kept.bytes  # the copy
    two = 2 * _chunk(tape, logits.rows) * logits.width * DTYPE_BYTES[dtype]
    record.backward_temporary = largest(0, two - kept.bytes)
    return loss


def _chunk(tape: Ops, rows: Any) -> Any:
    """Rows of one chunk: `loss_chunk` tokens of each sequence, or a share of all."""
    execution, work = tape.execution, tape.work
    if not execution.loss_chunk:
        return ceil_div(rows, execution.loss_chunks)
    return work.sequences * smallest(execution.loss_chunk, work.new)


def chunked_cross_entropy(tape: Ops, x: Tensor, head: Weight, *, softcap: bool = False) -> Tensor:
    """Head and loss by chunks of tokens: the log-probabilities of all chunks are kept.

    Backward first goes through the loss of every chunk, last one first (autograd takes the newest node),
    and so turns log-probabilities into gradients of the logits, with two gradients of one chunk beside
    them; only then the head follows, chunk by chunk. LitGPT's chunks are 128 tokens of each sequence,
    torchtune's an eighth of it. A head that trains gets a gradient from each chunk: from the second on there
    are this chunk's, that of those before, and their sum. A compiled loss keeps the 16-bit logits instead.
    """
    execution = tape.execution
    x = tape.cast(x, tape.compute_dtype)
    wide = (execution.upcast_logits and not execution.compiled_loss) or execution.wide_logits
    dtype = "fp32" if wide else x.dtype
    inputs: tuple[Tensor, ...] = (x,)
    if tape.adapter is not None and tape.adapter.on_head:
        inputs = (x, _low(tape, x, head))
    grad = any(t.grad for t in inputs) or tape.full
    logits = tape.new(x.rows, head.out_features, "V", "fp32" if execution.wide_logits else x.dtype)
    kept = [tape.new(x.rows, head.out_features, "V", dtype)]
    if softcap:
        kept.append(tape.new(x.rows, head.out_features, "V", x.dtype))  # what the tanh gave
    if tape.full:
        kept.append(x)
    loss = tape.new(1, 1, "1", dtype, grad)
    record = tape.add_record("chunked_loss", inputs, loss, kept)
    record.held = _held(tape, logits)
    if tape.packs(head) and execution.quantised_inputs_held and x.grad:
        record.held += (x.storage,)
    _head_flops(tape, record, x, head)
    chunk = _chunk(tape, x.rows) * head.out_features
    unpacked = execution.unpacked_bytes * head.in_features * head.out_features if tape.packs(head) else 0
    if not execution.compiled_loss:  # else the logits are what is kept; all of them, then chunk by chunk
        record.forward_temporary = chunk * DTYPE_BYTES[dtype] + logits.bytes
    # by the time of the head the gradients of all logits are 16-bit
    narrower = x.rows * head.out_features * (DTYPE_BYTES[dtype] - DTYPE_BYTES[x.dtype])
    one, later = 0, unpacked - narrower
    if tape.full:
        one = record.weight_grad_bytes  # not yet made while the loss goes backward
        spare = one - chunk * DTYPE_BYTES[x.dtype]  # a gradient of the head, for one of a chunk of logits
        later = largest(spare, 2 * spare) - narrower
    at_once = chunk * DTYPE_BYTES[dtype] * (1 if execution.compiled_loss else 2)
    record.backward_temporary = largest(at_once - one, later)
    return loss


def fused_cross_entropy(tape: Ops, x: Tensor, head: Weight) -> Tensor:
    """Head and loss by chunks of rows; gradients are made in forward, so the logits are never whole.

    Kept: the gradient of the hidden state and, if the head trains, the head's gradient. Temporary:
    one chunk of B·T / ⌈V/d⌉ rows of logits, in 16 bit and fp32 (Hsu et al. 2024, arXiv 2410.10989).
    """
    x = tape.cast(x, tape.compute_dtype)
    loss = tape.new(1, 1, "1", "fp32", x.grad or tape.full)
    gradient = tape.new(x.rows, x.width, x.symbol, x.dtype)
    record = tape.add_record("fused_loss", (x,), loss, (gradient,))
    _head_flops(tape, record, x, head)
    rows = ceil_div(x.rows, ceil_div(head.out_features, head.in_features))
    record.forward_temporary = rows * head.out_features * (DTYPE_BYTES[x.dtype] + 4)
    if tape.full:
        record.forward_temporary = record.forward_temporary + record.weight_grad_bytes
    return loss


def _likelihood(tape: Ops, log_probabilities: Tensor, targets: Tensor) -> Tensor:
    loss = tape.new(1, 1, "1", log_probabilities.dtype, log_probabilities.grad)
    total_weight = tape.new(1, 1, "1", log_probabilities.dtype)
    tape.add_record("nll", (log_probabilities,), loss, (log_probabilities, targets, total_weight))
    return loss


def _low(tape: Ops, x: Tensor, head: Weight) -> Tensor:
    """A·dropout(x) of the head's adapter, for all chunks together."""
    adapter = tape.adapter
    assert adapter is not None
    x = tape.cast(x, adapter.dtype)
    if adapter.dropout > 0:
        x = tape.dropout(x)
    return adapter_product(tape, tape.cast(x, adapter.compute), head.in_features, adapter.rank, "r")


def _held(tape: Ops, logits: Tensor) -> tuple[Storage, ...]:
    return (logits.storage,) if tape.training and tape.execution.holds_logits else ()


def _head_flops(tape: Ops, record: Record, x: Tensor, head: Weight) -> None:
    macs = x.rows * head.in_features * head.out_features
    record.forward_flops = record.forward_flops_full = 2 * macs
    record.input_grad_flops = 2 * macs if x.grad else 0
    record.touched = head.numel
    if tape.full:
        record.weight_grad_flops = 2 * macs
        record.weight_grad_bytes = head.numel * tape.grad_bytes


def _like(tape: Ops, x: Tensor) -> Tensor:
    return tape.new(x.rows, x.width, x.symbol, x.dtype, x.grad)

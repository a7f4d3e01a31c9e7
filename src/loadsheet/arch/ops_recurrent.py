"""The physics of what runs along the sequence: causal convolutions, scans, chunked linear attention.

FLOPs are counted at 2 per multiply-accumulate, of the mathematics as the published kernels carry it out:
by chunks where there is a chunked form (state-space duality, gated delta rule, lightning attention,
mLSTM), step by step where there is none (Mamba 1, RG-LRU, WKV). With one new token the chunked count
falls to that of one recurrent step, up to one pair per head. `forward_flops` counts the causal half of
each chunk, `forward_flops_full` the whole block, as with attention.

What is kept for backward: with `kernels="fused"` what the published kernels hand to their backward
(mamba-ssm, causal-conv1d, flash-linear-attention, each named below); with `kernels="eager"` what the
PyTorch code that transformers falls back to leaves behind, a sequence-long state included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Record, Tensor
from loadsheet.arch.work import DTYPE_BYTES, Work
from loadsheet.units import ceil_div, smallest

#: tokens per chunk of flash-linear-attention's kernels, and of the PyTorch code beside them
CHUNK = 64
#: tokens between two states that mamba-ssm's selective scan stores for its backward
SCAN_CHUNK = 2048


def causal_convolution(
    tape: Ops, x: Tensor, *, kernel: int, numel: int, activation: str | None = None
) -> Tensor:
    """A depthwise convolution over the last `kernel` tokens: 2·K FLOPs per token and channel; keeps x.

    One kernel computes it again in backward, activation included (causal-conv1d). PyTorch's makes
    T + K - 1 outputs, which the full count counts, and of which the activation keeps all.
    """
    work, trains = tape.work, tape.full
    eager = tape.execution.kernels == "eager"
    padded = work.sequences * (work.new + kernel - 1) if eager else x.rows
    out = tape.new(x.rows, x.width, x.symbol, x.dtype, x.grad or trains)
    saved: tuple[Tensor, ...] = (x,)
    if eager and activation:
        saved = (x, tape.new(padded, x.width, x.symbol, x.dtype))
    record = tape.add_record("convolution", (x,), out, saved)
    macs = kernel * x.rows * x.width
    record.forward_flops, record.forward_flops_full = 2 * macs, 2 * kernel * padded * x.width
    record.touched = numel
    if x.grad and out.grad:
        record.input_grad_flops = 2 * macs
    if trains:
        record.weight_grad_flops = 2 * macs
        record.weight_grad_bytes = numel * tape.grad_bytes
    return out


def selective_scan(
    tape: Ops, u: Tensor, dt: Tensor, b: Tensor, c: Tensor, gate: Tensor, *, states: int, numel: int
) -> Tensor:
    """Mamba 1's scan h ← exp(Δ·A)·h + Δ·B·u, y = C·h + D·u, times silu(gate) (arXiv 2312.00752, algorithm 2).

    Recurrent, per token, channel and state three multiply-accumulates (decay, input, read-out), so
    6·I·N FLOPs per token, and 2·I for D. Kept by mamba-ssm: u, Δ, B, C, gate, the output before the gate
    and two fp32 numbers per channel and state every 2048 tokens. PyTorch's loop keeps exp(Δ·A), Δ·B and
    every state in fp32: 12·I·N bytes per token and more.
    """
    width = u.width
    grad = u.grad or tape.full
    out = tape.new(u.rows, width, u.symbol, u.dtype, grad)
    inner = tape.new(u.rows, width, u.symbol, u.dtype)  # before the gate
    saved = [u, dt, b, c, gate, inner]
    if tape.execution.kernels == "fused":
        chunks = tape.work.sequences * ceil_div(tape.work.new, SCAN_CHUNK)
        saved.append(tape.new(chunks, 2 * width * states, "I·N", "fp32"))
    else:
        for _ in range(3):  # exp(Δ·A), Δ·B, the states
            saved.append(tape.new(u.rows, width * states, "I·N", "fp32"))
        if u.dtype != "fp32":
            saved.append(tape.new(u.rows, width * states, "I·N", u.dtype))  # the states, cast to read them
        wide = 1 if u.dtype == "fp32" else 2  # Δ in full, and a copy of u
        saved += [tape.new(u.rows, width, u.symbol, "fp32") for _ in range(wide)]
        for _ in range(2):  # Δ before its softplus, silu(gate)
            saved.append(tape.new(u.rows, width, u.symbol, u.dtype))
    record = tape.add_record("scan", (u, dt, b, c, gate), out, saved)
    _account(tape, record, 6 * u.rows * width * states + 2 * u.rows * width, None, numel)
    return out


def chunked_pairs(work: Work, chunk: int) -> tuple[Any, Any]:
    """(causal, whole) pairs of tokens inside the chunks of one sequence; chunks begin with the first new token.

    >>> chunked_pairs(Work(1, 4), 2), chunked_pairs(Work(1, 1, 99), 64)
    ((6, 8), (1, 1))
    """
    causal = Work(1, work.new).pairs(chunk=chunk)
    return causal, work.new * smallest(work.new, chunk)


def linear_attention(
    tape: Ops,
    inputs: tuple[Tensor, ...],
    *,
    heads: int,
    key_dim: int,
    value_dim: int,
    chunk: int,
    symbol: str,
    groups: int | None = None,
    delta: bool = False,
    keeps: tuple[Tensor, ...] = (),
    numel: int = 0,
    dtype: str | None = None,
) -> Tensor:
    """Linear attention with a decaying state S of key_dim × value_dim per head, by chunks of C tokens.

    FLOPs, P = pairs inside the chunks (causal: C·(C + 1)/2 each):
      scores and mix    2·P·(g·key_dim + h·value_dim)       g heads share their scores
      state             4·T·h·key_dim·value_dim             written, and read
    State-space duality is this with key_dim = N, value_dim = head_dim, g = groups (arXiv 2405.21060,
    section 6); lightning attention is it with g = h (arXiv 2401.04658). The delta rule (`delta`,
    arXiv 2406.06484 section 3.2 and 2412.06464 section 3.3) adds, per head, K·Kᵀ, the inverse of a
    triangular C×C matrix T, W = T·K, U = T·V and U - W·S:
      2·P·(2·key_dim + value_dim + C/3) + 2·T·key_dim·value_dim.
    `keeps` are the tensors that the kernel or the PyTorch code holds for backward.
    """
    work = tape.work
    grad = any(t.grad for t in inputs) or tape.full
    source = inputs[0]
    out = tape.new(work.tokens, heads * value_dim, symbol, dtype or source.dtype, grad)
    record = tape.add_record("linear_attention", inputs, out, keeps)
    per_pair = 2 * ((groups or heads) * key_dim + heads * value_dim)
    per_token = 4 * heads * key_dim * value_dim
    if delta:
        per_pair += heads * (4 * key_dim + 2 * value_dim + 2 * chunk // 3)
        per_token += 2 * heads * key_dim * value_dim
    causal, whole = chunked_pairs(work, chunk)
    steps = work.tokens * per_token
    needed = work.sequences * causal * per_pair + steps
    _account(tape, record, needed, work.sequences * whole * per_pair + steps, numel)
    return out


def recurrence(
    tape: Ops, inputs: tuple[Tensor, ...], *, flops: int, keeps: tuple[Tensor, ...], numel: int, dtype: str
) -> Tensor:
    """An elementwise recurrence along the sequence: `flops` per token and channel, one state per channel.

    RG-LRU (arXiv 2402.19427, equations 1-4) and WKV (arXiv 2305.13048, equations 16 and 19-22).
    """
    source = inputs[0]
    grad = any(t.grad for t in inputs) or tape.full
    out = tape.new(source.rows, source.width, source.symbol, dtype, grad)
    record = tape.add_record("recurrence", inputs, out, keeps)
    _account(tape, record, flops * source.rows * source.width, None, numel)
    return out


def decay_gate(tape: Ops, x: Tensor, *, numel: int) -> Tensor:
    """-exp(A)·softplus(x + bias) in fp32, the logarithm of a decay: keeps the sum and its softplus."""
    out = tape.new(x.rows, x.width, x.symbol, "fp32", x.grad or tape.full)
    keeps = tuple(tape.new(x.rows, x.width, x.symbol, "fp32") for _ in range(2))
    record = tape.add_record("decay", (x,), out, keeps)
    _account(tape, record, 0, None, numel)
    return out


def gated_norm(
    tape: Ops,
    x: Tensor,
    gate: Tensor,
    *,
    activation: str,
    groups: int,
    numel: int,
    weight_first: bool = False,
) -> Tensor:
    """RMSNorm of x and act(gate), multiplied; with one kernel x, the gate and a statistic per group are kept.

    Written out: both in fp32, and what each of their products keeps. `weight_first`: the norm is done
    and weighed before the gate is multiplied on (gated delta nets), else after (Mamba 2).
    """
    if tape.execution.kernels == "fused":
        out = tape.new(x.rows, x.width, x.symbol, gate.dtype, x.grad or gate.grad or tape.full)
        statistic = tape.new(x.rows, groups, "n", "fp32")
        statistic.storage.units = groups
        record = tape.add_record("gated_norm", (x, gate), out, (x, gate, statistic))
        record.touched = numel
        record.weight_grad_bytes = numel * tape.grad_bytes if tape.full else 0
        return out
    wide = tape.cast(x, "fp32")
    opened = tape.pointwise(activation, tape.cast(gate, "fp32"))
    if weight_first:
        normed = tape.multiply(wide, tape.mean_square_root(wide, groups))
        weighed = tape.scale_by_weight(tape.cast(normed, gate.dtype), numel)
        return tape.cast(tape.multiply(tape.cast(weighed, "fp32"), opened), gate.dtype)
    wide = tape.multiply(wide, opened)
    normed = tape.multiply(wide, tape.mean_square_root(wide, groups))
    return tape.scale_by_weight(tape.cast(normed, x.dtype), numel)


def written_out(
    tape: Ops, chunk: int, rows_of: Mapping[tuple[str, int], float], *, states: int, dtype: str = "fp32"
) -> tuple[Tensor, ...]:
    """What PyTorch code by chunks keeps: for each (symbol, width) so many tensors, and `states` numbers per chunk.

    The sequence is filled up to whole chunks. The counts in the layers are those that
    `saved_tensors_hooks` finds in transformers 5.24.0.
    """
    work = tape.work
    chunks = work.sequences * ceil_div(work.new, chunk)
    made = []
    for (symbol, width), count in rows_of.items():
        tensor = tape.new(chunks * chunk, int(count * width), symbol, dtype)
        tensor.storage.units = width
        made.append(tensor)
    state = tape.new(chunks, states, "S", dtype)
    return (*made, state)


def recomputed(tape: Ops, since: int, *made: Tensor) -> None:
    """A fused kernel makes these again in backward: no record from number `since` on keeps them."""
    gone = {t.storage for t in made}
    for record in tape.records[since:]:
        record.saved = tuple(s for s in record.saved if s not in gone)


def kept(
    tape: Ops, width: int, symbol: str, dtype: str, *, units: int | None = None, rows: Any = None
) -> Tensor:
    """A tensor of rows × width that is only made to be kept (a kernel's own copy, a loop's states).

    `units` is the number behind the symbol, where the width is a multiple of it.
    """
    made = tape.new(tape.work.tokens if rows is None else rows, width, symbol, dtype)
    made.storage.units = units or width
    return made


def _account(tape: Ops, record: Record, flops: Any, full: Any, numel: int) -> None:
    """FLOPs of forward and twice that for the gradients of its inputs; small parameters of its own."""
    record.forward_flops = flops
    record.forward_flops_full = flops if full is None else full
    if record.output.grad:
        record.input_grad_flops = 2 * flops
        if tape.full:
            record.weight_grad_bytes = numel * DTYPE_BYTES["fp32"]
    record.touched = numel

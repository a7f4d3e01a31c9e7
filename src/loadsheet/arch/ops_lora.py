"""The low-rank path beside a frozen linear layer (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.ops import Ops, Weight
from loadsheet.arch.tape import Storage, Tensor
from loadsheet.arch.work import DTYPE_BYTES


def adapt(tape: Ops, y: Tensor, x: Tensor, weight: Weight) -> Tensor:
    """y + (α/r)·B(A(dropout(x)))."""
    adapter = tape.adapter
    if adapter is None:
        return y
    wide = tape.cast(x, adapter.dtype)
    low = adapter_product(tape, _input(tape, wide), weight.in_features, adapter.rank, "r")
    high = adapter_product(tape, low, adapter.rank, weight.out_features, weight.out_symbol)
    out = tape.cast(tape.add(y, tape.pointwise("scale", high)), y.dtype)
    tape.records[-1].alive = (x.storage, wide.storage)  # what PEFT's forward has names for until it returns
    return out


def adapt_parts(
    tape: Ops, y: Tensor, x: Tensor, width_in: int, parts: tuple[tuple[int, bool], ...], symbol: str
) -> Tensor:
    """The same where one product makes several parts (q, k, v) and some have adapters: (width, whether).

    One A for all of them, dropout once; B's results are joined and, unless every part has an adapter,
    written into zeros as wide as y, for which autograd keeps them (LitGPT's LoRAQKVLinear).
    """
    adapter = tape.adapter
    chosen = [width for width, has in parts if has]
    if adapter is None or not chosen:
        return y
    low = adapter_product(tape, _input(tape, x), width_in, len(chosen) * adapter.rank, "r")
    width = sum(chosen)
    high = adapter_product(tape, low, adapter.rank, width, symbol)
    if len(chosen) < len(parts):
        padded = tape.new(y.rows, y.width, y.symbol, high.dtype, True)
        tape.add_record("index_copy", (high,), padded, (high,))
        high = padded
    return tape.cast(tape.add(y, tape.pointwise("scale", high)), y.dtype)


def adapter_product(tape: Ops, x: Tensor, width_in: int, width_out: Any, symbol: str) -> Tensor:
    """A product with one of the adapter's matrices: both train, so its input is kept."""
    adapter = tape.adapter
    assert adapter is not None
    out = tape.new(x.rows, width_out, symbol, x.dtype, True)
    record = tape.add_record("adapter", (x,), out, (x,))
    if adapter.dtype != adapter.compute:  # autocast makes a copy and keeps it
        record.saved += (Storage(width_in * width_out * DTYPE_BYTES[adapter.compute], "copy", 1),)
    macs = x.rows * width_in * width_out
    record.forward_flops = record.forward_flops_full = 2 * macs
    if out.grad:
        record.weight_grad_flops = 2 * macs
        record.input_grad_flops = 2 * macs if x.grad else 0
    record.touched = width_in * width_out
    return out


def _input(tape: Ops, x: Tensor) -> Tensor:
    """What A reads: the layer's input in the adapter's dtype, after dropout, in the dtype of its products."""
    adapter = tape.adapter
    assert adapter is not None
    x = tape.cast(x, adapter.dtype)
    if adapter.dropout > 0:
        x = tape.dropout(x)
    return tape.cast(x, adapter.compute)

"""Products of two activations that are no attention: small matrices, one for each token."""

from __future__ import annotations

from typing import Any

from loadsheet.arch.ops import Ops
from loadsheet.arch.tape import Tensor


def token_product(tape: Ops, a: Tensor, b: Tensor, *, width: Any, symbol: str, macs: Any) -> Tensor:
    """a·b for each token, `macs` multiply-accumulates per token: keeps each factor whose partner needs a gradient."""
    out = tape.new(a.rows, width, symbol, a.dtype, a.grad or b.grad)
    record = tape.add_record("product", (a, b), out, [t for t, partner in ((a, b), (b, a)) if partner.grad])
    record.forward_flops = record.forward_flops_full = 2 * macs * a.rows
    record.input_grad_flops = record.forward_flops * (int(a.grad) + int(b.grad))
    return out


def divide(tape: Ops, a: Tensor, b: Tensor) -> Tensor:
    """a / b, b one number per row: keeps both."""
    out = tape.new(a.rows, a.width, a.symbol, a.dtype, a.grad or b.grad)
    tape.add_record("divide", (a, b), out, (a, b))
    return out


def stack(tape: Ops, tensors: list[Tensor], symbol: str) -> Tensor:
    """The tensors side by side, a copy; keeps nothing."""
    width = sum(t.width for t in tensors)
    first = tensors[0]
    out = tape.new(first.rows, width, symbol, first.dtype, any(t.grad for t in tensors))
    tape.add_record("copy", tuple(tensors), out)
    return out


def average(tape: Ops, x: Tensor, width: Any, symbol: str) -> Tensor:
    """The mean of the parts of x that lie side by side, each `width` wide; keeps nothing."""
    out = tape.new(x.rows, width, symbol, x.dtype, x.grad)
    tape.add_record("mean", (x,), out)
    return out

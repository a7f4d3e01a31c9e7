"""The physics of each primitive operation.

These are the only places that know what an operation costs: the tensors that autograd keeps, FLOPs
(2 per multiply-accumulate), temporaries of its backward. Layers are written in terms of them.
What is kept follows PyTorch's derivative formulas: a product keeps both factors, a linear layer its
input if its weight trains, softmax and tanh their output, silu and gelu their input.
"""

from __future__ import annotations

from typing import Any, Protocol

from loadsheet.arch.tape import Storage, Tape, Tensor
from loadsheet.arch.work import DTYPE_BYTES
from loadsheet.units import where

#: elementwise functions by what their derivative needs
KEEPS_INPUT = frozenset({"silu", "gelu", "gelu_tanh", "quick_gelu", "relu2", "softplus", "swiglu_clamped"})
KEEPS_OUTPUT = frozenset({"relu", "sigmoid", "tanh"})


class Weight(Protocol):
    """What an op must know of a linear layer's weight."""

    in_features: int
    out_features: int
    numel: int
    out_symbol: str
    quantisable: bool


class Ops(Tape):
    """A tape with the operations on it."""

    # -- matrix products -----------------------------------------------------------------------
    def linear(self, x: Tensor, weight: Weight, *, experts: int = 1) -> Tensor:
        """y = x·Wᵀ + b: keeps x only if W trains; a frozen W has no weight gradient.

        In fp8 the input is kept as a copy of one byte per number, and the weight has two such copies, by
        rows and by columns, until its backward (Micikevicius et al. 2022, arXiv 2209.05433; Transformer
        Engine makes them per module).
        """
        given, packed = x.dtype, self.packs(weight)
        x = self.cast(x, self.compute_dtype)
        rows, trains = x.rows, self.full
        out = self.new(rows, weight.out_features, weight.out_symbol, x.dtype, x.grad or trains)
        fp8 = self.execution.fp8 and weight.quantisable
        kept = self.new(rows, weight.in_features, x.symbol, "fp8") if fp8 else x
        record = self.add_record("linear", (x,), out, (kept,) if trains else ())
        macs = rows * weight.in_features * weight.out_features
        record.forward_flops = record.forward_flops_full = 2 * macs
        record.touched = weight.numel * experts
        size = weight.in_features * weight.out_features
        if self.dtype != self.compute_dtype and not packed:
            copy = Storage(size * experts * DTYPE_BYTES[self.compute_dtype], "copy", 1, outside=False)
            if out.grad:
                record.saved += (copy,)
        if fp8 and out.grad:
            record.saved += (Storage(2 * size * experts, "copy", 1, outside=False),)
        if packed:  # one layer is unpacked at a time
            unpacked = size * experts * self.execution.unpacked_bytes
            record.forward_temporary = record.backward_temporary = unpacked
            if self.execution.quantised_inputs_held and x.grad and out.grad:
                record.held = (x.storage,)
        if x.grad and out.grad:
            record.input_grad_flops = 2 * macs
        if trains:
            record.weight_grad_flops = 2 * macs
            record.weight_grad_bytes = weight.numel * experts * self.grad_bytes
        # bitsandbytes' 4-bit layers hand back the dtype that they were given
        return self.cast(out, given) if packed else out

    def packs(self, weight: Weight) -> bool:
        """Whether weight-only quantisation packs this matrix; the head (as wide as V) only if asked for."""
        head = self.execution.quantised_head and weight.out_symbol == "V"
        return self.quantised and (weight.quantisable or head)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        heads: int,
        key_dim: int,
        value_dim: int,
        window: int | None = None,
        chunk: int | None = None,
        sinks: bool = False,
    ) -> Tensor:
        """softmax(q·kᵀ/√d)·v in one kernel: keeps q, k, v, its output and one log-sum-exp per row.

        FLOPs: 2·pairs·(key_dim + value_dim) per head (arXiv 2205.14135); the backward counted as twice
        that, without the kernel's own recomputation of the scores.
        """
        work = self.work
        rows = work.sequences * work.new
        symbol = q.symbol if value_dim == key_dim else "h·d_v"
        out = self.new(rows, heads * value_dim, symbol, q.dtype, q.grad or k.grad or v.grad)
        statistics = self.new(rows, heads, "h", "fp32")
        record = self.add_record("attention", (q, k, v), out, (q, k, v, out, statistics))
        per_pair = 2 * heads * (key_dim + value_dim) * work.sequences
        record.forward_flops = per_pair * work.pairs(window, chunk)
        record.forward_flops_full = per_pair * work.pairs_full()
        if out.grad:
            record.input_grad_flops = 2 * record.forward_flops
            record.backward_temporary = 4 * rows * heads * key_dim + 4 * rows * heads  # fp32 dq, row sums
        return out

    def keep_mask(self, reach: int | None) -> None:
        """The bias that SDPA keeps of a mask: it makes a boolean one numbers, B·T·S of them, in every layer.

        There is a mask under padding, and where sequences are longer than the layer's `reach`: SDPA by
        itself knows the causal mask only.
        """
        record, work, execution = self.records[-1], self.work, self.execution
        if (
            execution.attention != "sdpa"
            or not record.output.grad
            or (reach is None and not execution.masked)
        ):
            return
        size = work.sequences * work.new * work.context * DTYPE_BYTES[self.compute_dtype]
        if not execution.masked:
            size = where(work.context > reach, size, 0)
        record.saved += (Storage(size, "mask", 1),)

    def scores(
        self, q: Tensor, k: Tensor, *, heads: int, key_dim: int, window: int | None, chunk: int | None
    ) -> Tensor:
        """q·kᵀ written out: (B·h·T, S); keeps q and k."""
        work = self.work
        rows = work.sequences * heads * work.new
        out = self.new(rows, work.context, "h·S", q.dtype, q.grad or k.grad)
        out.storage.units = heads * work.context
        record = self.add_record("scores", (q, k), out, (q, k))
        per_pair = 2 * heads * key_dim * work.sequences
        record.forward_flops = per_pair * work.pairs(window, chunk)
        record.forward_flops_full = per_pair * work.pairs_full()
        record.input_grad_flops = 2 * record.forward_flops if out.grad else 0
        return out

    def mix(
        self,
        p: Tensor,
        v: Tensor,
        *,
        heads: int,
        value_dim: int,
        symbol: str,
        window: int | None,
        chunk: int | None,
    ) -> Tensor:
        """p·v, the probabilities times the values; keeps both."""
        work = self.work
        out = self.new(work.tokens, heads * value_dim, symbol, v.dtype, p.grad or v.grad)
        record = self.add_record("mix", (p, v), out, (p, v))
        per_pair = 2 * heads * value_dim * work.sequences
        record.forward_flops = per_pair * work.pairs(window, chunk)
        record.forward_flops_full = per_pair * work.pairs_full()
        record.input_grad_flops = 2 * record.forward_flops if out.grad else 0
        return out

    def recomputed_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        heads: int,
        head_dim: int,
        value_dim: int | None = None,
        **reach: Any,
    ) -> Tensor:
        """The written-out attention whose scores are made again in backward: keeps q, k, v (arXiv 2205.05198)."""
        work = self.work
        value_dim = head_dim if value_dim is None else value_dim
        symbol = q.symbol if value_dim == head_dim else "h·d_v"
        out = self.new(work.tokens, heads * value_dim, symbol, q.dtype, q.grad or k.grad or v.grad)
        record = self.add_record("attention_recomputed", (q, k, v), out, (q, k, v))
        per_pair = 2 * heads * (head_dim + value_dim) * work.sequences
        record.forward_flops = per_pair * work.pairs(**reach)
        record.forward_flops_full = per_pair * work.pairs_full()
        scores = work.sequences * heads * work.pairs_full()
        record.forward_temporary = scores * 8  # scores, fp32 softmax, its 16-bit copy
        if out.grad:
            record.input_grad_flops = 2 * record.forward_flops
            record.backward_temporary = scores * 14
        return out

    # -- elementwise ---------------------------------------------------------------------------
    def pointwise(self, kind: str, x: Tensor) -> Tensor:
        """An elementwise function of one tensor; what it keeps depends on its derivative."""
        out = self._like(x)
        saved: tuple[Tensor, ...] = ()
        if kind in KEEPS_INPUT:
            saved = (x,)
        elif kind in KEEPS_OUTPUT:
            saved = (out,)
        elif kind == "gelu_new":  # written out in Python: x³, tanh, and both factors of the last product
            saved = (x, self._like(x), self._like(x), self._like(x))
        elif kind == "square":
            saved = (x,)
        record = self.add_record(kind, (x,), out, saved)
        if kind == "gelu_new":
            record.backward_temporary = x.bytes  # 3·x² beside the gradients of both factors
        return out

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """a ⊙ b: keeps each factor whose partner needs a gradient; a narrow factor is broadcast."""
        wide = a if _at_least(a, b) else b
        out = self.new(wide.rows, wide.width, wide.symbol, a.dtype, a.grad or b.grad)
        saved = [t for t, partner in ((a, b), (b, a)) if partner.grad]
        self.add_record("multiply", (a, b), out, saved)
        return out

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b: keeps nothing; the wider dtype wins."""
        dtype = a.dtype if DTYPE_BYTES[a.dtype] >= DTYPE_BYTES[b.dtype] else b.dtype
        out = self.new(a.rows, a.width, a.symbol, dtype, a.grad or b.grad)
        self.add_record("add", (a, b), out)
        return out

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """A copy in another dtype; the same tensor if it has that dtype already."""
        if x.dtype == dtype:
            return x
        out = self.new(x.rows, x.width, x.symbol, dtype, x.grad)
        self.add_record("cast", (x,), out)
        return out

    def copy(self, x: Tensor, width: Any = None, symbol: str | None = None) -> Tensor:
        """A copy in another layout or repeated to another width (`repeat_kv`, `.contiguous()`)."""
        out = self.new(x.rows, x.width if width is None else width, symbol or x.symbol, x.dtype, x.grad)
        self.add_record("copy", (x,), out)
        return out

    def rotary(self, x: Tensor, table: Tensor | None) -> Tensor:
        """x·cos + rotate(x)·sin: linear in x, so only the tables are kept, and these are shared."""
        out = self._like(x)
        self.add_record("rotary", (x,), out, () if table is None else (table,))
        return out

    def dropout(self, x: Tensor) -> Tensor:
        """Keeps a mask of one byte per element; on the CPU the mask has the tensor's dtype."""
        out = self._like(x)
        mask = self.new(x.rows, x.width, x.symbol, x.dtype if self.execution.device == "cpu" else "bool")
        self.add_record("dropout", (x,), out, (mask,))
        return out

    def softmax(self, x: Tensor, dtype: str | None = None) -> Tensor:
        """Keeps its output; in another dtype, of a copy of its input."""
        x = self.cast(x, dtype or x.dtype)
        out = self._like(x)
        self.add_record("softmax", (x,), out, (out,))
        return out

    def masked(self, x: Tensor, mask: Tensor) -> Tensor:
        """x with a boolean mask filled in; keeps the mask."""
        out = self._like(x)
        self.add_record("masked", (x,), out, (mask,))
        return out

    # -- normalisation -------------------------------------------------------------------------
    def norm(self, x: Tensor, *, statistics: int, numel: int, groups: int = 1) -> Tensor:
        """A norm as one kernel: keeps its input and `statistics` fp32 numbers per normalised row.

        On the CPU the statistics have the input's dtype.
        """
        out = self.new(x.rows, x.width, x.symbol, x.dtype, x.grad or (self.full and numel > 0))
        stats = self.new(
            x.rows, statistics * groups, "n", x.dtype if self.execution.device == "cpu" else "fp32"
        )
        stats.storage.units = statistics * groups
        record = self.add_record("norm", (x,), out, (x, stats))
        record.touched = numel
        if self.full and numel:
            record.weight_grad_bytes = numel * self.grad_bytes
        return out

    def scale_by_weight(self, x: Tensor, numel: int) -> Tensor:
        """w ⊙ x with a parameter: keeps x if the parameter trains."""
        out = self.new(x.rows, x.width, x.symbol, x.dtype, x.grad or self.full)
        record = self.add_record("weight", (x,), out, (x,) if self.full else ())
        record.touched = numel
        if self.full:
            record.weight_grad_bytes = numel * self.grad_bytes
            record.backward_temporary = x.bytes  # grad ⊙ x before it is summed over the rows
        return out

    def mean_square_root(self, x: Tensor, groups: int = 1) -> Tensor:
        """rsqrt(mean(x²) + ε): keeps x (the square) and the result."""
        out = self.new(x.rows, groups, "n", x.dtype, x.grad)
        out.storage.units = groups
        square = x.bytes  # x² lives until it is averaged
        record = self.add_record("rsqrt", (x,), out, (x, out))
        record.forward_temporary = square
        record.backward_temporary = 3 * square  # the mean's gradient in full, 2·x, and their product
        return out

    # -- beginning and end ---------------------------------------------------------------------
    def embedding(self, ids: Tensor, width: int, symbol: str, numel: int, *, rows: Any = None) -> Tensor:
        """A look-up, no matrix product: keeps the indices; its weight gradient is dense."""
        out = self.new(ids.rows if rows is None else rows, width, symbol, self.dtype, self.full)
        record = self.add_record("embedding", (ids,), out, (ids,))
        if self.full:
            record.weight_grad_bytes = numel * self.grad_bytes
        return out

    # -- mixture of experts --------------------------------------------------------------------
    def route(self, x: Tensor, scores: Tensor, per_token: int) -> Tensor:
        """Gather each token once per chosen expert: (k·B·T, d), a copy; keeps the indices."""
        indices = self.new(x.rows, per_token, "k", "int64")
        out = self.new(x.rows * per_token, x.width, x.symbol, x.dtype, x.grad)
        out.storage.units = per_token * x.width
        out.storage.symbol = f"k·{x.symbol}"
        self.add_record("route", (x, scores), out, (indices,))
        return out

    def combine(self, x: Tensor, scores: Tensor, per_token: int) -> Tensor:
        """Weigh each expert's output and add them up per token; keeps outputs and weights."""
        weighted = self.new(x.rows, x.width, x.symbol, x.dtype, x.grad or scores.grad)
        saved = [t for t, partner in ((x, scores), (scores, x)) if partner.grad]
        self.add_record("multiply", (x, scores), weighted, saved)
        out = self.new(x.rows // per_token, x.width, x.symbol, x.dtype, weighted.grad)
        self.add_record("combine", (weighted,), out)
        return out

    def _like(self, x: Tensor, dtype: str | None = None) -> Tensor:
        out = self.new(x.rows, x.width, x.symbol, dtype or x.dtype, x.grad)
        out.storage.units = x.storage.units if x.symbol == x.storage.symbol else out.storage.units
        return out


def _at_least(a: Tensor, b: Tensor) -> bool:
    """Whether `a` is the wider of two factors (widths are model sizes, never arrays)."""
    return bool(a.width >= b.width) if not hasattr(a.width, "shape") else True

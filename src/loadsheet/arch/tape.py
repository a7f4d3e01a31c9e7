"""Abstract tensors, the tape on which one walk over a model is recorded, and its replay.

A `Tensor` has a size, a dtype and a `Storage`; views share their storage. Ops (`ops.py`) append a
`Record` each. Everything is read off the tape: the bytes that autograd keeps (each storage once),
FLOPs, and the highest point of live memory while the records are replayed forward, then backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from loadsheet.arch.work import DTYPE_BYTES, Adapter, Execution, Work
from loadsheet.units import largest


class Storage:
    """A piece of memory; several tensors (views) may share it.

    `symbol` names its width in formulas ("d", "f", "h·S"); `units` is that width as a number.
    `outside` marks what the taped part did not allocate itself (tables shared by all blocks).
    """

    __slots__ = ("bytes", "outside", "symbol", "units")

    def __init__(self, size: Any, symbol: str, units: Any, outside: bool = False) -> None:
        self.bytes = size
        self.symbol = symbol
        self.units = units
        self.outside = outside


class Tensor:
    """An abstract tensor of shape (rows, width): rows usually B·T, width a model size."""

    __slots__ = ("dtype", "grad", "rows", "storage", "symbol", "width")

    def __init__(self, rows: Any, width: Any, symbol: str, dtype: str, grad: bool, storage: Storage) -> None:
        self.rows = rows
        self.width = width
        self.symbol = symbol
        self.dtype = dtype
        self.grad = grad
        self.storage = storage

    @property
    def bytes(self) -> Any:
        """rows · width · bytes per element (of this view; its storage may be larger)."""
        return self.rows * self.width * DTYPE_BYTES[self.dtype]


class Record:
    """One primitive operation as it was carried out."""

    __slots__ = (
        "alive",
        "backward_temporary",
        "forward_flops",
        "forward_flops_full",
        "forward_temporary",
        "held",
        "input_grad_flops",
        "inputs",
        "op",
        "output",
        "saved",
        "touched",
        "weight_grad_bytes",
        "weight_grad_flops",
    )

    def __init__(
        self, op: str, inputs: tuple[Tensor, ...], output: Tensor, saved: tuple[Storage, ...]
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.output = output
        self.saved = saved
        self.held: tuple[
            Storage, ...
        ] = ()  # kept by the program, not by autograd (a model's returned logits)
        self.alive: tuple[Storage, ...] = ()  # what a name still holds at this point of forward
        self.forward_flops: Any = 0  # model FLOPs, causal attention counted as needed
        self.forward_flops_full: Any = 0  # the same with full attention
        self.input_grad_flops: Any = 0
        self.weight_grad_flops: Any = 0
        self.forward_temporary: Any = 0
        self.backward_temporary: Any = 0
        self.weight_grad_bytes: Any = 0
        self.touched: Any = 0  # bytes of parameters read


class _Gradient:
    """The gradient of one storage, or of several that share it."""

    __slots__ = ("bytes", "readers")

    def __init__(self, size: Any) -> None:
        self.bytes = size
        self.readers = 1


def _passes(record: Record, tensor: Tensor) -> bool:
    """Whether an input's gradient is the output's own: a term of a sum of the same dtype, whole storages."""
    return (
        record.op == "add"
        and tensor.dtype == record.output.dtype
        and tensor.symbol == tensor.storage.symbol
        and record.output.symbol == record.output.storage.symbol
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """What one taped part (a block, or the head with the loss) needs.

    saved           bytes kept for backward that the part allocated itself and backward frees again
    held            bytes that the training program keeps, until the step ends (returned logits, inputs of
                    quantised products); kept for backward or not, they are not in `saved`
    saved_by        (symbol, width, bytes) of the same, summed by symbol, in order of appearance
    shared          storages kept for backward that the part did not allocate: counted once per model
    forward_peak    highest live bytes of forward, saved ones included
    backward_peak   highest live bytes of backward: saved, gradients of activations, temporaries and,
                    unless gradients live all the time, the weight gradients made so far
    """

    saved: Any
    held: Any
    saved_by: tuple[tuple[str, Any, Any], ...]
    shared: tuple[Storage, ...]
    forward_peak: Any
    backward_peak: Any
    forward_flops: Any
    forward_flops_full: Any
    recomputed_flops: Any  # of ops that selective recompute carries out again in backward
    input_grad_flops: Any
    input_grad_flops_full: Any  # the same with full attention
    weight_grad_flops: Any
    weight_grad_bytes: Any
    input_bytes: Any
    input_kept: Any  # its input's bytes, if backward needs the input itself (part of `saved`)
    copies: Any  # 16-bit copies of fp32 weights among `saved` (autocast)
    masks: Any  # 16-bit attention masks among `saved`
    touched: Any


class Tape:
    """The record of one walk. `training` says whether autograd is on, `full` whether the weights train."""

    def __init__(
        self,
        work: Work,
        execution: Execution,
        *,
        training: bool = True,
        full: bool = True,
        dtype: str = "bf16",
        compute_dtype: str | None = None,
        grad_bytes: float = 2,
        adapter: Adapter | None = None,
        quantised: bool = False,
        dropout: bool = True,
    ) -> None:
        self.work = work
        self.execution = execution
        self.training = training
        self.full = full and training
        self.dtype = dtype  # of parameters and of the residual stream
        self.compute_dtype = compute_dtype or dtype  # of matrix products (differs under autocast)
        self.grad_bytes = grad_bytes
        self.adapter = adapter
        self.quantised = quantised
        self.dropout_on = dropout
        self.records: list[Record] = []
        self.tables: dict[tuple[str, int], Tensor] = {}

    # -- tensors -------------------------------------------------------------------------------
    def new(
        self, rows: Any, width: Any, symbol: str, dtype: str, grad: bool = False, *, outside: bool = False
    ) -> Tensor:
        """A tensor with a storage of its own."""
        storage = Storage(rows * width * DTYPE_BYTES[dtype], symbol, width, outside)
        return Tensor(rows, width, symbol, dtype, grad and self.training, storage)

    def table(self, kind: str, width: int) -> Tensor:
        """A tensor that all blocks share: rotary cos and sin, or the causal mask; made once per walk."""
        key = (kind, width)
        if key not in self.tables:
            if kind == "rotary":
                made = self.new(self.work.new, 2 * width, "d_h", self.dtype, outside=True)
            else:
                made = self.new(self.work.tokens, self.work.context, "S", self.compute_dtype, outside=True)
            self.tables[key] = made
        return self.tables[key]

    def view(self, x: Tensor, width: Any, symbol: str, rows: Any = None) -> Tensor:
        """Another shape of the same storage (reshape, transpose, slice)."""
        return Tensor(x.rows if rows is None else rows, width, symbol, x.dtype, x.grad, x.storage)

    def add_record(
        self, op: str, inputs: tuple[Tensor, ...], output: Tensor, saved: Iterable[Tensor] = ()
    ) -> Record:
        """Append an operation; `saved` is dropped when nothing needs a gradient."""
        keeps = tuple(t.storage for t in saved) if output.grad else ()
        record = Record(op, inputs, output, keeps)
        self.records.append(record)
        return record

    # -- replay --------------------------------------------------------------------------------
    def summary(self, source: Tensor | None, output: Tensor, *, grads_alive: bool = False) -> Summary:
        """Replay the records from `source` to `output` and find the peaks of both directions."""
        order: dict[Storage, None] = {}
        shared: dict[Storage, None] = {}
        last_use: dict[Storage, int] = {}
        first_saver: dict[Storage, int] = {}
        flops = full = dgrad = beyond = wgrad = wgrad_bytes = touched = held_bytes = again = 0
        held: dict[Storage, None] = {}
        source_storage = source.storage if source is not None else None
        for index, record in enumerate(self.records):
            for tensor in record.inputs:
                last_use[tensor.storage] = index
            for storage in record.alive:
                last_use[storage] = index
            for storage in record.saved:
                if storage.outside:
                    shared[storage] = None
                else:
                    order[storage] = None
                    first_saver.setdefault(storage, index)
            for storage in record.held:
                if storage not in held:
                    held[storage] = None
                    held_bytes = held_bytes + storage.bytes
            flops = flops + record.forward_flops
            full = full + record.forward_flops_full
            if record.op == "attention_recomputed":
                again = again + record.forward_flops
            dgrad = dgrad + record.input_grad_flops
            if record.output.grad:  # where autograd is off (an indexer), there is no backward of the excess
                beyond = beyond + 2 * (record.forward_flops_full - record.forward_flops)
            wgrad = wgrad + record.weight_grad_flops
            wgrad_bytes = wgrad_bytes + record.weight_grad_bytes
            touched = touched + record.touched
        saved: Any = 0
        groups: dict[str, list[Any]] = {}
        for storage in held:  # what is held is not freed by backward, even if it is needed there
            order.pop(storage, None)
            first_saver.pop(storage, None)
        for storage in order:
            saved = saved + storage.bytes
            group = groups.setdefault(storage.symbol, [storage.units, 0])
            group[1] = group[1] + storage.bytes
        return Summary(
            saved=saved,
            held=held_bytes,
            saved_by=tuple((symbol, units, size) for symbol, (units, size) in groups.items()),
            shared=tuple(shared),
            forward_peak=self._forward_peak({**order, **held}, last_use, source_storage, output.storage),
            backward_peak=held_bytes + self._backward_peak(first_saver, saved, output, grads_alive),
            forward_flops=flops,
            forward_flops_full=full,
            recomputed_flops=again,
            input_grad_flops=dgrad,
            input_grad_flops_full=dgrad + beyond,
            weight_grad_flops=wgrad,
            weight_grad_bytes=wgrad_bytes,
            input_bytes=source.bytes if source is not None else 0,
            input_kept=source.bytes if source is not None and source.storage in order else 0,
            copies=groups["copy"][1] if "copy" in groups else 0,
            masks=groups["mask"][1] if "mask" in groups else 0,
            touched=touched,
        )

    def _forward_peak(
        self, saved: dict[Storage, None], last_use: dict[Storage, int], source: Storage | None, end: Storage
    ) -> Any:
        live: Any = source.bytes if source is not None else 0
        peak: Any = live
        seen = {source}
        for index, record in enumerate(self.records):
            out = record.output.storage
            if out not in seen and not out.outside:
                seen.add(out)
                live = live + out.bytes
            for storage in record.saved:  # statistics that only backward reads
                if storage not in seen and not storage.outside:
                    seen.add(storage)
                    live = live + storage.bytes
            peak = largest(peak, live + record.forward_temporary)
            for storage in (*(t.storage for t in record.inputs), *record.alive):
                gone = last_use[storage] == index and storage in seen
                if gone and storage not in saved and storage is not end and storage is not source:
                    live = live - storage.bytes
                    seen.discard(storage)
                    last_use[storage] = -1
        return peak

    def _backward_peak(
        self, first_saver: dict[Storage, int], saved: Any, end: Tensor, grads_alive: bool
    ) -> Any:
        live = saved
        grads: dict[Storage, _Gradient] = {}
        if end.grad:
            grads[end.storage] = _Gradient(end.bytes)
            live = live + end.bytes
        peak: Any = live
        release: dict[int, list[Storage]] = {}
        for storage, index in first_saver.items():
            release.setdefault(index, []).append(storage)
        for index in range(len(self.records) - 1, -1, -1):
            record = self.records[index]
            out = record.output.storage
            if record.output.grad and out in grads:
                accumulated: Any = 0
                for tensor in record.inputs:
                    if not tensor.grad:
                        continue
                    storage = tensor.storage
                    if storage is out:
                        continue  # a view: its gradient is a view too
                    if storage in grads:
                        # computed, then added to the first: into it, or anew if others read that one
                        shared = grads[storage].readers > 1
                        if record.op != "add" or shared:
                            accumulated = accumulated + tensor.bytes
                        if shared:
                            grads[storage].readers -= 1
                            grads[storage] = _Gradient(storage.bytes)
                            live = live + storage.bytes
                    elif _passes(record, tensor):
                        grads[storage] = grads[out]  # a sum hands one and the same gradient to its terms
                        grads[out].readers += 1
                    else:
                        # a part of a larger storage (fused q, k, v) has its gradient there
                        grads[storage] = _Gradient(storage.bytes)
                        live = live + storage.bytes
                now = live + accumulated + record.backward_temporary + record.weight_grad_bytes
                peak = largest(peak, now)
                if not grads_alive:
                    live = live + record.weight_grad_bytes
                if not any(t.storage is out for t in record.inputs):
                    gone = grads.pop(out)
                    gone.readers -= 1
                    if not gone.readers:
                        live = live - gone.bytes
            for storage in release.get(index, ()):
                live = live - storage.bytes
        return peak

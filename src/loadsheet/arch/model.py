"""A model: embedding, runs of equal blocks, final norm, head. One walk writes the tapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from loadsheet.arch import ops_loss
from loadsheet.arch.layers.attention import CacheTensor
from loadsheet.arch.layers.base import Embedding, Layer, Linear, Norm, Parameter, Stem
from loadsheet.arch.layers.tower import Tower
from loadsheet.arch.ops import Ops
from loadsheet.arch.stored import StoredWeights
from loadsheet.arch.tape import Storage, Summary, Tensor
from loadsheet.arch.work import Work


class Block(Layer):
    """One decoder block: a mixer (attention, ...) and an MLP around a residual stream.

    Norms that are given are used where they are given: before (`norm_1`, `norm_2`), after the
    sub-layer and before the addition (`post_1`, `post_2`). `parallel`: attention and MLP read the same
    stream and are added together (GPT-NeoX, Phi, Cohere).
    """

    #: elements of matrices that this block applies and an earlier one owns (Zamba's shared transformer)
    reused_matmul = 0

    def __init__(
        self,
        mixer: Any,
        mlp: Any,
        *,
        norm_1: Norm | None = None,
        norm_2: Norm | None = None,
        post_1: Norm | None = None,
        post_2: Norm | None = None,
        parallel: bool = False,
        dropout: float = 0.0,
        names: tuple[str, str] = ("self_attn", "mlp"),
        norm_names: tuple[str, str, str, str] = (
            "input_layernorm",
            "post_attention_layernorm",
            "post_attention_norm",
            "post_mlp_norm",
        ),
    ) -> None:
        super().__init__()
        self.mixer, self.mlp = self.add(names[0], mixer), self.add(names[1], mlp)
        self.norm_1, self.norm_2 = self.add(norm_names[0], norm_1), self.add(norm_names[1], norm_2)
        self.post_1, self.post_2 = self.add(norm_names[2], post_1), self.add(norm_names[3], post_2)
        self.parallel, self.dropout = parallel, dropout

    def forward(self, x: Tensor, tape: Ops) -> Tensor:
        """(B·T, d) → (B·T, d)."""
        normed = self._norm(self.norm_1, x, tape)
        mixed = self._after(self.mixer.forward(normed, tape), self.post_1, tape)
        if self.mlp is None:
            return tape.add(x, mixed)
        if self.parallel:
            fed = self._norm(self.norm_2, x, tape) if self.norm_2 is not None else normed
            return tape.add(tape.add(self._after(self.mlp.forward(fed, tape), self.post_2, tape), mixed), x)
        x = tape.add(x, mixed)
        fed = self._norm(self.norm_2, x, tape)
        return tape.add(x, self._after(self.mlp.forward(fed, tape), self.post_2, tape))

    def _norm(self, norm: Norm | None, x: Tensor, tape: Ops) -> Tensor:
        return x if norm is None else norm.forward(x, tape)

    def _after(self, y: Tensor, norm: Norm | None, tape: Ops) -> Tensor:
        if norm is not None:
            y = norm.forward(y, tape)
        return tape.dropout(y) if self.dropout > 0 and tape.dropout_on and tape.training else y

    def cache(self, work: Work) -> tuple[CacheTensor, ...]:
        """What this block keeps per sequence while generating."""
        return self.mixer.cache(work) if hasattr(self.mixer, "cache") else ()


@dataclass(frozen=True, slots=True)
class Pass:
    """How often the blocks of one run are passed, where that is not once each: layers that are looped.

    `times` counts all of its blocks together (a run of 4 blocks, looped 3 times: 12); `grad` says whether
    autograd is on; `cached` is how many of these passes keep a cache of their own (None: all).
    """

    run: int
    times: int
    grad: bool = True
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class Taped:
    """The summaries of one walk: what lies before the blocks, each run of equal blocks, the end."""

    before: Summary
    runs: tuple[tuple[Summary, int], ...]
    after: Summary
    tables: tuple[Storage, ...]
    stream_bytes: Any  # the residual stream between two blocks: B·T·d


@dataclass(eq=False)
class Model:
    """An architecture with its sizes.

    `runs`: (block, count) in order. `prefix` is where blocks stand in the checkpoint
    ("model.layers"). `symbols` gives the letters used in formulas (d, q, kv, f, h, ...) their values.
    """

    name: str
    model_type: str
    hidden_size: int
    vocab_size: int
    max_length: int | None
    embedding: Embedding
    embedding_name: str
    runs: tuple[tuple[Block, int], ...]
    final_norm: Norm | None
    final_norm_name: str
    head: Linear
    head_name: str
    tied: bool
    prefix: str = "model.layers"
    logit_softcap: bool = False  # a tanh squeezes the logits (Gemma)
    softcap_in_fp32: bool = False  # of a copy of them in fp32 (Beam)
    checkpoint_keeps_mask: bool = False  # blocks take the mask by position: checkpointing keeps it
    extras: tuple[tuple[str, Layer], ...] = ()  # position embeddings, projections, embedding norms
    symbols: dict[str, int] | None = None
    config: dict[str, Any] | None = None
    defaulted: tuple[str, ...] = ()
    stored: StoredWeights | None = None
    source: str = ""
    published_dtype: str = "bf16"
    order: tuple[int, ...] | None = None  # run index of each layer, where equal blocks are not adjacent
    layer_names: tuple[str, ...] | None = None  # of each layer, where they do not stand in one list
    passes: tuple[Pass, ...] | None = None  # in the order of the walk; None: every block once

    # -- parameters ----------------------------------------------------------------------------
    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return sum(count for _, count in self.runs)

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter with its name and shape in the checkpoint; a tied head is not repeated."""
        yield from self.embedding.parameters(f"{self.embedding_name}.")
        for name, layer in self.extras:
            yield from layer.parameters(f"{name}." if name else "")
        blocks = [block for block, _ in self.runs]
        order = self.order or tuple(i for i, (_, count) in enumerate(self.runs) for _ in range(count))
        for index, run in enumerate(order):
            name = self.layer_names[index] if self.layer_names else f"{self.prefix}.{index}"
            yield from blocks[run].parameters(f"{name}.")
        if self.final_norm is not None:
            yield from self.final_norm.parameters(f"{self.final_norm_name}.")
        yield from self._head_parameters()

    def _head_parameters(self) -> Iterator[Parameter]:
        for p in self.head.parameters(f"{self.head_name}."):
            if not (self.tied and p.name.endswith("weight")):
                yield p

    def _passes(self) -> tuple[Pass, ...]:
        return self.passes or tuple(Pass(i, count) for i, (_, count) in enumerate(self.runs))

    def _sum(self, value: Callable[[Parameter], int], *, looped: bool = False) -> int:
        total = sum(value(p) for p in self.embedding.parameters())
        total += sum(times * value(p) for _, layer in self.extras for p, times in layer.counted())
        counts = [count for _, count in self.runs]
        if looped and self.passes:
            counts = [sum(p.times for p in self.passes if p.run == i) for i in range(len(self.runs))]
        for (block, _), count in zip(self.runs, counts, strict=True):
            total += count * sum(value(p) for p in block.parameters())
        if self.final_norm is not None:
            total += sum(value(p) for p in self.final_norm.parameters())
        return total + sum(value(p) for p in self._head_parameters())

    @cached_property
    def params(self) -> int:
        """Exact number of parameters, a tied head counted once."""
        return self._sum(lambda p: p.numel)

    @cached_property
    def active_params(self) -> int:
        """Parameters that one token uses: of routed experts only the chosen ones."""
        return self._sum(lambda p: p.active_numel)

    @cached_property
    def matmul_params(self) -> int:
        """Elements of the matrices that one token is multiplied with (head yes, embedding look-up no).

        A looped layer counts as often as it is passed.
        """
        tied_head = self.head.in_features * self.head.out_features if self.tied else 0
        reused = sum(count * block.reused_matmul for block, count in self.runs)
        return self._sum(lambda p: p.active_numel if p.matmul else 0, looped=True) + tied_head + reused

    @cached_property
    def split(self) -> dict[str, int]:
        """Parameters by part: embedding, attention, mlp, norm, head, other; they add up to `params`."""
        parts: dict[str, int] = {}
        for role in ("embedding", "attention", "mlp", "norm", "head", "other"):
            parts[role] = self._sum(lambda p, role=role: p.numel if p.role == role else 0)  # type: ignore[misc]
        return parts

    def counted_parameters(self) -> Iterator[tuple[Parameter, int]]:
        """(parameter, how many of it): those of equal blocks once with their count, names without prefix."""
        for p in self.embedding.parameters():
            yield p, 1
        for _, layer in self.extras:
            yield from layer.counted()
        for block, count in self.runs:
            for p in block.parameters():
                yield p, count
        if self.final_norm is not None:
            for p in self.final_norm.parameters():
                yield p, 1
        for p in self._head_parameters():
            yield p, 1

    @cached_property
    def tensor_sizes(self) -> dict[int, int]:
        """Elements -> how many tensors of that size, over all parameters."""
        counts: dict[int, int] = {}
        for p, times in self.counted_parameters():
            counts[p.numel] = counts.get(p.numel, 0) + times
        return counts

    @cached_property
    def quantisable_shapes(self) -> tuple[tuple[tuple[int, ...], tuple[int, int] | None, int], ...]:
        """(shape, (active, all) experts or None, how many) of every matrix that weight quantisation replaces."""
        counts: dict[tuple[tuple[int, ...], tuple[int, int] | None], int] = {}
        for block, count in self.runs:
            for p in block.parameters():
                if p.quantise:
                    key = (p.shape, p.active)
                    counts[key] = counts.get(key, 0) + count
        return tuple((shape, active, count) for (shape, active), count in counts.items())

    @cached_property
    def experts(self) -> tuple[int, int] | None:
        """(experts per token, experts) of the mixtures, or None for a dense model."""
        for block, _ in self.runs:
            for p in block.parameters():
                if p.active is not None:
                    return p.active
        return None

    @cached_property
    def looked_up_params(self) -> int:
        """Parameters that no product reads: tables looked up by row (the embedding unless tied), idle towers."""
        total = 0 if self.tied else self.embedding.numel
        parts = (part for _, layer in self.extras for part in layer.parts())
        return total + sum(part.numel for part in parts if isinstance(part, Embedding | Tower))

    def linears(self) -> Iterator[tuple[str, Linear, int]]:
        """(name, layer, how many) of every linear layer inside the blocks."""
        for block, count in self.runs:
            for name, linear in block.linears():
                yield name, linear, count

    def adapter_params(self, rank: int, targets: frozenset[str] | None = None) -> int:
        """Parameters of LoRA adapters: Σ r·(in + out) over the targeted linear layers (arXiv 2106.09685)."""
        return sum(
            count * rank * (linear.in_features + linear.out_features)
            for _, linear, count in self.linears()
            if linear.tag and (targets is None or linear.tag in targets)
        )

    # -- cache ---------------------------------------------------------------------------------
    def cache(self, work: Work) -> list[tuple[CacheTensor, int]]:
        """(tensor, number of layers that keep one) for the work at hand."""
        counts = [(p.run, p.times if p.cached is None else p.cached) for p in self._passes()]
        return [(tensor, n) for run, n in counts if n for tensor in self.runs[run][0].cache(work)]

    # -- the walk ------------------------------------------------------------------------------
    def walk(self, make_tape: Callable[[], Ops], *, grads_alive: bool = False, loss: bool = True) -> Taped:
        """Tape the beginning, each distinct block and the end; `make_tape` gives an empty tape each time.

        A block whose input needs no gradient (frozen embedding) differs from its equals after it, so
        it is taped by itself.
        """
        tape = make_tape()
        tables = tape.tables
        work = tape.work
        ids = tape.new(work.tokens, 1, "ids", "int64")
        x = self._embed(ids, tape)
        before = tape.summary(None, x, grads_alive=grads_alive)
        stream = x.bytes
        runs: list[tuple[Summary, int]] = []
        for part in self._passes():
            block, count = self.runs[part.run]
            left = part.times
            while left:
                tape = make_tape()
                tape.tables = tables
                if not part.grad:
                    tape.training = tape.full = False
                source = tape.new(x.rows, x.width, x.symbol, x.dtype, x.grad)
                out = block.forward(source, tape)
                repeat = left if out.grad == source.grad and out.dtype == source.dtype else 1
                summary = tape.summary(source, out, grads_alive=grads_alive)
                if part.times > count:  # the passes of a looped layer add to one and the same gradient
                    once = summary.weight_grad_bytes * count // part.times
                    summary = replace(summary, weight_grad_bytes=once)
                runs.append((summary, repeat))
                left -= repeat
                if not part.grad:  # what comes after it has the gradients that its input had
                    out.grad = x.grad
                x = out
        tape = make_tape()
        tape.tables = tables
        source = tape.new(x.rows, x.width, x.symbol, x.dtype, x.grad)
        out = self._finish(source, tape, loss=loss)
        after = tape.summary(source, out, grads_alive=grads_alive)
        return Taped(before, tuple(runs), after, tuple(t.storage for t in tables.values()), stream)

    def _embed(self, ids: Tensor, tape: Ops) -> Tensor:
        x = self.embedding.forward(ids, tape)
        for _, layer in self.extras:
            if isinstance(layer, Embedding):  # learned positions
                positions = tape.new(tape.work.new, 1, "ids", "int64")
                x = tape.add(x, layer.forward(positions, tape))
            elif isinstance(layer, Norm):
                x = layer.forward(x, tape)
            elif isinstance(layer, Stem):
                x = layer.begin(x, ids, tape)
        return x

    def _finish(self, x: Tensor, tape: Ops, *, loss: bool) -> Tensor:
        for _, layer in self.extras:
            if isinstance(layer, Stem):
                x = layer.end(x, tape)
        if self.final_norm is not None:
            x = self.final_norm.forward(x, tape)
        if not loss:
            return x
        targets = tape.new(x.rows, 1, "ids", "int64", outside=True)
        return ops_loss.end(
            tape, x, self.head, targets, softcap=self.logit_softcap, in_fp32=self.softcap_in_fp32
        )

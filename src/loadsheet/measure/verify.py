"""Ours beside PyTorch's: parameters, FLOPs, bytes kept for backward, peak of a training step, cache.

Parameters are compared on the real sizes, built on the meta device. FLOPs, kept bytes, peak and cache
are compared with real CPU tensors on a small model of the same structure with random weights, since
fake tensors count what a real run does not make (whole masks, repeated keys).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from loadsheet.arch.families import build
from loadsheet.arch.model import Model, Taped
from loadsheet.arch.ops import Ops
from loadsheet.arch.work import DTYPE_BYTES, Execution, Work
from loadsheet.compute.flops import step_flops
from loadsheet.errors import LoadsheetError, one_line
from loadsheet.measure import torch_or_error
from loadsheet.measure.small import shrink
from loadsheet.memory.training import training_memory
from loadsheet.recipe import Training

LENGTHS, DEPTHS, BATCH = (256, 384), (1, 2), 2
MOST = 20_000_000  # parameters of a model that is run here
CPU = "on the CPU: "
SMALL = "FLOPs, kept bytes, peak and cache"


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison; `limit` is the relative difference allowed (0: equal).

    Without numbers it could not be looked at, for the `reason`; unless there is nothing to look at (`absent`).
    """

    what: str
    ours: float | None
    theirs: float | None
    limit: float | None = 0.0
    reason: str = ""
    absent: bool = False

    @property
    def difference(self) -> float | None:
        """(ours - theirs) / theirs."""
        if self.ours is None or self.theirs is None:
            return None
        if not self.theirs:
            return 0.0 if not self.ours else float("inf")
        return self.ours / self.theirs - 1

    @property
    def ok(self) -> bool | None:
        """Whether it is within the limit; None if it could not be looked at or there is nothing to look at."""
        if self.difference is None or self.limit is None:
            return None
        return abs(self.difference) <= self.limit

    @property
    def unseen(self) -> bool:
        """Whether it could not be looked at."""
        return self.ok is None and not self.absent

    def to_json(self) -> dict[str, Any]:
        """What, ours, theirs, difference, limit, ok, reason."""
        return {
            "what": self.what, "ours": self.ours, "pytorch": self.theirs, "difference": self.difference,
            "limit": self.limit, "ok": self.ok, "reason": self.reason,
        }  # fmt: skip


def transformers_or_error() -> Any:
    """The transformers module; LoadsheetError with the way to get it if it is not installed."""
    torch_or_error()
    try:
        import transformers
    except ImportError:
        raise LoadsheetError("verify: transformers is not installed", "pip install 'loadsheet[hf]'") from None
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call, unused-ignore]
    return transformers


def real_model(
    config: dict[str, Any],
    *,
    device: str = "meta",
    dtype: str = "float32",
    attention: str = "sdpa",
    experts: str | None = None,
) -> Any:
    """transformers' model of a config, never with remote code; LoadsheetError in one line if it refuses."""
    transformers, torch = transformers_or_error(), torch_or_error()
    plain = {
        k: v
        for k, v in config.items()
        if k not in ("model_type", "_name", "dtype", "torch_dtype", "auto_map")
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = transformers.AutoConfig.for_model(config["model_type"], **{"pad_token_id": None, **plain})
            made._attn_implementation = attention
            made._experts_implementation = experts
            torch.manual_seed(0)
            with torch.device(device):
                return transformers.AutoModelForCausalLM.from_config(made, dtype=getattr(torch, dtype))
    except Exception as error:  # whatever the library says of this config, one line of it
        raise LoadsheetError(
            f"verify: transformers {transformers.__version__} cannot build {config['model_type']!r:.40} "
            f"({attention}): {one_line(str(error))[:200]}"
        ) from None


def compare_parameters(model: Model) -> list[Line]:
    """By part and in all, by name and shape, on the real sizes."""
    built = real_model(model.config or {}, attention="eager")  # the same parameters, and every model has it
    theirs = {n: tuple(p.shape) for n, p in built.named_parameters()}
    ours = {p.name: p for p in model.parameters()}
    lines = []
    for part, count in model.split.items():
        names = [n for n, p in ours.items() if p.role == part]
        found = sum(_numel(theirs[n]) for n in names if n in theirs)
        lines.append(Line(f"parameters, {part}", count, found))
    different = [n for n in theirs if n not in ours or ours[n].shape != theirs[n]]
    different += [n for n in ours if n not in theirs]
    reason = f"differ: {', '.join(different[:3])}" if different else "every name and shape equal"
    lines.append(Line("parameters, total", model.params, sum(map(_numel, theirs.values())), 0.0, reason))
    lines.append(Line("tensors that differ", len(different), 0, 0.0, reason))
    return lines


def _numel(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def tape_of(model: Model, execution: Execution, dtype: str, batch: int, seq: int) -> Taped:
    """Our walk under the same execution."""
    size = 2 if dtype == "bf16" else 4
    return model.walk(lambda: Ops(Work(batch, seq), execution, dtype=dtype, grad_bytes=size))


def kept_of(model: Model, taped: Taped, recompute: bool = False) -> float:
    """Bytes that the tape keeps: the beginning, the blocks (or only their inputs), the end, shared tables once."""
    summaries = [taped.before, taped.after, *(() if recompute else (s for s, _ in taped.runs))]
    shared = {storage: None for s in summaries for storage in s.shared}
    blocks = sum((s.input_bytes if recompute else s.saved) * count for s, count in taped.runs)
    return float(taped.before.saved + taped.after.saved + blocks + sum(s.bytes for s in shared))


def execution_of(attention: str, recompute: str = "none") -> Execution:
    """How transformers' modules run on this CPU: norms and activations written out."""
    return Execution(
        attention="eager" if attention == "eager" else "sdpa", kernels="eager", recompute=recompute,  # type: ignore[arg-type]
        device="cpu", holds_logits=False,
    )  # fmt: skip


#: what transformers says of a model that it has only with attention written out
ONLY_EAGER = "does not support an attention implementation"
#: (attention, dtype) of the small models; the quick set has each value once
WHOLE = (("eager", "fp32"), ("eager", "bf16"), ("sdpa", "fp32"), ("sdpa", "bf16"))
QUICK = (("eager", "fp32"), ("sdpa", "bf16"))
TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16"}


def compare_small(
    model: Model, progress: Callable[[str], None] | None = None, *, quick: bool = False
) -> Iterator[Line]:
    """FLOPs, kept bytes, peak and cache on small models of the same structure.

    What cannot be built or run in that form is a line without numbers, with the reason.
    """
    for attention, dtype in QUICK if quick else WHOLE:
        for depth in DEPTHS:
            lengths = LENGTHS[:1] if quick else LENGTHS
            try:
                yield from _compare_one(model, attention, dtype, depth, lengths, progress)
            except Exception as error:  # the library's own code on a structure that it does not run this way
                reason = f"{type(error).__name__}: {one_line(str(error))[:200]}"
                absent = attention != "eager" and ONLY_EAGER in reason
                yield Line(f"{SMALL}, {attention} {dtype}, L = {depth}", None, None, None, reason, absent)
                break


def _compare_one(
    model: Model,
    attention: str,
    dtype: str,
    depth: int,
    lengths: tuple[int, ...],
    progress: Callable[[str], None] | None,
) -> Iterator[Line]:
    from loadsheet.measure import step

    torch = torch_or_error()
    small = shrink(model.config or {}, depth)
    ours = build(small)
    if ours.params > MOST:
        raise LoadsheetError(f"no small model of this structure: {ours.params:,} parameters are left")
    real = real_model(small, device="cpu", dtype=TORCH_NAMES[dtype], attention=attention).train()
    real.config.use_cache = False
    for seq in lengths:
        label = f"{attention} {dtype}, L = {depth}, T = {seq}"
        if progress is not None:
            progress(label)
        ids = torch.randint(0, ours.vocab_size, (BATCH, seq))
        inputs = {"input_ids": ids, "labels": ids}
        kept = step.kept_bytes(real, inputs).total
        taped = tape_of(ours, execution_of(attention), dtype, BATCH, seq)
        yield Line(f"kept bytes, {label}", kept_of(ours, taped), kept, 0.02, _why(ours, attention))
        if depth == DEPTHS[-1] and seq == LENGTHS[0]:
            yield from _once(ours, real, inputs, label, attention, dtype)


def _why(ours: Model, attention: str) -> str:
    """What is known to differ on this machine."""
    if ours.experts is not None:
        return "routing keeps a few more index tensors than the tape"
    return "" if attention == "eager" else CPU + "one-kernel attention as PyTorch's CPU kernel keeps it"


def _once(ours: Model, real: Any, inputs: Any, label: str, attention: str, dtype: str) -> Iterator[Line]:
    """What need not be repeated over lengths and depths: FLOPs, checkpointing, peak, cache."""
    from loadsheet.measure import step

    seq = inputs["input_ids"].shape[1]
    if dtype == "fp32":
        taped = tape_of(ours, execution_of(attention), dtype, BATCH, seq)
        counted = step_flops(taped, BATCH * seq, "none")
        counting = real
        if ours.experts is not None:  # FlopCounterMode does not see grouped products: expert by expert, then
            counting = real_model(
                ours.config or {}, device="cpu", attention=attention, experts="eager"
            ).train()
        ahead, back, _ = step.flops(counting, inputs)
        full = "attention counted in full"
        yield Line(f"forward FLOPs, {label}", counted.forward_full, ahead, 0.0, full)
        yield Line(f"backward FLOPs, {label}", counted.full - counted.forward_full, back, 0.0, full)
    recipe = Training(
        batch=BATCH,
        seq=seq,
        precision="fp32" if dtype == "fp32" else "pure-bf16",
        optimizer_form="loop",
        stack="hf",
        execution=execution_of(attention),
    )
    peak, _ = step.tracked_peak(real, inputs)
    yield Line(f"peak of a training step, {label}", training_memory(ours, recipe).allocated.mid, peak, 0.05)
    if real.supports_gradient_checkpointing:
        switch = (
            "activation" if hasattr(real, "activation_checkpointing_enable") else "gradient"
        )  # renamed in 5.x
        getattr(real, f"{switch}_checkpointing_enable")(
            **{f"{switch}_checkpointing_kwargs": {"use_reentrant": False}}
        )
        taped = tape_of(ours, execution_of(attention, "full"), dtype, BATCH, seq)
        kept = step.kept_bytes(real, inputs).total
        mine = kept_of(ours, taped, True)
        if attention == "eager" and ours.checkpoint_keeps_mask:
            mine += BATCH * seq * seq * (4 if dtype == "fp32" else 2)
        yield Line(f"kept bytes, checkpointing, {label}", mine, kept, 0.02)
        getattr(real, f"{switch}_checkpointing_disable")()
    yield from _cache(ours, real, inputs, label, dtype, seq)


def _cache(ours: Model, real: Any, inputs: Any, label: str, dtype: str, seq: int) -> Iterator[Line]:
    torch = torch_or_error()
    real.eval()
    try:
        with torch.no_grad():
            found = real(input_ids=inputs["input_ids"], use_cache=True).past_key_values
        theirs = cache_bytes(found)
    except Exception as error:  # a model that keeps its cache in a way of its own
        yield Line(f"cache, {label}", None, None, None, one_line(str(error))[:120])
        real.train()
        return
    real.train()
    size = 2 if dtype == "bf16" else 4
    tensors = ours.cache(Work(BATCH, 1, seq - 1))
    mine = sum(t.elements * (DTYPE_BYTES[t.dtype] if t.dtype else size) * count for t, count in tensors)
    yield Line(f"cache, {label}", mine, theirs, 0.0)


def cache_bytes(cache: Any) -> int:
    """Bytes of all tensors that a transformers cache holds."""
    torch = torch_or_error()
    seen: set[int] = set()
    total = 0
    stack: list[Any] = [cache]
    visited: set[int] = set()
    while stack:
        item = stack.pop()
        if isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            if item.is_floating_point() and storage._cdata not in seen:  # counters of positions are no cache
                seen.add(storage._cdata)
                total += item.numel() * item.element_size()
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
        elif (
            hasattr(item, "__dict__")
            and id(item) not in visited
            and type(item).__module__.startswith("transformers")
        ):
            visited.add(id(item))
            stack.extend(vars(item).values())
    return total


def verify(
    model: Model, progress: Callable[[str], None] | None = None, *, small: bool = True, quick: bool = False
) -> list[Line]:
    """Every comparison for a model; raises LoadsheetError if transformers cannot build it."""
    if model.config is None:
        raise LoadsheetError(
            "verify: got a model without a config, expected one from a preset or a config.json"
        )
    transformers_or_error()
    lines = compare_parameters(model)
    if small:
        lines += compare_small(model, progress, quick=quick)
    return lines

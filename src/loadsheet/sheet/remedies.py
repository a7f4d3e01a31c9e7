"""Changes that make it fit, each found by planning again: what it saves, what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loadsheet.errors import LoadsheetError
from loadsheet.hardware import gpus as all_gpus
from loadsheet.ledger import Estimate
from loadsheet.memory.terms import overhead
from loadsheet.recipe import Recipe, Serving, Training
from loadsheet.sheet.capacity import Probe
from loadsheet.sheet.software import missing
from loadsheet.units import format_bytes

_RANK = {"fits": 0, "tight": 1, "pointer": 2, "does_not_fit": 3}
#: effort of a combination: more than any single change that keeps the task, less than giving the task up
_COMBINED = 50
_GIVES_UP = 100
_WORTH = 0.01  # a change that saves less of the peak is not worth a line


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change: its options, the verdict with it, what it saves and costs."""

    change: str
    verdict: str
    saves_bytes: float
    costs: str
    peak: Estimate | None
    options: tuple[tuple[str, Any], ...] = ()
    effort: int = 0  # how much of the intention it gives up: the order among those that fit

    def to_json(self) -> dict[str, Any]:
        """Change, verdict, bytes saved, costs, the new peak."""
        return {
            "change": self.change,
            "verdict": self.verdict,
            "saves_bytes": self.saves_bytes,
            "costs": self.costs,
            "peak_bytes": None if self.peak is None else self.peak.to_json(),
            "options": dict(self.options),
        }


def remedies(sheet: Any) -> tuple[Remedy, ...]:
    """Single changes, then the smallest combination that keeps the task, then other hardware."""
    probe = Probe(sheet)
    found: list[Remedy] = []
    before = sheet.memory.peak.mid
    for effort, (change, costs, options) in enumerate(_candidates(sheet)):
        try:
            made = probe.recipe(**options)
            if _needs_more(sheet, made):
                continue
            peak = probe.peak_of(made)
        except LoadsheetError:
            continue  # a change that this model cannot take (rank beyond its width, ...)
        weight = effort if set(options) <= _KEEPS else _GIVES_UP + effort
        found.append(
            Remedy(
                change, probe.verdict(peak), before - peak.mid, costs, peak, tuple(options.items()), weight
            )
        )
    useful = [r for r in found if r.saves_bytes >= _WORTH * before or r.verdict == "fits"]
    combined = _combination(sheet, probe, useful, before)
    if combined is not None:
        useful.append(combined)
    elif not any(r.verdict == "fits" for r in useful):
        useful += _last_resorts(sheet, probe, before)
    return tuple(sorted([*useful, *_hardware(sheet)], key=lambda r: (_RANK[r.verdict], r.effort)))


def _needs_more(sheet: Any, made: Recipe) -> bool:
    """Whether a changed recipe needs software that the hardware is not known to have, and the sheet's own does not."""
    return len(missing(sheet.gpu, made)) > len(missing(sheet.gpu, sheet.recipe))


def _candidates(sheet: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    r = sheet.recipe
    if isinstance(r, Training):
        yield from _training_candidates(sheet, r)
    else:
        yield from _serving_candidates(r)


def _training_candidates(sheet: Any, r: Training) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if r.batch > 1:
        rounds = r.batch * r.accumulation
        yield (
            f"--batch 1 --accumulation {rounds}",
            "the same step from smaller, less efficient pieces",
            {"batch": 1, "accumulation": rounds},
        )
    if r.execution.loss != "fused":
        yield "--loss fused", "a fused loss kernel (Liger)", {"loss": "fused"}
    if r.execution.recompute != "full":
        extra = _recompute_cost(sheet)
        yield "--recompute full", f"each block's forward again: {extra:+.0%} FLOPs", {"recompute": "full"}
    if r.optimizer in ("adam", "adamw"):
        yield "--optimizer adamw-8bit", "optimizer states in 8 bits", {"optimizer": "adamw-8bit"}
    if r.task == "train" and r.precision not in ("pure-bf16",):
        yield (
            "--precision pure-bf16",
            "no fp32 copy: small updates are rounded away",
            {"precision": "pure-bf16"},
        )
    if r.seq > 1024:
        yield f"--seq {r.seq // 2}", "half the context", {"seq": r.seq // 2}
    if r.task == "train":
        yield _adapter(sheet, "lora")
    if r.task in ("train", "lora"):
        yield _adapter(sheet, "qlora")


def _adapter(sheet: Any, task: str) -> tuple[str, str, dict[str, Any]]:
    options: dict[str, Any] = {"task": task}
    trained = sheet.model.adapter_params(sheet.recipe.rank, sheet.recipe.targets)
    share = trained / sheet.model.params
    costs = f"trains {share:.2%} of the parameters"
    if task == "qlora":
        costs += ", the rest frozen in 4 bits"
    return f"--task {task} --rank {sheet.recipe.rank}", costs, options


def _recompute_cost(sheet: Any) -> float:
    """FLOPs of the blocks' forward over all model FLOPs of a step."""
    flops = sheet.compute
    forward = next(i.amount for i in flops.items if i.name == "forward")
    total = sum(i.amount for i in flops.items)
    head = 2 * sheet.model.head.in_features * sheet.model.vocab_size * sheet.recipe.batch * sheet.recipe.seq
    return float((forward - head) / total)


def _serving_candidates(r: Serving) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if r.weights in ("fp32", "bf16", "fp16"):
        yield "--weights fp8", "weights in 8 bits", {"weights": "fp8"}
        yield "--weights int4", "weights in 4 bits: measure the quality", {"weights": "int4"}
    elif r.weights in ("fp8", "int8"):
        yield "--weights int4", "weights in 4 bits: measure the quality", {"weights": "int4"}
    if r.kv in ("bf16", "fp16", "fp32"):
        yield "--kv fp8", "cache in 8 bits", {"kv": "fp8"}
        if r.weights in ("fp32", "bf16", "fp16"):
            yield "--weights int4 --kv fp8", "both", {"weights": "int4", "kv": "fp8"}
    if r.batch > 1:
        yield f"--batch {max(r.batch // 2, 1)}", "half the requests at once", {"batch": max(r.batch // 2, 1)}
    if r.seq > 1024:
        yield f"--seq {r.seq // 2}", "half the context", {"seq": r.seq // 2}


#: changes that keep what is trained or served, the number of tokens and the precision of the weights trained
_KEEPS = frozenset({"batch", "accumulation", "loss", "recompute", "optimizer", "weights", "kv"})


def _combination(sheet: Any, probe: Probe, found: list[Remedy], before: float) -> Remedy | None:
    """Changes that keep the task, added one by one, the cheapest first, until it fits; None if one alone does."""
    keeping = [r for r in found if set(dict(r.options)) <= _KEEPS]
    if any(r.verdict == "fits" for r in keeping):
        return None
    chosen: list[Remedy] = []
    for remedy in keeping:
        if not any(key in dict(c.options) for c in chosen for key in dict(remedy.options)):
            chosen.append(remedy)
            if len(chosen) > 1 and probe.verdict(probe.peak(**_together(chosen))) == "fits":
                break
    else:
        return None
    for remedy in tuple(chosen):  # leave out what the others make needless
        fewer = [c for c in chosen if c is not remedy]
        if len(fewer) > 1 and probe.verdict(probe.peak(**_together(fewer))) == "fits":
            chosen = fewer
    options = _together(chosen)
    peak = probe.peak(**options)
    return Remedy(
        " ".join(c.change for c in chosen),
        "fits",
        before - peak.mid,
        "all of these together",
        peak,
        tuple(options.items()),
        _COMBINED,
    )


def _last_resorts(sheet: Any, probe: Probe, before: float) -> list[Remedy]:
    """Where no single change and no combination that keeps the task suffices: all that helps, then less context."""
    r = sheet.recipe
    out = []
    if isinstance(r, Training):
        tasks = {"train": ("lora", "qlora"), "lora": ("lora", "qlora"), "qlora": ("qlora",)}[r.task]
        starts: list[dict[str, Any]] = [
            {
                "task": task,
                "recompute": "full",
                "loss": "fused",
                "batch": 1,
                "accumulation": r.batch * r.accumulation,
            }
            for task in tasks
        ]
    else:
        starts = [{"weights": "int4", "kv": "fp8", "batch": 1}]
    for start in starts:
        seq = r.seq
        while seq >= _SHORTEST:
            options = {
                k: v
                for k, v in start.items()
                if getattr(r, k, None) != v and getattr(r.execution, k, None) != v
            }
            if seq != r.seq:
                options["seq"] = seq
            try:
                made = probe.recipe(**options)
                if _needs_more(sheet, made):
                    break
                peak = probe.peak_of(made)
            except LoadsheetError:
                break
            if probe.verdict(peak) == "fits":
                change = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in options.items())
                costs = (
                    "all of these together"
                    if seq == r.seq
                    else f"all of these, and {seq:,} tokens of context"
                )
                out.append(
                    Remedy(change, "fits", before - peak.mid, costs, peak, tuple(options.items()), _GIVES_UP)
                )
                break
            seq //= 2
    return out


_SHORTEST = 256  # tokens; a shorter context is no fine-tuning


def _together(chosen: list[Remedy]) -> dict[str, Any]:
    return {key: value for remedy in chosen for key, value in remedy.options}


#: what stays through a step and is divided: by ZeRO-3 or FSDP, and in serving by tensor parallelism
_DIVIDED = frozenset(
    {"weights", "master weights", "optimizer states", "frozen weights", "adapter weights", "KV cache"}
)
#: what comes and goes and is divided by ZeRO-3 or FSDP; in serving, all else is
_DIVIDED_MOVING = frozenset(
    {"gradients", "16-bit copies of weights", "8-bit copies of weights", "optimizer temporary"}
)
_HOPELESS = 1 << 20


def _division(sheet: Any, instant: Any) -> tuple[float, float]:
    """(bytes that a split divides, bytes that each GPU has all the same) at one instant, at most.

    Of several GPUs each has NCCL's buffers. Replicas' buckets go, and paged states may stay with the host.
    """
    serving = isinstance(sheet.recipe, Serving)
    staying = moving = gone = 0.0
    for item in instant.tensors.items:
        size = item.estimate.mid
        if item.name in _DIVIDED:
            staying += size
        elif serving or item.name in _DIVIDED_MOVING:
            moving += size
        elif item.name == "DDP buckets":
            gone += size
    gone += sum(i.estimate.high for i in instant.around.items if i.name == "paged optimizer states")
    divided = staying + moving * (1 + overhead("allocator_share").high)
    more = overhead("nccl").high if sheet.gpus == 1 or serving else 0.0
    return divided, instant.total.high + more - gone - divided


def _floor(sheet: Any) -> Remedy | None:
    """The fewest GPUs over which a split could hold it; None if no number could."""
    usable = sheet.memory.usable_bytes
    parts = [_division(sheet, instant) for instant in sheet.memory.instants]
    if sheet.gpu.device != "cuda" or any(each >= usable for _, each in parts):
        return None
    n = max(math.ceil(divided / (usable - each)) for divided, each in parts)
    n = max(n, 2 if sheet.gpus > 1 else 1)
    if not 1 < n < _HOPELESS:
        return None
    states, training = sheet.memory.model_states, isinstance(sheet.recipe, Training)
    how, what = ("ZeRO-3 or FSDP", "model states") if training else ("tensor parallelism", "weights")
    more = (
        "gathered layers and buffers come on top" if training else "the cache and activations are split too"
    )
    return Remedy(
        f"{n} GPUs with {how}",
        "pointer",
        states - states / n if training else max(divided for divided, _ in parts) * (1 - 1 / n),
        f"{what} {format_bytes(states)} / {n} = {format_bytes(states / n)} each; {more}",
        None,
        (),
        60,
    )


def _hardware(sheet: Any) -> list[Remedy]:
    """The floor of splitting it over several GPUs, and the smallest GPU that would hold it as it is."""
    floor = _floor(sheet)
    out = [] if floor is None else [floor]
    peak = sheet.memory.peak
    larger = sorted(
        (g for g in all_gpus() if g.memory_usable_bytes >= peak.high and g.vendor == sheet.gpu.vendor),
        key=lambda g: (g.memory_usable_bytes, g.id),
    )
    for gpu in larger:
        try:
            longer = sheet.compute_on(gpu).step_seconds.mid / sheet.compute.step_seconds.mid
        except LoadsheetError:
            continue  # no rate for this precision
        if out[-1:] and out[-1].verdict == "fits" and longer > 1:
            continue
        costs = f"{format_bytes(gpu.memory_usable_bytes, 1)} usable: holds it as it is"
        if longer >= _SLOWER:
            costs += f", but a step takes {longer:.2g} times as long"
        out.append(Remedy(f"--gpu {gpu.id}", "fits", 0.0, costs, peak, (("gpu", gpu.id),), 60))
        if longer < _MUCH_SLOWER:
            break
    return out


_SLOWER = 1.05  # times as long: less is within what is not known
_MUCH_SLOWER = 2  # then one that is no slower is named as well

"""The compute part of a sheet: FLOPs, time, hours, and what bounds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loadsheet.arch.model import Model, Taped
from loadsheet.arch.ops import Ops
from loadsheet.arch.work import Work
from loadsheet.compute.flops import StepFlops, six_nd, step_flops
from loadsheet.compute.serving import DecodeStep, touched_share
from loadsheet.compute.step import step_time, utilisation
from loadsheet.errors import BadInput
from loadsheet.hardware import Gpu
from loadsheet.ledger import Estimate, Item
from loadsheet.memory.serving import cache_items, touched_bytes
from loadsheet.recipe import Serving, Training, precision, tables


@dataclass(frozen=True, slots=True)
class Compute:
    """Training: one optimizer step on `gpus` GPUs. Serving: one decode step of one replica, and the prefill."""

    flops_per_token: Any
    step_seconds: Estimate
    tokens_per_second: Any
    bound_by: str
    mfu: float | None
    gpu_hours: Estimate | None
    items: tuple[Item, ...]
    peak: float
    peak_dtype: str
    flops_per_step: Any = 0
    flops_per_token_full: Any = 0
    six_nd_per_token: Any = 0
    recomputed_share: Any = 0
    decode: DecodeStep | None = None
    prefill_seconds: Estimate | None = None
    critical_batch: float | None = None
    critical_batch_with_cache: float | None = None
    time_items: tuple[Item, ...] = ()  # workings of the times, in seconds
    notes: tuple[str, ...] = field(default=())
    mfu_basis: str | None = None  # "assumed", "given" or "measured"; None where no MFU is asked for
    not_counted: tuple[str, ...] = ()  # what comes on top of the hours, and of the money that they cost

    def to_json(self) -> dict[str, Any]:
        """The JSON of the design, with the serving figures added where they exist."""
        out: dict[str, Any] = {
            "flops_per_token": self.flops_per_token,
            "flops_per_token_full_attention": self.flops_per_token_full,
            "six_nd_per_token": self.six_nd_per_token,
            "flops_per_step": self.flops_per_step,
            "step_seconds": self.step_seconds.to_json(),
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu,
            "mfu_basis": self.mfu_basis,
            "mfu_source": None if self.mfu is None else self.step_seconds.reason,
            "bound_by": self.bound_by,
            "gpu_hours": None if self.gpu_hours is None else self.gpu_hours.mid,
            "gpu_hours_range": None if self.gpu_hours is None else self.gpu_hours.to_json(),
            "not_counted": list(self.not_counted),
            "peak_flops_per_second": self.peak,
            "peak_dtype": self.peak_dtype,
            "items": [item.to_json("flops") for item in self.items],
        }
        if self.decode is not None:
            d = self.decode
            out["decode"] = {
                "weight_bytes_read": d.weight_bytes, "cache_bytes_read": d.cache_bytes, "flops": d.flops,
                "read_weights_seconds": d.weight_seconds, "read_cache_seconds": d.cache_seconds,
                "compute_seconds": d.math_seconds, "lower_seconds": d.lower, "upper_seconds": d.upper,
                "intensity_flops_per_byte": d.intensity, "machine_flops_per_byte": d.peak / d.bandwidth,
                "critical_batch": self.critical_batch, "critical_batch_with_cache": self.critical_batch_with_cache,
                "weights_only_tokens_per_second": d.batch / d.weight_seconds,
            }  # fmt: skip
            out["prefill_seconds"] = self.prefill_seconds.to_json() if self.prefill_seconds else None
        return out


def find_peak(gpu: Gpu, wanted: str) -> tuple[float, str, tuple[str, ...]]:
    """(FLOP/s, dtype, notes): the dense rate for a dtype, or for the nearest that the GPU has, and says so."""
    for dtype in {"bf16": ("bf16", "fp16", "fp32"), "fp16": ("fp16", "bf16", "fp32"),
                  "fp8": ("fp8", "bf16", "fp16", "fp32")}.get(wanted, (wanted,)):  # fmt: skip
        if dtype in gpu.dtypes:
            note = () if dtype == wanted else (f"{gpu.id} has no {wanted} rate: its {dtype} rate is used",)
            return gpu.peak(dtype), dtype, note
    raise BadInput(f"peak of `{gpu.id}`: got dtype {wanted}, expected one of {', '.join(gpu.dtypes)}")


def training_compute(
    model: Model, recipe: Training, gpu: Gpu, gpus: int, taped: Taped, measured: Estimate | None = None
) -> Compute:
    """FLOPs of the walk; time at the MFU; hours for `tokens`, without communication.

    `measured` is an MFU with its range from runs of the user's own.
    """
    if recipe.execution.fp8 and "fp8" not in gpu.dtypes:
        raise BadInput(
            f"precision: got fp8, expected another on `{gpu.id}`, which has no fp8 rate",
            "`mixed` or `amp` trains there",
        )
    peak, dtype, notes = training_peak(recipe, gpu)
    micro = recipe.batch * recipe.seq
    flops: StepFlops = step_flops(taped, micro, recipe.execution.recompute)
    mfu = utilisation(recipe.mfu) if measured is None else measured
    steps = recipe.accumulation
    seconds = step_time(flops.model * steps, flops.hardware * steps, peak, mfu)
    tokens = micro * steps * gpus
    hours = None
    if recipe.tokens is not None:
        factor = recipe.tokens / tokens * gpus / 3600
        hours = Estimate(seconds.low * factor, seconds.mid * factor, seconds.high * factor, mfu.reason)
    if gpus > 1:
        notes = (*notes, "time without communication: a lower bound on several GPUs")
    return Compute(
        flops_per_token=flops.per_token,
        step_seconds=seconds,
        tokens_per_second=tokens / seconds.mid,
        bound_by="compute",
        mfu=mfu.mid,
        gpu_hours=hours,
        items=flops.items(),
        peak=peak,
        peak_dtype=dtype,
        flops_per_step=flops.model * steps * gpus,
        flops_per_token_full=flops.full / micro,
        six_nd_per_token=six_nd(model.active_params, 1),
        recomputed_share=flops.recomputed / flops.model,
        time_items=(
            Item(
                "one optimizer step",
                seconds,
                "F/(P·MFU)",
                {"F": flops.hardware * steps, "P": peak, "MFU": mfu.mid},
                mfu.reason,
                "assumed" if measured is None else "measured",
            ),
        ),
        notes=notes,
        mfu_basis="measured" if measured is not None else "assumed" if recipe.mfu is None else "given",
        not_counted=("communication",) if gpus > 1 else (),
    )


def training_peak(recipe: Training, gpu: Gpu) -> tuple[float, str, tuple[str, ...]]:
    """(FLOP/s, dtype, notes) that the matrix products of a recipe are measured against."""
    return find_peak(gpu, "fp8" if recipe.execution.fp8 else precision(recipe.precision).compute)


def serving_compute(model: Model, recipe: Serving, gpu: Gpu, gpus: int) -> Compute:
    """Decode: bytes against FLOPs, each at its share of the data sheet's rate; prefill: FLOPs of one prompt.

    `tokens` are those generated: their hours are decode steps with caches of full length, and the prefill
    of their prompts is not in them, as nothing says how many prompts there are.
    """
    wanted = {"fp8": "fp8", "fp32": "fp32", "fp16": "fp16"}.get(recipe.weights, "bf16")
    peak, dtype, notes = find_peak(gpu, wanted)
    batch, seq = recipe.batch, recipe.seq

    def decode_at(sequences: int) -> DecodeStep:
        share = 1.0 if model.experts is None else _share_of(model, sequences)
        work = Work(sequences, 1, seq - 1)
        cache = cache_items(model, work, recipe.kv)
        return DecodeStep(
            touched_bytes(model, recipe, share),
            0 if cache is None else cache.amount,
            _forward(model, work),
            gpu.bandwidth,
            peak,
            sequences,
        )

    step = decode_at(batch)
    efficiency, rate = tables()["efficiency"]["bandwidth"], tables()["efficiency"]["prefill"]

    def at(end: str) -> Any:  # the longer of reading and computing, each at its share of the data sheet
        return max(step.memory_seconds / efficiency[end], step.math_seconds / rate[end])

    bound = "bandwidth" if step.memory_seconds / efficiency["mid"] == at("mid") else "compute"
    seconds = Estimate(
        at("high"), at("mid"), at("low"), (efficiency if bound == "bandwidth" else rate)["source"]
    )
    prompt_flops = _forward(model, Work(1, seq))
    reads = (
        touched_bytes(model, recipe, 1.0 if model.experts is None else _share_of(model, seq)) / gpu.bandwidth
    )
    prefill = Estimate(  # no faster than the weights are read
        max(prompt_flops / peak / rate["high"], reads),
        max(prompt_flops / peak / rate["mid"], reads / efficiency["mid"]),
        max(prompt_flops / peak / rate["low"], reads / efficiency["low"]),
        rate["source"],
    )
    one = decode_at(1)
    # reading = W + B·c, computing = B·f: they meet at B = W / (f - c), if at all
    per_sequence = one.flops / peak - one.cache_bytes / gpu.bandwidth
    weights = touched_bytes(model, recipe, 1.0) / gpu.bandwidth
    crossing = weights / per_sequence if per_sequence > 0 else None
    matmul_seconds = 2 * model.matmul_params / peak
    hours = None
    if recipe.tokens is not None:
        factor = recipe.tokens / batch / 3600
        hours = Estimate(seconds.low * factor, seconds.mid * factor, seconds.high * factor, seconds.reason)
    if gpus > 1:
        notes = (*notes, f"{gpus} independent replicas, each with the whole batch")
    return Compute(
        flops_per_token=step.flops / batch,
        step_seconds=seconds,
        tokens_per_second=batch * gpus / seconds.mid,
        bound_by=bound,
        mfu=None,
        gpu_hours=hours,
        items=(
            Item(
                "one decode step",
                step.flops,
                "2·MACs",
                {"MACs": step.flops / 2},
                "matrix products on the tape",
            ),
        ),
        peak=peak,
        peak_dtype=dtype,
        flops_per_step=step.flops,
        flops_per_token_full=step.flops / batch,
        six_nd_per_token=2 * model.active_params,
        decode=step,
        prefill_seconds=prefill,
        critical_batch=weights / matmul_seconds,
        critical_batch_with_cache=crossing,
        time_items=(
            *_serving_times(step, prefill, prompt_flops, rate["mid"]),
            *_step_times(step, seconds, recipe.tokens),
        ),
        notes=notes,
        not_counted=("prefill",),
    )


def _share_of(model: Model, tokens: int) -> float:
    """Share of the routed experts that so many tokens reach."""
    active, experts = model.experts or (1, 1)
    return float(touched_share(tokens, experts, active))


def _serving_times(step: DecodeStep, prefill: Estimate, prompt_flops: Any, rate: float) -> tuple[Item, ...]:
    """Workings of decode and prefill: bytes over bandwidth, FLOPs over the peak."""
    sheet = "the data sheet's rates"
    return (
        Item(
            "read the weights that a step uses",
            step.weight_seconds,
            "W/BW",
            {"W": step.weight_bytes, "BW": step.bandwidth},
            sheet + "; no table that is only looked up, and of routed experts 1 - (1 - k/E)^B",
        ),
        Item(
            "read the caches",
            step.cache_seconds,
            "C/BW",
            {"C": step.cache_bytes, "BW": step.bandwidth},
            sheet,
        ),
        Item("compute a step", step.math_seconds, "F/P", {"F": step.flops, "P": step.peak}, sheet),
        Item(
            "prefill of one prompt",
            prefill,
            "F/(P·e), or as long as the weights are read",
            {"F": prompt_flops, "P": step.peak, "e": rate},
            prefill.reason,
            "assumed",
        ),
    )


def _step_times(step: DecodeStep, seconds: Estimate, tokens: int | None) -> tuple[Item, ...]:
    """Workings of a step as it is, and of all generated tokens if their number is given."""
    shares = tables()["efficiency"]
    both = {
        "C": step.weight_bytes + step.cache_bytes, "BW": step.bandwidth, "e_m": shares["bandwidth"]["mid"],
        "F": step.flops, "P": step.peak, "e_c": shares["prefill"]["mid"],
    }  # fmt: skip
    items = [Item("a step", seconds, "max(C/(BW·e_m), F/(P·e_c))", both, seconds.reason, "assumed")]
    if tokens is not None:
        items.append(
            Item(
                "all generated tokens",
                seconds * (tokens / step.batch),
                "D/B·t",
                {"D": tokens, "B": step.batch, "t": seconds.mid},
                "steps with caches of full length; the prefill of the prompts is not in it",
                "assumed",
            )
        )
    return tuple(items)


def _forward(model: Model, work: Work) -> Any:
    """FLOPs of one forward: everything on the tape, and the head for the last token of each sequence."""
    taped = model.walk(lambda: Ops(work, Serving().execution, training=False, full=False), loss=False)
    total = sum(summary.forward_flops * count for summary, count in taped.runs)
    return total + 2 * work.sequences * model.head.in_features * model.head.out_features

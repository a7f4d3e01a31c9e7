"""The lecture's tables, computed: what docs/lecture-tables.md calls from its cog blocks (`make docs`).

Each function prints one Markdown table. Figures come from the package's public functions; the only numbers
here are the questions (which models, lengths, batches) and the bit layouts of the number formats.
"""

from __future__ import annotations

from typing import Any

from docs import table
from loadsheet import gpu, model
from loadsheet.arch.model import Model
from loadsheet.compute.flops import attention_flops_per_token, six_nd, step_flops
from loadsheet.compute.serving import DecodeStep, compute_seconds, critical_batch, read_seconds
from loadsheet.compute.step import seconds
from loadsheet.memory import kv_bytes_per_token, serving_memory, training_memory
from loadsheet.memory.serving import touched_bytes
from loadsheet.memory.training import tape_training
from loadsheet.recipe import Serving, Training, bytes_per_parameter, recipe, tables
from loadsheet.sheet.capacity import largest_presets
from loadsheet.units import GIB, KIB, format_bytes, format_params

LLAMAS = ("llama-2-7b", "llama-3-8b", "llama-3-70b")
MODELS = ("gpt2", *LLAMAS)
#: how the lecture rounds the H100
PEAK, BANDWIDTH = 989e12, 3.35e12


def number(value: float, digits: int = 0) -> str:
    """A number with separators."""
    return f"{value:,.{digits}f}"


def gibs(amount: float, digits: int = 2) -> str:
    """Bytes in GiB, without the unit."""
    return number(amount / GIB, digits)


def training(length: int, **options: Any) -> Training:
    """The recipe of a training step with one sequence."""
    made = recipe(task="train", batch=1, seq=length, **options)
    assert isinstance(made, Training)
    return made


def serving(batch: int, length: int, weights: str = "bf16") -> Serving:
    """The recipe of serving some sequences at once."""
    made = recipe(task="serve", batch=batch, seq=length, weights=weights)
    assert isinstance(made, Serving)
    return made


# --- hardware and number formats ----------------------------------------------------------------------------


def gpu_rows(*ids: str) -> None:
    """Peaks, memory and bandwidth of some GPUs, one column each."""
    cards = [gpu(i) for i in ids]
    rows = [
        ["memory, GB as sold", *(str(g.memory_marketed_gb) for g in cards)],
        ["memory that a process sees, GiB", *(gibs(g.memory_usable_bytes, 1) for g in cards)],
        ["bandwidth, TB/s", *(f"{g.bandwidth / 1e12:g}" for g in cards)],
    ]
    for dtype in ("fp32", "tf32", "bf16", "fp16", "fp8", "int8"):
        peaks = [g.peak(dtype) / 1e12 if dtype in g.dtypes else None for g in cards]
        rows.append([f"{dtype}, TFLOP/s dense", *("–" if p is None else f"{p:,.4g}" for p in peaks)])
    ratio = [g.peak("bf16" if "bf16" in g.dtypes else "fp16") / g.bandwidth for g in cards]
    rows.append(["16-bit FLOPs per byte read", *(number(r) for r in ratio)])
    table(["", *(f"`{g.id}`" for g in cards)], rows)


#: exponent and mantissa bits of the floating-point formats
LAYOUT = {"fp32": (8, 23), "fp16": (5, 10), "bf16": (8, 7)}


def number_formats() -> None:
    """Bytes, layout and range of each format, and what Llama 3 8B weighs in it."""
    n = model("llama-3-8b").params
    rows = []
    for name in ("fp32", "bf16", "fp16", "int8", "int4"):
        bits = tables()["formats"][name]["bits"]
        if name in LAYOUT:
            exponent, mantissa = LAYOUT[name]
            largest = (2 - 2.0**-mantissa) * 2.0 ** (2 ** (exponent - 1) - 1)
            layout = [str(exponent), str(mantissa), f"{largest:.5g}"]
        else:
            layout = ["–", "–", str(2 ** (bits - 1) - 1)]
        with_scales = serving_memory(model("llama-3-8b"), serving(1, 1, name))
        rows.append(
            [name, f"{bits / 8:g}", *layout, gibs(n * bits / 8), gibs(with_scales.model_states.estimate.mid)]
        )
    table(
        [
            "format",
            "bytes",
            "exponent bits",
            "mantissa bits",
            "largest",
            "Llama 3 8B, GiB",
            "as it is served",
        ],
        rows,
    )


# --- parameters and states ------------------------------------------------------------------------------------


def parameters() -> None:
    """Exact totals, the rule of thumb, and the share of each part."""
    rows = []
    for name in MODELS:
        m = model(name)
        s = m.symbols or {}
        rule = 12 * s["L"] * s["d"] ** 2 + s["V"] * s["d"]
        parts = [m.split["embedding"] + m.split["head"], m.split["attention"], m.split["mlp"]]
        shares = [f"{part / m.params:.2%}" for part in parts]
        rows.append([name, number(m.params), number(rule), *shares, number(m.split["norm"])])
    table(["model", "parameters", "12·L·d² + V·d", "embedding and head", "attention", "MLP", "norms"], rows)


def bytes_of_states() -> None:
    """Bytes per parameter for precisions and optimizers."""
    rows = []
    for precision, optimizer in (
        ("fp32", "sgd"), ("fp32", "sgd-momentum"), ("fp32", "adamw"), ("mixed", "adamw"), ("megatron", "adamw"),
        ("mixed", "adamw-8bit"), ("pure-bf16", "adamw"),
    ):  # fmt: skip
        parts = bytes_per_parameter(precision, optimizer)
        rows.append(
            [
                f"`{precision}`",
                f"`{optimizer}`",
                *(f"{v:g}" for v in parts.values()),
                f"{sum(parts.values()):g}",
            ]
        )
    table(["`--precision`", "`--optimizer`", "weights", "gradients", "master", "states", "together"], rows)


def states_of_models() -> None:
    """Weights, gradients and the rest of mixed precision with Adam, in GiB."""
    rows = []
    for name in MODELS:
        n = model(name).params
        parts = bytes_per_parameter("mixed", "adamw")
        total = training_memory(model(name), training(1)).model_states.estimate.mid
        fits = "yes" if total <= 80 * GIB else "no"
        rest = parts["master"] + parts["states"]
        rows.append(
            [
                name,
                gibs(parts["weights"] * n),
                gibs(parts["gradients"] * n),
                gibs(rest * n),
                gibs(total),
                fits,
            ]
        )
    table(["model", "weights", "gradients", "master, m, v", "together", "within 80 GiB"], rows)


# --- activations ----------------------------------------------------------------------------------------------


def gpt(width: int, heads: int, layers: int, length: int) -> Model:
    """A GPT of these sizes, with dropout."""
    return model(
        {
            "model_type": "gpt2", "n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": length,
            "vocab_size": 1000,
        }
    )  # fmt: skip


def kept(m: Model, length: int, **options: str) -> float:
    """Bytes that all blocks keep for backward, one sequence."""
    account = training_memory(m, training(length, **options))
    tensors = account.instants[0].tensors
    item = tensors.get("activations") or tensors["block inputs (checkpoints)"]
    return float(item.estimate.mid)


def gpt_blocks() -> None:
    """The block of Korthikanti et al. at five sizes: written out, without scores, recomputed."""
    rows = []
    for name, *sizes in (
        ("GPT-2 small", 768, 12, 12, 1024), ("as Llama 2 7B", 4096, 32, 32, 4096),
        ("as Llama 3 8B", 4096, 32, 32, 8192), ("as Llama 3 70B", 8192, 64, 80, 8192), ("GPT-3", 12288, 96, 96, 2048),
    ):  # fmt: skip
        m, length = gpt(*sizes), sizes[3]
        how = {"stack": "megatron"}
        eager = kept(m, length, attention="eager", **how)
        flash = kept(m, length, **how)
        full = kept(m, length, recompute="full", **how)
        rows.append(
            [
                name,
                number(length),
                gibs(eager / sizes[2], 3),
                gibs(eager),
                f"{1 - flash / eager:.0%}",
                gibs(flash),
                gibs(full),
            ]
        )
    table(
        [
            "block",
            "tokens",
            "a layer, scores written out",
            "all layers",
            "of it scores",
            "without scores",
            "recomputed",
        ],
        rows,
    )


def llama_blocks() -> None:
    """The real models at their own lengths: fused kernels, transformers' modules, recomputed."""
    rows = []
    for name, length in (("llama-2-7b", 4096), ("llama-3-8b", 8192), ("llama-3-70b", 8192)):
        m = model(name)
        sizes = [kept(m, length), kept(m, length, stack="hf"), kept(m, length, stack="hf", attention="eager")]
        rows.append([name, number(length), *map(gibs, sizes), gibs(kept(m, length, recompute="full"))])
    table(
        [
            "model",
            "tokens",
            "`--stack torch`",
            "`--stack hf`",
            "`hf`, `--attention eager`",
            "`--recompute full`",
        ],
        rows,
    )


# --- one GPU, caches ------------------------------------------------------------------------------------------


def one_gpu() -> None:
    """How many parameters 80 GiB hold without activations, and what each use needs per parameter."""
    mixed = sum(bytes_per_parameter("mixed", "adamw").values())
    eight = sum(bytes_per_parameter("mixed", "adamw-8bit").values())
    formats = {name: entry["bits"] / 8 for name, entry in tables()["formats"].items()}
    uses = [
        ("serving, bf16", formats["bf16"]), ("serving, INT8", formats["int8"]), ("serving, INT4", formats["int4"]),
        ("full training, mixed with Adam", mixed), ("full training, 8-bit Adam", eight),
        ("LoRA on bf16, 1 % trained", formats["bf16"] + mixed / 100),
        ("QLoRA on 4 bits, 1 % trained", formats["int4"] + mixed / 100),
    ]  # fmt: skip
    rows = []
    for use, each in uses:
        sizes = [gibs(each * model(name).params, 1) for name in LLAMAS]
        rows.append([use, f"{each:g}", format_params(80 * GIB / each), *sizes])
    table(["use", "bytes per parameter", "80 GiB hold", *(f"{name}, GiB" for name in LLAMAS)], rows)


def one_gpu_presets(gpu_id: str) -> None:
    """The largest preset that really fits, activations, context and allocator included."""
    found = largest_presets(gpu(gpu_id).memory_usable_bytes)
    table(
        ["use", "largest preset", "parameters"],
        [[use, name or "none", format_params(n)] for use, name, n in found],
    )


def caches() -> None:
    """Cache of some models by batch and length."""
    questions = [(1, 2048), (1, 8192), (1, 32768), (8, 4096), (32, 4096), (8, 32768), (1, 131072)]
    rows = []
    for name in ("llama-2-7b", "llama-3-8b", "llama-2-70b"):
        m = model(name)
        each = kv_bytes_per_token(m)
        sizes = []
        for batch, length in questions:
            account = serving_memory(m, serving(batch, length))
            sizes.append(f"{account.instants[0].tensors['KV cache'].estimate.mid / GIB:g}")
        rows.append([name, f"{each / KIB:g} KiB", *sizes])
    table(["model", "per token", *(f"{b} × {t:,}" for b, t in questions)], rows)


# --- FLOPs, time, decode --------------------------------------------------------------------------------------


def flops() -> None:
    """FLOPs per token of the lecture's small GPT, by rule and by count."""
    small = model(
        {
            "model_type": "gpt2", "n_embd": 256, "n_head": 8, "n_layer": 4, "n_positions": 1024, "vocab_size": 1000,
            "resid_pdrop": 0.0, "attn_pdrop": 0.0,
        }
    )  # fmt: skip
    rows = []
    for length in (64, 128, 256, 512):
        counted = step_flops(tape_training(small, training(length)), length, "none")
        everything, matrices = six_nd(small.params, 1), six_nd(small.matmul_params, 1)
        attention = attention_flops_per_token(4, length, 256)
        rows.append(
            [
                number(length), number(everything), number(matrices), number(matrices + attention),
                number(counted.full / length), number(counted.per_token), f"{attention / matrices:.1%}",
                f"{attention / (matrices + attention):.1%}",
            ]
        )  # fmt: skip
    table(
        [
            "T",
            "6·N",
            "6·N_mm",
            "+ 12·L·T·d",
            "counted, full",
            "counted, causal",
            "attention / matrices",
            "attention / total",
        ],
        rows,
    )


def training_time() -> None:
    """GPU hours of published runs by 6·N·D, on H100s at 40 %."""
    rows = []
    for name, tokens in (
        ("gpt2", 10e9),
        ("llama-2-7b", 2e12),
        ("llama-3-8b", 15e12),
        ("llama-3-70b", 15e12),
        ("gpt-3-175b", 300e9),
    ):
        work = six_nd(model(name).params, tokens)
        hours = seconds(work, PEAK, 0.4) / 3600
        rows.append(
            [
                name,
                format_params(tokens),
                f"{work:.3g}",
                number(hours),
                number(hours / 24 / 1024, 2),
                number(2 * hours),
            ]
        )
    table(["model", "tokens", "FLOPs", "H100 hours at 40 %", "days on 1,024", "at 2 per hour"], rows)


def decode() -> None:
    """Reading against computing, Llama 3 8B in bf16 on an H100, by batch; no caches, as in the lecture."""
    m = model("llama-3-8b")
    weights = 2 * m.params
    rows = []
    for batch in (1, 8, 64, 256, 315, 316, 512):
        step = DecodeStep(weights, 0, 2 * m.matmul_params * batch, BANDWIDTH, PEAK, batch)
        times = (step.weight_seconds, step.math_seconds, step.lower)
        rows.append([str(batch), *(number(t * 1e3, 3) for t in times), number(batch / step.lower)])
    table(["batch", "read, ms", "compute, ms", "step, ms", "tokens/s"], rows)


def decode_words() -> None:
    """The same step, counted three ways."""
    m = model("llama-3-8b")
    used = touched_bytes(m, Serving(), 1.0)
    rows = []
    for what, size in (
        ("all weights", 2 * m.params),
        ("what a step reads", used),
        ("the same in INT4", m.params / 2),
    ):
        read = read_seconds(size, BANDWIDTH)
        compute = compute_seconds(m.matmul_params, 1, PEAK)
        meet = critical_batch(size, m.matmul_params, BANDWIDTH, PEAK)
        rows.append(
            [
                what,
                format_bytes(size),
                number(read * 1e3, 2),
                number(compute * 1e6, 2),
                number(1 / read, 1),
                number(meet, 1),
            ]
        )
    table(["counted", "bytes", "read, ms", "compute, µs", "tokens/s", "critical batch"], rows)

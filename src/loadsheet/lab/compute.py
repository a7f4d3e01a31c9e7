"""Experiment 3: FLOPs counted, this machine's rate and MFU, real runs, and decode bound by bandwidth."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch.nn.functional import linear

from loadsheet.arch.families import build
from loadsheet.arch.model import Model
from loadsheet.arch.read import model as find_model
from loadsheet.compute.flops import six_nd
from loadsheet.compute.serving import DecodeStep, compute_seconds, critical_batch, read_seconds
from loadsheet.compute.step import seconds
from loadsheet.hardware import gpu
from loadsheet.lab import closed_form
from loadsheet.lab.described import GPTSizes, LlamaSizes, tiny_gpt, training_flops
from loadsheet.lab.measured import (
    best_seconds,
    counted_flops,
    matmul_rate,
    reproducible,
    step_seconds,
    versions,
)
from loadsheet.lab.models import GPT, Llama
from loadsheet.lab.report import (
    Figure,
    Lecture,
    Report,
    Section,
    Table,
    around,
    between,
    exactly,
    printed,
)

LENGTHS = (64, 128, 256, 512)
WIDTHS = {128: "about 8 %", 256: "about 17 %", 512: "about 33 %"}
BATCH, LENGTH = 8, 128
MFU = 0.4
HOUR, DAY = 3600, 86400
#: preset -> (name, tokens it was trained on: public reports, GPT-2's inferred from the lecture's cost)
RUNS = {
    "gpt2": ("GPT-2 small", 10 * 10**9),
    "llama-2-7b": ("Llama 2 7B", 2 * 10**12),
    "llama-3-8b": ("Llama 3 8B", 15 * 10**12),
    "llama-3-70b": ("Llama 3 70B", 15 * 10**12),
    "gpt-3-175b": ("GPT-3 175B", 300 * 10**9),
}
#: the lecture's example, not a price
PER_HOUR = 2
LAPTOP = 1.5e12  # half of the 3 TFLOP/s that its author measured


def experiment(title: str, *, timing: bool, progress: Callable[[str], None]) -> Report:
    """All of it; without `timing` what depends on the machine's speed is left out."""
    with reproducible():
        progress("FLOPs")
        sections = [counted(), shares()]
        rate = None
        if timing:
            progress("matmul rate")
            rate = matmul_rate()
            sections.append(utilisation(rate, progress))
        sections += [real_runs(rate), decode()]
        if timing:
            progress("reading weights")
            sections.append(decode_here())
    return Report(title, tuple(sections), versions())


# -- FLOPs -----------------------------------------------------------------------------------------


def counted() -> Section:
    """6·N_mm + 12·L·T·d, the tape, and FlopCounterMode, per token of a training step."""
    s, llama = GPTSizes(), LlamaSizes()
    model = tiny_gpt(s)
    figures = []
    for seq in LENGTHS:
        forward, backward, _ = counted_flops(GPT(s), 1, seq, s.vocab)
        figures.append(
            Figure(f"flops.{seq}", f"small GPT, T={seq}", "FLOP",
                   closed_form.flops_per_token(model.matmul_params, s.layers, seq, s.width),
                   per_token(model, seq), per_whole(forward + backward, seq), Lecture("equal"))
        )  # fmt: skip
    grouped, seq = build(llama.config), 64
    forward, backward, _ = counted_flops(Llama(llama), 1, seq, llama.vocab)
    figures += [
        Figure("flops.llama", f"small Llama, T={seq}", "FLOP",
               closed_form.flops_per_token(grouped.matmul_params, llama.layers, seq, llama.width),
               per_token(grouped, seq), per_whole(forward + backward, seq)),
        Figure("flops.directions", "forward : backward", "ratio", 2, measured=backward / forward,
               lecture=exactly(2, "1 : 2")),
    ]  # fmt: skip
    return Section(
        "FLOPs per token of a training step",
        (
            f"6·N_mm + 12·L·T·d; small GPT: N_mm = 12·L·d² + V·d = {model.matmul_params:,} "
            "(no look-ups, norms, biases)",
        ),
        tuple(figures),
        notes=(
            "measured: FlopCounterMode. Attention is written out as two products of the whole T×T matrix, so "
            "all of it is counted; causal masking saves nothing here (`loadsheet plan` counts the needed "
            "half).",
        ),
    )


def per_token(model: Model, seq: int) -> int | float:
    """The tape's count, attention in full."""
    return per_whole(training_flops(model, 1, seq).full, seq)


def per_whole(flops: int, tokens: int) -> int | float:
    """FLOPs per token, as a whole number where it is one."""
    return flops / tokens if flops % tokens else flops // tokens


def shares() -> Section:
    """How much attention adds: the lecture measures it in two ways."""
    s, seq = GPTSizes(), 512
    model = tiny_gpt(s)
    forward, backward, batched = counted_flops(GPT(s), 1, seq, s.vocab)
    attention = 12 * s.layers * seq * s.width
    total = closed_form.flops_per_token(model.matmul_params, s.layers, seq, s.width)
    big = 4096
    return Section(
        "The part of attention: T/(6·d) of the main term",
        figures=(
            Figure("attention.share", "of all, T=512, d=256", "share", attention / total,
                   measured=batched / (forward + backward), lecture=around("about 1/4", 0.25, 0.07)),
            Figure("attention.ratio", "of the main term, T=512, d=256", "share",
                   attention / (6 * model.matmul_params),
                   measured=batched / (forward + backward - batched), within=1e-12),
            Figure("attention.big", "of the main term, T=d=4,096", "share", big / (6 * big),
                   lecture=printed("17 %", 0.01)),
            Figure("attention.big.share", "of all, T=d=4,096", "share",
                   big / (6 * big) / (1 + big / (6 * big))),
        ),
        notes=("the lecture's quarter is a share of all FLOPs, its 17 % a ratio to the main term",),
    )  # fmt: skip


# -- this machine ----------------------------------------------------------------------------------


def utilisation(rate: float, progress: Callable[[str], None]) -> Section:
    """Rate of a product, and what of it three training steps reach."""
    figures = [
        Figure("machine.matmul", "1,024³ product, fp32", "rate", measured=rate, varies=True,
               lecture=Lecture("about 3 TFLOP/s"))
    ]  # fmt: skip
    rows = []
    for width, words in WIDTHS.items():
        progress(f"training step, d = {width}")
        s = GPTSizes(width=width)
        model = tiny_gpt(s)
        needed = BATCH * LENGTH * closed_form.flops_per_token(model.matmul_params, s.layers, LENGTH, width)
        taken = step_seconds(GPT(s), BATCH, LENGTH, s.vocab)
        figures.append(
            Figure(f"machine.mfu.{width}", f"MFU, d={width}", "share", measured=needed / taken / rate,
                   varies=True, lecture=Lecture(words))
        )  # fmt: skip
        rows.append((f"d={width}", (model.params, needed, taken, BATCH * LENGTH / taken)))
    return Section(
        "This machine, one thread",
        (
            f"MFU = (6·N_mm + 12·L·T·d)·B·T / (step·rate), B = {BATCH}, T = {LENGTH}; "
            "step: forward, backward, AdamW",
        ),
        tuple(figures),
        Table(("step", "parameters", "FLOP", "time", "speed"),
              ("count", "FLOP, rounded", "duration", "tokens/s"), tuple(rows)),
        notes=(
            "the lecture's machine has a matrix unit, which makes products fast and everything else slow "
            "beside them; on a plain core MFU is higher. Here as there it should grow with the width.",
        ),
    )  # fmt: skip


def real_runs(rate: float | None) -> Section:
    """Training of real models: 6·N·D at 40 % of the data sheet's peak."""
    card = gpu("h100-sxm")
    peak = card.peak("bf16")
    rows, time_of = [], {}
    for name, (title, tokens) in RUNS.items():
        flops = six_nd(find_model(name).params, tokens)
        time_of[name] = seconds(flops, peak, MFU)
        taken = time_of[name]
        rows.append((title, (tokens, flops, taken, taken, taken / 1024, taken / HOUR * PER_HOUR)))
    gpt2 = six_nd(find_model("gpt2").params, RUNS["gpt2"][1])
    nominal = six_nd(175 * 10**9, 300 * 10**9)
    money = {name: time_of[name] / HOUR * PER_HOUR for name in RUNS}
    figures = [
        Figure("run.gpt2.laptop", "GPT-2 small at 1.5 TFLOP/s", "days", seconds(gpt2, LAPTOP, 1),
               lecture=around("about two months", 60 * DAY, 0.1)),
        Figure("run.gpt2.money", f"GPT-2 small, at {PER_HOUR} an hour", "money", money["gpt2"],
               lecture=between("10 to 20", 10, 20)),
        Figure("run.llama-3-8b.money", f"Llama 3 8B, at {PER_HOUR} an hour", "money", money["llama-3-8b"],
               lecture=between("over a million", 10**6, None)),
        Figure("run.gpt3.flops", "GPT-3, 175e9 × 300e9", "FLOP, rounded", nominal,
               lecture=Lecture("3.15e23", 3.145e23, 3.155e23)),
        Figure("run.gpt3.hours", "GPT-3 on H100", "hours", seconds(nominal, peak, MFU),
               lecture=around("about 220,000 h", 220_000 * HOUR, 0.01)),
    ]  # fmt: skip
    if rate is not None:
        figures.append(
            Figure("run.gpt2.here", "GPT-2 small here, half the rate", "days",
                   measured=seconds(gpt2, rate, 0.5), varies=True)
        )  # fmt: skip
    return Section(
        f"Real models on H100 ({peak / 1e12:g} TFLOP/s dense bf16, MFU {MFU:.0%})",
        ("6·N·D / (peak·MFU), N all parameters",),
        tuple(figures),
        Table(("training", "tokens", "FLOP", "GPU hours", "1 GPU", "1,024 GPUs", f"at {PER_HOUR} an hour"),
              ("FLOP, rounded", "FLOP, rounded", "hours", "days", "days", "money"), tuple(rows)),
        notes=(
            "the price is the lecture's illustration. GPT-2's 10e9 tokens are inferred from it: only about "
            "that many give its two months and its ten-odd dollars.",
        ),
    )  # fmt: skip


# -- decode ----------------------------------------------------------------------------------------


def decode() -> Section:
    """Llama 3 8B in bf16 on an H100: reading the weights against computing, by batch."""
    card, model = gpu("h100-sxm"), find_model("llama-3-8b")
    peak, bandwidth, matrices = card.peak("bf16"), card.bandwidth, model.matmul_params
    weights = 2 * model.params
    read, compute = read_seconds(weights, bandwidth), compute_seconds(matrices, 1, peak)
    meet = critical_batch(weights, matrices, bandwidth, peak)

    def step(batch: int, size: float = weights) -> DecodeStep:
        return DecodeStep(size, 0, 2 * matrices * batch, bandwidth, peak, batch)

    figures = (
        Figure("decode.intensity", "FLOP per byte, H100", "value", peak / bandwidth,
               lecture=around("about 300", 300, 0.05)),
        Figure("decode.weights", "weights, 2·N", "GB", weights, lecture=printed("16.1 GB", 1e9)),
        Figure("decode.read", "to read them", "duration", read, lecture=printed("4.79 ms", 1e-3)),
        Figure("decode.compute", "to compute a token, 2·N_mm", "duration", compute,
               lecture=printed("15.2 µs", 1e-6)),
        Figure("decode.ratio", "reading / computing", "times", read / compute,
               lecture=around("about 300", 300, 0.06)),
        Figure("decode.speed", "at best, batch 1", "tokens/s", 1 / step(1).lower,
               lecture=printed("209 tokens/s")),
        Figure("decode.idle", "compute units idle", "share", 1 - compute / read,
               lecture=between("99 %", 0.99, 1)),
        Figure("decode.64", "to compute 64 tokens", "duration", step(64).math_seconds,
               lecture=printed("0.97 ms", 1e-3)),
        Figure("decode.meet", "batch where both take as long", "batch", meet,
               lecture=around("about 315", 315, 0.005)),
    )  # fmt: skip
    batches = (1, 8, 64, 256, math.floor(meet), math.ceil(meet), 512)
    steps = [(f"{batch}", step(batch)) for batch in batches]
    steps += [
        ("1, int8 weights", step(1, model.params)),
        ("1, int4 weights", step(1, model.params / 2)),
    ]
    rows = tuple(
        (name, (s.memory_seconds, s.math_seconds, s.lower, s.batch / s.lower, s.math_seconds / s.lower))
        for name, s in steps
    )
    return Section(
        "Decode of Llama 3 8B, bf16, on H100: a step takes the longer of reading and computing",
        (
            "reading: 2·N / bandwidth; computing: 2·N_mm·b / peak, "
            f"N = {model.params:,}, N_mm = {matrices:,} (without the input embedding, a look-up)",
        ),
        figures,
        Table(("batch", "reading", "computing", "step", "speed", "busy"),
              ("duration", "duration", "duration", "tokens/s", "share"), rows),
        notes=(
            "without the KV cache: reading it grows with the batch and moves the crossing up or away. The "
            "lecture writes 2·N for computing; its 15.2 µs are 2·N_mm. Its 315 is 4.79 / 0.0152.",
        ),
    )  # fmt: skip


def decode_here() -> Section:
    """The same effect here: one large linear layer for 1, 8 and 64 tokens."""
    size = 4096
    weights = torch.randn(size, size)
    rows = []
    for batch in (1, 8, 64):
        taken = best_seconds(partial(linear, torch.randn(batch, size), weights), budget=0.3)
        rows.append((f"{batch}", (taken, batch / taken, 2 * size**2 * batch / taken, 4 * size**2 / taken)))
    return Section(
        "The same here: a linear layer of 64 MiB for b tokens, fp32, one thread",
        table=Table(("b", "time", "speed", "computed", "weights read"),
                    ("duration", "tokens/s", "rate", "bandwidth"), tuple(rows)),
        notes=("a time on this machine, not judged",),
    )  # fmt: skip

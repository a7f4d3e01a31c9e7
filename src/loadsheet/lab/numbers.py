"""Experiment 1: bytes per number, what fp16 and bf16 can hold, and weights in eight bits."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from loadsheet.arch.read import model as find_model
from loadsheet.arch.work import DTYPE_BYTES
from loadsheet.lab.described import LlamaSizes
from loadsheet.lab.formats import BF16, FP16, FP32, Format
from loadsheet.lab.measured import reproducible, versions
from loadsheet.lab.models import Llama
from loadsheet.lab.report import (
    Figure,
    Report,
    Section,
    around,
    between,
    exactly,
    printed,
    printed_range,
    short,
)
from loadsheet.units import GIB

#: name -> (the format by its bits, PyTorch's dtype)
FLOATS: dict[str, tuple[Format, torch.dtype]] = {
    "fp32": (FP32, torch.float32),
    "fp16": (FP16, torch.float16),
    "bf16": (BF16, torch.bfloat16),
}
INT4_BYTES = 0.5
#: the lecture's three gradients
GRADIENTS = (1e-6, 2e-8, 2e-5)
SCALE = 2**16
SIDE, DEVIATION, GROUP = 256, 0.02, 64
#: a hundred standard deviations
OUTLIER = 100 * DEVIATION
INT8_TOP = 127


def experiment(title: str, *, timing: bool, progress: Callable[[str], None]) -> Report:
    """All of it; nothing here depends on the machine's speed."""
    sections = []
    with reproducible():
        for what, section in (
            ("bytes", sizes),
            ("formats", formats),
            ("gradients", gradients),
            ("loss scaling", loss_scaling),
            ("sums", precision),
            ("INT8", quantisation),
        ):
            progress(what)
            sections.append(section())
    return Report(title, tuple(sections), versions())


# -- bytes -----------------------------------------------------------------------------------------


def packed_int4(values: Tensor) -> Tensor:
    """Two signed 4-bit numbers in each byte."""
    low, high = (values & 15).to(torch.uint8).view(-1, 2).unbind(1)
    return low | high << 4


def sizes() -> Section:
    """Bytes of a number, and of Llama 3 8B's weights."""
    stored = {name: torch.zeros(1000, dtype=dtype) for name, (_, dtype) in FLOATS.items()}
    stored["int8"] = torch.zeros(1000, dtype=torch.int8)
    stored["int4"] = packed_int4(torch.zeros(1000, dtype=torch.int8))
    per_number = {name: t.untyped_storage().nbytes() / 1000 for name, t in stored.items()}
    llama = find_model("llama-3-8b")
    with torch.device("meta"):
        built = sum(p.numel() for p in Llama(LlamaSizes.of(llama)).parameters())
    said = {"fp32": ("", "29.9 GiB"), "fp16": ("2", ""), "bf16": ("2", "15.0 GiB"), "int8": ("", "7.5 GiB"),
            "int4": ("", "3.7 GiB")}  # fmt: skip
    figures = []
    for name, (count, _) in said.items():
        ours = INT4_BYTES if name == "int4" else DTYPE_BYTES[name]
        lecture = exactly(int(count), f"{count} B") if count else None
        figures.append(
            Figure(f"bytes.{name}", name, "per number", ours, measured=per_number[name], lecture=lecture)
        )
    for name, (_, weights) in said.items():
        if weights:
            ours = INT4_BYTES if name == "int4" else DTYPE_BYTES[name]
            figures.append(
                Figure(
                    f"llama-3-8b.{name}",
                    f"Llama 3 8B in {name}",
                    "GiB",
                    llama.params * ours,
                    measured=built * per_number[name],
                    lecture=printed(weights, GIB),
                )
            )
    return Section(
        "Bytes per number",
        (f"weights: N·bytes, N = {llama.params:,} (Llama 3 8B)",),
        tuple(figures),
        notes=(
            "measured: storage of 1,000 numbers, int4 two to a byte; Llama 3 8B built on the meta device",
        ),
    )


# -- formats ---------------------------------------------------------------------------------------


def formats() -> Section:
    """Bits, range and precision of the two 16-bit formats."""
    said: dict[str, tuple[int, int]] = {"fp16": (5, 10), "bf16": (8, 7)}
    figures = []
    for name, (exponent, mantissa) in said.items():
        form, dtype = FLOATS[name]
        info = torch.finfo(dtype)
        top = math.floor(math.log2(info.max))  # the largest exponent, 2^(e-1) - 1
        figures += [
            Figure(f"{name}.exponent", f"{name} exponent", "bits", form.exponent,
                   measured=round(math.log2(top + 1)) + 1, lecture=exactly(exponent)),
            Figure(f"{name}.mantissa", f"{name} mantissa", "bits", form.mantissa,
                   measured=round(-math.log2(info.eps)), lecture=exactly(mantissa)),
            Figure(f"{name}.largest", f"{name} largest", "count" if name == "fp16" else "value",
                   _whole(form.largest), measured=_whole(info.max),
                   lecture=exactly(65504) if name == "fp16" else None),
            Figure(f"{name}.smallest", f"{name} smallest above 0", "value", form.smallest,
                   measured=info.smallest_normal * info.eps),
            Figure(f"{name}.digits", f"{name} decimal digits", "digits", form.digits,
                   measured=math.log10(2 / info.eps),
                   lecture=between("2 to 3", 2, 3) if name == "bf16" else None, within=1e-12),
        ]  # fmt: skip
    single = torch.finfo(torch.float32)
    figures.append(
        Figure("bf16.range", "exponents of bf16 / of fp32", "times", BF16.exponent / FP32.exponent,
               measured=round(math.log2(torch.finfo(torch.bfloat16).max) / math.log2(single.max)),
               lecture=exactly(1, "the same"))
    )  # fmt: skip
    return Section(
        "fp16 and bf16: the same two bytes, split otherwise",
        ("largest: (2 - 2^-m)·2^(2^(e-1) - 1); smallest: 2^(2 - 2^(e-1) - m); digits: log10 2^(m+1)",),
        tuple(figures),
    )


def _whole(value: float) -> int | float:
    """A small whole number as one, for printing."""
    return int(value) if value < 2**53 else value


# -- gradients -------------------------------------------------------------------------------------


def gradients() -> Section:
    """Three small gradients stored in 16 bits."""
    said = (("1.01e-6", 1.005e-6, 1.015e-6), ("0", 0.0, 0.0), ("2e-5", 1.95e-5, 2.05e-5))
    exact = torch.tensor(GRADIENTS, dtype=torch.float64)
    figures = []
    for name in ("fp16", "bf16"):
        form, dtype = FLOATS[name]
        for i, (value, kept) in enumerate(zip(GRADIENTS, exact.to(dtype).tolist(), strict=True)):
            figures.append(
                Figure(f"{name}.gradient.{value:g}", f"{short(value)} in {name}", "value", form.round(value),
                       measured=kept, lecture=printed_range(*said[i]) if name == "fp16" else None)
            )  # fmt: skip
    return Section(
        "Small gradients",
        ("below 2^-14 fp16 has steps of 2^-24 = 5.96e-8 only: g → round(g / 2^-24)·2^-24",),
        tuple(figures),
        notes=("bf16 keeps all three, with two or three digits: its smallest step is 9.18e-41",),
    )


def loss_scaling() -> Section:
    """What the lecture recommends for fp16, done with autograd: scale the loss, divide the gradient."""

    def backward(scale: float) -> Tensor:
        """Gradients of fp16 weights whose exact gradients are `GRADIENTS`, unscaled in fp32."""
        weights = torch.zeros(3, dtype=torch.float16, requires_grad=True)
        loss = (weights.float() * torch.tensor(GRADIENTS)).sum() * scale
        loss.backward()
        gradient = weights.grad
        assert gradient is not None
        return gradient.float() / scale

    kept = backward(SCALE).tolist()
    figures = [
        Figure(f"scaled.{g:g}", f"{short(g)}, loss × {SCALE:,}", "value", FP16.round(g * SCALE) / SCALE,
               measured=value)
        for g, value in zip(GRADIENTS, kept, strict=True)
    ]  # fmt: skip
    power = 0
    while bool(backward(2.0 ** (power + 1)).isfinite().all()):
        power += 1
    figures.append(
        Figure("scale.largest", "largest scale, a power of 2", "count",
               2 ** math.floor(math.log2(FP16.largest / max(GRADIENTS))), measured=2**power)
    )  # fmt: skip
    return Section(
        "Loss scaling in fp16: multiply the loss, divide the gradients",
        (f"g → fp16(g·S) / S, S = 2^16 = {SCALE:,}; too large a scale overflows: S·max g ≤ 65,504",),
        tuple(figures),
        notes=("measured: backward through fp16 weights, divided in fp32. Nothing is lost but digits.",),
    )


def precision() -> Section:
    """Where a 16-bit sum stands still, and why master weights are fp32."""

    def add(count: int, step: float, start: float, dtype: torch.dtype) -> float:
        total, one = torch.tensor(start, dtype=dtype), torch.tensor(step, dtype=dtype)
        for _ in range(count):
            total = total + one
        return total.item()

    updated = FP32.round(1.0)
    for _ in range(1000):
        updated = FP32.round(updated + FP32.round(0.001))
    return Section(
        "Sums: small numbers added to a large one",
        ("1 + 1 + … stands still at 2^(m+1), where the next number is 2 away",),
        (
            Figure("bf16.sum", "3,000 ones in bf16", "count", 2 ** (BF16.mantissa + 1),
                   measured=round(add(3000, 1.0, 0.0, torch.bfloat16))),
            Figure("fp16.sum", "3,000 ones in fp16", "count", 2 ** (FP16.mantissa + 1),
                   measured=round(add(3000, 1.0, 0.0, torch.float16))),
            Figure("bf16.weight", "1 + 1,000 updates of 0.001, bf16", "value", BF16.round(BF16.round(1.001)),
                   measured=add(1000, 0.001, 1.0, torch.bfloat16)),
            Figure("fp32.weight", "the same in fp32", "value", updated,
                   measured=add(1000, 0.001, 1.0, torch.float32)),
        ),
        notes=("so weights that are trained in bf16 have a master copy in fp32, and sums are kept in fp32",),
    )  # fmt: skip


# -- INT8 ------------------------------------------------------------------------------------------


def quantise(weights: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """(weights as they come back from symmetric INT8, scales): a scale for each `group` numbers of a row."""
    groups = weights.view(-1, group)
    scales = groups.abs().amax(dim=1, keepdim=True) / INT8_TOP
    whole = (groups / scales).round()
    return (whole * scales).view_as(weights), scales


def relative_error(weights: Tensor, group: int) -> tuple[float, float]:
    """(measured, by the noise of rounding) relative error, both in the Frobenius norm."""
    back, scales = quantise(weights, group)
    size = weights.norm()
    expected = (group * scales.square().sum() / 12).sqrt() / size
    return float((back - weights).norm() / size), float(expected)


def quantisation() -> Section:
    """A 256×256 matrix in INT8: a scale for all, per row, per group; without and with an outlier."""
    torch.manual_seed(0)
    normal = torch.randn(SIDE, SIDE) * DEVIATION
    top = float(normal.abs().max())
    spiked, wide = normal.clone(), normal.clone()
    spiked[0, 0], wide[0, 0] = OUTLIER, 30 * top
    ways = (("tensor", normal.numel(), "one scale"), ("row", SIDE, "a scale per row"),
            ("group", GROUP, f"a scale per {GROUP}"))  # fmt: skip
    figures = []
    for case, weights, name in (
        ("normal", normal, "normal weights"),
        ("outlier", spiked, "one outlier, 100 σ"),
        ("outlier30", wide, "one outlier, 30 × max"),
    ):
        if case != "normal":
            factor = float(weights.abs().max()) / top
            figures.append(
                Figure(f"{case}.scale", f"{name}: scale grows", "times",
                       (OUTLIER / top) if case == "outlier" else 30.0, measured=factor, within=1e-5,
                       lecture=around("about 30×", 30, 0.05) if case == "outlier" else None,
                       standing="open" if case == "outlier" else "judged",
                       remark=_REMARK if case == "outlier" else "")
            )  # fmt: skip
        for way, group, words in ways:
            measured, expected = relative_error(weights, group)
            said = {("normal", "tensor"): around("about 1 %", 0.01, 0.1),
                    ("outlier", "tensor"): around("about 20 %", 0.2, 0.1)}.get((case, way))  # fmt: skip
            figures.append(
                Figure(f"{case}.{way}", f"{name}, {words}", "share", expected, measured=measured,
                       lecture=said, within=0.06)
            )  # fmt: skip
    back, scales = quantise(spiked, spiked.numel())
    inner = round(top / float(scales))
    figures.append(
        Figure("outlier.levels", "levels of 255 in use, 100 σ", "count", 2 * inner + 2,
               measured=int(back.unique().numel()))
    )  # fmt: skip
    return Section(
        f"Symmetric INT8 of a {SIDE}×{SIDE} matrix (normal, σ = {DEVIATION}, seed 0)",
        (
            "s = max|W| / 127, q = round(W / s); error ‖s·q - W‖ / ‖W‖",
            "ours: rounding noise, uniform in ±s/2: √(Σ s²/12) / ‖W‖, within 6 %",
        ),
        tuple(figures),
        notes=("one outlier costs its row, or its group, and no more",),
    )


_REMARK = (
    "scale: the lecture does not say which outlier. One of 100 σ makes the error 21 % and the scale 22 times "
    "as large; one that makes it 30 times as large makes the error 27 %. With normal weights and one outlier "
    "both of the lecture's figures cannot hold together."
)

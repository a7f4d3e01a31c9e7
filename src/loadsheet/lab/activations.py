"""Experiment 2, second half: bytes kept for backward, three sweeps, checkpointing, 16 bits."""

from __future__ import annotations

from collections.abc import Callable

from loadsheet.arch.read import model as find_model
from loadsheet.lab import closed_form
from loadsheet.lab.described import GPTSizes, saved_bytes, tiny_gpt, walk
from loadsheet.lab.measured import activation_bytes, counted_flops
from loadsheet.lab.models import GPT
from loadsheet.lab.report import Curve, Figure, Section, Table, around, printed
from loadsheet.units import MIB

#: (batch, length, layers) -> MiB as the lecture prints them
SAID = {
    (4, 64, 4): "19.5 MiB", (8, 64, 4): "39.0 MiB", (16, 64, 4): "78.0 MiB",
    (8, 64, 2): "21.0 MiB", (8, 64, 8): "75.1 MiB",
    (4, 32, 4): "9.3 MiB", (4, 128, 4): "43.1 MiB", (4, 256, 4): "102.2 MiB", (4, 512, 4): "269.0 MiB",
}  # fmt: skip
#: name -> (letter, which of the three varies, values, the others, powers of the fit)
SWEEPS: dict[str, tuple[str, int, tuple[int, ...], tuple[int, int, int], tuple[int, ...]]] = {
    "batch": ("B", 0, (4, 8, 16), (0, 64, 4), (0, 1)),
    "layers": ("L", 2, (2, 4, 8), (8, 64, 0), (0, 1)),
    "length": ("T", 1, (32, 64, 128, 256, 512), (4, 0, 4), (1, 2)),
}
CHECKPOINTED = (8, 256, 4)
_FORM = "4·B·T·[L·(16·d + 4 + h·T) + 2·d + 2 + V + 2] + L·T² + 8·T + 4"


def sweeps(progress: Callable[[str], None]) -> tuple[list[Section], tuple[Curve, ...]]:
    """Batch, layers, length: closed form, tape, measured; and the fits through what was measured."""
    known: dict[tuple[int, int, int], int] = {}
    sections, curves = [], []
    for name, (letter, index, values, others, powers) in SWEEPS.items():
        figures, sizes_measured = [], []
        for value in values:
            sizes = list(others)
            sizes[index] = value
            at = sizes[0], sizes[1], sizes[2]
            if at not in known:
                progress(f"activations, B = {at[0]}, T = {at[1]}, L = {at[2]}")
                known[at] = measure(at)
            figures.append(figure(f"activations.{name}.{value}", at, known[at]))
            sizes_measured.append(known[at])
        fit = closed_form.least_squares(values, sizes_measured, powers)
        curve = Curve(name, letter, values, tuple(sizes_measured), powers, fit)
        curves.append(curve)
        notes = [f"least squares: {curve.formula}"]
        if name == "length":
            figures.append(quadratic(curve, values[-1]))
            notes.append("quadratic: the score matrices, 4·B·h·L·T², and the masks, L·T²")
        title = {"batch": "in proportion to the batch", "layers": "each layer adds the same",
                 "length": "more than in proportion to the length"}[name]  # fmt: skip
        sections.append(
            Section(f"Activations: {title}", (f"closed form: {_FORM}",) if name == "batch" else (),
                    tuple(figures),
                    notes=tuple(notes))
        )  # fmt: skip
    return sections, tuple(curves)


def measure(at: tuple[int, int, int], *, checkpointing: bool = False) -> int:
    """Bytes that PyTorch keeps at (batch, length, layers)."""
    batch, seq, layers = at
    sizes = GPTSizes(layers=layers)
    return activation_bytes(GPT(sizes, checkpointing=checkpointing), batch, seq, sizes.vocab)


def figure(
    key: str, at: tuple[int, int, int], measured: int, *, checkpointing: bool = False, said: str = ""
) -> Figure:
    """One line: closed form, tape and measured bytes, and the lecture's MiB."""
    batch, seq, layers = at
    s = GPTSizes(layers=layers)
    if checkpointing:
        ours = closed_form.checkpointed_bytes(batch, seq, layers, s.width, s.vocab)
    else:
        ours = closed_form.activation_bytes(batch, seq, layers, s.width, s.heads, s.vocab)
    tape = saved_bytes(walk(tiny_gpt(s), batch, seq), checkpointing=checkpointing)
    name = f"B={batch} T={seq} L={layers}" + (", checkpoints" if checkpointing else "")
    return Figure(key, name, "bytes and MiB", ours, tape, measured, printed(said or SAID[at], MIB))


def quadratic(curve: Curve, at: int) -> Figure:
    """The part of the fit that grows with T²; ours: the terms in T² of the closed form."""
    s, batch = GPTSizes(), 4
    squares = (4 * batch * s.heads + 1) * s.layers * at**2
    total = closed_form.activation_bytes(batch, at, s.layers, s.width, s.heads, s.vocab)
    return Figure("activations.quadratic", f"quadratic share at T={at}", "share", squares / total,
                  measured=curve.share(at, 2), lecture=printed("48 %", 0.01), within=1e-3)  # fmt: skip


def checkpointing(progress: Callable[[str], None]) -> Section:
    """Each block keeps its input and runs again in backward: bytes saved, FLOPs added."""
    progress("checkpointing")
    plain, kept = measure(CHECKPOINTED), measure(CHECKPOINTED, checkpointing=True)
    s = GPTSizes()
    batch, seq, layers = CHECKPOINTED
    whole = closed_form.activation_bytes(batch, seq, layers, s.width, s.heads, s.vocab)
    checkpointed = closed_form.checkpointed_bytes(batch, seq, layers, s.width, s.vocab)
    forward_block = 2 * 12 * s.width**2 + 4 * seq * s.width  # FLOPs per token and block
    forward = layers * forward_block + 2 * s.vocab * s.width
    last = 2 * 4 * s.width**2  # the MLP's second product, whose result backward never asks for
    base = sum(counted_flops(GPT(s), 1, seq, s.vocab)[:2])
    figures = [
        figure("checkpointing.without", CHECKPOINTED, plain, said="204.2 MiB"),
        figure("checkpointing.with", CHECKPOINTED, kept, checkpointing=True, said="19.8 MiB"),
        Figure("checkpointing.saving", "saved", "share", 1 - checkpointed / whole, measured=1 - kept / plain,
               lecture=printed("90 %", 0.01)),
    ]  # fmt: skip
    for key, name, repeated, early_stop in (
        ("whole", "FLOPs, blocks again in full", layers * forward_block, False),
        ("early", "FLOPs, as PyTorch does it", layers * (forward_block - last), True),
    ):
        module = GPT(s, checkpointing=True, early_stop=early_stop)
        counted = sum(counted_flops(module, 1, seq, s.vocab)[:2])
        figures.append(
            Figure(f"checkpointing.flops.{key}", name, "times", 1 + repeated / (3 * forward),
                   measured=counted / base,
                   lecture=around("about 4/3", 4 / 3, 0.05) if key == "whole" else None, within=1e-12)
        )  # fmt: skip
    return Section(
        "Activation checkpointing",
        (
            "bytes: 4·B·T·[L·d + 2·d + 2 + V + 2] + 8·T + 4",
            "FLOPs: (3·F + F_blocks) / 3·F, F one forward; "
            "PyTorch stops a block early, before its last product",
        ),
        tuple(figures),
        notes=(
            "4/3 counts the head among what is run again; the head is not, so it is a little less",
            f"FLOPs at B=1, T={seq}",
        ),
    )


def sixteen_bits() -> Section:
    """The small GPT in bf16, beside the formula of Korthikanti et al., and what that says of real models."""
    s = GPTSizes()
    batch, seq = 4, 64
    measured = activation_bytes(GPT(s).bfloat16(), batch, seq, s.vocab)
    ours = closed_form.activation_bytes(batch, seq, s.layers, s.width, s.heads, s.vocab, number=2)
    more = activation_bytes(GPT(GPTSizes(layers=s.layers + 1)).bfloat16(), batch, seq, s.vocab) - measured
    layer = closed_form.korthikanti_bytes(batch, seq, s.width, s.heads)
    dropout = 2 * batch * seq * s.width + 3 * s.heads * seq**2 * batch
    extra = 2 * batch * seq * 4 + seq**2  # statistics of two norms, the mask
    return Section(
        "Activations in 16 bits: s·b·h·(34 + 5·a·s/h) per layer (Korthikanti et al. 2022, arXiv 2205.05198)",
        figures=(
            Figure("bf16.activations", f"B={batch} T={seq} L={s.layers}, bf16", "bytes", ours,
                   measured=measured),
            Figure("bf16.layer", "one layer more", "bytes", layer - dropout + extra, measured=more),
        ),
        table=_real_models(),
        notes=(
            f"one layer: {layer:,} by the formula, less 2·s·b·h + 3·a·s²·b = {dropout:,} of dropout masks, "
            f"plus {extra:,} of norm statistics and of our mask",
            "table: b = 1; an estimate, and for Llama a rough one (it has no GELU, no dropout, fewer KV "
            "heads). `loadsheet plan` counts each model by its own layers.",
        ),
    )  # fmt: skip


def _real_models() -> Table:
    lengths = {"gpt2": 1024, "llama-2-7b": 4096, "llama-3-8b": 8192, "llama-3-70b": 8192, "gpt-3-175b": 2048}
    rows = []
    for name, seq in lengths.items():
        model = find_model(name)
        symbols = model.symbols or {}
        width, heads, layers = symbols["d"], symbols["h"], symbols["L"]
        layer = closed_form.korthikanti_bytes(1, seq, width, heads)
        without = closed_form.korthikanti_bytes(1, seq, width, heads, scores=False)
        cells = (layer, layers * layer, 1 - without / layer, layers * without, layers * 2 * seq * width)
        rows.append((f"{name}, s = {seq:,}", cells))
    head = ("model", "a layer", "all layers", "score matrix", "without it", "checkpoints")
    return Table(head, ("GiB", "GiB", "share", "GiB", "GiB"), tuple(rows))

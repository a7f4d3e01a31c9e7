"""Experiment 2: parameters, optimizer states, KV cache and activations against real modules."""

from __future__ import annotations

from collections.abc import Callable

from loadsheet.lab import activations, counts
from loadsheet.lab.measured import reproducible, versions
from loadsheet.lab.report import Report


def experiment(title: str, *, timing: bool, progress: Callable[[str], None]) -> Report:
    """All of it; nothing here depends on the machine's speed."""
    with reproducible():
        sections = []
        for what, section in (
            ("parameters", counts.parameters),
            ("optimizer states", counts.optimizer_states),
            ("bytes per parameter", counts.training_bytes),
            ("KV cache", counts.kv_cache),
        ):
            progress(what)
            sections.append(section())
        swept, curves = activations.sweeps(progress)
        sections += [*swept, activations.checkpointing(progress), activations.sixteen_bits()]
    return Report(title, tuple(sections), versions(), curves)

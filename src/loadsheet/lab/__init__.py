"""The lecture's experiments, run again: what it says, what our formulas say, what PyTorch measures.

This module and `report`, `closed_form`, `formats`, `described` and `plot` need no torch; the others do,
and are imported only when an experiment runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module

from loadsheet.errors import LoadsheetError
from loadsheet.lab.report import Report

#: number -> (module, what it is about)
EXPERIMENTS = {
    1: ("numbers", "numbers: bytes, fp16 and bf16, INT8"),
    2: ("memory", "memory: parameters, optimizer states, activations"),
    3: ("compute", "compute: FLOPs, MFU, training time, decode"),
    4: ("resume", "resume: what a checkpoint must hold"),
}


def silent(_: str) -> None:
    """Progress that nobody reads."""


def need_torch() -> None:
    """Import torch, once; LoadsheetError with the way to install it if it is not there."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # not used here
            import torch  # noqa: F401
    except ImportError:
        raise LoadsheetError("lab: PyTorch is not installed", "pip install 'loadsheet[torch]'") from None


def run(number: int, *, timing: bool = True, progress: Callable[[str], None] = silent) -> Report:
    """Carry out one experiment on the CPU, with one thread and fixed seeds.

    `timing` False leaves out what depends on this machine's speed; `progress` is told what is done
    next. Raises LoadsheetError if torch is missing.
    """
    module, subject = EXPERIMENTS[number]
    need_torch()
    experiment: Callable[..., Report] = import_module(f"loadsheet.lab.{module}").experiment
    return experiment(f"lab {number} · {subject}", timing=timing, progress=progress)

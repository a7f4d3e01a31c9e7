"""What it takes that the same program gives the same bits twice, and what is left to chance even so."""

from __future__ import annotations

import os
import random
import sys
from dataclasses import dataclass

import torch

from loadsheet.errors import BadInput

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True, slots=True)
class Determinism:
    """What `deterministic` has set, and what remains; both one sentence each."""

    seed: int
    done: tuple[str, ...]
    remaining: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}", *(f"  set: {line}" for line in self.done)]
        return "\n".join([*lines, *(f"  left: {line}" for line in self.remaining)])


def deterministic(seed: int, *, strict: bool = True, threads: int | None = None) -> Determinism:
    """Seed everything, and ask PyTorch for algorithms that give the same bits each time.

    Call it before anything else, in particular before CUDA is used. `strict`: an operation that has no
    such algorithm raises; otherwise it warns. `threads`: CPU threads, whose number changes the bits.
    Returns what was done and what remains. Raises BadInput for a seed outside 0 … 2^32 − 1 (NumPy's
    range) or a number of threads below 1.
    Source: PyTorch's notes on reproducibility; cuBLAS, "Results reproducibility".
    """
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise BadInput(f"deterministic: seed: got {seed!r}, expected a whole number from 0 to 4294967295")
    if threads is not None and (type(threads) is not int or threads < 1):
        raise BadInput(f"deterministic: threads: got {threads!r}, expected a whole number from 1")
    done, remaining = [], []
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
    torch.manual_seed(seed)
    done.append("Python, " + ("NumPy (legacy), " if numpy is not None else "") + "torch seeded")
    remaining.append("a numpy.random.Generator or torch.Generator of your own: seed it, and `keep` it")

    started = torch.cuda.is_available() and torch.cuda.is_initialized()
    before = os.environ.get(_CUBLAS)
    if before not in {":4096:8", ":16:8"}:
        os.environ[_CUBLAS] = ":4096:8"
        if started:
            remaining.append(f"cuBLAS: CUDA was in use before {_CUBLAS} was set; call this first")
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    done.append("deterministic algorithms " + ("or an error" if strict else "or a warning"))
    done.append("cuDNN without autotuning, cuBLAS with a fixed workspace")
    if threads is not None:
        torch.set_num_threads(threads)
    remaining.append(
        f"CPU threads: {torch.get_num_threads()} now; another number, or another kind of CPU, gives other bits"
    )
    if not os.environ.get("PYTHONHASHSEED", "").isdigit():
        remaining.append("the order of sets of strings: start with PYTHONHASHSEED=0, or sort them")
    if torch.cuda.is_available():
        remaining += [
            "another kind of GPU, driver or library version gives other bits",
            "kernels that come with other packages (flash-attention's backward, say) have switches of their own",
            "torch.compile with max-autotune chooses kernels by their speed",
            "the order in which several GPUs add up: keep their number and NCCL's algorithm",
        ]
    return Determinism(seed, tuple(done), tuple(remaining))

"""Your own module: what it keeps and computes, by submodule, and how that grows with batch, length, depth.

Measured on small inputs on the CPU, fitted with f(B, T) = a + m·T² + B·(b·T + c·T²) and carried over to the
size that was asked for; the fit's error on a size that it has not seen stands beside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from loadsheet.errors import BadInput, LoadsheetError, shorten
from loadsheet.measure.step import Inputs, Step, measure_step

GRID = (
    (1, 128),
    (2, 128),
    (1, 256),
    (2, 256),
    (1, 384),
    (2, 512),
)  # (B, T) to fit; the last is kept for the check
DEPTH_NAMES = ("depth", "n_layer", "n_layers", "num_layers", "layers", "num_hidden_layers")


@dataclass(frozen=True, slots=True)
class Fit:
    """f(B, T) = a + m·T² + B·(b·T + c·T²), with its relative error on a size that was not fitted.

    m is what grows with T² but not with the batch: masks that all sequences share.
    """

    a: float
    m: float
    b: float
    c: float
    error: float

    def __call__(self, batch: int, seq: int) -> float:
        """The fitted value."""
        return self.a + self.m * seq**2 + batch * (self.b * seq + self.c * seq**2)

    def dominant(self, batch: int, seq: int) -> str:
        """Which term is the largest at that size."""
        terms = {
            "constant": self.a,
            "linear in T": batch * self.b * seq,
            "quadratic in T": (self.m + batch * self.c) * seq**2,
        }
        return max(terms, key=lambda k: abs(terms[k]))

    def __str__(self) -> str:
        scale = abs(self.b) * 512 + abs(self.c) * 512**2 + 1e-30
        parts = [(self.a, ""), (self.m * 512**2, "·T²"), (self.b * 512, "·B·T"), (self.c * 512**2, "·B·T²")]
        values = {"": self.a, "·T²": self.m, "·B·T": self.b, "·B·T²": self.c}
        shown = [f"{values[name]:.4g}{name}" for size, name in parts if abs(size) > 1e-9 * scale]
        return " + ".join(shown).replace("+ -", "- ") or "0"

    def to_json(self) -> dict[str, float]:
        """Coefficients and error."""
        return {"a": self.a, "m": self.m, "b": self.b, "c": self.c, "error": self.error}


@dataclass(slots=True)
class Measured:
    """What was measured of a module, and what the fit says of the size asked for."""

    params: int
    trainable: int
    parameter_bytes: int
    batch: int
    seq: int
    fits: dict[str, Fit]
    kept_by_module: dict[str, int] = field(default_factory=dict)
    at: dict[str, float] = field(default_factory=dict)
    depth: dict[str, float] | None = None
    dominant: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for `json.dumps`."""
        return {
            "params": self.params, "trainable": self.trainable, "parameter_bytes": self.parameter_bytes,
            "batch": self.batch, "seq": self.seq, "at": self.at, "dominant": self.dominant,
            "fits": {k: f.to_json() for k, f in self.fits.items()}, "kept_by_module": self.kept_by_module,
            "depth": self.depth,
        }  # fmt: skip


def fit(points: Mapping[tuple[int, int], float]) -> Fit:
    """Least squares over all points but the last, checked on the last; columns are scaled to be well-posed."""
    *fitted, ((batch, seq), truth) = points.items()
    rows = [[1.0, t * t, n * t, n * t * t] for (n, t), _ in fitted]
    matrix = torch.tensor(rows, dtype=torch.float64)
    values = torch.tensor([[float(value)] for _, value in fitted], dtype=torch.float64)
    scale = matrix.abs().amax(dim=0)
    found = torch.linalg.lstsq(matrix / scale, values).solution.squeeze(1) / scale
    a, m, b, c = (float(x) for x in found)
    made = Fit(a, m, b, c, 0.0)
    return Fit(a, m, b, c, abs(made(batch, seq) - truth) / abs(truth) if truth else 0.0)


def default_inputs(module: torch.nn.Module, batch: int, seq: int) -> Inputs:
    """Token ids below the first embedding's size, under the name of the module's first argument."""
    table = next((m for m in module.modules() if isinstance(m, torch.nn.Embedding)), None)
    if table is None:
        raise LoadsheetError(
            "measure: got a module without an embedding, expected inputs for it",
            "give a function `inputs(batch, seq)` that returns a dict of tensors",
        )
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, table.num_embeddings, (batch, seq), generator=generator)
    names = list(inspect.signature(module.forward).parameters)
    out: Inputs = {"input_ids" if "input_ids" in names else names[0]: ids}
    for name in ("labels", "targets"):
        if name in names:
            out[name] = ids
    return out


def measure(
    build: torch.nn.Module | Callable[..., torch.nn.Module],
    inputs: Callable[[int, int], Inputs] | None = None,
    *,
    batch: int = 1,
    seq: int = 1024,
    progress: Callable[[str], None] | None = None,
) -> Measured:
    """Measure a module, or what `build()` returns, on small sizes; say what the asked size needs under AdamW.

    Raises BadInput for something that is no module and whatever the module itself raises, in one line.
    """
    module = build if isinstance(build, torch.nn.Module) else build()
    if not isinstance(module, torch.nn.Module):
        raise BadInput(f"measure: got {shorten(type(module).__name__)}, expected a torch.nn.Module")
    steps: dict[tuple[int, int], Step] = {}
    for b, t in GRID:
        if progress is not None:
            progress(f"batch {b}, {t} tokens")
        given = inputs(b, t) if inputs is not None else default_inputs(module, b, t)
        steps[b, t] = measure_step(module, given)
    fits = {
        "kept_bytes": fit({k: s.kept.total for k, s in steps.items()}),
        "flops": fit({k: s.forward_flops + s.backward_flops for k, s in steps.items()}),
        "peak_bytes": fit({k: float(s.peak_bytes or 0) for k, s in steps.items()}),
    }
    found = Measured(
        params=sum(p.numel() for p in module.parameters()),
        trainable=sum(p.numel() for p in module.parameters() if p.requires_grad),
        parameter_bytes=sum(p.numel() * p.element_size() for p in module.parameters()),
        batch=batch, seq=seq, fits=fits, kept_by_module=_by_top(steps[GRID[-1]]),
        at={name: f(batch, seq) for name, f in fits.items()},
        dominant={name: f.dominant(batch, seq) for name, f in fits.items()},
    )  # fmt: skip
    if not isinstance(build, torch.nn.Module):
        found.depth = _depth(build, inputs)
    return found


def _by_top(step: Step) -> dict[str, int]:
    """Kept bytes by submodule, numbered layers of one list added up under `*`."""
    out: dict[str, int] = {}
    for name, size in step.kept.by_module.items():
        parts = [("*" if p.isdigit() else p) for p in name.split(".")]
        key = ".".join(parts) or "(the module itself)"
        out[key] = out.get(key, 0) + size
    return dict(sorted(out.items(), key=lambda kv: -kv[1]))


def _depth(
    build: Callable[..., torch.nn.Module], inputs: Callable[[int, int], Inputs] | None
) -> dict[str, float] | None:
    """What one more layer adds at B = 1, T = 128, if `build` takes a depth."""
    try:
        names = inspect.signature(build).parameters
    except (TypeError, ValueError):
        return None
    name = next((n for n in DEPTH_NAMES if n in names), None)
    if name is None:
        return None
    values = []
    for depth in (1, 2):
        module = build(**{name: depth})
        given = inputs(1, 128) if inputs is not None else default_inputs(module, 1, 128)
        values.append((sum(p.numel() for p in module.parameters()), measure_step(module, given, peak=False)))
    (n1, one), (n2, two) = values
    return {
        "params_per_layer": float(n2 - n1),
        "kept_bytes_per_layer": float(two.kept.total - one.kept.total),
        "flops_per_layer": float(
            two.forward_flops + two.backward_flops - one.forward_flops - one.backward_flops
        ),
    }

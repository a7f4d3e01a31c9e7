"""Time of a training step and hours of a run, from FLOPs, the GPU's dense peak and the MFU."""

from __future__ import annotations

from typing import Any

from loadsheet.ledger import Estimate
from loadsheet.recipe import tables


def seconds(flops: Any, peak: Any, utilisation: Any) -> Any:
    """t = F / (P·MFU): F FLOP, P FLOP/s dense, MFU the share of the peak that useful work reaches.

    Chowdhery et al. 2022, arXiv 2204.02311, appendix B (definition of MFU).

    >>> round(seconds(3.15e23, 989e12, 0.4) / 3600)   # GPT-3 on H100: about 221,000 GPU hours
    221183
    """
    return flops / (peak * utilisation)


def utilisation(given: float | None) -> Estimate:
    """The MFU: a given one is taken as it is; else the default with its range."""
    if given is not None:
        return Estimate(given, given, given, "given")
    entry = tables()["efficiency"]["mfu"]
    return Estimate(entry["low"], entry["mid"], entry["high"], entry["source"])


def step_time(flops: Any, hardware_flops: Any, peak: float, mfu: Estimate) -> Estimate:
    """Seconds of one step: model FLOPs at the MFU, lengthened by what is computed again.

    The MFU is understood without recomputation, so a step that recomputes takes hardware/model times
    as long. The highest MFU gives the shortest time.
    """
    longer = hardware_flops / flops
    return Estimate(
        seconds(flops, peak, mfu.high) * longer,
        seconds(flops, peak, mfu.mid) * longer,
        seconds(flops, peak, mfu.low) * longer,
        mfu.reason,
    )

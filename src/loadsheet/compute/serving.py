"""Prefill and decode: time to read the bytes against time to compute, and the batch where they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadsheet.units import largest


def read_seconds(weight_bytes: Any, bandwidth: Any) -> Any:
    """t = bytes / bandwidth: each decode step reads every weight it uses once.

    >>> round(read_seconds(2 * 8_030_261_248, 3.35e12) * 1e3, 2)   # ms, Llama 3 8B in bf16 on an H100
    4.79
    """
    return weight_bytes / bandwidth


def compute_seconds(matmul_params: Any, batch: Any, peak: Any) -> Any:
    """t = 2·N·B / P: N parameters that multiply, B tokens at once, P FLOP/s dense.

    >>> round(compute_seconds(7_504_658_432, 1, 989e12) * 1e6, 2)   # µs
    15.18
    """
    return 2 * matmul_params * batch / peak


def critical_batch(weight_bytes: Any, matmul_params: Any, bandwidth: Any, peak: Any) -> Any:
    """The batch at which computing takes as long as reading the weights: (bytes/BW) / (2·N/P).

    Leaves out the reading of the cache, which comes with every sequence and moves the crossing up or
    away altogether. Pope et al. 2022, arXiv 2211.05102, section 2.

    >>> round(critical_batch(2 * 8_030_261_248, 7_504_658_432, 3.35e12, 989e12), 1)
    315.9
    """
    return read_seconds(weight_bytes, bandwidth) / compute_seconds(matmul_params, 1, peak)


def touched_share(batch: Any, experts: int, per_token: int) -> Any:
    """Share of the experts that a batch of tokens reaches at random: 1 - (1 - k/E)^B.

    >>> touched_share(1, 8, 2), round(touched_share(16, 8, 2), 3)
    (0.25, 0.99)
    """
    return 1 - (1 - per_token / experts) ** batch


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode step on one GPU at the data sheet's rates: bytes read, FLOPs, and both times."""

    weight_bytes: Any
    cache_bytes: Any
    flops: Any
    bandwidth: Any
    peak: Any
    batch: Any

    @property
    def weight_seconds(self) -> Any:
        """Time to read the weights."""
        return self.weight_bytes / self.bandwidth

    @property
    def cache_seconds(self) -> Any:
        """Time to read the caches of all sequences."""
        return self.cache_bytes / self.bandwidth

    @property
    def memory_seconds(self) -> Any:
        """Time to read both."""
        return self.weight_seconds + self.cache_seconds

    @property
    def math_seconds(self) -> Any:
        """Time to compute."""
        return self.flops / self.peak

    @property
    def lower(self) -> Any:
        """The longer of the two: reading and computing overlap perfectly."""
        return largest(self.memory_seconds, self.math_seconds)

    @property
    def upper(self) -> Any:
        """Their sum: no overlap."""
        return self.memory_seconds + self.math_seconds

    @property
    def intensity(self) -> Any:
        """FLOP per byte read."""
        return self.flops / (self.weight_bytes + self.cache_bytes)

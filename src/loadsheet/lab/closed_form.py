"""Closed forms for the lecture's small GPT, and least squares; numbers or arrays, standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def activation_bytes(
    batch: Any, seq: Any, layers: Any, width: Any, heads: Any, vocab: Any, *, number: int = 4
) -> Any:
    """Bytes the small GPT keeps for backward: 4·B·T·[L·(16d + 4 + h·T) + 2d + V + 4] + L·T² + 8T + 4 in fp32.

    `number` is the bytes of a number, 2 in bf16 (where PyTorch on a CPU keeps the norms' statistics in
    bf16 too). Per layer and token 16·d + 4 + h·T numbers: both norms' inputs and statistics, the
    input of q, k and v, these three, the mix, the MLP's input, its GELU's input and output (4·d each),
    and the softmax's output. After the blocks: the last norm's input and statistics, the head's input,
    the log-probabilities, and the indices, which are the targets too (8 bytes). Once: a bool mask T×T in
    each layer, the positions (8·T), and the loss's total weight (4).

    >>> activation_bytes(4, 64, 4, 256, 8, 1000)
    20460036
    """
    per_token = layers * (16 * width + 4 + heads * seq) + 2 * width + 2 + vocab
    return number * batch * seq * per_token + 8 * batch * seq + layers * seq**2 + 8 * seq + number


def checkpointed_bytes(batch: Any, seq: Any, layers: Any, width: Any, vocab: Any) -> Any:
    """The same when each block keeps its input only: 4·B·T·[L·d + 2d + V + 4] + 8T + 4 (arXiv 1604.06174).

    >>> checkpointed_bytes(8, 256, 4, 256, 1000)
    20809732
    """
    return 4 * batch * seq * (layers * width + 2 * width + 2 + vocab + 2) + 8 * seq + 4


def flops_per_token(matmul_params: Any, layers: Any, seq: Any, q_width: Any) -> Any:
    """Training FLOPs per token, the score matrix in full: 6·N_mm + 12·L·T·q (arXiv 2204.02311, appendix B).

    >>> flops_per_token(3_401_728, 4, 512, 256)
    26701824
    """
    return 6 * matmul_params + 12 * layers * seq * q_width


def korthikanti_bytes(batch: Any, seq: Any, width: Any, heads: Any, *, scores: bool = True) -> Any:
    """Activations of one layer in 16 bits: s·b·h·(34 + 5·a·s/h), without the score matrix 34·s·b·h.

    In our letters T·B·d·34 + 5·h·T²·B. GELU, four times the width in the MLP, dropout, as many key as
    query heads. Korthikanti et al. 2022, arXiv 2205.05198, equation 2.

    >>> korthikanti_bytes(1, 8192, 4096, 32) / 2**30
    11.0625
    >>> korthikanti_bytes(1, 8192, 4096, 32, scores=False) / 2**30
    1.0625
    """
    return 34 * seq * batch * width + (5 * heads * seq**2 * batch if scores else 0)


def least_squares(x: Sequence[float], y: Sequence[float], powers: Sequence[int]) -> tuple[float, ...]:
    """The coefficients of Σ c_p·x^p that come nearest to y, by the normal equations.

    x is scaled to 1 first, so that the powers do not run apart.

    >>> [round(c, 6) for c in least_squares([1, 2, 3], [3, 8, 15], [1, 2])]
    [2.0, 1.0]
    """
    top = max(x)
    rows = [[(value / top) ** p for p in powers] for value in x]
    size = len(powers)
    system = [
        [sum(r[i] * r[j] for r in rows) for j in range(size)]
        + [sum(r[i] * v for r, v in zip(rows, y, strict=True))]
        for i in range(size)
    ]
    for i in range(size):  # positive definite: the pivots are on the diagonal
        pivot = system[i][i]
        system[i] = [value / pivot for value in system[i]]
        for k in range(size):
            if k != i:
                system[k] = [a - system[k][i] * b for a, b in zip(system[k], system[i], strict=True)]
    return tuple(system[i][size] / top**p for i, p in enumerate(powers))

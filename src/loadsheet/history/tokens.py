"""How many tokens a run had seen after each of its records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def seen(steps: Sequence[int], values: Sequence[float]) -> list[float]:
    """Tokens seen after each record, from what was logged as `tokens` in it; as many values as steps, in order.

    Values that grow with every record are a running total. Others are the tokens of one step: summed up
    where every step from 0 on was logged, else their mean times the completed steps.

    >>> seen([0, 1, 2], [512, 1024, 1536]), seen([0, 1, 2], [512, 512, 500]), seen([0, 10], [512, 512])
    ([512.0, 1024.0, 1536.0], [512.0, 1024.0, 1524.0], [512.0, 5632.0])
    """
    if len(values) > 1 and all(one < other for one, other in pairwise(values)):
        return [float(value) for value in values]
    if list(steps) == list(range(len(steps))):
        return [float(total) for total in accumulate(values)]
    mean = sum(values) / len(values) if values else 0.0
    return [mean * (step + 1) for step in steps]

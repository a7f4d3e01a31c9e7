"""What other or more GPUs would do: the fewest that a split takes, and what a larger one costs in time."""

from __future__ import annotations

from typing import Any

import pytest

import loadsheet as ls


def _split(model: str, gpu: str, **options: Any) -> tuple[int, float]:
    """(GPUs, bytes saved on each) of the floor; (0, 0) where none is offered."""
    for remedy in ls.plan(model, gpu, **options).remedies:
        if remedy.verdict == "pointer":
            return int(remedy.change.split()[0]), remedy.saves_bytes
    return 0, 0.0


@pytest.mark.parametrize(("batch", "gpus"), [(75, 2), (100, 2), (150, 3), (400, 6)])
def test_tensor_parallelism_splits_all(batch: int, gpus: int) -> None:
    """14.96 GiB of weights and 1 GiB of cache for each sequence of 8,192 tokens, over 79.2 GiB each.

    128 KiB of keys and values per token of Llama 3 8B: 2·32·8·128·2 bytes.
    """
    found, saved = _split("llama-3-8b", "h100-sxm", task="serve", seq=8192, batch=batch)
    assert found == gpus
    assert saved > (14.95 + batch) * (1 - 1 / gpus) * 2**30


@pytest.mark.parametrize("replicas", [1, 2, 8])
@pytest.mark.parametrize(
    ("gpu", "options", "gpus"),
    [
        # 16·N = 119.66 GiB (Rajbhandari et al. 2020, arXiv 1910.02054, ZeRO-3) over what is left of 23.6 GiB by
        # 2 GiB of checkpoints (32·8192·4096·2 bytes), a block and the context: 4 to 6.5 GiB
        ("rtx-4090", {"recompute": "full", "loss": "fused"}, 7),
        # 34 GiB of activations, 13.7 GiB of logits and loss, at least 0.6 GiB around them: 119.66 over 28 to 31
        ("h100-sxm", {}, 4),
    ],
)
def test_the_floor_knows_no_replicas(gpu: str, options: dict[str, Any], gpus: int, replicas: int) -> None:
    """What is split has no buckets of all gradients beside it, so --gpus changes nothing."""
    assert _split("llama-3-8b", gpu, gpus=replicas, seq=8192, **options)[0] == gpus


def test_what_paged_states_need_is_with_the_host() -> None:
    """8·N = 59.83 GiB stay for 17 to 19.6 GiB of each card, as the states may be in the host's memory: 4."""
    options = {"recompute": "full", "loss": "fused", "optimizer": "adamw-paged"}
    assert _split("llama-3-8b", "rtx-4090", seq=8192, **options)[0] == 4


def test_no_split_of_what_is_not_divided() -> None:
    """ZeRO divides no activations: with 80 GiB of them no number of GPUs is enough."""
    assert _split("llama-3-8b", "h100-sxm", seq=8192, batch=4) == (0, 0.0)

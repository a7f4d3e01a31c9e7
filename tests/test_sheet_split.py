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


# --- other hardware -----------------------------------------------------------------------------------------


def _gpus(sheet: ls.Sheet) -> dict[str, str]:
    """GPU -> what it costs, of the remedies that name another one."""
    return {str(r.options[0][1]): r.costs for r in sheet.remedies if r.change.startswith("--gpu ")}


def test_a_larger_gpu_says_what_it_costs_in_time() -> None:
    """119 GiB at 273 GB/s hold what 80 GiB at 3,350 do not, 12 times as long; one as fast as these is named as well."""
    found = _gpus(ls.plan("llama-3-8b", "h100-sxm", task="serve", seq=8192, batch=95))
    assert list(found) in (["dgx-spark-gb10", "h200-sxm"], ["dgx-spark-gb10", "h200-nvl"])
    assert "a step takes 12 times as long" in found.pop("dgx-spark-gb10")
    assert "times as long" not in next(iter(found.values()))


def test_a_larger_gpu_has_the_rate_that_is_asked_for() -> None:
    """An A100 has no fp8 rate: though it is the smallest that holds the step in fp8, it is no way out."""
    sheet = ls.plan("llama-3.2-1b", "l4", precision="fp8", seq=10_240)
    found = _gpus(sheet)
    assert "a100-pcie-80gb" in {g.id for g in ls.gpus() if g.memory_usable_bytes > sheet.memory.peak.high}
    assert found
    assert not [name for name in found if "fp8" not in ls.gpu(name).dtypes]


@pytest.mark.parametrize(
    ("gpu", "options", "said"),
    [
        ("tpu-v5e", {"task": "qlora"}, ["PyTorch with CUDA", "bitsandbytes only"]),
        ("trainium2", {"optimizer": "adamw-8bit", "loss": "fused"}, ["PyTorch with CUDA", "adamw-8bit", "Triton"]),
        ("mi300x", {"task": "qlora", "loss": "fused"}, ["PyTorch with CUDA"]),  # both have versions for it
        ("h100-sxm", {"task": "qlora", "loss": "fused"}, []),
    ],
)  # fmt: skip
def test_what_is_known_for_cuda_only(gpu: str, options: dict[str, Any], said: list[str]) -> None:
    """bitsandbytes' installation guide names NVIDIA, AMD, Intel and Apple; Triton compiles for NVIDIA and AMD."""
    warnings = ls.plan("llama-3.2-1b", gpu, seq=512, **options).warnings
    assert len(warnings) == len(said)
    assert all(words in warning for words, warning in zip(said, warnings, strict=True))


def test_no_remedy_stands_on_software_that_is_not_there() -> None:
    """On a TPU neither 8-bit Adam nor Liger nor QLoRA is a way out, and no preset is named for one."""
    sheet = ls.plan("llama-3-8b", "tpu-v5e")
    assert not [r for r in sheet.remedies if any(w in r.change for w in ("8bit", "fused", "qlora"))]
    assert not [use for use, _, _ in sheet.capacity.largest_presets if "8-bit Adam" in use or use == "QLoRA"]
    assert any("8bit" in r.change for r in ls.plan("llama-3-8b", "h100-sxm").remedies)

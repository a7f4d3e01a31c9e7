"""Memory of serving: weights by format, caches by architecture, against checkpoints, logs and papers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import loadsheet as ls
from loadsheet.memory import MemoryAccount, kv_bytes_per_token, serving_memory
from loadsheet.memory.terms import format_bytes_of
from loadsheet.recipe import Serving, recipe
from loadsheet.units import GIB

K = 1024


def serve(model: Any, **options: Any) -> MemoryAccount:
    """The account of serving; batch 1 and 128 tokens unless given."""
    return serving_memory(ls.model(model), recipe(**{"task": "serve", "batch": 1, "seq": 128, **options}))


def bytes_of(account: MemoryAccount, item: str, instant: int = 0) -> float:
    """Bytes of one item at prefill (0) or decode (1)."""
    return float(account.instants[instant].tensors[item].estimate.mid)


def cache(model: Any, batch: int, length: int, kv: str = "bf16") -> float:
    """Bytes of the cache of `batch` sequences of `length` tokens."""
    return bytes_of(serve(model, batch=batch, seq=length, kv=kv), "KV cache")


# --- weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "weights", "gigabytes"),
    [("llama-2-7b", "int4", 3.89), ("llama-2-70b", "int4", 36.61), ("mixtral-8x7b", "int4", 24.65)],
)
def test_int4_is_as_large_as_published_checkpoints(model: str, weights: str, gigabytes: float) -> None:
    """AWQ, 4 bits, groups of 128, as TheBloke's model cards list the files (10⁹ bytes, two decimals)."""
    assert pytest.approx(gigabytes, abs=0.006) == bytes_of(serve(model, weights=weights), "weights") / 1e9


@pytest.mark.parametrize(
    ("model", "weights", "gib"),
    [
        ("llama-3.1-70b", "bf16", 8 * 16.4605),  # vllm-project/vllm#10702, 8 GPUs
        ("llama-3-8b", "fp8", 8.4596),  # vllm-project/vllm#8009
        ("mistral-large-123b", "fp8", 4 * 28.7698),  # vllm-project/vllm#8881, 4 GPUs
    ],
)
def test_weights_are_as_large_as_vllm_loads_them(model: str, weights: str, gib: float) -> None:
    """vLLM's logs, "Loading model weights took … GiB", over all GPUs, to 0.3 %."""
    assert pytest.approx(gib, rel=0.003) == bytes_of(serve(model, weights=weights), "weights") / GIB


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bf16", 2 * 4096 * 14336), ("fp8", 4096 * 14336 + 4096 * 4), ("int8", 4096 * 14336 + 4096 * 4),
        ("int4", 4096 * 14336 // 2 + 4096 * 112 * 2 + 4096 * 112 // 2),
        ("nf4", 4096 * 14336 // 2 + 4096 * 14336 // 64 * 4 + 64),
    ],
)  # fmt: skip
def test_bytes_of_one_matrix(name: str, expected: int) -> None:
    """A (4096, 14336) matrix: a scale per row in 8 bits; scale and 4-bit zero per 128, or fp32 per 64, in 4 bits."""
    assert sum(format_bytes_of((4096, 14336), name)) == expected


def test_a_last_group_that_is_not_full_counts_whole() -> None:
    """Rows of 200 numbers are two groups of 128 (GPTQ and AWQ kernels pad the last group)."""
    assert format_bytes_of((3, 200), "int4") == (300, 6 * 2 + 3)


def test_small_groups_cost_more() -> None:
    """Groups of 32 instead of 128: 20/32 bits of scales per number instead of 20/128."""
    blocks = 6_476_005_376  # Llama 2 7B without embedding, head and norms
    more = bytes_of(serve("llama-2-7b", weights="int4", group=32), "weights")
    less = bytes_of(serve("llama-2-7b", weights="int4"), "weights")
    assert more - less == blocks * (20 / 32 - 20 / 128) / 8


def test_routers_and_embeddings_stay_in_sixteen_bits() -> None:
    """Mixtral: 32 routers of 8 × 4,096, embedding, head and norms are 2 bytes each, the rest one and its scales."""
    rest = 2 * 32_000 * 4096 + 32 * (8 * 4096 + 2 * 4096) + 4096
    account = serve("mixtral-8x7b", weights="int8")
    assert bytes_of(account, "embedding, head, norms in 16 bits") == 2 * rest
    assert bytes_of(account, "int8 numbers") == 46_702_792_704 - rest


def test_a_tied_head_is_stored_once() -> None:
    """Llama 3.2 1B: 1,235,814,400 parameters, not 1,498,482,688 (the head's matrix is the embedding's)."""
    assert bytes_of(serve("llama-3.2-1b"), "weights") == 2 * 1_235_814_400


# --- caches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt2", 2 * 12 * 12 * 64 * 2),  # as many heads as queries
        ("llama-2-70b", 327_680),  # 8 of 64 heads: arXiv 2307.09288
        ("llama-3.1-405b", 516_096),  # arXiv 2505.09343, table 1
        ("qwen2.5-72b", 327_680),  # the same table
        ("gemma-2b", 18_432),  # one head of 256 for all queries
        ("qwen3-4b", 147_456),  # head_dim 128, though 2560/32 is 80
        ("mistral-nemo-12b", 163_840),  # head_dim 128, though 5120/32 is 160
        ("deepseek-v3", 70_272),  # latents: the same table
        ("gpt-oss-120b", 73_728),  # alvarobartt/hf-mem#60: 2 · 36 layers · 8 · 64 · 2
    ],
)
def test_cache_of_one_token(model: str, expected: int) -> None:
    """Keys and values (or latents) of one token in 16 bits, before any window is full."""
    assert kv_bytes_per_token(ls.model(model)) == expected


@pytest.mark.parametrize(
    ("model", "gib", "tokens"),
    [
        ("llama-3.1-70b", 8 * 107.35, 2_814_144),  # vllm-project/vllm#10702
        ("gemma-3-27b", 4 * 18.03, 152_416),  # #16378; that engine gives every layer every token
        ("gpt-oss-120b", 5.38, 78_384),  # alvarobartt/hf-mem#60
        ("opt-125m", 124.79, 3_634_912),  # #15394, which rounds by blocks of 16 tokens
    ],
)
def test_cache_of_one_token_in_vllm_logs(model: str, gib: float, tokens: int) -> None:
    """GiB of cache over "GPU KV cache size: … tokens", to 0.1 %."""
    assert pytest.approx(gib * GIB / tokens, rel=1e-3) == kv_bytes_per_token(ls.model(model))


@pytest.mark.parametrize(
    ("model", "batch", "length", "gib"),
    [
        ("deepseek-v3", 1, 128 * K, 8.578),  # 61 · 576 · 2 bytes; by heads it would be 213.5
        ("gemma-3-27b", 1, 128 * K, 10.406),  # 10 layers of 131,072 tokens and 52 of 1,024; all whole: 62.0
        ("gpt-oss-20b", 32, 8 * K, 6.094),  # 12 layers of 8,192 and 12 of 128: alvarobartt/hf-mem#70
        ("mistral-7b-v0.1", 1, 32 * K, 0.5),  # 4,096 of 32,768 tokens
        ("llama-3-8b", 8, 8 * K, 8.0),
        ("llama-4-scout", 1, 128 * K, 7.125),  # 12 layers whole and 36 in chunks of 8,192, 8 heads of 128
    ],
)
def test_cache_with_windows_chunks_and_latents(model: str, batch: int, length: int, gib: float) -> None:
    """A layer keeps no more than its window or chunk; a latent stands for all heads."""
    assert pytest.approx(gib, abs=0.0006) == cache(model, batch, length) / GIB


def test_a_window_matters_only_once_it_is_full() -> None:
    """gpt-oss: up to 128 tokens every layer grows, after that every second one."""
    size = {n: cache("gpt-oss-20b", 1, n) for n in (127, 128, 129)}
    assert (size[128] - size[127], size[129] - size[128]) == (2 * 24 * 8 * 64 * 2, 2 * 12 * 8 * 64 * 2)


@pytest.mark.parametrize(("kv", "each"), [("bf16", 2), ("fp16", 2), ("fp32", 4), ("fp8", 1), ("int8", 1)])
def test_cache_by_number_format(kv: str, each: int) -> None:
    """Llama 3 8B, 8,192 tokens: 2·32·8·128 numbers each."""
    assert cache("llama-3-8b", 1, 8192, kv) == 8192 * 2 * 32 * 8 * 128 * each


def test_a_draft_of_many_short_sequences_needs_what_its_tokens_need() -> None:
    """64 sequences of 128 tokens and one of 8,192 hold the same number of tokens."""
    assert cache("llama-3-8b", 64, 128) == cache("llama-3-8b", 1, 8192)


# --- instants -----------------------------------------------------------------------------------------------


def test_prefill_and_decode_are_two_instants() -> None:
    """Weights and caches stay; a chunk of 8,192 tokens needs more for a moment than one token."""
    account = serve("llama-3-8b", seq=8192)
    assert [i.name for i in account.instants] == ["prefill", "decode"]
    chunk, token = (bytes_of(account, f"activations of {n}", k) for k, n in enumerate(("prefill", "decode")))
    assert chunk > 1000 * token


def test_prefill_depends_on_the_chunk_and_not_on_the_length() -> None:
    """With chunks of 2,048 tokens a prompt of 8,192 needs a quarter of the moment's memory (as in vLLM)."""
    whole, quarter = (
        bytes_of(serve("llama-3-8b", seq=8192, prefill_chunk=c), "activations of prefill")
        for c in (8192, 2048)
    )
    longer = bytes_of(serve("llama-3-8b", seq=65536, prefill_chunk=2048), "activations of prefill")
    assert pytest.approx(whole / 4, rel=0.01) == quarter
    assert longer == quarter


def test_logits_of_the_last_token_only() -> None:
    """Decoding 256 sequences: 256 rows of 128,256 logits in 16 bits and fp32, not one per prompt token."""
    account = serve("llama-3-8b", batch=256, seq=1024)
    logits = 256 * 128_256 * 6
    assert logits < bytes_of(account, "activations of decode", 1) < 1.1 * logits


# --- one formula, two uses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model", ["llama-3-8b", "gemma-3-1b", "deepseek-v2-lite", "gpt-oss-20b", "mixtral-8x7b"]
)
@pytest.mark.parametrize("options", [{}, {"weights": "int4", "kv": "fp8"}, {"prefill_chunk": 512}], ids=str)
def test_arrays_give_what_numbers_give(model: str, options: dict[str, Any]) -> None:
    """Batch and length as arrays: both instants, entry by entry."""
    found, made = ls.model(model), recipe(task="serve", batch=1, seq=64, **options)
    assert isinstance(made, Serving)
    batch, length = np.array([[1], [3]]), np.array([[64, 1000, 5000]])
    many = serving_memory(found, replace(made, batch=batch, seq=length)).instants
    for row, b in enumerate(batch[:, 0]):
        for column, t in enumerate(length[0]):
            one = serving_memory(found, replace(made, batch=int(b), seq=int(t))).instants
            grid = [np.broadcast_to(i.tensors.total.mid, (2, 3))[row, column] for i in many]
            assert [i.tensors.total.mid for i in one] == grid


@pytest.mark.parametrize(("name", "published"), [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)])
def test_gpt_oss_in_mxfp4_is_as_large_as_its_checkpoint(name: str, published: float) -> None:
    """Checkpoint sizes of the model card (arXiv 2508.10925, table 1), GiB: experts in 4.25 bits, the rest in 16."""
    sheet = ls.plan(name, gpu="h100-sxm", task="serve", weights="mxfp4", seq=2048)
    weights = next(i for i in sheet.memory.instants[0].tensors.items if i.name == "weights")
    assert round(weights.amount / GIB, 1) == published
    assert any("--weights" in w for w in ls.plan(name, gpu="h100-sxm", task="serve").warnings)

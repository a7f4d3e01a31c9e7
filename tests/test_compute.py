"""FLOPs, step time and decode against closed forms from papers, configs and data sheets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadsheet as ls
from loadsheet.compute.flops import StepFlops, attention_flops_per_token, attention_share, six_nd, step_flops
from loadsheet.compute.serving import DecodeStep, critical_batch, touched_share
from loadsheet.compute.step import seconds, step_time, utilisation
from loadsheet.memory.serving import touched_bytes
from loadsheet.memory.training import tape_training
from loadsheet.recipe import Training, recipe
from loadsheet.units import format_duration


def flops(name: Any, length: Any, batch: Any = 1, **options: Any) -> StepFlops:
    """FLOPs of one micro-batch."""
    options = {"task": "train", **options}
    made = recipe(batch=1, seq=64, **options)
    assert isinstance(made, Training)
    made = replace(made, batch=batch, seq=length)  # recipe() itself takes no arrays
    return step_flops(tape_training(ls.model(name), made), batch * length, made.execution.recompute)


def config(name: str) -> dict[str, Any]:
    """The published config of a preset."""
    return dict(ls.model(name).config or {})


def q_width(c: dict[str, Any]) -> int:
    """Query heads times head_dim."""
    heads = c.get("num_attention_heads") or c["n_head"]
    hidden = c.get("hidden_size") or c["n_embd"]
    return int(heads * (c.get("head_dim") or hidden // heads))


def layers(c: dict[str, Any]) -> int:
    """Number of blocks."""
    return int(c.get("num_hidden_layers") or c["n_layer"])


DENSE = ["gpt2", "llama-2-7b", "llama-3-8b", "llama-3.2-1b", "qwen2.5-1.5b", "qwen3-4b", "gemma-2-2b", "phi-2",
         "mistral-7b-v0.1", "pythia-1.4b"]  # fmt: skip


# --- training: the rule of thumb, made exact --------------------------------------------------------------


@pytest.mark.parametrize("name", DENSE)
def test_full_attention_is_six_n_and_twelve_ltq(name: str) -> None:
    """6·N_matmul + 12·L·T·q per token, with the whole score matrix counted (arXiv 2204.02311, appendix B)."""
    length, c = 384, config(name)
    expected = 6 * ls.model(name).matmul_params + 12 * layers(c) * length * q_width(c)
    assert expected * length == flops(name, length).full


@pytest.mark.parametrize("name", [n for n in DENSE if n not in ("gemma-2-2b", "mistral-7b-v0.1")])
def test_causal_attention_needs_half_and_the_diagonal(name: str) -> None:
    """T·(T + 1)/2 of the T² pairs: a little more than half."""
    length, c = 384, config(name)
    pairs = length * (length + 1) // 2
    expected = 6 * ls.model(name).matmul_params * length + 12 * layers(c) * q_width(c) * pairs
    assert expected == flops(name, length).model


@pytest.mark.parametrize(
    ("hidden", "heads", "blocks", "vocabulary", "length", "batch"),
    [(12288, 96, 96, 51200, 2048, 2), (2304, 24, 24, 51200, 2048, 1), (1536, 16, 40, 50257, 512, 3)],
)
def test_narayanan_closed_form(
    hidden: int, heads: int, blocks: int, vocabulary: int, length: int, batch: int
) -> None:
    """72·B·s·l·h²·(1 + s/(6·h) + V/(12·l·h)): arXiv 2104.04473, appendix, without its recomputation."""
    gpt = {
        "model_type": "gpt2", "n_embd": hidden, "n_head": heads, "n_layer": blocks, "n_positions": length,
        "vocab_size": vocabulary,
    }  # fmt: skip
    b, s, k, h, v = batch, length, blocks, hidden, vocabulary
    expected = 72 * b * s * k * h**2 * (1 + s / (6 * h) + v / (12 * k * h))
    assert pytest.approx(expected, rel=1e-12) == flops(gpt, length, batch).full


def test_narayanan_with_recomputation() -> None:
    """96·B·s·l·h²·(1 + s/(6·h) + V/(16·l·h)) of the same paper: causal, each block forward once more."""
    h, k, v, s = 2304, 24, 51200, 2048
    gpt = {"model_type": "gpt2", "n_embd": h, "n_head": 24, "n_layer": k, "n_positions": s, "vocab_size": v}
    half = (s + 1) / 2  # of s keys, the causal mean
    expected = 96 * s * k * h**2 * (1 + half / (6 * h) + v / (16 * k * h))
    assert pytest.approx(expected, rel=1e-12) == flops(gpt, s, recompute="full").hardware


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt2", "mixtral-8x7b", "gemma-2-2b"])
def test_recompute_adds_one_forward_of_the_blocks(name: str) -> None:
    """Everything but the head runs forward twice; what the model needs stays the same."""
    length = 512
    plain, again = flops(name, length), flops(name, length, recompute="full")
    m = ls.model(name)
    head = 2 * m.head.in_features * m.vocab_size * length
    assert (plain.model, plain.forward - head) == (again.model, again.recomputed)
    assert again.hardware - again.model == again.recomputed


def test_selective_recompute_repeats_the_attention_core() -> None:
    """Scores and mix again, 4·q·T·(T + 1)/2 per block, and nothing else (arXiv 2205.05198, section 5)."""
    length, c = 256, config("gpt2")
    again = flops("gpt2", length, recompute="selective", attention="eager")
    assert 4 * layers(c) * q_width(c) * length * (length + 1) // 2 == again.recomputed


def test_nothing_is_recomputed_without_recompute() -> None:
    """Hardware FLOPs are the model's."""
    plain = flops("llama-3-8b", 512)
    assert plain.hardware == plain.model


def test_backward_is_twice_forward() -> None:
    """2·N to the inputs, 2·N to the weights, when all weights train."""
    f = flops("llama-3-8b", 1024)
    assert 2 * f.forward == f.input_grads + f.weight_grads


def test_attention_share_of_the_forward() -> None:
    """What parameters do not account for: 2·L·q·(T + 1) of 2·N_matmul + 2·L·q·(T + 1) per token."""
    length, c, m = 1024, config("gpt2"), ls.model("gpt2")
    attention = 2 * layers(c) * q_width(c) * (length + 1)
    expected = attention / (2 * m.matmul_params + attention)
    assert pytest.approx(expected, rel=1e-12) == attention_share(flops("gpt2", length), m.matmul_params)


# --- adapters -------------------------------------------------------------------------------------------


def test_lora_costs_four_per_frozen_parameter() -> None:
    """Forward 2 and input gradients 2, no weight gradients; 6 per adapter parameter.

    The first block's q, k, v need no input gradient: the frozen embedding before them takes none.
    """
    length, rank, c, m = 512, 16, config("llama-3-8b"), ls.model("llama-3-8b")
    d, q, kv = c["hidden_size"], q_width(c), c["num_key_value_heads"] * c["head_dim"]
    attention = 12 * layers(c) * q * length
    frozen = 4 * m.matmul_params - 2 * d * (q + 2 * kv)
    adapters = 6 * m.adapter_params(rank) - 2 * 3 * rank * d
    assert (frozen + adapters + attention) * length == flops(
        "llama-3-8b", length, task="lora", rank=rank
    ).full


def test_lora_has_weight_gradients_for_adapters_only() -> None:
    """2 FLOPs per adapter parameter and token."""
    f = flops("llama-3-8b", 256, task="lora", rank=8)
    assert 2 * ls.model("llama-3-8b").adapter_params(8) * 256 == f.weight_grads


@pytest.mark.parametrize("task", ["lora", "qlora"])
def test_adapters_cost_about_two_thirds(task: str) -> None:
    """4 of 6: frozen weights save a third of the FLOPs, whatever stores them."""
    length = 512
    assert (
        pytest.approx(2 / 3, abs=0.01)
        == flops("llama-3-8b", length, task=task).model / flops("llama-3-8b", length).model
    )


# --- experts ----------------------------------------------------------------------------------------------


def test_mixtral_multiplies_by_two_of_eight_experts() -> None:
    """Each token: router, 2 experts of 3·d·f, attention and head (arXiv 2401.04088: 13B active of 47B)."""
    length, c = 256, config("mixtral-8x7b")
    d, f, q = c["hidden_size"], c["intermediate_size"], q_width(c)
    kv = c["num_key_value_heads"] * (q // c["num_attention_heads"])
    block = 2 * d * q + 2 * d * kv + 2 * 3 * d * f + d * 8
    active = layers(c) * block + d * c["vocab_size"]
    expected = 6 * active + 12 * layers(c) * q * length
    assert expected * length == flops("mixtral-8x7b", length).full


@pytest.mark.parametrize(
    ("name", "active", "total", "looked_up"),
    [
        ("mixtral-8x7b", 12.9, 46.7, 32_000 * 4096), ("deepseek-v3", 37, 671, 129_280 * 7168),
        ("qwen3-30b-a3b", 3.3, 30.5, 151_936 * 2048),
        ("gpt-oss-20b", 3.61 + 0.58, 20.91, 201_088 * 2880),  # its model card leaves the input embedding out
    ],
)  # fmt: skip
def test_experts_cost_by_what_is_active(name: str, active: float, total: float, looked_up: int) -> None:
    """6 FLOPs per token and active parameter (papers and model cards, in billions), the table looked up aside."""
    m = ls.model(name)
    assert (pytest.approx(active, rel=0.02), pytest.approx(total, rel=0.01)) == (
        m.active_params / 1e9,
        m.params / 1e9,
    )
    assert pytest.approx(6 * (active * 1e9 - looked_up), rel=0.02) == flops(name, 1).model


def test_experts_reached_by_a_batch() -> None:
    """1 - (1 - k/E)^B of them: 2 of 8 for one token; of 16 tokens all but (3/4)^16 of the experts."""
    assert touched_share(1, 8, 2) == 0.25
    assert pytest.approx(1 - 0.75**16, rel=1e-12) == touched_share(16, 8, 2)
    assert pytest.approx([0.25, 0.4375, 0.578125], rel=1e-12) == list(
        touched_share(np.array([1, 2, 3]), 8, 2)
    )


def test_decode_of_mixtral_reads_two_experts_at_batch_one() -> None:
    """Batch 1 reads the active parameters without the embedding table, a large batch all of them."""
    m, made = ls.model("mixtral-8x7b"), recipe(task="serve")
    table = 32000 * 4096
    assert 2 * (m.active_params - table) == touched_bytes(m, made, touched_share(1, 8, 2))
    assert 2 * (m.params - table) == touched_bytes(m, made, 1.0)


def test_decode_of_mixtral_from_an_index_alone(tmp_path: Path) -> None:
    """The index names the bytes in all and no tensor: at batch 1 two of eight experts all the same."""
    plain = ls.model("mixtral-8x7b")
    (tmp_path / "config.json").write_text(json.dumps(config("mixtral-8x7b")))
    index = {"metadata": {"total_size": 2 * plain.params}, "weight_map": {"lm_head.weight": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    m = ls.model(tmp_path / "model.safetensors.index.json")
    assert m.stored is not None
    assert not m.stored.complete
    made = recipe(task="serve")
    for share in (touched_share(1, 8, 2), 1.0):
        assert touched_bytes(m, made, share) == touched_bytes(plain, made, share)


# --- windows ----------------------------------------------------------------------------------------------


def test_a_window_bounds_the_pairs() -> None:
    """Mistral's 4,096: w·(w + 1)/2 + (T - w)·w pairs instead of T·(T + 1)/2 (arXiv 2310.06825)."""
    length, window, c = 16384, 4096, config("mistral-7b-v0.1")
    pairs = window * (window + 1) // 2 + (length - window) * window
    expected = 6 * ls.model("mistral-7b-v0.1").matmul_params * length + 12 * layers(c) * q_width(c) * pairs
    assert expected == flops("mistral-7b-v0.1", length).model


def test_only_some_layers_have_windows() -> None:
    """Gemma 3 1B: 22 of 26 layers see 512 tokens, 4 see all (arXiv 2503.19786, table 1: 5 local, 1 global)."""
    length, window, c = 2048, 512, config("gemma-3-1b")
    local = window * (window + 1) // 2 + (length - window) * window
    whole = length * (length + 1) // 2
    expected = 6 * ls.model("gemma-3-1b").matmul_params * length + 12 * q_width(c) * (22 * local + 4 * whole)
    assert expected == flops("gemma-3-1b", length).model


def test_latent_attention_has_its_own_widths() -> None:
    """DeepSeek-V3: keys of 128 + 64, values of 128, 128 heads: 6·h·(192 + 128)·T per layer and token, in full."""
    length, m = 128, ls.model("deepseek-v3")
    expected = 6 * m.matmul_params + 61 * 6 * 128 * (192 + 128) * length
    assert expected * length == flops("deepseek-v3", length).full


# --- published totals -------------------------------------------------------------------------------------


def test_palm_appendix_b() -> None:
    """PaLM 540B: 238.3 thousand tokens/s on 6,144 TPU v4 (275 TFLOP/s) are an MFU of 46.2 % (arXiv 2204.02311)."""
    per_token = six_nd(540.35e9, 1) + attention_flops_per_token(118, 2048, 48 * 256)
    assert pytest.approx(0.462, abs=0.0005) == 238.3e3 * per_token / (6144 * 275e12)


def test_mfu_and_step_time_are_inverse() -> None:
    """At that MFU a batch of 2,048 sequences of 2,048 tokens takes the step that the rate implies."""
    tokens = 2048 * 2048
    work = tokens * (six_nd(540.35e9, 1) + attention_flops_per_token(118, 2048, 48 * 256))
    assert pytest.approx(tokens / 238.3e3, rel=0.001) == seconds(work, 6144 * 275e12, 0.4623)


@pytest.mark.parametrize(
    ("name", "tokens", "published"),
    [("gpt-3-175b", 300e9, 3.14e23), ("llama-3.1-405b", 15.6e12, 3.8e25)],
)
def test_six_nd_of_published_runs(name: str, tokens: float, published: float) -> None:
    """GPT-3 (arXiv 2005.14165, table D.1), Llama 3 405B (arXiv 2407.21783, section 1)."""
    assert pytest.approx(published, rel=0.005) == six_nd(ls.model(name).params, tokens)


# --- time of a step -----------------------------------------------------------------------------------------


def test_step_time_counts_what_is_recomputed() -> None:
    """The MFU is that of useful work: a step that computes 4/3 as much takes 4/3 as long."""
    mfu = utilisation(0.5)
    plain, again = step_time(3e15, 3e15, 1e15, mfu), step_time(3e15, 4e15, 1e15, mfu)
    assert (plain.mid, again.mid) == (6.0, 8.0)


def test_the_highest_mfu_gives_the_shortest_time() -> None:
    """Default range 30 to 60 % (Dubey et al. 2024: 38 to 43 %): low time is the work at 60 %."""
    t = step_time(1e15, 1e15, 1e15, utilisation(None))
    assert pytest.approx([1 / 0.6, 1 / 0.4, 1 / 0.3]) == [t.low, t.mid, t.high]


def test_gpu_hours_of_a_run() -> None:
    """Llama 3 8B, 15·10¹² tokens at 40 %: exact FLOPs per token over the H100's dense bf16 peak of 989.4 TFLOP/s."""
    length, c, m = 8192, config("llama-3-8b"), ls.model("llama-3-8b")
    per_token = 6 * m.matmul_params + 6 * layers(c) * q_width(c) * (length + 1)
    expected = per_token * 15e12 / (989.4e12 * 0.4) / 3600
    sheet = ls.plan(
        "llama-3-8b", gpu="h100-sxm", gpus=8, task="train", seq=length, tokens=15 * 10**12, mfu=0.4
    )
    assert sheet.compute.gpu_hours is not None
    assert pytest.approx(expected, rel=1e-9) == sheet.compute.gpu_hours.mid


def test_accumulation_multiplies_the_step_and_not_the_rate() -> None:
    """Four micro-batches are four times the FLOPs and the time; tokens per second stay."""
    one = ls.plan("gpt2", gpu="t4", task="train", seq=256).compute
    four = ls.plan("gpt2", gpu="t4", task="train", seq=256, accumulation=4).compute
    assert 4 * one.flops_per_step == four.flops_per_step
    assert pytest.approx(4 * one.step_seconds.mid) == four.step_seconds.mid
    assert pytest.approx(one.tokens_per_second) == four.tokens_per_second


def test_replicas_multiply_tokens() -> None:
    """Eight replicas: eight times the tokens per second, the same step (without communication)."""
    one = ls.plan("gpt2", gpu="t4", task="train", seq=256).compute
    eight = ls.plan("gpt2", gpu="t4", gpus=8, task="train", seq=256).compute
    assert pytest.approx(8 * one.tokens_per_second) == eight.tokens_per_second
    assert one.step_seconds.mid == eight.step_seconds.mid
    assert any("lower bound" in note for note in eight.notes)


# --- decode -----------------------------------------------------------------------------------------------


def serve(name: str, **options: Any) -> Any:
    """The compute part of a serving sheet on an H100."""
    return ls.plan(name, gpu="h100-sxm", task="serve", **options).compute


def test_decode_of_llama_3_8b_reads_no_input_embedding() -> None:
    """2·(8,030,261,248 - 128,256·4,096) bytes at 3.35 TB/s: 4.48 ms, 223 tokens/s at best."""
    d = serve("llama-3-8b", batch=1, seq=1).decode
    assert d.weight_bytes == 2 * (8_030_261_248 - 128_256 * 4096)
    assert pytest.approx(4.48, abs=0.005) == d.weight_seconds * 1e3
    assert pytest.approx(223, abs=0.5) == 1 / d.weight_seconds


def test_a_tied_embedding_is_read_as_the_head() -> None:
    """Llama 3.2 1B: all 1,235,814,400 parameters in 16 bits."""
    assert serve("llama-3.2-1b", batch=1, seq=1).decode.weight_bytes == 2 * 1_235_814_400


def test_positions_are_looked_up() -> None:
    """GPT-2: the 1,024 learned positions of 768 numbers are not read, the tied embedding is."""
    assert serve("gpt2", batch=1, seq=1).decode.weight_bytes == 2 * (124_439_808 - 1024 * 768)


def test_decode_reads_every_cache() -> None:
    """64 sequences of 8,192 tokens of Llama 3 8B: 64 GiB of keys and values beside 14 GiB of weights."""
    d = serve("llama-3-8b", batch=64, seq=8192).decode
    assert d.cache_bytes == 64 * 8192 * 131_072
    assert d.memory_seconds == pytest.approx((64 * 2**30 + d.weight_bytes) / 3.35e12)


def test_decode_flops_of_one_token() -> None:
    """2·N_matmul and 4·L·q for each of S cached tokens."""
    c, m = config("llama-3-8b"), ls.model("llama-3-8b")
    d = serve("llama-3-8b", batch=1, seq=4096).decode
    assert d.flops == 2 * m.matmul_params + 4 * layers(c) * q_width(c) * 4096


def test_decode_bounds_are_the_larger_and_the_sum() -> None:
    """8 s of reading and 3 s of computing: 8 s if they overlap, 11 s if not."""
    step = DecodeStep(weight_bytes=600, cache_bytes=200, flops=300, bandwidth=100, peak=100, batch=2)
    assert (step.lower, step.upper, step.intensity) == (8, 11, 0.375)


def test_compute_binds_at_the_share_of_large_products() -> None:
    """2,048 sequences: 2·N_matmul + 4·L·q·S FLOP each at 85, 60 and 40 % of 989.4 TFLOP/s, not 100, 80 and 60 %."""
    c = serve("llama-3-8b", batch=2048, seq=128)
    at_peak = 2048 * (2 * 7_504_658_432 + 4 * 32 * 4096 * 128) / 989.4e12
    assert [c.step_seconds.low, c.step_seconds.mid, c.step_seconds.high] == pytest.approx(
        [at_peak / 0.85, at_peak / 0.6, at_peak / 0.4]
    )
    assert c.bound_by == "compute"
    assert c.tokens_per_second == pytest.approx(2048 / (at_peak / 0.6))


def test_each_side_of_a_decode_step_has_its_share() -> None:
    """Batch 320: 20.4 GB take longer than 4.8e12 FLOP by the data sheet, 6.1 to 4.9 ms, and at 80 and 60 % not."""
    c = serve("llama-3-8b", batch=320, seq=128)
    assert c.decode.memory_seconds > c.decode.math_seconds
    assert c.step_seconds.mid == c.decode.math_seconds / 0.6 > c.decode.memory_seconds / 0.8
    assert c.bound_by == "compute"
    few = serve("llama-3-8b", batch=8, seq=128)
    assert [few.step_seconds.low, few.step_seconds.mid, few.step_seconds.high] == pytest.approx(
        [few.decode.memory_seconds / share for share in (1.0, 0.8, 0.6)]
    )


def test_hours_of_serving_are_of_generated_tokens() -> None:
    """Prefill is in neither hours nor money: the JSON, the page and its workings say so."""
    sheet = ls.plan("llama-3-8b", "h100-sxm", task="serve", tokens=10**9, price=2)
    assert sheet.to_dict(full=False)["compute"]["not_counted"] == ["prefill"]
    page = " ".join(sheet.text(explain=True).split())
    prompt = format_duration(sheet.compute.prefill_seconds.mid)
    assert f"prefill is not in it: {prompt} more for each prompt of 8,192 tokens" in page
    assert "per million generated tokens, prefill not in it" in page
    assert "the prefill of the prompts is not in it" in page
    training = ls.plan("gpt2", "h100-sxm", gpus=2, tokens=10**9)
    assert training.to_dict(full=False)["compute"]["not_counted"] == ["communication"]


def test_int8_and_int4_read_less() -> None:
    """Weights in 4 bits with a scale and a zero point per 128: (4 + 20/128) bits in the blocks, 16 elsewhere."""
    m = ls.model("llama-3-8b")
    blocks = m.params - 2 * 128_256 * 4096 - 266_240
    head_and_norms = 128_256 * 4096 + 266_240
    expected = blocks * (4 + 20 / 128) / 8 + 2 * head_and_norms
    assert (
        pytest.approx(expected, rel=1e-6)
        == serve("llama-3-8b", batch=1, seq=1, weights="int4").decode.weight_bytes
    )


def test_critical_batch_without_and_with_caches() -> None:
    """Where reading W bytes takes as long as computing; caches of long sequences move it out of reach."""
    m = ls.model("llama-3-8b")
    c = serve("llama-3-8b", batch=1, seq=128)
    expected = critical_batch(2 * (m.params - 128_256 * 4096), m.matmul_params, 3.35e12, 989.4e12)
    assert pytest.approx(expected) == c.critical_batch
    assert c.critical_batch_with_cache > c.critical_batch
    assert serve("llama-3-8b", batch=1, seq=8192).critical_batch_with_cache is None


def test_prefill_counts_the_head_once() -> None:
    """2·N of the blocks for each of T tokens, half the score matrix, the head for the last token only."""
    length, c, m = 1024, config("llama-3-8b"), ls.model("llama-3-8b")
    head = c["hidden_size"] * c["vocab_size"]
    work = (
        2 * (m.matmul_params - head) * length + 2 * head + 2 * layers(c) * q_width(c) * length * (length + 1)
    )
    assert (
        pytest.approx(work / 989.4e12 / 0.6, rel=1e-9) == serve("llama-3-8b", seq=length).prefill_seconds.mid
    )


# --- one formula, two uses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "mixtral-8x7b", "gemma-3-1b", "deepseek-v2-lite"])
@pytest.mark.parametrize(
    "options", [{}, {"task": "lora"}, {"recompute": "full"}, {"attention": "eager"}], ids=str
)
def test_arrays_give_what_numbers_give(name: str, options: dict[str, Any]) -> None:
    """Batch and length as arrays: every entry is the scalar answer."""
    batch, length = np.array([[1], [3]]), np.array([[64, 600, 5000]])
    many = flops(name, length, batch, **options)
    for quantity in ("forward", "model", "full", "hardware", "per_token"):
        one = [
            [getattr(flops(name, int(t), int(b), **options), quantity) for t in length[0]]
            for b in batch[:, 0]
        ]
        grid = np.broadcast_to(getattr(many, quantity), (2, 3))
        np.testing.assert_allclose(grid, np.array(one, dtype=float), rtol=1e-12)

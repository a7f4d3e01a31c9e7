"""The lecture's figures: every one that the package can compute, through its public functions.

`data/lecture.json` holds them with a word where the lecture is vague or off. `COMPUTED` says, figure by
figure, which function answers; a figure without an answer, or an answer without a figure, fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadsheet as ls
from loadsheet.arch.model import Model
from loadsheet.arch.work import DTYPE_BYTES
from loadsheet.compute.flops import StepFlops, attention_flops_per_token, six_nd, step_flops
from loadsheet.compute.serving import DecodeStep, compute_seconds, critical_batch, read_seconds
from loadsheet.compute.step import seconds, utilisation
from loadsheet.memory import kv_bytes_per_token, serving_memory, training_memory
from loadsheet.memory.serving import touched_bytes
from loadsheet.memory.training import tape_training
from loadsheet.money.price import parse_price, training_cost
from loadsheet.recipe import bytes_per_parameter, recipe, tables
from loadsheet.units import GB, GIB, KIB, MIB

FIGURES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "lecture.json").read_text(encoding="utf-8")
)["figures"]

GPT2, LLAMA2, LLAMA3, LLAMA3_70, LLAMA2_70, GPT3 = (
    "gpt2", "llama-2-7b", "llama-3-8b", "llama-3-70b", "llama-2-70b", "gpt-3-175b",
)  # fmt: skip
H100_PEAK, H100_BANDWIDTH = 989e12, 3.35e12  # as the lecture rounds them


# --- weights and states -----------------------------------------------------------------------------


def n(name: str) -> int:
    """Parameters of a preset."""
    return ls.model(name).params


def part(name: str, *parts: str) -> int:
    """Parameters of some parts of a preset."""
    return sum(ls.model(name).split[p] for p in parts)


def share(name: str, *parts: str) -> float:
    """The same over all parameters."""
    return part(name, *parts) / n(name)


def plain(name: str, number_format: str) -> float:
    """Bytes of the weights in a format, scales left out as the lecture leaves them out."""
    return n(name) * tables()["formats"][number_format]["bits"] / 8


def each(precision: str, optimizer: str) -> float:
    """Bytes per parameter of weights, gradients and states."""
    return sum(bytes_per_parameter(precision, optimizer).values())


def states(name: str) -> float:
    """GiB of weights, gradients and states, mixed precision with Adam, from the account of memory."""
    account = training_memory(ls.model(name), recipe(task="train", batch=1, seq=1))
    return account.model_states.estimate.mid / GIB


def state_share(optimizer: str) -> float:
    """Optimizer states over weights, both in fp32."""
    sizes = bytes_per_parameter("fp32", optimizer)
    return sizes["states"] / sizes["weights"]


def block(name: str, role: str = "") -> int:
    """Parameters of the first block, or of those with one role."""
    first, _ = ls.model(name).runs[0]
    return sum(p.numel for p in first.parameters() if not role or p.role == role)


def holds(base: str | None, trained: float = 0.0, optimizer: str = "adamw") -> float:
    """Billions of parameters that 80 GiB hold: all trained, or a base with a share of trained ones beside it."""
    full = each("mixed", optimizer)
    per_parameter = full if base is None else tables()["formats"][base]["bits"] / 8 + trained * full
    return 80 * GIB / per_parameter / 1e9


# --- the lecture's small GPT and the block of Korthikanti et al. ---------------------------------------


@cache
def small_gpt(layers: int = 4) -> Model:
    """d = 256, 8 heads, 1,000 tokens, no dropout, tied head."""
    return gpt(256, 8, layers, 1024, dropout=0.0)


@cache
def gpt(width: int, heads: int, layers: int, length: int, dropout: float = 0.1) -> Model:
    """A GPT of these sizes with a vocabulary of 1,000."""
    return ls.model({
        "model_type": "gpt2", "n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": length,
        "vocab_size": 1000, "activation_function": "gelu", "resid_pdrop": dropout, "attn_pdrop": dropout,
        "embd_pdrop": dropout,
    })  # fmt: skip


def kept(batch: int, length: int, layers: int, recompute: str = "none") -> float:
    """Bytes that the small GPT keeps for backward in fp32.

    Its boolean T×T mask, one per block, comes on top: our blocks share one mask.
    """
    options = {"attention": "eager", "precision": "fp32", "recompute": recompute}
    taped = tape_training(small_gpt(layers), recipe(task="train", batch=batch, seq=length, **options))
    full = recompute == "full"
    blocks = sum((s.input_bytes if full else s.saved) * count for s, count in taped.runs)
    masks = 0 if full else layers * length**2
    return taped.before.saved + blocks + taped.after.saved + masks


def quadratic_share() -> float:
    """Percent of c·T² at T = 512 in the least-squares fit a·T + c·T² of what is kept (B = 4, L = 4)."""
    lengths = np.array([32, 64, 128, 256, 512], dtype=float)
    sizes = np.array([kept(4, int(length), 4) for length in lengths])
    (_, c), *_ = np.linalg.lstsq(np.stack([lengths, lengths**2], axis=1), sizes, rcond=None)
    return float(100 * c * 512**2 / sizes[-1])


def block_gib(sizes: tuple[int, int, int, int], recompute: str) -> float:
    """GiB that all blocks of a GPT keep in 16 bits, one sequence, with dropout and eager attention."""
    length = sizes[3]
    made = recipe(task="train", batch=1, seq=length, attention="eager", stack="megatron", recompute=recompute)
    account = training_memory(gpt(*sizes), made)
    name = "block inputs (checkpoints)" if recompute == "full" else "activations"
    return account.instants[0].tensors[name].estimate.mid / GIB


#: width, heads, blocks, tokens: the five rows of the lecture's table
BLOCKS = [
    (768, 12, 12, 1024), (4096, 32, 32, 4096), (4096, 32, 32, 8192), (8192, 64, 80, 8192), (12288, 96, 96, 2048),
]  # fmt: skip


# --- caches -------------------------------------------------------------------------------------------


def cache_bytes(model: Model, batch: int, length: int) -> float:
    """Bytes of the cache of `batch` sequences that are `length` tokens long."""
    account = serving_memory(model, recipe(task="serve", batch=batch, seq=length))
    return float(account.instants[0].tensors["KV cache"].estimate.mid)


def without_gqa(name: str) -> Model:
    """The same model with as many KV heads as query heads."""
    config = dict(ls.model(name).config or {})
    return ls.model({**config, "num_key_value_heads": config["num_attention_heads"]})


# --- FLOPs, time, money -----------------------------------------------------------------------------


@cache
def flops(name: str, length: int) -> StepFlops:
    """FLOPs of one sequence, all weights trained; "small" is the lecture's GPT."""
    model = small_gpt() if name == "small" else ls.model(name)
    made = recipe(task="train", batch=1, seq=length, recompute="full")
    return step_flops(tape_training(model, made), length, "full")


def per_parameter(which: str) -> float:
    """FLOPs per token and parameter that multiplies, attention's own taken out (small GPT, T = 64)."""
    f = flops("small", 64)
    model = small_gpt()
    attention = attention_flops_per_token(4, 64, 256)
    forward = f.forward_full / f.tokens - attention / 3
    both = f.full / f.tokens - attention
    return float({"forward": forward, "backward": both - forward, "both": both}[which] / model.matmul_params)


def attention_ratio(layers: int, length: int, width: int) -> float:
    """Attention's FLOPs over those of 12·L·d² parameters."""
    return float(attention_flops_per_token(layers, length, width) / six_nd(12 * layers * width**2, 1))


def small_share(length: int) -> float:
    """Attention's share of all FLOPs of the small GPT."""
    f = flops("small", length)
    return float(attention_flops_per_token(4, length, 256) / (f.full / f.tokens))


def hours(parameters: float, tokens: float, peak: float = H100_PEAK, mfu: float = 0.4) -> float:
    """GPU hours of 6·N·D FLOPs."""
    return float(seconds(six_nd(parameters, tokens), peak, mfu)) / 3600


def cost(parameters: float, tokens: float) -> float:
    """Those hours at 2 per hour."""
    return float(training_cost(hours(parameters, tokens), parse_price("2")).estimate.mid)


RUNS = [(GPT2, 10e9), (LLAMA2, 2e12), (LLAMA3, 15e12), (LLAMA3_70, 15e12), (GPT3, 300e9)]


def run_size(name: str) -> float:
    """Parameters as the lecture counts them: exact, and the nominal 175 billion of GPT-3."""
    return 175e9 if name == GPT3 else n(name)


def read_all(number_format: str = "bf16") -> float:
    """Seconds to read every weight of Llama 3 8B."""
    return float(read_seconds(plain(LLAMA3, number_format), H100_BANDWIDTH))


def read_used() -> float:
    """Seconds to read what a decode step of Llama 3 8B reads."""
    model = ls.model(LLAMA3)
    return float(read_seconds(touched_bytes(model, recipe(task="serve"), 1.0), H100_BANDWIDTH))


def compute(batch: int) -> float:
    """Seconds to compute one token of each of `batch` sequences with Llama 3 8B."""
    return float(compute_seconds(ls.model(LLAMA3).matmul_params, batch, H100_PEAK))


def decode(batch: int) -> DecodeStep:
    """One decode step of Llama 3 8B as the lecture counts it: all weights read, no caches."""
    work = 2 * ls.model(LLAMA3).matmul_params * batch
    return DecodeStep(plain(LLAMA3, "bf16"), 0, work, H100_BANDWIDTH, H100_PEAK, batch)


def crossing() -> float:
    """The batch at which computing takes as long as reading all weights of Llama 3 8B."""
    model = ls.model(LLAMA3)
    return float(critical_batch(plain(LLAMA3, "bf16"), model.matmul_params, H100_BANDWIDTH, H100_PEAK))


def intensity(gpu: str) -> float:
    """FLOPs per byte at which a GPU is busy on both sides, bf16."""
    g = ls.gpu(gpu)
    return g.peak("bf16") / g.bandwidth


def resume_gb(name: str) -> float:
    """GB of a checkpoint to resume from: weights, master copy, both moments."""
    return ls.plan(name, gpu="h100-sxm", task="train", seq=1).checkpoint_bytes["resume"] / GB


A100, H100 = "a100-sxm-80gb", "h100-sxm"

COMPUTED: dict[str, Callable[[], float]] = {
    "1-004": lambda: ls.gpu(H100).peak("bf16"), "1-005": lambda: ls.gpu(H100).bandwidth,
    "1-006": lambda: intensity(H100),
    "1-007": lambda: ls.gpu("t4").memory_marketed_gb, "1-008": lambda: ls.gpu("a10g").memory_marketed_gb,
    "1-t1": lambda: ls.gpu(A100).bandwidth, "1-t2": lambda: ls.gpu(A100).peak("fp32"),
    "1-t3": lambda: ls.gpu(A100).peak("tf32"), "1-t4": lambda: ls.gpu(A100).peak("bf16"),
    "1-t5": lambda: ls.gpu(A100).peak("int8"), "1-t6": lambda: intensity(A100),
    "1-t7": lambda: ls.gpu(H100).peak("fp32"), "1-t8": lambda: ls.gpu(H100).peak("tf32"),
    "1-t9": lambda: ls.gpu(H100).peak("fp8"), "1-t10": lambda: ls.gpu(H100).peak("int8"),
    "2-012": lambda: n(LLAMA3), "2-022": lambda: DTYPE_BYTES["bf16"],
    "2-013": lambda: plain(LLAMA3, "fp32") / GIB, "2-014": lambda: plain(LLAMA3, "bf16") / GIB,
    "2-015": lambda: plain(LLAMA3, "int8") / GIB, "2-016": lambda: plain(LLAMA3, "int4") / GIB,
    "3-032": lambda: sum(p.numel for p in ls.model(GPT2).runs[0][0].parameters() if p.matmul),
    "3-033": lambda: n(GPT2), "3-034": lambda: ls.model(GPT2).matmul_params,
    "3-035": lambda: share(GPT2, "embedding"), "3-036": lambda: share(LLAMA3_70, "mlp"),
    "3-036b": lambda: part(LLAMA3_70, "mlp") / (n(LLAMA3_70) - part(LLAMA3_70, "embedding", "head")),
    "3-037a": lambda: ls.model(LLAMA2).vocab_size, "3-037b": lambda: ls.model(LLAMA3).vocab_size,
    "3-038": lambda: n(LLAMA2), "3-039": lambda: n(LLAMA3), "3-040": lambda: n(LLAMA3_70),
    "3-t1": lambda: share(LLAMA2, "embedding", "head"), "3-t2": lambda: share(LLAMA2, "attention"),
    "3-t3": lambda: share(LLAMA2, "mlp"), "3-t4": lambda: share(LLAMA3, "embedding", "head"),
    "3-t5": lambda: share(LLAMA3, "attention"), "3-t6": lambda: share(LLAMA3, "mlp"),
    "3-t7": lambda: part(GPT2, "norm"), "3-t8": lambda: part(LLAMA2, "norm"),
    "3-t9": lambda: part(LLAMA3_70, "norm"),
    "4.1-041": lambda: each("mixed", "adamw"), "4.1-042": lambda: each("fp32", "adamw"),
    "4.1-t1": lambda: each("fp32", "sgd"), "4.1-t2": lambda: each("fp32", "sgd-momentum"),
    "4.1-t3": lambda: each("pure-bf16", "adamw"), "4.1-t4": lambda: each("megatron", "adamw"),
    "4.1-043": lambda: state_share("sgd"), "4.1-044": lambda: state_share("sgd-momentum"),
    "4.1-045": lambda: state_share("adamw"), "4.1-046": lambda: states(LLAMA2),
    "4.1-t5": lambda: states(GPT2), "4.1-t6": lambda: states(LLAMA3), "4.1-t7": lambda: states(LLAMA3_70),
    "4.2-047": lambda: kept(4, 64, 4) / MIB, "4.2-048": lambda: kept(8, 64, 4) / MIB,
    "4.2-049": lambda: kept(16, 64, 4) / MIB, "4.2-050": lambda: kept(8, 64, 2) / MIB,
    "4.2-051": lambda: kept(8, 64, 4) / MIB, "4.2-052": lambda: kept(8, 64, 8) / MIB,
    "4.2-053": lambda: kept(4, 32, 4) / MIB, "4.2-054": lambda: kept(4, 64, 4) / MIB,
    "4.2-055": lambda: kept(4, 128, 4) / MIB, "4.2-056": lambda: kept(4, 256, 4) / MIB,
    "4.2-057": lambda: kept(4, 512, 4) / MIB, "4.2-058": quadratic_share,
    "4.2-059": lambda: kept(8, 256, 4) / MIB, "4.2-060": lambda: kept(8, 256, 4, "full") / MIB,
    "4.2-061": lambda: 100 * (1 - kept(8, 256, 4, "full") / kept(8, 256, 4)),
    "4.2-062": lambda: flops(LLAMA3, 2048).recomputed / flops(LLAMA3, 2048).model,
    "4.3-t1": lambda: holds("bf16"), "4.3-t2": lambda: holds("int8"), "4.3-t3": lambda: holds("int4"),
    "4.3-t4": lambda: holds(None), "4.3-t5": lambda: holds(None, optimizer="adamw-8bit"),
    "4.3-t6": lambda: holds("bf16", 0.005), "4.3-t7": lambda: holds("bf16", 0.01),
    "4.3-t8": lambda: holds("int4", 0.005), "4.3-t9": lambda: holds("int4", 0.01),
    "5-064": lambda: plain(LLAMA2, "bf16") / GIB, "5-065": lambda: plain(LLAMA3, "bf16") / GIB,
    "5-066": lambda: (ls.model(LLAMA3).symbols or {})["h_kv"],
    "5-067": lambda: (ls.model(LLAMA3).symbols or {})["h"],
    "5-068": lambda: kv_bytes_per_token(ls.model(LLAMA3)) / kv_bytes_per_token(ls.model(LLAMA2)),
    "5-t1": lambda: kv_bytes_per_token(ls.model(LLAMA2)), "5-t2": lambda: kv_bytes_per_token(ls.model(LLAMA3)),
    "5-t3": lambda: kv_bytes_per_token(ls.model(LLAMA3_70)),
    "6.1-069": lambda: per_parameter("forward"), "6.1-070": lambda: per_parameter("backward"),
    "6.1-071": lambda: per_parameter("both"), "6.1-072": lambda: attention_flops_per_token(4, 512, 256),
    "6.1-073": lambda: attention_ratio(3, 512, 512), "6.1-074": lambda: small_share(512),
    "6.1-075": lambda: attention_ratio(32, 4096, 4096),
    "6.1-075b": lambda: attention_ratio(32, 4096, 4096) / (1 + attention_ratio(32, 4096, 4096)),
    "6.3-081": lambda: utilisation(None).mid,
    "6.3-082": lambda: hours(n(GPT2), 10e9, peak=1.5e12, mfu=1) / 24,
    "6.3-083": lambda: cost(n(GPT2), 10e9), "6.3-084": lambda: cost(n(LLAMA3), 15e12),
    "6.4-085": lambda: plain(LLAMA3, "bf16") / GB, "6.4-086": lambda: read_all() * 1e3,
    "6.4-086b": lambda: read_used() * 1e3, "6.4-087": lambda: compute(1) * 1e6,
    "6.4-088": lambda: read_all() / compute(1), "6.4-089": lambda: 1 / read_all(),
    "6.4-089b": lambda: 1 / read_used(), "6.4-090": lambda: 100 * (1 - compute(1) / read_all()),
    "6.4-091": crossing, "6.4-q8": lambda: read_all("int8") * 1e3, "6.4-q4": lambda: read_all("int4") * 1e3,
    "6.4-q8r": lambda: 1 / read_all("int8"), "6.4-q4r": lambda: 1 / read_all("int4"),
    "8.2-103": lambda: resume_gb(LLAMA3_70), "8.2-103b": lambda: resume_gb(LLAMA3),
    "9.1-104": lambda: states(LLAMA3), "9.2-105": lambda: plain(LLAMA2, "bf16") / GB,
    "9.2-106": lambda: states(LLAMA2) - plain(LLAMA2, "bf16") / GIB,
    "9.3.1-107": lambda: block(LLAMA2, "attention"), "9.3.1-108": lambda: block(LLAMA2, "mlp"),
    "9.3.1-109": lambda: block(LLAMA2, "norm"), "9.3.1-110": lambda: block(LLAMA2),
    "9.3.1-111": lambda: ls.model(LLAMA2).num_layers * block(LLAMA2),
    "9.3.1-112": lambda: part(LLAMA2, "embedding"), "9.3.1-113": lambda: part(LLAMA2, "embedding", "head"),
    "9.3.1-114": lambda: part(LLAMA2, "norm") - ls.model(LLAMA2).num_layers * block(LLAMA2, "norm"),
    "9.3.1-115": lambda: sum(ls.model(LLAMA2).split.values()),
    "9.3.2-116": lambda: each("mixed", "adamw-8bit"),
    "9.3.2-117": lambda: each("mixed", "adamw") - each("mixed", "adamw-8bit"),
    "9.3.2-118": lambda: n(LLAMA3) * (each("mixed", "adamw") - each("mixed", "adamw-8bit")),
    "9.3.2-119": lambda: n(LLAMA3) * (each("mixed", "adamw") - each("mixed", "adamw-8bit")) / GIB,
    "9.3.2-120": lambda: n(LLAMA3) * each("mixed", "adamw") / GIB,
    "9.3.2-121": lambda: n(LLAMA3) * each("mixed", "adamw-8bit") / GIB,
    "9.3.3-122": lambda: kv_bytes_per_token(ls.model(LLAMA2_70)),
    "9.3.3-123": lambda: kv_bytes_per_token(ls.model(LLAMA2_70)) / KIB,
    "9.3.3-124": lambda: cache_bytes(ls.model(LLAMA2_70), 1, 32768),
    "9.3.3-125": lambda: cache_bytes(ls.model(LLAMA2_70), 1, 32768) / GIB,
    "9.3.3-126": lambda: cache_bytes(without_gqa(LLAMA2_70), 1, 32768) / GIB,
    "9.3.4-127": lambda: six_nd(175e9, 300e9), "9.3.4-129": lambda: hours(175e9, 300e9),
    "9.3.4-130": lambda: ls.gpu("v100-sxm2-32gb").peak("fp16"),
    "9.3.4-131": lambda: ls.gpu("v100-sxm2-32gb").peak("fp16") / H100_PEAK,
    "9.3.5-132": lambda: compute(64) * 1e3, "9.3.5-134": crossing,
    "9.3.5-133": lambda: decode(64).lower / 64 / decode(1).lower,
    "9.3.6-135": lambda: flops(LLAMA3, 2048).forward
    / (flops(LLAMA3, 2048).input_grads + flops(LLAMA3, 2048).weight_grads),
    "9.3.6-136": lambda: flops(LLAMA3, 2048).forward / flops(LLAMA3, 2048).model,
}  # fmt: skip

for _i, _sizes in enumerate(BLOCKS, 1):
    COMPUTED[f"4.2-k{_i}"] = lambda s=_sizes: block_gib(s, "none")  # type: ignore[misc]
    COMPUTED[f"4.2-t{_i}a"] = lambda s=_sizes: block_gib(s, "selective")  # type: ignore[misc]
    COMPUTED[f"4.2-t{_i}b"] = lambda s=_sizes: block_gib(s, "full")  # type: ignore[misc]
CACHES = [
    (1, 2048), (1, 4096), (1, 8192), (1, 32768), (8, 4096), (16, 4096), (32, 4096), (64, 4096), (8, 32768),
    (1, 131072),
]  # fmt: skip
for _letter, (_b, _t) in zip("abcdefghij", CACHES, strict=True):
    COMPUTED[f"5-k2{_letter}"] = lambda b=_b, t=_t: cache_bytes(ls.model(LLAMA2), b, t) / GIB  # type: ignore[misc]
    COMPUTED[f"5-k3{_letter}"] = lambda b=_b, t=_t: cache_bytes(ls.model(LLAMA3), b, t) / GIB  # type: ignore[misc]
for _letter, _t in zip("abcd", [64, 128, 256, 512], strict=True):
    COMPUTED[f"6.1-072{_letter}"] = lambda t=_t: flops("small", t).full / t  # type: ignore[misc]
for _i, (_name, _d) in enumerate(RUNS, 1):
    COMPUTED[f"6.3-t{_i}f"] = lambda m=_name, d=_d: six_nd(run_size(m), d)  # type: ignore[misc]
    COMPUTED[f"6.3-t{_i}h"] = lambda m=_name, d=_d: hours(run_size(m), d)  # type: ignore[misc]
for _b in (1, 8, 64, 256, 315, 316, 512):
    COMPUTED[f"6.4-t{_b}c"] = lambda b=_b: decode(b).math_seconds * 1e3  # type: ignore[misc]
    COMPUTED[f"6.4-t{_b}s"] = lambda b=_b: decode(b).lower * 1e3  # type: ignore[misc]
    COMPUTED[f"6.4-t{_b}r"] = lambda b=_b: b / decode(b).lower  # type: ignore[misc]


def test_every_figure_has_an_answer() -> None:
    """The figures in the data and the answers here are the same set, each once."""
    assert sorted(COMPUTED) == sorted(f["id"] for f in FIGURES)


@pytest.mark.parametrize("figure", FIGURES, ids=[f["id"] for f in FIGURES])
def test_figure(figure: dict[str, Any]) -> None:
    """One figure of the lecture (or the right one where its note says that the lecture is off)."""
    value = figure["value"]
    near = (
        {"rel": figure["relative"], "abs": 0}
        if "relative" in figure
        else {"rel": 0, "abs": figure["tolerance"]}
    )
    assert pytest.approx(value, **near) == COMPUTED[figure["id"]](), figure["statement"]


@pytest.mark.parametrize(
    ("batch", "length", "layers", "size"),
    [
        (4, 64, 4, 20_460_036), (8, 64, 4, 40_903_172), (16, 64, 4, 81_789_444), (8, 64, 2, 22_004_228),
        (8, 64, 8, 78_701_060), (4, 32, 4, 9_701_636), (4, 128, 4, 45_147_140), (4, 256, 4, 107_202_564),
        (4, 512, 4, 282_038_276), (8, 256, 4, 214_140_932),
    ],
)  # fmt: skip
def test_the_small_gpt_keeps_exactly_what_pytorch_measures(
    batch: int, length: int, layers: int, size: int
) -> None:
    """Bytes seen by torch.autograd.graph.saved_tensors_hooks, each storage once (torch 2.13, fp32)."""
    assert kept(batch, length, layers) == size


def test_the_small_gpt_recomputed_keeps_exactly_what_pytorch_measures() -> None:
    """The same with torch.utils.checkpoint around each block: the masks are made anew."""
    assert kept(8, 256, 4, "full") == 20_809_732

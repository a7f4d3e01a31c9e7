"""Experiment 2, first half: parameters, what training keeps of each, and the KV cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from loadsheet.arch.families import build
from loadsheet.arch.model import Model
from loadsheet.arch.read import model as find_model
from loadsheet.arch.work import DTYPE_BYTES, Work
from loadsheet.lab.described import GPTSizes, LlamaSizes
from loadsheet.lab.measured import state_bytes, token_ids
from loadsheet.lab.models import GPT, Llama, gpt2_small, loss_of
from loadsheet.lab.report import Figure, Lecture, Section, around, exactly, printed
from loadsheet.recipe import bytes_per_parameter, tables
from loadsheet.sheet import plan
from loadsheet.units import GIB

REAL = {"llama-2-7b": "Llama 2 7B", "llama-3-8b": "Llama 3 8B", "llama-3-70b": "Llama 3 70B"}


def meta(sizes: GPTSizes | LlamaSizes) -> nn.Module:
    """The module on the meta device: shapes without memory."""
    with torch.device("meta"):
        return GPT(sizes) if isinstance(sizes, GPTSizes) else Llama(sizes)


def shapes_agree(model: Model, module: nn.Module, *, transposed: bool = False) -> int:
    """How many parameters have the same name and shape on both sides.

    `transposed`: GPT-2's checkpoints hold their matrices as (in, out), nn.Linear as (out, in).
    """
    ours = {p.name: tuple(p.shape) for p in model.parameters()}
    theirs = {name: tuple(p.shape) for name, p in module.named_parameters()}
    return sum(
        theirs.get(name) in ((shape, shape[::-1]) if transposed else (shape,)) for name, shape in ours.items()
    )


# -- parameters ------------------------------------------------------------------------------------


def parameters() -> Section:
    """Our counts, which read no weights, against modules."""
    gpt, llama = GPTSizes(), LlamaSizes()
    cases: list[tuple[str, str, Model, GPTSizes | LlamaSizes, str]] = [
        ("gpt2", "GPT-2 small", find_model("gpt2"), gpt2_small(), "124,439,808"),
        ("tiny-gpt", f"small GPT, d={gpt.width}, L={gpt.layers}", build(gpt.config), gpt, ""),
        ("tiny-llama", f"small Llama, {llama.heads}:{llama.kv_heads} heads", build(llama.config), llama, ""),
    ]
    said = {"llama-2-7b": "6,738,415,616", "llama-3-8b": "8,030,261,248", "llama-3-70b": "70.6 billion"}
    for name, title in REAL.items():
        found = find_model(name)
        cases.append((name, title, found, LlamaSizes.of(found), said[name]))
    figures, modules, tensors, agreeing = [], {}, 0, 0
    for key, title, model, sizes, words in cases:
        module = modules[key] = meta(sizes)
        scale = 10**9 if words.endswith("billion") else 1
        lecture = None
        if words:
            lecture = printed(words, scale) if scale > 1 else exactly(int(words.replace(",", "")))
        figures.append(
            Figure(f"params.{key}", title, "count", model.params, measured=count(module.parameters()),
                   lecture=lecture)
        )  # fmt: skip
        tensors += sum(1 for _ in model.parameters())
        agreeing += shapes_agree(model, module, transposed=isinstance(sizes, GPTSizes))
    figures.append(
        Figure("params.shapes", "tensors of equal name and shape", "count", tensors, measured=agreeing)
    )
    models = {key: model for key, _, model, _, _ in cases}
    figures += _rules(models, modules) + _by_hand(models["llama-2-7b"], modules["llama-2-7b"])
    return Section(
        "Parameters",
        (
            "GPT: V·d + P·d + L·(12·d² + 13·d) + 2·d; head tied in GPT-2, V·d more in the small one",
            "Llama: 2·V·d + L·(2·d² + 2·d·kv + 3·d·f + 2·d) + d",
        ),
        tuple(figures),
        notes=("ours: counted from the config; measured: modules on the meta device",),
    )


def count(parameters: Iterable[Tensor]) -> int:
    """Elements of all of them together."""
    return sum(p.numel() for p in parameters)


def _rules(models: Mapping[str, Model], modules: Mapping[str, nn.Module]) -> list[Figure]:
    """The rule of thumb and the two shares that the lecture names."""
    gpt2, big = models["gpt2"], models["llama-3-70b"]
    matrices = {n: p for n, p in modules["gpt2"].named_parameters() if p.dim() == 2 and "wpe" not in n}
    tables_of = [p for n, p in modules["gpt2"].named_parameters() if ".wte." in n or ".wpe." in n]
    mlp = [p for n, p in modules["llama-3-70b"].named_parameters() if ".mlp." in n]
    sizes = gpt2_small()
    return [
        Figure("params.rule", "12·L·d² + V·d, GPT-2 small", "count",
               12 * sizes.layers * sizes.width**2 + sizes.vocab * sizes.width,
               measured=count(matrices.values())),
        Figure("params.gpt2.embedding", "embedding, GPT-2 small", "share",
               gpt2.split["embedding"] / gpt2.params,
               measured=count(tables_of) / count(modules["gpt2"].parameters()),
               lecture=around("about 1/3", 1 / 3, 0.07)),
        Figure("params.llama-3-70b.mlp", "MLP, Llama 3 70B", "share", big.split["mlp"] / big.params,
               measured=count(mlp) / count(modules["llama-3-70b"].parameters()), standing="off",
               lecture=around("over 80 %", 0.9, 1 / 9),
               remark="MLP of Llama 3 70B: 79.90 % of all; 82.35 % only without embedding and head"),
    ]  # fmt: skip


def _by_hand(model: Model, module: nn.Module) -> list[Figure]:
    """The lecture's first exercise: Llama 2 7B piece by piece."""
    block = model.runs[0][0]
    roles = ("attention", "mlp", "norm")
    ours = {role: sum(p.numel for p in block.parameters() if p.role == role) for role in roles}
    marks = {"attention": "self_attn", "mlp": "mlp", "norm": "layernorm"}
    first = {n: p for n, p in module.named_parameters() if n.startswith("model.layers.0.")}
    measured = {role: count([p for n, p in first.items() if marks[role] in n]) for role in roles}
    said = {"attention": 67108864, "mlp": 135266304, "norm": 8192}
    figures = [
        Figure(f"params.llama-2-7b.{role}", f"Llama 2 7B, {role} of a layer", "count", ours[role],
               measured=measured[role], lecture=exactly(said[role]))
        for role in roles
    ]  # fmt: skip
    figures += [
        Figure("params.llama-2-7b.layers", "its 32 layers", "count", 32 * sum(ours.values()),
               measured=count([p for n, p in module.named_parameters() if ".layers." in n]),
               lecture=exactly(6476267520)),
        Figure("params.llama-2-7b.tables", "its embedding and head", "count",
               model.split["embedding"] + model.split["head"],
               measured=count([p for n, p in module.named_parameters() if "embed" in n or "head" in n]),
               lecture=exactly(262144000)),
    ]  # fmt: skip
    return figures


# -- what training keeps ---------------------------------------------------------------------------


def optimizer_states() -> Section:
    """Sizes of the states after one step, in multiples of the weights."""
    sizes = GPTSizes()
    makers: dict[str, tuple[str, Callable[[Any], Any], Lecture | None]] = {
        "sgd": ("SGD", lambda p: torch.optim.SGD(p, lr=0.1), exactly(0, "none")),
        "sgd-momentum": (
            "SGD, momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), exactly(1, "1×"),
        ),
        "adam": ("Adam", torch.optim.Adam, exactly(2, "2×")),
        "adamw": ("AdamW", torch.optim.AdamW, None),
    }  # fmt: skip
    figures, rest = [], 0
    model = GPT(sizes)
    loss_of(model, token_ids(1, 16, sizes.vocab)).backward()
    weights = sum(p.nbytes for p in model.parameters())
    for key, (name, make, lecture) in makers.items():
        optimizer = make(model.parameters())
        optimizer.step()
        full, rest = state_bytes(optimizer)
        figures.append(
            Figure(f"states.{key}", name, "times", tables()["optimizers"][key]["states"],
                   measured=full / weights, lecture=lecture)
        )  # fmt: skip
    tensors = len(list(model.parameters()))
    return Section(
        "Optimizer states, in multiples of the weights",
        figures=tuple(figures),
        notes=(f"AdamW keeps a step counter besides: {rest} bytes for {tensors} tensors, not counted above",),
    )


def training_bytes() -> Section:
    """Weights, gradients, master copy and states of one real step; then real models."""
    figures = []
    for key, name in (("fp32", "fp32, Adam"), ("mixed", "mixed bf16, Adam")):
        figures.append(
            Figure(f"per-parameter.{key}", name, "per number", sum(bytes_per_parameter(key, "adam").values()),
                   measured=_measured_per_parameter(mixed=key == "mixed"), lecture=exactly(16, "16 B"))
        )  # fmt: skip
    eight_bits = sum(bytes_per_parameter("mixed", "adamw-8bit").values())
    figures.append(
        Figure("per-parameter.8bit", "mixed bf16, 8-bit Adam", "per number", eight_bits,
               lecture=exactly(10, "10 B"))
    )  # fmt: skip
    states = {name: _states(name) for name in REAL}
    eight = _states("llama-3-8b", optimizer="adamw-8bit")
    said = {"llama-2-7b": "100 GiB", "llama-3-8b": "120 GiB"}
    for name, words in said.items():
        figures.append(
            Figure(f"states.{name}", f"{REAL[name]}, training", "GiB", states[name],
                   lecture=printed(words, GIB))
        )  # fmt: skip
    full = states["llama-3-8b"]
    figures += [
        Figure("states.llama-3-70b", "Llama 3 70B, training", "GiB", states["llama-3-70b"]),
        Figure("states.8bit", "Llama 3 8B, 8-bit Adam", "GiB", eight, lecture=printed("75 GiB", GIB)),
        Figure(
            "states.8bit.saved", "saved by 8-bit Adam", "GiB", full - eight, lecture=printed("45 GiB", GIB)
        ),
    ]
    return Section(
        "Bytes per parameter: weights + gradients + master copy + two states",
        ("fp32: 4 + 4 + 0 + 4 + 4 = 16; mixed: 2 + 2 + 4 + 4 + 4 = 16; 8-bit Adam: 2 + 2 + 4 + 1 + 1 = 10",),
        tuple(figures),
        notes=(
            "measured: one step of the small GPT, storage of every tensor that lives on after it",
            "8-bit Adam: the lecture's 10 bytes; the constants of its blocks of 256 numbers are 0.2 GiB more",
        ),
    )


def _states(name: str, optimizer: str = "adamw") -> int:
    """Bytes of weights, gradients, master copy and states, as the sheet counts them."""
    return int(plan(name, gpu="h100-sxm", task="train", seq=1, optimizer=optimizer).memory.model_states)


def _measured_per_parameter(*, mixed: bool) -> float:
    """Bytes per parameter that are alive after a step with AdamW."""
    sizes = GPTSizes()
    model = GPT(sizes)
    if mixed:
        model = model.bfloat16()
    weights = list(model.parameters())
    masters = [p.detach().float().requires_grad_() for p in weights] if mixed else weights
    optimizer = torch.optim.AdamW(masters)
    loss_of(model, token_ids(1, 16, sizes.vocab)).backward()
    if mixed:
        for master, weight in zip(masters, weights, strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()
    optimizer.step()
    if mixed:
        for master, weight in zip(masters, weights, strict=True):
            weight.data.copy_(master)
            master.grad = None
    alive = [*weights, *(p.grad for p in weights), *(masters if mixed else [])]
    total = sum(t.nbytes for t in alive if t is not None) + state_bytes(optimizer)[0]
    return total / count(weights)


# -- inference -------------------------------------------------------------------------------------


def kv_cache() -> Section:
    """Bytes of keys and values, ours and as the projections put them out."""
    said = {"llama-2-7b": None, "llama-3-8b": None, "llama-2-70b": exactly(327680)}
    titles = {**REAL, "llama-2-70b": "Llama 2 70B"}
    ours, measured, figures = {}, {}, []
    for name, lecture in said.items():
        model = find_model(name)
        ours[name], measured[name] = _cache_bytes(model, 1), _projected_bytes(LlamaSizes.of(model), 1)
        figures.append(
            Figure(f"kv.{name}", f"{titles[name]}, a token", "bytes", ours[name], measured=measured[name],
                   lecture=lecture)
        )  # fmt: skip
    big = find_model("llama-2-70b")
    heads = LlamaSizes.of(big).heads // LlamaSizes.of(big).kv_heads
    figures += [
        Figure("kv.ratio", "Llama 3 8B / Llama 2 7B", "times", ours["llama-3-8b"] / ours["llama-2-7b"],
               measured=measured["llama-3-8b"] / measured["llama-2-7b"], lecture=Lecture("1/4", 0.25, 0.25)),
        Figure("kv.32k", "Llama 2 70B, 32,768 tokens", "GiB", _cache_bytes(big, 32768),
               measured=_projected_bytes(LlamaSizes.of(big), 32768), lecture=exactly(10 * GIB, "10 GiB")),
        Figure("kv.32k.mha", "the same without GQA", "GiB", heads * _cache_bytes(big, 32768),
               lecture=exactly(80 * GIB, "80 GiB")),
    ]  # fmt: skip
    return Section(
        "KV cache in bf16",
        ("2·L·h_kv·d_h·2 bytes per token",),
        tuple(figures),
        notes=("measured: what the key and value projections put out, on the meta device",),
    )


def _cache_bytes(model: Model, tokens: int) -> int:
    cache = model.cache(Work(1, tokens))
    return int(sum(count * tensor.elements for tensor, count in cache) * DTYPE_BYTES["bf16"])


def _projected_bytes(sizes: LlamaSizes, tokens: int) -> int:
    """Bytes of the outputs of every k_proj and v_proj in a forward of one block, for all layers."""
    block = meta(sizes).bfloat16().model["layers"][0]
    total = 0

    def see(_: nn.Module, __: object, output: Tensor) -> None:
        nonlocal total
        total += output.nbytes

    for projection in (block.self_attn.k_proj, block.self_attn.v_proj):
        projection.register_forward_hook(see)
    block(torch.empty(1, tokens, sizes.width, dtype=torch.bfloat16, device="meta"))
    return total * sizes.layers

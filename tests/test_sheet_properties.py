"""Any question gives a sound sheet: widths, sums, monotony, and workings that give their amounts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workings import evaluate

import loadsheet as ls
from loadsheet.ledger import Item

# --- any combination of options ------------------------------------------------------------------------------

PRESETS = [
    "gpt2", "gemma-3-1b", "mistral-7b-v0.1", "mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b", "opt-1.3b",
    "qwen3-0.6b",
]  # fmt: skip
_gpus = st.sampled_from(["t4", "rtx-4090", "h100-sxm", "mi300x"])
_sizes = {"batch": st.integers(1, 40), "seq": st.integers(1, 40_000)}
_execution = {
    "precision": st.sampled_from(["mixed", "amp", "megatron", "pure-bf16", "fp32"]),
    "optimizer": st.sampled_from(["adamw", "adam", "sgd", "sgd-momentum", "adamw-8bit"]),
    "stack": st.sampled_from(["torch", "hf", "litgpt", "torchtune", "megatron", "liger"]),
    "optimizer_form": st.sampled_from(["fused", "foreach", "loop"]),
    "recompute": st.sampled_from(["none", "selective", "full"]),
    "attention": st.sampled_from(["eager", "sdpa", "flash"]),
    "kernels": st.sampled_from(["eager", "fused"]),
    "loss": st.sampled_from(["eager", "chunked", "fused"]),
    "accumulation": st.integers(1, 4),
    "repeat_kv": st.booleans(),
    "keep_gradients": st.booleans(),
    "dropout": st.booleans(),
    "mfu": st.floats(0.01, 1),
}
_adapters = {"rank": st.integers(1, 64), "lora_dropout": st.floats(0, 0.9)}
_formats = {
    "weights": st.sampled_from(["bf16", "fp16", "fp32", "fp8", "int8", "int4", "nf4", "nf4-double"]),
    "kv": st.sampled_from(["bf16", "fp16", "fp32", "fp8", "int8"]),
    "prefill_chunk": st.integers(1, 20_000),
}
_trainings = st.fixed_dictionaries({"task": st.just("train"), **_sizes}, optional=_execution)
_adaptings = st.fixed_dictionaries(
    {"task": st.sampled_from(["lora", "qlora"]), **_sizes}, optional={**_execution, **_adapters}
)
_servings = st.fixed_dictionaries({"task": st.just("serve"), **_sizes}, optional=_formats)
recipes = st.one_of(_trainings, _adaptings, _servings)
questions = st.tuples(st.sampled_from(PRESETS), _gpus, st.sampled_from([1, 8]))
SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)


#: tokens for which a model has learned positions (their published configs): longer cannot be planned
_POSITIONS = {"gpt2": 1024, "opt-1.3b": 2048}


def _plan(question: tuple[str, str, int], **options: Any) -> ls.Sheet:
    """The sheet, of at most as many tokens as the model has positions."""
    seq = min(options["seq"], _POSITIONS.get(question[0], options["seq"]))
    return ls.plan(*question, **{**options, "seq": seq})


def _ends(estimate: ls.Estimate) -> tuple[float, float, float]:
    return (estimate.low, estimate.mid, estimate.high)


@SLOW
@given(questions, recipes)
def test_any_recipe_gives_a_sound_sheet(question: tuple[str, str, int], options: dict[str, Any]) -> None:
    """Low ≤ mid ≤ high everywhere, tensors ≤ allocator ≤ device, and everything can be shown."""
    sheet = _plan(question, price=2, tokens=10**9, **options)
    memory = sheet.memory
    for instant in memory.instants:
        for item in instant.items:
            assert 0 <= item.estimate.low <= item.estimate.mid <= item.estimate.high
    for smaller, larger in ((memory.allocated, memory.reserved), (memory.reserved, memory.peak)):
        assert all(a <= b for a, b in zip(_ends(smaller), _ends(larger), strict=True))
    assert (
        0
        < sheet.compute.step_seconds.low
        <= sheet.compute.step_seconds.mid
        <= sheet.compute.step_seconds.high
    )
    for remedy in sheet.remedies:
        assert remedy.peak is None or remedy.verdict in ("fits", "tight", "does_not_fit")
    assert sheet.to_json()
    assert sheet.text(width=80, explain=True)


@SLOW
@given(questions, st.one_of(_trainings, _adaptings), st.integers(1, 5000))
def test_more_needs_more(question: tuple[str, str, int], options: dict[str, Any], more: int) -> None:
    """The peak of training grows with the batch and with the sequence."""
    peak = _ends(_plan(question, **options).memory.peak)
    for name in ("batch", "seq"):
        larger = _ends(_plan(question, **{**options, name: options[name] + more}).memory.peak)
        assert all(a <= b for a, b in zip(peak, larger, strict=True))


def test_longer_prompts_need_more() -> None:
    """The peak of serving grows with the sequence, too."""
    peaks = [
        ls.plan("llama-3-70b", "h100-sxm", task="serve", batch=8, seq=n).memory.peak.mid for n in (1024, 1025)
    ]
    assert peaks == sorted(peaks)


# --- workings ----------------------------------------------------------------------------------------------


def _all_items(sheet: ls.Sheet) -> Iterator[Item]:
    tops = [item for instant in sheet.memory.instants for item in instant.items]
    tops += [*sheet.compute.items, *(i for i in (sheet.money.cost, sheet.money.per_million_tokens) if i)]
    for top in tops:
        for _, item in top.walk():
            yield item


@SLOW
@given(questions, recipes)
def test_every_exact_working_gives_its_amount(
    question: tuple[str, str, int], options: dict[str, Any]
) -> None:
    """The printed expression of an exact item, worked out with its operands, is its amount to the byte."""
    for item in _all_items(_plan(question, price=2, tokens=10**9, **options)):
        if item.basis == "exact" and item.formula[0]:
            assert evaluate(*item.formula) == item.estimate.mid, item.name
        elif item.children:
            assert sum(c.estimate.mid for c in item.children) == pytest.approx(item.estimate.mid, rel=1e-12)


def test_workings_of_money() -> None:
    """Cost and cost per million tokens follow from what is printed beside them."""
    money = ls.plan("gpt2", "h100-sxm", price="2.5 USD", tokens=10**9).money
    assert evaluate(*money.cost.formula) == pytest.approx(money.cost.estimate.mid)
    assert evaluate(*money.per_million_tokens.formula) == pytest.approx(money.per_million_tokens.estimate.mid)


@pytest.mark.parametrize(
    ("model", "options", "name"),
    [
        ("llama-3-8b", {}, "activations of blocks"),
        ("llama-3-8b", {"stack": "hf", "attention": "eager"}, "activations of blocks"),
        ("gpt2", {"seq": 1000, "batch": 3}, "activations of blocks"),
        ("llama-3-8b", {"seq": 1000, "batch": 3}, "embedding and its input"),
        ("llama-3-8b", {}, "logits and loss"),
        ("mixtral-8x7b", {}, "activations of blocks"),
        ("deepseek-v2-lite", {"task": "lora", "loss": "chunked"}, "activations of blocks, kind 1"),
        ("gpt2", {"seq": 1000, "batch": 3}, "embedding and its input"),
    ],
)  # fmt: skip
def test_workings_of_activations(model: str, options: dict[str, Any], name: str) -> None:
    """The closed form that is printed for what is kept gives what the tape counted."""
    items = [i for i in _all_items(ls.plan(model, "h100-sxm", price=1, **options)) if i.name == name]
    assert items
    for item in items:
        assert evaluate(*item.formula) == pytest.approx(item.estimate.mid, rel=1e-9)

"""LitGPT's stack against LitGPT itself: what its modules keep and where a step peaks, run on a CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadsheet.arch.families import build
from loadsheet.arch.model import Model
from loadsheet.memory import training_memory
from loadsheet.memory.training import tape_training
from loadsheet.recipe import Training, recipe

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "litgpt_steps.json").read_text(encoding="utf-8")
)["cases"]
QV = frozenset({"q_proj", "v_proj"})


def prepared(case: dict[str, Any], vocabulary: int, accumulation: int) -> tuple[Model, Training]:
    """The model and the recipe of a case. Its LoRA model does not squeeze the logits of chunks."""
    model = build({**case["config"], "vocab_size": vocabulary})
    options: dict[str, Any] = {"task": "train"}
    if case["mode"] != "full":
        every = {x.tag for _, x, _ in model.linears()} | {"q_proj", "k_proj", "v_proj"}
        targets = (
            QV if case["mode"] == "qv" else every | ({"lm_head"} if case["mode"] == "allhead" else set())
        )
        options = {"task": "lora", "rank": 8, "lora_dropout": 0.05, "targets": frozenset(targets)}
        model = replace(model, logit_softcap=False)
    options |= {"batch": 2, "seq": 256, "accumulation": accumulation, "precision": "pure-bf16"}
    made = recipe(stack="litgpt", **options)
    assert isinstance(made, Training)
    return model, replace(made, execution=replace(made.execution, device="cpu"))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['name']} {c['mode']}")
def test_bytes_that_a_block_keeps(case: dict[str, Any]) -> None:
    """One more block, per token: to 0.2 % (LitGPT copies small indices and weights in fp32 besides)."""
    model, made = prepared(case, 512, 1)
    last = tape_training(model, made).runs[-1][0]
    assert pytest.approx(case["block_bytes_per_token"], rel=2e-3) == last.saved / 512


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["peak_bytes"]], ids=lambda c: f"{c['name']} {c['mode']}"
)
def test_peak_of_a_step(case: dict[str, Any]) -> None:
    """The allocator's own peak of the second step, to 0.5 %."""
    model, made = prepared(case, 16_384, 2)
    assert pytest.approx(case["peak_bytes"], rel=5e-3) == training_memory(model, made).allocated.mid

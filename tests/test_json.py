"""The JSON of a plan, key by key, its sums, and the page that tells the same numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from terminal import answered, plan, run

import loadsheet as ls
from loadsheet.units import GIB, format_bytes

# --- the JSON of plan -------------------------------------------------------------------------------------

_RANGE = {"low": float, "mid": float, "high": float}
TOP = {
    "schema": int, "model": dict, "recipe": dict, "cluster": dict, "memory": dict, "compute": dict,
    "money": (dict, None), "verdict": str, "warnings": list, "remedies": list, "capacity": dict,
    "checkpoint_bytes": dict,
}  # fmt: skip
#: keys that must be there, and their types; more may come
SCHEMA: dict[str, dict[str, Any]] = {
    "model": {
        "name": str, "model_type": str, "params": int, "active_params": int, "matmul_params": int, "split": dict,
        "tied": bool, "max_length": (int, None), "source": str, "defaulted": list,
    },
    "recipe": {"task": str, "batch": int, "seq": int, "tokens": (int, None), "mfu": (float, None), "defaulted": list},
    "cluster": {"gpu": str, "gpus": int, "defaulted": list},
    "memory": {
        "capacity_bytes": int, "usable_bytes": int, "model_states_bytes": float, "peak_bytes": _RANGE,
        "allocated_bytes": _RANGE, "reserved_bytes": _RANGE, "worst_instant": str, "instants": list,
    },
    "compute": {
        "flops_per_token": float, "step_seconds": _RANGE, "tokens_per_second": float, "mfu": (float, None),
        "bound_by": str, "gpu_hours": (float, None),
    },
    "capacity": {"largest_batch": int, "longest_seq": int, "largest_presets": list, "at": dict},
}  # fmt: skip
TRAINING_KEYS = {
    "accumulation", "precision", "optimizer", "optimizer_form", "stack", "execution", "keep_gradients", "dropout",
    "rank", "targets", "lora_dropout", "double_quant", "upcast",
}  # fmt: skip
SERVING_KEYS = {"weights", "kv", "group", "prefill_chunk"}
ITEM = {"name": str, "bytes": _RANGE, "children": list, "basis": str, "working": str, "source": str}
REMEDY = {
    "change": str,
    "verdict": str,
    "saves_bytes": float,
    "costs": str,
    "peak_bytes": (dict, None),
    "options": dict,
}

_WORDS = {
    "train": "llama-3-8b --gpu h100-sxm",
    "train on eight": "gpt2 --gpu t4 --gpus 8 --tokens 1B --price 2.5USD --stack hf",
    "mixture": "mixtral-8x7b --gpu h100-sxm --optimizer adamw-8bit --recompute full",
    "lora": "gemma-2-2b --gpu rtx-4090 --task lora --batch 4 --seq 2048 --targets q_proj,v_proj",
    "qlora": "mistral-7b-v0.1 --gpu t4 --task qlora --mfu 30% --accumulation 4",
    "serve": "deepseek-v2-lite --gpu l4 --task serve --batch 8 --tokens 1M",
    "serve int4": "mixtral-8x7b --gpu a100-sxm-80gb --task serve --weights int4 --kv fp8 --price 1",
}
QUESTIONS = {name: words.split() for name, words in _WORDS.items()}


@pytest.fixture(params=QUESTIONS, scope="module")
def sheet(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The JSON of one question, parsed without leave for NaN."""
    result = run("plan", *QUESTIONS[request.param], "--json")
    assert result.exit_code in (0, 1), result.stderr

    def no_constant(text: str) -> None:
        raise AssertionError(text)

    found: dict[str, Any] = json.loads(result.stdout, parse_constant=no_constant)
    return found


def _check(value: Any, expected: Any, path: str = "") -> None:
    """The value is of the type, or an object with these keys and their types; a float may be whole."""
    if isinstance(expected, tuple):
        if value is None:
            return
        expected = expected[0]
    if isinstance(expected, dict):
        assert isinstance(value, dict), path
        for key, inner in expected.items():
            assert key in value, f"{path}.{key}"
            _check(value[key], inner, f"{path}.{key}")
        if expected is _RANGE:
            assert set(value) == set(_RANGE)
            assert value["low"] <= value["mid"] <= value["high"], path
    elif expected is float:
        assert isinstance(value, int | float), path
        assert not isinstance(value, bool)
        assert math.isfinite(value)
    else:
        assert isinstance(value, expected), path
        assert expected is bool or not isinstance(value, bool), path


def _items(sheet: dict[str, Any]) -> Iterator[dict[str, Any]]:
    waiting = [item for instant in sheet["memory"]["instants"] for item in instant["items"]]
    while waiting:
        item = waiting.pop()
        yield item
        waiting += item["children"]


def test_top_level_keys(sheet: dict[str, Any]) -> None:
    """Exactly these, in this order: design §3 and what came after it."""
    assert list(sheet) == list(TOP)
    _check(sheet, TOP)
    assert sheet["schema"] == 1
    assert sheet["verdict"] in ("fits", "tight", "does_not_fit")


def test_keys_and_types(sheet: dict[str, Any]) -> None:
    """Every part has its keys with their types, in base units."""
    for part, keys in SCHEMA.items():
        _check(sheet[part], keys, part)
    expected = SERVING_KEYS if sheet["recipe"]["task"] == "serve" else TRAINING_KEYS
    assert set(SCHEMA["recipe"]) | expected <= set(sheet["recipe"])
    assert set(sheet["recipe"]["defaulted"]) <= {*sheet["recipe"], *sheet["recipe"]["execution"]}
    assert sheet["compute"]["bound_by"] in ("compute", "bandwidth", "communication")
    assert sum(sheet["model"]["split"].values()) == sheet["model"]["params"]
    for remedy in sheet["remedies"]:
        assert set(remedy) == set(REMEDY)
        _check(remedy, REMEDY)


def test_items_add_up(sheet: dict[str, Any]) -> None:
    """Children sum to their parent, items to the instant, and the worst instant is one of them."""
    for item in _items(sheet):
        assert set(item) == set(ITEM)
        _check(item, ITEM, item["name"])
        assert item["basis"] in ("exact", "modelled", "measured", "assumed")
        assert item["working"]
        if item["children"]:
            for end in _RANGE:
                assert item["bytes"][end] == pytest.approx(
                    sum(c["bytes"][end] for c in item["children"]), rel=1e-12
                )
    instants = sheet["memory"]["instants"]
    totals = {i["name"]: {e: sum(x["bytes"][e] for x in i["items"]) for e in _RANGE} for i in instants}
    assert len(totals) == len(instants)
    assert sheet["memory"]["worst_instant"] == max(totals, key=lambda name: totals[name]["mid"])
    for end in _RANGE:
        assert sheet["memory"]["peak_bytes"][end] == pytest.approx(
            max(t[end] for t in totals.values()), rel=1e-12
        )


def test_allocated_reserved_peak(sheet: dict[str, Any]) -> None:
    """Tensors are part of what the allocator holds, and that of what the device holds."""
    memory = sheet["memory"]
    for end in _RANGE:
        assert memory["allocated_bytes"][end] <= memory["reserved_bytes"][end] <= memory["peak_bytes"][end]
    assert memory["usable_bytes"] <= memory["capacity_bytes"] * 1.074  # GB of a data sheet may be GiB
    assert 0 < memory["model_states_bytes"] < memory["peak_bytes"]["low"]


def test_verdict_follows_from_the_peak(sheet: dict[str, Any]) -> None:
    """Fits if high ≤ usable, does not fit if low > usable, else tight; a sheet that fits needs no remedy."""
    peak, usable = sheet["memory"]["peak_bytes"], sheet["memory"]["usable_bytes"]
    expected = "fits" if peak["high"] <= usable else "does_not_fit" if peak["low"] > usable else "tight"
    assert expected == sheet["verdict"]
    assert (expected == "fits") == (sheet["remedies"] == [])


# --- page and JSON ------------------------------------------------------------------------------------------


def _gib(value: dict[str, float]) -> str:
    low, high = f"{value['low'] / GIB:,.1f}", f"{value['high'] / GIB:,.1f}"
    return low if low == high else f"{low}–{high}"


@pytest.mark.parametrize("question", QUESTIONS)
def test_page_and_json_tell_the_same(question: str) -> None:
    """Peak, margin, instants, capacity, checkpoint, time and money stand on the page as in the JSON."""
    args = ("plan", *QUESTIONS[question])
    data = json.loads(run(*args, "--json").stdout)
    page = " ".join(run(*args).stdout.split())
    memory, peak = data["memory"], data["memory"]["peak_bytes"]
    margin = max(peak["low"] - memory["usable_bytes"], memory["usable_bytes"] - peak["high"])
    assert f"{data['verdict'].replace('_', ' ').upper()} needs {_gib(peak)} GiB" in page
    if data["verdict"] != "tight":
        assert f"at least {margin / GIB:,.1f} GiB" in page
    row = next(line for line in run(*args).stdout.splitlines() if line.startswith("device must hold"))
    totals = [{e: sum(x["bytes"][e] for x in i["items"]) for e in _RANGE} for i in memory["instants"]]
    assert set(row.removeprefix("device must hold").split()) <= {_gib(total) for total in totals}
    assert _gib(peak) in row
    for key, words in (("largest_batch", "batch is"), ("longest_seq", "sequence is")):
        if data["capacity"][key]:
            assert f"{words} {data['capacity'][key]:,}" in page
    assert format_bytes(data["checkpoint_bytes"]["weights"]) in page
    if data["recipe"]["task"] != "serve":
        assert f"{data['compute']['flops_per_step']:.3g} FLOP per step" in page
        assert f"{data['compute']['tokens_per_second']:,.0f} tokens/s" in page
    if data["compute"]["gpu_hours"] is not None:
        assert f"{data['compute']['gpu_hours']:,.1f} GPU hours" in page
    for remedy in data["remedies"]:
        assert remedy["change"].split()[0] in page
        if remedy["saves_bytes"]:
            assert f"{remedy['saves_bytes'] / GIB:,.1f}" in page


@pytest.mark.parametrize("question", QUESTIONS)
def test_explanation_has_every_item(question: str) -> None:
    """`--explain` prints the working of every item of the JSON, and its source."""
    args = ("plan", *QUESTIONS[question])
    data = json.loads(run(*args, "--json").stdout)
    page = run(*args, "--explain").stdout.split("Workings")[1]
    words = "".join(page.split())
    for instant in data["memory"]["instants"]:
        if not instant["name"].startswith("first step"):
            for item in instant["items"]:
                assert f"{item['name']}:" in page
                assert "".join(item["working"].split()) in words


def test_python_and_command_line_are_one() -> None:
    """`ls.plan(...)` gives the JSON that `loadsheet plan --json` prints."""
    options = "--task lora --batch 4 --rank 8 --mfu 40% --price 2 --json"
    shown = json.loads(answered(*plan(*options.split())).stdout)
    made = ls.plan("gpt2", "h100-sxm", task="lora", batch=4, rank=8, mfu=0.4, price=2)
    assert shown == json.loads(made.to_json()) == json.loads(json.dumps(made.to_dict()))
    text = answered(*plan("--task", "serve")).stdout
    assert text == str(ls.plan("gpt2", gpu="h100-sxm", task="serve")) + "\n"

"""The sheet: verdicts at their boundaries; remedies and capacity that hold when planned again."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from terminal import run

import loadsheet as ls
from loadsheet.cli import plan_options as command
from loadsheet.hardware import Gpu
from loadsheet.sheet.capacity import LIMIT

_H100 = ls.gpu("h100-sxm")


def gpu_with(usable: float) -> Gpu:
    """An H100 that shows so many bytes to a process."""
    return replace(_H100, id="of-my-own", memory_usable_bytes=int(usable))


# --- the verdict -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["train", "lora", "qlora", "serve"])
def test_verdict_at_its_boundaries(task: str) -> None:
    """Fits from high on; does not fit below low; between them it is tight. One byte decides."""
    peak = ls.plan("gpt2", _H100, task=task).memory.peak
    low, high = -int(-peak.low // 1), -int(-peak.high // 1)  # the least whole number of bytes that is enough
    verdicts = [ls.plan("gpt2", gpu_with(n), task=task).verdict for n in (high, high - 1, low, low - 1)]
    assert verdicts == ["fits", "tight", "tight", "does_not_fit"]


def test_words_and_exit_status_of_each_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """FITS 0, TIGHT 0 (1 under --strict), DOES NOT FIT 1; only what fits needs no remedy."""
    peak = ls.plan("gpt2", _H100).memory.peak
    for usable, word, code, strict in (
        (2 * peak.high, "FITS", 0, 0),
        (peak.mid, "TIGHT", 0, 1),
        (1e9, "DOES NOT FIT", 1, 1),
    ):
        mine = gpu_with(usable)
        monkeypatch.setattr(command, "find_gpu", lambda name, mine=mine: mine)
        monkeypatch.setattr(
            command, "plan", lambda m, gpu, *rest, mine=mine, **kw: ls.plan(m, mine, *rest, **kw)
        )
        result = run("plan", "gpt2", "--gpu", "t4")
        assert word == next(w for w in ("DOES NOT FIT", "TIGHT", "FITS") if w in result.stdout)
        assert (code, strict) == (result.exit_code, run("plan", "gpt2", "--gpu", "t4", "--strict").exit_code)
        assert ("To make it fit" in result.stdout) == (word != "FITS")


def test_own_hardware() -> None:
    """A Gpu of one's own stands wherever an id can."""
    sheet = ls.plan("gpt2", replace(gpu_with(4e9), peaks=(("fp32", 1e12),), bandwidth=1e11))
    assert sheet.to_dict()["cluster"] == {"gpu": "of-my-own", "gpus": 1, "defaulted": ["gpus"]}
    assert sheet.compute.peak == 1e12
    assert any("no bf16 rate" in w for w in sheet.warnings)


def test_activations_that_nobody_compared_are_said() -> None:
    """Llama's and Qwen's walks are held against PyTorch (`tools/verify_all.py`), Falcon's is not; weights are exact."""
    said = "memory: activations of `falcon` were never held against PyTorch"
    assert any(w.startswith(said) for w in ls.plan("falcon-7b", "h100-sxm").warnings)
    assert not any(w.startswith(said) for w in ls.plan("falcon-7b", "h100-sxm", task="serve").warnings)
    for name in ("llama-3-8b", "qwen3-0.6b"):
        assert not any("never held" in w for w in ls.plan(name, "h100-sxm").warnings)


# --- the public names ----------------------------------------------------------------------------------------


def test_public_names() -> None:
    """`__all__` is sorted, every name in it resolves, and nothing public is missing from `dir`."""
    assert list(ls.__all__) == sorted(ls.__all__)
    assert set(ls.__all__) <= set(dir(ls))
    for name in ls.__all__:
        assert getattr(ls, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        ls.plann  # noqa: B018
    values = [getattr(ls, name) for name in ls.__all__]
    kinds = [value for value in values if isinstance(value, type) and issubclass(value, Exception)]
    errors = [kind for kind in kinds if not issubclass(kind, Warning)]
    assert len(errors) >= 9
    assert all(issubclass(error, ls.LoadsheetError) for error in errors)


@pytest.mark.parametrize(
    "options",
    [
        {"task": ""}, {"task": ["train"]}, {"precision": {}}, {"optimizer": 1}, {"loss": [1]}, {"kernels": ("fused",)},
        {"batch": 0}, {"batch": 1.0}, {"batch": "1"}, {"batch": True}, {"batch": float("nan")}, {"seq": -1},
        {"seq": 1 << 41}, {"tokens": 1.5}, {"gpus": 0}, {"gpus": "2"}, {"gpus": 1 << 21}, {"mfu": float("nan")},
        {"mfu": 0}, {"mfu": "x"}, {"price": "abc"}, {"price": -1}, {"price": float("inf")}, {"dropout": "no"},
        {"repeat_kv": 1}, {"keep_gradients": "no"}, {"nope": 1}, {"execution": 1}, {"defaulted": ()}, {"tp": 2},
        {"zero": 3}, {"rank": 8}, {"task": "lora", "rank": 0}, {"task": "lora", "targets": []},
        {"task": "lora", "targets": [1]}, {"task": "lora", "targets": 5}, {"task": "lora", "lora_dropout": 1},
        {"task": "serve", "group": 64}, {"task": "serve", "mfu": 0.4}, {"task": "serve", "weights": "q4"},
        pytest.param({"max_length": 5}, id="max_length"),
    ],
    ids=lambda options: " ".join(f"{k}={v}" for k, v in options.items())[:40],
)  # fmt: skip
def test_wrong_options_from_python(options: dict[str, Any]) -> None:
    """What the command line refuses, Python refuses too, with the same errors."""
    with pytest.raises(ls.LoadsheetError, match=r"got|unknown"):
        ls.plan("gpt2", "t4", **options)


def test_options_from_python() -> None:
    """None means the default; module names may stand in one string; whole numbers of any type are taken."""

    class Eight:
        def __index__(self) -> int:
            return 8

    sheet = ls.plan("gpt2", "t4", task="lora", batch=Eight(), rank=None, targets="c_attn, c_fc")
    assert (sheet.recipe.batch, sheet.recipe.rank) == (8, 16)
    assert sheet.recipe.targets == {"c_attn", "c_fc"}
    assert "rank" in sheet.recipe.defaulted


# --- remedies ----------------------------------------------------------------------------------------------

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "8B at once": ("llama-3-8b", "h100-sxm", {}),
    "8B in batches": (
        "llama-3-8b",
        "h100-sxm",
        {"task": "train", "batch": 4, "seq": 4096, "recompute": "full"},
    ),
    "eager LoRA": ("llama-3-8b", "t4", {"task": "lora", "seq": 4096, "stack": "hf", "attention": "eager"}),
    "eager GPT-2": ("gpt2", "t4", {"batch": 64, "stack": "hf", "attention": "eager"}),
    "window serving": ("mistral-7b-v0.1", "t4", {"task": "serve", "batch": 3, "seq": 20_000}),
    "half windows": ("gpt-oss-20b", "l4", {"task": "serve", "batch": 16, "seq": 32_768}),
    "mixture serving": ("mixtral-8x7b", "a100-sxm-80gb", {"task": "serve", "batch": 16, "seq": 32_768}),
    "latent serving": ("deepseek-v2-lite", "rtx-4090", {"task": "serve", "seq": 100_000, "kv": "fp8"}),
    "mixture QLoRA": ("qwen3-30b-a3b", "h100-sxm", {"task": "qlora", "batch": 2, "seq": 16_384}),
    "8-bit Adam": ("gemma-2-2b", "rtx-4090", {"task": "train", "optimizer": "adamw-8bit", "seq": 3000}),
}
each_case = pytest.mark.parametrize("case", CASES)


def _ends(estimate: ls.Estimate) -> tuple[float, float, float]:
    return (estimate.low, estimate.mid, estimate.high)


def _typed(change: str) -> dict[str, Any]:
    """The options of a remedy's text, as the command line would take them."""
    words = shlex.split(change)
    pairs = zip(words[::2], words[1::2], strict=True)
    return {name.removeprefix("--").replace("-", "_"): int(v) if v.isdigit() else v for name, v in pairs}


@pytest.mark.parametrize(
    "case",
    CASES,
)
def test_remedies_hold(case: str) -> None:
    """Planned again with its change as typed, each remedy gives the peak and the verdict that it claims."""
    model, gpu, options = CASES[case]
    sheet = ls.plan(model, gpu, **options)
    assert sheet.verdict == "does_not_fit"
    assert {"fits", "tight", "pointer"} & {r.verdict for r in sheet.remedies}
    for remedy in sheet.remedies:
        if remedy.peak is None:
            assert remedy.verdict == "pointer"
            continue
        change = _typed(remedy.change)
        again = ls.plan(model, change.pop("gpu", gpu), **{**options, **change})
        assert (_ends(remedy.peak), remedy.verdict) == (_ends(again.memory.peak), again.verdict), (
            remedy.change
        )
        assert remedy.saves_bytes == pytest.approx(sheet.memory.peak.mid - again.memory.peak.mid)
        if dict(remedy.options).keys() != {"gpu"}:
            assert _ends(sheet.changed(**dict(remedy.options)).memory.peak) == _ends(remedy.peak)


@each_case
def test_remedies_are_ordered(case: str) -> None:
    """What fits comes first, then what may, then the floor for several GPUs, then what does not suffice alone."""
    model, gpu, options = CASES[case]
    order = ["fits", "tight", "pointer", "does_not_fit"]
    ranks = [order.index(r.verdict) for r in ls.plan(model, gpu, **options).remedies]
    assert ranks == sorted(ranks)


def test_no_remedies_for_what_fits() -> None:
    """Nothing to change."""
    assert ls.plan("gpt2", "h100-sxm").remedies == ()


# --- capacity ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["h100-sxm", "rtx-4090"])
@each_case
def test_largest_batch_and_longest_sequence(case: str, gpu: str) -> None:
    """The n that is named fits and n + 1 does not, found by planning; 0 means that 1 does not fit."""
    model, _, options = CASES[case]
    sheet = ls.plan(model, gpu, **options)
    usable = sheet.memory.usable_bytes
    for name, n in (("batch", sheet.capacity.largest_batch), ("seq", sheet.capacity.longest_seq)):
        if n < LIMIT:  # beyond it no number is taken: nothing grows any more
            more = ls.plan(model, gpu, **{**options, name: n + 1})
            assert more.memory.peak.high > usable
        if n:
            assert ls.plan(model, gpu, **{**options, name: n}).memory.peak.high <= usable
        assert (sheet.verdict == "fits") == (getattr(sheet.recipe, name) <= n)


@pytest.mark.parametrize("gpu", ["h100-sxm", "t4"])
def test_largest_presets(gpu: str) -> None:
    """The preset that is named for a use fits, and no larger one of ten sampled ones does."""
    found = ls.plan("gpt2", gpu).capacity.largest_presets
    uses = {"serve bf16": {"task": "serve"}, "LoRA": {"task": "lora", "recompute": "full"}}
    for use, name, params in found:
        if use in uses:
            assert ls.model(name).params == params
            larger = [m for m in ls.models() if m.params > params][:10]
            for model, fits in [(name, True), *((m.name, False) for m in larger)]:
                seq = min(2048, ls.model(model).max_length or 2048)
                assert (ls.plan(model, gpu, **uses[use], batch=1, seq=seq).verdict == "fits") == fits, model


def test_capacity_beyond_the_search() -> None:
    """With a window of 4,096 the cache stops growing: any length fits, and the page does not name a last one."""
    sheet = ls.plan("mistral-7b-v0.1", "h100-sxm", task="serve", seq=1 << 23)
    assert sheet.verdict == "fits"
    assert "the longest sequence is 4,194,304" not in " ".join(str(sheet).split())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"gpus": 8}),
        pytest.param({"gpu": "b200-sxm"}),
        {"task": "serve", "batch": 4},
    ],
    ids=str,
)
def test_changed(change: dict[str, Any]) -> None:
    """`changed` asks the same question with other options."""
    sheet = ls.plan("gpt2", "t4", price=2).changed(**change)
    assert sheet.to_dict() == ls.plan("gpt2", **{"gpu": "t4", **change}, price=2).to_dict()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"gpu": "h100"}),
        pytest.param({"gpus": 0}),
        pytest.param({"gpus": "x"}),
        {"tp": 2},
        {"batch": 0},
    ],
    ids=str,
)
def test_changed_to_something_wrong(change: dict[str, Any]) -> None:
    """Its options are checked as those of `plan` are."""
    with pytest.raises(ls.LoadsheetError):
        ls.plan("gpt2", "t4").changed(**change)

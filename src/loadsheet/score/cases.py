"""From a row of a table to what the sheet is asked: a model, a recipe, a counter, a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from loadsheet.arch.model import Model
from loadsheet.hardware import Gpu
from loadsheet.recipe import Training
from loadsheet.score.names import gpu_of
from loadsheet.score.truth import Row, Skip

#: which of the three counters a figure comes from, or that the run ended for want of memory
Counter = Literal["allocated", "reserved", "device", "out of memory"]
TASKS: Final = {
    "full": "train", "pretrain": "train", "train": "train", "sft": "train", "lora": "lora", "qlora": "qlora",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One row, ready to be predicted.

    `shorter`: a share of the length that the longest batch reaches at least, where a row states only the
    upper bound of its lengths. `assumed` lists what the row leaves open.
    """

    row: Row
    model: Model
    recipe: Training
    counter: Counter
    gpu: Gpu | None
    capacity: float | None
    shorter: float = 1.0
    assumed: tuple[str, ...] = field(default=())


def check(row: Row) -> None:
    """Skip for rows that are outside what is scored here: several GPUs, other adapters, no figure."""
    text = row.text("n_gpus")
    if text in ("", "0"):
        raise Skip("the number of GPUs is not stated", in_scope=False)
    if row.whole("n_gpus") != 1:
        raise Skip(f"on {text} GPUs: one GPU only, so far", in_scope=False)
    kind = row.text("mem_kind").lower()
    if "max context" in kind or "frontier" in kind:
        raise Skip("the longest context that fits, no peak", in_scope=False)
    if "modelled" in kind or "modeled" in kind:
        raise Skip("somebody's formula, no measurement", in_scope=False)
    task = row.text("task").lower()
    if task not in TASKS:
        raise Skip(f"{task or 'the task'} is not supported", in_scope=False)
    if "adapter" in f"{row.text('dup_group')} {row.text('locator')}".lower() and not row.text("lora_rank"):
        raise Skip("adapter fine-tuning is not supported", in_scope=False)
    if "dora" in f"{row.text('dup_group')} {row.text('path')} {row.text('notes')}".lower():
        raise Skip("DoRA is not supported", in_scope=False)
    if any(word in task + row.text("sharding").lower() for word in ("zero3", "offload", "fsdp")):
        raise Skip("sharded or offloaded", in_scope=False)
    if offloads_inputs(row):
        if recompute_of(row, "full")[0] != "full":
            raise Skip("activations offloaded without recompute are not supported")
    elif row.text("offload").lower() not in ("", "no", "none", "false"):
        raise Skip(f"offload: {row.text('offload')} is not supported")
    if counter_of(row) != "out of memory" and row.real("peak_mem_gib") is None:
        raise Skip("no peak is stated", in_scope=False)


def offloads_inputs(row: Row) -> bool:
    """Whether what is kept for backward goes to the host: the one kind of torchtune's recipes for one GPU."""
    offload = row.text("offload").lower()
    return "torchtune" in row.text("framework").lower() and (
        offload in ("yes", "true") or offload.startswith("activ")
    )


def counter_of(row: Row) -> Counter:
    """The counter that `mem_kind` names."""
    kind = row.text("mem_kind").lower()
    if kind.startswith("oom") or "out of memory" in kind:
        return "out of memory"
    if "nvidia-smi" in kind or kind.startswith("gpu gb"):
        return "device"
    if "reserved" in kind or kind.startswith("peak mb as printed"):
        return "reserved"
    if "alloc" in kind or "active" in kind or kind.startswith("peak memory"):
        return "allocated"
    raise Skip(f"mem_kind {row.text('mem_kind')[:40]!r}: which counter it is cannot be told")


def capacity_of(row: Row) -> tuple[Gpu | None, float | None]:
    """(GPU, bytes that a process may use) where they can be told."""
    marketed = row.real("gpu_mem_gb")
    gpu = gpu_of(row.text("gpu"), marketed)
    if gpu is not None:
        return gpu, float(gpu.memory_usable_bytes)
    return None, None if marketed is None else marketed * 1e9


def precision_of(row: Row) -> str:
    """Which copies of the weights there are.

    Fabric's "true" and plain 16-bit are weights, gradients and states in 16 bits; "mixed" and "amp" are
    fp32 weights under autocast.
    """
    text = row.text("precision").lower()
    if "mixed" in text or "amp" in text or "autocast" in text:
        return "amp"
    if text.startswith(("fp32", "float32", "32", "tf32")):
        return "fp32"
    if text.startswith(("bf16", "bfloat16", "fp16", "float16", "16", "pure")):
        return "pure-bf16"
    raise Skip("the precision is not stated" if not text else f"precision {text[:30]!r} is not known")


def recompute_of(row: Row, default: str) -> tuple[str, bool]:
    """(recompute, whether it was stated)."""
    text = row.text("act_ckpt").lower()
    if not text:
        return default, False
    if "default" in text:
        return default if "true" not in text else "full", False
    if text.startswith(("none", "no", "false", "off")):
        return "none", True
    if "selective" in text:
        return "selective", True
    if text.startswith(("full", "yes", "true", "on", "unsloth", "gradient")):
        return "full", True
    raise Skip(f"act_ckpt {text[:30]!r} is not known")


def optimizer_of(row: Row) -> str:
    """The optimizer by the sheet's name."""
    text = row.text("optimizer").lower()
    paged = "paged" in text or "paged" in row.text("notes").lower()
    if "8bit" in text or "8-bit" in text:
        return "adamw-8bit-paged" if paged else "adamw-8bit"
    if not text or "adamw" in text or "lora-fa" in text or "lora+" in text:
        return "adamw-paged" if paged else "adamw"
    if "adam" in text:
        return "adam"
    if "sgd" in text:
        return "sgd-momentum" if "momentum" in text else "sgd"
    raise Skip(f"optimizer {text[:30]!r} is not supported")


_NAMES: Final = {
    "query": "q", "q": "q", "q_proj": "q", "wq": "q", "key": "k", "k": "k", "k_proj": "k", "wk": "k",
    "value": "v", "v": "v", "v_proj": "v", "wv": "v", "projection": "o", "o": "o", "o_proj": "o",
    "output_proj": "o", "mlp": "mlp", "gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj",
    "head": "head", "output": "head", "lm_head": "head",
}  # fmt: skip


def targets_of(row: Row) -> set[str] | None:
    """Which matrices LoRA is on, in words (q, k, v, o, mlp, head or module names); None if nothing says so."""
    notes = row.text("notes")
    found = re.search(r"(?:lora )?targets?[:=]\s*\[?([^;\]]*)", notes, re.IGNORECASE)
    if found is not None and found.group(1).strip():
        words = re.findall(r"[a-z_]+", found.group(1).lower())
        chosen = {_NAMES.get(w.removeprefix("lora_"), w) for w in words}
        return chosen - {"none"} or None
    lower = notes.lower()
    if "all linear" in lower or "all-linear" in lower:
        return {"q", "k", "v", "o", "mlp"} | ({"head"} if "+ output" in lower or "head" in lower else set())
    found = re.search(r"lora on ([qkvo](?:\s*,\s*[qkvo])*)", lower)
    return set(re.split(r"\s*,\s*", found.group(1))) if found is not None else None


def sizes(row: Row) -> dict[str, Any]:
    """Batch, length, accumulation."""
    return {
        "batch": row.need("micro_batch"),
        "seq": row.need("seq_len"),
        "accumulation": row.whole("grad_accum") or 1,
    }

"""How each framework carries out a row: its modules, its precision, its adapters, what it leaves alive.

Read in the frameworks' own sources, named at each function; nothing here is fitted to a measurement.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from loadsheet.arch.families import build
from loadsheet.arch.layers.attention import Attention
from loadsheet.arch.model import Model
from loadsheet.arch.read import model
from loadsheet.arch.work import HEAD_TARGET
from loadsheet.memory.states import check_adapter
from loadsheet.recipe import Training, recipe
from loadsheet.score.cases import (
    TASKS,
    Case,
    capacity_of,
    check,
    counter_of,
    offloads_inputs,
    optimizer_of,
    precision_of,
    recompute_of,
    sizes,
    targets_of,
)
from loadsheet.score.resolve import family_presets, model_of
from loadsheet.score.truth import Row, Skip

#: a batch of sequences "up to" a length: the longest may be that much shorter
SHORTER: Final = 0.9


def case_of(row: Row) -> Case:
    """The case of a row; Skip with the reason if there is none."""
    check(row)
    framework = row.text("framework").lower()
    for words, reader in _FRAMEWORKS:
        if any(word in framework for word in words):
            return reader(row)
    raise Skip(f"framework {framework or '(none)'} is not known")


# --- LitGPT ---------------------------------------------------------------------------------------


def _litgpt(row: Row) -> Case:
    """LitGPT's fine-tuning scripts on Lightning Fabric (Lightning-AI/litgpt, finetune/lora.py and full.py).

    Until 2025 its LoRA model did not squeeze the logits of chunks, and it was bound to bitsandbytes 0.41
    and 0.42, which hold the inputs of 4-bit layers. In `resource-tables.md` the longest batch comes first;
    elsewhere batches of the full length follow each other.
    """
    found = _litgpt_model(row)
    task = TASKS[row.text("task").lower()]
    quant = row.text("quant").lower()
    if task == "lora" and "nf4" in quant:
        task = "qlora"
    options: dict[str, Any] = {"task": task, "stack": "litgpt", "precision": precision_of(row), **sizes(row)}
    if task == "qlora" and "nf4" not in quant:
        raise Skip(f"quantisation {quant or '(none)'} is not supported")
    if task != "train":
        words = targets_of(row) or {"q", "v"}
        options |= {
            "rank": row.need("lora_rank"),
            "targets": _litgpt_targets(found, words),
            "lora_dropout": 0.05,
        }
    if task == "qlora":
        options |= {"double_quant": "dq" in quant, "optimizer": "adamw-paged"}
    made = _recipe(options)
    first = "resource-tables" in row.text("path")
    if task == "qlora":
        held = 1 if first else 2
        made = replace(made, execution=replace(made.execution, quantised_inputs_held=held))
    if found.logit_softcap and task != "train":
        found = replace(found, logit_softcap=False)
    return _case(row, found, made)


def _litgpt_model(row: Row) -> Model:
    """The model as LitGPT builds it: nothing tied, Phi-3 as a Llama, GELU as one kernel.

    The table of its config hub calls Gemma 2 "gemma-2b": the config's folder, in `dup_group`, is right.
    """
    folder = row.text("dup_group").removeprefix("litgpthub|").split("/")[0]
    cells = dict(row.cells)
    if folder.startswith("gemma2") and row.text("model").startswith("gemma-"):
        size = folder.removeprefix("gemma2").strip("-")
        cells["model"] = f"gemma-2-{'2b' if size == 'b' else size}"  # "gemma2b" stands under "gemma2-2b"
    named = Row(row.number, cells)
    try:
        found = model_of(named)
    except Skip as skip:
        by_adapters = _by_adapters(named)
        if by_adapters is None:
            raise skip
        found = by_adapters
    config = dict(found.config or {}) | {"tie_word_embeddings": False}
    kind = config.get("model_type")
    if kind == "phi3":
        keys = (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "tie_word_embeddings",
        )  # fmt: skip
        config = {"model_type": "llama", **{k: config[k] for k in keys}}
    if kind == "phi":
        config["hidden_act"] = "gelu_pytorch_tanh"
    return build(config, found.name)


def _by_adapters(row: Row) -> Model | None:
    """A family without a size ("Falcon"): the member whose adapters have as many parameters as the row says."""
    trained, rank = row.whole("trainable_params"), row.whole("lora_rank")
    if trained is None or rank is None:
        return None
    for name in family_presets(row.text("model")):
        found = model(name)
        words = targets_of(row) or {"q", "v"}
        options = {"task": "lora", "stack": "litgpt", "rank": rank, "batch": 1, "seq": 1}
        if check_adapter(found, _recipe({**options, "targets": _litgpt_targets(found, words)})) == trained:
            return found
    return None


def _litgpt_targets(found: Model, words: set[str]) -> frozenset[str]:
    """Module names of LitGPT's `lora_query`, ..., `lora_head`."""
    out = {HEAD_TARGET} if "head" in words else set()
    for block, _ in found.runs:
        for layer in block.parts():
            if isinstance(layer, Attention):
                names = layer.names
                pairs = (("q", names.q), ("k", names.k), ("v", names.v), ("o", names.o))
                out |= {name for word, name in pairs if word in words}
        if "mlp" in words:
            out |= {x.tag for _, x in block.linears() if x.tag and next(x.parameters()).role == "mlp"}
    return frozenset(out)


# --- transformers, PEFT, Trainer, a plain loop over transformers' modules ---------------------------


def _huggingface(row: Row) -> Case:
    """transformers' modules with PEFT's adapters, in Trainer or in a loop of one's own.

    PEFT casts adapters to fp32 and, without autocast, multiplies in fp32. Batches of several lengths are
    padded, so attention has a mask (huggingface/peft, method_comparison/MetaMathQA/run.py).
    """
    found, task, assumed = model_of(row), TASKS[row.text("task").lower()], []
    notes, quant = row.text("notes"), row.text("quant").lower()
    if task == "lora" and ("nf4" in quant or "int4" in quant or "4bit" in quant):
        task = "qlora"
    options: dict[str, Any] = {"task": task, "stack": "hf", **sizes(row)}
    if task == "qlora" and not row.text("precision"):
        options["precision"] = "mixed"
        assumed.append("autocast to bf16")
    else:
        options["precision"] = precision_of(row)
    attention = row.text("attn_impl").lower()
    options["attention"] = "eager" if "eager" in attention else "flash" if "flash" in attention else "sdpa"
    options["recompute"], stated = recompute_of(row, "none")
    if not stated:
        assumed.append(f"recompute {options['recompute']}")
    options["optimizer"], options["optimizer_form"] = optimizer_of(row), "foreach"
    if "trainer" in row.text("framework").lower() or "fused" in row.text("optimizer").lower():
        options["optimizer_form"] = "fused"
    if "gradients kept" in notes or "set_to_none=False" in notes:
        options["keep_gradients"] = True
    variable = "variable length" in notes or "<=" in notes
    options["masked"] = options["attention"] == "sdpa" and (variable or "mask" in notes)
    if options["attention"] == "flash":
        options["repeat_kv"] = False
    if task != "train":
        options |= {"rank": row.need("lora_rank"), "targets": _module_names(row, found)}
        if "autocast_adapter_dtype=False" in notes:
            options["adapters"] = "bf16"
    if row.text("compile").lower() in ("yes", "true"):
        options["kernels"] = "fused"
        assumed.append("compiled: norms and activations as one kernel")
    if "liger" in f"{row.text('framework')} {notes}".lower():
        options |= {"kernels": "fused", "loss": "fused"}
    return _case(row, found, _recipe(options), SHORTER if variable else 1.0, assumed)


def _unsloth(row: Row) -> Case:
    """Unsloth: its own kernels, checkpoints and a loss that never holds the logits whole."""
    found, task = model_of(row), TASKS[row.text("task").lower()]
    options: dict[str, Any] = {"task": task, "stack": "liger", "precision": "mixed", "recompute": "full"}
    options |= {**sizes(row), "optimizer": optimizer_of(row)}
    if task != "train":
        options["rank"] = row.need("lora_rank")
    if task == "qlora":
        options["upcast"] = False
    return _case(row, found, _recipe(options), assumed=["Unsloth's kernels as Liger's"])


#: matrices that hold q, k and v, by module name
_PACKED: Final = frozenset({"query_key_value", "qkv_proj", "c_attn", "Wqkv"})


def _module_names(row: Row, found: Model) -> frozenset[str] | None:
    """PEFT's target modules; where nothing says so, PEFT's own: q and v, or the matrix that holds both."""
    words = targets_of(row)
    tags = {x.tag for _, x, _ in found.linears() if x.tag}
    if words is None:
        words = tags & _PACKED or {"q", "v"}
    if {"q", "k", "v", "o", "mlp"} <= words:
        return frozenset(tags | ({HEAD_TARGET} if "head" in words else set()))
    names = {w: f"{w}_proj" for w in "qkvo"}
    wanted = {names.get(w, w) for w in words}
    if "mlp" in wanted:
        wanted = (wanted - {"mlp"}) | {
            x.tag for _, x, _ in found.linears() if x.tag and next(x.parameters()).role == "mlp"
        }
    if "head" in wanted:
        wanted = (wanted - {"head"}) | {HEAD_TARGET}
    missing = wanted - tags - {HEAD_TARGET}
    if missing:
        raise Skip(f"LoRA on {', '.join(sorted(missing))}: {found.name} has no such modules")
    return frozenset(wanted)


# --- torchtune ------------------------------------------------------------------------------------


def _torchtune(row: Row) -> Case:
    """torchtune's single-device recipes (recipes/lora_finetune_single_device.py and their configs).

    bf16 throughout, adapters included. What a row does not state is as in the configs: every block is
    recomputed, the loss goes by chunks, and full training pages an 8-bit optimizer that steps in backward
    (configs/*_full_single_device). A plain loss gets logits in fp32 (modules/transformer.py).
    """
    found, task, assumed = model_of(row), TASKS[row.text("task").lower()], []
    said = " ".join(row.text(column) for column in ("notes", "locator", "optimizer")).lower()
    options: dict[str, Any] = {
        "task": task,
        "stack": "torchtune",
        **sizes(row),
        "precision": precision_of(row),
    }
    options["recompute"], stated = recompute_of(row, "full")
    if not stated:
        assumed.append(f"the config's own recompute: {options['recompute']}")
    options["optimizer"] = optimizer_of(row)
    if task == "train":
        if not row.text("optimizer"):
            named = options["optimizer"] != "adamw"  # the notes say that it is paged
            options |= {"optimizer": options["optimizer"] if named else "adamw-8bit-paged"}
            assumed.append(f"{options['optimizer']}, stepping in backward, as the single-device configs do")
        if not row.text("optimizer") or _IN_BACKWARD.search(said):
            options["optimizer_form"] = "in-backward"
    else:
        words = targets_of(row)
        if words is None:
            words = {"q", "v", "o", "mlp"}
            assumed.append("LoRA on q, v, output and MLP")
        rank = row.whole("lora_rank")
        if rank is None:
            rank = 8
            assumed.append("rank 8")
        options |= {"rank": rank, "targets": _module_names(row, found)}
        if targets_of(row) is None:
            tags = {x.tag for _, x, _ in found.linears() if x.tag}
            options["targets"] = frozenset(tags - {"k_proj"})
    plain = bool(_PLAIN_LOSS.search(said)) and "chunk" not in said
    if plain:
        options["loss"] = "eager"
    compiled = row.text("compile").lower() in ("yes", "true")
    if compiled:
        options["kernels"] = "fused"  # each block is compiled by itself, and the loss
    made = _recipe(options)
    execution = replace(
        made.execution,
        wide_logits=plain,
        compiled_loss=compiled and not plain,
        inputs_on_device=_STASHED if offloads_inputs(row) else 0,
    )
    return _case(row, found, replace(made, execution=execution), assumed=assumed)


_IN_BACKWARD: Final = re.compile(r"optimizer_in_bwd|in[ _-]backward|into backward|low_memory")
_PLAIN_LOSS: Final = re.compile(
    r"crossentropyloss|plain (loss|cross)|\bbaseline\b|packed dataset|\+ ?compile\b"
)
#: tensors that wait at once to be offloaded (training/_activation_offloading.py, max_fwd_stash_size)
_STASHED: Final = 5


# --- common ---------------------------------------------------------------------------------------


def _recipe(options: dict[str, Any]) -> Training:
    made = recipe(**options)
    assert isinstance(made, Training)
    return made


def _case(
    row: Row, found: Model, made: Training, shorter: float = 1.0, assumed: list[str] | None = None
) -> Case:
    gpu, capacity = capacity_of(row)
    counter = counter_of(row)
    if counter == "out of memory" and capacity is None:
        raise Skip("the GPU is not known, so neither is what it holds")
    return Case(row, found, made, counter, gpu, capacity, shorter, tuple(assumed or ()))


_FRAMEWORKS: Final[tuple[tuple[tuple[str, ...], Callable[[Row], Case]], ...]] = (
    (("litgpt", "lit-gpt"), _litgpt),
    (("torchtune",), _torchtune),
    (("unsloth",), _unsloth),
    (
        ("transformers", "peft", "trainer", "trl", "accelerate", "hf", "hugging", "pytorch", "axolotl"),
        _huggingface,
    ),
)

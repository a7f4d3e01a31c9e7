"""Measure the peak of a training step of small models with PyTorch, for the tests of memory.

    python tools/measure_peaks.py [NAME ...] [--show]      rewrites tests/data/step_peaks.json

Each case is a transformers model with random weights that takes two steps on the CPU; the second one, where
the optimizer has its states, is watched. What is added up are the CPU allocator's own reports (the profiler
with `profile_memory`), on top of what is there before the step: parameters, buffers, kept gradients,
optimizer states. `--show` prints the operation at whose end the peak stands, and writes nothing.

Needs torch, transformers, peft and bitsandbytes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

OUT = Path(__file__).parent.parent / "tests" / "data" / "step_peaks.json"
SMALL = {
    "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
FEW = {"vocab_size": 64}  # the loss is small: the peak is in a block
WIDE = {"hidden_size": 1024, "intermediate_size": 2816}
GPT2 = {
    "n_embd": 256, "n_head": 8, "n_layer": 4, "vocab_size": 1000, "n_positions": 1024,
    "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip
FULL = {"recompute": "full"}
EAGER = {"attention": "eager"}

#: name: model type, what its config changes, batch, length, and the options of the recipe
CASES: dict[str, tuple[str, dict[str, Any], int, int, dict[str, Any]]] = {
    "loss": ("llama", {}, 2, 512, {}),
    "loss, many tokens to choose from": ("llama", {"vocab_size": 16000}, 2, 512, {}),
    "loss, gradients kept": ("llama", {"vocab_size": 16000}, 2, 512, {"keep_gradients": True}),
    "loss, gradients accumulated": ("llama", {}, 2, 512, {"accumulation": 2}),
    "loss, fp32": ("llama", {}, 2, 256, {"precision": "fp32"}),
    "loss, autocast": ("llama", {"vocab_size": 16000}, 2, 512, {"precision": "amp"}),
    "loss, autocast and recompute": ("llama", {"vocab_size": 16000}, 2, 512, {"precision": "amp", **FULL}),
    "loss, written-out attention": ("llama", {}, 2, 256, EAGER),
    "loss, Qwen3": ("qwen3", {"head_dim": 64}, 2, 512, {}),
    "loss, GPT-2": ("gpt2", {}, 4, 512, {}),
    "loss, Gemma 3 with windows": ("gemma3_text", {"head_dim": 64, "sliding_window": 128}, 2, 512, {}),
    "final norm": ("llama", {**FEW, "num_hidden_layers": 1}, 8, 512, {}),
    "block, recompute": ("llama", FEW, 8, 512, FULL),
    "block, recompute, fp32": ("llama", FEW, 8, 512, {"precision": "fp32", **FULL}),
    "block, recompute, autocast": ("llama", FEW, 8, 512, {"precision": "amp", **FULL}),
    "block, recompute, gradients kept": (
        "llama", {**FEW, "hidden_size": 512}, 4, 256, {"keep_gradients": True, **FULL},
    ),
    "block, recompute, Qwen3": ("qwen3", {**FEW, "head_dim": 64}, 8, 512, FULL),
    "block, recompute, written-out attention": ("llama", FEW, 2, 512, {**EAGER, **FULL}),
    "block, recompute, GPT-2": ("gpt2", FEW, 8, 512, FULL),
    "block, accumulated": ("llama", WIDE, 1, 64, {"accumulation": 2}),
    "embedding": ("llama", {"vocab_size": 8000}, 1, 16, {}),
    "embedding, tied": ("llama", {"vocab_size": 8000, "tie_word_embeddings": True}, 1, 16, {}),
    "step, all at once": ("llama", {}, 1, 16, {"optimizer_form": "foreach"}),
    "step, one by one": ("llama", WIDE, 1, 16, {"optimizer_form": "loop"}),
    "step, momentum at once": (
        "llama", WIDE, 1, 16, {"optimizer": "sgd-momentum", "optimizer_form": "foreach"},
    ),
    "step, no states": ("llama", WIDE, 1, 16, {"optimizer": "sgd", "optimizer_form": "foreach"}),
    "LoRA, fp32": ("llama", {}, 2, 512, {"task": "lora", "rank": 8, "precision": "fp32"}),
    "LoRA, autocast": ("llama", {}, 2, 512, {"task": "lora", "rank": 8, "precision": "mixed"}),
    "LoRA, fp32 base under autocast": ("llama", {}, 2, 512, {"task": "lora", "rank": 8, "precision": "amp"}),
    "LoRA, fp32 base, recompute": (
        "llama", {"vocab_size": 16000}, 2, 512, {"task": "lora", "rank": 8, "precision": "amp", **FULL},
    ),
    "LoRA, no autocast": ("llama", {}, 2, 512, {"task": "lora", "rank": 8, "precision": "pure-bf16"}),
    "LoRA, block, recompute": (
        "llama", FEW, 8, 512, {"task": "lora", "rank": 8, "precision": "mixed", **FULL},
    ),
    "QLoRA": ("llama", {}, 2, 512, {"task": "qlora", "rank": 8, "precision": "mixed"}),
    "QLoRA, not upcast": ("llama", {}, 2, 512, {"task": "qlora", "rank": 8, "precision": "mixed", "upcast": False}),
    "QLoRA, block, recompute": (
        "llama", FEW, 8, 512, {"task": "qlora", "rank": 8, "precision": "mixed", **FULL},
    ),
}  # fmt: skip


def config_of(model_type: str, changes: dict[str, Any]) -> Any:
    """The transformers config of a case."""
    base = GPT2 if model_type == "gpt2" else SMALL
    auto = import_module("transformers").AutoConfig
    return auto.for_model(model_type, **{**base, **changes})


def pack(module: Any) -> None:
    """Replace every linear layer below `module` but the head by one of 4-bit numbers (NF4, double quantisation)."""
    bnb = import_module("bitsandbytes")
    for name, child in list(module.named_children()):
        if not isinstance(child, torch.nn.Linear):
            pack(child)
        elif name != "lm_head":
            how = {"quant_type": "nf4", "compress_statistics": True}
            layer = bnb.nn.Linear4bit(
                child.in_features, child.out_features, bias=False, compute_dtype=torch.bfloat16, **how
            )
            weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, module=layer, **how)
            layer.weight = weight._quantize("cpu")
            setattr(module, name, layer)


def prepare(model_type: str, changes: dict[str, Any], options: dict[str, Any]) -> tuple[Any, Any, bool]:
    """The model, its optimizer, and whether autocast is on."""
    precision, lora = options.get("precision", "pure-bf16"), options.get("task") in ("lora", "qlora")
    wide = precision in ("fp32", "amp")
    auto = import_module("transformers").AutoModelForCausalLM
    attention = options.get("attention", "sdpa")
    model = auto.from_config(config_of(model_type, changes), attn_implementation=attention)
    model = model.to(torch.float32 if wide else torch.bfloat16).train()
    if options.get("recompute") == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if options.get("task") == "qlora":
        pack(model)
        model.is_loaded_in_4bit = True
        if options.get("upcast", True):
            ready = import_module("peft").prepare_model_for_kbit_training
            model = ready(model, use_gradient_checkpointing=False)
    if lora:
        peft = import_module("peft")
        adapters = peft.LoraConfig(
            r=options["rank"], target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(model, adapters)
    trained = [p for p in model.parameters() if p.requires_grad]
    form = options.get("optimizer_form", "fused")
    how = {"foreach": form == "foreach", "fused": form == "fused"}
    name = options.get("optimizer", "adamw")
    momentum = 0.9 if name == "sgd-momentum" else 0.0
    optimizer = (
        torch.optim.AdamW(trained, **how) if name == "adamw"
        else torch.optim.SGD(trained, lr=0.1, momentum=momentum, **how)
    )  # fmt: skip
    return model, optimizer, precision in ("amp", "mixed")


def resident(model: Any, optimizer: Any) -> int:
    """Bytes of parameters, buffers, gradients and states, each storage once."""
    gc.collect()
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    tensors += [v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v)]
    for state in (getattr(p, "quant_state", None) for p in model.parameters()):
        if state is not None:
            tensors += [state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code]
    storages = [t.untyped_storage() for t in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def measure(name: str, show: bool) -> int:
    """Peak bytes of the second step of a case, the token ids left out."""
    model_type, changes, batch, length, options = CASES[name]
    torch.manual_seed(0)
    model, optimizer, autocast = prepare(model_type, changes, options)
    vocabulary = config_of(model_type, changes).vocab_size
    ids = torch.randint(0, vocabulary, (batch, length))

    def step() -> None:
        for _ in range(options.get("accumulation", 1)):
            context: Any = (
                torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext()
            )
            with context:
                out = model(input_ids=ids, labels=ids, use_cache=False)
                loss = out.loss
            loss.backward()
            del out, loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=not options.get("keep_gradients", False))

    step()
    before = resident(model, optimizer)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=show
    ) as watched:
        step()
    events = sorted(watched.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    now = peak = when = 0
    for event in events:
        if event.name() == "[memory]":
            now += event.nbytes()
            if now > peak:
                peak, when = now, event.start_ns()
    if show:
        around = [
            f"{e.name()} {e.shapes()}" for e in events
            if e.name() != "[memory]" and e.start_ns() <= when <= e.start_ns() + e.duration_ns()
        ]  # fmt: skip
        print(f"{name}: {before + peak:,} bytes, at {' > '.join(around[-3:])}")
    return int(before + peak)


def main() -> None:
    """Measure the named cases, or all."""
    show = "--show" in sys.argv
    names = [a for a in sys.argv[1:] if not a.startswith("--")] or list(CASES)
    known = json.loads(OUT.read_text(encoding="utf-8"))["cases"] if OUT.exists() else []
    found = {case["name"]: case for case in known if case["name"] in CASES}
    for name in names:
        model_type, changes, batch, length, options = CASES[name]
        base = GPT2 if model_type == "gpt2" else SMALL
        extra = config_of(model_type, changes).to_dict()
        keys = {*base, *changes, "layer_types", "head_dim", "sliding_window"}
        config = {k: v for k, v in extra.items() if k in keys and v is not None}
        found[name] = {
            "name": name, "config": {"model_type": model_type, **config}, "batch": batch, "seq": length,
            "options": options, "peak_bytes": measure(name, show),
        }  # fmt: skip
    if show:
        return
    versions = {n: import_module(n).__version__ for n in ("torch", "transformers", "peft", "bitsandbytes")}
    lines = ",\n".join("  " + json.dumps(found[name], ensure_ascii=False) for name in CASES if name in found)
    about = "Peak bytes of one training step on the CPU, by tools/measure_peaks.py"
    OUT.write_text(
        f'{{\n "about": "{about}",\n "versions": {json.dumps(versions)},\n "cases": [\n{lines}\n ]\n}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()

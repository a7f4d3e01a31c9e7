"""Record what transformers makes of recurrent architectures and short convolutions (not a test itself).

    python tools/draws_recurrent.py tests/data [model_type ...]

writes `arch_recurrent.json.gz`: for each model type its default configuration, a shallow one, and random
ones, small, that reach into the corners; each with total, tie and a digest of names and shapes, built on the
meta device. Where a configuration runs on the CPU: the elements that its cache holds after a forward, and
FLOPs of it by PyTorch's FlopCounterMode, attention and experts written out, every scan along the sequence
replaced by zeros (it has no counted form: a loop, or chunks in PyTorch code). And what becomes of the first
random one when a key is missing or null. With model types given, these alone are tried and nothing is
written. Needs torch and transformers; the draws are seeded, so a second run gives the same file.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from draws_linear import (
    bailing_hybrid,
    inkling,
    inkling2,
    inkling2_loop,
    kimi_linear,
    lara_mini,
    lfm2_moe,
    lfm3,
    minimax,
    olmo_hybrid,
    qwen3_5,
    qwen3_5_moe,
    qwen3_next,
    qwen4_exp,
    recurrent_gemma,
    rwkv,
    wrapped,
    xlstm,
)
from draws_states import (
    Draw,
    bamba,
    falcon_h1,
    granitemoehybrid,
    jamba,
    mamba,
    mamba2,
    nemotron_h,
    zamba,
    zamba2,
)
from make_random_configs import build, digest, write

COUNT = 8  # random configurations of each model type
SEQUENCES, TOKENS = 2, 12  # of the forward; windows of the draws are wider, so that no cache is cut

DRAWS: dict[str, Callable[[Random], Draw]] = {
    "bailing_hybrid": bailing_hybrid,
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "falcon_mamba": mamba,
    "granitemoehybrid": granitemoehybrid,
    "inkling2_loop_text": inkling2_loop,
    "inkling2_text": inkling2,
    "inkling_text": inkling,
    "jamba": jamba,
    "kimi_linear": kimi_linear,
    "lara_mini": lara_mini,
    "lfm2_moe": lfm2_moe,
    "lfm3": lfm3,
    "mamba": mamba,
    "mamba2": mamba2,
    "minimax": minimax,
    "nemotron_h": nemotron_h,
    "olmo_hybrid": olmo_hybrid,
    "qwen3_5": wrapped(qwen3_5),
    "qwen3_5_moe": wrapped(qwen3_5_moe),
    "qwen3_5_moe_text": qwen3_5_moe,
    "qwen3_5_text": qwen3_5,
    "qwen3_next": qwen3_next,
    "qwen4_exp": wrapped(qwen4_exp),
    "qwen4_exp_text": qwen4_exp,
    "recurrent_gemma": recurrent_gemma,
    "rwkv": rwkv,
    "xlstm": xlstm,
    "zamba": zamba,
    "zamba2": zamba2,
}

#: what must be given for a class to build at all
NEEDED: dict[str, Draw] = {
    "lfm2_moe": {"num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"]},
    "qwen4_exp_text": {
        "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
    },
}  # fmt: skip
NEEDED["qwen4_exp"] = {"text_config": NEEDED["qwen4_exp_text"]}
#: how a class gets few layers, where `num_hidden_layers` is not enough
SHALLOW: dict[str, Draw] = {
    "lfm2_moe": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "nemotron_h": {"hybrid_override_pattern": "M*-"},
    "qwen3_5": {"text_config": {"num_hidden_layers": 3}},
    "qwen3_5_moe": {"text_config": {"num_hidden_layers": 3}},
    "qwen4_exp": {"text_config": {**NEEDED["qwen4_exp_text"], "num_hidden_layers": 3}},
    "zamba": {"num_hidden_layers": 9},
    "zamba2": {
        "num_hidden_layers": 5, "num_mem_blocks": 2,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"],
    },
}  # fmt: skip
#: keys of a saved configuration that say nothing about the architecture
NOISE = {
    "_name_or_path", "architectures", "attention_dropout", "bos_token_id", "chunk_size_feed_forward", "dtype",
    "eos_token_id", "id2label", "initializer_range", "is_encoder_decoder", "label2id", "output_attentions",
    "output_hidden_states", "output_router_logits", "pad_token_id", "problem_type", "return_dict",
    "transformers_version", "use_cache", "vision_config", "rope_parameters",
}  # fmt: skip


def cleaned(saved: Draw) -> Draw:
    """A saved configuration without noise and without numbers that JSON does not know."""

    def finite(value: Any) -> bool:
        values = value if isinstance(value, list | tuple) else [value]
        return not any(isinstance(v, float) and not math.isfinite(v) for v in values)

    return {
        key: cleaned(value) if isinstance(value, dict) else value
        for key, value in saved.items()
        if key not in NOISE and finite(value)
    }


# -- running -----------------------------------------------------------------------------------------


def without_scans(model: Any) -> None:
    """Replace every scan along the sequence by zeros of its output's shape."""
    torch = import_module("torch")
    module = import_module(type(model).__module__)

    def selective(x: Any, dt: Any, a: Any, *_: Any, return_last_state: bool = False, **__: Any) -> Any:
        out = torch.zeros_like(x)
        return (out, torch.zeros(*x.shape[:2], a.shape[-1])) if return_last_state else out

    def duality(
        x: Any, dt: Any, a: Any, b: Any, *_: Any, return_final_states: bool = False, **__: Any
    ) -> Any:
        out = torch.zeros_like(x)
        return (out, torch.zeros(x.shape[0], *x.shape[2:], b.shape[-1])) if return_final_states else out

    def delta(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
        return torch.zeros_like(v), torch.zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])

    zeros = {
        "mamba_selective_scan": selective,
        "mamba2_chunk_scan": duality,
        "torch_chunk_gated_delta_rule": delta,
        "chunk_kimi_delta_attention": delta,
    }
    for name, function in zeros.items():
        if hasattr(module, name):
            setattr(module, name, function)
    for part in model.modules():
        for name, function in zeros.items():
            if name in vars(part):
                setattr(part, name, function)
        if type(part).__name__ == "xLSTMBackend":
            part.forward = mlstm


def mlstm(query: Any, key: Any, value: Any, **_: Any) -> Any:
    """Zeros in place of xLSTM's cell."""
    torch = import_module("torch")
    heads = (*query.shape[:2], query.shape[-1])
    return torch.zeros_like(value), (
        torch.zeros(*heads, value.shape[-1]),
        torch.zeros(*heads),
        torch.zeros(*query.shape[:2], 1),
    )


def kept(found: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Every tensor of floating point numbers in a cache, whatever it is made of; `seen` keeps ids from coming again."""
    torch = import_module("torch")
    if id(found) in seen:
        return
    seen[id(found)] = found
    if isinstance(found, torch.Tensor):
        if found.is_floating_point() and found.dim() > 1:
            yield found
    elif isinstance(found, dict | list | tuple):
        for part in found.values() if isinstance(found, dict) else found:
            yield from kept(part, seen)
    elif hasattr(found, "__dict__") and type(found).__module__.startswith("transformers"):
        yield from kept({k: v for k, v in vars(found).items() if k != "config"}, seen)


def ran(model_type: str, config: Draw) -> Draw:
    """FLOPs and cache of a forward on the CPU; nothing where the class cannot run what it builds."""
    torch = import_module("torch")
    counter = import_module("torch.utils.flop_counter").FlopCounterMode
    try:
        made, model = build(
            model_type, {**config, "attn_implementation": "eager", "experts_implementation": "eager"}, "cpu"
        )
        without_scans(model.eval())
        if model_type == "xlstm":  # its cache has as many layers as the other of two names says
            model.config.num_hidden_layers = model.config.num_blocks
        with torch.no_grad(), counter(display=False) as counted:
            out = model(input_ids=torch.randint(3, 50, (SEQUENCES, TOKENS)), use_cache=True)
    except Exception:  # whatever it raises, it could not run this
        return {}
    del made
    held = out.get("cache")
    held = held if held is not None else out.get("state")
    elements = sum(t.numel() for t in kept(held, {}))
    return {"flops": counted.get_total_flops(), "cache": elements if held is not None else None}


def facts(model_type: str, config: Draw) -> Draw | None:
    """Total, tie and digest of what transformers builds, or None where it refuses."""
    try:
        _, model = build(model_type, config)
    except Exception:  # whatever it raises, it could not build this
        return None
    return {
        "total": sum(p.numel() for p in model.parameters()),
        "tied": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        "digest": digest([(name, tuple(p.shape)) for name, p in model.named_parameters()]),
    }


def known(model_type: str, config: Draw) -> Draw:
    """A configuration as transformers would save it, and what it makes of it."""
    made = build(model_type, config)[0]
    saved = cleaned(made.to_dict())
    return {"config": {**saved, "model_type": model_type}, **(facts(model_type, config) or {})}


def random_ones(model_type: str) -> list[Draw]:
    """`COUNT` configurations that transformers builds, at least half of them such that it also runs."""
    made: list[Draw] = []
    number, idle = 0, 0
    while len(made) < COUNT:
        config = DRAWS[model_type](Random(f"{model_type}/{number}"))
        number += 1
        if number > 20 * COUNT:
            raise RuntimeError(f"{model_type}: only {len(made)} of {number} drawn ones could be built")
        if (found := facts(model_type, config)) is None:
            continue
        run = ran(model_type, config)
        if not run and (idle := idle + 1) > COUNT // 2:
            continue
        made.append({"config": {"model_type": model_type, **config}, **found, **run})
    return made


def spoiled(model_type: str, config: Draw) -> Draw:
    """For each key, what transformers builds if it is missing, and if it is null (null: it refuses)."""
    config = {key: value for key, value in config.items() if key != "model_type"}
    return {
        key: {
            "missing": facts(model_type, {k: v for k, v in config.items() if k != key}),
            "null": facts(model_type, config | {key: None}),
        }
        for key in config
    }


def main(folder: Path, only: list[str]) -> None:
    """Write the file into `folder`, or try the model types given."""
    version = import_module("transformers").__version__
    import_module("transformers").logging.set_verbosity_error()
    import_module("torch").manual_seed(0)
    models, without = {}, {}
    for kind in only or sorted(DRAWS):
        drawn = random_ones(kind)
        needed = NEEDED.get(kind, {})
        models[kind] = {
            "default": known(kind, needed),
            "depth3": known(kind, {**needed, **SHALLOW.get(kind, {"num_hidden_layers": 3})}),
            "random": drawn,
        }
        without[kind] = spoiled(kind, drawn[0]["config"])
        print(kind, sum("flops" in one for one in drawn), "of", len(drawn), "run", flush=True)
    source = f"transformers {version}, built on the meta device; FLOPs and caches from a forward on the CPU"
    if not only:
        content = {"source": source, "run": [SEQUENCES, TOKENS], "models": models, "spoiled": without}
        write(folder / "arch_recurrent.json.gz", content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

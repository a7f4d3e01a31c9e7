"""Record what transformers makes of mixtures of experts and latent attention (not a test itself).

    python tools/draws_experts.py tests/data [model_type ...]

writes `arch_experts.json.gz`: for each model type its default configuration, the same with three layers,
and random ones, small, that reach into the corners; each with total, tie, a digest of names and shapes,
how far each layer looks back, and, from a real forward of 12 tokens on the CPU, FLOPs (PyTorch's
FlopCounterMode, attention written out) and the elements that the cache then holds. With model types given,
these alone are tried and nothing is written. Needs torch and transformers; the draws are seeded.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import draws_latent
import draws_mixtures
import make_random_configs as recorder

COUNT = 10  # random configurations of each model type
TOKENS = 12  # of the forward; windows of the draws are wider, so that no cache is cut
Draw = dict[str, Any]

DRAWS = {**draws_mixtures.DRAWS, **draws_latent.DRAWS}

#: what the defaults of a class miss to build at all (dots.llm1 and Hunyuan's published values)
MISSING: dict[str, Draw] = {
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "hunyuan_v1_moe": {"head_dim": 128},
}
#: beginnings of keys of a saved configuration that say nothing about the architecture
DROPPED = (
    "_", "arch", "attention_dropout", "aux", "bos_", "chunk_size_feed", "dtype", "eo", "id2label", "init", "is_enc",
    "label2id", "output_", "pad_", "pretraining", "problem", "return_dict", "rope_p", "routed_sc", "router_aux",
    "router_j", "sep_", "transformers", "use_cache",
)  # fmt: skip
#: how each class calls its number of layers
LAYERS = {"dbrx": "n_layers", "longcat_flash": "num_layers"}


# -- recording -------------------------------------------------------------------------------------


def run(model_type: str, config: Draw) -> Draw:
    """FLOPs of a real forward of `TOKENS` tokens, and the elements in its cache, on the CPU."""
    torch = import_module("torch")
    counter = import_module("torch.utils.flop_counter").FlopCounterMode(display=False)
    torch.manual_seed(0)
    _, model = recorder.build(
        model_type, {**config, "attn_implementation": "eager", "experts_implementation": "eager"}, "cpu"
    )
    for parameter in model.parameters():  # what a class leaves empty would be any number
        torch.nn.init.normal_(parameter.requires_grad_(False), std=0.02)
    ids = torch.tensor([list(range(1, TOKENS + 1))])
    with torch.no_grad(), counter:
        out = model.eval()(input_ids=ids, use_cache=True)
    cache = next(value for key, value in out.items() if key in ("cache", "past_key_values"))
    return {"flops": counter.get_total_flops(), "cache": sum(held(layer) for layer in cache.layers)}


def held(layer: Any) -> int:
    """Elements of the tensors that one layer of a cache holds, each storage once; flags and counters left out."""
    torch, found = import_module("torch"), {}

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            for inner in value.values():
                collect(inner)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                collect(inner)
        elif isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1:
            found[value.data_ptr(), value.shape] = value.numel()

    collect(vars(layer))
    return sum(found.values())


def attempt(model_type: str, config: Draw) -> Draw | None:
    """The record with FLOPs and cache, or None where transformers cannot build or run it."""
    try:
        found = recorder.record(model_type, config) | run(model_type, config)
        if config.get("zero_expert_num"):  # then FLOPs depend on what the routers choose
            found.pop("flops")
        return found
    except Exception as error:  # whatever it raises, it could not build this
        if "-v" in sys.argv:
            print(model_type, type(error).__name__, str(error)[:200], config)
        return None


def random_configs(model_type: str) -> list[Draw]:
    """`COUNT` configurations that transformers builds and runs."""
    made: list[Draw] = []
    for number in range(20 * COUNT):
        config = DRAWS[model_type](Random(f"{model_type}/{number}"))
        if (result := attempt(model_type, config)) is not None:
            made.append({"config": {"model_type": model_type, **config}, **result})
        if len(made) == COUNT:
            return made
    raise RuntimeError(f"{model_type}: only {len(made)} drawn configurations could be built")


def whole(model_type: str) -> dict[str, Draw]:
    """The default configuration and the same with three layers."""
    found: dict[str, Draw] = {}
    missing = MISSING.get(model_type, {})
    for variant, change in (("default", {}), ("depth3", {LAYERS.get(model_type, "num_hidden_layers"): 3})):
        config = {**missing, **change}
        made, _ = recorder.build(model_type, config)
        saved = {
            k: v
            for k, v in made.to_dict().items()
            if v is not None and not k.startswith(("_", "id2", "label2"))
        }
        found[variant] = {"config": saved, **recorder.record(model_type, config)}
    return found


def add_other_names(models: dict[str, Draw]) -> None:
    """dots3-note's class for causal language models is that of its text model, whose keys its files hold."""
    text = models["dots3_note_text"]

    def renamed(record: Draw) -> Draw:
        return {**record, "config": {**record["config"], "model_type": "dots3_note"}}

    models["dots3_note"] = {
        "default": renamed(text["default"]),
        "depth3": renamed(text["depth3"]),
        "random": [renamed(record) for record in text["random"]],
        "spoiled": text["spoiled"],
    }


def main(folder: Path, *only: str) -> None:
    """Write the file into `folder`, or try the given model types."""
    version = import_module("transformers").__version__
    import_module("transformers").logging.set_verbosity_error()
    source = f"transformers {version}, built on the meta device; FLOPs and cache from a forward on the CPU"
    chosen = [kind for kind in sorted(DRAWS) if not only or kind in only]
    models = {}
    for kind in chosen:
        randoms = random_configs(kind)
        first = recorder.spoiled(kind, randoms[0]["config"])
        models[kind] = {**whole(kind), "random": randoms, "spoiled": first}
        print(kind, len(randoms))
    if only:
        return
    add_other_names(models)
    recorder.write(folder / "arch_experts.json.gz", {"source": source, "models": models})


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(name for name in sys.argv[2:] if name != "-v"))

"""Record what transformers makes of the configurations drawn in `draws_dense.py` (not a test).

    python tools/record_dense.py tests/data [MODEL_TYPE ...]

writes `arch_dense.json.gz`: for each model type its default configuration, the same with three layers and
random ones that reach into the corners, each with total, tie and a digest of names and shapes; for those
that run also the FLOPs of one forward (FlopCounterMode, eager attention) and the elements of the cache
afterwards; and what becomes of the first random one when a key is missing or null. Needs torch and
transformers. The draws are seeded, so a second run gives the same file.
"""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from draws_dense import DRAWS, Draw
from make_random_configs import digest, write

COUNT = 8  # random configurations of each model type
SEQUENCES, TOKENS = 2, 12  # of the forward whose FLOPs and cache are recorded; fewer than any window

#: what the class needs besides its defaults, which do not build alone or hold no sizes of their own
FIXED: dict[str, Draw] = {
    "nemotron": {"num_key_value_heads": 48},
    "hunyuan_v1_dense": {"head_dim": 128},
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_theta": 10000.0, "rope_type": "default"}
            for kind in ("full_attention", "sliding_attention")
        }
    },
    "emu3_text_model": {"pad_token_id": 0},
}
#: three layers, where that is more than a change of `num_hidden_layers`
THREE: dict[str, Draw] = {
    "bloom": {"n_layer": 3}, "codegen": {"n_layer": 3}, "ctrl": {"n_layer": 3}, "gptj": {"n_layer": 3},
    "gpt-sw3": {"n_layer": 3}, "gpt_bigcode": {"n_layer": 3}, "openai-gpt": {"n_layer": 3},
    "xglm": {"num_layers": 3}, "mpt": {"n_layers": 3},
    "gpt_neo": {"num_layers": 3, "attention_types": [[["global", "local", "local"], 1]]},
    "dory": {"num_hidden_layers": 3, "n_input_layers": 1, "n_output_layers": 1},
    "emu3": {"text_config": {"num_hidden_layers": 3}},
    "blt": {"global_config": {"num_hidden_layers": 3}},
}  # fmt: skip
#: of a saved configuration, what says nothing about the architecture
JUNK = {
    "architectures", "bos_token_id", "eos_token_id", "transformers_version", "return_dict", "output_hidden_states",
    "chunk_size_feed_forward", "id2label", "label2id", "problem_type", "is_encoder_decoder", "output_attentions",
    "initializer_range", "use_cache", "dtype", "_name_or_path", "pad_token_id", "audio_encoder_config",
    "depth_decoder_config", "vq_config", "vocabulary_map", "rope_parameters", "layer_norm_epsilon", "layer_norm_eps",
    "rms_norm_eps", "norm_eps", "summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels",
}  # fmt: skip


def cleaned(config: Draw) -> Draw:
    """Without what says nothing about the architecture."""
    return {k: cleaned(v) if isinstance(v, dict) else v for k, v in config.items() if k not in JUNK}


def make(model_type: str, config: Draw, device: str = "meta") -> tuple[Any, Any]:
    """(configuration object, model with eager attention) of transformers."""
    torch, transformers = import_module("torch"), import_module("transformers")
    # the padding token of a class may lie beyond a small vocabulary; it has no weight of its own
    made = transformers.AutoConfig.for_model(model_type, **{"pad_token_id": None, **config})
    auto: Any = transformers.AutoModelForCausalLM
    if model_type == "emu3_text_model":  # a part of Emu3, which the auto class does not know alone
        auto = transformers.Emu3ForCausalLM
    with torch.device(device):
        build = auto.from_config if auto is transformers.AutoModelForCausalLM else auto._from_config
        return made, build(made, attn_implementation="eager")


def record(model_type: str, config: Draw, *, run: bool = False) -> Draw:
    """Total, tie, digest; if it is run too, how far each layer looks back, FLOPs and elements of the cache."""
    made, model = make(model_type, config, "cpu" if run else "meta")
    model.eval()
    shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    found: Draw = {
        "total": sum(p.numel() for p in model.parameters()),
        "tied": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        "digest": digest(shapes)[:16],
    }
    return found | (measured(made, model) if run else {})


def measured(made: Any, model: Any) -> Draw:
    """Windows of the cache, FLOPs of one forward, elements in the cache after it."""
    torch, transformers = import_module("torch"), import_module("transformers")
    counter = import_module("torch.utils.flop_counter").FlopCounterMode(display=False)
    ids = torch.randint(1, 40, (SEQUENCES, TOKENS))
    caches = hasattr(made, "num_hidden_layers")  # the class of BLT asks for a cache and then cannot make it
    with torch.no_grad(), counter:
        out = model(input_ids=ids, use_cache=caches)
    found: Draw = {"flops": counter.get_total_flops()}
    if caches:
        if hasattr(made, "sliding_window"):
            layers = transformers.DynamicCache(config=made).layers
            found["windows"] = [getattr(layer, "sliding_window", None) or None for layer in layers]
        if getattr(out, "cache", None) is not None:
            found["cache"] = cached(out.cache, torch)
    return found


def cached(cache: Any, torch: Any) -> int:
    """Elements of every tensor that the layers of a cache hold."""
    total = 0
    for layer in cache.layers:
        for value in vars(layer).values():
            held = list(value.values()) if isinstance(value, dict) else [value]
            total += sum(t.numel() for t in held if isinstance(t, torch.Tensor) and t.dim() > 1)
    return total


def attempt(model_type: str, config: Draw, *, run: bool = False) -> Draw | None:
    """The record, or None where transformers refuses the configuration, or cannot run what it built."""
    try:
        return record(model_type, config, run=run)
    except Exception:  # whatever it raises, it could not build this
        return None


def known(model_type: str) -> list[Draw]:
    """The default configuration and the same with three layers, as transformers would save them."""
    found = []
    for change in ({}, THREE.get(model_type, {"num_hidden_layers": 3})):
        config = {**FIXED.get(model_type, {}), **change}
        made = make(model_type, config)[0]
        kept = cleaned(made.to_dict())
        found.append({"config": {**kept, "model_type": model_type}, **record(model_type, config)})
    return found


def random_configs(model_type: str) -> list[Draw]:
    """`COUNT` configurations that transformers builds and runs, with what it makes of them."""
    made: list[Draw] = []
    number = 0
    while len(made) < COUNT:
        config = DRAWS[model_type](Random(f"{model_type}/{number}"))
        number += 1
        if number > 20 * COUNT:
            raise RuntimeError(f"{model_type}: only {len(made)} of {number} drawn ones could be built")
        if (result := attempt(model_type, config, run=True)) is not None:
            made.append({"config": {"model_type": model_type, **config}, **result})
    return made


def spoiled(model_type: str, config: Draw) -> dict[str, Draw]:
    """For each key, what transformers builds if it is missing, and if it is null (null: it refuses)."""
    config = {key: value for key, value in config.items() if key != "model_type"}
    return {
        key: {
            "missing": attempt(model_type, {k: v for k, v in config.items() if k != key}),
            "null": attempt(model_type, config | {key: None}),
        }
        for key in config
    }


def main(folder: Path, only: list[str]) -> None:
    """Write the file into `folder`."""
    version = import_module("transformers").__version__
    import_module("transformers").logging.set_verbosity_error()
    import_module("torch").manual_seed(0)
    models, without = {}, {}
    for kind in only or sorted(DRAWS):
        with contextlib.redirect_stderr(None):
            drawn = random_configs(kind)
            models[kind] = known(kind) + drawn
            without[kind] = spoiled(kind, drawn[0]["config"])
        print(kind, len(models[kind]), flush=True)
    source = f"transformers {version}, built on the meta device, or run on a CPU where FLOPs are given"
    content = {"source": source, "run": [SEQUENCES, TOKENS], "models": models, "spoiled": without}
    write(folder / "arch_dense.json.gz", content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

"""Record what transformers builds, so that the tests can compare our counts with it (not a test itself).

    python tools/make_random_configs.py tests/data

writes two files, both with the version of transformers in `source`:

- `shapes.json.gz`: for each model type its default configuration, whole and with three layers, with the
  name and shape of every parameter;
- `random_configs.json.gz`: for each model type random configurations, small ones, that reach into the
  corners (head_dim unlike hidden_size/heads, biases, ties, patterns of layers, latent ranks, ...), with the
  total, a digest of names and shapes and how far each layer looks back; and what becomes of the first of
  them when one key is missing or null.

Needs torch and transformers. Models are built on the meta device, so nothing is allocated; the draws are
seeded by model type and number, so a second run gives the same files.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

COUNT = 12  # random configurations of each model type
Draw = dict[str, Any]


# -- building --------------------------------------------------------------------------------------


def build(model_type: str, config: Draw, device: str = "meta") -> tuple[Any, Any]:
    """(configuration object, model) of transformers; on the meta device nothing is allocated."""
    torch, transformers = import_module("torch"), import_module("transformers")
    # the padding token of a class may lie beyond a small vocabulary; it has no weight of its own
    made = transformers.AutoConfig.for_model(model_type, **{"pad_token_id": None, **config})
    with torch.device(device):
        return made, transformers.AutoModelForCausalLM.from_config(made)


def record(model_type: str, config: Draw) -> Draw:
    """Total, whether the head is tied, the digest, and the cache length of each layer (null: no limit)."""
    transformers = import_module("transformers")
    made, model = build(model_type, config)
    shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    layers = transformers.DynamicCache(config=made).layers
    return {
        "total": sum(p.numel() for p in model.parameters()),
        "tied": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        "digest": digest(shapes),
        "windows": [getattr(layer, "sliding_window", None) or None for layer in layers],  # 0 is no window
    }


def digest(shapes: list[tuple[str, tuple[int, ...]]]) -> str:
    """SHA-256 over the sorted lines "name d0xd1"."""
    lines = sorted(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def attempt(model_type: str, config: Draw, *, run: bool = False) -> Draw | None:
    """The record, or None where transformers refuses the configuration, or cannot run what it built."""
    try:
        if run:
            torch = import_module("torch")
            _, model = build(model_type, config, "cpu")
            with torch.no_grad():
                model(input_ids=torch.tensor([[1, 2, 3, 4]]))
        return record(model_type, config)
    except Exception:  # whatever it raises, it could not build this
        return None


# -- drawing ---------------------------------------------------------------------------------------


def base(r: Random) -> Draw:
    """Sizes that nearly every configuration has; the width is not always heads · head_dim."""
    heads = r.choice([1, 2, 3, 4, 6, 8, 12])
    head_dim = r.choice([8, 16, 24, 32, 40])
    return {
        "hidden_size": heads * r.choice([head_dim, 8, 16, 48]),
        "num_attention_heads": heads,
        "num_key_value_heads": r.choice([k for k in range(1, heads + 1) if heads % k == 0]),
        "head_dim": head_dim,
        "num_hidden_layers": r.randint(1, 7),
        "intermediate_size": r.choice([17, 64, 96, 200, 341]),
        "vocab_size": r.choice([61, 100, 257, 1000]),
        "max_position_embeddings": r.choice([32, 100, 512]),
        "tie_word_embeddings": r.random() < 0.5,
    }


def flags(r: Random, *names: str) -> Draw:
    """Each of the switches on or off."""
    return {name: r.random() < 0.5 for name in names}


def layer_types(r: Random, config: Draw, *kinds: str) -> Draw:
    """A pattern of layers drawn freely, or left to the class."""
    if r.random() < 0.4:
        return {}
    return {"layer_types": [r.choice(kinds) for _ in range(config["num_hidden_layers"])]}


def window(r: Random) -> Draw:
    """A sliding window, null, or left to the class."""
    return r.choice([{"sliding_window": 16}, {"sliding_window": None}, {"sliding_window": 100}, {}])


def experts(r: Random, key: str) -> Draw:
    """Number of experts and how many each token uses."""
    count = r.choice([1, 2, 4, 5, 8])
    return {key: count, "num_experts_per_tok": r.randint(1, count)}


def plain(*switches: str, windows: bool = False, square: bool = False) -> Callable[[Random], Draw]:
    """A family with the usual sizes and these switches; `square`: it knows no head_dim of its own."""

    def draw(r: Random) -> Draw:
        config = base(r) | flags(r, *switches)
        if square:
            config["hidden_size"] = config["num_attention_heads"] * config.pop("head_dim")
        return config | (window(r) if windows else {})

    return draw


def alternating(
    *switches: str, windows: Callable[[Random], Draw] = window, **more: Any
) -> Callable[[Random], Draw]:
    """A family whose layers alternate between windows and full attention."""

    def draw(r: Random) -> Draw:
        config = plain(*switches, **more)(r) | windows(r)
        return config | layer_types(r, config, "sliding_attention", "full_attention")

    return draw


def qwen_window(r: Random) -> Draw:
    """Qwen's windows, behind a switch and from a layer on."""
    return window(r) | flags(r, "use_sliding_window") | r.choice([{}, {"max_window_layers": r.randint(0, 6)}])


def some_window(r: Random) -> Draw:
    """A window that is never null."""
    return r.choice([{"sliding_window": 16}, {"sliding_window": 100}, {}])


def without(draw: Callable[[Random], Draw], *keys: str) -> Callable[[Random], Draw]:
    """The same with some keys left out."""
    return lambda r: {key: value for key, value in draw(r).items() if key not in keys}


def gpt2(r: Random) -> Draw:
    """GPT-2 with its own names of the sizes."""
    config, heads = base(r), r.choice([1, 2, 3, 4])
    return {
        "n_embd": heads * config["head_dim"], "n_head": heads, "n_layer": config["num_hidden_layers"],
        "vocab_size": config["vocab_size"], "n_positions": config["max_position_embeddings"],
        "n_inner": r.choice([None, 50, 128]), "tie_word_embeddings": config["tie_word_embeddings"],
        "activation_function": r.choice(["gelu_new", "relu", "gelu"]),
    }  # fmt: skip


def gpt_neox(r: Random) -> Draw:
    """GPT-NeoX: no KV heads of its own."""
    config = plain("use_parallel_residual", "attention_bias", square=True)(r)
    del config["num_key_value_heads"]
    return config | {"hidden_dropout": r.choice([0.0, 0.1])}


def opt(r: Random) -> Draw:
    """OPT: norms before, after or nowhere, and perhaps a narrower embedding."""
    config = plain(
        "do_layer_norm_before",
        "_remove_final_layer_norm",
        "enable_bias",
        "layer_norm_elementwise_affine",
        square=True,
    )(r)
    del config["num_key_value_heads"]
    width = r.choice([None, 24, config["hidden_size"]])
    return config | {"ffn_dim": config.pop("intermediate_size"), "word_embed_proj_dim": width}


def gemma3(r: Random) -> Draw:
    """Gemma 3, with the older name of its pattern too."""
    pattern = {"sliding_window_pattern": r.choice([2, 3, 6])} if r.random() < 0.5 else {}
    return alternating("attention_bias", windows=some_window)(r) | pattern


def cohere2(r: Random) -> Draw:
    """Command R7B, with the older name of its pattern too."""
    pattern = {"sliding_window_pattern": r.choice([2, 3])} if r.random() < 0.5 else {}
    return alternating("attention_bias")(r) | pattern


def deepseek(r: Random, *switches: str) -> Draw:
    """Latent attention, some dense layers first."""
    config = plain("attention_bias", *switches)(r)
    del config["head_dim"]
    config["num_key_value_heads"] = config["num_attention_heads"]
    return config | experts(r, "n_routed_experts") | {
        "q_lora_rank": r.choice([None, 12, 40]), "kv_lora_rank": r.choice([8, 20]),
        "qk_nope_head_dim": r.choice([8, 24]), "qk_rope_head_dim": r.choice([4, 8]),
        "v_head_dim": r.choice([8, 12, 40]),
        "moe_intermediate_size": r.choice([16, 33]), "n_shared_experts": r.choice([1, 2]),
        "first_k_dense_replace": r.randint(0, config["num_hidden_layers"]), "n_group": 1, "topk_group": 1,
    }  # fmt: skip


def mixture(key: str, *switches: str, windows: bool = False) -> Callable[[Random], Draw]:
    """A family whose every layer is a mixture."""
    return lambda r: plain(*switches, windows=windows)(r) | experts(r, key)


def gpt_oss(r: Random) -> Draw:
    """gpt-oss: windows in some layers, and experts."""
    return alternating("attention_bias")(r) | experts(r, "num_local_experts")


def llama4(r: Random) -> Draw:
    """Llama 4 (text): where the mixtures are, and which layers have rotary positions and chunks."""
    config = plain("attention_bias")(r) | experts(r, "num_local_experts")
    layers = config["num_hidden_layers"]
    config |= {"intermediate_size_mlp": r.choice([40, 72]), "attention_chunk_size": r.choice([None, 16, 64])}
    config |= r.choice([
        {}, {"interleave_moe_layer_step": r.choice([1, 2, 3])},
        {"moe_layers": sorted(r.sample(range(layers), r.randint(0, layers)))},
    ])  # fmt: skip
    config |= r.choice([
        {}, {"no_rope_layer_interval": 2}, {"no_rope_layers": [r.randint(0, 1) for _ in range(layers)]},
        {"no_rope_layers": []},
    ])  # fmt: skip
    return config | layer_types(r, config, "chunked_attention", "full_attention")


def qwen_moe(r: Random, *switches: str, **more: Any) -> Draw:
    """Qwen with mixtures in some layers."""
    config = plain(*switches)(r) | experts(r, "num_experts") | qwen_window(r) | more
    layers = config["num_hidden_layers"]
    config["moe_intermediate_size"] = r.choice([16, 33])
    config |= r.choice([{}, {"decoder_sparse_step": r.choice([1, 2, 3])}])
    return config | r.choice([{}, {"mlp_only_layers": sorted(r.sample(range(layers), r.randint(0, layers)))}])


def qwen2_moe(r: Random) -> Draw:
    """Qwen 1.5 and 2 with a shared expert."""
    config = qwen_moe(r, "qkv_bias", shared_expert_intermediate_size=r.choice([24, 50]))
    return config | layer_types(r, config, "sliding_attention", "full_attention")


DRAWS: dict[str, Callable[[Random], Draw]] = {
    "cohere": plain("attention_bias", "use_qk_norm"),
    "cohere2": cohere2,
    "deepseek_v2": lambda r: deepseek(r, "mlp_bias"),
    "deepseek_v3": deepseek,
    "gemma": plain("attention_bias"),
    "gemma2": alternating("attention_bias", windows=some_window),
    "gemma3_text": gemma3,
    "glm": plain("attention_bias"),
    "glm4": plain("attention_bias"),
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "gpt_oss": gpt_oss,
    "granite": plain("attention_bias", "mlp_bias"),
    "granitemoe": mixture("num_local_experts", "attention_bias"),
    "llama": plain("attention_bias", "mlp_bias"),
    "llama4_text": llama4,
    "mistral": plain(windows=True),
    "mixtral": mixture("num_local_experts", windows=True),
    "olmo": plain("attention_bias"),
    "olmo2": plain("attention_bias"),
    "olmo3": alternating("attention_bias"),
    "olmoe": mixture("num_experts", "attention_bias"),
    "opt": opt,
    "phi": plain("qk_layernorm"),
    "phi3": plain(windows=True),
    "phimoe": mixture("num_local_experts", "attention_bias", "lm_head_bias", windows=True),
    "qwen2": alternating(windows=qwen_window),
    "qwen2_moe": qwen2_moe,
    "qwen3": alternating("attention_bias", windows=qwen_window),
    "qwen3_moe": without(lambda r: qwen_moe(r, "attention_bias"), "max_window_layers"),
    "stablelm": plain("use_qkv_bias", "qk_layernorm", "use_parallel_residual"),
    "starcoder2": plain("use_bias", windows=True),
}


# -- writing ---------------------------------------------------------------------------------------


def random_configs(model_type: str) -> list[Draw]:
    """`COUNT` configurations that transformers builds, with what it makes of them."""
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


#: how each class calls its number of layers
LAYERS = {"gpt2": "n_layer"}


def default_shapes(model_type: str) -> dict[str, Draw]:
    """The default configuration and the same with three layers: config, total, tied, names and shapes."""
    found: dict[str, Draw] = {}
    for variant, change in (("default", {}), ("depth3", {LAYERS.get(model_type, "num_hidden_layers"): 3})):
        made, model = build(model_type, change)
        config = {k: v for k, v in made.to_dict().items() if k in KEPT}
        found[variant] = {
            "config": config,
            "total": sum(p.numel() for p in model.parameters()),
            "tied": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
            "shapes": {name: list(p.shape) for name, p in model.named_parameters()},
        }
    return found


#: keys that describe the architecture; a configuration as saved holds many others
KEPT = {
    "model_type", "layer_types", "sliding_window", "hidden_size", "num_attention_heads",
    "num_key_value_heads", "head_dim", "num_hidden_layers", "intermediate_size", "vocab_size",
    "max_position_embeddings", "tie_word_embeddings", "n_embd", "n_head", "n_layer", "n_inner",
    "n_positions", "ffn_dim", "word_embed_proj_dim", "do_layer_norm_before", "_remove_final_layer_norm",
    "enable_bias", "layer_norm_elementwise_affine", "attention_bias", "mlp_bias", "qkv_bias",
    "use_qkv_bias", "use_bias", "lm_head_bias", "use_qk_norm", "qk_layernorm", "use_parallel_residual",
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "moe_intermediate_size", "n_shared_experts", "n_routed_experts", "first_k_dense_replace",
    "num_local_experts", "num_experts", "num_experts_per_tok", "shared_expert_intermediate_size",
    "decoder_sparse_step", "mlp_only_layers", "intermediate_size_mlp", "interleave_moe_layer_step",
    "moe_layers", "no_rope_layers", "no_rope_layer_interval", "attention_chunk_size", "use_sliding_window",
    "max_window_layers", "activation_function", "hidden_act", "hidden_activation",
}  # fmt: skip


def write(path: Path, content: Any) -> None:
    """JSON, gzipped; the same content gives the same bytes."""
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    print(f"{path}: {path.stat().st_size:,} bytes")


def main(folder: Path) -> None:
    """Write both files into `folder`."""
    version = import_module("transformers").__version__
    source = f"transformers {version}, built on the meta device"
    import_module("transformers").logging.set_verbosity_error()
    write(
        folder / "shapes.json.gz",
        {"source": source, "models": {kind: default_shapes(kind) for kind in sorted(DRAWS)}},
    )
    configs = {kind: random_configs(kind) for kind in sorted(DRAWS)}
    first = {kind: spoiled(kind, made[0]["config"]) for kind, made in configs.items()}
    write(folder / "random_configs.json.gz", {"source": source, "configs": configs, "spoiled": first})


if __name__ == "__main__":
    main(Path(sys.argv[1]))

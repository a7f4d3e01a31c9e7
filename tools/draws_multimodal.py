"""Record what transformers builds of windowed, key-sharing and multimodal decoders (not a test itself).

    python tools/draws_multimodal.py tests/data

writes `arch_multimodal.json.gz`: for each model type its default configuration, the same with three layers
where that exists, and random ones, each with the total, whether the head is tied, a digest of names and
shapes, and how far back the cache of each layer reaches. Needs torch and transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from make_random_configs import (
    Draw,
    alternating,
    attempt,
    build,
    experts,
    flags,
    layer_types,
    plain,
    record,
    some_window,
    write,
)
from make_random_configs import llama4 as text4

COUNT = 8  # random configurations of each model type
KINDS = ("sliding_attention", "full_attention")


# -- windows ---------------------------------------------------------------------------------------


def exaone4(r: Random) -> Draw:
    """Windows by a pattern, by a list, or not at all (then its class wants the list)."""
    config = plain()(r)
    if r.random() < 0.5:
        del config["head_dim"]
        config["hidden_size"] = config["num_attention_heads"] * r.choice([8, 16, 24])
    pattern = r.choice([{}, {"sliding_window_pattern": 2}, {"sliding_window_pattern": 3}])
    config |= some_window(r) | pattern | layer_types(r, config, *KINDS)
    if "layer_types" in config and r.random() < 0.4:
        config |= {"sliding_window": None, "layer_types": ["full_attention"] * config["num_hidden_layers"]}
    return config


def granite_swa(r: Random) -> Draw:
    """Sinks, and layers without positions."""
    config = alternating("attention_bias", "mlp_bias", windows=some_window)(r)
    if r.random() < 0.5:
        config["layer_rope_theta"] = [r.choice([0, 10000.0]) for _ in range(config["num_hidden_layers"])]
    return config


# -- Gemma 3n and 4 --------------------------------------------------------------------------------


def sharing(r: Random, config: Draw, *, everything: bool) -> Draw:
    """Some of the last layers read the keys of others; each kind of layer has one that keeps them."""
    layers = max(config["num_hidden_layers"], 3)
    shared = r.choice([0, 1, layers - 2, layers - 1, layers if everything else 0])
    kept = [r.choice(KINDS) for _ in range(layers - shared)]
    rest = [r.choice(kept or KINDS) for _ in range(shared)]
    if everything:  # the class makes the last one full
        (rest or kept)[-1] = "full_attention"
        if kept and "full_attention" not in kept:
            kept[0] = "full_attention"
    return {"num_hidden_layers": layers, "layer_types": kept + rest, "num_kv_shared_layers": shared}


def gemma3n_text(r: Random) -> Draw:
    """Streams, ranks, widths by layer, sparse layers."""
    config = plain("attention_bias", "altup_correct_scale")(r) | some_window(r)
    config |= sharing(r, config, everything=False)
    layers = config["num_hidden_layers"]
    if r.random() < 0.5:
        config["intermediate_size"] = [r.choice([32, 48, 64]) for _ in range(layers)]
    if r.random() < 0.5:
        config["activation_sparsity_pattern"] = [r.choice([0.0, 0.5, 0.95]) for _ in range(layers)]
    return config | {
        "hidden_size_per_layer_input": r.choice([4, 16]), "vocab_size_per_layer_input": r.choice([50, 90]),
        "altup_num_inputs": r.choice([2, 3, 4]), "laurel_rank": r.choice([2, 8, 20]),
        "hidden_activation": r.choice(["gelu_pytorch_tanh", "silu"]),
    }  # fmt: skip


def gemma4_unified_text(r: Random) -> Draw:
    """Other heads in full attention, values made of keys, wide MLPs where keys are shared."""
    config = plain("attention_bias", "attention_k_eq_v", "use_double_wide_mlp")(r) | some_window(r)
    if r.random() < 0.7:
        config |= sharing(r, config, everything=True)
    heads = config["num_attention_heads"]
    divisors = [k for k in range(1, heads + 1) if heads % k == 0]
    config |= {"global_head_dim": r.choice([8, 24, 48])}
    return config | r.choice([{}, {"num_global_key_value_heads": r.choice([*divisors, None])}])


def gemma4_text(r: Random) -> Draw:
    """The same with per-layer embeddings and mixtures, both perhaps off."""
    config = gemma4_unified_text(r)
    narrow = r.choice([0, 4, 16])
    config |= {"hidden_size_per_layer_input": narrow, "vocab_size_per_layer_input": r.choice([50, 90])}
    if r.random() < 0.5:
        mixture = experts(r, "num_experts")
        config |= {
            "enable_moe_block": True, "num_experts": mixture["num_experts"],
            "top_k_experts": mixture["num_experts_per_tok"], "moe_intermediate_size": r.choice([16, 33]),
        }  # fmt: skip
    return config


def assistant(kind: str) -> Callable[[Random], Draw]:
    """A draft model whose layers all read another model's keys."""

    def draw(r: Random) -> Draw:
        text = gemma4_unified_text(r) | {"model_type": kind}
        layers = text["num_hidden_layers"]
        text["num_kv_shared_layers"] = r.choice([0, layers])
        if kind == "gemma4_text":
            text |= {
                "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "use_double_wide_mlp": False,
            }  # fmt: skip
        return flags(r, "use_ordered_embeddings", "tie_word_embeddings") | {
            "text_config": text, "backbone_hidden_size": r.choice([32, 100]), "num_centroids": r.choice([4, 10]),
        }  # fmt: skip

    return draw


# -- wrappers --------------------------------------------------------------------------------------


def text(r: Random, kind: str, **more: object) -> Draw:
    """The language model inside a wrapper."""
    return DRAWS[kind](r) | {"model_type": kind, **more}


def vit(r: Random) -> Draw:
    """Sizes of a vision transformer."""
    heads, patch = r.choice([1, 2, 4]), r.choice([4, 8])
    return {
        "hidden_size": heads * r.choice([8, 12]), "num_attention_heads": heads,
        "intermediate_size": r.choice([20, 48]), "num_hidden_layers": r.randint(1, 3), "patch_size": patch,
        "image_size": r.choice([patch * 3, patch * 4 + 1]),
    } | r.choice([{}, {"num_channels": 1}])  # fmt: skip


def gemma3(r: Random) -> Draw:
    """SigLIP with its head or without."""
    inner = alternating("attention_bias", windows=some_window)(r)
    if r.random() < 0.4:  # what the published 4B leaves to its class
        heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 64}
        inner = {
            key: value for key, value in (inner | heads).items() if key not in heads or key == "hidden_size"
        }
    return flags(r, "tie_word_embeddings") | {
        "text_config": inner, "vision_config": vit(r) | {"vision_use_head": r.random() < 0.5}
    }  # fmt: skip


def conformer(r: Random, heads: str, depth: str) -> Draw:
    """Sizes of a sound encoder."""
    count = r.choice([1, 2, 4])
    return {"hidden_size": count * r.choice([8, 12]), heads: count, depth: r.randint(1, 3)}


def gemma3n(r: Random) -> Draw:
    """The image encoder is always the same; the sound encoder has sizes."""
    audio = conformer(r, "conf_num_attention_heads", "conf_num_hidden_layers") | {
        "sscp_conv_channel_size": [r.choice([4, 8]), r.choice([4, 6])], "vocab_size": r.choice([5, 9]),
        "input_feat_size": r.choice([20, 33]), "conf_conv_kernel_size": r.choice([3, 5]),
    }  # fmt: skip
    if r.random() < 0.5:
        audio |= {"sscp_conv_kernel_size": [[3, 5], [1, 3]], "sscp_conv_stride_size": [[2, 3], [2, 1]]}
    return flags(r, "tie_word_embeddings") | {
        "text_config": text(r, "gemma3n_text"), "audio_config": audio,
        "vision_config": {"hidden_size": r.choice([16, 2048]), "vocab_size": r.choice([3, 11])},
    }  # fmt: skip


def gemma4(r: Random) -> Draw:
    """Either encoder, both, or none."""
    heads = r.choice([2, 4])
    vision = vit(r) | {
        "num_attention_heads": heads, "num_key_value_heads": r.choice([1, heads]), "head_dim": r.choice([8, 12]),
        "position_embedding_size": r.choice([30, 64]), "standardize": r.random() < 0.5,
        "use_clipped_linears": r.random() < 0.5,
    }  # fmt: skip
    audio = conformer(r, "num_attention_heads", "num_hidden_layers") | {
        "subsampling_conv_channels": [r.choice([8, 13]), r.choice([4, 6])], "output_proj_dims": r.choice([10, 24]),
        "conv_kernel_size": r.choice([3, 5]), "use_clipped_linears": r.random() < 0.5,
    }  # fmt: skip
    return flags(r, "tie_word_embeddings") | {
        "text_config": text(r, "gemma4_text"), "vision_config": r.choice([vision, None]),
        "audio_config": r.choice([audio, None]),
    }  # fmt: skip


def gemma4_unified(r: Random) -> Draw:
    """Either side, both, or none."""
    vision = {
        "patch_size": r.choice([2, 4]), "pooling_kernel_size": r.choice([1, 3]), "mm_embed_dim": r.choice([16, 20]),
        "mm_posemb_size": r.choice([10, 31]), "output_proj_dims": r.choice([16, 20]),
    }  # fmt: skip
    return flags(r, "tie_word_embeddings") | {
        "text_config": text(r, "gemma4_unified_text"), "vision_config": r.choice([vision, None]),
        "audio_config": r.choice([{"audio_embed_dim": r.choice([6, 40])}, None]),
    }  # fmt: skip


def llama4(r: Random) -> Draw:
    """The text part alone is built."""
    return {"text_config": text4(r) | {"model_type": "llama4_text"}, "tie_word_embeddings": r.random() < 0.5}


def mllama(r: Random) -> Draw:
    """Some blocks attend to the image."""
    inner = plain(square=True)(r) | {"pad_token_id": 0}
    layers = inner["num_hidden_layers"]
    if r.random() < 0.8:
        inner["cross_attention_layers"] = sorted(r.sample(range(layers + 1), r.randint(0, layers)))
    return {"text_config": inner}


def phi4_multimodal(r: Random) -> Draw:
    """Both encoders."""
    audio = conformer(r, "num_attention_heads", "num_blocks") | flags(r, "bias_symmetric") | {
        "intermediate_size": r.choice([20, 33]), "ext_pw_out_channel": r.choice([16, 24]),
        "depthwise_separable_out_channel": r.choice([16, 24]), "depthwise_multiplier": r.choice([1, 2]),
        "kernel_size": r.choice([3, 5]), "input_size": r.choice([80, 37]), "time_reduction": r.choice([2, 6, 8]),
        "nemo_conv_channels": r.choice([8, 12]), "bias_max_distance": r.choice([10, 25]),
        "downsample_rate": r.choice([1, 2]),
    }  # fmt: skip
    return plain(windows=True)(r) | {"vision_config": vit(r), "audio_config": audio}


def persimmon(r: Random) -> Draw:
    """Fuyu's language model."""
    inner = plain("qk_layernorm", square=True)(r)
    return {k: v for k, v in inner.items() if k not in ("num_key_value_heads", "tie_word_embeddings")}


def fuyu(r: Random) -> Draw:
    """The language model nested, or its keys in the open."""
    config = {"patch_size": r.choice([3, 30]), **flags(r, "tie_word_embeddings")}
    inner = persimmon(r)
    return config | (inner if r.random() < 0.5 else {"text_config": inner | {"model_type": "persimmon"}})


def got_ocr2(r: Random) -> Draw:
    """Windows and global layers, relative positions or none."""
    inner = plain(square=True)(r) | {"model_type": "qwen2"}
    vision = vit(r) | flags(r, "use_abs_pos", "use_rel_pos", "qkv_bias") | {
        "output_channels": r.choice([6, 10]), "mlp_dim": r.choice([20, 48]), "window_size": r.choice([0, 2, 3]),
        "global_attn_indexes": r.choice([[0], [1, 2], []]),
    }  # fmt: skip
    return flags(r, "tie_word_embeddings") | {"text_config": inner, "vision_config": vision}


def moss(r: Random) -> Draw:
    """Whisper's encoder, some frames joined."""
    inner = plain("attention_bias")(r) | {"model_type": "qwen3"}
    audio = conformer(r, "num_attention_heads", "num_hidden_layers") | {
        "intermediate_size": r.choice([20, 33]), "num_mel_bins": r.choice([10, 80]),
        "max_source_positions": r.choice([12, 50]),
    }  # fmt: skip
    return flags(r, "tie_word_embeddings", "projector_bias") | {
        "text_config": inner, "audio_config": audio, "audio_merge_size": r.choice([1, 4]),
    }  # fmt: skip


def git(r: Random) -> Draw:
    """A BERT with an image encoder, perhaps for several frames."""
    inner = plain(square=True)(r)
    frames = r.choice([None, 1, 6])
    return inner | {"vision_config": vit(r), "num_image_with_embedding": frames, "hidden_act": "gelu"}


DRAWS: dict[str, Callable[[Random], Draw]] = {
    "cwm": alternating("mlp_bias"),
    "exaone4": exaone4,
    "fuyu": fuyu,
    "gemma3": gemma3,
    "gemma3n": gemma3n,
    "gemma3n_text": gemma3n_text,
    "gemma4": gemma4,
    "gemma4_assistant": assistant("gemma4_text"),
    "gemma4_text": gemma4_text,
    "gemma4_unified": gemma4_unified,
    "gemma4_unified_assistant": assistant("gemma4_unified_text"),
    "gemma4_unified_text": gemma4_unified_text,
    "git": git,
    "got_ocr2": got_ocr2,
    "granite_swa": granite_swa,
    "llama4": llama4,
    "ministral": alternating(),
    "mllama": mllama,
    "moss_transcribe_diarize": moss,
    "phi4_multimodal": phi4_multimodal,
    "vaultgemma": alternating("attention_bias", windows=some_window),
}

#: what the default configuration needs to be built at all
NEEDED: dict[str, Draw] = {
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
    "ministral": {"head_dim": 128},
}


def shallow(model_type: str) -> Draw:
    """What makes three layers of the default configuration."""
    depth: Draw = {"num_hidden_layers": 3}
    if model_type in ("gemma3n", "gemma3n_text"):
        depth |= {"layer_types": [*KINDS, "sliding_attention"], "num_kv_shared_layers": 1}
    needed = NEEDED.get(model_type, {})
    made = import_module("transformers").AutoConfig.for_model(model_type, **needed)
    if "text_config" not in made.sub_configs:
        return needed | depth
    # a wrapper's own default of its language model is dropped where a part of it is given
    text = {**made.text_config.to_dict(), **needed.get("text_config", {})}
    if isinstance(text["intermediate_size"], list):
        text["intermediate_size"] = text["intermediate_size"][0]
    per_layer = {key for key, value in text.items() if value and isinstance(value, list)}
    dropped = {"per_layer_config", "num_kv_shared_layers", "architectures", *per_layer}
    return needed | {"text_config": {k: v for k, v in text.items() if k not in dropped} | depth}


#: keys of a saved configuration on which no shape depends
NOISE = {
    "_name_or_path", "architectures", "attention_dropout", "bos_token_id", "chunk_size_feed_forward", "dtype",
    "eos_token_id", "id2label", "initializer_range", "is_encoder_decoder", "label2id", "label_names",
    "output_attentions", "output_hidden_states", "pad_token_id", "problem_type", "return_dict", "rms_norm_eps",
    "rope_parameters", "transformers_version", "use_cache",
}  # fmt: skip


def without_noise(config: Draw) -> Draw:
    """A configuration as saved, without what no shape depends on."""
    kept = {key: value for key, value in config.items() if key not in NOISE}
    return {key: without_noise(value) if isinstance(value, dict) else value for key, value in kept.items()}


def recorded(model_type: str, config: Draw) -> Draw:
    """The configuration as transformers saves it, and what it makes of it."""
    made, _ = build(model_type, config)
    return {"config": without_noise(made.to_dict()), **record(model_type, config)}


def random_configs(model_type: str) -> list[Draw]:
    """`COUNT` configurations that transformers builds, with what it makes of them."""
    drawn: list[Draw] = []
    number = 0
    while len(drawn) < COUNT:
        config = DRAWS[model_type](Random(f"{model_type}/{number}"))
        number += 1
        if number > 20 * COUNT:
            raise RuntimeError(f"{model_type}: only {len(drawn)} of {number} drawn ones could be built")
        if (
            result := attempt(model_type, deepcopy(config))
        ) is not None:  # a class may change what it is given
            drawn.append({"config": {"model_type": model_type, **config}, **result})
    return drawn


def places(config: Draw, *above: str) -> Iterator[tuple[str, ...]]:
    """The path of every key, also inside nested configurations."""
    for key, value in config.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from places(value, *above, key)


def without(config: Draw, place: tuple[str, ...]) -> Draw:
    """The configuration without the key at that place."""
    key, *below = place
    if not below:
        return {k: v for k, v in config.items() if k != key}
    return config | {key: without(config[key], tuple(below))}


def spoiled(model_type: str, config: Draw) -> dict[str, Draw | None]:
    """For each key, what transformers builds if it is missing (null: it refuses)."""
    config = {key: value for key, value in config.items() if key != "model_type"}
    return {
        ".".join(place): attempt(model_type, deepcopy(without(config, place))) for place in places(config)
    }


def main(folder: Path) -> None:
    """Write the file into `folder`."""
    transformers = import_module("transformers")
    transformers.logging.set_verbosity_error()
    models: dict[str, Any] = {
        kind: {
            "default": recorded(kind, NEEDED.get(kind, {})),
            "depth3": recorded(kind, shallow(kind)),
            "random": random_configs(kind),
        }
        for kind in sorted(DRAWS)
    }
    for kind, model in models.items():
        if kind != "gemma3n":  # its image encoder takes a second each time; the rest is that of other types
            model["spoiled"] = spoiled(kind, model["random"][0]["config"])
    source = f"transformers {transformers.__version__}, built on the meta device"
    write(folder / "arch_multimodal.json.gz", {"source": source, "models": models})


if __name__ == "__main__":
    main(Path(sys.argv[1]))

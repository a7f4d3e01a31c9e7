"""config.json → Model: one registry, a small file per structural family, each imported when needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.model import Model
from loadsheet.errors import BadConfig, UnsupportedArchitecture, nearest, shorten

#: model_type -> "module:function"
FAMILIES: dict[str, str] = {
    "afmoe": "experts:afmoe",
    "apertus": "dense_plain:apertus",
    "apertus1p5_text": "dense_plain:apertus",
    "arcee": "dense_plain:arcee",
    "aria_text": "experts_more:aria_text",
    "axk1": "latent:deepseek_like",
    "axk2": "latent:axk2",
    "bailing_hybrid": "delta:kimi_linear",
    "bamba": "hybrid:bamba",
    "beam": "experts:beam",
    "biogpt": "gpt_dense:biogpt",
    "bitnet": "dense:bitnet",
    "bloom": "gpt_relative:bloom",
    "blt": "blt:blt",
    "codegen": "gpt_relative:gptj",
    "cohere": "llama:cohere",
    "cohere2": "llama:cohere",
    "cohere2_moe": "experts_more:cohere2_moe",
    "cohere_compass_text": "dense_plain:cohere_compass",
    "cpmant": "cpmant:cpmant",
    "ctrl": "gpt_dense:ctrl",
    "cwm": "windows:cwm",
    "dbrx": "experts_more:dbrx",
    "deepseek_v2": "deepseek:deepseek",
    "deepseek_v3": "deepseek:deepseek",
    "deepseek_v32": "latent:indexed",
    "deepseek_v4": "latent_more:deepseek_v4",
    "diffllama": "dense:diffllama",
    "doge": "dense:doge",
    "dory": "looped:dory",
    "dots1": "experts:dots1",
    "dots3_note": "latent_more:dots3_note",
    "dots3_note_text": "latent_more:dots3_note",
    "emu3": "dense:emu3",
    "emu3_text_model": "dense:emu3",
    "ernie4_5": "dense:ernie",
    "ernie4_5_moe": "experts_more:ernie4_5_moe",
    "exaone": "dense:exaone",
    "exaone4": "windows:exaone4",
    "exaone_moe": "experts:exaone_moe",
    "falcon": "gpt_relative:falcon",
    "falcon_h1": "hybrid:falcon_h1",
    "falcon_mamba": "mamba:mamba",
    "flex_olmo": "experts:flex_olmo",
    "flint": "experts:flint",
    "fuyu": "multimodal:fuyu",
    "gemma": "llama:gemma",
    "gemma2": "llama:gemma2",
    "gemma3": "multimodal:gemma3",
    "gemma3_text": "llama:gemma2",
    "gemma3n": "multimodal:gemma3n",
    "gemma3n_text": "gemma:gemma3n",
    "gemma4": "multimodal:gemma4",
    "gemma4_assistant": "gemma:gemma4_assistant",
    "gemma4_text": "gemma:gemma4",
    "gemma4_unified": "multimodal:gemma4_unified",
    "gemma4_unified_assistant": "gemma:gemma4_assistant",
    "gemma4_unified_text": "gemma:gemma4",
    "git": "multimodal:git",
    "glm": "llama:glm",
    "glm4": "llama:glm",
    "glm4_moe": "experts:glm4_moe",
    "glm4_moe_lite": "latent:deepseek_like",
    "glm_moe_dsa": "latent:indexed",
    "got_ocr2": "multimodal:got_ocr2",
    "gpt-sw3": "gpt:gpt2",
    "gpt2": "gpt:gpt2",
    "gpt_bigcode": "gpt_dense:gpt_bigcode",
    "gpt_neo": "gpt_dense:gpt_neo",
    "gpt_neox": "gpt:gpt_neox",
    "gpt_neox_japanese": "gpt_relative:gpt_neox_japanese",
    "gpt_oss": "moe:gpt_oss",
    "gptj": "gpt_relative:gptj",
    "granite": "llama:granite",
    "granite_swa": "windows:granite_swa",
    "granitemoe": "moe:granitemoe",
    "granitemoe_swa": "experts_more:granitemoeshared",
    "granitemoehybrid": "hybrid:granitemoehybrid",
    "granitemoeshared": "experts_more:granitemoeshared",
    "helium": "dense:helium",
    "hrm_text": "looped:hrm_text",
    "hunyuan_v1_dense": "dense:hunyuan_dense",
    "hunyuan_v1_moe": "experts_more:hunyuan_v1_moe",
    "hy_v3": "experts:hy_v3",
    "hy_v4": "latent_more:hy_v4",
    "hyperclovax": "dense:hyperclovax",
    "inkling2_loop_text": "inkling:inkling2",
    "inkling2_text": "inkling:inkling2",
    "inkling_text": "inkling:inkling",
    "internlm3": "dense:exaone",
    "iquestcoder": "dense:exaone",
    "jais2": "dense_plain:jais2",
    "jamba": "hybrid:jamba",
    "jetmoe": "experts_more:jetmoe",
    "kimi_linear": "delta:kimi_linear",
    "kolibri1": "experts:kolibri1",
    "laguna": "experts:laguna",
    "lara_mini": "delta:lara_mini",
    "lfm2": "dense:lfm2",
    "lfm2_moe": "short_conv:lfm2_moe",
    "lfm3": "short_conv:lfm3",
    "llama": "llama:llama",
    "llama4": "multimodal:llama4",
    "llama4_text": "moe:llama4",
    "longcat_flash": "latent:longcat_flash",
    "mamba": "mamba:mamba",
    "mamba2": "mamba:mamba2",
    "mellum": "experts:mellum",
    "mimo_v2_flash": "experts_more:mimo_v2_flash",
    "minicpm3": "latent:dense_latent",
    "minimax": "recurrent:minimax",
    "minimax_m2": "experts:minimax_m2",
    "minimax_m3_vl_text": "experts_more:minimax_m3",
    "ministral": "windows:ministral",
    "ministral3": "dense:ministral3",
    "mistral": "llama:mistral",
    "mixtral": "moe:mixtral",
    "mllama": "multimodal:mllama",
    "moshi": "dense_plain:moshi",
    "moss_transcribe_diarize": "multimodal:moss",
    "mpt": "gpt_relative:mpt",
    "nanochat": "dense_plain:nanochat",
    "nemotron": "dense_plain:nemotron",
    "nemotron_h": "hybrid:nemotron_h",
    "olmo": "llama:olmo",
    "olmo2": "llama:olmo2",
    "olmo3": "llama:olmo2",
    "olmo_hybrid": "delta:olmo_hybrid",
    "olmoe": "moe:olmoe",
    "openai-gpt": "gpt_dense:openai_gpt",
    "opt": "gpt:opt",
    "persimmon": "dense_plain:persimmon",
    "phi": "llama:phi",
    "phi3": "llama:phi3",
    "phi4_multimodal": "multimodal:phi4_multimodal",
    "phimoe": "moe:phimoe",
    "qwen2": "llama:qwen2",
    "qwen2_moe": "moe:qwen_moe",
    "qwen3": "llama:qwen3",
    "qwen3_5": "delta:qwen3_5_wrapper",
    "qwen3_5_moe": "delta:qwen3_5_moe_wrapper",
    "qwen3_5_moe_text": "delta:qwen3_5_moe",
    "qwen3_5_text": "delta:qwen3_5",
    "qwen3_moe": "moe:qwen_moe",
    "qwen3_next": "delta:qwen3_next",
    "qwen4_exp": "qwen4:qwen4_exp_wrapper",
    "qwen4_exp_text": "qwen4:qwen4_exp",
    "recurrent_gemma": "recurrent:recurrent_gemma",
    "rwkv": "recurrent:rwkv",
    "sarvam_mla": "latent:deepseek_like",
    "sarvam_moe": "experts:glm4_moe",
    "seed_oss": "dense:seed_oss",
    "smollm3": "dense:smollm3",
    "solar_open": "experts:glm4_moe",
    "stablelm": "llama:stablelm",
    "starcoder2": "llama:starcoder2",
    "vaultgemma": "windows:vaultgemma",
    "xglm": "gpt_dense:xglm",
    "xlstm": "recurrent:xlstm",
    "youtu": "latent:dense_latent",
    "zamba": "zamba:zamba",
    "zamba2": "zamba:zamba2",
    "zaya": "experts_more:zaya",
}

#: names on the hub of other families' structures: model_type -> (family, the class that such a file names).
#: Their code is on the hub; without that class in `architectures` the structure is not certain.
HUB_NAMES: dict[str, tuple[str, str]] = {
    "kimi_k2": ("deepseek_v3", "DeepseekV3ForCausalLM"),
}

DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
}


#: model types whose layers may differ by `per_layer_config`; the classes of all others refuse such a config
LAYERWISE = frozenset({"dots3_note", "dots3_note_text", "gemma4_text", "gemma4_unified_text"})


def same_in_all_layers(c: Config, kind: str) -> None:
    """UnsupportedArchitecture if `per_layer_config` makes layers differ that are built alike here."""
    overrides = c.data.get("per_layer_config")
    if overrides and kind not in LAYERWISE:
        raise UnsupportedArchitecture(
            f"{c.where}.per_layer_config: got {shorten(overrides)}, layers of different sizes, which `{kind}` has not"
        )


def family_of(config: Mapping[str, Any]) -> str | None:
    """The model_type whose family describes the config, or None."""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in HUB_NAMES:
        family, built_as = HUB_NAMES[kind]
        return family if config.get("architectures") == [built_as] else None
    return kind if isinstance(kind, str) and kind in FAMILIES else None


def contradicted(config: Mapping[str, Any]) -> str | None:
    """The other known model_type that a config's `architectures` names more clearly than its own; else None.

    transformers builds by `model_type` and ignores `architectures`; a config that was put together by hand
    may mean the other one.

    >>> contradicted({"model_type": "llama", "architectures": ["Qwen2MoeForCausalLM"]})
    'qwen2_moe'
    >>> contradicted({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]})
    """
    kind, classes = config.get("model_type"), config.get("architectures")
    if not isinstance(kind, str) or not isinstance(classes, list) or not classes:
        return None
    built = str(classes[0]).lower().replace("_", "")
    if built.startswith(_letters(kind)) or kind in HUB_NAMES:
        return None
    named = max((k for k in FAMILIES if built.startswith(_letters(k))), key=len, default=None)
    return None if named is None or FAMILIES[named] == FAMILIES.get(kind) else named


def _letters(kind: str) -> str:
    """A model_type as its classes are named: without marks and without the part of a whole that it may be."""
    return re.sub("[^a-z0-9]", "", re.sub("_(text|llm|language)(_model)?$", "", kind.lower()))


#: known by name, and not described: an error that says why, never a wrong number
NOT_DESCRIBED = {
    **dict.fromkeys(
        (
            "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "musicgen",
            "musicgen_melody", "mvp", "pegasus", "plbart", "prophetnet", "t5", "trocr", "whisper",
        ),
        "the decoder of an encoder-decoder",
    ),
    **dict.fromkeys(
        (
            "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
            "modernbert-decoder", "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer",
            "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod",
        ),
        "an encoder of BERT's or XLNet's kind",
    ),
}  # fmt: skip


def _way_out(config: Mapping[str, Any], kind: object) -> str:
    """What to do about a `model_type` that is not known."""
    if isinstance(kind, str) and kind in HUB_NAMES:
        family, built_as = HUB_NAMES[kind]
        return f"nearest known: `{family}`, whose structure it has if `architectures` is [`{built_as}`]"
    text = config.get("text_config")
    inner = text.get("model_type") if isinstance(text, Mapping) else None
    if isinstance(text, Mapping) and family_of(text) is not None:
        return f"its language model, `{inner}`, is known: give what stands under `text_config` alone"
    close = nearest(kind, FAMILIES) if isinstance(kind, str) else []
    if close:
        return "nearest known: " + ", ".join(f"`{k}`" for k in close)
    return "`loadsheet models` lists the known ones"


def build(config: Mapping[str, Any], name: str = "", where: str = "config") -> Model:
    """The model that a config.json describes.

    Raises BadConfig (with the key's path) if keys are missing or contradictory, and
    UnsupportedArchitecture, naming the `model_type`, if no family describes it.
    """
    c = Config(config, where)
    named = config.get("model_type")
    if named is None:
        raise BadConfig(f"{where}.model_type: missing, expected the name of an architecture")
    kind = family_of(config)
    if isinstance(named, str) and named in NOT_DESCRIBED:
        raise UnsupportedArchitecture(
            f"{where}.model_type: got {shorten(named)}, {NOT_DESCRIBED[named]}, expected a decoder-only model: "
            "not supported",
            "`loadsheet models` lists the architectures that are",
        )
    if kind is None:
        raise UnsupportedArchitecture(
            f"{where}.model_type: got {shorten(named)}, an architecture that is not known here",
            _way_out(config, named),
        )
    same_in_all_layers(c, kind)
    module, function = FAMILIES[kind].split(":")
    model: Model = getattr(import_module(f"loadsheet.arch.families.{module}"), function)(c)
    model.name = name or model.name
    model.config = dict(config)
    published = config.get("dtype") or config.get("torch_dtype")
    model.published_dtype = DTYPES.get(published, "bf16") if isinstance(published, str) else "bf16"
    return model

"""config.json → Model: one registry, a small file per structural family, each imported when needed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from loadsheet.arch.config import Config
from loadsheet.arch.model import Model
from loadsheet.errors import BadConfig, UnsupportedArchitecture, nearest, shorten

#: model_type -> "module:function"
FAMILIES: dict[str, str] = {
    "cohere": "llama:cohere",
    "cohere2": "llama:cohere",
    "deepseek_v2": "deepseek:deepseek",
    "deepseek_v3": "deepseek:deepseek",
    "gemma": "llama:gemma",
    "gemma2": "llama:gemma2",
    "gemma3_text": "llama:gemma2",
    "glm": "llama:glm",
    "glm4": "llama:glm",
    "gpt2": "gpt:gpt2",
    "gpt_neox": "gpt:gpt_neox",
    "gpt_oss": "moe:gpt_oss",
    "granite": "llama:granite",
    "granitemoe": "moe:granitemoe",
    "llama": "llama:llama",
    "llama4_text": "moe:llama4",
    "mistral": "llama:mistral",
    "mixtral": "moe:mixtral",
    "olmo": "llama:olmo",
    "olmo2": "llama:olmo2",
    "olmo3": "llama:olmo2",
    "olmoe": "moe:olmoe",
    "opt": "gpt:opt",
    "phi": "llama:phi",
    "phi3": "llama:phi3",
    "phimoe": "moe:phimoe",
    "qwen2": "llama:qwen2",
    "qwen2_moe": "moe:qwen_moe",
    "qwen3": "llama:qwen3",
    "qwen3_moe": "moe:qwen_moe",
    "stablelm": "llama:stablelm",
    "starcoder2": "llama:starcoder2",
}

DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
}


def build(config: Mapping[str, Any], name: str = "", where: str = "config") -> Model:
    """The model that a config.json describes.

    Raises BadConfig (with the key's path) if keys are missing or contradictory, and
    UnsupportedArchitecture, naming the `model_type`, if no family describes it.
    """
    c = Config(config, where)
    kind = config.get("model_type")
    if kind is None:
        raise BadConfig(f"{where}.model_type: missing, expected the name of an architecture")
    if not isinstance(kind, str) or kind not in FAMILIES:
        close = nearest(kind, FAMILIES) if isinstance(kind, str) else []
        raise UnsupportedArchitecture(
            f"{where}.model_type: got {shorten(kind)}, an architecture that is not known here",
            "nearest known: " + ", ".join(f"`{k}`" for k in close)
            if close
            else "`loadsheet models` lists the known ones",
        )
    module, function = FAMILIES[kind].split(":")
    model: Model = getattr(import_module(f"loadsheet.arch.families.{module}"), function)(c)
    model.name = name or model.name
    model.config = dict(config)
    published = config.get("dtype") or config.get("torch_dtype")
    model.published_dtype = DTYPES.get(published, "bf16") if isinstance(published, str) else "bf16"
    return model

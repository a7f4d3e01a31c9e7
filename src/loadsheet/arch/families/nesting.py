"""Configs that hold another one: a wrapper's `text_config`, built by the family that it names."""

from __future__ import annotations

from importlib import import_module

from loadsheet.arch.config import Config
from loadsheet.arch.families import FAMILIES, same_in_all_layers
from loadsheet.arch.model import Model
from loadsheet.errors import UnsupportedArchitecture, shorten


def nested_type(part: Config, known: tuple[str, ...]) -> str:
    """The `model_type` of a nested config, the first of `known` if it is missing; others are not supported."""
    kind = part.data.get("model_type")
    if kind is None:
        return known[0]
    if kind not in known:
        raise UnsupportedArchitecture(
            f"{part.where}.model_type: got {shorten(kind)}, expected " + " or ".join(f"`{k}`" for k in known)
        )
    return str(kind)


def text_model(c: Config, *known: str, key: str = "text_config") -> Model:
    """The language model under `key`, whose type must be one of `known`; named as if it stood alone."""
    part = c.part(key)
    kind = nested_type(part, known)
    same_in_all_layers(part, kind)
    module, function = FAMILIES[kind].split(":")
    model: Model = getattr(import_module(f"loadsheet.arch.families.{module}"), function)(
        Config({**part.data, "model_type": kind}, part.where)
    )
    model.model_type = model.name = c.text("model_type", default=kind)
    return model


def nest(model: Model, place: str = "model.language_model", base: str = "model") -> Model:
    """Move what stands under `base` to `place`, as a wrapper holds it; the head stays where it is."""

    def moved(name: str) -> str:
        return place + name[len(base) :] if name == base or name.startswith(f"{base}.") else name

    model.embedding_name, model.prefix = moved(model.embedding_name), moved(model.prefix)
    model.final_norm_name = moved(model.final_norm_name)
    model.extras = tuple((moved(name), layer) for name, layer in model.extras)
    return model

"""The model that a row means: a preset by its name, told apart by the row's sizes, or built from these."""

from __future__ import annotations

import re
from typing import Any, Final

from loadsheet.arch.families import build
from loadsheet.arch.model import Model
from loadsheet.arch.read import model, models
from loadsheet.errors import LoadsheetError, shorten
from loadsheet.score.names import preset_of, squeeze
from loadsheet.score.truth import Row, Skip

#: words of a name -> the architecture that a model of these sizes has for certain
_FAMILIES: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("llama", "mistral", "vicuna", "alpaca", "wizardlm", "yi", "smollm"), "llama"),
    (("pythia", "neox", "dolly", "redpajama"), "gpt_neox"),
    (("qwen2", "qwen1.5", "qwen2.5"), "qwen2"),
    (("gpt2", "gpt-2", "nanogpt"), "gpt2"),
)
_ENCODER_DECODERS: Final = re.compile(r"(?:[bu]?m?t[05]|byt5|flan|ul2|m?bart|pegasus|whisper|led)(?![a-z])")


def model_of(row: Row) -> Model:
    """The model of a row; Skip where it cannot be told for certain."""
    name = row.text("model")
    preset = preset_of(name)
    if preset is not None and _agrees(preset, row):
        return model(preset)
    if _ENCODER_DECODERS.match(squeeze(name)):
        raise Skip(f"{shorten(name, 40)} is an encoder-decoder", in_scope=False)
    alike = [p.name for p in models() if _family(p.name) == _family(squeeze(name)) and _agrees(p.name, row)]
    told = any(row.text(column) for column in ("n_layers", "d_model", "n_params"))
    if told and len(alike) == 1:
        return model(alike[0])
    return _from_sizes(row)


def family_presets(name: str) -> list[str]:
    """Presets of the family that a name without a size means ("Falcon")."""
    return [p.name for p in models() if _family(p.name) == _family(squeeze(name))]


def _family(name: str) -> str:
    """A squeezed name without sizes and versions: "stablelm-base-alpha-3b" -> "stablelm-alpha"."""
    words = [w for w in name.split("-") if w not in ("base", "tuned", "hf", "chat", "instruct", "it")]
    return "-".join(w for w in words if not any(c.isdigit() for c in w)) or name


def _agrees(preset: str, row: Row) -> bool:
    """Whether the row's sizes, where it states them, are the preset's."""
    found = model(preset)
    stated = row.whole("n_layers"), row.whole("d_model"), row.whole("n_params")
    ours = found.num_layers, found.hidden_size, found.params
    if any(a is not None and a != b for a, b in zip(stated[:2], ours[:2], strict=True)):
        return False
    return stated[2] is None or abs(stated[2] / ours[2] - 1) < 0.1  # a tied head counts once or twice


def _from_sizes(row: Row) -> Model:
    """A model of the row's sizes, if its name says for certain how it is built."""
    name = squeeze(row.text("model"))
    family = next((kind for words, kind in _FAMILIES if any(w in name for w in words)), None)
    wanted = ("n_layers", "d_model", "n_heads", "d_ff", "vocab")
    if family is None or any(row.whole(column) is None for column in wanted) or row.text("n_experts"):
        raise Skip(f"model {shorten(row.text('model'), 40)} is not known, and its sizes do not tell it")
    heads = row.need("n_heads")
    config: dict[str, Any] = {
        "model_type": family,
        "num_hidden_layers": row.need("n_layers"),
        "hidden_size": row.need("d_model"),
        "num_attention_heads": heads,
        "num_key_value_heads": row.whole("n_kv_heads") or heads,
        "intermediate_size": row.need("d_ff"),
        "vocab_size": row.need("vocab"),
    }
    if family == "gpt2":
        config |= {"n_inner": row.need("d_ff"), "n_positions": row.whole("seq_len") or 1024}
        config |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    try:
        made = [build({**config, "tie_word_embeddings": tied}, name) for tied in (False, True)]
    except LoadsheetError as error:
        raise Skip(f"model {shorten(row.text('model'), 40)}: {error}") from error
    total = row.whole("n_params")
    return made[0] if total is None else min(made, key=lambda m: abs(m.params - total))

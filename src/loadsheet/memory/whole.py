"""Whether the weights that a file stores are all of those that its config.json describes."""

from __future__ import annotations

import os
import re
from itertools import pairwise

from loadsheet.arch.model import Model
from loadsheet.arch.stored import StoredWeights
from loadsheet.errors import BadFile, shorten
from loadsheet.units import format_bytes

_PART = re.compile(r"-([0-9]{1,9})-of-([0-9]{1,9})\.safetensors", re.IGNORECASE)
#: types of safetensors whose elements may hold several weights each
_MAY_PACK = frozenset({"I8", "U8", "I16", "U16", "I32", "U32"})
#: keys of a config.json that say that weights are packed: transformers', and MLX's
_QUANTISED = ("quantization_config", "quantization")


def lacks(model: Model) -> str:
    """What shows that the file lacks weights of the model, in words; "" if nothing does.

    A head that is not in the file is no fault: it may be the embedding. GGUF files are held against their
    metadata when they are read.
    """
    stored = model.stored
    if stored is None or stored.format != "safetensors":
        return ""
    part = _PART.search(os.path.basename(stored.path))
    if part is not None and int(part[2]) > 1:
        return f"part {int(part[1]):,} of {int(part[2]):,}"
    least = model.params - model.head.in_features * model.head.out_features
    if not stored.complete:
        bits = 8 * stored.nbytes / model.params
        packed = any(key in (model.config or {}) for key in _QUANTISED)
        if stored.nbytes * (8 if packed else 1) >= least:
            return ""
        return f"{format_bytes(stored.nbytes)} in all, {bits:.2g} bits for each parameter"
    most = sum(t.nbytes * 8 if t.dtype in _MAY_PACK else t.params for t in stored.tensors)
    if most < least:
        return f"{stored.params:,} elements"
    return _missing_layer(model, stored)


def _missing_layer(model: Model, stored: StoredWeights) -> str:
    """The layers of which the file has nothing, if it names its layers as the model does."""
    runs = [any(True for _ in block.parameters()) for block, _ in model.runs]
    order = model.order or tuple(i for i, (_, count) in enumerate(model.runs) for _ in range(count))
    names = model.layer_names or tuple(f"{model.prefix}.{i}" for i in range(len(order)))
    ends = [name.rsplit(".", 2)[-2:] for name, run in zip(names, order, strict=True) if runs[run]]
    held = {pair for t in stored.tensors for pair in pairwise(t.name.split("."))}
    ends = [end for end in ends if len(end) == 2 and end[1].isdigit()]  # a layer by its number
    missing = [".".join(end) for end in ends if tuple(end) not in held]
    if not missing or len(missing) == len(ends):
        return ""
    return f"nothing of {len(missing):,} of {len(ends):,} layers ({missing[0]})"


def require_whole(model: Model) -> None:
    """BadFile if the file shows that it lacks weights of the model."""
    if model.stored is not None and (fault := lacks(model)):
        raise BadFile(
            f"{shorten(os.path.basename(model.stored.path))}: got {fault}, expected all {model.params:,} parameters "
            "that the config.json beside it describes",
            "give the index (model.safetensors.index.json) with all parts beside it, or the config.json and --weights",
        )

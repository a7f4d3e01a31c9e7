"""Parameters of what no family describes: transformers builds it on the meta device, and we count."""

from __future__ import annotations

import os
from typing import Any

from loadsheet.arch.read import config_of
from loadsheet.errors import LoadsheetError, one_line
from loadsheet.measure.verify import real_model, transformers_or_error


def trace(source: str, *, remote_code: bool = False) -> dict[str, Any]:
    """Total, tensors and whether the head is tied, of the model behind a config.json.

    Without `remote_code` only classes of the installed transformers are built. With it, Python files
    that lie beside the config are run: the caller must have said so explicitly.
    Raises LoadsheetError if transformers is missing or refuses.
    """
    config = config_of(source)
    model = _with_code(source) if remote_code else real_model(dict(config), attention="eager")
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    tensors = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    return {
        "model": os.path.basename(os.path.abspath(source)) if os.path.exists(source) else source,
        "model_type": config.get("model_type"),
        "total": sum(p.numel() for p in model.parameters()),
        "tied": head is not None and table is not None and head.weight is table.weight,
        "tensors": [{"name": name, "shape": list(shape)} for name, shape in tensors],
        "traced_with": f"transformers {transformers_or_error().__version__}",
    }


def _with_code(source: str) -> Any:
    """Build it with the code that lies beside its config, on the meta device."""
    import torch

    transformers = transformers_or_error()
    folder = source if os.path.isdir(source) else os.path.dirname(os.path.abspath(source))
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=True, local_files_only=True
        )
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    except Exception as error:  # whatever that code does wrong, one line of it
        raise LoadsheetError(f"trace: {type(error).__name__}: {one_line(str(error))[:200]}") from None

"""The weights of a checkpoint as one `model.safetensors`, for whatever reads such files.

The format holds contiguous tensors and no two names for one memory. So tied weights are written once, under
the name that comes first in the module, and the file's metadata says {"other name": "name"}, as
`safetensors.torch.save_model` does; its `load_model` puts them back. Views that overlap in part have no such
form and are written each by itself. No value is converted: what is read back are the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loadsheet.errors import BadFile, BadInput, LoadsheetError, shorten
from loadsheet.history.export_file import check_free, whole_file

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Weights:
    """What was written: `aliases` are names of tied weights, `left_out` what is no tensor."""

    step: int
    name: str
    tensors: int
    aliases: dict[str, str]
    left_out: tuple[str, ...]
    nbytes: int


def write_weights(
    run: Path,
    out: Path,
    *,
    which: Literal["latest", "best"] | int = "latest",
    metric: str = "val_loss",
    mode: Literal["min", "max"] = "min",
    name: str | None = None,
    force: bool = False,
) -> Weights:
    """Write the weights of a module of a run's checkpoint, whole or not at all.

    `which`, `metric` and `mode` as in `loadsheet.load`; `name` is the one the module was kept under, needed if
    there are several and none is called "model". Raises NoCheckpoint, BadCheckpoint, BadInput for a place that
    is taken or a dtype that the format lacks, LoadsheetError if safetensors is missing.
    """
    check_free(out, force=force)
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise LoadsheetError(
            "runs export: safetensors is not installed", "pip install 'loadsheet[export]'"
        ) from None
    from loadsheet.run.load import state_of

    _check_files(run / "checkpoints")
    state = state_of(run, which, metric, mode)
    modules = [n for n in state.names if state.kind(n) == "module"]
    name = _chosen(modules, name)
    saved = state.value(name)["state"]
    tensors, aliases, left_out = separate(saved)
    for key, tensor in tensors.items():
        _check_dtype(key, tensor.dtype)
    metadata = {"format": "pt", "loadsheet.run": run.name, "loadsheet.step": str(state.step), **aliases}
    with whole_file(out, force=force) as aside:
        save_file(tensors, aside, metadata=metadata)
        nbytes = aside.stat().st_size
    return Weights(state.step, name, len(tensors), aliases, left_out, nbytes)


def _check_files(folder: Path) -> None:
    """BadFile for a link that leads out of the folder, or a pipe or device where a file should be."""
    from loadsheet.history.check_files import Guarded
    from loadsheet.run.checkpoint import CheckpointStore, directory_name
    from loadsheet.run.manifest import DOCUMENT, MANIFEST, TENSORS

    guarded = Guarded(folder)
    for step in CheckpointStore(folder, files=guarded).steps():
        for name in (MANIFEST, DOCUMENT, TENSORS):
            where = folder / directory_name(step) / name
            try:
                guarded.size(str(where))
            except FileNotFoundError:
                continue  # damaged: reading it says so, if it is the one asked for
            except OSError as error:
                raise BadFile(
                    f"{directory_name(step)}/{name}: got `{error.strerror}`, expected a file of the run"
                ) from None


def _chosen(modules: list[str], name: str | None) -> str:
    if name is None and "model" in modules:
        return "model"
    if name is None and len(modules) == 1:
        return modules[0]
    known = shorten(", ".join(modules), 200) if modules else "none"
    if name is None:
        raise BadInput(
            f"runs export: got {len(modules)} modules in the checkpoint, expected `--name` to say which",
            f"there are: {known}",
        )
    if name not in modules:
        raise BadInput(
            f"--name: got {shorten(name)}, expected a module of the checkpoint", f"there are: {known}"
        )
    return name


def separate(
    saved: Mapping[str, Any],
) -> tuple[dict[str, torch.Tensor], dict[str, str], tuple[str, ...]]:
    """Contiguous tensors that share no memory, the names of those that are others, and what is no tensor."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    left_out = []
    seen: dict[tuple[Any, ...], str] = {}
    taken: list[tuple[int, int]] = []
    for key, tensor in saved.items():
        if not isinstance(tensor, torch.Tensor):
            left_out.append(key)
            continue
        view = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and view in seen:
            aliases[key] = seen[view]
            continue
        seen[view] = key
        plain = tensor.contiguous()
        begin = plain.data_ptr()
        end = begin + plain.numel() * plain.element_size()
        if any(begin < other_end and other_begin < end for other_begin, other_end in taken):
            plain = plain.clone()
        elif plain is tensor and plain.numel():
            taken.append((begin, end))
        tensors[key] = plain
    return tensors, aliases, tuple(left_out)


def _check_dtype(key: str, dtype: torch.dtype) -> None:
    """BadInput for a dtype that this version of safetensors cannot hold: found out by trying."""
    import torch
    from safetensors.torch import load, save

    if dtype in _known:
        return
    try:
        back = load(save({"x": torch.zeros(1, dtype=dtype)}))["x"].dtype
    except Exception:  # KeyError, ValueError or its own, by version
        back = None
    if back != dtype:
        raise BadInput(
            f"runs export: got `{shorten(key)}` of {dtype}, expected a dtype that safetensors can hold",
            "`ls.load(run)` reads every dtype",
        )
    _known.add(dtype)


_known: set[Any] = set()

"""Typed look-ups in a GGUF header, and which of its tensors are no parameters of the model."""

from __future__ import annotations

import math
import re
from typing import Final

from loadsheet.arch.gguf import GgufFile
from loadsheet.arch.stored import StoredTensor
from loadsheet.errors import BadFile, UnsupportedArchitecture, shorten
from loadsheet.safejson import file_label

_BLOCK: Final = re.compile(r"blk\.(\d{1,6})\.(.+)")
#: architectures whose head is always the embedding; an `output.weight` in the file is a copy of it
ALWAYS_TIED: Final = {"gpt2", "gemma", "gemma2", "gemma3", "command-r", "cohere2"}
#: tables of rotary factors, which the model classes compute for themselves
_ROTARY: Final = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


class Facts:
    """Typed look-ups in the metadata and tensors of one file."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.label = file_label(file.path, "GGUF file")
        self.tensors = {tensor.name: tensor for tensor in file.weights.tensors}
        self.blocks: dict[str, list[StoredTensor]] = {}
        self.numbers: set[int] = set()
        for name, tensor in self.tensors.items():
            match = _BLOCK.fullmatch(name)
            if match:
                self.numbers.add(int(match[1]))
                self.blocks.setdefault(match[2], []).append(tensor)

    def error(self, got: str, expected: str) -> BadFile:
        """The error of a file that contradicts itself."""
        return BadFile(f"{self.label}: got {got}, expected {expected}")

    def unsupported(self, what: str) -> UnsupportedArchitecture:
        """The error of a model that no config here describes; `what` says why."""
        return UnsupportedArchitecture(
            f"{self.label}: got architecture {shorten(self.file.architecture)} {what}, "
            "expected one that is described here",
            "its types and bytes can still be read; for the rest give the model's config.json",
        )

    def size(self, key: str) -> int | None:
        """A whole number, or None if the key is missing; an array counts if all its entries agree."""
        full = f"{self.file.architecture}.{key}"
        value: object = self.file.metadata.get(full)
        if full in self.file.lengths:
            entries = set(self.file.arrays.get(full, ()))
            if len(entries) != 1:
                raise self.unsupported(f"with a `{full}` that differs from layer to layer")
            value = entries.pop()
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < 2**31:
            raise self.error(f"{shorten(value)} as `{full}`", "a whole number below 2^31")
        return value

    def need(self, key: str) -> int:
        """A whole number of at least 1; BadFile if it is missing."""
        value = self.size(key)
        if not value:
            got = "no" if value is None else "0 as"
            raise self.error(f"{got} `{self.file.architecture}.{key}`", "a size of at least 1")
        return value

    def real(self, key: str) -> float | None:
        """A finite number, freed of the noise of its 32-bit storage."""
        value = self.file.metadata.get(f"{self.file.architecture}.{key}")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(f"{value:.7g}")
        return None

    def has(self, *kinds: str) -> bool:
        """Whether any block has a tensor of one of these kinds, such as `attn_q.bias`."""
        return any(kind in self.blocks for kind in kinds)

    def shape(self, kind: str) -> tuple[int, ...] | None:
        """The shape of this kind of tensor in the first block that has it."""
        return self.blocks[kind][0].shape if kind in self.blocks else None

    def require_shape(self, name: str, expected: tuple[int, ...]) -> None:
        """BadFile if a tensor of this name, in a block or by itself, has another shape."""
        single = [self.tensors[name]] if name in self.tensors else []
        for tensor in single + self.blocks.get(name, []):
            if tensor.shape != expected:
                raise self.error(
                    f"shape {tensor.shape} for {shorten(tensor.name)}", f"{expected} by the metadata"
                )

    def stack(self, kind: str) -> tuple[int, int, int] | None:
        """The same for a stack of experts: their number, outputs, inputs."""
        shape = self.shape(kind)
        if shape is not None and len(shape) != 3:
            raise self.error(f"shape {shape} for `{kind}`", "three dimensions")
        return (shape[0], shape[1], shape[2]) if shape else None

    def layers(self) -> int:
        """Blocks of the model, without those that only predict further tokens."""
        total = self.need("block_count")
        layers = total - (self.size("nextn_predict_layers") or 0)
        known = {number for number in self.numbers if number < layers}
        if not 1 <= layers == len(known) or max(self.numbers) >= total:
            raise self.error(f"tensors of {len(self.numbers):,} blocks", f"those of all {total:,} it claims")
        return layers


def extra_tensors(file: GgufFile) -> tuple[StoredTensor, ...]:
    """Stored tensors that are no parameters of the model class.

    Tables of rotary factors, scales of NVFP4 weights, the router's correction bias (a buffer),
    blocks that predict further tokens, a copy of a tied head, the joined form of a projection
    that is also stored split.
    """
    total = file.metadata.get(f"{file.architecture}.block_count")
    further = file.metadata.get(f"{file.architecture}.nextn_predict_layers", 0)
    layers = total - further if isinstance(total, int) and isinstance(further, int) else 1 << 31
    names = {tensor.name for tensor in file.weights.tensors}

    def is_extra(name: str) -> bool:
        match = _BLOCK.fullmatch(name)
        kind = match[2] if match else name
        return (
            kind in _ROTARY
            or kind.endswith((".scale", ".input_scale"))
            or kind in ("exp_probs_b.bias", "exp_probs_b")
            or (match is not None and int(match[1]) >= layers)
            or (kind == "attn_kv_b.weight" and name.replace("kv_b", "k_b") in names)
            or (name == "output.weight" and file.architecture in ALWAYS_TIED)
        )

    return tuple(tensor for tensor in file.weights.tensors if is_extra(tensor.name))

"""Weights as a file stores them: names, shapes, types and bytes, read from headers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from loadsheet.errors import BadFile

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: `shape` in PyTorch's order, `dtype` by the file format's own name, bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int

    @property
    def params(self) -> int:
        """Elements: logical ones, also where several share a block of bytes (GGUF)."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """All tensors of a file, or of all its parts; `format` is `safetensors` or `gguf`.

    `total_bytes` is set only where an index alone is at hand: then `tensors` is empty, the bytes are
    those that the index claims, and the number of parameters is not known.
    """

    path: str
    format: str
    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, Scalar]
    total_bytes: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the tensors themselves were seen, not only an index's claim of their bytes."""
        return self.total_bytes is None

    @property
    def params(self) -> int:
        """Elements of all tensors; BadFile if only an index is at hand.

        Quantised safetensors count as stored: eight 4-bit weights packed in one I32 are one element.
        """
        self._require_tensors("the number of parameters")
        return sum(tensor.params for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, without header and padding."""
        if self.total_bytes is not None:
            return self.total_bytes
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def by_dtype(self) -> dict[str, tuple[int, int]]:
        """Type -> (elements, bytes), most bytes first; BadFile if only an index is at hand."""
        self._require_tensors("the types")
        found: dict[str, tuple[int, int]] = {}
        for tensor in self.tensors:
            params, nbytes = found.get(tensor.dtype, (0, 0))
            found[tensor.dtype] = (params + tensor.params, nbytes + tensor.nbytes)
        return dict(sorted(found.items(), key=lambda entry: -entry[1][1]))

    def _require_tensors(self, wanted: str) -> None:
        if not self.complete:
            raise BadFile(
                f"{self.path}: got an index without its shards, expected them to tell {wanted}",
                "download the shards, or point to the model's config.json",
            )

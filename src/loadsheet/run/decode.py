"""Typed JSON back into values, and bytes back into tensors: the other direction of `encode`.

Nothing here trusts the file: every kind, dtype, offset and size is checked, and what does not fit is a
BadCheckpoint. There is no kind that makes the reader call anything.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from loadsheet.errors import shorten
from loadsheet.run.encode import DTYPES, KIND, Plain, TensorEntry, extent
from loadsheet.run.errors import BadCheckpoint


def decode(plain: Plain, tensor: Callable[[int], torch.Tensor]) -> Any:
    """The value again; `tensor` gives the tensor of an index. Raises BadCheckpoint for what is no value."""
    try:
        return _decode(plain, tensor)
    except BadCheckpoint:
        raise
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
        RuntimeError,
    ) as error:
        message = f"checkpoint: got a value that cannot be read ({shorten(str(error))}), expected typed JSON"
        raise BadCheckpoint(message, "the file was not written by this program, or by a newer one") from None


def _decode(plain: Plain, tensor: Callable[[int], torch.Tensor]) -> Any:
    if isinstance(plain, list):
        return [_decode(item, tensor) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if KIND not in plain:
        return {key: _decode(item, tensor) for key, item in plain.items()}
    kind = plain[KIND]
    if kind == "tensor":
        return tensor(plain["index"])
    if kind in ("tuple", "size"):
        items = tuple(_decode(item, tensor) for item in plain["items"])
        return items if kind == "tuple" else torch.Size(items)
    if kind in ("dict", "ordered", "counter"):
        pairs = [(_decode(key, tensor), _decode(item, tensor)) for key, item in plain["items"]]
        out: dict[Any, Any] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}[kind]()
        for key, item in pairs:
            out[key] = item
        return out
    if kind in _LEAVES:
        return _LEAVES[kind](plain)
    if kind == "complex":
        real, imaginary = (_decode(part, tensor) for part in plain["parts"])
        return complex(real, imaginary)
    if kind == "array":
        return _array(plain, tensor(plain["index"]))
    raise BadCheckpoint(f"checkpoint: got a value of kind {shorten(kind)}, expected one that is known here")


def _from_base64(plain: Plain) -> bytes:
    try:
        return base64.b64decode(plain["base64"], validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _array(plain: Plain, data: torch.Tensor) -> Any:
    import numpy

    dtype = _numpy_dtype(plain)
    raw = data.contiguous().numpy().tobytes()
    array = numpy.frombuffer(raw, dtype=dtype).copy() if raw else numpy.empty(0, dtype=dtype)
    return array.reshape(plain["shape"], order=plain["order"])


def _numpy_dtype(plain: Plain) -> Any:
    import numpy

    dtype = numpy.dtype(str(plain["dtype"]))
    if dtype.kind not in "biufcSUmM":
        raise ValueError(f"dtype {dtype}")
    return dtype


def _scalar(plain: Plain) -> Any:
    import numpy

    return numpy.frombuffer(_from_base64(plain), dtype=_numpy_dtype(plain))[0]


_LEAVES: dict[str, Callable[[Plain], Any]] = {
    "int": lambda plain: int(plain["hex"], 16),
    "float": lambda plain: {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[plain["value"]],
    "str": lambda plain: _from_base64(plain).decode("utf-8", "surrogatepass"),
    "bytes": _from_base64,
    "bytearray": lambda plain: bytearray(_from_base64(plain)),
    "dtype": lambda plain: DTYPES[plain["name"]],
    "device": lambda plain: torch.device(plain["name"]),
    "scalar": _scalar,
}


def entries_of(plain: Plain, pieces: Sequence[int]) -> list[TensorEntry]:
    """The table of tensors, every number of it checked against the sizes of the pieces (bytes).

    Raises BadCheckpoint for a tensor that would reach outside its piece.
    """
    entries = []
    for row in plain:
        piece, offset, dtype, shape, stride, device = row
        entry = TensorEntry(piece, offset, dtype, tuple(shape), tuple(stride), str(device))
        numbers = (piece, offset, *entry.shape, *entry.stride)
        if any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers):
            raise ValueError(f"tensor {shorten(row)}")
        itemsize = DTYPES[dtype].itemsize
        if offset % itemsize or offset + extent(entry.shape, entry.stride, itemsize) > pieces[piece]:
            raise BadCheckpoint(f"checkpoint: got tensor {shorten(row)}, expected one inside its piece")
        entries.append(entry)
    return entries


def view(data: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    """The tensor of an entry, as a view of its piece (uint8)."""
    dtype = DTYPES[entry.dtype]
    size = extent(entry.shape, entry.stride, dtype.itemsize)
    if not size:
        return torch.empty_strided(entry.shape, entry.stride, dtype=dtype)
    typed = data[entry.offset : entry.offset + size].view(dtype)
    out: torch.Tensor = typed.as_strided(entry.shape, entry.stride, typed.storage_offset())
    return out

"""Values as typed JSON, tensors as bytes beside it: no pickle, in neither direction.

JSON has no tuples, no keys but strings, no bytes, no infinity and no tensors, and a value that comes back
as another type makes another run: `random.setstate` refuses a list, a scheduler compares with `inf`. So
whatever JSON cannot hold becomes an object `{"$": kind, ...}`. What has no kind is refused by its path
when it is kept, not guessed at.

Tensors are recorded as views into *pieces*. A piece is a run of bytes in memory that one or several
tensors look at: tied weights, slices of one buffer and `channels_last` strides all come back as they
were, and a tensor that is a small window of a large storage does not drag the storage along.
"""

from __future__ import annotations

import base64
import ctypes
import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from loadsheet.errors import shorten
from loadsheet.run.errors import CannotKeep

Plain = Any  # None, bool, int, float, str, and lists and string-keyed dicts of them

KIND = "$"
#: pieces begin at multiples of this in the file: enough for every dtype and for vector loads
ALIGNMENT = 64
_DEEPEST = 60

_DTYPE_NAMES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
#: what a tensor may be made of; a name that this version of PyTorch does not have yet is left out
DTYPES: dict[str, torch.dtype] = {
    name: dtype for name in _DTYPE_NAMES if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies: piece, byte offset in it, and how it looks at the bytes (strides in elements)."""

    piece: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str

    def plain(self) -> Plain:
        """As JSON."""
        return [self.piece, self.offset, self.dtype, list(self.shape), list(self.stride), self.device]


def extent(shape: Sequence[int], stride: Sequence[int], itemsize: int) -> int:
    """Bytes from the first to behind the last element that a view touches.

    >>> extent((2, 3), (3, 1), 4), extent((3,), (2,), 4), extent((0, 5), (5, 1), 4), extent((), (), 8)
    (24, 20, 0, 8)
    """
    if 0 in shape:
        return 0
    if len(shape) == 1:
        return ((shape[0] - 1) * stride[0] + 1) * itemsize
    return (sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1) * itemsize


@dataclass(slots=True)
class Piece:
    """A run of bytes in the memory of one device, and where it goes in the file."""

    nbytes: int
    offset: int
    source: torch.Tensor  # the same bytes, live, as uint8


class Encoder:
    """Turns values into typed JSON, and collects their tensors on the way.

    Raises CannotKeep, with the path, for what it has no kind for.
    """

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.arrays: dict[int, Plain] = {}
        self._paths: list[tuple[object, ...]] = []
        self._path: list[object] = []
        self._open: set[int] = set()

    def encode(self, value: object, *path: object) -> Plain:
        """One value; `path` is where it stands, for the error."""
        self._path = list(path)
        return self._encode(value)

    def _refuse(self, got: str, expected: str, hint: str) -> CannotKeep:
        return CannotKeep(f"keep {_dotted(self._path)}: got {got}, expected {expected}", hint)

    def _encode(self, value: object) -> Plain:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            number: Any = value
            return value if -(1 << 63) <= number < 1 << 63 else {KIND: "int", "hex": hex(number)}
        if kind is float:
            real: Any = value
            return value if math.isfinite(real) else {KIND: "float", "value": repr(real)}
        if kind is str:
            return self._text(str(value))
        if isinstance(value, torch.Tensor):
            return {KIND: "tensor", "index": self._tensor(value)}
        if kind in _CONTAINERS:
            return self._inside(value)
        return self._rare(value)

    def _text(self, text: str) -> Plain:
        try:
            text.encode()
        except UnicodeEncodeError:  # half a surrogate pair: a file name that is not UTF-8, say
            return {KIND: "str", "base64": _to_base64(text.encode("utf-8", "surrogatepass"))}
        return text

    def _inside(self, value: Any) -> Plain:
        """A container: what it holds, one level deeper."""
        if id(value) in self._open:
            raise self._refuse("a container that holds itself", "a tree of values", "keep its parts instead")
        if len(self._open) >= _DEEPEST:
            raise self._refuse(f"more than {_DEEPEST} levels", "a shallower tree", "keep its parts instead")
        self._open.add(id(value))
        kind = type(value)
        out: Plain
        if kind is list:
            out = self._items(value)
        elif kind is tuple:
            out = {KIND: "tuple", "items": self._items(value)}
        elif kind is torch.Size:
            out = {KIND: "size", "items": self._items(tuple(value))}
        elif kind is dict and all(type(key) is str and key != KIND for key in value):
            out = {self._text_key(key): self._at(key, item) for key, item in value.items()}
        else:  # in order, as pairs
            name = "dict" if kind is dict else "ordered" if kind is OrderedDict else "counter"
            pairs = [[self._at(key, key), self._at(key, item)] for key, item in value.items()]
            out = {KIND: name, "items": pairs}
        self._open.discard(id(value))
        return out

    def _items(self, values: Any) -> list[Plain]:
        if all(type(item) is int and -(1 << 63) <= item < 1 << 63 for item in values):
            return list(values)  # the 625 numbers of Python's random state
        return [self._at(number, item) for number, item in enumerate(values)]

    def _text_key(self, key: str) -> str:
        if not isinstance(self._text(key), str):
            raise self._refuse(shorten(key), "keys that are valid Unicode", "rename the key")
        return key

    def _at(self, key: object, value: object) -> Plain:
        self._path.append(key)
        plain = self._encode(value)
        self._path.pop()
        return plain

    def _rare(self, value: Any) -> Plain:
        kind = type(value)
        if kind is bytes or kind is bytearray:
            return {KIND: kind.__name__, "base64": _to_base64(value)}
        if kind is complex:
            return {KIND: "complex", "parts": [self._encode(value.real), self._encode(value.imag)]}
        if kind is torch.dtype and value in _NAMES:
            return {KIND: "dtype", "name": _NAMES[value]}
        if kind is torch.device:
            return {KIND: "device", "name": str(value)}
        if kind.__module__ == "numpy":
            plain = self._numpy(value)
            if plain is not None:
                return plain
        if callable(value):
            hint = "a function cannot be saved: keep what it needs as numbers, and build it anew"
        elif isinstance(value, set | frozenset):
            hint = "a set comes back in another order: keep a sorted list"
        else:
            hint = (
                "give it state_dict and load_state_dict that use numbers, strings, lists, dicts and tensors"
            )
        raise self._refuse(
            f"{kind.__module__}.{kind.__qualname__}", "a value that JSON or bytes can hold", hint
        )

    def _numpy(self, value: Any) -> Plain:
        import numpy

        if not isinstance(value, numpy.ndarray | numpy.generic) or value.dtype.kind not in "biufcSUmM":
            return None
        if isinstance(value, numpy.generic):
            return {KIND: "scalar", "dtype": value.dtype.str, "base64": _to_base64(value.tobytes())}
        order: Literal["C", "F"] = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        flat = numpy.frombuffer(value.tobytes(order=order) or b"\0", dtype=numpy.uint8).copy()
        index = self._tensor(torch.from_numpy(flat)[: value.nbytes])
        shape = list(value.shape)
        return {KIND: "array", "index": index, "dtype": value.dtype.str, "shape": shape, "order": order}

    def _tensor(self, tensor: torch.Tensor) -> int:
        hint = "keep plain tensors: `tensor.to_dense()`, `.full_tensor()` or `.dequantize()` make one"
        if type(tensor) not in _PLAIN_TENSORS:
            raise self._refuse(f"a {type(tensor).__qualname__}", "a plain tensor", hint)
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dtype not in _NAMES:
            raise self._refuse(f"a tensor of layout {tensor.layout}, {tensor.dtype}", "a dense one", hint)
        if tensor.device.type == "meta":
            raise self._refuse("a tensor on `meta`", "one with values", "materialise the model first")
        tensor = tensor.detach().resolve_conj().resolve_neg()
        self.tensors.append(tensor)
        self._paths.append(tuple(self._path))
        return len(self.tensors) - 1

    def layout(self) -> tuple[list[TensorEntry], list[Piece]]:
        """Where every tensor goes: overlapping ones share a piece; pieces in order of first appearance."""
        spans: list[tuple[str, int, int, int]] = []  # device, begin, end, number of the tensor
        entries: list[TensorEntry | None] = [None] * len(self.tensors)
        members: dict[int, list[int]] = {}  # the first tensor of a piece -> all of it
        begins: dict[int, tuple[int, int]] = {}
        for number, tensor in enumerate(self.tensors):
            size = extent(tensor.shape, tensor.stride(), tensor.element_size())
            if size:
                begin = tensor.data_ptr()
                spans.append((str(tensor.device), begin, begin + size, number))
            else:
                members[number] = [number]
                begins[number] = (0, 0)
        spans.sort()
        group: list[int] = []
        device, low, high = "", 0, -1
        for where, begin, end, number in [*spans, ("", 0, 0, -1)]:
            if group and (where != device or begin >= high):
                members[min(group)] = group
                begins[min(group)] = (low, high)
                group = []
            if not group:
                device, low, high = where, begin, end
            group.append(number)
            high = max(high, end)
        pieces: list[Piece] = []
        offset = 0
        for first in sorted(members):
            low, high = begins[first]
            for number in members[first]:
                tensor = self.tensors[number]
                inside = tensor.data_ptr() - low if high else 0
                if inside % tensor.element_size():
                    raise CannotKeep(
                        f"keep {_dotted(self._paths[number])}: got a view at an odd byte of another tensor, expected "
                        f"multiples of its {tensor.element_size()} bytes",
                        "keep a copy: `tensor.clone()`",
                    )
                entries[number] = TensorEntry(
                    len(pieces),
                    inside,
                    _NAMES[tensor.dtype],
                    tuple(tensor.shape),
                    tuple(tensor.stride()),
                    str(tensor.device),
                )
            pieces.append(
                Piece(high - low, offset, _bytes_of([self.tensors[n] for n in members[first]], low, high))
            )
            offset += -(-(high - low) // ALIGNMENT) * ALIGNMENT
        return [entry for entry in entries if entry is not None], pieces


def _bytes_of(tensors: list[torch.Tensor], low: int, high: int) -> torch.Tensor:
    """Memory from address `low` to `high` as uint8, without copying."""
    if low == high:
        return torch.empty(0, dtype=torch.uint8)
    for tensor in tensors:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        if start <= low and high <= start + storage.nbytes():
            out: torch.Tensor = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            return out.set_(storage, low - start, (high - low,), (1,))
    # Several storages over the same memory, as torch.from_numpy of two slices makes them: host memory.
    view = (ctypes.c_ubyte * (high - low)).from_address(low)
    out = torch.frombuffer(view, dtype=torch.uint8)
    return out


_CONTAINERS = frozenset({list, tuple, dict, OrderedDict, Counter, torch.Size})


def _dotted(path: Sequence[object]) -> str:
    return ".".join(shorten(part, 30) if not isinstance(part, str | int) else str(part) for part in path)


def _to_base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")

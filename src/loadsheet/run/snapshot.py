"""A state at rest: as it was taken (`Snapshot`), and as it was read back (`State`)."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from loadsheet.errors import shorten
from loadsheet.run.buffer import Lease
from loadsheet.run.decode import decode, entries_of, view
from loadsheet.run.encode import Piece, Plain, TensorEntry
from loadsheet.run.errors import BadCheckpoint, CannotKeep
from loadsheet.run.files import memory
from loadsheet.run.parts import FLAGS

FORMAT = 1
_PORTION = 4 * 1024 * 1024
_STREAM_CHUNK = 64 * 1024 * 1024


class Snapshot:
    """The state after `step` completed steps, ready to be written.

    `document` is the typed JSON, `chunks()` the bytes of the tensors, `nbytes` their number,
    `seconds` how long the loop waited for it. With `streamed` the tensors were not copied: they must be
    written before training goes on.
    """

    def __init__(
        self,
        step: int,
        document: bytes,
        nbytes: int,
        lease: Lease | None,
        pieces: list[Piece],
        seconds: float,
    ) -> None:
        self.step = step
        self.document = document
        self.nbytes = nbytes
        self.seconds = seconds
        self.lease = lease
        self._pieces = pieces

    @property
    def streamed(self) -> bool:
        """Whether the tensors are still the live ones."""
        return self.lease is None

    def chunks(self) -> Iterator[memoryview]:
        """The bytes of the tensors' file, in order, from its beginning to its end."""
        if self.lease is not None:
            if self.nbytes:
                yield memory(self.lease.buffer.data[: self.nbytes])
            return
        host = torch.zeros(_STREAM_CHUNK, dtype=torch.uint8)
        position = 0
        for piece in [*self._pieces, Piece(0, self.nbytes, host[:0])]:
            if piece.offset > position:
                gap = torch.zeros(piece.offset - position, dtype=torch.uint8)
                yield memory(gap)
            for begin in range(0, piece.nbytes, _STREAM_CHUNK):
                part = piece.source[begin : begin + _STREAM_CHUNK]
                host[: part.numel()].copy_(part)
                yield memory(host[: part.numel()])
            position = piece.offset + piece.nbytes

    def release(self) -> None:
        """Give the buffer back; the snapshot cannot be written any more."""
        if self.lease is not None:
            self.lease.release()


class State:
    """A state as it was read from a checkpoint. Tensors are views of the file until they are copied.

    Raises BadCheckpoint for bytes that do not describe one.
    """

    def __init__(self, document: bytes, data: torch.Tensor) -> None:
        try:
            whole = msgspec.json.decode(document)
            if whole["format"] != FORMAT:
                message = f"checkpoint: got format {shorten(whole['format'])}, expected {FORMAT}"
                raise BadCheckpoint(message, "another version of this program wrote it")
            self._tree: Plain = whole["tree"]
            self.step: int = self._tree["step"]
            self._objects: dict[str, Plain] = dict(self._tree["objects"])
            self._random: Plain = self._tree["random"]
            self._pieces = [(int(size), int(offset)) for size, offset in whole["pieces"]]
            if any(size < 0 or offset < 0 or size + offset > data.numel() for size, offset in self._pieces):
                raise ValueError("a piece outside the file")
            self.entries: list[TensorEntry] = entries_of(whole["tensors"], [size for size, _ in self._pieces])
        except BadCheckpoint:
            raise
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            message = (
                f"checkpoint: got a state that cannot be read ({shorten(str(error))}), expected typed JSON"
            )
            raise BadCheckpoint(message) from None
        self._data = data

    @property
    def names(self) -> list[str]:
        """What was kept."""
        return list(self._objects)

    def kind(self, name: str) -> str:
        """What kind of object it was."""
        return str(self._objects[name]["kind"])

    def plain(self, name: str) -> Plain:
        """The typed JSON of an object."""
        return self._objects[name]["saved"]

    @property
    def loop(self) -> Any:
        """The facts that the loop added to the snapshot."""
        return decode(self._tree.get("loop"), self.tensor)

    @property
    def random(self) -> Any:
        """The states of the process's own generators."""
        return decode(self._random, self.tensor)

    def tensor(self, index: int) -> torch.Tensor:
        """A tensor as a view of the file."""
        entry = self.entries[index]
        size, offset = self._pieces[entry.piece]
        return view(self._data[offset : offset + size], entry)

    def value(self, name: str) -> Any:
        """What was saved of an object; its tensors are views of the file, to be copied from."""
        return decode(self.plain(name), self.tensor)

    def own(self, name: str) -> Any:
        """What was saved of an object, in memory of its own; tensors that shared memory still do."""
        copies: dict[int, torch.Tensor] = {}

        def tensor(index: int) -> torch.Tensor:
            entry = self.entries[index]
            if entry.piece not in copies:
                size, offset = self._pieces[entry.piece]
                copies[entry.piece] = self._data[offset : offset + size].clone()
            out = view(copies[entry.piece], entry)
            out._saved_device = entry.device
            return out

        return decode(self.plain(name), tensor)


def copy_pieces(pieces: list[Piece], into: torch.Tensor, devices: set[torch.device]) -> None:
    """All pieces into the buffer, zeros between them."""
    ends = [*(piece.offset for piece in pieces[1:]), into.numel()]
    targets, sources = [], []
    for piece, end in zip(pieces, ends, strict=True):
        if piece.nbytes:
            targets.append(into[piece.offset : piece.offset + piece.nbytes])
            sources.append(piece.source)
        if end > piece.offset + piece.nbytes:
            into[piece.offset + piece.nbytes : end].zero_()
    if not devices:
        _copy_memory(targets, sources)
        return
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)
    for device in devices:  # untested without a GPU
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _copy_memory(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Host memory to host memory, in small portions that the threads take as they come.

    PyTorch's own copy divides each tensor evenly among its threads and waits for all of them, hundreds of
    times in a row: on a machine with other work that takes twenty times as long as the copying.
    """
    portions = deque(
        (target.data_ptr() + begin, source.data_ptr() + begin, min(_PORTION, source.numel() - begin))
        for target, source in zip(targets, sources, strict=True)
        for begin in range(0, source.numel(), _PORTION)
    )

    def work() -> None:
        with contextlib.suppress(IndexError):  # none left
            while True:
                ctypes.memmove(*portions.popleft())  # releases the GIL

    total = sum(source.numel() for source in sources)
    others = min(torch.get_num_threads(), 4, total // _PORTION) - 1
    threads = [threading.Thread(target=work, name="loadsheet-snapshot") for _ in range(others)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as integers, so that a NaN equals itself."""
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(width)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are of one dtype and shape and equal in every bit; devices may differ."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    left, right = left.detach().resolve_conj().resolve_neg(), right.detach().resolve_conj().resolve_neg()
    return bool(torch.equal(_bits(left), _bits(right.to(left.device))))


def compare_with_live(
    tensors: list[torch.Tensor], entries: list[TensorEntry], pieces: list[Piece], data: torch.Tensor
) -> None:
    """Is every tensor of the buffer, found by its entry, the live one in every bit? Raises CannotKeep."""
    for tensor, entry in zip(tensors, entries, strict=True):
        piece = pieces[entry.piece]
        copy = view(data[piece.offset : piece.offset + piece.nbytes], entry)
        if not same_bits(copy, tensor):
            raise CannotKeep(
                f"snapshot: got other bits than the live tensor of shape {tuple(entry.shape)}, expected a copy",
                "memory or driver at fault, or a thread changes the weights while they are copied",
            )


def difference(saved: Plain, live: Plain, state: State, tensors: list[torch.Tensor], path: str) -> str | None:
    """The first place where two encoded values differ, in words; how an optimizer computes is not one."""
    if isinstance(saved, dict) and isinstance(live, dict):
        if saved.get("$") in ("tensor", "array") and saved.get("$") == live.get("$"):
            ours, theirs = tensors[live["index"]], state.tensor(saved["index"])
            if same_bits(theirs, ours):  # of an array also the rest, which tells its dtype and shape
                rest = [{key: item for key, item in side.items() if key != "index"} for side in (saved, live)]
                return (
                    None
                    if rest[0] == rest[1]
                    else f"{path}: got {shorten(rest[1])}, expected {shorten(rest[0])}"
                )
            if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
                return f"{path}: got {ours.dtype} {tuple(ours.shape)}, expected {theirs.dtype} {tuple(theirs.shape)}"
            return f"{path}: got other values, expected those saved"
        for key in saved.keys() | live.keys():
            if key in FLAGS:
                continue
            if key not in saved or key not in live:
                return (
                    f"{path}.{key}: got it {'only now' if key in live else 'no more'}, expected it as saved"
                )
        pairs: Iterator[tuple[object, Plain, Plain]] = (
            (key, saved[key], live[key]) for key in saved if key in live and key not in FLAGS
        )
        if "$" in saved:
            return next(
                (d for k, a, b in pairs if (d := difference(a, b, state, tensors, path)) is not None), None
            )
    elif isinstance(saved, list) and isinstance(live, list):
        if len(saved) != len(live):
            return f"{path}: got {len(live)} values, expected {len(saved)}"
        if not any(isinstance(item, list | dict) for item in saved):
            return None if saved == live else f"{path}: got {shorten(live)}, expected {shorten(saved)}"
        pairs = ((number, a, b) for number, (a, b) in enumerate(zip(saved, live, strict=True)))
    else:
        same = type(saved) is type(live) and saved == live
        return None if same else f"{path}: got {shorten(live)}, expected {shorten(saved)}"
    for key, a, b in pairs:
        if (found := difference(a, b, state, tensors, f"{path}.{key}")) is not None:
            return found
    return None

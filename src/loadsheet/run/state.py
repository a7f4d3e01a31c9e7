"""The complete state of a run: taken as a snapshot, put back in the one order that works.

Taking is quick and all that the loop waits for: values become JSON at once, tensors are copied into one
buffer, so nothing that training does afterwards can reach a checkpoint. Putting back is model, optimizer,
scheduler, scaler, data, iterators, and the random states last, because whatever comes before may draw.
Then everything is taken again and compared, bit for bit, with what was loaded: an object that does not
come back as it was is found when the run starts, not in the result.
"""

from __future__ import annotations

import random
import sys
import time
import weakref
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import nn

from loadsheet.errors import BadInput, shorten
from loadsheet.run import parts
from loadsheet.run.buffer import Buffers
from loadsheet.run.encode import Encoder, Plain
from loadsheet.run.errors import BadCheckpoint
from loadsheet.run.snapshot import FORMAT, Snapshot, State, compare_with_live, copy_pieces, difference
from loadsheet.run.tell import tell
from loadsheet.run.unkept import name_of, unkept

__all__ = ["Keeper", "Snapshot", "State"]

_PAGE = 4096


class Keeper:
    """Knows what belongs to the state of a run; takes it, and puts it back."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._kinds: dict[str, str] = {}
        self._buffers = Buffers()
        self._checked = False  # the first snapshot is compared with the live tensors
        self._state: State | None = None
        self._started = False
        self._stepped = False
        self._before: list[weakref.ref[Any]] = []
        self._hooks: list[Any] = []

    @property
    def objects(self) -> Mapping[str, Any]:
        """What is kept, by name."""
        return dict(self._objects)

    @property
    def unkept(self) -> list[Any]:
        """What was named as not kept, as far as it still lives."""
        return [thing for ref in self._before if (thing := ref()) is not None]

    def keep(self, **objects: Any) -> None:
        """Add objects to the state, each under its name.

        Modules, optimizers, schedulers, scalers, generators, tensors, dicts, lists, and anything with
        `state_dict` and `load_state_dict`.

        After the state was restored, and before the first optimizer step, an object is restored at once.
        Raises CannotKeep for what cannot be kept, BadInput for a second object of the same name.
        """
        for name, value in objects.items():
            self.keep_as(parts.kind_of(name, value), name, value)

    def keep_as(self, kind: str, name: str, value: Any) -> None:
        """Add one object as one of `parts.KINDS`: an `iterator` is put back after all data."""
        have = self._objects.get(name)
        if have is value and have is not None:
            return
        if have is not None:
            raise BadInput(f"keep {name}: got a second object of that name, expected another name")
        if self._started and self._stepped:
            raise BadInput(
                f"keep {name}: got it after the first step, expected it before `run.steps`",
                "what is kept later would start anew in every attempt",
            )
        self._objects[name], self._kinds[name] = value, kind
        if self._started and self._state is not None:
            self._restore_some([name], self._state)

    # --- taking -------------------------------------------------------------------------------------

    def capture(self, step: int, loop: Mapping[str, Any] | None = None) -> Snapshot:
        """The state after `step` steps, with the loop's own facts; waits while a save reads the buffer.

        Raises CannotKeep, with the path, for what cannot be saved.
        """
        began = time.perf_counter()
        encoder = Encoder()
        drawn = encoder.encode(_random_states(), "random states")  # before anything else can draw
        kept = {
            name: {"kind": kind, "saved": self._plain(encoder, name)} for name, kind in self._kinds.items()
        }
        tree = {
            "step": step,
            "random": drawn,
            "loop": encoder.encode(dict(loop or {}), "loop"),
            "objects": kept,
        }
        entries, pieces = encoder.layout()
        nbytes = pieces[-1].offset + pieces[-1].nbytes if pieces else 0
        nbytes += -nbytes % _PAGE
        document = msgspec.json.encode(
            {
                "format": FORMAT,
                "tree": tree,
                "tensors": [entry.plain() for entry in entries],
                "pieces": [[piece.nbytes, piece.offset] for piece in pieces],
            }
        )
        devices = {piece.source.device for piece in pieces if piece.source.device.type != "cpu"}
        lease = self._buffers.lease(nbytes, pinned=any(d.type == "cuda" for d in devices))
        if lease is None:
            self._announce(nbytes)
        else:
            copy_pieces(pieces, lease.buffer.data[:nbytes], devices)
            if not self._checked:
                compare_with_live(encoder.tensors, entries, pieces, lease.buffer.data)
                self._checked = True
        return Snapshot(step, document, nbytes, lease, pieces, time.perf_counter() - began)

    def expected_bytes(self, nbytes: int) -> int:
        """Bytes that a snapshot will take once training has begun, from what one takes now.

        Optimizers make their moments in the first step; those that have none yet are added.
        """
        return nbytes + sum(
            parts.moments_to_come(value)
            for name, value in self._objects.items()
            if self._kinds[name] == "optimizer"
        )

    def _plain(self, encoder: Encoder, name: str) -> Plain:
        value, kind = self._objects[name], self._kinds[name]
        saved = parts.save_optimizer(value, self._names()) if kind == "optimizer" else parts.SAVE[kind](value)
        return encoder.encode(saved, name)

    def _names(self) -> dict[int, str]:
        return parts.parameter_names({n: m for n, m in self._objects.items() if isinstance(m, nn.Module)})

    def _announce(self, nbytes: int) -> None:
        tell(
            f"a snapshot needs {nbytes:,} bytes of host memory, which are not free: checkpoints are written "
            "straight from the live tensors, and training waits for them"
        )

    # --- putting back -------------------------------------------------------------------------------

    def restore(self, state: State | None) -> None:
        """Put a state back, or, with None, start afresh; either way say what lives and was not kept.

        Raises BadCheckpoint where the state and the kept objects do not fit, and where an object is not
        afterwards what was saved.
        """
        if state is not None:
            for name in self._objects:
                if name not in state.names:
                    raise BadCheckpoint(
                        f"restore {name}: got no such name in the checkpoint, expected one of "
                        f"{shorten(', '.join(state.names))}",
                        self._way_out(name, state),
                    )
        self._state = state
        self._warn()
        self._started, self._stepped = True, False
        if state is not None:
            self._restore_some(list(self._objects), state)
        for value in self._objects.values():
            if isinstance(value, torch.optim.Optimizer):
                self._hooks.append(value.register_step_pre_hook(self._first_step))

    def _warn(self) -> None:
        forgotten = unkept(self._objects)
        self._before = [weakref.ref(thing) for thing in forgotten]
        for thing in forgotten:
            tell(
                f"{name_of(thing)} lives but was not kept: it would start anew in every attempt; "
                "`run.keep(name=it)` before `run.steps`"
            )

    def _restore_some(self, names: list[str], state: State) -> None:
        for name in names:
            if name not in state.names:
                message = (
                    f"restore {name}: got no such name in the checkpoint, expected {shorten(state.names)}"
                )
                raise BadCheckpoint(message, self._way_out(name, state))
            if state.kind(name) != self._kinds[name]:
                raise BadCheckpoint(
                    f"restore {name}: got a {self._kinds[name]}, expected a {state.kind(name)}"
                )
        for kind in parts.KINDS:
            for name in names:
                if self._kinds[name] == kind:
                    self._restore_one(name, kind, state)
            if kind == "scheduler":
                for name, value in self._objects.items():
                    if self._kinds[name] == "optimizer":
                        parts.load_groups(value, state.own(name))
        for name in names:
            if self._kinds[name] != "iterator":
                self._verify(name, state)
        _restore_random(state.random)

    def _way_out(self, name: str, state: State) -> str:
        """What to do about a name that the checkpoint does not have: renamed, or new."""
        free = [n for n in state.names if n not in self._objects and state.kind(n) == self._kinds[name]]
        renamed = f"if it was renamed, keep it as before: `run.keep({free[0]}=...)`; " if free else ""
        return (
            f"{renamed}what is new makes another run: leave it out, or change the config (a key that says so) and "
            "begin with `Run.open(..., start_from=<this directory>)`"
        )

    def _restore_one(self, name: str, kind: str, state: State) -> None:
        value = self._objects[name]
        if kind == "optimizer":
            parts.load_optimizer(value, state.own(name), self._names(), name)
        elif kind in ("module", "tensor"):
            parts.LOAD[kind](value, state.value(name), name)
        else:
            parts.LOAD[kind](value, state.own(name), name)

    def _verify(self, name: str, state: State) -> None:
        """Take an object again: is it what was saved?"""
        if isinstance(self._objects[name], torch.utils.data.DataLoader):
            return  # asking a stateful loader for its state may start its workers
        encoder = Encoder()
        live = self._plain(encoder, name)
        found = difference(state.plain(name), live, state, encoder.tensors, name)
        if found is None:
            return
        if self._kinds[name] == "data":
            tell(f"restore: {found}; its load_state_dict loses it")
        else:
            raise BadCheckpoint(f"restore: {found}", "the object does not take its own state back")

    def _first_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Before the first update: a scheduler built since the restore has reset what was restored."""
        if self._stepped:
            return
        known = {id(thing) for thing in self.unkept}
        held = {id(value) for value in self._objects.values()}
        for thing in unkept(self._objects):
            if id(thing) in known or id(getattr(thing, "optimizer", None)) not in held:
                continue
            raise BadInput(
                f"{name_of(thing)}: got a scheduler built after `run.steps` had restored its optimizer, expected "
                "one built before and kept",
                "it has reset the learning rate to that of step 0",
            )
        self.seal()

    def seal(self) -> None:
        """The first step has begun: from here on nothing can be added any more."""
        self._stepped = True
        state, self._state = self._state, None  # the file's pages can go
        for name in state.names if state is not None else ():
            if name not in self._objects and state is not None and state.kind(name) != "iterator":
                tell(
                    f"the checkpoint holds `{name}` ({state.kind(name)}), which is not kept now: it is not restored"
                )
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


# --- random states ----------------------------------------------------------------------------------


def _random_states() -> dict[str, Any]:
    """Python's, NumPy's and torch's own generators, and that of every CUDA device in use."""
    out: dict[str, Any] = {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "numpy": None,
        "cuda": None,
    }
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:  # what was never imported was never drawn from
        out["numpy"] = numpy.get_state(legacy=False)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        out["cuda"] = torch.cuda.get_rng_state_all()
    return out


def _restore_random(saved: Mapping[str, Any]) -> None:
    random.setstate(saved["python"])
    if saved["numpy"] is not None:
        import numpy

        numpy.random.set_state(saved["numpy"])
    if saved["cuda"] is not None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count != len(saved["cuda"]):
            tell(
                f"the checkpoint holds the random states of {len(saved['cuda'])} CUDA devices, there are {count}: "
                "the run will not be bit for bit the same"
            )
        for number, state in enumerate(saved["cuda"][:count]):
            torch.cuda.set_rng_state(state, number)
    torch.set_rng_state(saved["torch"])

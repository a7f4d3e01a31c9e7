"""How much the job asks for: processors, memory, disk and time, each noted with where it comes from.

Two formulas stand here, each with its margin in a named constant:

    time cap   =  1.5 · high estimate + 15 min + grace      for the whole work, at once
    grace      =  1.3 · save + step                         seconds between being told to stop and the end

The sheet predicts steps, and what was signed with it of interruptions and saves. Starting (imports, building,
restoring) is what the 15 minutes are for; a run that is slower than one and a half times its high estimate reaches
the cap and stops, with its checkpoint written.
"""

from __future__ import annotations

import math
from typing import Final

from loadsheet.cloud.export.facts import Facts
from loadsheet.cloud.export.job import KEPT, Wish
from loadsheet.cloud.machine import Machine
from loadsheet.errors import BadInput, shorten
from loadsheet.units import (
    GIB,
    ceil_div,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_count,
    parse_duration,
)

TIME_MARGIN: Final = 1.5
START_SECONDS: Final = 900.0
SAVE_MARGIN: Final = 1.3
LEAST_GRACE: Final = 30.0  # Kubernetes' own default
#: bytes per second of a save that nobody has measured: below the 125 MB/s that an AWS gp3 volume has at least
SAVE_RATE: Final = 1e8
DISK_MARGIN: Final = 50 * GIB  # system, packages, image, logs; the data set is the user's to add
NODE_DISK: Final = GIB  # of a node of Kubernetes, where checkpoints lie in a claim
RAM_MARGIN: Final = 8 * GIB  # Python, PyTorch, CUDA's pinned buffers, loader workers
BUILT: Final = 4  # bytes per parameter of a model that is built on the CPU, in PyTorch's default dtype
STORED: Final = 2  # bytes per parameter of the weights that one begins with, as they are downloaded
CPUS_PER_GPU: Final = 8
#: engines whose containers have 64 MiB of /dev/shm where nothing is said
SHM_ENGINES: Final = ("k8s", "dstack")
SHM_PER_CPU: Final = GIB  # what preflight wants free there; each processor may be a loader worker
_MOST_SECONDS: Final = 365 * 86400.0


class Amounts:
    """Decides the amounts, and writes down where each comes from."""

    def __init__(self, engine: str, facts: Facts, wish: Wish, machine: Machine) -> None:
        self.engine, self.facts, self.wish, self.machine = engine, facts, wish, machine
        self.why: dict[str, str] = {}
        self.defaulted: list[str] = []
        self.notes: list[str] = []

    def given(self, entry: str) -> None:
        """Note that the user said it."""
        self.why[entry] = "given"

    def default(self, entry: str, why: str) -> None:
        """Note that nobody said it, and what it comes from."""
        self.why[entry] = why
        self.defaulted.append(entry)

    def cpus(self, gpus: int) -> int:
        """Processors."""
        if self.wish.cpus is not None:
            self.given("cpus")
            return parse_count(self.wish.cpus, "--cpus")
        if gpus == 0:
            self.default("cpus", "the sheet is that of one process")
            return 2
        self.default("cpus", f"{CPUS_PER_GPU} for each GPU, for loader workers")
        return CPUS_PER_GPU * gpus

    def shm(self, cpus: int) -> int | None:
        """Bytes of /dev/shm, through which loader workers hand batches over; None: as the engine has it."""
        wish = self.wish
        if wish.shm is None:
            if self.engine not in SHM_ENGINES:
                return None
            size, why = (
                SHM_PER_CPU * cpus,
                f"{format_bytes(SHM_PER_CPU, 0)} for each CPU, as each may be a worker",
            )
            if wish.ram is not None and (half := parse_bytes(wish.ram, "--ram") // 2) < size:
                size, why = half, "half of --ram"
            self.default("shm", f"{why}; a default of ours")
            return _whole_mib(size, "--ram")
        self.given("shm")
        return None if wish.shm.strip() == "0" else _whole_mib(parse_bytes(wish.shm, "--shm"), "--shm")

    def ram(self, shm: int | None) -> int:
        """Bytes of host memory: what a save copies, once more as it is written, the model as it is built, /dev/shm."""
        if self.wish.ram is not None:
            self.given("ram")
            size = _whole_mib(parse_bytes(self.wish.ram, "--ram"), "--ram")
            if shm is not None and shm >= size:
                raise BadInput(
                    f"--shm: got {format_bytes(shm)}, expected less than --ram, {format_bytes(size)}",
                    "/dev/shm is memory, and a part of it",
                )
            return size
        facts = self.facts
        need = 2 * facts.checkpoint + BUILT * (facts.params or 0) + (shm or 0)
        more = " + /dev/shm" if shm else ""
        if facts.cpu:
            self.default("ram", f"the sheet's peak, high, 2 × checkpoint + 4 B/parameter{more}")
            return _up(facts.peak_high + need, GIB)
        self.default("ram", f"2 × checkpoint + 4 B/parameter + {format_bytes(RAM_MARGIN, 0)}{more}")
        return _up(need + RAM_MARGIN, GIB)

    def disk(self) -> int:
        """Bytes: those checkpoints that stay, the one being written, and a margin; beside a claim, scratch alone."""
        if self.wish.disk is not None:
            self.given("disk")
            return _whole_mib(parse_bytes(self.wish.disk, "--disk"), "--disk")
        if self.engine == "k8s" and self.wish.volume is not None:
            self.default("disk", "the node's own, for logs and scratch; checkpoints lie in the volume")
            return NODE_DISK
        self.default(
            "disk",
            f"({KEPT} kept + 1) × checkpoint + 2 B/parameter + {format_bytes(DISK_MARGIN, 0)}; without the data set",
        )
        facts = self.facts
        return _up((KEPT + 1) * facts.checkpoint + STORED * (facts.params or 0) + DISK_MARGIN, GIB)

    def time(self, grace: int) -> int:
        """Seconds, in whole minutes."""
        if self.wish.time is not None:
            self.given("time")
            seconds = parse_duration(self.wish.time, "--time")
            if not 60 <= seconds <= _MOST_SECONDS:
                raise BadInput(f"--time: got {shorten(self.wish.time)}, expected one minute to one year")
            return _up(seconds, 60)
        if self.facts.seconds is None:
            raise BadInput(
                f"time: got {self.facts.label} without steps or tokens, expected how long the work is",
                "give --time, or sign the sheet with --steps",
            )
        seconds = self.facts.seconds[2] * TIME_MARGIN + START_SECONDS + grace
        if seconds > _MOST_SECONDS:
            raise BadInput(
                f"time: got {format_duration(seconds)}, expected at most one year", "give --time for a part"
            )
        self.default("time", f"{TIME_MARGIN} × high estimate + {START_SECONDS / 60:.0f} min + grace")
        return _up(seconds, 60)

    def grace(self) -> int:
        """Seconds between being told to stop and the end."""
        facts = self.facts
        if self.wish.save is not None:
            self.given("save")
            save = parse_duration(self.wish.save, "--save")
        elif facts.save_high is not None:
            self.why["save"] = "the sheet's high estimate, of runs that were measured"
            save = facts.save_high
        else:
            self.default("save", f"checkpoint at {SAVE_RATE / 1e6:.0f} MB/s: nobody has measured one")
            save = facts.checkpoint / SAVE_RATE
        seconds = max(LEAST_GRACE, SAVE_MARGIN * save + facts.step_high)
        if seconds > 86400:
            raise BadInput(f"--save: got {format_duration(save)}, expected less than a day")
        self.why["grace"] = f"{SAVE_MARGIN} × save + step, at least {format_duration(LEAST_GRACE)}"
        return math.ceil(seconds)


def _up(amount: float, step: int) -> int:
    return int(ceil_div(math.ceil(amount), step)) * step


def _whole_mib(size: int, what: str) -> int:
    if size < 1 << 20:
        raise BadInput(f"{what}: got {size} bytes, expected at least 1 MiB", "write the unit: 32GiB")
    return size

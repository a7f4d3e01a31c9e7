"""Decides what the job asks for, entry after entry, and notes of each where it comes from.

Two formulas stand here, each with its margin in a named constant:

    time cap   =  1.5 · high estimate + 15 min + grace      for the whole work, at once
    grace      =  1.3 · save + step                         seconds between being told to stop and the end

The sheet predicts steps only. Starting (imports, building, restoring) is what the 15 minutes are for; a run that
is slower than one and a half times its high estimate reaches the cap and stops, with its checkpoint written.
"""

from __future__ import annotations

import math
import re
from typing import Final

from loadsheet.cloud.export.facts import Facts
from loadsheet.cloud.export.gpu_names import ANY, check_region, gpu_name, spelled_alike, vendor
from loadsheet.cloud.export.job import ENGINES, KEPT, VOLUME_AT, DoesNotFit, Job, Wish
from loadsheet.cloud.export.places import (
    clean_path,
    label,
    mirror_place,
    refuse_bucket,
    refuse_mounted_bucket,
)
from loadsheet.cloud.export.words import check_name, check_setup, clean, parse_command, slug, token
from loadsheet.cloud.machine import Machine
from loadsheet.cloud.secrets import Scanner
from loadsheet.errors import BadInput, UnknownGpu, UnknownKey, shorten
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
RAM_MARGIN: Final = 8 * GIB  # Python, PyTorch, CUDA's pinned buffers, loader workers
BUILT: Final = 4  # bytes per parameter of a model that is built on the CPU, in PyTorch's default dtype
STORED: Final = 2  # bytes per parameter of the weights that one begins with, as they are downloaded
CPUS_PER_GPU: Final = 8
MOST_GPUS: Final = 8  # one machine
_NOTICES: Final = (("AWS spot", 120.0), ("Google spot", 30.0), ("Azure spot", 30.0))
_MOST_SECONDS: Final = 365 * 86400.0


def make_job(engine: str, facts: Facts, wish: Wish, machine: Machine | None = None) -> Job:
    """What the job asks for; `machine` is where paths are looked at.

    Raises DoesNotFit, and BadInput or UnknownKey for an option that makes no sense.
    """
    if engine not in ENGINES:
        raise UnknownKey(engine, ENGINES, "engine")
    if facts.verdict == "does_not_fit" and not wish.export_anyway:
        raise DoesNotFit(
            f"not exported: {facts.label} says that {shorten(facts.model)} does not fit on {facts.gpus} × {facts.gpu}",
            "change the plan as the sheet says; `--export-anyway` writes the job as it is",
        )
    _refuse_secrets(wish)
    return _Maker(engine, facts, wish, machine or Machine()).job()


def _refuse_secrets(wish: Wish) -> None:
    """A job file is copied, committed and shown: no key may stand in it."""
    scanner = Scanner(with_plugins=False)
    for what, text in (("--command", wish.command), *(("--setup", line) for line in wish.setup)):
        found = scanner.scan(clean(text, what).encode())
        if found:
            raise BadInput(
                f"{what}: got what looks like a secret ({found[0].rule}), expected none in a job file",
                "let the program read it from its environment, which the engine's own secrets fill",
            )


class _Maker:
    """Decides entry after entry, and writes down where each comes from."""

    def __init__(self, engine: str, facts: Facts, wish: Wish, machine: Machine) -> None:
        self.engine, self.facts, self.wish, self.machine = engine, facts, wish, machine
        self.why: dict[str, str] = {}
        self.defaulted: list[str] = []
        self.notes: list[str] = []

    def _given(self, entry: str) -> None:
        self.why[entry] = "given"

    def _default(self, entry: str, why: str) -> None:
        self.why[entry] = why
        self.defaulted.append(entry)

    def job(self) -> Job:
        wish, facts = self.wish, self.facts
        command = parse_command(wish.command)
        self._given("command")
        setup = check_setup(wish.setup)
        gpus = self._gpus()
        spelled = self._spelled(gpus)
        mirror, volume, path = self._place()
        grace = self._grace()
        region = self._region()
        if facts.verdict != "fits":
            self.notes.append(f"the sheet's verdict is `{facts.verdict}`, not `fits`")
        if facts.sha256 is None:
            self.notes.append("the sheet is not signed: nothing shows whether it was edited")
        return Job(
            engine=self.engine,
            name=self._name(),
            command=command,
            setup=setup,
            gpus=gpus,
            gpu_name=spelled,
            cpus=self._cpus(gpus),
            ram=self._ram(),
            disk=self._disk(),
            time=self._time(grace),
            grace=grace,
            price_cap=self._price_cap(gpus),
            mirror=mirror,
            volume=volume,
            volume_path=path,
            image=self._image(),
            workdir=self._workdir(),
            region=region,
            spot=self._spot(grace),
            partition=None if wish.partition is None else token(wish.partition, "--partition"),
            account=None if wish.account is None else token(wish.account, "--account"),
            qos=None if wish.qos is None else token(wish.qos, "--qos"),
            namespace=None if wish.namespace is None else label(wish.namespace, "--namespace"),
            queue=None if wish.queue is None else label(wish.queue, "--queue"),
            vendor=self._vendor(),
            why=self.why,
            defaulted=self.defaulted,
            notes=self.notes,
        )

    def _name(self) -> str:
        if self.wish.name is not None:
            self._given("name")
            return check_name(self.wish.name)
        self._default("name", "of the model and the task")
        return slug(f"{slug(self.facts.model)[:30]}-{self.facts.task}")

    def _gpus(self) -> int:
        facts = self.facts
        if self.wish.gpus is not None:
            count = 0 if self.wish.gpus.strip() == "0" else parse_count(self.wish.gpus, "--gpus")
            if count not in (0, facts.gpus):
                raise BadInput(
                    f"--gpus: got {count}, but the sheet is one of {facts.gpus}",
                    "plan and sign for that many; `--gpus 0` asks for none",
                )
            self._given("gpus")
        else:
            count = 0 if facts.cpu else facts.gpus
            self.why["gpus"] = "the sheet"
        if count > MOST_GPUS:
            raise BadInput(
                f"gpus: got a sheet of {count}, expected at most {MOST_GPUS}",
                "the job that is written is that of one machine",
            )
        return count

    def _spelled(self, gpus: int) -> str | None:
        wish, engine = self.wish, self.engine
        if gpus == 0:
            if wish.gpu_name is not None:
                raise BadInput("--gpu-name: got a name and no GPU, expected both or neither")
            return None
        if wish.gpu_name is not None:
            self._given("gpu_name")
            if wish.gpu_name == ANY and engine in ("slurm", "k8s"):
                self.notes.append("any GPU will do for the engine: whether it is the sheet's, nothing checks")
                return None
            return token(wish.gpu_name, "--gpu-name")
        if engine == "slurm":
            self._default("gpu_name", "every site names its GPUs itself")
            self.notes.append(
                f"the kind of GPU is not said: where there are several, --gpu-name NAME (`sinfo -o %G`) asks for "
                f"the sheet's, {self.facts.gpu}"
            )
            return None
        name = gpu_name(engine, self.facts.gpu)
        self.why["gpu_name"] = f"{engine}'s name of {self.facts.gpu}"
        if alike := spelled_alike(engine, self.facts.gpu):
            self.notes.append(f"{engine} says {name} for {', '.join(alike)} too, and may give one of them")
        return name

    def _vendor(self) -> str:
        try:
            found = vendor(self.facts.gpu)
        except UnknownGpu:  # a machine of one's own
            return "nvidia"
        if self.engine == "k8s" and found not in ("nvidia", "amd"):
            raise BadInput(
                f"gpu: got {shorten(self.facts.gpu)}, expected one of NVIDIA or AMD",
                "Kubernetes' resource name of others is not known here",
            )
        return found

    def _cpus(self, gpus: int) -> int:
        if self.wish.cpus is not None:
            self._given("cpus")
            return parse_count(self.wish.cpus, "--cpus")
        if gpus == 0:
            self._default("cpus", "the sheet is that of one process")
            return 2
        self._default("cpus", f"{CPUS_PER_GPU} for each GPU, for loader workers")
        return CPUS_PER_GPU * gpus

    def _ram(self) -> int:
        """Bytes of host memory: what a save copies, once more as it is written, and the model as it is built."""
        if self.wish.ram is not None:
            self._given("ram")
            return _whole_mib(parse_bytes(self.wish.ram, "--ram"), "--ram")
        facts = self.facts
        need = 2 * facts.checkpoint + BUILT * (facts.params or 0)
        if facts.cpu:
            self._default("ram", "the sheet's peak, high, 2 × checkpoint + 4 B/parameter")
            return _up(facts.peak_high + need, GIB)
        self._default("ram", f"2 × checkpoint + 4 B/parameter + {format_bytes(RAM_MARGIN, 0)}")
        return _up(need + RAM_MARGIN, GIB)

    def _disk(self) -> int:
        """Bytes: those checkpoints that stay, the one being written, and a margin."""
        if self.wish.disk is not None:
            self._given("disk")
            return _whole_mib(parse_bytes(self.wish.disk, "--disk"), "--disk")
        self._default(
            "disk",
            f"({KEPT} kept + 1) × checkpoint + 2 B/parameter + {format_bytes(DISK_MARGIN, 0)}; without the data set",
        )
        facts = self.facts
        return _up((KEPT + 1) * facts.checkpoint + STORED * (facts.params or 0) + DISK_MARGIN, GIB)

    def _time(self, grace: int) -> int:
        """Seconds, in whole minutes."""
        if self.wish.time is not None:
            self._given("time")
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
        self._default("time", f"{TIME_MARGIN} × high estimate + {START_SECONDS / 60:.0f} min + grace")
        return _up(seconds, 60)

    def _grace(self) -> int:
        facts = self.facts
        if self.wish.save is not None:
            self._given("save")
            save = parse_duration(self.wish.save, "--save")
        elif facts.save_high is not None:
            self.why["save"] = "the sheet's high estimate, of runs that were measured"
            save = facts.save_high
        else:
            self._default("save", f"checkpoint at {SAVE_RATE / 1e6:.0f} MB/s: nobody has measured one")
            save = facts.checkpoint / SAVE_RATE
        seconds = max(LEAST_GRACE, SAVE_MARGIN * save + facts.step_high)
        if seconds > 86400:
            raise BadInput(f"--save: got {format_duration(save)}, expected less than a day")
        self.why["grace"] = f"{SAVE_MARGIN} × save + step, at least {format_duration(LEAST_GRACE)}"
        return math.ceil(seconds)

    def _price_cap(self, gpus: int) -> float | None:
        if self.engine in ("slurm", "k8s"):
            return None
        if self.wish.price_cap is not None:
            from loadsheet.money.price import parse_price

            self._given("price_cap")
            found = parse_price(self.wish.price_cap)
            if found.currency not in ("", "USD", "$") or found.amount <= 0:
                raise BadInput(
                    f"--price-cap: got {shorten(self.wish.price_cap)}, expected US dollars an hour, above 0",
                    f"{self.engine} compares with its catalogue, which is in USD",
                )
            return found.amount
        facts = self.facts
        if facts.price is not None and facts.currency in ("USD", "$") and gpus:
            self._default("price_cap", f"the sheet's price, {gpus} × {facts.price:g} USD")
            return round(facts.price * gpus, 6)
        self.notes.append(
            "no price per hour is capped: give --price-cap, or sign the sheet with a price in USD"
        )
        return None

    def _place(self) -> tuple[str | None, str | None, str | None]:
        """Mirror, volume, and where the volume is in the job."""
        mirror, volume = self.wish.mirror, self.wish.volume
        if mirror is not None and volume is not None:
            raise BadInput(
                "--volume: got a mirror and a volume, expected one of them",
                "a mirror brings a run to an empty disk; a volume is the disk",
            )
        if mirror is not None:
            self._given("mirror")
            return mirror_place(mirror, self.engine), None, None
        if volume is None:
            if self.engine == "slurm":
                self._default("workdir" if self.wish.workdir is None else "mirror", "none: see the notes")
                self.notes.append(
                    "checkpoints stay below the working directory: it must be on a disk that every node sees"
                )
                return None, None, None
            raise BadInput(
                "--mirror: got neither a mirror nor a volume, expected one of them",
                f"a machine of {self.engine} begins with an empty disk: --mirror s3://BUCKET/FOLDER, or --volume NAME",
            )
        refuse_bucket(volume)
        self._given("volume")
        if self.engine == "slurm":
            folder = clean_path(volume, "--volume")
            refuse_mounted_bucket(folder, "--volume", self.machine)
            return None, volume, folder
        name, colon, path = volume.partition(":")
        if not re.fullmatch(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?", name):
            raise BadInput(
                f"--volume: got {shorten(volume)}, expected NAME or NAME:/PATH of a volume that {self.engine} has"
            )
        if not colon:
            self._default("volume_path", f"mounted at {VOLUME_AT}")
        return None, name, clean_path(path, "--volume") if colon else VOLUME_AT

    def _image(self) -> str | None:
        image = self.wish.image
        if self.engine == "slurm":
            if image is not None:
                raise BadInput(
                    "--image: got one for Slurm, expected none", "sites start containers in their own ways"
                )
            return None
        if image is None:
            if self.engine == "k8s":
                raise BadInput(
                    "--image: got none, expected the container to train in",
                    "for example --image pytorch/pytorch:2.9.0-cuda12.9-cudnn9-runtime",
                )
            return None
        self._given("image")
        return token(image.removeprefix("docker:"), "--image")

    def _workdir(self) -> str | None:
        workdir = self.wish.workdir
        if workdir is None:
            return None
        self._given("workdir")
        return clean_path(workdir, "--workdir", absolute=self.engine in ("k8s", "dstack"))

    def _region(self) -> tuple[str, str | None] | None:
        if self.wish.region is None:
            return None
        self._given("region")
        cloud, region, checked = check_region(self.wish.region)
        if not checked:
            self.notes.append(f"whether {cloud} exists and has the region could not be checked here")
        return cloud, region

    def _spot(self, grace: int) -> bool | None:
        if self.engine in ("slurm", "k8s"):
            return None
        if self.wish.spot is not None:
            self._given("spot")
            spot = self.wish.spot
        else:
            spot = self.facts.interrupted
            self._default(
                "spot", "the sheet counts interruptions" if spot else "the sheet counts no interruptions"
            )
        short = [f"{name} {seconds:.0f} s" for name, seconds in _NOTICES if grace > seconds]
        if spot and short:
            self.notes.append(
                f"a save and a step may take {grace} s, longer than the notice ({', '.join(short)}): then what counts "
                "is the last checkpoint before it"
            )
        return spot


def _up(amount: float, step: int) -> int:
    return int(ceil_div(math.ceil(amount), step)) * step


def _whole_mib(size: int, what: str) -> int:
    if size < 1 << 20:
        raise BadInput(f"{what}: got {size} bytes, expected at least 1 MiB", "write the unit: 32GiB")
    return size

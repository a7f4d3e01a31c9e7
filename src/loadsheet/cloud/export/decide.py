"""Decides what the job asks for, entry after entry, and notes of each where it comes from.

Its amounts (processors, memory, disk, time) stand in `amounts`.
"""

from __future__ import annotations

import re
from typing import Final

from loadsheet.cloud.aws.gpu_types import sold_by
from loadsheet.cloud.export.amounts import Amounts
from loadsheet.cloud.export.facts import Facts
from loadsheet.cloud.export.gpu_names import ANY, check_region, given_name, gpu_name, spelled_alike, vendor
from loadsheet.cloud.export.job import ENGINES, VOLUME_AT, DoesNotFit, Job, Wish
from loadsheet.cloud.export.k8s import parse_toleration
from loadsheet.cloud.export.places import (
    clean_path,
    label,
    mirror_place,
    mount_point,
    refuse_bucket,
    refuse_mounted_bucket,
    subdomain,
)
from loadsheet.cloud.export.words import check_name, check_setup, clean, parse_command, slug, token
from loadsheet.cloud.machine import Machine
from loadsheet.cloud.secrets import Scanner
from loadsheet.errors import BadInput, UnknownGpu, UnknownKey, shorten
from loadsheet.units import parse_count

MOST_GPUS: Final = 8  # one machine
_NOTICES: Final = (("AWS spot", 120.0), ("Google spot", 30.0), ("Azure spot", 30.0))


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


class _Maker(Amounts):
    """Decides entry after entry, and writes down where each comes from."""

    def job(self) -> Job:
        wish, facts = self.wish, self.facts
        command = parse_command(wish.command)
        self.given("command")
        setup = check_setup(wish.setup)
        gpus = self._gpus()
        spelled = self._spelled(gpus)
        mirror, volume, path = self._place()
        grace = self.grace()
        cpus = self.cpus(gpus)
        shm = self.shm(cpus)
        region = self._region(gpus)
        if facts.verdict != "fits":
            self.notes.append(f"the sheet's verdict is `{facts.verdict}`, not `fits`")
        if facts.sha256 is None:
            self.notes.append("the sheet is not signed: nothing shows whether it was edited")
        if facts.gpus > 1:
            self.notes.append(
                f"`ls.Run` takes one process only: `torchrun` with several (WORLD_SIZE above 1) ends with an error; "
                f"the sheet's figures are those of {facts.gpus} replicas"
            )
        return Job(
            engine=self.engine,
            name=self._name(),
            command=command,
            setup=setup,
            gpus=gpus,
            gpu_name=spelled,
            cpus=cpus,
            ram=self.ram(shm),
            shm=shm,
            disk=self.disk(),
            time=self.time(grace),
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
            tolerations=tuple(map(parse_toleration, wish.toleration)),
            service_account=None
            if wish.service_account is None
            else subdomain(wish.service_account, "--service-account"),
            vendor=self._vendor(),
            why=self.why,
            defaulted=self.defaulted,
            notes=self.notes,
        )

    def _name(self) -> str:
        if self.wish.name is not None:
            self.given("name")
            return check_name(self.wish.name)
        self.default("name", "of the model and the task")
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
            self.given("gpus")
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
            self.given("gpu_name")
            if wish.gpu_name == ANY and engine in ("slurm", "k8s"):
                self.notes.append("any GPU will do for the engine: whether it is the sheet's, nothing checks")
                return None
            return given_name(engine, wish.gpu_name)
        if engine == "slurm":
            self.default("gpu_name", "every site names its GPUs itself")
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

    def _price_cap(self, gpus: int) -> float | None:
        if self.engine in ("slurm", "k8s"):
            return None
        if self.wish.price_cap is not None:
            from loadsheet.money.price import parse_price

            self.given("price_cap")
            found = parse_price(self.wish.price_cap)
            if found.currency not in ("", "USD", "$") or found.amount <= 0:
                raise BadInput(
                    f"--price-cap: got {shorten(self.wish.price_cap)}, expected US dollars an hour, above 0",
                    f"{self.engine} compares with its catalogue, which is in USD",
                )
            return found.amount
        facts = self.facts
        if facts.price is not None and facts.currency in ("USD", "$") and gpus:
            self.default("price_cap", f"the sheet's price, {gpus} × {facts.price:g} USD")
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
            self.given("mirror")
            return mirror_place(mirror, self.engine), None, None
        if volume is None:
            if self.engine == "slurm":
                self.default("workdir" if self.wish.workdir is None else "mirror", "none: see the notes")
                self.notes.append(
                    "checkpoints stay below the working directory: it must be on a disk that every node sees"
                )
                return None, None, None
            raise BadInput(
                "--mirror: got neither a mirror nor a volume, expected one of them",
                f"a machine of {self.engine} begins with an empty disk: --mirror s3://BUCKET/FOLDER, or --volume NAME",
            )
        refuse_bucket(volume)
        self.given("volume")
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
            self.default("volume_path", f"mounted at {VOLUME_AT}")
        return None, name, mount_point(path, volume) if colon else VOLUME_AT

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
        self.given("image")
        return token(image.removeprefix("docker:"), "--image")

    def _workdir(self) -> str | None:
        workdir = self.wish.workdir
        if workdir is None:
            return None
        self.given("workdir")
        return clean_path(workdir, "--workdir", absolute=self.engine in ("k8s", "dstack"))

    def _region(self, gpus: int) -> tuple[str, str | None] | None:
        if self.wish.region is None:
            return None
        self.given("region")
        cloud, region, checked = check_region(self.wish.region)
        if not checked:
            self.notes.append(f"whether {cloud} exists and has the region could not be checked here")
        counts = sold_by(self.facts.gpu) if cloud == "aws" and self.wish.gpu_name is None else []
        if gpus and counts and gpus not in counts:
            some = " or ".join(map(str, counts))
            self.notes.append(
                f"no machine of AWS has {gpus} × {self.facts.gpu}, only {some} of them, as far as our table goes: "
                "nothing would be found there; plan for as many, or name another cloud"
            )
        return cloud, region

    def _spot(self, grace: int) -> bool | None:
        if self.engine in ("slurm", "k8s"):
            return None
        if self.wish.spot is not None:
            self.given("spot")
            spot = self.wish.spot
        else:
            spot = self.facts.interrupted
            self.default(
                "spot", "the sheet counts interruptions" if spot else "the sheet counts no interruptions"
            )
        short = [f"{name} {seconds:.0f} s" for name, seconds in _NOTICES if grace > seconds]
        if spot and short:
            self.notes.append(
                f"a save and a step may take {grace} s, longer than the notice ({', '.join(short)}): then what counts "
                "is the last checkpoint before it"
            )
        return spot

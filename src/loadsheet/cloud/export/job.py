"""What a user may say of a job, and what a job asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from loadsheet.errors import LoadsheetError

ENGINES: Final = ("sky", "dstack", "slurm", "k8s")
KEPT: Final = 2  # checkpoints that stay, as `Run.steps` keeps them
#: of a start that only says "start me again", on engines that count nothing themselves
RESTARTS: Final = 20
VOLUME_AT: Final = "/checkpoints"


class DoesNotFit(LoadsheetError):
    """A sheet that says that it does not fit is not exported unless that is asked for."""

    exit_code = 1


@dataclass(frozen=True)
class Wish:
    """What the user said, as text; None where nothing."""

    command: str
    setup: tuple[str, ...] = ()
    name: str | None = None
    gpus: str | None = None
    gpu_name: str | None = None
    cpus: str | None = None
    ram: str | None = None
    shm: str | None = None
    disk: str | None = None
    time: str | None = None
    save: str | None = None
    price_cap: str | None = None
    mirror: str | None = None
    volume: str | None = None
    image: str | None = None
    workdir: str | None = None
    region: str | None = None
    spot: bool | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    namespace: str | None = None
    queue: str | None = None
    toleration: tuple[str, ...] = ()
    service_account: str | None = None
    export_anyway: bool = False


@dataclass
class Job:
    """What is written down, base units; `why` says of each entry where it comes from."""

    engine: str
    name: str
    command: tuple[str, ...]
    setup: tuple[str, ...]
    gpus: int
    gpu_name: str | None
    cpus: int
    ram: int
    disk: int
    time: int  # seconds
    grace: int  # seconds
    price_cap: float | None  # per hour, of the whole machine
    mirror: str | None
    volume: str | None
    volume_path: str | None
    image: str | None
    workdir: str | None
    region: tuple[str, str | None] | None
    spot: bool | None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    namespace: str | None = None
    queue: str | None = None
    tolerations: tuple[dict[str, str], ...] = ()
    service_account: str | None = None
    shm: int | None = None  # bytes of /dev/shm, a part of `ram`; None: as the engine has it
    vendor: str = "nvidia"
    why: dict[str, str] = field(default_factory=dict)
    defaulted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What the script is told through its environment."""
        if self.mirror is not None:
            return {"LOADSHEET_MIRROR": self.mirror}
        return {} if self.volume_path is None else {"LOADSHEET_RUNS_ROOT": f"{self.volume_path}/runs"}

    def to_json(self) -> dict[str, Any]:
        """The entries, base units."""
        region = None if self.region is None else "/".join(part for part in self.region if part)
        return {
            "engine": self.engine, "name": self.name, "command": list(self.command), "setup": list(self.setup),
            "gpus": self.gpus, "gpu_name": self.gpu_name, "cpus": self.cpus, "ram_bytes": self.ram,
            "shm_bytes": self.shm,
            "disk_bytes": self.disk, "time_seconds": self.time, "grace_seconds": self.grace,
            "price_cap_per_hour": self.price_cap, "mirror": self.mirror, "volume": self.volume,
            "volume_path": self.volume_path, "image": self.image, "workdir": self.workdir, "region": region,
            "spot": self.spot, "partition": self.partition, "account": self.account, "qos": self.qos,
            "namespace": self.namespace, "queue": self.queue, "tolerations": list(self.tolerations),
            "service_account": self.service_account, "environment": self.environment,
            "defaulted": list(self.defaulted), "why": dict(self.why), "notes": list(self.notes),
        }  # fmt: skip

"""plan(model, gpu, task, ...) → Sheet: memory, compute, money, verdict; remedies and capacity on demand."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from loadsheet.arch.checked import CHECKED
from loadsheet.arch.families import contradicted
from loadsheet.arch.layers.base import Embedding
from loadsheet.arch.model import Model, Taped
from loadsheet.arch.read import model as find_model
from loadsheet.errors import BadInput, UnknownKey, shorten
from loadsheet.hardware import Gpu
from loadsheet.hardware import gpu as find_gpu
from loadsheet.ledger import Estimate
from loadsheet.memory.serving import serves_file, serving_memory
from loadsheet.memory.terms import Instant, MemoryAccount
from loadsheet.memory.training import tape_training, training_memory
from loadsheet.memory.whole import lacks, require_whole
from loadsheet.money.price import Price, parse_price
from loadsheet.recipe import Recipe, Serving, Training, on_device, recipe, whole
from loadsheet.sheet.calibration import Calibration, Runs, choose, read_calibration
from loadsheet.sheet.compute import Compute, serving_compute, training_compute, training_peak
from loadsheet.sheet.money import Money, money
from loadsheet.sheet.software import remarks
from loadsheet.units import GB, GIB

if TYPE_CHECKING:
    from loadsheet.sheet.spot import Interruptions

SCHEMA = 1
#: options of other tools' users that mean a split over GPUs; they are not modelled yet and must not pass
SHARDING = frozenset(
    {"tp", "pp", "cp", "ep", "dp", "zero", "fsdp", "sharding", "tensor_parallel", "pipeline_parallel"}
)


@dataclass(frozen=True, slots=True)
class Memory:
    """The account of memory against what the GPU has."""

    account: MemoryAccount
    capacity_bytes: int
    usable_bytes: int

    def __repr__(self) -> str:
        return (
            f"<Memory peak {self.peak.mid / GIB:.2f} GiB of {self.usable_bytes / GIB:.2f}, {self.worst.name}>"
        )

    @property
    def peak(self) -> Estimate:
        """What the device must hold at the worst instant, the context included."""
        return self.account.peak

    @property
    def allocated(self) -> Estimate:
        """Tensors at the worst instant."""
        return self.account.allocated

    @property
    def reserved(self) -> Estimate:
        """What the framework's allocator holds."""
        return self.account.reserved

    @property
    def instants(self) -> tuple[Instant, ...]:
        """Every instant, each with its items."""
        return self.account.instants

    @property
    def worst(self) -> Instant:
        """The instant that needs most."""
        return self.account.worst

    @property
    def model_states(self) -> Any:
        """Bytes of weights, gradients, master copy and optimizer states (serving: weights)."""
        return self.account.model_states.estimate.mid

    def to_json(self) -> dict[str, Any]:
        """The JSON of the design."""
        return {
            "capacity_bytes": self.capacity_bytes,
            "usable_bytes": self.usable_bytes,
            "model_states_bytes": self.model_states,
            "peak_bytes": self.peak.to_json(),
            "allocated_bytes": self.allocated.to_json(),
            "reserved_bytes": self.reserved.to_json(),
            "worst_instant": self.worst.name,
            "instants": [i.to_json() for i in self.instants],
        }


def verdict_of(peak: Estimate, usable: int) -> str:
    """`fits` if even the high estimate does, `does_not_fit` if not even the low one does, else `tight`."""
    if peak.high <= usable:
        return "fits"
    return "does_not_fit" if peak.low > usable else "tight"


class Sheet:
    """The whole answer. `remedies` and `capacity` plan again, so they are made when asked for."""

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        gpu: Gpu,
        gpus: int,
        price: Price | None,
        options: Mapping[str, Any],
        closed: Runs | None = None,
        interruptions: Interruptions | None = None,
        gpus_defaulted: bool = False,
    ) -> None:
        self.model, self.recipe, self.gpu, self.gpus, self.price = model, recipe, gpu, gpus, price
        self.gpus_defaulted = gpus_defaulted
        self.options = dict(options)
        self.closed, self.interruptions = closed, interruptions
        self.calibration = self._calibrated(gpu)
        self._taped: Taped | None = None
        if isinstance(recipe, Training):
            if self.calibration is not None:
                self.recipe = replace(recipe, defaulted=recipe.defaulted - {"mfu"})
            self._taped = tape_training(model, recipe)
            account = training_memory(model, recipe, gpus, self._taped)
        else:
            account = serving_memory(model, recipe)
        self.compute: Compute = self._compute(recipe, gpu, self.calibration)
        marketed = gpu.memory_usable_bytes if gpu.own else gpu.memory_marketed_gb * GB
        if marketed < gpu.memory_usable_bytes:  # sheets print GB and mean GiB
            marketed = gpu.memory_marketed_gb * GIB
        self.memory = Memory(account, marketed, gpu.memory_usable_bytes)
        self.verdict = verdict_of(self.memory.peak, gpu.memory_usable_bytes)
        self.money: Money | None = (
            None if price is None else money(self.compute, price, gpus, interruptions, recipe.tokens)
        )

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know before believing the sheet."""
        found: list[str] = []
        limit = self.model.max_length
        if limit is not None and self.recipe.seq > limit:
            found.append(
                f"seq: {self.recipe.seq:,} is beyond the {limit:,} tokens that {self.model.name} was made for"
            )
        stored = self.model.stored
        if fault := lacks(self.model):
            found.append(f"the file is not the whole model ({fault}): planned as its config.json says")
        elif (
            stored is not None
            and stored.complete
            and stored.format == "safetensors"
            and stored.params != self.model.params
        ):
            found.append(
                f"the file holds {stored.params:,} elements, its config.json describes {self.model.params:,} parameters"
            )
        config = self.model.config or {}
        if (other := contradicted(config)) is not None:
            found.append(
                f"config.architectures: got {shorten(config['architectures'][0])}, the class of `{other}`; "
                f"planned as its model_type `{self.model.model_type}` says"
            )
        published = config.get("quantization_config")
        if (
            isinstance(self.recipe, Serving)
            and isinstance(published, dict)
            and "weights" in self.recipe.defaulted
            and not serves_file(self.model, self.recipe)
        ):
            method = shorten(published.get("quant_method", "a quantised format"))
            found.append(
                f"weights: the published checkpoint is quantised ({method}); planned in bf16, give --weights"
            )
        if isinstance(self.recipe, Training) and self.model.model_type not in CHECKED:
            found.append(
                f"memory: activations of `{self.model.model_type}` were never held against PyTorch, only its "
                "parameters: `loadsheet verify` compares"
            )
        if self.closed is not None and self.calibration is None:
            found.append(
                f"calibration: {self.closed.file} has no closed run of task {self.recipe.task} in "
                f"{self.compute.peak_dtype} on {self.gpu.id}: the MFU is the default"
            )
        found += remarks(self.gpu, self.recipe)
        return (*found, *self.compute.notes, *self.memory.account.notes)

    @cached_property
    def remedies(self) -> tuple[Any, ...]:
        """Changes that make it fit, each planned again; none if it fits."""
        from loadsheet.sheet.remedies import remedies

        return () if self.verdict == "fits" else remedies(self)

    @cached_property
    def capacity(self) -> Any:
        """The largest batch, the longest sequence and the largest presets that this GPU holds."""
        from loadsheet.sheet.capacity import capacity

        return capacity(self)

    @cached_property
    def checkpoint_bytes(self) -> dict[str, int]:
        """Bytes on disk: the weights alone, and what a resume needs (weights, master copy, optimizer states)."""
        from loadsheet.sheet.capacity import checkpoint_bytes

        return checkpoint_bytes(self)

    def changed(
        self, *, gpu: str | os.PathLike[str] | Gpu | None = None, gpus: int | None = None, **options: Any
    ) -> Sheet:
        """The same question with some options changed (the price is kept, defaults stay defaults)."""
        return plan(
            self.model,
            self.gpu if gpu is None else gpu,
            self._given_gpus if gpus is None else gpus,
            price=self.price,
            calibration=self.closed,
            interruptions=self.interruptions,
            **{**self.options, **options},
        )

    def compute_on(self, gpu: Gpu) -> Compute:
        """FLOPs and time of the same recipe on another GPU of the same maker; BadInput if it has no rate for it."""
        return self._compute(self.recipe, gpu, self._calibrated(gpu))

    def _calibrated(self, gpu: Gpu) -> Calibration | None:
        if self.closed is None or not isinstance(self.recipe, Training):
            return None
        return _calibrate(self.closed, self.model, self.recipe, gpu)

    def _compute(self, made: Recipe, gpu: Gpu, calibration: Calibration | None) -> Compute:
        if isinstance(made, Training):
            assert self._taped is not None
            measured = None if calibration is None else calibration.mfu
            return training_compute(self.model, made, gpu, self.gpus, self._taped, measured)
        return serving_compute(self.model, made, gpu, self.gpus)

    @property
    def _given_gpus(self) -> int | None:
        return None if self.gpus_defaulted else self.gpus

    def to_dict(self, *, full: bool = True) -> dict[str, Any]:
        """The JSON of the design as a dict; `full=False` leaves out remedies and capacity."""
        m = self.model
        out: dict[str, Any] = {
            "schema": SCHEMA,
            "model": {
                "name": m.name, "model_type": m.model_type, "params": m.params, "active_params": m.active_params,
                "matmul_params": m.matmul_params, "split": m.split, "tied": m.tied, "max_length": m.max_length,
                "source": m.source, "defaulted": list(m.defaulted),
            },
            "recipe": self._recipe_json(),
            "cluster": {
                "gpu": self.gpu.id, "gpus": self.gpus, "defaulted": ["gpus"] if self.gpus_defaulted else [],
                **({"own": self.gpu.to_json()} if self.gpu.own else {}),
            },
            "memory": self.memory.to_json(),
            "compute": self.compute.to_json(),
            "money": None if self.money is None else self.money.to_json(),
            "verdict": self.verdict,
            "warnings": list(self.warnings),
        }  # fmt: skip
        if full:
            out["remedies"] = [r.to_json() for r in self.remedies]
            out["capacity"] = self.capacity.to_json()
            out["checkpoint_bytes"] = self.checkpoint_bytes
        return out

    def _recipe_json(self) -> dict[str, Any]:
        out = self.recipe.to_json()
        if isinstance(self.recipe, Serving) and serves_file(self.model, self.recipe):
            out["weights"] = "as stored"  # the format is the file's, neither asked for nor a default
            out["defaulted"] = [name for name in out["defaulted"] if name != "weights"]
        return out

    def to_json(self, *, full: bool = True) -> str:
        """The sheet as JSON text; numbers in bytes, FLOP and seconds."""
        return json.dumps(self.to_dict(full=full), indent=1, ensure_ascii=False, allow_nan=False)

    def text(self, *, width: int = 100, explain: bool = False) -> str:
        """The sheet as plain text."""
        from loadsheet.sheet.view import render

        return render(self, width=width, explain=explain)

    def plot(self, path: str | None = None) -> Any:
        """Bars of every instant against what the GPU has, as a matplotlib figure; saved if a path is given.

        Needs the `plot` extra; LoadsheetError says so if it is not there.
        """
        from loadsheet.sheet.plot import draw

        return draw(self, path)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Sheet {self.model.name} {self.recipe.task} on {self.gpus} × {self.gpu.id}: {self.verdict}>"


def learned_positions(model: Model) -> int | None:
    """Tokens for which a learned table has positions, beyond which the model cannot run; None without a table.

    Rotary and linear biases have a value for every position, so there the length is only a warning.
    """
    for name, layer in model.extras:
        table = name.rpartition(".")[2]
        if isinstance(layer, Embedding) and ("pos" in table or table == "wpe"):
            return model.max_length
    return None


def _check_positions(model: Model, seq: int) -> None:
    rows = learned_positions(model)
    if rows is not None and seq > rows:
        raise BadInput(
            f"seq: got {seq:,}, expected at most {rows:,}: {model.name} looks positions up in a learned table of "
            "that length",
            "it cannot run on longer sequences; a table of your own goes into its config.json",
        )


def _calibrate(closed: Runs, model: Model, recipe: Training, gpu: Gpu) -> Calibration | None:
    """What the user's closed runs say about this question; BadInput if an MFU is given as well."""
    if recipe.mfu is not None:
        raise BadInput(
            f"mfu: got {recipe.mfu:g} and a calibration, expected one of them", "leave one of them out"
        )
    peak, dtype, _ = training_peak(recipe, gpu)
    return choose(
        closed,
        gpu=gpu.id,
        task=recipe.task,
        peak_dtype=dtype,
        peak=peak,
        model=model.name,
        params=model.params,
    )


def plan(
    model: Any,
    gpu: str | os.PathLike[str] | Gpu,
    gpus: int | None = None,
    task: str | None = None,
    *,
    price: Any = None,
    calibration: str | os.PathLike[str] | Runs | None = None,
    interruptions: Interruptions | None = None,
    **options: Any,
) -> Sheet:
    """The sheet for a model (preset, path, config dict or Model) on a GPU.

    `gpu` is an id, or a JSON file that describes hardware of one's own. `batch` is per GPU, `seq` in
    tokens; `gpus` > 1 means as many replicas (data parallel), left out it is 1. Options are those of `Training` and
    `Serving`; what is left out takes its default and is listed in `recipe.defaulted`. `price` is per GPU
    hour. `calibration` is a file of closed runs, whose MFU takes the place of the default.
    `interruptions` adds what a whole training run takes and costs on machines that are taken away.

    Raises UnknownModel, UnknownGpu, UnknownKey with the nearest names; BadInput for senseless values.
    """
    for name, value in options.items():
        if name in SHARDING:
            raise BadInput(
                f"{name}: got {shorten(value)}, expected no sharding: only replicas are modelled so far",
                "leave it out; remedies print the floor 16·N/n of model states split over n GPUs",
            )
    if "max_length" in options:  # the model's own, not an option
        raise UnknownKey("max_length", [f.name for f in fields(Training)], "option")
    hardware = find_gpu(gpu)
    count = 1 if gpus is None else whole("gpus", gpus, maximum=1 << 20)
    found = find_model(model)
    money_per_hour = None if price is None else parse_price(price)
    made = on_device(recipe(task=task, max_length=found.max_length, **options), hardware.device)
    _check_positions(found, made.seq)
    if isinstance(made, Serving) and serves_file(found, made):
        require_whole(found)
    closed = None if calibration is None else read_calibration(calibration)
    if closed is not None and isinstance(made, Serving):
        raise BadInput(
            f"calibration: got {shorten(closed.file)}, expected only with a task that trains, not `serve`",
            "closed runs say how fast training is",
        )
    if interruptions is not None and (isinstance(made, Serving) or money_per_hour is None):
        got = "a task that serves" if isinstance(made, Serving) else "no price"
        raise BadInput(
            f"mtbf: got {got}, expected a training run and a price",
            "`loadsheet odds --work 24h` counts without a model",
        )
    given = {k: v for k, v in {"task": task, **options}.items() if v is not None}
    return Sheet(found, made, hardware, count, money_per_hour, given, closed, interruptions, gpus is None)

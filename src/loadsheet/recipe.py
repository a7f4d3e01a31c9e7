"""What one intends to do: train, fine-tune with LoRA or QLoRA, or serve. Every default says that it is one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from operator import index
from pathlib import Path
from typing import Any, Literal

from loadsheet.arch.work import DTYPE_BYTES, Execution
from loadsheet.errors import BadInput, UnknownKey, shorten

TASKS = ("train", "lora", "qlora", "serve")
MAX_SIZE = 1 << 40  # a batch or length beyond this is a typing error


@cache
def tables() -> dict[str, Any]:
    """The data file: precisions, optimizers, stacks, number formats, overheads, each with its source."""
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "recipes.json").read_text(encoding="utf-8"))
    return loaded


def pick(table: str, name: str, kind: str) -> dict[str, Any]:
    """One entry of a table of the data file; UnknownKey with the nearest names if there is none."""
    entries = tables()[table]
    _named(name, entries, kind)
    entry: dict[str, Any] = entries[name]
    return entry


def _named(name: object, known: Iterable[str], kind: str) -> str:
    """A name that is known; UnknownKey for any other, and for what is no string at all."""
    if not isinstance(name, str) or name not in known:
        raise UnknownKey(name, known, kind)
    return name


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes per parameter of each copy that mixed-precision training keeps."""

    name: str
    weights: str
    gradients: str
    master: str | None
    states: str
    autocast: bool
    source: str
    fp8: bool = False

    @property
    def compute(self) -> str:
        """The dtype of matrix products."""
        return "bf16" if self.autocast else self.weights


def precision(name: str) -> Precision:
    """A precision by name; UnknownKey if there is none."""
    return _precision(_named(name, tables()["precisions"], "precision"))


@cache
def _precision(name: str) -> Precision:
    entry = pick("precisions", name, "precision")
    return Precision(
        name,
        entry["weights"],
        entry["gradients"],
        entry["master"],
        entry["states"],
        entry["autocast"],
        entry["source"],
        entry.get("fp8", False),
    )


@dataclass(frozen=True, slots=True)
class Training:
    """A training or fine-tuning step. `batch` is per GPU; sizes may be arrays."""

    task: str = "train"
    batch: Any = 1
    seq: Any = 2048
    accumulation: Any = 1
    precision: str = "mixed"
    optimizer: str = "adamw"
    optimizer_form: str = "fused"
    stack: str = "torch"
    execution: Execution = field(default_factory=Execution)
    keep_gradients: bool = False
    dropout: bool = True
    rank: int = 16
    targets: frozenset[str] | None = None
    lora_dropout: float = 0.0
    adapters: str = "fp32"
    double_quant: bool = True
    upcast: bool = True
    tokens: int | None = None
    mfu: float | None = None
    defaulted: frozenset[str] = frozenset()

    @property
    def gradients_live_in_forward(self) -> bool:
        """Whether gradients are there before the backward that fills them: accumulated or kept."""
        return self.keep_gradients or bool(_any_above(self.accumulation, 1))

    def to_json(self) -> dict[str, Any]:
        """The recipe as the JSON of the design."""
        return _to_json(self)


@dataclass(frozen=True, slots=True)
class Serving:
    """Serving `batch` sequences at once, each up to `seq` tokens long."""

    task: str = "serve"
    batch: Any = 1
    seq: Any = 2048
    weights: str = "bf16"
    kv: str = "bf16"
    group: int = 128
    prefill_chunk: int = 8192
    execution: Execution = field(default_factory=Execution)
    tokens: int | None = None
    mfu: float | None = None
    defaulted: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """The recipe as the JSON of the design."""
        return _to_json(self)


Recipe = Training | Serving


def _any_above(value: Any, limit: int) -> bool:
    return bool((value > limit).any()) if hasattr(value, "any") else value > limit


def _to_json(recipe: Recipe) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for f in fields(recipe):
        value = getattr(recipe, f.name)
        if f.name == "execution":
            out["execution"] = {e.name: getattr(value, e.name) for e in fields(value)}
        elif isinstance(value, frozenset):
            out[f.name] = sorted(value)
        else:
            out[f.name] = value
    return out


def whole(name: str, value: Any, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
    """A whole number in a range, of any integer type; BadInput otherwise."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not minimum <= number <= maximum:
        raise BadInput(f"{name}: got {shorten(value)}, expected a whole number from {minimum} to {maximum:,}")
    return number


def share(name: str, value: Any, minimum: float = 0.0, below: float = 2.0) -> float:
    """A number from `minimum` to 1 (and under `below`); BadInput otherwise."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not minimum <= value <= 1 or value >= below:
        upper = "to below 1" if below <= 1 else "to 1"
        raise BadInput(f"{name}: got {shorten(value)}, expected a number from {minimum:g} {upper}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """True or False; BadInput for anything else, as the text "no" would count as true."""
    if not isinstance(value, bool):
        raise BadInput(f"{name}: got {shorten(value)}, expected True or False")
    return value


def module_names(value: Any) -> frozenset[str]:
    """Names from a collection of them, or from one string with commas; BadInput if there is none."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in (*names,)):
        raise BadInput(f"targets: got {shorten(value)}, expected module names", _TARGETS)
    found = frozenset(n.strip() for n in names if n.strip())
    if not found:
        raise BadInput("targets: got nothing, expected module names", _TARGETS)
    return found


_TARGETS = "such as q_proj,v_proj; leave it out for all linear layers of the blocks"
_MIN_MFU = 1e-4  # less than one part in ten thousand of the peak is a typing error


#: options that belong to one kind of task only
ONLY_SERVE = frozenset({"weights", "kv", "group", "prefill_chunk"})
ONLY_ADAPT = frozenset({"rank", "targets", "lora_dropout", "adapters"})
ONLY_QLORA = frozenset({"double_quant", "upcast"})
EXECUTION = {"attention": ("eager", "sdpa", "flash"), "kernels": ("eager", "fused"),
             "loss": ("eager", "chunked", "fused"), "recompute": ("none", "selective", "full")}  # fmt: skip
TRAINING = frozenset(EXECUTION) | {
    "accumulation", "precision", "optimizer", "optimizer_form", "stack", "repeat_kv", "masked", "keep_gradients",
    "dropout", "mfu",
}  # fmt: skip
#: options of every task
COMMON = frozenset({"batch", "seq", "tokens"})


def recipe(*, task: str | None = None, max_length: int | None = None, **options: Any) -> Recipe:
    """A recipe from the options that were given; what is missing or None takes its default and says so.

    Raises BadInput for senseless values and for options that the task does not know, UnknownKey for
    unknown names.
    """
    defaults = tables()["defaults"]
    given = {k: v for k, v in options.items() if v is not None}
    defaulted = {"task"} if task is None else set()
    task = _named(defaults["task"] if task is None else task, TASKS, "task")
    _check_belongs(task, given)

    def take(name: str, default: Any, *, shown: bool = True) -> Any:
        if name in given:
            return given.pop(name)
        if shown:
            defaulted.add(name)
        return default

    batch = whole("batch", take("batch", defaults["batch"]))
    limit = defaults["sequence_limit"]
    seq = whole("seq", take("seq", min(max_length or limit, limit)))
    tokens = given.pop("tokens", None)
    if tokens is not None:
        tokens = whole("tokens", tokens, maximum=10**18)
    mfu = given.pop("mfu", None)
    mfu = share("mfu", mfu, minimum=_MIN_MFU) if mfu is not None else None
    if mfu is None and task != "serve":
        defaulted.add("mfu")
    common = {"batch": batch, "seq": seq, "tokens": tokens, "mfu": mfu}
    if task == "serve":
        weights, kv = take("weights", defaults["weights"]), take("kv", defaults["kv"])
        pick("formats", weights, "weight format")
        pick("kv_formats", kv, "KV cache format")
        if "group" in given and weights != "int4":
            raise BadInput(
                f"group: got {shorten(given['group'])}, expected only with weights `int4`, not `{weights}`"
            )
        made: Recipe = Serving(
            **common,
            weights=weights,
            kv=kv,
            group=whole("group", take("group", defaults["int4_group"]), maximum=1 << 20),
            prefill_chunk=whole("prefill_chunk", take("prefill_chunk", defaults["prefill_chunk"])),
        )
    else:
        made = _training(task, common, take, defaults)
    return replace(made, defaulted=frozenset(defaulted - _irrelevant(made)))


def on_device(made: Recipe, device: Literal["cuda", "cpu"]) -> Recipe:
    """The recipe as it is carried out on "cuda" or "cpu"."""
    if made.execution.device == device:
        return made
    return replace(made, execution=replace(made.execution, device=device))


def _irrelevant(made: Recipe) -> frozenset[str]:
    """Defaults that the recipe never looks at, and so need not be shown."""
    if isinstance(made, Serving):
        return frozenset() if made.weights == "int4" else frozenset({"group"})
    hidden = frozenset() if made.task in ("lora", "qlora") else ONLY_ADAPT
    return hidden | (frozenset() if made.task == "qlora" else ONLY_QLORA)


def _check_belongs(task: str, given: dict[str, Any]) -> None:
    """UnknownKey for what is no option at all, BadInput for one of another task."""
    for name, value in given.items():
        if name in COMMON:
            continue
        tasks: tuple[str, ...]
        if name in ONLY_SERVE:
            tasks = ("serve",)
        elif name in ONLY_QLORA:
            tasks = ("qlora",)
        elif name in ONLY_ADAPT:
            tasks = ("lora", "qlora")
        elif name in TRAINING:
            tasks = ("train", "lora", "qlora")
        else:
            raise UnknownKey(name, COMMON | ONLY_SERVE | ONLY_QLORA | ONLY_ADAPT | TRAINING, "option")
        if task not in tasks:
            raise BadInput(
                f"{name}: got {shorten(value)}, expected only with task {' or '.join(tasks)}, not `{task}`",
                "leave it out, or give that task",
            )


def _training(task: str, common: dict[str, Any], take: Any, defaults: dict[str, Any]) -> Training:
    name = take("precision", defaults["precision"])
    chosen = precision(name)
    if chosen.fp8 and task != "train":
        raise BadInput(
            f"precision: got {name}, expected another with task {task}",
            "frozen weights are not kept in fp8 here; `qlora` keeps them in 4 bits",
        )
    stack = take("stack", defaults["stack"])
    entry = pick("stacks", stack, "stack")
    settings: dict[str, Any] = {}
    for key, allowed in EXECUTION.items():
        settings[key] = _named(take(key, entry.get(key, "none")), allowed, key)
    optimizer = take("optimizer", defaults["optimizer"])
    pick("optimizers", optimizer, "optimizer")
    form = take("optimizer_form", entry["form"])
    pick("optimizer_forms", form, "optimizer form")
    targets = take("targets", None)
    adapters = take("adapters", entry.get("adapters", "fp32"), shown=False)
    more = {**entry.get("execution", {}), **entry.get("execution_by_task", {}).get(task, {})}
    accumulation = whole("accumulation", take("accumulation", defaults["accumulation"]))
    if form == "in-backward" and accumulation > 1:
        raise BadInput(
            f"accumulation: got {accumulation}, expected 1 with optimizer form `in-backward`",
            "a step as soon as a gradient is made leaves nothing to accumulate",
        )
    return Training(
        task=task,
        **common,
        accumulation=accumulation,
        precision=name,
        optimizer=optimizer,
        optimizer_form=form,
        stack=stack,
        execution=Execution(
            **settings,
            repeat_kv=flag("repeat_kv", take("repeat_kv", entry["repeat_kv"])),
            autocast=chosen.autocast,
            fp8=chosen.fp8,
            upcast_logits=entry["upcast_logits"],
            masked=flag("masked", take("masked", False, shown=False)),
            **more,
        ),
        keep_gradients=flag("keep_gradients", take("keep_gradients", False)),
        dropout=flag("dropout", take("dropout", True)),
        rank=whole("rank", take("rank", defaults["rank"]), maximum=1 << 20),
        targets=module_names(targets) if targets is not None else None,
        lora_dropout=share("lora_dropout", take("lora_dropout", defaults["lora_dropout"]), below=1),
        adapters=_named(adapters, ("fp32", "bf16"), "adapter dtype"),
        double_quant=flag("double_quant", take("double_quant", True)),
        upcast=flag("upcast", take("upcast", entry.get("upcast", True))),
    )


def bytes_per_parameter(precision_name: str, optimizer: str) -> dict[str, float]:
    """Bytes per trained parameter: weights, gradients, master, states (rounded: 8-bit states are 1 byte).

    States that depend on the shapes (Adafactor, Muon) and paged ones count as 0 here.

    >>> sum(bytes_per_parameter("mixed", "adamw").values()), sum(bytes_per_parameter("fp32", "adamw").values())
    (16, 16)
    >>> sum(bytes_per_parameter("mixed", "adamw-8bit").values())
    10
    """
    p, o = precision(precision_name), pick("optimizers", optimizer, "optimizer")
    state = 1 if o.get("quantised") else DTYPE_BYTES[p.states]
    return {
        "weights": DTYPE_BYTES[p.weights],
        "gradients": DTYPE_BYTES[p.gradients],
        "master": DTYPE_BYTES[p.master] if p.master else 0,
        "states": 0 if o.get("factored") or o.get("orthogonal") or o.get("paged") else o["states"] * state,
    }

"""What one intends to do: train, fine-tune with LoRA or QLoRA, or serve. Every default says that it is one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

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
    if name not in entries:
        raise UnknownKey(name, entries, kind)
    entry: dict[str, Any] = entries[name]
    return entry


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

    @property
    def compute(self) -> str:
        """The dtype of matrix products."""
        return "bf16" if self.autocast else self.weights


@cache
def precision(name: str) -> Precision:
    """A precision by name."""
    entry = pick("precisions", name, "precision")
    return Precision(
        name,
        entry["weights"],
        entry["gradients"],
        entry["master"],
        entry["states"],
        entry["autocast"],
        entry["source"],
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
    """A whole number in a range; BadInput otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise BadInput(f"{name}: got {shorten(value)}, expected a whole number from {minimum} to {maximum:,}")
    return value


def share(name: str, value: Any) -> float:
    """A number above 0 and at most 1; BadInput otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise BadInput(f"{name}: got {shorten(value)}, expected a share above 0 and at most 1, such as 0.4")
    return float(value)


#: options that belong to one kind of task only
ONLY_SERVE = {"weights", "kv", "group", "prefill_chunk"}
ONLY_ADAPT = {"rank", "targets", "lora_dropout"}
ONLY_QLORA = {"double_quant", "upcast"}
EXECUTION = {"attention": ("eager", "sdpa", "flash"), "kernels": ("eager", "fused"),
             "loss": ("eager", "chunked", "fused"), "recompute": ("none", "selective", "full")}  # fmt: skip


def recipe(*, task: str | None = None, max_length: int | None = None, **options: Any) -> Recipe:
    """A recipe from the options that were given; what is missing or None takes its default and says so.

    Raises BadInput for senseless values and for options that the task does not know, UnknownKey for
    unknown names.
    """
    defaults = tables()["defaults"]
    given = {k: v for k, v in options.items() if v is not None}
    defaulted = set() if task else {"task"}
    task = task or defaults["task"]
    if task not in TASKS:
        raise UnknownKey(task, TASKS, "task")
    _check_belongs(task, given)

    def take(name: str, default: Any) -> Any:
        if name in given:
            return given.pop(name)
        defaulted.add(name)
        return default

    batch = whole("batch", take("batch", defaults["batch"]))
    limit = defaults["sequence_limit"]
    seq = whole("seq", take("seq", min(max_length or limit, limit)))
    tokens = given.pop("tokens", None)
    if tokens is not None:
        tokens = whole("tokens", tokens, maximum=10**18)
    mfu = given.pop("mfu", None)
    mfu = share("mfu", mfu) if mfu is not None else None
    if mfu is None:
        defaulted.add("mfu")
    common = {"batch": batch, "seq": seq, "tokens": tokens, "mfu": mfu}
    if task == "serve":
        weights, kv = take("weights", defaults["weights"]), take("kv", defaults["kv"])
        pick("formats", weights, "weight format")
        pick("kv_formats", kv, "KV cache format")
        made: Recipe = Serving(
            **common,
            weights=weights,
            kv=kv,
            group=whole("group", take("group", defaults["int4_group"]), maximum=1 << 20),
            prefill_chunk=whole("prefill_chunk", take("prefill_chunk", defaults["prefill_chunk"])),
        )
    else:
        made = _training(task, common, take, defaults)
    if given:
        raise UnknownKey(next(iter(given)), [f.name for f in fields(Training)], "option")
    return replace(made, defaulted=frozenset(defaulted - _irrelevant(task)))


def _irrelevant(task: str) -> set[str]:
    """Defaults that the task never looks at, and so need not be shown."""
    if task == "serve":
        return set()
    hidden = set() if task in ("lora", "qlora") else {*ONLY_ADAPT}
    return hidden | (set() if task == "qlora" else ONLY_QLORA)


def _check_belongs(task: str, given: dict[str, Any]) -> None:
    training = {f.name for f in fields(Training)} | set(EXECUTION) - {"batch", "seq", "tokens", "mfu"}
    common = {"batch", "seq", "tokens", "mfu"}
    for name, value in given.items():
        wrong = (
            (task == "serve" and name in training - common)
            or (task != "serve" and name in ONLY_SERVE)
            or (task == "train" and name in ONLY_ADAPT)
            or (task != "qlora" and name in ONLY_QLORA)
        )
        if wrong:
            place = (
                "serve"
                if name in ONLY_SERVE
                else "qlora"
                if name in ONLY_QLORA
                else "lora or qlora"
                if name in ONLY_ADAPT
                else "train, lora or qlora"
            )
            raise BadInput(
                f"{name}: got {shorten(value)}, expected only with task {place}, not `{task}`"
            )


def _training(task: str, common: dict[str, Any], take: Any, defaults: dict[str, Any]) -> Training:
    name = take("precision", defaults["precision"])
    chosen = precision(name)
    stack = take("stack", defaults["stack"])
    entry = pick("stacks", stack, "stack")
    settings: dict[str, Any] = {}
    for key, allowed in EXECUTION.items():
        settings[key] = take(key, entry.get(key, "none"))
        if settings[key] not in allowed:
            raise UnknownKey(settings[key], allowed, key)
    optimizer = take("optimizer", defaults["optimizer"])
    pick("optimizers", optimizer, "optimizer")
    form = take("optimizer_form", entry["form"])
    pick("optimizer_forms", form, "optimizer form")
    dropout = take("lora_dropout", defaults["lora_dropout"])
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise BadInput(f"lora_dropout: got {shorten(dropout)}, expected a number from 0 to below 1")
    targets = take("targets", None)
    return Training(
        task=task,
        **common,
        accumulation=whole("accumulation", take("accumulation", defaults["accumulation"])),
        precision=name,
        optimizer=optimizer,
        optimizer_form=form,
        stack=stack,
        execution=Execution(
            **settings,
            repeat_kv=take("repeat_kv", entry["repeat_kv"]),
            autocast=chosen.autocast,
            upcast_logits=entry["upcast_logits"],
        ),
        keep_gradients=bool(take("keep_gradients", False)),
        dropout=bool(take("dropout", True)),
        rank=whole("rank", take("rank", defaults["rank"]), maximum=1 << 20),
        targets=frozenset(targets) if targets is not None else None,
        lora_dropout=float(dropout),
        double_quant=bool(take("double_quant", True)),
        upcast=bool(take("upcast", True)),
    )


def bytes_per_parameter(precision_name: str, optimizer: str) -> dict[str, float]:
    """Bytes per trained parameter: weights, gradients, master, states (rounded: 8-bit states are 1 byte).

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
        "states": o["states"] * state,
    }

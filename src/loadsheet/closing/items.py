"""Predicted beside measured, item by item, each with the counter that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from loadsheet.closing.evidence import Evidence, number
from loadsheet.errors import BadInput
from loadsheet.ledger import Estimate
from loadsheet.money.price import Price, training_cost
from loadsheet.units import MIB, format_duration

#: a prediction that has no width counts as met within this
POINT: Final = 0.05
#: what a checkpoint holds beside weights, master copy and optimizer states
_BESIDE_SHARE: Final = 0.01
_BESIDE: Final = MIB


@dataclass(frozen=True, slots=True)
class Row:
    """One item; `why` says why a side is missing, `note` what else a reader should know."""

    name: str
    label: str  # as a person reads it
    unit: str  # "bytes", "s", "count", "per_second", "share", "money"
    predicted: Estimate | None
    measured: float | None
    basis: str
    counter: str = ""
    why: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None where one is missing or nothing was predicted."""
        if self.predicted is None or self.measured is None or not self.predicted.mid:
            return None
        return float(self.measured / self.predicted.mid)

    @property
    def inside(self) -> bool | None:
        """Whether the measured value lies in the predicted range; None where one of them is missing."""
        if self.predicted is None or self.measured is None:
            return None
        low, high = self.predicted.low, self.predicted.high
        if low == high and self.basis != "exact":
            low, high = low * (1 - POINT), high * (1 + POINT)
        return bool(low <= self.measured <= high)

    def to_json(self) -> dict[str, Any]:
        """Every field, the ratio and the verdict."""
        return {
            "name": self.name,
            "label": self.label,
            "unit": self.unit,
            "predicted": None if self.predicted is None else self.predicted.to_json(),
            "measured": self.measured,
            "ratio": self.ratio,
            "inside": self.inside,
            "basis": self.basis,
            "counter": self.counter,
            "why": self.why,
            "note": self.note,
        }


class Sides:
    """The two sides of a run: what its signed sheet says, and what it left."""

    def __init__(self, evidence: Evidence, price: Price | None = None) -> None:
        self.evidence = evidence
        signed = evidence.signed
        self.sheet: Mapping[str, Any] = signed["sheet"]
        self.intent: Mapping[str, Any] = signed["intent"]
        self.gpus = int(number(self.sheet, "cluster", "gpus") or 1)
        self.on_cpu = _text(self.sheet, "recipe", "execution", "device") == "cpu"
        self.basis = _text(self.sheet, "compute", "mfu_basis") or "assumed"
        self.signed_price = number(self.intent, "price", "amount")
        self.price = self.signed_price if price is None else price.amount
        self.billing_unit = (
            number(self.intent, "price", "billing_unit_seconds") if price is None else price.billing_seconds
        )
        self.currency = _text(self.intent, "price", "currency")
        if price is not None:
            if self.signed_price is not None and price.currency != self.currency:
                raise BadInput(
                    f"price: got {price.currency or 'no currency'}, expected {self.currency or 'none'} as in the sheet",
                    "two currencies cannot be compared: convert it first",
                )
            self.currency = price.currency

    def cost(self, seconds: Estimate) -> Estimate | None:
        """What so long costs on all GPUs, started units whole; None where no price is known."""
        if self.price is None:
            return None
        price = Price(self.price, billing_seconds=self.billing_unit)
        return training_cost(seconds * (self.gpus / 3600), price, gpus=self.gpus).estimate

    @property
    def steps(self) -> int:
        """The steps that were meant."""
        return int(number(self.intent, "steps") or 0)

    @property
    def share(self) -> float:
        """The part of the run that is complete: what was predicted for the whole is scaled by it while it runs."""
        if self.finished or not self.steps:
            return 1.0
        return min(self.evidence.completed / self.steps, 1.0)

    @property
    def finished(self) -> bool:
        """Whether the run was marked done."""
        e = self.evidence
        return e.done is not None and e.done == e.completed

    def expected(self, name: str) -> Estimate | None:
        """What the intent expects, as an estimate; None where it does not say."""
        return estimate_of(self.intent.get("expected"), name)

    def unknown(self, name: str) -> str:
        """Why something was not predicted."""
        found = self.intent.get("not_predicted")
        return (
            str(found[name])[:200] if isinstance(found, dict) and name in found else "the sheet does not say"
        )

    @property
    def step_seconds(self) -> float | None:
        """The measured step: the attempts' medians, weighted by the steps they timed."""
        return self.evidence.mean("step_seconds", "median", by=_weight)

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens of a step as they were measured, else as they were meant."""
        return self.evidence.mean("tokens_per_step", by=_weight) or number(self.intent, "tokens_per_step")

    def mfu(self, step_seconds: float | None, tokens: float | None) -> float | None:
        """Model FLOPs utilisation of a step, by the sheet's own FLOPs of a token and peak."""
        flops, peak = (number(self.sheet, "compute", n) for n in ("flops_per_token", "peak_flops_per_second"))
        if not step_seconds or tokens is None or not flops or not peak:
            return None
        return tokens * flops / (step_seconds * peak * self.gpus)


def _weight(entry: Mapping[str, Any]) -> float | None:
    return number(entry, "step_seconds", "steps") or number(entry, "steps_timed")


def estimate_of(found: object, *names: str) -> Estimate | None:
    """Low, mid and high under a path of keys; None if they are not there."""
    value: Any = found
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return _estimate(number(value, "low"), number(value, "mid"), number(value, "high"))


def _estimate(low: float | None, mid: float | None, high: float | None) -> Estimate | None:
    return None if low is None or mid is None or high is None else Estimate(low, mid, high)


def _text(found: Any, *names: str) -> str:
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""


def rows(sides: Sides) -> list[Row]:
    """Every item, in the order in which a person asks: is it the same thing, does it fit, how fast, how much."""
    return [
        *_parameters(sides),
        *_memory(sides),
        *_speed(sides),
        *_whole(sides),
        *_saving(sides),
        *_interruptions(sides),
    ]


def _parameters(sides: Sides) -> list[Row]:
    params = number(sides.sheet, "model", "params")
    predicted = None if params is None else Estimate(params, params, params)
    kept: dict[str, int] = {}
    for entry in sides.evidence.entries():
        found = entry.get("parameters")
        if isinstance(found, dict):
            kept |= {str(k): v for k, v in found.items() if type(v) is int}
    task = _text(sides.sheet, "recipe", "task")
    if task != "train":
        return [
            Row(
                "parameters",
                "parameters",
                "count",
                predicted,
                None,
                "exact",
                why=f"with task {task} adapters are added",
            )
        ]
    if not kept:
        why = "no module was kept"
        return [Row("parameters", "parameters", "count", predicted, None, "exact", why=why)]
    name = min(kept, key=lambda k: (abs(kept[k] - (params or 0)), k))
    return [
        Row(
            "parameters",
            "parameters",
            "count",
            predicted,
            kept[name],
            "exact",
            f"the kept module `{name[:40]}`",
        )
    ]


def _memory(sides: Sides) -> list[Row]:
    e, memory = sides.evidence, sides.sheet.get("memory")
    out = []
    for label, predicted, name, basis in (
        ("allocated", "allocated_bytes", "peak_gpu_allocated_bytes", "modelled"),
        ("reserved", "reserved_bytes", "peak_gpu_reserved_bytes", "assumed"),
    ):
        found = e.highest(name)
        out.append(
            Row(
                f"peak_{predicted}",
                f"peak memory, {label}",
                "bytes",
                estimate_of(memory, predicted),
                found,
                basis,
                _counter(e, name),
                "" if found is not None else e.why(name),
            )
        )
    name = "peak_host_bytes" if sides.on_cpu else "peak_device_bytes"
    found = e.highest(name)
    predicted_peak, note = estimate_of(memory, "peak_bytes"), ""
    # another trainer writes its checkpoints from the state itself
    copy = None if any(life.elsewhere for life in e.lives) else e.highest("save_bytes")
    if sides.on_cpu and predicted_peak is not None and copy:
        predicted_peak, note = (
            predicted_peak + copy,
            "with the copy of the state that the run keeps for its saves",
        )
    label = "peak memory, process" if sides.on_cpu else "peak memory, device"
    why = "" if found is not None else e.why(name)
    return [
        *out,
        Row("peak_bytes", label, "bytes", predicted_peak, found, "assumed", _counter(e, name), why, note),
    ]


def _counter(evidence: Evidence, name: str) -> str:
    return next((found for entry in evidence.entries() if (found := _text(entry, "counters", name))), "")


def _speed(sides: Sides) -> list[Row]:
    step, measured = estimate_of(sides.sheet, "compute", "step_seconds"), sides.step_seconds
    meant, tokens = number(sides.intent, "tokens_per_step"), sides.tokens_per_step
    why = "" if measured is not None else sides.evidence.why("step_seconds")
    rate = mfu = None
    if step is not None and meant is not None and step.low > 0:
        rate = Estimate(meant / step.high, meant / step.mid, meant / step.low)
        mfu = _estimate(sides.mfu(step.high, meant), sides.mfu(step.mid, meant), sides.mfu(step.low, meant))
    return [
        Row("step_seconds", "step", "s", step, measured, sides.basis, "median after the warm-up", why),
        Row(
            "tokens_per_step",
            "tokens of a step",
            "count",
            None if meant is None else Estimate(meant, meant, meant),
            sides.evidence.mean("tokens_per_step", by=_weight),
            "exact",
            why="" if sides.evidence.total("tokens_per_step") else sides.evidence.why("tokens_per_second"),
        ),
        Row(
            "tokens_per_second",
            "tokens per second",
            "per_second",
            rate,
            None if not measured or tokens is None else tokens / measured,
            sides.basis,
            why=why,
        ),
        Row(
            "mfu",
            "MFU",
            "share",
            mfu,
            sides.mfu(measured, tokens),
            sides.basis,
            "of the sheet's own FLOPs and peak",
            why,
        ),
    ]


def _whole(sides: Sides) -> list[Row]:
    e, share = sides.evidence, sides.share
    seconds, measured = sides.expected("seconds"), e.seconds
    cost, unit = sides.expected("cost"), sides.billing_unit
    if cost is not None:
        cost = cost * share
    if seconds is not None and (cost is None or (unit and share < 1)):
        # while it runs: what was paid so far is in started units, so what was predicted for it is, too
        cost = sides.cost(seconds * share)
    paid = None if measured is None else sides.cost(Estimate(measured, measured, measured))
    note = f"started units of {format_duration(unit)} are paid whole" if unit else ""
    if sides.price is not None and sides.signed_price not in (None, sides.price):
        note = f"measured at {sides.price:g} per GPU hour, predicted at {sides.signed_price:g}"
    why = "" if measured is not None else "the log has no times"
    return [
        Row(
            "seconds",
            "machine time",
            "s",
            None if seconds is None else seconds * share,
            measured,
            sides.basis,
            "all attempts, from the start of each process",
            why,
        ),
        Row(
            "cost",
            "cost",
            "money",
            cost,
            None if paid is None else paid.mid,
            sides.basis,
            why=why if sides.price is not None else "no price is known; give --price",
            note=note,
        ),
    ]


def _saving(sides: Sides) -> list[Row]:
    e = sides.evidence
    size = number(sides.intent, "checkpoint_bytes")
    predicted = None
    if size is not None:
        predicted = Estimate(size, size, size * (1 + _BESIDE_SHARE) + _BESIDE)
    measured = e.highest("save_bytes")
    out = [
        Row(
            "checkpoint_bytes",
            "checkpoint",
            "bytes",
            predicted,
            measured,
            "modelled",
            why="" if measured is not None else e.why("save_bytes"),
            note="random states, positions and buffers may add 1 % and 1 MiB",
        ),
    ]
    for label, name in (
        ("save, loop held up", "save_stall_seconds"),
        ("save, until durable", "save_total_seconds"),
    ):
        measured = e.mean(name, by=lambda entry: number(entry, "saves"))
        value = sides.expected(name)
        why = "" if value is not None else sides.unknown("save_stall_seconds")
        if measured is None:
            why = e.why("save_bytes")
        out.append(Row(name, label, "s", value, measured, "measured", why=why))
    return out


def _interruptions(sides: Sides) -> list[Row]:
    e, share = sides.evidence, sides.share
    out = []
    for label, name, measured in (
        ("interruptions", "interruptions", sum(e.interruptions.values())),
        ("steps lost", "lost_steps", e.lost_steps),
    ):
        value = sides.expected(name)
        why = "" if value is not None else sides.unknown("interruptions")
        kinds = ", ".join(f"{n} {kind}" for kind, n in e.interruptions.items() if n)
        note = kinds if name == "interruptions" else ""
        out.append(
            Row(
                name,
                label,
                "count",
                None if value is None else value * share,
                float(measured),
                "given",
                why=why,
                note=note,
            )
        )
    return out

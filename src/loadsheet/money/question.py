"""The question that `odds` answers: every input with where it comes from, checked and put together."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from loadsheet import signature
from loadsheet.errors import BadFile, BadInput, shorten
from loadsheet.money.bill import Bill
from loadsheet.money.interruptions import RESTART, Job, combined
from loadsheet.money.interval import best_every, in_steps
from loadsheet.money.rates import Rate
from loadsheet.money.traces import Trace
from loadsheet.safejson import load_json
from loadsheet.units import format_bytes, format_duration

#: where `loadsheet rehearse` leaves what it measured
REHEARSAL: Final = ".loadsheet/rehearsal.json"

#: AWS gives two minutes; Google and Azure thirty seconds (2026-11)
NOTICE: Final = 120.0
JOBS: Final = 100_000
#: copies of the checkpoint that are stored: two kept and one being written, as `run.steps` does
COPIES: Final = 3
#: a save is begun on a notice only if so many times its duration is left
MARGIN: Final = 1.3
_LONGEST: Final = 100 * 365 * 86400.0
#: a save is scaled in proportion to its size; from this factor on what does not grow with it may rule the result
_FAR: Final = 100.0


@dataclass(frozen=True, slots=True)
class Known:
    """One input: its value, where it comes from, and whether nobody gave it."""

    value: Any
    source: str
    assumed: bool = False

    @property
    def star(self) -> str:
        """The sign of what was defaulted."""
        return "*" if self.assumed else ""


class Inputs:
    """Inputs by name; the first who gives one is believed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.known: dict[str, Known] = {}
        #: what may make the answer one to another question: said beside it, and on stderr
        self.warnings: list[str] = []
        for name, value in options.items():
            self.give(name, value, f"--{name.replace('_', '-')}")

    def give(self, name: str, value: Any, source: str, *, assumed: bool = False) -> None:
        """Take the value unless there is one; None is none."""
        if value is not None and name not in self.known:
            self.known[name] = Known(value, source, assumed)

    def __contains__(self, name: str) -> bool:
        return name in self.known

    def __getitem__(self, name: str) -> Any:
        return self.known[name].value

    def get(self, name: str) -> Any:
        """The value, or None."""
        return self.known[name].value if name in self.known else None


@dataclass(frozen=True, slots=True)
class Question:
    """A job, what happens to it, what it may cost and when it must be done; base units."""

    job: Job
    inputs: Mapping[str, Known]
    bill: Bill | None = None
    on_demand: Bill | None = None
    wait: float | None = None  # mean seconds for capacity; None: unknown
    trace: Trace | None = None
    rate: Rate | None = None  # from the run's own history
    budget: float | None = None
    deadline: float | None = None
    failures: float = math.inf  # mean time between failures that happen on demand too
    unit: float = 1.0  # seconds by which machines are charged
    least: float = 0.0
    jobs: int = JOBS
    seed: int = 0
    step_seconds: float | None = None
    machine_now: bool | None = None  # whether a machine is there at the start; None: as at a random time
    notes: tuple[str, ...] = field(default_factory=tuple)
    warnings: tuple[str, ...] = ()  # those of the notes that say what may not be meant

    @property
    def interval_given(self) -> bool:
        """Whether the user has said how often to save."""
        return not self.inputs["every"].assumed


def ask(
    inputs: Inputs, *, trace: Trace | None = None, rate: Rate | None = None, currency: str = ""
) -> Question:
    """Put a question together; what is missing takes its default, and is marked so. Raises BadInput."""
    notes: list[str] = list(inputs.warnings)
    _needed(inputs, trace, rate, notes)
    inputs.give("restart", RESTART, "assumed", assumed=True)
    inputs.give("startup", inputs["restart"], "as the restart", assumed=True)
    inputs.give("commit", 0.0, "assumed", assumed=True)
    inputs.give("notice_works", 0.0, "assumed", assumed=True)
    inputs.give("notice", NOTICE if inputs["notice_works"] > 0 else 0.0, "assumed", assumed=True)
    inputs.give("machines", 1, "assumed", assumed=True)
    inputs.give("failures", math.inf, "assumed", assumed=True)
    inputs.give("billed_by", 1.0, "assumed", assumed=True)
    inputs.give("jobs", JOBS, "assumed", assumed=True)
    inputs.give("seed", 0, "assumed", assumed=True)
    machines = int(inputs["machines"])
    failures = inputs["failures"] / machines
    if failures <= 0:
        raise BadInput("failures: got 0, expected a time above 0", "leave it out if there are none")
    # what was seen, by a run or in a trace, was seen of all machines together
    each = inputs["mtbf"] / (machines if inputs.known["mtbf"].source == "--mtbf" else 1)
    mtbf, works = combined(each, inputs["notice_works"], failures)
    save, commit = inputs["save"], inputs["commit"]
    inputs.give(
        "every", best_every(inputs["work"], save, mtbf, works, commit), "what costs least", assumed=True
    )
    every = min(inputs["every"], inputs["work"])
    step = inputs.get("step")
    if step:
        # saves stand between steps; rounded up, so that equal parts leave no short one at the end
        every = min(in_steps(every, step, up=inputs.known["every"].assumed) * step, inputs["work"])
    _may_switch(inputs, trace)
    if every < min(commit, inputs["work"]):
        notes.append("saves overtake one another: each waits until the one before is durable (`--commit`)")
    if works > 0 and inputs["notice"] < MARGIN * (save + commit):
        notes.append(
            f"a notice leaves {inputs['notice']:,.0f} s, and a save takes {save + commit:,.0f} s until it is "
            "durable: a run that asks for 1.3 times that would not begin one"
        )
    job = Job(
        work=inputs["work"],
        save=save,
        every=every,
        mtbf=mtbf,
        restart=inputs["restart"],
        startup=inputs["startup"],
        commit=commit,
        notice_works=works,
        notice=inputs["notice"],
    )
    bill = _bill(inputs, "price", currency)
    return Question(
        job=job,
        inputs=inputs.known,
        bill=bill,
        on_demand=_bill(inputs, "on_demand_price", currency),
        wait=trace.wait if trace is not None else inputs.get("down_mean"),
        trace=trace,
        rate=rate,
        budget=inputs.get("budget"),
        deadline=inputs.get("deadline"),
        failures=failures,
        unit=inputs["billed_by"],
        least=inputs.get("billed_least") or 0.0,
        jobs=int(inputs["jobs"]),
        seed=int(inputs["seed"]),
        step_seconds=step,
        machine_now=inputs.get("machine_now"),
        notes=tuple(notes),
        warnings=tuple(inputs.warnings),
    )


def _needed(inputs: Inputs, trace: Trace | None, rate: Rate | None, notes: list[str]) -> None:
    """What has no default, and the limits of what has."""
    if trace is not None:
        for name in ("mtbf", "down_mean", "failures"):
            if name in inputs:
                raise BadInput(
                    f"{name}: got one beside a trace, expected one of them",
                    "a trace says how long machines stay and how long one waits",
                )
        inputs.give("mtbf", trace.mtbf, f"mean up-time of {trace.source}")
    if rate is not None:
        bound = rate.mtbf is None
        source = f"{rate.interruptions} interruptions in {format_duration(rate.exposure)} of the run"
        inputs.give("mtbf", rate.pessimistic, f"a bound: {source}" if bound else source)
        if bound and inputs.known["mtbf"].source.startswith("a bound"):
            notes.append(
                f"no interruption was seen in {format_duration(rate.exposure)}: that is no estimate of M, only "
                f"the bound that it is above {format_duration(rate.low)} (95 %), and the answer is for the bound"
            )
    for name, hint in (
        ("work", "`--work 24h`, or `--sheet FILE` of a plan with --tokens"),
        ("save", "`--save 5min`, or measure it: `loadsheet rehearse`, then `--rehearsal FILE`"),
        ("mtbf", "`--mtbf 6h`, `--history RUN` or `--trace FILE`; nobody can assume it for you"),
    ):
        if name not in inputs:
            raise BadInput(f"{name}: got none, expected one", hint)
    for name in ("work", "mtbf", "every", "billed_by", "step"):
        value = inputs.get(name)
        if value is not None and not value > 0:
            raise BadInput(f"{name}: got {shorten(value)}, expected more than 0")
    for name in ("work", "save", "restart", "startup", "commit", "every", "notice", "down_mean", "deadline"):
        value = inputs.get(name)
        if value is not None and not 0 <= value <= _LONGEST:
            raise BadInput(f"{name}: got {shorten(value)} s, expected at most 100 years")


def _may_switch(inputs: Inputs, trace: Trace | None) -> None:
    """BadInput if a switch to on demand is asked for, and what it takes to tell is missing."""
    after = inputs.get("switch_after")
    if after is None:
        return
    if trace is None and "down_mean" not in inputs:
        raise BadInput(
            "switch_after: got a time and no wait for a machine, expected both",
            "`--down-mean 20min`, or --trace",
        )
    if after == "deadline" and "deadline" not in inputs:
        raise BadInput("switch_after: got `deadline`, expected one", "give `--deadline 36h`")
    if math.isfinite(inputs["failures"]):
        raise BadInput(
            "switch_after: got failures as well, expected machines that stay once on demand",
            "leave --failures out",
        )


def _bill(inputs: Inputs, price: str, currency: str) -> Bill | None:
    if price not in inputs:
        return None
    size = inputs.get("storage")
    if size is None and inputs.get("storage_price") and "checkpoint_bytes" in inputs:
        size = COPIES * inputs["checkpoint_bytes"]
        inputs.give("storage", size, f"{COPIES} × the checkpoint", assumed=True)
    for amount, of in (("storage", "storage_price"), ("egress", "egress_price")):
        if inputs.get(of) is not None and inputs.get(amount) is None:
            raise BadInput(
                f"{of}: got a price and no size, expected both", f"give --{amount} SIZE, such as `100GB`"
            )
        if inputs.get(amount) is not None and inputs.get(of) is None:
            raise BadInput(
                f"{amount}: got a size and no price, expected both", f"give --{of.replace('_', '-')}"
            )
    return Bill(
        price=inputs[price],
        machines=int(inputs["machines"]),
        hourly=inputs.get("other_hourly") or 0.0,
        storage_bytes=size or 0,
        storage_price=inputs.get("storage_price") or 0.0,
        egress_bytes=inputs.get("egress") or 0,
        egress_price=inputs.get("egress_price") or 0.0,
        currency=currency,
    )


# --- files that answer for the user -----------------------------------------------------------------------


def _number(value: Any, what: str, *, above: bool = False) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e30
    if not good or (above and value == 0):
        raise BadFile(f"{what}: got {shorten(value)}, expected a number {'above' if above else 'from'} 0")
    return float(value)


def from_rehearsal(inputs: Inputs, path: str | os.PathLike[str]) -> None:
    """Save time, step time and checkpoint size as `loadsheet rehearse` measured them.

    A rehearsal of a small model saves a small checkpoint: where the size of the real one is known, what a
    save takes is taken to grow with it; where it is not, that is a warning, and the times count as assumed.
    A step of another model is not taken. Raises BadFile.
    """
    found = load_json(path, "rehearsal", 4 << 20)
    name = os.path.basename(os.fsdecode(path))
    save = found.get("save_seconds")
    if save is None and "save_seconds" in found:
        failed = found.get("passed") is False
        raise BadFile(
            f"{name}: got a rehearsal that {'failed before its save' if failed else 'measured no save'}, "
            "expected one that measured a save",
            "give `--save 5min`, or mend what failed and `loadsheet rehearse` again",
        )
    if not isinstance(save, dict) or not {"stall", "total"} <= save.keys():
        raise BadFile(
            f"{name}: got no save_seconds with stall and total, expected a rehearsal",
            "`loadsheet rehearse` writes one",
        )
    stall = _number(save["stall"], f"{name}, save_seconds.stall")
    total = _number(save["total"], f"{name}, save_seconds.total")
    size = found.get("checkpoint_bytes")
    if size is not None:
        size = _number(size, f"{name}, checkpoint_bytes", above=True)
    step = found.get("step_seconds")
    if step is not None:
        step = _number(step, f"{name}, step_seconds", above=True)
    of = "of a checkpoint of unknown size" if size is None else f"of {format_bytes(size)}"
    scale, how = 1.0, f"measured in {name}, a rehearsal {of}"
    own = size is None or "checkpoint_bytes" not in inputs
    if not own and inputs["checkpoint_bytes"] != size:
        scale = inputs["checkpoint_bytes"] / size
        how += f", times {scale:,.4g} for {format_bytes(inputs['checkpoint_bytes'])}"
    if "save" not in inputs:
        if own:
            inputs.warnings.append(
                f"the time of a save, {format_duration(stall)}, is that of the rehearsal's own checkpoint ({of[3:]}): "
                "unless that is the real one, `--checkpoint-bytes SIZE` or `--sheet FILE` scales it, `--save` "
                "replaces it"
            )
        elif scale > _FAR:
            inputs.warnings.append(
                f"the time of a save was measured {of} and is taken {scale:,.3g} times: much of a small save does "
                "not grow with its size, so it may be far too long; `--save`, or a rehearsal nearer in size"
            )
    inputs.give("checkpoint_bytes", size, name)
    inputs.give("save", stall * scale, how, assumed=own)
    inputs.give("commit", max(total - stall, 0.0) * scale, how, assumed=own)
    if scale == 1.0:
        inputs.give("step", step, name, assumed=own)


def from_sheet(inputs: Inputs, given: str | os.PathLike[str] | Mapping[str, Any]) -> str:
    """Work, price and checkpoint size of a signed sheet, or of what `plan --json` printed; its currency.

    `given` is its file, or what stands in it. Raises BadFile, and BadInput for a sheet without the hours of a
    whole run. A signed sheet that was edited is refused.
    """
    if isinstance(given, Mapping):
        found, name = given, "sheet"
    else:
        found, name = load_json(given, "sheet", 64 << 20), os.path.basename(os.fsdecode(given))
    if "signed" in found:
        signature.check(found, name)
    sheet = found.get("sheet", found)
    compute = sheet.get("compute") if isinstance(sheet, dict) else None
    cluster = sheet.get("cluster") if isinstance(sheet, dict) else None
    if not isinstance(compute, dict) or not isinstance(cluster, dict):
        raise BadFile(f"{name}: got no compute and cluster, expected a sheet", "`loadsheet sign` writes one")
    gpus = _number(cluster.get("gpus"), f"{name}, cluster.gpus", above=True)
    hours = compute.get("gpu_hours")
    if hours is None and "work" not in inputs:
        raise BadInput(f"{name}: got a sheet without GPU hours, expected one", "plan it with --tokens")
    if hours is not None:
        mid = hours.get("mid") if isinstance(hours, dict) else hours
        work = _number(mid, f"{name}, compute.gpu_hours.mid", above=True) * 3600 / gpus
        inputs.give("work", work, f"GPU hours / GPUs of {name}")
    step = compute.get("step_seconds")
    if isinstance(step, dict) and step.get("mid") is not None:
        inputs.give("step", _number(step["mid"], f"{name}, compute.step_seconds.mid", above=True), name)
    money = sheet.get("money")
    currency = ""
    if isinstance(money, dict):
        price = _number(money.get("price_per_gpu_hour"), f"{name}, money.price_per_gpu_hour")
        inputs.give("price", price * gpus, f"price × {gpus:,.0f} GPUs of {name}")
        text = money.get("currency")
        currency = text if isinstance(text, str) and len(text) <= 3 and text.isprintable() else ""
    sizes = sheet.get("checkpoint_bytes")
    if isinstance(sizes, dict) and sizes.get("resume") is not None:
        size = _number(sizes["resume"], f"{name}, checkpoint_bytes.resume", above=True)
        inputs.give("checkpoint_bytes", size, name)
    return currency

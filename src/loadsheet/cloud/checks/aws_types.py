"""Amazon: which instance types hold what the sheet needs, and where they are offered."""

from __future__ import annotations

from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed, is_missing
from loadsheet.cloud.aws.gpu_types import GpuType, alike, candidates, gpu_types, offered
from loadsheet.cloud.aws.looked import account, regions, shown
from loadsheet.cloud.aws.session import Account
from loadsheet.cloud.checklist import CannotLook, Result, fail, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.plan_file import PlanFile
from loadsheet.cloud.registry import check
from loadsheet.units import format_bytes

_MOST: Final = 5  # types that are shown
_HEAD: Final = 3  # and that are named on the first line
#: a region -> the zones of each type that was asked for there, or why nothing was said
_Zones = dict[str, dict[str, list[str]] | CallFailed | CannotLook]


@check(
    "aws.instance-type",
    phase="before",
    needs="account",
    slow=True,
    why="the smallest machine that holds the training is the cheapest; a name says little of its memory",
)
def instance_type(context: Context) -> Result:
    """The types whose GPUs hold the sheet's peak, or whether `--instance-type` does; zones, spot, traps."""
    sheet, wanted = context.sheet, context.inputs.instance_type
    blind = sheet is None or sheet.peak_bytes is None
    if blind and not wanted:
        return _no_sheet()
    asked, places = account(context), regions(context)
    found = asked.everywhere(places, lambda r: gpu_types(asked, r, (wanted,) if wanted else ()))
    if wanted and all(is_missing(types) for types in found.values()):
        return no_such_type(asked, places, wanted)
    if sheet is None or sheet.peak_bytes is None:
        return _no_sheet()
    answered = {region: types for region, types in found.items() if not isinstance(types, CannotLook)}
    without = {region: error for region, error in found.items() if isinstance(error, CannotLook)}
    looked = _Looked(context, asked, sheet, answered, without)
    return looked.named(wanted) if wanted else looked.listed()


def _no_sheet() -> Result:
    how = "`--sheet sheet.json`, of `loadsheet plan … --json`"
    return unknown("no sheet says what a GPU must hold", next=how)


def no_such_type(asked: Account, places: list[str], wanted: str) -> Result:
    """What to say of an instance type that AWS has in none of the regions."""
    near = alike(asked, places[0], wanted)
    how = (
        f"did you mean {', '.join(near)}?"
        if near
        else "another type or region; without `--instance-type`: a list"
    )
    return fail(f"AWS has no instance type {wanted} in {shown(places)}", next=how)


class _Looked:
    """What was found out about the types of several regions; `without`: those that gave none, and why."""

    def __init__(
        self,
        context: Context,
        asked: Account,
        sheet: PlanFile,
        answered: dict[str, list[GpuType]],
        without: dict[str, CallFailed | CannotLook],
    ) -> None:
        self.inputs, self.asked, self.answered = context.inputs, asked, answered
        self.need = sheet.peak_high or sheet.peak_bytes or 0.0
        self.gpus = context.inputs.gpus or sheet.gpus or 1
        self.gone = [region for region, error in without.items() if is_missing(error)]
        self.refused = [error for region, error in without.items() if region not in self.gone]
        self.rows: list[dict[str, Any]] = [
            {"fact": f"{region}: {'not there' if region in self.gone else error}", "region": region}
            for region, error in without.items()
        ]

    def head(self, types: list[GpuType] | None = None) -> dict[str, Any]:
        """The first line: what is needed, and which types hold it, the smallest first."""
        text = f"needed: {self.gpus} × {format_bytes(self.need)}"
        row: dict[str, Any] = {"fact": text, "peak_bytes": self.need, "gpus": self.gpus}
        if types is None:
            return row
        names = [found.name for found in types]
        return {**row, "fact": f"{text}; held by {shown(names, _HEAD)}", "types": names}

    def zones(self, names: dict[str, list[str]]) -> _Zones:
        """Where types are offered: for each region the names that it has."""
        return self.asked.everywhere(names, lambda region: offered(self.asked, region, names[region]))

    def verdict(self, rows: list[dict[str, Any]], zones: _Zones, names: list[str]) -> Result:
        """By where the types of these names are offered: unknown where a region did not say."""
        unsaid = [*self.refused, *(z for z in zones.values() if isinstance(z, CannotLook))]
        if unsaid:
            return unknown(*rows, next=unsaid[0].next)
        here = {r for r, z in zones.items() if not isinstance(z, CannotLook) and any(z.get(n) for n in names)}
        nowhere = [region for region in [*zones, *self.gone] if region not in here]
        if not here:
            return fail(*rows, f"not offered in {shown(nowhere)}", next="another region")
        if nowhere:
            text = f"not offered in {shown(nowhere)}, only in {shown(sorted(here))}"
            return warn(*rows, text, next=f"rent in {shown(sorted(here))}")
        return ok(*rows)

    def listed(self) -> Result:
        """The types that hold it, without those whose names promise too much."""
        if not self.answered:
            return unknown(self.head(), *self.rows, next=self.refused[0].next)
        each = -(-self.gpus // self.inputs.instances)
        fitting = {r: candidates(types, self.need, each) for r, types in self.answered.items()}
        every = list({t.name: t for types in fitting.values() for t in types}.values())
        every = candidates(every, self.need, each)
        plain = {r: [t for t in types if not t.traps] for r, types in fitting.items()}
        if self.inputs.spot:
            plain = {r: [t for t in types if t.spot] for r, types in plain.items()}
        good = candidates(list({t.name: t for ts in plain.values() for t in ts}.values()), self.need, each)
        names = [t.name for t in good]
        out = [f"{t.name} ({', '.join(t.traps) or 'no spot'})" for t in every if t.name not in names]
        rest = [{"fact": f"left out: {shown(out, 3)}"}] if out else []
        if not good:
            rows = [self.head(), *self.rows, *(_row(t, {}) for t in every[:_MOST])]
            if self.refused:
                return unknown(*rows, "none in the regions that answered", next=self.refused[0].next)
            if self.inputs.spot and any(not t.traps for t in every):
                return fail(
                    *rows, "none that holds it is to be had as spot", next="on-demand, or another region"
                )
            text = "no type of these regions holds it"
            return fail(self.head(), text, *rows[1:], next="another region, or see the sheet's remedies")
        zones = self.zones({r: [t.name for t in types] for r, types in plain.items()})
        good.sort(key=lambda t: not _offered(zones, t.name))  # what is offered nowhere goes last
        some = [t for t in good if _offered(zones, t.name)]
        rows = [self.head(some or good), *self.rows, *(_row(t, zones) for t in good[:_MOST]), *rest]
        return self.verdict(rows, zones, names)

    def named(self, wanted: str) -> Result:
        """Whether the type that the user named does."""
        rows = [self.head(), *self.rows]
        if not self.answered:
            return unknown(*rows, next=self.refused[0].next)
        found = next((t for types in self.answered.values() for t in types), None)
        if found is None:
            text = f"{wanted} has no GPU, or several kinds of them"
            return fail(*rows, text, next="leave out `--instance-type` for a list")
        zones = self.zones({region: [wanted] for region in self.answered})
        rows.append(_row(found, zones))
        count = self.inputs.instances * found.count
        if found.usable < self.need:
            short = format_bytes(self.need - found.usable)
            text = f"one GPU holds {format_bytes(found.usable)}, {short} too little"
            return fail(*rows, text, next="leave out `--instance-type` for those that hold it")
        if count < self.gpus:
            star = self.inputs.star("instances")
            text = f"{self.inputs.instances}{star} × {found.count} GPUs, the sheet has {self.gpus}"
            return fail(*rows, text, next=f"`--instances {-(-self.gpus // found.count)}`, or a larger one")
        if self.inputs.spot and not any(t.spot for types in self.answered.values() for t in types):
            return fail(*rows, "it is not to be had as spot", next="on-demand, or another type")
        if not found.nvidia or found.share < 1:
            return fail(*rows, next="another type")
        result = self.verdict(rows, zones, [wanted])
        if result.state == "ok" and found.traps:
            return warn(*rows, next="see what stands behind its name")
        return result


def _offered(zones: _Zones, name: str) -> bool:
    """Whether some region offers a type in some zone."""
    return any(not isinstance(z, CannotLook) and z.get(name) for z in zones.values())


def _row(found: GpuType, zones: _Zones) -> dict[str, Any]:
    """A type as evidence."""
    seen = {r: None if isinstance(z, CannotLook) else z.get(found.name, []) for r, z in zones.items()}
    where = [f"{r}: {'could not look' if z is None else shown(z) or 'nowhere'}" for r, z in seen.items()]
    star = "" if found.measured else " (as AWS says, the driver takes some)"
    parts = [
        f"{found.name}: {found.count} × {found.gpu} with {format_bytes(found.usable)}{star}",
        f"{found.vcpus} vCPUs",
        "spot possible" if found.spot else "no spot",
        *found.traps,
        *where,
    ]
    return {
        "fact": ", ".join(parts),
        "instance_type": found.name,
        "gpus": found.count,
        "usable_bytes": found.usable,
        "vcpus": found.vcpus,
        "spot": found.spot,
        "zones": seen,
    }

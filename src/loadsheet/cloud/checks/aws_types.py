"""Amazon: which instance types hold what the sheet needs, and where they are offered."""

from __future__ import annotations

from typing import Any, Final

from loadsheet.cloud.aws.gpu_types import GpuType, candidates, gpu_types, offered
from loadsheet.cloud.aws.looked import account, regions, shown
from loadsheet.cloud.aws.session import Account
from loadsheet.cloud.checklist import CannotLook, Result, fail, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import check
from loadsheet.units import format_bytes

_MOST: Final = 5  # types that are shown


@check(
    "aws.instance-type",
    phase="before",
    needs="account",
    slow=True,
    why="the smallest machine that holds the training is the cheapest; a name says little of its memory",
)
def instance_type(context: Context) -> Result:
    """The types whose GPUs hold the sheet's peak, or whether `--instance-type` does; zones, spot, traps."""
    sheet = context.sheet
    if sheet is None or sheet.peak_bytes is None:
        return unknown(
            "no sheet says what a GPU must hold", next="`--sheet sheet.json`, of `loadsheet plan … --json`"
        )
    need, gpus = sheet.peak_high or sheet.peak_bytes, context.inputs.gpus or sheet.gpus or 1
    head = {"fact": f"needed: {gpus} × {format_bytes(need)}", "peak_bytes": need, "gpus": gpus}
    asked, places = account(context), regions(context)
    wanted = context.inputs.instance_type
    found = asked.everywhere(places, lambda r: gpu_types(asked, r, (wanted,) if wanted else ()))
    answered = {region: types for region, types in found.items() if not isinstance(types, CannotLook)}
    refused = [(region, error) for region, error in found.items() if isinstance(error, CannotLook)]
    rows: list[dict[str, Any]] = [
        {"fact": f"{region}: {error}", "region": region} for region, error in refused
    ]
    if not answered:
        return unknown(head, *rows, next=refused[0][1].next)
    if wanted:
        return _named(context, asked, wanted, need, gpus, answered, [head, *rows])
    best: dict[str, GpuType] = {}
    for types in answered.values():
        best |= {t.name: t for t in candidates(types, need, gpus)}
    fitting = candidates(list(best.values()), need, gpus)
    plain = [t for t in fitting if not t.traps]
    if not plain:
        rows += [_row(t, {}) for t in fitting[:_MOST]]
        if refused:
            return unknown(head, *rows, "none in the regions that answered", next=refused[0][1].next)
        return fail(
            head,
            "no type of these regions holds it",
            *rows,
            next="another region, or see the sheet's remedies",
        )
    zones = {t.name: _zones(asked, list(answered), t.name) for t in plain[:_MOST]}
    rows += [_row(t, zones[t.name]) for t in plain[:_MOST]]
    if trapped := [f"{t.name} ({', '.join(t.traps)})" for t in fitting if t.traps]:
        rows.append({"fact": f"left out: {shown(trapped, 3)}"})
    if refused:
        return unknown(head, *rows, next=refused[0][1].next)
    return ok(head, *rows)


def _zones(asked: Account, places: list[str], name: str) -> dict[str, list[str] | CannotLook]:
    return asked.everywhere(places, lambda region: offered(asked, region, name))


def _row(found: GpuType, zones: dict[str, list[str] | CannotLook]) -> dict[str, Any]:
    """A type as evidence."""
    where = [
        f"{r}: {'could not look' if isinstance(z, CannotLook) else shown(z) or 'nowhere'}"
        for r, z in zones.items()
    ]
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
        "zones": {r: None if isinstance(z, CannotLook) else z for r, z in zones.items()},
    }


def _named(
    context: Context,
    asked: Account,
    wanted: str,
    need: float,
    gpus: int,
    answered: dict[str, list[GpuType]],
    rows: list[dict[str, Any]],
) -> Result:
    """Whether the type that the user named does."""
    found = next((t for types in answered.values() for t in types), None)
    if found is None:
        return fail(
            *rows,
            f"{wanted} is no instance type with a GPU here",
            next="leave out `--instance-type` for a list",
        )
    zones = _zones(asked, list(answered), wanted)
    rows = [*rows, _row(found, zones)]
    count = context.inputs.instances * found.count
    if found.usable < need:
        text = f"one GPU holds {format_bytes(found.usable)}, {format_bytes(need - found.usable)} too little"
        return fail(*rows, text, next="leave out `--instance-type` for those that hold it")
    if count < gpus:
        star = context.inputs.star("instances")
        text = f"{context.inputs.instances}{star} × {found.count} GPUs, the sheet has {gpus}"
        return fail(*rows, text, next=f"`--instances {-(-gpus // found.count)}`, or a larger one")
    if context.inputs.spot and not found.spot:
        return fail(*rows, "it is not to be had as spot", next="on-demand, or another type")
    if not found.nvidia or found.share < 1:
        return fail(*rows, next="another type")
    nowhere = [region for region, z in zones.items() if not isinstance(z, CannotLook) and not z]
    if nowhere:
        return fail(*rows, f"not offered in {shown(nowhere)}", next="another region")
    blind = [z for z in zones.values() if isinstance(z, CannotLook)]
    if blind or any("could not" in str(row.get("fact")) for row in rows[1:-1]):
        return unknown(*rows, next=blind[0].next if blind else "")
    return warn(*rows, next="see what stands behind its name") if found.traps else ok(*rows)

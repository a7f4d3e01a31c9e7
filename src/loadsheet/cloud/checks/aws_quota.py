"""Amazon: whether the quota of vCPUs lets the machine start, with what runs already."""

from __future__ import annotations

from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed, is_missing
from loadsheet.cloud.aws.looked import account, regions
from loadsheet.cloud.aws.quotas import Room, quota_of, quotas, room, vcpus
from loadsheet.cloud.aws.session import Account
from loadsheet.cloud.checklist import CannotLook, Result, fail, ok, unknown, warn
from loadsheet.cloud.checks.aws_types import no_such_type
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import check

_SHOWN: Final = ("G and VT", "P")  # without an instance type: what one would rent
_EARLY: Final = "approval takes days, and fresh accounts are refused"


@check(
    "aws.quota",
    phase="before",
    needs="account",
    slow=True,
    settles=("quota.gpu",),
    why="new accounts may start no GPU at all, and whoever asks for more waits for days",
)
def quota(context: Context) -> Result:
    """The vCPUs that `--instance-type` takes, against the quota of its family minus what runs, in each region."""
    asked, places = account(context), regions(context)
    wanted = context.inputs.instance_type
    if wanted is None:
        return _families(asked, places)
    market = "spot" if context.inputs.spot else "on-demand"
    found = quota_of(wanted, market)
    none = unknown(f"our table has no quota for {wanted}", next="look in the console: Service Quotas, EC2")
    try:
        size = _size(asked, wanted, places)
    except CallFailed as error:
        if is_missing(error):
            return no_such_type(asked, places, wanted)
        if found is None:
            return none
        raise
    if found is None:
        return none
    count, star = instances(context)
    need = size * count
    what = f"{count}{star} × {wanted} ({size} vCPUs) = {need} vCPUs, {market}{context.inputs.star('spot')}"
    head = {"fact": f"{what}, quota {found.name}", "needed_vcpus": need, "code": found.code}
    rows: list[dict[str, Any]] = []
    states = []
    refused: CannotLook | None = None
    for region, seen in asked.everywhere(places, lambda region: room(asked, found, region)).items():
        if isinstance(seen, CannotLook):
            rows.append({"fact": f"{region}: {seen}", "region": region})
            states.append("unknown")
            refused = refused or seen
            continue
        rows.append(_row(seen, need))
        states.append("ok" if seen.left >= need else "short")
    others = [f"{found.name}, {found.market}: {found.note}"] if found.note else []
    if "unknown" in states and "ok" not in states:
        return unknown(head, *rows, *others, next=refused.next if refused else "")
    if set(states) == {"ok"}:
        return ok(head, *rows)
    short = [row for row in rows if row.get("left", need) < need]
    if not short:
        return warn(head, *rows, next="take a region that answered")
    most = max(need + row["used"] for row in short)
    how = f"ask for {most:g} vCPUs of {found.name} ({found.code}), today: {_EARLY}"
    if any(row["pending"] and row["pending"] - row["used"] >= need for row in short):
        how = f"wait for the answer, or take a region or market with room: {_EARLY}"
    return (
        fail(head, *rows, next=how)
        if "ok" not in states
        else warn(head, *rows, next=f"{how}; or another region")
    )


def _size(asked: Account, wanted: str, places: list[str]) -> int:
    """vCPUs of a type; not every region knows every type, and `missing` is said only where none does."""
    refused: CannotLook | None = None
    for region in places:
        try:
            return vcpus(asked, [wanted], region)[wanted]
        except CannotLook as error:
            if refused is None or is_missing(refused):
                refused = error
    raise refused or CannotLook("no region is named")


def instances(context: Context) -> tuple[int, str]:
    """How many machines, and a star where that was not said."""
    return context.inputs.instances, context.inputs.star("instances")


def _row(seen: Room, need: int) -> dict[str, Any]:
    """A region as evidence."""
    enough = "enough" if seen.left >= need else "too little"
    text = f"{seen.region}: {seen.limit:g} allowed, {seen.used} in use, {seen.left:g} left: {enough}"
    if seen.default:
        text += " (AWS's default)"
    if seen.pending is not None:
        text += f"; {seen.pending:g} asked for on {seen.asked}, {seen.state.lower().replace('_', ' ')}"
    elif seen.state:
        text += f"; {seen.state}"
    return {
        "fact": text,
        "region": seen.region,
        "limit": seen.limit,
        "used": seen.used,
        "left": seen.left,
        "pending": seen.pending,
    }


def _families(asked: Account, places: list[str]) -> Result:
    """Without an instance type: what the families of GPUs allow; only "nothing at all" is a verdict."""
    rows: list[dict[str, Any]] = []
    refused: CannotLook | None = None
    for found in [q for q in quotas() if q.verified and q.name.startswith(_SHOWN)]:
        for region, seen in asked.everywhere(places, lambda region, q=found: room(asked, q, region)).items():  # type: ignore[misc]
            if isinstance(seen, CannotLook):
                refused = refused or seen
                rows.append({"fact": f"{found.name}, {found.market}, {region}: {seen}"})
            else:
                row = _row(seen, 1)
                rows.append(
                    {**row, "fact": f"{found.name}, {found.market}, {row['fact'].rpartition(':')[0]}"}
                )
    if refused is None and all(row["limit"] == 0 for row in rows):
        return fail(*rows, next=f"ask for the vCPUs that you need, today: {_EARLY}")
    how = (
        refused.next
        if refused
        else "say which machine: `--instance-type g5.xlarge` (and `--instances`, `--spot`)"
    )
    return unknown("which instance type, was not said", *rows, next=how)

"""The answer as a page: what is left, by kind, the dearest first; what could not be looked at; what to do."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from loadsheet.cloud.commands import continued
from loadsheet.cloud.leftovers.answer import Answer, stamp
from loadsheet.cloud.leftovers.item import ACCOUNT, Failure, Item
from loadsheet.cloud.leftovers.look import ALL, looked_at
from loadsheet.cloud.leftovers.narrow import nothing_else, unseen
from loadsheet.cloud.leftovers.prices import currency, per_hour
from loadsheet.cloud.leftovers.registry import turn
from loadsheet.text import columns, many, wrap
from loadsheet.units import format_bytes, format_money

SHOWN: Final = 5  # of each kind, unless all are asked for
_ID: Final = 44  # characters
_PLACES: Final = {ALL: "all regions", ACCOUNT: "the account"}


def page(answer: Answer, width: int, everything: bool = False) -> list[str]:
    """The lines; `everything` shows every item and every name."""
    return [
        *_head(answer, width),
        *_kept(answer, width, everything),
        *_loud(answer, width),
        *_groups(answer, width, everything),
        *_failed(answer, width, everything),
        *_compared(answer, width, everything),
        *_bill(answer, width, everything),
        *_not_looked(answer, width, everything),
        *_tomorrow(width),
    ]


def _head(answer: Answer, width: int) -> Iterator[str]:
    found, items = answer.found, answer.items
    looked = looked_at(found)
    kinds = many(looked["kinds"], "kind of thing", "kinds of things")
    seen = f"in what was looked at: {kinds} in {many(looked['regions'], 'region')}"
    blind = f"{many(len(found.failed), 'place')} could not be looked at" if found.failed else ""
    regions = len({item.region for item in items})
    whose = " of the run" if answer.span else ""
    if items:
        verdict = f"STILL THERE   {many(len(items), 'thing')}{whose} in {many(regions, 'region')}"
        verdict += f", {seen}" if looked["pairs"] else ""
        verdict += f"; {blind}" if blind else ""
    elif blind:
        rest = f"nothing found {seen}" if looked["pairs"] else "nothing was looked at"
        verdict = f"NOT KNOWN   {blind}; {rest}"
    else:
        rest = " BUT WHAT IS MEANT TO STAY" if answer.kept else ""
        old = " THAT OLD" if answer.younger else ""
        verdict = f"NOTHING{old}{whose.upper()} FOUND{rest}   "
        verdict += f"{_younger(answer)}; nothing else " if answer.younger else ""
        verdict += seen if looked["pairs"] else "in what was looked at"
    yield from wrap(f"{verdict}.", width, "  ")
    account = f"account {found.account}" if found.account else "account not known"
    where = f", asked at {found.endpoint} and not at AWS" if found.endpoint else ""
    yield from wrap(f"{account}{where} · {stamp(found.time)} · read-only, nothing was changed", width, "  ")
    total, priced, unpriced = answer.priced
    if priced:
        money = currency(answer.rates)
        rest = f"; {many(unpriced, 'thing')} without a price" if unpriced else ""
        if extra := sorted({i.extra for i in items if i.extra and per_hour(i, answer.rates) is not None}):
            rest += f"; not in it: {_first(extra, 4)}"
        yield from wrap(
            f"{format_money(total, money)} an hour, {format_money(total * 24, money)} a day at your prices, "
            f"for {many(priced, 'thing')}{rest}", width, "  ",
        )  # fmt: skip
    elif items:
        yield from wrap(
            "Money: `--price volume=0.08/GB-month --price p3.16xlarge=24.48/h`, at your prices.", width, "  "
        )
    if answer.span:
        span = answer.span
        yield from wrap(
            f"run {span.name}, {stamp(span.start)} to {stamp(span.end)}, give or take {span.margin / 3600:.3g} h",
            width, "  ",
        )  # fmt: skip
        if answer.others:
            told = ", ".join(f"{kind} {count:,}" for kind, count in sorted(answer.others.items()))
            yield from wrap(
                f"{many(answer.others.total(), 'other thing')} that the run does not explain: {told}",
                width,
                "  ",
            )
    if answer.younger and (items or found.failed):
        yield from wrap(_younger(answer), width, "  ")


def _younger(answer: Answer) -> str:
    """How many things are too young to be listed, which are there all the same."""
    return f"{many(answer.younger, 'younger thing')} left out (--older-than)"


def _kept(answer: Answer, width: int, everything: bool) -> Iterator[str]:
    """What is meant to stay, in a line of its own, and what a file names so and is not there."""
    if answer.kept:
        costs = [cost for item in answer.kept if (cost := per_hour(item, answer.rates)) is not None]
        money = (
            f", {format_money(sum(costs), currency(answer.rates))} an hour at your prices" if costs else ""
        )
        told = [f"{i.kind} {i.id} in {i.region} ({i.state})" for i in answer.kept]
        yield from wrap(
            f"meant to stay: {len(told):,}{money}: {_first(told, len(told) if everything else SHOWN)}",
            width,
            "  ",
        )
    for looked, words in ((True, "and not found: gone, or another name"), (False, "and not looked at")):
        told = [
            f"{e.kind} {e.id} in {e.region}"
            for e in answer.absent
            if answer.found.was_looked_at(e.region, e.kind) is looked
        ]
        if told:
            most = len(told) if everything else SHOWN
            yield from wrap(f"named to stay, {words}: {len(told):,}: {_first(told, most)}", width, "  ")


def _loud(answer: Answer, width: int) -> Iterator[str]:
    places: dict[str, list[Item]] = defaultdict(list)
    for item in answer.items:
        if item.loud:
            places[item.region].append(item)
    if not places:
        return
    yield ""
    total = sum(map(len, places.values()))
    blind = {name for region in places for name in unseen(answer.found, region)}
    yield from wrap(
        f"LOOK HERE FIRST   {many(total, 'GPU machine')} {nothing_else(blind)}. If they are not yours, "
        "somebody has a key of this account: end them, then replace the keys.", width, "  ",
    )  # fmt: skip
    for region, items in sorted(places.items()):
        types = ", ".join(sorted({item.type for item in items})[:5])
        yield from wrap(f"  {region}: {len(items):,} × {types}", width, "    ")


def _groups(answer: Answer, width: int, everything: bool) -> Iterator[str]:
    groups: dict[str, list[Item]] = defaultdict(list)
    for item in answer.items:
        groups[item.kind].append(item)

    def weight(items: list[Item]) -> tuple[bool, float, int]:
        return any(i.loud for i in items), sum(per_hour(i, answer.rates) or 0.0 for i in items), len(items)

    weighed = sorted(groups.items(), key=lambda pair: weight(pair[1]), reverse=True)
    in_order = sorted(weighed, key=lambda pair: turn(pair[0]))
    if len(groups) > 1:
        steps = itertools.groupby((kind for kind, _ in in_order), key=turn)
        order = ", then ".join(", ".join(names) for _, names in steps)
        cut = not everything and any(len(items) > SHOWN for items in groups.values())
        rest = " With --all none is left out." if cut else ""
        yield ""
        yield from wrap(f"Remove in this order, in which they stand here: {order}.{rest}", width, "  ")
    printed: set[str] = set()
    for kind, items in in_order:
        yield ""
        states: dict[str, int] = defaultdict(int)
        for item in items:
            states[item.state] += 1
        told = sorted(states.items(), key=lambda pair: -pair[1])[:4]
        of = ", ".join(f"{n:,} × {s}" for s, n in told) if len(states) > 1 else told[0][0]
        yield from wrap(
            f"{kind}   {len(items):,}: {of}{' …' if len(states) > len(told) else ''}", width, "  "
        )
        ordered = sorted(
            items,
            key=lambda i: (
                not i.loud,
                i.rank,
                -(per_hour(i, answer.rates) or 0.0),
                i.created or float("inf"),
                i.id,
            ),
        )
        shown = ordered if everything else ordered[:SHOWN]
        yield from _rows(answer, shown, width, printed)
        if len(shown) < len(items):
            yield from wrap(f"  … {len(items) - len(shown):,} more: --all, --json", width, "    ")


def _rows(answer: Answer, items: list[Item], width: int, printed: set[str]) -> Iterator[str]:
    """The items, each with why, and the commands that a person may run; none twice, of those that are `printed`."""
    table = [["", "region", "state", "type", "days", "size", "an hour"]]
    for item in items:
        age, cost = item.age(answer.found.time), per_hour(item, answer.rates)
        table.append(
            [
                item.id if len(item.id) <= _ID else item.id[: _ID - 1] + "…",
                item.region,
                item.state,
                item.type[:20],
                "–" if age is None else f"{age:,.1f}",
                "–" if item.size is None else format_bytes(item.size, 1),
                "–" if cost is None else f"{cost:,.4f}",
            ]
        )
    names = table[0]
    keep = [i for i in range(len(names)) if i < 2 or any(row[i] not in ("", "–") for row in table[1:])]
    while True:
        lines = columns([[row[i] for i in keep] for row in table], left=len([i for i in keep if i < 4]))
        spare = next((i for i in (3, 2, 5, 1) if i in keep), None)
        if spare is None or max(map(len, lines)) + 2 <= width:
            break
        keep.remove(spare)
    yield "  " + lines[0]
    before = ""
    for item, line in zip(items, lines[1:], strict=True):
        yield "  " + line
        name = f"“{item.name}” " if item.name else ""
        why = f"{item.why}; billed beside that, and in no sum here: {item.extra}" if item.extra else item.why
        if name or why != before:
            yield from wrap(f"      {name}{why}", width, "      ")
        before = why
        for text in item.remove:
            if text not in printed:
                yield from continued(text, width)
        if item.remove and printed.issuperset(item.remove):
            yield from wrap("      its commands stand above", width, "      ")
        printed.update(item.remove)
        if not item.remove:
            yield from wrap(f"      no command: {item.no_command or 'none is known'}", width, "      ")


def _failed(answer: Answer, width: int, everything: bool) -> Iterator[str]:
    groups: dict[tuple[str, str, bool], list[Failure]] = defaultdict(list)
    for failure in answer.found.failed:
        text = failure.error.replace(f" in {failure.region}", "")
        if failure.reason == "unreachable":
            text = f"{failure.reason}: {text[:90]}"
        groups[text, failure.reason, bool(failure.id)].append(failure)
    if not groups:
        return
    yield ""
    yield "COULD NOT LOOK   what is there is not known"
    for (text, *_), failures in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        kinds = sorted({"everything" if f.kind == ALL else f.kind for f in failures})
        regions = sorted({_PLACES.get(f.region, f.region) for f in failures})
        ids = [f"`{id}`" for id in sorted({f.id for f in failures if f.id})]
        told, where, which = (
            _first(names, len(names) if everything else 6) for names in (kinds, regions, ids)
        )
        yield from wrap(f"  {told}{' ' if which else ''}{which} in {where}: {text}", width, "    ")
    for text in dict.fromkeys(f.next for f in answer.found.failed if f.next):
        yield from wrap(f"  → {text}", width, "    ")


def _first(names: list[str], most: int) -> str:
    """The first of some names, and whether there are more."""
    return ", ".join(names[:most]) + (f" … {len(names) - most:,} more" if len(names) > most else "")


def _compared(answer: Answer, width: int, everything: bool) -> Iterator[str]:
    found = answer.compared
    if found is None:
        return
    yield ""
    if not found["same_account"]:
        yield from wrap("ANOTHER ACCOUNT   the earlier list is of another one", width, "  ")
    told = (
        f"{many(len(found['new']), 'new thing')}, {len(found['gone']):,} gone"
        + (f", {len(found['not_told']):,} not told (looked at only once)" if found["not_told"] else "")
    )  # fmt: skip
    yield from wrap(f"Since {stamp(found['then'])}: {told}.", width, "  ")
    for part, sign in (("new", "+"), ("gone", "-"), ("not_told", "?")):
        rows = found[part] if everything else found[part][:SHOWN]
        for row in rows:
            yield from wrap(f"  {sign} {row['kind']} {row['id']} in {row['region']}", width, "      ")
        if len(rows) < len(found[part]):
            yield from wrap(f"  {sign} … {len(found[part]) - len(rows):,} more: --all", width, "      ")


def _bill(answer: Answer, width: int, everything: bool) -> Iterator[str]:
    found = answer.bill
    if found is None:
        return
    yield ""
    still = " (an estimate of AWS, still changing)" if found["estimated"] else ""
    paid = f"{found['requests'] * 0.01:.2f} USD for {found['requests']} requests"
    told = "" if found["whole"] else ", as far as it was told"
    yield from wrap(f"Bill of {found['day']}{told}{still}; asking cost {paid}:", width, "  ")
    for part, names in (("by_region", ("service", "region")), ("by_usage_type", ("service", "usage_type"))):
        rows = found[part] if everything else found[part][:SHOWN]
        for row in rows:
            what = ", ".join(str(row.get(name, "")) for name in names)
            yield from wrap(f"  {format_money(row['amount'], found['currency'])}  {what}", width, "      ")
    if not found["by_region"]:
        yield from wrap("  no charges", width)


def _not_looked(answer: Answer, width: int, everything: bool) -> Iterator[str]:
    if not answer.not_looked:
        return
    yield ""
    yield "NOT LOOKED AT"
    for row in answer.not_looked:
        most = len(row["names"]) if everything else 8
        names = ", ".join(row["names"][:most]) + (" …" if len(row["names"]) > most else "")
        yield from wrap(f"  {row['what']}: {row['why']}{': ' if names else ''}{names}", width, "    ")
        for text in row["by_hand"] if everything else row["by_hand"][:2]:
            yield from continued(text, width)


def _tomorrow(width: int) -> Iterator[str]:
    yield ""
    yield from wrap(
        "Look again tomorrow: bills come a day late, sizes of buckets once a day, and what starts machines by itself "
        "may start one tonight. `--save FILE` today, `--compare FILE` tomorrow tells what is new.", width, "  ",
    )  # fmt: skip

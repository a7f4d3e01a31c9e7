"""Look everywhere: each kind in each region, several at a time, and say of every one whether it answered."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from loadsheet.cloud.aws.failures import CallFailed
from loadsheet.cloud.aws.session import TIMEOUT, Account
from loadsheet.cloud.checklist import CannotLook
from loadsheet.cloud.leftovers.item import ACCOUNT, Failure, Found, Item, clean
from loadsheet.cloud.leftovers.registry import Kind, Place, calls
from loadsheet.errors import BadInput, UnknownKey, shorten
from loadsheet.text import many

MOST: Final = 100_000  # items of one kind in one region
ALL: Final = "*"  # in a failure: every region, or every kind
#: after one of these the other kinds of the same service in that region are not waited for
_HOPELESS: Final = ("unreachable", "credentials")
POLICY: Final = "`loadsheet leftovers --aws-policy` prints the policy that allows what is read"
_PAGE: Final = re.compile(r"\s*(?:b?['\"]\s*)?<(?:!doctype|\?xml|html|head|body)\b.*", re.IGNORECASE)


def open_account(
    chosen: Iterable[Kind], regions: Iterable[str], *, paid: bool = False, wait: float = TIMEOUT
) -> Account:
    """The account, opened for the calls of these kinds and no others; CallFailed where it cannot be."""
    return Account(regions, paid=paid, timeout=wait, allowed=calls(chosen, paid))


def look(
    account: Account,
    chosen: Sequence[Kind],
    regions: Sequence[str] = (),
    *,
    timeout: float = 600.0,
    tell: Callable[[str], None] = lambda text: None,
) -> Found:
    """Every kind in every region; nothing is raised but UnknownKey for a region that there is not.

    `timeout`: seconds for all of it; what is not done by then has failed.
    """
    found = Found(time=time.time(), endpoint=clean(account.endpoint), only=tuple(regions))
    end = time.monotonic() + timeout
    account.until = end
    try:
        _fill(account, chosen, found, end, tell)
    finally:
        account.until = None
    found.items.sort(key=lambda item: (item.region, item.kind, item.id))
    found.looked.sort()
    found.failed.sort(key=lambda failure: (failure.region, failure.kind))
    return found


def _fill(
    account: Account, chosen: Sequence[Kind], found: Found, end: float, tell: Callable[[str], None]
) -> None:
    """Who asks, which regions there are, and all kinds in them."""
    tell("asking who asks")
    try:
        found.home = account.home
        found.account = clean(account.call("sts", "get_caller_identity").get("Account", ""))
    except CannotLook as error:
        found.failed.append(failure(error, ALL, "account"))
        if getattr(error, "kind", "") == "credentials":  # nothing else would answer
            return
    places = _regions(account, found)
    jobs = [(region, kind) for region in places for kind in chosen if not kind.everywhere]
    jobs = [*((ACCOUNT, kind) for kind in chosen if kind.everywhere), *jobs]
    _Sweep(account, found, jobs, end, tell).run()


def _regions(account: Account, found: Found) -> list[str]:
    """The regions to look at; what is disabled or was not named is said."""
    named, where = found.only, account.home or account.base
    try:
        rows = account.call("ec2", "describe_regions", region=where, AllRegions=True).get("Regions")
        if not rows:
            raise CallFailed(
                f"ec2 in {where} gave no answer to DescribeRegions that can be read", region=where
            )
    except CannotLook as error:
        found.failed.append(failure(error, ALL, "regions"))
        return list(named)
    known = {clean(row.get("RegionName", "")): clean(row.get("OptInStatus", "")) for row in rows}
    for name in named:
        if name not in known:
            raise UnknownKey(name, known, "region")
    enabled = sorted(name for name, state in known.items() if name and state != "not-opted-in")
    disabled = sorted(known.keys() - set(enabled))
    if disabled:
        found.ignored.append(
            {
                "what": f"{many(len(disabled), 'region')} that the account has disabled",
                "why": "they do not answer; what was made there before costs on",
                "names": disabled,
                "by_hand": [],
            }
        )
    if not named:
        return enabled
    others = [name for name in enabled if name not in named]
    if others:
        found.ignored.append(
            {
                "what": many(len(others), "other region"),
                "why": "--regions named others",
                "names": others,
                "by_hand": ["loadsheet leftovers"],
            }
        )
    return list(named)


class _Sweep:
    """The jobs, done by several threads; what they find goes into one place."""

    def __init__(
        self,
        account: Account,
        found: Found,
        jobs: list[tuple[str, Kind]],
        end: float,
        tell: Callable[[str], None],
    ) -> None:
        self.account, self.found, self.end, self.tell = account, found, end, tell
        self.jobs = {f"{region} {kind.name}": (region, kind) for region, kind in jobs}
        self.left = Counter(region for region, _ in jobs)
        self.hopeless: dict[tuple[str, str], CannotLook] = {}
        self.lock = threading.Lock()
        self.done = 0

    def run(self) -> None:
        """All jobs, in their order."""
        self.account.everywhere(self.jobs, self._one)

    def _one(self, name: str) -> None:
        region, kind = self.jobs[name]
        with self.lock:
            self.tell(f"{self.done} of {len(self.jobs)} looked at, now {kind.name} in {region}")
        items, failed = self._look(region, kind)
        with self.lock:
            self.found.items += items
            if failed:
                self.found.failed += failed
            else:
                self.found.looked.append((region, kind.name))
            self.done += 1
            self.left[region] -= 1
            finished = not self.left[region]
        if finished and region != ACCOUNT:
            self.account.forget(region)

    def _look(self, region: str, kind: Kind) -> tuple[list[Item], list[Failure]]:
        """What there is of a kind in a region, and what could not be looked at."""
        items: list[Item] = []
        failed: list[Failure] = []
        services = {call.partition(":")[0] for call in kind.calls}
        known = next((self.hopeless[key] for s in services if (key := (region, s)) in self.hopeless), None)
        if known is not None:
            return items, [failure(known, region, kind.name)]
        where = region if region != ACCOUNT else self.account.base
        place = Place(self.account, where, kind, self.end, frozenset(self.found.only), self.found.account)
        try:
            place.in_time()
            for item in kind.look(place):
                if isinstance(item, CallFailed):
                    failed.append(failure(item, item.region or region, kind.name))
                elif len(items) < MOST:
                    items.append(item)
                else:
                    raise CallFailed(f"more than {MOST:,}, the rest is not read", kind="many", region=region)
        except CannotLook as error:
            failed.append(failure(error, region, kind.name))
            if getattr(error, "kind", "") in _HOPELESS and len(services) == 1:
                self.hopeless[region, next(iter(services))] = error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # an answer that does not have the form that its service documents
            text = f"the answer has another form than expected ({type(error).__name__})"
            failed.append(Failure(region, kind.name, text))
        return items, failed


def failure(error: CannotLook, region: str, kind: str) -> Failure:
    """What failed where, from what was raised; a page of HTML, as something on the way answers, is not quoted."""
    denied = getattr(error, "kind", "") == "denied"
    text = clean(error)
    html = _PAGE.search(text)
    if text.endswith(
        " ''"
    ):  # an error without a code and a message, as botocore reads a page where XML should be
        text = f"{text[:-3]} an error without a reason"
    return Failure(
        region,
        kind,
        f"{text[: html.start()]} a page of HTML in place of an answer" if html else text,
        getattr(error, "kind", "other"),
        getattr(error, "permission", "") if denied else "",
        getattr(error, "id", ""),
        POLICY if denied else clean(error.next),
    )


def unopened(error: CannotLook, when: float) -> Found:
    """What there is to say where not even an account could be opened."""
    found = Found(time=when)
    found.failed.append(failure(error, ALL, ALL))
    return found


def parse_regions(text: str | None) -> tuple[str, ...]:
    """The regions of `--regions a,b`; BadInput for what is no name of one."""
    names = tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))
    for name in names:
        if not (
            name.isascii() and name.replace("-", "").isalnum() and name == name.lower() and len(name) < 40
        ):
            raise BadInput(f"--regions: got {shorten(name)}, expected names such as `eu-west-1,us-east-1`")
    if text is not None and not names:
        raise BadInput("--regions: got nothing, expected names such as `eu-west-1,us-east-1`")
    return names


def looked_at(found: Found) -> dict[str, Any]:
    """How much was looked at: regions, kinds, pairs of them."""
    regions = {region for region, _ in found.looked if region != ACCOUNT}
    return {
        "regions": len(regions),
        "kinds": len({kind for _, kind in found.looked}),
        "pairs": len(found.looked),
    }

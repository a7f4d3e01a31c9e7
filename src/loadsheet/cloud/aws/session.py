"""The only way to an account of Amazon: clients that read, within bounds, and say why where they cannot.

::

    account = Account()                                    # credentials and region as the AWS tools find them
    account.call("sts", "get_caller_identity")["Arn"]
    for volume in account.items("ec2", "describe_volumes", "Volumes", region="eu-west-1"):
        ...
    found = account.everywhere(account.regions, lambda region: list(account.items(…, region=region)))

Every client has a hook that refuses what is not read-only before anything is sent: by the names of
`permissions.json`, not by the caller's good will. Nothing prompts, nothing asks a machine's metadata service
unless `AWS_EC2_METADATA_DISABLED=false` says so, each try has three seconds, and there are two more of them.
Endpoints may be moved as for every tool of AWS: `AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_SERVICE_QUOTAS`, ….

boto3 is the extra `aws`; it is imported when an Account is made. Made and used from any thread.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Final, TypeVar

from loadsheet.cloud.aws.answers import require_own
from loadsheet.cloud.aws.endpoints import elsewhere
from loadsheet.cloud.aws.failures import (
    CallFailed,
    NotReadOnly,
    failed,
    no_credentials,
    permission,
    permissions,
)
from loadsheet.cloud.aws.in_time import in_time
from loadsheet.cloud.aws.partitions import base_of, partition_of
from loadsheet.cloud.checklist import CannotLook

_T = TypeVar("_T")
TIMEOUT: Final = 3.0  # seconds to connect, and again for each part of an answer
TRIES: Final = 3  # the first and two more
PAGES: Final = 1000  # read at most, of one list in one region
GLOBAL: Final = "us-east-1"  # where services without regions answer; in other partitions their own base
_AT_ONCE: Final = 8  # regions
_PIP: Final = "`pip install 'loadsheet[aws]'`"


class Account:
    """An account, read-only; `CallFailed` (a `CannotLook`) is all that its methods raise.

    `regions`: the ones to look at; all that are enabled if none are named. `paid`: whether calls that cost
    money may be made. `timeout`: seconds. `allowed`: if given, the only calls that may be made, as
    "iam:GetAccountSummary"; the read-only rule holds with or without it.
    """

    def __init__(
        self,
        regions: Iterable[str] = (),
        *,
        paid: bool = False,
        timeout: float = TIMEOUT,
        allowed: Iterable[str] | None = None,
    ) -> None:
        self._wanted = tuple(dict.fromkeys(regions))
        self.paid = paid
        self.timeout = timeout
        self.allowed = None if allowed is None else frozenset(allowed)
        #: every call that was made, as "service:Operation"
        self.calls: set[str] = set()
        #: monotonic seconds at which what has no answer yet has failed; None: only each call's own time holds
        self.until: float | None = None
        self._lock = threading.RLock()
        self._clients: dict[tuple[str, str], Any] = {}
        self._session, self._core = _session()

    @cached_property
    def home(self) -> str:
        """The region that environment and configuration name; empty if they name none."""
        try:
            return str(self._session.region_name or "")
        except Exception as error:  # a profile that is not there
            raise failed(error, "aws", "configuration", "the configuration") from None

    @cached_property
    def base(self) -> str:
        """Where services without regions answer, in the partition of what is looked at: China has its own."""
        return base_of(self._wanted[0] if self._wanted else self.home)

    @cached_property
    def endpoint(self) -> str:
        """Where calls go instead of to AWS, if environment or configuration say so: URLs, with the services."""
        named = {call.partition(":")[0] for call in self.allowed or ()} or {"sts", "ec2", "iam", "s3"}
        return elsewhere(self._core, named)

    @cached_property
    def regions(self) -> list[str]:
        """The regions to look at: those named, else all that are enabled for the account."""
        if self._wanted:
            return list(self._wanted)
        found = self.call("ec2", "describe_regions", region=self.home or GLOBAL)
        return sorted(str(row["RegionName"]) for row in found.get("Regions", ()) if row.get("RegionName"))

    def client(self, service: str, region: str = "") -> Any:
        """A boto3 client whose calls are refused unless they only read; one per service and region."""
        where = region or self.home or GLOBAL
        if where not in self._wanted and partition_of(where) != partition_of(self.base):
            where = self.base
        with self._lock:  # making clients is not safe in threads, using them is
            found = self._clients.get((service, where))
            if found is None:
                found = self._clients[service, where] = self._make(service, where)
            return found

    def forget(self, region: str) -> None:
        """Close the clients of a region that is not asked any more: each holds memory and connections."""
        with self._lock:
            gone = [self._clients.pop(key) for key in list(self._clients) if key[1] == region]
        for client in gone:
            client.close()

    def _make(self, service: str, region: str) -> Any:
        from botocore.config import Config

        config = Config(
            connect_timeout=self.timeout,
            read_timeout=self.timeout,
            retries={"total_max_attempts": TRIES, "mode": "standard"},
            defaults_mode="legacy",  # `auto` would ask the metadata service for a region
            user_agent_extra="loadsheet",
            max_pool_connections=_AT_ONCE,
        )
        try:
            if self._session.get_credentials() is None:
                raise no_credentials(region)
            made = self._session.client(service, region_name=region, config=config)
        except Exception as error:
            raise failed(error, service, "a client", region) from None
        # on each client and not on the session: what the user's own profile does to log in is theirs
        made.meta.events.register_first("before-call.*.*", self._only_read)
        made.meta.events.register_first("after-call.*.*", functools.partial(_own, region))
        return made

    def _only_read(self, model: Any, **rest: Any) -> None:
        """Refuse, before it is sent, what does not only read."""
        require_read_only(model.service_model.service_name, model.name, paid=self.paid)

    def call(self, service: str, operation: str, *, region: str = "", **parameters: Any) -> dict[str, Any]:
        """The answer of one call; `operation` as boto3 writes it, `get_account_summary`."""
        client, name = self._ready(service, operation, region)
        found: dict[str, Any] = self._asked(client, name, lambda: getattr(client, operation)(**parameters))
        return found

    def pages(
        self, service: str, operation: str, *, region: str = "", most: int = PAGES, **parameters: Any
    ) -> Iterator[dict[str, Any]]:
        """The pages of a list, one in memory at a time; CallFailed (`many`) where it is longer than `most`."""
        client, name = self._ready(service, operation, region)
        if not client.can_paginate(operation):
            yield self.call(service, operation, region=region, **parameters)
            return
        pages = iter(client.get_paginator(operation).paginate(**parameters))
        for _ in range(most):
            page: dict[str, Any] | None = self._asked(client, name, lambda: next(pages, None))
            if page is None:
                return
            yield page
        if self._asked(client, name, lambda: next(pages, None)) is None:
            return
        text = (
            f"{service} in {client.meta.region_name}, {name}: more than {most:,} pages, the rest is not read"
        )
        raise CallFailed(text, kind="many", region=client.meta.region_name)

    def _asked(self, client: Any, name: str, ask: Callable[[], _T]) -> _T:
        """What a client answers, within the time that there is; whatever goes wrong is CallFailed."""
        region = client.meta.region_name
        try:
            return in_time(self.until, ask, region)
        except NotReadOnly:
            raise
        except Exception as error:
            raise failed(error, client.meta.service_model.service_name, name, region) from None

    def items(
        self,
        service: str,
        operation: str,
        key: str,
        *,
        region: str = "",
        most: int = PAGES,
        **parameters: Any,
    ) -> Iterator[Any]:
        """What stands under `key` in the pages of a list, one after the other."""
        for page in self.pages(service, operation, region=region, most=most, **parameters):
            yield from page.get(key) or ()

    def _ready(self, service: str, operation: str, region: str) -> tuple[Any, str]:
        """The client, and the service's own name of an operation; noted as called."""
        client = in_time(self.until, lambda: self.client(service, region), region)
        name = client.meta.method_to_api_mapping.get(operation)
        if name is None:
            text = f"this version of boto3 does not know {service} {operation}"
            raise CallFailed(text, "a newer one: `pip install -U boto3`", kind="unsupported")
        called = f"{service}:{name}"
        require_read_only(service, name, paid=self.paid)
        if self.allowed is not None and called not in self.allowed:
            raise NotReadOnly(f"{called} is not among the calls that this account is opened for")
        self.calls.add(called)
        return client, name

    def everywhere(
        self, regions: Iterable[str], look: Callable[[str], _T]
    ) -> dict[str, _T | CallFailed | CannotLook]:
        """What `look` finds in each region, several at a time; the failure in place of what it did not find.

        The threads are daemons: a process that ends does not wait for a region that hangs.
        """
        wanted = list(dict.fromkeys(regions))
        found: dict[str, Any] = {}
        left = iter(wanted)
        faults: list[BaseException] = []
        lock = threading.Lock()

        def work() -> None:
            while not faults:
                with lock:
                    region = next(left, None)
                if region is None:
                    return
                try:
                    found[region] = look(region)
                except CannotLook as error:
                    found[region] = error
                except BaseException as error:
                    faults.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(wanted)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]
        return {region: found[region] for region in wanted}


def _own(region: str, http_response: Any, model: Any, **rest: Any) -> None:
    """Refuse what something on the way has answered, before anybody reads it as "nothing there"."""
    require_own(http_response, model, region)


def require_read_only(service: str, operation: str, *, paid: bool = False) -> None:
    """Raise NotReadOnly unless a call only reads, hands out no secret, and costs nothing (or may).

    >>> require_read_only("ec2", "DescribeVolumes")
    >>> require_read_only("ec2", "DeleteVolume")
    Traceback (most recent call last):
    ...
    loadsheet.cloud.aws.failures.NotReadOnly: ec2:DeleteVolume does not only read
    """
    table = permissions()
    named = f"{service}:{operation}"
    rule = table["read_only"]
    # a name such as GetawayDelete would begin rightly, too: what follows the verb begins with a capital
    reads = any(
        operation.startswith(verb) and operation[len(verb) : len(verb) + 1].isupper()
        for verb in rule["beginnings"]
    )
    if not reads and operation not in rule["others"]:
        raise NotReadOnly(f"{named} does not only read")
    if named in table["never"]["operations"]:
        raise NotReadOnly(f"{named} hands out what nobody asked for")
    costs = table["paid"]
    if not paid and (service in costs["services"] or named in costs["operations"]):
        raise NotReadOnly(f"{named} costs money")


def policy(calls: Iterable[str]) -> dict[str, Any]:
    """The smallest policy of IAM that allows these calls ("iam:GetAccountSummary"), as its JSON.

    >>> policy(["s3:ListBuckets", "sts:GetCallerIdentity"])["Statement"][0]["Action"]
    ['s3:ListAllMyBuckets']
    """
    free = permissions()["free_for_all"]
    actions = sorted({permission(*name.split(":", 1)) for name in calls if name not in free})
    statement = {"Sid": "LoadsheetReads", "Effect": "Allow", "Action": actions, "Resource": "*"}
    return {"Version": "2012-10-17", "Statement": [statement]}


def _session() -> tuple[Any, Any]:
    """A session of boto3 that asks nobody and no metadata service, and botocore's behind it."""
    try:
        import boto3
        import botocore.session
    except ImportError:
        raise CallFailed("boto3 is not installed", _PIP, kind="unsupported") from None
    core = botocore.session.Session()
    try:
        chain = core.get_component("credential_provider")
        if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "false":
            chain.remove("iam-role")
        for provider in chain.providers:
            if hasattr(provider, "_prompter"):  # botocore has no other way to keep it from asking for a code
                provider._prompter = _ask_nobody
        return boto3.session.Session(botocore_session=core), core
    except Exception as error:
        raise failed(error, "aws", "configuration", "the configuration") from None


def _ask_nobody(prompt: object = "") -> str:
    """In the place of a prompt for the code of a second factor."""
    text = "the profile asks for the code of a second factor, and nothing is asked here"
    raise CallFailed(text, "take a session of it first (`aws sts get-session-token`)", kind="credentials")

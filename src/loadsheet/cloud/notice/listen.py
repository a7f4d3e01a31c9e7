"""Listening: which service is here, what it says, and how a run gets to know.

The notice file is the one that `LOADSHEET_NOTICE` names for the run. What is once announced stays announced
while the service does not answer: silence is no cancellation.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from loadsheet.cloud.notice.aws import Aws
from loadsheet.cloud.notice.azure import Azure
from loadsheet.cloud.notice.gcp import NOTICE, Gcp
from loadsheet.cloud.notice.http import NoAnswer
from loadsheet.cloud.notice.said import Said
from loadsheet.errors import BadFile, LoadsheetError, UnknownKey
from loadsheet.run.directory import write_whole
from loadsheet.run.notices import Notices

#: failed looks in a row after which it is said that nothing is heard any more
_BLIND: Final = 3
PROVIDERS: Final = ("aws", "gcp", "azure")


class Service(Protocol):
    """What `Aws`, `Gcp` and `Azure` have in common."""

    name: str
    every: float

    def here(self) -> bool:
        """Whether this machine belongs to it."""

    def look(self) -> Said | None:
        """What is planned for this machine."""


class NoService(LoadsheetError):
    """No metadata service answers: this machine is not in one of the clouds, or hides it."""

    exit_code = 1


def services(
    provider: str = "auto", endpoints: Mapping[str, str | None] | None = None, gcp_notice: float = NOTICE
) -> list[Service]:
    """The services to try; UnknownKey for a provider that is not known, BadInput for an endpoint."""
    if provider not in ("auto", *PROVIDERS):
        raise UnknownKey(provider, ("auto", *PROVIDERS), "provider")
    where = endpoints or {}
    made: list[Service] = [
        Aws(where.get("aws")),
        Gcp(where.get("gcp"), gcp_notice),
        Azure(where.get("azure")),
    ]
    return [s for s in made if provider in ("auto", s.name)]


def find(candidates: Iterable[Service]) -> Service:
    """The service of this machine; NoService, with what each one answered, if there is none."""
    reasons = []
    for service in candidates:
        try:
            if service.here():
                return service
            reasons.append(f"{service.name}: answers, but not as it should")
        except NoAnswer as error:
            reasons.append(f"{service.name}: {error.reason}")
    raise NoService(
        f"notices: got no metadata service ({'; '.join(reasons)}), expected one of this machine's provider",
        "outside a cloud there is nothing to hear; for a machine of another kind write the notice file yourself",
    )


class Ear:
    """One service, looked at again and again; `current` is what stands announced."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.current: Said | None = None
        self._failed = 0
        self._blind = False

    def look(self) -> list[dict[str, Any]]:
        """Look once; what is new, as events: notice, cancelled, blind, hearing."""
        events: list[dict[str, Any]] = []
        try:
            found = self.service.look()
        except NoAnswer as error:
            self._failed += 1
            if self._failed >= _BLIND and not self._blind:
                self._blind = True
                events.append(self._event("blind", reason=str(error)))
            return events
        if self._blind:
            self._blind = False
            events.append(self._event("hearing"))
        self._failed = 0
        if found is not None and found != self.current:
            events.append(self._event("notice", **found.to_json()))
        elif found is None and self.current is not None:
            events.append(
                self._event("cancelled", kind="cancelled", deadline=None, source=self.current.source)
            )
        self.current = found
        return events

    def pause(self) -> float:
        """Seconds until the next look; after a failure at least one."""
        own = getattr(self.service, "pause", None)
        seconds = float(own()) if own is not None else self.service.every
        return max(seconds, 1.0) if self._failed else seconds

    def _event(self, name: str, **more: Any) -> dict[str, Any]:
        return {"time": time.time(), "provider": self.service.name, "event": name, **more}


def write_notice(path: Path, event: Mapping[str, Any]) -> None:
    """Write the notice file, whole or not at all; BadFile if it cannot be written."""
    notice = {key: event[key] for key in ("kind", "deadline", "source")}
    try:
        write_whole(path, json.dumps(notice).encode() + b"\n")
    except OSError as error:
        raise BadFile(
            f"notice file `{path}`: got {error.strerror!r}, expected a place that can be written"
        ) from None


def _left(path: Path, provider: str) -> Said | None:
    """What stands in the notice file by the hand of an earlier listener to the same provider."""
    notice = Notices(path).current() if path.exists() else None
    if notice is None or notice.kind == "cancelled" or not notice.source.startswith(f"{provider} "):
        return None
    return Said(notice.kind, notice.deadline, notice.source)


def listen(
    ear: Ear,
    path: Path | None,
    say: Callable[[dict[str, Any]], None],
    ended: threading.Event,
) -> None:
    """Look until `ended` is set; write what is new into the file `path`, and `say` every event.

    What an earlier listener wrote there stands until this one hears otherwise: then it is taken back.
    """
    if path is not None:
        ear.current = _left(path, ear.service.name)
    while not ended.is_set():
        for event in ear.look():
            if path is not None and event["event"] in ("notice", "cancelled"):
                write_notice(path, event)
            say(event)
        ended.wait(ear.pause())


def cloud_notices(
    provider: str = "auto", *, endpoints: Mapping[str, str | None] | None = None, gcp_notice: float = NOTICE
) -> Callable[[], dict[str, Any] | None]:
    """What to pass as `notice=` to `Run.open`, to hear of the end without a program beside the training.

    Raises NoService if this machine belongs to none of the three; `provider` names one.
    """
    ear = Ear(find(services(provider, endpoints, gcp_notice)))
    asked = [float("-inf")]

    def ask() -> dict[str, Any] | None:
        if time.monotonic() - asked[0] >= ear.pause():
            ear.look()
            asked[0] = time.monotonic()
        return None if ear.current is None else ear.current.to_json()

    return ask

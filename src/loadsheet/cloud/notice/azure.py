"""Azure: scheduled events of the instance metadata service.

A list of events for all machines of a group; ours are those whose `Resources` name this machine. `Preempt`
comes 30 s before the end at least, `Reboot` and `Redeploy` 10 to 15 minutes. `NotBefore` is empty once an event
has started; an event that leaves the list has ended or was cancelled. The first request may take two minutes
and switches the service on. To approve an event hastens the end, so nothing here does it. Source: Microsoft,
"Scheduled Events for Linux VMs" (api-version 2020-07-01, poll every second); read 2026-11.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Final

from loadsheet.cloud.notice.http import NoAnswer, ask, base_url
from loadsheet.cloud.notice.said import Said, announced, most_urgent, unix_time

ENDPOINT: Final = "http://169.254.169.254"
VARIABLE: Final = "LOADSHEET_AZURE_ENDPOINT"
_EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_HEADERS: Final = {"Metadata": "true"}
_ENDS: Final = {"Preempt", "Terminate", "Reboot", "Redeploy"}  # Freeze only pauses the machine
_FIRST: Final = 130.0  # seconds that the first request may take


class Azure:
    """The service of the machine this runs on; `every` seconds between two looks."""

    name = "azure"
    every = 1.0

    def __init__(self, endpoint: str | None = None) -> None:
        self.base = base_url(endpoint or os.environ.get(VARIABLE) or ENDPOINT, "--azure-endpoint")
        self.machine = ""
        self._on = False
        self._started: dict[str, float] = {}

    def here(self) -> bool:
        """Whether this machine is one of Azure's; NoAnswer if nobody answers."""
        answer = ask(self.base, _NAME, _HEADERS)
        if answer.status != 200 or not answer.text or len(answer.text) > 200:
            return False
        self.machine = answer.text
        return True

    def look(self) -> Said | None:
        """What is planned for this machine, None if nothing is; NoAnswer if that could not be learnt."""
        if not self.machine and not self.here():
            raise NoAnswer(f"{self.base}: got no name of this machine, expected one")
        answer = ask(self.base, _EVENTS, _HEADERS, timeout=5.0 if self._on else _FIRST)
        if answer.status != 200:
            raise NoAnswer(f"{self.base}{_EVENTS}: got status {answer.status}, expected 200")
        self._on = True
        try:
            events = json.loads(answer.text)["Events"]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise NoAnswer("azure scheduled events: got no list of events, expected JSON") from None
        return most_urgent(
            self._said(e) for e in (events if isinstance(events, list) else []) if self._ours(e)
        )

    def _ours(self, event: Any) -> bool:
        if not isinstance(event, dict) or str(event.get("EventType")) not in _ENDS:
            return False
        resources = event.get("Resources")
        return (
            isinstance(resources, list)
            and self.machine in resources
            and event.get("EventStatus") != "Completed"
        )

    def _said(self, event: dict[str, Any]) -> Said:
        deadline = unix_time(event.get("NotBefore"))
        if deadline is None:  # it has started
            identity = str(event.get("EventId"))[:80]
            if len(self._started) > 100:
                self._started.clear()
            deadline = self._started.setdefault(identity, time.time())
        kind = str(event["EventType"])
        source = f"azure {kind.lower()}"
        if kind in ("Preempt", "Terminate"):
            return Said("terminate", deadline, source)
        return announced(deadline, source)

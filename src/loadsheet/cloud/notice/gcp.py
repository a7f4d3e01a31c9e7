"""Google Cloud: the metadata server of a virtual machine.

`/instance/preempted` is TRUE once the machine will be taken: 30 s before the end, best effort, or as long
before as `preemptionNoticeDuration` says. `/instance/maintenance-event` changes 60 s before a maintenance; a
machine with GPUs cannot be moved, it is ended. Every request carries `Metadata-Flavor: Google`, and so does
every answer. Sources: Compute Engine documentation, "Spot VMs", "Preemption process", "Query VM metadata"
(`wait_for_change`, `last_etag`), "Get live migration notices"; read 2026-11.
"""

from __future__ import annotations

import os
import time
from typing import Final

from loadsheet.cloud.notice.http import NoAnswer, ask, base_url
from loadsheet.cloud.notice.said import Said, most_urgent

ENDPOINT: Final = "http://metadata.google.internal"
VARIABLE: Final = "GCE_METADATA_HOST"
#: seconds between the notice and the end, if the machine was not made with another notice duration
NOTICE: Final = 30.0
MAINTENANCE: Final = 60.0
_FLAVOR: Final = {"Metadata-Flavor": "Google"}
_NAMES: Final = ("preempted", "maintenance-event")


class Gcp:
    """The server of the machine this runs on.

    The first look answers at once. Later ones wait for a change of `preempted` (`wait` seconds at most), so
    a notice is known within milliseconds: of thirty seconds each one counts.
    """

    name = "gcp"
    every = 0.0

    def __init__(self, endpoint: str | None = None, notice: float = NOTICE, wait: float = 20.0) -> None:
        self.base = base_url(endpoint or os.environ.get(VARIABLE) or ENDPOINT, "--gcp-endpoint")
        self._notice = notice
        self._wait = wait
        self._etag = ""
        self._seen: dict[str, tuple[str, float]] = {}

    def here(self) -> bool:
        """Whether this machine is one of Google's; NoAnswer if nobody answers."""
        answer = ask(self.base, "/computeMetadata/v1/instance/preempted", _FLAVOR)
        return answer.status == 200 and answer.headers.get("metadata-flavor") == "Google"

    def look(self) -> Said | None:
        """What is planned for this machine, None if nothing is; NoAnswer if that could not be learnt."""
        found = []
        for name in _NAMES:
            value, since = self._value(name)
            if name == "preempted" and value == "TRUE":
                found.append(Said("terminate", since + self._notice, "gcp preempted"))
            if name != "preempted" and value == "TERMINATE_ON_HOST_MAINTENANCE":
                found.append(Said("terminate", since + MAINTENANCE, "gcp host maintenance"))
            if name != "preempted" and value == "MIGRATE_ON_HOST_MAINTENANCE":
                found.append(Said("rebalance", None, "gcp live migration"))
        return most_urgent(found)

    def _value(self, name: str) -> tuple[str, float]:
        """The value, and when it was first seen: the same notice must not move."""
        path = f"/computeMetadata/v1/instance/{name}"
        wait = 0.0
        if name == "preempted" and self._waits():
            wait = self._wait
            path += f"?wait_for_change=true&timeout_sec={self._wait:.0f}&last_etag={self._etag}"
        answer = ask(self.base, path, _FLAVOR, timeout=wait + 5.0)
        if answer.status != 200 or answer.headers.get("metadata-flavor") != "Google":
            self._etag = ""
            raise NoAnswer(
                f"{self.base}{path}: got status {answer.status}, expected 200 from Google's server"
            )
        if name == "preempted":
            etag = answer.headers.get("etag", "")
            self._etag = etag if etag.isalnum() and len(etag) < 100 else ""
        if self._seen.get(name, ("",))[0] != answer.text:
            self._seen[name] = (answer.text, time.time())
        return self._seen[name]

    def _waits(self) -> bool:
        """Whether the server is asked to answer only once something changes: not after the end is announced."""
        return bool(self._etag) and self._seen.get("preempted", ("",))[0] == "FALSE"

    def pause(self) -> float:
        """Seconds until the next look: none if that look waits by itself."""
        return 0.0 if self._waits() else 1.0

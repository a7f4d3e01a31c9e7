"""AWS: the instance metadata service, version 2.

`PUT /latest/api/token` gives a token that later requests carry; 401 means that it has expired. The path of
an event answers 404 as long as nothing is planned, which is the normal state. Sources: Amazon EC2 User
Guide, "Spot Instance interruption notices" (two minutes, best effort, poll every 5 s), "EC2 instance
rebalance recommendations", "Scheduled events for your instances", "Use IMDSv2"; read 2026-11.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Final

from loadsheet.cloud.notice.http import Answer, NoAnswer, ask, base_url
from loadsheet.cloud.notice.said import Said, announced, most_urgent, unix_time

ENDPOINT: Final = "http://169.254.169.254"
VARIABLE: Final = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_TTL: Final = 21600  # seconds a token lives, the most there is
_ENDS: Final = {
    "instance-stop",
    "instance-retirement",
    "instance-reboot",
    "system-reboot",
    "system-maintenance",
}


class Aws:
    """The service of the instance this runs on; `every` seconds between two looks."""

    name = "aws"
    every = 5.0

    def __init__(self, endpoint: str | None = None) -> None:
        self.base = base_url(endpoint or os.environ.get(VARIABLE) or ENDPOINT, "--aws-endpoint")
        self._token = ""

    def here(self) -> bool:
        """Whether this machine is an instance of AWS; NoAnswer if nobody answers."""
        self._renew()
        return bool(self._token)

    def look(self) -> Said | None:
        """What is planned for this instance, None if nothing is; NoAnswer if that could not be learnt."""
        found = [self._interruption(), self._rebalance(), *self._maintenance()]
        return most_urgent(s for s in found if s is not None)

    # --- requests ---------------------------------------------------------------------------------------

    def _renew(self) -> None:
        answer = ask(
            self.base, "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(_TTL)}, method="PUT"
        )
        if (
            answer.status != 200
            or not answer.text
            or len(answer.text) > 1024
            or not answer.text.isprintable()
        ):
            raise NoAnswer(f"{self.base}: got status {answer.status} for a token, expected 200", _TOKEN)
        self._token = answer.text

    def _get(self, path: str) -> Answer | None:
        """The answer, None for 404; a token that has expired is renewed once."""
        for attempt in (1, 2):
            if not self._token:
                self._renew()
            answer = ask(self.base, f"/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": self._token})
            if answer.status == 401 and attempt == 1:
                self._token = ""
                continue
            if answer.status == 404:
                return None
            if answer.status == 200:
                return answer
            break
        raise NoAnswer(
            f"{self.base}/latest/meta-data/{path}: got status {answer.status}, expected 200 or 404"
        )

    # --- what they mean ---------------------------------------------------------------------------------

    def _interruption(self) -> Said | None:
        answer = self._get("spot/instance-action")
        if answer is None:
            return None
        action = _object(answer.text)
        deadline = unix_time(action.get("time"))
        what = str(action.get("action") or "unknown")[:20]
        if what == "hibernate" and deadline is None:
            deadline = time.time()  # it has begun: there are no two minutes
        return Said("terminate", deadline, f"aws spot {what}")

    def _rebalance(self) -> Said | None:
        answer = self._get("events/recommendations/rebalance")
        return None if answer is None else Said("rebalance", None, "aws rebalance recommendation")

    def _maintenance(self) -> list[Said]:
        answer = self._get("events/maintenance/scheduled")
        if answer is None:
            return []
        try:
            events = json.loads(answer.text or "[]")
        except (ValueError, RecursionError):
            raise NoAnswer("aws scheduled events: got no JSON, expected a list") from None
        found = []
        for event in events[:100] if isinstance(events, list) else []:
            if isinstance(event, dict) and event.get("State") == "active" and str(event.get("Code")) in _ENDS:
                found.append(announced(unix_time(event.get("NotBefore")), f"aws {event['Code']}"))
        return found


_TOKEN = (
    "in a container the metadata may be one hop too far: raise the hop limit to 2, or run this on the host"
)


def _object(text: str) -> dict[str, Any]:
    """The object, {} for anything else: that there is an answer at all is the notice."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

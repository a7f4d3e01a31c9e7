"""Asking a metadata service: one short request, no proxy, no redirect, a bounded answer.

These services answer on a link-local address that no proxy knows; a library that honours `http_proxy`
would ask the proxy. So this is `http.client`, and nothing above it.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from loadsheet.errors import BadInput, LoadsheetError, shorten

#: seconds to reach the service: it is one hop away or not there at all
CONNECT = 1.0
#: bytes of an answer; the longest, Azure's list of events, has a few hundred per event
LARGEST = 256 * 1024


class NoAnswer(LoadsheetError):
    """The service cannot be reached, or says something that cannot be its answer."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "", *, reason: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason or str(self)


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, text and headers (names in lower case)."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


def base_url(text: str, what: str) -> str:
    """A base URL such as `http://169.254.169.254`, without the last slash; BadInput for anything else."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        good = parts.scheme == "http" and parts.hostname and not parts.query and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise BadInput(f"{what}: got {shorten(text)}, expected a URL such as `http://169.254.169.254`")
    return url.rstrip("/")


def ask(
    base: str,
    path: str,
    headers: Mapping[str, str],
    *,
    method: str = "GET",
    timeout: float = 2.0,
) -> Answer:
    """One request; NoAnswer if there is none within `timeout` seconds or it is too long."""
    parts = urlsplit(base)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=CONNECT)
    try:
        connection.connect()
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        connection.request(method, parts.path + path, headers=dict(headers))
        response = connection.getresponse()
        body = response.read(LARGEST + 1)
        if len(body) > LARGEST:
            raise NoAnswer(f"{base}{path}: got more than {LARGEST} bytes, expected a short answer")
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, body.decode("utf-8", "replace").strip(), found)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NoAnswer(
            f"{base}{path}: got no answer ({reason}), expected the metadata service",
            reason=str(reason).lower(),
        ) from None
    finally:
        connection.close()

"""No test leaves this machine: a guard that refuses, and remembers, every step off loopback.

Ask for the fixture, in a test or for a whole file::

    pytestmark = pytest.mark.usefixtures("offline")

What Python's own sockets do is caught by an audit hook: connecting, sending datagrams, looking up names,
from any thread and through any library. The client gets a refused connection, as on a machine without a
network; and because a client may swallow that, the test fails at its end unless it takes what was refused
out of `offline.refused` itself. Sockets of native code (obstore, aws-cli) are beyond a hook: for these
every proxy variable points to a closed port on loopback. Accounts that the environment knows are replaced
by one that does not exist. Programs started with `offline.environment` are guarded in the same way: they
find this file as `sitecustomize`, end with status 99 where they would have left, and say so on stderr.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: audit event -> which of its arguments names the other side
_EVENTS = {
    "socket.connect": 1,
    "socket.sendto": 1,
    "socket.sendmsg": 1,
    "socket.getaddrinfo": 0,
    "socket.gethostbyname": 0,
    "socket.gethostbyaddr": 0,
    "socket.getnameinfo": 0,
}
#: a question for a name; a number needs no answer from elsewhere
_FORWARD = {"socket.getaddrinfo", "socket.gethostbyname"}
_NAMES = {"", "localhost", "localhost.localdomain", "ip6-localhost", "0.0.0.0", "::"}
#: a port nobody listens on: native clients that honour proxies end here
_NOWHERE = "http://127.0.0.1:9"
_FAKE = {
    **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), _NOWHERE),
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), _NOWHERE),
    "no_proxy": "localhost,127.0.0.1,::1",
    "NO_PROXY": "localhost,127.0.0.1,::1",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_MAX_ATTEMPTS": "1",
    "CLOUDSDK_CONFIG": os.devnull,
    "AZURE_CONFIG_DIR": os.devnull,
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
}
_REMOVED = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "HF_TOKEN", "WANDB_API_KEY")  # fmt: skip
_CHILD = "LOADSHEET_TESTS_OFFLINE"


class Offline:
    """What was refused so far, and the environment for programs that are to be guarded too."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, with the guard as `sitecustomize` of every Python below it."""
        site = str(Path(__file__).with_name("offline_site"))
        path = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path, _CHILD: "1"}


def on_loopback(address: object) -> bool:
    """Whether an address, as sockets take it, stays on this machine: loopback, a name of it, a Unix socket.

    >>> [on_loopback(a) for a in (("127.0.0.2", 80), ("::1", 80, 0, 0), "/run/x", ("169.254.169.254", 80))]
    [True, True, True, False]
    """
    if address is None or isinstance(address, (bytes, int)):
        return True  # a Unix socket's abstract name, a netlink number, "any"
    if isinstance(address, str):
        return "/" in address or _local_name(address)
    if isinstance(address, tuple) and address:
        host = address[0]
        return not isinstance(host, str) or _local_name(host)
    return False


def _local_name(host: str) -> bool:
    if host.rstrip(".").lower() in _NAMES:
        return True
    found = _number(host)
    return found is not None and (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _number(host: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text spells out; None for a name."""
    try:
        return ipaddress.ip_address(str(host).strip("[]").partition("%")[0])
    except ValueError:
        return None


#: who is told what was refused, the innermost last; nobody: nothing is refused
_told: list[Callable[[str], None]] = []
_hooked = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    position = _EVENTS.get(event)
    if position is None or not _told:
        return
    address = arguments[position]
    if event == "socket.getaddrinfo" and isinstance(address, bytes):
        address = address.decode(errors="replace")
    if on_loopback(address) or (event in _FORWARD and _number(address) is not None):
        return
    text = f"{event} {address!r}"[:200]
    _told[-1](text)
    raise ConnectionRefusedError(f"tests stay on loopback: {text}")


def _hook() -> None:
    """An audit hook stays for the life of the process; it looks away while no test asks for it."""
    global _hooked  # noqa: PLW0603
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True


def guard_child() -> None:
    """Guard this process until its end; `offline_site/sitecustomize.py` calls it."""

    def end(text: str) -> None:
        sys.stderr.write(f"tests stay on loopback: {text}\n")
        sys.stderr.flush()
        os._exit(99)

    if os.environ.get(_CHILD) == "1":
        _told.append(end)
        _hook()


if os.environ.get(_CHILD) != "1":  # in a guarded child nothing but the guard is loaded
    import pytest

    @pytest.fixture
    def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Offline]:
        """Refuse every step off loopback, and fail the test that tried one, even where it was swallowed."""
        for name, value in _FAKE.items():
            monkeypatch.setenv(name, value)
        for name in _REMOVED:
            monkeypatch.delenv(name, raising=False)
        guard = Offline()
        tell = guard.refused.append
        _hook()
        _told.append(tell)
        try:
            yield guard
        finally:
            _told.remove(tell)
        assert guard.refused == [], "the test tried to leave this machine"

"""The guard that keeps tests on this machine: it refuses, it remembers, and it lets loopback through."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable

import pytest
from offline import Offline, on_loopback

pytest_plugins = ["pytester"]

OUTSIDE = ("192.0.2.1", 80)  # TEST-NET-1 (RFC 5737): nobody's address


def connect() -> None:
    """A TCP connection."""
    socket.create_connection(OUTSIDE, timeout=5)


def connect_ex() -> None:
    """The call that answers with a number instead of an exception."""
    with socket.socket() as client:
        client.settimeout(5)
        client.connect_ex(OUTSIDE)


def datagram() -> None:
    """A packet without a connection."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"", OUTSIDE)


def message() -> None:
    """The same through sendmsg."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendmsg([b""], [], 0, OUTSIDE)


def lookup() -> None:
    """A name: the question itself leaves the machine."""
    socket.getaddrinfo("loadsheet.example", 443)


def lookup_old() -> None:
    """The older call for the same."""
    socket.gethostbyname("loadsheet.example")


def request() -> None:
    """A library on top of sockets, without the proxy that the environment names."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open("http://169.254.169.254/latest/meta-data/", timeout=5)


def metadata_v6() -> None:
    """The metadata address of IPv6, if this machine has any."""
    with socket.socket(socket.AF_INET6) as client:
        client.settimeout(5)
        client.connect(("fd00:ec2::254", 80))


WAYS = [connect, connect_ex, datagram, message, lookup, lookup_old, request, metadata_v6]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_out_is_refused(way: Callable[[], None], offline: Offline) -> None:
    """Each way gets the refused connection of a machine without a network, and is remembered."""
    with pytest.raises(OSError, match="tests stay on loopback"):
        way()
    assert len(offline.refused) == 1
    offline.refused.clear()


def test_another_thread_is_guarded(offline: Offline) -> None:
    """What a thread tries is refused and remembered too."""
    failed: list[OSError] = []

    def attempt() -> None:
        try:
            connect()
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert (len(failed), len(offline.refused)) == (1, 1)
    offline.refused.clear()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_is_let_through(host: str, offline: Offline) -> None:
    """A server of the test is reached, by address and by name."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection((host, server.getsockname()[1]), timeout=30) as client,
    ):
        peer, _ = server.accept()
        client.sendall(b"x")
        assert peer.recv(1) == b"x"
        peer.close()
    assert offline.refused == []


@pytest.mark.parametrize(
    ("address", "local"),
    [
        (("127.255.0.9", 1), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        (("::ffff:192.0.2.1", 1, 0, 0), False),
        (("localhost.example.com", 1), False),
        (("127.0.0.1.example.com", 1), False),
        ("/run/docker.sock", True),
        (("10.0.0.1", 1), False),
    ],
)
def test_what_is_loopback(address: object, local: bool) -> None:
    """Names that only look like this machine are not."""
    assert local == on_loopback(address)


def test_the_environment_knows_no_account(offline: Offline) -> None:
    """Whatever the person who runs the tests is logged in to is out of reach."""
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "testing"
    assert os.devnull == os.environ["AWS_CONFIG_FILE"]
    assert "AWS_PROFILE" not in os.environ


def test_a_child_is_guarded(offline: Offline) -> None:
    """A Python that is started with the guard's environment ends at its first step outside."""
    code = "import socket\ntry:\n socket.create_connection(('192.0.2.1', 80), 5)\nexcept OSError:\n pass"
    done = subprocess.run(
        [sys.executable, "-c", code], env=offline.environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (99, "")
    assert "tests stay on loopback: socket.connect ('192.0.2.1', 80)" in done.stderr
    done = subprocess.run([sys.executable, "-c", "import socket"], env=offline.environment, check=False)
    assert done.returncode == 0


def test_a_swallowed_attempt_fails_the_test(pytester: pytest.Pytester) -> None:
    """A test whose code tries to leave and keeps silent about it is red all the same."""
    pytester.makeconftest("from offline import offline")
    pytester.makepyfile(
        """
        import socket

        def test_quiet(offline):
            try:
                socket.create_connection(("192.0.2.1", 80), 5)
            except OSError:
                pass

        def test_good(offline):
            socket.getaddrinfo("127.0.0.1", 80)
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)

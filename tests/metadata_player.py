"""The metadata services of three clouds, played on loopback as their documentation describes them.

Sources: Amazon EC2 User Guide (IMDSv2: a token by PUT, 401 without, 404 while nothing is planned; times in
ISO 8601), Compute Engine documentation ("Query VM metadata": `Metadata-Flavor` both ways, 403 without,
`wait_for_change` with `last_etag`), Microsoft "Scheduled Events for Linux VMs" (400 without `Metadata: true`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class World:
    """What is planned; a test changes it, the players answer accordingly."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.tokens = {"first"}  # those that have not expired
        self.given = 0
        self.aws: dict[str, str] = {}  # path under meta-data -> text
        self.gcp = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.etag = 1
        self.azure: list[dict[str, Any]] = []
        self.machine = "vm0"
        self.status: int | None = None  # answered to everything, if set
        self.requests: list[str] = []

    def set_gcp(self, name: str, value: str) -> None:
        """Change a value, and wake who waits for a change."""
        with self.changed:
            self.gcp[name] = value
            self.etag += 1
            self.changed.notify_all()

    def expire(self) -> None:
        """All tokens handed out so far are worth nothing any more."""
        self.tokens.clear()


def handler_of(world: World, which: str) -> type[BaseHTTPRequestHandler]:
    """A request handler that plays one of the three."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Quiet."""

        def answer(self, status: int, text: str = "", **headers: str) -> None:
            data = text.encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_PUT(self) -> None:
            world.requests.append(f"PUT {self.path}")
            ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if which != "aws" or self.path != "/latest/api/token" or world.status:
                return self.answer(world.status or 404)
            if not ttl.isdigit() or not 1 <= int(ttl) <= 21600:
                return self.answer(400)
            world.given += 1
            token = f"token-{world.given}"
            world.tokens.add(token)
            return self.answer(200, token, X_aws_ec2_metadata_token_ttl_seconds=ttl)

        def do_GET(self) -> None:
            world.requests.append(f"GET {self.path}")
            if world.status:
                return self.answer(world.status)
            return getattr(self, which)()

        def aws(self) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") not in world.tokens:
                return self.answer(401)
            text = world.aws.get(self.path.removeprefix("/latest/meta-data/"))
            return self.answer(404) if text is None else self.answer(200, text)

        def gcp(self) -> None:
            if self.headers.get("Metadata-Flavor") != "Google":
                return self.answer(403)
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            name = parts.path.removeprefix("/computeMetadata/v1/instance/")
            if name not in world.gcp:
                return self.answer(404, Metadata_Flavor="Google")
            with world.changed:
                if query.get("wait_for_change") == "true":
                    until = time.monotonic() + float(query.get("timeout_sec", 60))
                    while str(world.etag) == query.get("last_etag") and time.monotonic() < until:
                        world.changed.wait(max(until - time.monotonic(), 0.0))
                text, etag = world.gcp[name], str(world.etag)
            return self.answer(200, text + "\n", Metadata_Flavor="Google", ETag=etag)

        def azure(self) -> None:
            if self.headers.get("Metadata") != "true":
                return self.answer(400)
            parts = urlsplit(self.path)
            if "api-version" not in parse_qs(parts.query):
                return self.answer(400)
            if parts.path == "/metadata/instance/compute/name":
                return self.answer(200, world.machine)
            if parts.path != "/metadata/scheduledevents":
                return self.answer(404)
            return self.answer(200, json.dumps({"DocumentIncarnation": 1, "Events": world.azure}))

    return Handler


@contextmanager
def played(world: World, which: str) -> Iterator[str]:
    """The base URL of a service that answers as `world` says."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(world, which))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        with world.changed:
            world.etag += 1
            world.changed.notify_all()
        server.shutdown()
        server.server_close()
        thread.join()

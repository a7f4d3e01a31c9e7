"""An account of Amazon on loopback: moto behind a door that records every call and can answer in its place."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Answer = tuple[int, str]  # status, body
Rule = Callable[[dict[str, str]], Answer]

#: what moto does not play, as an account that has none of it answers
EMPTY: dict[tuple[str, str], Answer] = {
    ("ec2", "DescribeFastSnapshotRestores"): (200, "<R><fastSnapshotRestoreSet/></R>"),
    ("ec2", "DescribeCapacityReservations"): (200, "<R><capacityReservationSet/></R>"),
    ("sagemaker", "ListApps"): (200, '{"Apps": []}'),
}
_SCOPE = re.compile(r"Credential=[^/]+/[0-9]+/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request")


class Player:
    """The door: `calls` as (service, region, action or "GET /path"); `rules` answer instead of moto.

    A rule stands under (service, region or "*", action); it is given the fields of the question.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self.moto = DomainDispatcherApplication(create_backend_app)
        self.calls: list[tuple[str, str, str]] = []
        self.rules: dict[tuple[str, str, str], Rule] = {}
        self.url = ""

    def reset(self) -> None:
        """An account with nothing in it, and no rule but what moto lacks."""
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.moto_api._internal.models import moto_api_backend

        assert DEFAULT_ACCOUNT_ID == "123456789012"
        moto_api_backend.reset()
        self.calls.clear()
        self.rules.clear()
        for (service, action), answer in EMPTY.items():
            self.rules[service, "*", action] = lambda fields, answer=answer: answer  # type: ignore[misc]

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        scope = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
        region, service = scope.groups() if scope else ("", "")
        target = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        try:
            fields = {k: v[0] for k, v in urllib.parse.parse_qs(body.decode()).items()}
        except UnicodeDecodeError:
            fields = {}
        action = target or fields.get("Action") or f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        self.calls.append((service, region, action))
        rule = self.rules.get((service, region, action)) or self.rules.get((service, "*", action))
        rule = rule or self.rules.get((service, region, "*"))
        if rule is None:
            found: Iterable[bytes] = self.moto(environ, start)
            return found
        status, text = rule(fields)
        form = "text/xml" if text.startswith("<") else "application/x-amz-json-1.1"
        start(f"{status} played", [("Content-Type", form), ("Content-Length", str(len(text.encode())))])
        return [text.encode()]

    def refuse(self, service: str, action: str, code: str, status: int = 403, region: str = "*") -> None:
        """Answer an action with an error."""
        xml = f"<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors></Response>"
        text = xml if service == "ec2" else json.dumps({"__type": code, "message": "no"})
        self.rules[service, region, action] = lambda fields: (status, text)


@contextmanager
def played() -> Iterator[Player]:
    """A player that listens."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    player = Player()
    server = make_server("127.0.0.1", 0, player, threaded=True)
    player.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield player
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""`loadsheet notices`."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import click

from loadsheet.cli.output import Unwritable, show, show_json, warn
from loadsheet.errors import BadInput
from loadsheet.units import parse_duration


@click.command(name="notices")
@click.option("--provider", default="auto", help="aws, gcp, azure, or auto: whichever answers. [auto]")
@click.option(
    "--file",
    "path",
    type=click.Path(),
    help="The notice file that a run obeys. [what LOADSHEET_NOTICE names]",
)
@click.option("--once", is_flag=True, help="Look once and say what is planned; the file is left alone.")
@click.option("--gcp-notice", default="30s", help="The machine's own preemption notice duration. [30s]")
@click.option("--aws-endpoint", metavar="URL", help="[AWS_EC2_METADATA_SERVICE_ENDPOINT, or 169.254.169.254]")
@click.option("--gcp-endpoint", metavar="URL", help="[GCE_METADATA_HOST, or metadata.google.internal]")
@click.option("--azure-endpoint", metavar="URL", help="[LOADSHEET_AZURE_ENDPOINT, or 169.254.169.254]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per event.")
def command(provider: str, path: str | None, once: bool, gcp_notice: str, as_json: bool, **urls: Any) -> int:
    """Listen for the end of this machine, and tell the run.

    Asks the metadata service of AWS, Google Cloud or Azure whether this machine will be taken, and writes
    the answer into the notice file, which a run reads between two steps: on `terminate` it saves and waits,
    on `rebalance` it saves and goes on. Start it beside the training, with LOADSHEET_NOTICE naming that
    file for both: `loadsheet notices & python train.py`.

    Exit status: 0 ended by a signal, or with --once nothing is planned; 1 no service answers, or with --once
    the machine will be taken; 2 bad input.
    """
    from loadsheet.cloud.notice.listen import Ear, find, listen, services

    target = path or os.environ.get("LOADSHEET_NOTICE")
    if target is None and not once:
        raise BadInput(
            "--file: missing, expected the notice file that the run reads",
            "give --file, or set LOADSHEET_NOTICE for this command and for the training",
        )
    seconds = float(parse_duration(gcp_notice, "--gcp-notice"))
    endpoints = {name.removesuffix("_endpoint"): url for name, url in urls.items()}
    ear = Ear(find(services(provider, endpoints, seconds)))
    file = None if target is None else Path(target)
    if once:
        ear.current = ear.service.look()
        planned = None if ear.current is None else ear.current.to_json()
        if as_json:
            show_json({"schema": 1, "provider": ear.service.name, "planned": planned})
        else:
            show(f"{ear.service.name}: " + ("nothing is planned" if planned is None else _line(planned)))
        return 0 if planned is None else 1
    ended = threading.Event()

    def end(*_: object) -> None:
        # not here: whoever waits may hold the lock that `set` needs, and waits for this to return
        threading.Thread(target=ended.set, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)

    def say(event: dict[str, Any]) -> None:
        try:
            show(json.dumps(event) if as_json else f"{event['provider']}: {_line(event)}")
        except Unwritable as error:  # the run must hear of the next one all the same
            warn(f"{error}; the listening goes on")

    say({"provider": ear.service.name, "event": "listening", "file": str(file)})
    listen(ear, file, say, ended)
    return 0


def _line(event: dict[str, Any]) -> str:
    """An event in words."""
    from datetime import UTC, datetime

    what = event.get("event", "notice")
    if what == "listening":
        return f"listening, the notice file is {event['file']}"
    if what == "blind":
        return f"nothing is heard any more: {event['reason']}"
    if what == "hearing":
        return "answers again"
    if what == "cancelled":
        return f"taken back: {event['source']}"
    when = event["deadline"]
    until = "" if when is None else f" at {datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S} UTC"
    end = "the machine will be taken" if event["kind"] == "terminate" else "the machine may be taken"
    return f"{end}{until} ({event['source']})"

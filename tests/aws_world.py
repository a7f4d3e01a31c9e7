"""An account of AWS on loopback: moto's server, behind a door at which answers can be changed.

moto plays most calls; what it does not know (quotas, the owner's row, the simulator) or never does (refuse,
hold up, lose a region) is put in front of it::

    world.answer("service-quotas:GetServiceQuota", {"Quota": {"Value": 4.0}})
    world.refuse("iam:GetAccountSummary", "AccessDenied", region="us-east-1")

Every call that arrives is noted in `world.calls` as (region, "service:Operation").
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome
from preflight_world import machine

from loadsheet.cli import main
from loadsheet.cloud.aws.in_time import NAME
from loadsheet.cloud.carry_out import carry_out
from loadsheet.cloud.checklist import Result
from loadsheet.cloud.context import Context, Inputs
from loadsheet.cloud.registry import select

ACCOUNT = "123456789012"
REGION = "us-east-1"
#: signing name -> the name of the service in boto3, where it differs
_SERVICES = {"servicequotas": "service-quotas", "elasticloadbalancing": "elbv2", "elasticfilesystem": "efs",
             "tagging": "resourcegroupstaggingapi", "monitoring": "cloudwatch"}  # fmt: skip
Answer = Callable[[dict[str, Any]], "dict[str, Any] | str | Refusal | Page | None"]
#: in the header of every answer of AWS
_ID = ("x-amzn-RequestId", "00000000-0000-0000-0000-000000000000")


class Refusal:
    """An error as AWS gives it."""

    def __init__(self, code: str, status: int = 400, message: str = "no") -> None:
        self.code, self.status, self.message = code, status, message

    def body(self, service: str, is_json: bool) -> bytes:
        """In the form of the service's protocol."""
        inner = f"<Code>{self.code}</Code><Message>{self.message}</Message>"
        if is_json:
            return json.dumps({"__type": self.code, "message": self.message}).encode()
        if service == "ec2":
            return f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>x</RequestID></Response>".encode()
        if service == "s3":
            return f"<Error>{inner}</Error>".encode()
        return f"<ErrorResponse><Error>{inner}</Error><RequestId>x</RequestId></ErrorResponse>".encode()


class Page:
    """What something between us and AWS answers: as it stands, without the id of a request."""

    def __init__(self, body: str, status: int = 200, kind: str = "text/html") -> None:
        self.body, self.status, self.kind = body.encode(), status, kind


class World:
    """The door: a WSGI application in front of moto's."""

    def __init__(self, behind: Any) -> None:
        self.behind = behind
        self.calls: list[tuple[str, str]] = []
        self.answers: dict[tuple[str, str], Answer] = {}
        self.url = ""
        self._lock = threading.Lock()

    def answer(
        self, operation: str, answer: dict[str, Any] | str | Refusal | Page | Answer, region: str = ""
    ) -> None:
        """What an operation answers from now on: JSON, XML, a refusal, a page, or a function of the request."""
        self.answers[region, operation] = answer if callable(answer) else lambda request: answer

    def refuse(self, operation: str, code: str, region: str = "", status: int = 400) -> None:
        """An operation answers with an error."""
        self.answer(operation, Refusal(code, status), region)

    @property
    def seen(self) -> set[str]:
        """The operations that were asked for."""
        return {name for _, name in self.calls}

    def client(self, service: str, region: str = REGION) -> Any:
        """A client that may write, for building what is to be found."""
        import boto3
        from botocore.config import Config

        config = Config(connect_timeout=60, read_timeout=120, retries={"total_max_attempts": 1})
        return boto3.client(service, region_name=region, endpoint_url=self.url, config=config)

    def reset(self) -> None:
        """An empty account, and nothing changed at the door."""
        from moto.moto_api._internal.models import moto_api_backend

        moto_api_backend.reset()
        self.answers.clear()
        self.calls.clear()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        """One request."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        scope = re.search(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        region, service = (scope[1], scope[2]) if scope else ("", "")
        service = _SERVICES.get(service, service)
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        request = _request(body, target)
        if not target and "Action" not in request:
            request = {"Path": environ["PATH_INFO"], **request}
        name = target.rpartition(".")[2] or str(request.get("Action", "")) or _rest(environ)
        with self._lock:
            self.calls.append((region, f"{service}:{name}"))
        for key in (
            (region, f"{service}:{name}"),
            ("", f"{service}:{name}"),
            (region, service),
            ("", service),
        ):
            made = self.answers[key](request) if key in self.answers else None
            if made is not None:
                return _given(made, service, bool(target), start)
        answer: Iterable[bytes] = self.behind(environ, start)
        return answer


def _request(body: bytes, target: str) -> dict[str, Any]:
    """The parameters of a call."""
    if target:
        found: dict[str, Any] = json.loads(body or b"{}")
        return found
    return {key: values[0] for key, values in parse_qs(body.decode(errors="replace")).items()}


def _rest(environ: dict[str, Any]) -> str:
    """A name for calls of S3, by their method and question."""
    question = environ.get("QUERY_STRING", "").partition("=")[0].partition("&")[0]
    method = environ["REQUEST_METHOD"]
    return (
        "GetBucketLocation" if (method, question) == ("GET", "location") else f"{method} {question}".strip()
    )


def _given(made: Any, service: str, is_json: bool, start: Any) -> Iterable[bytes]:
    kind = "application/x-amz-json-1.1" if is_json else "text/xml"
    if isinstance(made, Refusal):
        start(f"{made.status} No", [("Content-Type", kind), _ID])
        return [made.body(service, is_json)]
    if isinstance(made, Page):
        start(f"{made.status} Page", [("Content-Type", made.kind)])
        return [made.body]
    start("200 OK", [("Content-Type", kind), _ID])
    return [json.dumps(made).encode() if isinstance(made, dict) else made.encode()]


@contextmanager
def served() -> Iterator[World]:
    """A world on a free port of loopback, until the end of the block."""
    server = pytest.importorskip("moto.server")
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import make_server

    class Silent(MotoRequestHandler):
        def log_request(self, *arguments: Any) -> None:
            """Say nothing."""

    world = World(server.DomainDispatcherApplication(server.create_backend_app))
    running = make_server("127.0.0.1", 0, world, threaded=True, request_handler=Silent)
    world.url = f"http://127.0.0.1:{running.server_address[1]}"
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        yield world
    finally:
        running.shutdown()
        thread.join(30)
        running.server_close()


@pytest.fixture(scope="module")
def aws_server() -> Iterator[World]:
    """One server for the tests of a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        # the descriptions of services, megabytes of them, are read once and not for every client
        loader = importlib.import_module("botocore.loaders").create_loader()
        patch.setattr("botocore.session.create_loader", lambda *path: loader)
        with served() as world:
            yield world


@pytest.fixture
def world(aws_server: World, offline: object, monkeypatch: pytest.MonkeyPatch) -> World:
    """An empty account, which the environment names; nothing else can be reached."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws_server.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    aws_server.reset()
    return aws_server


def let_go(over: threading.Event) -> None:
    """End what an answer waits for, and wait for those who were given up and still ask."""
    over.set()
    for thread in threading.enumerate():
        if thread.name == NAME:
            thread.join(120)


# --- left-overs --------------------------------------------------------------------------------------------

IMAGE = "ami-12345678"
#: what moto does not play, as an account that has none of it answers
EMPTY: dict[str, dict[str, Any] | str] = {
    "ec2:DescribeFastSnapshotRestores": "<R><fastSnapshotRestoreSet/></R>",
    "ec2:DescribeCapacityReservations": "<R><capacityReservationSet/></R>",
    "sagemaker:ListApps": {"Apps": []},
    # idle ones; moto calls that of a NAT gateway idle, too
    "ec2:DescribeNetworkInterfaces": "<R><networkInterfaceSet/></R>",
}


@pytest.fixture(name="account")
def empty_account(aws_server: World, offline: object, monkeypatch: pytest.MonkeyPatch) -> World:
    """An account with nothing in it, and an environment that leads to it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws_server.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("COLUMNS", "100")
    aws_server.reset()
    for operation, answer in EMPTY.items():
        aws_server.answer(operation, answer)
    return aws_server


def leftovers(*args: str, code: int) -> Outcome:
    """The command's answer; its calls have a minute each on a busy machine."""
    result = CliRunner().invoke(main, ["leftovers", "--wait", "60s", *args])
    assert code == result.exit_code, (result.output, result.exception)
    return result


def listed(*args: str, code: int = 1) -> dict[str, Any]:
    """The same, as JSON."""
    found: dict[str, Any] = json.loads(leftovers(*args, "--json", code=code).stdout)
    return found


def ec2(region: str = "eu-west-1") -> Any:
    """A client that may write."""
    return importlib.import_module("boto3").client("ec2", region_name=region)


def started(region: str, form: str, count: int = 1, stays: bool = False) -> list[str]:
    """Instances with a volume of 100 GiB."""
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "DeleteOnTermination": not stays}}
    made = ec2(region).run_instances(
        ImageId=IMAGE, MinCount=count, MaxCount=count, InstanceType=form, BlockDeviceMappings=[disk]
    )
    return [row["InstanceId"] for row in made["Instances"]]


# --- what moto does not play -------------------------------------------------------------------------------


def xml(operation: str, inside: str) -> str:
    """An answer of the query protocol."""
    return f"<{operation}Response><{operation}Result>{inside}</{operation}Result></{operation}Response>"


def caller(rest: str, service: str = "sts") -> str:
    """Who asks, as `get_caller_identity` says it: `root`, `assumed-role/train/me`."""
    arn = f"arn:aws:{service}::{ACCOUNT}:{rest}"
    return xml("GetCallerIdentity", f"<Arn>{arn}</Arn><UserId>U</UserId><Account>{ACCOUNT}</Account>")


def summary(**figures: int) -> str:
    """The account's summary."""
    rows = "".join(f"<entry><key>{k}</key><value>{v}</value></entry>" for k, v in figures.items())
    return xml("GetAccountSummary", f"<SummaryMap>{rows}</SummaryMap>")


def decisions(*allowed: str) -> Answer:
    """The simulator: these are allowed, all else is not."""

    def answer(request: dict[str, Any]) -> str:
        asked = [value for key, value in request.items() if key.startswith("ActionNames.member")]
        rows = "".join(
            f"<member><EvalActionName>{a}</EvalActionName>"
            f"<EvalDecision>{'allowed' if a in allowed else 'implicitDeny'}</EvalDecision></member>"
            for a in asked
        )
        return xml("SimulatePrincipalPolicy", f"<EvaluationResults>{rows}</EvaluationResults>")

    return answer


_COLUMNS = (
    "user,arn,user_creation_time,password_enabled,password_last_used,mfa_active,access_key_1_active,"
    "access_key_1_last_rotated,access_key_1_last_used_date,access_key_2_active,access_key_2_last_rotated,"
    "access_key_2_last_used_date"
)


def report(*rows: dict[str, str]) -> str:
    """A credential report; what a row does not name is `N/A`."""
    names = _COLUMNS.split(",")
    text = "\n".join([_COLUMNS, *(",".join(row.get(name, "N/A") for name in names) for row in rows)])
    content = base64.b64encode(text.encode()).decode()
    return xml("GetCredentialReport", f"<Content>{content}</Content><ReportFormat>text/csv</ReportFormat>")


def sheet(path: Path, peak: float, gpus: int = 1) -> Path:
    """A sheet whose GPUs must hold `peak` bytes."""
    memory = {"peak_bytes": {"low": peak, "mid": peak, "high": peak}}
    path.write_text(json.dumps({"memory": memory, "cluster": {"gpu": "a10g", "gpus": gpus}, "model": {}}))
    return path


def look(folder: Path, *ids: str, now: float | None = None, limit: float = 300.0, **inputs: Any) -> Result:
    """The last of some checks, with an account that was asked for; `inputs` are fields of `Inputs`."""
    found = looked(folder, *ids, now=now, limit=limit, **inputs)
    return found[ids[-1]]


def looked(
    folder: Path, *ids: str, now: float | None = None, limit: float = 300.0, **inputs: Any
) -> dict[str, Result]:
    """The results of some checks, by id."""
    values = {"accounts": ("aws",), **inputs}
    host = machine(folder / "root", **({} if now is None else {"time": lambda: now}))
    given = Inputs(**values, given=frozenset(values))
    context = Context(folder, given, host, limit, {"aws_timeout": 120.0})
    return {entry.id: result for entry, result in carry_out(select(ids), context)}

"""Left-overs without a server: each kind against AWS's own models, commands, prices, runs, pages, hostile answers."""

from __future__ import annotations

import datetime
import itertools
import json
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from terminal import refused

from loadsheet.cloud.commands import continued
from loadsheet.cloud.leftovers.answer import Answer, to_json
from loadsheet.cloud.leftovers.item import Found, Item, command
from loadsheet.cloud.leftovers.narrow import Span, loud, of_run, older_than
from loadsheet.cloud.leftovers.page import page
from loadsheet.cloud.leftovers.prices import parse
from loadsheet.cloud.leftovers.registry import Place, kinds
from loadsheet.errors import BadInput

botocore_session = pytest.importorskip("botocore.session")
from botocore import xform_name  # noqa: E402
from botocore.validate import ParamValidator  # noqa: E402

MODELS = botocore_session.get_session()
WHEN = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
DAY = 86400.0
NOW = 1_800_000_000.0
#: where the first value of an enumeration, or the sample of a text, is not one that costs
CHOSEN = {"DeleteOnTermination": False, "InstanceType": "p3.2xlarge", "retentionInDays": 0, "FleetState": "active",
          "SpotFleetRequestState": "active", "Type": "persistent", "CreationDate": "2026-11-01T00:00:00.000Z",
          "LocationConstraint": "eu-west-1", "BucketRegion": "eu-west-1", "Managed": False, "RequesterManaged": False,
          "CommitmentEndDate": datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)}  # fmt: skip
OF_KIND: dict[str, dict[str, Any]] = {
    "bucket": {"MFADelete": "Disabled"},
    "address": {"AssociationId": "", "InstanceId": "", "NetworkInterfaceId": ""},
    "studio-app": {"Status": "InService"},
    "database": {"DBClusterIdentifier": ""},
}


def operation(service: str, name: str) -> Any:
    """The model of an operation, which boto3 writes in small letters."""
    model = MODELS.get_service_model(service)
    return next(model.operation_model(n) for n in model.operation_names if xform_name(n) == name)


def sample(shape: Any, chosen: dict[str, Any], name: str = "", depth: int = 0) -> Any:
    """A value of the form that the model says, one of each member and of each list."""
    if name in chosen and shape.type_name not in ("structure", "list"):
        return chosen[name]
    if shape.type_name == "structure":
        if depth > 8:
            return {}
        inner = {key: sample(member, chosen, key, depth + 1) for key, member in shape.members.items()}
        if shape.name == "InstanceState":
            inner["Name"] = "stopped"
        return inner
    if shape.type_name == "list":
        return [sample(shape.member, chosen, name, depth + 1)] if depth < 8 else []
    if shape.type_name == "map":
        return {"key": "value"}
    if shape.type_name == "timestamp":
        return WHEN
    if shape.type_name in ("integer", "long"):
        return 2
    if shape.type_name in ("float", "double"):
        return 2.0
    if shape.type_name == "boolean":
        return True
    return shape.enum[0] if getattr(shape, "enum", None) else f"{name or 'x'}-1"


class Modelled(Place):
    """A region in which every list holds one thing of the form that AWS's models describe."""

    def call(
        self, service: str, operation_name: str, region: str = "", proof: str = "", **parameters: Any
    ) -> dict[str, Any]:
        model = operation(service, operation_name)
        assert f"{service}:{model.name}" in self.kind.calls
        assert not ParamValidator().validate(parameters, model.input_shape).has_errors()
        assert not proof or proof in model.output_shape.members
        found: dict[str, Any] = sample(model.output_shape, {**CHOSEN, **OF_KIND.get(self.kind.name, {})})
        return found

    def rows(
        self,
        service: str,
        operation_name: str,
        key: str,
        region: str = "",
        most: int = 1000,
        proof: str = "",
        **parameters: Any,
    ) -> Iterator[dict[str, Any]]:
        yield from self.call(service, operation_name, region, proof or key, **parameters)[key]


@pytest.mark.parametrize("name", sorted(kinds()))
def test_a_kind_reads_what_aws_writes(name: str) -> None:
    """By AWS's models: the calls are declared and valid, the answer's fields exist, the command is one of AWS."""
    kind = kinds()[name]
    found = list(kind.look(Modelled(None, "eu-west-1", kind, float("inf"))))  # type: ignore[arg-type]
    assert [type(item) for item in found] == [Item]
    (item,) = found
    assert isinstance(item, Item)
    assert item.id
    assert item.why
    assert item.state
    # an address has no date; that of a log group is a number, of which the sample has 2
    assert item.created == {"address": None, "log-group": 2.0}.get(name, WHEN.timestamp())
    assert item.remove
    for text in item.remove:
        require_command(text)


def require_command(text: str) -> None:
    """Fail unless a command is one of the AWS command line, by the model: its operation, its options, no others."""
    program, service, verb, *options = shlex.split(text)
    assert program == "aws"
    assert options[:2] == ["--region", "eu-west-1"]
    if (service, verb) == ("emr", "terminate-clusters"):  # the tool's own name of it
        verb, options = "terminate-job-flows", ["--job-flow-ids", *options[3:]]
    model = MODELS.get_service_model("s3" if service == "s3api" else service)
    (called,) = [n for n in model.operation_names if xform_name(n, "-") == verb]
    members = model.operation_model(called).input_shape
    given = {option for option in options if option.startswith("--")} - {"--region"}
    taken = {xform_name(name, "-"): shape.type_name for name, shape in members.members.items()}
    assert given <= {"--" + name for name in taken} | {
        "--no-" + n for n, form in taken.items() if form == "boolean"
    }
    assert {"--" + xform_name(member, "-") for member in members.required_members} <= given
    assert not called.startswith(("Create", "Run", "Start"))


@pytest.mark.parametrize(
    "id", ["$(reboot)", "a b", "`id`", "x;rm -rf ~", "'quoted'", '"', "-rf", "*", "ünïcode", "a\\b"]
)
def test_a_shell_takes_an_id_as_one_word(id: str) -> None:
    """What a hostile name holds reaches the program as it is: a real shell says so."""
    (text,) = command("s3api", "abort-multipart-upload", "eu-west-1", bucket="b", key=id, upload_id="u")
    for written in (text, "\n".join(continued(text, 40)).replace("      $ ", "", 1)):
        script = f'aws() {{ printf "%s\\0" "$@"; }}\n{written}\n'
        words = (
            subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True)
            .stdout.decode()
            .split("\0")
        )
        assert (f"--key={id}" if id.startswith("-") else id) in words
        assert len(words) - 1 == (9 if id.startswith("-") else 10)


@pytest.mark.parametrize(
    "id", ["file:///etc/passwd", "fileb://x", "http://x/y", "a\nb", "a\x1b[2J", "a\u202eb", "", "  FILE://x"]
)
def test_no_command_for_what_is_no_id(id: str) -> None:
    """The tool of AWS would read a file, or the terminal would obey: such an id gets no command."""
    assert command("s3api", "delete-bucket", "eu-west-1", bucket=id) == ()


def thing(kind: str = "volume", region: str = "eu-west-1", **rest: Any) -> Item:
    """An item."""
    values: dict[str, Any] = {"id": f"{kind}-1", "state": "there", "why": "so", "billed": (kind,), **rest}
    return Item(kind=kind, region=region, **values)


def test_a_gpu_where_nothing_else_is() -> None:
    """Loud is a GPU in a region that neither the configuration nor anything else of the account uses."""
    gpu = {"gpu": True, "type": "p3.16xlarge"}
    items = [
        thing("instance", "sa-east-1", id="i-1", **gpu),
        thing("attached-volume", "sa-east-1"),
        thing("instance", "eu-west-1", id="i-2", **gpu),
        thing("instance", "us-east-2", id="i-3", **gpu),
        thing("snapshot", "us-east-2"),
        thing("instance", "us-west-2", id="i-4", **gpu),
        thing("instance", "us-west-2", id="i-5", type="m5.large"),
    ]
    assert [item.id for item in loud(items, "eu-west-1") if item.loud] == ["i-1"]


def test_after_a_run() -> None:
    """By time with its margin, by tag; without a date it stays; the rest is counted by kind."""
    span = Span("0123456789", NOW, NOW + DAY, margin=3600.0)
    items = [
        thing(id="before", created=NOW - 3601),
        thing(id="starting", created=NOW - 3599),
        thing(id="during", created=NOW + 5),
        thing(id="ending", created=NOW + DAY + 3600),
        thing("snapshot", id="later", created=NOW + DAY + 3601),
        thing(id="tagged", created=NOW + 99 * DAY, tags={"run": "x-0123456789"}),
        thing("address", id="undated"),
    ]
    kept, others = of_run(items, span)
    assert [item.id for item in kept] == ["starting", "during", "ending", "tagged", "undated"]
    assert others == Counter({"volume": 1, "snapshot": 1})
    assert [item.why.partition("(")[2] for item in kept] == [
        "made within 1 h before the run)",
        "made while the run ran)",
        "made within 1 h after the run)",
        "its tag names the run)",
        "may be of the run: nothing says when it was made)",
    ]
    answer = Answer(Found(items=items, time=NOW), kept, span=span, others=others)
    assert "2 other things that the run does not explain: snapshot 1, volume 1" in "\n".join(
        page(answer, 100)
    )
    assert to_json(answer)["after"]["others"] == {"volume": 1, "snapshot": 1}
    with pytest.raises(BadInput):
        Span("x", 2.0, 1.0)


def test_older_than() -> None:
    """What is younger is left out and counted; what has no date stays."""
    items = [thing(id="old", created=NOW - 8 * DAY), thing(id="new", created=NOW - DAY), thing(id="undated")]
    kept, younger = older_than(items, 7 * DAY, NOW)
    assert ([item.id for item in kept], younger) == (["old", "undated"], 1)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200, 400])
def test_the_page_keeps_to_its_width(width: int) -> None:
    """Only one word that cannot be broken passes the edge; no control character reaches the terminal."""
    items = [
        thing(id="vol-" + "0" * 17, size=2.0**40, type="gp3", created=NOW - DAY, tags={"Name": "training"},
              remove=command("ec2", "delete-volume", "eu-west-1", volume_id="vol-" + "0" * 17)),
        thing("instance", id="i-1", state="running", type="p3.16xlarge", gpu=True, loud=True),
    ]  # fmt: skip
    answer = Answer(Found(items=items, looked=[("eu-west-1", "volume")], account="1" * 12, time=NOW), items)
    lines = page(answer, width)
    assert all(len(line) <= max(width, 44) for line in lines), max(lines, key=len)
    assert all(line.isprintable() for line in lines)


def test_the_dearest_first_then_the_oldest() -> None:
    """Of seven, five are shown: the one with a price, then by age."""
    items = [thing(id=f"vol-{n}", created=NOW - n * DAY, size=None) for n in range(1, 7)]
    items.append(thing(id="dear", created=NOW, size=2.0**30))
    answer = Answer(Found(items=items, time=NOW), items, dict([parse("volume=1/GB-month")]))
    rows = [line.split()[0] for line in page(answer, 100) if line.startswith(("  vol-", "  dear"))]
    assert rows == ["dear", "vol-6", "vol-5", "vol-4", "vol-3"]
    assert len([line for line in page(answer, 100, everything=True) if line.startswith("  vol-")]) == 6


def test_an_answer_of_another_form_is_a_failure() -> None:
    """A service that answers nonsense has not been looked at."""
    from loadsheet.cloud.leftovers.look import _Sweep

    class Fake:
        """An account whose pages are not what they should be."""

        def pages(self, *names: str, **parameters: Any) -> Iterator[dict[str, Any]]:
            yield {"Volumes": ["text", 3, None]}

        def everywhere(self, jobs: Any, one: Any) -> None:
            for job in jobs:
                one(job)

        def forget(self, region: str) -> None:
            pass

    found = Found(time=NOW)
    _Sweep(Fake(), found, [("eu-west-1", kinds()["volume"])], float("inf"), lambda text: None).run()  # type: ignore[arg-type]
    assert (found.items, found.looked) == ([], [])
    assert [f.error for f in found.failed] == ["the answer has another form than expected (AttributeError)"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 1, "time": 1, "items": [1], "looked": []}', '{"schema": 2}']
)
def test_compare_with_another_file(text: str, tmp_path: Path) -> None:
    """What is no list of ours is refused in one line, before anything is asked."""
    path = tmp_path / "x.json"
    path.write_text(text)
    refused("leftovers", "--compare", str(path), words="list of left-overs")


def test_policy_allows_what_is_asked_and_no_more() -> None:
    """Every action of the policy reads; the bill's is in it only where it may cost."""
    from terminal import answered

    actions = json.loads(answered("leftovers", "--aws-policy").stdout)["Statement"][0]["Action"]
    words = {action.partition(":")[2] for action in actions}
    assert all(word.startswith(("Describe", "List", "Get")) for word in words)
    assert {"ec2:DescribeVolumes", "s3:ListAllMyBuckets", "elasticfilesystem:DescribeFileSystems"} <= set(
        actions
    )
    assert not any(action.startswith("ce:") for action in actions)
    paid = json.loads(answered("leftovers", "--aws-policy", "--paid-calls").stdout)["Statement"][0]["Action"]
    assert set(paid) - set(actions) == {"ce:GetCostAndUsage"}
    listed = json.loads(answered("leftovers", "--list", "--json").stdout)["kinds"]
    assert [row["kind"] for row in listed] == list(kinds())


def test_every_call_is_read_only() -> None:
    """By the factory's own rule, which looks at the names of operations."""
    from loadsheet.cloud.aws.session import require_read_only

    for call in itertools.chain.from_iterable(kind.calls for kind in kinds().values()):
        require_read_only(*call.split(":"))

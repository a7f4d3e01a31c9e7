"""The client factory: what it refuses, how it says what went wrong, where it stops."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from aws_world import REGION, Page, Refusal, World, aws_server, caller, let_go, world  # noqa: F401
from offline import Offline

from loadsheet.cloud.aws.failures import CallFailed, NotReadOnly, permission
from loadsheet.cloud.aws.operations import PREFLIGHT
from loadsheet.cloud.aws.session import Account, policy, require_read_only

LONG = 120.0  # seconds: a loaded machine is not a dead one


def failure(account: Account, *call: str, **parameters: Any) -> CallFailed:
    """What a call fails with."""
    with pytest.raises(CallFailed) as error:
        account.call(*call, **parameters)
    return error.value


# --- only reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "operation", "parameters"),
    [
        ("ec2", "create_volume", {"AvailabilityZone": "us-east-1a", "Size": 1}),
        ("ec2", "terminate_instances", {"InstanceIds": ["i-0123456789abcdef0"]}),
        ("ec2", "get_password_data", {"InstanceId": "i-0123456789abcdef0"}),
        ("s3", "delete_bucket", {"Bucket": "b"}),
        ("s3", "get_object", {"Bucket": "b", "Key": "k"}),
        ("iam", "create_user", {"UserName": "eve"}),
        ("sts", "get_session_token", {}),
        ("ce", "get_cost_and_usage", {"TimePeriod": {"Start": "2026-01-01", "End": "2026-01-02"},
                                      "Granularity": "DAILY", "Metrics": ["UnblendedCost"]}),
    ],
)  # fmt: skip
def test_what_does_not_only_read_is_refused(
    world: World,  # noqa: F811
    service: str,
    operation: str,
    parameters: dict[str, Any],
) -> None:
    """By the factory, and by the hook of a client that was taken out of it: nothing is sent."""
    account = Account(timeout=LONG)
    with pytest.raises(NotReadOnly):
        account.call(service, operation, **parameters)
    with pytest.raises(NotReadOnly):
        getattr(account.client(service), operation)(**parameters)
    assert world.calls == []


def test_no_operation_of_ec2_that_writes_passes() -> None:
    """Every operation of four services: what passes begins with a verb that reads."""
    from botocore.session import Session

    passed = set()
    for service in ("ec2", "iam", "s3", "budgets"):
        for name in Session().get_service_model(service).operation_names:
            try:
                require_read_only(service, name)
                passed.add(name)
            except NotReadOnly:
                pass
    verbs = ("Describe", "Get", "Head", "List", "GenerateCredentialReport", "SimulatePrincipalPolicy")
    assert all(name.startswith(verbs) for name in passed)
    assert {"DescribeVolumes", "GetBucketLocation", "ListUsers", "GenerateCredentialReport"} <= passed
    assert (
        not {"RunInstances", "GetObject", "GetPasswordData", "DeleteBucket", "SimulateCustomPolicy"} & passed
    )


def test_what_costs_is_made_only_where_it_may(world: World) -> None:  # noqa: F811
    """Cost Explorer passes the hook with `paid`, and arrives."""
    parameters = {
        "TimePeriod": {"Start": "2026-01-01", "End": "2026-01-02"},
        "Granularity": "DAILY",
        "Metrics": ["X"],
    }
    Account(timeout=LONG, paid=True).call("ce", "get_cost_and_usage", **parameters)
    assert world.seen == {"ce:GetCostAndUsage"}


def test_an_account_opened_for_some_calls_makes_no_others(world: World) -> None:  # noqa: F811
    """The policy that is printed can therefore not be too small."""
    account = Account(timeout=LONG, allowed=PREFLIGHT)
    assert account.call("sts", "get_caller_identity")["Account"] == "123456789012"
    with pytest.raises(NotReadOnly, match="not among the calls"):
        account.call("ec2", "describe_snapshots")
    assert account.calls == {"sts:GetCallerIdentity"}


# --- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "operation", "code", "kind"),
    [
        ("ec2", "describe_volumes", "UnauthorizedOperation", "denied"),
        ("ec2", "describe_volumes", "AuthFailure", "denied"),
        ("iam", "get_account_summary", "AccessDenied", "denied"),
        ("budgets", "describe_budgets", "AccessDeniedException", "denied"),
        ("s3", "list_buckets", "AccessDenied", "denied"),
        ("iam", "get_account_summary", "ExpiredToken", "credentials"),
        ("iam", "get_account_summary", "InvalidClientTokenId", "credentials"),
        ("ec2", "describe_volumes", "InvalidVolume.NotFound", "missing"),
        ("budgets", "describe_budgets", "UnknownOperationException", "unsupported"),
        ("ec2", "describe_volumes", "Whatever", "other"),
    ],
)
def test_errors_are_named(world: World, service: str, operation: str, code: str, kind: str) -> None:  # noqa: F811
    """What was refused names the permission; all else its reason."""
    account = Account(timeout=LONG)
    client = account.client(service)
    name = client.meta.method_to_api_mapping[operation]
    world.answer(service, Refusal(code, 400))
    more = {"AccountId": "123456789012"} if service == "budgets" else {}
    error = failure(account, service, operation, **more)
    assert (error.kind, error.code, error.region) == (kind, code, REGION)
    if kind == "denied":
        assert permission(service, name) in str(error)
        assert permission(service, name) in error.next


def test_throttling_is_tried_again_and_then_said(world: World) -> None:  # noqa: F811
    """Three tries in all; a third that is answered is an answer."""
    world.refuse("iam:GetAccountSummary", "Throttling")
    account = Account(timeout=LONG)
    assert failure(account, "iam", "get_account_summary").kind == "throttled"
    assert len(world.calls) == 3
    times = iter([Refusal("Throttling"), Refusal("Throttling")])
    world.answer("iam:GetAccountSummary", lambda request: next(times, None))
    assert account.call("iam", "get_account_summary")["SummaryMap"]


_HTML = "<!doctype html><title>Log in to the network"
_XHTML = "<html><head><title>Log in</title></head><body>us-east-1</body></html>"
_CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("sts", "get_caller_identity", {}),  # query
    ("iam", "get_account_summary", {}),
    ("ec2", "describe_volumes", {}),  # ec2
    ("budgets", "describe_budgets", {"AccountId": "123456789012"}),  # json
    ("s3", "get_bucket_location", {"Bucket": "b"}),  # rest-xml
    ("s3", "list_buckets", {}),
    ("s3", "head_bucket", {"Bucket": "b"}),
    ("efs", "describe_file_systems", {}),  # rest-json
]


@pytest.mark.parametrize(
    "page",
    [
        Page(_HTML),
        Page(_XHTML),
        Page("{}", kind="application/json"),
        Page("", kind="text/xml"),
        Page("ok", kind="text/plain"),
        Page('{"error": "log in"}', kind="application/json"),
        Page("<a/>", kind="text/xml"),
        Page(_HTML, 403),
        Page(_XHTML, 403),
        Page(_HTML, 400),
        Page('{"message": "Forbidden"}', 403, "application/json"),
        Page("", 404),
    ],
)
@pytest.mark.parametrize(("service", "operation", "parameters"), _CALLS)
def test_what_something_on_the_way_answers_is_no_answer(
    world: World,  # noqa: F811
    service: str,
    operation: str,
    parameters: dict[str, Any],
    page: Page,
) -> None:
    """Of no protocol, with no status: neither an empty list, nor a permission that lacks, nor quoted."""
    world.answer(service, page)
    error = failure(Account(timeout=LONG), service, operation, **parameters)
    assert (error.kind, error.permission) == ("other", "")
    assert f"{service} in {REGION}" in str(error)
    assert "in place of AWS's answer (from a proxy?)" in str(error)
    assert "og in" not in str(error)


def test_a_page_of_html_is_named(world: World) -> None:  # noqa: F811
    """By its kind, and with its status."""
    world.answer("ec2:DescribeVolumes", Page(_XHTML))
    world.answer("budgets:DescribeBudgets", Page(_HTML, 403))
    account = Account(timeout=LONG)
    assert "DescribeVolumes: a page of HTML came in" in str(failure(account, "ec2", "describe_volumes"))
    error = failure(account, "budgets", "describe_budgets", AccountId="123456789012")
    assert "DescribeBudgets: a page of HTML, with status 403, came in" in str(error)


def test_an_empty_answer_of_the_service_is_one(world: World) -> None:  # noqa: F811
    """Budgets leaves an empty list out (so a `{}` of its own is none); S3 says of us-east-1 an empty element."""
    world.answer("budgets:DescribeBudgets", {})
    world.answer(
        "s3:GetBucketLocation", '<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'
    )
    world.answer("ec2:DescribeVolumes", Page(volumes(0), kind="text/xml"))  # in the form of its operation
    account = Account(timeout=LONG)
    assert list(account.items("budgets", "describe_budgets", "Budgets", AccountId="123456789012")) == []
    assert account.call("s3", "get_bucket_location", Bucket="b")["LocationConstraint"] is None
    assert list(account.items("ec2", "describe_volumes", "Volumes")) == []


def test_nobody_listens(world: World, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """A closed port is `unreachable`, with the region."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    error = failure(Account(timeout=LONG), "ec2", "describe_volumes", region="eu-west-1")
    assert (error.kind, error.region) == ("unreachable", "eu-west-1")


def test_a_server_that_never_answers_is_left(world: World) -> None:  # noqa: F811
    """The time-out of a call ends it, and is a reason."""
    over = threading.Event()
    world.answer("iam:GetAccountSummary", lambda request: over.wait(LONG) and None)
    try:
        error = failure(Account(timeout=0.2), "iam", "get_account_summary")
    finally:
        over.set()
    assert error.kind == "unreachable"


@pytest.mark.parametrize("listed", [False, True])
def test_an_end_for_all(world: World, listed: bool) -> None:  # noqa: F811
    """What has no answer by then has failed, whatever its own time and tries; after it nothing is asked."""
    over = threading.Event()
    world.answer("ec2:DescribeVolumes", lambda request: over.wait(LONG) and None)
    account = Account(timeout=LONG)
    account.client("ec2")
    account.until = time.monotonic() + 0.2
    try:
        for _ in range(2):
            pages = account.pages("ec2", "describe_volumes")
            with pytest.raises(CallFailed, match="not done in time"):
                next(pages) if listed else account.call("ec2", "describe_volumes")
    finally:
        let_go(over)
    account.until = None
    world.answers.clear()
    assert account.call("ec2", "describe_volumes")["Volumes"] == []


def test_credentials_that_do_not_come(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    """A program of a profile has no time-out of its own: the end holds for it, too."""
    os.mkfifo(tmp_path / "never")
    program = f"""sh -c "test -e '{tmp_path}/over' || cat '{tmp_path}/never'" """
    (tmp_path / "config").write_text(f"[profile slow]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "slow")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    account = Account(timeout=LONG)
    account.until = time.monotonic() + 0.2
    try:
        for _ in range(2):  # the second waits for what the first still holds
            assert str(failure(account, "sts", "get_caller_identity")) == "not done in time"
    finally:
        (tmp_path / "over").touch()
        with open(tmp_path / "never", "w"):  # the program ends, and does not wait again
            pass
        let_go(threading.Event())
    assert world.calls == []


def test_no_credentials(world: World, offline: Offline, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """It is said at once: nothing prompts, and no metadata service is asked."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    error = failure(Account(timeout=LONG), "sts", "get_caller_identity")
    assert error.kind == "credentials"
    assert world.calls == []
    assert offline.refused == []


@pytest.mark.parametrize("asked", [True, False])
def test_a_machine_s_own_role(world: World, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:  # noqa: F811
    """Its metadata service (moto plays one) is asked where the environment says so, and only there."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", world.url + "/")
    monkeypatch.setenv("AWS_METADATA_SERVICE_TIMEOUT", "60")
    if asked:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        assert "Account" in Account(timeout=LONG).call("sts", "get_caller_identity")
    else:
        assert failure(Account(timeout=LONG), "sts", "get_caller_identity").kind == "credentials"
        assert world.calls == []


def test_a_profile_that_is_not_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """It is named."""
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(CallFailed, match="nobody"):
        Account(timeout=LONG).call("sts", "get_caller_identity")


def test_a_profile_with_a_second_factor_does_not_prompt(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    """A role that asks for a code is a reason, not a prompt."""
    config = tmp_path / "config"
    config.write_text(
        "[profile base]\naws_access_key_id = a\naws_secret_access_key = b\n"
        "[profile mfa]\nsource_profile = base\nrole_arn = arn:aws:iam::123456789012:role/x\n"
        "mfa_serial = arn:aws:iam::123456789012:mfa/me\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "mfa")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setattr(builtins, "input", lambda *a: pytest.fail("asked"))
    error = failure(Account(timeout=LONG), "sts", "get_caller_identity")
    assert "second factor" in str(error)


def test_a_profile_that_takes_a_role_may_take_it(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    """Taking a role is how the user logs in: the rule for our own calls does not stand in its way."""
    config = tmp_path / "config"
    config.write_text(
        "[profile base]\naws_access_key_id = a\naws_secret_access_key = b\n"
        "[profile train]\nsource_profile = base\nrole_arn = arn:aws:iam::123456789012:role/train\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "train")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert Account(timeout=LONG).call("iam", "get_account_summary")["SummaryMap"]
    assert world.seen == {"sts:AssumeRole", "iam:GetAccountSummary"}


def test_without_boto3() -> None:
    """The line of pip is named, and the rest of preflight needs none of it."""
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from loadsheet.cloud.aws.session import Account\n"
        "try: Account()\n"
        "except Exception as error: print(error, '|', error.next)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "boto3 is not installed | `pip install 'loadsheet[aws]'`"


# --- lists -------------------------------------------------------------------------------------------------


def volumes(count: int, token: str = "") -> str:
    """A page of volumes."""
    rows = "".join(f"<item><volumeId>vol-{n}</volumeId></item>" for n in range(count))
    more = f"<nextToken>{token}</nextToken>" if token else ""
    return f"<DescribeVolumesResponse><volumeSet>{rows}</volumeSet>{more}</DescribeVolumesResponse>"


def test_pages_are_followed_to_the_end(world: World) -> None:  # noqa: F811
    """Three pages are one list."""
    pages = {None: volumes(500, "b"), "b": volumes(500, "c"), "c": volumes(7)}
    world.answer("ec2:DescribeVolumes", lambda request: pages[request.get("NextToken")])
    found = list(Account(timeout=LONG).items("ec2", "describe_volumes", "Volumes"))
    assert len(found) == 1007
    assert len(world.calls) == 3


def test_a_list_without_end_is_an_error(world: World) -> None:  # noqa: F811
    """More pages than are read are never silently left out."""
    count = iter(range(1000))
    world.answer("ec2:DescribeVolumes", lambda request: volumes(1, f"t{next(count)}"))
    items = Account(timeout=LONG).items("ec2", "describe_volumes", "Volumes", most=5)
    got = [next(items) for _ in range(5)]
    assert len(got) == 5
    with pytest.raises(CallFailed, match="more than 5 pages"):
        next(items)


def test_one_region_fails(world: World) -> None:  # noqa: F811
    """The others are there, in the order that was asked for."""
    world.refuse("ec2:DescribeVolumes", "UnauthorizedOperation", region="eu-west-1", status=403)
    account = Account(timeout=LONG)
    places = ["us-east-1", "eu-west-1", "ap-south-1"]
    found = account.everywhere(
        places, lambda region: list(account.items("ec2", "describe_volumes", "Volumes", region=region))
    )
    assert list(found) == places
    assert found["us-east-1"] == found["ap-south-1"] == []
    assert isinstance(found["eu-west-1"], CallFailed)
    assert found["eu-west-1"].permission == "ec2:DescribeVolumes"


def test_a_fault_of_ours_in_a_region_is_not_swallowed(world: World) -> None:  # noqa: F811
    """Only what could not be looked at stands in place of an answer."""
    with pytest.raises(ZeroDivisionError):
        Account(timeout=LONG).everywhere(["a", "b"], lambda region: 1 / 0)


def test_regions(world: World) -> None:  # noqa: F811
    """Those that are enabled, or those that were named, each once."""
    assert Account(["b", "a", "b"], timeout=LONG).regions == ["b", "a"]
    found = Account(timeout=LONG).regions
    assert {"us-east-1", "eu-central-1"} <= set(found)
    assert found == sorted(found)


def test_who_asks_through_another_service(world: World, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """An endpoint of one service stands before the general one, as for every tool of AWS."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", world.url)
    world.answer("sts:GetCallerIdentity", caller("root", "iam"))
    assert Account(timeout=LONG).call("sts", "get_caller_identity")["Arn"].endswith(":root")


_PROFILE = """[profile played]
region = eu-west-1
{rest}
[services local]
ec2 =
  endpoint_url = http://127.0.0.1:9
elastic_load_balancing_v2 =
  endpoint_url = http://127.0.0.1:8
"""
_ASKED = ("sts:GetCallerIdentity", "ec2:DescribeVolumes", "elbv2:DescribeLoadBalancers")


@pytest.mark.parametrize(
    ("variables", "rest", "expected"),
    [
        ({}, "", ""),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:7"}, "", "http://127.0.0.1:7"),
        ({}, "endpoint_url = http://127.0.0.1:7", "http://127.0.0.1:7"),
        ({"AWS_ENDPOINT_URL_EC2": "http://127.0.0.1:7"}, "", "http://127.0.0.1:7 (ec2)"),
        (
            {"AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2": "http://127.0.0.1:7"},
            "",
            "http://127.0.0.1:7 (elbv2)",
        ),
        ({"AWS_ENDPOINT_URL_BEDROCK": "http://127.0.0.1:7"}, "", ""),  # it is not asked
        ({}, "services = local", "http://127.0.0.1:9 (ec2), http://127.0.0.1:8 (elbv2)"),
        (
            {"AWS_ENDPOINT_URL_EC2": "http://127.0.0.1:6"},
            "services = local\nendpoint_url = http://127.0.0.1:7",
            "http://127.0.0.1:6 (ec2), http://127.0.0.1:8 (elbv2), http://127.0.0.1:7 (sts)",
        ),
        ({"AWS_ENDPOINT_URL_STS": "https://sts.eu-west-1.amazonaws.com"}, "", ""),
        ({"AWS_ENDPOINT_URL_EC2": "https://vpce-0a.ec2.eu-west-1.vpce.amazonaws.com"}, "", ""),
        (
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:7", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
            "services = local",
            "",
        ),
    ],
)
def test_where_calls_go(
    offline: Offline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    variables: dict[str, str],
    rest: str,
    expected: str,
) -> None:
    """By variables and files, for all services or for some; each as botocore itself takes it."""
    (tmp_path / "config").write_text(_PROFILE.format(rest=rest))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "played")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    account = Account(allowed=_ASKED)
    assert account.endpoint == expected
    for call in _ASKED:
        service = call.partition(":")[0]
        url = account.client(service).meta.endpoint_url
        assert url.endswith(".amazonaws.com") is (
            service not in expected if "(" in expected else not expected
        )
        assert url in expected or url.endswith(".amazonaws.com")


# --- the policy --------------------------------------------------------------------------------------------


def test_policy() -> None:
    """Actions as IAM names them, each once, sorted; what needs no permission is left out."""
    found = policy(
        ["sts:GetCallerIdentity", "budgets:DescribeBudgets", "budgets:DescribeSubscribersForNotification",
         "service-quotas:GetServiceQuota", "s3:ListBuckets"]
    )  # fmt: skip
    (statement,) = found["Statement"]
    assert statement["Action"] == [
        "budgets:ViewBudget",
        "s3:ListAllMyBuckets",
        "servicequotas:GetServiceQuota",
    ]
    assert statement["Effect"] == "Allow"


@pytest.mark.parametrize(
    "named",
    ["ssm:GetParameter", "sts:GetWebIdentityToken", "emr:GetClusterSessionCredentials", "s3:GetObject",
     "lightsail:GetRelationalDatabaseMasterUserPassword"],
)  # fmt: skip
def test_what_hands_out_secrets_is_refused(named: str) -> None:
    """The name begins like one that reads; what comes back is a key, a password, or the user's data."""
    with pytest.raises(NotReadOnly, match="hands out"):
        require_read_only(*named.split(":"))


def test_every_declared_call_exists_and_only_reads() -> None:
    """Each name is one that botocore knows, and passes the rule."""
    from botocore.session import Session

    session = Session()
    for named in PREFLIGHT:
        service, _, operation = named.partition(":")
        require_read_only(service, operation)
        assert operation in session.get_service_model(service).operation_names


def test_time_is_bounded() -> None:
    """Three tries of three seconds: a region that hangs costs less than the time preflight has."""
    from loadsheet.cloud.aws import session

    assert session.TRIES * 2 * session.TIMEOUT < 60

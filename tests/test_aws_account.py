"""Who asks, rights, keys, budgets: every planted fault is found, and what could not be seen is unknown."""

from __future__ import annotations

import base64
import datetime
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from aws_world import (
    ACCOUNT,
    Refusal,
    World,
    aws_server,  # noqa: F401
    caller,
    decisions,
    look,
    report,
    summary,
    world,  # noqa: F401
    xml,
)
from preflight_world import facts

from loadsheet.cloud.aws.budgets import parse_budget, reached
from loadsheet.money.price import Price

ROOT = {"user": "<root_account>", "mfa_active": "true", "access_key_1_active": "false",
        "access_key_2_active": "false", "password_enabled": "not_supported"}  # fmt: skip
NOW = 1_796_000_000.0  # 2026-11-29


def fixed_user(world: World, name: str, monkeypatch: pytest.MonkeyPatch, *policies: str) -> None:  # noqa: F811
    """A user who asks with a key of his own, and the policies attached to him (made here)."""
    iam = world.client("iam")
    iam.create_user(UserName=name)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    for policy in policies:
        document = {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Deny", "Action": "x:Y", "Resource": "*"}],
        }
        arn = iam.create_policy(PolicyName=policy, PolicyDocument=json.dumps(document))["Policy"]["Arn"]
        iam.attach_user_policy(UserName=name, PolicyArn=arn)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    world.calls.clear()


# --- who ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "service", "state"),
    [
        ("root", "iam", "fail"),
        ("user/team/ada", "iam", "warn"),
        ("assumed-role/train/i-0abc", "sts", "ok"),
        ("federated-user/ada", "sts", "ok"),
        ("something/else", "sts", "unknown"),
    ],
)
def test_who_asks(world: World, tmp_path: Path, rest: str, service: str, state: str) -> None:  # noqa: F811
    """The owner fails, a user's endless key warns, keys of a role end."""
    world.answer("sts:GetCallerIdentity", caller(rest, service))
    assert look(tmp_path, "aws.caller").state == state


def test_an_endpoint_that_is_not_aws_is_named(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Whoever plays an account sees that it is played."""
    assert f"asked at {world.url}, not at AWS" in facts(look(tmp_path, "aws.caller"))


def test_not_asked_for(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Without `--account aws` nothing is sent, and that is said."""
    found = look(tmp_path, "aws.caller", accounts=())
    assert (found.state, found.next) == ("unknown", "`--account aws`")
    assert world.calls == []


# --- rights ------------------------------------------------------------------------------------------------


def test_an_administrator(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """By a policy of the name; through a group, too."""
    fixed_user(world, "ada", monkeypatch)
    iam = world.client("iam")
    document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    arn = iam.create_policy(PolicyName="AdministratorAccess", PolicyDocument=json.dumps(document))["Policy"][
        "Arn"
    ]
    iam.create_group(GroupName="team")
    iam.attach_group_policy(GroupName="team", PolicyArn=arn)
    iam.add_user_to_group(GroupName="team", UserName="ada")
    found = look(tmp_path, "aws.rights")
    assert found.state == "warn"
    assert "AdministratorAccess (of group team)" in facts(found)


@pytest.mark.parametrize(
    ("allowed", "state", "words"),
    [
        (("ec2:TerminateInstances",), "ok", "may not iam:CreateUser"),
        (("ec2:TerminateInstances", "iam:CreateUser"), "warn", "may iam:CreateUser"),
        ((), "warn", "may not end machines"),
    ],
)
def test_what_the_simulator_says(
    world: World,  # noqa: F811
    tmp_path: Path,
    allowed: tuple[str, ...],
    state: str,
    words: str,
) -> None:
    """Rights over IAM are too many; without the right to end machines the bill cannot be stopped."""
    world.answer("sts:GetCallerIdentity", caller("assumed-role/train/me"))
    world.client("iam").create_role(RoleName="train", AssumeRolePolicyDocument="{}")
    world.answer("iam:SimulatePrincipalPolicy", decisions(*allowed))
    found = look(tmp_path, "aws.rights")
    assert found.state == state
    assert words in facts(found)


def test_a_role_with_a_path(world: World, tmp_path: Path) -> None:  # noqa: F811
    """IAM Identity Center's have one, of which a session says nothing: IAM knows them only by their whole ARN."""
    name, path = "AWSReservedSSO_Train_0123456789abcdef", "/aws-reserved/sso.amazonaws.com/eu-west-1/"
    whole = f"arn:aws:iam::{ACCOUNT}:role{path}{name}"
    say = decisions("ec2:TerminateInstances")
    world.answer("sts:GetCallerIdentity", caller(f"assumed-role/{name}/ada@example.org"))
    world.answer(
        "iam:SimulatePrincipalPolicy",
        lambda request: say(request) if request["PolicySourceArn"] == whole else Refusal("NoSuchEntity", 404),
    )
    world.client("iam").create_role(RoleName=name, Path=path, AssumeRolePolicyDocument="{}")
    assert look(tmp_path, "aws.rights").state == "ok"
    world.refuse("iam:GetRole", "AccessDenied", status=403)
    found = look(tmp_path, "aws.rights")
    assert (found.state, "`iam:GetRole`" in found.next) == ("unknown", True)
    assert "the role has a path, which its session does not tell (not allowed to iam:GetRole" in facts(found)


def test_no_verdict_on_rights_without_the_simulator(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Names of policies say who is an administrator, not who is none."""
    world.answer("sts:GetCallerIdentity", caller("assumed-role/train/me"))
    world.client("iam").create_role(RoleName="train", AssumeRolePolicyDocument="{}")
    world.refuse("iam:SimulatePrincipalPolicy", "AccessDenied", status=403)
    found = look(tmp_path, "aws.rights")
    assert found.state == "unknown"
    assert "iam:SimulatePrincipalPolicy" in facts(found)


# --- quarantine --------------------------------------------------------------------------------------------


def test_a_key_that_aws_found(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Rotate, and do not detach."""
    fixed_user(world, "ada", monkeypatch, "AWSCompromisedKeyQuarantineV3")
    found = look(tmp_path, "aws.quarantine")
    assert found.state == "fail"
    assert "AWSCompromisedKeyQuarantineV3 on user ada" in facts(found)
    assert found.next.startswith("do not detach it")


def test_the_key_of_somebody_else(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Found by asking whom the policy is attached to, whoever asks."""
    inside = (
        "<PolicyUsers><member><UserName>eve</UserName></member></PolicyUsers><PolicyRoles/><PolicyGroups/>"
    )
    answer = xml("ListEntitiesForPolicy", inside)

    def entities(request: dict[str, Any]) -> str | Refusal:
        return answer if request["PolicyArn"].endswith("V2") else Refusal("NoSuchEntity", 404)

    world.answer("sts:GetCallerIdentity", caller("assumed-role/train/me"))
    world.client("iam").create_role(RoleName="train", AssumeRolePolicyDocument="{}")
    world.answer("iam:ListEntitiesForPolicy", entities)
    found = look(tmp_path, "aws.quarantine")
    assert found.state == "fail"
    assert "AWSCompromisedKeyQuarantineV2 on user eve" in facts(found)


def test_no_quarantine(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Nobody has it: ok; may not be looked at: unknown."""
    fixed_user(world, "ada", monkeypatch, "Mine")
    assert look(tmp_path, "aws.quarantine").state == "ok"
    world.refuse("iam:ListEntitiesForPolicy", "NoSuchEntity", status=404)
    assert look(tmp_path, "aws.quarantine").state == "unknown"  # none of them is known: nothing was seen
    world.refuse("iam:ListEntitiesForPolicy", "AccessDenied", status=403)
    found = look(tmp_path, "aws.quarantine")
    assert found.state == "unknown"
    assert "iam:ListEntitiesForPolicy" in found.next


# --- the owner ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "row", "states"),
    [
        ({"AccountMFAEnabled": 1, "AccountAccessKeysPresent": 0}, None, ("ok", "ok")),
        ({"AccountMFAEnabled": 1, "AccountAccessKeysPresent": 1}, None, ("ok", "fail")),
        ({"AccountMFAEnabled": 0, "AccountAccessKeysPresent": 0, "AccountPasswordPresent": 1}, None, ("fail", "ok")),
        ({"AccountMFAEnabled": 0, "AccountAccessKeysPresent": 0, "AccountPasswordPresent": 0}, None,
         ("not_applicable", "ok")),
        ({"AccountMFAEnabled": 0, "AccountAccessKeysPresent": 0}, {"password_enabled": "false"},
         ("not_applicable", "ok")),
        ({"AccountMFAEnabled": 0, "AccountAccessKeysPresent": 0}, {}, ("fail", "ok")),
        (None, {"mfa_active": "false"}, ("fail", "ok")),
        (None, {"access_key_2_active": "true"}, ("ok", "fail")),
        (None, None, ("unknown", "unknown")),
    ],
)  # fmt: skip
def test_the_owner(
    world: World,  # noqa: F811
    tmp_path: Path,
    figures: dict[str, int] | None,
    row: dict[str, str] | None,
    states: tuple[str, str],
) -> None:
    """Second factor and keys, by the summary or else by the report; no password in an organisation is no fault."""
    world.answer(
        "iam:GetAccountSummary", Refusal("AccessDenied", 403) if figures is None else summary(**figures)
    )
    if row is None:
        world.refuse("iam:GenerateCredentialReport", "AccessDenied", status=403)
    else:
        world.answer("iam:GetCredentialReport", report({**ROOT, **row}))
    found = [look(tmp_path, id) for id in ("aws.root-mfa", "aws.root-keys")]
    assert tuple(f.state for f in found) == states
    if "unknown" in states:
        assert "iam:GetAccountSummary" in found[0].next


# --- people ------------------------------------------------------------------------------------------------


def test_people_and_their_keys(world: World, tmp_path: Path) -> None:  # noqa: F811
    """A password without a second factor fails; a key of 91 days warns, one of 90 does not; the owner's is not his."""
    today = datetime.datetime.fromtimestamp(NOW, datetime.UTC).date()

    def ago(days: int) -> str:
        return f"{today - datetime.timedelta(days=days)}T00:00:00+00:00"

    rows = [
        ROOT,
        {"user": "ada", "password_enabled": "true", "mfa_active": "true", "access_key_1_active": "true",
         "access_key_1_last_rotated": ago(90), "access_key_1_last_used_date": ago(1)},
        {"user": "bob", "password_enabled": "true", "mfa_active": "false", "access_key_2_active": "true",
         "access_key_2_last_rotated": ago(91), "access_key_2_last_used_date": "N/A"},
        {"user": "robot", "password_enabled": "false", "mfa_active": "false", "access_key_1_active": "false",
         "access_key_1_last_rotated": ago(900)},
    ]  # fmt: skip
    world.answer("iam:GetCredentialReport", report(*rows))
    people = look(tmp_path, "aws.people-mfa")
    assert people.state == "fail"
    assert "1 of 2 users with a password have no second factor: bob" in facts(people)
    old = look(tmp_path, "aws.old-keys", now=NOW)
    assert old.state == "warn"
    assert "1 of 2 keys are older than 90 days: bob, key 2: 91 days, never used" in facts(old)
    world.answer("iam:GetCredentialReport", report(*rows[:2]))
    assert look(tmp_path, "aws.people-mfa").state == "ok"
    assert look(tmp_path, "aws.old-keys", now=NOW).state == "ok"


def test_the_report_is_waited_for(world: World, tmp_path: Path) -> None:  # noqa: F811
    """moto says STARTED once, then COMPLETE, as AWS does; its report has no row for the owner."""
    world.client("iam").create_user(UserName="ada")
    world.calls.clear()
    assert look(tmp_path, "aws.people-mfa").state == "not_applicable"
    assert [name for _, name in world.calls] == [
        "iam:GenerateCredentialReport", "iam:GenerateCredentialReport", "iam:GetCredentialReport"
    ]  # fmt: skip


def test_a_report_that_is_none(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Is unknown, not "nobody"."""
    world.answer("iam:GetCredentialReport", report())
    assert look(tmp_path, "aws.people-mfa").state == "unknown"
    content = base64.b64encode(b"user,arn\nada,arn:aws:iam::123456789012:user/ada\n").decode()
    inside = f"<Content>{content}</Content><ReportFormat>text/csv</ReportFormat>"
    world.answer("iam:GetCredentialReport", xml("GetCredentialReport", inside))
    for id in ("aws.people-mfa", "aws.old-keys"):
        assert look(tmp_path, id).state == "unknown"


# --- budgets -----------------------------------------------------------------------------------------------


def alert(
    threshold: float, kind: str = "ACTUAL", unit: str = "PERCENTAGE", to: str = "me@example.org"
) -> Any:
    """A notification with its subscriber."""
    about = {"NotificationType": kind, "ComparisonOperator": "GREATER_THAN", "Threshold": threshold,
             "ThresholdType": unit}  # fmt: skip
    return {"Notification": about, "Subscribers": [{"SubscriptionType": "EMAIL", "Address": to}]}


def planted(world: World, *alerts: Any, limit: str = "100", **more: Any) -> None:  # noqa: F811
    """A budget, and what moto does not play of it: who hears its alerts."""
    budget = {"BudgetName": "all", "BudgetLimit": {"Amount": limit, "Unit": "USD"}, "TimeUnit": "MONTHLY",
              "BudgetType": "COST", "CostTypes": {"IncludeCredit": False}, **more}  # fmt: skip
    world.client("budgets").create_budget(
        AccountId=ACCOUNT, Budget=budget, NotificationsWithSubscribers=list(alerts)
    )
    heard = {float(a["Notification"]["Threshold"]): a["Subscribers"] for a in alerts}
    world.answer(
        "budgets:DescribeSubscribersForNotification",
        lambda request: {
            "Subscribers": [s for s in heard[float(request["Notification"]["Threshold"])] if s["Address"]]
        },
    )


def test_no_budget(world: World, tmp_path: Path) -> None:  # noqa: F811
    """It fails, and the call that makes one is printed, not run; what is printed is a call."""
    found = look(tmp_path, "aws.budget")
    assert found.state == "fail"
    words = shlex.split(found.evidence[1]["command"])
    assert words[:3] == ["aws", "budgets", "create-budget"]
    budget, alerts = json.loads(words[6]), json.loads(words[8])
    assert [a["Notification"]["Threshold"] for a in alerts] == [50, 80, 100]
    # what is printed, once filled in, is a budget for which this check is content
    budget["BudgetLimit"]["Amount"] = "100"
    world.client("budgets").create_budget(
        AccountId=ACCOUNT, Budget=budget, NotificationsWithSubscribers=alerts
    )
    world.answer("budgets:DescribeSubscribersForNotification", {"Subscribers": alerts[0]["Subscribers"]})
    assert look(tmp_path, "aws.budget").state == "ok"
    assert not any("Create" in name for name in world.seen - {"budgets:CreateBudget"})


def test_the_three_alerts(world: World, tmp_path: Path) -> None:  # noqa: F811
    """50, 80 and 100 %, one as an amount; the delay is said."""
    planted(world, alert(50), alert(160, unit="ABSOLUTE_VALUE"), alert(100), limit="200")
    found = look(tmp_path, "aws.budget")
    assert found.state == "ok"
    assert "8 to 24 hours late" in facts(found)


@pytest.mark.parametrize(
    ("alerts", "words"),
    [
        ((), "at 50 %, 80 %, 100 %"),
        ((alert(80), alert(100)), "at 50 %"),
        ((alert(10),), "at 80 %, 100 %"),
        ((alert(50), alert(80), alert(100, "FORECASTED")), "at 100 %"),
        ((alert(50), alert(80), alert(120)), "at 100 %"),
        ((alert(50), alert(80, to=""), alert(100)), "at 80 %"),
    ],
)
def test_an_alert_is_missing(world: World, tmp_path: Path, alerts: tuple[Any, ...], words: str) -> None:  # noqa: F811
    """Not there, only forecast, too late, or sent to nobody."""
    planted(world, *[a for a in alerts if a["Subscribers"][0]["Address"]])
    if any(not a["Subscribers"][0]["Address"] for a in alerts):
        world.client("budgets").create_notification(
            AccountId=ACCOUNT, BudgetName="all", Notification=alerts[1]["Notification"],
            Subscribers=[{"SubscriptionType": "EMAIL", "Address": "x@example.org"}],
        )  # fmt: skip
        somebody = [{"SubscriptionType": "EMAIL", "Address": "a@example.org"}]
        world.answer(
            "budgets:DescribeSubscribersForNotification",
            lambda request: {"Subscribers": [] if request["Notification"]["Threshold"] == 80 else somebody},
        )
    found = look(tmp_path, "aws.budget")
    assert found.state == "fail"
    assert f"no alert that reaches somebody {words} |" in facts(found) + " |"


@pytest.mark.parametrize(
    ("more", "state", "words"),
    [
        ({"CostFilters": {"Service": ["Amazon Simple Storage Service"]}}, "fail", "without EC2"),
        ({"CostFilters": {"Service": ["Amazon Elastic Compute Cloud - Compute"]}}, "ok", ""),
        ({"CostFilters": {"Region": ["us-east-1"]}}, "warn", "only a part"),
        ({"CostTypes": {"IncludeCredit": True}}, "warn", "credits"),
        ({"TimePeriod": {"Start": 1_600_000_000, "End": 1_700_000_000}}, "fail", "ended on 2023-11-14"),
        ({"TimePeriod": {"Start": 1_799_000_000, "End": 3_706_473_600}}, "fail", "begins only on 2027-01-03"),
        ({"TimePeriod": {"Start": 1_795_000_000, "End": 3_706_473_600}}, "ok", ""),
        ({"BudgetType": "USAGE", "BudgetLimit": {"Amount": "5", "Unit": "GB"}}, "fail", "counts usage"),
    ],
)
def test_a_budget_that_does_not_mean_what_it_says(
    world: World,  # noqa: F811
    tmp_path: Path,
    more: dict[str, Any],
    state: str,
    words: str,
) -> None:
    """Filters without EC2, an end that is past, a start that is to come, credits, a part of the account."""
    planted(world, alert(50), alert(80), alert(100), **more)
    found = look(tmp_path, "aws.budget", now=NOW)
    assert found.state == state
    assert words in facts(found)


def test_story_3_the_alert_comes_too_late(world: World, tmp_path: Path) -> None:  # noqa: F811
    """100 USD, all alerts in place, and machines for 96 USD an hour: 24 h unseen are 2,304 USD, 23 budgets."""
    planted(world, alert(50), alert(80), alert(100))
    found = look(tmp_path, "aws.budget", price=Price(96.0, "USD"), gpus=1)
    assert found.state == "warn"
    assert "23.0 budgets" in facts(found)
    assert next(row["unseen_cost"] for row in found.evidence if "unseen_cost" in row) == 2304.0
    assert look(tmp_path, "aws.budget", price=Price(1.0, "USD"), gpus=1).state == "ok"


def test_budgets_that_may_not_be_read(world: World, tmp_path: Path) -> None:  # noqa: F811
    """The list, or who hears the alerts: unknown, with the permission, and nothing said of what was not seen."""
    planted(world, alert(50), alert(80), alert(100))
    world.refuse("budgets:DescribeSubscribersForNotification", "AccessDeniedException")
    found = look(tmp_path, "aws.budget")
    assert found.state == "unknown"
    assert "budgets:ViewBudget" in found.next
    assert "alerts at" not in facts(found)
    world.refuse("budgets:DescribeBudgets", "AccessDeniedException")
    found = look(tmp_path, "aws.budget")
    assert (found.state, "budgets:ViewBudget" in found.next) == ("unknown", True)


def test_a_budget_whose_alerts_may_be_there(world: World, tmp_path: Path) -> None:  # noqa: F811
    """One budget without an alert that was read, another that could not be: that nobody is told is not known."""
    planted(world)
    world.client("budgets").create_budget(
        AccountId=ACCOUNT,
        Budget={"BudgetName": "other", "BudgetLimit": {"Amount": "9", "Unit": "USD"}, "TimeUnit": "MONTHLY",
                "BudgetType": "COST", "CostTypes": {"IncludeCredit": False}},
        NotificationsWithSubscribers=[alert(50), alert(80), alert(100)],
    )  # fmt: skip
    assert look(tmp_path, "aws.budget").state == "unknown"  # nothing says who hears those of `other`
    world.answer(
        "budgets:DescribeNotificationsForBudget",
        lambda request: Refusal("ThrottlingException") if request["BudgetName"] == "other" else None,
    )
    found = look(tmp_path, "aws.budget")
    assert (found.state, "the alerts of other could not be read" in facts(found)) == ("unknown", True)


def test_a_price_in_another_currency(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Euros are not held against a budget in dollars: what can be spent unseen is not known."""
    planted(world, alert(50), alert(80), alert(100))
    found = look(tmp_path, "aws.budget", price=Price(96.0, "EUR"), gpus=1)
    assert (found.state, found.next) == ("unknown", "`--price` in USD")


@pytest.mark.parametrize("amount", ["", "nan", "inf", "-5", "0", None])
def test_a_limit_that_is_none(amount: str | None) -> None:
    """Is no limit, and never divides."""
    row = {"BudgetType": "COST", "BudgetLimit": {"Amount": amount, "Unit": "USD"}, "TimeUnit": "MONTHLY"}
    assert parse_budget(row, NOW).useless == "has no limit"


def test_levels() -> None:
    """An alert stands for the first level that is not below it."""

    def at(percent: float) -> int | None:
        return reached(alert(percent)["Notification"], 100.0)

    assert [at(p) for p in (0, 1, 50, 50.1, 80, 81, 100, 101)] == [None, 50, 50, 80, 80, 100, 100, None]


# --- questions ---------------------------------------------------------------------------------------------


def test_what_is_looked_at_is_not_asked(world: World, tmp_path: Path) -> None:  # noqa: F811
    """The question for second factors is answered by both checks, or stays open when one could not look."""
    world.answer("iam:GetAccountSummary", summary(AccountMFAEnabled=1, AccountAccessKeysPresent=0))
    person = {"user": "ada", "password_enabled": "true", "mfa_active": "true"}
    world.answer("iam:GetCredentialReport", report(ROOT, person))
    ids = ("aws.root-mfa", "aws.people-mfa", "account.mfa")
    found = look(tmp_path, *ids)
    assert found.state == "ok"
    assert "answered by aws.people-mfa, aws.root-mfa" in facts(found)
    world.refuse("iam:GenerateCredentialReport", "AccessDenied", status=403)
    assert look(tmp_path, *ids).state == "unknown"
    world.answer("iam:GetAccountSummary", summary(AccountMFAEnabled=0, AccountAccessKeysPresent=1))
    world.answers.pop(("", "iam:GenerateCredentialReport"))
    found = look(tmp_path, *ids)
    assert found.state == "not_applicable"
    assert facts(found) == "looked at by aws.root-mfa: fail, see there"

"""Google and Azure through gcloud and az, played: what is run, what is found, and what is left to a person."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from preflight_world import facts, machine

from loadsheet.cloud.carry_out import carry_out
from loadsheet.cloud.checklist import Result
from loadsheet.cloud.context import Context, Inputs
from loadsheet.cloud.machine import Output
from loadsheet.cloud.provider_tools import COMMANDS
from loadsheet.cloud.registry import select

pytestmark = pytest.mark.usefixtures("offline")
Played = dict[str, Any]
CONFIGURATION = {"core": {"account": "ada@example.org", "project": "tiny-llm"}}
BILLING = {"billingAccountName": "billingAccounts/01-AB"}


def look(
    folder: Path, id: str, played: Played | None, accounts: tuple[str, ...] = ("gcp", "azure"), **more: Any
) -> Result:
    """One check, with programs that answer by the words that they are called with."""

    def answers(words: Sequence[str]) -> Output | None:
        if played is None:
            return None
        line = " ".join(words)
        for beginning, value in played.items():
            if line.startswith(beginning):
                return value if isinstance(value, Output) else Output(0, json.dumps(value))
        return Output(1, "", f"ERROR: nothing is played for {line}")

    values = {"accounts": accounts, **more}
    host = machine(folder / "root", answers=answers)
    context = Context(folder, Inputs(**values, given=frozenset(values)), host)
    return {entry.id: found for entry, found in carry_out(select([id]), context)}[id]


IDS = ("gcp.rights", "gcp.budget", "gcp.quota", "azure.rights", "azure.budget", "azure.quota")


@pytest.mark.parametrize("id", IDS)
def test_without_a_credential_it_is_a_question(tmp_path: Path, id: str) -> None:
    """No program, nobody logged in, nonsense, or not asked for: unknown, with what to do by hand."""
    region: dict[str, Any] = {"regions": ("eastus",)}
    by_hand = "look in the "
    found = look(tmp_path, id, None, **region)
    assert (found.state, "is not installed" in facts(found), by_hand in found.next) == ("unknown", True, True)
    refused = Output(1, "", "ERROR: Please run 'az login' to setup account.\n")
    found = look(tmp_path, id, {"gcloud": refused, "az": refused}, **region)
    assert (found.state, "Please run 'az login'" in facts(found), by_hand in found.next) == (
        "unknown",
        True,
        True,
    )
    for text in ("<html>", "[" * 1000, "null", '{"core": 5}', '{"user": []}'):
        assert (
            look(tmp_path, id, {"gcloud": Output(0, text), "az": Output(0, text)}, **region).state
            == "unknown"
        )
    found = look(tmp_path, id, {}, accounts=())
    assert (found.state, found.next) == ("unknown", f"`--account {id.partition('.')[0]}`")


def test_commands_only_read() -> None:
    """Every command of the table has a verb that reads, and none that does not."""
    words = {word for command in COMMANDS.values() for word in command}
    verbs = {"list", "show", "describe", "get-iam-policy", "list-usage"}
    assert all(verbs & set(command) for command in COMMANDS.values())
    assert (
        not {"create", "delete", "set", "update", "add", "remove", "start", "stop", "add-iam-policy-binding"}
        & words
    )


def test_a_name_that_is_an_option_is_not_run(tmp_path: Path) -> None:
    """A project called `--impersonate…` reaches no command line."""
    core = {"core": {"account": "ada@example.org", "project": "--flags-file=x"}}
    assert "expected a name" in facts(look(tmp_path, "gcp.rights", {"gcloud config": core}))


@pytest.mark.parametrize(
    ("bindings", "state"),
    [
        ([{"role": "roles/owner", "members": ["user:ada@example.org"]}], "warn"),
        ([{"role": "roles/compute.admin", "members": ["user:ada@example.org"]}], "ok"),
        ([{"role": "roles/compute.admin", "members": ["user:ada@example.org"]},
          {"role": "roles/owner", "members": ["group:all@example.org"]}], "unknown"),
        ([{"role": "roles/owner", "members": ["user:eve@example.org"]}], "unknown"),
    ],
)  # fmt: skip
def test_rights_at_google(tmp_path: Path, bindings: list[Any], state: str) -> None:
    """An owner warns; what a group may give is not guessed."""
    played = {
        "gcloud config": CONFIGURATION,
        "gcloud projects get-iam-policy tiny-llm": {"bindings": bindings},
    }
    assert look(tmp_path, "gcp.rights", played).state == state


@pytest.mark.parametrize(
    ("budgets", "state"),
    [
        ([], "fail"),
        ([{"thresholdRules": [{"thresholdPercent": p} for p in (0.5, 0.8, 1.0)]}], "ok"),
        ([{"thresholdRules": [{"thresholdPercent": p} for p in (0.5, 0.9, 1.0)]}], "fail"),
        ([{"thresholdRules": [{"thresholdPercent": p, "spendBasis": "FORECASTED_SPEND"} for p in (0.5, 0.8, 1.0)]}],
         "fail"),
        ([{"thresholdRules": [{"thresholdPercent": p} for p in (0.5, 0.8, 1.0)],
           "notificationsRule": {"disableDefaultIamRecipients": True}}], "fail"),
        ([{"thresholdRules": [{"thresholdPercent": p} for p in (0.5, 0.8, 1.0)],
           "budgetFilter": {"projects": ["projects/4711"]}}], "unknown"),
    ],
)  # fmt: skip
def test_budget_at_google(tmp_path: Path, budgets: list[Any], state: str) -> None:
    """Thresholds are shares; forecasts and budgets that tell nobody do not count."""
    played = {"gcloud config": CONFIGURATION, "gcloud billing projects": BILLING,
              "gcloud billing budgets list --billing-account=01-AB": budgets}  # fmt: skip
    assert look(tmp_path, "gcp.budget", played).state == state


def test_quota_at_google(tmp_path: Path) -> None:
    """0 over all regions fails, whatever the region says; else the figures are shown."""
    region = {"quotas": [{"metric": "NVIDIA_L4_GPUS", "limit": 1.0, "usage": 0.0},
                         {"metric": "COMMITTED_NVIDIA_L4_GPUS", "limit": 9.0, "usage": 0.0}]}  # fmt: skip
    for limit, state in ((0.0, "fail"), (1.0, "unknown")):
        project = {"quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": limit, "usage": 0.0}]}
        played = {"gcloud config": CONFIGURATION, "gcloud compute project-info": project,
                  "gcloud compute regions describe us-central1": region}  # fmt: skip
        found = look(tmp_path, "gcp.quota", played, regions=("us-central1",))
        assert found.state == state
        assert "us-central1, NVIDIA_L4_GPUS: 1 allowed, 0 in use, 1 left" in facts(found)
        assert "COMMITTED" not in facts(found)


@pytest.mark.parametrize(("role", "state"), [("Owner", "warn"), ("Contributor", "ok"), (None, "unknown")])
def test_rights_at_azure(tmp_path: Path, role: str | None, state: str) -> None:
    """An owner of the subscription warns."""
    account = {"id": "sub-1", "user": {"name": "ada@example.org"}}
    assignments = [{"roleDefinitionName": role}] if role else []
    played = {"az account show": account, "az role assignment list --assignee ada@example.org": assignments}
    assert look(tmp_path, "azure.rights", played).state == state


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, "ok"),
        ({"contactEmails": []}, "fail"),
        ({"enabled": False}, "fail"),
        ({"thresholdType": "Forecasted"}, "fail"),
    ],
)
def test_budget_at_azure(tmp_path: Path, changed: dict[str, Any], state: str) -> None:
    """Three notifications that go to somebody, of money that is spent."""
    alert = {"enabled": True, "thresholdType": "Actual", "contactEmails": ["a@example.org"]}
    alerts = {str(n): {**alert, "threshold": n} for n in (50, 80)} | {
        "100": {**alert, "threshold": 100, **changed}
    }
    played = {"az consumption budget list": [{"amount": 100, "notifications": alerts}]}
    assert look(tmp_path, "azure.budget", played).state == state
    part = {"amount": 100, "notifications": alerts, "filter": {"tags": {"name": "x"}}}
    found = look(tmp_path, "azure.budget", {"az consumption budget list": [part]})
    assert found.state == {"ok": "unknown"}.get(state, state)


def test_quota_at_azure(tmp_path: Path) -> None:
    """Families with GPUs, and spot's one quota; whole numbers come in quotes."""

    def usage(name: str, limit: int) -> dict[str, Any]:
        return {"name": {"value": name}, "limit": str(limit), "currentValue": "0"}

    none = [
        usage("standardNCADSA100v4Family", 0),
        usage("standardDSv3Family", 10),
        usage("lowPriorityCores", 3),
    ]
    asked: dict[str, Any] = {"regions": ("eastus",)}
    assert (
        look(tmp_path, "azure.quota", {"az vm list-usage --location eastus": none}, **asked).state == "fail"
    )
    assert look(tmp_path, "azure.quota", {"az vm": none}, spot=True, **asked).state == "unknown"
    found = look(tmp_path, "azure.quota", {"az vm": [usage("standardNCADSA100v4Family", 24)]}, **asked)
    assert (found.state, "24 vCPUs allowed, 0 in use, 24 left" in facts(found)) == ("unknown", True)

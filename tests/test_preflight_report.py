"""What stands on the page of preflight can be pasted: no command is broken as if it were prose."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from aws_world import (
    ACCOUNT,
    World,
    aws_server,  # noqa: F401
    look,
    world,  # noqa: F401
)
from preflight_world import machine
from test_aws_reach import machine as rented

from loadsheet.cloud.checklist import Check, Result, fail, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.page_html import page
from loadsheet.cloud.registry import all_checks
from loadsheet.cloud.report import lines, summary, wrap

WIDTHS = (40, 72, 100, 140)
LONG = (
    "aws ec2 modify-instance-metadata-options --http-tokens required --region eu-west-1 --instance-id "
    "i-0123456789abcdef0"
)


def pasted(shown: list[str], first: str) -> list[list[str]]:
    """What a shell reads in the commands of a page that begin with a word, as leftovers prints them."""
    found: list[str] = []
    rows = iter(shown)
    for row in rows:
        line = row.strip()
        if not line.startswith(f"$ {first}"):
            continue
        whole = line.removeprefix("$ ")
        while whole.endswith("\\"):
            whole = whole[:-1] + next(rows).strip()
        found.append(whole)
    return [shlex.split(text) for text in found]


def entry(id: str) -> Check:
    """A check of the list."""
    return next(c for c in all_checks() if c.id == id)


def of(id: str, result: Result, width: int) -> list[str]:
    """The whole page of one result."""
    return [*lines(entry(id), result, width), *summary([(entry(id), result)], width)]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_command_in_a_hint(width: int) -> None:
    """It is the same command when it is pasted, and what stands around it is still there."""
    result = warn("old", next=f"`{LONG}`; in a container also `--http-put-response-hop-limit 2`")
    shown = of("aws.metadata", result, width)
    words = pasted(shown, "aws") or [shlex.split(LONG) for line in shown if f"`{LONG}`" in line]
    assert words == [shlex.split(LONG)]
    text = " ".join(" ".join(shown).split())
    assert "in a container also `--http-put-response-hop-limit 2`" in text
    assert "$ --" not in text  # an option is no command


@pytest.mark.parametrize("width", WIDTHS)
def test_a_short_command_stays_on_one_line(width: int) -> None:
    """Wherever it falls in its paragraph."""
    for before in range(60):
        text = f"{'x' * before} then `loadsheet odds --json` and more"
        assert any("`loadsheet odds --json`" in line for line in wrap(text, width))


def test_what_only_a_shell_can_do_is_left_as_it_is() -> None:
    """A pipe that is continued as arguments would be another command."""
    text = "`sudo dmesg --human --color=never --level=err,warn | grep --ignore-case Xid`"
    assert not any("$ sudo" in line or "'|'" in line for line in wrap(text, 40))


def test_text_without_commands_is_wrapped_as_before() -> None:
    """Blanks between the counts of the last line stay two."""
    assert wrap("3 ok  2 not applicable", 80) == ["3 ok  2 not applicable"]
    assert wrap("`a` first", 80) == ["`a` first"]
    assert wrap("", 80) == [""]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_command_that_makes_a_budget(world: World, tmp_path: Path, width: int) -> None:  # noqa: F811
    """What stands on the page, pasted with an amount, is a call that AWS takes."""
    result = look(tmp_path, "aws.budget")
    (words,) = pasted(of("aws.budget", result, width), "aws budgets")
    assert words[:5] == ["aws", "budgets", "create-budget", "--account-id", ACCOUNT]
    budget, alerts = json.loads(words[6]), json.loads(words[8])
    budget["BudgetLimit"]["Amount"] = "100"
    made = world.client("budgets").create_budget(
        AccountId=ACCOUNT, Budget=budget, NotificationsWithSubscribers=alerts
    )
    assert made["ResponseMetadata"]["HTTPStatusCode"] == 200


@pytest.mark.parametrize("width", WIDTHS)
def test_the_command_that_ends_version_1(world: World, tmp_path: Path, width: int) -> None:  # noqa: F811
    """The hint names the machine, and can be pasted."""
    name = rented(world, MetadataOptions={"HttpTokens": "optional"})
    result = look(tmp_path, "aws.metadata")
    (words,) = pasted(lines(entry("aws.metadata"), result, width), "aws ec2")
    wanted = (
        "aws ec2 modify-instance-metadata-options --http-tokens required --region us-east-1 --instance-id"
    )
    assert words == [*shlex.split(wanted), name]


def test_the_page_of_html_has_the_command(tmp_path: Path) -> None:
    """As code, escaped."""
    result = fail("none", {"fact": "what would make one:", "command": "aws x --budget '{\"a\": 1}'"})
    text = page([(entry("aws.budget"), result)], Context(tmp_path, None, machine(tmp_path / "root")), "1")
    assert "<code>aws x --budget &#x27;{&quot;a&quot;: 1}&#x27;</code>" in text

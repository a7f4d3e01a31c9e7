"""Listening to the metadata services of three clouds, played on loopback; the notice file, and a run that obeys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from metadata_player import World, played
from terminal import refused, run

from loadsheet.cloud.notice.aws import Aws
from loadsheet.cloud.notice.azure import Azure
from loadsheet.cloud.notice.gcp import Gcp
from loadsheet.cloud.notice.http import NoAnswer, ask
from loadsheet.cloud.notice.listen import Ear, NoService, cloud_notices, find, listen, services
from loadsheet.cloud.notice.said import Said, announced, most_urgent, unix_time
from loadsheet.errors import BadInput
from loadsheet.run.notices import Notices, read_notice

pytestmark = pytest.mark.usefixtures("offline")
#: 2026-11-29 12:20:45 UTC, by `date -d … +%s`
NOON = 1795954845.0


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def play(world: World) -> Iterator[Callable[[str], str]]:
    with ExitStack() as stack:
        yield lambda which: stack.enter_context(played(world, which))


# --- AWS -----------------------------------------------------------------------------------------------------


def test_aws_404_is_the_normal_state(world: World, play: Callable[[str], str]) -> None:
    """A token by PUT, then three paths, all 404: nothing is planned."""
    aws = Aws(play("aws"))
    assert aws.here()
    assert aws.look() is None
    assert [r.rsplit("/", 1)[-1] for r in world.requests] == [
        "token",
        "instance-action",
        "rebalance",
        "scheduled",
    ]


def test_aws_interruption(world: World, play: Callable[[str], str]) -> None:
    """The example of the EC2 User Guide: terminate, at a time in UTC."""
    aws = Aws(play("aws"))
    world.aws["spot/instance-action"] = '{"action": "terminate", "time": "2026-11-29T12:20:45Z"}'
    assert aws.look() == Said("terminate", NOON, "aws spot terminate")


def test_aws_token_that_expired_is_renewed_once(world: World, play: Callable[[str], str]) -> None:
    """401 is no answer: a new token, the same question again."""
    aws = Aws(play("aws"))
    aws.look()
    world.expire()
    world.aws["events/recommendations/rebalance"] = '{"noticeTime": "2020-10-27T08:22:00Z"}'
    assert aws.look() == Said("rebalance", None, "aws rebalance recommendation")
    assert world.given == 2


def test_aws_scheduled_maintenance_counts_when_it_is_near(world: World, play: Callable[[str], str]) -> None:
    """Hours away: save and go on. Within minutes: save and wait. A completed one: nothing."""
    aws = Aws(play("aws"))

    def event(when: float, state: str = "active") -> str:
        text = time.strftime("%d %b %Y %H:%M:%S GMT", time.gmtime(when))
        return json.dumps([{"Code": "system-reboot", "NotBefore": text, "State": state, "EventId": "e"}])

    path = "events/maintenance/scheduled"
    far = float(int(time.time()) + 7200)
    world.aws[path] = event(far)
    assert aws.look() == Said("rebalance", far, "aws system-reboot")
    world.aws[path] = event(far - 7140)
    assert aws.look() == Said("terminate", far - 7140, "aws system-reboot")
    world.aws[path] = event(far, "completed")
    assert aws.look() is None


@pytest.mark.parametrize("text", ["", "soon", "[]", "{}", '{"action": 3, "time": "tomorrow"}', "[" * 9999])
def test_aws_answer_that_makes_no_sense_is_still_a_notice(
    world: World, play: Callable[[str], str], text: str
) -> None:
    """That the path exists is the notice; what cannot be read is the time only."""
    aws = Aws(play("aws"))
    world.aws["spot/instance-action"] = text
    found = aws.look()
    assert found is not None
    assert (found.kind, found.deadline) == ("terminate", None)


# --- Google Cloud ---------------------------------------------------------------------------------------------


def test_gcp_waits_for_the_change(world: World, play: Callable[[str], str]) -> None:
    """The second look returns when `preempted` turns TRUE, not when its time is over."""
    gcp = Gcp(play("gcp"), wait=60)
    assert gcp.here()
    assert gcp.look() is None
    found: list[Said | None] = []
    thread = threading.Thread(target=lambda: found.append(gcp.look()))
    thread.start()
    while not any("wait_for_change" in r for r in world.requests):
        time.sleep(0.005)
    before = time.time()
    world.set_gcp("preempted", "TRUE")
    thread.join(30)
    after = time.time()
    assert found[0] is not None
    assert found[0].source == "gcp preempted"
    assert before + 30 <= (found[0].deadline or 0) <= after + 30  # "up to 30 seconds"
    assert gcp.look() == found[0]  # the same notice does not move


def test_gcp_a_wait_that_ends_by_time_is_no_notice(world: World, play: Callable[[str], str]) -> None:
    """An answer of status 200 with FALSE means that nothing happened."""
    gcp = Gcp(play("gcp"), wait=0)
    assert [gcp.look(), gcp.look()] == [None, None]
    assert any("wait_for_change" in r for r in world.requests)


def test_gcp_maintenance(world: World, play: Callable[[str], str]) -> None:
    """A machine with GPUs is ended for maintenance; one that is moved goes on."""
    gcp = Gcp(play("gcp"), wait=0)
    world.set_gcp("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
    assert gcp.look() == Said("rebalance", None, "gcp live migration")
    world.set_gcp("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    found = gcp.look()
    assert found is not None
    assert (found.kind, found.source) == ("terminate", "gcp host maintenance")


# --- Azure ----------------------------------------------------------------------------------------------------


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "EventId": "A1", "EventType": kind, "ResourceType": "VirtualMachine", "Resources": ["vm0"],
        "EventStatus": "Scheduled", "NotBefore": "Sun, 29 Nov 2026 12:20:45 GMT", **more,
    }  # fmt: skip


def test_azure_preempt(world: World, play: Callable[[str], str]) -> None:
    """Ours only: the events of the whole group arrive; Freeze is a pause of seconds."""
    azure = Azure(play("azure"))
    assert azure.here()
    world.azure = [event("Preempt", Resources=["vm1"]), event("Freeze")]
    assert azure.look() is None
    world.azure.append(event("Preempt"))
    assert azure.look() == Said("terminate", NOON, "azure preempt")


def test_azure_started_event_has_no_time(world: World, play: Callable[[str], str]) -> None:
    """NotBefore is empty once an event has started: its end is now, and stays the same notice."""
    azure = Azure(play("azure"))
    azure.here()
    world.azure = [event("Terminate", NotBefore="", EventStatus="Started")]
    before = time.time()
    found = azure.look()
    assert found is not None
    assert before <= (found.deadline or 0) <= time.time()
    assert azure.look() == found


@pytest.mark.parametrize("events", [None, 7, [7], [{"EventType": []}], [{"Resources": "vm0"}]])
def test_azure_answers_that_make_no_sense(world: World, play: Callable[[str], str], events: Any) -> None:
    """Neither a notice nor a crash."""
    azure = Azure(play("azure"))
    azure.here()
    world.azure = events
    assert azure.look() is None


# --- what holds for all ----------------------------------------------------------------------------------------


def test_times_as_the_three_write_them() -> None:
    """One instant, three spellings; anything else is no time."""
    texts = ("2026-11-29T12:20:45Z", "Sun, 29 Nov 2026 12:20:45 GMT", "29 Nov 2026 12:20:45 GMT")
    assert [unix_time(t) for t in texts] == [NOON] * 3
    assert [unix_time(t) for t in ("", "soon", None, 5, "2026-11-29T" + "9" * 99)] == [None] * 5


def test_the_most_urgent_counts() -> None:
    """An end before a warning, the earlier end before the later one, an end without a time before all."""
    far, near, vague = Said("terminate", 9.0, "b"), Said("terminate", 5.0, "a"), Said("terminate", None, "c")
    warning = Said("rebalance", 1.0, "d")
    assert most_urgent([warning, far, near]) == near
    assert most_urgent([warning, far, vague]) == vague
    assert most_urgent([]) is None
    assert announced(1000.0, "x", now=900.0).kind == "terminate"
    assert announced(1000.0, "x", now=0.0).kind == "rebalance"


@pytest.mark.parametrize("which", ["aws", "gcp", "azure"])
def test_the_service_that_answers_is_found(world: World, play: Callable[[str], str], which: str) -> None:
    """Each of the three is recognised, and by its own manners only."""
    url = play(which)
    endpoints = dict.fromkeys(("aws", "gcp", "azure"), url)
    assert find(services("auto", endpoints)).name == which


def test_no_service_is_an_error_that_says_what_was_tried() -> None:
    """Outside a cloud nobody answers, and that is not "nothing is planned"."""
    endpoints = dict.fromkeys(("aws", "gcp", "azure"), "http://127.0.0.1:9")
    with pytest.raises(NoService, match=r"aws: .*gcp: .*azure: ") as caught:
        find(services("auto", endpoints))
    assert caught.value.exit_code == 1


def test_silence_is_no_cancellation(world: World, play: Callable[[str], str]) -> None:
    """While the service fails, what was announced stands; after three failures it is said, and once."""
    ear = Ear(Azure(play("azure")))
    ear.service.here()
    world.azure = [event("Preempt")]
    assert [e["event"] for e in ear.look()] == ["notice"]
    world.status = 500
    assert [[e["event"] for e in ear.look()] for _ in range(5)] == [[], [], ["blind"], [], []]
    assert ear.current == Said("terminate", NOON, "azure preempt")
    world.status = None
    assert [e["event"] for e in ear.look()] == ["hearing"]
    world.azure = []
    assert [e["event"] for e in ear.look()] == ["cancelled"]
    assert ear.current is None


def test_answers_are_bounded(world: World, play: Callable[[str], str]) -> None:
    """A service that sends megabytes is no metadata service."""
    world.aws["spot/instance-action"] = "x" * (1 << 20)
    aws = Aws(play("aws"))
    with pytest.raises(NoAnswer, match="more than"):
        aws.look()


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://a:b", "http://[", "http://a?b"])
def test_endpoints_that_are_none(url: str) -> None:
    """BadInput, not a traceback from the depths of urllib."""
    with pytest.raises(BadInput, match="--aws-endpoint"):
        ask(Aws(url or "http://").base, "/", {})


# --- the notice file and the run ------------------------------------------------------------------------------


def test_the_file_is_one_that_a_run_reads(world: World, play: Callable[[str], str], tmp_path: Path) -> None:
    """Notice, then taken back: what the run's own reader makes of the file."""
    path = tmp_path / "notice.json"
    ear = Ear(Azure(play("azure")))
    ear.service.here()
    said: list[dict[str, Any]] = []
    ended = threading.Event()
    thread = threading.Thread(target=listen, args=(ear, path, said.append, ended))
    thread.start()
    try:
        world.azure = [event("Preempt")]
        while not path.exists():
            time.sleep(0.01)
        notice = Notices(path).current()
        assert notice == read_notice({"kind": "terminate", "deadline": NOON, "source": "azure preempt"})
        world.azure = []
        while len(said) < 2:
            time.sleep(0.01)
        again = Notices(path).current()
        assert again is not None
        assert again.kind == "cancelled"
    finally:
        ended.set()
        thread.join()


def test_what_an_earlier_listener_left_is_taken_back(
    world: World, play: Callable[[str], str], tmp_path: Path
) -> None:
    """A listener that ended with a notice in the file; the next one hears that nothing is planned."""
    path = tmp_path / "notice.json"
    path.write_text(json.dumps({"kind": "terminate", "deadline": NOON, "source": "azure preempt"}))
    ended = threading.Event()
    ear = Ear(Azure(play("azure")))
    ear.service.here()

    def say(event: dict[str, Any]) -> None:
        assert event["event"] == "cancelled"
        ended.set()

    listen(ear, path, say, ended)
    assert json.loads(path.read_text())["kind"] == "cancelled"
    ended.clear()
    path.write_text(json.dumps({"kind": "terminate", "deadline": NOON, "source": "my own script"}))
    thread = threading.Thread(target=listen, args=(ear, path, say, ended))
    thread.start()
    asked = len(world.requests)
    while len(world.requests) < asked + 2:
        time.sleep(0.01)
    ended.set()
    thread.join()
    assert json.loads(path.read_text())["source"] == "my own script"


def test_in_process(world: World, play: Callable[[str], str]) -> None:
    """`cloud_notices` is what `Run.open(notice=…)` takes."""
    url = play("aws")
    asked = cloud_notices("aws", endpoints={"aws": url})
    assert asked() is None
    other = cloud_notices("aws", endpoints={"aws": url})
    world.aws["spot/instance-action"] = '{"action": "stop", "time": "2026-11-29T12:20:45Z"}'
    assert read_notice(other()).deadline == NOON


TRAIN = """
import sys, torch, loadsheet as ls
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = ls.Run.open(sys.argv[1], {"kind": "notices"}, progress=None)
run.keep(model=model, optimizer=optimizer)
for step in run.steps(10**9, checkpoint_every=10**9):
    model(torch.ones(4)).sum().backward(); optimizer.step(); optimizer.zero_grad()
    run.log(loss=float(step))
"""


def test_a_training_hears_of_its_end(world: World, play: Callable[[str], str], tmp_path: Path) -> None:
    """`loadsheet notices` beside a training: the notice comes, the run saves, waits, and goes when it is told to."""
    notice = tmp_path / "notice.json"
    environment = {**os.environ, "LOADSHEET_NOTICE": str(notice), "GCE_METADATA_HOST": play("gcp")}
    command = [
        sys.executable,
        "-m",
        "loadsheet",
        "notices",
        "--provider",
        "gcp",
        "--json",
        "--gcp-notice",
        "1h",
    ]
    ear = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    train = subprocess.Popen([sys.executable, "-c", TRAIN, str(tmp_path / "runs")], env=environment)
    try:
        assert ear.stdout is not None
        assert json.loads(ear.stdout.readline())["event"] == "listening"
        _until_logged(tmp_path, train, b'"loss"')
        world.set_gcp("preempted", "TRUE")
        heard = json.loads(ear.stdout.readline())
        assert (heard["event"], heard["kind"]) == ("notice", "terminate")
        _until_logged(tmp_path, train, b'"notice"')
        train.send_signal(signal.SIGTERM)  # as the cloud would
        assert train.wait(60) == 75
        log = next((tmp_path / "runs").glob("*"))
        steps = [int(p.name.removeprefix("step-")) for p in (log / "checkpoints").glob("step-*")]
        assert max(steps) > 0
    finally:
        train.kill()
        train.wait()
        ear.send_signal(signal.SIGTERM)
        assert ear.wait(60) == 0
        ear.stdout.close()


def _until_logged(root: Path, train: subprocess.Popen[bytes], what: bytes) -> None:
    """Wait until the run's log has these bytes; a training that has ended fails at once."""
    until = time.monotonic() + 120
    while not any(what in log.read_bytes() for log in root.glob("runs/*/log.jsonl")):
        assert train.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)


# --- the command line -----------------------------------------------------------------------------------------


def test_once(world: World, play: Callable[[str], str], tmp_path: Path) -> None:
    """Exit status 0 while nothing is planned, 1 when the machine will be taken."""
    url = play("azure")
    args = ("notices", "--once", "--provider", "azure", "--azure-endpoint", url)
    result = run(*args)
    assert (result.exit_code, result.stdout) == (0, "azure: nothing is planned\n")
    world.azure = [event("Preempt")]
    result = run(*args, "--json", "--file", str(tmp_path / "n.json"))
    assert result.exit_code == 1
    assert json.loads(result.stdout)["planned"] == {
        "kind": "terminate",
        "deadline": NOON,
        "source": "azure preempt",
    }
    assert not (tmp_path / "n.json").exists()  # to look is not to tell the run
    assert "2026-11-29 12:20:45 UTC" in run(*args).stdout


def test_bad_usage() -> None:
    """No file to write, an unknown provider, an endpoint that is none."""
    refused("notices", words="--file: missing")
    assert "LOADSHEET_NOTICE" in run("notices").stderr
    refused("notices", "--once", "--provider", "asw", words="unknown provider")
    refused("notices", "--once", "--aws-endpoint", "ftp://x", words="--aws-endpoint")


def test_nobody_answers() -> None:
    """Exit status 1, an error and a hint; never "nothing is planned"."""
    result = run("notices", "--once", "--provider", "aws", "--aws-endpoint", "http://127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: notices: got no metadata service")

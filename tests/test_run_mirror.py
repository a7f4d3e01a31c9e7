"""A copy elsewhere: complete or absent, whatever happens on the way, and enough to go on from."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msgspec")

from loadsheet.errors import BadInput  # noqa: E402
from loadsheet.run.checkpoint import CheckpointStore  # noqa: E402
from loadsheet.run.errors import RunWarning  # noqa: E402
from loadsheet.run.mirror import Mirror, MirrorFailed  # noqa: E402
from loadsheet.run.objects import place  # noqa: E402
from loadsheet.run.state import Keeper  # noqa: E402

NAME = "0123456789"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server that speaks the protocol of S3, on loopback."""
    pytest.importorskip("obstore")
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket; keys and endpoint come from the environment, as on a rented machine."""
    import urllib.request

    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset", method="POST")).close()
    urllib.request.urlopen(urllib.request.Request(f"{server}/bucket", method="PUT")).close()
    return "s3://bucket/runs"


def environment(server: str) -> dict[str, str]:
    """What obstore needs to talk to the server."""
    return {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server,
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.fixture(params=["path", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for the mirror: another directory, or a bucket."""
    return str(tmp_path / "mirror") if request.param == "path" else str(request.getfixturevalue("bucket"))


class Machine:
    """A machine with a run directory, as far as the mirror sees it."""

    def __init__(self, disk: Path, url: str, attempt: int, **options: Any) -> None:
        self.path = disk / NAME
        self.mirror = Mirror(url, self.path, **options)
        self.pulled = self.mirror.pull(self.path)
        for folder in ("provenance", "checkpoints"):
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        if not (self.path / "config.json").exists():
            (self.path / "config.json").write_text('{"width": 3}')
        (self.path / "provenance" / f"attempt-{attempt:04d}.json").write_text(json.dumps({"host": str(disk)}))
        self.store = CheckpointStore(self.path / "checkpoints")
        self.keeper = Keeper()
        self.weights = torch.zeros(300_000)
        self.keeper.keep(weights=self.weights)

    def log(self, text: str) -> None:
        with open(self.path / "log.jsonl", "a") as file:
            file.write(text)

    def save(self, step: int) -> None:
        self.weights.fill_(step)
        snapshot = self.keeper.capture(step)
        self.store.write(snapshot, log_offset=os.path.getsize(self.path / "log.jsonl"))
        snapshot.release()

    def step(self, step: int) -> None:
        """Log, save, push, and wait for it."""
        self.log(f'{{"step":{step}}}\n')
        self.save(step)
        self.mirror.push(step)
        self.mirror.wait()


def value(store: CheckpointStore, step: int | None = None) -> tuple[int, float]:
    state = store.load(step)
    return state.step, float(state.value("weights").min())


def test_a_machine_with_an_empty_disk_goes_on(tmp_path: Path, url: str) -> None:
    """Checkpoint, log, config and provenance are there; the steps before the manifest's are all in the log."""
    first = Machine(tmp_path / "first", url, 1)
    first.mirror.claim(1)
    for step in (1, 2, 3):
        first.step(step)
    second = Machine(tmp_path / "second", url, 2)
    assert (first.pulled, second.pulled, value(second.store)) == (None, 3, (3, 3.0))
    assert second.store.load().step == 3
    assert (second.path / "log.jsonl").read_bytes() == (first.path / "log.jsonl").read_bytes()
    assert sorted(os.listdir(second.path)) == ["checkpoints", "config.json", "log.jsonl", "provenance"]
    assert sorted(os.listdir(second.path / "provenance")) == ["attempt-0001.json", "attempt-0002.json"]
    second.mirror.claim(2)
    second.step(4)
    third = Machine(tmp_path / "third", url, 3)
    assert (third.pulled, (third.path / "log.jsonl").read_text().count("\n")) == (4, 4)


def test_the_copy_keeps_what_the_run_keeps(tmp_path: Path, url: str) -> None:
    """The last two and every third; of the others neither manifest nor data stay."""
    machine = Machine(tmp_path / "disk", url, 1, every_mth=3)
    machine.store = CheckpointStore(machine.path / "checkpoints", every_mth=3)
    for step in range(1, 8):
        machine.step(step)
        machine.store.prune()
    assert machine.mirror.steps() == [3, 6, 7]
    names = place(url).list(f"{NAME}/checkpoints/")
    assert len(names) == 3 * 3
    assert sum(names.values()) > 3 * 1_200_000


def test_nothing_here_is_overwritten(tmp_path: Path, url: str) -> None:
    """Who has as new a checkpoint pulls nothing; who has a longer log keeps it."""
    machine = Machine(tmp_path / "disk", url, 1)
    machine.step(1)
    machine.log('{"step":2}\n{"st')
    log = (machine.path / "log.jsonl").read_bytes()
    again = Machine(tmp_path / "disk", url, 2)
    for step in machine.store.steps():
        (machine.path / "checkpoints" / f"step-{step:08d}" / "manifest.json").unlink()
        (machine.path / "checkpoints" / f"step-{step:08d}").rename(machine.path / "checkpoints" / "torn-1")
    once_more = Machine(tmp_path / "disk", url, 3)
    assert (again.pulled, once_more.pulled, (machine.path / "log.jsonl").read_bytes()) == (None, 1, log)


def test_a_log_that_is_shorter_here_is_completed(tmp_path: Path, url: str) -> None:
    """If it is the beginning of the same log; another one is left alone, with a warning."""
    machine = Machine(tmp_path / "disk", url, 1)
    machine.step(1)
    machine.step(2)
    whole = (machine.path / "log.jsonl").read_bytes()
    for name, begin in (("same", whole[:5]), ("other", b"{}")):
        path = tmp_path / name / NAME
        path.mkdir(parents=True)
        (path / "log.jsonl").write_bytes(begin)
    same = Machine(tmp_path / "same", url, 2)
    with pytest.warns(RunWarning, match="its log is another"):
        other = Machine(tmp_path / "other", url, 2)
    assert ((same.path / "log.jsonl").read_bytes(), same.pulled) == (whole, 2)
    assert ((other.path / "log.jsonl").read_bytes(), other.pulled) == (b"{}", 2)


def test_a_machine_that_was_given_up_does_not_disturb(tmp_path: Path, url: str) -> None:
    """It lives on and pushes: what it logs behind the point where its successor began does not count."""
    old = Machine(tmp_path / "old", url, 1)
    old.mirror.claim(1)
    old.step(1)
    new = Machine(tmp_path / "new", url, 2)
    new.mirror.claim(2)
    old.log('{"from":"old"}\n' * 9)
    old.step(2)
    new.log('{"from":"new"}\n')
    new.step(2)
    old.step(3)
    third = Machine(tmp_path / "third", url, 3)
    assert (third.path / "log.jsonl").read_text() == '{"step":1}\n{"from":"new"}\n{"step":2}\n'
    assert third.pulled == 3  # the same training: its state is as good as any


def test_two_machines_with_the_same_attempt(tmp_path: Path, url: str) -> None:
    """Both have pulled at once: the second to say so is told, and stops."""
    first = Machine(tmp_path / "first", url, 1)
    first.mirror.claim(1)
    first.mirror.claim(1)
    second = Machine(tmp_path / "second", url, 1)
    with pytest.raises(MirrorFailed, match="attempt 1 of another machine"):
        second.mirror.claim(1)


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "tensors.bin"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damage_there_is_found_and_the_older_one_used(tmp_path: Path, name: str, damage: str) -> None:
    """Whatever happened to an object, nothing is believed that its manifest does not confirm."""
    url = str(tmp_path / "mirror")
    machine = Machine(tmp_path / "disk", url, 1)
    machine.step(1)
    machine.step(2)
    (path,) = (tmp_path / "mirror" / NAME / "checkpoints" / "step-00000002").rglob(name)
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[len(data) // 3] ^= 16
        path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    gone = (damage, name) == ("gone", "manifest.json")  # then it was never complete
    with contextlib.nullcontext() if gone else pytest.warns(RunWarning, match="an older one is used"):
        other = Machine(tmp_path / "other", url, 2)
    assert (other.pulled, value(other.store)) == (1, (1, 1.0))
    assert [entry for entry in os.listdir(other.path / "checkpoints") if entry.startswith(".")] == []


PUSHER = """
import sys
from loadsheet.run.mirror import Mirror
mirror = Mirror(sys.argv[1], sys.argv[2])
mirror.attempt = 1
print("begin", flush=True)
mirror.push_now(int(sys.argv[3]))
print("end", flush=True)
"""


class Wire:
    """A relay in front of the server that kills the process once so many bytes have gone through."""

    def __init__(self, server: str, limit: int) -> None:
        host, _, port = server.removeprefix("http://").partition(":")
        self.target = (host, int(port))
        self.limit, self.passed = limit, 0
        self.victim: subprocess.Popen[str] | None = None
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets = [self.listener]
        self.threads: list[threading.Thread] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            for source, target, count in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self.relay, args=(source, target, count), daemon=True)
                thread.start()
                self.threads.append(thread)
            self.sockets += [client, server]

    def relay(self, source: socket.socket, target: socket.socket, count: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self.lock:
                    self.passed += len(data) if count else 0
                    if self.passed >= self.limit and self.victim is not None:
                        self.victim.send_signal(signal.SIGKILL)
                        self.victim.wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in self.sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        for end in self.sockets:
            end.close()


@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_an_upload_killed_on_the_way_leaves_the_older_one(
    tmp_path: Path, bucket: str, server: str, share: float
) -> None:
    """SIGKILL when part of the bytes are through: an empty machine gets the older checkpoint, whole."""
    machine = Machine(tmp_path / "disk", bucket, 1)
    machine.mirror.claim(1)
    machine.step(1)
    machine.log('{"step":2}\n')
    machine.keeper.keep(large=torch.ones(6_000_000))  # 24 MB: three parts
    machine.save(2)
    wire = Wire(server, int(share * 25_200_000))
    command = [sys.executable, "-c", PUSHER, bucket, str(machine.path), "2"]
    process = subprocess.Popen(
        command, env={**os.environ, "AWS_ENDPOINT_URL": wire.url}, stdout=subprocess.PIPE, encoding="utf-8"
    )
    wire.victim = process
    out, _ = process.communicate(timeout=300)
    wire.close()
    assert (process.returncode, out) == (-signal.SIGKILL, "begin\n")
    other = Machine(tmp_path / "other", bucket, 2)
    assert (other.pulled, value(other.store)) == (1, (1, 1.0))
    machine.mirror.push(2)  # the same machine comes back and tries again
    machine.mirror.wait()
    third = Machine(tmp_path / "third", bucket, 2)
    assert (third.pulled, value(third.store)) == (2, (2, 2.0))
    assert third.store.load().step == 2


def test_a_mirror_that_fails_does_not_stop_the_run(tmp_path: Path, bucket: str) -> None:
    """A warning without keys in it; the next push brings everything."""
    machine = Machine(tmp_path / "disk", bucket, 1)
    machine.log('{"step":1}\n')
    machine.save(1)
    good = machine.mirror._objects
    machine.mirror._objects = place("s3://nowhere/runs")
    machine.mirror.push(1)
    with pytest.warns(RunWarning, match=r"mirror s3://nowhere/runs: got .*NoSuchBucket.* expected to write"):
        machine.mirror.wait()
    machine.mirror._objects = good
    machine.mirror.push(1)
    machine.mirror.wait()
    assert machine.mirror.steps() == [1]


def test_nothing_more_is_sent_after_a_push_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that does not answer is not tried once more at the end, while the machine waits."""
    machine = Machine(tmp_path / "disk", str(tmp_path / "mirror"), 1)
    machine.log('{"step":1}\n')
    machine.save(1)
    asked = []

    def silent(*_: Any, **__: Any) -> None:
        asked.append(1)
        raise MirrorFailed("mirror: got no answer, expected one")

    with monkeypatch.context() as patch:
        patch.setattr(type(machine.mirror._objects), "put", silent)
        machine.mirror.push(1)
        with pytest.warns(RunWarning, match="got no answer"):
            machine.mirror.send_rest()
    assert asked == [1]
    machine.mirror.push(1)
    machine.log('{"step":2}\n')
    machine.mirror.send_rest()
    copies = (tmp_path / "mirror" / NAME / "log").iterdir()
    assert b"".join(copy.read_bytes() for copy in sorted(copies)).count(b"\n") == 2


def test_pushes_that_come_too_fast_are_left_out(tmp_path: Path) -> None:
    """Only the newest is wanted; nothing piles up."""
    machine = Machine(tmp_path / "disk", str(tmp_path / "mirror"), 1)
    machine.log("{}\n")
    for step in range(1, 8):
        machine.save(step)
        machine.mirror.push(step)
    machine.mirror.wait()
    assert (machine.mirror.steps()[-1], machine.mirror.pushed[-1]) == (7, 7)
    assert machine.mirror.pushed == sorted(machine.mirror.pushed)


@pytest.mark.parametrize("url", ["", "ftp://host/x", "file://", "s3://"])
def test_places_that_are_none(url: str, tmp_path: Path) -> None:
    """Refused when the run is opened, not at the first push."""
    with pytest.raises(BadInput, match=r"^mirror: got"):
        Mirror(url, tmp_path / NAME)

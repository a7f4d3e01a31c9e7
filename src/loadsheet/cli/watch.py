"""`loadsheet watch`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadsheet.cli.output import show, warn
from loadsheet.cli.watch_page import Shown, page
from loadsheet.errors import BadInput, LoadsheetError
from loadsheet.money.price import parse_price
from loadsheet.units import format_duration, format_money, parse_count, parse_duration

if TYPE_CHECKING:
    from loadsheet.cloud.watch.act import DeadMan
    from loadsheet.cloud.watch.look import Watcher
    from loadsheet.cloud.watch.meter import Cap, Meter
    from loadsheet.cloud.watch.told import Told


class _Watch(click.Command):
    """`--` says that a command follows: without one it is not a watch of what runs already."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """BadInput for `--` with nothing behind it."""
        if "--" in args and args.index("--") == len(args) - 1:
            raise BadInput(
                "watch: got nothing after `--`, expected a command",
                "`loadsheet watch -- python train.py`; without `--` the newest run is watched",
            )
        return super().parse_args(ctx, args)


@click.command(name="watch", cls=_Watch, context_settings={"ignore_unknown_options": False})
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option(
    "--run", "word", help="The run: its directory, or its fingerprint. [the newest that is written to]"
)
@click.option("--runs", "root", default="runs", help="Where the runs are. [runs]")
@click.option("--metric", default="loss", help="The value that must stay finite. [loss]")
@click.option(
    "--idle", default="5min", help="No new record for so long is an alarm. [5min, or 10 usual pauses]"
)
@click.option("--start", default="15min", help="The same before the first records. [15min]")
@click.option("--poll", default="10s", help="From look to look. [10s]")
@click.option("--price", help="Your price per GPU hour; money is counted from the boot of this machine.")
@click.option("--gpus", default="1", help="How many GPUs are paid for. [1]")
@click.option("--billing-unit", default="1s", help="What is billed whole: 1s, 1min, 1h. [1s]")
@click.option("--spent", default="0", help="What was spent before, in the same currency. [0]")
@click.option("--budget", help="Save and stop before this is passed.")
@click.option("--reserve", default="0", help="Kept of the budget, for storage and the way out. [0]")
@click.option("--interval", help="From checkpoint to checkpoint. [learnt from those there are]")
@click.option("--save", default="1min", help="Until a checkpoint is durable. [1min]")
@click.option(
    "--stop", "stop_time", default="2min", help="Until the machine is off and costs nothing. [2min]"
)
@click.option(
    "--journal", type=click.Path(), help="Where the money is written down. [watch.jsonl beside the runs]"
)
@click.option(
    "--dead-man", help="Shut down in so long, put off while all is well: it comes if the watch dies."
)
@click.option(
    "--then-shutdown", is_flag=True, help="Shut the machine down when it is done, stopped, or nobody trains."
)
@click.option("--once", is_flag=True, help="Look once.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per look.")
def command(command_line: tuple[str, ...], word: str | None, root: str, **options: Any) -> int:
    """Watch a training that costs money: beside it, or started by it (`watch -- python train.py`).

    Idle means no progress: no new record in the run's log, and what the GPU draws says whether it waits or
    hangs. Also: NaN and spikes of the loss, waiting for data, a disk that fills, a training that died, notices
    that the machine will go, and the money so far. With --budget it saves and stops (SIGTERM, SIGKILL if that
    is not obeyed) before the budget is passed.

    Exit status: 0 the run is done; 1 stopped for the budget, or with --once an alarm; 2 bad input; ended by a
    signal 128 + its number (Ctrl-C 130, SIGTERM 143); with a command, that command's own: it is told the same.
    """
    once, as_json = options["once"], options["as_json"]
    if once and command_line:
        raise BadInput("--once: got it with a command, expected one of them", "leave one of them out")
    settings = _settings(options)
    meter, cap = _money(root, options, settings)
    if cap is not None and meter is not None and not once and cap.room(meter.spent(), meter.price) <= 0:
        raise NoMoney(
            f"--budget: got {_sum(meter.spent(), settings)} spent of {_sum(cap.budget, settings)}, expected enough to "
            f"train, save and stop",
            "counted from the boot of this machine: nothing was started",
        )
    if once:
        path = _wait_for_run(root, word, None, 0.0, meter, cap, settings)
        if path is None:
            return 1
        look = _watcher(path, options, settings, meter, cap, started=False).look()
        show(json.dumps(look.to_json()) if as_json else page(look, settings["currency"]))
        return 1 if look.alarmed else 0
    from loadsheet.cloud.watch.told import Told

    with Told().listening() as told:
        guard = _guard(settings)
        try:
            return _watch(root, word, command_line, options, settings, meter, cap, told, guard)
        finally:
            if guard is not None and guard.pending:
                warn(
                    f"a shutdown of this machine stays pending, {guard.minutes} min from now at most: "
                    "`shutdown -c` takes it back"
                )


def _guard(s: dict[str, Any]) -> DeadMan | None:
    """The dead man's switch, set before anything else: what is started after it may hang before it opens a run."""
    from loadsheet.cloud.watch.act import DeadMan

    if s["dead_man"] is None:
        return None
    guard = DeadMan(s["dead_man"])
    guard.put_off(time.monotonic())
    return guard


def _watch(
    root: str,
    word: str | None,
    command_line: tuple[str, ...],
    options: dict[str, Any],
    settings: dict[str, Any],
    meter: Meter | None,
    cap: Cap | None,
    told: Told,
    guard: DeadMan | None,
) -> int:
    """Start the command, if there is one, and watch until the end; the exit status."""
    child = _start(command_line, told) if command_line else None
    try:
        path = _wait_for_run(root, word, child, settings["start"], meter, cap, settings, told, guard)
        if path is None:
            return (told.status or 1) if child is None else _code(child.wait())
        watcher = _watcher(path, options, settings, meter, cap, started=child is not None)
        return _loop(watcher, told, options, settings, guard)
    except BaseException:
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)  # what it has trained is saved
            child.wait()
        raise


class NoMoney(LoadsheetError):
    """The budget is used before anything was started."""

    exit_code = 1


def _money(root: str, options: dict[str, Any], s: dict[str, Any]) -> tuple[Meter | None, Cap | None]:
    """What counts the money, from the start on: a download before the run costs as much as the run."""
    from loadsheet.cloud.watch.meter import Cap, Meter

    if s["price"] is None:
        return None, None
    if options["journal"]:
        journal = Path(options["journal"])
    else:
        try:
            os.makedirs(root, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"--runs: got {error.strerror!r} for `{root}`, expected a place for the journal"
            ) from None
        journal = Path(root) / "watch.jsonl"
    meter = Meter(journal, s["price"], unit=s["unit"], before=s["spent"], every=max(s["poll"], 10.0))
    cap = None if s["budget"] is None else Cap(s["budget"], s["reserve"], s["save"], s["poll"], s["stop"])
    return meter, cap


def _sum(amount: float, s: dict[str, Any]) -> str:
    return format_money(amount, s["currency"])


def _code(status: int) -> int:
    """A child's exit status as a shell counts it."""
    return status if status >= 0 else 128 - status


_OOM = ", not by this watch: out of memory, perhaps (`dmesg` says so)"


def _how(status: int) -> str:
    """How a child ended, in words."""
    if status >= 0:
        return f"the command ended with status {status}"
    try:
        return f"the command was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"the command was ended by signal {-status}"


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """The options as numbers; BadInput for what makes no sense."""
    found: dict[str, Any] = {
        name: parse_duration(options[name], f"--{name}") for name in ("idle", "start", "poll", "save")
    }
    found["stop"] = parse_duration(options["stop_time"], "--stop")
    found["unit"] = parse_duration(options["billing_unit"], "--billing-unit")
    found["segment"] = (
        None if options["interval"] is None else parse_duration(options["interval"], "--interval")
    )
    found["dead_man"] = (
        None if options["dead_man"] is None else parse_duration(options["dead_man"], "--dead-man")
    )
    for name in ("poll", "unit"):
        if found[name] <= 0:
            raise BadInput(f"--{'billing-unit' if name == 'unit' else name}: got 0 s, expected longer")
    price = None if options["price"] is None else parse_price(options["price"], "--price")
    if price is None and options["budget"] is not None:
        raise BadInput("--budget: got no --price, expected what a GPU hour costs you", "give --price")
    found["currency"] = "" if price is None else price.currency
    found["price"] = None if price is None else price.amount * parse_count(options["gpus"], "--gpus") / 3600
    for name in ("spent", "reserve", "budget"):
        text = options[name]
        found[name] = None if text is None else parse_price(text, f"--{name}").amount
    return found


def _start(words: tuple[str, ...], told: Told) -> subprocess.Popen[bytes]:
    """Start the command."""
    try:
        return told.start(list(words))
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise BadInput(
            f"command: got {reason} for `{words[0]}`, expected a program that can be started"
        ) from None


def _wait_for_run(
    root: str,
    word: str | None,
    child: subprocess.Popen[bytes] | None,
    patience: float,
    meter: Meter | None,
    cap: Cap | None,
    s: dict[str, Any],
    told: Told | None = None,
    guard: DeadMan | None = None,
) -> Path | None:
    """The directory of the run; one that is still to be opened is waited for, by its command or for `patience`.

    So long, too, is the shutdown put off: what has opened no run by then may hang.

    None if the command has ended without one, the budget did, or a signal ended the watch.
    """
    from loadsheet.history.index import find, run_paths

    if word is not None and child is None:
        return find(root, word).path
    began, until, said = time.time() - 1, time.monotonic() + patience, False
    while True:
        paths = run_paths(root) if os.path.isdir(root) else []
        times = {path: _written(path) for path in paths}
        fresh = [p for p, t in times.items() if child is None or t >= began]
        if word is not None:
            fresh = [p for p in fresh if p.name.startswith(word) or p == Path(word)]
        if fresh:
            return max(fresh, key=lambda p: times[p])
        if child is None and time.monotonic() >= until:
            raise BadInput(
                f"--runs: got no run in `{root}`, expected one", "--runs DIR or --run PATH names it"
            )
        if child is None and not said:
            said = True
            warn(f"no run in `{root}` yet: waiting for one, {format_duration(patience)} at most (--start)")
        if child is not None and child.poll() is not None:
            warn(f"{_how(child.returncode)} and opened no run in `{root}`: nothing was watched")
            return None
        if guard is not None and time.monotonic() < until:
            guard.put_off(time.monotonic())
        if meter is not None and cap is not None and cap.room(spent := meter.spent(), meter.price) <= 0:
            warn(f"the budget is needed for the stop: {_sum(spent, s)} spent, no run was opened in `{root}`")
            if child is not None:
                _end(child, s)
            return None
        if told is None:
            time.sleep(min(0.2, s["poll"]))
        elif told.wait(min(0.2, s["poll"])):
            return None


def _end(child: subprocess.Popen[bytes], s: dict[str, Any]) -> int:
    """Stop the command; its exit status."""
    from loadsheet.cloud.watch.act import stop

    patience = s["save"] + s["stop"]
    if not stop(child.pid, lambda: child.poll() is None, patience):
        warn(
            f"the command did not end within {format_duration(patience)} of SIGTERM (--save, --stop): SIGKILL"
        )
    return _code(child.wait())


def _written(path: Path) -> float:
    """When something last happened there."""
    newest = 0.0
    for name in ("log.jsonl", "lock"):
        with contextlib.suppress(OSError):
            newest = max(newest, (path / name).stat().st_mtime)
    return newest


def _watcher(
    path: Path,
    options: dict[str, Any],
    s: dict[str, Any],
    meter: Meter | None,
    cap: Cap | None,
    *,
    started: bool,
) -> Watcher:
    from loadsheet.cloud.watch.look import Watcher

    return Watcher(
        path,
        metric=options["metric"],
        window=s["idle"],
        start=s["start"],
        meter=meter,
        cap=cap,
        segment=s["segment"],
        started=started,
    )


def _loop(
    watcher: Watcher, told: Told, options: dict[str, Any], s: dict[str, Any], guard: DeadMan | None
) -> int:
    """Look until the run is done, the command has ended, the budget is used, or we are told to stop."""
    from loadsheet.cloud.watch.act import run_shutdown

    child = told.child
    shown = Shown(s["currency"], options["as_json"])
    gone_since: float | None = None
    status = 0
    while True:
        look = watcher.look()
        shown.look(look)
        now = time.monotonic()
        if guard is not None and not look.alarmed:
            guard.put_off(now)
        if look.stop is not None:
            status = _stop(watcher.path, child, s)
            shown.clear()
            warn(f"stopped for the budget: {_sum(look.spent or 0.0, s)} of {_sum(s['budget'], s)} spent")
            break
        if child is not None and child.poll() is not None:
            status = _code(child.returncode)
            if child.returncode < 0 and not look.done:
                shown.clear()
                warn(
                    f"{_how(child.returncode)} after {look.step + 1:,} logged steps"
                    f"{_OOM if child.returncode == -signal.SIGKILL else ''}; the same command goes on "
                    "from what is saved"
                )
            break
        if look.done and child is None:
            break
        gone_since = (gone_since or now) if any(f.id == "process" for f in look.findings) else None
        if options["then_shutdown"] and gone_since is not None and now - gone_since >= s["idle"]:
            status = 1
            break
        _rest(told, s["poll"])
        if told.ended:
            shown.clear()
            return told.status
    shown.clear()
    if options["then_shutdown"]:
        run_shutdown("-h", "now", "loadsheet watch")
        if guard is not None:
            guard.pending = False
    return status


def _rest(told: Told, seconds: float) -> None:
    """Wait until the next look, or until the command has ended."""
    if told.child is None:
        told.wait(seconds)
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        told.child.wait(seconds)


def _stop(path: Path, child: subprocess.Popen[bytes] | None, s: dict[str, Any]) -> int:
    from loadsheet.cloud.watch.act import owner, stop
    from loadsheet.run.lock import in_use

    if child is not None:
        return _end(child, s)
    pid = owner(path)
    patience = s["save"] + s["stop"]
    if pid is not None and not stop(pid, lambda: in_use(path / "lock") is not False, patience):
        warn(
            f"the training did not end within {format_duration(patience)} of SIGTERM (--save, --stop): SIGKILL"
        )
    return 1

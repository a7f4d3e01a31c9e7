"""Whether what is started from here outlives the connection it is started over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from loadsheet.cloud import mounts
from loadsheet.cloud.checklist import Result, not_applicable, ok, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.registry import check
from loadsheet.cloud.session import Session, kills_at_logout, lingers, session

_TMUX: Final = "start it in tmux: `tmux new -s train`, then the command; `tmux attach -t train` comes back"
_LINGER: Final = "`loginctl enable-linger`, once"
_EDITORS: Final = {"VSCODE_IPC_HOOK_CLI": "VS Code's terminal", "JPY_PARENT_PID": "a Jupyter kernel"}


@check(
    "session.survives",
    phase="during",
    why="a laptop that goes to sleep closes the connection, and the training ends with it",
)
def survives(context: Context) -> Result:
    """From this process, or the one that `--pid` names, up to the first: what ends with the connection?"""
    machine, pid = context.machine, context.inputs.pid
    found = session(machine, pid)
    what = f"process {pid}" if pid else "what is started from here"
    row = {"chain": [process.name for process in found.chain]}

    def said(text: str) -> Mapping[str, Any]:
        return {"fact": f"{text} ({found.names})", **row}

    interactive = "SLURM_PTY_PORT" in machine.environment or "SLURM_STEP_PTY_PORT" in machine.environment
    if found.slurm and not (interactive and pid is None):
        return ok(said("held by Slurm's step daemon, not by a connection"))
    if found.slurm:
        return warn(
            said("an interactive Slurm step ends with the terminal that asked for it"), next="`sbatch`"
        )
    kept = found.keeper or ("nohup" if found.hangup_ignored else "")
    if kept and not lingers(machine):
        if found.login and kills_at_logout(machine):
            text = f"in {kept}, but systemd ends it at logout (KillUserProcesses=yes, no linger)"
            return warn(said(text), next=_LINGER)
        if found.user_service:  # tmux issue 428: killed with the last logout, whatever KillUserProcesses says
            text = f"in {kept}, but below the user's own manager, which ends with the last logout ({found.service})"
            return warn(said(text), next=_LINGER)
    if found.keeper == "mosh":
        return ok(said("mosh outlives a lost connection, but not the end of its own window"))
    if found.keeper:
        return ok(said(f"in {found.keeper}: {what} outlives the connection"))
    if found.hangup_ignored:
        return ok(said("SIGHUP is ignored (nohup)"))
    service = found.service.endswith(".service")  # a scope is what a desktop puts around a window
    if found.user_service and service and not lingers(machine):
        return warn(said(f"{found.service}: a service of the user ends with the last logout"), next=_LINGER)
    if service and not found.login and not found.ssh:
        return ok(said(f"a service of systemd: {found.service}"))
    return _attached(context, found, said)


def _attached(context: Context, found: Session, said: Callable[[str], Mapping[str, Any]]) -> Result:
    """Nothing keeps it: what is it attached to?"""
    environment = context.machine.environment if context.inputs.pid is None else {}
    for name, what in _EDITORS.items():
        if name in environment:
            return warn(said(f"{what} ends with its server"), next=_TMUX)
    if found.ssh:
        return warn(said("an SSH session, with nothing between that outlives it"), next=_TMUX)
    where = mounts.container(context.machine)
    if where and found.inside and found.terminal:
        text = f"entered from outside ({where}, `exec`): it ends with that terminal"
        return warn(said(text), next=f"{_TMUX}, or make it the container's own command")
    if where:
        return ok(said(f"the container's own process ({where}): there is no connection it hangs on"))
    if not found.terminal:
        return ok(said("no terminal: there is nothing to close"))
    return not_applicable(said("no SSH session: only closing this terminal's window would end it"))

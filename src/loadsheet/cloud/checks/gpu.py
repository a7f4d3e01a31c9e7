"""The GPUs: seen, answering, free, without errors, and nobody else's.

Written after NVIDIA's documentation and tried with drivers that are played; not yet tried on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from loadsheet.cloud.checklist import CannotLook, Result, fail, not_applicable, ok, unknown, warn
from loadsheet.cloud.context import Context
from loadsheet.cloud.gpus import DriverFails, Gpu, Gpus, NoGpu, at_least, driver_needed, gpus
from loadsheet.cloud.machine import Machine
from loadsheet.cloud.registry import check
from loadsheet.errors import one_line
from loadsheet.units import format_bytes

_HERE: Final = "on the machine that you rent, run `loadsheet preflight` again"
_QUIET: Final = 512 << 20  # bytes that an idle GPU may have in use: the driver's own
_MISMATCH: Final = (
    "restart the machine, or unload and load the kernel module; then keep the driver from being upgraded by itself "
    "(`apt-mark hold`, unattended-upgrades off)"
)
_XID: Final = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)")


def _gpus(context: Context) -> Gpus | Result:
    """The GPUs, or the result of a check that finds none or no answer."""

    def find() -> Gpus | Result:
        try:
            found = gpus(context.machine)
        except NoGpu as reason:
            wanted = _wanted(context)
            if wanted:
                return unknown(f"{reason}; the training takes {wanted}", next=_HERE)
            return not_applicable(str(reason))
        except DriverFails as error:
            return unknown(f"the driver does not answer (gpu.driver): {error}", next="mend the driver first")
        return found

    return context.once("gpus", find)


def _wanted(context: Context) -> int | None:
    """GPUs that the training takes, as far as it was said."""
    if context.inputs.gpus is not None:
        return context.inputs.gpus
    try:
        sheet = context.sheet
    except CannotLook:
        return None
    return sheet.gpus if sheet is not None else None


@check(
    "gpu.driver",
    phase="before",
    why="an upgrade in the background swaps the library under the loaded kernel module: nothing starts any more",
)
def driver(context: Context) -> Result:
    """The driver answers, its library and kernel module are of one version, and new enough for the CUDA of PyTorch."""
    try:
        found = gpus(context.machine)
    except NoGpu as reason:
        return not_applicable(str(reason)) if not _wanted(context) else unknown(str(reason), next=_HERE)
    except DriverFails as error:
        kernel = _kernel_version(context.machine)
        rows = [str(error), *([f"the kernel module is {kernel}"] if kernel else [])]
        if "mismatch" in str(error).lower():
            return fail(*rows, next=_MISMATCH)
        return fail(*rows, next="install the driver, or start the container with its GPUs (`--gpus all`)")
    kernel = _kernel_version(context.machine)
    row: dict[str, Any] = {"fact": f"driver {found.driver}, through {found.through}", "driver": found.driver}
    if kernel and kernel != found.driver:
        text = f"the library says {found.driver}, the kernel module is {kernel}"
        return fail({"fact": text, "driver": found.driver, "kernel_module": kernel}, next=_MISMATCH)
    try:
        version, cuda = _torch_build(context)
    except CannotLook as error:
        return unknown(row, str(error))
    if version is None:
        return ok(row, "no PyTorch in this environment to compare with")
    if cuda is None:
        text = f"PyTorch {version} is built without CUDA: it would train on the processor"
        return fail(text, row, next="install the build for CUDA: pytorch.org, Get Started")
    needed = driver_needed(cuda)
    if needed is None:
        return unknown(
            row, f"PyTorch {version} is built for CUDA {cuda}, whose oldest driver is not in our table"
        )
    text = f"PyTorch {version} is built for CUDA {cuda}, which takes a driver from {needed} on"
    if not at_least(found.driver, needed):
        return fail(text, row, next=f"a newer driver, or a build of PyTorch for an older CUDA than {cuda}")
    return ok(row, text)


def _kernel_version(machine: Machine) -> str:
    """The version of the loaded kernel module; empty where none is loaded."""
    match = re.search(
        r"Kernel Module\D*(\d+\.\d+(?:\.\d+)?)", machine.read("/proc/driver/nvidia/version") or ""
    )
    return match[1] if match else ""


def _torch_build(context: Context) -> tuple[str | None, str | None]:
    """Version of PyTorch and of the CUDA it is built for, read from its files: nothing is imported.

    CannotLook where it is there, and its files do not say.
    """
    if "torch_version_file" in context.options:
        path = Path(context.options["torch_version_file"])
    else:
        spec = find_spec("torch")
        if spec is None or spec.origin is None:
            return None, None
        path = Path(spec.origin).with_name("version.py")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:10_000]
    except FileNotFoundError:
        return None, None
    except OSError as error:
        raise CannotLook(f"PyTorch's version.py: {(error.strerror or str(error)).lower()}") from None
    version = re.search(r"^__version__\s*=\s*'([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=]*=\s*'([0-9.]+)'", text, re.MULTILINE)
    if version is None:
        raise CannotLook("PyTorch's version.py does not say which version it is")
    return version[1], (cuda[1] if cuda else None)


@check(
    "gpu.visible",
    phase="before",
    why="a job that sees fewer GPUs than were paid for runs, and nobody notices",
)
def visible(context: Context) -> Result:
    """As many GPUs as the training takes, and none of them hidden by CUDA_VISIBLE_DEVICES."""
    found = _gpus(context)
    if isinstance(found, Result):
        return found
    names = ", ".join(dict.fromkeys(gpu.name for gpu in found.gpus))
    count = len(found.gpus)
    row = {"fact": f"{count} × {names}", "gpus": count}
    hidden = context.machine.environment.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        listed = [part.strip() for part in hidden.split(",") if part.strip()]
        seen = 0 if not listed or listed[0] == "-1" else len(listed)
        row = {
            "fact": f"{count} × {names}, CUDA_VISIBLE_DEVICES={one_line(hidden)} shows {seen}",
            "gpus": seen,
        }
        count = min(count, seen)
        if seen == 0:
            return fail(row, next="`unset CUDA_VISIBLE_DEVICES`")
    if context.inputs.gpus is None and context.sheet is None:
        return ok(row)
    wanted = _wanted(context)
    if wanted is None:
        return unknown(row, "the sheet does not say how many the training takes", next="`--gpus N`")
    if count < wanted:
        return fail(
            {**row, "wanted": wanted}, f"the training takes {wanted}", next="rent more, or plan with fewer"
        )
    if count > wanted:
        return warn({**row, "wanted": wanted}, f"the training takes {wanted}: the others are paid for, too")
    return ok({**row, "wanted": wanted})


@check(
    "gpu.memory", phase="before", why="memory that something else holds is missing when the training peaks"
)
def memory(context: Context) -> Result:
    """Free memory of every GPU, against the peak of the sheet."""

    def judge(gpu: Gpu) -> tuple[str, str]:
        if gpu.free is None or gpu.total is None:
            return "unknown", "the driver does not say how much is free"
        text = f"{format_bytes(gpu.free)} free of {format_bytes(gpu.total)}"
        high, peak = (sheet.peak_high, sheet.peak_bytes) if sheet else (None, None)
        if peak is not None and gpu.free < peak:
            return "fail", f"{text}, {format_bytes(peak)} needed"
        if high is not None and gpu.free < high:
            return "warn", f"{text}, up to {format_bytes(high)} needed"
        if peak is not None:
            return "ok", f"{text}, {format_bytes(peak)} needed"
        return ("warn", f"{text}: something is in use") if (gpu.used or 0) > _QUIET else ("ok", text)

    sheet = context.sheet
    return _each(context, judge, "see who uses it (gpu.strangers), or plan for less")


@check(
    "gpu.errors", phase="before", why="memory with errors ends a run after hours, or computes something else"
)
def errors(context: Context) -> Result:
    """Uncorrected ECC errors, and rows or pages that could not be, or are still to be, replaced."""

    def judge(gpu: Gpu) -> tuple[str, str]:
        if gpu.failed:
            return "fail", "rows could not be replaced: the GPU is to be exchanged"
        if gpu.uncorrected:
            return "fail", f"{gpu.uncorrected:,} uncorrected ECC errors since the driver was loaded"
        if gpu.pending:
            return "warn", "replaced rows or pages wait for a reset of the GPU"
        if gpu.uncorrected_ever:
            return (
                "warn",
                f"{gpu.uncorrected_ever:,} uncorrected ECC errors in its life, none since it started",
            )
        if gpu.ecc is False:
            return "warn", "ECC is off: errors are not seen"
        if gpu.uncorrected is None:
            return "not_applicable", "this GPU counts no ECC errors"
        return "ok", "no uncorrected ECC error"

    return _each(context, judge, "give the machine back and take another")


@check(
    "gpu.strangers", phase="before", why="on a GPU that somebody else computes on, every step takes longer"
)
def strangers(context: Context) -> Result:
    """Processes that compute on the GPUs before the training has begun."""

    def judge(gpu: Gpu) -> tuple[str, str]:
        if gpu.users is None:
            return "unknown", "the driver does not list who computes on it"
        others = [user for user in gpu.users if user.pid != context.inputs.pid]
        if others:
            names = ", ".join(
                f"{user.name or _name(context.machine, user.pid) or 'a process'} (pid {user.pid}"
                f"{f', {format_bytes(user.bytes)}' if user.bytes is not None else ''})"
                for user in others[:5]
            )
            return "warn", names
        if (gpu.used or 0) > _QUIET and not gpu.users:
            return "warn", f"{format_bytes(gpu.used or 0)} in use by processes that are not seen from here"
        if gpu.used is None and not gpu.users:
            return "unknown", "nobody is seen, and how much memory is in use is not said"
        return "ok", "nobody computes on it"

    return _each(context, judge, "ask whose they are; end your own leftovers (`kill PID`)")


def _name(machine: Machine, pid: int) -> str:
    return one_line((machine.read(f"/proc/{pid}/comm") or "").strip())


def _each(context: Context, judge: Callable[[Gpu], tuple[str, str]], todo: str) -> Result:
    """One result of all GPUs: the worst, with what was found on each."""
    found = _gpus(context)
    if isinstance(found, Result):
        return found
    judged = [(gpu, *judge(gpu)) for gpu in found.gpus]
    order = ("fail", "warn", "unknown", "ok", "not_applicable")
    worst = min((state for _, state, _ in judged), key=order.index, default="not_applicable")
    rows = [{"fact": f"GPU {gpu.index} ({gpu.name}): {text}", "gpu": gpu.index} for gpu, _, text in judged]
    makers = {"fail": fail, "warn": warn, "unknown": unknown, "ok": ok}
    if worst == "not_applicable":
        return not_applicable(*rows)
    return makers[worst](*rows, next=todo if worst in {"fail", "warn"} else "")


@check(
    "gpu.log", phase="before", why="the kernel's log has what a GPU went through before you came: Xid errors"
)
def log(context: Context) -> Result:
    """Xid errors in the kernel's log, where it may be read."""
    found = _gpus(context)
    if isinstance(found, Result):
        return found
    output = context.machine.command(["dmesg"])
    if output is None:
        raise CannotLook("dmesg is not installed")
    if output.status != 0:
        reason = one_line(output.err)[:120] or f"status {output.status}"
        raise CannotLook(f"the kernel's log may not be read: {reason}", "`sudo dmesg | grep Xid`")
    if not output.out.strip():
        raise CannotLook("the kernel's log is empty: who cleared it, or keeps it, is not known")
    seen = sorted({(int(number), where) for where, number in _XID.findall(output.out)})
    if not seen:
        return ok("no Xid error in the kernel's log")
    text = ", ".join(f"Xid {number} ({one_line(where)})" for number, where in seen[:8])
    return warn({"fact": text, "xid": sorted({n for n, _ in seen})}, next="look them up: NVIDIA, XID Errors")

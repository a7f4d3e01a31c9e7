"""`loadsheet measure machine | model | script`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import click

from loadsheet.arch.read import model as find_model
from loadsheet.cli.output import show, show_json, warn
from loadsheet.cli.progress import Progress
from loadsheet.errors import BadInput, LoadsheetError, one_line, shorten
from loadsheet.hardware import Gpu
from loadsheet.hardware import gpu as find_gpu
from loadsheet.sheet.compute import find_peak
from loadsheet.text import columns
from loadsheet.units import format_bytes, format_duration, format_si, parse_count


@click.group(name="measure", no_args_is_help=False)
def command() -> None:
    """The real thing: this machine's rates, your own module, a training script."""


@command.command(name="machine")
@click.option("--gpu", help="GPU id whose data sheet to compare with.")
@click.option("--quick", is_flag=True, help="Two sizes and less time: rates that may be too low.")
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    help="Write what was measured to this JSON file, for `plan --gpu FILE` and `sign --gpu FILE`.",
)
@click.option("--force", is_flag=True, help="With --save: overwrite the file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def machine(gpu: str | None, quick: bool, save: Path | None, force: bool, as_json: bool) -> None:
    """Matmul rate per dtype and size, and memory bandwidth, on the GPU if PyTorch sees one, else the CPU.

    With --save, the best rate of each dtype is the peak of a machine of your own: plans for it, and the
    MFU of runs on it, are relative to what was measured here.
    """
    from loadsheet.history.export_file import check_free, whole_file
    from loadsheet.measure import torch_or_error

    sheet = find_gpu(gpu) if gpu is not None else None
    if save is not None:
        check_free(save, force=force, what="--save")
    torch_or_error()
    from loadsheet.measure.describe import describe
    from loadsheet.measure.machine import measure_machine

    progress = Progress("measuring the rates of this machine")
    try:
        name, rates = measure_machine(sheet, progress, quick=quick)
    finally:
        progress.close()
    entry = describe(name, rates)
    if save is not None:
        with whole_file(save, force=force, what="--save") as aside:
            aside.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
    if sheet is not None and name.startswith("CPU"):
        warn(f"PyTorch sees no GPU: the CPU's rates stand beside the data sheet of {sheet.id}")
    if as_json:
        show_json(
            {
                "device": name, "gpu": sheet.id if sheet else None, "rates": [r.to_json() for r in rates],
                "memory_usable_bytes": entry["memory_usable_bytes"],
                "saved": None if save is None else {"path": str(save), "id": entry["id"]},
            }
        )  # fmt: skip
        return
    show(name)
    rows = [["", "dtype", "size", "rate", "of the data sheet"]]
    for r in rates:
        unit = "FLOP/s" if r.what == "matmul" else "B/s"
        size = f"{r.size}" if r.what == "matmul" else format_bytes(r.size, 0)
        rows.append(
            [
                r.what,
                r.dtype,
                size,
                format_si(r.per_second, unit),
                "–" if r.share is None else f"{r.share:.0%}",
            ]
        )
    for line in columns(rows, left=2):
        show("  " + line)
    show(f"  {format_bytes(entry['memory_usable_bytes'])} of memory that a process can use")
    show("  the shortest of several runs; every machine and every run differs a little")
    if save is not None:
        show(f"saved as `{entry['id']}`: give `--gpu {save}` to plan or sign for this machine")


def load(target: str) -> Any:
    """The object behind `package.module:name`; errors in one line."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise BadInput(f"measure model: got {shorten(target)}, expected `package.module:function`")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        raise BadInput(
            f"measure model: cannot import {shorten(module_name)}: {one_line(str(error))[:160]}"
        ) from None
    except AttributeError:
        raise BadInput(f"measure model: {shorten(module_name)} has no {shorten(name)}") from None


@command.command(name="model")
@click.argument("target")
@click.option("--batch", default="1", help="Batch to carry the fit over to. [1]")
@click.option("--seq", default="1024", help="Tokens to carry the fit over to. [1024]")
@click.option("--inputs", help="`package.module:function`: inputs(batch, seq) -> dict of tensors.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def model(target: str, batch: str, seq: str, inputs: str | None, as_json: bool) -> None:
    """Your own module: TARGET is `package.module:build`, a function that returns it.

    Parameters, FLOPs, bytes kept for backward by submodule and the tracked peak of an AdamW step,
    measured on small sizes on the CPU and fitted with a + m·T² + B·(b·T + c·T²); the fit's error on a size it
    has not seen is printed beside it. The code is yours and is run.
    """
    from loadsheet.measure import torch_or_error

    torch_or_error()
    from loadsheet.measure.module import measure

    size = parse_count(batch, "--batch"), parse_count(seq, "--seq")
    build = load(target)
    make = load(inputs) if inputs else None
    progress = Progress(f"measuring {one_line(target)[:60]}")
    try:
        found = measure(build, make, batch=size[0], seq=size[1], progress=progress)
    except LoadsheetError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code: its error, in one line
        raise LoadsheetError(
            f"measure model: {shorten(target)} failed: {type(error).__name__}: {one_line(str(error))[:200]}",
            "run it by itself to see the whole traceback",
        ) from None
    finally:
        progress.close()
    if as_json:
        show_json(found.to_json())
        return
    show(f"{found.params:,} parameters ({found.trainable:,} trained), {format_bytes(found.parameter_bytes)}")
    rows = [["", f"B = {found.batch:,}, T = {found.seq:,}", "largest term", "fit", "error of the fit"]]
    for name, f in found.fits.items():
        value = found.at[name]
        text = format_si(value, "FLOP") if name == "flops" else format_bytes(value)
        rows.append([name.replace("_", " "), text, found.dominant[name], str(f), f"{f.error:.2%}"])
    for line in columns(rows):
        show("  " + line)
    if found.depth is not None:
        d = found.depth
        show(
            f"  one more layer (B = 1, T = 128): {d['params_per_layer']:,.0f} parameters, "
            f"{format_bytes(d['kept_bytes_per_layer'])} kept, {format_si(d['flops_per_layer'], 'FLOP')}"
        )
    show("  kept by submodule at B = 2, T = 512:")
    for line in columns([[k, format_bytes(v)] for k, v in found.kept_by_module.items()]):
        show("    " + line)


SEQ = 2048  # tokens per sequence, unless given or more than the model was made for


def _impossible(mfu: float, device: Gpu) -> str | None:
    """Why an MFU of more than 100 % cannot be, and what is likely behind it."""
    if mfu <= 1:
        return None
    why = [
        "the rate is of several GPUs together, or of no tokens per second",
        "--tokens-per-step, --model, --seq or --gpu is not what runs",
        "the loop takes the time before the GPU has done its work",
    ]
    if device.own:
        why.insert(
            0, f"the peak of {device.id} was measured too low (`measure machine --quick`, a busy machine)"
        )
    return f"an MFU of {mfu:.0%} cannot be: no machine does more than its peak. Likely: {'; '.join(why)}."


@command.command(
    name="script", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--tokens-per-step", help="Tokens of one optimizer step, if the loop does not print tokens/s.")
@click.option("--model", "model_name", help="MODEL whose FLOPs per token give the MFU.")
@click.option(
    "--seq", help="Tokens per sequence, for the FLOPs of attention. [the model's limit, at most 2048]"
)
@click.option("--gpu", help="GPU id whose bf16 peak the MFU is of.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("line", nargs=-1, type=click.UNPROCESSED)
def script(
    tokens_per_step: str | None, model_name: str | None, seq: str | None, gpu: str | None, as_json: bool,
    line: tuple[str, ...],
) -> int:  # fmt: skip
    """Run `-- COMMAND` and read tokens/s from what it prints; MFU with --model and --gpu; idle time with NVML.

    The command's output is passed on to stderr. Exit status: the command's.
    """
    from loadsheet.measure.script import watch

    per_step = None if tokens_per_step is None else parse_count(tokens_per_step, "--tokens-per-step")
    flops = length = None
    if (model_name is None) != (gpu is None):
        raise BadInput("measure script: got only one of --model and --gpu, expected both: the MFU needs both")
    device = find_gpu(gpu) if gpu is not None else None
    peak, dtype, notes = find_peak(device, "bf16") if device is not None else (None, "", ())
    if model_name is not None:
        from loadsheet.sheet import plan

        target = find_model(model_name)
        usual = min(SEQ, target.max_length or SEQ)
        length = usual if seq is None else parse_count(seq, "--seq")
        sheet = plan(target, device or "", seq=length, task="train")
        flops = sheet.compute.flops_per_token
        if seq is not None and length > (target.max_length or length):
            notes = (*notes, f"--seq: {length:,} is beyond the {target.max_length:,} tokens of {target.name}")
    for note in notes:
        warn(note)
    found = watch(line)
    rate, why = found.tokens_per_second(per_step)
    mfu = rate * flops / peak if rate and flops and peak else None
    doubt = _impossible(mfu, device) if mfu is not None and device is not None else None
    if as_json:
        show_json(
            {
                "exit_code": found.exit_code, "seconds": found.seconds, "steps": len(found.steps),
                "step_seconds": found.step_seconds(), "tokens_per_second": rate, "source": why, "mfu": mfu,
                "mfu_impossible": doubt, "seq": length, "peak_dtype": dtype or None,
                "defaulted": ["seq"] if length is not None and seq is None else [],
                "idle_share": found.idle_share, "idle_unknown": found.idle_why,
            }
        )  # fmt: skip
        return found.exit_code
    step = found.step_seconds()
    show(
        f"{len(found.steps)} steps seen in {format_duration(found.seconds)}"
        + (f", {format_duration(step)} each" if step else "")
    )
    show(f"tokens/s: {rate:,.0f} ({why})" if rate else f"tokens/s: unknown ({why})")
    missing = "no rate" if flops and peak else "give --model and --gpu"
    star = "* (defaulted; --seq)" if seq is None else ""
    show(
        "MFU: "
        + (
            f"{mfu:.1%} of the {dtype} peak, for sequences of {length:,}{star} tokens"
            if mfu is not None
            else f"unknown ({missing})"
        )
    )
    if doubt is not None:
        show(f"  {doubt}")
    show(
        "GPU idle: "
        + (
            f"{found.idle_share:.0%} of the samples"
            if found.idle_share is not None
            else f"unknown ({found.idle_why})"
        )
    )
    return found.exit_code

"""The options of a plan: what `plan`, `sign` and others ask for alike, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loadsheet.arch.read import model as find_model
from loadsheet.cli.output import warn, warn_shadowed
from loadsheet.cli.plan_prices import PRICE_OPTIONS, prices_of
from loadsheet.errors import BadInput, shorten
from loadsheet.hardware import Gpu
from loadsheet.hardware import gpu as find_gpu
from loadsheet.hardware import gpus as all_gpus
from loadsheet.recipe import Training, recipe
from loadsheet.sheet import Sheet, plan
from loadsheet.sheet.calibration import read_calibration
from loadsheet.units import format_duration, parse_count, parse_duration, parse_share

if TYPE_CHECKING:
    from loadsheet.sheet.spot import Interruptions

_TRAIN = "Training: "
_SERVE = "Serving: "


def _refuse(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if value is not None:
        raise BadInput(
            f"{parameter.opts[0]}: got {shorten(value)}, expected no sharding, which is not modelled so far",
            "leave it out: --gpus are replicas; the remedies print the floor of splitting the model states",
        )
    return None


def _hidden(name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """An option that other tools have and this one refuses, with the reason."""
    return click.option(name, hidden=True, expose_value=False, callback=_refuse)


_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--gpu",
        required=True,
        help="GPU id (`loadsheet gpus`), or a JSON file of your own hardware (`measure machine --save`); several "
        "with commas, or `all`, to compare; `plan`: `any` for the cheapest that a price list offers.",
    ),
    click.option("--gpus", help="How many GPUs, each with a replica (data parallel). [1]"),
    click.option("--task", help="train, lora, qlora or serve. [train]"),
    click.option("--batch", help="Sequences per GPU at once. [1]"),
    click.option("--seq", help="Tokens per sequence. [the model's maximum, at most 8192]"),
    click.option(
        "--tokens", help="Tokens of the whole run, such as 15T (serving: those generated): gives GPU hours."
    ),
    click.option(
        "--mfu", help=_TRAIN + "share of the dense peak that useful work reaches. [0.40, range 0.30 to 0.60]"
    ),
    click.option(
        "--calibration",
        type=click.Path(),
        help=_TRAIN
        + "file of your closed runs (`loadsheet close --calibration`); their MFU instead of the default.",
    ),
    click.option("--price", help="Your price per GPU hour, such as 2.5 or `2.50 USD`."),
    click.option(
        "--price-file",
        type=click.Path(),
        help="CSV of your prices per hour, one row each, with a header: gpu (an id), price, and if you like gpus "
        "(in the instance), per (`gpu` or `instance`: what the price is for), currency, provider, region, spot "
        "(yes/no), date, billing_unit; or gpuhunt's columns.",
    ),
    click.option(
        "--prices-from",
        help="gpuhunt: its catalogs, over the network, if the package is installed. [none]",
    ),
    click.option("--max-price-age", help="Older prices, and undated ones, are flagged. [30d]"),
    click.option(
        "--mtbf",
        help=_TRAIN
        + "one interruption so often, such as 6h, for all GPUs together: adds the hours and the cost on "
        "spot machines. Needs --save, --tokens and a price.",
    ),
    click.option("--save", help="With --mtbf: how long a save stops the training, such as 30s."),
    click.option("--restart", help="With --mtbf: from a new machine to the first step. [10min]"),
    click.option("--spot", is_flag=True, help="Let rows marked spot count in the price file."),
    click.option("--precision", help=_TRAIN + "mixed, amp, fp8, megatron, pure-bf16, fp32. [mixed]"),
    click.option(
        "--optimizer",
        help=_TRAIN + "adamw, adam, sgd, sgd-momentum, lion, adafactor, muon, adamw-8bit, adamw-paged, "
        "adamw-8bit-paged. [adamw]",
    ),
    click.option(
        "--optimizer-form",
        help=_TRAIN
        + "fused, foreach, loop, in-backward: the temporary of the step, and when it is taken. [by stack]",
    ),
    click.option("--accumulation", help=_TRAIN + "micro-batches per optimizer step. [1]"),
    click.option("--stack", help=_TRAIN + "torch, hf, litgpt, torchtune, megatron, liger. [torch]"),
    click.option("--recompute", help=_TRAIN + "none, selective, full. [none]"),
    click.option("--attention", help=_TRAIN + "eager, sdpa, flash. [by stack]"),
    click.option("--kernels", help=_TRAIN + "eager, fused: norms and activations. [by stack]"),
    click.option("--loss", help=_TRAIN + "eager, chunked, fused. [by stack]"),
    click.option(
        "--repeat-kv/--no-repeat-kv",
        default=None,
        help=_TRAIN + "copy keys and values to every query head. [by stack]",
    ),
    click.option(
        "--keep-gradients",
        is_flag=True,
        default=None,
        help=_TRAIN + "gradients stay allocated between steps.",
    ),
    click.option("--dropout/--no-dropout", default=None, help=_TRAIN + "the config's dropout. [on]"),
    click.option("--rank", help="LoRA, QLoRA: rank of the adapters. [16]"),
    click.option(
        "--targets", help="LoRA, QLoRA: module names with commas. [all linear layers of the blocks]"
    ),
    click.option("--lora-dropout", help="LoRA, QLoRA: dropout before the adapters. [0]"),
    click.option(
        "--double-quant/--no-double-quant", default=None, help="QLoRA: quantise the constants too. [on]"
    ),
    click.option(
        "--upcast/--no-upcast",
        default=None,
        help="QLoRA: what is not packed in fp32, as PEFT prepares it. [on]",
    ),
    click.option(
        "--weights", help=_SERVE + "bf16, fp16, fp32, fp8, int8, int4, nf4, nf4-double, mxfp4. [bf16]"
    ),
    click.option("--kv", help=_SERVE + "bf16, fp16, fp32, fp8, int8. [bf16]"),
    click.option("--group", help=_SERVE + "group size of int4 scales. [128]"),
    click.option("--prefill-chunk", help=_SERVE + "tokens of one prefill pass. [8192]"),
    _hidden("--tp"),
    _hidden("--pp"),
    _hidden("--cp"),
    _hidden("--ep"),
    _hidden("--dp"),
    _hidden("--zero"),
    _hidden("--fsdp"),
    _hidden("--sharding"),
)


def plan_options(command: _Command) -> _Command:
    """Give a command MODEL and every option of a plan."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return click.argument("model")(command)


def sheets_of(
    model: str,
    gpu: str,
    gpus: str | None,
    options: dict[str, Any],
    *,
    alone: tuple[str, str] | None = None,
    steps: int | None = None,
) -> list[Sheet]:
    """The sheet of each GPU that was named; BadInput and its kin for what makes no sense, warnings to stderr.

    `alone`: what wants a single GPU, and why, where only one may be named. `steps`: as many steps as the
    run has, where it is these and not the tokens that are given.
    """
    chosen = _gpus(gpu)
    if alone is not None and len(chosen) > 1:
        raise BadInput(f"{alone[0]}: got several GPUs, expected one", alone[1])
    with _as_options():
        given = None if gpus is None else parse_count(gpus, "gpus")
        count = given or 1
        settings = _settings(options)
        price_of = prices_of(options, alone=len(chosen) == 1)
        warn_shadowed(model)
        found = find_model(model)
        spot = _interruptions(settings, lambda: plan(found, chosen[0], given, **settings))
        if steps is not None and "tokens" not in settings:
            settings |= _tokens(steps, count, found.max_length, settings)
        sheets = []
        for each in chosen:
            price = price_of(each, count)
            taken = spot if price is not None or len(chosen) == 1 else None
            sheets.append(plan(found, each, given, price=price, interruptions=taken, **settings))
    for message in dict.fromkeys(w for s in sheets for w in s.warnings):
        warn(message)
    return sheets


def _tokens(steps: int, gpus: int, max_length: int | None, settings: dict[str, Any]) -> dict[str, int]:
    """The tokens of so many steps of a recipe that trains."""
    made = recipe(max_length=max_length, **{k: v for k, v in settings.items() if k != "calibration"})
    if not isinstance(made, Training):
        return {}
    return {"tokens": steps * made.batch * made.seq * made.accumulation * gpus}


def _gpus(text: str) -> list[Gpu]:
    """The GPUs in a list with commas, each once; `all` stands for every known one."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise BadInput(f"--gpu: got {shorten(text)}, expected a GPU id", "`loadsheet gpus` lists them")
    if "any" in (name.lower() for name in names):
        raise BadInput(
            f"--gpu: got {shorten(text)}, expected GPU ids",
            "`plan --gpu any` alone lists what a price list offers; then name one of its GPUs",
        )
    if "all" in (name.lower() for name in names):
        return list(all_gpus())
    return list({found.id: found for found in map(find_gpu, names)}.values())


_COUNTS = ("batch", "seq", "tokens", "accumulation", "rank", "group", "prefill_chunk")
_SHARES = ("mfu", "lora_dropout")


@contextmanager
def _as_options() -> Iterator[None]:
    """Errors about an option name it as it is typed here: `prefill_chunk: ...` becomes `--prefill-chunk: ...`."""
    try:
        yield
    except BadInput as error:
        name, colon, rest = str(error).partition(": ")
        command = click.get_current_context().command
        if colon and any(name == p.name for p in command.params if isinstance(p, click.Option)):
            raise BadInput(f"--{name.replace('_', '-')}: {rest}", error.hint) from None
        raise


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as `plan` wants them; BadInput for those that are no numbers."""
    out = {k: v for k, v in options.items() if v is not None and k not in PRICE_OPTIONS}
    if "calibration" in out:
        out["calibration"] = read_calibration(out["calibration"])
    for names, parse in ((_COUNTS, parse_count), (_SHARES, parse_share)):
        for name in names:
            if name in out:
                out[name] = parse(out[name], name)
    return out


def _interruptions(settings: dict[str, Any], sheet: Callable[[], Sheet]) -> Interruptions | None:
    """What `settings` says of interruptions, taken out of them; BadInput for half of it.

    Without `--save` the last rehearsal here says how long a save takes, for a checkpoint of `sheet`'s size.
    """
    found = {n: settings.pop(n) for n in ("mtbf", "save", "restart") if n in settings}
    if not found:
        return None
    if "mtbf" in found and "save" not in found:
        from loadsheet.money.question import REHEARSAL

        if os.path.isfile(REHEARSAL):
            found["save"] = _rehearsed(REHEARSAL, sheet().checkpoint_bytes.get("resume"))
    for name in ("mtbf", "save"):
        if name not in found:
            given = next(iter(found))
            raise BadInput(
                f"--{given}: got one without --{name}, expected both",
                "`loadsheet odds --help` says what they are; `loadsheet rehearse` measures a save",
            )
    from loadsheet.sheet.spot import Interruptions

    return Interruptions(**{name: parse_duration(text, f"--{name}") for name, text in found.items()})


def _rehearsed(path: str, nbytes: int | None) -> str:
    """How long a save of so many bytes takes by the last rehearsal; said on stderr."""
    from loadsheet.money.question import Inputs, from_rehearsal

    inputs = Inputs({} if nbytes is None else {"checkpoint_bytes": nbytes})
    from_rehearsal(inputs, path)
    for message in inputs.warnings:
        warn(message)
    known = inputs.known["save"]
    warn(f"--save: {format_duration(known.value)}*, {known.source}")
    return f"{known.value:.9f}s"

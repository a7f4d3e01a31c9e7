"""`loadsheet plan`: the main job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from loadsheet.arch.read import model as find_model
from loadsheet.cli.output import show, show_json, table, warn, warn_shadowed, width
from loadsheet.errors import BadInput, shorten
from loadsheet.hardware import gpu as find_gpu
from loadsheet.hardware import gpus as all_gpus
from loadsheet.money.price import Price, cheapest, parse_price, read_price_file
from loadsheet.sheet import Sheet, plan
from loadsheet.text import gib_range, wrap
from loadsheet.units import GIB, format_duration, format_money, parse_count, parse_share

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


@click.command(name="plan")
@click.argument("model")
@click.option(
    "--gpu", required=True, help="GPU id (`loadsheet gpus`); several with commas, or `all`, to compare."
)
@click.option("--gpus", default="1", help="How many GPUs, each with a replica (data parallel). [1]")
@click.option("--task", help="train, lora, qlora or serve. [train]")
@click.option("--batch", help="Sequences per GPU at once. [1]")
@click.option("--seq", help="Tokens per sequence. [the model's maximum, at most 8192]")
@click.option("--tokens", help="Tokens of the whole run, such as 15T: gives GPU hours.")
@click.option(
    "--mfu", help=_TRAIN + "share of the dense peak that useful work reaches. [0.40, range 0.30 to 0.60]"
)
@click.option("--price", help="Your price per GPU hour, such as 2.5 or `2.50 USD`.")
@click.option(
    "--price-file",
    type=click.Path(),
    help="CSV of your prices per hour, one row each, with a header: gpu (an id), price, and if you like gpus (in the "
    "instance), per (`gpu` or `instance`: what the price is for), currency, provider, region, spot (yes/no), date.",
)
@click.option("--spot", is_flag=True, help="Let rows marked spot count in the price file.")
@click.option("--precision", help=_TRAIN + "mixed, amp, fp8, megatron, pure-bf16, fp32. [mixed]")
@click.option(
    "--optimizer",
    help=_TRAIN + "adamw, adam, sgd, sgd-momentum, lion, adafactor, muon, adamw-8bit, adamw-paged, "
    "adamw-8bit-paged. [adamw]",
)
@click.option(
    "--optimizer-form",
    help=_TRAIN
    + "fused, foreach, loop, in-backward: the temporary of the step, and when it is taken. [by stack]",
)
@click.option("--accumulation", help=_TRAIN + "micro-batches per optimizer step. [1]")
@click.option("--stack", help=_TRAIN + "torch, hf, litgpt, torchtune, megatron, liger. [torch]")
@click.option("--recompute", help=_TRAIN + "none, selective, full. [none]")
@click.option("--attention", help=_TRAIN + "eager, sdpa, flash. [by stack]")
@click.option("--kernels", help=_TRAIN + "eager, fused: norms and activations. [by stack]")
@click.option("--loss", help=_TRAIN + "eager, chunked, fused. [by stack]")
@click.option(
    "--repeat-kv/--no-repeat-kv",
    default=None,
    help=_TRAIN + "copy keys and values to every query head. [by stack]",
)
@click.option(
    "--keep-gradients", is_flag=True, default=None, help=_TRAIN + "gradients stay allocated between steps."
)
@click.option("--dropout/--no-dropout", default=None, help=_TRAIN + "the config's dropout. [on]")
@click.option("--rank", help="LoRA, QLoRA: rank of the adapters. [16]")
@click.option("--targets", help="LoRA, QLoRA: module names with commas. [all linear layers of the blocks]")
@click.option("--lora-dropout", help="LoRA, QLoRA: dropout before the adapters. [0]")
@click.option(
    "--double-quant/--no-double-quant", default=None, help="QLoRA: quantise the constants too. [on]"
)
@click.option(
    "--upcast/--no-upcast", default=None, help="QLoRA: what is not packed in fp32, as PEFT prepares it. [on]"
)
@click.option("--weights", help=_SERVE + "bf16, fp16, fp32, fp8, int8, int4, nf4, nf4-double, mxfp4. [bf16]")
@click.option("--kv", help=_SERVE + "bf16, fp16, fp32, fp8, int8. [bf16]")
@click.option("--group", help=_SERVE + "group size of int4 scales. [128]")
@click.option("--prefill-chunk", help=_SERVE + "tokens of one prefill pass. [8192]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (bytes, FLOP, seconds).")
@click.option("--explain", is_flag=True, help="Print every item's working and source.")
@click.option("--strict", is_flag=True, help="Exit 1 for `tight` too.")
@_hidden("--tp")
@_hidden("--pp")
@_hidden("--cp")
@_hidden("--ep")
@_hidden("--dp")
@_hidden("--zero")
@_hidden("--fsdp")
@_hidden("--sharding")
def command(
    model: str, gpu: str, gpus: str, as_json: bool, explain: bool, strict: bool, **options: Any
) -> int:
    """The whole sheet for MODEL: does it fit, why, what would make it fit, how long, how much.

    MODEL: a preset (`loadsheet models`), a config.json or its folder, a .safetensors file or its
    index, or a .gguf file. What is left out is defaulted and marked with a star.

    Exit status: 0 fits or tight, 1 does not fit, 2 the question makes no sense. Where GPUs are
    compared, 0 if one of them holds it.
    """
    ids = _gpu_ids(gpu)
    if explain and len(ids) > 1:
        raise BadInput(
            "--explain: got several GPUs, expected one", "a comparison has no room; --json has every working"
        )
    with _as_options():
        count = parse_count(gpus, "gpus")
        settings = _settings(options)
        price_of = _prices(options, alone=len(ids) == 1)
        warn_shadowed(model)
        found = find_model(model)
        sheets = [plan(found, name, count, price=price_of(name, count), **settings) for name in ids]
    for message in dict.fromkeys(w for s in sheets for w in s.warnings):
        warn(message)
    if len(sheets) == 1:
        if as_json:
            show_json(sheets[0].to_dict())
        else:
            show(sheets[0].text(width=width(), explain=explain))
    elif as_json:
        show_json({"schema": 1, "compare": [s.to_dict(full=False) for s in sheets]})
    else:
        show(comparison(sheets, width()))
    good = {"fits"} if strict else {"fits", "tight"}
    return 0 if any(s.verdict in good for s in sheets) else 1


def _gpu_ids(text: str) -> list[str]:
    """The ids in a list with commas, each once; `all` stands for every known one."""
    names = list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    if not names:
        raise BadInput(f"--gpu: got {shorten(text)}, expected a GPU id", "`loadsheet gpus` lists them")
    return [g.id for g in all_gpus()] if "all" in names else [find_gpu(name).id for name in names]


_COUNTS = ("batch", "seq", "tokens", "accumulation", "rank", "group", "prefill_chunk")
_SHARES = ("mfu", "lora_dropout")


@contextmanager
def _as_options() -> Iterator[None]:
    """Errors about an option name it as it is typed here: `prefill_chunk: ...` becomes `--prefill-chunk: ...`."""
    try:
        yield
    except BadInput as error:
        name, colon, rest = str(error).partition(": ")
        if colon and any(name == p.name for p in command.params if isinstance(p, click.Option)):
            raise BadInput(f"--{name.replace('_', '-')}: {rest}", error.hint) from None
        raise


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as `plan` wants them; BadInput for those that are no numbers."""
    out = {k: v for k, v in options.items() if v is not None and k not in ("price", "price_file", "spot")}
    for names, parse in ((_COUNTS, parse_count), (_SHARES, parse_share)):
        for name in names:
            if name in out:
                out[name] = parse(out[name], name)
    return out


def _prices(options: dict[str, Any], *, alone: bool) -> Callable[[str, int], Price | None]:
    """The price of a GPU by its id and how many of them; None where the user named none.

    In a comparison, a GPU that the price file does not have goes without.
    """
    text, file, spot = options["price"], options["price_file"], options["spot"]
    if text is not None and file is not None:
        raise BadInput("--price and --price-file: got both, expected one of them", "leave one of them out")
    if spot and file is None:
        raise BadInput("--spot: got no --price-file, expected one", "spot is a column of a price file")
    if file is None:
        price = None if text is None else parse_price(text, "--price")
        return lambda gpu, count: price
    rows = read_price_file(file)

    def of(gpu: str, count: int) -> Price | None:
        if not alone and not any(row.gpu == gpu and (spot or not row.spot) for row in rows):
            return None
        return cheapest(rows, gpu, count, allow_spot=spot)

    return of


#: columns of the comparison that a narrow terminal goes without, the first ones first
_SPARE = ("tokens/s", "usable GiB", "step", "per million tokens", "GPU hours", "cost", "needs GiB")


def comparison(sheets: list[Sheet], room: int) -> str:
    """One line per GPU: what fits first, then by the time of a step; the columns that there is room for."""
    rank = {"fits": 0, "tight": 1, "does_not_fit": 2}
    ordered = sorted(sheets, key=lambda s: (rank[s.verdict], s.compute.step_seconds.mid))
    first = sheets[0]
    r = first.recipe
    text = f"{first.model.name} · {r.task} · batch {r.batch:,} × {r.seq:,} tokens · {first.gpus} GPU(s) each"
    return "\n".join([*wrap(text, room, "  "), "", *table([_cells(s) for s in ordered], _SPARE, room)])


def _cells(sheet: Sheet) -> dict[str, str]:
    """One row of the comparison by its columns; an empty cell is one that has no answer."""
    c, money = sheet.compute, sheet.money
    cost = None if money is None else money.cost
    return {
        "gpu": sheet.gpu.id,
        "verdict": sheet.verdict.replace("_", " "),
        "needs GiB": gib_range(sheet.memory.peak),
        "usable GiB": f"{sheet.memory.usable_bytes / GIB:.1f}",
        "step": format_duration(c.step_seconds.mid),
        "tokens/s": f"{c.tokens_per_second:,.0f}",
        "GPU hours": "" if c.gpu_hours is None else f"{c.gpu_hours.mid:,.1f}",
        "cost": ""
        if money is None or cost is None
        else format_money(cost.estimate.mid, money.price.currency),
        "per million tokens": ""
        if money is None
        else format_money(money.per_million_tokens.estimate.mid, money.price.currency),
    }

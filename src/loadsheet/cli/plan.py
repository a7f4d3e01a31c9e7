"""`loadsheet plan`: the main job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from loadsheet.arch.read import model as find_model
from loadsheet.cli.output import show, show_json, warn, width
from loadsheet.errors import BadInput
from loadsheet.hardware import gpus as all_gpus
from loadsheet.money.price import Price, cheapest, parse_price, read_price_file
from loadsheet.sheet import Sheet, plan
from loadsheet.text import columns, gib_range
from loadsheet.units import GIB, format_duration, parse_count

_TRAIN = "Training: "
_SERVE = "Serving: "


def _whole(name: str, text: str | None) -> int | None:
    return None if text is None else parse_count(text, name)


def _share(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    raw = text.strip()
    try:
        value = float(raw[:-1]) / 100 if raw.endswith("%") else float(raw)
    except ValueError:
        raise BadInput(f"{name}: got {text!r:.60}, expected a share such as `0.4` or `40%`") from None
    return value


def _refuse(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if value is not None:
        raise BadInput(
            f"{parameter.opts[0]}: got {value!r:.60}, expected no sharding: only replicas (--gpus) are modelled so far",
            "leave it out; the remedies print the floor of splitting the model states over several GPUs",
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
@click.option("--mfu", help="Share of the dense peak that useful work reaches. [0.40, range 0.30 to 0.60]")
@click.option("--price", help="Your price per GPU hour, such as 2.5 or `2.50 USD`.")
@click.option(
    "--price-file", type=click.Path(), help="CSV of your prices: gpu, price, gpus, per, currency, spot, ..."
)
@click.option("--spot", is_flag=True, help="Let rows marked spot count in the price file.")
@click.option("--precision", help=_TRAIN + "mixed, amp, megatron, pure-bf16, fp32. [mixed]")
@click.option("--optimizer", help=_TRAIN + "adamw, adam, sgd, sgd-momentum, adamw-8bit. [adamw]")
@click.option(
    "--optimizer-form", help=_TRAIN + "fused, foreach, loop: decides the step's temporary. [by stack]"
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
@click.option("--weights", help=_SERVE + "bf16, fp16, fp32, fp8, int8, int4, nf4, nf4-double. [bf16]")
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

    Exit status: 0 fits or tight, 1 does not fit, 2 the question makes no sense.
    """
    names = [name.strip() for name in gpu.split(",") if name.strip()]
    if not names:
        raise BadInput(f"--gpu: got {gpu!r:.60}, expected a GPU id", "`loadsheet gpus` lists them")
    if names == ["all"]:
        names = [g.id for g in all_gpus()]
    count = parse_count(gpus, "--gpus")
    prices = options.pop("price"), options.pop("price_file"), options.pop("spot")
    settings = _settings(options)
    found = find_model(model)
    sheets = []
    for name in names:
        sheets.append(plan(found, name, count, price=_price(*prices, name, count), **settings))
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
        show(comparison(sheets))
    good = {"fits"} if strict else {"fits", "tight"}
    return 0 if any(s.verdict in good for s in sheets) else 1


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as `plan` wants them; BadInput for those that are no numbers."""
    out = {k: v for k, v in options.items() if v is not None}
    for name in ("batch", "seq", "tokens", "accumulation", "rank", "group", "prefill_chunk"):
        if name in out:
            out[name] = _whole(f"--{name.replace('_', '-')}", out[name])
    for name in ("mfu", "lora_dropout"):
        if name in out:
            out[name] = _share(f"--{name.replace('_', '-')}", out[name])
    if "targets" in out:
        out["targets"] = frozenset(t.strip() for t in out["targets"].split(",") if t.strip())
        if not out["targets"]:
            raise BadInput("--targets: got nothing, expected module names such as `q_proj,v_proj`")
    return out


def _price(text: str | None, file: str | None, spot: bool, gpu: str, gpus: int) -> Price | None:
    if text is not None and file is not None:
        raise BadInput("--price and --price-file: got both, expected one of them")
    if text is not None:
        return parse_price(text, "--price")
    if file is None:
        return None
    return cheapest(read_price_file(file), gpu, gpus, allow_spot=spot)


def comparison(sheets: list[Sheet]) -> str:
    """One line per GPU: what fits first, then by the time of a step."""
    rank = {"fits": 0, "tight": 1, "does_not_fit": 2}
    ordered = sorted(sheets, key=lambda s: (rank[s.verdict], s.compute.step_seconds.mid))
    priced = any(s.money is not None for s in sheets)
    rows = [
        [
            "gpu",
            "verdict",
            "needs GiB",
            "usable GiB",
            "step",
            "tokens/s",
            *(["per million tokens"] if priced else []),
        ]
    ]
    for s in ordered:
        row = [
            s.gpu.id,
            s.verdict.replace("_", " "),
            gib_range(s.memory.peak),
            f"{s.memory.usable_bytes / GIB:.1f}",
            format_duration(s.compute.step_seconds.mid),
            f"{s.compute.tokens_per_second:,.0f}",
        ]
        if priced:
            row.append(
                "–"
                if s.money is None
                else f"{s.money.per_million_tokens.estimate.mid:,.2f} {s.money.price.currency}"
            )
        rows.append(row)
    first = sheets[0]
    r = first.recipe
    head = f"{first.model.name} · {r.task} · batch {r.batch:,} × {r.seq:,} tokens · {first.gpus} GPU(s) each"
    return "\n".join([head, "", *columns(rows, left=2)])

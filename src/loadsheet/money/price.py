"""What a run costs: hours times a price that the user names.

Loadsheet ships no prices: they change by the week, the region and the contract. A price comes from the
command line (`parse_price`) or from the user's own file (`price_file`); without one, callers print hours only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from loadsheet.errors import BadInput, shorten
from loadsheet.hardware import Gpu
from loadsheet.hardware import gpu as find_gpu
from loadsheet.ledger import Basis, Estimate, Item, estimate
from loadsheet.units import ceil_div

COMMAND_LINE: Final = "given on the command line"

_MAX_PRICE: Final = 1e12  # per hour, in the weakest currency; anything above is a typing error

#: the active codes of ISO 4217, so that a unit such as `min` is never taken for a currency
_CODE_LIST: Final = (
    "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD "
    "CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF "
    "GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK "
    "LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD "
    "OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN "
    "SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES VND VUV WST XAF XCD XOF "
    "XPF YER ZAR ZMW ZWG"
)
_CODES: Final = frozenset(_CODE_LIST.split())
_SIGNS: Final = frozenset("$€£¥₹₩₽₺₴₫฿₦₱₪")
_NUMBER: Final = re.compile(r"[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20}")
_PRICE: Final = re.compile(
    r"(?P<before>[^\W\d_]+|[^\w\s.,+-])?\s*(?P<number>[-+]?[0-9.][0-9.,_]*)\s*(?P<after>[^\W\d_]+|[^\w\s./,])?"
    r"\s*(?:(?:/|per\s)\s*(?:gpu[\s/-]*)?(?:h|hr|hour))?",
    re.IGNORECASE,
)
_EXAMPLE: Final = "a price per GPU hour such as `2.5`, `2.50 USD/h` or `€2.5`"


@dataclass(frozen=True, slots=True)
class Price:
    """What one GPU costs for one hour."""

    amount: float  # per GPU hour
    currency: str = ""  # the user's own: a code, a sign, or nothing
    label: str = ""  # what it buys: provider, region, how many are rented
    source: str = COMMAND_LINE
    flag: str = ""  # why it may not hold any more: "undated", "89 days old"
    billing_seconds: float | None = None  # a started unit is paid whole; None: time is paid as used

    def __str__(self) -> str:
        digits = f"{self.amount:,.4f}".rstrip("0")
        shown = digits + "0" * max(0, 2 - len(digits.partition(".")[2]))
        return (
            f"{shown} {self.currency}".rstrip() + " per GPU hour" + (f" ({self.flag})" if self.flag else "")
        )


@dataclass(frozen=True, slots=True)
class PriceRow:
    """One row of a user's price file, checked."""

    gpu: str
    price: float  # per hour, for what `per` says
    gpus: int = 1  # in the instance, which is rented whole
    per: Literal["gpu", "instance"] = "gpu"
    currency: str = ""
    provider: str = ""
    region: str = ""
    spot: bool = False
    date: str = ""
    source: str = ""  # "prices.csv row 3"
    instance: str = ""  # what the provider calls it
    billing_seconds: float | None = None  # a started unit is paid whole; None: the file does not say

    @property
    def instance_hour(self) -> float:
        """What the whole instance costs for one hour."""
        return self.price if self.per == "instance" else self.price * self.gpus


def read_amount(text: str, what: str, expected: str) -> float:
    """A number that is not negative, written with a decimal point; BadInput otherwise."""
    if "," in text:
        raise BadInput(
            f"{what}: got {shorten(text)}, expected {expected}",
            "a comma can mean two things here; write `1.5` with a point and thousands without a mark",
        )
    sign, digits = (text[0], text[1:]) if text[:1] in ("-", "+") else ("", text)
    if not _NUMBER.fullmatch(digits):
        raise BadInput(f"{what}: got {shorten(text)}, expected {expected}")
    value = float(digits)
    if sign == "-" and value:
        raise BadInput(f"{what}: got {shorten(text)}, expected no negative price")
    if value > _MAX_PRICE:
        raise BadInput(f"{what}: got {shorten(text)}, expected at most {_MAX_PRICE:.0e} an hour")
    return value


def read_currency(text: str, what: str) -> str:
    """A currency code in capitals or a sign; "" for nothing; BadInput for anything else."""
    code = text.upper()
    if not text or text in _SIGNS or code in _CODES:
        return code
    raise BadInput(
        f"{what}: got currency {shorten(text)}, expected a code such as USD or a sign such as €",
        "leave the currency out to count in units of your own",
    )


def parse_price(
    value: object, what: str = "price", source: str = COMMAND_LINE, expected: str = _EXAMPLE
) -> Price:
    """The price of one GPU hour from a number or from text; BadInput for anything that is not clear.

    `expected` says in the error what is wanted, where it is not a price per GPU hour.

    >>> parse_price("2.50 USD/h").amount, parse_price("$2.5 per hour").currency, parse_price(3).amount
    (2.5, '$', 3.0)
    """
    if isinstance(value, Price):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value <= _MAX_PRICE:  # false for nan, too
            raise BadInput(f"{what}: got {shorten(value)}, expected {expected}")
        return Price(float(value), source=source)
    text = str(value).strip()
    match = _PRICE.fullmatch(text) if len(text) <= 60 else None
    if match is None:
        raise BadInput(f"{what}: got {shorten(value)}, expected {expected}")
    amount = read_amount(match["number"], what, expected)
    signs = [read_currency(match[side] or "", what) for side in ("before", "after")]
    if all(signs):
        raise BadInput(f"{what}: got {shorten(value)}, expected one currency, not two")
    return Price(amount, signs[0] or signs[1], source=source)


# --- what it comes to ------------------------------------------------------------------------------


def billed_seconds(seconds: Any, unit: float | None) -> Any:
    """Seconds that are paid where a started unit is paid whole: b = ⌈t/u⌉·u.

    t: `seconds` of use, a number or an array; u: the billing unit in seconds; None or 0: paid as used. A
    minimum charge, which some providers have, is not in it.

    >>> billed_seconds(5400.0, 3600.0), billed_seconds(5400.0, None)
    (7200.0, 5400.0)
    """
    return ceil_div(seconds, unit) * unit if unit else seconds


def _said(price: Price) -> str:
    return f"price {price.source}" + (f" ({price.label})" if price.label else "")


def _positive(value: Any, what: str, zero: bool = False) -> None:
    """BadInput if a plain number, or the low end of an estimate, is not a positive finite number."""
    low = estimate(value).low
    if hasattr(low, "__array_namespace__") or 0 < low < math.inf or (zero and low == 0):
        return
    raise BadInput(f"{what}: got {shorten(low)}, expected a finite number {'from' if zero else 'above'} 0")


def training_cost(gpu_hours: Any, price: Price | float, basis: Basis = "modelled", *, gpus: int = 1) -> Item:
    """GPU hours times the price per GPU hour, in the price's currency; of all GPUs together started units are paid.

    `gpu_hours`, of `gpus` that work side by side, may be a number, an array or an Estimate; BadInput if it is
    negative. The lecture's Llama 3 8B: 507,474 hours at 2 an hour; and 6 GPU hours on 4 GPUs, by the started hour.

    >>> item = training_cost(507_474, Price(2.0))
    >>> item.amount, item.working
    (1014948.0, 'hours·price = 507,474·2')
    >>> training_cost(6.0, Price(2.0, billing_seconds=3600.0), gpus=4).amount
    16.0
    """
    price = parse_price(price)
    _positive(gpu_hours, "GPU hours", zero=True)
    unit = price.billing_seconds
    operands = {"hours": estimate(gpu_hours).mid, "price": price.amount}
    if not unit:
        return Item("training", gpu_hours * price.amount, "hours·price", operands, _said(price), basis)
    _positive(gpus, "gpus")

    def cost(hours: Any) -> Any:
        return billed_seconds(hours * (3600 / gpus), unit) / 3600 * gpus * price.amount

    if isinstance(gpu_hours, Estimate):
        low, mid, high = (cost(end) for end in (gpu_hours.low, gpu_hours.mid, gpu_hours.high))
        amount: Any = Estimate(low, mid, high, gpu_hours.reason)
    else:
        amount = cost(gpu_hours)
    expression = "⌈3,600·hours/(gpus·unit)⌉·unit/3,600·gpus·price"
    return Item("training", amount, expression, {**operands, "gpus": gpus, "unit": unit}, _said(price), basis)


def cost_per_million_tokens(
    tokens_per_second: Any, gpus: int, price: Price | float, basis: Basis = "modelled"
) -> Item:
    """What a million tokens cost when `gpus` GPUs together make `tokens_per_second`, kept busy.

    The rate may be a number, an array or an Estimate; BadInput if it or the count is not positive.

    >>> cost_per_million_tokens(1000.0, 1, 3.6).amount
    1.0
    """
    price = parse_price(price)
    _positive(tokens_per_second, "tokens per second")
    _positive(gpus, "gpus")
    rate = estimate(tokens_per_second)
    hourly = gpus * price.amount

    def cost(tokens_per_second: Any) -> Any:
        return hourly * 1e6 / (3600 * tokens_per_second)

    amount: Any = cost(rate.mid)
    if isinstance(tokens_per_second, Estimate):  # the fastest is the cheapest
        amount = Estimate(cost(rate.high), amount, cost(rate.low), rate.reason)
    operands = {"gpus": gpus, "price": price.amount, "rate": rate.mid}
    expression = "gpus·price·10⁶/(3,600·rate)"
    return Item("per million tokens", amount, expression, operands, _said(price), basis)


def cheapest(
    rows: Iterable[PriceRow],
    gpu: str | Gpu,
    gpus: int = 1,
    allow_spot: bool = False,
    flag: Callable[[PriceRow], str] = lambda row: "",
) -> Price:
    """The least that `gpus` GPUs of one kind cost for an hour, per GPU in use; instances are rented whole.

    Spot rows count only with `allow_spot`, as they can be taken away. `flag` says why the price of a row
    may not hold any more; it goes into the source. BadInput if no row fits or if the rows that fit are in
    several currencies; UnknownGpu if there is no such GPU.
    """
    _positive(gpus, "gpus")
    wanted = find_gpu(gpu).id
    rows = tuple(rows)
    of_kind = [row for row in rows if row.gpu == wanted]
    fitting = [row for row in of_kind if allow_spot or not row.spot]
    if not fitting:
        if of_kind:
            hint = "it has spot prices only; allow them if the run survives being stopped"
        else:
            hint = "it has " + (", ".join(sorted({row.gpu for row in rows})[:8]) or "no rows at all")
        kind = "row" if allow_spot else "on-demand row"
        raise BadInput(f"prices: got no {kind} for `{wanted}`, expected one in the price file", hint)
    one_currency(fitting, f"`{wanted}`")

    def hourly(row: PriceRow) -> float:
        return float(ceil_div(gpus, row.gpus) * row.instance_hour)

    # of two that cost the same, the one that is billed by the smaller unit
    best = min(fitting, key=lambda row: (hourly(row), row.billing_seconds or 0.0))
    parts = [best.provider, best.region, "spot" if best.spot else "", best.date]
    rented = ceil_div(gpus, best.gpus) * best.gpus
    if rented > gpus:
        parts.append(f"{rented} rented for {gpus}")
    label = ", ".join(part for part in parts if part)
    doubt = flag(best)
    source = f"{best.source}, {doubt}" if doubt else best.source
    return Price(hourly(best) / gpus, best.currency, label, source, doubt, best.billing_seconds)


def one_currency(rows: Iterable[PriceRow], what: str) -> str:
    """The currency that all rows share; BadInput if they have several, as amounts then have no order."""
    currencies = sorted({row.currency for row in rows})
    if len(currencies) > 1:
        named = ", ".join(c or "none" for c in currencies[:8])
        raise BadInput(
            f"prices: got {what} in several currencies ({named}), expected one", "convert the rows first"
        )
    return currencies[0] if currencies else ""

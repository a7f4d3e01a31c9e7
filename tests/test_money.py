"""Prices: what is understood, what is refused and how, and what a run then costs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadsheet.errors import BadFile, BadInput, LoadsheetError, UnknownGpu
from loadsheet.hardware import gpus
from loadsheet.ledger import Estimate
from loadsheet.money.price import (
    COMMAND_LINE,
    Price,
    PriceRow,
    cheapest,
    cost_per_million_tokens,
    parse_price,
    training_cost,
)
from loadsheet.money.price_file import MAX_FILE_BYTES, read_price_file

HEADER = "gpu,gpus,price,per,currency,provider,region,spot,date\n"


def write(folder: Path, content: str | bytes, name: str = "prices.csv") -> Path:
    """A price file with that content."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- a price from text -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        ("2.5", 2.5, ""), ("2.5/h", 2.5, ""), ("2.50 USD/h", 2.5, "USD"), ("$2.5", 2.5, "$"),
        ("2.5 €", 2.5, "€"), ("EUR 3", 3.0, "EUR"), ("usd2", 2.0, "USD"), ("2 per hour", 2.0, ""),
        ("1.99 USD per GPU hour", 1.99, "USD"), ("3/GPU-h", 3.0, ""), ("₹180/hr", 180.0, "₹"),
        (" .75 ", 0.75, ""), ("0", 0.0, ""), (2, 2.0, ""), (2.5, 2.5, ""), ("3000000 IRR/h", 3e6, "IRR"),
    ],
)  # fmt: skip
def test_prices_understood(text: object, amount: float, currency: str) -> None:
    """Numbers, codes, signs and an hour in the usual ways of writing them."""
    assert parse_price(text) == Price(amount, currency, "", COMMAND_LINE)


@pytest.mark.parametrize(
    "text",
    [
        "abc", "", " ", "-1", "$-1", "nan", "inf", "-inf", "1e3", "0x10", "1_000", "1.2.3", "2.5 m", "2/min",
        "2 days", "2.5 abc", "$2.5 USD", "--2", "2.5/h/h", "2.5 / ", ".", "$", "USD", "½", "٢", "2 2", "2\n3",
        "9" * 50, "1" * 21, None, True, float("nan"), float("inf"), -0.01, 1e13, ["2"], b"2",
    ],
)  # fmt: skip
def test_prices_refused(text: object) -> None:
    """What is no price is one line that says what was got and what was expected."""
    with pytest.raises(BadInput, match=r"^price: got .*, expected ") as caught:
        parse_price(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["€1,5", "1,5", "1,234.50", "1,234"])
def test_comma_is_ambiguous(text: str) -> None:
    """A comma may mean a decimal or thousands: it is refused, and the way out is named."""
    with pytest.raises(BadInput) as caught:
        parse_price(text)
    assert caught.value.hint == (
        "a comma can mean two things here; write `1.5` with a point and thousands without a mark"
    )


def test_refusal_names_the_option() -> None:
    """The message begins with the name that the caller uses."""
    with pytest.raises(BadInput) as caught:
        parse_price("abc", what="--price")
    assert str(caught.value) == (
        "--price: got 'abc', expected a price per GPU hour such as `2.5`, `2.50 USD/h` or `€2.5`"
    )


@given(st.text() | st.floats() | st.integers(-(10**30), 10**30) | st.none() | st.binary())
@example("1" * 60)
@example("USD 2.5 EUR")
def test_any_price_parses_or_is_refused(value: object) -> None:
    """Nothing but a LoadsheetError escapes, and what parses is a finite price from 0 up."""
    try:
        price = parse_price(value)
    except LoadsheetError:
        return
    assert 0 <= price.amount <= 1e12


@given(st.floats(0.0001, 9999), st.sampled_from(["", "USD", "€"]))
def test_price_reads_back(amount: float, currency: str) -> None:
    """What a price prints is a price again: the same to four decimals."""
    price = Price(round(amount, 4), currency)
    assert parse_price(str(price).replace(",", "")) == price


@pytest.mark.parametrize(
    ("price", "shown"),
    [
        (Price(2.5, "USD"), "2.50 USD per GPU hour"),
        (Price(0.1234), "0.1234 per GPU hour"),
        (Price(1200.0, "€"), "1,200.00 € per GPU hour"),
    ],
)
def test_price_prints(price: Price, shown: str) -> None:
    """Two decimals, four where they matter."""
    assert str(price) == shown


# --- costs -----------------------------------------------------------------------------------------


def test_lecture_llama_3_8b() -> None:
    """507,474 H100 hours at 2 an hour: over a million, as the lecture says."""
    item = training_cost(507_473.5, Price(2.0, "USD"))
    assert item.amount == 1_014_947.0
    assert item.working == "hours·price = 5.075e+05·2"
    assert item.source == "price given on the command line"
    assert item.basis == "modelled"


def test_cost_of_an_estimate_and_of_an_array() -> None:
    """Hours with a width give money with a width; an array of hours gives an array."""
    cost = training_cost(Estimate(10, 12, 15, "MFU 30 to 50 %"), 2.0)
    assert cost.estimate == Estimate(20, 24, 30, "MFU 30 to 50 %")
    assert cost.working == "hours·price = 12·2"
    assert training_cost(np.array([1.0, 2.0]), Price(3.0)).amount.tolist() == [3.0, 6.0]


@pytest.mark.parametrize(
    ("hours", "gpus", "unit", "expected"),
    [
        (1.5, 1, 3600.0, 4.0),  # 1.5 h: two hours
        (6.0, 4, 3600.0, 16.0),  # 1.5 h on each of four: two hours, eight GPU hours
        (2.0, 1, 3600.0, 4.0),  # two hours are two
        (100 / 3600, 1, 60.0, 4 / 60),  # 100 s: two minutes
        (100 / 3600, 1, 1.0, 200 / 3600),
        (100 / 3600, 1, None, 200 / 3600),
        (0.0, 8, 3600.0, 0.0),
    ],
)
def test_started_units_of_a_run(hours: float, gpus: int, unit: float | None, expected: float) -> None:
    """By hand at 2 an hour and GPU; a unit is started by all GPUs together, not by the sum of their hours."""
    price = Price(2.0, billing_seconds=unit)
    assert training_cost(hours, price, gpus=gpus).amount == pytest.approx(expected, rel=1e-12)


def test_started_units_have_their_working() -> None:
    """Low, middle and high are rounded each for itself; arrays too; the working says by what."""
    price = Price(3.0, "USD", billing_seconds=3600.0)
    cost = training_cost(Estimate(0.5, 1.0, 1.25, "MFU"), price)
    assert cost.estimate == Estimate(3.0, 3.0, 6.0, "MFU")
    working = "⌈3,600·hours/(gpus·unit)⌉·unit/3,600·gpus·price = ⌈3,600·1/(1·3,600)⌉·3,600/3,600·1·3"
    assert cost.working == working
    assert training_cost(np.array([1.0, 1.5]), price, gpus=2).amount.tolist() == [6.0, 6.0]


def test_the_unit_of_the_cheapest() -> None:
    """It comes with the price; of two that cost the same the smaller unit is taken, wherever it stands."""
    hour, second = (PriceRow("t4", 1.0, billing_seconds=unit) for unit in (3600.0, 1.0))
    for rows in ((hour, second), (second, hour)):
        assert cheapest(rows, "t4").billing_seconds == 1.0
    assert cheapest([hour, PriceRow("t4", 1.1, billing_seconds=1.0)], "t4").billing_seconds == 3600.0


@pytest.mark.parametrize("hours", [-1, float("nan"), float("inf"), Estimate(-1, 2, 3)])
def test_cost_of_impossible_hours(hours: object) -> None:
    """Negative, endless and undefined hours are refused."""
    with pytest.raises(BadInput, match=r"^GPU hours: got .* expected a finite number from 0$"):
        training_cost(hours, Price(2.0))


def test_cost_per_million_tokens() -> None:
    """8 GPUs at 2 an hour and 10,000 tokens a second: 16 / 36 million tokens an hour = 0.4444."""
    item = cost_per_million_tokens(10_000, 8, Price(2.0))
    assert item.amount == pytest.approx(16 / 36)
    assert item.working == "gpus·price·10⁶/(3,600·rate) = 8·2·10⁶/(3,600·10,000)"
    cost = cost_per_million_tokens(Estimate(5_000, 10_000, 20_000), 8, Price(2.0)).amount
    assert (cost.low, cost.mid, cost.high) == pytest.approx((8 / 36, 16 / 36, 32 / 36))
    assert cost_per_million_tokens(np.array([1e6 / 3600]), 1, 5).amount.tolist() == [pytest.approx(5)]


@pytest.mark.parametrize(("rate", "count"), [(0, 1), (-1, 1), (float("nan"), 1), (1, 0)])
def test_cost_of_no_tokens(rate: float, count: int) -> None:
    """A rate of zero costs no finite amount, so it is refused."""
    with pytest.raises(BadInput, match="expected a finite number above 0"):
        cost_per_million_tokens(rate, count, Price(1.0))


# --- a price file ----------------------------------------------------------------------------------


def test_file_read(tmp_path: Path) -> None:
    """Every column, a byte-order mark, blank lines, spaces, quotes and CRLF; columns in any order."""
    content = (
        "\ufeffPrice,GPU,gpus,per,currency,provider,region,spot,date\r\n"
        '98.32, H100-SXM ,8,instance,usd,"Cloud, Inc.",eu-west,no,2026-11-01\r\n'
        "\r\n"
        "1.10,a10g,1,,€,,,YES,2026-10\r\n"
    )
    assert read_price_file(write(tmp_path, content)) == (
        PriceRow(
            "h100-sxm", 98.32, 8, "instance", "USD", "Cloud, Inc.", "eu-west", False, "2026-11-01",
            "prices.csv row 2",
        ),
        PriceRow("a10g", 1.1, 1, "gpu", "€", "", "", True, "2026-10", "prices.csv row 4"),
    )  # fmt: skip


def test_two_columns_are_enough(tmp_path: Path) -> None:
    """Only `gpu` and `price` are required."""
    rows = read_price_file(write(tmp_path, "gpu,price\nt4,0.35\n"))
    assert rows == (PriceRow("t4", 0.35, source="prices.csv row 2"),)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("t4,1,abc,gpu,,,,,", "column `price`: got 'abc', expected a number"),
        ("t4,1,,gpu,,,,,", "column `price`: got '', expected a number"),
        ("t4,1,-3,gpu,,,,,", "column `price`: got '-3', expected no negative price"),
        ("t4,1,nan,gpu,,,,,", "column `price`: got 'nan', expected a number"),
        ('t4,1,"1,5",gpu,,,,,', "column `price`: got '1,5', expected a number"),
        ("t4,1,$3,gpu,,,,,", "column `price`: got '$3', expected a number"),
        ("h100,1,3,gpu,,,,,", "column `gpu`: got 'h100', expected a known GPU id"),
        (",1,3,gpu,,,,,", "column `gpu`: got '', expected a known GPU id"),
        ("t4,0,3,gpu,,,,,", "column `gpus`: got '0', expected a positive whole number"),
        ("t4,1.5,3,gpu,,,,,", "column `gpus`: got '1.5', expected a positive whole number"),
        ("t4,8,3,,,,,,", "column `per`: got '', expected `gpu` or `instance`"),
        ("t4,1,3,hour,,,,,", "column `per`: got 'hour', expected `gpu` or `instance`"),
        ("t4,1,3,gpu,dollars,,,,", "column `currency`: got currency 'dollars', expected a code"),
        ("t4,1,3,gpu,,,,maybe,", "column `spot`: got 'maybe', expected yes or no"),
        ("t4,1,3,gpu,,,,,11/2026", "column `date`: got '11/2026', expected YYYY-MM-DD or YYYY-MM"),
        ("t4,1,3,gpu,," + "x" * 81 + ",,,", "column `provider`: got "),
    ],
)
def test_bad_cell_names_row_and_column(tmp_path: Path, row: str, said: str) -> None:
    """The message leads to the cell: file, row as the spreadsheet counts it, column."""
    with pytest.raises(BadInput) as caught:
        read_price_file(write(tmp_path, HEADER + "t4,1,1,gpu,,,,,\n" + row + "\n"))
    start = "prices.csv row 3" if said.startswith("got") else "prices.csv row 3, "
    assert str(caught.value).startswith(start + said)


def test_unknown_gpu_in_file_suggests(tmp_path: Path) -> None:
    """A GPU that we do not know comes with the nearest ids."""
    with pytest.raises(BadInput) as caught:
        read_price_file(write(tmp_path, "gpu,price\nrtx4090,1\n"))
    assert caught.value.hint.startswith("did you mean `rtx-4090`")


@pytest.mark.parametrize(
    ("content", "said", "hint"),
    [
        ("", "prices.csv: got no prices", ""),
        (HEADER, "prices.csv: got no prices", ""),
        ("gpu,cost\n", "prices.csv row 1: got column 'cost', expected a known one", "columns: gpu, price"),
        ("gpu,pricee\n", "prices.csv row 1: got column 'pricee'", "did you mean `price`?"),
        ("gpu,price,gpu\n", "prices.csv row 1: got column `gpu` twice, expected it once", ""),
        ("gpu,gpus\n", "prices.csv row 1: got no column `price`, expected one", ""),
        ("gpu;price\nt4;1\n", "prices.csv row 1: got 'gpu;price', expected commas", "save the sheet as CSV"),
        ("gpu,price\nt4\n", "prices.csv row 2: got 1 cells, expected 2", ""),
        ("gpu,price\nt4,1,2\n", "prices.csv row 2: got 3 cells, expected 2", ""),
        ('gpu,price\nt4,"1\n', "prices.csv row 2: got 'unexpected end of data', expected CSV", ""),
        (b"gpu,price\nt4,\xff\n", "prices.csv: got byte 0xff at 13, expected UTF-8 text", "save the sheet"),
        ("gpu,price\n".encode("utf-16"), "prices.csv: got byte 0xff at 0, expected UTF-8", "save the sheet"),
        ("gpu,price\nt4," + "1" * 200_000, "prices.csv row 2: got 'field larger than field limit", ""),
        (b"x" * (MAX_FILE_BYTES + 1), "prices.csv: got more than 1 MB", ""),
    ],
)
def test_bad_file(tmp_path: Path, content: str | bytes, said: str, hint: str) -> None:
    """A file of the wrong kind says what is wrong with it, and where it helps, how to mend it."""
    with pytest.raises((BadFile, BadInput)) as caught:
        read_price_file(write(tmp_path, content))
    assert str(caught.value).startswith(said)
    assert caught.value.hint.startswith(hint)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder, a pipe and an impossible name are one-line errors at once."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "missing.csv", tmp_path, tmp_path / "pipe", Path("a\0b"), Path("x" * 5000)):
        with pytest.raises(BadFile, match=r"^.+: got .+, expected a CSV file"):
            read_price_file(path)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file that every example overwrites."""
    return tmp_path_factory.mktemp("prices") / "prices.csv"


CELL = st.sampled_from(
    ["", "t4", "h100-sxm", "1", "2.5", "8", "gpu", "instance", "USD", "no", "yes", "2026-11"]
)
CELLS = st.lists(CELL | st.text(max_size=6), min_size=1, max_size=9).map(",".join)


@given(
    st.binary(max_size=300)
    | st.binary(max_size=100).map(lambda tail: HEADER.encode() + b"t4,1,1,gpu,,,,," + tail)
    | st.lists(CELLS, max_size=4).map(lambda rows: (HEADER + "\n".join(rows)).encode("utf-8", "ignore"))
)
@example(b"\xef\xbb\xbf")
@example(b"gpu,price\nt4,\x00")
@example(b"gpu,price\r\rt4,1")
def test_any_file_parses_or_is_refused(scratch: Path, content: bytes) -> None:
    """Whatever the bytes, rows come out or a LoadsheetError of one line does."""
    scratch.write_bytes(content)
    rows: tuple[PriceRow, ...] = ()
    said = ""
    try:
        rows = read_price_file(scratch)
    except LoadsheetError as error:
        said = str(error)
    assert bool(rows) != bool(said)
    assert "\n" not in said
    known = {entry.id for entry in gpus()}
    assert all(row.gpu in known and row.gpus >= 1 and 0 <= row.price <= 1e12 for row in rows)


# --- the cheapest row ------------------------------------------------------------------------------

ROWS = (
    PriceRow("h100-sxm", 24.0, 8, "instance", "USD", "A", "east", source="p row 2"),  # 3.00 each
    PriceRow("h100-sxm", 3.5, 1, "gpu", "USD", "B", date="2026-11", source="p row 3"),
    PriceRow("h100-sxm", 1.5, 8, "gpu", "USD", "C", spot=True, source="p row 4"),
    PriceRow("t4", 0.2, 1, "gpu", "USD", "A", spot=True, source="p row 5"),
)


@pytest.mark.parametrize(
    ("count", "spot", "expected"),
    [
        (1, False, Price(3.5, "USD", "B, 2026-11", "p row 3")),  # a whole 8-GPU instance would be 24
        (6, False, Price(3.5, "USD", "B, 2026-11", "p row 3")),  # 21 against 24
        (7, False, Price(24 / 7, "USD", "A, east, 8 rented for 7", "p row 2")),  # 24 against 24.5
        (8, False, Price(3.0, "USD", "A, east", "p row 2")),
        (16, False, Price(3.0, "USD", "A, east", "p row 2")),
        (9, False, Price(3.5, "USD", "B, 2026-11", "p row 3")),  # 31.5 against two instances, 48
        (8, True, Price(1.5, "USD", "C, spot", "p row 4")),
        (1, True, Price(3.5, "USD", "B, 2026-11", "p row 3")),  # 12 for a whole spot instance
    ],
)
def test_cheapest(count: int, spot: bool, expected: Price) -> None:
    """Whole instances are paid for; the price is spread over the GPUs in use, so hours·price is the bill."""
    assert cheapest(ROWS, "H100-SXM", count, allow_spot=spot) == expected


def test_no_price_for_that_gpu() -> None:
    """No row, only spot rows, two currencies and an unknown GPU are told apart."""
    with pytest.raises(BadInput, match=r"got no on-demand row for `a10g`") as caught:
        cheapest(ROWS, "a10g")
    assert caught.value.hint == "it has h100-sxm, t4"
    with pytest.raises(BadInput, match=r"got no on-demand row for `t4`") as caught:
        cheapest(ROWS, "t4")
    assert caught.value.hint.startswith("it has spot prices only")
    mixed = (*ROWS, PriceRow("h100-sxm", 3.0, 1, "gpu", "EUR"))
    with pytest.raises(BadInput, match=r"several currencies \(EUR, USD\), expected one"):
        cheapest(mixed, "h100-sxm")
    with pytest.raises(UnknownGpu):
        cheapest(ROWS, "h100")
    with pytest.raises(BadInput, match=r"^gpus: got 0"):
        cheapest(ROWS, "t4", 0)


def test_no_price_is_shipped() -> None:
    """The table of GPUs has no price in it: prices are the user's."""
    assert [entry.id for entry in gpus() if "price" in str(entry.to_json()).lower()] == []

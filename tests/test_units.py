"""Quantities: read exactly or refused, printed so that they read back; names that come near; errors of one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadsheet.errors import BadInput, LoadsheetError, UnknownGpu, UnknownName, nearest, one_line, shorten
from loadsheet.units import (
    format_bytes,
    format_duration,
    format_money,
    format_number,
    format_params,
    format_si,
    gib,
    parse_bytes,
    parse_count,
    parse_duration,
    parse_share,
)

# --- reading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8192", 8192),
        (" 2 ", 2),
        ("+3", 3),
        ("8,192", 8192),
        ("8_192", 8192),
        ("15T", 15_000_000_000_000),
        ("15 t", 15_000_000_000_000),
        ("1.5e12", 1_500_000_000_000),
        ("0.3B", 300_000_000),
        (".5k", 500),
        ("1e0", 1),
        (8192, 8192),
        ("9007199254740993", 2**53 + 1),  # a double would drop the last digit
        ("1000000000000000000000000000000", 10**30),
    ],
)
def test_counts_are_exact(text: object, expected: int) -> None:
    """A count is what its digits say, beyond what a double holds, too."""
    assert expected == parse_count(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "abc", "nan", "inf", "-inf", "1e999", "1e31", "9" * 5000, "0", "-1", "-0", "1.5", "1e-3", "0x10",
     "1,5", "1,50", "12,34", "1__0", "1_0", ",1", "1,", "1 2", "²", "½", "١", "1k5", "2 KiB", "1e", "e5", "--1",
     "True", None, True, [1], "1" + "0" * 40, "5 apples", "1\x002", "\N{LLAMA}" * 100_000],
    ids=lambda text: repr(text)[:20],
)  # fmt: skip
def test_what_is_no_count_is_refused(text: object) -> None:
    """Nothing that is no positive whole number becomes one: "1,5" is not 15, "²" is not 2."""
    with pytest.raises(BadInput, match=r"^--batch: got .+, expected ") as caught:
        parse_count(text, "--batch")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80GiB", 80 * 2**30),
        ("24 GB", 24 * 10**9),
        ("1.5 tib", 3 * 2**39),
        ("0", 0),
        ("7", 7),
        ("0.1 KiB", 102),
    ],
)
def test_bytes(text: str, expected: int) -> None:
    """Binary and decimal units are told apart (IEC 80000-13); fractions round to whole bytes."""
    assert expected == parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24h", 86400.0),
        ("5min", 300.0),
        ("90 s", 90.0),
        ("2d", 172800.0),
        ("3", 3.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
    ],
)
def test_durations(text: str, expected: float) -> None:
    """A duration in seconds; a bare number is seconds."""
    assert expected == parse_duration(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("0.4", 0.4), ("40%", 0.4), ("40 %", 0.4), ("1", 1.0), ("0", 0.0)]
)
def test_shares(text: str, expected: float) -> None:
    """A share as a number or in per cent."""
    assert expected == parse_share(text)


@pytest.mark.parametrize(
    "text", ["2", "40", "101%", "-1", "nan", "0,4", "", "%", "abc", "4e1%%", "0.4h", "inf", "٤٠%"]
)
def test_what_is_no_share_is_refused(text: str) -> None:
    """More than all, less than nothing and other words are errors; a forgotten per cent sign is offered."""
    with pytest.raises(BadInput, match=r"^mfu: got .+, expected a share") as caught:
        parse_share(text, "mfu")
    assert ("did you mean `40%`?" if text == "40" else caught.value.hint) == caught.value.hint


@pytest.mark.parametrize("parse", [parse_bytes, parse_duration])
@pytest.mark.parametrize("text", ["-1", "1,5h", "1,5 GiB", "5 apples", "nan", "1e400"])
def test_sizes_and_durations_refuse_too(parse: Callable[[str], float], text: str) -> None:
    """The same care for every kind of quantity."""
    with pytest.raises(BadInput, match="got "):
        parse(text)


@given(st.integers(1, 10**30))
def test_every_count_reads_back(count: int) -> None:
    """Plain digits, grouped digits and the printed number all read as the same count."""
    assert parse_count(str(count)) == count == parse_count(f"{count:,}") == parse_count(f"{count:_}")


@given(st.integers(1, 10**13))
def test_numbers_of_workings_read_back(count: int) -> None:
    """A whole number inside a working is printed in full."""
    assert count == parse_count(format_number(count))


@given(st.integers(0, 2**60))
def test_printed_bytes_read_back(amount: int) -> None:
    """Printed with two decimals, a size is at most half of a hundredth of its unit off."""
    text = format_bytes(amount)
    unit = parse_bytes("1" + text.split()[1])
    assert abs(parse_bytes(text) - amount) <= 0.00501 * unit + 1
    if unit < 2**40:
        assert not text.startswith("1,024")


@given(st.floats(1e-6, 1e9))
def test_printed_durations_read_back(seconds: float) -> None:
    """Three digits (days: one decimal), and never 60 of a unit that has 60."""
    text = format_duration(seconds).replace("µs", "ms")
    scale = 1e-3 if "µs" in format_duration(seconds) else 1.0
    assert seconds == pytest.approx(parse_duration(text.removesuffix("ays")) * scale, rel=0.026)
    assert not text.startswith(("60 s", "60.00 min", "1e+03 ms"))


@given(st.text(max_size=30))
def test_no_text_breaks_the_readers(text: str) -> None:
    """Any text is a quantity or a BadInput, and nothing else."""
    for parse in (parse_bytes, parse_count, parse_duration, parse_share):
        with suppress(BadInput):
            assert 0 <= parse(text) < math.inf


# --- printing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_bytes(128_484_179_968), "119.66 GiB"),  # 16 bytes for each of Llama 3 8B's parameters
        (format_bytes(2**30 - 1), "1.00 GiB"),
        (format_bytes(1023), "1,023 B"),
        (format_bytes(-(2**31)), "-2.00 GiB"),
        (gib(128_484_179_968), "119.66"),
        (format_si(989.4e12, "FLOP/s"), "989.40 TFLOP/s"),
        (format_si(999_999), "1.00 M"),
        (format_params(70_553_706_496), "70.6B"),
        (format_params(999_999_999), "1B"),
        (format_params(124_439_808), "124M"),
        (format_duration(0.00479), "4.79 ms"),
        (format_duration(0), "0 µs"),
        (format_duration(59.99), "1.00 min"),
        (format_duration(1e30), "1.16e+25 days"),
        (format_money(1_014_948, "USD"), "1,014,948 USD"),
        (format_money(2.5), "2.50"),
        (format_money(0.1), "0.10"),
        (format_money(0.0996), "0.10"),
        (format_money(0.00449, "USD"), "0.0045 USD"),
        (format_money(-0.0123), "-0.012"),
        (format_money(3.2e-7), "0.00000032"),
        (format_money(0.0), "0.00"),
        (format_number(8_030_261_248), "8,030,261,248"),
        (format_number(9.894e14), "9.894e+14"),
    ],
)
def test_printed(shown: str, expected: str) -> None:
    """Each amount in the unit that reads best, labelled."""
    assert expected == shown


# --- names that come near --------------------------------------------------------------------------------

_GPUS = [
    "a10",
    "a100-pcie-80gb",
    "a100-sxm-80gb",
    "h100-nvl",
    "h100-pcie",
    "h100-sxm",
    "l4",
    "l40",
    "rtx-4090",
    "t4",
]
_MODELS = [
    "gpt2",
    "gpt2-xl",
    "llama-3-8b",
    "llama-3-70b",
    "llama-3.1-8b",
    "mixtral-8x7b",
    "qwen2.5-7b",
    "qwen2-7b",
]


@pytest.mark.parametrize(
    ("name", "known", "first"),
    [
        ("h100", _GPUS, "h100-nvl"),
        ("H100_SXM", _GPUS, "h100-sxm"),
        ("h100 sxm", _GPUS, "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", _GPUS, "h100-sxm"),
        ("Tesla T4", _GPUS, "t4"),
        ("a100", _GPUS, "a100-sxm-80gb"),
        ("A100-SXM4-80GB", _GPUS, "a100-sxm-80gb"),
        ("4090", _GPUS, "rtx-4090"),
        ("GeForce RTX 4090", _GPUS, "rtx-4090"),
        ("GPT-2", _MODELS, "gpt2"),
        ("llama_3_8b", _MODELS, "llama-3-8b"),
        ("Meta-Llama-3-8B", _MODELS, "llama-3-8b"),
        ("Llama-3.1-8B-Instruct", _MODELS, "llama-3.1-8b"),
        ("Qwen2.5-7B-Instruct", _MODELS, "qwen2.5-7b"),
        ("mixtral", _MODELS, "mixtral-8x7b"),
    ],
)
def test_nearest_name(name: str, known: list[str], first: str) -> None:
    """What a person types for a thing finds it first, whatever its case, spaces and additions."""
    assert first == nearest(name, known)[0]


@pytest.mark.parametrize("name", ["", "  ", "nonsense", "🦙", "-", "x" * 1000])
def test_nothing_near(name: str) -> None:
    """Names that resemble nothing get no proposal."""
    assert not nearest(name, _GPUS)


# --- errors ----------------------------------------------------------------------------------------------


def test_one_base() -> None:
    """Every error is a LoadsheetError, and the wrong names are of one family."""
    assert issubclass(UnknownGpu, UnknownName)
    assert issubclass(UnknownName, LoadsheetError)
    assert UnknownGpu("h100", _GPUS).exit_code == 2


@given(st.text(max_size=50), st.text(max_size=50))
def test_an_error_is_one_printable_line(message: str, hint: str) -> None:
    """No text from outside can break the line or the terminal."""
    error = BadInput(message, hint)
    assert one_line(message) == str(error)
    assert str(error).isprintable()
    assert error.hint.isprintable()


def test_an_error_is_short() -> None:
    """A message that quotes too much loses its middle, and keeps what was expected."""
    text = str(BadInput(f"x: got {'y' * 10**6}, expected z"))
    assert len(text) <= 400
    assert text.startswith("x: got yyy")
    assert text.endswith("yy, expected z")


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, 10**5000, [[]] * 10**5, "a\nb\x1b[31m", {"k": "v" * 999}],
    ids=lambda v: type(v).__name__,
)
def test_shown_values_are_short(value: object) -> None:
    """Any value from outside is shown on one short line."""
    assert len(shorten(value)) <= 60
    assert "\n" not in shorten(value)

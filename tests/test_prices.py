"""Prices of whole instances: gpuhunt's form, what is skipped, how old they are, and the cheapest offer that fits."""

from __future__ import annotations

import datetime
import json
import logging
import math
import sys
import urllib.error
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from terminal import answered, refused, run

from loadsheet.errors import BadFile, BadInput
from loadsheet.hardware import listed
from loadsheet.ledger import Estimate
from loadsheet.money import hunted
from loadsheet.money import price_file as files
from loadsheet.money.hunted import hunt, identify
from loadsheet.money.offers import Freshness, cheapest_first, offer
from loadsheet.money.price import PriceRow, billed_seconds
from loadsheet.money.price_file import price_file

HEAD = (
    "provider,instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,"
    "flags,cpu_arch,provider_data"
)
TODAY = datetime.date(2026, 11, 29)


def line(
    provider: str = "gcp", instance: str = "g2", price: str = "0.85", count: str = "1", name: str = "L4",
    memory: str = "24.0", spot: str = "False", more: str = "",
) -> str:  # fmt: skip
    """One row as gpuhunt writes it."""
    tail = ',,nvidia,,x86,"{""a"": 1, ""b"": 2}"'
    return f"{provider},{instance},here,{price},8,32.0,{count},{name},{memory},{spot}{tail}{more}"


def written(folder: Path, *rows: str, head: str = HEAD, name: str = "prices.csv") -> Path:
    """A price file."""
    path = folder / name
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


# --- gpuhunt's form ------------------------------------------------------------------------------------


def test_a_row_of_gpuhunts(tmp_path: Path) -> None:
    """The price is for the instance and in dollars; our columns say when, in what and by which unit."""
    row = line("aws", "p5.48xlarge", "98.32", "8", "H100", "80.0", "True")
    (plain,) = price_file(written(tmp_path, row)).rows
    assert plain == PriceRow(
        "h100-sxm", 98.32, 8, "instance", "USD", "aws", "here", True, "", "prices.csv row 2", "p5.48xlarge"
    )
    head = HEAD + ",currency,as_of,billing_unit"
    (ours,) = price_file(written(tmp_path, row + ",EUR,2026-11-02,1min", head=head)).rows
    assert (ours.currency, ours.date, ours.billing_seconds) == ("EUR", "2026-11-02", 60.0)
    assert plain.instance_hour == 98.32


def test_the_other_commands_prices_are_named(tmp_path: Path) -> None:
    """Prices of left-overs are another file: it is said whose."""
    (tmp_path / "left.csv").write_text("what,price,per\nvolume,0.08,GB-month\n")
    with pytest.raises(BadInput, match="which `loadsheet leftovers` reads, expected prices of GPUs"):
        price_file(tmp_path / "left.csv")


def test_our_form_has_the_new_columns(tmp_path: Path) -> None:
    """`as_of`, `instance_name` and `billing_unit` stand in our own form too."""
    file = written(tmp_path, "t4,1,2026-10,n1,1h", head="gpu,price,as_of,instance_name,billing_unit")
    (row,) = price_file(file).rows
    assert (row.date, row.instance, row.billing_seconds) == ("2026-10", "n1", 3600.0)


def test_the_provider_is_in_the_name_of_a_catalog(tmp_path: Path) -> None:
    """gpuhunt's own files name the provider in their name only; any other name tells nothing."""
    head, row = (
        HEAD.partition(",")[2],
        line("aws", "p4d.24xlarge", "32.77", "8", "A100", "40.0").partition(",")[2],
    )
    (found,) = price_file(written(tmp_path, row, head=head, name="aws.csv")).rows
    assert (found.provider, found.gpu) == ("aws", "a100-sxm-40gb")
    with pytest.raises(BadInput, match="no row whose GPU is known"):
        price_file(written(tmp_path, row, head=head, name="mine.csv"))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("L4", "24.0", "", ""), ("l4", 1)),
        (("rtx4090", "24", "", ""), ("rtx-4090", 1)),
        (("H100NVL", "94.0", "azure", "x"), ("h100-nvl", 1)),
        (("H100", "80", "lambdalabs", "gpu_1x_h100_pcie"), ("h100-pcie", 1)),
        (("A100", "80", "runpod", "NVIDIA A100-SXM4-80GB"), ("a100-sxm-80gb", 1)),
        (("H100", "80", "runpod", "NVIDIA H100 80GB HBM3"), ("h100-sxm", 1)),
        (("A100", "80", "azure", "Standard_NC24ads_A100_v4"), ("a100-pcie-80gb", 1)),
        (("A100", "80", "azure", "Standard_ND96amsr_A100_v4"), ("a100-sxm-80gb", 1)),
        (("A100", "40", "gcp", "a2-highgpu-8g"), ("a100-sxm-40gb", 1)),
        (("V100", "32", "aws", "p3dn.24xlarge"), ("v100-sxm2-32gb", 1)),
        (("MI250X", "128", "", ""), ("mi250x-gcd", 2)),  # a board is two dies; an id here is one
    ],
)
def test_names_that_are_certain(asked: tuple[str, str, str, str], expected: tuple[str, int]) -> None:
    """A name and a memory, and where they do not tell SXM from PCIe, the instance's name."""
    assert expected == identify(*asked)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("H100", "80", "vastai", "host 7"), "can be h100-sxm or h100-pcie"),
        (("H100", "80", "vastai", "p5.48xlarge"), "can be h100-sxm or h100-pcie"),  # another's machine
        (("A10", "4.0", "azure", "Standard_NV6ads_A10_v5"), "`A10` of 4.0 GB is not known; it has 24 GB"),
        (("P100", "16", "", ""), "can be p100-pcie-16gb or p100-sxm2-16gb"),
        (("P100", "16", "", "p100-sxm2"), "can be p100-sxm2-16gb"),
        (("H100X", "80", "", ""), "not a known name; the nearest is `H100`"),
        (("L4", "", "", ""), "of unknown GB"),
        (("v5litepod", "0", "gcp", ""), "not a known name"),
    ],
)
def test_names_that_are_not_certain(asked: tuple[str, str, str, str], words: str) -> None:
    """Nothing is guessed: the reason is said."""
    found = identify(*asked)
    assert isinstance(found, str)
    assert words in found


def test_the_data_names_gpus_that_exist() -> None:
    """Every id in the data file is one of ours, and every rule says where it comes from."""
    data = json.loads(Path(hunted.__file__).with_name("hunted_gpus.json").read_text(encoding="utf-8"))
    ids = {i for entry in data["gpus"] for i in entry["ids"]} | {rule["id"] for rule in data["forms"]}
    assert ids == {listed(i).id for i in ids}
    assert all(rule["source"] for rule in data["forms"])


def test_what_is_skipped_is_counted(tmp_path: Path) -> None:
    """Rows without a GPU or with one that is not certain are left out, by reason; a column `gpu` settles one."""
    rows = (
        line(),
        line(count="0", name="", memory=""),
        line(count="0", name="", memory=""),
        line(name="L4X"),
    )
    found = price_file(written(tmp_path, *rows))
    assert [(s.rows, s.first) for s in found.skipped] == [(2, "prices.csv row 3"), (1, "prices.csv row 5")]
    assert found.left_out.startswith(
        "prices.csv: 3 of 4 rows skipped: 2 × no GPU (first prices.csv row 3); 1 × `L4X`"
    )
    settled = price_file(written(tmp_path, line(name="L4X", more=",l4"), head=HEAD + ",gpu"))
    assert ([row.gpu for row in settled.rows], settled.skipped) == (["l4"], ())


def test_many_unknown_names_are_bounded(tmp_path: Path) -> None:
    """A file of a thousand made-up names keeps fifty reasons, and the rest is counted together."""
    found = price_file(written(tmp_path, line(), *(line(name=f"ZZ{n}Q") for n in range(1000))))
    assert len(found.skipped) == 51
    assert sum(s.rows for s in found.skipped) == 1000
    assert (found.skipped[0].reason, found.skipped[0].rows) == ("other GPUs that are not known", 950)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (line(price="a lot"), "prices.csv row 2, column `price`: got 'a lot'"),
        (line(price="-1"), "column `price`: got '-1', expected no negative price"),
        (line(count="1.5"), "column `gpu_count`: got '1.5'"),
        (line(count=""), "column `gpu_count`: got ''"),
        (line(spot=""), "column `spot`: got '', expected yes or no"),
        (line(instance="x" * 81), "column `instance_name`: got"),
        (line() + ",", "row 2: got 16 cells, expected 15"),
    ],
)
def test_a_bad_cell_of_gpuhunts(tmp_path: Path, row: str, words: str) -> None:
    """A cell that makes no sense is an error that names row and column."""
    with pytest.raises(BadInput) as caught:
        price_file(written(tmp_path, row))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("billing_unit", "0s", "column `billing_unit`: got '0s'"),
        ("billing_unit", "soon", "column `billing_unit`: got 'soon'"),
        ("as_of", "1.11.26", "column `as_of`: got '1.11.26'"),
        ("currency", "bucks", "column `currency`: got currency 'bucks'"),
        ("gpu", "l44", "column `gpu`: got 'l44'"),
        ("per", "gpu", "got column 'per', expected a known one"),
        ("date,as_of", "2026-11,2026-11", "got `date` and `as_of`"),
    ],
)
def test_a_bad_column_of_ours(tmp_path: Path, column: str, cell: str, words: str) -> None:
    """What we add to gpuhunt's columns is checked alike."""
    with pytest.raises(BadInput) as caught:
        price_file(written(tmp_path, line(more=f",{cell}"), head=f"{HEAD},{column}"))
    assert words in str(caught.value)


def test_size_and_count_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog may be larger than a file of one's own, but not endless."""
    large = written(tmp_path, *[line()] * 15_000)
    assert large.stat().st_size > files.MAX_FILE_BYTES
    assert len(price_file(large).rows) == 15_000
    monkeypatch.setattr(files, "MAX_ROWS", 100)
    with pytest.raises(BadInput, match="got more than 100 rows"):
        price_file(large)
    monkeypatch.setattr(files, "MAX_CATALOG_BYTES", 1_000_001)
    with pytest.raises(BadFile, match="got more than 1 MB"):
        price_file(large)


# --- age and cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("2026-11-29", ""),
        ("2026-10-30", ""),  # 30 days
        ("2026-10-29", "31 days old"),
        ("2026-11", ""),  # at most 28
        ("2026-10", "59 days old"),
        ("2026-12-01", "dated 2026-12-01, which is to come"),
        ("2026-02-31", "undated"),  # no such day
        ("", "undated"),
    ],
)
def test_age(date: str, expected: str) -> None:
    """A month counts from its first day; what has no date says so; nothing old passes in silence."""
    assert expected == Freshness(TODAY).flag(PriceRow("t4", 1.0, date=date))


def test_started_units_are_paid() -> None:
    """61 minutes by the hour are two hours; by the second they are what they are; arrays alike."""
    assert tuple(billed_seconds(3660.0, unit) for unit in (3600.0, 1.0, None)) == (7200.0, 3660.0, 3660.0)
    assert billed_seconds(np.array([1.0, 3601.0]), 3600.0).tolist() == [3600.0, 7200.0]


def test_cost_of_an_offer() -> None:
    """9 GPUs of an 8-GPU instance are two instances; 90 minutes by the hour are two hours: 2 · 2 · 24 = 96."""
    row = PriceRow("t4", 24.0, 8, "instance", billing_seconds=3600.0)
    found = offer(row, 9, Estimate(3600.0, 5400.0, 7201.0))
    assert (found.instances, found.hourly) == (2, 48.0)
    assert found.cost is not None
    assert (found.cost.low, found.cost.mid, found.cost.high) == (48.0, 96.0, 144.0)


def test_the_order_is_by_cost_not_by_hour() -> None:
    """Twice the price per hour for a quarter of the time is cheaper; without a time the hour decides."""
    slow, fast = PriceRow("t4", 1.0), PriceRow("l4", 2.0)
    by_cost = cheapest_first(
        [offer(slow, 1, Estimate(1.0, 4.0, 9.0)), offer(fast, 1, Estimate(1.0, 1.0, 1.0))]
    )
    assert [fast, slow] == [o.row for o in by_cost]
    assert [slow, fast] == [o.row for o in cheapest_first([offer(fast, 1, None), offer(slow, 1, None)])]


# --- the command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "seconds"), [("1h", 3600), ("1min", 60), ("1s", 1), ("", None)])
def test_one_gpu_is_billed_as_an_offer_is(tmp_path: Path, unit: str, seconds: int | None) -> None:
    """The plan of one GPU and the offers of all say the same cost: started units, by hand, of the seconds they say."""
    row = f"{line(price='0.85')},{datetime.date.today()},{unit}"
    file = str(written(tmp_path, row, head=HEAD + ",date,billing_unit"))
    args = ("plan", "gpt2", "--tokens", "2M", "--price-file", file)
    (one,) = json.loads(answered(*args, "--gpu", "any", "--json").stdout)["offers"]
    money = json.loads(answered(*args, "--gpu", "l4", "--json").stdout)["money"]
    for end in ("low", "mid", "high"):
        used = money["gpu_hours"][end] * 3600
        paid = used if seconds is None else math.ceil(used / seconds) * seconds
        assert money["cost"][end] == pytest.approx(paid / 3600 * 0.85, rel=1e-12)
        assert money["cost"][end] == pytest.approx(one["cost"][end], rel=1e-12)
    assert money["billing_unit_seconds"] == seconds
    text = " ".join(answered(*args, "--gpu", "l4", "--explain").stdout.split())
    billed = {"1h": "billed by 1.00 h:", "1min": "billed by 1.00 min:", "1s": "billed by 1 s:"}
    assert all((words in text) is (unit == name) for name, words in billed.items())
    assert ("⌈3,600·hours/(gpus·unit)⌉·unit/3,600·gpus·price = ⌈3,600·" in text) is bool(unit)


def test_a_whole_instance_is_billed_by_the_hour(tmp_path: Path) -> None:
    """3 GPUs of an 8-GPU instance at 24 an hour, for less than one hour: 24, whatever the GPUs in use."""
    file = str(written(tmp_path, "l4,24,8,instance,1h", head="gpu,price,gpus,per,billing_unit"))
    args = ("plan", "gpt2", "--gpu", "l4", "--gpus", "3", "--tokens", "2M", "--price-file", file, "--json")
    money = json.loads(answered(*args).stdout)["money"]
    assert 0 < money["gpu_hours"]["high"] < 3
    assert [money["cost"][end] for end in ("low", "mid", "high")] == pytest.approx([24.0] * 3, rel=1e-12)


def test_a_million_tokens_cost_their_share_of_the_bill(tmp_path: Path) -> None:
    """10 million tokens in less than an hour at 20 an hour, started hours paid: 20, so 2 per million, everywhere."""
    rows = [f"{gpu},20,{datetime.date.today()},1h" for gpu in ("l4", "a10g")]
    file = str(written(tmp_path, *rows, head="gpu,price,date,billing_unit"))
    args = ("plan", "gpt2", "--tokens", "10M", "--price-file", file)
    money = json.loads(answered(*args, "--gpu", "l4", "--json").stdout)["money"]
    assert money["gpu_hours"]["high"] < 1
    for end in ("low", "mid", "high"):
        assert (money["cost"][end], money["per_million_tokens"][end]) == pytest.approx((20, 2))
    page = " ".join(answered(*args, "--gpu", "l4", "--explain").stdout.split())
    assert "20.00; 2.00 per million tokens" in page
    assert "cost·10⁶/tokens = 20·10⁶/10,000,000" in page
    rows = answered(*args, "--gpu", "l4,a10g").stdout.splitlines()[3:5]
    assert all(row.endswith("20.00                2.00") for row in rows)


def test_small_sums_are_not_zero() -> None:
    """What costs a cent in all, and a tenth of one per million tokens, has digits that count."""
    args = ("plan", "gpt2", "--gpu", "h100-sxm", "--tokens", "10M", "--price", "2 USD")
    money = json.loads(answered(*args, "--json").stdout)["money"]
    page = " ".join(answered(*args).stdout.split())
    assert 0 < money["cost"]["mid"] < 0.02
    assert "0.00 " not in page[page.index("Money") :].split("*")[0]
    assert f"{money['cost']['mid']:.3f} USD" in page
    assert f"{money['per_million_tokens']['mid']:.4f} USD per million tokens" in page
    assert " 0.0 " not in answered(*args[:3], "h100-sxm,l4", *args[4:]).stdout  # GPU hours


def test_interruptions_count_time_as_used(tmp_path: Path) -> None:
    """With `--mtbf` nothing is rounded up, and that is said; without a unit there is nothing to say."""
    args = (
        "plan",
        "gpt2",
        "--gpu",
        "l4",
        "--tokens",
        "100M",
        "--mtbf",
        "5h",
        "--save",
        "1min",
        "--price-file",
    )
    said = "hours as used, not in started units of 1.00 h"
    for unit in ("1h", ""):
        row = f"{line()},{datetime.date.today()},{unit}"
        file = str(written(tmp_path, row, head=HEAD + ",date,billing_unit"))
        assert (said in " ".join(answered(*args, file).stdout.split())) is bool(unit)


def _dated(*rows: str) -> tuple[str, ...]:
    today = datetime.date.today()
    return tuple(f"{row},{today},1h" for row in rows)


DATED = HEAD + ",date,billing_unit"


def test_the_cheapest_by_need(tmp_path: Path) -> None:
    """The cheapest machine that cannot hold it is not listed; the cheapest run comes first, not the cheapest hour."""
    rows = _dated(
        line(price="0.10", name="T4", memory="16"),
        line(price="2.00", name="RTXPRO4500", memory="32"),
        line("lambdalabs", "gpu_1x_h100_pcie", "2.49", "1", "H100", "80"),
        line("aws", "p5.48xlarge", "98.32", "8", "H100", "80"),
        line("gcp", "a2-ultragpu-1g", "0.50", "1", "A100", "80", "True"),
    )
    file = str(written(tmp_path, *rows, head=DATED))
    args = (
        "plan",
        "llama-3-8b",
        "--task",
        "lora",
        "--tokens",
        "10M",
        "--gpu",
        "any",
        "--price-file",
        file,
        "--json",
    )
    data = json.loads(answered(*args).stdout)
    assert [o["gpu"] for o in data["offers"]] == ["h100-pcie", "h100-sxm"]
    assert [s["gpu"] for s in data["does_not_fit"]] == ["t4"]
    assert (data["spot_rows_left_out"], len(data["skipped"])) == (1, 1)
    first = data["offers"][0]
    hours = -(-first["seconds"]["mid"] // 3600)  # by hand: started hours at 2.49
    assert first["cost"]["mid"] == pytest.approx(hours * 2.49)
    alone = json.loads(
        answered(
            "plan", "llama-3-8b", "--task", "lora", "--tokens", "10M", "--gpu", "h100-pcie", "--json"
        ).stdout
    )
    assert first["seconds"]["mid"] == pytest.approx(alone["compute"]["gpu_hours"] * 3600)
    with_spot = json.loads(answered(*args, "--spot").stdout)["offers"]
    assert (with_spot[0]["gpu"], with_spot[0]["spot"]) == ("a100-sxm-80gb", True)


def test_the_page_of_offers(tmp_path: Path) -> None:
    """Provider, instance, GPUs, date; an old price and an undated one are marked, and said on stderr."""
    rows = (line() + ",,", line(instance="old", price="0.80") + ",2020-01-01,", *_dated(line(instance="new")))
    args = ("plan", "gpt2", "--gpu", "any", "--price-file", str(written(tmp_path, *rows, head=DATED)))
    result = run(*args, "--tokens", "1M", COLUMNS="200")
    assert result.exit_code == 0
    lines = {cells[1]: cells for cells in map(str.split, result.stdout.splitlines()) if len(cells) > 1}
    assert "undated !" in " ".join(lines["g2"])
    assert "2020-01-01 !" in " ".join(lines["old"])
    assert "!" not in lines["new"]
    assert "30 days*" in result.stdout
    assert "warning: 2 of 3 offers may not hold any more" in result.stderr
    given = run(*args, "--max-price-age", "20000d", COLUMNS="200")
    assert "1 of 3 offers" in given.stderr
    assert "20000 days (" in given.stdout
    for columns in ("40", "72", "400"):
        assert max(map(len, run(*args, COLUMNS=columns).stdout.splitlines())) <= max(int(columns), 60)


def test_nothing_on_offer_fits(tmp_path: Path) -> None:
    """Exit status 1, and what each GPU would need."""
    file = str(written(tmp_path, *_dated(line()), head=DATED))
    text = answered("plan", "llama-3-70b", "--gpu", "any", "--price-file", file, code=1).stdout
    assert "Nothing on offer fits" in text
    assert "l4 (does not fit: needs" in text


def test_an_old_price_is_never_used_in_silence(tmp_path: Path) -> None:
    """A plan on one GPU says so beside the price, in the JSON's source and on stderr; so does a comparison."""
    file = str(written(tmp_path, "t4,1,2020-01-01", "l4,2,", head="gpu,price,date"))
    one = answered("plan", "gpt2", "--gpu", "l4", "--price-file", file)
    assert "Money  at 2.00 per GPU hour (undated)" in one.stdout
    assert "(prices.csv row 3, undated) may not hold" in one.stderr
    money = json.loads(answered("plan", "gpt2", "--gpu", "l4", "--price-file", file, "--json").stdout)[
        "money"
    ]
    assert money["source"] == "prices.csv row 3, undated"
    both = answered("plan", "gpt2", "--gpu", "t4,l4", "--price-file", file)
    assert "prices that may not hold:" in both.stdout
    fresh = str(written(tmp_path, f"l4,2,{datetime.date.today()}", head="gpu,price,date"))
    assert answered("plan", "gpt2", "--gpu", "l4", "--price-file", fresh).stderr == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpu", "any"), "--price-file or --prices-from"),
        (("--gpu", "any,t4", "--price", "1"), "expected GPU ids"),
        (("--gpu", "t4", "--max-price-age", "3d"), "--max-price-age: got no --price-file"),
        (("--gpu", "t4", "--prices-from", "somewhere"), "expected gpuhunt"),
        (("--gpu", "t4", "--prices-from", "gpuhunt", "--price", "1"), "--price and --prices-from: got both"),
        (("--gpu", "any", "--explain"), "expected GPU ids"),
        (("--gpu", "any", "--price-file", "p.csv", "--mtbf", "6h"), "--mtbf: got it with --gpu any"),
    ],
)
def test_options_that_make_no_sense(options: tuple[str, ...], words: str) -> None:
    """Each is refused with what to do."""
    refused("plan", "gpt2", *options, words=words)


def test_several_currencies_have_no_order(tmp_path: Path) -> None:
    """Amounts in two currencies are not compared."""
    file = str(written(tmp_path, "t4,1,USD", "l4,1,EUR", head="gpu,price,currency"))
    refused("plan", "gpt2", "--gpu", "any", "--price-file", file, words="several currencies (EUR, USD)")


# --- gpuhunt's catalogs, played -----------------------------------------------------------------------------


@dataclass
class Item:
    """What gpuhunt.query returns."""

    provider: str
    instance_name: str
    location: str
    price: float
    gpu_count: int
    gpu_name: str | None
    gpu_memory: float | None
    spot: bool


def _play(
    monkeypatch: pytest.MonkeyPatch,
    items: list[Item],
    versions: dict[str, str],
    fault: Any = None,
    dead: str = "",
) -> None:
    def default_catalog() -> Any:
        if fault:
            raise fault
        logging.getLogger("gpuhunt._internal.catalog").error("Failed to load %s catalog.", "oci")
        return SimpleNamespace(catalog=catalogs, providers=[SimpleNamespace(NAME="vastai")], query=query)

    def query(*, provider: str, min_gpu_count: int) -> list[Item]:
        assert min_gpu_count == 1
        if provider == dead:
            raise urllib.error.URLError("no answer")
        return [item for item in items if item.provider == provider]

    catalogs = {name: SimpleNamespace(version=version) for name, version in versions.items()}
    monkeypatch.setitem(sys.modules, "gpuhunt", SimpleNamespace(default_catalog=default_catalog))
    monkeypatch.delenv("GPUHUNT_CATALOG_DIR", raising=False)


ITEMS = [
    Item("aws", "g6.xlarge", "us-east-1", 0.8048, 1, "L4", 24.0, False),
    Item("vastai", "1", "DE", 0.5, 1, "RTX4090", 24.0, False),
    Item("vastai", "2", "DE", 0.5, 1, "H100", 80.0, False),
]


def test_catalogs_of_gpuhunt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog is dated by its version, a live provider by today; what failed and what is unclear is kept."""
    _play(monkeypatch, ITEMS, {"aws": "20261101-42"})
    found = hunt("2026-11-29")
    assert [(row.gpu, row.date, row.price) for row in found.rows] == [
        ("l4", "2026-11-01", 0.8048),
        ("rtx-4090", "2026-11-29", 0.5),
    ]
    assert found.notes == ("Failed to load oci catalog.",)
    assert [s.first for s in found.skipped] == ["gpuhunt item 3"]
    monkeypatch.setenv("GPUHUNT_CATALOG_DIR", "somewhere")  # files of unknown age
    assert [row.date for row in hunt("2026-11-29").rows] == ["", ""]


def test_a_provider_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others still count, and it is said which one could not be asked."""
    _play(monkeypatch, ITEMS, {"aws": "20261101-42"}, dead="vastai")
    found = hunt("2026-11-29")
    assert [row.gpu for row in found.rows] == ["l4"]
    assert found.notes[-1].startswith("vastai: ")
    assert "no answer" in found.notes[-1]
    _play(monkeypatch, ITEMS, {}, dead="vastai")
    with pytest.raises(BadInput, match="from gpuhunt, expected its catalogs"):
        hunt("2026-11-29")


def test_plan_with_gpuhunt(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--prices-from gpuhunt` answers as a file does, and says what it could not look at."""
    _play(monkeypatch, ITEMS, {"aws": "20261101-42"})
    result = answered("plan", "gpt2", "--gpu", "any", "--prices-from", "gpuhunt", "--json")
    data = json.loads(result.stdout)
    assert [o["gpu"] for o in data["offers"]] == ["rtx-4090", "l4"]
    assert data["not_looked_at"] == ["Failed to load oci catalog."]
    assert "warning: gpuhunt: Failed to load oci catalog." in result.stderr


def test_no_gpuhunt_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package or the network there is one line that says so."""
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    refused("plan", "gpt2", "--gpu", "any", "--prices-from", "gpuhunt", words="pip install gpuhunt")
    _play(monkeypatch, [], {}, urllib.error.URLError("no route"))
    refused("plan", "gpt2", "--gpu", "any", "--prices-from", "gpuhunt", words="no route")
    _play(monkeypatch, [], {})
    with pytest.raises(BadInput, match="gpuhunt: got no prices"):
        hunt("2026-11-29")

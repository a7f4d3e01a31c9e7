"""Prices of left-overs: hand computed, names that nothing is billed under, what a price by size does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_world import World, aws_server, empty_account, leftovers  # noqa: F401
from terminal import refused
from test_leftovers_kinds import MODELS, NOW, Modelled, thing

from loadsheet.cloud.leftovers.answer import Answer, to_json
from loadsheet.cloud.leftovers.item import Found, Item
from loadsheet.cloud.leftovers.page import page
from loadsheet.cloud.leftovers.prices import NOT_BILLED, _families, doubtful, parse, per_hour, read
from loadsheet.cloud.leftovers.registry import kinds
from loadsheet.errors import LoadsheetError


def test_prices() -> None:
    """Hand computed: 100 GiB at 0.08 a GB-month is 8 a month of 730 hours; the closest name wins."""
    rates = dict(map(parse, ("volume=0.10 USD/GB-month", "gp3=0.08 USD/GB-month", "p3.16xlarge=24.48 USD/h")))
    volume = thing(size=100 * 2.0**30, billed=("gp3", "volume"))
    assert per_hour(volume, rates) == pytest.approx(8 / 730)
    assert per_hour(thing(size=2.0**30, billed=("gp2", "volume")), rates) == pytest.approx(0.1 / 730)
    assert per_hour(thing(size=None), rates) is None
    assert per_hour(thing("instance", billed=("p3.16xlarge", "instance")), rates) == 24.48
    assert per_hour(thing("capacity-reservation", billed=("p3.16xlarge",), count=3), rates) == pytest.approx(
        73.44
    )
    assert per_hour(thing("instance", billed=()), rates) is None  # a stopped one is not billed
    assert per_hour(thing("address"), dict([parse("address=3.65/month")])) == pytest.approx(0.005)


def test_no_price_no_number() -> None:
    """Without a price nothing costs a number, in no field."""
    found = Found(items=[thing(size=2.0**30)], time=NOW)
    data = to_json(Answer(found, found.items))
    assert (data["items"][0]["per_hour"], data["items"][0]["since_created"]) == (None, None)
    assert (data["cost"]["per_hour"], data["cost"]["without_price"]) == (None, 1)


def test_price_file(tmp_path: Path) -> None:
    """A CSV of what, price, per, currency; what is wrong in it is said with its row."""
    path = tmp_path / "prices.csv"
    path.write_text("what,price,per,currency\nvolume,0.08,GB-month,EUR\np3.16xlarge,24.48,h,EUR\n")
    assert {key: rate.currency for key, rate in read(path).items()} == {"volume": "EUR", "p3.16xlarge": "EUR"}
    for text, words in (
        ("what,price\nvolume,1\n", "what, price, per"),
        ("what,price,per\nvolume,1,week\n", "row 2"),
        ("what,price,per\nvolume,1,h\nvolume,2,h\n", "twice"),
        ("what,price,per\nvolume,-1,h\n", "negative"),
        ("\x00\x00", "columns"),
    ):
        path.write_text(text)
        with pytest.raises(LoadsheetError, match=words):
            read(path)
    assert "two" not in refused(
        "leftovers", "--price", "volume=1 USD/h", "--price", "address=1 EUR/h", words="one"
    )


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("foo", "--list"),
        ("volumes", "`volume`"),
        ("natgateway", "`nat-gateway`"),
        ("nat-gatway", "`nat-gateway`"),
        ("gp4", "`gp3`"),
        ("GP3", "`gp3`"),
        ("fsx-luster", "`fsx-lustre`"),
        ("p3.16xlarg", "p3.16xlarge"),
        ("p3", "p3.16xlarge"),
        ("fleet", "not billed itself"),
    ],
)
def test_a_price_of_nothing(name: str, near: str) -> None:
    """A name that nothing is billed under would be a price that is never used: refused, with the nearest."""
    refused("leftovers", "--price", f"{name}=1/h", words=near)


def test_a_price_of_every_type() -> None:
    """By AWS's models: each type of machine, each type of volume and file system, may be given a price."""
    shapes = [
        ("ec2", "InstanceType"),
        ("sagemaker", "InstanceType"),
        ("sagemaker", "ProductionVariantInstanceType"),
        ("sagemaker", "TrainingInstanceType"),
        ("ec2", "VolumeType"),
    ]
    names = {
        name for service, shape in shapes for name in MODELS.get_service_model(service).shape_for(shape).enum
    }
    names |= {f"fsx-{n.lower()}" for n in MODELS.get_service_model("fsx").shape_for("FileSystemType").enum}
    assert len(names) > 1500
    for name in {*names, "db.m5.large", "db.r5.2xlarge.tpc2.mem2x"}:
        assert parse(f"{name}=1/h")[0] == name


def test_families_are_those_of_botocore() -> None:
    """Our table of them, by AWS's models; each of its types is taken without a remark, SageMaker's too."""
    types = MODELS.get_service_model("ec2").shape_for("InstanceType").enum
    assert {name.partition(".")[0] for name in types} == set(_families())
    own = MODELS.get_service_model("sagemaker").shape_for("TrainingInstanceType").enum
    assert doubtful([*types, *own, "db.x2g.large", "volume", "gp3"]) == []


@pytest.mark.parametrize("name", ["p33.16xlarge", "ml.p33.16xlarge"])
def test_a_family_that_there_is_not(account: World, name: str) -> None:
    """A price that nothing is billed under is remarked, and not refused: AWS makes new families."""
    done = leftovers("--price", f"{name}=24.48/h", "--regions", "eu-west-1", "--kinds", "volume", code=0)
    assert f"the family of {name} is in no table here, near p3" in done.stderr


def test_every_kind_is_billed_or_not() -> None:
    """What may be given a price of its own is what an item is billed under, kind by kind."""
    for kind in kinds().values():
        (item,) = kind.look(Modelled(None, "eu-west-1", kind, float("inf")))  # type: ignore[arg-type]
        if kind.name in NOT_BILLED:
            assert isinstance(item, Item)
            assert item.billed == ()
        else:
            assert parse(f"{kind.name}=1/h")[0] == kind.name


def test_the_other_price_file(tmp_path: Path) -> None:
    """The CSV of `plan --price-file`, ours or gpuhunt's, is known by its columns and named."""
    path = tmp_path / "prices.csv"
    for columns in ("gpu,price,per", "provider,instance_name,gpu_name,price"):
        path.write_text(f"{columns}\nh100-sxm,2,gpu\n")
        refused("leftovers", "--price-file", str(path), words="`loadsheet plan --price-file`")


VOLUMES = [
    ({"VolumeType": "gp3", "Iops": 3000, "Throughput": 125}, ""),
    ({"VolumeType": "gp3", "Iops": 3100, "Throughput": 125}, "100 IOPS"),
    ({"VolumeType": "gp3", "Iops": 3000, "Throughput": 1000}, "875 MiB/s"),
    ({"VolumeType": "io2", "Iops": 16000}, "16,000 IOPS"),
    ({"VolumeType": "io1", "Iops": 100}, "100 IOPS"),
    ({"VolumeType": "gp2", "Iops": 6000}, ""),
    ({"VolumeType": "st1"}, ""),
]


@pytest.mark.parametrize(("row", "extra"), VOLUMES)
def test_what_a_price_by_size_does_not_hold(row: dict[str, Any], extra: str) -> None:
    """AWS: 3,000 IOPS and 125 MiB/s are in the price of gp3, none in that of io1 and io2; said at item and sum."""

    class One(Modelled):
        """A region with one volume."""

        def rows(self, *names: Any, **rest: Any) -> Iterator[dict[str, Any]]:
            yield {"VolumeId": "vol-1", "State": "available", "Size": 100, **row}

    kind = kinds()["volume"]
    (item,) = kind.look(One(None, "eu-west-1", kind, float("inf")))  # type: ignore[arg-type]
    assert isinstance(item, Item)
    assert item.extra == extra
    answer = Answer(Found(items=[item], time=NOW), [item], dict([parse("volume=0.08/GB-month")]))
    text = "\n".join(page(answer, 200))
    assert (f"not in it: {extra}" in text) == bool(extra)
    assert (f"billed beside that, and in no sum here: {extra}" in text) == bool(extra)
    assert to_json(answer)["items"][0]["extra"] == extra
    assert to_json(answer)["cost"]["per_hour"] == pytest.approx(100 * 0.08 / 730)

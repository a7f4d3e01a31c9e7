"""The table of GPUs: figures of data sheets, the conflicts decided, and what a wrong name answers."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace
from pathlib import Path

import pytest

import loadsheet.hardware
from loadsheet.errors import BadInput, UnknownGpu
from loadsheet.hardware import DTYPES, Gpu, gpu, gpus
from loadsheet.units import GIB

ALL = [pytest.param(entry, id=entry.id) for entry in gpus()]
DATA = Path(loadsheet.hardware.__file__).with_name("gpus.json")

#: published dense peaks in TFLOP/s (TOP/s), from the data sheet or white paper named in each entry
PEAKS = {
    "v100-sxm2-32gb": {"fp32": 15.7, "fp16": 125},
    "t4": {"fp32": 8.1, "fp16": 65, "int8": 130},
    "a100-sxm-80gb": {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312, "int8": 624},
    "a40": {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7, "int8": 299.3},
    "l40s": {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362, "fp8": 733, "int8": 733},
    "h100-sxm": {
        "fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9, "int8": 1978.9
    },
    "h100-pcie": {"fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756, "fp8": 1513, "int8": 1513},
    "rtx-3090": {"fp32": 35.6, "tf32": 35.6, "bf16": 71, "fp16": 71, "int8": 284},
    "rtx-4090": {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2, "fp8": 330.3, "int8": 660.6},
    "rtx-5090": {
        "fp32": 104.8, "tf32": 104.8, "bf16": 209.5, "fp16": 209.5, "fp8": 419, "int8": 838, "fp4": 1676
    },
    "mi300x": {
        "fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9, "int8": 2614.9
    },
    "trainium2": {"fp32": 181, "tf32": 667, "bf16": 667, "fp16": 667, "fp8": 1299},
    "tpu-v5e": {"bf16": 197, "int8": 394},
}  # fmt: skip


def test_lecture_h100() -> None:
    """The lecture's H100: 989.4 TFLOP/s dense bf16, 3.35 TB/s, about 300 FLOP for each byte."""
    h100 = gpu("h100-sxm")
    assert h100.peak("bf16") == 989.4e12
    assert h100.bandwidth == 3.35e12
    assert h100.memory_marketed_gb == 80
    assert round(h100.peak("bf16") / h100.bandwidth) == 295


def test_lecture_others() -> None:
    """The lecture's A100 (312 TFLOP/s, 2.039 TB/s), T4 (16 GB) and A10G (24 GB)."""
    assert (gpu("a100-sxm-80gb").peak("bf16"), gpu("a100-sxm-80gb").bandwidth) == (312e12, 2.039e12)
    assert (gpu("t4").memory_marketed_gb, gpu("a10g").memory_marketed_gb) == (16, 24)


@pytest.mark.parametrize("name", PEAKS)
def test_published_peaks(name: str) -> None:
    """Every dense peak of the sheet, and no other dtype."""
    assert {dtype: rate / 1e12 for dtype, rate in gpu(name).peaks} == pytest.approx(PEAKS[name])


@pytest.mark.parametrize(
    ("name", "sms", "mhz", "fma"),
    [
        ("h100-sxm", 132, 1830, 4096 // 2),
        ("a100-sxm-80gb", 108, 1410, 2048 // 2),
        ("mi300x", 304, 2100, 1024),
    ],
)
def test_peak_is_dense_by_arithmetic(name: str, sms: int, mhz: int, fma: int) -> None:
    """Units times clock times FMAs per clock, two FLOP each, is the dense bf16 peak (sparse is twice)."""
    assert gpu(name).peak("bf16") == pytest.approx(sms * mhz * 1e6 * fma * 2, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("h100-sxm", 79.2), ("a100-sxm-80gb", 79.2), ("a100-sxm-40gb", 39.4), ("rtx-4090", 23.6),
        ("t4", 14.56), ("v100-sxm2-32gb", 31.74), ("h200-sxm", 139.8), ("b200-sxm", 178.35),
        ("gb200", 184.31), ("l40s", 44.39), ("mi325x", 255.69), ("tpu-v5e", 15.75),
    ],
)  # fmt: skip
def test_usable_memory_as_logged(name: str, gib: float) -> None:
    """What PyTorch's and XLA's out-of-memory messages call the total capacity."""
    assert gpu(name).memory_usable_bytes / GIB == pytest.approx(gib, abs=0.005)
    assert gpu(name).memory_usable_basis == "measured"


def test_gh200_to_the_byte() -> None:
    """`cuDeviceTotalMem` of a GH200 144G HBM3e."""
    assert gpu("gh200-144gb").memory_usable_bytes == 153_008_209_920


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("a10g", "bf16", 70e12),  # not the A10's 125
        ("a10", "bf16", 125e12),
        ("b200-sxm", "bf16", 2250e12),  # not the brief's rounded 2,200
        ("gaudi3", "bf16", 1835e12),  # the white paper, not the 1,677 of the shipped clock
        ("rtx-4000-ada", "bf16", 81.9e12),  # 327.6 sparse fp8 / 4
        ("rtx-6000-ada", "bf16", 364.2e12),  # full rate, unlike GeForce
        ("b300-sxm", "int8", 153.5e12),  # cut, unlike the B200's 4,500
        ("mi210", "int8", 181e12),
        ("mi250x-gcd", "bf16", 191.5e12),
    ],
)
def test_conflicts_decided(name: str, dtype: str, expected: float) -> None:
    """Where tables disagree the data sheet's value stands, and the note says that there is something."""
    assert gpu(name).peak(dtype) == expected
    assert len(gpu(name).note) > 20


def test_bandwidth_conflicts_decided() -> None:
    """The B200's HGX figure of 7.7 TB/s; the PRO 6000 Server's 1,597 GB/s, not the Workstation's 1,792."""
    assert gpu("b200-sxm").bandwidth == 7.7e12
    assert gpu("rtx-pro-6000-server").bandwidth == 1597e9
    assert gpu("rtx-pro-6000-workstation").bandwidth == 1792e9


def test_links_are_one_way() -> None:
    """Vendors print both directions together: NVLink 4 is 900 GB/s there and 450 GB/s here."""
    rates = {name: gpu(name).link_bandwidth for name in ("v100-sxm2-16gb", "a100-sxm-80gb", "h100-sxm")}
    assert rates == {"v100-sxm2-16gb": 150e9, "a100-sxm-80gb": 300e9, "h100-sxm": 450e9}
    assert (gpu("b200-sxm").link_bandwidth, gpu("mi300x").link_bandwidth) == (900e9, 448e9)


def test_enough_and_unique() -> None:
    """At least fifty devices; ids are lower case and differ, in the file too (a dict would hide it)."""
    ids = [entry["id"] for entry in json.loads(DATA.read_text("utf-8"))["gpus"]]
    assert len(ids) >= 50
    assert len(set(ids)) == len(ids)
    assert [entry.id for entry in gpus()] == ids
    assert [name for name in ids if name != name.lower() or " " in name or "_" in name] == []


@pytest.mark.parametrize("entry", ALL)
def test_complete(entry: Gpu) -> None:
    """Every field is there and of its kind; what is not verified or is assumed says why."""
    assert entry.name
    assert entry.vendor in {"NVIDIA", "AMD", "Intel", "AWS", "Google"}
    assert entry.kind in {"datacenter", "workstation", "consumer"}
    assert entry.memory_usable_basis in {"measured", "assumed"}
    assert isinstance(entry.memory_usable_bytes, int)
    assert isinstance(entry.verified, bool)
    assert entry.dtypes == tuple(dtype for dtype in DTYPES if dtype in entry.dtypes)
    assert len(entry.source) > 10
    assert entry.date[:2] == "20"
    assert entry.verified or entry.note


@pytest.mark.parametrize("entry", ALL)
def test_plausible(entry: Gpu) -> None:
    """Sizes, rates and powers lie where such devices lie; wider dtypes are never faster."""
    sheet = entry.memory_marketed_gb * 1e9
    assert 0.9 * sheet <= entry.memory_usable_bytes <= 1.08 * sheet
    assert 200e9 <= entry.bandwidth <= 10e12
    peaks = dict(entry.peaks)
    assert all(5e12 < rate < 2e16 for rate in peaks.values())
    for slow, fast in (("fp32", "fp16"), ("tf32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4")):
        if slow in peaks and fast in peaks:
            assert peaks[slow] <= peaks[fast]
    assert entry.tdp_watts is None or 50 <= entry.tdp_watts <= 1500
    assert 10e9 <= entry.link_bandwidth <= 2e12


@pytest.mark.parametrize("entry", [e for e in gpus() if e.vendor == "NVIDIA"], ids=lambda e: e.id)
def test_dense_throughout(entry: Gpu) -> None:
    """NVIDIA's tensor rates double with each halving of the width: a sparse figure among them stands out."""
    peaks = dict(entry.peaks)
    for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8")):
        if wide in peaks and narrow in peaks:
            assert peaks[narrow] == pytest.approx(2 * peaks[wide], rel=0.02)


@pytest.mark.parametrize("entry", [e for e in gpus() if e.link == "PCIe"], ids=lambda e: e.id)
def test_pcie_cards_talk_at_pcie_speed(entry: Gpu) -> None:
    """A card with no other link has its slot's rate: 15.75, 31.5 or 63 GB/s one way for 16 lanes."""
    assert entry.pcie_bandwidth == pytest.approx(entry.link_bandwidth, rel=0.01)


def test_no_pcie() -> None:
    """A TPU has no published slot: no rate, rather than a guessed one."""
    assert gpu("tpu-v5e").pcie_bandwidth == 0.0


def test_lookup_forgives_case_and_spaces_only() -> None:
    """Ids are exact but for case and outer spaces; a `Gpu` stands for itself."""
    assert gpu("  H100-SXM\n") is gpu("h100-sxm")
    mine = replace(gpu("t4"), id="my-card", memory_usable_bytes=1)
    assert gpu(mine) is mine


def test_family_name_is_not_an_id() -> None:
    """`h100` names no card; the answer names those that it could be."""
    with pytest.raises(UnknownGpu, match=r"unknown GPU: got 'h100'") as caught:
        gpu("h100")
    assert {"`h100-sxm`", "`h100-pcie`", "`h100-nvl`"} == set(
        caught.value.hint.removeprefix("did you mean ").removesuffix("?").split(", ")
    )


@pytest.mark.parametrize("wrong", ["rtx4090", "rtx 4090", "4090", "a100-80gb", "mi250x", "tpu7x", "h100_sxm"])
def test_near_names_are_suggested(wrong: str) -> None:
    """What people type leads to the id they meant."""
    meant = {"a100-80gb": "a100-", "mi250x": "mi250x-gcd", "tpu7x": "tpu7x-chiplet", "h100_sxm": "h100-sxm"}
    with pytest.raises(UnknownGpu) as caught:
        gpu(wrong)
    assert f"`{meant.get(wrong, 'rtx-4090')}" in caught.value.hint


@pytest.mark.parametrize("wrong", ["", "zzz", "h100-sxm\x00", "x" * 100_000, None, 5, ["t4"]])
def test_nonsense_is_unknown(wrong: object) -> None:
    """Nonsense is an unknown GPU, in one short line."""
    with pytest.raises(UnknownGpu) as caught:
        gpu(wrong)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 120
    assert "77 are known" in caught.value.hint or "did you mean" in caught.value.hint


@pytest.mark.parametrize(("name", "dtype"), [("t4", "bf16"), ("a100-sxm-80gb", "fp8"), ("t4", "float17")])
def test_missing_peak(name: str, dtype: str) -> None:
    """A dtype without a rate is an error that names those with one."""
    with pytest.raises(BadInput) as caught:
        gpu(name).peak(dtype)
    known = ", ".join(gpu(name).dtypes)
    assert str(caught.value) == f"peak of `{name}`: got dtype '{dtype}', expected one of {known}"


def test_json_and_pickle() -> None:
    """An entry survives `json` and `pickle`; the JSON has every field, peaks as an object."""
    entry = gpu("l4")
    shown = json.loads(json.dumps(entry.to_json()))
    assert list(shown) == [field.name for field in fields(Gpu)]
    assert shown["peaks"]["bf16"] == 121e12
    assert pickle.loads(pickle.dumps(entry)) == entry
    assert hash(entry) == hash(pickle.loads(pickle.dumps(entry)))

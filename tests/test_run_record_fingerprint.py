"""The record of a run: what identifies it, who has it, and where it came from."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import hashlib
import json
import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import msgspec
import numpy as np
import omegaconf
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_processes import by_hand

from loadsheet.errors import BadInput
from loadsheet.run.fingerprint import canonical, canonical_text, differences, fingerprint


class Schedule(enum.Enum):
    COSINE = enum.auto()


class Precision(enum.StrEnum):
    BF16 = "bf16"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Optimizer:
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)


class Record(msgspec.Struct):
    lr: float
    layers: int
    name: str | msgspec.UnsetType = msgspec.UNSET


class Point(NamedTuple):
    lr: float
    layers: int


# --- fingerprint --------------------------------------------------------------------------------------

WRITTEN = [
    ({}, "{}"),
    ({"lr": 3e-3, "layers": 12}, '{"layers":12,"lr":0.003}'),
    ({"layers": 12, "lr": 0.003}, '{"layers":12,"lr":0.003}'),
    ({"a": 1}, '{"a":1}'),
    ({"a": 1.0}, '{"a":1.0}'),
    ({"a": True}, '{"a":true}'),
    ({"a": None, "b": "x"}, '{"a":null,"b":"x"}'),
    ({"a": 1e22, "b": 1e-5, "c": -0.0, "d": 10**30}, '{"a":1e+22,"b":1e-05,"c":-0.0,"d":' + "1" + "0" * 30 + "}"),
    ({"betas": (0.9, 0.95)}, '{"betas":[0.9,0.95]}'),
    ({"B": 1, "a": 2, "_": 3}, '{"B":1,"_":3,"a":2}'),
    ({"path": PurePosixPath("data/x.bin")}, '{"path":"data/x.bin"}'),
    ({"path": PureWindowsPath("data\\x.bin")}, '{"path":"data/x.bin"}'),
    ({"s": Schedule.COSINE, "p": Precision.BF16, "l": Level.HIGH}, '{"l":"HIGH","p":"bf16","s":"COSINE"}'),
    ({2: "a", None: "c", 0.5: "d", True: "e"}, '{"0.5":"d","2":"a","null":"c","true":"e"}'),
    ({"é": "naïve\n\"q\""}, '{"é":"naïve\\n\\"q\\""}'),
    ({"e\u0301": 1}, '{"\u00e9":1}'),
    ({"name": "../../etc/passwd"}, '{"name":"../../etc/passwd"}'),
    ({"optimizer": Optimizer()}, '{"optimizer":{"betas":[0.9,0.95],"lr":0.0003}}'),
    ({"n": np.int64(3), "x": np.float64(0.1), "b": np.bool_(True)}, '{"b":true,"n":3,"x":0.1}'),
    ({"x": np.float32(0.1)}, '{"x":0.10000000149011612}'),
    ({"x": np.array([[1, 2], [3, 4]])}, '{"x":[[1,2],[3,4]]}'),
    ({"x": torch.tensor(0.5), "y": torch.tensor([1, 2])}, '{"x":0.5,"y":[1,2]}'),
    (
        {"a": torch.bfloat16, "b": np.dtype("float32"), "c": np.float16, "d": torch.device("cuda", 1)},
        '{"a":"torch.bfloat16","b":"numpy.float32","c":"numpy.float16","d":"cuda:1"}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "text"), WRITTEN, ids=[text[:40] for _, text in WRITTEN])
def test_fingerprint_is_sha256_of_the_text_written_by_hand(config: dict[Any, Any], text: str) -> None:
    """Ten digits of hashlib's SHA-256 over canonical JSON that stands in this test."""
    assert canonical_text(canonical(config)[0]) == text
    assert fingerprint(config) == by_hand(text)


def test_every_kind_of_config_gives_the_same_fingerprint() -> None:
    """A dict, a dataclass, a Struct, a Namespace, a named tuple: what counts is names and values."""
    expected = by_hand('{"layers":2,"lr":0.1}')

    @dataclasses.dataclass
    class Config:
        lr: float
        layers: int

    configs = [
        {"lr": 0.1, "layers": 2},
        OrderedDict(layers=2, lr=0.1),
        Config(0.1, 2),
        Record(0.1, 2),
        argparse.Namespace(lr=0.1, layers=2),
        Point(0.1, 2),
    ]
    assert [fingerprint(config) for config in configs] == [expected] * len(configs)


def test_omegaconf_counts_as_the_dict_it_holds() -> None:
    """Interpolations are resolved; a value that is missing is an error with its name."""
    config = omegaconf.OmegaConf.create({"d": 8, "wide": {"ff": "${d}", "list": [1, "${d}"]}})
    assert fingerprint(config) == by_hand('{"d":8,"wide":{"ff":8,"list":[1,8]}}')
    assert fingerprint({"x": config.wide.list}) == by_hand('{"x":[1,8]}')
    with pytest.raises(
        BadInput, match=r"^config\.model\.lr: got 'Missing mandatory value: lr', expected every"
    ):
        fingerprint(omegaconf.OmegaConf.create({"model": {"lr": "???"}}))
    with pytest.raises(
        BadInput, match=r"^config\.a: got \"Interpolation key 'b' not found\", expected every"
    ):
        fingerprint(omegaconf.OmegaConf.create({"a": "${b}"}))


class Kind(enum.Enum):
    """Of a model."""

    WIDE = 1


@dataclasses.dataclass
class Data:
    """Part of a structured config."""

    path: Path = Path("some/where")
    workers: int = 4


@dataclasses.dataclass
class Structured:
    """A structured config as hydra has them: typed, with an enum, a path, a list, a part and nothing."""

    lr: float = 3e-3
    kind: Kind = Kind.WIDE
    tags: list[str] = dataclasses.field(default_factory=lambda: ["a", "b"])
    data: Data = dataclasses.field(default_factory=Data)
    seed: int | None = None


def test_omegaconf_of_every_kind() -> None:
    """Structured, from YAML, read-only, with numbers as keys, inside a dict: as the plain values."""
    expected = by_hand(
        '{"data":{"path":"some/where","workers":4},"kind":"WIDE","lr":0.003,"seed":null,"tags":["a","b"]}'
    )
    structured = omegaconf.OmegaConf.structured(Structured)
    assert fingerprint(structured) == fingerprint(Structured()) == expected
    omegaconf.OmegaConf.set_readonly(structured, True)
    assert fingerprint(structured) == expected
    structured = omegaconf.OmegaConf.merge(structured, {"data": {"workers": 8}})
    assert fingerprint(structured) != expected
    assert canonical(structured, ["data.workers"])[1] == {"data.workers": 8}
    yaml = omegaconf.OmegaConf.create("lr: 3e-3\nsteps: 1_000\n1: one\nold: ${oc.env:HOME_OF_NOBODY,none}")
    assert fingerprint(yaml) == by_hand('{"1":"one","lr":0.003,"old":"none","steps":1000}')
    inside = {"model": omegaconf.OmegaConf.create({"d": 8, "deep": {"ff": "${d}"}})["deep"]}
    assert fingerprint(inside) == by_hand('{"model":{"ff":8}}')
    with pytest.raises(BadInput, match="expected a dict, dataclass, Struct or Namespace"):
        fingerprint(omegaconf.OmegaConf.create([1, 2]))


def test_it_is_the_same_in_every_process() -> None:
    """Python's own hash of text changes from process to process; the fingerprint does not."""
    code = (
        "from loadsheet.run.fingerprint import fingerprint as f; print(f({'b': [1, 'x'], 'a': {'c': 0.5}}))"
    )
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        found.add(done.stdout.decode().strip())
    assert found == {by_hand('{"a":{"c":0.5},"b":[1,"x"]}')}


class Opaque:
    pass


CYCLE: dict[str, Any] = {"inner": {}}
CYCLE["inner"]["back"] = CYCLE
DEEP: dict[str, Any] = {}
for _ in range(300):
    DEEP = {"a": DEEP}

REFUSED = [
    ({"a": {"lr": float("nan")}}, r"config\.a\.lr: got nan"),
    ({"a": [1.0, float("-inf")]}, r"config\.a\[1\]: got -inf"),
    ({"a": np.float32("nan")}, r"config\.a: got nan"),
    ({"a": {1, 2}}, r"config\.a: got a set"),
    ({"a": {"f": lambda: 0}}, r"config\.a\.f: got the function"),
    ({"a": [Opaque()]}, r"config\.a\[0\]: got a Opaque of tests?"),
    ({"a": Opaque}, r"config\.a: got the type"),
    ({"a": b"x"}, r"config\.a: got a bytes"),
    ({"a": 1j}, r"config\.a: got a complex"),
    ({"a": np.longdouble("0.1")}, r"config\.a: got a longdouble"),
    ({"a": torch.empty(2, device="meta")}, r"config\.a: got a Tensor"),
    ({"a": {1: "x", "1": "y"}}, r"config\.a: got keys 1 and '1'"),
    ({"e\u0301": 1, "\u00e9": 2}, r"config: got keys"),
    ({"a": {(1, 2): 3}}, r"config\.a: got a key \(1, 2\)"),
    ({"a": "\ud800"}, r"config\.a: got .*UTF-8"),
    ({"a": 1 << 20_000}, r"config\.a: got an integer of 20001 bits"),
    (CYCLE, r"config\.inner\.back: got an object that contains itself"),
    (DEEP, r"more than 100 levels"),
    ([1, 2], r"config: got a list"),
    (None, r"config: got a NoneType"),
    (Optimizer, r"config: got the type"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_what_has_no_fixed_text_is_refused_by_its_path(config: Any, message: str) -> None:
    """One line that names the key; never an address in memory, which would change every time."""
    with pytest.raises(BadInput, match=message) as caught:
        fingerprint(config)
    assert " at 0x" not in str(caught.value)


def test_excluded_values_do_not_count_and_are_recorded() -> None:
    """By name at the top or by path; also what could not be written down as a value."""
    config = {"lr": 0.1, "out": Path("runs"), "data": {"workers": 4, "seed": 1}, "device": Opaque()}
    values, excluded = canonical(config, ["out", "data.workers", "device"])
    assert values == {"lr": 0.1, "data": {"seed": 1}}
    assert excluded["out"] == "runs"
    assert excluded["data.workers"] == 4
    assert "Opaque" in excluded["device"]
    assert fingerprint(config, ["out", "data.workers", "device"]) == by_hand('{"data":{"seed":1},"lr":0.1}')
    assert canonical({"out": 1}, "out") == ({}, {"out": 1})


def test_an_excluded_name_that_is_not_there_is_an_error() -> None:
    """A typing error would make the output path part of the identity, and nothing would ever resume."""
    with pytest.raises(BadInput, match="num_worker") as caught:
        canonical({"data": {"num_workers": 4}}, ["num_worker"])
    assert "data.num_workers" in caught.value.hint


@pytest.mark.parametrize("exclude", [5, None, ["lr", 5], b"lr"])
def test_what_is_no_name_is_not_excluded(exclude: Any) -> None:
    """Names are text, alone or several."""
    with pytest.raises(BadInput, match=r"exclude: got .*, expected names of keys"):
        canonical({"lr": 1}, exclude)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="ascii")),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(codec="ascii")), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
configs = st.dictionaries(st.text(st.characters(codec="ascii"), max_size=5), json_values, max_size=5)


@given(configs)
def test_plain_json_is_its_own_canonical_form(config: dict[str, Any]) -> None:
    """Whatever json can write, comes back from config.json as the same run; order never matters."""
    expected = json.dumps(config, sort_keys=True, separators=(",", ":"))
    assert fingerprint(config) == hashlib.sha256(
        expected.encode().replace(b"\\u007f", b"\x7f")
    ).hexdigest()[:10]  # fmt: skip
    assert fingerprint(dict(reversed(config.items()))) == fingerprint(config)
    assert differences(json.loads(json.dumps(config)), canonical(config)[0]) == []


def test_differences_show_where_and_what() -> None:
    """A line per place, with both values; 1 and 1.0 differ as their texts do."""
    old = {"lr": 0.1, "n": 1, "a": [1, {"b": 2}], "gone": None}
    new = {"lr": 0.2, "n": 1.0, "a": [1, {"b": 3}], "new": "x"}
    assert differences(old, new, limit=9) == [
        "a[1].b: 2 → 3",
        "gone: null → absent",
        "lr: 0.1 → 0.2",
        "n: 1 → 1.0",
        'new: absent → "x"',
    ]

"""Files given to the command line: honest ones are read, all others are refused in two lines."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from strategies import TINY_GGUF, TINY_SAFETENSORS, written
from terminal import TINY, answered, refused, run

# --- files that are no models ----------------------------------------------------------------------------


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


_FILES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "empty": ("config.json", lambda p: p.write_bytes(b""), "got nothing"),
    "truncated": ("config.json", lambda p: p.write_text(json.dumps(TINY)[:50]), "no valid JSON at line 1"),
    "10 GB": ("config.json", _sparse, "got 10,737,418,240 bytes"),
    "10 GB of gguf": ("x.gguf", _sparse, "expected b'GGUF'"),
    "10 GB of safetensors": ("x.safetensors", _sparse, "header"),
    "folder": ("config.json", lambda p: p.mkdir(), "expected a config.json in it"),
    "pipe": ("config.json", os.mkfifo, "got a pipe"),
    "pipe as gguf": ("x.gguf", os.mkfifo, "got a pipe"),
    "socket": ("c.json", _socket, "got a socket"),
    "link to itself": ("config.json", lambda p: p.symlink_to(p.name), "symbolic links"),
    "link to nowhere": ("config.json", lambda p: p.symlink_to("nowhere"), "no such file"),
    "not UTF-8": ("config.json", lambda p: p.write_bytes(b'{"model_type": "\xe9"}'), "not UTF-8"),
    "a list": ("config.json", lambda p: p.write_text(json.dumps([TINY])), "an array at the top level"),
    "NaN": ("config.json", lambda p: p.write_text('{"hidden_size": NaN}'), "the value NaN"),
    "key twice": ("config.json", lambda p: p.write_text('{"a": 1, "a": 2}'), "the key 'a' twice"),
    "deep": ("config.json", lambda p: p.write_text('{"a":' * 10_000 + "1" + "}" * 10_000), "nesting deeper"),
    "lying gguf": (
        "x.gguf",
        lambda p: p.write_bytes(TINY_GGUF[:8] + b"\xff" * 16 + TINY_GGUF[24:]),
        "expected",
    ),
    "cut gguf": ("x.gguf", lambda p: p.write_bytes(TINY_GGUF[:-1]), "expected"),
    "lying safetensors": ("x.safetensors", lambda p: p.write_bytes(b"\xff" * 100), "a header of 18,446,744"),
    "no config beside": (
        "x.safetensors",
        lambda p: p.write_bytes(TINY_SAFETENSORS),
        "expected a config.json beside it",
    ),
    "empty index": ("m.safetensors.index.json", lambda p: p.write_text("{}"), "weight_map"),
    "no architecture": ("config.json", lambda p: p.write_text("{}"), "config.json'.model_type: missing"),
    "unknown architecture": (
        "config.json",
        lambda p: p.write_text('{"model_type": "x\\u001b"}'),
        "config.json'.model_type: got",
    ),
}


@pytest.mark.parametrize("kind", _FILES)
def test_hostile_file(kind: str, tmp_path: Path) -> None:
    """A file that is not what it says is one error at once, whatever its size and kind."""
    name, make, words = _FILES[kind]
    make(tmp_path / name)
    refused("plan", str(tmp_path / name), "--gpu", "t4", words=words)
    refused("params", str(tmp_path / name), words=words)


_ABSURD = [0, -1, 1.5, 10**19, 1e300, "64", "", True, [], {}, [64]]


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "intermediate_size",
    ],
)
def test_hostile_config(key: str, tmp_path: Path) -> None:
    """A size that cannot be is an error with the key's path, never a count."""
    for value in _ABSURD:
        refused(
            "params",
            str(written(tmp_path, "config.json", json.dumps({**TINY, key: value}).encode())),
            words=f"config.json'.{key}: got ",
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 65}, "config.json'.hidden_size: got 65, expected a multiple"),
        ({"num_key_value_heads": 3}, "config.json'.num_key_value_heads: got 3"),
        ({"tie_word_embeddings": "yes"}, "config.json'.tie_word_embeddings: got 'yes'"),
        ({"hidden_act": "x" * 199}, "config.json'.hidden_act: got 'xxx"),
        ({"max_position_embeddings": -5}, "config.json'.max_position_embeddings: got -5"),
        ({"model_type": ["llama"]}, "config.json'.model_type: got ['llama']"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_contradictory_config(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Sizes that do not go together, and values of the wrong kind."""
    refused(
        "params", str(written(tmp_path, "config.json", json.dumps({**TINY, **changes}).encode())), words=words
    )


# --- files that are --------------------------------------------------------------------------------------


def _folder(path: Path, **changes: Any) -> Path:
    path.mkdir(parents=True)
    written(path, "config.json", json.dumps({**TINY, **changes}).encode())
    return path


def test_ways_to_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config.json, its folder, with and without a slash, and a link to it are one model."""
    _folder(tmp_path / "tiny")
    (tmp_path / "link.json").symlink_to("tiny/config.json")
    monkeypatch.chdir(tmp_path)
    above = f"../{tmp_path.name}/tiny"
    ways = ("tiny", "tiny/", "./tiny", "tiny/config.json", above, "link.json", str(tmp_path / "tiny"))
    counts = {json.loads(answered("params", way, "--json").stdout)["total"] for way in ways}
    # 2·100·64 embedding and head; 2·(64·64 + 2·64·32 + 64·64 + 3·64·128 + 2·64); 64
    assert counts == {86_848}
    monkeypatch.chdir(tmp_path / "tiny")
    assert json.loads(answered("params", ".", "--json").stdout)["model"] == "tiny"


def test_folder_named_like_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies here under a preset's name is read if it is a model, with a warning; else the preset is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert "124,439,808" in answered("params", "gpt2").stdout
    assert run("params", "gpt2").stderr == ""
    refused("params", "./gpt2", words="expected a config.json in it")
    _folder(tmp_path / "opt-1.3b")
    result = answered("params", "opt-1.3b")
    assert "86,848" in result.stdout
    assert "warning: model: 'opt-1.3b' is a preset too" in result.stderr
    assert "is a preset too" in run("plan", "opt-1.3b", "--gpu", "t4").stderr
    assert run("params", "./opt-1.3b").stderr == ""


def test_folder_with_a_gguf(tmp_path: Path) -> None:
    """A folder that holds .gguf files says which."""
    written(tmp_path, "model-Q4_K_M.gguf", TINY_GGUF)
    refused("params", str(tmp_path), words="it holds `model-Q4_K_M.gguf`")
    assert "stored as gguf" in answered("params", str(tmp_path / "model-Q4_K_M.gguf")).stdout.lower()


def test_names_cannot_break_the_terminal(tmp_path: Path) -> None:
    """The name of a folder is shown without what would move the cursor or start a line of its own."""
    folder = _folder(tmp_path / "a\nFITS\x1b[2J\u202e\udcff", _name_or_path="x\x1b[0m")
    page = answered("plan", str(folder), "--gpu", "t4").stdout
    assert page.replace("\n", "").isprintable()
    assert page.startswith("a FITS?[2J??")
    assert json.loads(answered("params", str(folder), "--json").stdout)["model"] == "a FITS?[2J??"


def test_path_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and folders without permission are errors, not tracebacks."""

    def forbidden(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "empty").mkdir()
    folder = _folder(tmp_path / "tiny")
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", forbidden)
        refused("params", str(tmp_path / "empty"), words="permission denied")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", forbidden)
        refused("params", str(folder), words="got permission denied, expected a readable file")


# --- price files -----------------------------------------------------------------------------------------


def _prices(tmp_path: Path, *rows: str, head: str = "gpu,price,currency,spot") -> str:
    return str(written(tmp_path, "prices.csv", "\n".join([head, *rows]).encode()))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("h100-sxm,abc,USD,no", "prices.csv row 2, column `price`: got 'abc'"),
        ("h100-sxm,-1,USD,no", "expected no negative price"),
        ("h100-sxm,nan,USD,no", "column `price`: got 'nan'"),
        ("h100,2,USD,no", "row 2, column `gpu`: got 'h100'"),
        ("h100-sxm,2,min,no", "currency 'min'"),
        ("h100-sxm,2,USD,maybe", "column `spot`: got 'maybe'"),
        ("h100-sxm,2", "row 2: got 2 cells, expected 4"),
        ('h100-sxm,"2', "expected CSV"),
        ("t4,2,USD,no", "got no on-demand row for `h100-sxm`"),
        ("h100-sxm,2,USD,yes", "it has spot prices only"),
        ("", "got no prices"),
    ],
)
def test_broken_price_file(row: str, words: str, tmp_path: Path) -> None:
    """A cell that makes no sense is named by its row and column."""
    refused("plan", "gpt2", "--gpu", "h100-sxm", "--price-file", _prices(tmp_path, row), words=words)


def test_price_file_that_is_none(tmp_path: Path) -> None:
    """A missing file, a folder, a device, an empty name."""
    for path in (str(tmp_path / "missing.csv"), str(tmp_path), "/dev/zero", ""):
        refused("plan", "gpt2", "--gpu", "h100-sxm", "--price-file", path, words="expected a CSV file")


def test_prices_for_some_of_the_gpus(tmp_path: Path) -> None:
    """In a comparison, a GPU without a price keeps its line; spot prices count if they may."""
    file = _prices(tmp_path, "h100-sxm,3,USD,no", "h100-sxm,1.5,USD,yes", "l4,0.5,USD,yes")
    args = ("plan", "gpt2", "--gpu", "h100-sxm,l4,t4", "--tokens", "1B", "--price-file", file, "--json")
    sheets = json.loads(answered(*args).stdout)["compare"]
    assert [None if s["money"] is None else s["money"]["price_per_gpu_hour"] for s in sheets] == [
        3.0,
        None,
        None,
    ]
    sheets = json.loads(answered(*args, "--spot").stdout)["compare"]
    assert [None if s["money"] is None else s["money"]["price_per_gpu_hour"] for s in sheets] == [
        1.5,
        0.5,
        None,
    ]
    lines = answered(*args[:-1]).stdout.splitlines()
    assert any(line.startswith("t4 ") and "–" in line for line in lines)

"""The command line under clumsy and hostile hands: a right answer, or two lines of error and exit status 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from terminal import answered, plan, refused, run

from loadsheet.cli import COMMANDS

# --- names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt-2", "did you mean `gpt2`"),
        ("gpt_2", "`gpt2`"),
        ("llama 3 8b", "`llama-3-8b`"),
        ("llama_3_8b", "`llama-3-8b`"),
        ("llama3-8b", "`llama-3-8b`"),
        ("llama-3", "`llama-3-8b`"),
        ("meta-llama/Meta-Llama-3-8B", "nearest presets: `llama-3-8b`"),
        ("mistralai/Mistral-7B-v0.1", "hub ids are not looked up"),
        ("https://example.org/config.json", "nothing is downloaded"),
        ("", "got ''"),
        (" \t", "got ' \\t'"),
        ("nonsense", "unknown model"),
        ("a\0b", "got 'a\\x00b'"),
        ("a\nb", "got 'a\\nb'"),
        ("\x1b[31mred", "\\x1b"),
        ("\u202eabc", "\\u202e"),
        ("\udcff", "\\udcff"),
        ("🦙", "'🦙'"),
        ("x" * 1_000_000, "unknown model: got 'xxx"),
        ("-", "unknown model"),
        ("~", "`~` is left as it is"),
        ("~/model", "expected a file or folder that exists"),
        ("./gpt2", "expected a file or folder that exists"),
        ("config.json", "expected a file or folder that exists"),
        ("pytorch_model.bin", "expected a file or folder that exists"),
        ("gpt2.gguf", "expected a file or folder that exists"),
        ("a/b/c", "expected a file or folder that exists"),
        ("x" * 300 + ".json", "expected a file or folder that exists"),
        ("/" + "d/" * 3000, "expected a file or folder that exists"),
        ("/dev/null", "got a character device"),
        ("/dev/zero", "got a character device"),
    ],
    ids=lambda text: repr(text)[:24],
)
def test_wrong_model(model: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is not there is one error with the way out, in every command that takes one."""
    monkeypatch.chdir(tmp_path)
    refused("plan", model, "--gpu", "h100-sxm", words=words)
    refused("params", model, words=words)


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ("h100", "did you mean `h100-nvl`, `h100-sxm`"),
        ("H100", "`h100-sxm`"),
        ("h100_sxm", "`h100-sxm`"),
        ("h100sxm", "`h100-sxm`"),
        ("NVIDIA H100 80GB HBM3", "`h100-sxm`"),
        ("RTX 4090", "`rtx-4090`"),
        ("4090", "`rtx-4090`"),
        ("Tesla T4", "`t4`"),
        ("a100-80gb", "`a100-sxm-80gb`"),
        ("", "got ''"),
        (" , ", "expected a GPU id"),
        ("h100-sxm,foo", "unknown GPU: got 'foo'"),
        ("cpu", "unknown GPU"),
        ("a\0b", "a\\x00b"),
        ("\x1b[31m", "\\x1b"),
        ("x" * 1_000_000, "got 'xxx"),
    ],
    ids=lambda text: repr(text)[:24],
)
def test_wrong_gpu(gpu: str, words: str) -> None:
    """GPU ids are exact; what is near is named."""
    refused("plan", "gpt2", "--gpu", gpu, words=words)


@pytest.mark.parametrize("name", ["GPT2", " gpt2 ", "Llama-3-8B"])
def test_case_and_outer_spaces_do_not_matter(name: str) -> None:
    """A preset is found whatever its case."""
    assert name.strip().lower() in answered("params", name).stdout


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--task", "inference", "known: `lora`, `qlora`, `serve`, `train`"),
        ("--task", "Train", "did you mean `train`?"),
        ("--task", "", "unknown task: got ''"),
        ("--precision", "bf16", "`pure-bf16`"),
        ("--precision", "pure_bf16", "`pure-bf16`"),
        ("--precision", "float32", "unknown precision"),
        ("--optimizer", "adamw8bit", "`adamw-8bit`"),
        ("--optimizer", "sophia", "known: `adafactor`"),
        ("--optimizer-form", "Fused", "`fused`"),
        ("--stack", "huggingface", "known: `hf`"),
        ("--recompute", "yes", "known: `full`, `none`, `selective`"),
        ("--attention", "flash_attention_2", "`flash`"),
        ("--kernels", "FUSED", "did you mean `fused`?"),
        ("--loss", "liger", "known: `chunked`"),
        ("--loss", "x" * 100_000, "unknown loss: got 'xxx"),
    ],
    ids=lambda text: text[:20],
)
def test_wrong_value_of_an_option(option: str, value: str, words: str) -> None:
    """Unknown dtypes, optimizers and the like are errors that list or guess the known ones."""
    refused(*plan(option, value), words=words)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--weights", "INT4", "`int4`"),
        ("--weights", "q4_k_m", "unknown weight format"),
        ("--kv", "FP8", "`fp8`"),
        ("--kv", "int4", "`int8`"),
    ],
)
def test_wrong_number_format(option: str, value: str, words: str) -> None:
    """So are the number formats of serving."""
    refused(*plan("--task", "serve", option, value), words=words)


# --- numbers ---------------------------------------------------------------------------------------------

_COUNTS = [
    ("--batch",), ("--seq",), ("--tokens",), ("--gpus",), ("--accumulation",), ("--rank", "--task", "lora"),
    ("--prefill-chunk", "--task", "serve"), ("--group", "--task", "serve", "--weights", "int4"),
]  # fmt: skip


@pytest.mark.parametrize("option", _COUNTS, ids=lambda option: option[0])
@pytest.mark.parametrize(
    "value",
    ["0", "-1", "1.5", "1e999", "nan", "inf", "abc", "", "1" + "0" * 19, "1e31", "9" * 5000, "1,5", "0x10", "²", "\0"],
    ids=lambda text: repr(text)[:12],
)  # fmt: skip
def test_wrong_count(option: tuple[str, ...], value: str) -> None:
    """No size is zero, negative, broken, infinite, absurd or a word, and the error names the option as typed."""
    name, *others = option
    assert refused(*plan(*others, name, value)).startswith(f"error: {name}: got ")


def test_huge_numbers_are_shown_as_given() -> None:
    """10^30 is not turned into the double next to it."""
    refused(*plan("--batch", str(10**30)), words="got 1000000000000000000000000000000,")


@pytest.mark.parametrize(
    "value", ["0", "2", "40", "nan", "inf", "-1", "abc", "", "%", "101%", "0,4", "1e-320", "1e-400"]
)
def test_wrong_mfu(value: str) -> None:
    """An MFU is a share of the peak; nothing that would make the time infinite or negative passes."""
    refused(*plan("--mfu", value), words="--mfu: got ")


def test_mfu_in_per_cent() -> None:
    """40 % and 0.4 are the same."""
    assert (
        answered(*plan("--mfu", "40%", "--json")).stdout == answered(*plan("--mfu", "0.4", "--json")).stdout
    )


@pytest.mark.parametrize("value", ["1", "1.5", "-0.1", "nan", "abc", ""])
def test_wrong_lora_dropout(value: str) -> None:
    """A dropout of everything trains nothing."""
    refused(*plan("--task", "lora", "--lora-dropout", value), words="--lora-dropout: got ")


@pytest.mark.parametrize(
    "value", ["abc", "-1", "nan", "inf", "", "2,5", "1e5", "2.5 min", "$2.5 USD", "1" * 30]
)
def test_wrong_price(value: str) -> None:
    """A price is a plain number with a currency, or an error."""
    refused(*plan("--price", value), words="--price: got ")


@pytest.mark.parametrize("rank", ["769", "1e6"])
def test_rank_beyond_the_matrices(rank: str) -> None:
    """GPT-2's narrowest matrix is 768 wide: a higher rank has no meaning."""
    refused(*plan("--task", "lora", "--rank", rank), words="expected at most 768")
    answered(*plan("--task", "lora", "--rank", "768"))


def test_targets_that_are_not_there() -> None:
    """Module names are those of the model; the hint lists them."""
    refused(*plan("--task", "lora", "--targets", "q_proj"), words="it has c_attn, c_fc, c_proj")
    refused(*plan("--task", "lora", "--targets", "c_attn,x" * 1000), words="expected module names of gpt2")
    refused(*plan("--task", "qlora", "--targets", " , "), words="--targets: got nothing")
    answered(*plan("--task", "lora", "--targets", "c_attn, c_fc,c_attn"))


@pytest.mark.parametrize("seq", ["2049", "4k", "1000000"])
def test_beyond_the_length_of_a_rotary_model(seq: str) -> None:
    """Pythia was made for 2,048 tokens and has a rotation for more: a warning, and the exit status is the verdict's."""
    args = ("plan", "pythia-70m", "--gpu", "h100-sxm", "--seq")
    result = run(*args, seq)
    assert result.exit_code in (0, 1)
    assert "beyond the 2,048 tokens" in result.stderr
    assert ("DOES NOT FIT" in result.stdout) == (result.exit_code == 1)
    assert run(*args, "2048").stderr == ""


@pytest.mark.parametrize(("model", "rows"), [("gpt2", 1024), ("opt-1.3b", 2048), ("gpt-3-175b", 2048)])
@pytest.mark.parametrize("task", ["train", "serve"])
def test_beyond_a_table_of_positions(model: str, rows: int, task: str) -> None:
    """No row for more tokens (Radford 2019: 1,024; Zhang 2022, Brown 2020: 2,048), so the model cannot run on them."""
    args = ("plan", model, "--gpu", "mi300x", "--task", task, "--seq")
    refused(*args, str(rows + 1), words=f"--seq: got {rows + 1:,}, expected at most {rows:,}")
    found = run(*args, str(rows), "--json")
    assert json.loads(found.stdout)["capacity"]["longest_seq"] in (0, rows)


def test_a_page_names_the_table_of_positions() -> None:
    """Where the table is the limit and not the memory, the page says so."""
    page = " ".join(answered(*plan()).stdout.split())
    assert "the longest sequence is 1,024, all that its table of positions has" in page


@pytest.mark.parametrize("sizes", [("1e12", "1e12"), ("1099511627776", "1"), ("1", "1099511627776")])
def test_sizes_beyond_reason_stay_exact(sizes: tuple[str, str]) -> None:
    """The largest sizes that are taken give numbers, not infinities."""
    batch, seq = sizes
    sheet = json.loads(
        answered(
            "plan",
            "pythia-70m",
            "--gpu",
            "h100-sxm",
            "--batch",
            batch,
            "--seq",
            seq,
            "--tokens",
            "1e18",
            "--price",
            "1",
            "--json",
            code=1,
        ).stdout
    )
    assert sheet["recipe"]["batch"] * sheet["recipe"]["seq"] == int(float(batch)) * int(float(seq))


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--kv", "fp8"), "--kv: got 'fp8', expected only with task serve, not `train`"),
        (("--weights", "int4"), "expected only with task serve"),
        (("--prefill-chunk", "10"), "--prefill-chunk: got 10"),
        (("--rank", "8"), "--rank: got 8, expected only with task lora or qlora, not `train`"),
        (("--targets", "c_attn"), "expected only with task lora or qlora"),
        (("--no-upcast",), "expected only with task qlora"),
        (("--task", "lora", "--double-quant"), "--double-quant: got True, expected only with task qlora"),
        (("--task", "serve", "--rank", "8"), "--rank: got 8"),
        (("--task", "serve", "--repeat-kv"), "--repeat-kv: got True"),
        (("--task", "serve", "--stack", "hf"), "--stack: got 'hf'"),
        (("--task", "serve", "--recompute", "full"), "--recompute: got 'full'"),
        (("--task", "serve", "--accumulation", "2"), "--accumulation: got 2"),
        (("--task", "serve", "--mfu", "0.4"), "--mfu: got 0.4"),
        (("--task", "serve", "--no-dropout"), "--dropout: got False"),
        (("--task", "serve", "--keep-gradients"), "--keep-gradients: got True"),
        (("--task", "serve", "--group", "64"), "--group: got 64, expected only with weights `int4`"),
        (("--price", "2", "--price-file", "x.csv"), "got both"),
        (("--spot",), "--spot: got no --price-file"),
        (("--batc", "3"), "unknown option: got '--batc' / hint: did you mean `--batch`"),
        (("--zzz",), "--help` says what is accepted"),
        (("-b", "3"), "unknown option: got '-b'"),
        (("more",), "unexpected extra argument"),
        (("--batch",), "requires an argument"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else "",
)
def test_option_that_does_not_belong(options: tuple[str, ...], words: str) -> None:
    """An option of another task is never passed over in silence."""
    refused(*plan(*options), words=words)


@pytest.mark.parametrize("name", ["--tp", "--pp", "--cp", "--ep", "--dp", "--zero", "--fsdp", "--sharding"])
@pytest.mark.parametrize("value", ["2", "1", "", "x"])
def test_sharding_is_refused(name: str, value: str) -> None:
    """Splitting over GPUs is not modelled yet, and says so instead of giving numbers without it."""
    refused(*plan(name, value), words=f"{name}: got ")
    assert name not in answered("plan", "--help").stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "no command"),
        (("plann",), "did you mean `plan`?"),
        (("Plan",), "did you mean `plan`?"),
        (("",), "unknown command: got ''"),
        (("x" * 100_000,), "unknown command: got 'xxx"),
        (("\x1b[31m",), "\\x1b"),
        (("--nope",), "unknown option: got '--nope'"),
        (("plan",), "missing argument 'MODEL'"),
        (("plan", "gpt2"), "missing option '--gpu'"),
        (("plan", "gpt2", "--gpu"), "`loadsheet plan --help`"),
        (("gpus", "a", "b"), "unexpected extra argument"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, tuple) else "",
)
def test_wrong_command(args: tuple[str, ...], words: str) -> None:
    """Commands and arguments that are missing, misspelt or too many."""
    refused(*args, words=words)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    """Every command explains itself, and its errors say where."""
    assert f"Usage: loadsheet {command}" in answered(command, "--help").stdout
    refused(command, "--zzzz", words=f"`loadsheet {command} --help`")


@pytest.mark.parametrize(
    "command", [("runs", "list"), ("runs", "export"), ("measure", "model")], ids=" ".join
)
def test_help_of_a_subcommand(command: tuple[str, str]) -> None:
    """Its errors point to its own help, those of the group to the group's."""
    name = " ".join(command)
    assert f"Usage: loadsheet {name}" in answered(*command, "--help").stdout
    for wrong in ("--zzzz", "--json=1"):
        refused(*command, wrong, words=f"`loadsheet {name} --help`")
    refused(command[0], words=f"`loadsheet {command[0]} --help`")
    assert refused(command[0]) == "error: missing command"


def test_nothing_found_is_an_answer() -> None:
    """A filter that nothing passes is no error."""
    assert "no GPU id contains 'zzz'" in answered("gpus", "zzz").stdout
    assert "no preset contains '\\x1b'" in answered("models", "\x1b").stdout
    assert json.loads(answered("gpus", "zzz", "--json").stdout) == {"gpus": []}

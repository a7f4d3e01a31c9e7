"""Predictions beside published measurements: the table, the mapping, the statistics, the accuracy itself."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal import answered, refused

from loadsheet.errors import BadFile, LoadsheetError
from loadsheet.memory.states import check_adapter
from loadsheet.score import Report, Row, read_truth, score
from loadsheet.score.cases import Case, counter_of
from loadsheet.score.frameworks import case_of
from loadsheet.score.names import gpu_of, preset_of
from loadsheet.score.report import PUBLISHED
from loadsheet.score.statistics import Pair, merged, metrics, quantile
from loadsheet.score.truth import MAX_CELL, NEEDED, Skip
from loadsheet.units import GIB

# --- tables ---------------------------------------------------------------------------------------------------

BASE = {
    "id": "1", "source_key": "s", "task": "lora", "model": "llama-2-7b", "framework": "LitGPT", "n_gpus": "1",
    "peak_mem_gib": "16", "mem_kind": "torch max_memory_allocated", "seq_len": "512", "micro_batch": "1",
    "precision": "bf16-true", "lora_rank": "8", "complete": "yes",
}  # fmt: skip


def table(tmp_path: Path, *rows: dict[str, str]) -> Path:
    """A CSV file with these rows, each of them `BASE` with some cells changed."""
    path = tmp_path / "truth.csv"
    full = [{**BASE, **row} for row in rows]
    names = list(dict.fromkeys(name for row in full for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(full)
    return path


def row(**cells: str) -> Row:
    """One row, `BASE` with some cells changed."""
    return Row(1, {**BASE, **cells})


def reason(**cells: str) -> str:
    """Why such a row is skipped."""
    with pytest.raises(Skip) as caught:
        case_of(row(**cells))
    return str(caught.value)


def test_the_table_is_read_as_it_stands(tmp_path: Path) -> None:
    """Cells by column, row numbers from 1, commas and line ends inside quotes."""
    path = table(tmp_path, {"notes": 'a, "b"\nc'}, {"id": "", "peak_mem_gib": " 7.5 "})
    first, second = read_truth(path)
    assert first.text("notes") == 'a, "b"\nc'
    assert (second.number, second.id, second.real("peak_mem_gib")) == (2, "row 2", 7.5)
    assert second.text("no such column") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no column `id`"),
        ("id,task\n1,lora\n", "no column `source_key`"),
        (",".join(NEEDED) + ",id\n", "column 'id' twice"),
        (",".join(NEEDED) + "\n1,2\n", "row 1: got 2 cells, expected 8"),
        (",".join(NEEDED) + '\n"1,2\n', "line 2: got"),
        (",".join(NEEDED) + "\n" + "x" * (MAX_CELL + 1) + ",1,1,1,1,1,1,1\n", "field larger than"),
        (",".join(NEEDED) + "," + ",".join(f"c{i}" for i in range(600)) + "\n", "608 columns"),
    ],
)
def test_what_is_no_such_table_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    """One line that names row or column."""
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadFile, match=expected):
        read_truth(path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00i\x00d", b"\x80abc", b"id\x00,task\n"])
def test_binary_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """Bytes that are no UTF-8, and NUL."""
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(BadFile):
        read_truth(path)


@pytest.mark.parametrize("name", ["", ".", "missing.csv", "a\0b"])
def test_paths_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    """Folders, missing files, impossible names."""
    with pytest.raises(LoadsheetError):
        read_truth(str(tmp_path / name) if name != "a\0b" else name)


cells = st.one_of(
    st.sampled_from(
        ["", "1", "0", "-1", "nan", "inf", "1e400", "2048", "1.5", "yes", "lora", "qlora", "full"]
    ),
    st.sampled_from(
        ["LitGPT", "torchtune", "transformers+peft", "unsloth", "llama-2-7b", "gemma-2b", "Falcon"]
    ),
    st.sampled_from(
        ["bf16-true", "bnb.nf4", "OOM on 24GB", "targets=['x']", "LoRA targets: lora_head", "1" * 300]
    ),
    st.text(max_size=20),
)
columns = st.sampled_from([
    *NEEDED, "seq_len", "micro_batch", "grad_accum", "precision", "quant", "lora_rank", "act_ckpt", "attn_impl",
    "optimizer", "notes", "gpu", "gpu_mem_gb", "n_layers", "d_model", "n_heads", "d_ff", "vocab", "dup_group",
    "trainable_params", "n_params", "compile", "offload", "complete", "path",
])  # fmt: skip


@given(st.lists(st.dictionaries(columns, cells, max_size=12), min_size=1, max_size=4))
def test_any_row_is_predicted_or_skipped(many: list[dict[str, str]]) -> None:
    """Whatever stands in the cells: a number with its range, or a reason; never another error."""
    from loadsheet.score.report import _score

    for number, changes in enumerate(many, 1):
        found = _score(Row(number, {**BASE, **changes}))
        if found.skipped is None:
            assert found.predicted is not None
            assert 0 < found.predicted.low <= found.predicted.mid <= found.predicted.high
        else:
            assert found.skipped
            assert "\n" not in found.skipped
        json.dumps(found.to_json(), allow_nan=False)


@given(st.binary(max_size=400))
def test_any_file_is_read_or_refused(content: bytes) -> None:
    """Bytes of any kind end in rows or in a LoadsheetError."""
    head = ",".join(NEEDED).encode() + b"\n"
    with tempfile.TemporaryDirectory() as folder:
        for text in (content, head + content):
            path = Path(folder) / "t.csv"
            path.write_bytes(text)
            with contextlib.suppress(LoadsheetError):
                assert isinstance(score(path), Report)


# --- names ----------------------------------------------------------------------------------------------------

NAMES = {
    "llama3.1-8b": "llama-3.1-8b", "Llama 2 7 B": "llama-2-7b", "Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-3.2-3B": "llama-3.2-3b", "meta-llama/Meta-Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "llama2-7b alpaca": "llama-2-7b", "llama-7b": "llama-1-7b", "codellama-34b slim orca": "code-llama-34b",
    "tiny-llama": "tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T": "tinyllama-1.1b",
    "mistral-7b": "mistral-7b-v0.1", "mistral-7b-v0.2": "mistral-7b-v0.2",
    "mistralai/Mistral-7B-v0.3": "mistral-7b-v0.3",
    "mistral-7b slim orca": "mistral-7b-v0.1", "Mixtral-8x7B-v0.1": "mixtral-8x7b", "phi-1.5": "phi-1.5",
    "microsoft/phi-1_5": "phi-1.5", "phi-2": "phi-2", "Phi-3-mini-4k-instruct": "phi-3-mini",
    "microsoft/Phi-3-medium-128k-instruct": "phi-3-medium", "gemma-2b": "gemma-2b", "google/gemma-7b-it": "gemma-7b",
    "gemma2-2b": "gemma-2-2b", "gemma-2-9b": "gemma-2-9b", "google/gemma-3-27b-it": "gemma-3-27b",
    "pythia-6.9b-deduped": "pythia-6.9b", "EleutherAI/pythia-1b": "pythia-1b", "qwen2.5-1.5b": "qwen2.5-1.5b",
    "Qwen/Qwen2-7B-Instruct": "qwen2-7b", "qwen3-30b-a3b": "qwen3-30b-a3b", "Qwen1.5-0.5B-Chat": "qwen1.5-0.5b",
    "stablelm-base-alpha-3b": "stablelm-base-alpha-3b", "falcon-7b": "falcon-7b", "tiiuae/falcon-40b": "falcon-40b",
    "gpt2": "gpt2", "openai-community/gpt2-xl": "gpt2-xl", "GPT-2 124M": "gpt2", "facebook/opt-1.3b": "opt-1.3b",
    "SmolLM2-1.7B": "smollm2-1.7b", "Llama-3.3-70B-Instruct": "llama-3.3-70b", "Yi-34B": "yi-34b",
    "my-model-7b": None, "Falcon": None, "StableLM Alpha": None, "llama": None, "llama-3.1-9b": None,
    "bigscience/T0_3B": None, "gpt-200B (BLOOM prequel)": None, "": None, "llama-2-7b-with-32-layers": None,
    "mistral-7b-moe": None,
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
def test_names_of_models(name: str, expected: str | None) -> None:
    """As people and the hub write them; what does not say family, version and size is not guessed."""
    assert preset_of(name) == expected


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("A100-SXM-40GB", 40, "a100-sxm-40gb"), ("A100-SXM-80GB", None, "a100-sxm-80gb"), ("A100", 80, "a100-sxm-80gb"),
        ("A10G", 24, "a10g"), ("L40S", None, "l40s"), ("RTX 4090", 24, "rtx-4090"), ("RTX A6000", 48, "rtx-a6000"),
        ("NVIDIA H100 80GB HBM3", None, "h100-sxm"), ("H100-PCIe", None, "h100-pcie"), ("T4", 15, "t4"),
        ("24GB GPU", 24, None), ("(any)", None, None), ("", None, None), ("A100", None, None),
    ],
)  # fmt: skip
def test_names_of_gpus(name: str, memory: float | None, expected: str | None) -> None:
    """Words in any order; the memory tells variants apart; no GPU is guessed."""
    found = gpu_of(name, memory)
    assert (found.id if found is not None else None) == expected


# --- the mapping ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "expected", "in_scope"),
    [
        ({"n_gpus": "8"}, "on 8 GPUs", False),
        ({"n_gpus": ""}, "number of GPUs is not stated", False),
        ({"task": "ia3"}, "ia3 is not supported", False),
        ({"task": "qlora", "lora_rank": "", "dup_group": "x|adapter|1"}, "adapter fine-tuning", False),
        ({"dup_group": "peft|lora--rank32-dora"}, "DoRA", False),
        ({"mem_kind": "MAX CONTEXT that fits 8GB (frontier)"}, "longest context", False),
        ({"peak_mem_gib": ""}, "no peak is stated", False),
        ({"model": "bigscience/T0_3B"}, "encoder-decoder", False),
        ({"model": "my-own"}, "not known", True),
        ({"seq_len": ""}, "seq_len is not stated", True),
        ({"micro_batch": "two"}, "row 1, micro_batch: got 'two'", True),
        ({"micro_batch": "1.5"}, "row 1, micro_batch: got '1.5'", True),
        ({"framework": "mlx"}, "framework mlx is not known", True),
        ({"precision": "fp4"}, "precision 'fp4' is not known", True),
        ({"lora_rank": ""}, "lora_rank is not stated", True),
        ({"mem_kind": "somehow"}, "which counter", True),
        ({"framework": "PEFT", "optimizer": "Shampoo"}, "optimizer 'shampoo'", True),
        ({"framework": "PEFT", "notes": "targets=['c_attn']"}, "no such modules", True),
    ],
)
def test_rows_that_are_skipped(cells: dict[str, str], expected: str, in_scope: bool) -> None:
    """Each with its reason, and whether it counts against coverage."""
    with pytest.raises(Skip) as caught:
        case_of(row(**cells))
    assert expected in str(caught.value)
    assert caught.value.in_scope == in_scope


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("torch max_memory_allocated", "allocated"), ("peak memory active/allocated (torchtune log)", "allocated"),
        ("torch max reserved (accelerator_memory_max)", "reserved"), ("peak reserved, training", "reserved"),
        ("nvidia-smi used", "device"), ("OOM on 24GB", "out of memory"),
    ],
)  # fmt: skip
def test_counters(kind: str, expected: str) -> None:
    """Allocated, reserved and what the device holds are three figures: like is compared with like."""
    assert counter_of(row(mem_kind=kind)) == expected


@pytest.fixture(scope="module")
def published() -> list[Row]:
    """The rows that come with the package."""
    return read_truth(PUBLISHED)


def litgpt(rows: list[Row]) -> Iterator[tuple[Row, Case]]:
    """Rows of LitGPT's tables that have adapters, and their cases."""
    for found in rows:
        if found.source == "litgpt_resource" and found.text("lora_rank") and found.text("n_gpus") == "1":
            yield found, case_of(found)


def test_adapters_have_the_parameters_that_litgpt_prints(published: list[Row]) -> None:
    """LoRA on q and v of Phi, StableLM, Llama and Falcon: "trainable parameters" of its resource tables."""
    found = {r.text("model"): (int(r.text("trainable_params")), c) for r, c in litgpt(published)}
    assert len(found) == 5
    assert {name: check_adapter(c.model, c.recipe) for name, (_, c) in found.items()} == {
        name: trained for name, (trained, _) in found.items()
    }


def test_litgpt_ties_nothing_and_packs_the_head() -> None:
    """Its Gemma has a head of its own: 256,000 · 2,048 parameters more; 4-bit layers include it."""
    case = case_of(row(model="gemma-2b", task="qlora", quant="bnb.nf4"))
    assert (case.model.tied, case.model.params) == (False, 2_506_172_416 + 256_000 * 2048)
    e = case.recipe.execution
    assert (e.quantised_head, e.fused_qkv, e.wide_logits, e.quantised_inputs_held) == (True, True, True, 2)
    assert not case.recipe.upcast


def test_the_folder_tells_gemma_2_from_gemma() -> None:
    """The hub's table prints `gemma-2b` for configs of both."""
    names = [
        case_of(row(model="gemma-2b", dup_group=f"litgpthub|{folder}/lora.yaml")).model.name
        for folder in ("gemma-2b", "gemma2-2b", "gemma2b")
    ]
    assert names == ["gemma-2b", "gemma-2-2b", "gemma-2-2b"]


def test_peft_rows_have_fp32_adapters_and_a_mask() -> None:
    """bf16 weights without autocast; batches of several lengths are padded."""
    case = case_of(
        row(
            framework="transformers+peft",
            precision="bfloat16",
            notes="targets=['q_proj', 'v_proj']; variable length",
        )
    )
    r = case.recipe
    assert (r.adapters, r.precision, r.execution.masked) == ("fp32", "pure-bf16", True)
    assert r.targets == {"q_proj", "v_proj"}
    assert case.shorter < 1


def test_a_model_from_its_sizes() -> None:
    """A name that tells the family but no preset: built from the columns, tied as its total says."""
    sizes = {
        "n_layers": "4",
        "d_model": "256",
        "n_heads": "8",
        "n_kv_heads": "2",
        "d_ff": "704",
        "vocab": "1000",
    }
    plain = 2 * 256 * 1000 + 4 * (256 * 256 * 2 + 256 * 64 * 2 + 3 * 256 * 704 + 2 * 256) + 256
    for total, tied in ((plain, False), (plain - 256_000, True)):
        case = case_of(row(framework="PyTorch", model="small llama", n_params=str(total), **sizes))
        assert (case.model.params, case.model.tied) == (total, tied)
    assert "not known" in reason(framework="PyTorch", model="somebody's", **sizes)


def test_a_row_that_cannot_be_counts_too(tmp_path: Path) -> None:
    """A peak below the recipe's own states (8 bytes of 1.5 billion parameters) is our error, not left out."""
    path = table(tmp_path, {"task": "full", "model": "llama-3.2-1b", "peak_mem_gib": "8"})
    (row,) = score(path).rows
    assert row.skipped is None


# --- statistics -----------------------------------------------------------------------------------------------


def pair(source: str, measured: float, mid: float, group: str = "", spread: float = 0.1) -> Pair:
    """A pair whose range is the middle and as much below as above."""
    return Pair(source, group or f"{measured}-{mid}", measured, mid * (1 - spread), mid, mid * (1 + spread))


def test_sources_weigh_the_same() -> None:
    """By hand: one source of four rows at 0 %, one of one row at +20 %: the median is half-way, +10 %."""
    pairs = [*(pair("a", 10 + i, 10 + i) for i in range(4)), pair("b", 10, 12)]
    m = metrics(pairs, 5, 10)
    assert (m.n, m.coverage) == (5, 0.5)
    assert pytest.approx((0.1, 0.2, 0.1)) == (m.median_abs_error, m.p90_abs_error, m.bias)
    assert pytest.approx((0.0, 0.5, 0.2)) == (m.too_low_share, m.inside_share, m.median_width)


def test_shares() -> None:
    """By hand: -10 %, -4 %, +4 % and +30 % in one source, ranges of ±5 %."""
    pairs = [pair("a", 100, mid, spread=0.05) for mid in (90, 96, 104, 130)]
    m = metrics(pairs)
    assert (m.too_low_share, m.inside_share) == (0.25, 0.5)
    assert pytest.approx((0.07, 0.3, 0.0)) == (m.median_abs_error, m.p90_abs_error, m.bias)


def test_the_median_of_a_group_counts_once() -> None:
    """By hand: three repeats of one configuration, and one other."""
    repeats = [pair("a", measured, 11, group="g") for measured in (9, 10, 20)]
    found = merged([*repeats, pair("a", 5, 5), pair("b", 10, 11, group="g")])
    assert [(p.source, p.measured, p.mid) for p in found] == [("a", 10, 11), ("a", 5, 5), ("b", 10, 11)]


def test_the_trivial_predictor() -> None:
    """By hand: the source's median of 5, 10, 20 is 10: errors of 100 %, 0 and 50 %."""
    m = metrics([pair("a", value, value) for value in (5, 10, 20)])
    assert pytest.approx((0.5, 1.0)) == (m.trivial_median_abs_error, m.trivial_p90_abs_error)


def test_no_rows() -> None:
    """Nothing to say is null, never a division by zero."""
    m = metrics([], 0, 0)
    assert (m.n, m.coverage, m.median_abs_error) == (0, None, None)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.sampled_from([0.1, 0.5, 0.9]))
def test_quantiles_with_equal_weights(values: list[float], share: float) -> None:
    """NumPy's averaged inverted distribution."""
    expected = np.quantile(values, share, method="averaged_inverted_cdf")
    assert pytest.approx(expected) == quantile(values, [1.0] * len(values), share)


# --- the accuracy -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> Report:
    """The score of the published rows."""
    return score(PUBLISHED)


#: source -> rows, median and 90th percentile of |relative error| that the documents state (rounded up)
REACHED = {
    "litgpt_resource": (11, 0.003, 0.004), "litgpt_config_hub": (20, 0.004, 0.02),
    "peft_metamathqa": (5, 0.04, 0.05), "vramcalc_a6000": (13, 0.001, 0.008), "torchtune_flags": (9, 0.011, 0.085),
}  # fmt: skip


@pytest.mark.parametrize("source", REACHED)
def test_published_peaks(report: Report, source: str) -> None:
    """Peak memory of published runs on one GPU, each source by itself, better than its own median."""
    m = report.sources[source]
    n, middle, high = REACHED[source]
    assert (m.n, m.coverage) == (n, 1.0)
    assert m.median_abs_error is not None
    assert m.p90_abs_error is not None
    assert m.trivial_p90_abs_error is not None
    assert m.median_abs_error <= middle
    assert m.p90_abs_error <= high < m.trivial_p90_abs_error


def test_over_all_sources(report: Report) -> None:
    """Within the targets that were set: 5 % and 12 %, 85 % inside a range of 15 %, everything covered."""
    m = report.overall
    assert (m.n, m.coverage) == (58, 1.0)
    assert set(report.sources) == set(REACHED)
    assert m.median_abs_error is not None
    assert m.p90_abs_error is not None
    assert m.inside_share is not None
    assert m.median_width is not None
    assert m.median_abs_error <= 0.005
    assert m.p90_abs_error <= 0.045
    assert m.inside_share >= 0.95
    assert m.median_width <= 0.08


def test_runs_without_room(report: Report) -> None:
    """Llama 2 13B with two sequences on 40 GB, Gemma 2 9B and full Llama 3.1 8B on 24 GB: none fits."""
    assert report.verdicts == {"does_not_fit": 3, "tight": 0, "fits": 0}


def test_other_adapters_are_counted_apart(report: Report) -> None:
    """They are skipped with their name and do not lower the coverage."""
    assert report.skipped["ia3 is not supported"] == 2
    assert all(not s.in_scope for s in report.rows if s.skipped is not None and s.row.complete)


# --- the command ------------------------------------------------------------------------------------------------


def test_json_of_the_design() -> None:
    """`score --json`: metrics, sources, rows; errors are relative, amounts bytes."""
    data: dict[str, Any] = json.loads(answered("score", "--json").stdout)
    keys = {"n", "coverage", "median_abs_error", "p90_abs_error", "bias", "too_low_share", "inside_share"}
    assert set(data) >= {"metrics", "sources", "rows"}
    assert keys <= set(data["metrics"]["peak_memory"])
    assert all(keys <= set(m["peak_memory"]) for m in data["sources"].values())
    for found in data["rows"]:
        assert {"id", "source", "metric", "measured", "low", "mid", "high", "skipped"} <= set(found)
        assert found["metric"] == "peak_memory"
        assert (found["skipped"] is None) == (found["mid"] is not None)
    first = next(r for r in data["rows"] if r["id"] == "M0174")
    assert first["measured"] == 4.489 * GIB


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    """--truth reads any file with the columns; an impossible row is skipped and named."""
    path = table(tmp_path, {"dup_group": "a"}, {"micro_batch": "many"})
    page = answered("score", "--truth", str(path), "--rows").stdout
    assert "row 2, micro_batch: got 'many', expected a number" in page
    assert "50 %" in page  # one of two rows is covered


def test_a_table_without_rows(tmp_path: Path) -> None:
    """A header alone is an answer, if a short one; the exit status says that nothing was scored."""
    path = tmp_path / "t.csv"
    path.write_text(",".join(NEEDED) + "\n", encoding="utf-8")
    stream = io.StringIO(answered("score", "--truth", str(path), code=1).stdout)
    assert "all sources" in stream.getvalue()


def test_no_table(tmp_path: Path) -> None:
    """Exit status 2 and one line."""
    assert "missing.csv" in refused("score", "--truth", str(tmp_path / "missing.csv"), words="no such file")

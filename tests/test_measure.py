"""Measuring the real thing: kept tensors, fits, verify, scripts and machines."""

from __future__ import annotations

import gc
import io
import itertools
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from terminal import refused, run

import loadsheet as ls
from loadsheet.cli import main
from loadsheet.cli.progress import Progress
from loadsheet.compute.flops import step_flops
from loadsheet.lab.models import GPT, GPTSizes
from loadsheet.measure import machine as machine_module
from loadsheet.measure.kept import KeptTensors
from loadsheet.measure.module import fit
from loadsheet.measure.script import Watched, read_line, watch
from loadsheet.measure.small import shrink
from loadsheet.measure.step import flops, kept_bytes, loss_of, tracked_peak
from loadsheet.measure.trace import trace
from loadsheet.measure.verify import (
    TORCH_NAMES,
    compare_small,
    execution_of,
    kept_of,
    real_model,
    tape_of,
    verify,
)

MPT = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 100, "max_seq_len": 256}


def _gpt(layers: int = 4, length: int = 64) -> GPT:
    return GPT(GPTSizes(width=256, heads=8, layers=layers, vocab=1000, positions=length))


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 1000, (batch, length), generator=torch.Generator().manual_seed(0))


def test_kept_bytes_of_a_linear_layer() -> None:
    """A linear layer keeps its input (8 × 16 fp32 numbers), and its weight is no activation."""
    layer = torch.nn.Linear(16, 4)
    x = torch.randn(8, 16)
    with KeptTensors(layer) as kept:
        out = layer(x)
    assert out.requires_grad
    assert kept.total == 8 * 16 * 4
    assert kept.by_module == {"": 8 * 16 * 4}


def test_views_count_once() -> None:
    """Two views of one storage that are both kept are one piece of memory."""

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(4, 8).sin() @ x.view(8, 4)  # sin keeps a view of x, the product another

    module = Twice()
    x = torch.randn(32, requires_grad=True)
    with KeptTensors(module) as kept:
        out = module(x)
    assert out.requires_grad
    assert kept.total == 32 * 4 + 32 * 4  # x, and sin(x) for the product


def test_what_a_dropped_graph_kept_is_not_kept() -> None:
    """Scores of which only the order is used: their graph is gone at the end, and x is kept by one layer."""

    class Chooses(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores, self.out = torch.nn.Linear(16, 100), torch.nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            best = self.scores(x).softmax(-1).topk(2).indices  # softmax keeps 8 × 100 numbers for a while
            return self.out(x) * (best[:, :1] > 0)

    module = Chooses()
    with KeptTensors(module) as kept:
        out = module(torch.randn(8, 16))
    assert out.requires_grad
    assert kept.total == 8 * 16 * 4 + 8 * 1  # x, and the boolean factor


def test_hooks_leak_nothing() -> None:
    """After backward and the end of the block, nothing keeps the kept tensors alive."""
    layer = torch.nn.Linear(16, 4)
    x = torch.randn(8, 16, requires_grad=True)
    with KeptTensors(layer):
        inner = x * 1.0
        kept = weakref.ref(inner)
        layer(inner).sum().backward()
    del inner
    gc.collect()
    assert kept() is None


def test_kept_bytes_by_submodule_add_up() -> None:
    """Every kept byte belongs to one submodule."""
    module = _gpt()
    kept = kept_bytes(module, {"": _ids(4, 64)})
    assert sum(kept.by_module.values()) == kept.total == sum(t[3] for t in kept.tensors)


@given(st.floats(0, 1e9), st.floats(0, 1e2), st.floats(1, 1e6), st.floats(0.1, 1e3))
def test_fit_finds_a_polynomial_again(a: float, m: float, b: float, c: float) -> None:
    """a + m·T² + B·(b·T + c·T²) at five sizes gives the coefficients back, and no error on the sixth."""
    sizes = [(1, 64), (2, 64), (1, 128), (2, 128), (1, 192), (2, 256)]
    found = fit({(n, t): a + m * t * t + n * (b * t + c * t * t) for n, t in sizes})
    assert found(8, 1024) == pytest.approx(a + m * 1024**2 + 8 * (b * 1024 + c * 1024**2), rel=1e-6)
    assert found.error < 1e-9


def test_measure_a_module() -> None:
    """The lecture's tiny GPT: FLOPs per token 6·N + 12·L·T·d, growth in T² from the score matrices."""

    def build(layers: int = 2) -> GPT:
        return GPT(GPTSizes(width=64, heads=4, layers=layers, vocab=100, positions=512))

    found = ls.measure(build, batch=4, seq=256)
    matmul = 2 * 12 * 64**2 + 64 * 100
    assert found.at["flops"] == pytest.approx((6 * matmul + 12 * 2 * 256 * 64) * 4 * 256, rel=1e-9)
    assert found.depth is not None
    assert found.depth["params_per_layer"] == 12 * 64**2 + 13 * 64  # four matrices, their biases, two norms
    assert found.fits["kept_bytes"].error < 1e-4
    assert found.fits["kept_bytes"].dominant(4, 4096) == "quadratic in T"


def test_measure_needs_a_module() -> None:
    """What is no module is an error, and one without an embedding needs inputs."""
    with pytest.raises(ls.BadInput, match=r"expected a torch\.nn\.Module"):
        ls.measure(lambda: 3)
    with pytest.raises(ls.LoadsheetError, match="without an embedding"):
        ls.measure(torch.nn.Linear(2, 2))


def test_loss_of_logits_is_the_cross_entropy() -> None:
    """Logits of shape (B, T, V) are scored against the ids that went in: log V for equal logits."""
    ids = _ids(2, 8)
    assert loss_of(torch.zeros(2, 8, 1000), {"x": ids}).item() == pytest.approx(6.907755, abs=1e-5)


def test_flops_count_forward_and_backward() -> None:
    """A linear layer without a need for the input's gradient: 2·MAC forward, 2·MAC backward."""
    layer = torch.nn.Sequential(torch.nn.Embedding(10, 16), torch.nn.Linear(16, 10, bias=False))
    ahead, back, _ = flops(layer, {"": torch.zeros(1, 4, dtype=torch.int64)})
    assert ahead == 2 * 4 * 16 * 10
    assert back == 2 * ahead  # the embedding needs the input's gradient


def test_tracked_peak_holds_states() -> None:
    """Weights, gradients and both moments of AdamW, 16 bytes per parameter, are in the tracker's peak."""
    layer = torch.nn.Sequential(torch.nn.Embedding(10, 64), torch.nn.Linear(64, 10))
    n = sum(p.numel() for p in layer.parameters())
    peak, parts = tracked_peak(layer, {"": torch.zeros(1, 4, dtype=torch.int64)})
    assert parts["opt"] >= 8 * n
    assert peak >= 16 * n


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt2"])
def test_verify(name: str) -> None:
    """Parameters and FLOPs equal, kept bytes within 2 %, peak within 5 %: transformers is the judge."""
    lines = verify(ls.model(name), quick=True)
    assert [line.what for line in lines if line.ok is False] == []
    judged = {line.what.split(",")[0] for line in lines if line.ok}
    assert {"forward FLOPs", "backward FLOPs", "kept bytes", "peak of a training step", "cache"} <= judged


def _small(model_type: str, layers: int = 2) -> dict[str, Any]:
    """The default configuration of a model type, cut to a few narrow layers."""
    config = transformers.AutoConfig.for_model(model_type).to_dict()
    left_out = ("dtype", "torch_dtype", "transformers_version", "pad_token_id")
    plain = {k: v for k, v in config.items() if k not in left_out}
    return shrink({**plain, "model_type": model_type}, layers)


@pytest.mark.parametrize("model_type", ["deepseek_v32", "glm_moe_dsa", "axk2", "hy_v4", "hrm_text", "beam"])
def test_flops_where_autograd_is_off(model_type: str) -> None:
    """Indexers and passes without gradients have no backward: FlopCounterMode is the judge, attention in full."""
    config = _small(model_type)
    ids = {"input_ids": _ids(2, 128), "labels": _ids(2, 128)}
    real = real_model(config, device="cpu", attention="eager", experts="eager")
    real.config.use_cache = False
    ahead, back, _ = flops(real, ids)
    counted = step_flops(tape_of(ls.model(config), execution_of("eager"), "fp32", 2, 128), 256, "none")
    assert (counted.forward_full, counted.full - counted.forward_full) == (ahead, back)


def _kept(model_type: str, attention: str, dtype: str) -> tuple[float, int]:
    """Bytes that two layers keep for backward: ours, and what the hooks of PyTorch count."""
    config = _small(model_type)
    real = real_model(config, device="cpu", attention=attention, dtype=TORCH_NAMES[dtype]).train()
    real.config.use_cache = False
    model, ids = ls.model(config), _ids(2, 256)
    theirs = kept_bytes(real, {"input_ids": ids, "labels": ids}).total
    return kept_of(model, tape_of(model, execution_of(attention), dtype, 2, 256)), theirs


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("model_type", "attention"),
    [
        ("minicpm3", "eager"), ("minicpm3", "sdpa"),  # latent attention: on the CPU without a kernel of its own
        ("deepseek_v3", "sdpa"), ("deepseek_v32", "eager"), ("axk2", "eager"),
        ("granitemoe_swa", "eager"),  # the scores once more, for the sinks
        ("beam", "eager"), ("beam", "sdpa"),  # norms, activations and the tanh of the logits in fp32
    ],
)  # fmt: skip
def test_kept_bytes_of_the_walk(model_type: str, attention: str, dtype: str) -> None:
    """Two layers of the default configuration, made small: within 2 % of what transformers' modules keep."""
    ours, theirs = _kept(model_type, attention, dtype)
    assert ours == pytest.approx(theirs, rel=0.02)


@pytest.mark.parametrize(
    ("model_type", "batch"),  # where the indexer needs the most
    [
        ("deepseek_v32", 1), ("deepseek_v32", 2), ("glm_moe_dsa", 2), ("axk2", 2), ("hy_v4", 2),
    ],
)  # fmt: skip
def test_forward_of_an_indexer(model_type: str, batch: int) -> None:
    """The scores of every head, in fp32, and the keys copied to every query: what forward has at once, at most.

    The CPU allocator's own reports (the profiler) are the judge; with several sequences torch.matmul spreads
    the keys, with one it does not.
    """
    config = _small(model_type)
    real = real_model(config, device="cpu", attention="eager").train()
    real.config.use_cache = False
    ids = _ids(batch, 256)
    real(input_ids=ids, labels=ids)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, profile_memory=True) as watched:
        loss = real(input_ids=ids, labels=ids).loss
    assert loss.requires_grad
    events = sorted(watched.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    sizes = [e.nbytes() for e in events if e.name() == "[memory]"]
    model = ls.model(config)
    taped = tape_of(model, execution_of("eager"), "fp32", batch, 256)
    ours, before = 0, taped.before.saved + sum(t.bytes for t in taped.tables)
    for summary, count in taped.runs:
        ours = max(ours, before + summary.saved * (count - 1) + summary.forward_peak)
        before += summary.saved * count
    ours = max(ours, before + taped.after.forward_peak)
    assert ours == pytest.approx(max(itertools.accumulate(sizes)), rel=0.05)


def test_shrink_keeps_sizes_that_have_two_names() -> None:
    """DeepSeek-V3's rotary part is its `head_dim`, too; LongCat's `qk_head_dim` is the sum of both parts."""
    assert shrink({"n_routed_experts": 256})["n_group"] == 1  # else a class would make 8 groups of 4 experts
    small = _small("deepseek_v3")
    assert small["head_dim"] == small["qk_rope_head_dim"] == 8
    small = _small("longcat_flash")
    assert small["qk_head_dim"] == small["qk_nope_head_dim"] + small["qk_rope_head_dim"] == 24


def test_verify_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that is off by one parameter is found and named."""
    model = ls.model({**(ls.model("gpt2").config or {}), "n_layer": 2})
    real = ls.model({**(ls.model("gpt2").config or {}), "n_layer": 2, "n_inner": 3073})
    model.config = real.config
    lines = verify(model, small=False)
    assert [line.what for line in lines if line.ok is False]


def test_verify_that_could_not_look_is_not_ok(tmp_path: Path) -> None:
    """A loop of layers that no small model can be cut from: parameters are equal, and the answer is not 0."""
    config = tmp_path / "config.json"
    layers = {"n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1, "num_hidden_layers": 3}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 100, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config.write_text(json.dumps({"model_type": "dory", **layers, **sizes, **heads}))
    page = CliRunner().invoke(main, ["verify", str(config), "--quick"])
    assert page.exit_code == 2
    assert "8 of 8 within their limits" in page.stdout
    assert "NOT LOOKED AT: FLOPs, kept bytes, peak and cache, eager fp32, L = 1;" in page.stdout
    data = CliRunner().invoke(main, ["verify", str(config), "--quick", "--json"])
    assert data.exit_code == 2
    assert json.loads(data.stdout)["ok"] is None
    assert len(json.loads(data.stdout)["not_looked_at"]) == 2
    counts = CliRunner().invoke(main, ["verify", str(config), "--counts", "--json"])
    assert counts.exit_code == 0
    assert json.loads(counts.stdout)["ok"] is True


def test_verify_what_does_not_exist_is_not_missing() -> None:
    """MPT is written with its own attention only: transformers has no SDPA of it, and the rest is judged."""
    lines = list(compare_small(ls.model({**MPT, "model_type": "mpt"}), quick=True))
    assert [line.what for line in lines if line.absent] == [
        "FLOPs, kept bytes, peak and cache, sdpa bf16, L = 1"
    ]
    assert not [line for line in lines if line.unseen or line.ok is False]


def test_shrink_brings_the_special_tokens_into_the_vocabulary() -> None:
    """Phi-3's padding is token 32,000: a row that a small embedding must have (`padding_idx`)."""
    config = {**(ls.model("phi-3-mini").config or {}), "pad_token_id": 32000, "eos_token_id": [32000, 7]}
    small = shrink(config)
    assert small["pad_token_id"] == 999
    assert small["eos_token_id"] == [999, 7]
    assert real_model(small).model.embed_tokens.padding_idx == 999


def test_shrink_keeps_the_structure() -> None:
    """Fewer and narrower, but the same switches, both kinds of layers and the ratio of the heads."""
    small = shrink(ls.model("gemma-2-2b").config or {})
    assert small["layer_types"] == ["sliding_attention", "full_attention"]
    assert small["num_attention_heads"] == 2 * small["num_key_value_heads"]
    assert ls.model(small).params < 2_000_000


@pytest.mark.parametrize(
    ("line", "step", "rate"),
    [
        ("step 12 loss 3.2 tok/s 1,234.5", 12, 1234.5),
        ("iter 100: loss 2.31, time 40.1ms", 100, None),
        ('{"step": 7, "loss": 1.5, "tokens_per_second": 900}', 7, 900.0),
        ("Step: 3 | 512 tok/s", 3, 512.0),
        ("loading checkpoint shards", None, None),
        ("tok/s 12.3k", None, 12300.0),
        ("tok/s: 1.2e5", None, 120000.0),
        ("tok/s 1.5e+04", None, 15000.0),
        ("12 345 tokens/s", None, 12345.0),
        ("1.2M tokens/s", None, 1.2e6),
        ("12.3 ktok/s", None, 12300.0),
        ("Steps: 3/100 tok/s/gpu 4100", 3, 4100.0),
        ("step 12 345 tok/s", 12, 345.0),
        ("step 1,234 | tokens/sec/device: 8,765.43", 1234, 8765.43),
        ("speed 512 tok/s, 0.3 s/step", None, 512.0),
        ("step 3 \x1b[36mtps: \x1b[32m7,281\x1b[39m", 3, 7281.0),
        ("rank 3 512 tok/s", None, None),  # 512 of rank 3, or 3 512
        ("tok/s 1.234,5", None, None),
        ("1e999 tok/s", None, None),
        ("step 1.2k loss 3", None, None),
    ],
)
def test_read_line(line: str, step: int | None, rate: float | None) -> None:
    """The ways in which training loops print a step and a rate."""
    assert read_line(line) == (step, rate)


@given(st.text())
def test_read_line_reads_anything(line: str) -> None:
    """No line of output is an error."""
    read_line(line)


def test_watch(capfd: pytest.CaptureFixture[str]) -> None:
    """Steps are timed from outside, the output is passed on, the exit status is the command's."""
    loop = "for i in range(8): print('step', i, 'loss 1', flush=True); time.sleep(0.05)"
    code = f"import time\n{loop}\nraise SystemExit(3)"
    found = watch([sys.executable, "-c", code])
    assert found.exit_code == 3
    assert len(found.steps) == 8
    assert found.seconds >= 8 * 0.05
    assert [step for step, _ in found.steps] == list(range(8))
    assert sorted(times := [seconds for _, seconds in found.steps]) == times
    assert 0 < times[-1] <= found.seconds
    assert "step 7" in capfd.readouterr().err


def test_step_seconds() -> None:
    """The median over what was printed after the first steps, per step where some are not printed."""
    found = Watched(0, 99.0, [(0, 0.0), (1, 30.0), (2, 50.0), (3, 51.0), (5, 57.0), (6, 59.0)])
    assert found.step_seconds() == 2.0  # of 1, 3 and 2
    assert found.tokens_per_second(100) == (50.0, "step times of the log")


def test_measure_script_json() -> None:
    """Tokens/s from the tokens of a step; what cannot be known is null with its reason."""
    code = "import time\nfor i in range(6): print('step', i, flush=True); time.sleep(0.02)"
    page = run("measure", "script", "--tokens-per-step", "100", "--json", "--", sys.executable, "-c", code)
    assert page.exit_code == 0
    assert page.stderr.splitlines() == [f"step {i}" for i in range(6)]  # the command's own output
    data = json.loads(page.stdout)
    assert data["steps"] == 6
    assert data["tokens_per_second"] > 0
    assert data["mfu"] is None
    assert data["idle_share"] is None
    assert data["idle_unknown"]


def test_a_killed_script_has_a_shells_status() -> None:
    """SIGKILL is 128 + 9, as `bash -c` says it."""
    found = watch([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert found.exit_code == 137


def _mfu(rate: str, *options: str) -> tuple[dict[str, Any], str]:
    """What JSON and page say of a loop that prints a rate, for GPT-2 on an H100."""
    asked = ("measure", "script", "--model", "gpt2", "--gpu", "h100-sxm", *options)
    loop = ("--", sys.executable, "-c", f"print('tok/s {rate}')")
    return json.loads(run(*asked, "--json", *loop).stdout), run(*asked, *loop).stdout


def test_an_mfu_beyond_the_peak_is_said_to_be_impossible() -> None:
    """A token of GPT-2 takes more than 6 · 124 M FLOP: 10 M of them are 7.4e15 a second, an H100 makes 0.99e15."""
    data, page = _mfu("10M")
    assert data["mfu"] > 7
    assert "no machine does more than its peak" in data["mfu_impossible"]
    assert data["mfu_impossible"] in page
    data, page = _mfu("100k")
    assert 0.07 < data["mfu"] < 0.1
    assert data["mfu_impossible"] is None
    assert "cannot be" not in page


def test_the_length_behind_an_mfu_is_shown() -> None:
    """GPT-2 has 1,024 positions: no more are taken where nobody says, and that is said."""
    data, page = _mfu("100k")
    assert (data["seq"], data["defaulted"]) == (1024, ["seq"])
    assert "sequences of 1,024* (defaulted; --seq) tokens" in page
    data, page = _mfu("100k", "--seq", "512")
    assert (data["seq"], data["defaulted"]) == (512, [])
    assert "sequences of 512 tokens" in page


def test_measure_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are positive, of every dtype that the device has, and compared with a data sheet if one is named."""
    monkeypatch.setattr(machine_module, "ENOUGH", 0.001)
    monkeypatch.setattr(machine_module, "SIZES", {"cpu": (64,), "cuda": (64,)})
    monkeypatch.setattr(machine_module.torch.cuda, "is_available", lambda: False)
    name, rates = machine_module.measure_machine(ls.gpu("h100-sxm"))
    assert name.startswith("CPU")
    assert {r.dtype for r in rates} == {"fp32", "bf16", "bytes"}
    assert all(r.per_second > 0 and r.share is not None and r.share < 1 for r in rates)


def test_measure_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong target, a module that fails and half an MFU are one line each."""
    refused("measure", "model", "nowhere", words="expected `package.module:function`")
    refused("measure", "model", "no_such_package:build", words="cannot import")
    refused("measure", "model", "json:build", words="has no")
    refused("measure", "script", words="got no command")
    refused("measure", "script", "--gpu", "t4", "--", "true", words="expected both")
    refused("measure", "machine", "--gpu", "h100", words="unknown GPU")


@pytest.mark.parametrize(
    ("args", "part", "said"),
    [
        (("verify", "gpt2"), "verify.verify", "comparing gpt2 with PyTorch"),
        (("measure", "machine"), "machine.measure_machine", "measuring the rates of this machine"),
        (("measure", "model", "json:loads"), "module.measure", "measuring json:loads"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_something_long_is_said_on_a_pipe(
    monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], part: str, said: str
) -> None:
    """Where no terminal shows the progress one line says what begins, before it does."""

    def measured(*_: object, **__: object) -> None:
        raise ls.LoadsheetError(f"after {sys.stderr.getvalue()!r}")  # type: ignore[attr-defined]

    stream = io.StringIO()
    monkeypatch.setattr(f"loadsheet.measure.{part}", measured)
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    first, error, *_ = stream.getvalue().splitlines()
    assert (ended.value.code, first) == (2, f"loadsheet: {said} …")
    assert error == f"error: after {(first + chr(10))!r}"


def test_something_long_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the line comes after a second, and goes again."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    Progress("measuring").close()
    assert stream.getvalue() == ""
    monkeypatch.setenv("TERM", "dumb")
    Progress("measuring").close()
    assert stream.getvalue() == "loadsheet: measuring …\n"


def test_trace_counts_what_is_not_described(tmp_path: Path) -> None:
    """BERT as a decoder, which no family describes: 109,514,298 parameters as transformers builds it."""
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "bert", "is_decoder": true}')
    refused("params", str(config), words="not supported")
    assert trace(str(config))["total"] == 109_514_298
    assert trace("gpt2")["total"] == 124_439_808
    refused("params", "gpt2", "--run-its-code", words="without --trace")


def test_trace_runs_no_code_unasked(tmp_path: Path) -> None:
    """A config that names Python files of its own is refused: they are not run."""
    mark = tmp_path / "ran"
    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}'
    )
    (tmp_path / "mine.py").write_text(f"open({str(mark)!r}, 'w')")
    with pytest.raises(ls.LoadsheetError, match="cannot build 'mine'"):
        trace(str(tmp_path))
    assert not mark.exists()


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch or transformers the way to get them is named."""
    blocked: dict[str, Any] = {"torch": None}
    for name, value in blocked.items():
        monkeypatch.setitem(sys.modules, name, value)
    with pytest.raises(ls.LoadsheetError, match="torch is not installed"):
        ls.measure(object())

"""config.json → Model: exact to the last parameter, and no wrong number from a wrong config."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadsheet as ls
from loadsheet.arch.families import FAMILIES, build, contradicted
from loadsheet.arch.model import Model
from loadsheet.arch.ops import Ops
from loadsheet.arch.work import Execution, Work
from loadsheet.errors import BadConfig, LoadsheetError, UnsupportedArchitecture

DATA = Path(__file__).parent / "data"


def load(name: str) -> Any:
    """A gzipped data file of the tests; how it was made stands in tools/make_random_configs.py."""
    return json.loads(gzip.decompress((DATA / name).read_bytes()))


SHAPES = load("shapes.json.gz")["models"]
RANDOM = load("random_configs.json.gz")
CONFIGS: dict[str, list[dict[str, Any]]] = RANDOM["configs"]


def digest(model: Model) -> str:
    """SHA-256 over the sorted lines "name d0xd1", as the recording made it."""
    lines = sorted(f"{p.name} {'x'.join(map(str, p.shape))}" for p in model.parameters())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def windows(model: Model) -> list[int | None]:
    """How many tokens back each layer looks, None without limit."""
    order = model.order or tuple(i for i, (_, count) in enumerate(model.runs) for _ in range(count))
    mixers = [model.runs[i][0].mixer for i in order]
    return [getattr(m, "window", None) or getattr(m, "chunk", None) for m in mixers]


def facts(config: dict[str, Any]) -> dict[str, Any]:
    """What the recording holds of a model, from our own count."""
    model = build(config)
    return {"total": model.params, "tied": model.tied, "digest": digest(model), "windows": windows(model)}


def attempt(config: dict[str, Any]) -> Model | LoadsheetError:
    """The model, or our own error about its config."""
    try:
        return build(config)
    except LoadsheetError as error:
        return error


# -- exact ---------------------------------------------------------------------------------------------


def test_every_family_is_recorded() -> None:
    """The recordings of this file and of the groups' files cover the registry."""
    assert sorted(SHAPES) == sorted(CONFIGS)
    groups = {kind for path in DATA.glob("arch_*.json.gz") for kind in load(path.name)["models"]}
    assert set(FAMILIES) <= set(SHAPES) | groups


@pytest.mark.parametrize("variant", ["default", "depth3"])
@pytest.mark.parametrize("model_type", sorted(SHAPES))
def test_names_and_shapes(model_type: str, variant: str) -> None:
    """Names, shapes, total and tie equal transformers 5.24.0; the split and the sizes add up to it."""
    expected = SHAPES[model_type][variant]
    model = build(expected["config"])
    assert {p.name: list(p.shape) for p in model.parameters()} == expected["shapes"]
    assert expected["total"] == model.params
    assert expected["tied"] == model.tied
    assert expected["total"] == sum(p.numel for p in model.parameters())
    assert expected["total"] == sum(model.split.values())
    assert expected["total"] == sum(size * count for size, count in model.tensor_sizes.items())
    assert len(expected["shapes"]) == sum(model.tensor_sizes.values())


@pytest.mark.parametrize("model_type", sorted(SHAPES))
def test_random_configs(model_type: str) -> None:
    """Random configurations: names, shapes, total, tie and windows equal transformers 5.24.0."""
    for expected in CONFIGS[model_type]:
        assert {k: v for k, v in expected.items() if k != "config"} == facts(expected["config"])


PRESETS = json.loads((DATA / "preset_totals.json").read_text(encoding="utf-8"))


def preset_configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, config) of every preset file."""
    import loadsheet.arch

    for path in sorted((Path(loadsheet.arch.__file__).parent / "presets").glob("*.json")):
        preset = json.loads(path.read_text(encoding="utf-8"))
        yield preset["name"], preset["config"]


#: the hub's totals of these also count the router's correction biases, one per routed expert and layer
CORRECTION_BIASES = {"deepseek-v3": 58 * 256, "deepseek-r1": 58 * 256, "kimi-k2": 60 * 384}


def test_presets() -> None:
    """Every preset's count equals the recorded one, and the published one where there is one."""
    counted = {name: build(config).params for name, config in preset_configs()}
    assert {name: entry["params"] for name, entry in PRESETS.items()} == counted
    published = {name: entry["published"] for name, entry in PRESETS.items() if entry.get("published")}
    assert len(published) > 100
    assert published == {name: counted[name] + CORRECTION_BIASES.get(name, 0) for name in published}


@pytest.mark.parametrize(
    ("name", "layers", "idle", "expert", "billions"),
    [
        # Mistral AI, "Mixtral of experts", 2023: 46.7 B in all, 12.9 B used per token
        ("mixtral-8x7b", 32, 8 - 2, 3 * 4096 * 14336, 12.9),
        # DeepSeek-AI 2024, arXiv 2412.19437: 671 B in all, 37 B activated, without the input embedding
        ("deepseek-v3", 58, 256 - 8, 3 * 7168 * 2048, 37.6),
        # Qwen team, "Qwen3", 2025: 30.5 B in all, 3.3 B activated
        ("qwen3-30b-a3b", 48, 128 - 8, 3 * 2048 * 768, 3.4),
        # OpenAI 2025, gpt-oss model card, table 1: 20.91 B in all, 3.61 B active, without the 0.58 B
        # of the input embedding; its experts have biases
        ("gpt-oss-20b", 24, 32 - 4, 3 * 2880 * 2880 + 3 * 2880, 4.2),
    ],
)
def test_active_parameters(name: str, layers: int, idle: int, expert: int, billions: float) -> None:
    """A token uses everything but the experts that were not chosen."""
    model = build(dict(preset_configs())[name])
    assert model.params - layers * idle * expert == model.active_params
    assert billions == round(model.active_params / 1e9, 1)


# -- configs as older versions wrote them ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (  # LLaMA-1 7B, written by transformers 4.28: no KV heads, no head_dim, no biases
            {
                "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
                "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000,
                "tie_word_embeddings": False, "torch_dtype": "float16",
            },
            6_738_415_616,
        ),
        (  # Gemma 2B: the tie is the class's default and so is not written
            {
                "model_type": "gemma", "head_dim": 256, "hidden_act": "gelu", "hidden_size": 2048,
                "intermediate_size": 16384, "num_attention_heads": 8, "num_hidden_layers": 18,
                "num_key_value_heads": 1, "vocab_size": 256000,
            },
            2_506_172_416,
        ),
        (  # Mistral 7B v0.1: no head_dim
            {
                "model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
                "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
                "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32000,
            },
            7_241_732_096,
        ),
        (  # GPT-2: its own names of the sizes, no n_inner
            {
                "model_type": "gpt2", "activation_function": "gelu_new", "n_ctx": 1024, "n_embd": 768,
                "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
            },
            124_439_808,
        ),
        (  # OPT-350M: narrow embedding, norms after the sub-layers
            {
                "model_type": "opt", "activation_function": "relu", "do_layer_norm_before": False, "ffn_dim": 4096,
                "hidden_size": 1024, "max_position_embeddings": 2048, "num_attention_heads": 16,
                "num_hidden_layers": 24, "vocab_size": 50272, "word_embed_proj_dim": 512,
                "_remove_final_layer_norm": False,
            },
            331_196_416,
        ),
    ],
)  # fmt: skip
def test_older_files(config: dict[str, Any], total: int) -> None:
    """Files with fewer keys give the published count (hub pages of the models, safetensors totals)."""
    assert total == build(config).params


#: keys without which nothing can be counted, whatever the class would put in their place
SIZES = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size", "n_embd", "n_head",
    "n_layer", "ffn_dim", "intermediate_size_mlp", "moe_intermediate_size", "shared_expert_intermediate_size",
    "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "first_k_dense_replace",
}  # fmt: skip
#: classes whose default for these keys is the size of one published model
OWN_HEAD_DIM = {"gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt_oss", "llama4_text", "qwen3"}
OWN_KV_HEADS = OWN_HEAD_DIM | {
    "mistral", "mixtral", "phimoe", "qwen2", "qwen2_moe", "qwen3_moe", "stablelm", "starcoder2",
}  # fmt: skip


def must_be_there(model_type: str, key: str) -> bool:
    """Whether we refuse a config without that key."""
    if key == "head_dim":
        return model_type in OWN_HEAD_DIM
    if key == "num_key_value_heads":
        return model_type in OWN_KV_HEADS
    if key in ("n_positions", "max_position_embeddings"):  # learned positions
        return model_type in ("gpt2", "opt")
    return key in SIZES


@pytest.mark.parametrize("model_type", sorted(SHAPES))
def test_a_missing_key(model_type: str) -> None:
    """A missing size is an error that names it; any other missing key means what transformers takes."""
    whole = CONFIGS[model_type][0]["config"]
    for key, outcome in RANDOM["spoiled"][model_type].items():
        config = {k: v for k, v in whole.items() if k != key}
        if must_be_there(model_type, key):
            with pytest.raises(BadConfig, match=rf"^config\.{key}: missing, expected "):
                build(config)
        elif outcome["missing"] is not None:
            assert outcome["missing"] == facts(config), key


@pytest.mark.parametrize("model_type", sorted(SHAPES))
def test_a_null_key(model_type: str) -> None:
    """A null means what transformers takes it for, or is an error that names the key."""
    whole = CONFIGS[model_type][0]["config"]
    for key, outcome in RANDOM["spoiled"][model_type].items():
        made = attempt({**whole, key: None})
        if isinstance(made, LoadsheetError):
            assert str(made).startswith(f"config.{key}: got None, expected ")
            assert must_be_there(model_type, key)
        elif outcome["null"] is not None:
            assert outcome["null"] == facts({**whole, key: None})


# -- configs that cannot be ----------------------------------------------------------------------------------

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 100,
}  # fmt: skip
GARBAGE = [
    -1, 0, 10**12, 10**5000, 1.5, math.nan, math.inf, "", "64", "abc", True, False, [], [64], {}, {"a": [{"b": []}]},
    b"64", (1, 2),
]  # fmt: skip


def deep(levels: int = 100_000) -> list[Any]:
    """A list in a list in a list ..."""
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


@pytest.mark.parametrize("key", [k for k in LLAMA if k != "model_type"])
@pytest.mark.parametrize("value", [*GARBAGE, None, deep()], ids=lambda value: f"{type(value).__name__}")
def test_a_size_that_is_none(key: str, value: Any) -> None:
    """No size can be negative, zero, absurd, a fraction, a text, a switch or a structure."""
    if key == "num_key_value_heads" and value is None:
        assert build({**LLAMA, key: value}).runs[0][0].mixer.kv_heads == 4
        return
    with pytest.raises(BadConfig, match=rf"^config\.{key}: got .+, expected a whole number") as caught:
        build({**LLAMA, key: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("model_type", "key", "value", "expected"),
    [
        ("llama", "num_attention_heads", 5, "config.hidden_size: got 64, expected a multiple of"),
        ("llama", "num_key_value_heads", 3, "config.num_key_value_heads: got 3, expected a divisor of"),
        ("llama", "num_key_value_heads", 8, "config.num_key_value_heads: got 8, expected a divisor of"),
        ("llama", "head_dim", -16, "config.head_dim: got -16, expected a whole number"),
        (
            "llama",
            "tie_word_embeddings",
            "no",
            "config.tie_word_embeddings: got 'no', expected true or false",
        ),
        ("llama", "attention_bias", 2, "config.attention_bias: got 2, expected true or false"),
        ("llama", "hidden_act", "banana", "config.hidden_act: got 'banana', expected one of `silu`"),
        ("llama", "hidden_act", ["silu"], "config.hidden_act: got ['silu'], expected a short string"),
        ("mistral", "sliding_window", -1, "config.sliding_window: got -1, expected a whole number"),
        (
            "qwen2",
            "layer_types",
            ["full_attention"],
            "config.layer_types: got a list of 1, expected one entry",
        ),
        (
            "qwen2",
            "layer_types",
            ["lazy"] * 3,
            "config.layer_types: got 'lazy', expected one of `full_attention`",
        ),
        ("qwen2", "layer_types", [[], {}, 1], "config.layer_types: got [], expected one of `full_attention`"),
        ("qwen2", "layer_types", {"0": "full_attention"}, "config.layer_types: got {"),
        ("gpt2", "n_inner", 0, "config.n_inner: got 0, expected a whole number"),
        ("gpt2", "hidden_size", 7, "config.hidden_size: got 7, expected the same as `n_embd`"),
        ("gpt2", "n_head", 10**6, "config.n_head: got 1000000, expected a whole number from 1"),
        ("mixtral", "num_experts_per_tok", 9, "config.num_experts_per_tok: got 9, expected at most"),
        ("mixtral", "num_local_experts", "many", "config.num_local_experts: got 'many', expected a whole"),
        (
            "mixtral",
            "num_experts",
            77,
            "config.num_experts: got 77, expected the same as `num_local_experts`",
        ),
        (
            "qwen3_moe",
            "mlp_only_layers",
            [0, "1"],
            "config.mlp_only_layers: got [0, '1'], expected a list of",
        ),
        ("qwen3_moe", "decoder_sparse_step", 0, "config.decoder_sparse_step: got 0, expected a whole number"),
        ("llama4_text", "moe_layers", 3, "config.moe_layers: got 3, expected a list of whole numbers"),
        ("llama4_text", "no_rope_layers", [1], "config.no_rope_layers: got a list of 1, expected one entry"),
        ("deepseek_v3", "kv_lora_rank", 0, "config.kv_lora_rank: got 0, expected a whole number"),
        ("olmoe", "head_dim", 4, "config.head_dim: got 4, expected `hidden_size` / `num_attention_heads`"),
        ("opt", "word_embed_proj_dim", -5, "config.word_embed_proj_dim: got -5, expected a whole number"),
        ("opt", "dropout", "high", "config.dropout: got 'high', expected a number from 0 to 1"),
    ],
)
def test_contradictions(model_type: str, key: str, value: Any, expected: str) -> None:
    """Values that contradict each other, or have the wrong type, are errors with the key's path."""
    base = LLAMA if model_type == "llama" else CONFIGS[model_type][0]["config"]
    if model_type == "qwen2":
        base = {**base, "num_hidden_layers": 3}
    if model_type in ("llama4_text", "gpt2"):
        base = {
            **base,
            "num_hidden_layers" if model_type == "llama4_text" else "n_layer": 4,
            "layer_types": None,
        }
    with pytest.raises(BadConfig) as caught:
        build({**base, key: value})
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("config", [None, [], "llama", 3, [("model_type", "llama")]])
def test_no_object(config: Any) -> None:
    """A config that is no object is an error that says so."""
    with pytest.raises(BadConfig, match=r"^config: got .+, expected an object with keys$"):
        build(config)


def test_no_model_type() -> None:
    """Without `model_type` nothing is guessed."""
    with pytest.raises(
        BadConfig, match=r"^config\.model_type: missing, expected the name of an architecture$"
    ):
        build({k: v for k, v in LLAMA.items() if k != "model_type"})


@pytest.mark.parametrize(
    "name", ["lama", "bert", "", "llama\n\x1b[31m", 7, ["llama"], {}, True, "x" * 10_000]
)
def test_unknown_architecture(name: Any) -> None:
    """An architecture that we do not know is named in the error, on one short line."""
    with pytest.raises(UnsupportedArchitecture) as caught:
        build({**LLAMA, "model_type": name})
    text = str(caught.value)
    assert text.startswith("config.model_type: got " + (f"'{name}'" if name in ("lama", "bert") else ""))
    assert len(text) < 200
    assert text.isprintable()


def test_nearest_architecture() -> None:
    """The hint names what looks like it."""
    with pytest.raises(UnsupportedArchitecture) as caught:
        build({**LLAMA, "model_type": "lama"})
    assert "`llama`" in caught.value.hint


def test_cross_attention_is_refused() -> None:
    """What a family cannot describe is not left out of the count."""
    with pytest.raises(UnsupportedArchitecture, match=r"add_cross_attention"):
        build({**CONFIGS["gpt2"][0]["config"], "add_cross_attention": True})


@pytest.mark.parametrize("model_type", sorted(SHAPES))
def test_ten_thousand_layers_take_no_time(model_type: str) -> None:
    """Equal layers are built and counted once, however many there are."""
    depth = "n_layer" if model_type == "gpt2" else "num_hidden_layers"
    config = CONFIGS[model_type][0]["config"]
    config = {k: v for k, v in config.items() if k not in ("layer_types", "moe_layers", "no_rope_layers")}
    start = time.process_time()
    model = build({**config, depth: 10_000})
    assert sum(model.split.values()) == model.params
    assert model.num_layers == 10_000
    assert time.process_time() - start < 1.0


# -- anything at all -------------------------------------------------------------------------------------------

values = (
    st.sampled_from([*GARBAGE, None, 1, 2, 3, 7, 64, 10_000, 2.0, "silu", "full_attention", deep()])
    | st.integers(-5, 10**9)
    | st.lists(st.sampled_from(["full_attention", "sliding_attention", 0, 1, None, [], {}]), max_size=8)
)
KEYS = sorted({key for made in CONFIGS.values() for one in made for key in one["config"]})


@st.composite
def spoiled(draw: st.DrawFn) -> dict[str, Any]:
    """A valid config with some keys changed, cut out or put in."""
    config = dict(draw(st.sampled_from(CONFIGS[draw(st.sampled_from(sorted(CONFIGS)))]))["config"])
    for _ in range(draw(st.integers(1, 4))):
        key = draw(st.sampled_from(sorted(config) or KEYS) | st.sampled_from(KEYS))
        if draw(st.booleans()):
            config[key] = draw(values)
        else:
            config.pop(key, None)
    return config


@given(spoiled())
def test_any_config_gives_a_model_or_our_error(config: dict[str, Any]) -> None:
    """Whatever stands in a config: a model whose parts add up and that can be walked, or our own error."""
    model = attempt(config)
    if isinstance(model, LoadsheetError):
        assert str(model).startswith("config.")
        return
    assert sum(model.split.values()) == model.params > 0
    assert 0 < model.active_params <= model.params
    taped = model.walk(lambda: Ops(Work(2, 8), Execution(attention="eager", kernels="eager")))
    assert taped.after.saved > 0


@pytest.mark.parametrize(
    ("kind", "built", "other"),
    [
        ("llama", "MistralForCausalLM", "mistral"),
        ("gpt2", "GPT2LMHeadModel", None),
        ("qwen3_5_text", "Qwen3_5ForCausalLM", None),
        ("mllama_text_model", "MllamaForCausalLM", None),
        ("llama", "MyOwnForCausalLM", None),
    ],
)
def test_a_class_that_contradicts_the_model_type(kind: str, built: str, other: str | None) -> None:
    """transformers' own pairs agree; a class of another type is seen, an unknown one is not judged."""
    assert contradicted({"model_type": kind, "architectures": [built]}) == other


def test_a_contradiction_is_said_on_the_sheet() -> None:
    """A config put together by hand: planned as its model_type says, with a warning that names both."""
    config = {**(ls.model("llama-3-8b").config or {}), "architectures": ["MistralForCausalLM"]}
    assert any("`mistral`" in w and "`llama`" in w for w in ls.plan(config, gpu="b200-sxm").warnings)

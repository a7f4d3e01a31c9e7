"""Names as people write them, in tables and on the hub, and the presets and GPUs that they mean.

A name is understood only if it says family, version and size; what it says besides (organisation,
instruct, dates) does not change the sizes. Anything else is None: a model is never guessed.
"""

from __future__ import annotations

import re
from typing import Final

from loadsheet.arch.read import models
from loadsheet.hardware import Gpu, gpus

#: (pattern of the squeezed name, preset with the pattern's groups put in); the first that fits counts.
#: Squeezed: lower case, one "-" for every sign between words, without organisation
_MODELS: Final[tuple[tuple[str, str], ...]] = (
    (r"(?:meta-)?llama-?3\.([123])-(1b|3b|8b|70b|405b)", r"llama-3.\1-\2"),
    (r"(?:meta-)?llama-?3-(8b|70b)", r"llama-3-\1"),
    (r"(?:meta-)?llama-?2-(7b|13b|70b)", r"llama-2-\1"),
    (r"(?:meta-)?llama(?:-?1)?-(7b|13b|30b|65b)", r"llama-1-\1"),
    (r"code-?llama-(7b|13b|34b|70b)", r"code-llama-\1"),
    (r"tiny-?llama(?:-1\.1b)?", "tinyllama-1.1b"),
    (r"mistral-7b-(?:instruct-)?v?0\.([123])", r"mistral-7b-v0.\1"),
    (r"mistral-7b", "mistral-7b-v0.1"),
    (r"mistral-nemo(?:-12b)?", "mistral-nemo-12b"),
    (r"mistral-small(?:-3(?:\.1)?)?-24b", "mistral-small-24b"),
    (r"mixtral-(8x7b|8x22b)", r"mixtral-\1"),
    (r"gemma-?2-(2b|9b|27b)", r"gemma-2-\1"),
    (r"gemma-?3-(270m|1b|4b|12b|27b)", r"gemma-3-\1"),
    (r"gemma(?:-?1)?(?:\.1)?-?(2b|7b)", r"gemma-\1"),
    (r"phi-?1\.5", "phi-1.5"),
    (r"phi-?2", "phi-2"),
    (r"phi-?3-(mini|medium)", r"phi-3-\1"),
    (r"phi-?3\.5-(mini|moe)", r"phi-3.5-\1"),
    (r"phi-?4-mini", "phi-4-mini"),
    (r"phi-?4", "phi-4"),
    (r"qwen-?(1\.5|2\.5|2|3)-([0-9.]+b(?:-a[0-9.]+b)?)", r"qwen\1-\2"),
    (r"pythia-([0-9.]+[mb])", r"pythia-\1"),
    (r"falcon-?([37]|1)-([0-9.]+b)", r"falcon\1-\2"),
    (r"falcon-(7b|40b)", r"falcon-\1"),
    (r"stablelm-(?:base-|tuned-)?alpha-(3b|7b)", r"stablelm-base-alpha-\1"),
    (r"stablelm-2-1[.-]6b", "stablelm-2-1.6b"),
    (r"stablelm-(?:zephyr-)?3b", "stablelm-3b"),
    (r"smollm2-(135m|360m|1\.7b)", r"smollm2-\1"),
    (r"olmo-?2-(?:[0-9]{4}-)?(1b|7b|13b|32b)", r"olmo-2-\1"),
    (r"olmo-?3-(7b|32b)", r"olmo-3-\1"),
    (r"olmo-(1b|7b)", r"olmo-\1"),
    (r"olmoe-1b-7b", "olmoe-1b-7b"),
    (r"granite-3\.3-8b", "granite-3.3-8b"),
    (r"granite-3(?:\.0)?-(2b|8b)", r"granite-3-\1"),
    (r"yi-(6b|34b)", r"yi-\1"),
    (r"opt-([0-9.]+[mb])", r"opt-\1"),
    (r"gpt-?2-(medium|large|xl)", r"gpt2-\1"),
    (r"gpt-?2-(?:xl-)?1\.5b", "gpt2-xl"),
    (r"gpt-?2(?:-small)?(?:-(?:117m|124m))?", "gpt2"),
    (r"gpt-?3-175b", "gpt-3-175b"),
    (r"deepseek-llm-7b", "deepseek-llm-7b"),
    (r"starcoder2-(3b|7b|15b)", r"starcoder2-\1"),
)
#: what may follow without changing the sizes
_TAIL: Final = re.compile(
    r"(?:-(?:hf|chat|instruct|it|base|pt|text|dpo|sft|beta|orig|original|intermediate|step|preview|deduped"
    r"|dataset|alpaca|slim|orca|oasst|lima|guanaco|openassistant|4k|8k|16k|32k|128k|1m|[0-9]+k|[0-9]+t|v?[0-9.]+"
    r"|bf16|fp16|bnb|4bit|nf4|unsloth|gqa|dense|tied|hub|model|python|code|math))*"
)


def squeeze(name: str) -> str:
    """A name in lower case without organisation, with one "-" between its words.

    >>> squeeze("meta-llama/Llama-2-7b-hf"), squeeze("Llama 2 7 B"), squeeze("microsoft/phi-1_5")
    ('llama-2-7b-hf', 'llama-2-7b', 'phi-1.5')
    """
    text = name[:200].strip().lower().rsplit("/", 1)[-1]
    text = re.sub(r"(?<=\d)_(?=\d)", ".", text)  # phi-1_5
    text = re.sub(r"[\s_()\[\],:+-]+", "-", text).strip("-")
    return re.sub(r"(?<=\d)-(?=[bm](?:-|$))", "", text)  # 7 B


def preset_of(name: str) -> str | None:
    """The preset that a model's name means, or None.

    >>> preset_of("meta-llama/Meta-Llama-3.1-8B-Instruct"), preset_of("mistral-7b-v0.2"), preset_of("my-7b")
    ('llama-3.1-8b', 'mistral-7b-v0.2', None)
    """
    text = squeeze(name)
    known = {preset.name for preset in models()}
    if text in known:
        return text
    for pattern, template in _MODELS:
        found = re.match(pattern, text)
        if found is not None and _TAIL.fullmatch(text, found.end()):
            preset = found.expand(template)
            return preset if preset in known else None
    return None


#: a GPU's name is looked for by these words, all of which must stand in what a table says
_GPU_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "a100-sxm-40gb": ("a100", "40"), "a100-sxm-80gb": ("a100", "80"), "rtx-a6000": ("a6000",),
    "rtx-6000-ada": ("6000", "ada"), "h100-sxm": ("h100",), "h100-pcie": ("h100", "pcie"),
    "h100-nvl": ("h100", "nvl"), "h200-sxm": ("h200",), "v100-sxm2-16gb": ("v100", "16"),
    "v100-sxm2-32gb": ("v100", "32"), "l40s": ("l40s",), "l40": ("l40",), "l4": ("l4",), "t4": ("t4",),
    "a10g": ("a10g",), "a10": ("a10",), "a40": ("a40",), "a30": ("a30",), "rtx-3090": ("3090",),
    "rtx-4090": ("4090",), "rtx-5090": ("5090",), "rtx-3090-ti": ("3090", "ti"), "rtx-4080": ("4080",),
    "mi300x": ("mi300x",), "mi250x-gcd": ("mi250x",), "b200-sxm": ("b200",), "p100-pcie-16gb": ("p100",),
    "rtx-3080-10gb": ("3080",), "rtx-3060-12gb": ("3060",), "rtx-2080-ti": ("2080", "ti"),
    "a100-pcie-40gb": ("a100", "pcie", "40"), "a100-pcie-80gb": ("a100", "pcie", "80"), "a800-sxm-80gb": ("a800",),
}  # fmt: skip


def gpu_of(name: str, memory_gb: float | None = None) -> Gpu | None:
    """The GPU that a table's words mean, or None. The memory tells variants of one name apart.

    >>> found = gpu_of("A100-SXM-40GB"), gpu_of("NVIDIA A100", 80), gpu_of("RTX 4090"), gpu_of("24GB GPU")
    >>> [gpu and gpu.id for gpu in found]
    ['a100-sxm-40gb', 'a100-sxm-80gb', 'rtx-4090', None]
    """
    known = {gpu.id: gpu for gpu in gpus()}
    text = name[:100].strip().lower()
    if text.replace(" ", "-") in known:
        return known[text.replace(" ", "-")]
    words = set(re.findall(r"[a-z]+\d+[a-z]*|\d+(?=\s*g)|\d+|[a-z]+", text))
    words |= {word.removesuffix("gb") for word in words}
    if memory_gb is not None:
        words.add(f"{memory_gb:g}")
    fitting = [(len(need), gpu) for gpu, need in _GPU_WORDS.items() if set(need) <= words and gpu in known]
    return known[max(fitting)[1]] if fitting else None

"""Which model types' walk was held against PyTorch, and not only their parameters.

`tools/verify_all.py` makes the default configuration of each small and compares FLOPs, bytes kept for backward,
the peak of a training step and the cache with transformers; these are within its limits.
"""

from __future__ import annotations

from typing import Final

_NAMES: Final = """
apertus apertus1p5_text arcee aria_text axk1 axk2 beam bitnet bloom cohere cohere2 ctrl cwm deepseek_v3
deepseek_v32 ernie4_5 exaone exaone4 flint gemma gemma2 gemma3_text glm glm4 glm4_moe_lite glm_moe_dsa gpt-sw3
gpt2 gpt_neox gpt_neox_japanese gpt_oss granite granitemoe granitemoe_swa granitemoeshared helium
hunyuan_v1_dense hyperclovax internlm3 iquestcoder jais2 lfm2 llama mellum mimo_v2_flash minicpm3 minimax_m2
ministral ministral3 mistral mixtral moshi mpt nanochat olmo olmo2 olmo3 olmoe opt phi phi3 phimoe qwen2
qwen2_moe qwen3 qwen3_moe sarvam_mla seed_oss smollm3 stablelm starcoder2 vaultgemma youtu
"""
CHECKED: Final = frozenset(_NAMES.split())

"""The architectures of TensorRT-LLM checkpoints that are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.sources.trtllm.gpt_families import FALCON_NEW, GPT_FAMILIES
from trtkit.sources.trtllm.llama_families import LLAMA_FAMILIES

if TYPE_CHECKING:
    from trtkit.sources.trtllm.family import Family
    from trtkit.sources.trtllm.fields import Fields

FAMILIES = {**LLAMA_FAMILIES, **GPT_FAMILIES}
"""By TensorRT-LLM's architecture."""


def family_of(config: Fields) -> Family:
    """Return a known architecture's family."""
    is_new_falcon = config["architecture"] == "FalconForCausalLM" and config.get("new_decoder_architecture")
    return FALCON_NEW if is_new_falcon else FAMILIES[config["architecture"]]

"""MiMo for transformers, which lacks classes for it: Qwen 2 without the modules that predict later tokens."""

from huggingface_hub.dataclasses import strict
from transformers import Qwen2Config, Qwen2ForCausalLM


@strict
class MiMoConfig(Qwen2Config):  # type: ignore[misc]
    """Qwen 2's config, under MiMo's name."""

    model_type = "mimo"


class MiMoForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen 2, under MiMo's name."""

    config_class = MiMoConfig

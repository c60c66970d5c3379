"""Models that transformers' Auto classes do not find on their own."""


def register() -> None:
    """Make transformers' Auto classes find Nemotron-NAS, and Mistral 4 without a vision tower."""
    from transformers import AutoConfig, AutoModelForCausalLM, Mistral4Config, Mistral4ForCausalLM

    from trtkit.sources.huggingface.pruned_llama import DeciLMConfig, DeciLMForCausalLM

    AutoConfig.register(DeciLMConfig.model_type, DeciLMConfig, exist_ok=True)
    AutoModelForCausalLM.register(DeciLMConfig, DeciLMForCausalLM, exist_ok=True)
    AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)

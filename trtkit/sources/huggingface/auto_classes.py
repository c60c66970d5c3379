"""Models that transformers' Auto classes do not find on their own."""


def register() -> None:
    """Make transformers' Auto classes find MiMo, Nemotron-NAS, and Mistral 4 without a vision tower."""
    from transformers import AutoConfig, AutoModelForCausalLM, Mistral4Config, Mistral4ForCausalLM

    from trtkit.sources.huggingface import missing_models as missing

    for config, model in (
        (missing.DeciLMConfig, missing.DeciLMForCausalLM),
        (missing.MiMoConfig, missing.MiMoForCausalLM),
    ):
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModelForCausalLM.register(config, model, exist_ok=True)
    AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)

"""Models for which transformers has no classes: MiMo, and Nemotron-NAS, whose Llama layers have a config each."""

import copy

import torch
from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


@strict
class MiMoConfig(Qwen2Config):  # type: ignore[misc]
    """Qwen 2's config, under MiMo's name."""

    model_type = "mimo"


class MiMoForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen 2, under MiMo's name; without the modules that predict later tokens."""

    config_class = MiMoConfig


@strict
class DeciLMConfig(LlamaConfig):  # type: ignore[misc]
    """Llama's config, with an entry for each layer."""

    model_type = "nemotron-nas"
    intermediate_size: int | None = None
    block_configs: list[dict[str, dict]] | None = None  # type: ignore[type-arg]


class DeciLMForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """Llama with the layers of `block_configs`."""

    config_class = DeciLMConfig

    def __init__(self, config: DeciLMConfig) -> None:
        plain = copy.copy(config)
        plain.intermediate_size = 1  # of layers that are replaced
        super().__init__(plain)
        self.config = self.model.config = config
        layers, attending = [], 0
        for block in config.block_configs or ():
            layers.append(_layer(config, block, attending))
            attending += not block["attention"].get("no_op")
        self.model.layers = torch.nn.ModuleList(layers)
        self.post_init()


def _layer(config: DeciLMConfig, block: dict[str, dict], index: int) -> LlamaDecoderLayer:  # type: ignore[type-arg]
    """Return one layer. index: of its cache, the number of earlier layers that have one."""
    attention, mlp = block["attention"], block["ffn"]
    layer_config, heads = copy.copy(config), config.num_attention_heads
    wide = int(2 * (mlp.get("ffn_mult") or 0) * config.hidden_size / 3)
    layer_config.num_key_value_heads = attention.get("num_key_value_heads") or heads // (
        attention.get("n_heads_in_group") or 1
    )
    layer_config.intermediate_size = mlp.get("intermediate_size") or wide + -wide % 256 or 1
    layer_config.hidden_act = mlp.get("hidden_act") or config.hidden_act
    layer = LlamaDecoderLayer(layer_config, index)
    if attention.get("no_op"):
        layer.self_attn, layer.input_layernorm = _NoAttention(), torch.nn.Identity()
    if mlp.get("no_op"):
        layer.mlp, layer.post_attention_layernorm = _NoMlp(), torch.nn.Identity()
    return layer


class _NoAttention(torch.nn.Module):
    def forward(self, hidden_states: torch.Tensor, **_: object) -> tuple[torch.Tensor, None]:
        return torch.zeros_like(hidden_states), None


class _NoMlp(torch.nn.Module):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(hidden_states)

"""Command A+: Command A with experts; the first layers may be dense."""

from dataclasses import replace

from trtkit.models.family_parts import averaged_mixture, cohere_layers
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import with_dense_types
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import decoder_part, layer_norm_part, mlp_part, rms_norm_part
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "Cohere2MoeForCausalLM"
DEFAULTS = {"head_dim": 128, "sliding_window": 4096, "tie_word_embeddings": True}


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("rope_scaling")  # transformers reads only `rope_parameters`
    has_rms = config.get("rms_norm_eps") is not None
    layer_norm = layer_norm_part(config, has_bias=False)
    norm = rms_norm_part(config) if has_rms else layer_norm
    mlp, width = mlp_part(config), config.get("prefix_dense_intermediate_size")
    first = int(config.get("first_k_dense_replace", 0))
    dense = replace(mlp, intermediate_size=int(width or mlp.intermediate_size))
    typed = with_dense_types(config, cohere_layers(config, averaged_mixture(config, mlp), first), dense, first)
    model = decoder_part(config, typed, norm, llama_names({}, SHARED_EXPERT_NAMES))
    return replace(
        model,
        block=BlockSpec(norm, ("attention_norm",), is_parallel=True),
        head=replace(model.head, logit_scale=float(config.get("logit_scale", 0.0625))),
    )

"""The vision tower of SigLIP (Zhai et al., arXiv:2303.15343). HF: `SiglipVisionModel`."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.hybrids.registry import HybridOptions
from trtkit.models.hybrids.spec import HybridSpec
from trtkit.models.hybrids.vision_encoder import Names, VisionEncoderSpec, grids, vision_hybrid
from trtkit.models.names import names
from trtkit.models.parts import attention_part, layer_norm_part, plain_mlp_part

DEFAULTS = {"layer_norm_eps": 1e-6, "patch_size": 16, "image_size": 224, "hidden_act": "gelu_pytorch_tanh"}
TABLE = names(
    "encoder.layers.{i}.",
    {
        "positions": "embeddings.position_embedding",
        "final_norm": "post_layernorm",
        "head.query": "head.probe",
        "head.attention.qkv.weight": "head.attention.in_proj_weight",
        "head.attention.qkv.bias": "head.attention.in_proj_bias",
        "head.attention.o": "head.attention.out_proj",
        "head.norm": "head.layernorm",
        "head.mlp.up": "head.mlp.fc1",
        "head.mlp.down": "head.mlp.fc2",
    },
    {
        "attention_norm": "layer_norm1",
        "mlp_norm": "layer_norm2",
        "attention.q": "self_attn.q_proj",
        "attention.k": "self_attn.k_proj",
        "attention.v": "self_attn.v_proj",
        "attention.o": "self_attn.out_proj",
        "mlp.up": "mlp.fc1",
        "mlp.down": "mlp.fc2",
    },
)


def spec(config: HfConfig, options: HybridOptions) -> HybridSpec:
    """Return the tower that a config describes: it outputs hidden states and, with a head, the pooled one."""
    grid, stored = grids(config, options, resizes=False)
    encoder = VisionEncoderSpec(
        hidden_size=int(config.need("hidden_size")),
        num_layers=int(config.need("num_hidden_layers")),
        attention=attention_part(config, has_qkv_bias=True, has_output_bias=True),
        mlp=plain_mlp_part(config),
        norm=layer_norm_part(config),
        grid=grid,
        position_grid=stored,
        has_class_token=False,
    )
    if config.get("vision_use_head", True):
        encoder = replace(encoder, head="attention", head_size=encoder.hidden_size)
    return vision_hybrid(config, encoder, Names("embeddings.patch_embedding", TABLE), ())

"""ViT (Dosovitskiy et al., arXiv:2010.11929). HF: `ViTModel`, `ViTForImageClassification`."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.hybrids.registry import HybridOptions
from trtkit.models.hybrids.spec import HybridSpec
from trtkit.models.hybrids.vision_encoder import Names, VisionEncoderSpec, grids, num_labels, vision_hybrid
from trtkit.models.names import names
from trtkit.models.parts import attention_part, layer_norm_part, plain_mlp_part

DEFAULTS = {"layer_norm_eps": 1e-12, "patch_size": 16, "image_size": 224}
IMMATERIAL = ("encoder_stride", "attention_probs_dropout_prob", "pooler_act", "pooler_output_size")
UNUSED = (r"mask_token$",)
TABLE = names(
    "encoder.layer.{i}.",
    {
        "class_token": "embeddings.cls_token",
        "positions": "embeddings.position_embeddings",
        "final_norm": "layernorm",
        "pooler": "pooler.dense",
        "classifier": "classifier",
    },
    {
        "attention_norm": "layernorm_before",
        "mlp_norm": "layernorm_after",
        "attention.q": "attention.attention.query",
        "attention.k": "attention.attention.key",
        "attention.v": "attention.attention.value",
        "attention.o": "attention.output.dense",
        "mlp.up": "intermediate.dense",
        "mlp.down": "output.dense",
    },
)


def spec(config: HfConfig, options: HybridOptions) -> HybridSpec:
    """Return the model that a config describes: a classifier, or hidden states and the pooled class token."""
    is_classifier = "ViTForImageClassification" in config.get("architectures", ())
    grid, stored = grids(config, options, resizes=False)
    attention = attention_part(config, has_qkv_bias=bool(config.get("qkv_bias", True)), has_output_bias=True)
    encoder = VisionEncoderSpec(
        hidden_size=int(config.need("hidden_size")),
        num_layers=int(config.need("num_hidden_layers")),
        attention=attention,
        mlp=plain_mlp_part(config),
        norm=layer_norm_part(config),
        grid=grid,
        position_grid=stored,
    )
    if is_classifier:
        encoder = replace(encoder, head="classifier", head_size=num_labels(config))
    else:
        size = int(config.get("pooler_output_size", encoder.hidden_size))
        activation = str(config.get("pooler_act", "tanh"))
        encoder = replace(encoder, head="pooler", head_size=size, pooler_activation=activation)
    prefix = "vit." if is_classifier else ""
    return vision_hybrid(config, encoder, Names("embeddings.patch_embeddings.projection", TABLE, prefix), UNUSED)

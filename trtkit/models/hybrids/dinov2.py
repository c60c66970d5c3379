"""DINOv2 (Oquab et al., arXiv:2304.07193), also with registers (arXiv:2309.16588). HF: `Dinov2Model`, its heads."""

from dataclasses import replace

from trtkit.models.feed_forward import MlpSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.hybrids.registry import HybridOptions
from trtkit.models.hybrids.spec import HybridSpec
from trtkit.models.hybrids.vision_encoder import Names, VisionEncoderSpec, grids, num_labels, vision_hybrid
from trtkit.models.names import names
from trtkit.models.parts import attention_part, layer_norm_part

DEFAULTS = {"layer_norm_eps": 1e-6, "patch_size": 14, "image_size": 224, "mlp_ratio": 4}
IMMATERIAL = (
    "attention_probs_dropout_prob", "drop_path_rate", "layerscale_value", "use_mask_token", "apply_layernorm",
    "out_features", "out_indices", "stage_names", "reshape_hidden_states",
)  # fmt: skip
UNUSED = (r"mask_token$",)
TABLE = names(
    "encoder.layer.{i}.",
    {
        "class_token": "embeddings.cls_token",
        "positions": "embeddings.position_embeddings",
        "register_tokens": "embeddings.register_tokens",
        "final_norm": "layernorm",
        "classifier": "classifier",
    },
    {
        "attention_norm": "norm1",
        "mlp_norm": "norm2",
        "attention.q": "attention.attention.query",
        "attention.k": "attention.attention.key",
        "attention.v": "attention.attention.value",
        "attention.o": "attention.output.dense",
        "attention_scale": "layer_scale1.lambda1",
        "mlp_scale": "layer_scale2.lambda1",
        "mlp.up": "mlp.fc1",
        "mlp.down": "mlp.fc2",
        "mlp.gate_up": "mlp.weights_in",
    },
)
SWIGLU_TABLE = {**TABLE, "layers.{i}.mlp.down": "encoder.layer.{i}.mlp.weights_out"}


def spec(config: HfConfig, options: HybridOptions) -> HybridSpec:
    """Return the model that a config describes, with positions resized to the configured image size."""
    is_classifier = any("ForImageClassification" in name for name in config.get("architectures", ()))
    has_registers = config.need("model_type") == "dinov2_with_registers"
    grid, stored = grids(config, options, resizes=True)
    hidden_size = int(config.need("hidden_size"))
    encoder = VisionEncoderSpec(
        hidden_size=hidden_size,
        num_layers=int(config.need("num_hidden_layers")),
        attention=attention_part(config, has_qkv_bias=bool(config.get("qkv_bias", True)), has_output_bias=True),
        mlp=_mlp(config, int(hidden_size * config.need("mlp_ratio"))),
        norm=layer_norm_part(config),
        grid=grid,
        position_grid=stored,
        num_register_tokens=int(config.get("num_register_tokens", 4)) if has_registers else 0,
        resize_has_antialias=has_registers,
        has_layer_scale=True,
        head="first_token",
        head_size=hidden_size,
    )
    if is_classifier:
        encoder = replace(encoder, head="classifier_with_mean", head_size=num_labels(config))
    table = SWIGLU_TABLE if encoder.mlp.is_fused else TABLE
    prefix = f"{config.need('model_type')}." if is_classifier else ""
    return vision_hybrid(config, encoder, Names("embeddings.patch_embeddings.projection", table, prefix), UNUSED)


def _mlp(config: HfConfig, size: int) -> MlpSpec:
    """Return an ungated MLP, or a gated one of two thirds of the size, rounded up to a multiple of 8."""
    activation = str(config.get("hidden_act", "gelu"))
    if not config.get("use_swiglu_ffn", False):
        return MlpSpec(size, activation, is_gated=False, has_bias=True)
    return MlpSpec((int(size * 2 / 3) + 7) // 8 * 8, "silu", is_fused=True, has_bias=True)

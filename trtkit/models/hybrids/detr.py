"""DETR (Carion et al., arXiv:2005.12872). HF: `DetrForObjectDetection` with a backbone from transformers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtkit.errors import SourceError
from trtkit.models.attention import AttentionSpec, NormSpec
from trtkit.models.feed_forward import MlpSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.hybrids.registry import HybridOptions
from trtkit.models.hybrids.spec import HybridSpec, NetworkPart, OnnxPart, PartPort, Seam
from trtkit.models.hybrids.transformer import Sizes, TransformerLayerSpec, halved, layer_weights, mlp_weights
from trtkit.models.hybrids.vision_encoder import num_labels
from trtkit.models.hybrids.weights import linear_weights, norm_weights
from trtkit.models.weights import Weight

IMMATERIAL = (
    "auxiliary_loss", "bbox_cost", "class_cost", "giou_cost", "bbox_loss_coefficient", "dice_loss_coefficient",
    "mask_loss_coefficient", "giou_loss_coefficient", "eos_coefficient", "init_xavier_std", "decoder_layerdrop",
    "encoder_layerdrop", "backbone", "use_pretrained_backbone", "num_hidden_layers", "max_position_embeddings",
    "backbone_kwargs", "scale_embedding",
)  # fmt: skip
_PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
_SELF = {
    **{f"attention.{ours}": f"self_attn.{theirs}" for ours, theirs in _PROJECTIONS.items()},
    "attention_norm": "self_attn_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
    "mlp_norm": "final_layer_norm",
}
_CROSS = {
    **{f"cross_attention.{ours}": f"encoder_attn.{theirs}" for ours, theirs in _PROJECTIONS.items()},
    "cross_attention_norm": "encoder_attn_layer_norm",
}
_WRITERS = "trtkit.network.blocks.detr"


@dataclass(frozen=True)
class DetrSpec:
    """Encoder and decoder. feature_size: (height, width) of the backbone's last feature map, which has `channels`."""

    feature_size: Sizes
    channels: int
    num_queries: int
    num_classes: int
    encoder: TransformerLayerSpec
    encoder_layers: int
    decoder: TransformerLayerSpec
    decoder_layers: int


def spec(config: HfConfig, options: HybridOptions) -> HybridSpec:
    """Return the hybrid: backbone through ONNX, encoder and decoder by the network API. Images must not be padded."""
    config.refuse("use_timm_backbone", False)
    config.refuse("position_embedding_type", "sine")
    config.refuse("dilation", False)
    size = needed_size(options, config.where)
    backbone = config.need("backbone_config")
    model = _model(config, backbone, halved(size, 5))
    D, (rows, columns) = model.encoder.hidden_size, model.feature_size
    feature = ("batch", model.channels, rows, columns)
    tokens = ("batch", rows * columns, D)
    parts = (
        backbone_part(config, backbone, size, (PartPort("feature", feature, reference="model.backbone.model:-1"),)),
        NetworkPart(
            "encoder",
            (PartPort("feature", feature),),
            (PartPort("memory", tokens, reference="model.encoder"),),
            f"{_WRITERS}:write_encoder",
            model,
            tuple(_encoder_weights(model)),
        ),
        NetworkPart(
            "decoder",
            (PartPort("memory", tokens),),
            (
                PartPort("logits", ("batch", model.num_queries, model.num_classes + 1), "fp32"),
                PartPort("pred_boxes", ("batch", model.num_queries, 4), "fp32"),
            ),
            f"{_WRITERS}:write_decoder",
            model,
            tuple(_decoder_weights(model)),
        ),
    )
    seams = (Seam("backbone.feature", "encoder.feature"), Seam("encoder.memory", "decoder.memory"))
    return HybridSpec("detr", parts, seams, ("decoder.logits", "decoder.pred_boxes"))


def needed_size(options: HybridOptions, where: str) -> Sizes:
    """Return the configured image size. Raises SourceError if there is none: detectors have no default size."""
    if options.image_size is None:
        fix = "set it, for example `image_size: [640, 640]`"
        raise SourceError("the model takes images of any size: `image_size` is not set", where, fix)
    return options.image_size


def backbone_part(config: HfConfig, backbone: dict[str, Any], size: Sizes, outputs: tuple[PartPort, ...]) -> OnnxPart:
    """Return a backbone from transformers as a part to export to ONNX."""
    channels = int(config.get("num_channels", 3))
    return OnnxPart(
        "backbone",
        (PartPort("pixel_values", ("batch", channels, *size), "fp32"),),
        outputs,
        "trtkit.sources.huggingface.vision:backbone",
        {"config": backbone},
        "model.backbone.conv_encoder.model.",
    )


def _model(config: HfConfig, backbone: dict[str, Any], feature_size: Sizes) -> DetrSpec:
    return DetrSpec(
        feature_size=feature_size,
        channels=int(backbone["hidden_sizes"][-1]),
        num_queries=int(config.get("num_queries", 100)),
        num_classes=num_labels(config),
        encoder=_layer(config, "encoder"),
        encoder_layers=int(config.get("encoder_layers", 6)),
        decoder=_layer(config, "decoder"),
        decoder_layers=int(config.get("decoder_layers", 6)),
    )


def _layer(config: HfConfig, kind: str) -> TransformerLayerSpec:
    hidden_size, heads = int(config.get("d_model", 256)), int(config.get(f"{kind}_attention_heads", 8))
    head_dim = hidden_size // heads
    attention = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, has_qkv_bias=True, has_output_bias=True)
    activation = str(config.get("activation_function", "relu"))
    mlp = MlpSpec(int(config.get(f"{kind}_ffn_dim", 2048)), activation, is_gated=False, has_bias=True)
    return TransformerLayerSpec(hidden_size, attention, mlp, NormSpec("layer", 1e-5, has_bias=True))


def _encoder_weights(model: DetrSpec) -> Iterator[Weight]:
    yield from linear_weights("projection", "model.input_projection", (model.encoder.hidden_size, model.channels, 1, 1))
    for index in range(model.encoder_layers):
        yield from layer_weights(f"layers.{index}", f"model.encoder.layers.{index}", model.encoder, _SELF)


def _decoder_weights(model: DetrSpec) -> Iterator[Weight]:
    D = model.decoder.hidden_size
    yield Weight("queries.weight", "model.query_position_embeddings.weight", (model.num_queries, D), is_table=True)
    for index in range(model.decoder_layers):
        names = {**_SELF, **_CROSS}
        yield from layer_weights(f"layers.{index}", f"model.decoder.layers.{index}", model.decoder, names)
    yield from norm_weights("final_norm", "model.decoder.layernorm", D)
    yield from linear_weights("classes", "class_labels_classifier", (model.num_classes + 1, D))
    yield from mlp_weights("boxes", "bbox_predictor", (D, D, D, 4))

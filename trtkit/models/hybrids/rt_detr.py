"""RT-DETR (Zhao et al., arXiv:2304.08069) and RT-DETRv2 (arXiv:2407.17140). HF: `RTDetrForObjectDetection`."""

from collections.abc import Iterator
from dataclasses import dataclass

from trtkit.errors import SourceError
from trtkit.models.attention import AttentionSpec, NormSpec
from trtkit.models.feed_forward import MlpSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.hybrids.detr import needed_size
from trtkit.models.hybrids.registry import HybridOptions
from trtkit.models.hybrids.spec import HybridSpec, NetworkPart, OnnxPart, PartPort, Seam
from trtkit.models.hybrids.transformer import Sizes, TransformerLayerSpec, layer_weights, mlp_weights
from trtkit.models.hybrids.vision_encoder import num_labels
from trtkit.models.hybrids.weights import linear_weights, norm_weights
from trtkit.models.weights import Weight

# For training, and for the exported part, which transformers builds from the config.
IMMATERIAL = (
    "auxiliary_loss", "box_noise_scale", "eos_coefficient", "focal_loss_alpha", "focal_loss_gamma", "use_focal_loss",
    "freeze_backbone_batch_norms", "initializer_bias_prior_prob", "label_noise_ratio", "matcher_alpha",
    "matcher_bbox_cost", "matcher_class_cost", "matcher_gamma", "matcher_giou_cost", "num_denoising",
    "weight_loss_bbox", "weight_loss_giou", "weight_loss_vfl", "with_box_refine", "tie_word_embeddings",
    "disable_custom_kernels", "backbone", "backbone_config", "backbone_kwargs", "use_pretrained_backbone",
    "use_timm_backbone", "batch_norm_eps", "activation_function", "decoder_in_channels", "encode_proj_layers",
    "encoder_activation_function", "encoder_attention_heads", "encoder_ffn_dim", "encoder_hidden_dim",
    "encoder_in_channels", "encoder_layers", "hidden_expansion", "normalize_before", "positional_encoding_temperature",
    "eval_size", "decoder_n_levels", "num_hidden_layers",
)  # fmt: skip
_LAYER = {
    **{f"attention.{ours}": f"self_attn.{ours if ours != 'o' else 'out'}_proj" for ours in "qkvo"},
    "attention_norm": "self_attn_layer_norm",
    "sampled_attention_norm": "encoder_attn_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
    "mlp_norm": "final_layer_norm",
}


@dataclass(frozen=True)
class RtDetrSpec:
    """RT-DETR's decoder. levels: (height, width) of each feature map. points: samples per level, head and query.

    offset_scale: distance of samples from a box's centre, relative to its size. is_discrete: sampling picks the nearest
    element instead of interpolating.
    """

    levels: tuple[Sizes, ...]
    points: int
    offset_scale: float
    is_discrete: bool
    num_queries: int
    num_classes: int
    layer: TransformerLayerSpec
    num_layers: int


def spec(config: HfConfig, options: HybridOptions) -> HybridSpec:
    """Return the hybrid: backbone and hybrid encoder through ONNX, the decoder by the network API."""
    config.refuse("anchor_image_size", list(options.image_size) if options.image_size else None)
    config.refuse("learn_initial_query", False)  # transformers cannot run it
    size = needed_size(options, config.where)
    model = _model(config, _levels(config, size))
    D = model.layer.hidden_size
    features = tuple(
        PartPort(f"level_{index}", ("batch", D, *level), reference=f"model.decoder_input_proj.{index}")
        for index, level in enumerate(model.levels)
    )
    pixels = PartPort("pixel_values", ("batch", int(config.get("num_channels", 3)), *size), "fp32")
    parts = (
        OnnxPart("features", (pixels,), features, "trtkit.sources.huggingface.vision:rt_detr_features", prefix=None),
        NetworkPart(
            "decoder",
            tuple(PartPort(port.name, port.shape) for port in features),
            (
                PartPort("logits", ("batch", model.num_queries, model.num_classes), "fp32"),
                PartPort("pred_boxes", ("batch", model.num_queries, 4), "fp32"),
            ),
            "trtkit.network.blocks.rt_detr:write_decoder",
            model,
            tuple(_weights(model)),
        ),
    )
    seams = tuple(Seam(f"features.{port.name}", f"decoder.{port.name}") for port in features)
    outputs = ("decoder.logits", "decoder.pred_boxes")
    return HybridSpec(str(config.need("model_type")), parts, seams, outputs, has_unordered_rows=True)


def _levels(config: HfConfig, size: Sizes) -> tuple[Sizes, ...]:
    """Return the feature maps' sizes. Raises SourceError unless the image is a multiple of the coarsest stride."""
    strides = [int(stride) for stride in config.get("feat_strides", [8, 16, 32])]
    if int(config.get("num_feature_levels", 3)) != len(strides):
        raise config.unsupported("num_feature_levels", config.get("num_feature_levels"), [str(len(strides))])
    if any(edge % max(strides) for edge in size):
        better = [max(1, round(edge / max(strides))) * max(strides) for edge in size]
        what = f"image size {size[0]} x {size[1]} is not a multiple of the coarsest stride, {max(strides)}"
        raise SourceError(what, "image_size", f"use for example {better[0]} x {better[1]}")
    return tuple((size[0] // stride, size[1] // stride) for stride in strides)


def _model(config: HfConfig, levels: tuple[Sizes, ...]) -> RtDetrSpec:
    method = str(config.get("decoder_method", "default"))
    if method not in ("default", "discrete"):
        raise config.unsupported("decoder_method", method, ("default", "discrete"))
    return RtDetrSpec(
        levels=levels,
        points=int(config.get("decoder_n_points", 4)),
        offset_scale=float(config.get("decoder_offset_scale", 0.5)),
        is_discrete=method == "discrete",
        num_queries=int(config.get("num_queries", 300)),
        num_classes=num_labels(config),
        layer=_layer(config),
        num_layers=int(config.get("decoder_layers", 6)),
    )


def _layer(config: HfConfig) -> TransformerLayerSpec:
    hidden_size, heads = int(config.get("d_model", 256)), int(config.get("decoder_attention_heads", 8))
    head_dim = hidden_size // heads
    attention = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, has_qkv_bias=True, has_output_bias=True)
    activation = str(config.get("decoder_activation_function", "relu"))
    mlp = MlpSpec(int(config.get("decoder_ffn_dim", 1024)), activation, is_gated=False, has_bias=True)
    norm = NormSpec("layer", float(config.get("layer_norm_eps", 1e-5)), has_bias=True)
    return TransformerLayerSpec(hidden_size, attention, mlp, norm)


def _weights(model: RtDetrSpec) -> Iterator[Weight]:
    D, classes, last = model.layer.hidden_size, model.num_classes, model.num_layers - 1
    samples = model.layer.attention.num_attention_heads * len(model.levels) * model.points
    yield from linear_weights("proposals.dense", "model.enc_output.0", (D, D))
    yield from norm_weights("proposals.norm", "model.enc_output.1", D)
    yield from linear_weights("proposals.classes", "model.enc_score_head", (classes, D))
    yield from mlp_weights("proposals.boxes", "model.enc_bbox_head", (D, D, D, 4))
    yield from mlp_weights("query_positions", "model.decoder.query_pos_head", (4, 2 * D, D))
    for index in range(model.num_layers):
        path, name = f"layers.{index}", f"model.decoder.layers.{index}"
        yield from layer_weights(path, name, model.layer, _LAYER)
        for ours, theirs, size in (
            ("value", "value_proj", D),
            ("offsets", "sampling_offsets", 2 * samples),
            ("shares", "attention_weights", samples),
            ("o", "output_proj", D),
        ):
            yield from linear_weights(f"{path}.sampled_attention.{ours}", f"{name}.encoder_attn.{theirs}", (size, D))
        yield from mlp_weights(f"{path}.boxes", f"model.decoder.bbox_embed.{index}", (D, D, D, 4))
    yield from linear_weights("classes", f"model.decoder.class_embed.{last}", (classes, D))

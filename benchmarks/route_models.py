"""Models for `benchmarks.routes`: transformers' classes in published sizes, with random weights that stay in range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch

_R50 = {"model_type": "resnet", "depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048], "embedding_size": 64}
_TINY = {"model_type": "resnet", "depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 40], "embedding_size": 16}
_C5 = {"out_features": ["stage4"]}
_C3_TO_C5 = {"out_features": ["stage2", "stage3", "stage4"], "model_type": "rt_detr_resnet"}
_DETR = {"use_timm_backbone": False, "backbone": None, "num_labels": 91}
_TINY_DETR = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 20,
}  # fmt: skip
_TINY_RT = {
    **_TINY_DETR, "encoder_layers": 1, "encoder_hidden_dim": 32, "encoder_in_channels": [24, 32, 40],
    "decoder_in_channels": [32, 32, 32],
}  # fmt: skip
_RESIDUAL_WEIGHT = 0.2
_TINY_VIT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}

# By name: model type, class, config, image size.
MODELS: dict[str, tuple[str, str, dict[str, Any], tuple[int, int]]] = {
    "vit-tiny": ("vit", "ViTForImageClassification", {**_TINY_VIT, "image_size": 64, "patch_size": 16}, (64, 64)),
    "detr-tiny": (
        "detr",
        "DetrForObjectDetection",
        {**_DETR, **_TINY_DETR, "backbone_config": {**_TINY, **_C5}},
        (128, 160),
    ),
    "rt-detr-v2-tiny": (
        "rt_detr_v2",
        "RTDetrV2ForObjectDetection",
        {**_TINY_RT, "backbone_config": {**_TINY, **_C3_TO_C5}},
        (128, 160),
    ),
    "vit-base": ("vit", "ViTForImageClassification", {"num_labels": 1000}, (224, 224)),
    "detr-r50": ("detr", "DetrForObjectDetection", {**_DETR, "backbone_config": {**_R50, **_C5}}, (800, 1066)),
    "rt-detr-v2-r50": (
        "rt_detr_v2",
        "RTDetrV2ForObjectDetection",
        {"backbone_config": {**_R50, **_C3_TO_C5}},
        (640, 640),
    ),
}


def save_model(name: str, folder: Path) -> None:
    """Save a model to a folder, as transformers does."""
    import torch
    import transformers

    torch.manual_seed(0)
    model_type, architecture, fields, size = MODELS[name]
    model = getattr(transformers, architecture)(transformers.AutoConfig.for_model(model_type, **fields)).eval()
    for weight in model.parameters():
        if weight.dim() == 4:
            torch.nn.init.kaiming_normal_(weight)
        elif weight.dim() > 1 and not weight.any():  # transformers initializes some to zero, which would disable them
            torch.nn.init.normal_(weight, 0.0, 0.1 * weight[0].numel() ** -0.5)
    _normalize(model, torch.randn(1, 3, *size))
    model.save_pretrained(folder)


def _normalize(model: torch.nn.Module, pixels: torch.Tensor) -> None:
    """Set every batch norm to the statistics of one image; those that end a residual branch get a small weight.

    Trained models have both. transformers initializes some weights to about 0.01, which multiply layer by layer until
    fp16 holds only zeros; with 1 everywhere, 16 random residual blocks amplify rounding errors by 200.
    """
    import torch

    def normalize(norm: Any, given: torch.Tensor, weight: float) -> None:
        norm.running_mean.copy_(given.mean((0, 2, 3)))
        norm.running_var.copy_(given.var((0, 2, 3)))
        norm.weight.data.fill_(weight)

    handles = []
    for name, norm in model.named_modules():
        if hasattr(norm, "running_var"):
            weight = _RESIDUAL_WEIGHT if name.endswith("layer.2.normalization") else 1.0
            handles.append(
                norm.register_forward_pre_hook(lambda norm, given, weight=weight: normalize(norm, given[0], weight))
            )
    with torch.no_grad():
        model(pixel_values=pixels)
    for handle in handles:
        handle.remove()

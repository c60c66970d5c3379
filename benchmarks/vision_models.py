"""transformers' vision models through ONNX: which ones build, and their errors against transformers.

Each has its family's structure with few blocks, random weights, and random batch norm statistics.
`python -m benchmarks.vision_models [NAME...]` measures all models or some, and writes docs/vision-models.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import RESULTS, write, write_between
from trtkit.builder.build import build_bundle
from trtkit.config.schema import ModelConfig
from trtkit.errors import TrtkitError
from trtkit.jobs.runner import ChildRunner
from trtkit.verification.verdict import verdict
from trtkit.verification.verify import VerifySettings, verify_bundle

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = dict[str, Any]
DOCUMENT = Path(__file__).parents[1] / "docs/vision-models.md"
PATH = RESULTS / "vision_models.json"
SIZE = 128
_FEW, _STAGES = {"num_hidden_layers": 3}, {"depths": [1, 1, 2, 1]}
_FLAT: Json = {"depths": [1, 1, 1, 1]}
_AS_IT_IS: Json = {}
_TINY = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
_TWO_TOWERS = {"vision_config": _FEW | {"image_size": SIZE}, "text_config": _FEW}
_RESNET = {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
_SWIN = {
    "model_type": "swin",
    "image_size": SIZE,
    "embed_dim": 32,
    "depths": [1, 1, 2, 1],
    "num_heads": [1, 2, 4, 8],
    "window_size": 4,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
_DETR = {
    "use_timm_backbone": False,
    "backbone_config": {**_RESNET, "out_features": ["stage4"]},
    "d_model": 64,
    "hidden_size": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_queries": 20,
}
_ALL_LEVELS = {"backbone_config": {**_RESNET, "out_features": ["stage2", "stage3", "stage4"]}}
_NECK = {"neck_hidden_sizes": [16, 32, 48, 64], "fusion_hidden_size": 32}
_PLAIN = {"out_indices": [1, 2, 3, 4], "reshape_hidden_states": False}

CLASSIFIERS: dict[str, Json] = {
    **dict.fromkeys(("beit", "data2vec-vision", "deit", "dinov2", "dinov2_with_registers", "ijepa"), _FEW),
    **dict.fromkeys(("vit", "vit_msn"), _FEW),
    **dict.fromkeys(("convnext", "convnextv2", "focalnet", "poolformer", "regnet", "resnet"), _STAGES),
    **dict.fromkeys(("swiftformer", "swinv2"), _STAGES),
    **dict.fromkeys(("donut-swin", "swin"), _STAGES | {"image_size": 224}),
    **dict.fromkeys(("bit", "pvt", "pvt_v2", "segformer"), _FLAT),
    **dict.fromkeys(("hgnet_v2", "mobilenet_v1", "mobilenet_v2", "mobilevit"), _AS_IT_IS),
    **dict.fromkeys(("cvt", "mobilevitv2", "pp_lcnet", "textnet"), _AS_IT_IS),
    **dict.fromkeys(("clip", "siglip"), _TWO_TOWERS),
    "efficientnet": {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280},
    "hiera": _STAGES | {"image_size": [224, 224]},
    "levit": {"depths": [1, 1, 1], "image_size": 224},
}
_DPT = {**_TINY, **_NECK, "image_size": SIZE, "backbone_out_indices": [0, 1, 2, 3]}
_ANYTHING = {**_NECK, "backbone_config": {"model_type": "dinov2", **_TINY, **_PLAIN}, "reassemble_hidden_size": 64}
_MASKS = {"backbone_config": _SWIN, "mask_feature_size": 64, "num_queries": 20}
_DECODER = {**_DETR, "model_type": "detr"}
DENSE: dict[str, Json] = {
    "SegformerForSemanticSegmentation": {"depths": [1, 1, 1, 1]},
    "BeitForSemanticSegmentation": {**_TINY, "image_size": SIZE, "out_indices": [1, 2, 3, 4]},
    "MobileViTForSemanticSegmentation": {},
    "MobileNetV2ForSemanticSegmentation": {},
    "UperNetForSemanticSegmentation": {"backbone_config": _SWIN, "hidden_size": 64, "auxiliary_in_channels": 128},
    "DPTForDepthEstimation": _DPT,
    "DepthAnythingForDepthEstimation": _ANYTHING,
    "GLPNForDepthEstimation": {"depths": [1, 1, 1, 1]},
    "Mask2FormerForUniversalSegmentation": {**_MASKS, "feature_size": 64, "hidden_dim": 64, "encoder_layers": 2},
    "MaskFormerForInstanceSegmentation": {**_MASKS, "fpn_feature_size": 64, "decoder_config": _DECODER},
    "Swin2SRForImageSuperResolution": {"image_size": 32, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 2]},
    "YolosForObjectDetection": {**_TINY, "image_size": [SIZE, SIZE], "num_detection_tokens": 20},
    "DetrForObjectDetection": _DETR,
    "ConditionalDetrForObjectDetection": _DETR,
    "DabDetrForObjectDetection": _DETR,
    "TableTransformerForObjectDetection": _DETR,
    "DeformableDetrForObjectDetection": {**_DETR, **_ALL_LEVELS},
}


def models() -> dict[str, Json]:
    """Return all models: config fields by transformers' class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as NAMES

    first = {name: found if isinstance(found, str) else found[0] for name, found in NAMES.items()}
    return {first[name]: fields for name, fields in sorted(CLASSIFIERS.items())} | DENSE


def save_model(architecture: str, fields: Json, folder: Path) -> tuple[int, int]:
    """Save a model to a folder, as transformers does; return the size of its images."""
    import torch
    import transformers

    torch.manual_seed(0)
    made = getattr(transformers, architecture)
    model = made(made.config_class(**({"image_size": SIZE} | fields))).eval()
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
        elif name.endswith("running_mean"):
            buffer.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    size = fields.get("image_size", SIZE)
    return (size[0], size[1]) if isinstance(size, list) else (size, size)


def figures(architecture: str, fields: Json) -> Json:
    """Build a model for one to four images, and verify it."""
    with tempfile.TemporaryDirectory(prefix="trtkit-vision-") as scratch:
        folder = Path(scratch) / "model"
        size = save_model(architecture, fields, folder)
        asked = {"name": "m", "source": {"hf": str(folder)}, "route": "onnx", "image_size": size}
        config = ModelConfig.model_validate({**asked, "profiles": [{"batch": [1, 2, 4]}]})
        try:
            bundle = build_bundle(config, Path(scratch) / "bundle", ChildRunner(), use_cache=False).bundle
            report = verify_bundle(bundle, VerifySettings(), ChildRunner())
        except TrtkitError as error:
            return {"error": error.what}
    errors = {name: output.relative_rms_error for name, output in report.outputs.items()}
    return {"layers": bundle.manifest.totals.layers, "relative_rms_error": errors, "verdict": verdict(report)}


def table(results: dict[str, Json]) -> str:
    """Return the table in the docs."""
    rows = ["| class of transformers | layers | relative RMS error | |", "| --- | --: | --- | --- |"]
    for name, found in results.items():
        errors = ", ".join(f"`{key}` {error:.1e}" for key, error in found.get("relative_rms_error", {}).items())
        rows.append(f"| `{name}` | {found.get('layers', '')} | {errors} | {found.get('verdict', found.get('error'))} |")
    return "\n".join(rows) + "\n"


def main(names: Sequence[str] = ()) -> None:
    """Measure the named models, or all; write the results and the table, keeping those of the others."""
    every = models()
    results: dict[str, Json] = json.loads(PATH.read_text(encoding="utf-8"))["models"] if names else {}
    for name in names or every:
        results[name] = figures(name, every[name])
        print(name, json.dumps(results[name]), flush=True)
        write("vision_models", {"image_size": SIZE, "models": results})
    write_between(DOCUMENT, "vision models", table(results))


if __name__ == "__main__":
    main(sys.argv[1:])

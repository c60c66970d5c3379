"""Hybrids by both routes: the whole model through ONNX, and ONNX with the network API. Layers, build time, errors.

The models have transformers' classes and published sizes, and random weights. Errors are of the reference executor on
the network that TensorRT-RTX builds, against transformers in fp32.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import ignore_event, write
from trtkit.config.schema import ModelConfig
from trtkit.engine.build import build_bundle
from trtkit.engine.cache import cache_folder
from trtkit.verify.verify import Request, verify_bundle

ROUTES = {"onnx": {"route": "onnx"}, "fused": {"compose": "fused"}, "chained": {"compose": "chained"}}
DOCS = Path(__file__).parents[1] / "docs" / "hybrids.md"
MARKS = ("<!-- routes -->", "<!-- end of routes -->")
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
_TINY_VIT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}

# Name: model type, class, config, image size.
MODELS: dict[str, tuple[str, str, dict[str, Any], tuple[int, int]]] = {
    "vit-tiny": ("vit", "ViTForImageClassification", {**_TINY_VIT, "image_size": 64, "patch_size": 16}, (64, 64)),
    "vit-base": ("vit", "ViTForImageClassification", {"num_labels": 1000}, (224, 224)),
    "detr-tiny": (
        "detr",
        "DetrForObjectDetection",
        {**_DETR, **_TINY_DETR, "backbone_config": {**_TINY, **_C5}},
        (128, 160),
    ),
    "detr-r50": ("detr", "DetrForObjectDetection", {**_DETR, "backbone_config": {**_R50, **_C5}}, (800, 1056)),
    "rt-detr-v2-tiny": (
        "rt_detr_v2",
        "RTDetrV2ForObjectDetection",
        {**_TINY_RT, "backbone_config": {**_TINY, **_C3_TO_C5}},
        (128, 160),
    ),
    "rt-detr-v2-r50": (
        "rt_detr_v2",
        "RTDetrV2ForObjectDetection",
        {"backbone_config": {**_R50, **_C3_TO_C5}},
        (640, 640),
    ),
}


def model_folder(name: str) -> Path:
    """Return a folder with the model as transformers saves it, made where it is not there yet."""
    folder = cache_folder().parent / "trtkit-benchmarks" / name
    if not (folder / "model.safetensors").exists():
        _save(name, folder)
    return folder


def _save(name: str, folder: Path) -> None:
    """Write random weights that keep activations in range: He for convolutions, which feature maps then differ by."""
    import torch
    import transformers

    torch.manual_seed(0)
    model_type, architecture, fields, _ = MODELS[name]
    model = getattr(transformers, architecture)(transformers.AutoConfig.for_model(model_type, **fields))
    for weight in model.parameters():
        if weight.dim() > 1:
            deviation = (2.0 if weight.dim() == 4 else 1.0) ** 0.5 * weight[0].numel() ** -0.5
            torch.nn.init.normal_(weight, 0.0, deviation)
    model.save_pretrained(folder)


def figures(name: str, route: str, precision: str) -> dict[str, Any]:
    """Build and verify a model by one route, for batches of one."""
    config = ModelConfig.model_validate(
        {
            "name": name,
            "source": {"hf": str(model_folder(name))},
            "image_size": MODELS[name][3],
            "precision": precision,
            "profiles": [{"batch": 1}],
            "verify": {"pair_rows": name.startswith("rt-detr")},
            **ROUTES[route],
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        bundle = build_bundle(config, Path(folder) / "bundle", ignore_event, use_cache=False).bundle
        found = verify_bundle(bundle, Request(corners=False), ignore_event)
    manifest = bundle.manifest
    return {
        "layers": manifest.totals["layers"],
        "attention_layers": manifest.totals["layers_by_type"].get("ATTENTION_INPUT", 0),
        "engine_mib": round(sum(engine.size_bytes for engine in manifest.engines) / 2**20, 1),
        "prepare_s": manifest.metrics.prepare_s,
        "build_s": round(manifest.metrics.parse_s + manifest.metrics.describe_s + manifest.metrics.build_s, 2),
        "peak_memory_mib": manifest.metrics.peak_memory_mib,
        "relative_rms_error": {key: value["relative_rms_error"] for key, value in found["outputs"].items()},
        "cosine": {key: value["cosine"] for key, value in found["outputs"].items()},
        "parts": {part["name"]: part["relative_rms_error"] for part in found["parts"]},
        "passed": found["passed"],
    }


def table(results: dict[str, Any]) -> str:
    """Return the results as the rows that docs/hybrids.md shows."""
    titles = ("layers", "attention layers", "engine, MiB", "prepare, s", "write and build, s", "error")
    head = f"| model | type | route | {' | '.join(titles)} |"
    rows = [head, "| --- | --- | --- | --: | --: | --: | --: | --: | --- |"]
    for name, precisions in results.items():
        for precision, routes in precisions.items():
            for route, found in routes.items():
                errors = ", ".join(_error(key, value) for key, value in found["relative_rms_error"].items())
                numbers = [found[key] for key in ("layers", "attention_layers", "engine_mib", "prepare_s", "build_s")]
                cells = [name, precision, route, *(str(number) for number in numbers), errors]
                rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _error(name: str, error: float | None) -> str:
    return f"{name} {'not finite' if error is None else f'{error:.1e}'}"


def write_docs(results: dict[str, Any]) -> None:
    """Put the table between its marks in docs/hybrids.md."""
    before, _, rest = DOCS.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    DOCS.write_text(f"{before}{MARKS[0]}\n{table(results)}{MARKS[1]}{after}", encoding="utf-8")


def main() -> None:
    """Measure and write the results, tiny models in every way first."""
    results: dict[str, Any] = {}
    for name in sorted(MODELS, key=lambda name: not name.endswith("tiny")):
        is_tiny = name.endswith("tiny")
        for precision in ("fp32", "fp16") if is_tiny else ("fp32",):
            for route in ROUTES if is_tiny else ("onnx", "fused"):
                results.setdefault(name, {}).setdefault(precision, {})[route] = figures(name, route, precision)
                print(name, precision, route, json.dumps(results[name][precision][route]), flush=True)
        path = write("routes", {"routes": results})
        write_docs(results)
    print(path)


if __name__ == "__main__":
    main()

"""The vision tower of a vision-language model: the stage before its language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.builder.jobs import TowerStage
from trtkit.bundle.records import ImagesRecord
from trtkit.config.llm import LlmOptions, VisionOptions
from trtkit.config.schema import DimRange, ModuleInput, TorchSource
from trtkit.errors import ConfigError, Problem, ProblemsError, QuantizeError, SourceError, reader
from trtkit.inputs.samples import Sample, sample_files
from trtkit.inputs.vision_language import ImageForm, ImageReader
from trtkit.models.model import VISION
from trtkit.models.vision_language.registry import vision_spec
from trtkit.models.vision_language.spec import VisionLimits
from trtkit.quantization_methods import methods_for, needs_data
from trtkit.sources import package_file
from trtkit.sources.safetensors_file import json_object

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.config.schema import ModelConfig
    from trtkit.models.vision_language.spec import VisionSpec
    from trtkit.network.onnx.io import OnnxTensorSpec

# The files that transformers reads for an image processor.
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class OpenedVision:
    """A vision tower ready to be built. images: how a prompt holds its soft tokens."""

    spec: VisionSpec
    stage: TowerStage
    images: ImagesRecord


def open_vision(config: ModelConfig) -> OpenedVision:
    """Open the vision tower of a config that takes images. Raises SourceError, ProblemsError."""
    assert config.source.hf is not None
    folder = package_file.resolve(str(package_file.hf_folder(config.source)))
    return _open_vision(folder, config)


@reader
def _open_vision(folder: Path, config: ModelConfig) -> OpenedVision:
    from trtkit.sources.vision_language.load import whole_config

    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        what = "`preprocessor_config.json` is missing, which defines the image preprocessing"
        raise SourceError(what, str(folder), "copy the complete folder, or set `vision.enabled=false` for text only")
    fields, options = whole_config(folder), config.vision or VisionOptions()
    prefill = (config.llm or LlmOptions()).max_prefill_length
    limits = VisionLimits(options.max_images, options.max_tokens or _most_tokens(folder, fields, config), prefill)
    spec = vision_spec(fields, limits, str(folder / "config.json"))
    _check(spec, fields, folder)
    _check_blocks(spec, limits)
    return OpenedVision(spec, _tower_stage(config, spec, limits, folder), _images_record(spec, limits))


def _images_record(spec: VisionSpec, limits: VisionLimits) -> ImagesRecord:
    first = next(iter(spec.inputs.values()))
    return ImagesRecord(
        model_type=spec.model_type,
        layout=spec.layout,
        image_token_id=spec.image_token_id,
        tokens_per_image=spec.tokens_per_image,
        pixel_shape=tuple(dim if isinstance(dim, int) else -1 for dim in first.shape[1:]),
        merge_size=spec.merge_size,
        window_size=spec.window_size,
        has_grid_positions=spec.traits.has_grid_positions,
        max_images=limits.images,
        max_tokens=limits.tokens,
        max_block=limits.prefill if spec.traits.has_whole_images else 0,
        frame=spec.frame,
        position_side=spec.position_side,
    )


def _tower_stage(config: ModelConfig, spec: VisionSpec, limits: VisionLimits, folder: Path) -> TowerStage:
    """Return the tower's stage: a torch module that returns `soft_tokens`."""
    most = limits.tokens if spec.layout == "patches" else limits.images
    usual = max(1, most // 4) if spec.layout == "patches" else 1
    options = config.vision or VisionOptions()
    quantize = None if config.quantize is None else config.quantize.parts.get(VISION)
    pixels = next(iter(spec.inputs.values())).shape[1:]
    return TowerStage(
        name=VISION,
        part_names=("tower",),
        folder=folder,
        source=TorchSource(
            factory=spec.module,
            kwargs={"folder": str(folder), **(spec.arguments or {})},
            inputs={name: ModuleInput(shape=item.shape, dtype=item.dtype) for name, item in spec.inputs.items()},
            outputs=("soft_tokens",),
        ),
        sizes={spec.symbol: DimRange(min=1, opt=usual, max=most)},
        precision=options.precision or config.precision,
        keep_fp32=options.keep_fp32,
        fold_constants=config.fold_constants,
        custom_ops=config.custom_ops,
        quantize=None if quantize is None or quantize.is_idle else quantize,
        images=ImageForm(
            spec.layout,
            pixels,
            spec.tokens_per_image,
            spec.merge_size,
            spec.window_size,
            limits.tokens,
            spec.position_side,
        ),
    )


def _most_tokens(folder: Path, fields: dict[str, Any], config: ModelConfig) -> int:
    """Return the token count of the largest image that the image processor allows, limited by the slot."""
    vision, room = fields["vision_config"], (config.llm or LlmOptions()).max_sequence_length
    image_fields, joint = (json_object(folder / name) for name in PROCESSOR_FILES)
    processor = image_fields or joint.get("image_processor", {})
    size = processor.get("size")
    pixels = processor.get("max_pixels") or (size.get("longest_edge") if isinstance(size, dict) else None)
    if not pixels or "spatial_merge_size" not in vision:
        return room
    edge = int(vision["patch_size"]) * int(vision["spatial_merge_size"])
    return max(1, min(room, int(pixels) // edge**2))


def _check(spec: VisionSpec, fields: dict[str, Any], folder: Path) -> None:
    """Raise ProblemsError if tower and language model do not match."""
    text, where = fields["text_config"], str(folder / "config.json")
    problems = []
    if spec.image_token_id >= int(text["vocab_size"]):
        what = f"`image_token_id` {spec.image_token_id} must be below `text_config.vocab_size`, {text['vocab_size']}"
        problems.append(Problem(what, where))
    if spec.layout != "patches" and spec.tokens_per_image < 1:
        vision = fields["vision_config"]
        what = f"an image of {vision['image_size']} pixels is too small for patches of {vision['patch_size']}"
        problems.append(Problem(what, where))
    if problems:
        raise ProblemsError(f"the parts of `{spec.model_type}` do not fit together", problems)


def _check_blocks(spec: VisionSpec, limits: VisionLimits) -> None:
    """Raise ConfigError if a call of the language model cannot hold an image whose tokens attend to each other."""
    tokens = spec.tokens_per_image
    if spec.traits.has_whole_images and tokens > limits.prefill:
        what = f"{limits.prefill} is below the {tokens} tokens of an image, which see each other"
        problem = Problem(what, "llm.max_prefill_length", f"raise it to {tokens} or more")
        raise ConfigError("the config does not fit its source", [problem])


def check_calibration(tower: TowerStage) -> None:
    """Refuse images as calibration data for a tower that takes images at their own sizes. Raises QuantizeError."""
    options = tower.quantize
    if tower.images is None or tower.images.layout != "patches" or options is None or not needs_data(options.method):
        return
    data = options.calibration.data
    if data is not None and any(path.suffix != ".npz" for path in sample_files(package_file.resolve(data))):
        what = "calibration is not yet supported for towers with variable image sizes"
        fix = f"use {' or '.join(name for name in methods_for('vision') if not needs_data(name))}"
        raise QuantizeError(what, f"{tower.key}.method", fix)


def pixel_samples(tower: TowerStage, files: Sequence[Path], _inputs: Sequence[OnnxTensorSpec]) -> list[Sample]:
    """Return a sample [1, C, H, W] of each picture, or of each tile of each image, from the image processor.

    Raises RequestError for files that are not images.
    """
    assert tower.images is not None
    reader = ImageReader(tower.images, tower.folder)
    pixels = {file: reader.prepare(file).inputs["pixel_values"] for file in files}
    return [
        Sample(f"{file.name}#{index}", {"pixel_values": tiles[index : index + 1]})
        for file, tiles in pixels.items()
        for index in range(len(tiles))
    ]

"""A vision-language model's two networks: which config has them, and the vision tower as a config of its own."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.bundle.records import ImagesRecord
from trtkit.config.llm import LlmOptions, VisionOptions
from trtkit.config.quantize import QuantizeOptions, whole
from trtkit.config.schema import ModelConfig, ModuleInput, Source, TorchSource
from trtkit.errors import ConfigError, Problem, ProblemsError, QuantizeError, SourceError, reader
from trtkit.files import scratch_folder
from trtkit.inputs.samples import sample_files
from trtkit.inputs.vision_language import ImageForm, ImageReader
from trtkit.models.model import VISION
from trtkit.models.vision_language.registry import vision_spec
from trtkit.models.vision_language.spec import VisionLimits
from trtkit.quantization.vision.data import spread
from trtkit.quantization_methods import methods_for, needs_data
from trtkit.sources import package_file
from trtkit.sources.safetensors_file import json_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trtkit.models.vision_language.spec import VisionSpec

# What transformers reads for an image processor.
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class OpenedVision:
    """A vision tower that is to be built. config: of the tower alone, a torch module that is exported."""

    spec: VisionSpec
    limits: VisionLimits
    config: ModelConfig
    folder: Path


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
    return OpenedVision(spec, limits, _tower_config(config, spec, limits, folder), folder)


def images_record(opened: OpenedVision) -> ImagesRecord:
    """Return how a prompt holds the tower's soft tokens."""
    spec = opened.spec
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
        max_images=opened.limits.images,
        max_tokens=opened.limits.tokens,
        max_block=opened.limits.prefill if spec.traits.has_whole_images else 0,
        frame=spec.frame,
        position_side=spec.position_side,
    )


def _tower_config(config: ModelConfig, spec: VisionSpec, limits: VisionLimits, folder: Path) -> ModelConfig:
    """Return the config that builds the tower: `soft_tokens` from a torch module."""
    most = limits.tokens if spec.layout == "patches" else limits.images
    usual = max(1, most // 4) if spec.layout == "patches" else 1
    dims: Any = [1, usual, most]
    options = config.vision or VisionOptions()
    return ModelConfig(
        name=VISION,
        source=Source(
            torch=TorchSource(
                factory=spec.module,
                kwargs={"folder": str(folder), **(spec.arguments or {})},
                inputs={name: ModuleInput(shape=item.shape, dtype=item.dtype) for name, item in spec.inputs.items()},
                outputs=("soft_tokens",),
            )
        ),
        precision=options.precision or config.precision,
        keep_fp32=options.keep_fp32,
        profiles=({spec.symbol: dims},),
        target=config.target,
        build=config.build,
        custom_ops=config.custom_ops,
        fold_constants=config.fold_constants,
        quantize=None if config.quantize is None else _tower_options(config.quantize),
    )


def _tower_options(options: QuantizeOptions) -> QuantizeOptions | None:
    """Return how the tower is quantized; None if it stays as it is."""
    vision = options.parts.get(VISION)
    return None if vision is None or vision.is_idle else whole(vision)


def _most_tokens(folder: Path, fields: dict[str, Any], config: ModelConfig) -> int:
    """Return the tokens of the largest image that the image processor lets through, as far as a slot holds them."""
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
    """Raise ProblemsError where tower and language model do not fit each other."""
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
    """Raise ConfigError where a call of the language model cannot hold an image whose tokens see each other."""
    tokens = spec.tokens_per_image
    if spec.traits.has_whole_images and tokens > limits.prefill:
        what = f"{limits.prefill} is below the {tokens} tokens of an image, which see each other"
        problem = Problem(what, "llm.max_prefill_length", f"raise it to {tokens} or more")
        raise ConfigError("the config does not fit its source", [problem])


@contextmanager
def measured_on_arrays(opened: OpenedVision) -> Iterator[ModelConfig]:
    """Give the tower's config while it is built, its calibration images turned into an .npz file.

    Raises QuantizeError for images of a tower that takes each at its own size, RequestError for what is not an image.
    """
    options = opened.config.quantize
    if options is None or not needs_data(options.method) or options.calibration.data is None:
        yield opened.config
        return
    images = [path for path in sample_files(package_file.resolve(options.calibration.data)) if path.suffix != ".npz"]
    if not images:
        yield opened.config
        return
    if opened.spec.layout == "patches":
        what = "calibration is not yet supported for towers with variable image sizes"
        raise QuantizeError(
            what,
            "quantize.method",
            f"use {' or '.join(name for name in methods_for('vision') if not needs_data(name))}",
        )
    pixels = _pixels(opened, spread(images, options.calibration.samples))
    with scratch_folder() as folder:
        path = folder / "images.npz"
        np.savez(path, pixel_values=pixels)
        data = options.calibration.model_copy(update={"data": str(path), "samples": len(pixels)})
        yield opened.config.model_copy(update={"quantize": options.model_copy(update={"calibration": data})})


def _pixels(opened: OpenedVision, images: Sequence[Path]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return pictures, or tiles of all images, [N, C, H, W]."""
    spec = opened.spec
    sizes = spec.inputs["pixel_values"].shape[1:]
    form = ImageForm(spec.layout, sizes, spec.tokens_per_image, spec.merge_size, spec.window_size, opened.limits.tokens)
    reader = ImageReader(form, opened.folder)
    return np.concatenate([reader.prepare(path).inputs["pixel_values"] for path in images])

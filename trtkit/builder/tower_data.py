"""The data that a vision tower is measured on: images, as the model's own image processor gives them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import QuantizeError
from trtkit.files import scratch_folder
from trtkit.inputs.samples import sample_files
from trtkit.inputs.vision_language import ImageForm, ImageReader
from trtkit.quantization.vision.data import spread
from trtkit.quantization_methods import methods_for, needs_data
from trtkit.sources import package_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trtkit.builder.vision_language import OpenedVision
    from trtkit.config.schema import ModelConfig


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

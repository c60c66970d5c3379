"""The vision tower of a bundle, on TensorRT or on the reference executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trtkit.backends import load_backend
from trtkit.builder.stages import plan_files
from trtkit.llm.execution import engine_device
from trtkit.models.model import VISION
from trtkit.reference import Executor
from trtkit.runtime.stages import engine_stages, parsed_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.records import ImagesRecord
    from trtkit.inputs.vision_language import PreparedImage
    from trtkit.serving_options import Runtime


class VisionTower:
    """Turns prepared images into soft tokens. run: the network, inputs and outputs by name."""

    def __init__(self, record: ImagesRecord, run: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        self._record, self._run = record, run

    def soft_tokens(self, images: Sequence[PreparedImage]) -> torch.Tensor:
        """Return the vectors [P, D] of all images, on the host, in order."""
        if self._record.layout == "patches":
            return torch.cat([self._vectors(image.inputs) for image in images])
        pixels = torch.cat([torch.from_numpy(image.inputs["pixel_values"]) for image in images])
        most = self._record.max_images
        parts = (pixels[first : first + most] for first in range(0, len(pixels), most))
        return torch.cat([self._vectors({"pixel_values": part}) for part in parts])

    def _vectors(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return the vectors of one call [P, D], which the next call may overwrite."""
        vectors = torch.as_tensor(self._run(inputs)["soft_tokens"]).detach()
        return vectors.reshape(-1, vectors.shape[-1]).clone()


def open_tower(bundle: Bundle, runtime: Runtime = "auto") -> VisionTower:
    """Open the tower of a bundle. Raises BundleError if its file is not the one that was built."""
    record = bundle.manifest.images
    assert record is not None
    device = engine_device(runtime)
    if device is not None:
        bundle.check_network()
        backend = load_backend(bundle.manifest.backend.name)
        return VisionTower(record, engine_stages(backend, plan_files(bundle)[:1], ["soft_tokens"], device).run)
    if (layers := bundle.layers(VISION)) is not None:
        return VisionTower(record, Executor(layers).run)
    bundle.check_network()
    return reference_tower(record, load_backend(bundle.manifest.backend.name), bundle.onnx_path(VISION))


def reference_tower(record: ImagesRecord, backend: Backend, onnx: Path) -> VisionTower:
    """Return a tower on the reference executor. onnx: the file that TensorRT parses."""
    return VisionTower(record, parsed_run(backend, onnx))

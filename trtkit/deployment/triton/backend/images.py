"""Python backend model that converts image bytes to a network's input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.config.task import Preprocess
from trtkit.deployment.answers import PLACEMENT, placement_row
from trtkit.deployment.triton.backend.requests import answer, arrays_of, read_settings, refusal
from trtkit.errors import SourceError
from trtkit.inputs.images import decode_image, image_bytes, input_size, placement
from trtkit.inputs.samples import picture_input

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.arrays import Arrays


class ImageModel:
    """The class that Triton's Python backend calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the config's preprocessing."""
        settings = read_settings(args)
        self._preprocess = Preprocess.model_validate(settings["preprocess"])
        self._output, self._dtype, self._is_placed = settings["output"], settings["dtype"], settings["is_placed"]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            (images,) = arrays_of(request).values()
            return answer(self._outputs(list(images.reshape(-1))))
        except Exception as error:
            return refusal(error)

    def _outputs(self, images: Sequence[bytes]) -> Arrays:
        """Return the images as one batch, and each one's placement in its input if boxes are read later.

        Raises SourceError if their sizes would differ.
        """
        names = [f"image {index}" if len(images) > 1 else "image" for index in range(len(images))]
        pictures = [decode_image(image_bytes(data), name) for data, name in zip(images, names, strict=True)]
        inputs = [picture_input(picture, self._preprocess, self._dtype) for picture in pictures]
        sizes = {input_size(image, self._preprocess) for image in inputs}
        if len(sizes) > 1:
            listed = ", ".join(f"{height}x{width}" for width, height in sorted(sizes, key=lambda size: size[::-1]))
            raise SourceError(f"images of one request have different sizes: {listed}", "image", "send one per request")
        outputs = {self._output: np.concatenate(inputs)}
        if self._is_placed:
            size = next(iter(sizes))
            rows = [placement_row(placement(picture.size, self._preprocess), size) for picture in pictures]
            outputs[PLACEMENT] = np.array(rows, dtype=np.float32)
        return outputs

"""The bytes of images as a network's input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.config.task import Preprocess
from trtkit.deployment.triton.backend.requests import answer, arrays_of, refusal
from trtkit.deployment.triton.backend.settings import read_settings
from trtkit.errors import SourceError
from trtkit.inputs.images import decode_image, image_input
from trtkit.inputs.samples import as_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.arrays import Array


class ImageModel:
    """What Triton's Python backend calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read how the config makes an input of an image."""
        settings = read_settings(args)
        self._preprocess = Preprocess.model_validate(settings["preprocess"])
        self._output, self._dtype = settings["output"], settings["dtype"]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            (images,) = arrays_of(request).values()
            return answer({self._output: self._inputs(list(images.reshape(-1)))})
        except Exception as error:
            return refusal(error)

    def _inputs(self, images: Sequence[bytes]) -> Array:
        """Return the images as one batch. Raises SourceError where they would not have one size."""
        names = [f"image {index}" if len(images) > 1 else "image" for index in range(len(images))]
        inputs = [
            image_input(decode_image(data, name), self._preprocess) for data, name in zip(images, names, strict=True)
        ]
        sizes = {each.shape[2:] for each in inputs}
        if len(sizes) > 1:
            listed = ", ".join(f"{height}x{width}" for height, width in sorted(sizes))
            raise SourceError(f"images of one request have different sizes: {listed}", "image", "send one a request")
        return as_dtype(np.concatenate(inputs), self._dtype)

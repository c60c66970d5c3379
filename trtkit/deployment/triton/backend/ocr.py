"""Python backend model that reads a page of text with two other models: one finds lines, one reads them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

from trtkit.deployment.triton.backend.requests import answer, arrays_of, read_settings, refusal
from trtkit.errors import DeployError
from trtkit.inputs.images import decode_image, image_bytes, image_input
from trtkit.inputs.samples import as_dtype
from trtkit.runtime.page import PageReader, find_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.arrays import Array


class OcrModel:
    """The class that Triton's Python backend calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read how pages are processed, and by which models."""
        settings = read_settings(args)
        self._reader = PageReader.model_validate(settings["reader"])
        self._detector, self._recognizer = settings["detector"], settings["recognizer"]

    async def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request."""
        return list(await asyncio.gather(*(self._answer(request) for request in requests)))

    async def _answer(self, request: Any) -> Any:
        try:
            (images,) = arrays_of(request).values()
            page = decode_image(image_bytes(images.reshape(-1)[0]), "image")
            heatmap = await _ask(self._detector, image_input(page, self._reader.detector))
            boxes = find_lines(heatmap[0, 0], page.size)
            lines = [_ask(self._recognizer, line) for line in self._reader.lines(page, boxes)]
            return answer(self._reader.answer(boxes, await asyncio.gather(*lines)))
        except Exception as error:
            return refusal(error)


async def _ask(port: Mapping[str, str], x: Array) -> Array:
    """Return another model's output for x. Raises DeployError with its message if it refuses."""
    request = pb_utils.InferenceRequest(
        model_name=port["model"],
        requested_output_names=[port["output"]],
        inputs=[pb_utils.Tensor(port["input"], as_dtype(x, port["dtype"]))],
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
    )
    response = await request.async_exec()
    if response.has_error():
        raise DeployError(response.error().message(), port["model"])
    output: Array = pb_utils.get_output_tensor_by_name(response, port["output"]).as_numpy()
    return output

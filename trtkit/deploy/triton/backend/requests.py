"""Requests and answers of Triton's Python backend."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtkit.errors import GenerationError, RequestError, TrtkitError

if TYPE_CHECKING:
    from collections.abc import Mapping

Array = np.ndarray[Any, Any]
log = logging.getLogger(__name__)


def arrays_of(request: Any) -> dict[str, Array]:
    """Return a request's inputs by name; text is an object array of bytes."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def answer(outputs: Mapping[str, Array]) -> Any:
    """Return a response with these outputs; text is an object array of bytes."""
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, np.ascontiguousarray(value)) for name, value in outputs.items()]
    )


def refusal(error: Exception) -> Any:
    """Return a response that says what is wrong.

    Clients get HTTP 400 for one of trtkit's errors, 503 where there is no room now, 500 for what is our fault.
    """
    if isinstance(error, GenerationError) and not isinstance(error, RequestError):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.UNAVAILABLE))
    if isinstance(error, TrtkitError):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
    log.exception("the model failed", exc_info=error)
    text = f"the model failed: {type(error).__name__}: {error}"
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INTERNAL))

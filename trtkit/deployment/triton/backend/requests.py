"""Requests and responses of Triton's Python backend, and the settings that a deployment stored next to a model."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtkit.errors import GenerationError, RequestError, SourceError, TrtkitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import Array

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
    """Return an error response.

    Clients of `infer` get HTTP 400 for invalid requests, 503 if there is no room now, 500 if the server failed. Triton
    answers those of `generate` with 400 whatever the code.
    """
    codes = pb_utils.TritonError
    if isinstance(error, (RequestError, SourceError)):
        return _error(str(error), codes.INVALID_ARG)
    if isinstance(error, GenerationError):
        return _error(str(error), codes.UNAVAILABLE)
    log.exception("the model failed", exc_info=error)
    kind = "" if isinstance(error, TrtkitError) else f"{type(error).__name__}: "
    return _error(f"the model failed: {kind}{error}", codes.INTERNAL)


def _error(text: str, code: Any) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))


def version_folder(args: Mapping[str, str]) -> Path:
    """Return the folder of the version that Triton loads. args: the argument of `initialize`."""
    return Path(args["model_repository"]) / args["model_version"]


def read_settings(args: Mapping[str, str]) -> dict[str, Any]:
    """Return the version's settings.json."""
    settings: dict[str, Any] = json.loads((version_folder(args) / "settings.json").read_text(encoding="utf-8"))
    return settings

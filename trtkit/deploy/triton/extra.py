"""The packages of the extra `triton`, which all of this needs."""

from __future__ import annotations

import importlib

from trtkit.errors import DeployError


def require_extra() -> None:
    """Raise DeployError where the client library is missing."""
    try:
        importlib.import_module("tritonclient.grpc")
    except ImportError as error:
        raise DeployError(f"Triton's client library is missing: {error}", fix="pip install 'trtkit[triton]'") from None

"""The packages of the extra `triton`, which deployment to Triton requires."""

import importlib


def require_extra() -> None:
    """Import the client library before any work is done, so that the command fails early if it is missing."""
    importlib.import_module("tritonclient.grpc")

"""The packages of the extra `triton`, which all of this needs."""

import importlib


def require_extra() -> None:
    """Import the client library before any work is done, so that a missing one ends the command at once."""
    importlib.import_module("tritonclient.grpc")

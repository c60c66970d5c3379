"""NVIDIA Dynamo, which all of this needs, and how it is installed."""

from __future__ import annotations

import importlib.util

from trtkit.errors import MissingPackageError

VERSION = "1.6.1"
INSTALL = f"pip install 'trtkit[dynamo]' && pip install --no-deps ai-dynamo=={VERSION}"


def require_dynamo() -> None:
    """Raise MissingPackageError where Dynamo is not installed.

    `ai-dynamo` asks for a package that PyPI does not have and that nothing here uses, hence `--no-deps`.
    """
    if importlib.util.find_spec("dynamo") is None or importlib.util.find_spec("dynamo.frontend") is None:
        raise MissingPackageError("serving a language model needs NVIDIA Dynamo", fix=INSTALL)

"""Checks that NVIDIA Dynamo and NIXL are installed, and how to install Dynamo."""

import importlib.util

from trtkit.errors import MissingPackageError
from trtkit.extras import install

VERSION = "1.6.1"
NIXL = "1.5.1"


def install_command() -> str:
    """Return the command that installs Dynamo without its dependencies: one is not on PyPI, and nothing needs it."""
    return f"{install('dynamo')} && pip install --no-deps ai-dynamo=={VERSION}"


def require_dynamo() -> None:
    """Raise MissingPackageError if Dynamo is not installed."""
    if importlib.util.find_spec("dynamo") is None or importlib.util.find_spec("dynamo.frontend") is None:
        raise MissingPackageError("serving a language model needs NVIDIA Dynamo", fix=install_command())


def require_nixl() -> None:
    """Raise MissingPackageError if NIXL is not installed."""
    if importlib.util.find_spec("nixl") is None:
        what = "prefill workers need NIXL, which moves caches between workers"
        raise MissingPackageError(what, fix=f"pip install --no-deps nixl=={NIXL} nixl-cu13=={NIXL}")

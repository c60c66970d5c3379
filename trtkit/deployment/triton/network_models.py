"""The models that compute a bundle's network: the library that built it decides which backend runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.deployment.triton.native_model import native_models
from trtkit.deployment.triton.tensor_model import tensor_model

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.deployment.triton.options import DeployOptions
    from trtkit.deployment.triton.served import ServedModel


def network_models(bundle: Bundle, name: str, options: DeployOptions) -> list[ServedModel]:
    """Return the models of the bundle's engines, those that others use first; the last one, `name`, is the network.

    Raises DeployError where an option does not fit the engine, or a tensor has a type that Triton does not know.
    """
    if bundle.manifest.backend.name == "tensorrt":
        return native_models(bundle, name, options)
    return [tensor_model(bundle, name, options)]

"""The only package that imports TensorRT: full `tensorrt` or `tensorrt_rtx`, as a `Backend` value to pass along."""

from trtkit.backends.backend import (
    BACKENDS,
    Backend,
    Features,
    choose_backend,
    load_backend,
    refused_gpus,
    runs_on,
    same_version,
    supported_gpus,
)
from trtkit.backends.gpu import Gpu, driver_version, list_gpus

__all__ = [
    "BACKENDS",
    "Backend",
    "Features",
    "Gpu",
    "choose_backend",
    "driver_version",
    "list_gpus",
    "load_backend",
    "refused_gpus",
    "runs_on",
    "same_version",
    "supported_gpus",
]

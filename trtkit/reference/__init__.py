"""The reference executor: an INetworkDefinition computed with torch, on CPU or CUDA."""

from trtkit.reference.arrays import to_array, to_tensor
from trtkit.reference.executor import Executor, InputSpec, Options

__all__ = ["Executor", "InputSpec", "Options", "to_array", "to_tensor"]

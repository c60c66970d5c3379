"""The reference executor: computes an INetworkDefinition with torch, on CPU or CUDA."""

from trtkit.network.layer_graph import LayerGraph, read_layers
from trtkit.network.onnx.parse import constants_from_onnx
from trtkit.reference.executor import Executor, NetworkInput, Options, run_ranks
from trtkit.reference.precision import to_array, to_tensor
from trtkit.reference.ranks import GlooRank, Rank, ThreadGroup

__all__ = [
    "Executor",
    "GlooRank",
    "LayerGraph",
    "NetworkInput",
    "Options",
    "Rank",
    "ThreadGroup",
    "constants_from_onnx",
    "read_layers",
    "run_ranks",
    "to_array",
    "to_tensor",
]

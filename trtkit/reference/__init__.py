"""The reference executor: an INetworkDefinition computed with torch, on CPU or CUDA."""

from trtkit.reference.arrays import to_array, to_tensor
from trtkit.reference.executor import Executor, NetworkInput, Options, run_ranks
from trtkit.reference.ranks import GlooRank, Group, Rank
from trtkit.reference.side_table import constants_from_onnx

__all__ = [
    "Executor",
    "GlooRank",
    "Group",
    "NetworkInput",
    "Options",
    "Rank",
    "constants_from_onnx",
    "run_ranks",
    "to_array",
    "to_tensor",
]

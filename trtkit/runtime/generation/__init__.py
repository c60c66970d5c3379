"""Many requests on one decoder: in-flight batching, prefix reuse, beams, speculation."""

from trtkit.runtime.generation.engine import Engine
from trtkit.runtime.generation.head_proposer import HeadProposer
from trtkit.runtime.generation.host_tier import CacheFolder
from trtkit.runtime.generation.options import EngineOptions
from trtkit.runtime.generation.proposers import DraftProposer, LookupProposer
from trtkit.runtime.generation.request import Finished, Metrics, Request
from trtkit.runtime.generation.state import Statistics

__all__ = [
    "CacheFolder",
    "DraftProposer",
    "Engine",
    "EngineOptions",
    "Finished",
    "HeadProposer",
    "LookupProposer",
    "Metrics",
    "Request",
    "Statistics",
]

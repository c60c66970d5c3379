"""Many requests on one decoder: in-flight batching, prefix reuse, beams, speculation."""

from trtkit.runtime.generation.engine import Engine
from trtkit.runtime.generation.heads import HEAD_PROPOSERS, Eagle3Proposer
from trtkit.runtime.generation.host_tier import CacheFolder
from trtkit.runtime.generation.options import EngineOptions
from trtkit.runtime.generation.proposers import DraftProposer, LookupProposer
from trtkit.runtime.generation.request import Finished, Metrics, Request
from trtkit.runtime.generation.state import Statistics

__all__ = [
    "HEAD_PROPOSERS",
    "CacheFolder",
    "DraftProposer",
    "Eagle3Proposer",
    "Engine",
    "EngineOptions",
    "Finished",
    "LookupProposer",
    "Metrics",
    "Request",
    "Statistics",
]

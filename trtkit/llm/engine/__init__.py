"""Many requests on one decoder: in-flight batching, prefix reuse, beams, speculation."""

from trtkit.llm.cache.host.tier import CacheFolder
from trtkit.llm.engine.engine import Engine
from trtkit.llm.engine.heads import HEAD_PROPOSERS, Eagle3Proposer
from trtkit.llm.engine.options import EngineOptions
from trtkit.llm.engine.proposers import DraftProposer, LookupProposer
from trtkit.llm.engine.state import Statistics
from trtkit.llm.scheduler.request import Finished, Metrics, Request

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

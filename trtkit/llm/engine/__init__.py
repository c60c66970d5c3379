"""Many requests on one decoder: in-flight batching, prefix reuse, beams, speculation."""

from trtkit.llm.cache.host.files import CacheFolder
from trtkit.llm.engine.engine import LLMEngine
from trtkit.llm.engine.options import EngineOptions
from trtkit.llm.engine.proposers import DraftProposer, LookupProposer
from trtkit.llm.engine.request import Finished, Request
from trtkit.llm.scheduler.costs import Statistics
from trtkit.llm.scheduler.request import Metrics

__all__ = [
    "CacheFolder",
    "DraftProposer",
    "EngineOptions",
    "Finished",
    "LLMEngine",
    "LookupProposer",
    "Metrics",
    "Request",
    "Statistics",
]

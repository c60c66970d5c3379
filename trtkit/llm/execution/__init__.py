"""Decoder-only LLMs on TensorRT or on the reference executor."""

from trtkit.llm.execution.call import Call, CallTree
from trtkit.llm.execution.execution import DecoderExecution
from trtkit.llm.execution.kv_cache import KvCache
from trtkit.llm.execution.network import DecoderNetwork, bundle_network, config_network, decoder_network
from trtkit.llm.execution.open import open_execution
from trtkit.llm.execution.reference import ReferenceDecoder
from trtkit.llm.execution.saved import CacheForm, SavedSequence
from trtkit.llm.execution.single import ExecutionOptions, engine_device

__all__ = [
    "CacheForm",
    "Call",
    "CallTree",
    "DecoderExecution",
    "DecoderNetwork",
    "ExecutionOptions",
    "KvCache",
    "ReferenceDecoder",
    "SavedSequence",
    "bundle_network",
    "config_network",
    "decoder_network",
    "engine_device",
    "open_execution",
]

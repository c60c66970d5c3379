"""Decoder-only LLMs on TensorRT or on the reference executor."""

from trtkit.runtime.decoder.call import Call, CallTree
from trtkit.runtime.decoder.execution import DecoderExecution
from trtkit.runtime.decoder.kv_cache import KvCache
from trtkit.runtime.decoder.network import DecoderNetwork, bundle_network, config_network, decoder_network
from trtkit.runtime.decoder.open import open_execution
from trtkit.runtime.decoder.reference import ReferenceDecoder
from trtkit.runtime.decoder.saved import CacheForm, SavedSequence
from trtkit.runtime.decoder.single import ExecutionOptions, engine_device

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

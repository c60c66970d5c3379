"""Decoder-only LLMs on TensorRT or on the reference executor."""

from trtkit.runtime.decoder.call import Call, DecoderExecution
from trtkit.runtime.decoder.network import DecoderNetwork, bundle_network, write_network
from trtkit.runtime.decoder.open import Runtime, open_execution
from trtkit.runtime.decoder.reference import ReferenceDecoder

__all__ = [
    "Call",
    "DecoderExecution",
    "DecoderNetwork",
    "ReferenceDecoder",
    "Runtime",
    "bundle_network",
    "open_execution",
    "write_network",
]

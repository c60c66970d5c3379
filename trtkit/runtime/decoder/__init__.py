"""Decoder-only LLMs on TensorRT or on the reference executor."""

from trtkit.runtime.decoder.call import Call, DecoderExecution
from trtkit.runtime.decoder.network import DecoderModel, DecoderNetwork, bundle_network, open_model
from trtkit.runtime.decoder.open import Runtime, open_execution, runs_on_gpu
from trtkit.runtime.decoder.reference import ReferenceDecoder

__all__ = [
    "Call",
    "DecoderExecution",
    "DecoderModel",
    "DecoderNetwork",
    "ReferenceDecoder",
    "Runtime",
    "bundle_network",
    "open_execution",
    "open_model",
    "runs_on_gpu",
]

"""The Python API of generation: `LLM`, `AsyncLLM` and what they answer."""

from trtkit.runtime.llm.asynchronous import AsyncLLM, EngineThread
from trtkit.runtime.llm.frontend import LlmOptions
from trtkit.runtime.llm.llm import LLM
from trtkit.runtime.llm.outputs import CompletionOutput, Delta, RequestMetrics, RequestOutput
from trtkit.runtime.llm.text_bundle import TextBundle, read_text_bundle

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Delta",
    "EngineThread",
    "LlmOptions",
    "RequestMetrics",
    "RequestOutput",
    "TextBundle",
    "read_text_bundle",
]

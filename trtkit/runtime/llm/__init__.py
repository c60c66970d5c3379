"""The Python API of generation: `LLM`, `AsyncLLM`, prompts from files, and what they answer."""

from trtkit.runtime.llm.answer_file import AnswerFile, AnswerSource
from trtkit.runtime.llm.asynchronous import AsyncLLM
from trtkit.runtime.llm.engine_thread import EngineThread
from trtkit.runtime.llm.llm import LLM
from trtkit.runtime.llm.named_settings import sampling_params
from trtkit.runtime.llm.outputs import CompletionOutput, Delta, RequestMetrics, RequestOutput
from trtkit.runtime.llm.prompt_lines import PromptLine, PromptLines, Recordings, prepare_prompts, read_prompts
from trtkit.runtime.llm.prompts import PreparedPrompt, PromptsError
from trtkit.runtime.llm.text_bundle import TextBundle, read_text_bundle
from trtkit.serving_options import ServingOptions

__all__ = [
    "LLM",
    "AnswerFile",
    "AnswerSource",
    "AsyncLLM",
    "CompletionOutput",
    "Delta",
    "EngineThread",
    "PreparedPrompt",
    "PromptLine",
    "PromptLines",
    "PromptsError",
    "Recordings",
    "RequestMetrics",
    "RequestOutput",
    "ServingOptions",
    "TextBundle",
    "prepare_prompts",
    "read_prompts",
    "read_text_bundle",
    "sampling_params",
]

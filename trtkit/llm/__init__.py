"""Language models that serve tokens: `LLM` and `AsyncLLM`, prompt files, and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from trtkit.llm.answer_file import AnswerFile, AnswerSource
    from trtkit.llm.async_llm import AsyncLLM
    from trtkit.llm.engine_thread import EngineThread
    from trtkit.llm.llm import LLM
    from trtkit.llm.named_settings import sampling_params
    from trtkit.llm.outputs import CompletionOutput, Delta, RequestMetrics, RequestOutput
    from trtkit.llm.prompt_lines import PromptLine, PromptLines, Recordings, prepare_prompts, read_prompts
    from trtkit.llm.prompts import PreparedPrompt, PromptsError
    from trtkit.llm.text_bundle import TextBundle, read_text_bundle
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

# Parts of this package are light, such as schedules and sampling parameters; what a name needs is imported with it.
__getattr__ = lazy_names(
    __name__,
    {
        "trtkit.llm.llm": ("LLM",),
        "trtkit.llm.answer_file": ("AnswerFile", "AnswerSource"),
        "trtkit.llm.async_llm": ("AsyncLLM",),
        "trtkit.llm.outputs": ("CompletionOutput", "Delta", "RequestMetrics", "RequestOutput"),
        "trtkit.llm.engine_thread": ("EngineThread",),
        "trtkit.llm.prompts": ("PreparedPrompt", "PromptsError"),
        "trtkit.llm.prompt_lines": ("PromptLine", "PromptLines", "Recordings", "prepare_prompts", "read_prompts"),
        "trtkit.serving_options": ("ServingOptions",),
        "trtkit.llm.text_bundle": ("TextBundle", "read_text_bundle"),
        "trtkit.llm.named_settings": ("sampling_params",),
    },
)

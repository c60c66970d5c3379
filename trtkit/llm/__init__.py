"""LLMs that serve tokens: `LLM` and `AsyncLLM`, prompts from files, and the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
_MODULES = {
    "LLM": "trtkit.llm.llm",
    "AnswerFile": "trtkit.llm.answer_file",
    "AnswerSource": "trtkit.llm.answer_file",
    "AsyncLLM": "trtkit.llm.async_llm",
    "CompletionOutput": "trtkit.llm.outputs",
    "Delta": "trtkit.llm.outputs",
    "EngineThread": "trtkit.llm.engine_thread",
    "PreparedPrompt": "trtkit.llm.prompts",
    "PromptLine": "trtkit.llm.prompt_lines",
    "PromptLines": "trtkit.llm.prompt_lines",
    "PromptsError": "trtkit.llm.prompts",
    "Recordings": "trtkit.llm.prompt_lines",
    "RequestMetrics": "trtkit.llm.outputs",
    "RequestOutput": "trtkit.llm.outputs",
    "ServingOptions": "trtkit.serving_options",
    "TextBundle": "trtkit.llm.text_bundle",
    "prepare_prompts": "trtkit.llm.prompt_lines",
    "read_prompts": "trtkit.llm.prompt_lines",
    "read_text_bundle": "trtkit.llm.text_bundle",
    "sampling_params": "trtkit.llm.named_settings",
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used."""
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module `trtkit.llm` has no attribute `{name}`")
    return getattr(importlib.import_module(_MODULES[name]), name)

"""From prompts as they were given to token ids and settings; every fault at once, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.cli.prompts import PromptsError
from trtkit.cli.sampling_options import flag_of
from trtkit.errors import Problem, ProblemsError, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.cli.llm_options import Model
    from trtkit.cli.prompts import Prompt, Prompts
    from trtkit.runtime.sampling.params import SamplingParams


@dataclass(frozen=True)
class Ask:
    """One prompt, ready to run."""

    prompt: Prompt
    ids: list[int]
    params: SamplingParams


@dataclass(frozen=True)
class Wording:
    """How a text becomes tokens. is_chat: through the chat template, where there is one."""

    is_chat: bool = True
    system: str | None = None


def option_params(model: Model, options: Mapping[str, Any]) -> SamplingParams:
    """Return the settings that the options make. Raises PromptsError that names the options."""
    from trtkit.cli.settings import sampling_params

    try:
        return sampling_params(model, options)
    except ProblemsError as error:
        found = [Problem(problem.what, flag_of(problem.where), problem.fix) for problem in error.problems]
        raise PromptsError("the options cannot be used", found) from None


def make_asks(prompts: Prompts, model: Model, options: Mapping[str, Any], wording: Wording) -> list[Ask]:
    """Return what is to be run. Raises PromptsError that lists every prompt and setting that cannot be."""
    from trtkit.cli.settings import sampling_params

    shared = None if all(prompt.settings for prompt in prompts.found) else option_params(model, options)
    asks = []
    for prompt in prompts.found:
        try:
            own = shared if shared and not prompt.settings else sampling_params(model, options, prompt.settings)
            asks.append(Ask(prompt, prompt_ids(prompt, model, wording), own))
        except RequestError as error:
            prompts.problems += problems_of(error, prompt)
    prompts.check()
    return asks


def problems_of(error: RequestError, prompt: Prompt) -> list[tuple[int, Problem]]:
    """Return the faults of one prompt by its line, with the place it stands at."""
    found = error.problems if isinstance(error, ProblemsError) else [Problem(error.what, error.where, error.fix)]
    places = (f"{prompt.where}: {one.where}" if one.where else prompt.where for one in found)
    return [(prompt.line, Problem(one.what, place, one.fix)) for one, place in zip(found, places, strict=True)]


def prompt_ids(prompt: Prompt, model: Model, wording: Wording) -> list[int]:
    """Return a prompt's tokens. Raises RequestError for what the model cannot take."""
    if isinstance(prompt.content, list) and prompt.kind == "prompt_token_ids":
        ids = list(prompt.content)
    elif isinstance(prompt.content, list):
        ids = chat_ids(prompt.content, model, wording.system)
    elif wording.system is not None or (wording.is_chat and model.tokenizer and model.tokenizer.has_chat_template):
        ids = chat_ids([{"role": "user", "content": prompt.content}], model, wording.system)
    else:
        ids = _tokenizer(model).encode(prompt.content)
    check_ids(ids, model)
    return ids


def chat_ids(messages: Sequence[Mapping[str, Any]], model: Model, system: str | None = None) -> list[int]:
    """Return the tokens of a conversation, behind `system` unless it has a system message of its own."""
    if system is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    found: list[int] = _tokenizer(model).chat(messages)
    return found


def check_ids(ids: Sequence[int], model: Model) -> None:
    """Refuse a prompt of no tokens, of unknown ones, or of more than a slot holds."""
    if not ids:
        raise RequestError("the prompt has no tokens")
    if max(ids) >= model.vocab_size:
        raise RequestError(f"token {max(ids)} is not below the size of the vocabulary, {model.vocab_size}")
    if len(ids) > model.max_length:
        fix = "shorten it, or build with a larger `llm.max_sequence_length`"
        raise RequestError(f"the prompt has {len(ids)} tokens; a slot holds {model.max_length}", fix=fix)


def _tokenizer(model: Model) -> Any:
    if model.tokenizer is None:
        fix = 'give {"prompt_token_ids": [...]} in a JSONL file with --prompts'
        raise RequestError("the bundle has no tokenizer, so prompts are token ids", fix=fix)
    return model.tokenizer

"""From prompts as they were given to token ids and settings; every fault at once, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.cli.prompts import PromptsError
from trtkit.cli.sampling_options import flag_of
from trtkit.errors import Problem, ProblemsError, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.cli.prompts import Prompt, Prompts
    from trtkit.runtime.llm import TextBundle
    from trtkit.runtime.sampling.params import SamplingParams
    from trtkit.runtime.vision_language import PreparedImage


@dataclass(frozen=True)
class Ask:
    """One prompt, ready to run. images: those of the prompt, read; `ids` has a placeholder for each of their tokens."""

    prompt: Prompt
    ids: list[int]
    params: SamplingParams
    images: tuple[PreparedImage, ...] = ()


@dataclass(frozen=True)
class Wording:
    """How a text becomes tokens. is_chat: through the chat template, where there is one."""

    is_chat: bool = True
    system: str | None = None


def option_params(model: TextBundle, options: Mapping[str, Any]) -> SamplingParams:
    """Return the settings that the options make. Raises PromptsError that names the options."""
    from trtkit.cli.settings import sampling_params

    try:
        return sampling_params(model, options)
    except ProblemsError as error:
        found = [Problem(problem.what, flag_of(problem.where), problem.fix) for problem in error.problems]
        raise PromptsError("the options cannot be used", found) from None


def make_asks(prompts: Prompts, model: TextBundle, options: Mapping[str, Any], wording: Wording) -> list[Ask]:
    """Return what is to be run. Raises PromptsError that lists every prompt and setting that cannot be."""
    from trtkit.cli.settings import sampling_params

    shared = None if all(prompt.settings for prompt in prompts.found) else option_params(model, options)
    asks = []
    for prompt in prompts.found:
        try:
            own = shared if shared and not prompt.settings else sampling_params(model, options, prompt.settings)
            ids, images = prompt_input(prompt, model, wording)
            asks.append(Ask(prompt, ids, own, images))
        except RequestError as error:
            prompts.problems += problems_of(error, prompt)
    prompts.check()
    return asks


def problems_of(error: RequestError, prompt: Prompt) -> list[tuple[int, Problem]]:
    """Return the faults of one prompt by its line, with the place it stands at."""
    found = error.problems if isinstance(error, ProblemsError) else [Problem(error.what, error.where, error.fix)]
    places = (f"{prompt.where}: {one.where}" if one.where else prompt.where for one in found)
    return [(prompt.line, Problem(one.what, place, one.fix)) for one, place in zip(found, places, strict=True)]


def prompt_input(prompt: Prompt, model: TextBundle, wording: Wording) -> tuple[list[int], tuple[PreparedImage, ...]]:
    """Return a prompt's tokens and images. Raises RequestError for what the model cannot take."""
    images: Sequence[Any] = prompt.images
    if isinstance(prompt.content, list) and prompt.kind == "prompt_token_ids":
        ids = list(prompt.content)
    elif isinstance(prompt.content, list):
        ids, images = chat_input(prompt.content, model, images, wording.system)
    elif wording.system is not None or (wording.is_chat and model.tokenizer and model.tokenizer.has_chat_template):
        content: Any = prompt.content
        if images and model.images is not None:
            content = [*({"type": "image"} for _ in images), {"type": "text", "text": prompt.content}]
        ids, images = chat_input([{"role": "user", "content": content}], model, images, wording.system)
    else:
        ids = _tokenizer(model).encode(prompt.content)
    merged = _merge(ids, images, model)
    check_ids(merged[0], model)
    return merged


def _merge(ids: list[int], images: Sequence[Any], model: TextBundle) -> tuple[list[int], tuple[PreparedImage, ...]]:
    """Return tokens with a placeholder for each of the images' tokens, and the images read."""
    if model.images is not None:
        merged = model.images.merge(ids, images)
        return merged.ids, merged.images
    if images:
        raise RequestError("the model takes text only", "images", "give a bundle of a vision-language model")
    return ids, ()


def chat_input(
    messages: Sequence[Mapping[str, Any]], model: TextBundle, images: Sequence[Any] = (), system: str | None = None
) -> tuple[list[int], Sequence[Any]]:
    """Return the tokens of a conversation, behind `system` unless it has a system message, and its images in order."""
    if system is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    if model.images is not None:
        from trtkit.runtime.vision_language import split_messages

        messages, images = split_messages(messages, images)
    return _tokenizer(model).chat(messages), images


def check_ids(ids: Sequence[int], model: TextBundle) -> None:
    """Refuse a prompt of no tokens, of unknown ones, or of more than a slot holds."""
    if not ids:
        raise RequestError("the prompt has no tokens")
    if max(ids) >= model.vocab_size:
        raise RequestError(f"token {max(ids)} is not below the size of the vocabulary, {model.vocab_size}")
    if len(ids) > model.max_length:
        fix = "shorten it, or build with a larger `llm.max_sequence_length`"
        raise RequestError(f"the prompt has {len(ids)} tokens; a slot holds {model.max_length}", fix=fix)


def _tokenizer(model: TextBundle) -> Any:
    if model.tokenizer is None:
        fix = 'give {"prompt_token_ids": [...]} in a JSONL file with --prompts'
        raise RequestError("the bundle has no tokenizer, so prompts are token ids", fix=fix)
    return model.tokenizer

"""Settings by any of their names, with tokens by id or text; a prompt's own settings override shared ones."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem, RequestError
from trtkit.llm.sampling.checks import SettingsError, raise_problems
from trtkit.llm.sampling.generation_config import ALIASES
from trtkit.llm.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trtkit.llm.text_bundle import TextBundle

# Settings that only matter for sampling; with none of them, decoding is greedy.
DRAWS = {"do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "seed"}
_OF_TOKENS = ("stop_token_ids", "eos_token_id", "logit_bias")
MOST_TOKENS = 128
"""Default limit on an answer's tokens."""


def default_params() -> SamplingParams:
    """Return the settings of prompts without any: greedy, like `trtkit generate` without options."""
    return SamplingParams(temperature=0.0, max_tokens=MOST_TOKENS)


def sampling_params(
    model: TextBundle, shared: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> SamplingParams:
    """Return settings: a prompt's own override those it shares with others; greedy unless one of them samples.

    Raises SettingsError that lists every problem.
    """
    settings, problems = _with_ids(_merged(shared, overrides or {}), model)
    try:
        params = SamplingParams.from_mapping(settings)
    except SettingsError as error:
        raise_problems([*problems, *error.problems])
        raise
    raise_problems(problems)
    return params


def _merged(shared: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    names = _own_names(overrides)
    if names & {"do_sample", "temperature"}:
        names |= {"do_sample", "temperature"}  # one of them would contradict an inherited value of the other
    inherited = {name: value for name, value in {"max_tokens": MOST_TOKENS, **shared}.items() if name not in names}
    merged = inherited | dict(overrides)
    is_drawn = _own_names(name for name, value in merged.items() if value is not None) & DRAWS
    return merged if is_drawn else {**merged, "temperature": 0.0}


def _own_names(settings: Iterable[str]) -> set[str]:
    """Return SamplingParams' names of settings that may be given by transformers' names."""
    return {ALIASES.get(name, name) for name in settings}


def _with_ids(settings: dict[str, Any], model: TextBundle) -> tuple[dict[str, Any], list[Problem]]:
    """Replace tokens' texts by ids; leave out, and report, tokens that the model does not have."""
    with_ids, problems = dict(settings), []
    for name in [name for name in _OF_TOKENS if settings.get(name) is not None]:
        try:
            with_ids[name] = _ids_of(settings[name], model)
        except RequestError as error:
            problems.append(Problem(error.what, name, error.fix))
            del with_ids[name]
    return with_ids, problems


def _ids_of(value: Any, model: TextBundle) -> Any:
    """Return a token, a list of tokens or a mapping from tokens, by id; other values as they are."""
    if isinstance(value, dict):
        return {_id_of(_from_key(token), model): bias for token, bias in value.items()}
    if isinstance(value, list):
        return [_id_of(token, model) for token in value]
    return _id_of(value, model)


def _from_key(token: int | str) -> int | str:
    return int(token) if isinstance(token, str) and token.isdecimal() else token


def _id_of(token: Any, model: TextBundle) -> Any:
    """Return a token's id: of its own text, or of a text that is one token."""
    if isinstance(token, int) and token >= model.vocab_size:
        raise RequestError(f"token {token} is not below the size of the vocabulary, {model.vocab_size}")
    if not isinstance(token, str):
        return token
    if model.tokenizer is None:
        raise RequestError(f"`{token}`: the bundle has no tokenizer", fix="give the token's id")
    own_id = model.tokenizer.token_id(token)
    ids = model.tokenizer.encode(token, add_special_tokens=False) if own_id is None else [own_id]
    if len(ids) == 1:
        return ids[0]
    close = [f"`{one}`" for one in get_close_matches(token, model.tokenizer.special_tokens, n=2)]
    fix = (
        f"did you mean {' or '.join(close)}?" if close else "give a token id, or the token's text as in the vocabulary"
    )
    raise RequestError(f"`{token}` is not a single token of this model", fix=fix)

"""From options and the fields of a JSON line to checked settings."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from trtkit.cli.sampling_options import DRAWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trtkit.errors import Problem
    from trtkit.runtime.llm import TextBundle
    from trtkit.runtime.sampling.params import SamplingParams

_OF_TOKENS = ("stop_token_ids", "eos_token_id", "logit_bias")
DEFAULTS = {"max_tokens": 128}


def sampling_params(
    model: TextBundle, options: Mapping[str, Any], line: Mapping[str, Any] | None = None
) -> SamplingParams:
    """Return settings: a line's own before the options, greedy where nothing asks for draws.

    Raises SettingsError that lists every problem.
    """
    from trtkit.runtime.sampling.checks import SettingsError, raise_problems
    from trtkit.runtime.sampling.params import SamplingParams

    settings, problems = _with_ids(_merged(options, line or {}), model)
    try:
        params = SamplingParams.from_mapping(settings)
    except SettingsError as error:
        raise_problems([*problems, *error.problems])
        raise
    raise_problems(problems)
    return params


def _merged(options: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    own = _own_names(line)
    if own & {"do_sample", "temperature"}:
        own |= {"do_sample", "temperature"}  # one of them would contradict the other's inherited value
    inherited = {name: value for name, value in {**DEFAULTS, **options}.items() if name not in own}
    merged = inherited | dict(line)
    given = _own_names({name: value for name, value in merged.items() if value is not None})
    return merged if given & DRAWS else {**merged, "temperature": 0.0}


def _own_names(settings: Iterable[str]) -> set[str]:
    """Return SamplingParams' names of settings that may have transformers'."""
    from trtkit.runtime.sampling.mapping import ALIASES

    return {ALIASES.get(name, name) for name in settings}


def _with_ids(settings: dict[str, Any], model: TextBundle) -> tuple[dict[str, Any], list[Problem]]:
    """Put ids in the place of tokens' texts; leave out, and report, tokens that the model does not have."""
    from trtkit.errors import Problem

    problems, found = [], dict(settings)
    for name in [name for name in _OF_TOKENS if settings.get(name) is not None]:
        try:
            found[name] = _ids_of(settings[name], model)
        except UnknownTokenError as error:
            problems.append(Problem(error.what, name, error.fix))
            del found[name]
    return found, problems


class UnknownTokenError(Exception):
    """A token that a model does not have."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


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
        raise UnknownTokenError(f"token {token} is not below the size of the vocabulary, {model.vocab_size}")
    if not isinstance(token, str):
        return token
    if model.tokenizer is None:
        raise UnknownTokenError(f"`{token}`: the bundle has no tokenizer", "give the token's id")
    found = model.tokenizer.token_id(token)
    ids = model.tokenizer.encode(token, add_special_tokens=False) if found is None else [found]
    if len(ids) == 1:
        return ids[0]
    close = [f"`{one}`" for one in get_close_matches(token, model.tokenizer.special_tokens, n=2)]
    fix = f"did you mean {' or '.join(close)}?" if close else "give a token's id, or its text as the vocabulary has it"
    raise UnknownTokenError(f"`{token}` is not one token of this model", fix)

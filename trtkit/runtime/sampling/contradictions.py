"""Settings that are right alone and cannot be together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.runtime.sampling.params import SamplingParams

# What leaves the distribution as it is.
_NEUTRAL = {"temperature": (0.0, 1.0), "top_k": (0,), "top_p": (1.0,), "min_p": (0.0,), "typical_p": (1.0,)}


def contradictions(params: SamplingParams) -> list[Problem]:
    """Return every pair of settings that cannot be together; values at fault by themselves are compared safely."""
    problems: list[Problem] = []
    for check in (_beams, _answers, _lengths, _guides):
        try:
            problems += check(params)
        except TypeError:
            continue  # a value of a wrong type, which its own rule has reported
    return problems


def _beams(params: SamplingParams) -> Iterator[Problem]:
    if params.num_beams <= 1:
        return
    names = [name for name, neutral in _NEUTRAL.items() if getattr(params, name) not in neutral]
    names += ["seed"] if params.seed is not None else []
    for name in names:
        what = f"`{getattr(params, name)!r}` with `num_beams={params.num_beams}`: beam search draws nothing"
        yield Problem(what, name, f"leave out `{name}`, or `num_beams`")
    if params.n > params.num_beams:
        what = f"`{params.n}` answers of `num_beams={params.num_beams}`: a search returns at most one a beam"
        yield Problem(what, "n", "lower `n`, or raise `num_beams`")


def _answers(params: SamplingParams) -> Iterator[Problem]:
    if params.n > 1 and params.num_beams == 1 and params.greedy:
        what = f"`{params.n}` answers with `temperature={params.temperature:g}` would all be the same"
        yield Problem(what, "n", "raise `temperature`, set `num_beams`, or ask for one answer")


def _lengths(params: SamplingParams) -> Iterator[Problem]:
    if params.min_tokens > params.max_tokens:
        what = f"`{params.min_tokens}` is above `max_tokens`, {params.max_tokens}"
        yield Problem(what, "min_tokens", "lower `min_tokens`, or raise `max_tokens`")


def _guides(params: SamplingParams) -> Iterator[Problem]:
    kinds = ("guided_json", "guided_regex", "guided_grammar", "guided_choice")
    guides = [name for name in kinds if getattr(params, name) is not None]
    if len(guides) > 1:
        what = f"given with {', '.join(f'`{name}`' for name in guides[:-1])}: an answer follows one of them"
        yield Problem(what, guides[-1], "leave one")
    if guides and params.ignore_eos:
        what = f"`True` with `{guides[0]}`: the answer ends where the guide does, with an end-of-sequence token"
        yield Problem(what, "ignore_eos", "leave it out")

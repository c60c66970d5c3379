"""A request's sampling parameters: vLLM's names, and transformers' for what vLLM lacks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from trtkit.errors import Problem
from trtkit.llm.sampling.checks import raise_problems, read_fields
from trtkit.llm.sampling.generation_config import read_mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Ids = tuple[int, ...]
Word = str | Ids
# Below this, dividing by the temperature overflows fp32; vLLM has the same limit.
GREEDY_BELOW = 1e-5
GUIDED = ("guided_json", "guided_regex", "guided_grammar", "guided_choice")
# Values that leave the distribution unchanged.
_NEUTRAL = {"temperature": (0.0, 1.0), "top_k": (0,), "top_p": (1.0,), "min_p": (0.0,), "typical_p": (1.0,)}


@dataclass(frozen=True)
class SamplingParams:
    """Settings of one request, validated on construction.

    Lengths are in tokens. Lists are stored as tuples, and integers as floats in float fields.

    n: number of answers; each has its own seed.
    temperature: divides the logits; 0 (and below 1e-5) selects the most likely token and disables the filters.
    top_k: keep the k most likely tokens; 0 or -1 keeps all.
    top_p: nucleus sampling (arXiv:1904.09751); 1 keeps all.
    min_p: minimum probability relative to the most likely token (arXiv:2407.01082); 0 keeps all.
    typical_p: locally typical sampling (arXiv:2202.00666); 1 keeps all.
    seed: makes sampling repeatable; a new one each time if None.
    repetition_penalty: on tokens in the prompt and the answer (arXiv:1909.05858); 1 for none.
    presence_penalty: on tokens in the answer, once (OpenAI's definition).
    frequency_penalty: on tokens in the answer, per occurrence (OpenAI's definition).
    no_repeat_ngram_size: no run of this many tokens occurs twice; 0 allows all.
    bad_words: texts or token ids that must never occur. force_words: those that must occur.
    stop: texts that end the answer. stop_token_ids: tokens that end it. ignore_eos: continue past end-of-sequence
    tokens.
    logit_bias: values to add to the logits, by token id.
    logprobs: number of most likely tokens to report per position; none if None. prompt_logprobs: the same for the
    prompt.
    logits_processors: called as in transformers: `processor(input_ids [1, L], scores [1, V]) -> scores`.
    guided_json: a schema (object or text), or True for any object. guided_grammar: Lark or GBNF. guided_choice: one of
    these texts. At most one of the guided settings may be set.
    adapter: name of the LoRA adapter that computes the answer; the model alone if None.
    do_sample: False takes the most likely token, as temperature 0 does. Beams are drawn only if it is True.
    num_beams: beam search if above 1. length_penalty, early_stopping: as in transformers.
    num_beam_groups: groups of beams that are searched one after another (arXiv:1610.02424). diversity_penalty: taken
    from a token's score for each beam of earlier groups that chose it.

    Raises SettingsError, a RequestError, that lists every problem.
    """

    n: int = 1
    do_sample: bool | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words: tuple[Word, ...] = ()
    force_words: tuple[Word, ...] = ()
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logits_processors: tuple[Callable[[Any, Any], Any], ...] = ()
    guided_json: str | bool | Mapping[str, Any] | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: tuple[str, ...] | None = None
    num_beams: int = 1
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    skip_special_tokens: bool = True
    adapter: str | None = None

    def __post_init__(self) -> None:
        values, problems = read_fields({item.name: getattr(self, item.name) for item in fields(self)})
        for name, value in values.items():
            object.__setattr__(self, name, value)
        faulty = {problem.where for problem in problems}
        # A contradiction with an invalid value would only repeat the problem.
        raise_problems(problems + [problem for problem in _contradictions(self) if problem.where not in faulty])
        if self.do_sample is False:
            for name, value in (("do_sample", None), ("temperature", 0.0)):
                object.__setattr__(self, name, value)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> SamplingParams:
        """Return the settings in a JSON object, by their names here or in transformers; null means not set.

        Raises SettingsError for unknown keys (with close matches) and invalid values.
        """
        return cls(**read_mapping(data, [item.name for item in fields(cls)]))

    @property
    def greedy(self) -> bool:
        """Whether to select the most likely token."""
        return self.temperature < GREEDY_BELOW

    @property
    def draws(self) -> bool:
        """Whether decoding samples tokens or beams."""
        return self.do_sample is True if self.num_beams > 1 else not self.greedy

    @property
    def guided(self) -> str | None:
        """The guided setting that is set, if any."""
        return next((name for name in GUIDED if getattr(self, name) is not None), None)


def _contradictions(params: SamplingParams) -> list[Problem]:
    """Return every pair of settings that exclude each other; invalid values are compared safely."""
    problems: list[Problem] = []
    for check in (_draws, _beams, _groups, _answers, _lengths, _guides):
        try:
            problems += check(params)
        except TypeError:
            continue  # a value of a wrong type, reported by its own check
    return problems


def _draws(params: SamplingParams) -> Iterator[Problem]:
    if params.do_sample and params.greedy:
        yield Problem("`true` with `temperature=0`", "do_sample", "raise `temperature`, or leave out `do_sample`")
    if params.do_sample is False and params.temperature not in _NEUTRAL["temperature"]:
        what = f"`false` with `temperature={params.temperature}`"
        yield Problem(what, "do_sample", "leave out `temperature`, or `do_sample`")


def _beams(params: SamplingParams) -> Iterator[Problem]:
    if params.num_beams <= 1:
        return
    names = [name for name, neutral in _NEUTRAL.items() if getattr(params, name) not in neutral]
    names += ["seed"] if params.seed is not None else []
    for name in [] if params.do_sample else names:
        what = f"`{getattr(params, name)!r}` with `num_beams={params.num_beams}`: beam search does not sample"
        yield Problem(what, name, f"leave out `{name}`, or set `do_sample`")
    if params.do_sample and params.typical_p < 1:
        what = f"`{params.typical_p!r}` with `num_beams={params.num_beams}`: it may leave fewer tokens than beams need"
        yield Problem(what, "typical_p", "use `top_p`, or leave out `num_beams`")
    if params.n > params.num_beams:
        what = f"`{params.n}` answers of `num_beams={params.num_beams}`: a search returns at most one per beam"
        yield Problem(what, "n", "lower `n`, or raise `num_beams`")


def _groups(params: SamplingParams) -> Iterator[Problem]:
    groups, penalty = params.num_beam_groups, params.diversity_penalty
    if params.num_beams % groups:
        what = f"`{groups}` does not divide `num_beams`, {params.num_beams}: groups have the same size"
        yield Problem(what, "num_beam_groups", "use a divisor of `num_beams`")
    if groups > 1 and not penalty:
        what = f"`{penalty:g}` with `num_beam_groups={groups}`: all groups would find the same answers"
        yield Problem(what, "diversity_penalty", "set it above 0, such as 0.5, or leave out `num_beam_groups`")
    if groups > 1 and params.do_sample:
        what = f"`{groups}` with `do_sample`: groups of beams are searched, not drawn"
        yield Problem(what, "num_beam_groups", "leave out one of them")
    if penalty and groups == 1:
        what = f"`{penalty:g}` with one group of beams: it keeps groups apart"
        yield Problem(what, "diversity_penalty", "set `num_beam_groups`, or leave it out")


def _answers(params: SamplingParams) -> Iterator[Problem]:
    if params.n > 1 and params.num_beams == 1 and params.greedy:
        what = f"`{params.n}` answers with `temperature={params.temperature:g}` would all be the same"
        yield Problem(what, "n", "raise `temperature`, set `num_beams`, or ask for one answer")


def _lengths(params: SamplingParams) -> Iterator[Problem]:
    if params.min_tokens > params.max_tokens:
        what = f"`{params.min_tokens}` is above `max_tokens`, {params.max_tokens}"
        yield Problem(what, "min_tokens", "lower `min_tokens`, or raise `max_tokens`")


def _guides(params: SamplingParams) -> Iterator[Problem]:
    guides = [name for name in GUIDED if getattr(params, name) is not None]
    if len(guides) > 1:
        what = f"given with {', '.join(f'`{name}`' for name in guides[:-1])}: an answer can follow only one of them"
        yield Problem(what, guides[-1], "keep one")
    if guides and params.ignore_eos:
        what = f"`True` with `{guides[0]}`: the answer ends where the guide does, with an end-of-sequence token"
        yield Problem(what, "ignore_eos", "leave it out")

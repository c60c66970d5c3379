"""Fields of transformers' GenerationConfig: each works, changes nothing, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from trtkit.llm.sampling.checks import SettingsError
from trtkit.llm.sampling.generation_config import NO_EFFECT, OTHER_NAME, REFUSED, SAME_NAME
from trtkit.llm.sampling.params import SamplingParams

BEAMS = {"num_beams": 4}
WORKING: dict[str, dict[str, Any]] = {
    "do_sample": {"do_sample": True},
    "temperature": {"temperature": 0.5},
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.1},
    "typical_p": {"typical_p": 0.9},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 3},
    "num_beams": BEAMS,
    "num_beam_groups": {**BEAMS, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "diversity_penalty": {**BEAMS, "num_beam_groups": 4, "diversity_penalty": 1.5},
    "length_penalty": {**BEAMS, "length_penalty": 2.0},
    "early_stopping": {**BEAMS, "early_stopping": "never"},
    "max_new_tokens": {"max_new_tokens": 7},
    "min_new_tokens": {"min_new_tokens": 7},
    "eos_token_id": {"eos_token_id": [2, 5]},
    "stop_strings": {"stop_strings": ["end"]},
    "num_return_sequences": {"num_return_sequences": 3, "do_sample": True},
    "bad_words_ids": {"bad_words_ids": [[4, 5]]},
    "force_words_ids": {"force_words_ids": [[4]]},
    "sequence_bias": {"sequence_bias": [[[7], 1.5]]},
}


def test_every_field_of_transformers_has_one_answer() -> None:
    from transformers import GenerationConfig

    answers = [SAME_NAME, set(OTHER_NAME), NO_EFFECT, set(REFUSED)]
    assert set().union(*answers) == set(vars(GenerationConfig())) | {"is_assistant"}
    assert sum(map(len, answers)) == len(set().union(*answers))
    assert set(WORKING) == SAME_NAME | set(OTHER_NAME)


@pytest.mark.parametrize("field", WORKING)
def test_a_field_that_works_changes_a_setting(field: str) -> None:
    name = OTHER_NAME.get(field, field)
    params = SamplingParams.from_mapping({"max_new_tokens": 16, **WORKING[field]})
    assert getattr(params, name) != getattr(SamplingParams(), name)


@pytest.mark.parametrize("field", sorted(NO_EFFECT))
def test_a_field_without_effect_is_taken(field: str) -> None:
    assert SamplingParams.from_mapping({field: 1}) == SamplingParams()


@pytest.mark.parametrize("field", REFUSED)
def test_a_refused_field_says_what_to_use_instead(field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        SamplingParams.from_mapping({field: "any"})
    assert [(problem.what, problem.where) for problem in caught.value.problems] == [("not supported", field)]
    assert caught.value.problems[0].fix
    for value in (None, *REFUSED[field].neutral):
        assert SamplingParams.from_mapping({field: value}) == SamplingParams()


def test_a_configuration_as_transformers_saves_it_is_taken() -> None:
    from transformers import GenerationConfig

    saved = GenerationConfig(do_sample=True, temperature=0.6, top_p=0.95, eos_token_id=[1, 2], pad_token_id=0).to_dict()
    params = SamplingParams.from_mapping(saved)
    assert (params.do_sample, params.temperature, params.top_p, params.stop_token_ids) == (True, 0.6, 0.95, (1, 2))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0}, "num_beam_groups: `3` does not divide"),
        ({"num_beams": 4, "num_beam_groups": 2}, "diversity_penalty: `0` with `num_beam_groups=2`"),
        ({"num_beams": 4, "diversity_penalty": 0.5}, "diversity_penalty: `0.5` with one group of beams"),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "do_sample": True},
            "num_beam_groups: `2` with `do_sample`: groups of beams are searched, not drawn",
        ),
        ({"num_beams": 4, "do_sample": True, "typical_p": 0.5}, "typical_p: `0.5` with `num_beams=4`"),
        ({"num_beams": 4, "do_sample": True, "temperature": 0}, "do_sample: `true` with `temperature=0`"),
        ({"num_beams": 4, "top_p": 0.5}, "top_p: `0.5` with `num_beams=4`: beam search does not sample"),
    ],
    ids=str,
)
def test_contradictions_of_beams_are_named(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        SamplingParams(**settings)
    assert line in str(caught.value)

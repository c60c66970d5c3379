from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest

from trtkit.errors import RequestError
from trtkit.llm.sampling.checks import SettingsError
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings, Vocabulary


def message(**given: Any) -> str:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**given)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_defaults_are_kept_and_lists_become_tuples() -> None:
    params = SamplingParams(
        temperature=1,
        top_k=-1,
        stop="a",
        stop_token_ids=3,
        bad_words=[[1, np.int64(2)], "x"],
        logit_bias={np.int64(4): 1},
    )
    assert params == SamplingParams(stop=("a",), stop_token_ids=(3,), bad_words=((1, 2), "x"), logit_bias={4: 1.0})
    assert type(params.temperature) is float
    assert (params.max_tokens, params.greedy, params.guided) == (16, False, None)
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, n=2).n == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2  # type: ignore[misc]


def test_every_problem_is_listed_with_its_fix() -> None:
    assert message(n=0, temperature=-1, top_p=math.nan, stop=["a", ""], min_tokens=17) == (
        "the sampling settings cannot be used\n"
        "  n: `0` is not a whole number of at least 1\n"
        "  temperature: `-1` is not a finite number of at least 0\n"
        "    fix: 0 takes the most likely token; 1 leaves the distribution as it is\n"
        "  top_p: `nan` is not a finite number above 0 and at most 1\n"
        "    fix: 1 keeps every token; `temperature=0` takes the most likely one\n"
        "  stop: `''` is not a non-empty text\n"
        '    fix: give texts: `["\\n\\n"]`\n'
        "  min_tokens: `17` is above `max_tokens`, 16\n"
        "    fix: lower `min_tokens`, or raise `max_tokens`"
    )


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"n": 1025}, "n: `1025` is above the limit, 1024"),
        ({"num_beams": 1025}, "num_beams: `1025` is above the limit, 1024"),
        ({"logprobs": 1025}, "logprobs: `1025` is above the limit, 1024"),
        ({"prompt_logprobs": 10**9}, "prompt_logprobs: `1000000000` is above the limit, 1024"),
        ({"max_tokens": 2**31}, "max_tokens: `2147483648` is above the limit, 2**31 - 1"),
        ({"top_k": 10**30}, "top_k: `1000000000000000000000000000000` is above the limit, 2**31 - 1"),
        ({"no_repeat_ngram_size": 2**63}, "no_repeat_ngram_size: `9223372036854775808` is above the limit, 2**31 - 1"),
        ({"temperature": 1e300}, "temperature: `1e+300` is above the limit, 1e+30"),
        ({"num_beams": 2, "length_penalty": -9}, "length_penalty: `-9` is above the limit, 5"),
        ({"logit_bias": {1: 1e300}}, "logit_bias: the bias of token 1, `1e+300`, is beyond 1e+30"),
        ({"stop_token_ids": range(257)}, "stop_token_ids: 257 token ids are more than the limit, 256"),
        ({"stop": ["a"] * 65}, "stop: 65 texts are more than the limit, 64"),
        ({"stop": "a" * 257}, "stop: 257 characters of a text are more than the limit, 256"),
        ({"stop": "\ud800"}, "stop: character 0 is half of a surrogate pair, U+D800: not valid text"),
        ({"bad_words": ["a"] * 1025}, "bad_words: 1025 words are more than the limit, 1024"),
        ({"force_words": [[1] * 1025]}, "force_words: 1025 token ids are more than the limit, 1024"),
        ({"guided_choice": ["a"] * 1025}, "guided_choice: 1025 texts are more than the limit, 1024"),
        ({"guided_regex": "a" * 16_385}, "guided_regex: 16385 characters are more than the limit, 16384"),
        ({"guided_json": {"title": "a" * 65_536}}, "guided_json: 65549 characters are more than the limit, 65536"),
        (
            {"guided_json": {"anyOf": [{"multipleOf": 0.997}, {"multipleOf": 991}]}},
            "guided_json: `multipleOf` with a least common multiple of 988027 is above the limit, 10000",
        ),
        ({"guided_grammar": 'start: %json {"multiple\\u004ff": 999983}'}, "a least common multiple of 999983"),
        ({"bad_words": "x" * 10_000}, f"bad_words: `'{'x' * 79}...` is not a list of words"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_would_take_too_much_is_refused(given: dict[str, Any], what: str) -> None:
    assert what in message(**given)


def test_usual_multiples_are_within_the_limit() -> None:
    SamplingParams(
        guided_json={"properties": {"a": {"multipleOf": 0.01}, "b": {"multipleOf": 2500}, "c": {"multipleOf": 7}}}
    )


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"n": True}, "n: `True` is not a whole number of at least 1"),
        ({"n": 1.0}, "n: `1.0` is not a whole number of at least 1"),
        ({"temperature": "1"}, "temperature: `'1'` is not a finite number of at least 0"),
        ({"temperature": math.inf}, "temperature: `inf` is not a finite number of at least 0"),
        ({"temperature": None}, "temperature: `None` is not a finite number of at least 0"),
        ({"top_k": -2}, "top_k: `-2` is not a whole number of at least -1"),
        ({"top_p": 0}, "top_p: `0` is not a finite number above 0 and at most 1"),
        ({"min_p": 1.5}, "min_p: `1.5` is not a finite number of at least 0 and at most 1"),
        ({"typical_p": 0.0}, "typical_p: `0.0` is not a finite number above 0 and at most 1"),
        ({"seed": -1}, "seed: `-1` is not a whole number of at least 0 and at most 2**64 - 1 or None"),
        (
            {"seed": 2**64},
            "seed: `18446744073709551616` is not a whole number of at least 0 and at most 2**64 - 1 or None",
        ),
        ({"repetition_penalty": 0}, "repetition_penalty: `0` is not a finite number above 0"),
        ({"presence_penalty": 2.1}, "presence_penalty: `2.1` is not a finite number of at least -2 and at most 2"),
        ({"frequency_penalty": -3}, "frequency_penalty: `-3` is not a finite number of at least -2 and at most 2"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size: `-1` is not a whole number of at least 0"),
        ({"bad_words": "word"}, "bad_words: `'word'` is not a list of words"),
        ({"bad_words": [[]]}, "bad_words: `[]` has no tokens"),
        ({"bad_words": [3]}, "bad_words: `3` is not a list of token ids"),
        ({"force_words": [""]}, "force_words: `''` is not a non-empty text"),
        ({"force_words": [[True]]}, "force_words: `True` is not a token id, a whole number of at least 0"),
        ({"max_tokens": 0}, "max_tokens: `0` is not a whole number of at least 1"),
        ({"min_tokens": -1}, "min_tokens: `-1` is not a whole number of at least 0"),
        ({"stop": [3]}, "stop: `3` is not a non-empty text"),
        ({"stop_token_ids": [-1]}, "stop_token_ids: `-1` is not a token id, a whole number of at least 0"),
        ({"ignore_eos": 1}, "ignore_eos: `1` is not true or false"),
        ({"logit_bias": {1: math.nan}}, "logit_bias: the bias of token 1, `nan`, is not a finite number"),
        ({"logit_bias": [1]}, "logit_bias: `[1]` is not a mapping of token ids to numbers"),
        ({"logprobs": -1}, "logprobs: `-1` is not a whole number of at least 0 or None"),
        ({"logits_processors": [3]}, "logits_processors: `3` cannot be called"),
        ({"guided_json": "{"}, "guided_json: the schema is not JSON: line 1, column 2: Expecting property name"),
        ({"guided_json": 3}, "guided_json: `3` is not a JSON schema"),
        ({"guided_json": {"a": {1}}}, "guided_json: the schema is not JSON: Object of type set is not"),
        ({"guided_regex": " "}, "guided_regex: `' '` is not a non-empty text"),
        ({"guided_grammar": 3}, "guided_grammar: `3` is not a non-empty text"),
        ({"guided_choice": []}, "guided_choice: `[]` is not a non-empty list of texts"),
        ({"guided_choice": "yes"}, "guided_choice: `'yes'` is not a non-empty list of texts"),
        ({"num_beams": 0}, "num_beams: `0` is not a whole number of at least 1"),
        ({"length_penalty": math.nan}, "length_penalty: `nan` is not a finite number"),
        ({"early_stopping": "always"}, "early_stopping: `'always'` is not true, false or `never`"),
        # contradictions
        ({"n": 2, "temperature": 0}, "n: `2` answers with `temperature=0` would all be the same"),
        ({"num_beams": 2, "n": 3}, "n: `3` answers of `num_beams=2`: a search returns at most one per beam"),
        ({"num_beams": 2, "seed": 0}, "seed: `0` with `num_beams=2`: beam search does not sample"),
        ({"num_beams": 2, "temperature": 0.5}, "temperature: `0.5` with `num_beams=2`: beam search does not sample"),
        ({"num_beams": 2, "top_k": 5}, "top_k: `5` with `num_beams=2`: beam search does not sample"),
        (
            {"guided_json": True, "guided_regex": "a"},
            "guided_regex: given with `guided_json`: an answer can follow only one of them",
        ),
        (
            {"guided_regex": "a", "ignore_eos": True},
            "ignore_eos: `True` with `guided_regex`: the answer ends where the",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_that_cannot_be_is_named_with_what_may_be(given: dict[str, Any], what: str) -> None:
    lines = message(**given).splitlines()
    assert lines[1].startswith(f"  {what}")
    assert len([line for line in lines if line.startswith("  ") and line[2] != " "]) == 1


def test_beams_go_with_greedy_and_default_temperature() -> None:
    assert SamplingParams(num_beams=4, n=4).num_beams == 4
    assert SamplingParams(num_beams=2, temperature=0, length_penalty=-1, early_stopping="never").n == 1


def test_any_json_object_may_be_asked_for_in_several_ways() -> None:
    for given in (True, {}, "{}", "true", '{"type": "object"}'):
        assert SamplingParams(guided_json=given).guided_json == {"type": "object"}


def test_data_may_use_the_names_of_transformers() -> None:
    data = {
        "max_new_tokens": 40,
        "min_new_tokens": 2,
        "do_sample": False,
        "eos_token_id": [2, 3],
        "stop_strings": "x",
        "bad_words_ids": [[4, 5]],
        "force_words_ids": [[6]],
        "sequence_bias": [[[7], 1.5]],
        "json_schema": {"type": "integer"},
        "seed": None,
    }
    assert SamplingParams.from_mapping(data) == SamplingParams(
        max_tokens=40,
        min_tokens=2,
        temperature=0,
        stop_token_ids=(2, 3),
        stop=("x",),
        bad_words=((4, 5),),
        force_words=((6,),),
        logit_bias={7: 1.5},
        guided_json={"type": "integer"},
    )
    assert SamplingParams.from_mapping({"num_return_sequences": 3, "do_sample": True}).n == 3
    assert SamplingParams.from_mapping({"logit_bias": {"15": -100}}).logit_bias == {15: -100.0}


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ({"temprature": 1}, ["temprature: unknown setting", "  fix: did you mean `temperature`?"]),
        ({"qqq": 1}, ["qqq: unknown setting", "  fix: leave it out"]),
        ({"max_tokens": 1, "max_new_tokens": 1}, ["max_new_tokens: given twice, as `max_tokens` and by another name"]),
        ({"do_sample": False, "temperature": 0.5}, ["do_sample: `false` with `temperature=0.5`"]),
        ({"do_sample": True, "temperature": 0}, ["do_sample: `true` with `temperature=0`"]),
        ({"do_sample": "no"}, ["do_sample: `'no'` is not true or false"]),
        ({"logits_processors": [1]}, ["logits_processors: functions cannot be given as data"]),
        ({"logit_bias": {"x": 1}}, ["logit_bias: `'x'` is not a token id, a whole number of at least 0"]),
        ({"sequence_bias": [[[1, 2], 1.0]]}, ["logit_bias: `(1, 2)` is not a token id, a whole number of at least 0"]),
        ({"sequence_bias": 3}, ["logit_bias: `3` is not a mapping of token ids to numbers"]),
    ],
    ids=str,
)
def test_data_that_cannot_be_settings_is_refused(data: dict[str, Any], lines: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        SamplingParams.from_mapping(data)
    assert [line[2:] for line in str(caught.value).splitlines()[1:]][: len(lines)] == lines


def test_words_and_tokens_without_sense_for_the_model_are_refused_at_once() -> None:
    params = SamplingParams(
        bad_words=("x", (9,)), force_words=((1, 2, 3),), max_tokens=2, stop_token_ids=(10,), logit_bias={11: 1}
    )
    with pytest.raises(SettingsError) as caught:
        Settings.resolve(params, Vocabulary(9))
    assert [f"{problem.where}: {problem.what}" for problem in caught.value.problems] == [
        "bad_words: `x` is text, which the bundle has no tokenizer to encode",
        "stop_token_ids: token 10 is not in the vocabulary, which ends at 8",
        "logit_bias: token 11 is not in the vocabulary, which ends at 8",
        "bad_words: token 9 is not in the vocabulary, which ends at 8",
        "force_words: the words need 3 tokens; `max_tokens` is 2",
    ]
    with pytest.raises(SettingsError, match="sampling settings") as caught:
        Settings.resolve(SamplingParams(bad_words=("x",), guided_regex="a"), Vocabulary(9, (), lambda _: []))
    assert [problem.what for problem in caught.value.problems] == [
        "`x` has no tokens",
        "guided output needs an end-of-sequence token, and the model defines none",
    ]


def test_tokens_that_end_an_answer_are_the_models_and_the_requests() -> None:
    vocabulary = Vocabulary(9, (1, 2))
    assert Settings.resolve(SamplingParams(stop_token_ids=(2, 3)), vocabulary).stop_ids == (1, 2, 3)
    assert Settings.resolve(SamplingParams(stop_token_ids=(2, 3), ignore_eos=True), vocabulary).stop_ids == (2, 3)

"""What one engine computed of a prompt, another goes on from: the same tokens, without computing the prompt."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.support.generation import SLOTS, Asked, alone, answer, caches_of, engine, is_clean, run, settings
from trtkit.errors import ExecutionError
from trtkit.llm.cache.host import SavedSequences, SequenceTier
from trtkit.llm.cache.transfers import DropSequence
from trtkit.llm.engine import Request
from trtkit.llm.execution import CacheForm, SavedSequence

if TYPE_CHECKING:
    from trtkit.llm.engine import LLMEngine

PROMPT = random.Random(7).choices(range(3, 67), k=30)
FAMILIES = ["llama", "mistral", "mixtral", "gemma2", "gemma3_text", "gpt2", "bloom", "falcon", "phi", "smollm3"]


def prefill(tested: LLMEngine, prompt: list[int]) -> SavedSequence:
    """Compute a prompt; return what another engine may go on from."""
    answer(tested, prompt, temperature=0, max_tokens=1)
    saved = tested.prefixes.export(prompt)
    assert saved is not None
    return saved


@pytest.mark.parametrize("model_type", FAMILIES)
def test_another_engine_goes_on_with_the_same_tokens(model_type: str) -> None:
    first, second = engine(2, model_type), engine(3, model_type)
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    saved = prefill(first, PROMPT)
    assert saved.tokens == len(PROMPT) - 1
    assert second.prefixes.add(PROMPT, saved)
    assert answer(second, PROMPT, **asked) == answer(first, PROMPT, **asked)
    assert second.statistics.prompt_tokens == 0
    assert second.statistics.imported_tokens == second.statistics.reused_tokens == len(PROMPT) - 1


def test_requests_that_come_and_go_get_what_each_gets_alone() -> None:
    """Half of the prompts come with what another engine computed; some of it is lost, or meant for nobody."""
    r, first, second = random.Random(1), engine(SLOTS), engine(SLOTS, most_imported_bytes=30_000)
    asked, found, lost = {}, {}, 0
    for index in range(60):
        prompt = tuple(PROMPT[: r.randint(0, 25)] + [r.randrange(3, 67) for _ in range(r.randint(17, 25))])
        kind = r.choice(({"temperature": 0}, {"temperature": 1.0, "seed": index}, {"num_beams": 2}))
        asked[f"r{index}"] = Asked(prompt, tuple({"max_tokens": r.randint(1, 10), **kind}.items()), r.choice((0, 1)))
        if r.random() < 0.6:
            lost += not second.prefixes.add(prompt, prefill(first, list(prompt)))
        if r.random() < 0.8:
            second.submit(asked[f"r{index}"].request(f"r{index}"))
        found |= {finished.request.id: finished for finished in second.step()}
    while second.has_work:
        found |= {finished.request.id: finished for finished in second.step()}
    assert all(tuple(finished.token_ids) == alone(asked[name]) for name, finished in found.items())
    assert len(found) > 40
    assert second.statistics.imported_tokens > 200
    assert second.statistics.prompt_tokens > 200
    assert second.statistics.preemptions > 0
    assert is_clean(second)


def test_what_the_cache_holds_already_is_not_loaded_again() -> None:
    first, second = engine(), engine()
    run(second, [Request("a", PROMPT, settings(max_tokens=2, temperature=0))])
    assert second.prefixes.add(PROMPT, prefill(first, PROMPT))
    again = run(second, [Request("b", PROMPT, settings(max_tokens=2, temperature=0))])["b"]
    assert again.request.metrics.reused == len(PROMPT) - 1
    assert second.statistics.imported_tokens == 0
    longer = [*PROMPT, *range(3, 23)]
    assert second.prefixes.add(longer, prefill(first, longer))
    other = run(second, [Request("c", longer, settings(max_tokens=2, temperature=0))])["c"]
    assert other.request.metrics.reused == second.statistics.imported_tokens == len(longer) - 1


def test_a_beginning_serves_another_prompt_as_far_as_it_goes() -> None:
    first, second = engine(), engine()
    assert second.prefixes.add(PROMPT, prefill(first, PROMPT))
    longer = [*PROMPT[:20], 5, 6, 7]
    assert answer(second, longer, temperature=0, max_tokens=3) == answer(first, longer, temperature=0, max_tokens=3)
    assert second.statistics.imported_tokens == 20


def test_a_beginning_takes_no_pages_for_the_rest() -> None:
    """Of twelve pages, another request has half: all 39 tokens of an import would take ten, the prompt takes six."""
    longer = [*PROMPT, *range(3, 13)]
    saved, prompt, how = prefill(engine(), longer), [*longer[:20], 5, 6, 7], settings(max_tokens=1, temperature=0)
    with caches_of(13):
        second = engine(2)
    assert second.prefixes.add(longer, saved)
    requests = [Request("other", list(range(40, 60)), settings(max_tokens=4, temperature=0)), Request("a", prompt, how)]
    found = run(second, requests)
    assert list(found["a"].token_ids) == answer(engine(), prompt, temperature=0, max_tokens=1)
    assert second.statistics.imported_tokens == 20


def test_nothing_short_is_exported() -> None:
    tested = engine()
    assert tested.prefixes.export(PROMPT) is None
    answer(tested, PROMPT[:16], temperature=0, max_tokens=1)
    assert tested.prefixes.export(PROMPT[:16]) is None
    assert tested.prefixes.export([*PROMPT[:16], 3]) is not None


def test_what_does_not_fit_is_refused() -> None:
    first, second = engine(), engine()
    saved = prefill(first, PROMPT)
    with pytest.raises(ExecutionError, match="3 token ids are too few for 29 cached tokens"):
        second.prefixes.add(PROMPT[:3], saved)
    other = SavedSequence(replace(saved.form, model="another one"), saved.data)
    with pytest.raises(ExecutionError, match="the saved sequence is of model `another one`"):
        second.prefixes.add(PROMPT, other)
    with pytest.raises(ExecutionError, match="29 tokens take"):
        second.prefixes.add(PROMPT, SavedSequence(saved.form, saved.data[1:]))
    with pytest.raises(ExecutionError, match="in float64, the model `past_key_0` of 6 heads"):
        engine(model_type="gpt2").prefixes.add(PROMPT, saved)
    assert not engine(most_imported_bytes=saved.data.nbytes - 1).prefixes.add(PROMPT, saved)


def test_memory_is_bounded_and_the_oldest_gives_way() -> None:
    def saved() -> SavedSequence:
        return SavedSequence(CacheForm("", 20, ()), torch.zeros(100, dtype=torch.uint8))

    of_numbers, transfers, prompts = SavedSequences(), list[Any](), [np.arange(start, start + 20) for start in range(4)]
    imports = SequenceTier(250, of_numbers, transfers, 16)
    for prompt in prompts[:2]:
        assert imports.put(prompt, saved())
    assert imports.put(prompts[0], saved())  # again, so the other is older now
    assert imports.put(prompts[2], saved())
    assert (len(imports), imports.store.size_bytes) == (2, 200)
    assert transfers == [DropSequence(2)]
    assert imports.take(prompts[1], 1) is None
    assert imports.take(prompts[0], 20) is None  # the last token is always computed
    taken = imports.take(np.append(prompts[0], 99), 20)
    assert taken is not None
    assert taken[1] == 20
    assert (len(imports), imports.store.size_bytes) == (1, 100)
    assert list(of_numbers.data) == [2, 3]  # the second goes with its transfer
    assert not imports.put(prompts[3], SavedSequence(CacheForm("", 20, ()), torch.zeros(251, dtype=torch.uint8)))

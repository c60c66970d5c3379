"""Ranks as processes keep recurrent states as one rank does; a pipeline's first stage has no attention."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.support.engine_decoders import config_of
from tests.support.generation import case_of, run, settings
from trtkit.builder.build import build_bundle
from trtkit.config.llm import ParallelOptions
from trtkit.errors import ConfigError
from trtkit.jobs.runner import new_runner
from trtkit.llm.engine import EngineOptions, LLMEngine, Request
from trtkit.llm.execution import Call, open_execution

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.llm.execution import DecoderExecution

SIZES = {"max_batch_size": 4, "max_sequence_length": 64, "max_prefill_length": 16}


def opened(folder: Path, grid: dict[str, int] | None, **options: object) -> DecoderExecution:
    """Return the family's model on a grid, with attention in its third layer only."""
    case = case_of("lfm2")
    case = replace(case, config=case.config | {"full_attn_idxs": [2]})
    config = config_of(case, folder, **SIZES, **options)
    config = config.model_copy(update={"parallel": ParallelOptions(**grid) if grid else None})
    return open_execution(build_bundle(config, folder / "bundle", new_runner(), use_cache=False).bundle, "reference")


def answers(execution: DecoderExecution) -> tuple[list[list[int]], list[list[int]]]:
    """Return answers to prompts of several lengths, a beam search among them, and to what follows each of them."""
    r, engine = random.Random(3), LLMEngine(execution, EngineOptions(min_shared_tokens=4))
    prompts = [r.choices(range(3, 67), k=r.randint(5, 25)) for _ in range(8)]

    def ask(texts: list[list[int]]) -> list[list[int]]:
        beams = [2 if index == 3 else 1 for index in range(len(texts))]
        params = [settings(max_tokens=6, temperature=0, num_beams=count) for count in beams]
        requests = [Request(str(i), ids, own) for i, (ids, own) in enumerate(zip(texts, params, strict=True))]
        found = run(engine, requests)
        return [found[str(index)].token_ids for index in range(len(texts))]

    first = ask(prompts)
    second = ask([[*prompt, *answer, 9, 11] for prompt, answer in list(zip(prompts, first, strict=True))[::-1]])
    assert engine.statistics.reused_tokens > 0
    assert execution.cache.has_states
    return first, second


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[int]], list[list[int]]]:
    """What one rank answers."""
    return answers(opened(tmp_path_factory.mktemp("one"), None))


@pytest.mark.parametrize(
    ("grid", "kv"), [({"tensor": 2}, "linear"), ({"pipeline": 2}, "linear"), ({"pipeline": 2}, "paged")], ids=str
)
def test_ranks_answer_as_one_does(
    grid: dict[str, int], kv: str, expected: tuple[list[list[int]], list[list[int]]], tmp_path: Path
) -> None:
    execution = opened(tmp_path / "ranks", grid, kv=kv)
    try:
        assert answers(execution) == expected
        slot = int(execution.cache.positions.argmax())
        count = int(execution.cache.positions[slot])
        saved = execution.cache.save(slot, count)
        execution.cache.load((slot + 1) % 4, saved)
        assert execution.cache.positions[(slot + 1) % 4] == count
        execution.cache.mark(slice(slot, slot + 1))
        execution.forward(Call(slot, np.array([[5, 6]]), np.array([count]), np.array([2])))
        assert execution.cache.positions[slot] == count + 2
        execution.cache.rewind([slot])
        assert torch.equal(execution.cache.save(slot, count).data, saved.data)
    finally:
        execution.close()


def test_pages_need_attention_in_the_last_stage(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, {"pipeline": 4}, kv="paged")
    assert "`llm.kv: paged` needs a layer with attention in the last of 4 pipeline stages" in str(caught.value)
    assert "use fewer stages, so that the last one has layer 2, or `llm.kv: linear`" in str(caught.value)

"""Whole engine steps: decode, sample, schedule, with the host one step ahead or waiting for tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.gpu.language import Shape, decoder
from trtkit.llm.engine import LLMEngine, Request
from trtkit.llm.engine.engine import EngineOptions
from trtkit.llm.execution import open_execution
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer
    from trtkit.llm.execution import DecoderExecution

PROMPT = 16
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "top_p": 0.9},
    "penalized": {"temperature": 0.8, "top_k": 50, "repetition_penalty": 1.1},
}
WAYS: dict[str, EngineOptions] = {
    "a step ahead, sampled in its graph": EngineOptions(overlap=True, kernel=True),
    "a step ahead, sampled by torch": EngineOptions(overlap=True, kernel=False),
    "waiting, sampled by torch": EngineOptions(overlap=False, kernel=False),
}


def ask(place: Place, model: str) -> Iterator[Answer]:
    """Time steps of 1 and of all slots; each answer states what the host does meanwhile."""
    shape, bundle = decoder(place, model, "fp16")
    for rows in (1, shape.batch):
        for name, params in SAMPLING.items():
            for way, options in WAYS.items():
                execution = open_execution(bundle, "tensorrt", rows)
                engine = _running(execution, shape, params, options)
                ms = place.median_ms(engine.step)
                yield {"what": f"{rows} slots, {name}, {way}", "step_ms": ms, "tokens_per_s": rows / ms * 1e3}
                execution.close()


def _running(execution: DecoderExecution, shape: Shape, params: dict[str, Any], options: EngineOptions) -> LLMEngine:
    """Return an engine with every slot decoding."""
    engine, vocabulary = LLMEngine(execution, options), Vocabulary(shape.vocab, (2,))
    most = shape.length - PROMPT - 8
    for seed in range(execution.slots):
        settings = Settings.resolve(SamplingParams(max_tokens=most, ignore_eos=True, seed=seed, **params), vocabulary)
        engine.submit(Request(str(seed), list(range(300, 300 + PROMPT)), settings))
    while engine.statistics.generated_tokens < 2 * execution.slots:
        engine.step()
    return engine

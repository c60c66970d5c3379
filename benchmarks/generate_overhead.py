"""The engine's overhead: scheduling, sampling and admission, measured with a model that does nothing."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers.generation import logits_process

from benchmarks.measure import interleaved, seconds, summary, write
from trtkit.llm.engine import LLMEngine, Request
from trtkit.llm.execution import KvCache
from trtkit.llm.execution.execution import CallCounts
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings, Vocabulary
from trtkit.llm.scheduler.options import SchedulerOptions
from trtkit.llm.scheduler.scheduler import Scheduler
from trtkit.network.input_spec import Axis, InputSpec

if TYPE_CHECKING:
    from trtkit.llm.execution import Call
    from trtkit.llm.execution.execution import Draw

SLOTS, VOCABULARY, HISTORY = 64, 49152, 128
SMALL = 512
REPEATS = 5
# Steps per turn: slow variants run fewer.
STEPS = {"greedy": 200, "full settings": 5, "transformers, full settings": 1}
FULL = {
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.2,
    "no_repeat_ngram_size": 3,
    "bad_words": ((100,), (200, 201)),
    "temperature": 0.8,
    "top_k": 50,
    "top_p": 0.9,
    "min_p": 0.02,
    "typical_p": 0.95,
}


class Nothing:
    """A decoder that always returns the same logits. is_asynchronous: whether steps overlap, as on a GPU."""

    max_length, max_prefill_length = 4096, 2048
    has_all_logits, takes_ids, description, adapters = False, True, "nothing", None
    speculator = next_hidden = packed = None

    def __init__(self, slots: int = SLOTS, vocabulary: int = VOCABULARY, *, is_asynchronous: bool = False) -> None:
        self.slots, self.vocab_size, self.is_asynchronous = slots, vocabulary, is_asynchronous
        shape = Axis("batch"), Axis("key_value_heads", 1), Axis("cached_tokens", self.max_length), Axis("head_dim", 1)
        self.cache = KvCache(
            [InputSpec("past", "fp32", shape, "cache")], slots, self.max_length, lambda _: torch.float32
        )
        self.tokens, self.calls = torch.zeros(slots, dtype=torch.int64), CallCounts()
        self.logits = torch.randn(slots, vocabulary, generator=torch.Generator().manual_seed(0))

    def forward(self, call: Call, draw: Draw | None = None) -> torch.Tensor:  # noqa: ARG002  # a protocol's name
        return self.logits[: len(call.starts)]

    def slots_to_run(self, slots: slice) -> slice:
        return slots

    def tokens_to_run(self, tokens: int, _most: int) -> int:
        return tokens

    def prepare(self) -> None: ...

    def warm_up(self, draws: object, guesses: int) -> None: ...

    def layer_seconds(self, call: Call) -> dict[str, float]:  # noqa: ARG002  # a protocol's name
        """Return nothing: there are no layers."""
        return {}

    def close(self) -> None: ...


def main() -> None:
    """Measure and write the results."""
    torch.set_num_threads(1)
    figures = overhead_figures()
    print(write("generate_overhead", {"threads": 1, **figures}))
    print(json.dumps(figures, indent=1))


def overhead_figures() -> dict[str, Any]:
    """Return microseconds per step, greedy and with full settings, and those of transformers' processors."""
    nothing = Nothing()
    alone = {"greedy": partial(_steps, _engine(nothing, {"temperature": 0}), STEPS["greedy"])}
    compared = {
        "full settings": partial(_steps, _engine(nothing, FULL), STEPS["full settings"]),
        "transformers, full settings": partial(_transformers, nothing.logits, _processors()),
    }
    samples: dict[str, list[float]] = {}
    for turns in (alone, compared):
        samples |= interleaved({name: partial(seconds, turn) for name, turn in turns.items()}, REPEATS)
    micro = {name: summary([value / STEPS[name] * 1e6 for value in values]) for name, values in samples.items()}
    return {
        "slots": SLOTS,
        "vocabulary": VOCABULARY,
        "microseconds_per_step": micro,
        "scheduling": {"vocabulary": SMALL, "microseconds_per_step": _scheduling()},
        "admission_microseconds": _admission(),
    }


def _scheduling() -> dict[str, Any]:
    """Return microseconds of a greedy step with negligible sampling: mostly scheduling."""
    engines = {
        f"{slots} slots, {name}": _engine(Nothing(slots, SMALL, is_asynchronous=overlaps), {"temperature": 0})
        for slots in (64, 1024)
        for name, overlaps in (("waiting", False), ("overlapping", True))
    }
    turns = {name: partial(seconds, partial(_steps, engine, 100)) for name, engine in engines.items()}
    samples = interleaved(turns, REPEATS)
    return {name: summary([value / 100 * 1e6 for value in values]) for name, values in samples.items()}


def _admission() -> dict[str, Any]:
    """Return microseconds to schedule a step that admits a prompt of 2,000 tokens to the last of 1,024 slots."""
    scheduler: Scheduler[Request] = Scheduler(Nothing(1024, SMALL).cache, SchedulerOptions(1024, 4096, 512))
    for slot in range(1023):
        _admit(scheduler, str(slot), list(range(slot % 97, slot % 97 + 300)))
        scheduler.slots.cached[slot] = 300

    def admit() -> None:
        _admit(scheduler, "one", [7] * 2000)
        scheduler.cancel("one")
        scheduler.changes.clear()

    return summary([seconds(admit) * 1e6 for _ in range(REPEATS * 3)])


def _admit(scheduler: Scheduler[Request], name: str, prompt: list[int]) -> None:
    settings = Settings.resolve(SamplingParams(max_tokens=100, temperature=0), Vocabulary(SMALL, (2,)))
    scheduler.submit(Request(name, prompt, settings))
    scheduler.schedule(0.0)


def _engine(nothing: Nothing, params: dict[str, Any]) -> LLMEngine:
    """Return an engine with every slot decoding."""
    engine, vocabulary = LLMEngine(nothing), Vocabulary(nothing.vocab_size, (2,))
    for seed in range(nothing.slots):
        settings = Settings.resolve(SamplingParams(max_tokens=3900, ignore_eos=True, seed=seed, **params), vocabulary)
        engine.submit(Request(str(seed), list(range(300, 300 + HISTORY)), settings))
    while engine.statistics.prompt_tokens + engine.statistics.reused_tokens < nothing.slots * HISTORY:
        engine.step()
    for _ in range(3):
        engine.step()
    return engine


def _steps(engine: LLMEngine, count: int) -> None:
    for _ in range(count):
        engine.step()


def _processors() -> logits_process.LogitsProcessorList:
    """Return transformers' processors for the same settings; it lacks presence and frequency penalties."""
    return logits_process.LogitsProcessorList(
        [
            logits_process.RepetitionPenaltyLogitsProcessor(1.1),
            logits_process.NoRepeatNGramLogitsProcessor(3),
            logits_process.NoBadWordsLogitsProcessor([[100], [200, 201]], eos_token_id=2),
            logits_process.TemperatureLogitsWarper(0.8),
            logits_process.TopKLogitsWarper(50),
            logits_process.TopPLogitsWarper(0.9),
            logits_process.MinPLogitsWarper(0.02),
            logits_process.TypicalLogitsWarper(0.95),
        ]
    )


def _transformers(logits: torch.Tensor, processors: logits_process.LogitsProcessorList) -> None:
    """Process logits and draw one token per row."""
    ids = torch.arange(300, 300 + HISTORY).repeat(SLOTS, 1)
    torch.multinomial(processors(ids, logits.clone()).softmax(-1), 1)


if __name__ == "__main__":
    main()

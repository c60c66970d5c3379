"""What the engine costs beside the model: scheduling and sampling of 64 slots, with a model that does nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers.generation import logits_process

from benchmarks.measure import interleaved, seconds, summary
from trtkit.network.input_spec import Axis, InputSpec
from trtkit.runtime.decoder import KvCache
from trtkit.runtime.generation import Engine, Request
from trtkit.runtime.sampling.params import SamplingParams
from trtkit.runtime.sampling.settings import Settings, Vocabulary

if TYPE_CHECKING:
    from trtkit.runtime.decoder import Call

SLOTS, VOCABULARY, HISTORY = 64, 49152, 128
REPEATS = 5
# Steps of one turn: what takes long is done less often.
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
    """A decoder whose logits are always the same."""

    slots, vocab_size, max_length, max_prefill_length = SLOTS, VOCABULARY, 4096, 512
    has_all_logits, description = False, "nothing"

    def __init__(self) -> None:
        shape = Axis("batch"), Axis("key_value_heads", 1), Axis("cached_tokens", self.max_length), Axis("head_dim", 1)
        self.cache = KvCache([InputSpec("past", "fp32", shape, "cache")], SLOTS, lambda _: torch.float32)
        self.logits = torch.randn(SLOTS, VOCABULARY, generator=torch.Generator().manual_seed(0))

    def forward(self, call: Call) -> torch.Tensor:
        return self.logits[: len(call.starts)]

    def layer_seconds(self, call: Call) -> dict[str, float]:  # noqa: ARG002  # a protocol's name
        """Return nothing: there are no layers."""
        return {}

    def close(self) -> None: ...


def overhead_figures() -> dict[str, Any]:
    """Return microseconds of one step: greedy and with full settings, beside what transformers does for the same."""
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
    return {"slots": SLOTS, "vocabulary": VOCABULARY, "microseconds_per_step": micro}


def _engine(nothing: Nothing, params: dict[str, Any]) -> Engine:
    """Return an engine with a sequence decoding in each slot."""
    engine, vocabulary = Engine(nothing), Vocabulary(VOCABULARY, (2,))
    for seed in range(SLOTS):
        settings = Settings.resolve(SamplingParams(max_tokens=3900, ignore_eos=True, seed=seed, **params), vocabulary)
        engine.submit(Request(str(seed), list(range(300, 300 + HISTORY)), settings))
    while engine.statistics.generated_tokens < 2 * SLOTS:
        engine.step()
    return engine


def _steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()


def _processors() -> logits_process.LogitsProcessorList:
    """Return transformers' processors of the same settings, but for presence and frequency, which it lacks."""
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
    """Process and draw one token for each row."""
    ids = torch.arange(300, 300 + HISTORY).repeat(SLOTS, 1)
    torch.multinomial(processors(ids, logits.clone()).softmax(-1), 1)

"""The requests of a language model: prompts of given lengths, shared beginnings, and how many tokens to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.benchmarking.traces import BLOCK_TOKENS
from trtkit.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.benchmarking.traces import TraceRow
    from trtkit.bundle.manifest import Manifest


@dataclass(frozen=True)
class Work:
    """One request: a prompt's tokens, and exactly how many tokens it is answered with."""

    prompt_ids: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True)
class Lengths:
    """Prompts to make up. deviations are of a normal distribution, cut off at one token.

    shared_tokens: of each prompt's length, those at its start that come from one of `prefixes` beginnings, in turn.
    """

    input_tokens: int = 128
    output_tokens: int = 32
    input_deviation: float = 0.0
    output_deviation: float = 0.0
    shared_tokens: int = 0
    prefixes: int = 1


def synthetic_work(lengths: Lengths, count: int, vocab_size: int, seed: int = 0) -> list[Work]:
    """Return `count` requests of random tokens below `vocab_size`; the same seed makes the same ones.

    Raises BenchError if a prompt is shorter than what it shares.
    """
    if lengths.shared_tokens > lengths.input_tokens:
        what = f"{lengths.shared_tokens} shared tokens do not fit in prompts of {lengths.input_tokens}"
        raise BenchError(what, "--shared-tokens", "make prompts longer (--input-len)")
    generator = np.random.default_rng(seed)
    begins = generator.integers(0, vocab_size, (max(1, lengths.prefixes), lengths.shared_tokens)).tolist()
    inputs = _drawn(lengths.input_tokens, lengths.input_deviation, count, generator)
    outputs = _drawn(lengths.output_tokens, lengths.output_deviation, count, generator)
    work = []
    for index, (size, answer) in enumerate(zip(inputs, outputs, strict=True)):
        begin = begins[index % len(begins)]
        drawn = generator.integers(0, vocab_size, max(0, size - len(begin))).tolist()
        work.append(Work((*begin, *drawn), answer))
    return work


def round_seed(seed: int, number: int) -> int:
    """Return another seed for each round; the warm-up's number is -1."""
    return seed * 1009 + number + 1


def drawn_tokens(manifest: Manifest) -> int:
    """Return the upper bound of made-up token ids: image placeholders are not drawn."""
    logits = next(output for output in manifest.outputs if output.name == "logits")
    size = logits.shape[-1]
    return size if manifest.images is None else min(size, manifest.images.image_token_id)


def traced_work(rows: Sequence[TraceRow], vocab_size: int, seed: int = 0) -> list[Work]:
    """Return a trace's requests with made-up tokens: blocks of equal hash ids have equal tokens."""
    generator = np.random.default_rng(seed)
    work = []
    for row in rows:
        ids: list[int] = []
        for block_hash in row.hash_ids:
            block_generator = np.random.default_rng([seed, block_hash % 2**32])
            ids += block_generator.integers(0, vocab_size, BLOCK_TOKENS).tolist()
        ids = ids[: row.input_tokens]
        rest = generator.integers(0, vocab_size, row.input_tokens - len(ids)).tolist()
        work.append(Work((*ids, *rest), row.output_tokens))
    return work


def check_fits(work: Sequence[Work], max_length: int, where: str) -> None:
    """Raise BenchError if a prompt and its answer are longer than a slot."""
    longest = max(work, key=lambda item: len(item.prompt_ids) + item.output_tokens)
    inputs, outputs = len(longest.prompt_ids), longest.output_tokens
    if inputs + outputs > max_length:
        what = f"{inputs} input and {outputs} output tokens exceed the {max_length} that a slot holds"
        raise BenchError(what, where, "use fewer, or build with a larger `llm.max_sequence_length`")


def _drawn(mean: int, deviation: float, count: int, generator: np.random.Generator) -> list[int]:
    """Return lengths of at least 1."""
    drawn = np.rint(generator.normal(mean, deviation, count)) if deviation else np.full(count, mean)
    return [max(1, int(length)) for length in drawn]

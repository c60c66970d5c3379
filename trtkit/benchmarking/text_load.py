"""The load on a language model: its cases, and the requests of each round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trtkit.benchmarking.metrics import named_objectives
from trtkit.benchmarking.schedules import schedules_of
from trtkit.benchmarking.traces import read_trace
from trtkit.benchmarking.workload import Work, drawn_tokens, round_seed, synthetic_work, traced_work
from trtkit.errors import BenchError
from trtkit.runtime.llm import prepare_prompts, read_prompts, read_text_bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtkit.benchmarking.request import BenchRequest, Load
    from trtkit.benchmarking.schedules import Schedule
    from trtkit.benchmarking.traces import TraceRow
    from trtkit.bundle.bundle import Bundle

    MakeWork = Callable[[int], Sequence[Work]]


@dataclass(frozen=True)
class TextLoad:
    """A load, ready to be sent.

    schedules: a case each. work: a round's requests, by its number: every round has other prompts, since a cache may
    hold those of the one before; the warm-up's number is -1. description: of the requests. objectives: in ms by metric.
    """

    schedules: Sequence[Schedule]
    work: MakeWork
    description: str
    rounds: int
    objectives: Mapping[str, float]


def text_load(bundle: Bundle, request: BenchRequest) -> TextLoad:
    """Return the load that a request describes. Raises BenchError, PromptsError for a file that cannot be used."""
    load = request.load
    rows = [] if load.trace is None else read_trace(load.trace, load.requests)
    vocab_size = drawn_tokens(bundle.manifest)
    work: MakeWork
    if rows:
        count, description = len(rows), f"{len(rows)} requests of {load.trace}, tokens made up"
        work = partial(_traced, rows, vocab_size, load.seed)
    elif load.prompts is not None:
        prompts = _read_work(bundle, load.prompts, load)
        count, description = len(prompts), f"{len(prompts)} prompts of {load.prompts}"
        work = partial(_same_each_round, prompts)
    else:
        count, description = load.count, _description(load)
        work = partial(_synthetic, load, vocab_size)
    rounds = load.rounds or (3 if request.rivals else 1)
    return TextLoad(schedules_of(load, count, rows), work, description, rounds, named_objectives(load.goodput))


def _description(load: Load) -> str:
    description = f"{load.count} made-up prompts of {load.input_tokens} tokens, {load.output_tokens} to answer"
    if not load.shared_tokens:
        return description
    return f"{description}, {load.shared_tokens} shared of {load.prefixes} beginnings"


def _synthetic(load: Load, vocab_size: int, number: int) -> Sequence[Work]:
    return synthetic_work(load, load.count, vocab_size, round_seed(load.seed, number))


def _traced(rows: Sequence[TraceRow], vocab_size: int, seed: int, number: int) -> Sequence[Work]:
    return traced_work(rows, vocab_size, round_seed(seed, number))


def _read_work(bundle: Bundle, file: str, load: Load) -> list[Work]:
    """Return the prompts of a file, repeated or cut to the number of requests; a line may have `max_tokens`."""
    lines = read_prompts(file)
    prompts = prepare_prompts(lines, read_text_bundle(bundle), {"max_tokens": load.output_tokens})
    if any(prompt.read.images for prompt in prompts):
        raise BenchError("prompts with images cannot be measured", file, "remove their `images`")
    work = [Work(tuple(prompt.read.ids), prompt.settings.params.max_tokens) for prompt in prompts]
    return [work[index % len(work)] for index in range(load.requests or len(work))]


def _same_each_round(work: Sequence[Work], _number: int) -> Sequence[Work]:
    return work

"""Engines on tiny random models, and requests for them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tests.support.decoder_cases import CASES
from tests.support.decoders import graph_of, model_of
from trtkit.dtypes import FP32
from trtkit.llm.engine import EngineOptions, Finished, LLMEngine, Request
from trtkit.llm.execution import DecoderNetwork, ReferenceDecoder
from trtkit.llm.execution.pool_size import PoolSize
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings, Vocabulary
from trtkit.llm.scheduler import SchedulingParams
from trtkit.network.decoder_options import DecoderOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.support.decoder_case import Case

LENGTH = 64
MAX_PREFILL = 16
EOS = 2
SLOTS = 4
PAGE_TOKENS = 4
"""Tokens per page: fewer than in practice, so that tests meet many page boundaries."""
FEW_PAGES = 40
"""Fewer than the 64 pages that four slots could fill, so that requests are preempted."""


def case_of(model_type: str) -> Case:
    """Return the first case of a family."""
    return next(case for case in CASES if case.model_type == model_type)


@cache
def network_of(
    case: Case,
    *,
    has_all_logits: bool = False,
    length: int = LENGTH,
    page_tokens: int | None = None,
    in_place: bool = False,
    expands_latent: bool = False,
    is_packed: bool = False,
) -> DecoderNetwork:
    """Return a case's network in fp32. in_place: it reads pages in place, here by the op's lowering."""
    model = model_of(case)
    options = {"page_tokens": page_tokens, "has_pages_in_place": in_place, "expands_latent": expands_latent}
    options["is_packed"] = is_packed
    graph = graph_of(model, DecoderOptions(FP32, length, has_all_logits=has_all_logits, **options))
    sizes = model.spec.vocab_size, length, MAX_PREFILL, has_all_logits
    return DecoderNetwork(graph.layers(), graph.inputs, *sizes, has_read_only_caches=page_tokens is not None)


def decoder(
    model_type: str = "llama",
    slots: int = 4,
    *,
    has_all_logits: bool = False,
    pages: int | None = None,
    in_place: bool = False,
    is_packed: bool = False,
) -> ReferenceDecoder:
    """Return a tiny model in fp64, so that logits do not depend on how tokens are batched.

    pages: number of pages; None for linear caches. in_place: pages are read in place.
    """
    paged = {"page_tokens": None if pages is None else PAGE_TOKENS, "in_place": in_place, "is_packed": is_packed}
    network = network_of(case_of(model_type), has_all_logits=has_all_logits, **paged)
    return ReferenceDecoder(network, slots, widen="fp64", pool=PoolSize(pages))


def settings(vocab_size: int = 67, eos_ids: tuple[int, ...] = (EOS,), **params: Any) -> Settings:
    """Return settings of one sequence for a tiny model."""
    return Settings.resolve(SamplingParams(**params), Vocabulary(vocab_size, eos_ids))


def run(engine: LLMEngine, requests: Iterable[Request]) -> dict[str, Finished]:
    """Submit all requests and step until they are done."""
    for request in requests:
        engine.submit(request)
    results: dict[str, Finished] = {}
    while engine.has_work:
        results |= {finished.request.id: finished for finished in engine.step()}
    return results


def answer(engine: LLMEngine, prompt: list[int], **params: Any) -> list[int]:
    """Return the answer to one prompt."""
    return run(engine, [Request("only", prompt, settings(**params))])["only"].token_ids


def engine(slots: int = 4, model_type: str = "llama", **options: Any) -> LLMEngine:
    """Return an engine on a tiny model, with logits of all tokens if guesses are to be checked.

    Its clock is stopped, so that what is kept on the host does not depend on the machine's load.
    """
    has_all_logits, (pages, in_place, is_packed) = options.get("proposer") is not None, _caches[-1]
    options = {"clock": lambda: 0.0, **options}
    how = {"pages": pages, "in_place": in_place, "is_packed": is_packed}
    opened = decoder(model_type, slots, has_all_logits=has_all_logits, **how)
    return LLMEngine(opened, EngineOptions(**options))


_caches: list[tuple[int | None, bool, bool]] = [(None, False, False)]


@contextmanager
def caches_of(pages: int | None, *, in_place: bool = False, is_packed: bool = False) -> Iterator[None]:
    """Set the caches of `engine`'s engines. pages: number of pages; None for linear caches. in_place: read in place.

    is_packed: decode and prefill share calls.
    """
    _caches.append((pages, in_place, is_packed))
    yield
    _caches.pop()


def reusable(tokens: int) -> int:
    """Return how many tokens of a cached prefix are reused: full pages only, if caches are paged."""
    return tokens if _caches[-1][0] is None else tokens - tokens % PAGE_TOKENS


@dataclass(frozen=True)
class Asked:
    """A request as data, so that its answer alone is computed once."""

    prompt: tuple[int, ...]
    params: tuple[tuple[str, Any], ...]
    priority: int = 0

    def request(self, name: str) -> Request:
        return Request(name, list(self.prompt), settings(**dict(self.params)), SchedulingParams(self.priority))


@cache
def lone_engine(model_type: str = "llama") -> LLMEngine:
    """Return an engine with linear caches that shares nothing between requests."""
    with caches_of(None):
        return engine(SLOTS, model_type, min_shared_tokens=10**6)


@cache
def alone(asked: Asked, model_type: str = "llama") -> tuple[int, ...]:
    return tuple(run(lone_engine(model_type), [asked.request("alone")])["alone"].token_ids)


def is_clean(tested: LLMEngine) -> bool:
    """Whether an idle engine has freed all slots, and all pages except those kept as prefixes."""
    pages, cache = tested.execution.cache.pages, tested.execution.cache
    held = 0 if pages is None or cache.has_slot_memory else pages.held
    return tested.free_slots == SLOTS and not tested.has_work and not held

"""Packed calls: decoding rows, with guesses, and prompts in one call each get transformers' results."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.integration.engines.planted import is_seen
from tests.selection import slow_unless
from tests.support.covering import CACHED, in_covering_set_of, spec_of
from tests.support.decoder_cases import CASES
from tests.support.decoders import graph_of, model_of, read_network
from tests.support.generation import FEW_PAGES, MAX_PREFILL, Asked, alone, caches_of, case_of, decoder, engine, run
from tests.support.generation import SLOTS as ENGINE_SLOTS
from trtkit.dtypes import FP32
from trtkit.llm.engine import DraftProposer, LookupProposer
from trtkit.llm.engine.drafts import Drafts
from trtkit.llm.execution import Call, ReferenceDecoder
from trtkit.llm.execution.network import DecoderNetwork
from trtkit.llm.execution.packed import PackedCall
from trtkit.network.decoder_options import DecoderOptions
from trtkit.quantized_matrix import KvQuantization, scales_of_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.parallel.test_pipeline import Stages
    from tests.support.decoder_case import Case
    from trtkit.llm.engine.proposers import Proposer
    from trtkit.llm.sampling.settings import Settings
    from trtkit.llm.sequences import Ints, Sequences

LENGTH, SLOTS, TOKENS, STEPS, GUESSES = 32, 5, 26, 30, 3
LINEAR: dict[str, Any] = {}
WINDOW = {"has_kv_window": True}
PAGED = {"page_tokens": 4}
RECURRENT = [case for case in CASES if spec_of(case).states]


def decoder_of(case: Case, *, is_packed: bool = True, **options: Any) -> ReferenceDecoder:
    """Return the case's network, read from a file, with caches for SLOTS sequences."""
    model = model_of(case)
    graph = graph_of(model, DecoderOptions(FP32, LENGTH, has_all_logits=True, is_packed=is_packed, **options))
    network = DecoderNetwork(
        graph.layers(),
        graph.inputs,
        model.spec.vocab_size,
        LENGTH,
        LENGTH,
        True,
        has_read_only_caches=bool(options.get("page_tokens") or options.get("kv_cache")),
    )
    return ReferenceDecoder(read_network(network), SLOTS)


def random_call(r: random.Random, ids: np.ndarray, read: np.ndarray, *, are_neighbors: bool) -> PackedCall:
    """Return a call in which some slots decode, with idle ones between them, and others read pieces of any length.

    In some calls, those that decode have up to GUESSES guesses each. are_neighbors: whether the others are.
    """
    left = [slot for slot in range(SLOTS) if read[slot] < TOKENS]
    decode = [slot for slot in left if read[slot] and r.random() < 0.6]
    prompts = [slot for slot in r.sample(left, len(left)) if slot not in decode and r.random() < 0.7]
    if not decode and not prompts:
        prompts = left[:1]
    if are_neighbors:
        prompts = [slot for place, slot in enumerate(sorted(prompts)) if slot == min(prompts) + place]
    rows = np.arange(min(decode), max(decode) + 1) if decode else np.zeros(0, np.int64)
    most = 1 + r.choice([0, 0, GUESSES])
    starts = read[rows]
    news = [r.randint(1, min(most, TOKENS - int(read[slot]))) if slot in decode else 0 for slot in rows]
    counts = np.array(news, np.int64)
    new = np.arange(counts.max(initial=1))
    tokens = ids[rows[:, None], np.minimum(starts[:, None] + new, TOKENS - 1)] * (new < counts[:, None])
    decoding = Call(int(rows[0]) if decode else 0, tokens, starts, counts)
    slots = np.array(prompts, np.int64)
    new = np.array([r.randint(1, int(min(9, TOKENS - read[slot]))) for slot in prompts], np.int64)
    pieces = np.zeros((len(prompts), int(new.max(initial=1))), np.int64)
    for piece, slot, count in zip(pieces, prompts, new, strict=True):
        piece[:count] = ids[slot, read[slot] : read[slot] + count]
    reading = Call(0, pieces, read[slots], new, scattered=slots)
    return PackedCall(decoding, reading, np.arange(tokens.size + int(new.sum())))


def check_steps(
    decoder: ReferenceDecoder | Stages,
    expected: torch.Tensor,
    seed: int = 0,
    atol: float = 2e-4,
    *,
    are_neighbors: bool | None = None,
) -> None:
    """Compare the logits of every token of random mixed steps with those of `ids_of(seed)` at once [SLOTS, S, V]."""
    r, ids, read = random.Random(seed), ids_of(seed), np.zeros(SLOTS, np.int64)
    assert decoder.packed is not None
    are_neighbors = decoder.cache.needs_neighbors if are_neighbors is None else are_neighbors
    for _ in range(STEPS):
        if (read == TOKENS).all():
            break
        call = random_call(r, ids, read, are_neighbors=are_neighbors)
        logits = decoder.packed.forward_packed(call)
        width = call.decode.ids.shape[1]
        for row, (slot, count) in enumerate(zip(call.decode.slots.tolist(), call.decode.counts.tolist(), strict=True)):
            part = expected[slot, read[slot] : read[slot] + count]
            torch.testing.assert_close(logits[row * width :][:count], part, atol=atol, rtol=1e-3)
        first = call.decoding_tokens
        for slot, count in zip(call.prompts.slots.tolist(), call.prompts.counts.tolist(), strict=True):
            part = expected[slot, read[slot] : read[slot] + count]
            torch.testing.assert_close(logits[first : first + count], part, atol=atol, rtol=1e-3)
            first += count
        read[call.decode.slots] += call.decode.counts
        read[call.prompts.slots] += call.prompts.counts
    assert (read == TOKENS).any()


def ids_of(seed: int) -> np.ndarray:
    """Return random sequences [SLOTS, TOKENS]."""
    return np.random.default_rng(seed).integers(3, 67, (SLOTS, TOKENS))


def logits_of(case: Case, seed: int = 0) -> torch.Tensor:
    """Return transformers' logits of them."""
    return model_of(case).logits(torch.from_numpy(ids_of(seed)))


CACHES = {"linear": LINEAR, "window": WINDOW, "paged": PAGED}
_covers = in_covering_set_of(CASES, CACHED)


@pytest.mark.parametrize(
    ("case", "kind"),
    slow_unless(
        lambda case, kind: kind == "paged" or (kind == "linear" and (case in RECURRENT or _covers(case))),
        itertools.product(CASES, CACHES),
    ),
    ids=str,
)
def test_mixed_steps_give_what_transformers_gives(case: Case, kind: str) -> None:
    check_steps(decoder_of(case, **CACHES[kind]), logits_of(case))


def test_prompts_read_nothing_that_decoding_rows_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both groups of rows share linear caches, and TensorRT may write for one before or after it reads for the other.

    Prompts are given caches as they were before the call, with large numbers after the cached tokens.
    """
    case = case_of("llama")
    decoder = decoder_of(case)
    view, run = decoder._own.view_of_prompts, decoder._run_packed
    starts: list[np.ndarray] = []

    def poisoned(rows: slice) -> dict[str, torch.Tensor]:
        views = {name: array.clone() for name, array in view(rows).items()}
        for array in views.values():
            for row, start in enumerate(starts[-1].tolist()):
                array[row, :, start:] = 1e4
        return views

    def noted(packed: PackedCall) -> torch.Tensor:
        starts.append(packed.prompts.starts)
        return run(packed)

    monkeypatch.setattr(decoder._own, "view_of_prompts", poisoned)
    monkeypatch.setattr(decoder, "_run_packed", noted)
    check_steps(decoder, logits_of(case))
    assert len(starts) > 5


REFERENCE, FEED = "trtkit.llm.execution.reference", "trtkit.llm.execution.packed"
APPENDED = "self.cache.append(packed.new_tokens(), new)"
MISTAKES_OF_STATES = {
    "states of a neighboring slot": (
        FEED,
        "return slice(first, first + len(slots))",
        "return slice(max(first - 1, 0), max(first - 1, 0) + len(slots))",
    ),
    "states of prompts that are not kept": (REFERENCE, "self.cache.keep(self._prompt_slots(packed), ", "dict("),
    "states of decoding rows that are not kept": (REFERENCE, "self.cache.keep(decode.rows, ", "dict("),
    "idle rows that write": (FEED, '"token_counts": decode.counts', '"token_counts": np.maximum(decode.counts, 1)'),
    "idle rows that are kept after prompts": (
        REFERENCE,
        APPENDED,
        f"{APPENDED}; self.cache.keep(decode.rows, {{s.name: outputs[s.updated] for s in states}})",
    ),
    "padding that states read": (
        FEED,
        'token_counts": prompts.counts',
        'token_counts": np.full_like(prompts.counts, prompts.ids.shape[1])',
    ),
}


@pytest.mark.parametrize("name", MISTAKES_OF_STATES)
def test_a_mistake_with_states_is_seen(name: str) -> None:
    """In these steps, slots are idle between those that decode, and go on later."""
    case, seed = case_of("mamba2"), 2
    expected = logits_of(case, seed)
    check_steps(decoder_of(case), expected, seed)
    assert is_seen(MISTAKES_OF_STATES[name], lambda: check_steps(decoder_of(case), expected, seed), None)


@pytest.mark.parametrize("kind", ["linear", "paged"])
@pytest.mark.parametrize("stored", ["int8", "fp8"])
def test_mixed_steps_read_caches_in_8_bits_as_separate_calls_do(stored: str, kind: str) -> None:
    """Rows of a quantized cache round alike, so that nothing depends on who shares a call."""
    case = case_of("llama")
    scales = (0.05,) * len(spec_of(case).layers)
    kv = KvQuantization(stored, scales_of_pairs(scales, scales))
    alone = decoder_of(case, is_packed=False, kv_cache=kv, **CACHES[kind])
    none, all_tokens = np.zeros(SLOTS, np.int64), np.full(SLOTS, TOKENS)
    expected = alone.forward(Call(0, ids_of(0), none, all_tokens)).clone()
    check_steps(decoder_of(case, kv_cache=kv, **CACHES[kind]), expected)
    assert (expected - logits_of(case)).abs().max() > 1e-3  # the caches do round


@pytest.mark.parametrize("kind", CACHES)
def test_hidden_states_of_mixed_steps_are_those_of_transformers(kind: str) -> None:
    """Slots 0 and 2 decode, of 7 and of 4 tokens; slot 3 reads 9 tokens, and slot 4 one."""
    case, ids = case_of("llama"), ids_of(0)
    with torch.inference_mode():
        expected = model_of(case).hf.model(torch.from_numpy(ids)).last_hidden_state
    decoder = decoder_of(case, has_hidden_states=True, **CACHES[kind])
    starts, news = np.array([7, 0, 4, 0, 0]), np.array([1, 0, 1, 9, 1])
    decoder.forward(Call(0, ids[:, :7], np.zeros(5, np.int64), starts))
    reading = Call(3, ids[3:, :9], starts[3:], news[3:], scattered=np.array([3, 4]))
    decoding = Call(0, ids[np.arange(3), starts[:3]][:, None], starts[:3], news[:3])
    packed = PackedCall(decoding, reading, np.zeros(0, np.int64)).placed(decoder.cache.prepare)
    hidden = decoder._executor.run(decoder.packed_inputs(packed))["hidden_states"][:, 0]
    for row, slot in ((0, 0), (2, 2)):
        torch.testing.assert_close(hidden[row], expected[slot, starts[slot]], atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(hidden[3:], torch.cat([expected[3, :9], expected[4, :1]]), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", CACHES)
def test_a_step_without_prompts_computes_nothing_for_them(kind: str) -> None:
    decoder = decoder_of(case_of("llama"), **CACHES[kind])
    ids, none = ids_of(0), np.zeros(SLOTS, np.int64)
    reading, decoding = (decoder.layer_seconds(Call(0, ids[:, :width], none, none + width)).keys() for width in (2, 1))
    of_prompts = "layers.0/attention/attention_1"
    assert of_prompts in reading
    assert of_prompts not in decoding
    assert len(decoding) < 0.7 * len(reading)


SHARED: list[Any] = [None, FEW_PAGES]
"""Pages of caches in packed calls: none, of linear ones, and few."""


class Sometimes(DraftProposer):
    """Guesses for every other slot."""

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:
        drafts = super().propose(sequences, slots, settings, most)
        return Drafts(np.where(slots[:, None] % 2 == 1, drafts.tokens, -1))


@pytest.mark.parametrize("pages", SHARED)
@pytest.mark.parametrize("kind", ["lookup", "draft", "some"])
def test_guesses_and_prompts_share_a_call(kind: str, pages: int | None) -> None:
    """Requests come at every other step, so that some are read while others decode, with guesses and without."""
    proposer = {
        "lookup": lambda: LookupProposer(4, shortest=1),
        "draft": lambda: DraftProposer(decoder("llama", ENGINE_SLOTS), 3),
        "some": lambda: Sometimes(decoder("llama", ENGINE_SLOTS), 4),
    }[kind]()
    params = (("temperature", 0.8), ("seed", 5), ("max_tokens", 12), ("ignore_eos", True))
    asked = [Asked((*([5, 6, 7, 8] * 3)[: 3 + number], number), params) for number in range(9)]
    with caches_of(pages, is_packed=True):
        tested, waiting, tokens = engine(ENGINE_SLOTS, proposer=proposer, token_budget=9), list(enumerate(asked)), {}
    mixed, packed = [], tested.execution.packed
    assert packed is not None
    forward = packed.forward_packed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "forward_packed", lambda call, *rest: (mixed.append(call), forward(call, *rest))[1])
        while waiting or tested.has_work:
            if waiting and tested.statistics.steps % 2 == 0:
                number, each = waiting.pop(0)
                tested.submit(each.request(str(number)))
            tokens |= {int(each.request.id): tuple(each.token_ids) for each in tested.step()}
    assert tokens == {number: alone(each) for number, each in enumerate(asked)}
    statistics = tested.statistics
    assert statistics.network_calls == len(mixed) == statistics.steps
    assert statistics.synchronous_steps > 0
    assert statistics.accepted_tokens > 0
    guessing = [call for call in mixed if call.places.size and (call.decode.counts > 1).any()]
    assert len(guessing) > 3
    assert kind == "draft" or any((call.decode.counts == 1).any() for call in guessing)


def statistics_of(proposer: Proposer, *, is_packed: bool) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    """Return the tokens of requests, and what was guessed, how much came true, and in how many steps and calls."""
    with caches_of(FEW_PAGES, is_packed=is_packed):
        tested = engine(ENGINE_SLOTS, proposer=proposer)
    params = (("temperature", 0.9), ("seed", 3), ("max_tokens", 20), ("ignore_eos", True))
    asked = [Asked(tuple([5, 6, 7, 8] * 3)[: 2 + number], params).request(str(number)) for number in range(7)]
    tokens = {name: tuple(each.token_ids) for name, each in run(tested, asked).items()}
    done = tested.statistics
    return tokens, (done.drafted_tokens, done.accepted_tokens, done.synchronous_steps, done.steps, done.network_calls)


def test_what_is_guessed_does_not_depend_on_who_shares_a_call() -> None:
    tokens, apart = statistics_of(LookupProposer(4, shortest=1), is_packed=False)
    assert statistics_of(LookupProposer(4, shortest=1), is_packed=True) == (tokens, (*apart[:4], apart[3]))
    assert apart[4] > apart[3]


def test_more_guesses_than_a_row_has_room_for_are_checked_in_calls_of_their_own() -> None:
    tokens, apart = statistics_of(LookupProposer(MAX_PREFILL, shortest=1), is_packed=False)
    assert statistics_of(LookupProposer(MAX_PREFILL, shortest=1), is_packed=True) == (tokens, apart)
    assert apart[4] > apart[3]

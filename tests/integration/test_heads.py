"""A draft head's guesses equal torch's and change no token: linear caches, pages, batches, greedy or sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.decoders import model_of, relative_rms
from tests.support.generation import PAGE_TOKENS, SLOTS, Asked, _caches, alone, caches_of, case_of, is_clean, run
from tests.support.heads import LAYERS, decoder_with_head, saved_head, torch_head
from trtkit.builder.speculators import open_speculator
from trtkit.drafts.medusa.proposer import MedusaProposer
from trtkit.drafts.medusa.reference import medusa_logits
from trtkit.drafts.proposers import ChainProposer
from trtkit.llm.engine import EngineOptions, LLMEngine
from trtkit.llm.execution.kv_cache import KvCache
from trtkit.models.speculators import kind_part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.llm.engine.drafts import Drafts
    from trtkit.llm.sampling.settings import Settings
    from trtkit.llm.sequences import Ints, Sequences

pytestmark = pytest.mark.usefixtures("caches")
PROMPTS = [tuple([5, 6, 7, 8] * 3), (11, 12, 13), tuple(range(20, 50)), (9,) * 10, tuple(range(3, 55)), (1,)]
PROMPTS += [(*range(20, 45), 7), (5, 6, 7, 8, 5, 6)]


Guess = tuple[list[int], list[int], list[torch.Tensor]]
"""The tokens before a guess, the guess, and the logits of its tokens."""


class Recorded(ChainProposer):
    """A proposer whose logits and guesses can be seen."""

    guesses: list[Guess]

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:
        self.logits: list[torch.Tensor] = []
        drafts = super().propose(sequences, slots, settings, most)
        rows = drafts.counts.nonzero()[0]
        for place, row in enumerate(rows.tolist()):
            known = sequences.ids(int(slots[row])).tolist()
            chain = drafts.tokens[row, : len(self.logits)].tolist()
            self.guesses.append((known, chain, [each[place] for each in self.logits]))
        return drafts

    def _read(self, *arguments: Any, **options: Any) -> torch.Tensor:
        logits = super()._read(*arguments, **options)
        if hasattr(self, "logits"):
            self.logits.append(logits.clone())
        return logits


def engine(
    kind: str = "eagle3",
    proposer: type[ChainProposer | MedusaProposer] | None = None,
    tree: int | None = None,
    **options: Any,
) -> LLMEngine:
    pages, in_place, is_packed = _caches[-1]
    model = decoder_with_head(SLOTS, pages, kind, in_place=in_place, has_tree=tree is not None, is_packed=is_packed)
    guesser = (proposer or kind_part(kind, "proposer").PROPOSER)(model, 3, tree)
    return LLMEngine(model, EngineOptions(proposer=guesser, clock=lambda: 0.0, **options))


def requests(**params: Any) -> dict[str, Asked]:
    shared = (("max_tokens", 20), ("ignore_eos", True), *params.items())
    return {f"r{index}": Asked(prompt, shared, index % 3) for index, prompt in enumerate(PROMPTS)}


# So hot that model and head both draw almost evenly: with the same random numbers, most guesses come true.
HOT = {"temperature": 40.0, "seed": 4}


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
@pytest.mark.parametrize("tree", [None, pytest.param(3, marks=pytest.mark.slow), 12])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.9, "seed": 3}, HOT])
def test_head_changes_no_token(kind: str, tree: int | None, params: dict[str, Any]) -> None:
    host = {"host_cache_bytes": 10**6, "host_block_tokens": PAGE_TOKENS}
    tested, asked = engine(kind, tree=tree, token_budget=11, min_shared_tokens=4, **host), requests(**params)
    found = run(tested, [each.request(name) for name, each in asked.items()])
    assert {name: tuple(each.token_ids) for name, each in found.items()} == {
        name: alone(each) for name, each in asked.items()
    }
    statistics, alternatives = tested.statistics, (tree or 3) - 3
    assert statistics.drafted_tokens > 100 * (3 + alternatives) / 3
    assert is_clean(tested)
    if params is HOT:
        assert statistics.accepted_tokens > 0.3 * statistics.drafted_tokens * 3 / (3 + alternatives)


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
@pytest.mark.parametrize("is_moved", [True, False])
def test_alternatives_that_come_true_are_moved_to_the_places_of_a_chain(
    kind: str, is_moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, moved, move = requests(temperature=0), [], KvCache.move
    expected = {name: alone(each) for name, each in asked.items()}

    def counted(cache: KvCache, slots: Ints, sources: Ints, targets: Ints) -> None:
        moved.extend(slots.tolist())
        if is_moved:
            move(cache, slots, sources, targets)

    monkeypatch.setattr(KvCache, "move", counted)
    found = run(engine(kind, tree=12), [each.request(name) for name, each in asked.items()])
    assert moved
    assert ({name: tuple(each.token_ids) for name, each in found.items()} == expected) == is_moved


def recorded(asked: dict[str, Asked], tree: int | None = None) -> list[Guess]:
    """Return what a head guessed for requests that share nothing, without alternatives."""
    tested = engine(proposer=Recorded, tree=tree, min_shared_tokens=10**6)
    proposer = tested._options.proposer
    assert isinstance(proposer, Recorded)
    proposer.guesses = []
    run(tested, [each.request(name) for name, each in asked.items()])
    return proposer.guesses


@torch.inference_mode()
def check(guesses: Sequence[Guess]) -> None:
    """Compare the logits of guesses with those of torch."""
    model, head = model_of(case_of("llama")).hf, torch_head()
    for known, drafts, logits in guesses:
        states = model(torch.tensor([known[:-1]]), output_hidden_states=True).hidden_states
        hidden = head.fuse(torch.cat([states[layer] for layer in LAYERS], -1))
        ids = known[1:]
        for draft, ours in zip(drafts, logits, strict=True):
            theirs, next_hidden = head(torch.tensor([ids]), hidden)
            assert relative_rms(ours, theirs[0, -1]) < 1e-5
            ids, hidden = [*ids, draft], torch.cat([hidden, next_hidden[:, -1:]], 1)


@pytest.mark.parametrize("tree", [None, 30])
def test_guesses_are_those_of_torch(tree: int | None) -> None:
    guesses = recorded(requests(**HOT), tree)
    assert len(guesses) > 40
    check(guesses[::3])


def test_guesses_for_others_leave_a_prompt_alone_that_is_being_read() -> None:
    """Its slot lies between theirs, so the head's rows for it must write after its tokens."""
    shared = (*HOT.items(), ("ignore_eos", True))
    asked = {f"r{slot}": Asked((5 + slot,), (("max_tokens", 4 if slot == 1 else 40), *shared)) for slot in range(SLOTS)}
    asked["late"] = Asked(tuple(range(3, 55)), (("max_tokens", 8), *shared))
    guesses = [each for each in recorded(asked) if len(each[0]) > 52]
    assert guesses
    check(guesses)


class RecordedMedusa(MedusaProposer):
    """A proposer whose guesses can be seen."""

    guesses: list[tuple[list[int], list[int]]]

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:
        drafts = super().propose(sequences, slots, settings, most)
        for row in drafts.counts.nonzero()[0].tolist():
            self.guesses.append((sequences.ids(int(slots[row])).tolist(), drafts.tokens[row].tolist()))
        return drafts


@torch.inference_mode()
def test_each_medusa_head_guesses_the_token_at_its_distance(tmp_path: Path) -> None:
    tested = engine("medusa", RecordedMedusa, min_shared_tokens=10**6)
    proposer = tested._options.proposer
    assert isinstance(proposer, RecordedMedusa)
    proposer.guesses = []
    run(tested, [each.request(name) for name, each in requests(temperature=0).items()])
    head = open_speculator(saved_head(tmp_path, "medusa"), model_of(case_of("llama")).spec)
    assert len(proposer.guesses) > 40
    for known, drafts in proposer.guesses[::3]:
        # The model has not read the last token: the hidden state before gave it, and gives those after it.
        hidden = model_of(case_of("llama")).hf.model(torch.tensor([known[:-1]])).last_hidden_state[0]
        logits = medusa_logits(head.spec, head.arrays, hidden)
        assert drafts == logits[: len(drafts), -1].argmax(-1).tolist()


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_what_a_head_guesses_does_not_depend_on_who_shares_a_call(kind: str) -> None:
    """Requests come one a step, so that some read while others decode."""
    results, calls, pages = [], [], _caches[-1][0]
    for is_packed in (False, True):
        with caches_of(pages, is_packed=is_packed):
            tested, tokens = engine(kind, tree=6, token_budget=9), {}
        for number, each in enumerate(requests(**HOT).values()):
            tested.submit(each.request(str(number)))
            tokens |= {each.request.id: tuple(each.token_ids) for each in tested.step()}
        while tested.has_work:
            tokens |= {each.request.id: tuple(each.token_ids) for each in tested.step()}
        done = tested.statistics
        results.append((tokens, done.drafted_tokens, done.accepted_tokens, done.steps))
        calls.append(done.network_calls)
    assert results[0] == results[1]
    assert results[0][2] > 20
    assert calls[0] > calls[1]
    assert pages is None or calls[1] == results[1][3]  # prompts in linear caches have to be neighbors to share a call

"""An assistant's guesses equal transformers' and change no token: linear caches, pages, batches."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.assistants import assistant, decoder_with_assistant
from tests.support.decoders import model_of, relative_rms
from tests.support.generation import PAGE_TOKENS, SLOTS, Asked, _caches, alone, case_of, is_clean, run
from trtkit.drafts.gemma4_assistant.proposer import AssistantProposer
from trtkit.drafts.gemma4_assistant.reference import what_assistants_read
from trtkit.llm.engine import EngineOptions, LLMEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.engine.drafts import Drafts
    from trtkit.llm.sampling.settings import Settings
    from trtkit.llm.sequences import Ints, Sequences

pytestmark = pytest.mark.usefixtures("caches")
PROMPTS = [tuple([5, 6, 7, 8] * 3), (11, 12, 13), tuple(range(20, 50)), (9,) * 10, tuple(range(3, 55)), (1,)]
PROMPTS += [(*range(20, 45), 7), (5, 6, 7, 8, 5, 6)]
# So hot that both draw almost evenly: with the same random numbers, most guesses come true.
HOT = {"temperature": 40.0, "seed": 5}
FAMILY = "gemma4_text"


class Recorded(AssistantProposer):
    """A proposer whose guesses and their logits can be seen, each with the tokens before it."""

    guesses: list[tuple[list[int], list[int], list[torch.Tensor]]]

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:
        self.logits: list[torch.Tensor] = []
        drafts = super().propose(sequences, slots, settings, most)
        for place, row in enumerate(drafts.counts.nonzero()[0].tolist()):
            known = sequences.ids(int(slots[row])).tolist()
            self.guesses.append((known, drafts.tokens[row].tolist(), [each[place] for each in self.logits]))
        return drafts

    def _run(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logits, hidden = super()._run(*arguments)
        self.logits.append(logits.clone())
        return logits, hidden


def engine(kind: type[AssistantProposer] = AssistantProposer, tree: int | None = None, **options: Any) -> LLMEngine:
    pages, in_place, is_packed = _caches[-1]
    model = decoder_with_assistant(SLOTS, pages, in_place=in_place, has_tree=tree is not None, is_packed=is_packed)
    return LLMEngine(model, EngineOptions(proposer=kind(model, 3, tree), clock=lambda: 0.0, **options))


def requests(**params: Any) -> dict[str, Asked]:
    shared = (("max_tokens", 20), ("ignore_eos", True), *params.items())
    return {f"r{index}": Asked(prompt, shared, index % 3) for index, prompt in enumerate(PROMPTS)}


@pytest.mark.parametrize(("params", "tree"), [({"temperature": 0}, 12), (HOT, None)])
def test_assistant_changes_no_token(params: dict[str, Any], tree: int | None) -> None:
    host = {"host_cache_bytes": 10**6, "host_block_tokens": PAGE_TOKENS}
    tested, asked = engine(tree=tree, token_budget=11, min_shared_tokens=4, **host), requests(**params)
    found = run(tested, [each.request(name) for name, each in asked.items()])
    assert {name: tuple(each.token_ids) for name, each in found.items()} == {
        name: alone(each, FAMILY) for name, each in asked.items()
    }
    assert tested.statistics.drafted_tokens > 100
    assert is_clean(tested)
    if params is HOT:
        assert tested.statistics.accepted_tokens > 0.3 * tested.statistics.drafted_tokens


@torch.inference_mode()
def test_guesses_are_those_of_transformers() -> None:
    tested, asked = engine(Recorded, min_shared_tokens=10**6), requests(**HOT)
    proposer = tested._options.proposer
    assert isinstance(proposer, Recorded)
    proposer.guesses = []
    run(tested, [each.request(name) for name, each in asked.items()])
    assert len(proposer.guesses) > 40
    model, theirs = deepcopy(model_of(case_of(FAMILY)).hf).double(), assistant().double()  # as the networks compute
    for known, drafts, logits in proposer.guesses[::3]:
        hidden, shared = what_assistants_read(model, known[:-1])
        for last, ours in zip([known[-1], *drafts], logits, strict=False):
            embedded = model.get_input_embeddings()(torch.tensor([[last]]))
            given = theirs(
                inputs_embeds=torch.cat([embedded, hidden], -1),
                position_ids=torch.tensor([[len(known) - 1]]),
                shared_kv_states=shared,
            )
            assert relative_rms(ours, given.logits[0, 0]) < 1e-5
            hidden = given.last_hidden_state

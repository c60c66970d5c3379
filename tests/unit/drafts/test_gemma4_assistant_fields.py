"""Every field of an assistant's config is read, refused, or without effect on what transformers computes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from transformers import Gemma4AssistantConfig

from tests.support.assistants import assistant
from tests.support.config_fields import REFUSALS, changed_configs
from tests.support.decoders import model_of
from tests.support.generation import case_of
from trtkit.drafts.gemma4_assistant.reference import new_assistant, what_assistants_read
from trtkit.drafts.gemma4_assistant.spec import assistant_spec
from trtkit.errors import TrtkitError

CLUSTERS = {"use_ordered_embeddings": True, "num_centroids": 1, "centroid_intermediate_top_k": 1}
IDS = [5, 9, 40, 41, 3, 7, 7, 50, 12, 66, 18]


def guess(fields: dict[str, Any], weights: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the logits and the hidden state of a guess by transformers; None for a config that it does not take."""
    model = model_of(case_of("gemma4_text")).hf
    try:
        theirs = new_assistant(Gemma4AssistantConfig.from_dict(deepcopy(fields)))
        theirs.load_state_dict(weights)
        with torch.inference_mode():
            hidden, shared = what_assistants_read(model, IDS)
            embeds, places = torch.cat([hidden, hidden], -1), torch.tensor([[len(IDS)]])
            outputs = theirs(inputs_embeds=embeds, position_ids=places, shared_kv_states=shared)
            return torch.cat([outputs.logits[0, 0], outputs.last_hidden_state[0, 0]])
    except REFUSALS:
        return None


def test_every_field_of_an_assistant_is_read_refused_or_without_effect() -> None:
    theirs, target = assistant(**CLUSTERS), model_of(case_of("gemma4_text")).spec
    fields, weights = theirs.config.to_dict(), theirs.state_dict()
    base, same = assistant_spec(fields, "config.json", target), guess(fields, weights)
    assert same is not None
    changes = [({**fields, **change}, name) for name, change in changed_configs(fields) if name != "text_config"]
    layers = fields["text_config"]
    changes += [
        ({**fields, "text_config": {**layers, **change}}, f"text_config.{name}")
        for name, change in changed_configs(layers)
    ]
    leaks, without_effect = [], 0
    for changed, name in changes:
        try:
            if assistant_spec(changed, "config.json", target) != base:
                continue
        except TrtkitError:
            continue
        other = guess(changed, weights)
        without_effect += other is not None
        if other is not None and not torch.allclose(other, same, atol=1e-5):
            leaks.append(name)
    assert not leaks
    assert without_effect > 10

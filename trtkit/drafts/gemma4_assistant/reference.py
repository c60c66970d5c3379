"""transformers' Gemma 4 assistant, and the comparison of its network with it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from trtkit.drafts.gemma4_assistant.spec import ORDER, TABLE
from trtkit.errors import GenerationError
from trtkit.llm.execution import Call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, PreTrainedModel
    from transformers.models.gemma4_assistant.modeling_gemma4_assistant import Gemma4AssistantOutput

    from trtkit.builder.speculators import OpenedSpeculator
    from trtkit.llm.execution import ReferenceDecoder
    from trtkit.network.host_array import Array

    Read = tuple[torch.Tensor, Mapping[str, tuple[torch.Tensor, torch.Tensor]]]

_GUESSES = 3


def new_assistant(config: Gemma4AssistantConfig) -> Gemma4AssistantForCausalLM:
    """Return an assistant with newly initialized weights in fp32."""
    from transformers import Gemma4AssistantForCausalLM

    with all_layers_may_share():  # a config may name another type
        return Gemma4AssistantForCausalLM._from_config(config, attn_implementation="eager").float().eval()


@contextmanager
def all_layers_may_share() -> Iterator[None]:
    """Let transformers create models in which no layer has a cache: its check (5.23) rejects its own assistants."""
    from transformers import Gemma4TextConfig

    name = "kv_sharing_modes"
    usual = Gemma4TextConfig.__dict__[name]

    def modes(config: Gemma4TextConfig) -> list[str | None]:
        count: int = config.num_hidden_layers
        modes: list[str | None] = usual.fget(config) if config.num_kv_shared_layers < count else ["reuse"] * count
        return modes

    setattr(Gemma4TextConfig, name, property(modes))
    try:
        yield
    finally:
        setattr(Gemma4TextConfig, name, usual)


def what_assistants_read(model: PreTrainedModel, ids: Sequence[int]) -> Read:
    """Return the model's last hidden state [1, 1, D], and the keys and values for assistants, by layer type.

    transformers returns no keys and values if no layers share caches; then they are those of the last layer of each
    type.
    """
    import torch
    from transformers import DynamicCache

    cache, types = DynamicCache(), model.config.layer_types
    options = {"output_hidden_states": True, "return_shared_kv_states": True}
    outputs = model(torch.tensor([list(ids)]), past_key_values=cache, **options)
    layers = {kind: cache.layers[index] for index, kind in enumerate(types)} if not outputs.shared_kv_states else {}
    shared = {kind: (layer.keys, layer.values) for kind, layer in layers.items()} or dict(outputs.shared_kv_states)
    return outputs.hidden_states[-1][:, -1:], shared


def logit_pairs(
    model: ReferenceDecoder,
    reference: PreTrainedModel,
    opened: OpenedSpeculator,
    arrays: Mapping[str, Array],
    ids: Sequence[int],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return outputs of an assistant and of its reference after a part of a prompt and after all of it.

    The outputs are logits and the hidden state for the next guess.
    """
    import torch

    speculator, theirs, table, pairs = (
        model.speculator,
        _reference(opened, arrays),
        reference.get_input_embeddings(),
        [],
    )
    if speculator is None or len(ids) < 3:
        raise GenerationError("an assistant needs a prompt of three tokens", "inputs", "give a longer text")
    with torch.inference_mode():
        for count in (len(ids) // 2, len(ids) - 1):
            hidden, shared = what_assistants_read(reference, ids[:count])
            model.forward(Call(0, np.array([ids[:count]]), np.zeros(1, np.int64), np.array([count])))
            assert model.next_hidden is not None
            token, state, at = int(ids[count]), model.next_hidden[:, -1:].clone(), np.array([count - 1])
            for _ in range(_GUESSES):
                logits = speculator.forward(Call(0, np.array([[token]]), at, np.ones(1, np.int64), hidden=state))
                embeds = torch.cat([table(torch.tensor([[token]])), hidden], -1)
                position_ids = torch.tensor([[count]])
                inputs = {"inputs_embeds": embeds, "position_ids": position_ids, "shared_kv_states": shared}
                outputs = theirs(**inputs, output_hidden_states=True)
                pairs.append(_pair(logits.clone(), theirs, outputs))
                assert speculator.next_hidden is not None
                pairs.append((speculator.next_hidden.clone(), outputs.last_hidden_state[0]))
                hidden = outputs.last_hidden_state
                state = hidden.to(state.dtype)  # so that errors of guesses do not accumulate
                token = int(outputs.logits.argmax())
    return pairs


def _pair(
    logits: torch.Tensor, theirs: Gemma4AssistantForCausalLM, outputs: Gemma4AssistantOutput
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits [1, V] of a guess and the reference's.

    The choice of the best clusters is not continuous. With clusters, only tokens with logits are compared, and in
    addition the reference's scores of their clusters, which must be the best scores.
    """
    import torch

    if theirs.masked_embedding is None:
        return logits, outputs.logits[0]
    hidden, order = outputs.hidden_states[-1][0], theirs.masked_embedding.token_ordering
    scores, clusters = theirs.masked_embedding.centroids(hidden)[0], theirs.masked_embedding.num_centroids
    has_logits = logits[0] > logits.min()
    chosen = has_logits[order].view(clusters, -1).any(1)
    ours = torch.cat([logits[0, has_logits], scores[chosen].sort().values])
    best = scores.topk(theirs.masked_embedding.centroid_intermediate_top_k).values.sort().values
    return ours[None], torch.cat([theirs.lm_head(hidden)[0, has_logits], best])[None]


def _reference(opened: OpenedSpeculator, arrays: Mapping[str, Array]) -> Gemma4AssistantForCausalLM:
    """Return transformers' assistant with an opened one's weights."""
    import torch
    from transformers import Gemma4AssistantConfig

    model = new_assistant(Gemma4AssistantConfig.from_dict(dict(opened.layer_fields)))
    state = {
        weight.name: torch.from_numpy(np.array(arrays[weight.path], np.int64 if weight.path == ORDER else np.float32))
        for weight in opened.spec.network_weights()
        if weight.path != TABLE
    }
    unknown = model.load_state_dict(state, strict=False).unexpected_keys
    assert not unknown
    return model

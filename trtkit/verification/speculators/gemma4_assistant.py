"""Gemma 4's assistant of transformers, and the comparison of its network with it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import GenerationError
from trtkit.models.speculators.gemma4_assistant import ORDER, TABLE
from trtkit.runtime.decoder import Call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, PreTrainedModel

    from trtkit.engine.speculators.opened import OpenedSpeculator
    from trtkit.network.host_array import Array
    from trtkit.runtime.decoder import ReferenceDecoder

    Read = tuple[torch.Tensor, Mapping[str, tuple[torch.Tensor, torch.Tensor]]]

_GUESSES = 3


def new_assistant(config: Gemma4AssistantConfig) -> Gemma4AssistantForCausalLM:
    """Return an assistant with initial weights, in fp32."""
    from transformers import Gemma4AssistantForCausalLM

    with all_layers_may_share():
        return Gemma4AssistantForCausalLM._from_config(config, attn_implementation="eager").eval()


@contextmanager
def all_layers_may_share() -> Iterator[None]:
    """Let transformers make models none of whose layers has a cache: its check (5.23) refuses its own assistants."""
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
    """Return the model's hidden state after tokens [1, 1, D], and the keys and values that assistants read, by type.

    transformers returns none if no layers share caches; then they are those of the last layer of each type.
    """
    import torch
    from transformers import DynamicCache

    cache, types = DynamicCache(), model.config.layer_types
    options = {"output_hidden_states": True, "return_shared_kv_states": True}
    outputs = model(torch.tensor([list(ids)]), past_key_values=cache, **options)
    layers = {kind: cache.layers[index] for index, kind in enumerate(types)} if not outputs.shared_kv_states else {}
    shared = {kind: (layer.keys, layer.values) for kind, layer in layers.items()} or dict(outputs.shared_kv_states)
    return outputs.hidden_states[-1][:, -1:], shared


def assistant_pairs(
    model: ReferenceDecoder,
    reference: PreTrainedModel,
    opened: tuple[OpenedSpeculator, Mapping[str, Array]],
    ids: Sequence[int],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return an assistant's logits and its reference's: of guesses after a part of a prompt and after all of it."""
    import torch

    head, theirs, table, pairs = model.head, _reference(*opened), reference.get_input_embeddings(), []
    if head is None or len(ids) < 3:
        raise GenerationError("an assistant needs a prompt of three tokens", "inputs", "give a longer text")
    with torch.inference_mode():
        for count in (len(ids) // 2, len(ids) - 1):
            hidden, shared = what_assistants_read(reference, ids[:count])
            model.forward(Call(0, np.array([ids[:count]]), np.zeros(1, np.int64), np.array([count])))
            assert model.next_hidden is not None
            token, own, at = int(ids[count]), model.next_hidden[:, -1:].clone(), np.array([count - 1])
            for _ in range(_GUESSES):
                logits = head.forward(Call(0, np.array([[token]]), at, np.ones(1, np.int64), hidden=own))
                embeds = torch.cat([table(torch.tensor([[token]])), hidden], -1)
                places = torch.tensor([[count]])
                outputs = theirs(inputs_embeds=embeds, position_ids=places, shared_kv_states=shared)
                pairs.append((logits.clone(), outputs.logits[0]))
                assert head.next_hidden is not None
                hidden, own = outputs.last_hidden_state, head.next_hidden[:, None].clone()
                token = int(outputs.logits.argmax())
    return pairs


def _reference(opened: OpenedSpeculator, arrays: Mapping[str, Array]) -> Gemma4AssistantForCausalLM:
    """Return transformers' assistant with the weights of an opened one."""
    import torch
    from transformers import Gemma4AssistantConfig

    model = new_assistant(Gemma4AssistantConfig.from_dict(dict(opened.layer_fields)))
    state = {
        weight.name: torch.from_numpy(np.array(arrays[weight.path], np.int64 if weight.path == ORDER else np.float32))
        for weight in opened.spec.head_weights()
        if weight.path != TABLE
    }
    unknown = model.load_state_dict(state, strict=False).unexpected_keys
    assert not unknown
    return model

"""An EAGLE-3 head built from transformers' layers, and the comparison of a head's network with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.drafts.eagle3.spec import Eagle3Spec
from trtkit.drafts.references import chain_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from transformers import LlamaConfig, PreTrainedModel, Qwen3Config
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

    from trtkit.builder.speculators import OpenedSpeculator
    from trtkit.llm.execution import ReferenceDecoder
    from trtkit.models.speculators import Fields
    from trtkit.network.host_array import Array


class Eagle3Reference:
    """A head in fp32 on the CPU. arrays: the weights of its network by path."""

    def __init__(self, opened: OpenedSpeculator, arrays: Mapping[str, Array]) -> None:
        import torch

        assert isinstance(opened.spec, Eagle3Spec)
        layer, rotary, config = _layer(opened.layer_fields)
        self._spec, self._weights = opened.spec, _tensors({**opened.fusion, **arrays})
        self._layer, self._rotary, self._eps = layer, rotary, config.rms_norm_eps
        for name in "qkv":
            rows, columns = self._of_layer(f"attention.{name}.weight").shape
            wide = torch.nn.Linear(columns, rows, bias=bool(config.attention_bias))
            setattr(self._layer.self_attn, f"{name}_proj", wide)
        names = {
            weight.name: weight.path for weight in opened.spec.network_weights() if weight.path.startswith("layers.")
        }
        self._hidden_norm = self._weights[names.pop("hidden_norm.weight")]
        self._layer.load_state_dict({name: self._weights[path] for name, path in names.items()})

    def fuse(self, states: Sequence[torch.Tensor] | Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Return the head's input [S, D] from the hidden states [S, D'] that the model's layers read."""
        import torch

        fusion, weights = self._spec.fusion, self._weights
        read = [states[layer] for layer in fusion.layers]
        if fusion.is_normed_apart:
            read = [self._normed(x, weights[f"speculator.fc_norm.{index}.weight"]) for index, x in enumerate(read)]
        joined = torch.cat(read, -1)
        if fusion.norm is not None and not fusion.is_normed_apart:
            joined = self._normed(joined, weights["speculator.input_norm.weight"])
        return torch.nn.functional.linear(joined, weights["speculator.fc.weight"], weights.get("speculator.fc.bias"))

    def __call__(self, ids: Sequence[int], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [S, V'] and hidden states for the next guess [S, D] from next tokens and hidden states."""
        import torch

        count, layer = len(ids), self._layer
        x, lowest = hidden[None], torch.finfo(hidden.dtype).min
        normed = self._normed(x, self._hidden_norm)
        embedded = layer.input_layernorm(self._weights["embedding.weight"][torch.tensor(list(ids))])[None]
        mask = torch.full((count, count), lowest).triu(1)[None, None]
        turned = self._rotary(x, torch.arange(count)[None])
        attended = layer.self_attn(torch.cat([embedded, normed], -1), turned, mask)[0]
        x = (normed if self._spec.has_normed_residual else x) + attended
        x = (x + layer.mlp(layer.post_attention_layernorm(x)))[0]
        last = self._normed(x, self._weights["final_norm.weight"])
        logits = torch.nn.functional.linear(last, self._weights["lm_head.weight"])
        return logits, last if self._spec.has_normed_output else x

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, self._eps)

    def _of_layer(self, path: str) -> torch.Tensor:
        return self._weights[f"layers.{self._spec.layer_index}.{path}"]


def _layer(fields: Fields) -> tuple[LlamaDecoderLayer | Qwen3DecoderLayer, torch.nn.Module, LlamaConfig | Qwen3Config]:
    """Return transformers' layer, its rotary embedding and its config."""
    from transformers import LlamaConfig, Qwen3Config
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

    kinds = {
        "llama": (LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding),
        "qwen3": (Qwen3Config, Qwen3DecoderLayer, Qwen3RotaryEmbedding),
    }
    config_kind, layer, rotary = kinds[fields["model_type"]]
    config = config_kind(**fields, attn_implementation="eager")
    return layer(config, 0), rotary(config), config


def _tensors(arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    import torch

    return {path: torch.from_numpy(np.array(array, np.float32)) for path, array in arrays.items()}


def logit_pairs(
    model: ReferenceDecoder,
    reference: PreTrainedModel,
    opened: OpenedSpeculator,
    arrays: Mapping[str, Array],
    ids: Sequence[int],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the logits of a head and its reference after each chunk of a prompt and each of its own guesses."""
    import torch

    torch_head = Eagle3Reference(opened, arrays)
    with torch.inference_mode():
        states = reference(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states
        return chain_pairs(model, opened.ids, torch_head, torch_head.fuse([state[0] for state in states]), ids)

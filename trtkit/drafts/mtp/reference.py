"""An MTP module built from transformers' layers, and the comparison of a module's network with it."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.drafts.mtp.spec import EMBEDDING_NORM, HIDDEN_NORM, LM_HEAD, PROJECTION, TABLE, MtpSpec
from trtkit.drafts.references import chain_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from transformers import PreTrainedModel

    from trtkit.arrays import Array
    from trtkit.builder.speculators import OpenedSpeculator
    from trtkit.llm.execution import ReferenceDecoder

_CLASSES = {
    "deepseek_v3": ("deepseek_v3", "DeepseekV3"),
    "exaone_moe": ("exaone_moe", "ExaoneMoe"),
    "glm4_moe": ("glm4_moe", "Glm4Moe"),
    "glm4_moe_lite": ("glm4_moe_lite", "Glm4MoeLite"),
    "mellum": ("mellum", "Mellum"),
    "mimo": ("qwen2", "Qwen2"),
    "mimo_v2_flash": ("mimo_v2_flash", "MiMoV2Flash"),
    "qwen3_5_moe_text": ("qwen3_5_moe", "Qwen3_5Moe"),
    "qwen3_5_text": ("qwen3_5", "Qwen3_5"),
    "qwen3_next": ("qwen3_next", "Qwen3Next"),
}
"""The folder of transformers with a family's classes, and the prefix of their names."""
_RENAMED = {"pre_mlp_layernorm.weight": "post_attention_layernorm.weight"}
"""Names in the layer of MiMo-V2-Flash's module, and transformers' own."""
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


class MtpReference:
    """A module in fp32 on the CPU. arrays: the weights of its network by path."""

    def __init__(self, opened: OpenedSpeculator, arrays: Mapping[str, Array]) -> None:
        import torch

        assert isinstance(opened.spec, MtpSpec)
        decoder, self._joins_hidden_first = opened.spec.decoder, opened.spec.joins_hidden_first
        path = f"layers.{decoder.first_layer}."
        folder, start = _CLASSES[str(opened.layer_fields["model_type"])]
        classes = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
        configs = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
        text = f"{start}Text" if hasattr(configs, f"{start}TextConfig") else start
        self._config = config = getattr(configs, f"{text}Config")(**opened.layer_fields)
        config._attn_implementation = config._experts_implementation = "eager"
        weights = {name: torch.from_numpy(np.array(array, np.float32)) for name, array in arrays.items()}
        self._table, self._lm_head = weights.pop(TABLE), weights.pop(LM_HEAD)
        self._projection = weights.pop(f"{path}{PROJECTION}.weight")
        self._layer = getattr(classes, f"{start}DecoderLayer")(config, 0)
        self._rotary = getattr(classes, f"{text}RotaryEmbedding")(config)
        paths = (f"{path}{EMBEDDING_NORM}.weight", f"{path}{HIDDEN_NORM}.weight", "final_norm.weight")
        norm_class = getattr(classes, f"{start}RMSNorm")
        self._norms = [_norm(norm_class(config.hidden_size, config.rms_norm_eps), weights.pop(name)) for name in paths]
        inner = decoder.names["layers.{i}.attention_norm"].removesuffix("input_layernorm")
        start_of_layer = inner.format(i=decoder.first_layer)
        names = {weight.path: weight.name.removeprefix(start_of_layer) for weight in opened.spec.network_weights()}
        renamed = {_RENAMED.get(names[path], names[path]): weight for path, weight in weights.items()}
        self._layer.load_state_dict(_stacked(renamed))
        self._layer.eval()

    def __call__(self, ids: Sequence[int], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [S, V] and hidden states for the next guess [S, D] from next tokens and hidden states."""
        import torch

        of_embedding, of_hidden, last = self._norms
        parts = [of_embedding(self._table[torch.tensor(list(ids))]), of_hidden(hidden)]
        joined = torch.cat(parts[::-1] if self._joins_hidden_first else parts, -1)
        x = torch.nn.functional.linear(joined, self._projection)[None]
        positions = torch.arange(len(ids))[None]
        turned, mask = self._turned_and_masked(x, positions)
        x = last(self._layer(x, position_embeddings=turned, attention_mask=mask, position_ids=positions)[0])
        return torch.nn.functional.linear(x, self._lm_head), x

    def _turned_and_masked(
        self, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return rotary embeddings and the mask of the layer's type."""
        from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

        kind = (getattr(self._config, "layer_types", None) or ["full_attention"])[0]
        has_types = "layer_type" in inspect.signature(self._rotary.forward).parameters
        create = create_sliding_window_causal_mask if kind == "sliding_attention" else create_causal_mask
        mask = create(self._config, x, attention_mask=None, past_key_values=None, position_ids=positions)
        return self._rotary(x, positions, **({"layer_type": kind} if has_types else {})), mask


def _norm(module: torch.nn.Module, weight: torch.Tensor) -> torch.nn.Module:
    module.load_state_dict({"weight": weight})
    return module


def _stacked(weights: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a layer's weights with all experts' stacked, as transformers holds them."""
    import torch

    experts: dict[int, dict[str, torch.Tensor]] = {}
    stacked = {}
    for name, weight in weights.items():
        if (match := _EXPERT.fullmatch(name)) is None:
            stacked[name] = weight
        else:
            experts.setdefault(int(match[1]), {})[match[2]] = weight
    if experts:
        ordered = [experts[index] for index in range(len(experts))]
        both = [torch.cat([expert["gate"], expert["up"]]) for expert in ordered]
        stacked["mlp.experts.gate_up_proj"] = torch.stack(both)
        stacked["mlp.experts.down_proj"] = torch.stack([expert["down"] for expert in ordered])
    return stacked


def logit_pairs(
    model: ReferenceDecoder,
    reference: PreTrainedModel,
    opened: OpenedSpeculator,
    arrays: Mapping[str, Array],
    ids: Sequence[int],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the logits of a module and its reference after each chunk of a prompt and each of its own guesses."""
    import torch

    with torch.inference_mode():
        hidden = reference.model(torch.tensor([list(ids)])).last_hidden_state[0]
        return chain_pairs(model, opened.ids, MtpReference(opened, arrays), hidden, ids)

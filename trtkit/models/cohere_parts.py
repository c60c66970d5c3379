"""Layers of Command A+ as its config states them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.feed_forward import MlpSpec, MoeSpec, RoutingSpec
from trtkit.models.mixtures import dense_types, mixture_part
from trtkit.models.parts import biased_attention_part, layers_part, sliding_windows
from trtkit.models.rope import rope_spec

if TYPE_CHECKING:
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import LayerSpec


def cohere_layers(config: HfConfig, moe: MoeSpec, first: int) -> tuple[LayerSpec, ...]:
    """Return layers of experts, of which those with a window turn, and dense ones too if none of those has a window.

    first: how many layers are dense if the config lists no types.
    """
    attention, count = biased_attention_part(config), int(config.need("num_hidden_layers"))
    rope = rope_spec(config, attention.head_dim, is_interleaved=True)
    every = int(config.get("prefix_dense_sliding_window_pattern", 1)), int(config.get("sliding_window_pattern", 4))
    if min(every) < 1:
        raise SourceError(
            f"patterns of sliding windows are {every[0]} and {every[1]}; expected 1 or more", config.where
        )
    config.need("sliding_window")
    numbers = [(index + 1, every[0]) for index in range(first)] + [(n + 1, every[1]) for n in range(count - first)]
    usual = ["sliding_attention" if number % size else "full_attention" for number, size in numbers]
    windows = sliding_windows(config, usual)
    is_turned = [every[0] == 1 and kind == "dense" for kind in dense_types(config, count, first)]
    ropes = [rope if window or turns else None for window, turns in zip(windows, is_turned, strict=True)]
    return layers_part(config, attention, moe, ropes, windows)


def averaged_mixture(config: HfConfig, expert: MlpSpec) -> MoeSpec:
    """Return experts whose sum is averaged with what shared ones give, or added to it.

    Raises SourceError for another way to choose or to join them.
    """
    scores = config.get("expert_selection_fn", "softmax")
    if scores not in ("softmax", "sigmoid"):
        raise config.unsupported("expert_selection_fn", scores, ("softmax", "sigmoid"))
    strategy, shared = config.get("shared_expert_combination_strategy", "average"), None
    if strategy not in ("average", "sum"):
        raise config.unsupported("shared_expert_combination_strategy", strategy, ("average", "sum"))
    count, is_normed = int(config.get("num_shared_experts", 0)), bool(config.get("norm_topk_prob", True))
    part = 0.5 if strategy == "average" and count else 1.0
    if count:
        shared = replace(expert, intermediate_size=count * expert.intermediate_size, factor=part)
    sizes = int(config.get("num_experts", 8)), int(config.get("num_experts_per_tok", 2))
    routing = RoutingSpec(sizes[1], scores, norm_topk_prob=is_normed or scores == "softmax", scale=part)
    return mixture_part(config, sizes[0], routing, expert, shared)

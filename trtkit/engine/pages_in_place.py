"""Attention as the plugin of PagedAttention, which reads pages where they are: in which layers of a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.engine.plugins import register_plugins
from trtkit.errors import ConfigError, Problem
from trtkit.network.paged_layers import obstacles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.engine.decoders import OpenedDecoder
    from trtkit.network.graph import Graph


def use_plugin(graph: Graph, opened: OpenedDecoder, capabilities: Sequence[int]) -> str:
    """Let `graph` have attention as plugins in the layers that can; return which, in words, "" if pages are copied.

    capabilities: SM numbers that the engine is for. Raises ConfigError if plugins are to be used always and a layer
    cannot, BackendError where TensorRT's module or a GPU is missing.
    """
    options = opened.options(graph.backend.name)
    if not options.has_pages_in_place:
        return ""
    kept = obstacles(opened.own, options)
    others = _by_reason(kept)
    if others and opened.config.custom_ops.plugins == "always":
        fix = "set `auto`, which lets these layers copy their pages, or `never`"
        what = f"the plugin of PagedAttention cannot be the attention of {'; '.join(others)}"
        raise ConfigError("the config does not fit its model", [Problem(what, "custom_ops.plugins", fix)])
    in_place = sum(not reason for reason in kept.values())
    if in_place:
        graph.plugins = register_plugins(graph.backend, ("PagedAttention",), capabilities)
    counted = f"{in_place} of {len(kept)} layers with attention read pages in place, by a plugin"
    return "; copies of pages in ".join([counted, *others[:1]]) + "".join(f"; {each}" for each in others[1:])


def _by_reason(kept: Mapping[int, str]) -> list[str]:
    """Return which layers copy their pages, for each reason."""
    reasons = dict.fromkeys(reason for reason in kept.values() if reason)
    layers = {reason: [index for index, own in kept.items() if own == reason] for reason in reasons}
    return [f"layers {', '.join(map(str, indices))} ({reason})" for reason, indices in layers.items()]

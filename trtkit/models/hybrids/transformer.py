"""Transformer layers of DETR and RT-DETR as data: post-norm, over feature maps and object queries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from trtkit.models.attention import AttentionSpec, NormSpec
from trtkit.models.feed_forward import MlpSpec
from trtkit.models.hybrids.weights import linear_weights, norm_weights
from trtkit.models.weights import Weight

Sizes = tuple[int, int]
"""(height, width)."""


@dataclass(frozen=True)
class TransformerLayerSpec:
    """A layer: self-attention, cross-attention in decoders, MLP; a norm after each. Positions join queries and keys."""

    hidden_size: int
    attention: AttentionSpec
    mlp: MlpSpec
    norm: NormSpec


def layer_weights(path: str, name: str, spec: TransformerLayerSpec, names: Mapping[str, str]) -> Iterator[Weight]:
    """Yield a layer's weights. names: checkpoint names below `name`, by path below `path`."""
    D, F = spec.hidden_size, spec.mlp.intermediate_size
    for inner, module in names.items():
        if inner.endswith("norm"):
            yield from norm_weights(f"{path}.{inner}", f"{name}.{module}", D)
        elif inner == "mlp.up":
            yield from linear_weights(f"{path}.{inner}", f"{name}.{module}", (F, D))
        elif inner == "mlp.down":
            yield from linear_weights(f"{path}.{inner}", f"{name}.{module}", (D, F))
        else:
            yield from linear_weights(f"{path}.{inner}", f"{name}.{module}", (D, D))


def mlp_weights(path: str, name: str, sizes: tuple[int, ...]) -> Iterator[Weight]:
    """Yield the weights of consecutive linear layers between these sizes."""
    for index, (in_features, out_features) in enumerate(pairwise(sizes)):
        yield from linear_weights(f"{path}.{index}", f"{name}.layers.{index}", (out_features, in_features))


def halved(size: Sizes, times: int) -> Sizes:
    """Return a size after `times` convolutions of stride 2, which round up."""
    height, width = size
    for _ in range(times):
        height, width = (height + 1) // 2, (width + 1) // 2
    return height, width

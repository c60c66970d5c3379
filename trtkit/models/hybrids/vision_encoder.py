"""Vision transformers as data: ViT, DINOv2, SigLIP. Each family's file states how it differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from trtkit.errors import SourceError
from trtkit.models.hybrids.spec import HybridSpec, NetworkPart, OnnxPart, PartPort, Seam
from trtkit.models.hybrids.weights import checkpoint_name, linear_weights, norm_weights
from trtkit.models.weights import Weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtkit.arrays import MatrixShape
    from trtkit.models.attention import AttentionSpec, NormSpec
    from trtkit.models.feed_forward import MlpSpec
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.hybrids.registry import HybridOptions

Head = Literal["none", "first_token", "pooler", "classifier", "classifier_with_mean", "attention"]
WRITER = "trtkit.network.blocks.vision_encoder:write_vision_encoder"


@dataclass(frozen=True)
class VisionEncoderSpec:
    """A transformer encoder over image patches.

    grid: patches along (height, width). position_grid: that of the stored positions, which are resized if it differs.
    num_register_tokens: learned tokens after the class token, without positions.
    has_class_token: a learned token before all others, at the first position.
    has_layer_scale: each part's output is scaled per channel before the residual sum.
    head: what follows the final norm. `pooler`: dense layer and `pooler_activation` on the class token. `first_token`:
        the class token as it is. `classifier`: logits from the class token. `classifier_with_mean`: from it and the
        patches' mean. `attention`: one learned query attends to all tokens, then an MLP (SigLIP).
    """

    hidden_size: int
    num_layers: int
    attention: AttentionSpec
    mlp: MlpSpec
    norm: NormSpec
    grid: tuple[int, int]
    position_grid: tuple[int, int]
    has_class_token: bool = True
    num_register_tokens: int = 0
    resize_has_antialias: bool = False
    has_layer_scale: bool = False
    head: Head = "none"
    head_size: int = 0
    pooler_activation: str = "tanh"

    @property
    def num_tokens(self) -> int:
        """Tokens per image: patches, registers, class token."""
        return self.grid[0] * self.grid[1] + int(self.has_class_token) + self.num_register_tokens

    @property
    def outputs(self) -> tuple[PartPort, ...]:
        """The encoder's outputs: logits, or hidden states and, with a head, the pooled one."""
        if self.head.startswith("classifier"):
            return (PartPort("logits", ("batch", self.head_size), "fp32"),)
        hidden = PartPort("last_hidden_state", ("batch", self.num_tokens, self.hidden_size), "fp32")
        pooled = PartPort("pooler_output", ("batch", self.head_size), "fp32")
        return (hidden,) if self.head == "none" else (hidden, pooled)


@dataclass(frozen=True)
class Names:
    """A family's checkpoint names by path.

    patches: of the patch convolution. prefix: of all names but the classifier's.
    """

    patches: str
    table: Mapping[str, str]
    prefix: str = ""

    @property
    def final_norm(self) -> str:
        """Checkpoint name of the norm after the last layer."""
        return self.table["final_norm"]


def vision_hybrid(config: HfConfig, encoder: VisionEncoderSpec, names: Names, unused: tuple[str, ...]) -> HybridSpec:
    """Return the hybrid: patch embedding through ONNX, encoder and head by the network API."""
    channels, patch = int(config.get("num_channels", 3)), pair(config.need("patch_size"))
    D, (rows, columns) = encoder.hidden_size, encoder.grid
    pixels = PartPort("pixel_values", ("batch", channels, rows * patch[0], columns * patch[1]), "fp32")
    patches = ("batch", D, rows, columns)
    convolution = names.prefix + names.patches
    patch_part = OnnxPart(
        "patch",
        (pixels,),
        (PartPort("embeddings", patches, reference=convolution),),
        "torch.nn:Conv2d",
        {"in_channels": channels, "out_channels": D, "kernel_size": list(patch), "stride": list(patch)},
        f"{convolution}.",
    )
    weights = tuple(encoder_weights(encoder, names))
    encoder_part = NetworkPart("encoder", (PartPort("embeddings", patches),), encoder.outputs, WRITER, encoder, weights)
    encoder_part = replace(encoder_part, outputs=_with_reference(encoder.outputs, names.prefix + names.final_norm))
    return HybridSpec(
        str(config.get("model_type")),
        (patch_part, encoder_part),
        (Seam("patch.embeddings", "encoder.embeddings"),),
        tuple(f"encoder.{port.name}" for port in encoder.outputs),
        unused=unused,
    )


def _with_reference(outputs: tuple[PartPort, ...], module: str) -> tuple[PartPort, ...]:
    """Return the outputs with hidden states compared with the output of the reference's final norm."""
    return tuple(replace(port, reference=module) if port.name == "last_hidden_state" else port for port in outputs)


def pair(size: int | list[int] | tuple[int, ...]) -> tuple[int, int]:
    """Return (height, width) of a size, which may be a single number."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def grids(config: HfConfig, options: HybridOptions, *, resizes: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the patches along (height, width) of the image, and of the stored positions.

    Raises SourceError for an image size that is not a multiple of the patch size, or that the model does not take.
    """
    model_size, patch = pair(config.need("image_size")), pair(config.need("patch_size"))
    size = options.image_size or model_size
    if size != model_size and not resizes:
        what = f"image size {size[0]} x {size[1]} is not the model's, {model_size[0]} x {model_size[1]}"
        raise SourceError(what, "image_size", "leave it out, or use a model whose positions are resized (dinov2)")
    for edge, step in zip(size, patch, strict=True):
        if edge < step or (edge % step and size != model_size):
            what = f"image size {size[0]} x {size[1]} is not a multiple of the patch size, {patch[0]} x {patch[1]}"
            raise SourceError(what, "image_size", f"use for example {max(1, round(edge / step)) * step}")
    rows, columns = (edge // step for edge, step in zip(size, patch, strict=True))
    return (rows, columns), (model_size[0] // patch[0], model_size[1] // patch[1])


def num_labels(config: HfConfig) -> int:
    """Return the number of classes: that of their names, 2 if there are none."""
    return len(config.get("id2label", ())) or int(config.get("num_labels", 2))


def encoder_weights(spec: VisionEncoderSpec, names: Names) -> Iterator[Weight]:
    """Yield all weights of the encoder and its head."""
    for path, shape in _shapes(spec):
        yield Weight(path, checkpoint_name(path, names.table, names.prefix), shape, is_table=path == "positions.weight")


def _shapes(spec: VisionEncoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    D = spec.hidden_size
    stored = spec.position_grid[0] * spec.position_grid[1]
    if spec.has_class_token:
        yield "class_token", (1, 1, D)
        yield "positions", (1, stored + 1, D)
    else:
        yield "positions.weight", (stored, D)
    if spec.num_register_tokens:
        yield "register_tokens", (1, spec.num_register_tokens, D)
    for index in range(spec.num_layers):
        yield from _layer(f"layers.{index}", spec)
    yield from _norm("final_norm", D)
    yield from _head(spec)


def _layer(path: str, spec: VisionEncoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    D = spec.hidden_size
    for name in ("attention_norm", "mlp_norm"):
        yield from _norm(f"{path}.{name}", D)
    for name in "qkv":
        yield from _linear(f"{path}.attention.{name}", (D, D), has_bias=spec.attention.has_qkv_bias)
    yield from _linear(f"{path}.attention.o", (D, D))
    yield from _mlp(f"{path}.mlp", spec)
    if spec.has_layer_scale:
        yield f"{path}.attention_scale", (D,)
        yield f"{path}.mlp_scale", (D,)


def _mlp(path: str, spec: VisionEncoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    D, F = spec.hidden_size, spec.mlp.intermediate_size
    wide = ("gate_up", 2 * F) if spec.mlp.is_fused else ("up", F)
    yield from _linear(f"{path}.{wide[0]}", (wide[1], D))
    yield from _linear(f"{path}.down", (D, F))


def _head(spec: VisionEncoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    D = spec.hidden_size
    if spec.head in ("pooler", "classifier"):
        yield from _linear(spec.head, (spec.head_size, D))
    elif spec.head == "classifier_with_mean":
        yield from _linear("classifier", (spec.head_size, 2 * D))
    elif spec.head == "attention":
        yield "head.query", (1, 1, D)
        yield "head.attention.qkv.weight", (3 * D, D)
        yield "head.attention.qkv.bias", (3 * D,)
        yield from _linear("head.attention.o", (D, D))
        yield from _norm("head.norm", D)
        yield from _mlp("head.mlp", spec)


def _linear(path: str, shape: MatrixShape, *, has_bias: bool = True) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((weight.path, weight.shape) for weight in linear_weights(path, path, shape, has_bias=has_bias))


def _norm(path: str, size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((weight.path, weight.shape) for weight in norm_weights(path, path, size))

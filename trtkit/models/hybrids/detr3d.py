"""DETR3D (Wang et al., arXiv:2110.06922): 3D boxes from surround cameras, as the authors' code computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.hybrids.spec import HybridSpec, NetworkPart, OnnxPart, PartPort, Seam
from trtkit.models.hybrids.weights import linear_weights, norm_weights
from trtkit.models.weights import Weight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.arrays import HeightWidth
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.hybrids.registry import HybridOptions


DEFAULTS = {
    "image": [928, 1600],
    "cameras": 6,
    "blocks": [3, 4, 23, 3],
    "width": 64,
    "deformable": [False, False, True, True],
    "hidden_size": 256,
    "num_attention_heads": 8,
    "intermediate_size": 512,
    "decoder_layers": 6,
    "num_queries": 900,
    "num_classes": 10,
    "pc_range": [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0],
    "max_detections": 300,
    "post_center_range": [-61.2, -61.2, -10.0, 61.2, 61.2, 10.0],
}
_BACKBONE = ("image", "cameras", "blocks", "width", "deformable", "hidden_size")
_HEAD = "pts_bbox_head"
_CODE_SIZE = 10
# For the loss: its weights, and the class branches of all layers but the last.
UNUSED = (r"num_batches_tracked$", rf"^{_HEAD}\.code_weights$", rf"^{_HEAD}\.cls_branches\.")


@dataclass(frozen=True)
class Detr3dSpec:
    """DETR3D's decoder.

    image: (height, width) of a camera's image, padding included. levels: (height, width) of the feature maps.
    pc_range, post_center_range: minimum x, y, z, then maximum, in metres; boxes centred outside the latter are marked.
    """

    image: HeightWidth
    cameras: int
    levels: tuple[HeightWidth, ...]
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    num_layers: int
    num_queries: int
    num_classes: int
    pc_range: tuple[float, ...]
    max_detections: int
    post_center_range: tuple[float, ...]


def spec(config: HfConfig, options: HybridOptions) -> HybridSpec:
    """Return the hybrid: backbone and pyramid through ONNX, decoder and box coder by the network API, in fp32.

    `lidar2img` maps points in the vehicle's frame to pixels of each camera's padded image.
    """
    if options.image_size is not None:
        raise SourceError("the image size is part of the model", "image_size", "set `image` in config.json")
    decoder = _decoder(config)
    batch, cameras, D = "batch", decoder.cameras, decoder.hidden_size
    images = PartPort("images", (batch, cameras, 3, *decoder.image), "fp32")
    maps = [PartPort(f"level_{index}", (batch, cameras, D, *size)) for index, size in enumerate(decoder.levels)]
    matrices = PartPort("lidar2img", (batch, cameras, 4, 4), "fp32")
    arguments = {name: config.get(name) for name in _BACKBONE}
    backbone = OnnxPart(
        "backbone",
        (images,),
        tuple(maps),
        "trtkit.sources.torch.models.detr3d:make_backbone",
        arguments,
        names=("img_backbone.", "img_neck."),
    )
    detections = (batch, decoder.max_detections)
    outputs = (
        PartPort("scores", detections, "fp32"),
        PartPort("labels", detections, "int32"),
        PartPort("boxes", (*detections, 9), "fp32"),
        PartPort("is_inside", detections, "bool"),
        PartPort("logits", (batch, decoder.num_queries, decoder.num_classes), "fp32"),
        PartPort("codes", (batch, decoder.num_queries, _CODE_SIZE), "fp32"),
    )
    writer = "trtkit.network.blocks.detr3d:write_detr3d_decoder"
    weights = tuple(_weights(decoder))
    head = NetworkPart("decoder", (*maps, matrices), outputs, writer, decoder, weights, "fp32")
    return HybridSpec(
        "detr3d",
        (backbone, head),
        tuple(Seam(f"backbone.{port.name}", f"decoder.{port.name}") for port in maps),
        tuple(f"decoder.{port.name}" for port in outputs),
        "trtkit.sources.torch.models.detr3d:from_folder",
        UNUSED,
        ranked=("labels", "boxes", "is_inside"),
    )


def _decoder(config: HfConfig) -> Detr3dSpec:
    """Return the decoder. Raises SourceError for sizes that do not fit."""
    image = tuple(int(size) for size in config.need("image"))
    blocks = config.need("blocks")
    heads, size = int(config.need("num_attention_heads")), int(config.need("hidden_size"))
    if size % heads:
        raise SourceError(f"`hidden_size` {size} is not a multiple of `num_attention_heads` {heads}", config.where)
    limit = int(config.need("num_queries")) * int(config.need("num_classes"))
    if int(config.need("max_detections")) > limit:
        what = f"`max_detections` {config.get('max_detections')} is above the {limit} that queries and classes give"
        raise SourceError(what, config.where, f"use {limit} or less")
    if len(config.need("deformable")) != len(blocks):
        raise SourceError("`deformable` and `blocks` name different numbers of stages", config.where)
    return Detr3dSpec(
        (image[0], image[1]),
        int(config.need("cameras")),
        tuple(_level_sizes((image[0], image[1]), len(blocks))),
        size,
        heads,
        int(config.need("intermediate_size")),
        int(config.need("decoder_layers")),
        int(config.need("num_queries")),
        int(config.need("num_classes")),
        tuple(float(edge) for edge in config.need("pc_range")),
        int(config.need("max_detections")),
        tuple(float(edge) for edge in config.need("post_center_range")),
    )


def _level_sizes(image: HeightWidth, levels: int) -> Iterator[tuple[int, int]]:
    """Yield the sizes of the pyramid's levels: an eighth of the image, then half of the previous one, rounded up."""
    height, width = image
    for index in range(levels + 2):
        height, width = -(-height // 2), -(-width // 2)
        if index >= 2:
            yield height, width


def _weights(spec: Detr3dSpec) -> Iterator[Weight]:
    """Yield the decoder's weights with their names in mmdetection3d's state dict."""
    D, transformer = spec.hidden_size, f"{_HEAD}.transformer"
    queries = (spec.num_queries, 2 * D)
    yield Weight("query_embedding.weight", f"{_HEAD}.query_embedding.weight", queries, is_table=True)
    yield from linear_weights("reference_points", f"{transformer}.reference_points", (3, D))
    for index in range(spec.num_layers):
        yield from _layer(spec, f"layers.{index}", f"{transformer}.decoder.layers.{index}")
        for number, size in (("0", D), ("2", D), ("4", _CODE_SIZE)):
            name = f"{_HEAD}.reg_branches.{index}.{number}"
            yield from linear_weights(f"layers.{index}.box.{number}", name, (size, D))
    classes = f"{_HEAD}.cls_branches.{spec.num_layers - 1}"
    for number, size in (("0", D), ("3", D), ("6", spec.num_classes)):
        yield from linear_weights(f"classes.{number}", f"{classes}.{number}", (size, D))
    for number in ("1", "4"):
        yield from norm_weights(f"classes.{number}", f"{classes}.{number}", D)


def _layer(spec: Detr3dSpec, path: str, name: str) -> Iterator[Weight]:
    D, attention, cross = spec.hidden_size, f"{name}.attentions.0.attn", f"{name}.attentions.1"
    for kind, shape in (("weight", (3 * D, D)), ("bias", (3 * D,))):
        yield Weight(f"{path}.attention.qkv.{kind}", f"{attention}.in_proj_{kind}", shape)
    yield from linear_weights(f"{path}.attention.o", f"{attention}.out_proj", (D, D))
    yield from linear_weights(
        f"{path}.cross.weights", f"{cross}.attention_weights", (spec.cameras * len(spec.levels), D)
    )
    yield from linear_weights(f"{path}.cross.o", f"{cross}.output_proj", (D, D))
    for number, inputs in (("0", 3), ("3", D)):
        encoder = f"{cross}.position_encoder"
        yield from linear_weights(f"{path}.cross.position.{number}", f"{encoder}.{number}", (D, inputs))
        after = str(int(number) + 1)
        yield from norm_weights(f"{path}.cross.position.{after}", f"{encoder}.{after}", D)
    yield from linear_weights(f"{path}.ffn.up", f"{name}.ffns.0.layers.0.0", (spec.intermediate_size, D))
    yield from linear_weights(f"{path}.ffn.down", f"{name}.ffns.0.layers.1", (D, spec.intermediate_size))
    for index in range(3):
        yield from norm_weights(f"{path}.norm.{index}", f"{name}.norms.{index}", D)

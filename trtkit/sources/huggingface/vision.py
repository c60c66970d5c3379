"""Vision models of Hugging Face transformers, from a local folder or, for tests and examples, with random weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.config.schema import ModuleInput, TorchSource
from trtkit.errors import SourceError, reading
from trtkit.sources.huggingface.folder import load_folder, open_config
from trtkit.sources.safetensors_file import read_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.arrays import HeightWidth
    from trtkit.config.schema import ModelConfig


@dataclass(frozen=True)
class _Head:
    """A model's head. loader: a class of transformers; outputs: fields of its output."""

    loader: str
    outputs: tuple[str, ...]


EAGER = {"attn_implementation": "eager"}
"""Attention written out. torch's fused one is exported with guards against rows of a mask that let nothing pass, which
TensorRT does not fuse, and the windows of Swin are not exported at all."""
_MASKS = _Head("AutoModelForUniversalSegmentation", ("class_queries_logits", "masks_queries_logits"))
_HEADS = {
    "ImageClassification": _Head("AutoModelForImageClassification", ("logits",)),
    "ObjectDetection": _Head("AutoModelForObjectDetection", ("logits", "pred_boxes")),
    "SemanticSegmentation": _Head("AutoModelForSemanticSegmentation", ("logits",)),
    "InstanceSegmentation": _MASKS,
    "UniversalSegmentation": _MASKS,
    "DepthEstimation": _Head("AutoModelForDepthEstimation", ("predicted_depth",)),
    "ImageSuperResolution": _Head("AutoModelForImageToImage", ("reconstruction",)),
}
"""Heads by the suffix of architecture names after `For`."""
_BODY = _Head("AutoModel", ("last_hidden_state",))


def torch_source(config: ModelConfig) -> TorchSource:
    """Return the PyTorch module named in a config, or the folder of a vision model."""
    source = config.source
    if source.torch is not None:
        return source.torch
    assert source.hf is not None
    return folder_source(Path(source.hf), config.image_size)


def folder_source(folder: Path, image_size: HeightWidth | None = None) -> TorchSource:
    """Return the torch source of a Hugging Face folder: `pixel_values [batch, 3, H, W]`.

    image_size: (height, width), if it differs from the folder's own.
    """
    path = folder / "config.json"
    if not path.exists():
        raise SourceError("`config.json` is missing", str(folder), "give a folder that transformers saved")
    config = read_json(path)
    with reading(str(path)):
        height, width = image_size or folder_image_size(folder, config)
        outputs = _head(config, str(folder)).outputs
        return TorchSource(
            factory="trtkit.sources.huggingface.vision:from_folder",
            kwargs={"folder": str(folder), "outputs": list(outputs)},
            inputs={"pixel_values": ModuleInput(shape=("batch", config.get("num_channels", 3), height, width))},
            outputs=outputs,
        )


def from_folder(folder: str, outputs: Sequence[str] = ()) -> torch.nn.Module:
    """Load the model in `folder` from its safetensors.

    outputs: names of fields of the model's output, returned in this order if there are several; a single name means the
    first output, whatever the model calls it.
    """
    import transformers

    auto = getattr(transformers, _head(open_config(folder).to_dict(), folder).loader)
    model = load_folder(auto, folder, **EAGER)
    _keep_lengths_symbolic(model)
    return _named_outputs(model, outputs) if len(outputs) > 1 else _first_output(model)


def from_config(model_type: str, seed: int = 0, **kwargs: Any) -> torch.nn.Module:
    """Return an image classifier of `model_type` with random weights: the right structure, untrained."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(model_type, **kwargs)
    return _first_output(transformers.AutoModelForImageClassification.from_config(config, **EAGER))


def _keep_lengths_symbolic(model: torch.nn.Module) -> None:
    """Make `len(tensor)` in the model's code return the tensor's first size: Python's own fixes an export's batch."""
    import sys

    import torch

    def length(x: Any) -> Any:
        return x.shape[0] if isinstance(x, torch.Tensor) else len(x)

    sys.modules[type(model).__module__].len = length  # type: ignore[attr-defined]


def _first_output(model: torch.nn.Module) -> torch.nn.Module:
    """Wrap `model` so that it takes pixels and returns one tensor: logits or the last hidden state."""
    import torch

    class FirstOutput(torch.nn.Module):
        """The model's first output as a plain tensor."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            """Return logits [B, classes] or hidden states [B, tokens, D]."""
            first: torch.Tensor = self.model(pixel_values=pixel_values, return_dict=True)[0]
            return first

    return FirstOutput()


def _named_outputs(model: torch.nn.Module, outputs: Sequence[str]) -> torch.nn.Module:
    """Wrap `model` so that it takes pixels and returns the named fields of its output as plain tensors."""
    import torch

    class NamedOutputs(torch.nn.Module):
        """The model's output as a tuple of tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            answer = self.model(pixel_values=pixel_values, return_dict=True)
            return tuple(getattr(answer, name) for name in outputs)

    return NamedOutputs()


def _head(config: dict[str, Any], where: str) -> _Head:
    """Return the head named in the saved architecture. Raises SourceError for an unknown one."""
    for name in config.get("architectures") or ():
        task = re.search(r"For([A-Z]\w*)$", name)
        for known, head in _HEADS.items():
            if task and task[1].startswith(known):
                return head
        if task:
            what = f"the head of `{name}` is not known"
            fix = f"use a model for {', '.join(_HEADS)}, or wrap it: `source.torch.factory`"
            raise SourceError(what, f"{where}: config.json: architectures", fix)
    return _BODY


def folder_image_size(folder: Path, config: dict[str, Any]) -> tuple[int, int]:
    """Return (height, width) from the model's config, else from its image processor."""
    size: Any = config.get("image_size")
    if size is None and (folder / "preprocessor_config.json").is_file():
        processor = read_json(folder / "preprocessor_config.json")
        size = processor.get("crop_size") or processor.get("size")
    if isinstance(size, dict):
        edge = size.get("shortest_edge")
        size = (size.get("height", edge), size.get("width", edge))
    elif isinstance(size, int):
        size = (size, size)
    if not size or None in size:
        raise SourceError("the input size is in neither `config.json` nor `preprocessor_config.json`", str(folder))
    return int(size[0]), int(size[1])


def backbone(config: dict[str, Any]) -> torch.nn.Module:
    """Return a backbone of transformers without weights that takes pixels and returns its feature maps."""
    import transformers

    fields = {name: value for name, value in config.items() if name != "model_type"}
    inner = transformers.AutoBackbone.from_config(transformers.AutoConfig.for_model(config["model_type"], **fields))

    class TensorBackbone(type(inner)):  # type: ignore[misc]  # so that weights keep the backbone's own names
        """The backbone with plain tensors as output."""

        def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            """Return feature maps [B, C, h, w], largest first."""
            return tuple(super().forward(pixel_values).feature_maps)

    inner.__class__ = TensorBackbone
    module: torch.nn.Module = inner
    return module


def rt_detr_features(folder: str) -> torch.nn.Module:
    """Return the part of an RT-DETR before its queries: backbone, hybrid encoder, projections of each level."""
    import torch
    import transformers

    model = load_folder(transformers.AutoModelForObjectDetection, folder, **EAGER).model

    class LevelFeatures(torch.nn.Module):
        """The decoder's attention inputs, level by level."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.encoder = model.backbone.model, model.encoder
            self.encoder_input_proj, self.decoder_input_proj = model.encoder_input_proj, model.decoder_input_proj

        def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            """Return feature maps [B, D, h, w], largest first."""
            maps = self.backbone(pixel_values).feature_maps
            maps = [project(level) for project, level in zip(self.encoder_input_proj, maps, strict=True)]
            maps = self.encoder(maps).last_hidden_state
            return tuple(project(level) for project, level in zip(self.decoder_input_proj, maps, strict=True))

    return LevelFeatures()

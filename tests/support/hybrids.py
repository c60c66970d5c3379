"""Tiny hybrids with random weights, saved as transformers does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.utils import logging as transformers_logging

from tests.support.decoders import rtx, through_a_file
from trtkit.builder.hybrids import open_hybrid
from trtkit.builder.jobs import PrepareRequest
from trtkit.builder.prepare import prepare
from trtkit.config.schema import ModelConfig
from trtkit.jobs.job import JobContext
from trtkit.resolve import resolve
from trtkit.runtime.stages import StagesExecution, reference_stages

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.builder.hybrids import OpenedHybrid
    from trtkit.models.hybrids.spec import HybridSpec

transformers_logging.disable_progress_bar()
torch.set_num_threads(1)


@dataclass(frozen=True)
class Case:
    """A transformers class with a small config. outputs: names of its outputs."""

    architecture: str
    model_type: str
    outputs: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    size: tuple[int, int] = (30, 18)
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.architecture}{self.variant and '-'}{self.variant}"


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": [30, 18], "patch_size": 6}
_REGISTERS, _SIGLIP = "dinov2_with_registers", "siglip_vision_model"
_SQUARE = {**_SMALL, "image_size": 30}
_BOXES = ("logits", "pred_boxes")
_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 12, 16, 20],
    "depths": [1, 1, 2, 1],
    "layer_type": "basic",
}
_DETR = {
    "use_timm_backbone": False, "backbone": None, "backbone_config": {**_RESNET, "out_features": ["stage4"]},
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "num_queries": 7, "num_labels": 5,
}  # fmt: skip
_RT_DETR = {
    "backbone_config": {**_RESNET, "model_type": "rt_detr_resnet", "out_features": ["stage2", "stage3", "stage4"]},
    "d_model": 32, "encoder_hidden_dim": 24, "encoder_in_channels": [12, 16, 20], "decoder_in_channels": [24, 24, 24],
    "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "num_queries": 9, "num_labels": 5, "decoder_n_points": 3,
}  # fmt: skip
_DISCRETE = {**_RT_DETR, "decoder_method": "discrete", "decoder_offset_scale": 0.7}
_HIDDEN = ("last_hidden_state", "pooler_output")
CASES = (
    Case("ViTForImageClassification", "vit", ("logits",), {**_SMALL, "intermediate_size": 56, "num_labels": 7}),
    Case("ViTModel", "vit", _HIDDEN, {**_SMALL, "intermediate_size": 56, "qkv_bias": False, "pooler_output_size": 20}),
    Case("Dinov2Model", "dinov2", _HIDDEN, {**_SQUARE, "use_swiglu_ffn": True}, (24, 42), "resized"),
    Case("Dinov2ForImageClassification", "dinov2", ("logits",), {**_SQUARE, "num_labels": 5}, (30, 30)),
    Case("Dinov2WithRegistersModel", _REGISTERS, _HIDDEN, {**_SQUARE, "image_size": 36}, (30, 18), "resized"),
    Case(
        "SiglipVisionModel",
        "siglip_vision_model",
        _HIDDEN,
        {**_SQUARE, "intermediate_size": 56},
        (30, 30),
    ),
    Case("DetrForObjectDetection", "detr", _BOXES, _DETR, (69, 90)),
    Case("RTDetrForObjectDetection", "rt_detr", _BOXES, _RT_DETR, (64, 96)),
    Case("RTDetrV2ForObjectDetection", "rt_detr_v2", _BOXES, {**_RT_DETR, "decoder_offset_scale": 0.7}, (96, 64)),
    Case("RTDetrV2ForObjectDetection", "rt_detr_v2", _BOXES, _DISCRETE, (96, 64), "discrete"),
)


def model_of(case: Case) -> Any:
    """Return the case's model with all weights random, norms and biases included."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(case.model_type, **case.config)
    model = getattr(transformers, case.architecture)(config).eval()
    for name, weight in model.named_parameters():
        is_matrix = weight.dim() > 1
        deviation = (1.5 if weight.dim() == 4 else 1.0) * weight[0].numel() ** -0.5 if is_matrix else 0.2
        center = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
        torch.nn.init.normal_(weight, 0.0 if is_matrix else center, deviation)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            torch.nn.init.normal_(buffer, 0.0, 0.2)
        if name.endswith("running_var"):
            torch.nn.init.uniform_(buffer, 0.5, 1.5)
    return model


def saved(case: Case, folder: Path) -> Any:
    """Save the case's model to a folder; return the model."""
    model = model_of(case)
    model.save_pretrained(folder)
    return model


def answers(model: Any, case: Case, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the model's outputs by name."""
    with torch.inference_mode():
        outputs = model(pixel_values=pixels, return_dict=True)
    return {name: getattr(outputs, name) for name in case.outputs}


@dataclass(frozen=True, eq=False)
class Hybrid:
    """A hybrid on the reference executor."""

    opened: OpenedHybrid
    execution: StagesExecution

    @property
    def spec(self) -> HybridSpec:
        """The spec from its config.json."""
        return self.opened.spec

    def run(self, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        return self.execution.run({"pixel_values": pixels})

    def builds(self) -> bool:
        """Whether TensorRT-RTX builds every stage for 1 to 3 images."""
        return all(
            _builds(stage.layers.owner.graph, stage.layers.owner.graph.network) for stage in self.execution.stages
        )


def make(case: Case, folder: Path, compose: str, precision: str = "fp32", **more: Any) -> Hybrid:
    """Export, write and compile the hybrid in `folder`, in this process. more: config fields."""
    config = ModelConfig.model_validate(
        {
            "name": "m",
            "source": {"hf": str(folder)},
            "image_size": case.size,
            "compose": compose,
            "precision": precision,
            **more,
        }
    )
    opened = open_hybrid(resolve(config))
    work = folder.parent / f"{compose}-{precision}"
    work.mkdir()
    prepared = prepare(PrepareRequest(config, work), JobContext())
    execution = reference_stages(rtx(), prepared.stages, opened)
    for stage in execution.stages:
        through_a_file(stage.layers)
    return Hybrid(opened, execution)


def _builds(graph: Any, network: Any) -> bool:
    config, profile = graph.builder.create_builder_config(), graph.builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        profile.set_shape(tensor.name, *[(batch, *tuple(tensor.shape)[1:]) for batch in (1, 2, 3)])
    config.add_optimization_profile(profile)
    config.builder_optimization_level = 0
    return graph.builder.build_serialized_network(network, config) is not None


def case_of(name: str) -> Case:
    return next(case for case in CASES if str(case) == name)

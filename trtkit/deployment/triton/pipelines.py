"""Several models as one: an ensemble from image bytes to an answer, or from a page to its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.deployment.answers import MAP_TENSORS, PLACEMENT, answer_tensors, is_placed, placement_row, reader_settings
from trtkit.deployment.make_known import ImageAnswer
from trtkit.deployment.triton import model_config
from trtkit.deployment.triton.ensemble import ensemble
from trtkit.deployment.triton.model_config import Section, TritonTensor
from trtkit.deployment.triton.served import DeployedModel, Kind
from trtkit.deployment.triton.tensor_model import network_models
from trtkit.inputs.images import input_size, placement
from trtkit.inputs.samples import as_dtype, picture_input
from trtkit.runtime.model import open_model
from trtkit.runtime.page import page_reader, read_page
from trtkit.runtime.tasks.reader import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from PIL import Image

    from trtkit.arrays import Array, Arrays
    from trtkit.bundle.bundle import Bundle
    from trtkit.deployment.triton.options import DeployOptions
    from trtkit.runtime.model import Model
    from trtkit.runtime.tasks.reader import TaskReader

IMAGE = "image"
PREPROCESS = "trtkit.deployment.triton.backend.images:ImageModel"
POSTPROCESS = "trtkit.deployment.triton.backend.answers:AnswerModel"


def takes_images(bundle: Bundle) -> bool:
    """Whether the config defines how an image becomes the model's only input."""
    manifest = bundle.manifest
    return manifest.config.preprocess is not None and len(manifest.inputs) == 1


def vision_pipeline(bundle: Bundle, name: str, options: DeployOptions) -> list[DeployedModel]:
    """Return the parts of the ensemble `name`, followed by the ensemble.

    Raises SourceError if labels cannot be read.
    """
    networks = network_models(bundle, f"{name}_engine", options)
    reader = _reader(bundle, options)
    steps = [_preprocess(bundle, name, networks[-1], options, has_placement=reader is not None), networks[-1]]
    if reader is not None:
        steps.append(_postprocess(reader, name, steps, options))
    pipeline = ensemble(name, "pipeline", steps, steps[0].inputs, steps[-1].outputs)
    return [*networks[:-1], *steps, pipeline]


def image_answer(bundle: Bundle, pipeline: DeployedModel, options: DeployOptions) -> ImageAnswer:
    """Return the pipeline's answer to an image, computed in this process."""
    preprocess, target = bundle.manifest.config.preprocess, bundle.manifest.inputs[0]
    assert preprocess is not None
    reader = _reader(bundle, options)

    def compute(model: Model, image: Image.Image) -> Arrays:
        x = picture_input(image, preprocess, target.dtype)
        outputs = model.run({target.name: x})
        if reader is None:
            return outputs
        row = placement_row(placement(image.size, preprocess), input_size(x, preprocess))
        return answer_tensors(reader, outputs, np.array([row], np.float32))

    return ImageAnswer((1, 1) if pipeline.max_batch_size else (1,), compute)


def _reader(bundle: Bundle, options: DeployOptions) -> TaskReader | None:
    """Return the reader of the outputs; None if clients get raw outputs: without a task, or maps of cropped pictures.

    Raises SourceError if they do not fit the task.
    """
    config = bundle.manifest.config
    is_cropped = config.preprocess is not None and config.preprocess.crop is not None
    if config.task is None or (config.task.kind in MAP_TENSORS and is_cropped):
        return None
    return open_reader(bundle, options.top_k)


def _preprocess(
    bundle: Bundle, name: str, network: DeployedModel, options: DeployOptions, *, has_placement: bool
) -> DeployedModel:
    preprocess, target = bundle.manifest.config.preprocess, bundle.manifest.inputs[0]
    assert preprocess is not None
    has_placement = has_placement and is_placed(bundle.manifest.config.task)
    settings = {
        "preprocess": preprocess.model_dump(mode="json"),
        "output": target.name,
        "dtype": target.dtype,
        "is_placed": has_placement,
    }
    items = (1,) if network.max_batch_size else network.inputs[0].dims[:1]
    outputs = network.inputs
    if has_placement:
        outputs = (*outputs, TritonTensor(PLACEMENT, "fp32", (8,) if network.max_batch_size else (*items, 8)))
    what = "The bytes of an image file in, the network's input out: resized, cropped and scaled as the config says."
    step = _Step(f"{name}_preprocess", "preprocess", (TritonTensor(IMAGE, "text", items),), outputs, settings, what)
    return step.served(network, options)


def _postprocess(
    reader: TaskReader, name: str, steps: Sequence[DeployedModel], options: DeployOptions
) -> DeployedModel:
    """Return the step that reads the network's outputs. steps: the preprocessing and the network."""
    before, network = steps
    assert reader.task is not None
    items = () if network.max_batch_size else network.outputs[0].dims[:1]
    inputs = network.outputs if reader.task.boxes is not None else network.outputs[:1]
    if is_placed(reader.task):
        inputs = (*inputs, before.outputs[-1])
    if reader.task.boxes is not None:
        most = reader.task.boxes.max_boxes
        what = f"The surest {most} boxes (`task.boxes.max_boxes`) at most, in pixels of the picture."
        outputs = _box_tensors(reader, items)
    elif reader.task.kind in MAP_TENSORS:
        tensor, dtype = MAP_TENSORS[reader.task.kind]
        what = "The value of every pixel of the picture, by bilinear interpolation."
        outputs = [TritonTensor(tensor, dtype, (*items, -1, -1))]
    elif reader.task.kind == "embedding":
        what = "The vector of the picture."
        outputs = [TritonTensor("embedding", "fp32", (*items, network.outputs[0].dims[-1]))]
    elif reader.task.kind == "classification":
        what = f"The {options.top_k} likeliest classes (`top_k`), their names and probabilities."
        classes = network.outputs[0].dims[len(items)]
        dims = (*items, min(options.top_k, classes) if classes > 0 else options.top_k)
        outputs = [TritonTensor("class_id", "int32", dims), TritonTensor("score", "fp32", dims)]
        outputs += [TritonTensor("label", "text", dims)] if reader.labels else []
    else:
        what = "The text by greedy CTC decoding, and the mean of its characters' probabilities."
        outputs = [TritonTensor("text", "text", (*items, 1)), TritonTensor("score", "fp32", (*items, 1))]
    step = _Step(f"{name}_postprocess", "postprocess", inputs, tuple(outputs), reader_settings(reader), what)
    return step.served(network, options)


def _box_tensors(reader: TaskReader, items: tuple[int, ...]) -> list[TritonTensor]:
    """Return the tensors that `answer_tensors` makes of boxes."""
    assert reader.task is not None
    assert reader.task.boxes is not None
    rows = (*items, reader.task.boxes.max_boxes)
    tensors = [
        TritonTensor("num_boxes", "int32", (*items, 1)),
        TritonTensor("box", "fp32", (*rows, 4)),
        TritonTensor("score", "fp32", rows),
        TritonTensor("class_id", "int32", rows),
    ]
    tensors += [TritonTensor("label", "text", rows)] if reader.labels else []
    return tensors + ([TritonTensor("keypoints", "fp32", (*rows, reader.keypoints, 3))] if reader.keypoints else [])


@dataclass(frozen=True)
class _Step:
    """A Python step next to the network. what: its description, a sentence."""

    name: str
    kind: Kind
    inputs: tuple[TritonTensor, ...]
    outputs: tuple[TritonTensor, ...]
    settings: dict[str, Any]
    what: str

    def served(self, network: DeployedModel, options: DeployOptions) -> DeployedModel:
        """Return it with the network's largest batch."""
        sections = (
            Section(self.what, {"name": self.name, "backend": "python"}),
            Section(f"As `{network.name}`.", {"max_batch_size": network.max_batch_size}),
            model_config.interface(self.inputs, self.outputs, "Text is bytes."),
            model_config.instances(options, "KIND_CPU"),
        )
        runner = PREPROCESS if self.kind == "preprocess" else POSTPROCESS
        ports = (self.inputs, self.outputs)
        return DeployedModel(self.name, self.kind, "python", *ports, sections, runner=runner, settings=self.settings)


RUNNER = "trtkit.deployment.triton.backend.ocr:OcrModel"
INPUTS = (TritonTensor("image", "text", (1,)),)
OUTPUTS = (
    TritonTensor("text", "text", (-1,)),
    TritonTensor("score", "fp32", (-1,)),
    TritonTensor("box", "int32", (-1, 4)),
)
_WHAT = "Python backend: finds the lines with `{}`, reads each with `{}`"


def ocr_pipeline(detector: Bundle, recognizer: Bundle, name: str, options: DeployOptions) -> list[DeployedModel]:
    """Return the two networks' models, followed by the reader `name`.

    Raises BundleError if one of them does not fit.
    """
    reader = page_reader(detector, recognizer)
    detectors = network_models(detector, f"{name}_detector", options)
    recognizers = network_models(recognizer, f"{name}_recognizer", options)
    reason = _WHAT.format(detectors[-1].name, recognizers[-1].name)
    settings = {
        "reader": reader.model_dump(mode="json"),
        "detector": _port(detectors[-1]),
        "recognizer": _port(recognizers[-1]),
    }
    sections = (
        Section(f"{reason}.", {"name": name, "backend": "python"}),
        Section("One page a request: pages have different numbers of lines.", {"max_batch_size": 0}),
        model_config.interface(INPUTS, OUTPUTS, "The bytes of an image file in; text, score and box of every line."),
        model_config.instances(options, "KIND_CPU"),
    )
    reasons = (f"{name}: {reason}",)
    served = DeployedModel(name, "ocr", "python", INPUTS, OUTPUTS, sections, reasons, runner=RUNNER, settings=settings)
    return [*detectors, *recognizers, served]


def page_answer(detector: Bundle, recognizer: Bundle) -> ImageAnswer:
    """Return the reader's answer to a page, computed in this process with the given detector."""
    reader = page_reader(detector, recognizer)

    def compute(model: Model, page: Image.Image) -> dict[str, Array]:
        return read_page(reader, page, _function(model), _function(open_model(recognizer.path, "auto")))

    return ImageAnswer((1,), compute)


def _function(model: Model) -> Callable[[Array], Array]:
    """Return the model as a function of fp32 arrays, whatever its input type."""
    dtype = model.bundle.manifest.inputs[0].dtype
    return lambda x: model(as_dtype(x, dtype))


def _port(network: DeployedModel) -> dict[str, str]:
    taken = network.inputs[0]
    return {"model": network.name, "input": taken.name, "dtype": taken.dtype, "output": network.outputs[0].name}

"""From the bytes of an image to an answer: preprocessing, network and reading of outputs as an ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.deployment.answers import read_answer
from trtkit.deployment.make_known import ImageAnswer
from trtkit.deployment.triton import model_config
from trtkit.deployment.triton.ensemble import ensemble
from trtkit.deployment.triton.model_config import Section, Tensor
from trtkit.deployment.triton.network_models import network_models
from trtkit.deployment.triton.served import Kind, ServedModel
from trtkit.errors import DeployError
from trtkit.inputs.images import image_input
from trtkit.inputs.samples import as_dtype
from trtkit.runtime.tasks import ctc_characters, read_labels
from trtkit.sources import package_file

if TYPE_CHECKING:
    from PIL import Image

    from trtkit.arrays import Array
    from trtkit.bundle.bundle import Bundle
    from trtkit.config.task import Task
    from trtkit.deployment.triton.options import DeployOptions
    from trtkit.runtime.model import Model


IMAGE = "image"
PREPROCESS = "trtkit.deployment.triton.backend.images:ImageModel"
POSTPROCESS = "trtkit.deployment.triton.backend.answers:AnswerModel"


def takes_images(bundle: Bundle) -> bool:
    """Whether the config says how an image becomes the model's only input."""
    manifest = bundle.manifest
    return manifest.config.preprocess is not None and len(manifest.inputs) == 1


def vision_pipeline(bundle: Bundle, name: str, options: DeployOptions) -> list[ServedModel]:
    """Return the parts of the ensemble `name` and then itself. Raises SourceError where labels cannot be read."""
    networks = network_models(bundle, f"{name}_engine", options)
    steps = [_preprocess(bundle, name, networks[-1], options), networks[-1]]
    task = bundle.manifest.config.task
    if task is not None:
        steps.append(_postprocess(bundle, task, name, networks[-1], options))
    pipeline = ensemble(name, "pipeline", steps, steps[0].inputs, steps[-1].outputs)
    return [*networks[:-1], *steps, pipeline]


def image_answer(bundle: Bundle, pipeline: ServedModel, options: DeployOptions) -> ImageAnswer:
    """Return what the pipeline answers to an image, computed in this process."""
    preprocess, task, target = bundle.manifest.config.preprocess, bundle.manifest.config.task, bundle.manifest.inputs[0]
    assert preprocess is not None
    settings = None if task is None else answer_settings(bundle, task, options.top_k)

    def compute(model: Model, image: Image.Image) -> dict[str, Array]:
        outputs = model.run({target.name: as_dtype(image_input(image, preprocess), target.dtype)})
        return outputs if settings is None else read_answer(outputs[settings["input"]], settings)

    return ImageAnswer((1, 1) if pipeline.max_batch_size else (1,), compute)


def _preprocess(bundle: Bundle, name: str, network: ServedModel, options: DeployOptions) -> ServedModel:
    preprocess, target = bundle.manifest.config.preprocess, bundle.manifest.inputs[0]
    assert preprocess is not None
    settings = {"preprocess": preprocess.model_dump(mode="json"), "output": target.name, "dtype": target.dtype}
    inputs = (Tensor(IMAGE, "text", (1,) if network.max_batch_size else network.inputs[0].dims[:1]),)
    what = "The bytes of an image file in, the network's input out: resized, cropped and scaled as the config says."
    return _Step(f"{name}_preprocess", "preprocess", inputs, network.inputs, settings, what).served(network, options)


def _postprocess(bundle: Bundle, task: Task, name: str, network: ServedModel, options: DeployOptions) -> ServedModel:
    settings = answer_settings(bundle, task, options.top_k)
    items = () if network.max_batch_size else network.outputs[0].dims[:1]
    if task.kind == "classification":
        what = f"The {options.top_k} likeliest classes (`top_k`), their names and shares of the softmax."
        classes = network.outputs[0].dims[-1]
        dims = (*items, min(options.top_k, classes) if classes > 0 else options.top_k)
        outputs = [Tensor("class_id", "int32", dims), Tensor("score", "fp32", dims)]
        outputs += [Tensor("label", "text", dims)] if settings["labels"] else []
    else:
        what = "The text by greedy CTC decoding, and the mean of its characters' probabilities."
        outputs = [Tensor("text", "text", (*items, 1)), Tensor("score", "fp32", (*items, 1))]
    step = _Step(f"{name}_postprocess", "postprocess", network.outputs[:1], tuple(outputs), settings, what)
    return step.served(network, options)


def answer_settings(bundle: Bundle, task: Task, top_k: int) -> dict[str, Any]:
    """Return what reading the outputs needs: labels of classes, or the characters of text.

    Raises DeployError where classes and labels are not as many, SourceError where labels cannot be read.
    """
    output = bundle.manifest.outputs[0]
    settings: dict[str, Any] = {"kind": task.kind, "input": output.name}
    if task.kind == "ctc-text":
        return settings | {"characters": ctc_characters(bundle.onnx_path())}
    path = task.labels and package_file.resolve(task.labels, task.requires)
    labels = read_labels(Path(path)) if path else []
    if labels and len(labels) != output.shape[-1] > 0:
        what = f"`task.labels` names {len(labels)} classes; `{output.name}` has {output.shape[-1]}"
        raise DeployError(what, str(path), "give the names of the model's own classes, and build again")
    return settings | {"top_k": top_k, "labels": labels}


@dataclass(frozen=True)
class _Step:
    """A step in Python beside the network. what: it does, in a sentence."""

    name: str
    kind: Kind
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    settings: dict[str, Any]
    what: str

    def served(self, network: ServedModel, options: DeployOptions) -> ServedModel:
        """Return it with the same largest batch as the network."""
        sections = (
            Section(self.what, {"name": self.name, "backend": "python"}),
            Section(f"As `{network.name}`.", {"max_batch_size": network.max_batch_size}),
            model_config.interface(self.inputs, self.outputs, "Text is bytes."),
            model_config.instances(options, "KIND_CPU"),
        )
        runner = PREPROCESS if self.kind == "preprocess" else POSTPROCESS
        ports = (self.inputs, self.outputs)
        return ServedModel(self.name, self.kind, "python", *ports, sections, runner=runner, settings=self.settings)

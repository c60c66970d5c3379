"""From the bytes of an image to an answer: preprocessing, network and reading of outputs as an ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.deploy.triton import model_config
from trtkit.deploy.triton.model_config import Section, Tensor
from trtkit.deploy.triton.served import Kind, ServedModel
from trtkit.deploy.triton.tensor_model import tensor_model
from trtkit.runtime.tasks import ctc_characters, read_labels
from trtkit.sources import package_file

if TYPE_CHECKING:
    from trtkit.config.task import Task
    from trtkit.deploy.triton.options import DeployOptions
    from trtkit.engine.bundle import Bundle

IMAGE = "image"
PREPROCESS = "trtkit.deploy.triton.backend.images:ImageModel"
POSTPROCESS = "trtkit.deploy.triton.backend.answers:AnswerModel"


def takes_images(bundle: Bundle) -> bool:
    """Whether the config says how an image becomes the model's only input."""
    manifest = bundle.manifest
    return manifest.config.preprocess is not None and len(manifest.inputs) == 1


def vision_pipeline(bundle: Bundle, name: str, options: DeployOptions) -> list[ServedModel]:
    """Return the parts of the ensemble `name` and then itself. Raises SourceError where labels cannot be read."""
    network = tensor_model(bundle, f"{name}_engine", options)
    parts = [_preprocess(bundle, name, network, options), network]
    task = bundle.manifest.config.task
    if task is not None:
        parts.append(_postprocess(bundle, task, name, network, options))
    return [*parts, _ensemble(name, parts)]


def _preprocess(bundle: Bundle, name: str, network: ServedModel, options: DeployOptions) -> ServedModel:
    preprocess, target = bundle.manifest.config.preprocess, bundle.manifest.inputs[0]
    assert preprocess is not None
    settings = {
        "preprocess": preprocess.model_dump(mode="json"),
        "output": target.name,
        "dtype": target.dtype,
        "shape": list(target.shape),
    }
    inputs = (Tensor(IMAGE, "text", (1,)),)
    what = "The bytes of an image file in, the network's input out: resized, cropped and scaled as the config says."
    return _Step(f"{name}_preprocess", "preprocess", inputs, network.inputs, settings, what).served(network, options)


def _postprocess(bundle: Bundle, task: Task, name: str, network: ServedModel, options: DeployOptions) -> ServedModel:
    settings = answer_settings(bundle, task, options.top_k)
    if task.kind == "classification":
        what = f"The {options.top_k} likeliest classes (`top_k`), their names and shares of the softmax."
        count = min(options.top_k, network.outputs[0].dims[-1]) if network.outputs[0].dims[-1] > 0 else options.top_k
        outputs = [Tensor("class_id", "int32", (count,)), Tensor("score", "fp32", (count,))]
        outputs += [Tensor("label", "text", (count,))] if settings["labels"] else []
    else:
        what = "The text by greedy CTC decoding, and the mean of its characters' probabilities."
        outputs = [Tensor("text", "text", (1,)), Tensor("score", "fp32", (1,))]
    step = _Step(f"{name}_postprocess", "postprocess", network.outputs[:1], tuple(outputs), settings, what)
    return step.served(network, options)


def answer_settings(bundle: Bundle, task: Task, top_k: int) -> dict[str, Any]:
    """Return what reading the outputs needs: labels of classes, or the characters of text."""
    found: dict[str, Any] = {"kind": task.kind, "input": bundle.manifest.outputs[0].name}
    if task.kind == "ctc-text":
        return found | {"characters": ctc_characters(bundle.onnx_path)}
    path = task.labels and package_file.resolve(task.labels, task.requires)
    return found | {"top_k": top_k, "labels": read_labels(Path(path)) if path else []}


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


def _ensemble(name: str, parts: list[ServedModel]) -> ServedModel:
    """Return the model that clients call: tensors go from step to step by their names."""
    first, last = parts[0], parts[-1]
    sections = (
        Section("What clients call: each step runs inside the server, tensors never leave it.", {"name": name}),
        Section("An ensemble schedules, it runs nothing itself.", {"platform": "ensemble"}),
        Section(f"As `{first.name}`.", {"max_batch_size": first.max_batch_size}),
        model_config.interface(first.inputs, last.outputs, "The first step's inputs and the last one's outputs."),
        Section("The newest served version of each step.", {"ensemble_scheduling": {"step": _steps(parts)}}),
    )
    reason = f"{name}: image bytes in, {', '.join(tensor.name for tensor in last.outputs)} out; {len(parts)} steps"
    return ServedModel(name, "ensemble", "ensemble", first.inputs, last.outputs, sections, (reason,))


def _steps(parts: list[ServedModel]) -> list[dict[str, Any]]:
    """Return the ensemble's steps; what goes between two of them has a name that no client can ask for by mistake."""
    ends = {tensor.name for tensor in (*parts[0].inputs, *parts[-1].outputs)}

    def mapped(tensors: tuple[Tensor, ...]) -> dict[str, str]:
        return {each.name: each.name if each.name in ends else f"_{each.name}" for each in tensors}

    return [
        {
            "model_name": part.name,
            "model_version": -1,
            "input_map": mapped(part.inputs),
            "output_map": mapped(part.outputs if after is None else _used(part.outputs, after.inputs)),
        }
        for part, after in zip(parts, [*parts[1:], None], strict=True)
    ]


def _used(outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the outputs that the next step takes."""
    names = {tensor.name for tensor in inputs}
    return tuple(tensor for tensor in outputs if tensor.name in names)

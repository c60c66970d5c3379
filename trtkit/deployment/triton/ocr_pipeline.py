"""A page of text: a detector and a recognizer, and a model in Python that asks both and gives the lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.deployment.make_known import ImageAnswer
from trtkit.deployment.triton import model_config
from trtkit.deployment.triton.model_config import Section, TritonTensor
from trtkit.deployment.triton.network_models import network_models
from trtkit.deployment.triton.served import DeployedModel
from trtkit.inputs.samples import as_dtype
from trtkit.runtime.model import open_model
from trtkit.runtime.page import page_reader, read_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL import Image

    from trtkit.arrays import Array
    from trtkit.bundle.bundle import Bundle
    from trtkit.deployment.triton.options import DeployOptions
    from trtkit.runtime.model import Model

RUNNER = "trtkit.deployment.triton.backend.ocr:OcrModel"
INPUTS = (TritonTensor("image", "text", (1,)),)
OUTPUTS = (
    TritonTensor("text", "text", (-1,)),
    TritonTensor("score", "fp32", (-1,)),
    TritonTensor("box", "int32", (-1, 4)),
)
_WHAT = "Python backend: finds the lines with `{}`, reads each with `{}`"


def ocr_pipeline(detector: Bundle, recognizer: Bundle, name: str, options: DeployOptions) -> list[DeployedModel]:
    """Return the two networks' models and then the reader `name`. Raises BundleError where one cannot be it."""
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
    """Return what the reader answers to a page, computed in this process with the detector that is given."""
    reader = page_reader(detector, recognizer)

    def compute(model: Model, page: Image.Image) -> dict[str, Array]:
        return read_page(reader, page, _function(model), _function(open_model(recognizer.path, "auto")))

    return ImageAnswer((1,), compute)


def _function(model: Model) -> Callable[[Array], Array]:
    """Return the model as a function of fp32 arrays, whatever type its input has."""
    dtype = model.bundle.manifest.inputs[0].dtype
    return lambda x: model(as_dtype(x, dtype))


def _port(network: DeployedModel) -> dict[str, str]:
    """Return how a network is called."""
    taken = network.inputs[0]
    return {"model": network.name, "input": taken.name, "dtype": taken.dtype, "output": network.outputs[0].name}

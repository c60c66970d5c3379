"""Compute the answers of known requests with the runtime that is here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.deploy.answers import read_answer
from trtkit.deploy.known import KnownRequest, known_tolerance, read_known, write_known
from trtkit.errors import TrtkitError
from trtkit.network.onnx_io import TensorSpec
from trtkit.runtime.images import decode_image, image_input
from trtkit.runtime.model import open_model
from trtkit.sources import package_file
from trtkit.verify.samples import as_dtype, random_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtkit.engine.bundle import Bundle
    from trtkit.runtime.model import Model

Array = np.ndarray[Any, Any]
MAX_FLOPS = 2e11
"""A known answer is computed on a CPU where no GPU is: larger networks are left out."""
MAX_BYTES = 32 * 1024**2
PROMPT, NEW_TOKENS = "Gravity is", 8


def ensure_known(bundle: Bundle, answers: Mapping[str, Any] | None, on_progress: Callable[[str], None]) -> str:
    """Make the bundle's known requests where it has none; return what was done, in words.

    answers: how outputs are read (as the pipeline's settings), None where the bundle is served as tensors.
    """
    if read_known(bundle) is not None and (answers is None or read_known(bundle, {"image"}) is not None):
        return "the bundle has a known request"
    if bundle.manifest.decoder is not None:
        on_progress("computing a known answer")
        write_known(bundle, [_text_request(bundle)])
        return f"known request: {NEW_TOKENS} tokens after `{PROMPT}`"
    shapes = _smallest_shapes(bundle)
    volume = sum(int(np.prod(shape)) for shape in shapes.values())
    flops = bundle.manifest.totals.get("flops") or 0
    if flops > MAX_FLOPS or volume * 4 > MAX_BYTES:
        return "no known request: the network is too large to run it here"
    on_progress("computing a known answer")
    model = open_model(bundle.path, "auto")
    requests = [_tensor_request(model, shapes)]
    if answers is not None and (image := _sample_image(bundle)) is not None:
        requests.append(_image_request(model, image, answers))
    write_known(bundle, requests)
    return f"known requests: {len(requests)}, answered by the runtime that is here"


def _smallest_shapes(bundle: Bundle) -> dict[str, tuple[int, ...]]:
    manifest = bundle.manifest
    first = manifest.profiles[0] if manifest.profiles else {}
    return {record.name: first[record.name].min if record.name in first else record.shape for record in manifest.inputs}


def _tensor_request(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> KnownRequest:
    """Return random inputs of the smallest shapes with their outputs."""
    manifest = model.bundle.manifest
    specs = [TensorSpec(record.name, record.dtype, record.shape) for record in manifest.inputs]
    inputs = random_sample("known", shapes, manifest.config, specs).inputs
    return KnownRequest(inputs, model.run(inputs), known_tolerance(model.bundle))


def _sample_image(bundle: Bundle) -> bytes | None:
    """Return the first image that the config verifies on, None where it is not here."""
    verify = bundle.manifest.config.verify
    for text in verify.inputs:
        try:
            path = package_file.resolve(text, verify.requires)
        except TrtkitError:
            return None
        if path.suffix.lower() in (".png", ".jpg", ".jpeg"):
            return path.read_bytes()
    return None


def _image_request(model: Model, image: bytes, answers: Mapping[str, Any]) -> KnownRequest:
    """Return an image's bytes with its answer."""
    manifest = model.bundle.manifest
    assert manifest.config.preprocess is not None
    array = image_input(decode_image(image, "known"), manifest.config.preprocess)
    target = manifest.inputs[0]
    outputs = model.run({target.name: as_dtype(array, target.dtype)})
    answer = read_answer(outputs[answers["input"]], answers) if answers else outputs
    return KnownRequest({"image": np.array([[image]], dtype=np.object_)}, answer, known_tolerance(model.bundle))


def _text_request(bundle: Bundle) -> KnownRequest:
    """Return a text, or tokens where the bundle has no tokenizer, with what follows it greedily."""
    from trtkit.runtime.llm import LLM
    from trtkit.runtime.sampling.params import SamplingParams

    with LLM(bundle, slots=1) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS)
        if llm.tokenizer is None:
            ids = [1, 2, 3]
            output = llm.generate([ids], params)[0].outputs[0]
            answer = {"output_ids": np.array([output.token_ids], dtype=np.int32)}
            prompt: dict[str, Array] = {"input_ids": np.array([ids], dtype=np.int32)}
        else:
            output = llm.generate(PROMPT, params)[0].outputs[0]
            answer = {"text_output": np.array([[output.text.encode()]], dtype=np.object_)}
            prompt = {"text_input": np.array([[PROMPT.encode()]], dtype=np.object_)}
    limits = {"max_tokens": np.array([[NEW_TOKENS]], dtype=np.int32), "temperature": np.zeros((1, 1), dtype=np.float32)}
    return KnownRequest(prompt | limits, answer, 0.0)

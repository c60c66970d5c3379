"""Known requests: computes their expected answers with the runtime on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.bundle.bundle import open_bundle
from trtkit.bundle.known import KnownRequest, read_all_known, write_known
from trtkit.errors import BundleError, TrtkitError
from trtkit.inputs.images import decode_image
from trtkit.inputs.samples import random_sample
from trtkit.jobs.events import Phase
from trtkit.models.parallel import SINGLE
from trtkit.network.onnx.facts import widest_rounding
from trtkit.network.onnx.io import OnnxTensorSpec
from trtkit.network.onnx.quantize import likely_method
from trtkit.quantization_methods import METHODS
from trtkit.sources import package_file
from trtkit.sources.onnx_file import read_graph
from trtkit.verification.verify import verify_bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from PIL import Image

    from trtkit.arrays import Array
    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner
    from trtkit.runtime.model import Model
    from trtkit.serving_options import Runtime
    from trtkit.verification.report import Report
    from trtkit.verification.verify import VerifySettings

MAX_FLOPS = 2e11
"""Known answers are computed on a CPU if there is no GPU; larger networks are skipped."""
MAX_BYTES = 32 * 1024**2
PROMPT, NEW_TOKENS = "Gravity is", 8


@dataclass(frozen=True)
class ImageAnswer:
    """A pipeline's answer to an image. shape: of its input for one image."""

    shape: tuple[int, ...]
    compute: Callable[[Model, Image.Image], dict[str, Array]]


def ensure_known(bundle: Bundle, answer: ImageAnswer | None, on_progress: Callable[[str], None]) -> str:
    """Create the bundle's known requests; return what was done, as text.

    answer: of the pipeline as which it is served, None if it is served as tensors. It is always recomputed, since it
    depends on the deployment's options. A bundle that cannot run or be written on this machine gets none.
    """
    on_progress("computing a known answer")
    try:
        there = read_all_known(bundle)
    except BundleError:
        there = []  # damaged, or another version's: made anew
    try:
        if bundle.manifest.interface == "tokens":
            return _ensure_text(bundle, there)
        if _is_too_large(bundle):
            return "no known request: the network is too large to run it here"
        requests = _vision_requests(bundle, answer, there)
        write_known(bundle, requests)
    except (TrtkitError, OSError) as error:
        return f"no known request: {error.what if isinstance(error, TrtkitError) else error}"
    return f"known requests: {len(requests)}, answered by the runtime that is here"


def verify_and_remember(bundle: Bundle, request: VerifySettings, runner: Runner) -> Report:
    """Verify a bundle; give one with several ranks a known request, which its ranks check at every start.

    Engines whose collectives do nothing compute without an error; only their answer shows it.
    """
    report = verify_bundle(bundle, request, runner)
    if report.passed and bundle.manifest.grid != SINGLE:
        ensure_known(open_bundle(bundle.path), None, lambda what: runner.report(Phase(what)))
    return report


def _ensure_text(bundle: Bundle, there: list[KnownRequest]) -> str:
    if there:
        return "the bundle has a known request"
    write_known(bundle, [_text_request(bundle)])
    return f"known request: {NEW_TOKENS} tokens after `{PROMPT}`"


def _is_too_large(bundle: Bundle) -> bool:
    volume = sum(int(np.prod(shape)) for shape in _smallest_shapes(bundle).values())
    return bundle.manifest.totals.flops > MAX_FLOPS or volume * 4 > MAX_BYTES


def _vision_requests(bundle: Bundle, answer: ImageAnswer | None, there: list[KnownRequest]) -> list[KnownRequest]:
    """Return the existing requests that are still valid, and the missing ones."""
    names = {record.name for record in bundle.manifest.inputs}
    outputs = {record.name for record in bundle.manifest.outputs}
    tensors = [known for known in there if set(known.inputs) == names and set(known.outputs) == outputs]
    image = None if answer is None else _sample_image(bundle)
    if tensors and image is None:
        return there
    from trtkit.runtime.model import open_model

    model = open_model(bundle.path, "auto")
    requests = tensors or [_tensor_request(model, _smallest_shapes(bundle))]
    if answer is not None and image is not None:
        requests = [*requests, _image_request(model, image, answer)]
    kept = [known for known in there if all(set(known.outputs) != set(new.outputs) for new in requests)]
    return [*requests, *kept]


def _smallest_shapes(bundle: Bundle) -> dict[str, tuple[int, ...]]:
    manifest = bundle.manifest
    first = manifest.profiles[0] if manifest.profiles else {}
    return {record.name: first[record.name].min if record.name in first else record.shape for record in manifest.inputs}


def _tensor_request(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> KnownRequest:
    """Return random inputs of the smallest shapes with their outputs."""
    manifest = model.bundle.manifest
    specs = [OnnxTensorSpec(record.name, record.dtype, record.shape) for record in manifest.inputs]
    inputs = random_sample("known", shapes, manifest.config, specs).inputs
    return KnownRequest(inputs, model.run(inputs), _tolerance(model.bundle))


def _tolerance(bundle: Bundle) -> float:
    """Return the tolerance for another runtime, which rounds at the same places but sums in a different order."""
    from trtkit.verification.subject import tolerance_of

    manifest, config = bundle.manifest, bundle.manifest.config
    if config.verify.max_relative_rms_error is not None:
        return config.verify.max_relative_rms_error
    options = () if config.quantize is None else (config.quantize, *config.quantize.parts.values())
    methods: set[str] = {part_options.method for part_options in options}
    roundings: set[str] = {config.precision}
    for stage in manifest.stages:
        if stage.onnx is not None:
            graph = read_graph(bundle.path / stage.onnx.path)
            methods.add(likely_method(graph))
            roundings.add(widest_rounding(graph) or config.precision)
    of_inputs = [METHODS[name].tolerance for name in methods if name in METHODS and METHODS[name].rounds_inputs]
    return max([*(tolerance_of(config, rounding) for rounding in roundings), *of_inputs])


def _sample_image(bundle: Bundle) -> bytes | None:
    """Return the first image that the config verifies on, None if it is not available."""
    verify = bundle.manifest.config.verify
    for text in verify.inputs:
        try:
            path = package_file.resolve(text, verify.requires)
        except TrtkitError:
            return None
        if path.suffix.lower() in (".png", ".jpg", ".jpeg"):
            return path.read_bytes()
    return None


def _image_request(model: Model, image: bytes, answer: ImageAnswer) -> KnownRequest:
    outputs = answer.compute(model, decode_image(image, "known"))
    images = np.array([image], dtype=np.object_).reshape(answer.shape)
    return KnownRequest({"image": images}, outputs, _tolerance(model.bundle))


def _text_request(bundle: Bundle) -> KnownRequest:
    """Return a text, or tokens if the bundle has no tokenizer, with its greedy continuation.

    With several ranks, the reference executor answers, which does not depend on what is being checked.
    """
    from trtkit.llm import LLM
    from trtkit.llm.sampling.params import SamplingParams

    runtime: Runtime = "auto" if bundle.manifest.grid == SINGLE else "reference"
    with LLM(bundle, slots=1, runtime=runtime) as llm:
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

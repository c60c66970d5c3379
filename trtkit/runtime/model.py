"""A bundle's network as a function of arrays, also on machines without a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from trtkit.backends import load_backend
from trtkit.builder.hybrids import open_hybrid
from trtkit.builder.stages import bundle_stages, plan_files
from trtkit.bundle.bundle import check_file, open_bundle
from trtkit.errors import ExecutionError, SourceError
from trtkit.inputs.samples import Sample, check_profiles
from trtkit.reference import to_array
from trtkit.resolve import resolve
from trtkit.runtime import device as devices
from trtkit.runtime.onnx_runtime import onnx_runtime_session
from trtkit.runtime.stages import ReferenceStage, StagesExecution, engine_stages, reference_stages, stream_weights
from trtkit.runtime.weight_budget import weight_budget_bytes
from trtkit.sources.digest import digest_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trtkit.arrays import Array, Arrays
    from trtkit.bundle.bundle import Bundle
    from trtkit.runtime.pictures import PictureInput
    from trtkit.runtime.predict import Answered
    from trtkit.runtime.tasks.answers import Answer
    from trtkit.serving_options import WeightBudget

RuntimeName = Literal["reference", "onnxruntime", "tensorrt", "auto"]


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A bundle that is ready to run. `bundle.manifest.config` describes its inputs and outputs."""

    bundle: Bundle
    run: Callable[[Mapping[str, Array]], Arrays]
    """Takes all inputs by name and returns all outputs by name. Raises SourceError for shapes outside all profiles."""
    layer_seconds: Callable[[Mapping[str, Array]], dict[str, float]]
    """Runs the network once; returns each layer's time in seconds, in execution order."""
    description: str = ""
    """What runs the network."""

    def __repr__(self) -> str:
        """Return the bundle and what runs it, on one line."""
        return f"Model({str(self.bundle.path)!r}: {self.bundle.manifest.name}, {self.description})"

    def predict(
        self,
        items: PictureInput | Iterable[PictureInput | tuple[str, str]],
        *,
        batch: int | None = None,
        top_k: int = 5,
        every: int = 1,
        conf: float | None = None,
        iou: float | None = None,
    ) -> Iterator[Answer]:
        """Yield an answer to each item, as defined by the config's `task`: classes, boxes, text, maps.

        items: one or several of: paths of pictures, videos and folders, the bytes of image files, PIL images, and uint8
        arrays [height, width, 3] in RGB order; reverse the BGR frames of OpenCV first, by `frame[..., ::-1]`. For a
        text encoder, a text, or several texts or pairs.
        batch: items per call; the engine's `opt` batch if None. top_k: classes of an answer. every: of a video, each
        n-th frame. conf, iou: of a detector, the smallest score of a box, and the overlap above which the weaker of two
        is suppressed; the config's if None. Raises SourceError if a picture cannot be read, or if the config does not
        describe how it becomes the only input, RequestError for thresholds that do not apply.
        """
        from trtkit.runtime.pictures import as_items
        from trtkit.runtime.predict_text import open_text_predictor, takes_text

        if takes_text(self.bundle):
            return open_text_predictor(self.bundle, self.run, batch, top_k)(_texts(as_items(items)))
        named = self.annotate(items, batch=batch, top_k=top_k, every=every, conf=conf, iou=iou)
        return (answered.answer for answered in named)

    def annotate(
        self,
        items: PictureInput | Iterable[PictureInput | tuple[str, str]],
        *,
        batch: int | None = None,
        top_k: int = 5,
        every: int = 1,
        conf: float | None = None,
        iou: float | None = None,
    ) -> Iterator[Answered]:
        """Yield each picture with its name and its answer; a notebook shows it with the answer drawn on it.

        Takes the same pictures as `predict`. `trtkit.runtime.saved_answers` writes the results to files.
        """
        from trtkit.runtime.pictures import as_items
        from trtkit.runtime.predict import PredictOptions, answer_pictures
        from trtkit.runtime.tasks.reader import Thresholds

        options = PredictOptions(batch, top_k, every, Thresholds(conf, iou))
        return answer_pictures(self.bundle, self.run, as_items(items), options)

    def __call__(self, x: Array) -> Array:
        """Return the first output for the only input. Raises ExecutionError if the model has several inputs."""
        if not isinstance(x, np.ndarray):
            raise _not_an_array(x)
        names = [tensor.name for tensor in self.bundle.manifest.inputs]
        if len(names) != 1:
            raise ExecutionError(f"the model has {len(names)} inputs: {', '.join(names)}", fix="pass them to `run`")
        return next(iter(self.run({names[0]: x}).values()))


def _not_an_array(x: object) -> ExecutionError:
    """Return the error for calling a model with an argument of another method."""
    fix = "pass a NumPy array, such as `numpy.asarray(x, numpy.float32)`"
    if isinstance(x, str | Path):
        fix = f"for pictures, use `model.predict({str(x)!r})`"
    elif isinstance(x, dict):
        fix = f"for inputs by name, use `model.run({{{next(iter(x), 'name')!r}: ...}})`"
    return ExecutionError(f"a model takes one array when called, got {type(x).__name__}", fix=fix)


def _texts(items: Iterable[object]) -> Iterator[str | tuple[str, str]]:
    for item in items:
        if isinstance(item, str) or (isinstance(item, tuple) and all(isinstance(text, str) for text in item)):
            yield item
        else:
            raise SourceError(f"expected a text or a pair of texts, got {type(item).__name__}", "predict", "give str")


def open_model(
    bundle: Bundle | Path | str,
    runtime: RuntimeName = "auto",
    *,
    has_cuda_graphs: bool = False,
    weight_budget_gib: WeightBudget | None = None,
) -> Model:
    """Open a bundle, given by its folder or as returned by `open_bundle`.

    runtime: `tensorrt` runs the engine on the GPU; `reference` runs the exact network that the engine was built from on
    the CPU, layer by layer; `auto` runs the engine if a GPU is present and otherwise that network, optimized for this
    CPU: convolutions in fp32 in ONNX Runtime. `onnxruntime` runs the ONNX file that TensorRT parsed. has_cuda_graphs:
    whether to capture an engine's launches once per shape and replay them. weight_budget_gib: GPU memory for weights;
    the rest stays in host memory; None for all on the GPU. Raises BundleError if a file has changed since the build,
    BackendError if the TensorRT library is missing, does not run on the GPU or does not load the engine, ExecutionError
    for a language model, RequestError for a budget that the engines do not support.
    """
    bundle = open_bundle(bundle)
    budget_bytes = weight_budget_bytes(bundle, weight_budget_gib)
    if bundle.manifest.interface == "tokens":
        fix = "use `trtkit.LLM`, or `trtkit generate`"
        raise ExecutionError("the bundle holds a language model, which takes prompts", str(bundle.path), fix)
    device = devices.find_device() if runtime in ("tensorrt", "auto") else None
    if device is not None:
        devices.check_device(device, bundle.manifest)
    bundle.check_network(reads_layers=device is None and runtime != "onnxruntime")
    if runtime == "onnxruntime":
        return Model(bundle, _within_profiles(bundle, _onnx_runtime(bundle)), _no_layers, "ONNX Runtime, CPU")
    library = f"{bundle.manifest.backend.name} {bundle.manifest.backend.version}"
    if device is not None:
        for record in bundle.manifest.engines:
            check_file(bundle.path, record)
        backend = load_backend(bundle.manifest.backend.name)
        names = [output.name for output in bundle.manifest.outputs]
        running = engine_stages(backend, plan_files(bundle), names, device, has_cuda_graphs=has_cuda_graphs)
        if budget_bytes is not None:
            stream_weights(running, budget_bytes)
        return _model(bundle, running, f"{library}, {device.name}")
    if runtime == "tensorrt":
        raise ExecutionError("no GPU to run the engine", str(bundle.path), "use runtime `reference`, which needs none")
    running = _reference(bundle, is_fast=runtime == "auto")
    has_session = any(isinstance(stage, ReferenceStage) and stage.has_session for stage in running.stages)
    how = "reference executor with ONNX Runtime" if has_session else "reference executor"
    return _model(bundle, running, f"{how} on the {library} network, CPU")


def _model(bundle: Bundle, running: StagesExecution, description: str) -> Model:
    """Return a model whose outputs are arrays."""

    def run(inputs: Mapping[str, Array]) -> Arrays:
        return {name: to_array(value) for name, value in running.run(inputs).items()}

    return Model(bundle, _within_profiles(bundle, run), running.layer_seconds, description)


def _within_profiles(
    bundle: Bundle, run: Callable[[Mapping[str, Array]], Arrays]
) -> Callable[[Mapping[str, Array]], Arrays]:
    """Return `run` restricted to the engine's profiles: no runtime accepts shapes that the engine would refuse."""

    def checked(inputs: Mapping[str, Array]) -> Arrays:
        check_profiles(Sample("inputs", dict(inputs)), bundle.manifest.profiles)
        return run(inputs)

    return checked


def _no_layers(_inputs: Mapping[str, Array]) -> dict[str, float]:
    """Return an empty dict: ONNX Runtime's layers differ from the network's."""
    return {}


def _reference(bundle: Bundle, *, is_fast: bool) -> StagesExecution:
    """Return the reference executor for all stages. Raises BundleError if weights that it reads have changed."""
    names = [stage.name for stage in bundle.manifest.stages]
    layers = [graph for name in names if (graph := bundle.layers(name)) is not None]
    if len(layers) == len(names):
        outputs = [output.name for output in bundle.manifest.outputs]
        return StagesExecution([ReferenceStage(graph, is_fast=is_fast) for graph in layers], outputs)
    backend, stages = load_backend(bundle.manifest.backend.name), bundle_stages(bundle)
    if all(stage.writer == "parser" for stage in stages):
        return reference_stages(backend, stages, None, is_fast=is_fast)
    config = bundle.manifest.config
    bundle.check_sources({file.sha256 for file in digest_source(config.source)})
    return reference_stages(backend, stages, open_hybrid(resolve(config)), is_fast=is_fast)


def _onnx_runtime(bundle: Bundle) -> Callable[[Mapping[str, Array]], Arrays]:
    """Return ONNX Runtime on the bundle's ONNX file. Raises ExecutionError for a hybrid."""
    if not bundle.is_one_file:
        what = "a hybrid is not an ONNX file: its parts are written by the network API"
        raise ExecutionError(what, str(bundle.path), "use runtime `reference`, or build it with `route: onnx`")
    session = onnx_runtime_session(bundle.onnx_path())
    names = [item.name for item in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))

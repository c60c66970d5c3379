"""Other features of TensorRT-RTX: runtime caches, TF32, its own CUDA graphs, refit and stripped plans."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tests.gpu.models import classifier_config
from tests.gpu.networks import Bound, build_plan, relative_rms
from tests.gpu.opened import SHAPE, Opened, user_managed
from trtkit.dtypes import FP32
from trtkit.network.graph import Graph
from trtkit.runtime.loaded_engine import LoadedEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer

SIZE = 256


def ask(place: Place) -> Iterator[Answer]:
    """Test them one after another."""
    yield from runtime_cache(place)
    yield from tf32(place)
    yield from graph_strategy(place)
    yield from refit(place)


def runtime_cache(place: Place) -> Iterator[Answer]:
    """Time the first launch with an empty runtime cache and with the previous launch's."""
    bundle = place.bundle("classifier-fp32", lambda: classifier_config(place.scratch))
    file = place.scratch / "kernels"
    file.unlink(missing_ok=True)
    for what in ("nothing kept", "kernels kept"):
        stream = place.device.stream()
        started = time.perf_counter()
        engine = LoadedEngine(place.backend, bundle.engine_path(), stream, file)
        context, (x,), (y,) = engine.context(0), engine.inputs, engine.outputs
        image, scores = stream.empty(SHAPE, torch.float32), stream.empty((SHAPE[0], 5), torch.float32)
        stream.run(image.zero_)
        context.set_input(x, SHAPE, image)
        context.set_address(y, scores)
        context.enqueue()
        place.synchronize(stream)
        ms = (time.perf_counter() - started) * 1e3
        engine.close()
        yield {"what": f"load and first launch, {what}", "ms": ms, "cache_bytes": file.stat().st_size}


def tf32(place: Place) -> Iterator[Answer]:
    """Compare a matrix product in fp32 with fp64, with TF32 off, as trtkit builds, and on."""
    random = torch.Generator().manual_seed(0)
    x, w = (torch.randn(SIZE, SIZE, generator=random) for _ in range(2))
    expected = x.double() @ w.double()
    for is_on in (False, True):
        graph = _product(place, w)
        flag = place.backend.trt.BuilderFlag.TF32
        plan = build_plan(place, graph, {}, lambda config: config.set_flag(flag) if is_on else None)  # noqa: B023
        error = relative_rms(Bound(place, plan, {"x": x}).run()["y"], expected)
        answer: Answer = {"what": f"fp32 product, TF32 {'on' if is_on else 'off'}", "relative_rms_error": error}
        yield answer if is_on else answer | {"holds": error < 1e-5}


def graph_strategy(place: Place) -> Iterator[Answer]:
    """Time launches with TensorRT's own CUDA graphs, with ours, and with none."""
    trt, opened = place.backend.trt, Opened.classifier(place)
    for name in ("DISABLED", "WHOLE_GRAPH_CAPTURE"):
        config = opened.engine.create_runtime_config()
        config.cuda_graph_strategy = getattr(trt.CudaGraphStrategy, name)
        opened.context = opened.new_context(config)
        opened.ready().compute(torch.ones(SHAPE))
        yield {"what": f"launch, CudaGraphStrategy.{name}", "ms": place.median_ms(opened.launch, opened.stream)}
    opened.context = opened.new_context()
    opened.ready().compute(torch.ones(SHAPE))
    graph = opened.stream.capture(opened.launch)
    if graph is None:
        yield {"what": "replay of a graph of ours", "error": "the capture failed"}
        return
    yield {"what": "replay of a graph of ours", "ms": place.median_ms(graph.replay, opened.stream)}


def refit(place: Place) -> Iterator[Answer]:
    """Build refittable plans, with weights and stripped; refit with other weights and compare."""
    trt = place.backend.trt
    random = torch.Generator().manual_seed(0)
    x, old, new = (torch.randn(SIZE, SIZE, generator=random) for _ in range(3))
    for name in ("REFIT", "STRIP_PLAN"):

        def change(config: Any, name: str = name) -> None:
            config.set_flag(trt.BuilderFlag.REFIT)
            config.set_flag(getattr(trt.BuilderFlag, name))

        answer: Answer = {"what": f"refit of a plan built with {name}"}
        try:
            plan = build_plan(place, _product(place, old), {}, change).read_bytes()
        except RuntimeError as error:  # TensorRT-RTX 1.7.1 needs a GPU to build stripped plans
            yield answer | {"error": str(error), "holds": place.is_simulated}
            continue
        answer["plan_bytes"] = len(plan)
        yield answer if place.is_simulated else answer | _refitted(place, plan, x, new)


def _refitted(place: Place, plan: bytes, x: torch.Tensor, new: torch.Tensor) -> Answer:
    """Refit the engine with the weights `new`; the simulated runtime has no Refitter."""
    trt, logger = place.backend.trt, place.backend.logger("ERROR")
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    refitter = trt.Refitter(engine, logger)
    names = list(refitter.get_all_weights())
    weights = np.ascontiguousarray(new.numpy())
    is_set = all(refitter.set_named_weights(name, trt.Weights(weights)) for name in names)
    started = time.perf_counter()
    is_done = bool(refitter.refit_cuda_engine())
    ms = (time.perf_counter() - started) * 1e3
    stream = place.device.stream()
    context, _scratch = user_managed(place, engine, stream)
    held, y = x.cuda(), torch.empty_like(x, device="cuda")
    for name, tensor in (("x", held), ("y", y)):
        context.set_tensor_address(name, tensor.data_ptr())
    place.synchronize()
    context.execute_async_v3(stream.handle)
    place.synchronize(stream)
    error = relative_rms(y.cpu(), x.double() @ new.double())
    return {"holds": is_set and is_done and error < 1e-5, "weights": len(names), "refit_ms": ms, "error": error}


def _product(place: Place, w: torch.Tensor) -> Graph:
    graph = Graph(place.backend)
    x, weights = graph.input("x", FP32, (SIZE, SIZE)), graph.constant(w.numpy(), "w")
    none = place.backend.trt.MatrixOperation.NONE
    graph.output(graph.add(graph.network.add_matrix_multiply(x.trt, none, weights.trt, none), "product"), "y")
    return graph

"""Does TensorRT-RTX run DistCollective with one rank, alone and after a matrix product?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

from tests.gpu.networks import build_plan, relative_rms
from tests.gpu.opened import user_managed
from trtkit.dtypes import FP32
from trtkit.network.graph import Graph
from trtkit.network.trt_errors import error_recorder
from trtkit.reference import ThreadGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer

SIZE = 64


def ask(place: Place) -> Iterator[Answer]:
    """Set a communicator of one rank, twice, and run."""
    communicator = place.device.connect(ThreadGroup(1).member(0))
    for has_product in (False, True):
        yield from _all_reduce(place, communicator.handle, has_product)
    communicator.close()


def _all_reduce(place: Place, communicator: object, has_product: bool) -> Iterator[Answer]:
    what = "all-reduce after a product" if has_product else "all-reduce"
    x, w = (torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    plan = build_plan(place, _network(place, w if has_product else None), {}).read_bytes()
    runtime = place.backend.trt.Runtime(place.backend.logger("ERROR"))
    runtime.error_recorder = errors = error_recorder(place.backend)
    engine = runtime.deserialize_cuda_engine(plan)
    stream = place.device.stream()
    context, _scratch = user_managed(place, engine, stream)
    context.error_recorder = errors
    first, again = context.set_communicator(communicator), context.set_communicator(communicator)
    yield {"what": f"rule 19: {what}, set_communicator once", "holds": first, "seen": "; ".join(errors.texts)}
    yield {"what": f"rule 19: {what}, set_communicator again", "holds": not again, "seen": "; ".join(errors.texts)}
    held, y = stream.empty((SIZE, SIZE), torch.float32), stream.empty((SIZE, SIZE), torch.float32)
    held.copy_(x)
    y.fill_(torch.nan)
    for name, tensor in (("x", held), ("y", y)):
        context.set_tensor_address(name, tensor.data_ptr())
    if place.is_simulated:  # the simulation uses the reference executor's ranks
        return
    place.synchronize()
    is_launched = bool(context.execute_async_v3(stream.handle))
    place.synchronize(stream)
    error = relative_rms(y.cpu(), x.double() @ w.double() if has_product else x)
    is_right = is_launched and error < 1e-5
    yield {"what": what, "holds": is_right, "relative_rms_error": error, "seen": "; ".join(errors.texts)}


def _network(place: Place, w: torch.Tensor | None) -> Graph:
    graph, trt = Graph(place.backend), place.backend.trt
    x = graph.input("x", FP32, (SIZE, SIZE)).trt
    if w is not None:
        none = trt.MatrixOperation.NONE
        x = graph.network.add_matrix_multiply(x, none, graph.constant(w.numpy(), "w").trt, none).get_output(0)
    layer = graph.network.add_dist_collective(x, trt.CollectiveOperation.ALL_REDUCE, trt.ReduceOperation.SUM, -1, None)
    layer.metadata = json.dumps({"collective": {"operation": "ALL_REDUCE", "reduce_op": "SUM"}})
    graph.output(graph.add(layer, "all_reduce"), "y")
    return graph

"""The rules of tests/simulated_tensorrt/README.md, tested on the runtime at hand, one function each.

A rule yields what was expected and what was seen; if they differ, the simulated runtime is wrong about TensorRT.
Not tested: rule 9, which is deliberately stricter than TensorRT; rule 12, since TensorRT-RTX 1.7.1 does not build
layers with data-dependent shapes; violations of rules 7 and 16, which corrupt memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tests.gpu.opened import SHAPE, Opened
from trtkit.network.trt_errors import error_recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.gpu.place import Place
    from tests.gpu.step import Answer, Seen


def ask(place: Place) -> Iterator[Answer]:
    """Test the rules that are harmless if they do not hold."""
    yield from ask_rules(RULES, place)


def ask_rules(rules: Mapping[int, Callable[[Place], Seen]], place: Place) -> Iterator[Answer]:
    """Yield an answer per observation."""
    for number, rule in rules.items():
        try:
            for what, expected, seen in rule(place):
                holds = expected == seen
                yield {"what": f"rule {number}: {what}", "holds": holds, "expected": str(expected), "seen": str(seen)}
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
            yield {"what": f"rule {number}", "holds": False, "expected": "no exception", "seen": seen}


def unknown_plans(place: Place) -> Seen:
    """1: deserializing an unknown plan returns None."""
    runtime = place.backend.trt.Runtime(place.backend.logger())
    runtime.error_recorder = error_recorder(place.backend)
    for name, plan in (("bytes", b"plan"), ("a plan cut short", Opened.classifier(place).plan[:1000])):
        yield f"loading {name} gives None", True, runtime.deserialize_cuda_engine(plan) is None


def shapes_outside_the_profile(place: Place) -> Seen:
    """2: set_input_shape returns False."""
    opened = Opened.classifier(place)
    for shape in ((9, 3, 16, 16), (5, 3, 16, 16), (2, 3, 16), (2, 4, 16, 16)):
        yield f"set_input_shape of {list(shape)}", False, opened.context.set_input_shape(opened.input, shape)
    yield f"set_input_shape of {list(SHAPE)}", True, opened.context.set_input_shape(opened.input, SHAPE)


def unknown_names(place: Place) -> Seen:
    """3: set_tensor_address returns False."""
    opened = Opened.classifier(place)
    yield "an address for an unknown name", False, opened.context.set_tensor_address("nobody", opened.image.data_ptr())


def misaligned_addresses(place: Place) -> Seen:
    """4: set_tensor_address returns False, and nothing is launched."""
    opened = Opened.classifier(place)
    for offset in (4, 64, 128):
        address = opened.image.data_ptr() + offset
        yield f"an address {offset} bytes off", False, opened.context.set_tensor_address(opened.input, address)


def missing_shapes_and_addresses(place: Place) -> Seen:
    """5: execute_async_v3 returns False."""
    opened = Opened.classifier(place)
    opened.set_addresses()
    yield "a launch without a shape", False, opened.launch()
    opened = Opened.classifier(place)
    opened.context.set_input_shape(opened.input, SHAPE)
    yield "a launch without addresses", False, opened.launch()
    opened.context.set_tensor_address(opened.input, opened.image.data_ptr())
    yield "a launch without the output's address", False, opened.launch()


def memory_is_read_when_the_stream_runs(place: Place) -> Seen:
    """7: an engine reads its input when the stream reaches the launch, not when it is enqueued."""
    opened = Opened.classifier(place).ready()
    expected = opened.compute(torch.ones(SHAPE))
    opened.image.zero_()
    place.synchronize()
    opened.hold_back()
    yield "a launch behind other work", True, opened.launch()
    opened.image.fill_(1)
    opened.finish()
    yield "the input as it was when the stream ran", True, _is_near(opened.scores, expected)


def later_settings_do_not_count(place: Place) -> Seen:
    """8: shapes and addresses are those at the time of the call."""
    opened = Opened.classifier(place).ready()
    expected = opened.compute(torch.ones(SHAPE))
    opened.scores.zero_()
    other = torch.zeros_like(opened.scores)
    place.synchronize()
    opened.hold_back()
    opened.launch()
    opened.context.set_input_shape(opened.input, (1, *SHAPE[1:]))
    opened.context.set_tensor_address(opened.output, other.data_ptr())
    opened.finish()
    yield "the output's address at the call", True, _is_near(opened.scores, expected)
    yield "the address set later", True, not other.any()


def profiles(place: Place) -> Seen:
    """11: contexts start with profile 0; switching keeps shapes and applies the new profile's limits."""
    opened = Opened.classifier(place)
    yield "a shape of profile 0 in a new context", True, opened.context.set_input_shape(opened.input, SHAPE)
    yield "choosing profile 1", True, opened.context.set_optimization_profile_async(1, opened.stream.handle)
    yield "the shape is kept", SHAPE, tuple(opened.context.get_tensor_shape(opened.input))
    yield "a shape of profile 0 then", False, opened.context.set_input_shape(opened.input, SHAPE)
    yield "a shape of profile 1 then", True, opened.context.set_input_shape(opened.input, (5, *SHAPE[1:]))
    yield "a profile that is not there", False, opened.context.set_optimization_profile_async(2, opened.stream.handle)


def shapes_are_read_on_the_host(place: Place) -> Seen:
    """13 and 17: a shape tensor is on the host, and its engine cannot be captured."""
    opened = Opened.sized_by_input(place)
    trt = place.backend.trt
    yield "is_shape_inference_io", True, opened.engine.is_shape_inference_io("shape")
    yield "where the shape is", "HOST", opened.engine.get_tensor_location("shape").name
    yield "where the data is", trt.TensorLocation.DEVICE.name, opened.engine.get_tensor_location("x").name


def capturable(place: Place) -> Seen:
    """17: an engine without shape tensors can be captured."""
    opened = Opened.classifier(place).ready()
    opened.compute(torch.ones(SHAPE))
    yield "is_stream_capturable", True, opened.context.is_stream_capturable(opened.stream.handle)


def profilers_wait(place: Place) -> Seen:
    """14: with a profiler, execute_async_v3 is synchronous."""
    from trtkit.runtime.loaded_engine import layer_profiler

    opened = Opened.classifier(place).ready()
    opened.compute(torch.ones(SHAPE))
    opened.context.profiler = profiler = layer_profiler(place.backend)
    opened.hold_back()
    opened.launch()
    yield "the stream is idle after a launch with a profiler", True, opened.is_idle()
    opened.finish()
    yield "layers were timed", True, bool(profiler.seconds)


def graphs_keep_shapes_and_addresses(place: Place) -> Seen:
    """16: settings after the capture have no effect."""
    opened = Opened.classifier(place).ready()
    expected = opened.compute(torch.ones(SHAPE))
    graph = opened.stream.capture(opened.launch)
    yield "the launch is captured", True, graph is not None
    if graph is None:
        return
    other = torch.zeros_like(opened.scores)
    opened.context.set_input_shape(opened.input, (1, *SHAPE[1:]))
    opened.context.set_tensor_address(opened.output, other.data_ptr())
    opened.scores.zero_()
    place.synchronize()
    graph.replay()
    opened.finish()
    yield "a replay writes to the address of the capture", True, _is_near(opened.scores, expected)
    yield "and not to the one set later", True, not other.any()


def runtime_caches(place: Place) -> Seen:
    """18: a corrupt cache is refused, a valid one is accepted."""
    opened = Opened.classifier(place)
    config = opened.engine.create_runtime_config()
    cache = config.create_runtime_cache()
    yield "a broken cache", False, cache.deserialize(b"broken")
    config.set_runtime_cache(cache)
    opened.context = opened.new_context(config)
    opened.ready().compute(torch.ones(SHAPE))
    blob = bytes(cache.serialize())
    yield "a cache of its own", True, opened.engine.create_runtime_config().create_runtime_cache().deserialize(blob)


def errors_go_to_the_recorder(place: Place) -> Seen:
    """20: a context reports errors to its error recorder."""
    opened = Opened.classifier(place)
    opened.context.error_recorder = recorder = error_recorder(place.backend)
    opened.context.set_input_shape(opened.input, (9, *SHAPE[1:]))
    yield "an error was recorded", True, bool(recorder.texts)


def contexts_need_user_memory(place: Place) -> Seen:
    """26 and 27: contexts need user-managed memory of the size that TensorRT reports."""
    opened = Opened.classifier(place).ready()
    other = opened.engine.create_execution_context()
    yield "a context with memory of its own", "kUSER_MANAGED", _word(opened.errors.texts, other)
    opened.context.set_device_memory(0, 0)
    yield "a launch without device memory", False, opened.launch()


def _word(texts: Sequence[str], context: object) -> str:
    """Return what a refusal asks for, or that nothing was refused."""
    told = texts[-1] if texts and context is None else "no refusal"
    return "kUSER_MANAGED" if "kUSER_MANAGED" in told else told


def _is_near(scores: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(scores.cpu(), expected, rtol=1e-3, atol=1e-4)


RULES: dict[int, Callable[[Place], Any]] = {
    1: unknown_plans,
    2: shapes_outside_the_profile,
    3: unknown_names,
    4: misaligned_addresses,
    5: missing_shapes_and_addresses,
    7: memory_is_read_when_the_stream_runs,
    8: later_settings_do_not_count,
    11: profiles,
    13: shapes_are_read_on_the_host,
    14: profilers_wait,
    16: graphs_keep_shapes_and_addresses,
    17: capturable,
    18: runtime_caches,
    20: errors_go_to_the_recorder,
    26: contexts_need_user_memory,
}

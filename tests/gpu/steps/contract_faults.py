"""Rules whose violation may leave the GPU unusable: run last, the mildest first, each written immediately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tests.gpu.language import decoder
from tests.gpu.opened import OUTPUT, SHAPE, Opened
from tests.gpu.steps.contract import ask_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer, Seen


def ask(place: Place) -> Iterator[Answer]:
    """Ask them."""
    yield from ask_rules(RULES, place)


def waits_in_a_capture(place: Place) -> Seen:
    """15: waiting for a stream during capture is an error."""
    opened = Opened.classifier(place).ready()
    opened.compute(torch.ones(SHAPE))
    try:
        seen = "no error" if opened.stream.capture(opened.stream.synchronize) else "an error"
    except Exception as error:
        seen = "an error" if "captur" in str(error) else f"{type(error).__name__}: {error}"
    yield "waiting for a stream that is captured", "an error", seen
    opened.finish()
    yield "a launch after the capture was ended", True, opened.launch()
    opened.finish()


def contexts_on_one_profile(place: Place) -> Seen:
    """10: concurrent contexts cannot share a profile."""
    opened = Opened.classifier(place).ready()
    opened.compute(torch.ones(SHAPE))
    other, stream = opened.new_context(), place.device.stream()
    image, scores = stream.empty(SHAPE, torch.float32), stream.empty(OUTPUT, torch.float32)
    other.set_input_shape(opened.input, SHAPE)
    other.set_tensor_address(opened.input, image.data_ptr())
    other.set_tensor_address(opened.output, scores.data_ptr())
    opened.hold_back()
    yield "a launch of the first context", True, opened.launch()
    yield "a launch of the second on its profile, meanwhile", False, bool(other.execute_async_v3(stream.handle))
    opened.finish()
    place.synchronize(stream)


def caches_are_updated_in_place(place: Place) -> Seen:
    """6: `present_*` aliases `past_*`; a launch with another address is refused."""
    from trtkit.runtime.loaded_engine import LoadedEngine

    _, bundle = decoder(place, "tiny", "fp32", batching="separate")
    stream = place.device.stream()
    engine = LoadedEngine(place.backend, bundle.engine_path(), stream)
    aliases = {name: output.aliases for name, output in engine.outputs.items() if name != "logits"}
    expected = {name: name.replace("present", "past") for name in aliases}
    yield "get_aliased_input_tensor of each cache", expected, aliases
    context, kept = engine.context(1), []
    for name, tensor in (engine.inputs | engine.outputs).items():
        shape = tuple(1 if size < 0 else size for size in tensor.shape)
        memory = stream.empty(shape, tensor.dtype)
        stream.run(memory.zero_)
        kept.append(memory)
        if name in engine.inputs:
            context.set_input(name, shape, memory)
        else:
            context.set_address(name, memory)
    place.synchronize(stream)
    try:
        context.enqueue()
        seen = True
    except Exception:
        seen = False
    yield "a launch with an output cache at another address", False, seen
    place.synchronize(stream)


RULES: dict[int, Callable[[Place], Any]] = {
    15: waits_in_a_capture,
    10: contexts_on_one_profile,
    6: caches_are_updated_in_place,
}

"""Weight streaming from the host: rules 21 to 24, tokens and times by budget; memory of sleeping models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.gpu.language import ONE_B, TINY, weights_folder
from tests.gpu.opened import user_managed
from tests.gpu.steps.contract import ask_rules
from trtkit import LLM, SamplingParams
from trtkit.config.schema import ModelConfig
from trtkit.runtime.device import release_memory
from trtkit.runtime.loaded_engine import LoadedEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer, Seen
    from trtkit.bundle.bundle import Bundle

_TOKENS = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


def ask(place: Place) -> Iterator[Answer]:
    """Test the rules, then budgets from none of the weights to all, then sleep."""
    yield from ask_rules({21: sizes, 22: late_budgets, 23: captures}, place)
    bundle, size = _bundle(place), _engine(place).streamable_bytes
    prompts = [[5 + slot, 7, 11, 13] for slot in range(4)]
    with LLM(bundle, runtime="reference") as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, _TOKENS)]
    for percent in (100, 50, 0):
        release_memory()
        before, budget_gib = _used_bytes(place), size * percent // 100 / 2**30
        with LLM(bundle, runtime="tensorrt", weight_budget_gib=budget_gib, host_cache_gib=0) as llm:
            outputs = llm.generate(prompts, _TOKENS)
            tokens = [output.outputs[0].token_ids for output in outputs]
            taken = _used_bytes(place) - before
            tpot_s = max(output.metrics.tpot_s or 0.0 for output in outputs)
            llm.sleep()
            asleep = _used_bytes(place, is_asleep=True) - before
            llm.wake()
            again = [output.outputs[0].token_ids for output in llm.generate(prompts, _TOKENS)]
        del llm
        sizes_of = {"streamable_bytes": size, "taken_bytes": taken, "asleep_bytes": asleep}
        yield {"what": f"budget of {percent} %", "holds": tokens == expected, "tpot_ms": 1e3 * tpot_s, **sizes_of}
        yield {"what": f"rule 24: asleep, budget of {percent} %", "holds": again == tokens and asleep < taken / 4}


def sizes(place: Place) -> Seen:
    """21: weights are streamable, and all are on the device unless a budget is set."""
    engine = _engine(place)
    yield "weights can be streamed", True, engine.streamable_bytes > 0
    yield "none is without a budget", False, engine.is_streaming
    engine.stream_weights(0)
    yield "they are with one of 0", True, engine.is_streaming


def late_budgets(place: Place) -> Seen:
    """22: a negative budget, or one set while a context exists, is refused; Python's attribute raises nothing."""
    engine = _engine(place)
    engine.stream_weights(4096)
    for what, budget in (("negative", -1), ("late", 0)):
        context = engine.context() if what == "late" else None
        engine._engine.weight_streaming_budget_v2 = budget
        yield f"a {what} budget changes nothing", 4096, int(engine._engine.weight_streaming_budget_v2)
        del context


def captures(place: Place) -> Seen:
    """23: an engine that streams its weights cannot be captured."""
    engine = _engine(place)
    engine.stream_weights(0)
    context, _scratch = user_managed(place, engine._engine, engine.stream)
    yield "a stream of weights is capturable", False, bool(context.is_stream_capturable(engine.stream.handle))


def _bundle(place: Place) -> Bundle:
    """Return a decoder built for weight streaming."""
    shape, precision = (TINY, "fp32") if place.is_simulated else (ONE_B, "fp16")  # torch's rounding differs on GPUs

    def config() -> ModelConfig:
        sizes = {"max_batch_size": 4, "max_sequence_length": shape.length, "max_prefill_length": 16}
        source = {"hf": str(weights_folder(place, shape, precision))}
        fields = {"source": source, "precision": precision, "llm": sizes, "build": {"weight_streaming": True}}
        return ModelConfig.model_validate(fields)

    return place.bundle(f"{shape.name}-streamed", config)


def _engine(place: Place) -> LoadedEngine:
    return LoadedEngine(place.backend, _bundle(place).engine_path(), place.device.stream())


def _used_bytes(place: Place, *, is_asleep: bool = False) -> int:
    """Return the device's memory in use; if TensorRT is simulated, torch's alone."""
    if place.simulated is not None and not place.has_gpu:
        return place.simulated.device.allocated_bytes
    if place.simulated is not None:
        if is_asleep:
            torch._C._cuda_clearCublasWorkspaces()
        return torch.cuda.memory_allocated()
    free, total = torch.cuda.mem_get_info()
    return total - free

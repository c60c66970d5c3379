"""Paged caches: an engine that gathers pages, and one whose attention plugin reads them in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.gpu.language import SMOLLM2, TINY, weights_folder
from tests.support.engine_decoders import config_of, greedy
from tests.support.generation import case_of
from trtkit.backends import load_backend
from trtkit.config.schema import ModelConfig
from trtkit.errors import BackendError
from trtkit.llm.execution import Call, open_execution

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.gpu.language import Shape
    from tests.gpu.place import Place
    from tests.gpu.step import Answer

_PLUGIN: dict[str, Any] = {"target": "local-gpu", "custom_ops": {"plugins": "always"}}


def ask(place: Place) -> Iterator[Answer]:
    """Compare tokens with the reference decoder's, then time steps of slots with equal and with different lengths."""
    if not place.is_simulated:  # the baseline of times
        yield from _asked(place, "linear", "linear", {})
    yield from _asked(place, "copies of pages", "paged", {})
    if place.is_simulated:  # the simulation has no plugins
        return
    try:
        load_backend("tensorrt")
    except BackendError as error:
        yield {"what": "plugin", "is_built": False, "why": str(error)}
        return
    yield from _asked(place, "plugin", "paged", _PLUGIN)


def _asked(place: Place, what: str, kv: str, fields: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield whether an engine with such caches computes the right tokens, and its step times."""
    yield {"what": f"{what}: tokens of a tiny model", "holds": _gives_tokens(place, what, kv, fields)}
    shape = TINY if place.is_simulated else SMOLLM2
    bundle = place.bundle(f"pages-{shape.name}-{what}", lambda: _config(place, shape, kv, fields))
    execution, longest = open_execution(bundle, "tensorrt", shape.batch), shape.length - 8
    for rows, lengths in {
        "short": np.full(shape.batch, longest // 16),
        "long": np.full(shape.batch, longest),
        "short and long": np.where(np.arange(shape.batch) % 8 == 0, longest, longest // 16),
    }.items():
        ids = np.random.default_rng(0).integers(3, shape.vocab, (shape.batch, 1))
        call = Call(0, ids, lengths, np.ones(shape.batch, np.int64))
        step_ms = place.median_ms(lambda: execution.forward(call))  # noqa: B023
        least_bytes = shape.step_bytes("fp16", 1, int(lengths.sum()))  # if caches are read once
        yield {"what": f"{what}: step, {rows}", "step_ms": step_ms, "least_bytes": least_bytes}
    execution.close()


def _gives_tokens(place: Place, what: str, kv: str, fields: Mapping[str, Any]) -> bool:
    """Whether an engine's tokens equal the reference decoder's in fp32, with mixed slots."""
    folder = place.scratch / "pages" / what

    def config() -> ModelConfig:
        return ModelConfig.model_validate(config_of(case_of("gemma2"), folder, kv=kv).model_dump() | fields)

    bundle, prompts = place.bundle(f"pages-tokens-{what}", config), np.random.default_rng(0).integers(3, 60, (3, 7))
    tokens, expected = (greedy(open_execution(bundle, each), prompts, 6)[0] for each in ("tensorrt", "reference"))
    return bool(np.array_equal(tokens, expected))


def _config(place: Place, shape: Shape, kv: str, fields: Mapping[str, Any]) -> ModelConfig:
    sizes = {"max_batch_size": shape.batch, "max_sequence_length": shape.length, "max_prefill_length": 16, "kv": kv}
    source = {"hf": str(weights_folder(place, shape, "fp16"))}
    return ModelConfig.model_validate({"source": source, "precision": "fp16", "llm": sizes, **fields})

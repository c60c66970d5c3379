"""Build a vision-language model: the language model as any other, the vision tower through ONNX, in one bundle."""

from __future__ import annotations

import math
import re
import shutil
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trtkit.dtypes import dtype_of
from trtkit.engine.decoder_build import compile_decoder, describe_decoder
from trtkit.engine.decoders import checked_spec, open_decoder
from trtkit.engine.onnx_build import compile_onnx, describe_onnx
from trtkit.engine.room import Load, check_room, hybrid_load
from trtkit.engine.vision_language import PROCESSOR_FILES, open_vision
from trtkit.errors import ConfigError, QuantizeError
from trtkit.jobs.json_form import to_json
from trtkit.models.weights import model_weights
from trtkit.quantization.by_part.choice import VISION
from trtkit.quantization.by_part.tower import measured_on_arrays
from trtkit.sources.safetensors_folder import read_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trtkit.engine.plan import Plan
    from trtkit.engine.vision_language import OpenedVision
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]
LLM_ENGINE, VISION_ENGINE = "engines/llm.plan", "engines/vision.plan"


def describe_tower(plan: Plan, folder: Path, runner: Runner) -> tuple[Json, OpenedVision]:
    """Prepare the vision tower without building it; return its record and what it was opened as."""
    opened = open_vision(plan.config)
    with _of_part(), measured_on_arrays(opened) as config:
        return describe_onnx(replace(plan, config=config, is_decoder=False), folder, runner), opened


def describe_vision_language(plan: Plan, folder: Path, runner: Runner) -> Json:
    """Write both networks without building them; return the language model's record with the tower's beside it."""
    tower, opened = describe_tower(plan, folder, runner)
    return _joined(describe_decoder(plan, folder, runner), tower, opened)


def compile_vision_language(plan: Plan, folder: Path, _engine: str, runner: Runner) -> Json:
    """Build both engines, the smaller first; return the same with plans and metrics."""
    opened = open_vision(plan.config)
    check_room(_load(plan, opened), folder)
    with _of_part(), measured_on_arrays(opened) as config:
        tower = compile_onnx(replace(plan, config=config, is_decoder=False), folder, VISION_ENGINE, runner)
    llm = compile_decoder(plan, folder, LLM_ENGINE, runner)
    for name in PROCESSOR_FILES:
        if (opened.folder / name).is_file():
            shutil.copyfile(opened.folder / name, folder / "model" / name)
    joined = _joined(llm, tower, opened)
    engines = [{"path": LLM_ENGINE, **llm["plan"]}, {"path": VISION_ENGINE, **tower["plan"]}]
    metrics: Json = {"peak_memory_mib": max(item["metrics"]["peak_memory_mib"] for item in (llm, tower))}
    for key in ("parse_s", "describe_s", "build_s"):
        metrics[key] = round(llm["metrics"][key] + tower["metrics"][key], 3)
    warnings = list(dict.fromkeys([*tower["warnings"], *llm["warnings"]]))
    return {**joined, "engines": engines, "metrics": metrics, "warnings": warnings}


@contextmanager
def _of_part() -> Iterator[None]:
    """Let errors name the keys of the tower's quantization as the whole config has them."""

    def key(where: str) -> str:
        return re.sub(r"^quantize(?=\.|$)", f"quantize.parts.{VISION}", where)

    try:
        yield
    except ConfigError as error:
        problems = [replace(problem, where=key(problem.where)) for problem in error.problems]
        raise ConfigError(error.what, problems, error.fix) from None
    except QuantizeError as error:
        raise QuantizeError(error.what, key(error.where), error.fix) from None


def _load(plan: Plan, opened: OpenedVision) -> Load:
    """Return what the build has to hold: the language model as its spec says, the rest of the files is the tower."""
    spec = checked_spec(plan.config, open_decoder(plan.config.source))
    parameters = sum(math.prod(weight.shape) for weight in model_weights(spec))
    stored = read_folder(opened.folder)[0].values()
    exported = max(0, sum(math.prod(array.shape) for array in stored) - parameters)
    return hybrid_load(parameters + exported, exported, dtype_of(plan.config.precision))


def vision_record(tower: Json, opened: OpenedVision) -> Json:
    """Return what a manifest keeps of a tower."""
    spec, network = opened.spec, tower["network"]
    return {
        "model_type": spec.model_type,
        "layout": spec.layout,
        "image_token_id": spec.image_token_id,
        "tokens_per_image": spec.tokens_per_image,
        "merge_size": spec.merge_size,
        "window_size": spec.window_size,
        "has_grid_positions": spec.has_grid_positions,
        "max_images": opened.limits.images,
        "max_tokens": opened.limits.tokens,
        "engine": VISION_ENGINE,
        "inputs": to_json(network.inputs),
        "outputs": to_json(network.outputs),
        "profiles": to_json(tower["profiles"]),
        "totals": to_json(network.totals()),
    }


def _joined(llm: Json, tower: Json, opened: OpenedVision) -> Json:
    """Return the language model's result with the tower's steps, its record and what it gives."""
    steps = [replace(step, name=f"vision {step.name}") for step in tower["steps"]]
    record = replace(llm["network"], vision=tower["network"])
    return {**llm, "steps": [*steps, *llm["steps"]], "network": record, "vision": vision_record(tower, opened)}

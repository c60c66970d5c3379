"""Build what the network API writes: decoder-only LLMs, in one child process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.bundle.bundle import QUANTIZED
from trtkit.engine.jobs import COMPILE_DECODER, DecoderRequest
from trtkit.engine.onnx_build import compiled_fields, plan_request
from trtkit.quantization.jobs import QUANTIZE_LLM, QuantizeRequest
from trtkit.quantization.target import check_quantization

if TYPE_CHECKING:
    from trtkit.config.schema import ModelConfig
    from trtkit.engine.jobs import CompiledDecoder
    from trtkit.engine.plan import Plan
    from trtkit.jobs.events import Step
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]


def describe_decoder(plan: Plan, folder: Path, runner: Runner) -> Json:
    """Write the network without building it; return steps, profiles and the network's record."""
    return _run(plan, folder, "", runner)


def compile_decoder(plan: Plan, folder: Path, engine: str, runner: Runner) -> Json:
    """Write the network and build it; return the same with the plan and metrics."""
    return _run(plan, folder, str(folder / engine), runner)


def quantize_decoder(config: ModelConfig, folder: Path, runner: Runner) -> tuple[Step, ...]:
    """Quantize an LLM as its config asks, into a folder that is new; return the steps."""
    folder.mkdir(parents=True)
    return runner.run(QUANTIZE_LLM, QuantizeRequest(config, folder)).steps


def makes_checkpoint(config: ModelConfig) -> bool:
    """Whether building an LLM begins with quantizing it."""
    asked = config.quantize
    return asked is not None and not asked.is_idle and not asked.keeps_stored


def _run(plan: Plan, folder: Path, plan_file: str, runner: Runner) -> Json:
    """Quantize where that is asked for, then write the network and build it where a plan is wanted."""
    build = plan_request(plan, Path(plan_file)) if plan_file else None
    request = DecoderRequest(plan.backend, plan.config, folder, plan.target, build)
    if not makes_checkpoint(plan.config):
        return _result(runner.run(COMPILE_DECODER, request), ())
    if plan_file:
        check_quantization(plan.config, plan.target, plan.backend, runner)
    quantized = quantize_decoder(plan.config, folder / QUANTIZED, runner)
    compiled = runner.run(COMPILE_DECODER, replace(request, quantized=folder / QUANTIZED))
    return _result(compiled, quantized)


def _result(decoder: CompiledDecoder, before: tuple[Step, ...]) -> Json:
    """Return what the manifest needs. before: the steps that quantized the checkpoint."""
    found = {"steps": (*before, *decoder.steps), "profiles": decoder.profiles, "decoder": decoder.size}
    return {**found, **compiled_fields(decoder.compiled)}

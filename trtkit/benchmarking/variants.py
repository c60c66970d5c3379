"""Comparison of a model's variants: each is built, verified, evaluated and planned for, and a verdict selects one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from trtkit.builder.build import build_bundle
from trtkit.config.load import changed_config
from trtkit.dtypes import Precision
from trtkit.errors import ConfigError, RequestError
from trtkit.jobs.json_form import to_json
from trtkit.llm import read_text_bundle
from trtkit.pages import HasPage
from trtkit.planning.gpus import find_gpus
from trtkit.planning.plan import PlanRequest, make_plan
from trtkit.planning.report import LlmReport
from trtkit.planning.source import model_of_bundle
from trtkit.quantization_methods import METHODS
from trtkit.resolve import resolve
from trtkit.verification.evaluation import EvaluationRequest, evaluate_bundle
from trtkit.verification.verify import VerifySettings, verify_bundle
from trtkit.verification.vision_evaluation import VisionRequest, evaluate_vision

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.runner import Runner
    from trtkit.planning.report import Report as Plan
    from trtkit.verification.report import Report

VERSION = 1
"""Of the JSON form; docs/compare.schema.json describes it."""
PERPLEXITY = "perplexity"


@dataclass(frozen=True)
class VariantsRequest:
    """What to compare, and on what. variants: precisions and quantization methods, the baseline first.

    images, truth: labelled pictures, as for `trtkit eval --images`. text: a UTF-8 file for perplexity. gpu: to plan
    for. max_loss: the largest loss of a variant against the baseline: points of the first measure on pictures, or
    percent of perplexity. windows: of the text.
    """

    variants: tuple[str, ...]
    images: Path | None = None
    truth: Path | None = None
    text: Path | None = None
    gpu: str = "l4"
    max_loss: float = 1.0
    windows: int = 8


@dataclass(frozen=True)
class Variant:
    """A measured variant.

    relative_rms_error: of its worst output against the source's own runtime in fp32, from `trtkit verify`, which allows
    `tolerance`. quality: measures on pictures, or the perplexity. loss: against the baseline, in the unit of
    `max_loss`; None without data. planned_ms: the floor of a call at the `opt` batch, or of a decode step, on the GPU.
    planned_per_second: images, or characters of text, at that floor. excluded: why it is excluded; empty if it is not.
    """

    name: str
    bundle: str
    engine_bytes: int
    relative_rms_error: float
    tolerance: float
    passed: bool
    quality: dict[str, float]
    loss: float | None
    planned_ms: float
    planned_per_second: float
    excluded: str


@dataclass(frozen=True)
class VariantComparison(HasPage):
    """Variants of a model. measure: what `loss` measures. characters_per_token: of the text, by the model's tokenizer.

    best: the smallest engine among variants that are not excluded; empty if all are.
    """

    model: str
    kind: Literal["language model", "arrays"]
    gpu: str
    measure: str
    max_loss: float
    characters_per_token: float | None
    variants: tuple[Variant, ...]
    best: str

    @property
    def verdict(self) -> str:
        """The choice and its reason, in one sentence."""
        if not self.best:
            return "take none: every variant is out"
        best = next(variant for variant in self.variants if variant.name == self.best)
        first = self.variants[0]
        if best is first:
            return f"take {first.name}: no smaller variant is within the limits"
        loss = "" if best.loss is None else f", {self.measure} {self.change(best)}"
        return f"take {best.name}: {best.engine_bytes / first.engine_bytes:.2f} of the size of {first.name}{loss}"

    def change(self, variant: Variant) -> str:
        """Return the difference of the measure from the baseline's, with sign and unit; empty for the baseline."""
        if variant.loss is None:
            return ""
        return f"{variant.loss:+.2f} %" if self.measure == PERPLEXITY else f"{-variant.loss:+.2f} points"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"version": VERSION, **to_json(self), "verdict": self.verdict}


def compare_variants(config: ModelConfig, folder: Path, request: VariantsRequest, runner: Runner) -> VariantComparison:
    """Build every variant in `folder`, and compare them.

    Raises ConfigError for unknown variants and for data of the wrong kind, and errors from building, verifying,
    evaluating and planning.
    """
    is_tokens = resolve(config).interface == "tokens"
    _check(request, is_tokens=is_tokens)
    bundles = [
        build_bundle(_variant_config(config, name), folder / f"{config.name}-{name}", runner).bundle
        for name in request.variants
    ]
    characters = _characters_per_token(bundles[0], request.text) if is_tokens and request.text else None
    measured: list[Variant] = []
    for name, bundle in zip(request.variants, bundles, strict=True):
        baseline = measured[0] if measured else None
        measured.append(_measure(name, bundle, request, runner, baseline=baseline, characters=characters))
    allowed = [variant for variant in measured if not variant.excluded]
    best = min(allowed, key=lambda variant: variant.engine_bytes).name if allowed else ""
    measure = next(iter(measured[0].quality), "")
    kind: Literal["language model", "arrays"] = "language model" if is_tokens else "arrays"
    return VariantComparison(
        config.name, kind, request.gpu, measure, request.max_loss, characters, tuple(measured), best
    )


def _check(request: VariantsRequest, *, is_tokens: bool) -> None:
    known = (*get_args(Precision), *METHODS)
    unknown = [name for name in request.variants if name not in known]
    if unknown:
        raise ConfigError(f"`{unknown[0]}` is neither a precision nor a method", [], f"use {', '.join(known)}")
    if len(request.variants) < 2 or len(set(request.variants)) < len(request.variants):
        raise ConfigError("variants are two or more different ones", [], "such as --variants fp32,fp16,int8")
    if is_tokens and request.images is not None:
        raise ConfigError("pictures do not measure a language model", [], "give --text FILE")
    if not is_tokens and request.text is not None:
        raise ConfigError("a text does not measure this model", [], "give --images FOLDER")
    find_gpus([request.gpu])


def _variant_config(config: ModelConfig, name: str) -> ModelConfig:
    """Return the config of a variant: a precision without quantization, or a method over the config's precision."""
    if name in get_args(Precision):
        return changed_config(config.model_copy(update={"quantize": None}), {"precision": name})
    return changed_config(config, {"quantize.method": name})


def _measure(
    name: str,
    bundle: Bundle,
    request: VariantsRequest,
    runner: Runner,
    *,
    baseline: Variant | None,
    characters: float | None,
) -> Variant:
    report = verify_bundle(bundle, VerifySettings(layers=False, corners=False, trust_source=True), runner)
    quality = _quality(bundle, request, runner)
    loss = None if baseline is None or not quality else _loss(quality, baseline.quality)
    plan = make_plan(model_of_bundle(bundle), PlanRequest(find_gpus([request.gpu])), runner)
    ms, per_second = _planned(plan, characters)
    worst = max((output.relative_rms_error for output in report.outputs.values()), default=0.0)
    excluded = _exclusion(report, loss, request)
    size = sum(engine.size_bytes for engine in bundle.manifest.engines)
    return Variant(
        name, str(bundle.path), size, worst, report.tolerance, report.passed, quality, loss, ms, per_second, excluded
    )


def _exclusion(report: Report, loss: float | None, request: VariantsRequest) -> str:
    if not report.passed:
        return "out of verify's tolerance"
    if loss is not None and loss > request.max_loss:
        return f"loses more than {request.max_loss:g}"
    return ""


def _quality(bundle: Bundle, request: VariantsRequest, runner: Runner) -> dict[str, float]:
    if request.images is not None:
        return dict(evaluate_vision(bundle, VisionRequest(request.images, request.truth), runner).measures)
    if request.text is None:
        return {}
    read = evaluate_bundle(bundle, EvaluationRequest(str(request.text), windows=request.windows), runner).perplexity
    assert read is not None
    return {PERPLEXITY: read.perplexity}


def _loss(quality: dict[str, float], baseline: dict[str, float]) -> float:
    """Return the perplexity gained in percent, or points of the first measure lost."""
    name = next(iter(baseline))
    if name == PERPLEXITY:
        return 100 * (quality[name] / baseline[name] - 1)
    return 100 * (baseline[name] - quality[name])


def _planned(plan: Plan, characters: float | None) -> tuple[float, float]:
    """Return the floor in ms, and the images, tokens or characters per second at that floor."""
    if isinstance(plan, LlmReport):
        speed = plan.gpus[0].speed
        return 1000 * speed.tpot.seconds, speed.decode_tokens_per_second * (characters or 1.0)
    vision = plan.gpus[0].speed
    return 1000 * vision.latency.seconds, vision.images_per_second


def _characters_per_token(bundle: Bundle, text: Path) -> float:
    tokenizer = read_text_bundle(bundle).tokenizer
    if tokenizer is None:
        raise RequestError("the bundle has no tokenizer", str(bundle.path), "give a model with its tokenizer")
    content = text.read_text(encoding="utf-8")
    return len(content) / max(1, len(tokenizer.encode(content)))


def names(text: str) -> tuple[str, ...]:
    """Return the variants in a comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())

"""Plans as typed data: one report for language models and one for other networks, each with its JSON form."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

from trtkit.jobs.json_form import to_json
from trtkit.pages import HasPage
from trtkit.planning.memory import MemoryNeed
from trtkit.planning.roofline import Floor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.planning.decoder_model import DecoderModel, Formulas, Workload
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.offload import OffloadPlan
    from trtkit.planning.question import LoadPlan
    from trtkit.planning.streaming import StreamingPlan

VERSION = 1
"""Version of the reports' JSON form."""

Json = dict[str, Any]


@dataclass(frozen=True)
class LayerWork:
    """Work of one kind of layer in one phase. products: tensor core operations, by type."""

    flops: int
    products: dict[str, int]
    bytes: int
    flops_per_byte: float


@dataclass(frozen=True)
class LayerGroup:
    """One kind of layer with its work by phase."""

    group: str
    layers: int
    weight_bytes: int
    phases: dict[str, LayerWork]


@dataclass(frozen=True)
class StepWork:
    """The whole network's work in one phase. fused_bytes: the fewest bytes it can move."""

    flops: int
    products: dict[str, int]
    fused_bytes: int
    cache_bytes: int
    activation_bytes: int


@dataclass(frozen=True)
class CacheRead:
    """Attention's reads in a decode step: tokens of each slot, and bytes moved for all slots."""

    tokens: int
    bytes: int


@dataclass(frozen=True)
class LlmSpeed:
    """Times and throughput of `batch` simultaneous requests. ttft_of_all: until all prompts are prefilled."""

    batch: int
    ttft: Floor
    ttft_of_all: Floor
    tpot: Floor
    tpot_unfused_ms: float
    request_ms: float
    decode_tokens_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    cost_per_million_output_tokens: float | None


@dataclass(frozen=True)
class VisionSpeed:
    """Latency and throughput of one batch."""

    batch: int
    latency: Floor
    unfused_ms: float
    images_per_second: float
    cost_per_million_images: float | None


@dataclass(frozen=True)
class FormatPlan:
    """Results for a format of weights and cache."""

    name: str
    weight_bytes: int
    kv_bytes_per_token: int
    fits: bool
    largest_batch: int
    ttft: Floor
    tpot: Floor


@dataclass(frozen=True)
class MixedStep:
    """A step in which all requests decode and one of them reads the last `prompt_tokens` of its prompt.

    packed: in one call. separate_ms: in two calls.
    """

    prompt_tokens: int
    packed: Floor
    separate_ms: float


@dataclass(frozen=True, kw_only=True)
class SequencePlan:
    """Savings of GPUs that share a step's tokens (`parallel.sequence`), next to the figures without sharing.

    tokens: new tokens in the step. hidden_bytes: hidden states that a GPU keeps while blocks compute. between_bytes:
    written for norms and residual sums in all layers. sent_bytes, links_s: over links.
    """

    tokens: int
    hidden_bytes: int
    hidden_bytes_without: int
    between_bytes: int
    between_bytes_without: int
    sent_bytes: int
    sent_bytes_without: int
    links_s: float
    links_s_without: float


@dataclass(frozen=True, kw_only=True)
class ContextPlan:
    """Savings of GPUs that share cached positions (`parallel.context`) in a decode step, next to those without sharing.

    length: tokens of each sequence. cache_bytes: per GPU. read_s: time to read it once. sent_bytes, links_s: over
    links. step_s: of the whole step. pays_from: the length from which a step is faster; None if there is none within
    the model's limit.
    """

    length: int
    cache_bytes: int
    cache_bytes_without: int
    read_s: float
    read_s_without: float
    sent_bytes: int
    sent_bytes_without: int
    links_s: float
    links_s_without: float
    step_s: float
    step_s_without: float
    pays_from: int | None


@dataclass(frozen=True, kw_only=True)
class GridPlan:
    """Results for a grid of GPUs, including communication time.

    links_s_per_step: of a decode step, included in `tpot_s`. best_at: among fitting grids with as many GPUs. sequence:
    savings from sharing tokens; None if GPUs do not share them. context: the same for cached positions.
    """

    tensor: int
    pipeline: int
    gpus: int
    memory_per_gpu: MemoryNeed
    fits: bool
    largest_batch: int
    ttft_s: float
    tpot_s: float
    links_s_per_step: float
    sent_bytes_per_step: int
    decode_tokens_per_second: float
    best_at: tuple[str, ...] = ()
    sequence: SequencePlan | None = None
    context: ContextPlan | None = None


@dataclass(frozen=True, kw_only=True)
class LlmGpu:
    """A language model on one GPU model. Times are floors: no implementation of this network can be faster on it.

    tpot_by_kv_window: a decode step if kernels read all of attention's input, by `llm.kv_window`. mixed_steps: by chunk
    size. load: None without a load, or if the model does not fit. offload: the best block for each cache location.
    """

    gpu: PlannedGpu
    takes_precision: bool
    memory: MemoryNeed
    fits: bool
    largest_batch: int
    largest_context: int
    largest_context_is_the_models: bool
    compute_bound_batch: int | None
    compute_bound_batch_without_caches: int | None
    speed: LlmSpeed
    tpot_by_kv_window: dict[str, Floor]
    mixed_steps: tuple[MixedStep, ...]
    load: LoadPlan | None
    curve: tuple[LlmSpeed, ...]
    formats: tuple[FormatPlan, ...]
    grids: tuple[GridPlan, ...]
    tensor_pays_up_to: int | None
    streaming: tuple[StreamingPlan, ...]
    offload: tuple[OffloadPlan, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VisionGpu:
    """A network of images or arrays on one GPU model. Times are floors. load: as for language models."""

    gpu: PlannedGpu
    memory: MemoryNeed
    fits: bool
    takes_precision: bool
    largest_batch: int
    speed: VisionSpeed
    load: LoadPlan | None
    curve: tuple[VisionSpeed, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class _PlanReport(HasPage, ABC):
    """The common part of both reports. step: the whole network's work, by phase."""

    source: str
    layers: tuple[LayerGroup, ...]
    step: dict[str, StepWork]
    assumptions: tuple[str, ...]

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the model."""

    def __str__(self) -> str:
        """Return what `trtkit plan` prints. The renderer lies above this package, so it is imported by name."""
        parts = importlib.import_module("trtkit.report.planning_tables").short_tables(self)
        return cast("str", importlib.import_module("trtkit.cli.tables").as_text(parts))

    def __repr__(self) -> str:
        return f"<plan of {self.name}>"

    def _common(self) -> Json:
        """Return the part of the JSON form that both reports share."""
        rows = [{**to_json(row), **to_json(row.phases)} for row in self.layers]
        layers = [{key: value for key, value in row.items() if key != "phases"} for row in rows]
        return {"layers": layers, "step": to_json(self.step), "assumptions": list(self.assumptions)}


@dataclass(frozen=True, kw_only=True, repr=False)
class LlmReport(_PlanReport):
    """The plan of a language model. windowed_slot_bytes: a slot's if sliding-window layers kept only their window.

    kv_window: attention's reads, by `llm.kv_window`.
    """

    model: DecoderModel
    work: Workload
    windowed_slot_bytes: int | None
    kv_window: dict[str, CacheRead]
    formulas: Formulas
    gpus: tuple[LlmGpu, ...]

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def slot_bytes(self) -> int:
        """Bytes of cache and recurrent states of one slot at the end."""
        return self.model.slot_bytes(self.work.length)

    def to_json(self) -> Json:
        """Return the JSON form for users."""
        return {
            "version": VERSION,
            "kind": "llm",
            "model": {**self.model.to_json(), "source": self.source, "slot_bytes": self.slot_bytes},
            "windowed_slot_bytes": self.windowed_slot_bytes,
            "kv_window": to_json(self.kv_window),
            "workload": {**to_json(self.work), "length": self.work.length, "mean_length": self.work.mean_length},
            "formulas": to_json(self.formulas),
            "gpus": [_gpu(gpu) for gpu in self.gpus],
            **self._common(),
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class VisionReport(_PlanReport):
    """The plan of a vision model, or of any network of arrays. profile: the smallest and largest batch."""

    model_name: str
    weight_bytes: int
    batch: int
    profile: tuple[int, int]
    shapes: Mapping[str, tuple[int, ...]]
    gpus: tuple[VisionGpu, ...]

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model_name

    def to_json(self) -> Json:
        """Return the JSON form for users."""
        return {
            "version": VERSION,
            "kind": "vision",
            "model": {"name": self.name, "source": self.source, "weight_bytes": self.weight_bytes},
            "workload": {"batch": self.batch, "profile": list(self.profile), "shapes": to_json(self.shapes)},
            "gpus": [_gpu(gpu) for gpu in self.gpus],
            **self._common(),
        }


Report = LlmReport | VisionReport


def gpu_facts(gpu: PlannedGpu) -> Json:
    """Return the table's row and derived figures."""
    return {
        "gpu": gpu.key,
        "name": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "bandwidth_bytes_per_s": gpu.bandwidth_bytes_per_s,
        "compute_capability": gpu.compute_capability or None,
        "dense_operations_per_s": dict(gpu.rates),
        "backends": list(gpu.backends),
        "untested_backends": list(gpu.untested_backends),
        "precisions": list(gpu.precisions),
        "sources": list(gpu.sources),
        "read": gpu.read,
        "note": gpu.note,
        "data_sheet": gpu.data_sheet,
        "matmul_efficiency": dict(gpu.matmul_efficiency),
    }


def _gpu(plan: LlmGpu | VisionGpu) -> Json:
    """Return a GPU's row with its plan and speed."""
    fields: Json = _form(plan)
    return {**gpu_facts(plan.gpu), **fields.pop("speed"), **fields}


def _form(value: Any) -> Any:
    """Return JSON data, with floors in ms and memory with its sum."""
    if isinstance(value, Floor):
        compute_ms = None if value.compute_s is None else 1e3 * value.compute_s
        times = {"bound": value.bound, "compute_ms": compute_ms, "memory_ms": 1e3 * value.memory_s}
        return {"ms": 1e3 * value.seconds, **times}
    if isinstance(value, MemoryNeed):
        return value.to_json()
    if isinstance(value, VisionSpeed):
        latency = _form(value.latency)
        return {"latency_ms": latency.pop("ms"), **latency, **{k: v for k, v in vars(value).items() if k != "latency"}}
    if is_dataclass(value):
        return {field.name: _form(getattr(value, field.name)) for field in fields(value) if field.name != "gpu"}
    if isinstance(value, dict):
        return {key: _form(item) for key, item in value.items()}
    return [_form(item) for item in value] if isinstance(value, tuple) else value

"""The jobs of quantization, with what they take and give."""

from dataclasses import dataclass, field
from pathlib import Path

from trtkit.config.schema import ModelConfig
from trtkit.jobs.events import Step
from trtkit.jobs.job import Job
from trtkit.quantization.scoring.report import Scores


@dataclass(frozen=True)
class ScoringRequest:
    """Which layers to score, and what to do by the scores.

    sensitivity: whether every layer is scored. budget: what the model may lose or weigh; layers that lose most are left
    for it, in 16 bits or quantized by `fallback`.
    """

    sensitivity: bool = False
    budget: str | None = None
    fallback: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == ScoringRequest()


@dataclass(frozen=True)
class QuantizeRequest:
    """A model to quantize as its config's `quantize` section asks, into `folder`."""

    config: ModelConfig
    folder: Path
    scoring: ScoringRequest = field(default_factory=ScoringRequest)


@dataclass(frozen=True)
class QuantizedLlm:
    """A quantized checkpoint: how many layers are, the block of their weights, and its layers' scores."""

    steps: tuple[Step, ...]
    layers: int
    block: int | None
    sensitivity: Scores | None = None


QUANTIZE_LLM = Job("trtkit.quantization.llm.job:quantize_llm", QuantizeRequest, QuantizedLlm)

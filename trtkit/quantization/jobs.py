"""The jobs of quantization with their requests and results."""

from dataclasses import dataclass, field
from pathlib import Path

from trtkit.config.schema import ModelConfig
from trtkit.jobs.events import Step
from trtkit.jobs.job import Job
from trtkit.quantization.scoring.report import Scores


@dataclass(frozen=True)
class ScoringRequest:
    """Which layers to score, and how to use the scores.

    sensitivity: whether to score every layer. budget: the loss or size that the model may have; to meet it, the layers
    that lose most stay in 16 bits or are quantized with `fallback`.
    """

    sensitivity: bool = False
    budget: str | None = None
    fallback: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == ScoringRequest()


@dataclass(frozen=True)
class QuantizeRequest:
    """A model to quantize into `folder` by its config's `quantize` section."""

    config: ModelConfig
    folder: Path
    scoring: ScoringRequest = field(default_factory=ScoringRequest)


@dataclass(frozen=True)
class QuantizedLlm:
    """A quantized checkpoint.

    layers: how many are quantized. block: of their weights. sensitivity: its layers' scores.
    """

    steps: tuple[Step, ...]
    layers: int
    block: int | None
    sensitivity: Scores | None = None


QUANTIZE_LLM = Job("trtkit.quantization.llm.job:quantize_llm", QuantizeRequest, QuantizedLlm)

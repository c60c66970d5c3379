"""Counts of small models, made once for all tests."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from trtkit.config.llm import LlmOptions
from trtkit.config.schema import ModelConfig, Source
from trtkit.dtypes import DTYPES
from trtkit.jobs.job import JobContext
from trtkit.models.registry import decoder_spec
from trtkit.planning.count_decoder import count_decoder
from trtkit.planning.decoder_model import DecoderModel, decoder_model, workload
from trtkit.planning.jobs import CountRequest
from trtkit.planning.question import PlanningQuestion
from trtkit.planning.source import architectures

if TYPE_CHECKING:
    from trtkit.planning.counts import NetworkCounts

TINY_LLAMA = {
    "model_type": "llama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "vocab_size": 101,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip


def counted(
    fields: dict[str, Any], precision: str = "fp16", length: int = 64, quantized: Any = None, **llm: Any
) -> NetworkCounts:
    """Return the counts of a config's network. quantized: how it is."""
    config = ModelConfig(
        name="tiny",
        source=Source(hf="/nowhere"),
        precision=precision,  # type: ignore[arg-type]
        llm=LlmOptions(**llm),
    )
    request = CountRequest("tensorrt_rtx", config, fields, "config.json", length, quantized)
    return count_decoder(request, JobContext())


@cache
def published_counts(name: str, length: int = 640) -> NetworkCounts:
    """Return the counts of a published model."""
    row = architectures()[name]
    return counted(row["fields"], row["dtype"], length)


def published_model(name: str) -> DecoderModel:
    """Return a published model's numbers."""
    row = architectures()[name]
    return decoder_model(name, decoder_spec(row["fields"]), DTYPES[row["dtype"]])


def question(name: str, input_len: int = 512, output_len: int = 128, concurrency: int = 1) -> PlanningQuestion:
    """Return a published model with work to do."""
    model = published_model(name)
    work = workload(model, input_len, output_len, concurrency=concurrency, chunk=512)
    return PlanningQuestion(model, published_counts(name), work, decoder_spec(architectures()[name]["fields"]))

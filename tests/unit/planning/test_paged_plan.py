"""Plans of caches in pages: what a step copies, and whole pages of every sequence."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.planning.planned import TINY_LLAMA, counted
from trtkit.config.llm import LlmOptions
from trtkit.config.schema import CustomOpOptions, ModelConfig, Source
from trtkit.dtypes import FP16, INT8
from trtkit.errors import ConfigError
from trtkit.jobs.runner import InlineRunner
from trtkit.models.parallel import Grid
from trtkit.models.registry import decoder_spec
from trtkit.planning import paged
from trtkit.planning.counts import Multilinear, NetworkCounts
from trtkit.planning.decoder_model import decoder_model, workload
from trtkit.planning.formats import FORMATS, in_format
from trtkit.planning.gpus import find_gpus
from trtkit.planning.memory import Footprint
from trtkit.planning.paged import CopiedPages, copied_pages
from trtkit.planning.plan import PlanRequest, llm_assumptions, make_plan
from trtkit.planning.question import PlanningQuestion
from trtkit.planning.report import LlmReport
from trtkit.planning.shares import tensor_share
from trtkit.planning.source import PlannedModel
from trtkit.simulation.record import Record
from trtkit.simulation.replica import Replica
from trtkit.simulation.replica_options import ReplicaOptions
from trtkit.simulation.requests import SimulatedRequest, Traffic
from trtkit.simulation.times import MeasuredTimes

if TYPE_CHECKING:
    from trtkit.quantization_methods import CacheFormat

GEMMA = {
    "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 99,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "sliding_window": 32,
}  # fmt: skip
PER_TOKEN = 3 * 2 * 2 * 8 * 2
"""Three layers of two heads of 8, keys and values, in fp16."""
ALL = CopiedPages(3, Fraction(1), Fraction(1, 3))
"""Of the three layers."""
NONE = CopiedPages(0, Fraction(0), Fraction(0))


def config(precision: str = "fp16", plugins: str = "never", **llm: Any) -> ModelConfig:
    options = LlmOptions(kv="paged", max_sequence_length=128, max_prefill_length=64, **llm)
    ops = CustomOpOptions(plugins=plugins)  # type: ignore[arg-type]
    return ModelConfig(name="tiny", source=Source(hf="/nowhere"), precision=precision, llm=options, custom_ops=ops)  # type: ignore[arg-type]


def planned(lengths: tuple[int, int, int], **options: Any) -> LlmReport:
    """Return the plan of a tiny Llama. lengths: of prompts and answers, and requests at once."""
    model = PlannedModel("tiny", config(**options), "tensorrt_rtx", TINY_LLAMA, "config.json")
    report = make_plan(model, PlanRequest(find_gpus(["l4"]), *lengths), InlineRunner())
    assert isinstance(report, LlmReport)
    return report


def test_a_step_reads_writes_and_reads_again_whole_pages_of_each_sequence() -> None:
    """Four requests of 20 + 13 tokens: a step is given the pages of a power of two, 64."""
    plan, linear = planned((20, 13, 4)), counted(TINY_LLAMA)
    step = plan.step["decode"]
    assert step.cache_bytes == 4 * 64 * PER_TOKEN
    assert step.fused_bytes == linear.fused_bytes.at((4, 1, 64)) + 2 * 4 * 64 * PER_TOKEN
    copies = next(row for row in plan.layers if row.group == "page copies")
    assert (copies.layers, copies.phases["decode"].bytes) == (3, 2 * 4 * 64 * PER_TOKEN)
    gpu = plan.gpus[0]
    assert gpu.speed.tpot.memory_s == step.fused_bytes / gpu.gpu.bandwidth_bytes_per_s
    assert {name: read.tokens for name, read in plan.kv_window.items()} == {"used": 64}
    assert "all layers read, write and read again" in " ".join(plan.assumptions)


def test_sequences_hold_whole_pages_and_one_page_is_nobodys() -> None:
    plan = planned((20, 13, 4))
    assert plan.slot_bytes == 48 * PER_TOKEN
    new = (64 + 63 + 4) * PER_TOKEN  # of the largest step, which the engine gives apart
    assert plan.gpus[0].memory.kv_cache == (4 * 48 + 16) * PER_TOKEN + new
    large = planned((20, 13, 4), page_tokens=32)
    assert large.gpus[0].memory.kv_cache == (4 * 64 + 32) * PER_TOKEN + new


def test_nothing_is_counted_for_pages_that_are_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "reads_pages_in_place", lambda *_: True)  # as with full TensorRT
    plan, linear = planned((20, 13, 4)), counted(TINY_LLAMA)
    assert plan.step["decode"].fused_bytes == linear.fused_bytes.at((4, 1, 27))
    assert "page copies" not in [row.group for row in plan.layers]
    assert plan.step["decode"].activation_bytes == linear.activation_bytes((4, 1, 27))
    assert plan.slot_bytes == 48 * PER_TOKEN
    assert {name: read.tokens for name, read in plan.kv_window.items()} == {"used": 27}
    assert "attention reads them where they are" in " ".join(plan.assumptions)


@pytest.mark.parametrize(
    ("backend", "options", "copied"),
    [
        ("tensorrt_rtx", {"plugins": "auto"}, ALL),
        ("tensorrt", {"plugins": "never"}, ALL),
        ("tensorrt", {"plugins": "auto"}, NONE),
        ("tensorrt", {"plugins": "auto", "precision": "bf16"}, NONE),
    ],
)
@pytest.mark.parametrize("cache_format", [None, "int8", "fp8"])
def test_layers_copy_unless_the_plugin_takes_them(
    backend: str, options: dict[str, str], copied: CopiedPages, cache_format: CacheFormat | None
) -> None:
    assert copied_pages(config(**options), backend, decoder_spec(GEMMA, "config.json"), cache_format) == copied


@pytest.mark.parametrize(
    ("pages", "note"),
    [
        (None, ", and are read in fp16 by one layer at a time"),
        (ALL, ", and are read in fp16 by one layer at a time"),
        (NONE, "; room for one layer's caches in fp16 is counted too, though attention reads the codes"),
    ],
)
def test_a_plan_says_in_which_type_caches_in_8_bits_are_read(pages: CopiedPages | None, note: str) -> None:
    model = replace(decoder_model("tiny", decoder_spec(TINY_LLAMA), FP16), cache_dtype=INT8)
    work = workload(model, 20, 13, concurrency=1, chunk=16)
    room = "8-bit caches also need room for one step's new keys and values"
    question = PlanningQuestion(model, counted(TINY_LLAMA), work, decoder_spec(TINY_LLAMA))
    assert room + note in llm_assumptions(question, pages)


def test_linear_caches_are_not_copied() -> None:
    spec, linear = decoder_spec(GEMMA, "config.json"), config().model_copy(update={"llm": LlmOptions()})
    assert copied_pages(linear, "tensorrt", spec, None) is None


def test_a_plugin_that_the_backend_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="the backend `tensorrt_rtx` has no plugins"):
        planned((20, 13, 4), plugins="always")


def test_a_format_or_a_share_of_the_caches_is_copied_too() -> None:
    point, spec = (4, 1, 32), decoder_spec(TINY_LLAMA, "config.json")
    counts = counted(TINY_LLAMA).with_gathered_pages(ALL)
    fp8 = in_format(counts, FP16, FORMATS[1])
    assert fp8.moved_bytes.at(point) - fp8.fused_bytes.at(point) == counts.cache_bytes.at(point)
    half = tensor_share(counts, spec, Grid(2), FP16)
    assert half.moved_bytes.at(point) - half.fused_bytes.at(point) == counts.cache_bytes.at(point)
    assert half.activation_bytes(point) < counts.activation_bytes(point)


def test_a_third_of_the_layers_copies_a_third_of_the_caches() -> None:
    point, third = (4, 1, 32), CopiedPages(1, Fraction(1, 3), Fraction(1, 3))
    counts = counted(TINY_LLAMA).with_gathered_pages(third)
    assert counts.moved_bytes.at(point) - counts.fused_bytes.at(point) == 2 * 4 * 32 * PER_TOKEN // 3


COUNTS = NetworkCounts((), Multilinear(), Multilinear(), ())


@settings(max_examples=30)
@given(st.integers(2, 200), st.sampled_from([16, 32, 128]), st.integers(1, 60))
def test_as_many_sequences_fit_as_the_simulated_pages_hold(length: int, page_tokens: int, pages: int) -> None:
    """The plan's largest batch, where caches are all that counts, and sequences that the simulated pages let begin."""
    footprint = replace(Footprint(COUNTS, 0, 1, 1, 0), page_tokens=page_tokens)
    batch = 0
    while footprint.need(batch + 1, length).kv_cache <= (pages + 1) * page_tokens:
        batch += 1
    options = ReplicaOptions(MeasuredTimes(1.0), pages + 1, length + 1, pages=pages, page_tokens=page_tokens)
    memory, begun = Replica(options, Record(Traffic(*np.zeros((3, 0))))).scheduler.memory, 0
    while memory.has_pages(request := SimulatedRequest(begun, 0.0, length - 1, 1), is_alone=not begun):
        slot, *_ = memory.begin(request)
        assert memory.pages is not None
        memory.pages.grow(slot, length)  # with its next token
        begun += 1
    assert batch == begun

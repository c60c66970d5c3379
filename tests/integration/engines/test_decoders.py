"""Engines of every decoder family generate what the reference decoder generates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.decoder_cases import CASES, VARIED
from tests.decoders import model_of, relative_rms
from tests.engine_decoders import bundle_of, greedy
from tests.selection import slow_unless
from trtkit.runtime.decoder import open_execution

if TYPE_CHECKING:
    from pathlib import Path

    from tests.decoder_case import Case
    from tests.simulated_tensorrt import Simulated
    from trtkit.runtime.decoder import DecoderExecution


# By what their layers read: all tokens, the last ones, both in turn, biased by distance. The reference decoder reads
# windows of every family in test_decoder_parity.
WINDOWED = ("llama", "mistral", "gemma3", "bloom")
# By what their caches hold: heads, windows, biases, latent vectors, sinks, shared caches, and states next to them.
PAGED = ("bloom", "deepseek_v2", "gpt_oss", "falcon_h1")
# By what their networks have besides: norms, positions, gates, experts, states. `make slow` builds all families.
BUILT = {
    *VARIED, *WINDOWED, *PAGED, "bitnet", "mamba2", "lfm2", "qwen3_next", "kimi_linear", "bamba", "glm4_moe",
    "mimo_v2_flash", "gemma4", "phi3", "opt", "mpt", "xglm", "exaone4", "olmo2", "nanochat", "apertus", "afmoe",
}  # fmt: skip
PROMPTS = np.random.default_rng(0).integers(3, 60, (3, 7))


def assert_same(executions: list[DecoderExecution], steps: int) -> None:
    """Assert that two decoders answer PROMPTS alike."""
    (tokens, logits), (expected_tokens, expected) = (greedy(each, PROMPTS, steps) for each in executions)
    assert np.array_equal(tokens, expected_tokens)
    assert relative_rms(torch.from_numpy(np.array(logits)), torch.from_numpy(np.array(expected))) < 1e-5


@pytest.mark.parametrize("case", slow_unless(lambda case: case.name in BUILT, CASES), ids=str)
def test_an_engine_generates_what_the_reference_decoder_does(case: Case, gpu: Simulated, tmp_path: Path) -> None:
    """In fp16: TensorRT builds every family so, for prompts and for steps."""
    bundle = bundle_of(case, tmp_path, "fp16")
    gpu.plans.add(bundle)
    assert_same([open_execution(bundle, runtime) for runtime in ("tensorrt", "reference")], 6)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in WINDOWED], ids=str)
def test_a_window_changes_no_token(case: Case, gpu: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps read 8, 16 and 32 places of each slot, and graphs are kept for each."""
    monkeypatch.setattr("trtkit.network.input_spec._LEAST_WINDOW", 8)
    full, used = (bundle_of(case, tmp_path / kind, kv_window=kind) for kind in ("full", "used"))
    gpu.plans.add(used)
    for runtime in ("tensorrt", "reference"):
        assert_same([open_execution(used, runtime), open_execution(full, "reference")], 14)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case.name in PAGED else pytest.mark.slow) for case in CASES], ids=str
)
def test_pages_change_no_token(case: Case, gpu: Simulated, tmp_path: Path) -> None:
    """The engine and the reference decoder on paged caches, and the reference decoder on linear ones."""
    if not model_of(case).spec.attentions:
        pytest.skip("no layer attends")
    linear = bundle_of(case, tmp_path / "linear")
    paged = bundle_of(case, tmp_path / "paged", kv="paged", page_tokens=16)
    gpu.plans.add(paged)
    for runtime in ("tensorrt", "reference"):
        assert_same([open_execution(paged, runtime), open_execution(linear, "reference")], 14)

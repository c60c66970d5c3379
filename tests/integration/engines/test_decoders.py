"""Engines of every decoder family generate the reference decoder's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.selection import slow_unless
from tests.support.covering import CACHED, SEEN, STEPPED, in_covering_set_of
from tests.support.decoder_cases import CASES
from tests.support.decoders import model_of, relative_rms
from tests.support.engine_decoders import bundle_of, config_of, greedy
from trtkit.errors import BuildError
from trtkit.llm.execution import ReferenceDecoder, config_network, open_execution

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated
    from tests.support.decoder_case import Case
    from trtkit.llm.execution import DecoderExecution


PROMPTS = np.random.default_rng(0).integers(3, 60, (3, 7))
NOT_BUILT_IN_FP16 = "gemma4-no-values"
"""TensorRT-RTX 1.7.1 fails at this case in fp16, in a check of its compiler's own."""
PAST_A_PAGE = 11
"""Steps after which a slot holds more than 16 tokens: a page and a window more than before."""


def assert_same(executions: list[DecoderExecution], steps: int, limit: float = 1e-5) -> None:
    """Assert that decoders answer PROMPTS as the last one does."""
    *answers, (expected_tokens, expected) = (greedy(each, PROMPTS, steps) for each in executions)
    assert answers
    for tokens, logits in answers:
        assert np.array_equal(tokens, expected_tokens)
        assert relative_rms(torch.from_numpy(np.array(logits)), torch.from_numpy(np.array(expected))) < limit


@pytest.mark.parametrize("case", slow_unless(in_covering_set_of(CASES, STEPPED), CASES), ids=str)
def test_an_engine_generates_what_the_reference_decoder_does(case: Case, gpu: Simulated, tmp_path: Path) -> None:
    """In fp16, to a rounding of few values. Families that differ only within the network: test_decoder_parity."""
    if str(case) == NOT_BUILT_IN_FP16:
        with pytest.raises(BuildError, match="Myelin"):
            bundle_of(case, tmp_path, "fp16")
        return
    bundle = bundle_of(case, tmp_path, "fp16")
    gpu.plans.add(bundle)
    assert_same([open_execution(bundle, runtime) for runtime in ("tensorrt", "reference")], 6, limit=3e-5)


@pytest.mark.parametrize("case", slow_unless(in_covering_set_of(CASES, SEEN), CASES), ids=str)
def test_a_window_changes_no_token(case: Case, gpu: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps read 8, 16 and 32 places of each slot, and graphs are kept for each.

    test_decoder_parity reads windows of every family.
    """
    monkeypatch.setattr("trtkit.network.input_spec._LEAST_WINDOW", 8)
    full = ReferenceDecoder(config_network(config_of(case, tmp_path / "full"), "tensorrt_rtx"), len(PROMPTS))
    used = bundle_of(case, tmp_path / "used", kv_window="used")
    gpu.plans.add(used)
    assert_same([*(open_execution(used, runtime) for runtime in ("tensorrt", "reference")), full], PAST_A_PAGE)


@pytest.mark.parametrize("case", slow_unless(in_covering_set_of(CASES, CACHED), CASES), ids=str)
def test_pages_change_no_token(case: Case, gpu: Simulated, tmp_path: Path) -> None:
    """The engine and the reference decoder on paged caches, and the reference decoder on linear ones."""
    if not model_of(case).spec.attentions:
        pytest.skip("no layer attends")
    linear = ReferenceDecoder(config_network(config_of(case, tmp_path / "linear"), "tensorrt_rtx"), len(PROMPTS))
    paged = bundle_of(case, tmp_path / "paged", kv="paged", page_tokens=16)
    gpu.plans.add(paged)
    assert_same([*(open_execution(paged, runtime) for runtime in ("tensorrt", "reference")), linear], PAST_A_PAGE)

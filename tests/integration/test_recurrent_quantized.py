"""Quantized mixtures with recurrent layers: transformers' results with the same matrices; networks build."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.integration.test_quantize_families import config_of, network_logits, quantized, saved, transformers_logits
from tests.selection import slow_unless
from tests.support.decoders import builds
from tests.support.generation import case_of
from trtkit.llm.execution import config_network

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "shared_intermediate_size": 64}


@pytest.mark.parametrize(
    ("family", "method"),
    slow_unless(
        lambda family, method: (family == "kimi_linear") == (method == "int4_wo"),
        itertools.product(("qwen3_next", "granitemoehybrid", "kimi_linear"), ("int8_wo", "int4_wo")),
    ),
)
def test_a_quantized_mixture_computes_what_transformers_does(family: str, method: str, tmp_path: Path) -> None:
    case = case_of(family)
    sizes = {name: SIZES.get(name, value) for name, value in case.config.items()}
    source = saved(replace(case, config=sizes), tmp_path / "model")
    made = quantized(source, method=method)
    got, want = network_logits(made), transformers_logits(made)
    assert float((got - want).norm() / want.norm()) < 1e-5
    assert float((got - transformers_logits(source)).norm() / want.norm()) > 1e-3
    assert builds(config_network(config_of(made), "tensorrt_rtx").layers.owner)

"""Which types a choice of methods needs, and which target the command names for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trtkit.cli.quantize import _target
from trtkit.config.load import load_config
from trtkit.config.quantize import QuantizeOptions

if TYPE_CHECKING:
    from pathlib import Path


def test_types_are_those_of_all_methods_and_caches() -> None:
    options = QuantizeOptions(method="int4_awq", layers={"layers.0.*": "mxfp8", "layers.1.*": "none"}, kv_cache="int8")
    assert options.types() == {"int4", "fp8", "int8"}
    assert QuantizeOptions(method="fp8").types("int8_wo") == {"fp8", "int8"}


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("int8_wo", None, ""),
        ("fp8", None, " --target sm89"),
        ("nvfp4", None, " --target sm120"),
        ("int4_wo", None, " --target sm80"),
        ("int4_wo", "sm86", " --target sm86"),
    ],
)
def test_the_next_command_names_a_target_that_can(
    method: str, target: str | None, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "m.yaml").write_text(f"source: {{hf: model}}\nllm: {{}}\nquantize: {{method: {method}}}\n")
    assert _target(load_config(str(tmp_path / "m.yaml"), target=target), target, None) == expected.split()

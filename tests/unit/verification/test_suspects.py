"""Which nodes `--fix` keeps in fp32 next."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tests.support import reports
from trtkit.config.schema import ModelConfig
from trtkit.verification.fix import config_yaml, suspects

if TYPE_CHECKING:
    from trtkit.verification.report import LayerError


def config(**keys: Any) -> ModelConfig:
    return ModelConfig.model_validate({"source": {"onnx": "/m.onnx"}, "precision": "fp16", **keys})


def layer(node: str, error: float, *, headroom: float = 5.0, reads: tuple[str, ...] = (), **keys: Any) -> LayerError:
    base = {
        "tensor": f"{node}_out",
        "kind": "elementwise",
        "is_finite": error < math.inf,
        "headroom_bits": {"fp16": headroom, "bf16": 100.0},
        "reads": reads,
    }
    return reports.layer(node, error, **{**base, **keys})


def test_the_overflowing_node_comes_with_its_readers() -> None:
    layers = [
        layer("before", 1e-4),
        layer("square", math.inf, headroom=-3.0, reads=("before_out",)),
        layer("mean", math.inf, reads=("square_out",)),
        layer("after", 1.0, reads=("elsewhere_out",)),
    ]
    assert suspects(layers, config()) == ["square", "mean"]


def test_without_an_overflow_the_nodes_that_add_most_error_come_first() -> None:
    errors = [0.004, 0.007, 0.05, 0.052, 0.011, 0.012]
    layers = [layer(f"n{index}", error) for index, error in enumerate(errors)]
    assert suspects(layers, config()) == ["n2", "n0", "n1", "n3"]


def test_nodes_that_are_kept_and_casts_are_passed_over() -> None:
    layers = [layer("a[0]", 0.5), layer("cast", 0.9, kind="cast"), layer("b", 0.6), layer("c", 0.61, dtype="fp32")]
    assert suspects(layers, config(keep_fp32=["a[[]0]"])) == ["b"]


def test_a_repaired_config_is_written_without_defaults() -> None:
    text = config_yaml(config(name="m", keep_fp32=["norm/square"]))
    assert text == "name: m\nsource:\n  onnx: /m.onnx\nprecision: fp16\nkeep_fp32:\n- norm/square\n"

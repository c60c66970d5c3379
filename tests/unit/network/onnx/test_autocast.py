from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import helper

from tests.support import models
from trtkit.errors import ConfigError
from trtkit.files import CASTS
from trtkit.network.onnx import autocast
from trtkit.network.onnx.autocast import cast_io, cast_to, random_inputs, select_nodes
from trtkit.network.onnx.io import graph_inputs, graph_outputs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["stem/*"], ["stem/conv", "stem/relu"]),
        (["op:Gemm"], ["head/gemm"]),
        (["op:Conv", "stem/*", "pool"], ["stem/conv", "stem/relu", "pool"]),
        (["*/[cg]*"], ["stem/conv", "head/gemm"]),
        ([], []),
    ],
)
def test_patterns_select_nodes_by_name_or_operator_each_once(patterns: list[str], expected: list[str]) -> None:
    assert select_nodes(models.classifier(), patterns) == expected


def test_every_pattern_that_selects_nothing_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        select_nodes(models.classifier(), ["stem/con", "op:conv", "pool"])
    assert [problem.what for problem in caught.value.problems] == [
        "`stem/con` matches no node",
        "`op:conv` matches no node",
    ]
    assert caught.value.problems[0].fix.startswith("near: stem/conv")


def test_io_types_are_cast_just_inside_the_graph() -> None:
    model = models.classifier(batch=2)
    assert cast_io(model, "fp16") == "1 inputs, 1 outputs to fp16"
    onnx.checker.check_model(model, full_check=True)
    assert [spec.dtype for spec in graph_inputs(model) + graph_outputs(model)] == ["fp16", "fp16"]
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float16)
    got = onnx.reference.ReferenceEvaluator(model).run(None, {"images": x})[0]
    own = onnx.reference.ReferenceEvaluator(models.classifier(batch=2)).run(None, {"images": x.astype(np.float32)})[0]
    np.testing.assert_array_equal(got, own.astype(np.float16))


def test_output_that_is_also_used_inside_stays_in_its_own_type() -> None:
    nodes = [helper.make_node("Sin", ["x"], ["a"], name="sin"), helper.make_node("Cos", ["a"], ["b"], name="cos")]
    outputs = [models.tensor("a", 2), models.tensor("b", 2)]
    model = models.model(nodes, [models.tensor("x", 2)], outputs)
    cast_io(model, "fp16")
    onnx.checker.check_model(model, full_check=True)
    x = np.array([0.5, 2.0], np.float16)
    got = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(got[1], np.cos(np.sin(x.astype(np.float32))).astype(np.float16))


def test_types_that_are_right_already_are_left() -> None:
    model = models.classifier()
    before = model.SerializeToString()
    assert cast_io(model, "model") == "kept"
    assert cast_io(model, "fp32") == "0 inputs, 0 outputs to fp32"
    assert model.SerializeToString() == before


def test_random_inputs_are_the_same_every_time_and_of_their_types() -> None:
    shapes = {"ids": (2, 5), "mask": (2, 5)}
    first, second = (random_inputs(models.two_inputs(), shapes) for _ in range(2))
    assert {name: (array.dtype.name, array.shape) for name, array in first.items()} == {
        "ids": ("int64", (2, 5)),
        "mask": ("float32", (2, 5)),
    }
    assert set(first["ids"].flat) <= {0, 1}
    assert all(np.array_equal(first[name], second[name]) for name in first)


SHAPES = {"images": (2, 3, 16, 16)}


def test_a_model_is_converted_once_by_all_that_its_conversion_follows_from(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import modelopt.onnx.autocast as modelopt

    calls, convert = [], modelopt.convert_to_mixed_precision
    monkeypatch.setattr(
        modelopt, "convert_to_mixed_precision", lambda *args, **keys: calls.append(1) or convert(*args, **keys)
    )

    def cast(precision: str = "fp16", keep: tuple[str, ...] = (), shapes: dict[str, tuple[int, ...]] = SHAPES) -> bytes:
        return cast_to(models.classifier(), precision, keep, shapes, tmp_path)[0].SerializeToString(deterministic=True)

    first = cast()
    (kept,) = (own_cache / CASTS).iterdir()
    assert (cast(), len(calls)) == (first, 1)
    node = models.classifier().graph.node[0].name
    others = [cast("bf16"), cast(keep=(node,)), cast(shapes={"images": (1, 3, 16, 16)})]
    assert (len(calls), len(set(others[:2]) - {first})) == (4, 2)
    kept.write_bytes(kept.read_bytes()[:-1])
    assert (cast(), len(calls)) == (first, 5)


def test_what_was_used_least_recently_is_dropped_beyond_the_limit(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autocast, "_MOST_KEPT_BYTES", 150)
    paths = [own_cache / CASTS / name for name in "abc"]
    for age, path in zip((3, 2, 1), paths, strict=True):
        autocast._keep(path, bytes(32))  # 64 bytes with its digest
        os.utime(path, (age * -100 + 1e9,) * 2)
        if path.name == "b":
            assert autocast._kept(paths[0]) == bytes(32)  # used now
    assert [path.name for path in sorted((own_cache / CASTS).iterdir())] == ["a", "c"]


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    autocast._keep(tmp_path / "file" / "a", b"data")
    assert autocast._kept(tmp_path / "file" / "a") is None

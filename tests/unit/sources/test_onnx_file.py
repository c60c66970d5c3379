from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support import models
from trtkit.errors import SourceError
from trtkit.sources.onnx_file import external_files, read_graph, read_model

if TYPE_CHECKING:
    from pathlib import Path


def first_weight(model: onnx.ModelProto) -> np.ndarray:
    return numpy_helper.to_array(model.graph.initializer[0])


@pytest.mark.parametrize("name", ["m.onnx", "m.txt", "m.json", "model"])
def test_any_suffix_is_read_as_onnx(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(models.matmul().SerializeToString())
    assert read_model(tmp_path / name) == models.matmul()


@pytest.mark.parametrize("left_out", ["", "length", "offset"])
def test_external_data_is_read_where_the_model_says(left_out: str, tmp_path: Path) -> None:
    path = models.save_external(models.matmul(), tmp_path / "m.onnx")
    if left_out:
        models.set_external(path, **{left_out: ""})
    np.testing.assert_array_equal(first_weight(read_model(path)), np.arange(1, 13).reshape(3, 4))
    assert external_files(read_graph(path), path) == [tmp_path / "m.onnx.data"]


def test_offset_into_external_data_counts(tmp_path: Path) -> None:
    path = models.save_external(models.matmul(), tmp_path / "m.onnx")
    values = np.arange(100, 112, dtype=np.float32)
    (tmp_path / "m.onnx.data").write_bytes(bytes(64) + values.tobytes())
    models.set_external(path, offset="64")
    np.testing.assert_array_equal(first_weight(read_model(path)), values.reshape(3, 4))


def test_data_with_several_names_is_read(tmp_path: Path) -> None:
    path = models.save_external(models.matmul(), tmp_path / "m.onnx")
    (tmp_path / "also").hardlink_to(tmp_path / "m.onnx.data")  # as the build cache shares files
    assert first_weight(read_model(path))[0, 0] == 1


def test_reading_the_graph_leaves_the_data_alone(tmp_path: Path) -> None:
    path = models.save_external(models.matmul(), tmp_path / "m.onnx")
    (tmp_path / "m.onnx.data").unlink()
    graph = read_graph(path)
    assert [node.op_type for node in graph.graph.node] == ["MatMul"]
    with pytest.raises(SourceError, match="is missing"):
        external_files(graph, path)

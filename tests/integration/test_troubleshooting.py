"""Every error that the page on troubleshooting quotes is one that trtkit, or TensorRT, says."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.docs import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INT32 = "must have type FP8, FP4, Int4, Int8, or UInt8"
PAGE = DOCS / "troubleshooting.md"
QUOTED = re.findall(r"^### `(.*)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
RECORDED = ROOT / "benchmarks" / "conformance.json"  # what TensorRT said of ONNX's node tests, word by word


@cache
def texts() -> tuple[str, ...]:
    """Return every text in trtkit's code, an f-string as its parts, but for docstrings."""
    found: list[str] = []
    for path in (ROOT / "trtkit").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs)
        found += [node.value for node in constants if isinstance(node.value, str)]
    return tuple(found)


def test_the_page_quotes_errors() -> None:
    assert len(QUOTED) > 40
    assert len(set(QUOTED)) == len(QUOTED)


@pytest.mark.parametrize("quoted", [text for text in QUOTED if text != INT32])
def test_a_quoted_error_is_said(quoted: str) -> None:
    own = any(quoted in text for text in texts())
    assert own or quoted in RECORDED.read_text(encoding="utf-8").replace('\\"', '"'), "nobody says this any longer"


def test_tensorrt_refuses_a_bias_of_32_bits(refuses: Callable[..., str], tmp_path: Path) -> None:
    """As ONNX Runtime's quantizer writes biases."""
    node = helper.make_node("DequantizeLinear", ["bias", "scale"], ["wide"], name="bias")
    add = helper.make_node("Add", ["x", "wide"], ["y"])
    constants = [numpy_helper.from_array(np.arange(3, dtype=np.int32), "bias")]
    constants.append(numpy_helper.from_array(np.float32(0.5), "scale"))
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph([node, add], "biased", ports[:1], ports[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "model.onnx")
    (tmp_path / "model.yaml").write_text("source: {onnx: model.onnx}\nfold_constants: false\n", encoding="utf-8")
    assert INT32 in QUOTED
    assert INT32 in refuses("build", "--config", tmp_path / "model.yaml", "-q")


def test_every_error_has_a_meaning_below_it() -> None:
    sections = re.split(r"^##+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    errors = [section for section in sections if section.startswith("`")]
    assert len(errors) == len(QUOTED)
    assert [section for section in errors if len(section.splitlines()) < 3] == []

"""Every op's plugin through TensorRT's own Python code: registration, shapes, types, launch, kernel."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trtkit.dtypes import FP32, dtype_of
from trtkit.network.aot import compile_kernel, load_kernels
from trtkit.network.custom_op import CustomOp, Typical, load_ops
from trtkit.network.foreign import Fact
from trtkit.network.plugin import Plugin, type_of

triton = pytest.importorskip("triton")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorrt_bindings") is None or shutil.which("cc") is None,
        reason="needs TensorRT's Python bindings and a C compiler",
    ),
]
CASES = [
    (op.name, place, dtype, is_open)
    for op in load_ops().values()
    for place in range(len(op.typicals))
    for dtype in ("fp32", "fp16")
    for is_open in (0, 1)
]
Key = tuple[str, str, str, int]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Key, dict[str, Any]]:
    """What came out of TensorRT's code, by op, its typical size, data type and whether the batch was open."""
    command = [sys.executable, "-m", "tests.tensorrt_plugin", str(tmp_path_factory.mktemp("libraries"))]
    ran = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return {(line["op"], line["model"], line["dtype"], line["is_open"]): line for line in _lines(ran.stdout)}


def _case(name: str, place: int, dtype: str, is_open: int) -> tuple[CustomOp, Typical, Key]:
    """Return an op, its typical size and where that is found."""
    op = load_ops()[name]
    return op, op.typicals[place], (name, op.typicals[place].model, dtype, is_open)


def _types(op: CustomOp, typical: Typical) -> tuple[str, ...]:
    plugin: Plugin = op.part("plugin").PLUGIN
    return plugin.types_of(typical.attributes)


@pytest.mark.parametrize(("name", "place", "dtype", "is_open"), CASES)
def test_outputs_are_what_the_op_infers(found: Any, name: str, place: int, dtype: str, is_open: int) -> None:
    op, typical, key = _case(name, place, dtype, is_open)
    pairs = zip(_types(op, typical), typical.shapes, strict=False)
    wanted = op.check([Fact(type_of(types, dtype_of(dtype)), shape) for types, shape in pairs], typical.attributes)
    if (parts := getattr(typical.attributes, "parts", 1)) > 1:
        wanted = [Fact(FP32, (parts, *wanted[0].shape[:3], wanted[0].shape[3] + 2))]  # which layers merge
    assert [tuple(shape) for shape in found[key]["shapes"]] == [fact.shape for fact in wanted]
    assert found[key]["outputs"] == [fact.dtype.tensorrt for fact in wanted]


@pytest.mark.parametrize(("name", "place", "dtype", "is_open"), CASES)
def test_types_that_tensorrt_may_choose(found: Any, name: str, place: int, dtype: str, is_open: int) -> None:
    op, typical, key = _case(name, place, dtype, is_open)
    types = _types(op, typical)
    choices = next(each for each in types if "|" in each).lower().split("|")
    assert {"fp32", "fp16"} <= {*choices}
    wanted = [[type_of(each, dtype_of(data)).tensorrt for each in types] for data in choices]
    assert found[key]["combinations"] == wanted


@pytest.mark.parametrize(("name", "place", "dtype", "is_open"), CASES)
def test_the_kernel_starts_as_planned(found: Any, name: str, place: int, dtype: str, is_open: int) -> None:
    op, typical, key = _case(name, place, dtype, is_open)
    got, kernels = found[key], load_kernels(op)
    started = kernels.plan(typical.shapes, typical.attributes, triton.cdiv)
    compiled = compile_kernel(kernels.to_compile(dtype_of(dtype), started), 80)
    assert got["grid"] == list(started.grid)
    assert got["scalars"] == list(started.scalars.values())
    assert got["scalar_types"] == ["INT32"]
    assert (got["block"], got["shared"]) == (32 * started.num_warps, compiled.shared_bytes)
    assert got["is_known"] == (not is_open)
    assert got["has_kernel"]


def _lines(text: str) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_attention_to_pages_is_a_plugin_in_every_layer(tmp_path: Path) -> None:
    """A decoder's network, with the plugins that TensorRT's own Python code creates of its attention."""
    command = [sys.executable, "-m", "tests.tensorrt_plugin.decoder", str(tmp_path)]
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    families = {line["model_type"]: line for line in _lines(ran.stdout)}
    windows = {
        "llama": [0, 0],
        "gemma2": [7, 0],
        "gemma3n_text": [7, 7, 7, 7, 0, 7, 7],
        "gpt_oss": [7, 0],
        "qwen3": [0, 0],
    }
    assert families.keys() == windows.keys()
    for family, wanted in windows.items():
        decoding, prompts = (families[family]["plugins"][first::2] for first in (0, 1))  # in one packed call
        plugins, count = [*decoding, *prompts], 2 * len(wanted)
        detail = f"{len(wanted)} of {len(wanted)} layers with attention read pages in place, by a plugin"
        assert families[family]["detail"] == detail
        assert "key_positions" not in families[family]["inputs"]
        assert [plugin["attributes"]["window"] for plugin in plugins] == 2 * wanted
        assert {plugin["attributes"]["parts"] for plugin in decoding} == {4 if family == "qwen3" else 1}
        assert {plugin["attributes"]["parts"] for plugin in prompts} == {1}
        assert {plugin["attributes"]["softcap"] for plugin in plugins} == {5.0 if family == "gemma2" else 0.0}
        data = "BF16" if family in {"gemma2", "qwen3"} else "HALF"
        cached = {"gemma2": "INT8", "gpt_oss": "FP8"}.get(family, data)
        types = [*[cached] * 4, *["INT32"] * 3]
        assert {name for plugin in decoding for name in plugin["outputs"]} == {"FLOAT" if family == "qwen3" else data}
        assert {name for plugin in prompts for name in plugin["outputs"]} == {data}
        assert [[kind for _, kind, _ in plugin["inputs"][1:8]] for plugin in plugins] == [types] * count
        scales = [round(plugin["attributes"]["key_scale"], 3) for plugin in plugins]
        assert scales == ([1.0] * count if cached == data else [0.02, 0.03, 0.02, 0.03])
        assert {plugin["inputs"][8][0].endswith("attention/sinks") for plugin in plugins} == {family == "gpt_oss"}
    pools = [[name for name, *_ in plugin["inputs"][1:3]] for plugin in families["gemma3n_text"]["plugins"]]
    assert pools[10:] == 4 * [["past_key_3", "past_value_3"]]  # which these layers share

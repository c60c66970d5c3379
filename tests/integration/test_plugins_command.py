"""`trtkit plugins`, and the steps of plugins/README.md with a small custom op."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
import torch
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

torch.set_num_threads(1)
README = Path(__file__).parents[2] / "plugins" / "README.md"


def test_list_shows_ops_and_what_they_stand_for(trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("plugins", "list")
    assert ran.code == 0
    table, _, note = ran.out.partition("\n\n")
    assert re.search(r"^DeformConv2d +DeformConv, 3 more +yes +yes *$", table, re.M)
    assert note.startswith("No kernel and no plugin has run on a GPU yet.")
    details = trtkit("plugins", "list", "deform_conv").out
    assert re.search(r"^implements +DeformConv, mmcv::MMCVModulatedDeformConv2d", details, re.M)
    found = {op["name"]: op for op in trtkit("plugins", "list", "--json").json()}
    assert len(table.strip().splitlines()) == 1 + len(found)
    assert {"DeformConv2d", "MsDeformAttn", "Detr3dSample", "GridSample3d"} <= set(found)
    assert found["GridSample3d"]["forms"] == ["native", "planes", "gather"]
    assert "compiles for sm_80, sm_90, sm_120; never run on a GPU" in found["MsDeformAttn"]["kernel"]


def test_check_compares_every_implementation(trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("plugins", "check", "ms_deform_attn", "--json")
    assert ran.code == 0
    found = ran.json()
    ways = {(outcome["route"], outcome["form"]) for outcome in found}
    assert ways >= {("network API", "gather"), ("function in TensorRT", "grid_sample"), ("kernel, interpreted", "")}
    assert all(outcome["is_within"] for outcome in found)


def test_an_unknown_op_is_named(refuses: Callable[..., str]) -> None:
    assert refuses("plugins", "check", "conv").startswith("unknown custom op `conv`\nfix: known: DeformConv2d, ")


def _files_of_the_readme() -> dict[str, str]:
    """Return the files that the README's steps write, by name."""
    return dict(re.findall(r"```python\n# my_ops/scale_shift/(\w+\.py)\n(.*?)```", README.read_text(), re.S))


@pytest.fixture
def my_ops(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Follow the README: write the op's folder and name it."""
    folder = workspace / "my_ops" / "scale_shift"
    folder.mkdir(parents=True)
    for name, text in _files_of_the_readme().items():
        (folder / name).write_text(text)
    monkeypatch.setenv("TRTKIT_PLUGINS", str(folder.parent))
    return folder


def test_the_steps_of_the_readme_make_an_op(trtkit: Callable[..., Ran], my_ops: Path) -> None:
    assert sorted(path.name for path in my_ops.glob("*.py")) == ["cases.py", "lowering.py", "op.py", "reference.py"]
    ran = trtkit("plugins", "check", "scale_shift")
    assert ran.code == 0, ran.out
    assert len(re.findall(r" fp(?:32|16)  .*e[-+]\d\d ", ran.out)) == 6  # two types of three implementations


def test_a_model_with_the_foreign_node_builds(trtkit: Callable[..., Ran], my_ops: Path, workspace: Path) -> None:
    node = helper.make_node("ScaleShift", ["x"], ["y"], "neck/scale", domain="acme", scale=2.0, shift=0.5)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in ("x", "y")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    built = trtkit("build", "m.yaml", "-o", "out", "--quiet")
    assert built.code == 0, built.err
    assert "1 ScaleShift from acme::ScaleShift" in trtkit("inspect", "out").out
    assert trtkit("verify", "out").code == 0
    again = ("build", "m.yaml", "-o", "out", "--quiet", "--json")
    assert trtkit(*again).json()["origin"] == "unchanged"
    lowering = my_ops / "lowering.py"
    lowering.write_text(lowering.read_text() + "\n# changed\n")
    assert trtkit(*again).json()["origin"] == "built"


def test_a_wrong_lowering_ends_with_3(trtkit: Callable[..., Ran], my_ops: Path) -> None:
    lowering = my_ops / "lowering.py"
    lowering.write_text(lowering.read_text().replace("+ attributes.shift", "- attributes.shift"))
    ran = trtkit("plugins", "check", "scale_shift", "--json")
    assert ran.code == 3
    assert [outcome["is_within"] for outcome in ran.json()] == [False] * 6


def test_a_folder_that_is_not_there_is_named(refuses: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTKIT_PLUGINS", "no/such")
    said = refuses("plugins", "list")
    assert said == "TRTKIT_PLUGINS: no/such: no such folder\nfix: it names folders of op folders"


def test_a_folder_without_an_op_is_named(
    refuses: Callable[..., str], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workspace / "my_ops" / "empty"
    folder.mkdir(parents=True)
    (folder / "op.py").write_text("")
    monkeypatch.setenv("TRTKIT_PLUGINS", str(folder.parent))
    said = refuses("plugins", "list")
    assert said == f"{folder / 'op.py'}: no custom op in it\nfix: give it `OP = CustomOp(...)`"


def test_two_ops_of_one_name_are_an_error(refuses: Callable[..., str], my_ops: Path) -> None:
    second = my_ops.with_name("second")
    second.mkdir()
    for path in my_ops.glob("*.py"):
        (second / path.name).write_text(path.read_text())
    assert "a second custom op `ScaleShift`" in refuses("plugins", "list")

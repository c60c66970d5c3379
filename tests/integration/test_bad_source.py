"""An unreadable model is refused with the reason, and nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


@pytest.fixture
def config(workspace: Path) -> Path:
    """The two-line config of `m.onnx`, which each test writes in its own way."""
    path = workspace / "m.yaml"
    path.write_text("source:\n  onnx: m.onnx\n")
    return path


def test_missing_file_names_the_path_and_the_files_there(
    workspace: Path, config: Path, refuses: Callable[..., str]
) -> None:
    models.save(models.matmul(), workspace / "other.onnx")
    message = refuses("build", config)
    assert message.endswith(f"{workspace}/m.onnx: no such file\nfix: files there: other.onnx")


def test_folder_is_not_an_onnx_file(workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    (workspace / "m.onnx").mkdir()
    message = refuses("build", config)
    assert message == f"{workspace}/m.onnx: this is a folder, not an ONNX file\nfix: give the .onnx file in it"


@pytest.mark.parametrize("content", [b"# not a model\n" * 9, b"\x89PNG\r\n\x1a\n" + bytes(100)])
def test_other_file_is_not_an_onnx_model(
    content: bytes, workspace: Path, config: Path, refuses: Callable[..., str]
) -> None:
    (workspace / "m.onnx").write_bytes(content)
    message = refuses("build", config)
    assert message.startswith(f"{workspace}/m.onnx: not an ONNX model, or a truncated one: ")
    assert message.endswith("\nfix: export or copy it again")


def test_empty_file_holds_no_graph(workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    (workspace / "m.onnx").touch()
    message = refuses("build", config)
    assert message == (f"{workspace}/m.onnx: not an ONNX model: it holds no graph\nfix: export or copy it again")


@pytest.mark.parametrize("part", [0.3, 0.9, 0.999])
def test_truncated_model_is_refused(part: float, workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    whole = models.classifier().SerializeToString()
    (workspace / "m.onnx").write_bytes(whole[: int(part * len(whole))])
    message = refuses("build", config)
    assert message.startswith(f"{workspace}/m.onnx: not an ONNX model, or a truncated one: ")


def test_model_with_unknown_tensor_is_refused_in_the_checkers_words(
    workspace: Path, config: Path, refuses: Callable[..., str]
) -> None:
    broken = models.matmul()
    broken.graph.node[0].input[0] = "nowhere"
    models.save(broken, workspace / "m.onnx")
    message = refuses("build", config)
    assert message.startswith(f"{workspace}/m.onnx: ONNX's checker refuses the model: Nodes in a graph must be topol")
    assert message.endswith("\nfix: export it again")


def test_input_type_without_counterpart_is_named(workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    text = models.matmul()
    text.graph.input.append(models.tensor("words", 1, dtype="STRING"))
    models.save(text, workspace / "m.onnx")
    assert refuses("build", config) == (
        "type string of `words` has no counterpart in TensorRT\nfix: cast it inside the model before export"
    )


def test_missing_external_data_names_tensor_and_file(
    workspace: Path, config: Path, refuses: Callable[..., str]
) -> None:
    models.save_external(models.matmul(), workspace / "m.onnx")
    (workspace / "m.onnx.data").unlink()
    assert refuses("build", config) == (
        f"{workspace}/m.onnx: tensor `w`: external data `m.onnx.data` is missing\nfix: put it into {workspace}"
    )


@pytest.mark.parametrize("length", ["48", ""])  # the entry may be left out
def test_truncated_external_data_names_both_sizes(
    length: str, workspace: Path, config: Path, refuses: Callable[..., str]
) -> None:
    models.save_external(models.matmul(), workspace / "m.onnx")
    models.set_external(workspace / "m.onnx", length=length)
    (workspace / "m.onnx.data").write_bytes(bytes(40))
    assert refuses("build", config) == (
        f"{workspace}/m.onnx: tensor `w`: external data `m.onnx.data` is truncated: 40 bytes, 48 needed"
    )


def test_negative_offset_is_refused(workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    models.save_external(models.matmul(), workspace / "m.onnx")
    models.set_external(workspace / "m.onnx", offset="-8")
    message = refuses("build", config)
    assert message.startswith(f"{workspace}/m.onnx: tensor `w`: the place of the external data is invalid: ")
    assert "must be non-negative, got -8" in message


@pytest.mark.parametrize("location", ["/etc/hostname", "../secret", "sub/../../secret"])
def test_external_data_outside_the_folder_is_refused(
    location: str, workspace: Path, config: Path, refuses: Callable[..., str]
) -> None:
    (workspace.parent / "secret").write_bytes(bytes(48))
    models.save_external(models.matmul(), workspace / "m.onnx")
    models.set_external(workspace / "m.onnx", location=location)
    assert refuses("build", config) == (
        f"{workspace}/m.onnx: tensor `w`: external data `{location}` points outside the model's folder\n"
        "fix: move the data next to the model"
    )


def test_symlink_out_of_the_folder_is_refused(workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    models.save_external(models.matmul(), workspace / "m.onnx")
    (workspace / "m.onnx.data").rename(workspace.parent / "secret")
    (workspace / "m.onnx.data").symlink_to("../secret")
    message = refuses("build", config)
    assert "external data `m.onnx.data` points outside the model's folder" in message


def test_json_puts_the_same_error_on_stdout(workspace: Path, config: Path, trtkit: Callable[..., object]) -> None:
    ran = trtkit("build", config, "--json")
    assert ran.code == 1
    assert ran.json() == {
        "error": "SourceError", "what": "no such file", "where": f"{workspace}/m.onnx", "fix": "check the path",
    }  # fmt: skip
    assert ran.err == f"error: {workspace}/m.onnx: no such file\nfix: check the path\n"


_MODULE = """\
from pathlib import Path

import torch


def make() -> torch.nn.Module:
    Path("exported").touch()
    return torch.nn.Conv2d(3, 4, 3)
"""


@pytest.fixture
def module(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config of a PyTorch module that leaves a file `exported` when it is made."""
    (workspace / "small_convolution.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(str(workspace))
    path = workspace / "module.yaml"
    source = "{torch: {factory: 'small_convolution:make', inputs: {x: {shape: [batch, 3, 8, 8]}}, outputs: [y]}}"
    path.write_text(f"source: {source}\npreprocess: {{resize: {{exact: [8, 8]}}}}\n")
    return path


def test_a_wrong_name_of_an_input_is_refused_before_the_export(
    workspace: Path, module: Path, refuses: Callable[..., str]
) -> None:
    assert refuses("build", module, "--shapes", "images:1x3x8x8", code=2) == (
        "the profiles do not fit the model\n"
        "  --shapes images: unknown input `images`\n"
        "    fix: known: x\n"
        "fix: the model's inputs are x [batch, 3, 8, 8]"
    )
    assert not (workspace / "exported").exists()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("gone.jpg", "gone.jpg: no such file"),
        ("notes.pdf", "notes.pdf: unknown kind of input `.pdf`"),
        ("notes.jpg", "notes.jpg: not a readable image: its format is none of BMP"),
    ],
)
def test_inputs_that_cannot_be_read_are_refused_before_the_export(
    inputs: str, message: str, workspace: Path, module: Path, refuses: Callable[..., str]
) -> None:
    for name in ("notes.pdf", "notes.jpg"):
        (workspace / name).write_text("no picture")
    assert message in refuses("verify", module, "--inputs", inputs)
    assert not (workspace / "exported").exists()


def test_a_wrong_name_of_an_input_is_refused_before_a_file_is_folded(
    trtkit: Callable[..., Ran], workspace: Path
) -> None:
    models.save(models.classifier(), workspace / "m.onnx")
    refused = trtkit("build", "m.onnx", "--shapes", "picture:1x3x16x16")
    assert refused.code == 2
    assert "unknown input `picture`\n    fix: known: images" in refused.err
    assert "fold" not in refused.err


def test_pictures_that_cannot_be_read_are_refused_before_the_model_is_opened(
    workspace: Path, refuses: Callable[..., str]
) -> None:
    (workspace / "notes.jpg").write_text("no picture")
    assert refuses("run", "bundles/not-built", "notes.jpg").startswith("notes.jpg: not a readable image: its format")

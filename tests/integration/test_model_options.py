"""MODEL and the options that change its config behave the same in every command."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support import models
from tests.support.tiny_chat import save_model
from trtkit.bundle.bundle import open_bundle

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

COMMANDS = ("build", "bench", "quantize", "verify", "plan", "inspect")
MOBILENET = "mobilenet-v2"


@pytest.fixture
def model(workspace: Path) -> Path:
    models.save(models.classifier(), workspace / "m.onnx")
    return workspace / "m.onnx"


def test_an_onnx_file_is_built_by_position(model: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("build", model, "--precision", "fp16", "--shapes", "images:1x3x16x16,2x3x16x16,4x3x16x16", "-q")
    assert ran.code == 0, ran.err
    manifest = open_bundle("bundles/m").manifest
    assert manifest.config.precision == "fp16"
    assert [profile["images"].max for profile in manifest.profiles] == [(4, 3, 16, 16)]


def test_one_shape_fixes_an_input(model: Path, trtkit: Callable[..., Ran]) -> None:
    shapes = trtkit("inspect", model, "--shapes", "images:2x3x16x16", "--json").json()["profiles"][0]["images"]
    assert shapes["min"] == shapes["opt"] == shapes["max"] == [2, 3, 16, 16]


def test_set_comes_after_the_short_options(model: Path, trtkit: Callable[..., Ran]) -> None:
    config = trtkit("inspect", model, "--precision", "fp16", "--set", "precision=bf16", "--json").json()["config"]
    assert config["precision"] == "bf16"


def test_faults_name_the_option(model: Path, refuses: Callable[..., str]) -> None:
    message = refuses("build", model, "--shapes", "images:1x3", "-q", code=2)
    assert "\n  --shapes images: `images` has rank 4, the shapes have rank 2\n" in message
    message = refuses("build", model, "--shapes", "image:1x3x16x16", "-q", code=2)
    assert "\n  --shapes image: unknown input `image`\n    fix: did you mean `images`? " in message
    message = refuses("build", model, "--shapes", "images:4x3x16x16,2x3x16x16,8x3x16x16", "-q", code=2)
    assert "--shapes images:4x3x16x16,2x3x16x16,8x3x16x16: " in message
    message = refuses("build", "llama", "--shapes", "x:1", "-q", code=2)
    assert "--shapes: does not apply to a decoder-only LLM" in message


def test_config_is_the_same_as_the_position(model: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("build", "-c", model, "-q").code == 0
    for words in ((model, "--config", model), ()):
        ran = trtkit("build", *words)
        assert ran.code == 2
    assert "Missing argument 'MODEL'" in ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_suggests_a_name(command: str, workspace: Path, refuses: Callable[..., str]) -> None:
    words = ("--method", "int8") if command == "quantize" else ()
    assert f"did you mean `{MOBILENET}`" in refuses(command, "mobilnet-v2", *words, code=2)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_that_a_folder_is_no_model(
    command: str, workspace: Path, refuses: Callable[..., str]
) -> None:
    (workspace / "empty").mkdir()
    words = ("--method", "int8") if command == "quantize" else ()
    assert refuses(command, "empty", *words, code=2 if command == "plan" else 1).startswith("empty: ")


def test_a_bundle_is_not_changed(model: Path, trtkit: Callable[..., Ran], refuses: Callable[..., str]) -> None:
    assert trtkit("build", model, "-q").code == 0
    for command in ("verify", "bench", "inspect"):
        ran = trtkit(command, "bundles/m", "--precision", "fp16")
        assert (ran.code, "a bundle is already built" in ran.err) == (2, True)
    assert "a bundle is already built" in refuses("plan", "bundles/m", "--shapes", "images:1x3x16x16", code=2)
    assert refuses("build", "bundles/m").startswith("bundles/m: a bundle is already built\nfix: give its config")


def test_a_model_is_built_where_its_bundle_is_needed(
    model: Path, trtkit: Callable[..., Ran], refuses: Callable[..., str]
) -> None:
    np.savez("a.npz", images=np.zeros((1, 3, 16, 16), np.float32))
    for command in ("generate", "chat", "serve"):
        message = refuses(command, model, *(["Hi"] if command == "generate" else []), code=2)
        assert message == f"`{model}` is not a language model\nfix: `run` and `deploy` are for other models"
    assert refuses("run", "llama", "a.npz", code=2) == "`llama` is a language model\nfix: see `trtkit generate`"
    ran = trtkit("run", model, "a.npz")
    assert (ran.code, "building it with defaults" in ran.err) == (0, True)
    assert trtkit("build", model, "--precision", "fp16", "-q").code == 0
    ran = trtkit("run", model, "a.npz")
    assert ran.code == 0
    assert f"note: `bundles/m` has other settings than `{model}`; `trtkit build {model}` would replace it\n" in ran.err
    before = open_bundle("bundles/m").manifest
    models.save(models.classifier(seed=7), model)
    assert trtkit("run", model, "a.npz").code == 0
    after = open_bundle("bundles/m").manifest
    assert (after.config.precision, after.build_key != before.build_key) == ("fp16", True)
    assert "did you mean `bundles/m`?" in refuses("run", "bundles/mm", "a.npz")
    other = Path("other")
    other.mkdir()
    shutil.copy(model, other)
    assert "`bundles/m` was built from another model" in refuses("run", "other/m.onnx", "a.npz")


def test_a_models_own_limits_are_no_other_settings(trtkit: Callable[..., Ran], workspace: Path) -> None:
    save_model(workspace / "chat")  # of fewer positions than slots have by default
    words = ("generate", "./chat", "Hi", "--max-tokens", 1)
    assert "building it with defaults" in trtkit(*words).err
    ran = trtkit(*words)
    assert (ran.code, "note:" in ran.err) == (0, False)


def test_old_names_work_with_a_note(model: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("build", model, "--out", "old", "-q")
    assert (ran.code, ran.err) == (0, "note: `--out` is now `--output`; the old name will be removed\n")
    assert Path("old/manifest.json").is_file()
    words = ("--unverified", "--batch", "1", "--min-runs", "5", "--min-seconds", "0", "-q")
    ran = trtkit("bench", "old", *words, "--out=old.json")
    assert (ran.code, ran.err) == (
        0,
        "note: `--out` is now `--save`; the old name will be removed\n",
    )
    ran = trtkit("config", "schema", "-o", "schema.json")
    assert (ran.code, ran.err) == (0, "note: `-o` is now `--save`; the old name will be removed\n")
    assert Path("schema.json").is_file()


def test_usage_errors_are_json_too(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("build", "--frobnicate", "--json")
    assert ran.code == 2
    assert ran.json() == {
        "error": "NoSuchOption",
        "what": "No such option '--frobnicate'.",
        "where": "trtkit build",
        "fix": "see `trtkit build --help`",
    }
    assert "No such option" in ran.err

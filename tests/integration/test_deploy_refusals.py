"""`trtkit deploy` refuses what a repository cannot contain, and says what it can."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.deployments import deployed
from trtkit.deployment.triton.repository import writing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

    Trtkit = Callable[..., Ran]


STEPS = ["tiny_preprocess", "tiny_engine", "tiny_postprocess", "tiny"]


@pytest.fixture
def bundle(classifier_bundle: Path, workspace: Path) -> Path:
    """A copy of the bundle, the tests' own."""
    return shutil.copytree(classifier_bundle, workspace / "tiny")


def test_another_interface_needs_another_name(bundle: Path, trtkit: Trtkit, refuses: Callable[..., str]) -> None:
    deployed(trtkit, bundle, "--as", "tensors")
    message = refuses("deploy", bundle, "--repository", "models", "--as", "tensors", "--set", "max_batch_size=0")
    assert message == (
        "models/tiny: a new version must keep the interface of the last: input `images` TYPE_FP32 [3, 16, 16] becomes "
        "`images` TYPE_FP32 [-1, 3, 16, 16]; output `logits` TYPE_FP32 [5] becomes `logits` TYPE_FP32 [-1, 5]; "
        "max_batch_size 4 becomes 0\nfix: deploy it under another `--name`"
    )


def test_a_folder_of_somebody_else_is_left_alone(bundle: Path, workspace: Path, refuses: Callable[..., str]) -> None:
    (workspace / "models/tiny_engine/1").mkdir(parents=True)
    (workspace / "models/tiny_engine/config.pbtxt").write_text('backend: "onnxruntime"\n')
    message = refuses("deploy", bundle, "--repository", "models")
    assert message.startswith("models/tiny_engine: already exists and was not written by trtkit\nfix: ")


@pytest.mark.parametrize("name", ["../tiny", "a/b", "..", ".hidden", "tiny ", "x" * 129, "-x"])
def test_names_stay_inside_the_repository(name: str, bundle: Path, refuses: Callable[..., str]) -> None:
    message = refuses("deploy", bundle, "--repository", "models", f"--name={name}")
    assert message.startswith(f"--name: invalid model name `{name}`: use letters")


def test_a_changed_plan_is_refused_before_anything_is_written(bundle: Path, refuses: Callable[..., str]) -> None:
    plan = bundle / "engines/tiny.plan"
    plan.unlink()
    plan.write_bytes(b"another plan")
    message = refuses("deploy", bundle, "--repository", "models")
    assert message.startswith(f"{plan}: the file has changed since the build: SHA-256 mismatch")


@pytest.mark.parametrize("place_of_link", ["notes.txt", "engines/other.plan"])
def test_links_in_a_bundle_are_refused(place_of_link: str, bundle: Path, refuses: Callable[..., str]) -> None:
    (bundle / place_of_link).symlink_to("/etc/hostname")
    message = refuses("deploy", bundle, "--repository", "models")
    assert message.startswith(f"{bundle / place_of_link}: is a symbolic link\nfix: ")


def test_a_path_out_of_the_bundle_is_refused(bundle: Path, refuses: Callable[..., str]) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["engines"][0]["path"] = manifest["stages"][0]["engine"] = "../outside.plan"
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    message = refuses("deploy", bundle, "--repository", "models")
    assert "the manifest lists a file outside the bundle" in message


def test_links_in_a_repository_are_refused(
    bundle: Path, workspace: Path, trtkit: Trtkit, refuses: Callable[..., str]
) -> None:
    deployed(trtkit, bundle, "--as", "tensors")
    (workspace / "models/tiny/1/bundle/extra").symlink_to("/etc")
    message = refuses("deploy", bundle, "--repository", "models", "--as", "tensors")
    assert message.startswith("models/tiny/1/bundle/extra: is a symbolic link\nfix: ")


def test_of_two_deployments_at_once_one_says_busy(bundle: Path, workspace: Path, refuses: Callable[..., str]) -> None:
    with writing(workspace / "models"):
        message = refuses("deploy", bundle, "--repository", "models")
    assert message == (
        f"{workspace}/models: another deployment is writing this repository\n"
        "fix: wait for it, or choose another `--repository`"
    )
    assert not (workspace / "models").exists()


def test_a_repository_that_cannot_be_written_is_told(
    bundle: Path, workspace: Path, refuses: Callable[..., str]
) -> None:
    (workspace / "models").write_text("")
    message = refuses("deploy", bundle, "--repository", "models")
    assert message == "models: is not a folder\nfix: choose another `--repository`"


def test_a_bundle_that_was_found_wrong_is_refused(bundle: Path, refuses: Callable[..., str]) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    about = {"verified_at": "", "trtkit": "", "reference": ""}
    manifest["verify"] = {"passed": False, "verdict": "FAIL (wrong answers)", **about}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    message = refuses("deploy", bundle, "--repository", "models")
    assert message.startswith(f"{bundle}: the bundle did not pass verification: FAIL (wrong answers)\nfix: ")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--set", "queue.delay=3"], 2, "--set queue.delay=3"),
        (["--set", "instances=0"], 2, "--set instances=0"),
        (["--set", "gpus=[0,0]"], 2, "`gpus` must be a list of distinct numbers, 0 or greater"),
        (["--set", "max_batch_size=9"], 1, "`max_batch_size` is 9; the largest batch of the engine's profiles is 4"),
        (["--recognizer", "tiny"], 1, "`tiny` is not a text detector: it has no output map [N, 1, H, W] of an image"),
        (["--recognizer", "tiny", "--as", "tensors"], 1, "`--recognizer` needs image inputs"),
        (["--recognizer", "lost"], 1, "lost: no such bundle"),
    ],
)
def test_wrong_options_are_told(
    words: list[str], code: int, said: str, bundle: Path, refuses: Callable[..., str]
) -> None:
    assert said in refuses("deploy", bundle, "--repository", "models", *words, code=code)


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("queue.max_size=64", "set `llm.max_queue`"),
        ("queue.delay_us=5", "leave it out: requests join the batch under way at once"),
        ("max_batch_size=4", "set `llm.slots`"),
        ("cuda_graphs=true", "leave it out: an engine's decode steps are captured anyway"),
        ("top_k=3", "leave it out: clients send `top_k` with a request"),
        ("response_cache=true", "leave it out: answers come in pieces, which Triton does not cache"),
    ],
)
def test_options_that_a_language_model_lacks_are_refused(
    option: str, fix: str, tiny_bundle: Path, refuses: Callable[..., str]
) -> None:
    said = refuses("deploy", tiny_bundle, "--repository", "models", "--set", option)
    assert said == f"--set {option.partition('=')[0]}: does not apply to language models\nfix: {fix}"


def test_options_of_a_language_model_are_for_one(bundle: Path, refuses: Callable[..., str]) -> None:
    said = refuses("deploy", bundle, "--repository", "models", "--set", "llm.max_queue=64")
    assert said == "--set llm: the bundle does not hold a language model\nfix: leave it out"

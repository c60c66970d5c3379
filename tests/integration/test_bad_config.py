"""Errors in configs, profiles and targets exit with code 2, before TensorRT loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import models
from trtkit.extras import install

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


@pytest.fixture
def config(workspace: Path) -> Path:
    """The two-line config of a classifier [batch, 3, 16, 16]."""
    models.save(models.classifier(), workspace / "m.onnx")
    path = workspace / "m.yaml"
    path.write_text("source:\n  onnx: m.onnx\n")
    return path


def test_unknown_key_is_shown_with_file_and_line(config: Path, refuses: Callable[..., str]) -> None:
    config.write_text("source:\n  onnx: m.onnx\nprecison: fp16\n")
    message = refuses("build", config, code=2)
    assert message.startswith(
        f"invalid config `{config}`\n  {config}:3: unknown key `precison`\n    fix: did you mean `prec"
    )


def test_profile_that_does_not_fit_shows_every_fault(config: Path, refuses: Callable[..., str]) -> None:
    profiles = "profiles=[{bach: [1, 2, 3], images.2: 16, image: [[1], [1], [1]], images.1: [3, 3, 3]}]"
    assert refuses("build", config, "--set", profiles, code=2) == (
        "the profiles do not fit the model\n"
        "  profiles.0.bach: unknown input or dimension `bach`\n"
        "    fix: did you mean `batch`? known: batch, images\n"
        "  profiles.0.images.2: `images.2` is static: its size is 16\n"
        "    fix: remove it, or export the model dynamic\n"
        "  profiles.0.image: unknown input `image`\n"
        "    fix: did you mean `images`? known: images\n"
        "  profiles.0.images.1: `images.1` is static: its size is 3\n"
        "    fix: remove it, or export the model dynamic\n"
        "fix: the model's inputs are images [batch, 3, 16, 16]"
    )


def test_profile_with_min_above_opt_is_refused(config: Path, refuses: Callable[..., str]) -> None:
    message = refuses("build", config, "--set", "profiles.0.batch=[8, 4, 32]", code=2)
    where = "--set profiles.0.batch=[8, 4, 32]"
    assert (
        message == f"invalid config `{config}`\n  {where}: profiles.0.batch: min <= opt <= max does not hold: 8, 4, 32"
    )


def test_dimension_without_a_range_is_named(workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    models.save(models.question_marks(), workspace / "m.onnx")
    assert refuses("build", config, code=2) == (
        "the profiles do not fit the model\n"
        "  profiles.0: dimension `x.2` (axis 2 of `x`) has no range\n"
        "    fix: add `x.2: [min, opt, max]` to the profile, or give sizes as in `--shapes x:1x3x640x640`\n"
        "  profiles.0: dimension `x.3` (axis 3 of `x`) has no range\n"
        "    fix: add `x.3: [min, opt, max]` to the profile, or give sizes as in `--shapes x:1x3x640x640`\n"
        "fix: the model's inputs are x [x.0, 3, x.2, x.3]"
    )


def test_unknown_keep_fp32_patterns_are_named_with_nodes_near_them(config: Path, refuses: Callable[..., str]) -> None:
    words = ["--set", "precision=fp16", "--set", "keep_fp32=[head/gem, 'op:Softmax', pool]"]
    message = refuses("build", config, *words, code=2)
    assert message.startswith("invalid config\n  keep_fp32: `head/gem` matches no node\n    fix: near: head/gemm")
    assert "keep_fp32: `op:Softmax` matches no node" in message
    assert "`pool` matches" not in message
    assert message.endswith("fix: `trtkit inspect MODEL --layers` lists the names")


def test_unknown_target_lists_the_known_ones(config: Path, refuses: Callable[..., str]) -> None:
    message = refuses("build", config, "--target", "h100", code=2)
    assert message.startswith("unknown target `h100`\n  known targets: any, local-gpu, sm120, sm121, sm75, sm80")


def test_fp8_model_is_refused_where_the_target_lacks_it(
    workspace: Path, config: Path, refuses: Callable[..., str]
) -> None:
    models.save(models.fp8(), workspace / "m.onnx")
    fix = "build with a target of SM89 or newer, such as `--target sm89`"
    assert refuses("build", config, "--target", "sm80", "--quiet", code=2) == (
        f"the target cannot run the network\n  target: type fp8 needs SM89: not on sm80\n    fix: {fix}"
    )


def test_missing_tensorrt_names_the_extra_to_install(config: Path, refuses: Callable[..., str]) -> None:
    message = refuses("build", config, "--target", "local-gpu")
    assert message.startswith("the `tensorrt` backend does not load: No module named 'tensorrt'")
    assert message.endswith(f"fix: {install('tensorrt')}")


def test_unknown_option_is_a_usage_error(trtkit: Callable[..., Ran], workspace: Path) -> None:
    ran = trtkit("build", "m.yaml", "--ouput", "b")
    assert ran.code == 2
    assert "No such option" in ran.err
    assert "--output" in ran.err

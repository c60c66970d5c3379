"""Refusals of `trtkit plan` and their texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("llama-2-7b", "--gpu", "h210"), "--gpu: unknown GPU `h210`\nfix: did you mean `h20"),
        (
            ("llama-2-7b", "--input-len", 4000, "--output-len", 200),
            "--input-len, --output-len: 4000 + 200 = 4200 tokens exceed the model's limit of 4096\nfix: lower them",
        ),
        (("llama2-7b",), "no bundle, config or known model is called `llama2-7b`\nfix: did you mean `llama-2-7b`"),
        (
            ("llama-2-7b", "--price", "cheap"),
            "--price: `cheap` is not a price\nfix: write it as 2.5, or for one GPU as",
        ),
        (("llama-2-7b", "--price", "-1"), "--price: `-1` is not a price"),
        (("llama-2-7b", "--gpu", "l4", "--price", "h200=3"), "--price: `h200` is not a GPU of this plan"),
        (("llama-2-7b", "--gpu", "t4", "--disk", "2"), "--disk: a disk without a host\nfix: give the host's memory"),
        (
            ("llama-2-7b", "--gpu", "t4", "--host-memory", "64", "--disk", "2/x"),
            "--disk: `2/x` is not the speed of a disk\nfix: write READ or READ/WRITE in GB/s, such as 2/1",
        ),
        (("llama-2-7b", "--set", "precision=fp2"), "--set precision: precision: 'fp2' is not allowed"),
    ],
)
def test_bad_input_is_refused(words: tuple[Any, ...], said: str, refuses: Callable[..., str]) -> None:
    assert said in refuses("plan", *words, code=2)


def test_wrong_usage_is_clicks(trtkit: Callable[..., Ran]) -> None:
    for words, said in ((("llama-2-7b", "--concurrency", 0), "0 is not in the range x>=1"), ((), "Missing argument")):
        ran = trtkit("plan", *words)
        assert ran.code == 2
        assert said in ran.err


def test_vision_models_take_no_lengths(workspace: Path, refuses: Callable[..., str]) -> None:
    models.save(models.classifier(), workspace / "m.onnx")
    said = refuses("plan", "m.onnx", "--input-len", 5, "--output-len", 6, code=2)
    assert "--input-len and --output-len: `m` is not a language model and takes no prompts" in said


def test_folder_without_config_and_page_that_cannot_be_written(
    workspace: Path, refuses: Callable[..., str], trtkit: Callable[..., Ran]
) -> None:
    (workspace / "empty").mkdir()
    assert "has neither `manifest.json` nor `config.json`" in refuses("plan", "empty", code=2)
    page = ("--html", "missing/plan.html", "--gpu", "l4", "-q")
    assert "cannot write `missing/plan.html`: no such folder" in trtkit("plan", "llama-2-7b", *page).err


def test_unknown_family_and_missing_weights_folder_say_so(workspace: Path, refuses: Callable[..., str]) -> None:
    (workspace / "config.json").write_text(json.dumps({"model_type": "lama"}))
    assert "unknown `model_type` `lama`" in refuses("plan", "config.json", code=1)
    said = refuses("plan", "gpt2", "--set", "source.hf=nowhere", code=1)
    assert said.endswith("no such file\nfix: give a folder with the model's config.json: `--set source.hf=FOLDER`")

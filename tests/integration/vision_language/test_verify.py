"""`trtkit verify` on vision-language models: both networks against transformers' whole model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.tiny_vlm import LENGTH, VLMS, Vlm, bundle_of, folder_of, picture

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

    Run = Callable[..., Ran]
    Refuses = Callable[..., str]

NAMES = ("llava", "smolvlm", "internvl", "gemma3", "qwen2.5-vl", "qwen3-vl", "qwen3.5")
some = pytest.mark.parametrize("vlm", [VLMS[name] for name in NAMES], ids=str)


def copied(vlm: Vlm, folder: Path) -> Path:
    return Path(shutil.copytree(bundle_of(vlm), folder / "bundle"))


@some
def test_a_bundle_is_right(vlm: Vlm, trtkit: Run, tmp_path: Path) -> None:
    ran = trtkit("verify", copied(vlm, tmp_path), "--json")
    assert ran.code == 0, ran.err
    found = ran.json()
    assert found["passed"]
    assert found["task"]["agreement"] == found["top_1_agreement"] == 1.0
    assert {name: output["relative_rms_error"] <= 1e-5 for name, output in found["outputs"].items()} == {
        "soft_tokens": True,
        "logits": True,
    }
    assert len(found["samples"]) == 5
    names = [corner["name"] for corner in found["corners"]]
    assert names[:6] == [*(f"chunks of 5: {name}" for name in found["samples"][:4]), "chunks of 1", "chunks of 5"]
    assert names[6:8] == ["slots of different lengths", "decoding and prompts in one call"][: len(names) - 6]


def write_config(vlm: Vlm, length: int = LENGTH, more: str = "") -> None:
    """Write `m.yaml` for the model, with slots of `length` tokens."""
    llm = f"llm: {{max_sequence_length: {length}, max_prefill_length: 32}}"
    Path("m.yaml").write_text(f"source: {{hf: {folder_of(vlm)}}}\n{llm}\n{more}")


def test_a_config_on_images_of_ones_own(trtkit: Run, workspace: Path) -> None:
    picture(40, 70).save(workspace / "photo.png")
    write_config(VLMS["qwen2-vl"])
    ran = trtkit("verify", "m.yaml", "--inputs", "photo.png")
    assert ran.code == 0, ran.err
    assert "photo.png, text alone" in ran.out
    assert "soft_tokens" in ran.out


@pytest.mark.usefixtures("workspace")
def test_ranks_share_the_tokens_of_images(trtkit: Run) -> None:
    """Vectors of images, those that are added after the first layers, and their positions: of a share of the tokens."""
    write_config(VLMS["qwen3-vl"], more="precision: fp32\nparallel: {tensor: 2, sequence: true}\n")
    ran = trtkit("verify", "m.yaml", "--json")
    assert ran.code == 0, ran.err
    errors = {corner["name"]: corner["relative_rms_error"] for corner in ran.json()["corners"]}
    assert "decoding and prompts in one call" in errors
    assert 0 < errors["2 ranks and one"] <= 1e-5
    assert ran.json()["outputs"]["logits"]["relative_rms_error"] <= 1e-5


@pytest.mark.usefixtures("workspace")
def test_a_network_out_of_tolerance(trtkit: Run) -> None:
    write_config(VLMS["llava"], more="verify: {max_relative_rms_error: 1.0e-9}\n")
    ran = trtkit("verify", "m.yaml", "--json", "--no-corners")
    assert ran.code == 3
    assert not ran.json()["passed"]


@pytest.mark.usefixtures("workspace")
def test_images_that_do_not_fit_a_slot(refuses: Refuses) -> None:
    write_config(VLMS["llava"], length=40)
    said = refuses("verify", "m.yaml")
    assert "64 x 64: the prompt has" in said
    assert "fix: raise `llm.max_sequence_length`, or give smaller images" in said

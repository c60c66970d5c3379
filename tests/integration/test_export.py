"""`trtkit export`: output, refusals, and models that trtkit quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support import tiny_chat, tiny_llm
from tests.support.docs import DOCS, run_page
from tests.support.tiny_llm import config_of
from trtkit.builder.export import export_model
from trtkit.builder.quantize import quantize_model
from trtkit.config.load import find_model_config
from trtkit.jobs.runner import new_runner
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import open_hf_folder, open_trtllm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a text, and a config that names both."""
    return tiny_llm.save_to_quantize(tmp_path_factory.mktemp("export")).parent


@pytest.mark.parametrize("method", ["int8", "int8_sq", "int4_awq", "int4_wo", "fp8", "nvfp4"])
def test_what_trtkit_quantized_is_read_back_to_the_bit(method: str, models: Path, tmp_path: Path) -> None:
    quantize_model(config_of(models, f"quantize.method={method}"), tmp_path / "quantized", new_runner())
    config = find_model_config(str(tmp_path / "quantized"), ("precision=fp32",))
    export_model(config, "tensorrt-llm", tmp_path / "out", new_runner(), requantize=method == "fp8")
    want, got = open_hf_folder(tmp_path / "quantized").checkpoint, open_trtllm(tmp_path / "out").checkpoint
    matrices = [name for name in want if isinstance(want[name], QuantizedMatrix)]
    assert len(matrices) > 10
    for name in set(want) & set(got):
        one, other = want[name], got[name]
        if isinstance(one, QuantizedMatrix) and isinstance(other, QuantizedMatrix):
            if method == "fp8" and any(f"{part}_proj" in name for part in "qkv"):
                continue
            np.testing.assert_array_equal(other.codes, one.codes, err_msg=name)
            np.testing.assert_array_equal(other.weights(), one.weights(), err_msg=name)
            assert (other.inputs is None, other.format) == (one.inputs is None, one.format)
        else:
            np.testing.assert_array_equal(np.asarray(other), np.asarray(one), err_msg=name)


def test_the_command_says_what_it_wrote(models: Path, tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    words = ("export", models / "model", "--to", "tensorrt-llm", "-o", tmp_path / "out", "--precision", "fp16")
    ran = trtkit(*words, "--json")
    assert ran.code == 0, ran.err
    fields = ran.json()
    steps = [step["name"] for step in fields.pop("steps")]
    size = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert (steps, fields) == (
        ["source", "checkpoint"],
        {
            "path": str(tmp_path / "out"),
            "architecture": "LlamaForCausalLM",
            "kind": "float16",
            "ranks": 1,
            "size_bytes": size,
        },
    )
    ran = trtkit(*words, "--quiet", "--set", "parallel.tensor=2")
    size = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert ran.out == f"exported {tmp_path / 'out'}: float16, {size / 2**20:.1f} MiB\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "rank0.safetensors",
        "rank1.safetensors",
    ]


def test_vision_models_are_refused(refuses: Callable[..., str]) -> None:
    assert refuses("export", "efficientnet-lite0", "--to", "tensorrt-llm", code=2) == (
        "the model cannot be exported\n  source: only decoder-only language models can be exported"
    )


def test_other_formats_are_refused(trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("export", "llama", "--to", "tensorrt-lm")
    assert ran.code == 2
    assert "'tensorrt-lm' is not 'tensorrt-llm'" in ran.err or "tensorrt-llm" in ran.err


def test_commands_of_the_page_run(tmp_path: Path) -> None:
    """A small Llama stands for the shipped one."""
    tiny_chat.save_model(tmp_path / "small")
    run_page(DOCS / "export.md", tmp_path, {"export llama": "export small"})

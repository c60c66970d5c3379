"""A tiny Llama is quantized by every method, built, verified and generates; refusals say why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import tiny_llm
from tests.support.decoders import read_network
from tests.support.tiny_llm import config_of
from trtkit.builder.quantize import quantize_model
from trtkit.jobs.runner import new_runner
from trtkit.llm.execution import Call, ReferenceDecoder, config_network
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.huggingface.model import causal_lm
from trtkit.verification.decoder_reference import round_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

IDS = np.random.default_rng(0).integers(6, 320, 48)
FAST = ["int8_wo", "int8_sq", "int4_gptq", "nvfp4"]
OTHERS = ["int8", "int4_wo", "int4_awq", "fp8", "fp8_pc", "mxfp8"]
METHODS = [*FAST, *(pytest.param(method, marks=pytest.mark.slow) for method in OTHERS)]
ROUNDS_INPUTS = {"int8", "int8_sq", "fp8", "fp8_pc", "nvfp4", "mxfp8"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a text, and a config that names both."""
    return tiny_llm.save_to_quantize(tmp_path_factory.mktemp("quantize")).parent


@pytest.fixture(scope="module")
def quantized(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Quantize the model once for each way that is asked for; return the checkpoint's folder."""
    made: dict[tuple[str, ...], Path] = {}

    def make(method: str, *overrides: str) -> Path:
        key = (method, *overrides)
        if key not in made:
            out = tmp_path_factory.mktemp("made") / "out"
            quantize_model(config_of(models, f"quantize.method={method}", *overrides), out, new_runner())
            made[key] = out
        return made[key]

    return make


def decoder_of(models: Path, folder: Path, widen: str | None = None) -> ReferenceDecoder:
    config = config_of(models, f"source.hf={folder}", "quantize=null")
    return ReferenceDecoder(read_network(config_network(config, "tensorrt_rtx")), 2, widen)


def logits_of(decoder: ReferenceDecoder, ids: np.ndarray, start: int = 0) -> torch.Tensor:
    return decoder.forward(Call(0, ids[None], np.array([start]), np.array([len(ids)])))[0].clone()


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("method", METHODS)
def test_the_network_computes_what_transformers_does_with_the_dequantized_weights(
    method: str, models: Path, quantized: Callable[..., Path]
) -> None:
    """A value that falls between two codes is rounded either way, and moves its token and those after it."""
    folder = quantized(method)
    reference = causal_lm(open_hf_folder(folder))
    assert bool(round_inputs(reference, open_hf_folder(folder))) == (method in ROUNDS_INPUTS)
    with torch.inference_mode():
        want = reference(torch.from_numpy(IDS)[None]).logits[0]
        plain = causal_lm(open_hf_folder(models / "model"))(torch.from_numpy(IDS)[None]).logits[0]
    got = logits_of(decoder_of(models, folder), IDS)
    assert error(got, want) < (0.05 if method in ROUNDS_INPUTS else 1e-5)
    assert float(((got - want).norm(dim=1) / want.norm(dim=1)).median()) < 1e-5
    assert 1e-4 < error(got, plain) < 1.0  # GPTQ of a random model fits its text, not random tokens


@pytest.mark.parametrize("method", METHODS)
def test_layers_hold_the_bits_that_their_method_names(method: str, quantized: Callable[..., Path]) -> None:
    source = open_hf_folder(quantized(method))
    matrix: Any = source.checkpoint["model.layers.0.mlp.up_proj.weight"]
    assert isinstance(matrix, QuantizedMatrix)
    kinds = {"int4_wo": "int4", "int4_awq": "int4", "int4_gptq": "int4", "fp8_pc": "fp8", "nvfp4": "fp4"}
    assert matrix.format == kinds.get(method, method.removesuffix("_wo").removesuffix("_sq"))
    assert (matrix.inputs is not None) == (method in ROUNDS_INPUTS)
    blocks = {"int4": 128, "fp4": 16, "mxfp8": 32}
    assert matrix.block == blocks.get(matrix.format, 0)
    assert not isinstance(source.checkpoint["model.embed_tokens.weight"], QuantizedMatrix)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_quantized_caches_give_the_same_however_a_prompt_is_cut(
    kind: str, models: Path, quantized: Callable[..., Path]
) -> None:
    folder = quantized("none", f"quantize.kv_cache={kind}")
    whole = logits_of(decoder_of(models, folder, "fp64"), IDS)
    decoder = decoder_of(models, folder, "fp64")
    ends = (7, 8, 30, 48)
    parts = [logits_of(decoder, IDS[a:b], a) for a, b in zip((0, *ends), ends, strict=False)]
    assert error(torch.cat(parts), whole) < 1e-6
    plain = logits_of(decoder_of(models, models / "model", "fp64"), IDS)
    assert 1e-4 < error(whole, plain) < 0.1


def test_build_quantizes_and_the_bundle_keeps_the_checkpoint(
    models: Path, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    asked = ["--set", "quantize.kv_cache=int8", "--set", "precision=fp16"]
    ran = trtkit("build", models / "m.yaml", "-o", "b", *asked, "--json")
    assert ran.code == 0, ran.err
    manifest = ran.json()["manifest"]
    linear = 2 * (128 * 128 * 2 + 64 * 128 * 2 + 3 * 128 * 256)
    assert manifest["totals"]["weight_bytes"]["int8"] == linear
    assert manifest["decoder"]["kv_bytes_per_token"] == 2 * 2 * 2 * 32
    assert {Path(file["path"]).name for file in manifest["quantized"]} >= {"model.safetensors", "config.json"}
    verified = trtkit("verify", "b", "--json")
    assert verified.code == 0, verified.err
    prompts = workspace / "p.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("the quick", "the lazy dog, and")))
    words = ["--max-tokens", 6, "--json"]
    together = trtkit("generate", "b", "--prompts", prompts, *words)
    assert together.code == 0, together.err
    alone = trtkit("generate", "b", "--prompt", "the quick", *words)
    first = next(answer for line in together.out.splitlines() if (answer := json.loads(line))["id"] == 0)
    assert first["token_ids"] == alone.json()["token_ids"]
    weights = workspace / "b/quantized/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert "SHA-256 mismatch" in trtkit("verify", "b").err


def test_layers_may_have_methods_of_their_own(quantized: Callable[..., Path]) -> None:
    layers = 'quantize.layers={"*.mlp.down": fp8, "layers.1.*": none}'
    source = open_hf_folder(quantized("int4_wo", layers, "quantize.exclude=[layers.0.attention.*]"))
    formats = {
        name.removeprefix("model.layers."): matrix.format
        for name in source.checkpoint
        if isinstance(matrix := source.checkpoint[name], QuantizedMatrix)
    }
    assert formats == {
        "0.mlp.gate_proj.weight": "int4",
        "0.mlp.up_proj.weight": "int4",
        "0.mlp.down_proj.weight": "fp8",
    }


BAD = [
    (["--method", "int9"], 2, "quantize.method"),
    (["--method", "as_stored"], 2, "nothing to quantize"),
    (["--method", "as_stored", "--exclude", "a", "--kv-cache", "fp8"], 2, "remove `exclude` and `kv_cache`, or use"),
    (["--method", "int8", "--set", "quantize.calibration.data=null"], 1, "needs calibration text"),
    (["--method", "int8", "--calib", "none.txt"], 1, "none.txt"),
    (["--method", "int8", "--set", "quantize.calibration.length=100000"], 1, "a window needs 100000"),
    (["--method", "int4_wo", "--exclude", "*.mlp.dwon"], 2, "`*.mlp.dwon` matches no linear layer"),
    (["--method", "int4_wo", "--layer", "*.up"], 2, "is not GLOB=NAME"),
    (["--method", "int4_wo", "--budget", "lots"], 1, "`lots` is not a budget"),
    (["--method", "fp8", "--fallback", "int8_wo"], 1, "give a `--budget` too"),
    (["--method", "fp8", "--budget", "1nats", "--fallback", "int2"], 2, "`int2` is no method for layers that are left"),
    (["--method", "fp8", "--budget", "0nats", "--fallback", "int8_wo"], 1, "int8_wo alone loses"),
    (["--method", "fp8", "--layer", "*.k=int8_wo"], 2, "share their inputs and need one method, not fp8 and int8_wo"),
    (["--method", "int8", "--exclude", "layers.1.*.up"], 2, "need one method, not int8 and none"),
    (
        ["--method", "int4_wo", "--budget", "2bits"],
        1,
        "with every layer quantized, the model is still above 2bits",
    ),
]


@pytest.mark.parametrize(("words", "code", "said"), BAD)
def test_what_cannot_be_quantized_says_why(
    words: list[str], code: int, said: str, models: Path, refuses: Callable[..., str]
) -> None:
    assert said in refuses("quantize", models / "m.yaml", *words, "-o", "q", "-q", code=code)


@pytest.mark.parametrize("option", ["--html", "--write"])
def test_pages_that_could_not_be_written_are_refused_before_the_work(
    option: str, models: Path, trtkit: Callable[..., Ran]
) -> None:
    ran = trtkit("quantize", models / "m.yaml", option, "no/page.html")
    assert ran.code == 2
    assert "cannot write `no/page.html`: no such folder" in ran.err


def changed(models: Path, workspace: Path, **sizes: int) -> Path:
    """Write a model of other sizes beside a copy of the config; return the config."""
    tiny_llm.save(workspace / "model", **{**tiny_llm.OF_BLOCKS, **sizes})
    shutil.copy(models / "text.txt", workspace / "text.txt")
    return Path(shutil.copy(models / "m.yaml", workspace / "m.yaml"))


def test_blocks_that_do_not_divide_are_refused(models: Path, workspace: Path, refuses: Callable[..., str]) -> None:
    config = changed(models, workspace, intermediate_size=96)
    said = refuses("quantize", config, "--method", "int4_wo", "--block", 64, "-q", code=2)
    assert "a block size of 64 does not divide the 96 columns of `layers.0.mlp.down`" in said
    assert "use 32" in said
    config = changed(models, workspace, intermediate_size=80)
    said = refuses("quantize", config, "--method", "mxfp8", "-q", code=2)
    assert "a block size of 32 does not divide the 80 columns of `layers.0.mlp.down`" in said


def test_inputs_that_are_not_numbers_name_their_layer(
    models: Path, workspace: Path, refuses: Callable[..., str]
) -> None:
    config = changed(models, workspace)
    file = workspace / "model/model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.input_layernorm.weight"] *= 0
    save_file(tensors, file, metadata={"format": "pt"})
    said = refuses("quantize", config, "--method", "int8", "-q")
    assert "layers.1.attention" in said
    assert "inputs are all zero" in said


def test_targets_that_cannot_compute_in_a_type_are_refused(
    models: Path, workspace: Path, refuses: Callable[..., str]
) -> None:
    words = ("--set", "quantize.method=fp8", "--target", "sm86", "-q")
    for said in (
        refuses("build", models / "m.yaml", *words, code=2),
        refuses("quantize", models / "m.yaml", *words, code=2),
    ):
        assert "type fp8 needs SM89: not on sm86" in said


def test_a_quantized_checkpoint_is_not_quantized_again(
    models: Path, quantized: Callable[..., Path], refuses: Callable[..., str]
) -> None:
    said = refuses("quantize", models / "m.yaml", "--set", f"source.hf={quantized('int8_wo')}", "-q")
    assert "is already quantized by modelopt" in said

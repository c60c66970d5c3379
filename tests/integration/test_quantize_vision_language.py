"""Vision-language models, quantized: the language model by any method, the tower by vision models' methods."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import tiny_llm
from tests.support.decoders import relative_rms, rtx
from tests.support.tiny_vlm import VLMS, Vlm, bundle_of, folder_of, picture
from trtkit.builder.decoders import open_decoder
from trtkit.builder.vision_language import open_vision, pixel_samples
from trtkit.config.load import load_config
from trtkit.jobs.job import JobContext
from trtkit.llm.execution import ReferenceDecoder, decoder_network
from trtkit.network.onnx.io import OnnxTensorSpec
from trtkit.quantization.jobs import QuantizeRequest
from trtkit.quantization.llm.job import quantize_llm
from trtkit.quantization.vision.data import OnnxQuantization, read_calibration
from trtkit.resolve import resolve
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.verification.decoder_reference import VisionLanguageReference, wrapped_folder
from trtkit.verification.stepper import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

    Run = Callable[..., Ran]
    Refuses = Callable[..., str]

pytestmark = pytest.mark.usefixtures("one_export")
_TOWER = {"hidden_size": 264, "intermediate_size": 320, "num_hidden_layers": 2, "num_attention_heads": 3}


def wide(name: str) -> Vlm:
    """Return a model with a tower whose matrices are large enough to be quantized."""
    vlm = VLMS[name]
    config = {**vlm.config, "vision_config": {**vlm.config["vision_config"], **_TOWER}}
    return replace(vlm, name=f"{name}-wide", config=config)


def verified(trtkit: Run, bundle: Path) -> dict[str, float]:
    """Verify a bundle; return the errors of its outputs and the tolerance."""
    ran = trtkit("verify", bundle, "--json", "--no-corners")
    assert ran.code == 0, ran.out + ran.err
    found = ran.json()
    return {name: output["relative_rms_error"] for name, output in found["outputs"].items()} | {
        "tolerance": found["tolerance"]
    }


@pytest.mark.parametrize("name", ["qwen2-vl", "smolvlm"])
def test_text_is_computed_with_the_dequantized_language_model(name: str, tmp_path: Path) -> None:
    vlm = VLMS[name]
    (tmp_path / "m.yaml").write_text(
        f"source: {{hf: {folder_of(vlm)}}}\nllm: {{max_sequence_length: 64, max_prefill_length: 32, logits: all}}\n"
    )
    config = load_config(str(tmp_path / "m.yaml"), ["quantize={method: int8_wo, exclude: [layers.0.mlp.*]}"])
    (tmp_path / "made").mkdir()
    quantize_llm(QuantizeRequest(config, tmp_path / "made"), JobContext())
    model = open_decoder(resolve(config), tmp_path / "made")
    assert model.source.config["model_type"] == open_hf_folder(folder_of(vlm)).config["model_type"]
    assert sum(model.source.checkpoint.is_quantized(name) for name in model.source.checkpoint) == 11
    with wrapped_folder(folder_of(vlm), model.source) as folder:
        reference = VisionLanguageReference(folder)
    ids = list(range(5, 29))
    stepper = Stepper(ReferenceDecoder(decoder_network(rtx(), model), 1))
    stepper.reset(1)
    assert relative_rms(stepper.step([ids])[0], reference.logits(ids, [])) <= 1e-5


@pytest.mark.slow
def test_a_language_model_with_rotary_embeddings_of_images(trtkit: Run) -> None:
    bundle = bundle_of(VLMS["qwen2.5-vl"], "quantize={method: int8_wo, exclude: [layers.0.mlp.*]}")
    config = json.loads((bundle / "quantized/config.json").read_text())
    assert config["rope_parameters"]["mrope_section"] == [2, 1, 3]
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["totals"]["weight_bytes"]["int8"] == 2 * (2 * 48 * 48 + 2 * 24 * 48) + 3 * 76 * 48
    errors = verified(trtkit, bundle)
    assert errors["tolerance"] == 1e-4
    assert max(errors["soft_tokens"], errors["logits"]) <= 1e-5


@pytest.mark.slow
def test_both_parts_in_few_bits(trtkit: Run, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "book.txt").write_text(tiny_llm.TEXT * 20, encoding="utf-8")
    for index in range(3):
        picture(40 + index, 60, index).save(tmp_path / f"images/{index}.png")
    text = f"calibration: {{data: {tmp_path}/book.txt, samples: 2, length: 32}}"
    images = f"calibration: {{data: {tmp_path}/images}}"
    parts = f"parts: {{vision: {{method: int8, {images}}}}}"
    bundle = bundle_of(wide("smolvlm"), f"quantize={{method: int8, kv_cache: int8, {text}, {parts}}}")
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["totals"]["weight_bytes"]["int8"] > 30_000
    assert manifest["stages"][0]["totals"]["weight_bytes"]["int8"] > 900_000
    errors = verified(trtkit, bundle)
    assert errors["tolerance"] == 0.4
    assert 1e-3 < errors["soft_tokens"] < 0.1


def test_images_are_measured_as_the_image_processor_gives_them(tmp_path: Path) -> None:
    import numpy as np

    vlm = VLMS["smolvlm"]
    for index in range(5):
        picture(40 + index, 60, index).save(tmp_path / f"{index}.png")
    (tmp_path / "m.yaml").write_text(
        f"source: {{hf: {folder_of(vlm)}}}\n"
        "quantize: {parts: {vision: {method: int8, calibration: {data: ., samples: 2}}}}\n"
    )
    stage = open_vision(load_config(str(tmp_path / "m.yaml"))).stage
    assert stage.quantize is not None
    quantization = OnnxQuantization(stage.quantize, partial(pixel_samples, stage), stage.key)
    samples = read_calibration(quantization, [OnnxTensorSpec("pixel_values", "fp32", ("images", 3, 28, 28))])
    pixels = np.concatenate([sample.inputs["pixel_values"] for sample in samples])
    want = np.concatenate(
        [vlm.processor([[picture(40 + index, 60, index)]], return_tensors="np")["pixel_values"][0] for index in (0, 2)]
    )
    assert {sample.inputs["pixel_values"].shape[0] for sample in samples} == {1}
    assert np.array_equal(pixels, want)


def refusal(vlm: Vlm, refuses: Refuses, quantize: str, code: int) -> str:
    Path("m.yaml").write_text(
        f"source: {{hf: {folder_of(vlm)}}}\nllm: {{max_sequence_length: 128, max_prefill_length: 32}}\n"
    )
    return refuses("build", "m.yaml", "--set", f"quantize={quantize}", "--quiet", code=code)


@pytest.mark.usefixtures("workspace")
def test_what_a_tower_cannot_have(refuses: Refuses) -> None:
    vlm = VLMS["llava"]
    said = refusal(vlm, refuses, "{parts: {language: int8_wo}}", 2)
    assert said.endswith("quantize.parts: no part `language`\n    fix: its parts are vision")
    said = refusal(vlm, refuses, "{parts: {vision: int4_awq}}", 2)
    assert "quantize.parts.vision.method: `int4_awq` does not apply to vision models" in said
    said = refusal(VLMS["qwen2-vl"], refuses, "{parts: {vision: {method: int8, calibration: {data: m.yaml}}}}", 1)
    assert said == (
        "quantize.parts.vision.method: calibration is not yet supported for towers with "
        "variable image sizes\nfix: use int8_wo or int4_wo"
    )


@pytest.mark.usefixtures("workspace")
def test_quantize_writes_no_tower(refuses: Refuses) -> None:
    Path("m.yaml").write_text(f"source: {{hf: {folder_of(VLMS['llava'])}}}\n")
    said = refuses("quantize", "m.yaml", "--method", "int8_wo", "--quiet", code=2)
    assert "`--set vision.enabled=false` quantizes the language model alone" in said

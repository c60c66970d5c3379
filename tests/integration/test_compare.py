"""`trtkit compare`: a bad variant loses; figures equal those of `verify`, `eval` and `plan`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import numpy as np
import pytest
from PIL import Image
from transformers import AutoTokenizer

from tests.support import models
from tests.support.docs import DOCS
from tests.support.tiny_chat import save_model
from trtkit import compare, evaluate, evaluate_images, open_model, plan, verify
from trtkit.jobs.runner import inline_jobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

CLASSIFIER = """\
name: tiny
source: {onnx: tiny.onnx}
profiles: [{batch: [1, 2, 4]}]
preprocess: {resize: {exact: [16, 16]}}
task: {kind: classification, labels: names.txt}
quantize: {method: int8, calibration: {data: dark}}
"""
NAMES = ["ant", "bee", "cat", "dog", "elk"]
SCHEMA = json.loads((DOCS / "compare.schema.json").read_text())


def noise(path: Path, seed: int, brightest: int = 256) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, brightest, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_int8_that_was_calibrated_on_the_wrong_pictures_loses(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    models.save(models.classifier(), workspace / "tiny.onnx")
    (workspace / "names.txt").write_text("\n".join(NAMES))
    (workspace / "tiny.yaml").write_text(CLASSIFIER)
    for index in range(4):
        noise(workspace / "dark" / f"{index}.png", index, brightest=6)
    words = ("compare", "tiny.yaml", "--gpu", "t4", "--json", "--variants")
    with inline_jobs():
        first = compare("tiny.yaml", ["fp32", "fp16"], gpu="t4").to_json()
        photos = [noise(workspace / "photos" / f"{index}.png", 100 + index) for index in range(12)]
        answers = list(open_model(first["variants"][0]["bundle"]).predict(photos))
        for photo, answer in zip(photos, answers, strict=True):  # what fp32 says is the truth
            (workspace / "val" / answer.labels[0]).mkdir(parents=True, exist_ok=True)
            photo.rename(workspace / "val" / answer.labels[0] / photo.name)
        ran = trtkit(*words, "fp32,fp16,int8", "--images", "val")
    assert ran.code == 0, ran.err
    compared = ran.json()
    jsonschema.validate(compared, SCHEMA)
    fp32, fp16, int8 = compared["variants"]
    assert (fp32["quality"], fp32["loss"], fp16["excluded"]) == ({"top-1": 1.0}, None, "")
    assert int8["excluded"] == ("loses more than 1" if int8["passed"] else "out of verify's tolerance")
    assert int8["loss"] == pytest.approx(100 * (1 - evaluate_images(int8["bundle"], "val").measures["top-1"]))
    assert int8["loss"] > 1
    assert int8["engine_bytes"] > 0
    assert compared["best"] in {"fp32", "fp16"}
    assert fp16["relative_rms_error"] == verify(fp16["bundle"], corners=False).outputs["logits"].relative_rms_error
    floor = plan(fp16["bundle"], ["t4"]).gpus[0].speed.latency.seconds
    assert fp16["planned_ms"] == pytest.approx(1000 * floor)


@pytest.mark.slow
def test_a_language_model_by_perplexity_and_characters(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    save_model(workspace / "chat")
    text = "A kitten plays with wool. " * 40
    (workspace / "book.txt").write_text(text)
    limits = ("--set", "llm.max_sequence_length=64", "--set", "llm.max_prefill_length=16", "--set", "llm.logits=all")
    words = ("compare", "./chat", "--variants", "fp16,int8_wo", "--text", "book.txt", "--windows", 2, *limits)
    with inline_jobs():
        ran = trtkit(*words, "--max-loss", 50, "--json")
        assert ran.code == 0, ran.err
        shown = trtkit(*words, "--max-loss", 50, "--html", "page.html").out
    compared = ran.json()
    jsonschema.validate(compared, SCHEMA)
    tokens = AutoTokenizer.from_pretrained(workspace / "chat")(text)["input_ids"]
    assert compared["characters_per_token"] == pytest.approx(len(text) / len(tokens))
    base = compared["variants"][0]["quality"]["perplexity"]
    for variant in compared["variants"]:
        alone = evaluate(variant["bundle"], "book.txt", windows=2).perplexity
        assert alone is not None
        assert variant["quality"]["perplexity"] == pytest.approx(alone.perplexity)
        if variant["loss"] is not None:
            assert variant["loss"] == pytest.approx(100 * (alone.perplexity / base - 1))
    assert compared["verdict"].startswith(f"take {compared['best']}: ")
    assert f"verdict               {compared['verdict']}" in shown
    assert "relative RMS error" in (workspace / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--variants", "fp32,int9"], "`int9` is neither a precision nor a method"),
        (["--variants", "fp32"], "variants are two or more different ones"),
        (["--variants", "fp32,fp32"], "variants are two or more different ones"),
        (["--variants", "fp32,fp16", "--text", "a.txt"], "a text does not measure this model"),
        (["--variants", "fp32,fp16", "--gpu", "gtx"], "unknown GPU `gtx`"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_built(
    refuses: Callable[..., str], workspace: Path, words: list[str], message: str
) -> None:
    models.save(models.classifier(), workspace / "tiny.onnx")
    assert message in refuses("compare", "tiny.onnx", *words, code=2)

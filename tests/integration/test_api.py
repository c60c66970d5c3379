"""The Python API on tiny models, from a source to a deployed bundle."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

import trtkit
from tests.support import models
from trtkit.bundle.bundle import Bundle
from trtkit.errors import BenchError, BundleError, ConfigError, RequestError
from trtkit.jobs.events import Phase, Step
from trtkit.serving_options import ServingOptions

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.jobs.events import Event


@pytest.fixture
def onnx_path(workspace: Path) -> Path:
    return models.save(models.matmul(), workspace / "m.onnx")


WRONG_LOADS = (
    (trtkit.Load(concurrency=[0]), "`concurrency`: 0 is below 1"),
    (trtkit.Load(request_rate=[0.0]), "`speed` and `request_rate` must be above 0"),
    (trtkit.Load(request_rate=[1.0], arrivals="even"), "`arrivals` is 'even'"),  # type: ignore[arg-type]
    (trtkit.Load(input_deviation=-1), "`input_deviation`: -1 is below 0"),
    (trtkit.Load(concurrency=[1], request_rate=[1.0]), "`concurrency` and `request_rate` cannot be combined"),
    (
        trtkit.Load(trace="t.jsonl", prompts="p.jsonl"),
        "`prompts` cannot be combined with a trace, which sets the prompt lengths",
    ),
    (trtkit.Load(trace="nowhere.jsonl"), "nowhere.jsonl: the trace cannot be read"),
    (trtkit.Load(goodput={"fast": 1}), "`fast:1` is not an objective"),
)


def test_a_network_goes_from_onnx_to_a_server(onnx_path: Path, workspace: Path) -> None:
    events: list[Event] = []
    bundle = trtkit.build("m.onnx", precision="fp16", on_event=events.append)
    assert isinstance(bundle, Bundle)
    assert (bundle.path.name, bundle.manifest.config.precision) == ("m", "fp16")
    assert repr(bundle).startswith("Bundle('bundles/m': m, fp16, engine 0.")
    assert {type(event) for event in events} >= {Phase, Step}
    report = trtkit.verify("bundles/m", layers=True)
    assert report.passed
    assert report.layers
    assert trtkit.verify(bundle).passed
    model = trtkit.open_model(bundle, "reference")
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(model(x), trtkit.open_model("bundles/m", "onnxruntime")(x))
    measured = trtkit.bench("bundles/m", batches=[2], runtime="reference")
    assert [case.name for case in measured.cases] == ["x 2x3"]
    assert measured.provenance.command == "trtkit.bench"
    assert repr(measured).startswith("m: reference executor, CPU, fp16\nx 2x3, trtkit: ")
    with pytest.raises(BenchError, match="`runtime` is 'cuda'"):
        trtkit.bench(bundle, runtime="cuda")  # type: ignore[arg-type]
    with pytest.raises(BenchError, match="`concurrency` does not apply to a network of arrays"):
        trtkit.bench(bundle, load=trtkit.Load(concurrency=[2]), is_unverified=True)
    (row,) = trtkit.plan(bundle, ["l4"]).gpus
    assert row.gpu.key == "l4"
    for function in (trtkit.verify, trtkit.plan, trtkit.bench):
        for model in (bundle, bundle.path):
            with pytest.raises(BundleError, match="`precision` cannot be changed: the bundle is already built"):
                function(model, precision="fp32")
            with pytest.raises(ConfigError, match="unknown key `precisoin`"):
                function(model, precisoin="fp32")
    with pytest.raises(BundleError, match="a bundle is already built"):
        trtkit.build("bundles/m")


def test_a_config_is_verified_and_planned_without_a_build(onnx_path: Path, workspace: Path) -> None:
    assert trtkit.verify(onnx_path, precision="fp16", corners=False).passed
    config = trtkit.load_config("m.onnx", name="product")
    assert trtkit.verify(config).name == "product"
    assert trtkit.plan(config, "l4").name == "product"
    assert trtkit.plan("m.onnx", ["l4"], concurrency=None).to_json()["kind"] == "vision"
    assert not (workspace / "bundles").exists()


def test_a_language_model_is_quantized_built_and_answers(tiny_folder: Path, tiny_bundle: Path, workspace: Path) -> None:
    sizes = {"max_sequence_length": 96, "max_prefill_length": 32, "max_batch_size": 2}
    quantized = trtkit.quantize(tiny_folder / "model", "int8_wo", llm=sizes)
    assert str(quantized).startswith("quantized/model-int8_wo: int8_wo, ")
    assert quantized.source == {"hf": "quantized/model-int8_wo"}
    bundle = trtkit.build(tiny_folder / "model", source=quantized.source, llm=sizes)
    greedy = trtkit.SamplingParams(temperature=0, max_tokens=4)
    with trtkit.LLM(bundle, runtime="reference") as llm:
        (output,) = llm.generate("Gravity", greedy)
        assert len(output.outputs[0].token_ids) == 4
    (workspace / "t.txt").write_text("Gravity is a fundamental concept. " * 20)
    found = trtkit.evaluate(bundle, "t.txt", compare=tiny_bundle, windows=2, window_tokens=40, runtime="reference")
    assert found.perplexity is not None
    assert found.distance is not None
    assert found.perplexity.tokens == 80
    assert 0 < found.distance.divergence_nats < 0.1
    load = trtkit.Load(concurrency=[2], requests=2, input_tokens=8, output_tokens=4, goodput={"ttft": 1e6})
    with pytest.raises(BenchError, match="the bundle was never verified"):
        trtkit.bench(bundle, load=load)
    one_slot = ServingOptions(runtime="reference", slots=1)
    (case,) = trtkit.bench(bundle, load=load, runtime=one_slot, is_unverified=True).cases
    assert case.results[0].metrics["good_request_count"].avg == 2
    assert [request.input_tokens for request in case.results[0].requests] == [8, 8]
    with pytest.raises(BenchError, match="`batches` does not apply to a language model"):
        trtkit.bench(bundle, batches=[2])
    for wrong, message in WRONG_LOADS:
        with pytest.raises(BenchError, match=message):
            trtkit.bench(bundle, load=wrong, is_unverified=True)
    with pytest.raises(RequestError, match="nothing to evaluate"):
        trtkit.evaluate(bundle)
    with pytest.raises(RequestError, match="0 or more windows of at least 2 tokens"):
        trtkit.evaluate(bundle, "t.txt", window_tokens=1)


def test_the_cost_of_a_published_model_is_estimated() -> None:
    found = trtkit.plan("llama-2-7b", ["l4"], input_len=64, output_len=16, prices={"l4": 0.7}, precision="fp16")
    assert found.to_json()["workload"]["input_len"] == 64
    with pytest.raises(ConfigError, match="precision='fp2': precision: 'fp2' is not allowed"):
        trtkit.plan("llama-2-7b", ["l4"], precision="fp2")


def test_a_bundle_is_deployed(classifier_bundle: Path, workspace: Path) -> None:
    bundle = shutil.copytree(classifier_bundle, workspace / "tiny")  # deploying adds known requests to it
    written = trtkit.deploy(bundle, "models", name="things", instances=2, queue={"delay_us": 500})
    assert written.placements[-1].model.name == "things"
    assert any("count: 2" in path.read_text() for path in (workspace / "models").rglob("config.pbtxt"))
    again = trtkit.deploy(bundle, "models", name="things", instances=1, is_dry_run=True)
    assert "-" in again.differences
    with pytest.raises(ConfigError, match="instances=0: instances: "):
        trtkit.deploy(bundle, "models", instances=0)

"""Networks written as ONNX: ONNX Runtime computes every tensor as the reference executor does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.integration.test_quantized_checkpoints import graph_of as quantized_graph_of
from tests.selection import slow_unless
from tests.support import models, tiny_llm
from tests.support.decoder_cases import CASES
from tests.support.decoders import Runner, T, graph_of, model_of, relative_rms
from tests.support.hybrids import case_of, make, saved
from tests.support.onnx_oracle import Oracle
from tests.support.quantized_checkpoints import FORMATS
from trtkit.backends import load_backend
from trtkit.dtypes import BF16, FP16, FP32, INT32
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.network.onnx.from_layers import onnx_model
from trtkit.network.ops.arithmetic import mean
from trtkit.reference import Executor, read_layers
from trtkit.runtime.stages import ReferenceStage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.conftest import Ran
    from tests.support.decoder_case import Case

QUICK = (
    *("llama", "qwen3_moe", "gemma3", "gemma3n", "phi3", "falcon-alibi", "gpt2", "deepseek_v3", "mamba2", "qwen3_next"),
    *("gpt_oss", "bloom", "glm4"),
)
# Two programs sum in different orders; where sums nearly cancel, as in a router's scores, that shows most.
MOST = 2e-5


LLM = """\
source: {hf: hf}
precision: fp32
llm: {max_batch_size: 2, max_sequence_length: 64, max_prefill_length: 16, logits: all}
"""


class Compared:
    """An executor that compares all its tensors with ONNX Runtime's. errors: the worst one of each run."""

    def __init__(self, runner: Runner, oracle: Oracle) -> None:
        self._executor, self._oracle = runner._executor, oracle
        self.inputs = self._executor.inputs
        self.errors: list[tuple[float, str, int]] = []

    def run(self, inputs: Mapping[str, torch.Tensor], on_tensor: Any = None) -> dict[str, torch.Tensor]:
        outputs = self._executor.run(inputs, keep=self._oracle.names, on_tensor=on_tensor)
        self.errors.append(self._oracle.worst(inputs, outputs))
        return outputs


@pytest.mark.parametrize("case", slow_unless(lambda case: case.name in QUICK, CASES), ids=str)
def test_decoder_computes_the_same_layer_by_layer(case: Case) -> None:
    check_steps(graph_of(model_of(case), DecoderOptions(FP32, T, has_all_logits=True)))


@pytest.mark.parametrize("case", slow_unless(lambda case: case.name in ("llama", "qwen3_next"), CASES), ids=str)
def test_half_precision_is_valid_onnx(case: Case) -> None:
    """ONNX Runtime's CPU lacks kernels for bf16, so types are checked by ONNX alone."""
    for dtype in (BF16, FP16):
        graph = graph_of(model_of(case), DecoderOptions(dtype, T, has_all_logits=True))
        onnx.checker.check_model(onnx_model(graph.layers())[0], full_check=True)


@pytest.mark.parametrize(
    "name", slow_unless(lambda name: name in ("awq", "int8-static", "fp8-blocks"), (*FORMATS, "mixture/awq")), ids=str
)
def test_quantized_checkpoint_computes_the_same_layer_by_layer(name: str) -> None:
    check_steps(quantized_graph_of(name, FP32))


def test_averages_of_whole_numbers_drop_the_fraction_and_others_keep_it() -> None:
    for dtype, means in ((INT32, [[2], [-2]]), (FP32, [[7 / 3], [-8 / 3]])):
        graph = Graph(load_backend("tensorrt_rtx"))
        graph.output(mean(graph.input("x", dtype, (2, 3)), -1), "y")
        values = np.array([[1, 2, 4], [-1, -2, -5]], dtype.numpy)
        model = onnxruntime.InferenceSession(onnx_model(graph.layers())[0].SerializeToString())
        computed = Executor(read_layers(graph.backend, graph.network, graph.constants)).run(
            {"x": torch.from_numpy(values)}
        )
        for got in (model.run(None, {"x": values})[0], computed["y"].numpy()):
            np.testing.assert_allclose(got, means, rtol=1e-6)


def check_steps(graph: Graph) -> None:
    """Compare a prefill of different lengths and a step of one token."""
    runner = Runner(graph)
    runner._executor = compared = Compared(runner, Oracle(graph.layers()))  # type: ignore[assignment]
    runner.reset(2)
    torch.manual_seed(0)
    ids = torch.randint(3, 60, (2, 9))
    runner.step(ids, [9, 6])
    runner.step(ids[:, :1])
    for error, name, count in compared.errors:
        assert error <= MOST, name
        assert count >= 40


@pytest.mark.parametrize("architecture", ["ViTModel", pytest.param("RTDetrForObjectDetection", marks=pytest.mark.slow)])
def test_hybrid_computes_the_same_layer_by_layer(architecture: str, tmp_path: Path) -> None:
    case = case_of(architecture)
    saved(case, tmp_path / "model")
    (stage,) = make(case, tmp_path / "model", "fused").execution.stages
    assert isinstance(stage, ReferenceStage)
    executor, oracle = Executor(stage.layers), Oracle(stage.layers)
    inputs = {"pixel_values": torch.randn(2, 3, *case.size)}
    error, name, count = oracle.worst(inputs, executor.run(inputs, keep=oracle.names))
    assert error <= MOST, name
    assert count >= 40


def test_command_writes_what_the_original_model_computes(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    original = models.save(models.classifier(), workspace / "m.onnx")
    assert trtkit("build", "m.onnx", "-o", "b").code == 0
    ran = trtkit("inspect", "b", "--onnx", "written.onnx", "--json")
    assert ran.code == 0, ran.err
    report = ran.json()
    assert (report["kind"], report["stage"], report["files"]) == ("onnx", "m", ["written.onnx"])
    images = torch.randn(3, 3, 16, 16).numpy()
    want, got = (
        onnxruntime.InferenceSession(workspace / file).run(None, {"images": images})[0]
        for file in (original, "written.onnx")
    )
    assert relative_rms(torch.from_numpy(got), torch.from_numpy(want)) <= 1e-6
    assert trtkit("inspect", "b", "--onnx", "written.onnx").err == f"wrote written.onnx: {report['layers']} layers\n"


def test_language_model_of_a_bundle_computes_what_its_source_does(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    tiny_llm.save(workspace / "hf")
    (workspace / "m.yaml").write_text(LLM)
    assert trtkit("build", "m.yaml", "--set", "llm.batching=separate", "-o", "b").code == 0
    assert trtkit("inspect", "b", "--onnx", "llm.onnx").code == 0
    ids = np.array([[5, 9, 30, 12, 7], [8, 3, 1, 1, 1]], np.int32)
    feed = {
        "input_ids": ids,
        "position_ids": np.tile(np.arange(5, dtype=np.int32), (2, 1)),
        "write_indices": np.zeros(2, np.int32),
        "kv_lengths": np.array([5, 2], np.int32),
        "key_positions": np.arange(5, dtype=np.int32),
    }
    session = onnxruntime.InferenceSession(workspace / "llm.onnx")
    for value in session.get_inputs():
        if value.name.startswith("past_"):
            feed[value.name] = np.zeros([2 if isinstance(size, str) else size for size in value.shape], np.float32)
    names = [value.name for value in session.get_inputs()]
    (logits,) = session.run(["logits"], {name: feed[name] for name in names})
    model = AutoModelForCausalLM.from_pretrained(workspace / "hf").eval()
    with torch.inference_mode():
        wanted = model(torch.from_numpy(ids).long()).logits
    for row, length in enumerate((5, 2)):
        got = torch.from_numpy(logits[row, :length])
        assert relative_rms(got, wanted[row, :length]) <= 1e-5


def test_command_refuses_a_network_that_ranks_share(
    workspace: Path, trtkit: Callable[..., Ran], refuses: Callable[..., str]
) -> None:
    tiny_llm.save(workspace / "hf")
    (workspace / "m.yaml").write_text(f"{LLM}parallel: {{pipeline: 2}}\n")
    assert trtkit("build", "m.yaml", "-o", "b").code == 0
    assert refuses("inspect", "b", "--onnx", "x.onnx") == (
        "b: the network is split over 2 ranks, which one ONNX file cannot express\n"
        "fix: build it without `parallel` to write it"
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--onnx", "x.onnx"], "--onnx needs a bundle, which holds the network's layers; run `trtkit build` first"),
        (["--stage", "m"], "--stage goes with --onnx"),
        (["--onnx", "x.onnx", "--fusion"], "--onnx does not go with --fusion"),
        (["--onnx", "none/x.onnx"], "cannot write `none/x.onnx`: no such folder"),
    ],
)
def test_command_refuses_other_options_and_models(
    options: list[str], error: str, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    models.save(models.classifier(), workspace / "m.onnx")
    if "none/x.onnx" in options:
        assert trtkit("build", "m.onnx", "-o", "b").code == 0
    ran = trtkit("inspect", "b" if "none/x.onnx" in options else "m.onnx", *options)
    assert ran.code == 2
    assert error in " ".join(ran.err.split())


def test_command_asks_which_of_several_stages(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    saved(case_of("ViTModel"), workspace / "vit")
    (workspace / "m.yaml").write_text("source: {hf: vit}\ncompose: chained\n")
    assert trtkit("build", "m.yaml", "-o", "b").code == 0
    ran = trtkit("inspect", "b", "--onnx", "x.onnx")
    assert (ran.code, "choose it by --stage: patch, encoder" in ran.err) == (2, True)
    ran = trtkit("inspect", "b", "--onnx", "x.onnx", "--stage", "llm")
    assert (ran.code, "has no stage `llm`; it has patch, encoder" in ran.err) == (2, True)
    assert trtkit("inspect", "b", "--onnx", "x.onnx", "--stage", "encoder").code == 0
    names = [value.name for value in onnxruntime.InferenceSession(workspace / "x.onnx").get_outputs()]
    assert names == ["last_hidden_state", "pooler_output"]

"""`trtkit inspect --fusion` on real engines: which layers are in which kernel, and a self-contained page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import models, tiny_llm
from tests.support.medusa import save_random
from trtkit.builder import stage_job
from trtkit.network.fusion import kernels_of
from trtkit.report.fusion import layered

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran


@pytest.fixture
def classifier(workspace: Path, trtkit: Callable[..., Ran]) -> Path:
    models.save(models.classifier(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    assert trtkit("build", "m.yaml", "-o", "b").code == 0
    return workspace / "b"


def test_a_convolution_and_its_activation_are_one_kernel(classifier: Path, trtkit: Callable[..., Ran]) -> None:
    (fusion,) = trtkit("inspect", classifier, "--fusion", "--json").json()["fusions"]
    assert fusion["shapes"] == {"images": [1, 3, 16, 16]}
    together = [kernel for kernel in fusion["kernels"] if {"stem/conv", "stem/relu"} <= set(kernel["layers"])]
    assert together
    stem = 4 * 8 * 16 * 16
    assert sum(kernel["bytes_saved"] for kernel in together) >= 2 * stem
    assert 2 * stem <= fusion["bytes_saved"] < fusion["bytes_apart"]
    layers = trtkit("inspect", classifier, "--json").json()["network"]["layers"]
    assert fusion["bytes_apart"] == sum(each["bytes_moved"] for each in layers if each["name"] not in fusion["absent"])


def test_a_step_of_a_language_model_multiplies_by_quantized_weights(
    workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    tiny_llm.save_to_quantize(workspace)
    words = ("--method", "int4_wo", "--block", "32", "-o", "int4")
    assert trtkit("quantize", "m.yaml", *words).code == 0
    sources = ("--set", "source.hf=int4", "--set", "quantize=null", "--target", "sm80")
    assert trtkit("build", "m.yaml", *sources, "-o", "b").code == 0
    verified = trtkit("verify", "b", "--layers", "--json")
    (workspace / "errors.json").write_text(verified.out)
    ran = trtkit("inspect", "b", "--fusion", "--html", "page.html", "--measured", "errors.json")
    assert ran.code == 0, ran.err
    mixed, decode = trtkit("inspect", "b", "--fusion", "--json").json()["fusions"]
    assert (mixed["shapes"]["input_ids"], decode["shapes"]["input_ids"]) == ([25, 1], [1, 1])
    for fusion in (mixed, decode):
        fused = [kernel["layers"] for kernel in fusion["kernels"] if "layers.1/mlp/up/matmul" in kernel["layers"]]
        assert fused == [["layers.1/mlp/up/dequantize", "layers.1/mlp/up/matmul"]]
        assert not {name for kernel in fusion["kernels"] for name in kernel["layers"]} & set(fusion["absent"])
        assert fusion["confirmed_kernels"] == fusion["generated_kernels"] > 5
    assert (mixed["phase"], decode["phase"]) == ("mixed", "decode")
    assert "kernels per token" in ran.out
    _check_page(workspace / "page.html", decode)


def test_kernels_of_several_ranks_are_those_of_the_first(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    tiny_llm.save(workspace / "model", num_hidden_layers=1)
    (workspace / "m.yaml").write_text(
        "source: {hf: model}\nparallel: {tensor: 2}\nllm: {max_sequence_length: 64, max_prefill_length: 8}\n"
    )
    assert trtkit("build", "m.yaml", "-o", "b").code == 0
    ran = trtkit("inspect", "b", "--fusion")
    assert ran.code == 0, ran.err
    assert re.findall(r"kernels of (.*\S)", ran.out) == ["m, mixed, rank 0 of 2", "m, decode, rank 0 of 2"]
    assert "comm_allreduce" in ran.out


def _check_page(path: Path, decode: dict[str, Any]) -> None:
    """Check that a page holds both networks as graphs, and asks no other host for anything."""
    page = path.read_text(encoding="utf-8")
    assert re.findall(r"(?:src|href)=.(https?:[^'\" ]+)", page) == []
    graphs = [json.loads(text) for text in re.findall(r"<script type='application/json'>(.*?)</script>", page)]
    assert len(graphs) == 2
    nodes = {node["name"]: node for node in graphs[1]["nodes"]}
    up = nodes["layers.1/mlp/up/matmul"]
    (number,) = up["kernels"]
    assert graphs[1]["kernels"][number]["name"] == decode["kernels"][number]["name"]
    assert up["error"] is not None
    assert "<option value='error'>" in page
    assert all(graphs[1]["nodes"][a]["y"] < graphs[1]["nodes"][b]["y"] for a, b in graphs[1]["edges"])


def test_layers_are_drawn_below_what_they_read_and_never_on_each_other() -> None:
    reads = [[], [], [0], [0, 1], [0], [2, 3], [4], [5, 6, 0]]
    places = layered(reads)
    assert len(set(places)) == len(reads)
    assert all(places[source][1] < places[node][1] for node, sources in enumerate(reads) for source in sources)
    assert [row for _, row in places] == [0, 0, 1, 1, 1, 2, 2, 3]
    assert layered([[], [0], [1], []]) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert layered([[], [0], [1], [], [2, 3]])[3] == (1, 2)  # right above what reads it


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("m.yaml", "--fusion"), "--fusion needs a bundle: only an engine has kernels"),
        (("b", "--html", "page.html", "--measured", "m.yaml"), "--measured goes with --fusion and --html"),
        (("b", "--fusion", "--measured", "m.yaml"), "--measured goes with --fusion and --html"),
        (("b", "--fusion", "--html", "p.html", "--measured", "m.yaml"), "--measured: m.yaml cannot be read"),
        (("b", "--fusion", "--html", "p.html", "--measured", "b/manifest.json"), "is not a report with layers"),
        (("b", "--fusion", "--html", "p.html", "--measured", "odd.json"), "is not a report with layers"),
        (("b", "--fusion", "--html", "p.html", "--measured", "other.json"), "has no layer of this bundle"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: tuple[str, ...], text: str, classifier: Path, trtkit: Callable[..., Ran]
) -> None:
    Path("odd.json").write_text('{"layers": [1]}')
    Path("other.json").write_text('{"layers": [{"layer": "fc9", "relative_rms_error": 0.1}]}')
    ran = trtkit("inspect", *words)
    assert ran.code == 2
    assert not Path("p.html").exists()
    assert text in " ".join(ran.err.split())


COPIES = {
    "packed": ("logits: last", {"decode": False, "mixed": False}),
    "packed, all logits": ("logits: all", {"decode": False, "mixed": True}),
    "separate": ("batching: separate", {"decode": False, "prefill": True}),
    "head": ("logits: all, speculator: head", {"decode": False, "mixed": False}),
}
"""Options, and whether keys and values are copied for each query head, by phase."""


@pytest.mark.parametrize("name", COPIES)
def test_which_steps_copy_keys_for_each_query_head(
    name: str, workspace: Path, trtkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six query heads read two heads of keys. TensorRT names a kernel by what it does: it reshapes and replicates.

    And all kernels run on one stream: decoders have no use for auxiliary ones.
    """
    options, expected = COPIES[name]
    logs: list[str] = []
    monkeypatch.setattr(stage_job, "kernels_of", lambda log: [logs.append(log), kernels_of(log)][1])
    tiny_llm.save(workspace / "model", num_hidden_layers=1)
    save_random(workspace / "head", (48, len(tiny_llm.tokenizer())), heads=2)
    sizes = "max_batch_size: 4, max_sequence_length: 96, max_prefill_length: 16"
    (workspace / "m.yaml").write_text(f"source: {{hf: model}}\nllm: {{{sizes}, {options}}}\n")
    assert trtkit("build", "m.yaml", "-o", "b").code == 0
    fusions = trtkit("inspect", "b", "--fusion", "--json").json()["fusions"]
    copies = {
        fusion["phase"]: any(
            re.match(r"__myl_ReshRepl(ReshTran)?(Move)*_", kernel["name"]) for kernel in fusion["kernels"]
        )
        for fusion in fusions
        if fusion["stage"] != "speculator"
    }
    assert copies == expected
    assert {stream for log in logs for stream in re.findall(r", StreamId: (\d+)", log)} == {"0"}

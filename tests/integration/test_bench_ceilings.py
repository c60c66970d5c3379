"""`trtkit bench` against the hardware's limits: ceilings, gaps by layer; configs, CUDA graphs, torch.compile."""

from __future__ import annotations

import csv
import shutil
import sys
import textwrap
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.integration.test_bench_vision import QUICK, build
from tests.support import hybrids, tiny_chat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Ran

    Run = Callable[..., Ran]

FACTORY = """\
    import torch

    def make():
        torch.manual_seed(3)
        conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        return torch.nn.Sequential(conv, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 64, 5))
"""
CONFIG = """\
    source:
      torch: {factory: NAME:make, inputs: {x: {shape: [batch, 3, 8, 8]}}, outputs: [y]}
    profiles:
      - batch: [1, 2, 4]
"""


@pytest.fixture
def config(workspace: Path) -> Path:
    """A config of a torch module; its file has a name of its own, for Python imports a name once."""
    name = f"factory_{uuid.uuid4().hex}"
    (workspace / f"{name}.py").write_text(textwrap.dedent(FACTORY))
    (workspace / "m.yaml").write_text(textwrap.dedent(CONFIG).replace("NAME", name))
    return workspace / "m.yaml"


def check(found: dict[str, Any], metrics: dict[str, str]) -> None:
    """Check every ceiling of the first contender. metrics: name -> the statistic that it stands beside."""
    for result in (case["results"][0] for case in found["cases"]):
        assert set(result["ceilings"]) == set(metrics)
        for name, statistic in metrics.items():
            against, measured = result["ceilings"][name], result["metrics"][name][statistic]
            share = measured / against["ceiling"] if statistic == "avg" else against["ceiling"] / measured
            assert against["reached"] == pytest.approx(share)
            assert against["bound"] in ("compute", "memory")


def test_a_config_is_built_and_measured_beside_its_ceiling(config: Path, trtkit: Run) -> None:
    words = ("--unverified", "--batch", "1,3", "--compare", "torch", "--compare", "onnxruntime", *QUICK)
    found = trtkit("bench", config.name, *words, "--json").json()
    assert Path("bundles/m/manifest.json").is_file()
    check(found, {"latency": "p50", "throughput": "avg"})
    rates, memory = found["ceiling"]["operations_per_s"], found["ceiling"]["read_bytes_per_s"]
    memory = max(memory, found["ceiling"]["copy_bytes_per_s"])
    module = sys.modules[next(Path().glob("factory_*.py")).stem].make()
    for case in found["cases"]:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(torch.zeros(case["batch"], 3, 8, 8))
        weights, ends = 4 * (3 * 8 * 9 + 8 + 512 * 5 + 5), 4 * case["batch"] * (3 * 64 + 5)
        least_s = max(counter.get_total_flops() / rates["fp32"], (weights + ends) / memory)
        ceilings = [result["ceilings"]["latency"]["ceiling"] for result in case["results"]]
        assert ceilings == pytest.approx([least_s * 1e3] * 3)  # the same work: torch, ONNX Runtime
        (phase,) = case["phases"]
        assert phase["flops"] == sum(row["flops"] for row in phase["layers"])
        assert all(row["ms"] > 0 for row in phase["layers"])
        assert max(phase["layers"], key=lambda row: row["flops"])["flops"] == 2 * case["batch"] * 64 * 8 * 27
        gaps = [row["gap_ms"] for row in phase["gaps"]]
        assert gaps == sorted((row["ms"] - row["floor_ms"] for row in phase["layers"]), reverse=True)[:3]


def test_options_of_a_config_are_refused_for_a_bundle(config: Path, trtkit: Run) -> None:
    words = ("--unverified", "--batch", 1, *QUICK)
    found = trtkit("bench", "m.yaml", *words, "--set", "precision=fp16", "--json").json()
    assert found["computes"] == "reference executor, CPU, fp16"
    ran = trtkit("bench", "bundles/m", *words, "--set", "precision=fp32")
    assert (ran.code, "a bundle is already built" in ran.err) == (2, True)


def test_tables_and_files_say_the_ceiling(config: Path, trtkit: Run) -> None:
    ran = trtkit("bench", "m.yaml", "--unverified", "--batch", 1, "--html", "r.html", "--csv", "r.csv", *QUICK)
    text = " ".join(ran.out.split())
    assert "times of the reference executor on this processor, not of an engine" in text
    assert "`trtkit plan bundles/m` estimates the best case of an engine on a GPU" in text
    assert not any(part in text for part in ("torch matmul", "largest gaps", "at best", "CUDA graphs"))
    page = Path("r.html").read_text()
    parts = ("Roofline of a run", "Timeline of a batch, layer by layer", "Largest gaps of a run", "at best")
    for part in (*parts, "torch matmul"):
        assert part in page
    for row in csv.DictReader(Path("r.csv").read_text().splitlines()):
        assert float(row["ceiling"]) > 0
        assert 0 < float(row["reached"]) < 2
        assert row["bound"] in ("compute", "memory")


def test_the_reference_executor_has_no_cuda_graphs(tmp_path: Path, refuses: Callable[..., str], trtkit: Run) -> None:
    said = (
        "--cuda-graphs: the reference executor has no CUDA graphs: they replay an engine's launches on a GPU\n"
        "fix: leave it out"
    )
    words = ("--unverified", "--cuda-graphs", "--runtime", "reference", "-q")
    assert refuses("bench", build(tmp_path), *words) == said
    assert refuses("bench", tiny_chat.build(tmp_path), *words, "--input-len", 4, "--output-len", 2) == said
    words = ("--unverified", "--no-cuda-graphs", "--runtime", "reference", "--batch", 1, *QUICK)
    ran = trtkit("bench", tmp_path / "tiny", *words, "--json")
    assert ran.json()["cuda_graphs"] == "none: the reference executor has none"


def test_a_hybrid_is_held_against_its_ceiling_where_it_was_counted(workspace: Path, trtkit: Run) -> None:
    hybrids.saved(hybrids.CASES[0], workspace / "vit")
    Path("vit.yaml").write_text("source: {hf: vit}\n")
    found = trtkit("bench", "vit.yaml", "--unverified", *QUICK, "--json").json()
    first, *others = found["cases"]
    assert "latency" in first["results"][0]["ceilings"]
    assert len(first["phases"][0]["layers"]) > 20
    assert all(not case["phases"] for case in others)  # counts hold for the shapes that were described


def test_a_hybrid_beside_its_model_in_torch(workspace: Path, trtkit: Run, refuses: Callable[..., str]) -> None:
    hybrids.saved(hybrids.CASES[0], workspace / "vit")
    Path("vit.yaml").write_text("source: {hf: vit}\n")
    words = ("--unverified", "--batch", 1, *QUICK)
    found = trtkit("bench", "vit.yaml", *words, "--compare", "torch", "--json").json()
    _, theirs = found["cases"][0]["results"]
    assert theirs["computes"] == "PyTorch eager, CPU, fp32"
    assert theirs["difference"] < 1e-5
    said = refuses("bench", "bundles/vit", *words, "--compare", "onnxruntime")
    assert said == (
        "--compare onnxruntime: the network of a hybrid bundle is not an ONNX file\nfix: use --compare torch"
    )
    (workspace / "vit" / "extra.json").write_text("{}")
    said = refuses("bench", "bundles/vit", *words, "--compare", "torch")
    assert said == "--compare torch: the source has changed since the build\nfix: build the bundle again"


def test_a_language_model_has_ceilings_of_prefill_and_decode(tmp_path: Path, workspace: Path, trtkit: Run) -> None:
    bundle = tiny_chat.build(tmp_path)
    words = ("--input-len", 12, "--output-len", 5, "--requests", 4, "--concurrency", 2, "--rounds", 1)
    words = (*words, "--compare", "transformers", "--unverified", "-q", "--html", "r.html", "--json")
    found = trtkit("bench", bundle, *words).json()
    names = ("time_to_first_token", "inter_token_latency", "request_latency")
    check(found, {**dict.fromkeys(names, "p50"), "output_token_throughput": "avg"})
    ours, theirs = found["cases"][0]["results"]
    assert theirs["ceilings"]["time_to_first_token"]["ceiling"] == ours["ceilings"]["time_to_first_token"]["ceiling"]
    prefill, decode = found["cases"][0]["phases"]
    assert (prefill["at"], decode["at"]["batch"]) == ({"batch": 1, "new_tokens": 12, "cached_tokens": 12}, 2)
    layers = {row["layer"]: row for row in prefill["layers"]}
    assert layers["layers.*/mlp/up/matmul"]["layers"] == 2
    of_prompts = set(layers) - {row["layer"] for row in decode["layers"]}  # a step without prompts has none of them
    assert len(of_prompts) < len(layers) / 2
    assert {row["layer"] for row in decode["layers"]} <= set(layers)
    assert layers["layers.*/attention/attention"]["flops"] > 0
    floors = [sum(row["flops"] for row in phase["layers"]) for phase in (prefill, decode)]
    assert floors == pytest.approx([prefill["flops"], decode["flops"]], rel=0.02)  # the rest is folded by torch
    assert "Roofline of a decode" in Path("r.html").read_text()


@pytest.fixture
def _compiler() -> Iterator[None]:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs g++")
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("_compiler")
def test_torch_compile_computes_the_same(config: Path, trtkit: Run) -> None:
    words = ("--unverified", "--batch", "1,2", "--compare", "torch.compile", *QUICK, "--json")
    for case in trtkit("bench", "m.yaml", *words).json()["cases"]:
        _, compiled = case["results"]
        assert compiled["computes"] == "torch.compile, CPU, fp32"
        assert compiled["difference"] < 1e-5
        assert np.median(compiled["samples"]["latency"]) < 5000  # compiling was not in a measured round


def test_torch_compile_says_which_compiler_is_missing(
    config: Path, trtkit: Run, refuses: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trtkit("build", "m.yaml", "-q")
    monkeypatch.setenv("CXX", "no-such-compiler")
    words = ("--unverified", "--trust-source", "--compare", "torch.compile", "-q")
    assert refuses("bench", "bundles/m", *words) == (
        "--compare torch.compile: torch.compile needs the C++ compiler `no-such-compiler`, which was not found\n"
        "fix: install it, or set CXX to another compiler; --compare torch needs none"
    )


def test_what_is_neither_a_bundle_nor_a_model_is_refused(
    workspace: Path, refuses: Callable[..., str], trtkit: Run
) -> None:
    error = refuses("bench", "nobody", "--set", "precision=fp16", "-q", code=2)
    assert error.startswith("no bundle, config or model is called `nobody`\n")
    (workspace / "m.onnx").write_text("nothing")
    ran = trtkit("bench", "m.onnx", "-q")
    assert (ran.code, "Traceback" in ran.err) == (1, False), ran.err

"""`trtkit bench` of networks: measurements, contenders, output, refusals. No test depends on speed."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.models import classifier, matmul, save, two_inputs
from trtkit.benchmarking.statistics import ratio_of_medians
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

    Run = Callable[..., Ran]

QUICK = ("--min-runs", 6, "--min-seconds", 0.01, "--max-seconds", 1, "--warmup", 1, "-q")


def build(folder: Path, name: str = "tiny", model: Any = None, profiles: str = "- batch: [1, 2, 4]") -> Path:
    save(model or classifier(), folder / f"{name}.onnx")
    (folder / f"{name}.yaml").write_text(f"source: {{onnx: {folder / name}.onnx}}\nprofiles:\n  {profiles}\n")
    return build_bundle(load_config(str(folder / f"{name}.yaml")), folder / name, new_runner()).bundle.path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that was verified."""
    from trtkit.bundle.bundle import open_bundle
    from trtkit.verification.verify import VerifySettings, verify_bundle

    path = build(tmp_path_factory.mktemp("tiny"))
    assert verify_bundle(open_bundle(path), VerifySettings(), new_runner()).passed
    return path


def test_every_figure_follows_from_the_samples_and_says_what_computed(bundle: Path, trtkit: Run) -> None:
    found = trtkit("bench", bundle, "--compare", "onnxruntime", "--json", *QUICK).json()
    assert [case["name"] for case in found["cases"]] == [f"images {batch}x3x16x16" for batch in (1, 2, 4)]
    for case in found["cases"]:
        ours, theirs = case["results"]
        assert (ours["computes"], theirs["computes"]) == ("reference executor, CPU, fp32", "ONNX Runtime, CPU, fp32")
        assert (ours["difference"], theirs["difference"] < 1e-6) == (0, True)
        for result in (ours, theirs):
            samples, latency = result["samples"]["latency"], result["metrics"]["latency"]
            assert len(samples) >= 6
            assert latency["p90"] == pytest.approx(np.percentile(samples, 90))
            assert (latency["min"], latency["avg"]) == (min(samples), pytest.approx(np.mean(samples)))
            rate = result["metrics"]["throughput"]
            assert rate == {"unit": "samples/sec", "avg": pytest.approx(case["batch"] / np.median(samples) * 1e3)}
        wanted = ratio_of_medians(ours["samples"]["latency"], theirs["samples"]["latency"], is_paired=True)
        assert case["ratios"][0]["low"] == pytest.approx(wanted.low)


def test_rounds_are_interleaved(bundle: Path, trtkit: Run) -> None:
    found = trtkit("bench", bundle, "--batch", 1, "--compare", "onnxruntime", "--json", *QUICK).json()
    ours, theirs = (result["starts_ms"] for result in found["cases"][0]["results"])
    assert [(mine < other) for mine, other in zip(ours, theirs, strict=True)] == [i % 2 == 0 for i in range(len(ours))]
    assert max(ours[0], theirs[0]) < min(ours[1], theirs[1])


def test_files_have_provenance_and_what_computes_in_every_line(bundle: Path, tmp_path: Path, trtkit: Run) -> None:
    out, table = tmp_path / "r.json", tmp_path / "r.csv"
    ran = trtkit("bench", bundle, "--batch", "2,1", "--save", out, "--csv", table, *QUICK)
    assert ran.code == 0
    found = json.loads(out.read_text())
    assert [case["batch"] for case in found["cases"]] == [2, 1]
    about = found["provenance"]
    assert about["command"].startswith(f"trtkit bench {bundle} --batch 2,1 --save")
    assert {"measured_at", "machine", "versions"} <= about.keys()
    assert {"cores", "processor", "load_average", "torch_threads", "gpus"} <= about["machine"].keys()
    assert {"torch", "trtkit", "onnxruntime"} <= about["versions"].keys()
    assert len(found["bundle"]["build_key"]) == 64
    assert found["rules"]["min_runs"] == 6
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(row["case"], row["metric"]) for row in rows] == [
        (f"images {batch}x3x16x16", metric) for batch in (2, 1) for metric in ("latency", "throughput")
    ]
    assert {row["computes"] for row in rows} == {"reference executor, CPU, fp32"}
    assert all(row["verification"].startswith("verified at ") for row in rows)
    assert float(rows[0]["p95"]) == found["cases"][0]["results"][0]["metrics"]["latency"]["p95"]
    assert ran.out.count("reference") >= 4  # the heading, what its times are, and each line, which may be broken


def test_another_bundle_and_torch_are_rivals(bundle: Path, tmp_path: Path, trtkit: Run) -> None:
    other = build(tmp_path, "other", classifier(seed=5))
    words = ["bench", bundle, "--batch", 1, "--compare", other, "--json", "--unverified", *QUICK]
    ours, theirs = trtkit(*words).json()["cases"][0]["results"]
    assert (ours["contender"], theirs["contender"]) == ("trtkit", str(other))
    assert theirs["difference"] > 0.01  # its weights are others: the reader sees that it is another model


@pytest.mark.slow
def test_efficientnet_beside_torch_computes_the_same(tmp_path: Path, trtkit: Run) -> None:
    config = load_config("efficientnet-lite0")
    path = build_bundle(config, tmp_path / "lite0", new_runner()).bundle.path
    words = ["--batch", 1, "--unverified", "--compare", "torch", "--compare", "onnxruntime", "--json", *QUICK]
    words += ["--trust-source"]
    found = trtkit("bench", path, *words).json()
    assert found["inputs"] == "chelsea.png, cut or repeated to each shape"
    assert [result["computes"] for result in found["cases"][0]["results"]] == [
        "reference executor with ONNX Runtime, CPU, fp32",
        "PyTorch eager, CPU, fp32",
        "ONNX Runtime, CPU, fp32",
    ]
    assert max(result["difference"] for result in found["cases"][0]["results"]) < 1e-4
    assert [ratio["denominator"] for ratio in found["cases"][0]["ratios"]] == ["torch", "onnxruntime"]


def test_static_networks_and_several_inputs(tmp_path: Path, trtkit: Run) -> None:
    static = build(tmp_path, "static", matmul(batch=3), "[]")
    case = trtkit("bench", static, "--unverified", "--json", *QUICK).json()["cases"]
    assert [(each["name"], each["batch"]) for each in case] == [("x 3x3", 3)]
    two = build(tmp_path, "two", two_inputs(), "- {batch: [1, 2, 8], tokens: [1, 5, 9]}")
    case = trtkit("bench", two, "--unverified", "--batch", 7, "--json", *QUICK).json()["cases"]
    assert [each["name"] for each in case] == ["ids 7x5, mask 7x5"]


def test_a_bundle_that_was_not_verified_is_refused(tmp_path: Path, refuses: Callable[..., str], trtkit: Run) -> None:
    path = build(tmp_path)
    fix = f"fix: run `trtkit verify {path}`, or benchmark anyway with `--unverified`"
    assert refuses("bench", path, "-q") == f"{path}: the bundle was never verified\n{fix}"
    ran = trtkit("bench", path, "--unverified", "--batch", 1, *QUICK)
    assert ran.code == 0
    assert "UNVERIFIED: the bundle was never verified" in ran.out
    manifest = json.loads((path / "manifest.json").read_text())
    verify = {"passed": False, "verdict": "FAIL (out of tolerance)", "reference": "x", "verified_at": "", "trtkit": ""}
    (path / "manifest.json").write_text(json.dumps(manifest | {"verify": verify}))
    said = "the bundle did not pass verification: FAIL (out of tolerance)"
    assert refuses("bench", path, "-q") == f"{path}: {said}\n{fix}"
    assert refuses("bench", path, "--compare", path, "-q") == f"{path}: {said}\n{fix}"


def test_what_cannot_be_compared_or_written_is_refused(bundle: Path, refuses: Callable[..., str]) -> None:
    kinds = "torch, torch.compile, onnxruntime, for a language model transformers, or a bundle's folder"
    assert refuses("bench", bundle, "--compare", "tf", "-q") == (
        f"--compare: cannot compare with `tf`\nfix: use {kinds}"
    )
    assert refuses("bench", bundle, "--compare", "torch", "-q") == (
        "--compare torch: an ONNX source has no PyTorch module\nfix: use --compare onnxruntime"
    )
    assert refuses("bench", bundle, "--batch", 5, "-q") == (
        "--batch: no profile takes a batch of 5\nfix: give 1 to 4, or widen the profile and build again"
    )
    assert refuses("bench", "nowhere", "-q", code=2).startswith("no bundle, config or model is called `nowhere`\n")


def test_wrong_options_are_usage_errors(bundle: Path, trtkit: Run, workspace: Path) -> None:
    for words, message in (
        (("--batch", "0"), "'0' is not a comma-separated list of positive numbers, such as 1,4,16"),
        (("--batch", "1,x"), "'1,x' is not a comma-separated list"),
        (("--save", "no/where.json"), "cannot write `no/where.json`: no such folder"),
    ):
        ran = trtkit("bench", bundle, *words)
        assert (ran.code, ran.out, message in ran.err) == (2, "", True)
    assert list(workspace.iterdir()) == []


def test_a_report_that_cannot_be_written_leaves_nothing(bundle: Path, workspace: Path, trtkit: Run) -> None:
    (workspace / "r.json").mkdir()
    ran = trtkit("bench", bundle, "--batch", 1, "--save", "r.json", *QUICK)
    assert ran.code == 2
    assert [path.name for path in workspace.iterdir()] == ["r.json"]


INTERRUPTED = """\
import os, signal, threading
from trtkit.benchmarking import timing
from trtkit.cli import main

measure = timing.measure

def interrupted(*arguments):
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    return measure(*arguments)

timing.measure = interrupted
main()
"""


def test_ctrl_c_leaves_nothing(bundle: Path, workspace: Path) -> None:
    words = ["bench", str(bundle), "--batch", "1", "--min-seconds", "120", "--max-seconds", "120", "--save", "r.json"]
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert list(workspace.iterdir()) == []

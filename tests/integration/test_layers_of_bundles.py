"""A bundle runs without TensorRT and its source; if its layers map source files, these must be unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.support import tiny_llm
from tests.support.models import classifier, save
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.load import load_config
from trtkit.config.schema import ModelConfig
from trtkit.errors import BundleError
from trtkit.files import sha256_of
from trtkit.jobs.runner import new_runner
from trtkit.llm.execution import Call, ReferenceDecoder
from trtkit.llm.execution.network import bundle_network, written_network
from trtkit.runtime.onnx_runtime import onnx_runtime_session

if TYPE_CHECKING:
    from pathlib import Path

PROFILE = {"images": {"min": [1, 3, 16, 16], "opt": [2, 3, 16, 16], "max": [4, 3, 16, 16]}}
WITHOUT_TENSORRT = """
import sys
sys.modules["tensorrt_rtx"] = sys.modules["tensorrt"] = None
import trtkit
"""
ANSWERS = (
    WITHOUT_TENSORRT
    + """
llm = trtkit.LLM(sys.argv[1], runtime="reference")
params = trtkit.SamplingParams(temperature=0, max_tokens=6)
print([list(output.outputs[0].token_ids) for output in llm.generate(["hello there"], params)])
"""
)
SCORES = (
    WITHOUT_TENSORRT
    + """
import numpy as np
model = trtkit.open_model(sys.argv[1], "reference")
x = np.linspace(-1, 1, 2 * 3 * 16 * 16, dtype=np.float32).reshape(2, 3, 16, 16)
print(model.run({"images": x})["logits"].tolist())
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model's bundle in the precision of its checkpoint, and its source."""
    folder = tmp_path_factory.mktemp("layers")
    tiny_llm.save(folder / "hf")
    text = "source: {hf: hf}\nprecision: fp32\n"
    text += "llm: {max_batch_size: 2, max_sequence_length: 64, max_prefill_length: 16, logits: last}\n"
    (folder / "m.yaml").write_text(text)
    build_bundle(load_config(str(folder / "m.yaml")), folder / "m", new_runner())
    return folder


def run_in_python(code: str, bundle: Path) -> str:
    ended = subprocess.run([sys.executable, "-c", code, str(bundle)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip().splitlines()[-1]


def test_a_language_model_runs_without_tensorrt_and_without_reading_its_config_again(folder: Path) -> None:
    with LLM(folder / "m", runtime="reference") as llm:
        wanted = llm.generate(["hello there"], SamplingParams(temperature=0, max_tokens=6))[0].outputs[0].token_ids
    config = folder / "hf/config.json"
    config.rename(folder / "config.json")
    try:
        assert json.loads(run_in_python(ANSWERS, folder / "m")) == [list(wanted)]
    finally:
        (folder / "config.json").rename(config)


def test_the_bundle_holds_no_second_copy_of_the_checkpoint(folder: Path) -> None:
    (stage,) = open_bundle(folder / "m").manifest.stages
    assert stage.layers is not None
    assert stage.layers.sources
    held = 0 if stage.layers.weights is None else stage.layers.weights.size_bytes
    assert held < (folder / "hf/model.safetensors").stat().st_size / 4


def test_layers_that_were_read_compute_what_the_written_network_does(folder: Path) -> None:
    bundle = open_bundle(folder / "m")
    call = Call(0, np.array([[5, 9, 30, 12]]), np.array([0]), np.array([4]))
    one, other = (ReferenceDecoder(make(bundle), 2).forward(call) for make in (bundle_network, written_network))
    assert torch.equal(one, other)


def test_a_changed_source_is_refused(folder: Path) -> None:
    weights = folder / "hf/model.safetensors"
    before = weights.read_bytes()
    try:
        weights.write_bytes(before[:-4] + b"\0\0\0\0")
        with pytest.raises(BundleError, match=r"model\.safetensors: the source has changed since the bundle was built"):
            bundle_network(open_bundle(folder / "m"))
        weights.unlink()
        with pytest.raises(BundleError, match=r"model\.safetensors: cannot be read"):
            bundle_network(open_bundle(folder / "m"))
    finally:
        weights.write_bytes(before)


def test_a_classifier_runs_without_tensorrt_and_its_onnx_file(tmp_path: Path) -> None:
    source = save(classifier(), tmp_path / "m.onnx")
    config = ModelConfig.model_validate({"name": "m", "source": {"onnx": str(source)}, "profiles": [PROFILE]})
    bundle = build_bundle(config, tmp_path / "m", new_runner()).bundle
    x = np.linspace(-1, 1, 2 * 3 * 16 * 16, dtype=np.float32).reshape(2, 3, 16, 16)
    wanted = onnx_runtime_session(bundle.onnx_path()).run(None, {"images": x})[0]
    source.unlink()
    assert np.allclose(json.loads(run_in_python(SCORES, bundle.path)), wanted, rtol=1e-5, atol=1e-6)


def test_a_large_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("trtkit.files._SETTLED_NS", -1)
    counted: list[object] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: counted.append(args) or digest(*args))
    file = tmp_path / "large"
    file.write_bytes(bytes(5 << 20))
    first = sha256_of(file)
    assert (sha256_of(file), len(counted)) == (first, 1)
    with file.open("r+b") as opened:
        opened.write(b"x")
    os.utime(file, ns=(0, 0))
    changed = sha256_of(file)
    assert (changed != first, len(counted)) == (True, 2)
    (tmp_path / "cache/digests.json").write_text("[")
    assert (sha256_of(file), len(counted)) == (changed, 3)


def test_opening_hashes_each_file_of_a_network_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr("trtkit.bundle.bundle.sha256_of", lambda path: hashed.append(path) or sha256_of(path))
    with LLM(folder / "m", runtime="reference"):
        layers = [path for path in hashed if path.parent.name == "engines"]
        assert sorted(path.name for path in layers) == ["m.layers.json", "m.weights"]


def test_changed_layers_are_refused(folder: Path) -> None:
    for name in ("m.layers.json", "m.weights"):
        file = folder / "m/engines" / name
        before = file.read_bytes()
        try:
            file.write_bytes(before[:-1] + b"?")
            with pytest.raises(BundleError, match=rf"{name}: the file has changed since the build"):
                LLM(folder / "m", runtime="reference")
        finally:
            file.write_bytes(before)

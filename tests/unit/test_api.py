"""The names of the Python API: all there, documented, and not imported before they are used."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import trtkit
from trtkit.config.schema import ModelConfig
from trtkit.errors import BundleError, ConfigError, SourceError
from trtkit.verification.evaluation import Answer, Compared, Distance, Evaluation, Perplexity, Questions

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [name for name in trtkit.__all__ if name != "__version__"]
HEAVY = {"numpy", "torch", "pydantic", "yaml", "click", "onnx", "tensorrt_rtx"}


def modules_after(code: str) -> set[str]:
    """Return the modules that a new interpreter has after `code`."""
    words = [sys.executable, "-c", f"{code}; import sys; print(' '.join(sys.modules))"]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    modules = modules_after("import trtkit; assert 'build' in dir(trtkit)")
    assert {name for name in modules if name.startswith("trtkit.")} == {"trtkit.lazy_names", "trtkit.version"}
    assert modules & HEAVY == set()


def test_reading_a_config_imports_neither_torch_nor_tensorrt() -> None:
    modules = modules_after("import trtkit; trtkit.load_config('resnet50', precision='fp16')")
    assert "pydantic" in modules
    assert modules & {"torch", "onnx", "tensorrt_rtx"} == set()


def test_every_name_is_there_and_says_what_it_does() -> None:
    for name in NAMES:
        value = getattr(trtkit, name)
        assert inspect.getdoc(value), name
        assert name in dir(trtkit)
    with pytest.raises(AttributeError, match="module `trtkit` has no attribute `bild`"):
        trtkit.bild  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize("name", [name for name in NAMES if name.islower()])
def test_every_argument_is_explained(name: str) -> None:
    """Arguments that say all by name, and `keys`, which the module explains, need no words of their own."""
    function = getattr(trtkit, name)
    doc = inspect.getdoc(function) or ""
    plain = {"model", "bundle", "repository", "on_event", "keys"}
    assert [arg for arg in inspect.signature(function).parameters if arg not in plain and f"{arg}" not in doc] == []
    assert "Raises" in doc


@pytest.mark.parametrize(
    "package",
    [
        "verification.verify",
        "planning.plan",
        "builder.quantize",
        "builder.export",
        "deployment.triton.deploy",
        "builder.build",
        "api",
    ],
)
def test_packages_do_not_shadow_functions(package: str) -> None:
    importlib.import_module(f"trtkit.{package}")
    assert [name for name in NAMES if inspect.ismodule(getattr(trtkit, name))] == []


def test_a_path_stands_for_a_config(workspace: Path) -> None:
    (workspace / "m.onnx").write_bytes(b"")
    (workspace / "m.gguf").write_bytes(b"")
    for folder, text in (("saved", "{}"), ("rank", '{"architecture": "LlamaForCausalLM"}')):
        (workspace / folder).mkdir()
        (workspace / folder / "config.json").write_text(text)
    expected = {"m.onnx": "onnx", "m.gguf": "gguf", "saved": "hf", "rank": "trtllm"}
    for path, kind in expected.items():
        assert getattr(trtkit.load_config(path).source, kind) == str(workspace / path)
    assert trtkit.load_config("resnet50").name == "resnet50"


def test_keywords_are_keys(workspace: Path) -> None:
    (workspace / "my.yaml").write_text("source: {hf: folder}\nllm: {max_sequence_length: 96, max_prefill_length: 32}\n")
    config = trtkit.load_config("my.yaml", precision="fp16", llm={"max_batch_size": 2}, **{"build.max_threads": 3})
    assert isinstance(config, ModelConfig)
    assert config.llm is not None
    assert (config.precision, config.build.max_threads) == ("fp16", 3)
    assert (config.llm.max_batch_size, config.llm.max_sequence_length) == (2, 96)
    changed = trtkit.load_config(config, source={"onnx": workspace / "m.onnx"}, llm=None)
    assert changed.source.model_dump(exclude_none=True) == {"onnx": str(workspace / "m.onnx")}
    assert changed.llm is None
    assert (changed.name, changed.precision) == ("my", "fp16")
    assert trtkit.load_config(config) is config


def test_wrong_keywords_are_named(workspace: Path) -> None:
    (workspace / "m.onnx").write_bytes(b"")
    with pytest.raises(ConfigError) as caught:
        trtkit.load_config("m.onnx", precisoin="fp16", precision="fp15")
    message = str(caught.value)
    assert "precision='fp15': precision: 'fp15' is not allowed" in message
    assert "precisoin='fp16': unknown key `precisoin`" in message
    assert "did you mean `precision`?" in message
    with pytest.raises(ConfigError, match="`key`: its parent is a plain value"):
        trtkit.load_config("m.onnx", **{"source.onnx.key": 1})


def test_what_is_no_model_is_refused(workspace: Path) -> None:
    for name in ("missing.onnx", "missing.gguf"):
        with pytest.raises(SourceError, match="no such file"):
            trtkit.load_config(name)
    (workspace / "empty").mkdir()
    with pytest.raises(SourceError, match="the folder has no `config\\.json`"):
        trtkit.load_config("empty")
    with pytest.raises(BundleError, match="not a bundle"):
        trtkit.verify("empty")
    with pytest.raises(ConfigError, match="no bundle, config or model is called `nothing`"):
        trtkit.build("nothing")


def test_an_evaluation_is_data_and_text() -> None:
    read, distance = Perplexity(12.5, 2, 64, 128, 2.0, 128.0), Distance(12.0, 0.041666, 0.01, 0.9)
    questions = Questions((Answer("2 + 2?", "4", True), Answer("Capital?", "Rome", False)), 2)
    whole = Evaluation("t.txt", "reference executor", read, distance, questions, Compared("base", 20, 10))
    data = whole.to_json()
    assert list(data)[-2:] == ["compared", "questions"]
    assert data["compared"] == {
        **{"perplexity": 12.0, "change": 0.041666, "divergence_nats": 0.01, "same_tokens": 0.9},
        **{"bundle": "base", "engine_bytes": 20, "own_engine_bytes": 10},
    }
    assert str(whole).splitlines()[1:] == [
        "perplexity: 12.5000 on 128 tokens of t.txt",
        "change: +4.17%, 0.0100 nats per token",
        "answers: 1 of 2 right",
    ]
    assert Evaluation(None, "x").to_json() == {"text": None, "runtime": "x"}

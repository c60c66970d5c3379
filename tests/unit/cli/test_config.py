from __future__ import annotations

import json
from typing import TYPE_CHECKING

import onnx
import pytest
import yaml

from tests.support import tiny_llm
from tests.support.models import classifier
from trtkit.config import ModelConfig, load_config
from trtkit.config.load import configs_folder, shipped_configs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


def test_config_of_an_onnx_file_builds(trtkit: Callable[..., Ran], workspace: Path) -> None:
    onnx.save(classifier(size="side"), str(workspace / "tiny.onnx"))
    assert trtkit("config", "init", "tiny.onnx", "--save", "tiny.yaml").out == "wrote tiny.yaml\n"
    text = (workspace / "tiny.yaml").read_text()
    data = yaml.safe_load(text)
    assert data["source"] == {"onnx": "tiny.onnx"}  # relative to the config
    assert set(data["profiles"][0]) == {"batch", "side"}
    assert "# Where the model comes from." in text
    assert trtkit("build", "tiny.yaml", "--quiet").code == 0


def test_config_of_a_language_model_builds(trtkit: Callable[..., Ran], workspace: Path) -> None:
    tiny_llm.save(workspace / "model")
    (workspace / "model.yaml").write_text(trtkit("config", "init", "model").out)
    config = load_config("model.yaml")
    assert config.llm is not None
    assert config.llm.max_prefill_length <= config.llm.max_sequence_length <= 4096
    assert trtkit("build", "model.yaml", "--quiet").code == 0


@pytest.mark.parametrize("name", shipped_configs())
def test_config_of_a_shipped_config_means_the_same(name: str, trtkit: Callable[..., Ran], workspace: Path) -> None:
    (workspace / f"{name}.yaml").write_text(trtkit("config", "init", name).out)
    assert load_config(f"{name}.yaml") == load_config(name)


def test_keys_that_are_offered_are_valid(trtkit: Callable[..., Ran], workspace: Path) -> None:
    tiny_llm.save(workspace / "model")
    onnx.save(classifier(), str(workspace / "tiny.onnx"))
    for source in ("model", "tiny.onnx"):
        text = trtkit("config", "init", source).out
        fixed, marker, offered = text.partition("`#`:\n")
        assert marker
        assert offered
        ModelConfig.model_validate(yaml.safe_load(fixed + marker + offered.replace("# ", "")))


def test_init_does_not_overwrite(trtkit: Callable[..., Ran], workspace: Path) -> None:
    (workspace / "mine.yaml").write_text("mine")
    ran = trtkit("config", "init", "llama", "--save", "mine.yaml")
    assert (ran.code, (workspace / "mine.yaml").read_text()) == (2, "mine")
    assert "`mine.yaml` already exists; choose another file or add --force" in ran.err
    assert trtkit("config", "init", "llama", "--save", "mine.yaml", "--force").code == 0


def test_init_of_what_is_not_a_model(refuses: Callable[..., str], workspace: Path) -> None:
    (workspace / "notes.txt").write_text("hello")
    assert "notes.txt: not a model\nfix: give an .onnx or .gguf file" in refuses("config", "init", "notes.txt")
    assert "nothing.onnx: no such file" in refuses("config", "init", "nothing.onnx")


def test_validate_lists_every_fault(trtkit: Callable[..., Ran], workspace: Path) -> None:
    (workspace / "bad.yaml").write_text("source: {onnx: m.onnx}\nprecision: fp3\nprofile: []\n")
    ran = trtkit("config", "validate", "bad.yaml", "--json")
    assert ran.code == 2
    problems = ran.json()["problems"]
    assert {problem["where"] for problem in problems} == {"bad.yaml:2", "bad.yaml:3"}
    for problem in problems:
        assert problem["what"] in ran.err


def test_validate_knows_targets_and_keys_of_other_models(trtkit: Callable[..., Ran], workspace: Path) -> None:
    assert trtkit("config", "validate", "resnet50").out == "resnet50: valid\n"
    assert trtkit("config", "validate", "resnet50", "--json").json()["config"]["precision"] == "fp32"
    assert trtkit("config", "validate", "resnet50", "--target", "sm1").code == 2
    ran = trtkit("config", "validate", "resnet50", "--set", "llm.max_batch_size=2")
    assert ran.code == 2
    assert "llm: does not apply to an ONNX file" in ran.err


def test_schema_takes_every_shipped_config(trtkit: Callable[..., Ran], workspace: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert trtkit("config", "schema", "--save", "schema.json").code == 0
    schema = json.loads((workspace / "schema.json").read_text())
    assert schema == json.loads(trtkit("config", "schema").out)
    validator = jsonschema.Draft202012Validator(schema)
    for name in shipped_configs():
        validator.validate(yaml.safe_load((configs_folder() / f"{name}.yaml").read_text()))
    faults = ({"source": {}, "precison": "fp16"}, {"source": {"onnx": "m"}, "profiles": [{"batch": "many"}]})
    for fault in faults:
        assert not validator.is_valid(fault)

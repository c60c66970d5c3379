"""Damaged configs end in a ConfigError: never in another exception, a hang or much memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.fuzz import byte_changes, json_changes, must_end
from trtkit.config.load import load_config
from trtkit.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """\
source:
  torch:
    factory: a.b:c
    kwargs: {classes: 80}
    inputs:
      images: {shape: [batch, 3, height, 224], dtype: fp32}
    outputs: [logits]
precision: fp16
keep_fp32: ["*/head/*", "op:Softmax"]
profiles:
  - batch: [1, 8, 32]
    height: {min: 320, opt: 640, max: 1280, multiple_of: 32}
target: any
llm: {max_batch_size: 2, max_sequence_length: 64, max_prefill_length: 16}
quantize: {method: int8, calibration: {data: photos}, layers: {a: int4_wo}, parts: {vision: {method: fp8}}}
preprocess: {resize: {exact: [16, 16]}, mean: [0, 0, 0], std: [1, 1, 1]}
task: {kind: classification, labels: l.json}
verify: {inputs: [a.png], ranges: {x: [0, 1]}}
"""


def test_changed_bytes(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    for changed in byte_changes(CONFIG.encode(), 150):
        file.write_bytes(changed)
        must_end(lambda: load_config(str(file)), changed)


def test_changed_values(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    for changed in json_changes(yaml.safe_load(CONFIG), 100):
        file.write_text(yaml.safe_dump(changed), encoding="utf-8", errors="surrogateescape")
        must_end(lambda: load_config(str(file)), changed)


LEVELS = [f"k{level}: &k{level} [*k{level - 1}, *k{level - 1}]\n" for level in range(1, 21)]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("k0: &k0 [x, x]\n" + "".join(LEVELS), "aliases expand to more than 100000 values"),
        ("a: &a [*a]\n", "an alias contains itself"),
        ("a: " + "[" * 1000, "not valid YAML: values are nested too deeply"),
    ],
)
def test_bombs_are_refused(text: str, what: str, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(file))
    assert str(caught.value) == f"invalid config\n  {file}:1: {what}"

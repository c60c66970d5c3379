"""Every fault of a config is named with its line, in the user's words, all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trtkit.config import load_config
from trtkit.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def problems(folder: Path, text: str, *overrides: str) -> list[str]:
    """Load a config that is faulty and return its problems as `where: what | fix`, without the folder."""
    (folder / "my.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(folder / "my.yaml"), overrides)
    assert caught.value.exit_code == 2
    found = []
    for problem in caught.value.problems:
        line = f"{problem.where}: {problem.what}" + (f" | {problem.fix}" if problem.fix else "")
        found.append(line.replace(f"{folder}/", ""))
    return found


def test_unknown_key_names_its_line_and_the_nearest_key(tmp_path: Path) -> None:
    assert problems(tmp_path, "source: {onnx: m}\n\nprecison: fp16\n") == [
        "my.yaml:3: unknown key `precison` | did you mean `precision`? all: `trtkit config schema`"
    ]


def test_unknown_key_inside_a_section_lists_that_sections_keys(tmp_path: Path) -> None:
    assert problems(tmp_path, "source:\n  onnx: m\nbuild:\n  max_thread: 2\n") == [
        "my.yaml:4: unknown key `max_thread` in `build` | did you mean `max_threads`? "
        "known: max_threads, optimization_level, sparse_weights, weight_streaming, workspace_gib"
    ]


def test_unknown_key_of_a_torch_input_is_found_below_its_name(tmp_path: Path) -> None:
    text = "source:\n  torch:\n    factory: a:b\n    inputs:\n      x: {shape: [1], dtyp: fp32}\n"
    assert problems(tmp_path, text) == [
        "my.yaml:5: unknown key `dtyp` in `source.torch.inputs.x` | did you mean `dtype`? known: dtype, shape"
    ]


def test_all_faults_are_shown_at_once(tmp_path: Path) -> None:
    text = "source:\n  onnx: m\nprecision: fp61\nbuild:\n  optimization_level: 9\n  workspace_gib: 0\ntargt: any\n"
    assert problems(tmp_path, text) == [
        "my.yaml:3: precision: 'fp61' is not allowed | use one of 'fp32', 'fp16' or 'bf16'",
        "my.yaml:6: build.workspace_gib: 0 should be greater than 0",
        "my.yaml:5: build.optimization_level: 9 should be less than or equal to 5",
        "my.yaml:7: unknown key `targt` | did you mean `target`? all: `trtkit config schema`",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fold_constants: 'yes'", "fold_constants: 'yes' should be a valid boolean"),
        ("keep_fp32: head", "keep_fp32: 'head' should be a valid list"),
        ("name: a/b", r"name: 'a/b' string should match pattern '^[\w.-]*$'"),
        ("build: {max_threads: '2'}", "build.max_threads: '2' should be a valid integer"),
        ("build: {max_threads: true}", "build.max_threads: True should be a valid integer"),
        ("build: {workspace_gib: .inf}", "build.workspace_gib: inf should be a finite number"),
        ("build: 3", "build: 3 should be a mapping of keys"),
        ("profiles: {batch: 3}", "profiles: {'batch': 3} should be a valid list"),
    ],
)
def test_wrong_type_names_key_and_value(text: str, expected: str, tmp_path: Path) -> None:
    assert problems(tmp_path, f"source: {{onnx: m}}\n{text}\n") == [f"my.yaml:2: {expected}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch: [8, 4, 32]", "min <= opt <= max does not hold: 8, 4, 32"),
        ("batch: [1, 8]", "a range has three entries, `[min, opt, max]`; this one has 2"),
        ("batch: many", "a range is `N`, `[min, opt, max]` or three shapes, not 'many'"),
        ("batch: ['1', 8, 32]", "'1' should be a valid integer"),
        ("batch: [-1, 8, 32]", "-1 should be greater than or equal to 0"),
        ("batch: {min: 1, opt: 8}", "missing"),
        ("batch: [[1, 3], [2], [4, 3]]", "min, opt and max differ in rank: 2, 1, 2"),
        ("batch: [[1, 3], [2, 3], [1, 3]]", "min <= opt <= max does not hold on axis 0: 1, 2, 1"),
    ],
)
def test_faulty_range_says_what_a_range_is(text: str, expected: str, tmp_path: Path) -> None:
    found = problems(tmp_path, f"source: {{onnx: m}}\nprofiles:\n  - x.3: 2\n    {text}\n")
    assert len(found) == 1
    assert found[0].startswith("my.yaml:4: ")
    assert "profiles.0.batch" in found[0]
    assert expected in found[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("source: {}", "source: give exactly one of `onnx`, `torch`, `hf`, `gguf`, `trtllm`; got none"),
        (
            "source: {onnx: a, hf: b}",
            "source: give exactly one of `onnx`, `torch`, `hf`, `gguf`, `trtllm`; got `onnx` and `hf`",
        ),
        ("target: any", "key `source` is missing | add `source:`"),
        ("source: {torch: {factory: a:b}}", "key `source.torch.inputs` is missing | add `source.torch.inputs:`"),
    ],
)
def test_source_is_exactly_one(text: str, expected: str, tmp_path: Path) -> None:
    assert problems(tmp_path, text) == [f"my.yaml:1: {expected}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1, 2\nb: 3", "my.yaml:2: not valid YAML: expected ',' or ']', but got ':'"),
        ("- source", "my.yaml:1: a config must be a mapping with keys such as `source:`"),
        ("", "my.yaml:1: a config must be a mapping with keys such as `source:`"),
        ("target: any\ntarget: sm80", "my.yaml:2: duplicate key `target`"),
        (
            "source: {onnx: m}\nname: !!python/name:os.system",
            "my.yaml:2: not valid YAML: "
            "could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.system'",
        ),
        ("name: !!int many", "my.yaml:1: not valid YAML: invalid literal for int() with base 10: 'many'"),
        ("source: &a {b: *a}", "my.yaml:1: an alias contains itself"),
    ],
)
def test_faulty_yaml_is_named_with_its_line(text: str, expected: str, tmp_path: Path) -> None:
    assert problems(tmp_path, text) == [expected]


def test_faults_of_options_point_at_the_option(tmp_path: Path) -> None:
    assert problems(tmp_path, "source: {onnx: m}\n", "precision=fp8", "bild.max_threads=2") == [
        "--set precision=fp8: precision: 'fp8' is not allowed | use one of 'fp32', 'fp16' or 'bf16'",
        "--set bild.max_threads=2: unknown key `bild` | did you mean `build`? all: `trtkit config schema`",
    ]

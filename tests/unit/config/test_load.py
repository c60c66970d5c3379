from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from trtkit.bundle.bundle import open_bundle
from trtkit.config import load_config, load_target, shipped_configs, shipped_targets
from trtkit.config.llm import LlmOptions
from trtkit.config.load import config_for_source, find_model_config
from trtkit.config.schema import DimRange, ShapeRange
from trtkit.errors import BundleError, ConfigError

IMAGES = {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}}
TWO_LINES = "source:\n  onnx: model.onnx\n"


def write(folder: Path, text: str, name: str = "my.yaml") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_two_lines_are_a_whole_config(workspace: Path) -> None:
    config = load_config(write(workspace, TWO_LINES))
    assert config.name == "my"
    assert config.source.onnx == str(workspace / "model.onnx")
    assert (config.precision, config.io_types, config.target) == ("fp32", "model", "any")
    assert (config.profiles, config.keep_fp32, config.fold_constants) == ((), (), True)
    assert config.build.model_dump() == {
        "workspace_gib": None,
        "optimization_level": 3,
        "max_threads": 1,
        "weight_streaming": False,
        "sparse_weights": False,
    }


def test_paths_in_a_file_are_relative_to_the_file_and_in_set_to_the_current_folder(workspace: Path) -> None:
    path = write(workspace, TWO_LINES, "deep/my.yaml")
    assert load_config(path).source.onnx == str(workspace / "deep/model.onnx")
    assert load_config(path, ["source.onnx=other.onnx"]).source.onnx == str(workspace / "other.onnx")


def test_home_and_package_paths_keep_their_meaning(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    path = write(workspace, "source: {onnx: ~/m.onnx}\n")
    assert load_config(path).source.onnx == "/home/ada/m.onnx"
    assert load_config(path, ["source.onnx=package://onnx/m.onnx"]).source.onnx == "package://onnx/m.onnx"


def test_ranges_have_short_and_long_forms(workspace: Path) -> None:
    text = """\
        profiles:
          - batch: [1, 8, 32]
            x.2: 48
            height: {min: 32, opt: 64, max: 96}
            images: [[1, 3], [2, 3], [4, 3]]
            masks: {min: [1], opt: [2], max: [4]}
        """
    profile = load_config(write(workspace, TWO_LINES + text.replace(" " * 8, ""))).profiles[0]
    assert profile == {
        "batch": DimRange(min=1, opt=8, max=32),
        "x.2": DimRange(min=48, opt=48, max=48),
        "height": DimRange(min=32, opt=64, max=96),
        "images": ShapeRange(min=(1, 3), opt=(2, 3), max=(4, 3)),
        "masks": ShapeRange(min=(1,), opt=(2,), max=(4,)),
    }


def test_a_files_stem_becomes_a_name_that_a_folder_may_have(workspace: Path) -> None:
    assert load_config(write(workspace, TWO_LINES, "my model (2).yaml")).name == "my-model--2-"
    assert config_for_source("onnx", Path("my model.onnx")).name == "my-model"


def test_target_option_wins_over_the_file(workspace: Path) -> None:
    path = write(workspace, TWO_LINES + "target: sm80\n")
    assert load_config(path).target == "sm80"
    assert load_config(path, target="sm89").target == "sm89"


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_config_validates_with_and_without_its_suffix(name: str, workspace: Path) -> None:
    config = load_config(name)
    assert config.name == name
    assert config == load_config(f"{name}.yaml")
    assert config.description
    load_target(config.target)


def test_shipped_configs_are_the_ones_promised() -> None:
    promised = {"efficientnet-lite0", "mobilenet-v2", "ppocr-det", "ppocr-rec", "ppocr-cls", "resnet50", "vit"}
    assert promised <= set(shipped_configs())


def test_a_file_here_wins_over_a_shipped_config(workspace: Path) -> None:
    write(workspace, TWO_LINES, "resnet50.yaml")
    assert load_config("resnet50.yaml").source.onnx == str(workspace / "model.onnx")


def test_an_unknown_config_says_what_lists_the_shipped_ones(workspace: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("no/where.yaml")
    assert str(caught.value) == (
        "config `no/where.yaml` not found\n"
        "  neither a file nor a shipped config\n"
        "fix: give the path of a YAML file, or the name of a shipped config; all: `trtkit list`"
    )


@pytest.mark.parametrize("name", ["nowhere", "bundles/nowhere", "/nowhere", "", ".", "/"])
def test_a_missing_bundle_or_model_says_what_lists_and_builds_them(name: str, workspace: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(name)
    assert str(caught.value) == (
        f"no bundle, config or model is called `{name}`\n"
        "fix: `trtkit list` shows bundles and shipped configs; `trtkit build MODEL` builds a bundle"
    )


def test_a_missing_bundle_names_a_near_one_and_what_builds_it(workspace: Path) -> None:
    (workspace / "bundles" / "classifier").mkdir(parents=True)
    (workspace / "bundles" / "classifier" / "manifest.json").write_text("{}")
    with pytest.raises(BundleError) as caught:
        open_bundle("bundles/clasifier")
    assert caught.value.what == "no such bundle"
    assert caught.value.fix.startswith("did you mean `bundles/classifier`? ")
    with pytest.raises(BundleError) as caught:
        open_bundle("bundles/resnet50")
    assert str(caught.value) == "bundles/resnet50: no such bundle\nfix: build it: `trtkit build resnet50`"


def test_a_hub_id_names_the_command_that_fetches_it(workspace: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_model_config("meta-llama/Llama-3.2-1B")
    assert str(caught.value) == (
        "config `meta-llama/Llama-3.2-1B` not found\nfix: if it is a model on Hugging Face's hub: "
        "`trtkit build meta-llama/Llama-3.2-1B` downloads and builds it"
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("? [1]\n: 2\n", "m.yaml:1: a key is a list or a mapping; expected text"),
        ('source: {onnx: "a\\0b"}\n', "is not a path: "),
        ('source: {onnx: "~nobodyx/a"}\n', "is not a path: could not determine home directory"),
    ],
)
def test_keys_and_paths_that_cannot_be_are_refused(text: str, what: str, workspace: Path) -> None:
    write(workspace, text, "m.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config("m.yaml")
    assert what in str(caught.value)


@pytest.mark.parametrize("name", ["resnet50.yml", "resnet", "resmet50", "mine/resnet50.yaml"])
def test_unknown_config_suggests_a_name(name: str, workspace: Path) -> None:
    fix = "give the path of a YAML file" if "." in name else "`trtkit list` shows"
    with pytest.raises(ConfigError, match=rf"fix: did you mean `resnet50`\? {fix}"):
        load_config(name)


def test_unknown_path_suggests_what_its_folder_holds(workspace: Path) -> None:
    (workspace / "bundles" / "mine").mkdir(parents=True)
    (workspace / "bundles" / "mine" / "manifest.json").touch()
    write(workspace, TWO_LINES, "models.yaml")
    for name, near in (("bundles/mime", "bundles/mine"), ("modles.yaml", "models.yaml")):
        with pytest.raises(ConfigError, match=f"did you mean `{near}`"):
            load_config(name)


@pytest.mark.parametrize(
    ("name", "capability"), [("sm87", "8.7"), ("sm90", "9.0"), ("sm_100", "10.0"), ("sm110", "11.0")]
)
def test_a_capability_that_no_backend_builds_for_by_name_says_where_to_build(name: str, capability: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_target(name)
    assert str(refused.value) == (
        f"unknown target `{name}`: no backend builds for compute capability {capability} from another machine\n"
        f"  known targets: {', '.join(shipped_targets())}\n"
        "fix: build on that GPU itself, with full TensorRT and `--target local-gpu`"
    )


def test_a_capability_older_than_tensorrt_supports_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        load_target("sm70")
    assert str(refused.value) == (
        "unknown target `sm70`: TensorRT 11 does not support compute capability 7.0\n"
        f"  known targets: {', '.join(shipped_targets())}\n"
        "fix: use a GPU of compute capability 7.5 or newer"
    )


@pytest.mark.parametrize("name", shipped_targets())
def test_shipped_target_names_its_compute_capability(name: str) -> None:
    target = load_target(name)
    expected = (int(name.removeprefix("sm")),) if name.startswith("sm") else ()
    assert (target.name, target.compute_capabilities) == (name, expected)
    assert target.description


def test_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        load_target("../any")
    assert str(caught.value) == (
        f"unknown target `../any`\n  known targets: {', '.join(shipped_targets())}\nfix: use one of them"
    )


def test_a_folder_named_like_a_shipped_config_is_not_guessed(workspace: Path) -> None:
    (workspace / "llama").mkdir()
    assert find_model_config("llama").source.gguf is not None
    (workspace / "llama" / "config.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        find_model_config("llama")
    assert "`llama` is a shipped config and a model's folder here" in str(caught.value)
    assert "give ./llama for the folder" in str(caught.value)
    assert find_model_config("./llama").source.hf == str(workspace / "llama")


@pytest.mark.parametrize(
    ("fields", "precision"),
    [
        ({"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}, "bf16"),
        ({"architectures": ["Qwen3ForCausalLM"], "dtype": "float16"}, "fp16"),
        ({"architectures": ["LlamaForCausalLM"], "dtype": "float64"}, "fp32"),
        ({"architectures": ["LlamaForCausalLM"]}, "fp32"),
        ({"architectures": ["ViTForImageClassification"], "dtype": "bfloat16"}, "fp32"),
        (IMAGES | {"dtype": "bfloat16"}, "bf16"),
        (IMAGES | {"text_config": {"torch_dtype": "float16"}}, "fp16"),
        ({"architectures": ["T5ForConditionalGeneration"], "dtype": "bfloat16"}, "fp32"),
        ({"architectures": 3, "dtype": "bfloat16"}, "fp32"),
        ([], "fp32"),
    ],
)
def test_a_bare_language_model_has_the_precision_of_its_weights(fields: object, precision: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))
    assert find_model_config(str(folder)).precision == precision
    assert find_model_config(str(folder), ["precision=fp32"]).precision == "fp32"


def test_suffixes_of_models_files_may_be_in_large_letters(tmp_path: Path) -> None:
    for name, kind in [("Net.ONNX", "onnx"), ("net.Gguf", "gguf")]:
        (tmp_path / name).touch()
        config = find_model_config(str(tmp_path / name))
        assert (getattr(config.source, kind), config.name) == (str(tmp_path / name), Path(name).stem)


def test_a_shorter_slot_takes_shorter_prefill_steps_unless_the_config_sets_them() -> None:
    assert LlmOptions(max_sequence_length=256).max_prefill_length == 256
    assert LlmOptions(max_sequence_length=4096).max_prefill_length == LlmOptions().max_prefill_length == 512
    with pytest.raises(ValidationError, match="max_prefill_length 512 exceeds max_sequence_length 256"):
        LlmOptions(max_sequence_length=256, max_prefill_length=512)

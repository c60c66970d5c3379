"""Load a config: YAML file, then `--target`, then `--set`; all problems in one error, with line numbers."""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trtkit.config.explain import explain
from trtkit.config.llm import BUILT_IN
from trtkit.config.overrides import Override, keyword_overrides, read_overrides
from trtkit.config.schema import ModelConfig
from trtkit.config.yaml_file import KeyPath, YamlFile, read_yaml
from trtkit.dtypes import stated_precision
from trtkit.errors import BundleError, ConfigError, Problem, SourceError, did_you_mean
from trtkit.files import MANIFEST, json_fault, read_text

# Keys whose value is a path: relative to the config's folder in a file, to the current folder in `--set`; `*`: any key.
_PATH_KEYS: tuple[KeyPath, ...] = (
    ("source", "onnx"),
    ("source", "hf"),
    ("source", "gguf"),
    ("source", "trtllm"),
    ("source", "lora"),
    ("source", "torch", "checkpoint"),
    ("llm", "speculator"),
    ("task", "labels"),
    ("quantize", "calibration", "data"),
    ("llm", "sparse_ffn", "calibration", "data"),
    ("quantize", "parts", "*", "calibration", "data"),
)
# Words allowed instead of a path.
_WORDS: dict[KeyPath, str] = {("llm", "speculator"): BUILT_IN}


# Suffixes of configs, and keys of `source` by suffixes of model files; case is ignored.
_CONFIG_SUFFIXES = (".yaml", ".yml")
_FILE_KINDS = {".onnx": "onnx", ".gguf": "gguf"}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Folders that trtkit writes to: a path below one is not a hub id, even if the folder does not exist yet.
_OUTPUT_FOLDERS = ("bundles", "quantized", "models", ".", "..")


def configs_folder() -> Path:
    """Return the folder of shipped configs: in an installed wheel, or next to the package in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_configs"
    return installed if installed.is_dir() else package.parent / "configs"


def shipped_configs() -> list[str]:
    """Return the names of the configs that come with trtkit."""
    return sorted(path.stem for path in configs_folder().glob("*.yaml"))


def find_config(name: str) -> Path:
    """Return the config file `name`: a path, or a shipped config with or without `.yaml`."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = configs_folder() / f"{name.removesuffix('.yaml')}.yaml"
    if path.parent == Path() and shipped.is_file():
        return shipped
    if is_hub_id(name):
        raise ConfigError(f"config `{name}` not found", [], fetch_fix(name))
    if file_kind(name) != "config":
        raise ConfigError(f"no bundle, config or model is called `{name}`", [], missing_fix(name))
    fix = f"{_near(name)}give the path of a YAML file, or the name of a shipped config; all: `trtkit list`"
    raise ConfigError(f"config `{name}` not found", [Problem("neither a file nor a shipped config")], fix)


def missing_fix(name: str) -> str:
    """Return the fix for a path that does not exist where a bundle or a model is expected."""
    word = Path(name).name
    if Path(name).parent == Path("bundles") and word in shipped_configs():
        return f"build it: `trtkit build {word}`"
    return f"{_near(name)}`trtkit list` shows bundles and shipped configs; `trtkit build MODEL` builds a bundle"


def file_kind(path: str | Path) -> str | None:
    """Return a file's kind by its suffix: `config`, or the key of `source` that takes it; None for other paths."""
    suffix = Path(path).suffix.lower()
    return "config" if suffix in _CONFIG_SUFFIXES else _FILE_KINDS.get(suffix)


def is_hub_id(name: str) -> bool:
    """Whether a name is a model id of the Hugging Face hub and not a local path."""
    if file_kind(name) is not None or not _HUB_ID.fullmatch(name):
        return False
    return name.partition("/")[0] not in _OUTPUT_FOLDERS and not Path(name).parent.is_dir()


def fetch_fix(name: str) -> str:
    """Return the fix for a hub id given instead of a path."""
    return f"if it is a model on Hugging Face's hub: `trtkit build {name}` downloads and builds it"


def model_name(path: Path) -> str:
    """Return the name of a model's file or folder; for a snapshot in the hub's cache, the repository's name."""
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.rpartition("--")[2]
    return path.name if file_kind(path) is None else path.stem


def _near(name: str) -> str:
    """Return a "did you mean" text for a missing path: shipped configs, and models or bundles in its folder."""
    siblings = Path(name).expanduser().parent.glob("*") if name else ()
    models = [str(path) for path in siblings if file_kind(path) is not None or (path / MANIFEST).is_file()]
    return did_you_mean(name, [*shipped_configs(), *models])


def load_config(name: str, overrides: Sequence[str | Override] = (), target: str | None = None) -> ModelConfig:
    """Load the config `name` with `overrides`, texts `key.path=value` with YAML values.

    Raises ConfigError with every problem.
    """
    return _finish(read_yaml(find_config(name)), overrides, target)


def _finish(file: YamlFile, overrides: Sequence[str | Override], target: str | None) -> ModelConfig:
    """Apply `overrides` and `target` to the file's data and validate the result."""
    data = _anchor_paths(copy.deepcopy(file.data), file.path.parent)
    origins: dict[KeyPath, str] = {}
    for override in map(_anchored, read_overrides(overrides)):
        override.apply(data)
        origins[override.key_path] = override.origin
    if target is not None:
        data["target"] = target
        origins[("target",)] = f"--target {target}"
    data.setdefault("name", _safe_name(model_name(file.path)))
    return _validate(data, file, origins)


def find_model_config(path: str, overrides: Sequence[str | Override] = (), target: str | None = None) -> ModelConfig:
    """Return the config for `path`.

    path: a YAML file or the name of a shipped config; or a model itself, with all defaults except the `overrides`: an
    .onnx or .gguf file, or a folder saved by transformers or TensorRT-LLM.

    Raises ConfigError, also for a model's folder that is named like a shipped config; SourceError; BundleError for a
    bundle, which is built already.
    """
    local_path = Path(_anchor(path, Path())) if path.startswith("~") else Path(path)
    is_shipped = path in shipped_configs()
    if file_kind(local_path) in _FILE_KINDS.values() or (local_path.is_dir() and not is_shipped):
        return config_for_source(source_kind(local_path), local_path, overrides, target)
    if is_shipped and (local_path / "config.json").is_file():
        what = f"`{path}` is a shipped config and a model's folder here"
        fix = f"give ./{path} for the folder; start in another folder for the shipped config"
        raise ConfigError(what, [], fix)
    return load_config(path, overrides, target)


def source_kind(path: Path) -> str:
    """Return the key of `source` for a model's file or folder. Raises SourceError if it is not a model."""
    if not path.exists():
        raise SourceError("no such file", str(path), f"{_near(str(path))}check the path")
    kind = file_kind(path)
    if kind in _FILE_KINDS.values():
        return str(kind)
    if not path.is_dir():
        raise SourceError("not a model", str(path), "give an .onnx or .gguf file, or a model's folder")
    return _folder_kind(path)


def config_for_source(
    kind: str, path: Path, overrides: Sequence[str | Override] = (), target: str | None = None
) -> ModelConfig:
    """Return the config for a bare source: all defaults except the `overrides`. kind: a key of `source`.

    The precision of a language or vision-language model is that of its weights, if its config.json states one that
    trtkit supports.
    """
    data: dict[str, object] = {"source": {kind: str(path.resolve())}, **(_of_weights(path) if kind == "hf" else {})}
    return _finish(YamlFile(path if path.name else path.resolve(), data, {}), overrides, target)


def _of_weights(folder: Path) -> dict[str, object]:
    """Return the precision of a language model's weights from its folder; a bad folder is reported when it is read."""
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        names = [str(name) for name in fields.get("architectures") or ()]
        # Class names of encoder-decoder models, which are built in fp32, end like those of vision-language models.
        ends = ("ForCausalLM", "ForConditionalGeneration") if "vision_config" in fields else ("ForCausalLM",)
        is_language_model = any(name.endswith(ends) for name in names)
        precision = stated_precision(fields)
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return {"precision": precision} if is_language_model and precision else {}


def changed_config(config: ModelConfig, keys: Mapping[str, object]) -> ModelConfig:
    """Return `config` with some keys changed; see `keyword_overrides`. Raises ConfigError."""
    if not keys:
        return config
    data = config.model_dump(mode="json", exclude_unset=True)
    return _finish(YamlFile(Path(config.name or "config"), data, {}), keyword_overrides(keys), None)


def _folder_kind(folder: Path) -> str:
    """Return a folder's kind of source. Raises SourceError if it is not a model, BundleError for a bundle."""
    if (folder / MANIFEST).is_file():
        fix = "give its config; bundles work with verify, inspect, plan, run, generate, chat, eval, bench and deploy"
        raise BundleError("a bundle is already built", str(folder), fix)
    file = folder / "config.json"
    try:
        fields = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        is_missing = not file.exists()
        what = "the folder has no `config.json`" if is_missing else f"`config.json` cannot be read: {json_fault(error)}"
        fix = "give a bundle, a YAML file, or a folder that transformers or TensorRT-LLM saved"
        raise SourceError(what, str(folder), fix) from None
    return "trtllm" if isinstance(fields, dict) and "architecture" in fields else "hf"


def _validate(data: dict[str, Any], file: YamlFile, origins: dict[KeyPath, str]) -> ModelConfig:
    """Validate `data`; errors refer to the file's line or to the option that set the key."""

    def where(key_path: KeyPath) -> str:
        for length in range(len(key_path), 0, -1):
            if key_path[:length] in origins:
                return origins[key_path[:length]]
        set_below = [origin for path, origin in origins.items() if path[: len(key_path)] == key_path]
        return set_below[0] if set_below and key_path not in file.lines else file.where(key_path)

    try:
        return ModelConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"invalid config `{file.path}`", explain(error, ModelConfig, where)) from None


def _anchor_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve relative paths against the file's folder."""
    for key_path in _PATH_KEYS:
        for parent in _below(data, key_path[:-1]):
            value = parent.get(key_path[-1])
            if isinstance(value, str) and value != _WORDS.get(key_path):
                parent[key_path[-1]] = _anchor(value, folder)
    return data


def _below(data: Any, key_path: KeyPath) -> Iterator[dict[Any, Any]]:
    if not isinstance(data, dict):
        return
    if not key_path:
        yield data
        return
    keys = list(data) if key_path[0] == "*" else [key_path[0]]
    for key in keys:
        yield from _below(data.get(key), key_path[1:])


def _is_path(key_path: KeyPath) -> bool:
    alike = (known for known in _PATH_KEYS if len(known) == len(key_path))
    return any(all(want in ("*", have) for want, have in zip(known, key_path, strict=True)) for known in alike)


def _anchored(override: Override) -> Override:
    """Return an override with a relative path resolved against the current folder."""
    value, is_word = override.value, override.value == _WORDS.get(override.key_path)
    if _is_path(override.key_path) and isinstance(value, str) and not is_word:
        return replace(override, value=_anchor(value, Path.cwd()))
    return override


def _anchor(path: str, folder: Path) -> str:
    """Return `path` resolved against `folder`; URLs such as `package://` are unchanged."""
    try:
        return path if "://" in path else str((folder / Path(path).expanduser()).resolve())
    except (RuntimeError, ValueError) as error:  # `~` of an unknown user, a NUL byte
        raise ConfigError("invalid config", [Problem(f"`{path!r}` is not a path: {str(error).lower()}")]) from None


def _safe_name(stem: str) -> str:
    """Replace characters that bundle names may not contain."""
    return "".join(char if char.isalnum() or char in "._-" else "-" for char in stem)

"""The model named by a plan's PATH: a bundle, a config, a Hugging Face folder or file, or a published model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from trtkit.backends import choose_backend
from trtkit.builder.decoders import llm_options
from trtkit.bundle.bundle import Bundle, is_bundle, open_bundle
from trtkit.config.explain import explain
from trtkit.config.load import (
    file_kind,
    find_config,
    find_model_config,
    is_hub_id,
    model_name,
    shipped_configs,
    source_kind,
)
from trtkit.config.overrides import Override, read_overrides
from trtkit.config.schema import ModelConfig
from trtkit.config.targets import load_target
from trtkit.dtypes import stated_precision
from trtkit.errors import ConfigError, PlanError, SourceError, did_you_mean
from trtkit.models.registry import ENCODER_DECODERS
from trtkit.resolve import resolve
from trtkit.sources.decoder_source import open_decoder_source
from trtkit.sources.hub import fetch_config, hub_folder
from trtkit.sources.huggingface.wrapped_config import text_fields
from trtkit.sources.package_file import hf_folder
from trtkit.sources.safetensors_file import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.config.yaml_file import KeyPath

Json = dict[str, Any]
CONFIG = "config.json"
_TOWER = "the vision tower is not counted, the language model is"


@dataclass(frozen=True)
class PlannedModel:
    """A model to plan for. fields: of a decoder's config.json, None for other networks.

    max_length: tokens per slot of the engine, 0 if none is built. bundle: None unless PATH was one. has_tower: whether
    a vision tower precedes the language model, which alone is counted. published: source of its figures, if it is known
    by name.
    """

    name: str
    config: ModelConfig
    backend: str
    fields: Mapping[str, Any] | None
    where: str
    max_length: int = 0
    bundle: Bundle | None = None
    has_tower: bool = False
    published: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on its figures."""
        return tuple(filter(None, (_TOWER if self.has_tower else "", self.published)))

    @property
    def takes_vectors(self) -> bool:
        """Whether its embeddings are kept next to its engine, as in vision-language models."""
        return self.has_tower or llm_options(self.config).inputs == "embeds"


def find_model(path: str, overrides: Sequence[str | Override] = (), target: str | None = None) -> PlannedModel:
    """Return the model at `path`. Weights are not read, and may be missing for an LLM.

    Raises ConfigError, SourceError, BundleError, PlanError.
    """
    if is_hub_id(path):
        return _of_hub(path, overrides)
    local_path = Path(path).expanduser()
    if is_bundle(local_path):
        if overrides or target:
            raise PlanError(
                "a bundle is already built",
                "--set, --precision, --shapes, --target",
                "give its config instead",
            )
        return model_of_bundle(open_bundle(local_path))
    if local_path.is_dir() and path not in shipped_configs() and not _is_built_as_it_stands(path, local_path):
        return _of_config_json(local_path / CONFIG, overrides)
    if local_path.is_file() and local_path.name.endswith(".json"):
        return _of_config_json(local_path, overrides)
    if path in architectures() and path not in shipped_configs():
        return _of_architecture(path, overrides)
    return _of_config(path, overrides, target)


def _of_hub(hub_id: str, overrides: Sequence[str | Override]) -> PlannedModel:
    """Return a model from Hugging Face's hub; a language model needs only its config.json."""
    folder = fetch_config(hub_id)
    if not _is_built_as_it_stands(str(folder), folder):
        return _of_config_json(folder / CONFIG, overrides)
    return _of_config(str(hub_folder(hub_id)), overrides, None)


def _is_built_as_it_stands(path: str, folder: Path) -> bool:
    """Whether a folder is built as a whole: a TensorRT-LLM checkpoint or a vision model, rather than a bare config."""
    if not (folder / CONFIG).is_file():
        return False
    return source_kind(folder) == "trtllm" or resolve(find_model_config(path)).interface == "arrays"


@cache
def architectures() -> dict[str, Json]:
    """Return published models by name: source, dtype, fields."""
    text = Path(__file__).with_name("architectures.yaml").read_text(encoding="utf-8")
    rows: dict[str, Json] = yaml.safe_load(text)
    return rows


def model_of_bundle(bundle: Bundle) -> PlannedModel:
    """Return a bundle's model."""
    manifest, fields, limit = bundle.manifest, None, 0
    where = bundle.path / "model" / CONFIG
    if manifest.interface == "tokens":
        fields, limit = read_json(where), llm_options(manifest.config).max_sequence_length
    if manifest.encoder is not None:
        raise _not_counted(str(bundle.path))
    has_tower, backend = manifest.images is not None, manifest.backend.name
    return PlannedModel(manifest.name, manifest.config, backend, fields, str(where), limit, bundle, has_tower)


def _of_config(path: str, overrides: Sequence[str | Override], target: str | None) -> PlannedModel:
    """Return the model of a YAML file, a shipped config, or a model's file or folder."""
    if file_kind(path) in (None, "config") and not Path(path).expanduser().is_dir():
        _check_name(path)
    return model_of_config(find_model_config(path, overrides, target), path)


def _not_counted(where: str) -> SourceError:
    what = "`plan` does not count what an encoder and the attention to it take"
    return SourceError(what, where, "build it: `trtkit inspect` shows the weights, caches and work of the bundle")


def model_of_config(config: ModelConfig, path: str = "") -> PlannedModel:
    """Return the model that `config` builds. path: of the config; its name unless given.

    Raises SourceError if a language model's `config.json` is missing.
    """
    backend = choose_backend(load_target(config.target).backend)
    if resolve(config).interface == "arrays":
        return PlannedModel(config.name, config, backend, None, path or config.name)
    if config.source.hf is not None:
        where = hf_folder(config.source) / CONFIG
        if not where.is_file() and config.source.hub is not None:
            where = fetch_config(config.source.hub) / CONFIG
        if not where.is_file():
            fix = "give a folder with the model's config.json: `--set source.hf=FOLDER`"
            raise SourceError("no such file", str(where), fix)
        return PlannedModel(config.name, config, backend, _fields(where), str(where), has_tower=_has_tower(where))
    opened = open_decoder_source(config.source)
    return PlannedModel(config.name, config, backend, opened.config, opened.where)


def _check_name(path: str) -> None:
    """Raise PlanError with close matches for a name that is neither a config nor a published model."""
    try:
        find_config(path)
    except ConfigError:
        what = f"no bundle, config or known model is called `{path}`"
        fix = (
            f"{did_you_mean(path, [*shipped_configs(), *architectures()])}give a bundle, a YAML file, a folder with "
            f"{CONFIG}, a hub id, a shipped config (`trtkit list`) or a published model (`trtkit list --published`)"
        )
        raise PlanError(what, "", fix) from None


def _of_config_json(file: Path, overrides: Sequence[str | Override]) -> PlannedModel:
    """Return the LLM described by a config.json; its weights may be elsewhere."""
    if not file.is_file():
        fix = f"give a bundle, a config, or a folder with {CONFIG}"
        raise PlanError(f"the folder has neither `manifest.json` nor `{CONFIG}`", str(file.parent), fix)
    fields = _fields(file)
    precision = stated_precision(fields) or "fp16"
    config = _bare_config(str(file.parent), model_name(file.parent.resolve()), precision, overrides)
    return PlannedModel(config.name, config, choose_backend(), fields, str(file), has_tower=_has_tower(file))


def _fields(file: Path) -> Json:
    """Return a language model's fields without its quantization, which is read separately. Raises SourceError."""
    fields = text_fields(file)
    if fields.get("model_type") in ENCODER_DECODERS:
        raise _not_counted(str(file))
    return {key: value for key, value in fields.items() if key != "quantization_config"}


def _has_tower(file: Path) -> bool:
    return "vision_config" in read_json(file)


def _of_architecture(name: str, overrides: Sequence[str | Override]) -> PlannedModel:
    row = architectures()[name]
    config = _bare_config(f"/{name}", name, row["dtype"], overrides)
    published = f"numbers of {name} are published: {row['source']}"
    return PlannedModel(name, config, choose_backend(), row["fields"], f"published model `{name}`", published=published)


def _bare_config(folder: str, name: str, precision: str, overrides: Sequence[str | Override]) -> ModelConfig:
    """Return the config of a bare model, with `overrides`."""
    safe = "".join(char if char.isalnum() or char in "._-" else "-" for char in name)
    data: Json = {"name": safe, "source": {"hf": folder}, "precision": precision, "llm": {}}
    for change in read_overrides(overrides):
        change.apply(data)
    try:
        return ModelConfig.model_validate(data)
    except ValidationError as error:
        origins = {override.key_path: override.origin for override in overrides if isinstance(override, Override)}

        def where(key: KeyPath) -> str:
            return origins.get(key) or f"--set {'.'.join(map(str, key))}"

        raise ConfigError("invalid override", explain(error, ModelConfig, where)) from None

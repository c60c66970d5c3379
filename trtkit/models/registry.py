"""Finds a decoder family's file by its config's `model_type`: `trtkit/models/decoders/<model_type>.py`."""

import difflib
import functools
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from trtkit.errors import SourceError, choices, reading
from trtkit.files import named_digest
from trtkit.models import decoders
from trtkit.models.hf_config import FIX, HfConfig
from trtkit.models.spec import DecoderSpec

# Model types that another file reads, and the one that is not a valid module name.
_MORE = {
    "codegen": "gptj",
    "granitemoeshared": "granitemoe",
    "ministral": "mistral",
    "mt5": "t5",
    "qwen2_5_vl_text": "qwen2_vl_text",
    "umt5": "t5",
}
_SPELLED = {"nemotron_nas": "nemotron-nas"}

ENCODER_DECODERS: dict[str, Literal["audio", "text"]] = {
    "mt5": "text",
    "t5": "text",
    "umt5": "text",
    "whisper": "audio",
}
"""Families whose decoder reads an encoder's output, and what the encoder takes."""


class Family(Protocol):
    """A family's module. It may also have ALIASES, its names of config fields by their usual names, and DEFAULTS.

    HF_CLASS: the class in transformers, by `model_type` if the module reads several.
    """

    HF_CLASS: str | Mapping[str, str]

    @staticmethod
    def spec(config: HfConfig) -> DecoderSpec:
        """Return the spec that a config describes. Must read every field that affects the computation."""


def known_families() -> dict[str, Path | str]:
    """Return each `model_type`'s module name, or its file if it comes from TRTKIT_FAMILIES. Imports none of them.

    Raises SourceError for a missing folder, and for two families with the same `model_type`.
    """
    families: dict[str, Path | str] = dict(_trtkits_families())
    for path in _outside_files():
        if path.stem in families:
            raise SourceError(f"a second family `{path.stem}`", str(path), "remove it, or give it another `model_type`")
        families[path.stem] = path
    return families


def open_family(model_type: str, where: str = "config.json") -> Family:
    """Import one family's module. Raises SourceError for an unknown `model_type`."""
    families = known_families()
    if model_type not in families:
        fix = choices(model_type, families, "trtkit list --families")
        raise SourceError(f"unknown `model_type` `{model_type}`", where, fix)
    module = families[model_type]
    family = importlib.import_module(module) if isinstance(module, str) else _import_file(module)
    return cast("Family", family)


def hf_class(model_type: str) -> str:
    """Return the class name in transformers; empty for text models that transformers has no class with a head for."""
    name = open_family(model_type).HF_CLASS
    return name if isinstance(name, str) else name[model_type]


def decoder_spec(fields: Mapping[str, Any], where: str = "config.json") -> DecoderSpec:
    """Return the spec that a `config.json` describes.

    Raises SourceError for an unknown `model_type`, and for missing, unknown or unsupported fields.
    """
    family = open_family(str(HfConfig(fields, where).need("model_type")), where)
    config = HfConfig(fields, where, getattr(family, "ALIASES", None), getattr(family, "DEFAULTS", None))
    config.refuse("quantization_config")
    with reading(where, FIX):
        spec = family.spec(config)
        config.check_all_read()
    return spec


def outside_digest() -> str:
    """Return the SHA-256 of the families from TRTKIT_FAMILIES, on which a build depends; empty if there are none."""
    return named_digest((path.name, path) for path in _outside_files())


@functools.cache
def _trtkits_families() -> dict[str, str]:
    """Return the module name of each `model_type` that trtkit ships."""
    files = [module.name for module in pkgutil.iter_modules(decoders.__path__)]
    names = {**{_SPELLED.get(file, file): file for file in files}, **_MORE}
    return {model_type: f"{decoders.__name__}.{file}" for model_type, file in sorted(names.items())}


def _outside_files() -> list[Path]:
    """Return the Python files in the folders that TRTKIT_FAMILIES lists."""
    folders = [Path(folder) for folder in os.environ.get("TRTKIT_FAMILIES", "").split(os.pathsep) if folder]
    for folder in folders:
        if not folder.is_dir():
            raise SourceError("no such folder", f"TRTKIT_FAMILIES: {folder}", "it names folders of families' files")
    return [path for folder in folders for path in sorted(folder.resolve().glob("[!_]*.py"))]


@functools.cache
def _import_file(path: Path) -> object:
    """Import a family's file. Raises SourceError if that fails or if the file does not define a family."""
    fix = 'a family has `HF_CLASS = "..."` and `def spec(config)`: docs/add-family.md'
    module_spec = importlib.util.spec_from_file_location(f"trtkit_families.{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # dataclasses look up their module there
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:  # the file's code may raise anything
        raise SourceError(f"cannot be imported: {type(error).__name__}: {error}", str(path), fix) from error
    if missing := [name for name in ("HF_CLASS", "spec") if not hasattr(module, name)]:
        raise SourceError(f"no `{missing[0]}` in it", str(path), fix)
    return module


def is_language_model(fields: Mapping[str, Any]) -> bool:
    """Whether a `config.json`, of a supported family or not, describes a model that reads or writes text."""
    heads = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    names = [str(name) for name in fields.get("architectures") or ()]
    if any(name.endswith(heads) for name in names):
        return True
    takes_images = {"image_size", "input_size", "num_channels"} & fields.keys() or any("Image" in n for n in names)
    return "vocab_size" in fields and not takes_images


def is_of_another_kind(model_type: str) -> bool:
    """Whether an unsupported family consists of text encoders or encoder-decoders."""
    return any(model_type in names.split() for names, _ in _OTHER_KINDS.values())


def unsupported_family(model_type: str, where: str) -> SourceError:
    """Return the error for an unsupported language model, which suggests the closest families."""
    for kind, (names, known) in _OTHER_KINDS.items():
        if model_type in names.split():
            what = f"`{model_type}` is {kind} of a family that is not supported"
            return SourceError(what, where, f"supported are {', '.join(f'`{name}`' for name in sorted(known))}")
    families = known_families()
    near = difflib.get_close_matches(model_type, families, n=3, cutoff=0.7)
    near = near or [name for name in families if model_type.startswith(name)]
    nearest = f"the nearest supported are {', '.join(f'`{name}`' for name in near)}" if near else ""
    what = f"`{model_type}` is a language model of a family that is not supported"
    return SourceError(
        what, where, nearest or "`trtkit list --families` lists those that are; TRTKIT_FAMILIES adds your own"
    )


# Unsupported encoders and encoder-decoders, and the supported families to suggest instead.
_OTHER_KINDS: dict[str, tuple[str, Iterable[str]]] = {
    "a text encoder": (
        "albert big_bird deberta deberta-v2 electra ernie esm funnel longformer megatron-bert mobilebert mpnet "
        "nomic_bert nystromformer rembert roformer squeezebert xlm-roberta-xl xmod",
        ("bert", "camembert", "distilbert", "modernbert", "roberta", "xlm-roberta"),
    ),
    "an encoder-decoder": (
        "bart bigbird_pegasus blenderbot blenderbot-small fsmt led longt5 m2m_100 marian mbart moonshine mvp pegasus "
        "pegasus_x plbart prophetnet speech_to_text switch_transformers t5gemma",
        ENCODER_DECODERS,
    ),
}

"""Quantization part by part: each part's options, and its calibration data."""

from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import ConfigError, Problem
from trtkit.inputs.samples import read_npz, sample_files
from trtkit.models.hybrids.spec import NetworkPart, OnnxPart
from trtkit.network.targets import check_named_types
from trtkit.quantization.written import RoundedWeights, block_of
from trtkit.quantization_methods import NONE, methods_for, needs_data
from trtkit.sources import package_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from trtkit.config.quantize import PartOptions, QuantizeOptions
    from trtkit.config.targets import Target
    from trtkit.models.hybrids.spec import HybridSpec, Part

VISION = "vision"
"""The part of a vision-language model that has its own options."""
SUMMARY = "the model cannot be quantized this way"


def check_names(options: QuantizeOptions, names: Collection[str]) -> None:
    """Refuse options for parts that the model does not have. Raises ConfigError."""
    there = f"its parts are {', '.join(names)}" if names else "remove it: the model is not made of parts"
    unknown = [name for name in options.parts if name not in names]
    if unknown:
        raise ConfigError(SUMMARY, [Problem(f"no part `{name}`", "quantize.parts", there) for name in unknown])


def check_options(options: PartOptions, key: str = "quantize") -> None:
    """Refuse options that do not apply to vision models. key: of the options in the config. Raises ConfigError."""
    problems = []
    if options.method not in methods_for("vision"):
        fix = f"use one of {', '.join(methods_for('vision'))}"
        problems.append(Problem(f"`{options.method}` does not apply to vision models", f"{key}.method", fix))
    of_llms = {"kv_cache": options.kv_cache, "layers": options.layers, "smoothing": options.smoothing}
    for name, value in (of_llms | {"head": options.head}).items():
        if value:
            problems.append(Problem("applies to language models only", f"{key}.{name}", "remove it"))
    if problems:
        raise ConfigError(SUMMARY, problems)


def check_types(options: PartOptions, target: Target, fallback: str | None = None) -> None:
    """Refuse types that a target's GPUs do not support. fallback: the method of layers left by a budget.

    Raises ConfigError.
    """
    check_named_types(options.types(fallback), target.compute_capabilities)


_OF_LLMS = {"kv_cache": "a KV cache format", "smoothing": "SmoothQuant's alpha", "head": "an output head"}


@dataclass(frozen=True)
class PartChoice:
    """The quantization options of one part. key: of its options in the config, for errors."""

    part: Part
    options: PartOptions
    key: str

    @property
    def is_own(self) -> bool:
        return self.key != "quantize"

    @property
    def has_own_work(self) -> bool:
        return self.is_own and not self.options.is_idle

    @property
    def methods(self) -> tuple[str, ...]:
        return methods_for("vision" if isinstance(self.part, OnnxPart) else "written")

    def problems(self) -> Iterator[Problem]:
        name = self.part.name
        route = "comes through ONNX" if isinstance(self.part, OnnxPart) else "is written by the network API"
        chosen = {f"{self.key}.method": self.options.method}
        if isinstance(self.part, NetworkPart):
            chosen |= {f"{self.key}.layers.{glob}": method for glob, method in self.options.layers.items()}
        elif self.options.layers and self.is_own:
            yield Problem(f"part `{name}` {route} and has one method", f"{self.key}.layers", "use `exclude`")
        for key, what in _OF_LLMS.items():
            if getattr(self.options, key):
                yield Problem(f"{what} applies to language models only", f"{self.key}.{key}", "remove it")
        for key, method in chosen.items():
            if method not in (*self.methods, NONE):
                fix = f"use one of {', '.join(self.methods)}, or `none`"
                fix = fix if self.is_own else f"{fix}: `quantize.parts.{name}: {self.methods[0]}`"
                yield Problem(f"part `{name}` {route} and cannot be {method}", key, fix)

    def method_of(self, path: str) -> str:
        """Return a layer's method; `none` if it is not quantized."""
        options = self.options
        if any(fnmatch.fnmatchcase(path, glob) for glob in options.exclude):
            return NONE
        chosen = [method for glob, method in options.layers.items() if fnmatch.fnmatchcase(path, glob)]
        return chosen[-1] if chosen else options.method


@dataclass(frozen=True)
class HybridQuantization:
    """The quantization of all parts of a hybrid. choices: by part. layers: the method of each written layer."""

    choices: dict[str, PartChoice]
    layers: dict[str, str]

    def weights(self, arrays: Mapping[str, Any]) -> RoundedWeights:
        """Return weights by `part.path`; those of quantized layers are rounded as they are read."""
        return RoundedWeights(arrays, self.layers, {name: choice.options for name, choice in self.choices.items()})

    @property
    def methods(self) -> set[str]:
        parsed = {choice.options.method for choice in self.choices.values() if isinstance(choice.part, OnnxPart)}
        return {*parsed, *self.layers.values()} - {NONE}

    def described(self, part: str) -> str:
        """Return a written part's layer count per method, as text."""
        counts = Counter(method for path, method in self.layers.items() if path.startswith(f"{part}."))
        return ", ".join(f"{count} layers {method}" for method, count in counts.items())

    def check_globs(self, nodes: Mapping[str, Collection[str]]) -> None:
        """Refuse globs that match nothing. nodes: of each parsed part. Raises ConfigError."""
        names = {name: [*nodes.get(name, ()), *_linear_layers(choice.part)] for name, choice in self.choices.items()}
        problems = []
        for key, options in {choice.key: choice.options for choice in self.choices.values()}.items():
            within = [name for part, choice in self.choices.items() if choice.key == key for name in names[part]]
            globs = [(glob, "exclude") for glob in options.exclude] + [(glob, "layers") for glob in options.layers]
            problems += [
                Problem(f"`{glob}` matches no layer or node of its parts", f"{key}.{field}", _NAMES)
                for glob, field in globs
                if not fnmatch.filter(within, glob)
            ]
        if problems:
            raise ConfigError(SUMMARY, problems)


_NAMES = "names begin with the part's, such as `encoder.layers.0.*`; `trtkit inspect CONFIG --layers` lists layers"


def hybrid_quantization(spec: HybridSpec, options: QuantizeOptions) -> HybridQuantization:
    """Return the quantization of each part of a hybrid. Raises ConfigError for options that a part does not support."""
    check_names(options, [part.name for part in spec.parts])
    choices = {part.name: _choice(part, options) for part in spec.parts}
    problems = [problem for choice in choices.values() for problem in choice.problems()]
    layers = {name: {} if problems else _layers(choice) for name, choice in choices.items()}
    for choice in [] if problems else choices.values():
        if isinstance(choice.part, NetworkPart) and not layers[choice.part.name] and choice.has_own_work:
            what = f"the method would quantize nothing in part `{choice.part.name}`"
            problems.append(Problem(what, choice.key, "exclude less, use another method or block, or `none`"))
    if problems:
        raise ConfigError(SUMMARY, list(dict.fromkeys(problems)))
    return HybridQuantization(
        choices, {path: method for by_path in layers.values() for path, method in by_path.items()}
    )


def _choice(part: Part, options: QuantizeOptions) -> PartChoice:
    key = f"quantize.parts.{part.name}" if part.name in options.parts else "quantize"
    return PartChoice(part, options.of(part.name), key)


def _layers(choice: PartChoice) -> dict[str, str]:
    """Return the method of each quantized layer of a part, leaving out layers that no block size divides."""
    columns = _linear_layers(choice.part)
    methods = {path: choice.method_of(path) for path in columns}
    return {
        path: method
        for path, method in methods.items()
        if method != NONE and block_of(columns[path], method, choice.options) is not None
    }


def _linear_layers(part: Part) -> dict[str, int]:
    """Return the column count of each linear layer that the network API writes for a part, by `part.path`."""
    return {
        f"{part.name}.{weight.path.removesuffix('.weight')}": weight.shape[1]
        for weight in (part.weights if isinstance(part, NetworkPart) else ())
        if weight.path.endswith(".weight") and len(weight.shape) == 2 and not weight.is_table
    }


def with_own_arrays(
    choice: PartChoice, input_names: Collection[str], whole: Collection[str], folder: Path
) -> PartChoice:
    """Return the choice with calibration files in `folder` that hold only the part's inputs, if its data has others.

    input_names, whole: names of the part's inputs and of the model's. Raises SourceError for unreadable files.
    """
    options = choice.options
    if not needs_data(options.method) or options.calibration.data is None:
        return choice
    files = sample_files(package_file.resolve(options.calibration.data))
    held = {path: read_npz(path) for path in files if path.suffix.lower() == ".npz"}
    others = set(whole) - set(input_names)
    if not any(others & arrays.keys() for arrays in held.values()):
        return choice
    own_folder = folder / "calibration"
    own_folder.mkdir()
    for path, arrays in held.items():
        np.savez(own_folder / path.name, **{name: array for name, array in arrays.items() if name not in others})  # type: ignore[arg-type]
    calibration = options.calibration.model_copy(update={"data": str(own_folder)})
    return replace(choice, options=options.model_copy(update={"calibration": calibration}))

"""A LoRA adapter's matrices by the model's weights, every one checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError, reader
from trtkit.lora.adapter_config import check_config
from trtkit.models.weights import model_weights
from trtkit.sources.adapter_folder import adapter_files
from trtkit.sources.digest import adapter_digest
from trtkit.sources.huggingface.wrapped_config import inner_name
from trtkit.sources.safetensors_file import read_safetensors
from trtkit.sources.safetensors_folder import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trtkit.arrays import Array
    from trtkit.lora.adapter_config import AdapterConfig
    from trtkit.models.spec import DecoderSpec
    from trtkit.sources.checkpoint import StoredArray

_PREFIX = "base_model.model."
# How the names of an adapter's tensors end: two matrices of a linear layer or of a table, and a copy of its base.
_ENDS = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_embedding_A": "table_a",
    ".lora_embedding_B": "table_b",
    ".base_layer.weight": "base",
}
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_SHOWN = 20
_ANOTHER = "use the model that the adapter was trained for"


@dataclass(frozen=True)
class Module:
    """A matrix of a model that can be adapted. path: of its weight here, without `.weight`. shape: [out, in]."""

    path: str
    shape: tuple[int, int]
    is_table: bool = False


@dataclass(frozen=True, eq=False)
class LowRank:
    """What an adapter adds to one matrix [out, in]: scale * b a.

    a: [rank, in]. b: [out, rank]. base: a copy of the matrix that came with the adapter; None if none did.
    """

    module: Module
    a: StoredArray
    b: StoredArray
    scale: float
    base: StoredArray | None = None

    @property
    def rank(self) -> int:
        """The rank."""
        return self.a.shape[0]

    def matrices(self) -> tuple[Array, Array]:
        """Return a [rank, in], and b [out, rank] times the scale, in fp32. Raises SourceError if not finite."""
        a, b = (np.asarray(each.read(), np.float32) for each in (self.a, self.b))
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            what = f"the adapter of `{self.module.path}` has values that are NaN or infinite"
            raise SourceError(what, fix="copy or download the adapter again")
        return a, b * np.float32(self.scale)


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter that fits its model. parts: by the path of the matrix. digest: SHA-256 of its files."""

    folder: Path
    parts: Mapping[str, LowRank]
    digest: str

    @property
    def rank(self) -> int:
        """The largest rank."""
        return max(part.rank for part in self.parts.values())


@reader
def open_adapter(folder: Path, spec: DecoderSpec) -> Adapter:
    """Open an adapter that PEFT saved, for a model.

    Raises SourceError for missing files and pickles, ProblemsError for forms of adapters that are not supported, and
    with everything that does not fit the model: names, shapes, ranks, layers that lack their matrices.
    """
    files = adapter_files(folder)
    config = check_config(read_json(files[0]), str(files[0]))
    modules = model_modules(spec)
    tensors, problems = _by_module(read_safetensors(files[1]), modules)
    parts = {}
    for name, own in tensors.items():
        module = modules[name]
        problem = _problem(name, own, module, config)
        problems += [problem] if problem else []
        a, b = ("table_a", "table_b") if module.is_table else ("a", "b")
        if problem is None:
            parts[module.path] = LowRank(module, own[a], own[b], config.scale_of(name), own.get("base"))
    problems += (
        _without_matrices(config, modules, tensors) if tensors else [Problem("the file has no adapter matrices")]
    )
    if problems:
        shown = [Problem(problem.what, str(files[1])) for problem in problems[:_SHOWN]]
        rest = [Problem(f"and {len(problems) - _SHOWN} more")] if len(problems) > _SHOWN else []
        summary = f"the adapter does not fit the model, a `{spec.model_type}` of {len(spec.layers)} layers"
        raise ProblemsError(summary, [*shown, *rest], _ANOTHER)
    return Adapter(folder, parts, adapter_digest(folder))


def model_modules(spec: DecoderSpec) -> dict[str, Module]:
    """Return the model's matrices by the names that transformers has for their modules."""
    modules = {}
    for weight in model_weights(spec):
        if not weight.path.endswith(".weight") or len(weight.shape) != 2:
            continue
        path, name = (each.removesuffix(".weight") for each in (weight.path, weight.name))
        rows, columns = weight.shape
        is_turned = spec.is_in_out and path.startswith("layers.")
        modules[name] = Module(path, (columns, rows) if is_turned else (rows, columns), path == "embedding")
    modules.setdefault(spec.names["lm_head"], Module("lm_head", (spec.vocab_size, spec.hidden_size)))
    return modules


def _by_module(
    stored: Mapping[str, StoredArray], modules: Mapping[str, Module]
) -> tuple[dict[str, dict[str, StoredArray]], list[Problem]]:
    """Return an adapter's tensors by module and kind, and those that are not the model's or not an adapter's."""
    tensors: dict[str, dict[str, StoredArray]] = {}
    problems = []
    for key, array in stored.items():
        end = next((end for end in _ENDS if key.endswith(end)), None)
        name = key.removeprefix(_PREFIX)
        if end is None or name == key:
            problems.append(Problem(f"`{key}` is not a matrix of a plain LoRA adapter"))
            continue
        name = name.removesuffix(end)
        name = name if name in modules else (inner_name(f"{name}.") or name).removesuffix(".")
        if name not in modules:
            problems.append(Problem(f"`{key}`: the model has no matrix `{name}`"))
            continue
        tensors.setdefault(name, {})[_ENDS[end]] = array
    return tensors, problems


def _problem(name: str, own: Mapping[str, StoredArray], module: Module, config: AdapterConfig) -> Problem | None:
    """Return what is wrong with a module's tensors; None if nothing is."""
    kinds = ("table_a", "table_b") if module.is_table else ("a", "b")
    if set(own) - {"base"} != set(kinds):
        listed = ", ".join(f"`{end}`" for end, kind in _ENDS.items() if kind in own)
        return Problem(
            f"`{name}` has {listed}; expected the two matrices of {'a table' if module.is_table else 'a layer'}"
        )
    rank, (rows, columns) = config.rank_of(name), module.shape
    inputs, outputs = (rows, columns) if module.is_table else (columns, rows)
    shapes = [list(own[kind].shape) for kind in kinds]
    if shapes != [[rank, inputs], [outputs, rank]] or rank < 1:
        expected = f"{[rank, inputs]} and {[outputs, rank]}"
        return Problem(f"`{name}` has matrices of {shapes[0]} and {shapes[1]}; expected {expected}")
    if not config.targets(name):
        return Problem(f"`{name}` has matrices, but `target_modules` and `layers_to_transform` leave it out")
    types = {str(own[kind].read().dtype) for kind in kinds}
    if not types <= set(_FLOATS):
        return Problem(f"`{name}` holds {', '.join(sorted(types))}; expected one of {', '.join(_FLOATS)}")
    return None


def _without_matrices(
    config: AdapterConfig, modules: Mapping[str, Module], tensors: Mapping[str, object]
) -> Iterator[Problem]:
    """Yield the layers that the config targets and the file lacks. PEFT does not treat experts as layers."""
    for name in modules if config.names_targets else ():
        if name not in tensors and not re.search(r"\.experts\.\d+\.", name) and config.targets(name):
            yield Problem(f"`{name}` is one of `target_modules`, but the file has no matrices for it")

"""PEFT adapters: check adapter_config.json and map the matrices to the model's weights."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError, reader
from trtkit.models.weights import model_weights
from trtkit.sources.attached_folders import adapter_files
from trtkit.sources.digest import adapter_digest
from trtkit.sources.huggingface.wrapped_config import inner_name
from trtkit.sources.safetensors_file import read_json, read_safetensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import regex

    from trtkit.arrays import Array
    from trtkit.models.spec import DecoderSpec
    from trtkit.sources.checkpoint import StoredArray


_PREFIX = "base_model.model."
# Suffixes of tensor names in an adapter: two matrices of a linear layer or of a table, and a copy of the base weight.
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
    """An adapter's update of one matrix [out, in]: scale * b a.

    a: [adapter_rank, in]. b: [out, adapter_rank]. base: the adapter's copy of the base matrix, if it has one.
    """

    module: Module
    a: StoredArray
    b: StoredArray
    scale: float
    base: StoredArray | None = None

    @property
    def adapter_rank(self) -> int:
        return self.a.shape[0]

    def matrices(self) -> tuple[Array, Array]:
        """Return a, and b times the scale, in fp32. Raises SourceError if they are not finite."""
        a, b = (np.asarray(factor.read(), np.float32) for factor in (self.a, self.b))
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
    def adapter_rank(self) -> int:
        return max(part.adapter_rank for part in self.parts.values())


@reader
def open_adapter(folder: Path, spec: DecoderSpec) -> Adapter:
    """Open a PEFT adapter for a model.

    Raises SourceError for missing files and pickles, ProblemsError for unsupported kinds of adapters and for everything
    that does not fit the model: names, shapes, ranks, layers without matrices.
    """
    files = adapter_files(folder)
    config = check_config(read_json(files[0]), str(files[0]))
    modules = model_modules(spec)
    tensors, problems = _by_module(read_safetensors(files[1]), modules)
    parts = {}
    for name, factors in tensors.items():
        module = modules[name]
        problem = _problem(name, factors, module, config)
        problems += [problem] if problem else []
        a, b = ("table_a", "table_b") if module.is_table else ("a", "b")
        if problem is None:
            parts[module.path] = LowRank(module, factors[a], factors[b], config.scale_of(name), factors.get("base"))
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
    """Return the model's matrices by their module names in transformers."""
    modules = {}
    for weight in model_weights(spec):
        if not weight.path.endswith(".weight") or len(weight.shape) != 2:
            continue
        path, name = (text.removesuffix(".weight") for text in (weight.path, weight.name))
        rows, columns = weight.shape
        is_turned = spec.is_in_out and path.startswith("layers.")
        modules[name] = Module(path, (columns, rows) if is_turned else (rows, columns), path == "embedding")
    modules.setdefault(spec.names["lm_head"], Module("lm_head", (spec.vocab_size, spec.hidden_size)))
    return modules


def _by_module(
    stored: Mapping[str, StoredArray], modules: Mapping[str, Module]
) -> tuple[dict[str, dict[str, StoredArray]], list[Problem]]:
    """Return an adapter's tensors by module and kind, and a problem for each that fits neither model nor adapter."""
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


def _problem(name: str, factors: Mapping[str, StoredArray], module: Module, config: AdapterConfig) -> Problem | None:
    """Return the problem with a module's tensors; None if they are valid."""
    kinds = ("table_a", "table_b") if module.is_table else ("a", "b")
    if set(factors) - {"base"} != set(kinds):
        listed = ", ".join(f"`{end}`" for end, kind in _ENDS.items() if kind in factors)
        return Problem(
            f"`{name}` has {listed}; expected the two matrices of {'a table' if module.is_table else 'a layer'}"
        )
    adapter_rank, (rows, columns) = config.adapter_rank_of(name), module.shape
    inputs, outputs = (rows, columns) if module.is_table else (columns, rows)
    shapes = [list(factors[kind].shape) for kind in kinds]
    if shapes != [[adapter_rank, inputs], [outputs, adapter_rank]] or adapter_rank < 1:
        expected = f"{[adapter_rank, inputs]} and {[outputs, adapter_rank]}"
        return Problem(f"`{name}` has matrices of {shapes[0]} and {shapes[1]}; expected {expected}")
    if not config.targets(name):
        return Problem(f"`{name}` has matrices, but `target_modules` and `layers_to_transform` leave it out")
    types = {str(factors[kind].read().dtype) for kind in kinds}
    if not types <= set(_FLOATS):
        return Problem(f"`{name}` holds {', '.join(sorted(types))}; expected one of {', '.join(_FLOATS)}")
    return None


def _without_matrices(
    config: AdapterConfig, modules: Mapping[str, Module], tensors: Mapping[str, object]
) -> Iterator[Problem]:
    """Yield problems for targeted layers without matrices in the file. PEFT does not treat experts as layers."""
    for name in modules if config.names_targets else ():
        if name not in tensors and not re.search(r"\.experts\.\d+\.", name) and config.targets(name):
            yield Problem(f"`{name}` is one of `target_modules`, but the file has no matrices for it")


_ALL_LINEAR = "all-linear"

# Fields that define what an adapter computes, and are used here.
_READ = {
    "peft_type",
    "r",
    "lora_alpha",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "init_lora_weights",
    "bias",
}
# Fields for training and bookkeeping; `fan_in_fan_out` is derived from the layer, as in PEFT.
_WITHOUT_EFFECT = {
    "auto_mapping",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "lora_dropout",
    "peft_version",
    "task_type",
    "fan_in_fan_out",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "megatron_core",
    "qalora_group_size",
    "runtime_config",
}
_MERGE = "merge it with PEFT (`merge_and_unload`), save the model, and build that"
_RETRAIN = "train the adapter without it"
_CONVERT = "save it with PEFT's `path_initial_model_for_weight_conversion`, which makes a plain adapter of it"
# Reason and fix for each field that is refused.
_REFUSED = {
    "use_dora": ("DoRA rescales the sum of weight and adapter", _MERGE),
    "modules_to_save": ("whole modules were trained in addition to the adapter", _MERGE),
    "target_parameters": ("parameters of experts are adapted", _MERGE),
    "alora_invocation_tokens": ("an activated LoRA begins in the middle of a prompt", _RETRAIN),
    "trainable_token_indices": ("vectors of tokens were trained in addition to the adapter", _MERGE),
    "layer_replication": ("layers are repeated", _MERGE),
    "lora_bias": ("the adapter adds biases", _MERGE),
}
_MATCHING_S = 2.0
"""Limit on the time for matching all patterns of an adapter; usual ones take milliseconds."""
# Initializations that subtract the adapter's initial product from the base weights or, for MiCA, compute differently.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")


@dataclass(frozen=True)
class AdapterConfig:
    """The contents of adapter_config.json. where: the file, for errors."""

    fields: Mapping[str, Any]
    where: str
    _left_s: list[float] = field(default_factory=lambda: [_MATCHING_S], compare=False, repr=False)

    def adapter_rank_of(self, module: str) -> int:
        return int(self._by_pattern("rank_pattern", module, self.fields.get("r", 8)))

    def scale_of(self, module: str) -> float:
        """Return the factor of the product of a module's two matrices."""
        alpha = self._by_pattern("alpha_pattern", module, self.fields.get("lora_alpha", 8))
        adapter_rank = self.adapter_rank_of(module)
        return float(alpha / (math.sqrt(adapter_rank) if self.fields.get("use_rslora") else adapter_rank))

    @property
    def names_targets(self) -> bool:
        """Whether targets are listed or matched by name, not simply all linear layers."""
        return self.fields.get("target_modules") != _ALL_LINEAR

    def targets(self, module: str) -> bool:
        """Whether the adapter targets a module, given its full name. HF: PEFT's `check_target_module_exists`."""
        excluded, targets = self.fields.get("exclude_modules"), self.fields.get("target_modules")
        if excluded and self._is_listed(excluded, module):
            return False
        if targets == _ALL_LINEAR or targets is None:
            return True
        if isinstance(targets, str) or module in targets:
            return self._is_listed(targets, module)
        return self._is_listed(targets, module) and self._transforms(module)

    def _transforms(self, module: str) -> bool:
        layers = self.fields.get("layers_to_transform")
        if layers is None or layers == []:
            return True
        patterns = self.fields.get("layers_pattern") or ()
        patterns = [patterns] if isinstance(patterns, str) else patterns
        forms = [rf"(?:^|.*?\.){one}\.(\d+)\." for one in patterns] or [r".*?\.[^.]*\.(\d+)\."]
        matched = next((match for form in forms if (match := self._match(form, module))), None)
        return matched is not None and int(matched[1]) in ([layers] if isinstance(layers, int) else layers)

    def _by_pattern(self, field: str, module: str, default: float) -> float:
        patterns: Mapping[str, float] = self.fields.get(field) or {}
        matching = (value for key, value in patterns.items() if self._match(rf"(.*\.)?({key})$", module))
        return next(matching, default)

    def _is_listed(self, names: str | list[str], module: str) -> bool:
        """Whether a module matches a regular expression, or ends with one of several names."""
        if isinstance(names, str):
            return self._match(rf"(?:{names})\Z", module) is not None
        return any(module == name or module.endswith(f".{name}") for name in names)

    def _match(self, pattern: str, module: str) -> regex.Match[str] | None:
        """Match a pattern at the start of a module's name; None if it does not match.

        The patterns come from the adapter and may backtrack forever, so matching has a timeout and lets other threads
        run.
        Raises SourceError if it takes too long.
        """
        import regex

        start = time.monotonic()
        try:
            return regex.match(pattern, module, timeout=max(self._left_s[0], 0.001), concurrent=True)
        except TimeoutError:
            what = f"its pattern `{_short(pattern)}` takes too long to match"
            raise SourceError(what, self.where, "list the names of modules, or write a simpler pattern") from None
        except regex.error as error:
            raise ValueError(f"pattern `{_short(pattern)}`: {error}") from None
        finally:
            self._left_s[0] -= time.monotonic() - start


def check_config(fields: Mapping[str, Any], where: str) -> AdapterConfig:
    """Return an adapter's config. Raises ProblemsError listing every field that makes its kind unsupported."""
    problems = list(_problems(fields))
    if problems:
        shown = [Problem(problem.what, where, problem.fix) for problem in problems]
        raise ProblemsError("the adapter is of a form that trtkit does not compute", shown)
    config = AdapterConfig(fields, where)
    try:
        config.targets("model.layers.0.self_attn.q_proj")
        config.scale_of("model.layers.0.self_attn.q_proj")
    except (TypeError, ValueError, ArithmeticError) as error:
        what = f"ranks, scales or targets cannot be read: {error}"
        raise SourceError(what, where, "copy or download the adapter again") from None
    return config


def _problems(fields: Mapping[str, object]) -> Iterator[Problem]:
    kind, init, bias = (fields.get(name) for name in ("peft_type", "init_lora_weights", "bias"))
    if kind != "LORA":
        yield Problem(f"`peft_type` is `{kind}`; only `LORA` is supported", fix=_MERGE)
    if bias not in (None, "none"):
        yield Problem(
            f"`bias` is `{bias}`: biases were trained in addition to the adapter; only `none` is supported", "", _MERGE
        )
    if isinstance(init, str) and init.lower().startswith(_CHANGES_BASE):
        what = f"`init_lora_weights` is `{init}`: the adapter belongs to changed weights of its base"
        yield Problem(what, fix=_CONVERT)
    for name, value in fields.items():
        if name in _READ | _WITHOUT_EFFECT or value in (None, False, [], {}):
            continue
        what, fix = _REFUSED.get(name, ("this form of adapter is not known", _MERGE))
        yield Problem(f"`{name}` is `{_short(value)}`: {what}", fix=fix)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."

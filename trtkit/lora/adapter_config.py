"""PEFT's adapter_config.json: what an adapter adapts, ranks and scales; forms that compute otherwise are refused."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem, ProblemsError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ALL_LINEAR = "all-linear"

# Fields that say what an adapter computes, and are read here.
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
# Fields of training and bookkeeping; `fan_in_fan_out` follows from the layer, as in PEFT.
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
# What the field means, and what to do.
_REFUSED = {
    "use_dora": ("DoRA rescales the sum of weight and adapter", _MERGE),
    "modules_to_save": ("whole modules were trained in addition to the adapter", _MERGE),
    "target_parameters": ("parameters of experts are adapted", _MERGE),
    "alora_invocation_tokens": ("an activated LoRA begins in the middle of a prompt", _RETRAIN),
    "trainable_token_indices": ("vectors of tokens were trained in addition to the adapter", _MERGE),
    "layer_replication": ("layers are repeated", _MERGE),
    "lora_bias": ("the adapter adds biases", _MERGE),
}
# Initial values that subtract from the base's weights what the adapter begins with, or, of MiCA, compute otherwise.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")


@dataclass(frozen=True)
class AdapterConfig:
    """What an adapter_config.json says. where: the file, for errors."""

    fields: Mapping[str, Any]
    where: str

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's adapter."""
        return int(self._by_pattern("rank_pattern", module, self.fields.get("r", 8)))

    def scale_of(self, module: str) -> float:
        """Return what the product of a module's two matrices is multiplied by."""
        alpha, rank = self._by_pattern("alpha_pattern", module, self.fields.get("lora_alpha", 8)), self.rank_of(module)
        return float(alpha / (math.sqrt(rank) if self.fields.get("use_rslora") else rank))

    @property
    def names_targets(self) -> bool:
        """Whether the targets are listed or matched by name, and not just all linear layers."""
        return self.fields.get("target_modules") != _ALL_LINEAR

    def targets(self, module: str) -> bool:
        """Whether the adapter is for a module, by its full name. HF: PEFT's `check_target_module_exists`."""
        excluded, targets = self.fields.get("exclude_modules"), self.fields.get("target_modules")
        if excluded and _is_listed(excluded, module):
            return False
        if targets == _ALL_LINEAR or targets is None:
            return True
        if isinstance(targets, str) or module in targets:
            return _is_listed(targets, module)
        return _is_listed(targets, module) and self._transforms(module)

    def _transforms(self, module: str) -> bool:
        """Whether the adapter is for the layer that a module is in."""
        layers = self.fields.get("layers_to_transform")
        if layers is None or layers == []:
            return True
        patterns = self.fields.get("layers_pattern") or ()
        patterns = [patterns] if isinstance(patterns, str) else patterns
        matched = next((each for one in patterns if (each := re.match(rf"(?:^|.*?\.){one}\.(\d+)\.", module))), None)
        matched = matched if patterns else re.match(r".*?\.[^.]*\.(\d+)\.", module)
        return matched is not None and int(matched[1]) in ([layers] if isinstance(layers, int) else layers)

    def _by_pattern(self, field: str, module: str, default: float) -> float:
        patterns: Mapping[str, float] = self.fields.get(field) or {}
        matching = (value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
        return next(matching, default)


def _is_listed(names: str | list[str], module: str) -> bool:
    """Whether a module fits a regular expression, or ends with one of several names."""
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def check_config(fields: Mapping[str, Any], where: str) -> AdapterConfig:
    """Return an adapter's config. Raises ProblemsError with every field that makes it another kind of adapter."""
    problems = list(_problems(fields))
    if problems:
        shown = [Problem(problem.what, where, problem.fix) for problem in problems]
        raise ProblemsError("the adapter is of a form that trtkit does not compute", shown)
    config = AdapterConfig(fields, where)
    try:
        config.targets("model.layers.0.self_attn.q_proj")
        config.scale_of("model.layers.0.self_attn.q_proj")
    except (re.error, TypeError, ValueError, ArithmeticError) as error:
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

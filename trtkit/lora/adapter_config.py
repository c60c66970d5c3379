"""PEFT's adapter_config.json: what an adapter adapts, ranks and scales; forms that compute otherwise are refused."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem, ProblemsError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import regex

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
_MATCHING_S = 2.0
"""What matching all patterns of an adapter may take; the usual ones take milliseconds."""
# Initial values that subtract from the base's weights what the adapter begins with, or, of MiCA, compute otherwise.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")


@dataclass(frozen=True)
class AdapterConfig:
    """What an adapter_config.json says. where: the file, for errors."""

    fields: Mapping[str, Any]
    where: str
    _left_s: list[float] = field(default_factory=lambda: [_MATCHING_S], compare=False, repr=False)

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
        if excluded and self._is_listed(excluded, module):
            return False
        if targets == _ALL_LINEAR or targets is None:
            return True
        if isinstance(targets, str) or module in targets:
            return self._is_listed(targets, module)
        return self._is_listed(targets, module) and self._transforms(module)

    def _transforms(self, module: str) -> bool:
        """Whether the adapter is for the layer that a module is in."""
        layers = self.fields.get("layers_to_transform")
        if layers is None or layers == []:
            return True
        patterns = self.fields.get("layers_pattern") or ()
        patterns = [patterns] if isinstance(patterns, str) else patterns
        forms = [rf"(?:^|.*?\.){one}\.(\d+)\." for one in patterns] or [r".*?\.[^.]*\.(\d+)\."]
        matched = next((each for form in forms if (each := self._match(form, module))), None)
        return matched is not None and int(matched[1]) in ([layers] if isinstance(layers, int) else layers)

    def _by_pattern(self, field: str, module: str, default: float) -> float:
        patterns: Mapping[str, float] = self.fields.get(field) or {}
        matching = (value for key, value in patterns.items() if self._match(rf"(.*\.)?({key})$", module))
        return next(matching, default)

    def _is_listed(self, names: str | list[str], module: str) -> bool:
        """Whether a module fits a regular expression, or ends with one of several names."""
        if isinstance(names, str):
            return self._match(rf"(?:{names})\Z", module) is not None
        return any(module == name or module.endswith(f".{name}") for name in names)

    def _match(self, pattern: str, module: str) -> regex.Match[str] | None:
        """Return how a module begins with a pattern, None if it does not.

        The patterns come with the adapter, and may backtrack for ever: other threads run meanwhile, and it stops.
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
    """Return an adapter's config. Raises ProblemsError with every field that makes it another kind of adapter."""
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

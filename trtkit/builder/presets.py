"""Presets: build settings of a language model chosen for a purpose, for `trtkit build --preset`.

A preset sets only keys that the config leaves open, within the model's limits. It is a shorthand: the bundle's manifest
lists the keys as if they had been typed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from trtkit.builder.decoders import open_config_source
from trtkit.config.llm import LlmOptions, LoraOptions
from trtkit.config.load import changed_config
from trtkit.dtypes import stated_precision
from trtkit.errors import ConfigError
from trtkit.lora.targets import adapted_layers
from trtkit.models.weights import stored_spec
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.config.schema import ModelConfig
    from trtkit.models.spec import DecoderSpec

Preset = Literal["chat", "throughput", "long"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
_LORA = "llm.lora.max_rank_sum"

_WANTED: dict[Preset, dict[str, int | str]] = {
    "chat": {
        "llm.max_batch_size": 8,
        "llm.max_sequence_length": 8192,
        "llm.max_prefill_length": 512,
        "llm.kv": "linear",
        "llm.kv_window": "used",
        "llm.logits": "all",
        _LORA: 64,
    },
    "throughput": {
        "llm.max_batch_size": 64,
        "llm.max_sequence_length": 4096,
        "llm.max_prefill_length": 2048,
        "llm.kv": "paged",
        "llm.logits": "last",
        _LORA: 128,
    },
    "long": {
        "llm.max_batch_size": 4,
        "llm.max_sequence_length": 131072,
        "llm.max_prefill_length": 2048,
        "llm.kv": "paged",
        "llm.page_tokens": 64,
        "llm.logits": "last",
        _LORA: 64,
    },
}
_MEANINGS: dict[str, str] = {
    "precision": "the network's type; a preset takes that of the weights",
    "llm.max_batch_size": "sequences at once; more wait",
    "llm.max_sequence_length": "tokens of a prompt and its answer",
    "llm.max_prefill_length": "tokens of prompts in a step; longer ones take several",
    "llm.kv": "`linear`: a slot for each sequence, read in place; `paged`: memory for tokens in use, shared prefixes",
    "llm.kv_window": "a step reads the tokens in use, not whole slots",
    "llm.page_tokens": "tokens of a page",
    "llm.logits": "`all`: guesses (--lookup, --draft) and the prompt's log probabilities; `last`: neither",
    _LORA: "LoRA adapters may be loaded while it runs, up to this sum of their ranks",
}


@dataclass(frozen=True)
class Decision:
    """A key that the engine is built with.

    origin: where its value came from: the preset, the model's limit or the config.
    """

    key: str
    value: object
    meaning: str
    origin: Literal["preset", "model", "config"]


@dataclass(frozen=True)
class ChosenPreset:
    """A config with a preset applied. left_out: keys that do not apply to the model, and why."""

    name: Preset
    config: ModelConfig
    decisions: tuple[Decision, ...]
    left_out: tuple[tuple[str, str], ...]


def with_preset(config: ModelConfig, name: Preset) -> ChosenPreset:
    """Return `config` with the preset's values for its model.

    Raises ConfigError for other kinds of models and unknown names, and any error of opening the source.
    """
    if name not in PRESETS:
        raise ConfigError(f"`{name}` is not a preset", [], f"use one of {', '.join(PRESETS)}")
    if resolve(config).interface != "tokens":
        raise ConfigError("presets are for language models", [], "leave --preset out")
    opened = open_config_source(config)
    spec = stored_spec(opened.config, opened.where, opened.checkpoint)
    wanted, left_out = _fitted(_WANTED[name], spec, config)
    wanted = {"precision": stated_precision(opened.config) or "fp16", **wanted}
    stated_keys = _stated_keys(config)
    keys = {key: value for key, value in wanted.items() if not _is_stated(key, stated_keys)}
    chosen = changed_config(config, keys)
    decisions = tuple(_decision(key, chosen, keys, _WANTED[name]) for key in (*wanted, *_others(stated_keys, wanted)))
    return ChosenPreset(name, chosen, decisions, tuple(left_out.items()))


def _fitted(
    wanted: Mapping[str, int | str], spec: DecoderSpec, config: ModelConfig
) -> tuple[dict[str, int | str], dict[str, str]]:
    """Return the preset's keys that apply to a model, within its limits, and why the others do not."""
    fitted, left_out = dict(wanted), {}
    stated = None if config.llm is None or "max_sequence_length" not in config.llm.model_fields_set else config.llm
    length = min(int(wanted["llm.max_sequence_length"]), spec.max_position_embeddings or 2**31)
    length = length if stated is None else stated.max_sequence_length
    is_paged = wanted["llm.kv"] == "paged"
    if is_paged and not spec.attentions:
        left_out["llm.kv"] = "the model has no attention, so no KV caches"
        fitted.update({"llm.kv": "linear"})
        fitted.pop("llm.page_tokens", None)
    elif is_paged and stated is None:
        length -= length % int(wanted.get("llm.page_tokens") or LlmOptions(kv="paged").page_size or 1)
    fitted["llm.max_sequence_length"] = length
    prefill = int(wanted["llm.max_prefill_length"])
    fitted["llm.max_prefill_length"] = min(prefill, length, spec.most_new_tokens or prefill)
    if not spec.attentions and "llm.kv_window" in fitted:
        del fitted["llm.kv_window"]
        left_out["llm.kv_window"] = "the model has no attention, so no KV caches"
    if not adapted_layers(spec, LoraOptions(max_rank_sum=1)):
        left_out[_LORA] = "the model has no layer that takes adapters"
        del fitted[_LORA]
    return fitted, left_out


def _stated_keys(config: ModelConfig) -> set[str]:
    """Return the keys that the config sets, of those that presets may set."""
    llm = set() if config.llm is None else {f"llm.{key}" for key in config.llm.model_fields_set}
    return llm | ({"precision"} & config.model_fields_set)


def _is_stated(key: str, stated: set[str]) -> bool:
    """Whether the config sets a key; setting the kind of cache also sets the keys that belong to that kind."""
    if key in ("llm.kv_window", "llm.page_tokens") and "llm.kv" in stated:
        return True
    return key in stated or key.rpartition(".")[0] in stated


def _others(stated: set[str], wanted: Mapping[str, object]) -> list[str]:
    """Return the keys that are set by the config and not by the preset."""
    return sorted(key for key in stated if key not in wanted and not any(name.startswith(f"{key}.") for name in wanted))


def _decision(key: str, config: ModelConfig, keys: Mapping[str, object], preset: Mapping[str, object]) -> Decision:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part, None)
    origin: Literal["preset", "model", "config"] = "preset" if key in keys else "config"
    if key in keys and preset.get(key) != value:
        origin = "model"
    return Decision(key, value, _MEANINGS.get(key, ""), origin)

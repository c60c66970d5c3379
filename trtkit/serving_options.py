"""How a language model runs: one record for the command line, `LLM`, Dynamo's workers and Triton's models.

A new option is one field here. `cli/serving_options.py` makes flags of the fields, `deployment/triton/options.py` keys
of `trtkit deploy --set`, `docs/generate.py` a table; a Dynamo worker gets them as one JSON argument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

API_KEY = "TRTKIT_API_KEY"
"""Variable with the key that clients of `trtkit serve` must send."""
Runtime = Literal["auto", "tensorrt", "reference"]
RUNTIMES: tuple[Runtime, ...] = ("auto", "tensorrt", "reference")
ScheduleName = Literal["fcfs", "priority", "mlfq"]
SCHEDULES: tuple[ScheduleName, ...] = ("fcfs", "priority", "mlfq")
CachePlace = Literal["device", "host", "disk"]
CACHE_PLACES: tuple[CachePlace, ...] = ("device", "host", "disk")
WeightBudget = float | Literal["auto"]
"""GiB, or what everything else leaves free."""
Kind = Literal["count", "gib", "budget", "name", "folder", "bundle", "weights", "folders", "flag"]
ServingField = Field[object]
Surface = Literal["run", "serve", "triton"]
"""Where an option can be set: commands that run a bundle, `trtkit serve BUNDLE`, `trtkit deploy --set llm.KEY`."""


@dataclass(frozen=True)
class Option:
    """What users read about a field, and which values it takes.

    kind: count: a whole number. gib: a size. budget: GiB or `auto`. name: one of `choices`. folder, bundle, flag: what
    they say. weights: numbers above 0 by name; folders: folders by name. flag: on the command line; derived from the
    field's name if empty. least: the smallest value; above 0 if None. default_text: what the default means, if
    the value does not say it. served: the default of servers, if it differs. served_help: what servers add to the help.
    """

    help: str
    kind: Kind = "count"
    surfaces: frozenset[Surface] = frozenset()
    flag: str = ""
    choices: tuple[str, ...] = ()
    least: int | None = 1
    default_text: str = ""
    served: object = None
    served_help: str = ""


_RUN: frozenset[Surface] = frozenset({"run"})
_ALL: frozenset[Surface] = frozenset({"run", "serve", "triton"})
_SERVED: frozenset[Surface] = frozenset({"serve", "triton"})


def _option(default: object, text: str, kind: Kind = "count", surfaces: frozenset[Surface] = _ALL, **facts: Any) -> Any:
    return field(default=default, metadata={"option": Option(text, kind, surfaces, **facts)})


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """How to open and serve a bundle of a language model. docs/serving-options.md describes every field."""

    runtime: Runtime = _option("auto", "Runtime.", "name", _RUN, choices=RUNTIMES)
    slots: int | None = _option(None, "Concurrent sequences.", default_text="the engine's")
    cache_gib: float | None = _option(
        None, "Memory for paged caches per GPU.", "gib", least=None, default_text="as much as full slots take"
    )
    host_cache_gib: float = _option(
        2.0, "Host memory for caches that do not fit on the GPU.", "gib", least=0, served_help="per worker or instance"
    )
    weight_budget_gib: WeightBudget | None = _option(
        None,
        "GPU memory for weights; the others are streamed from host memory.",
        "budget",
        flag="--weight-budget",
        least=0,
        default_text="all weights",
    )
    offload: CachePlace | None = _option(
        None,
        "Run pipeline stages in turn on one device, loading the weights of each; the value says where caches stay.",
        "name",
        _RUN,
        choices=CACHE_PLACES,
    )
    micro_batch: int | None = _option(
        None,
        "Sequences that a stage computes together with `offload`.",
        surfaces=_RUN,
        default_text="all with caches on the device, else a quarter of the slots",
    )
    resident_tokens: int | None = _option(
        None,
        "Steps for which rows of active neurons stay in memory; others are read from the bundle's file (no GPU).",
        surfaces=_RUN,
        default_text="all are mapped",
    )
    cache_dir: str | Path | None = _option(
        None,
        "Folder that keeps caches for later runs.",
        "folder",
        served_help="each worker or instance has a subfolder",
    )
    cache_dir_gib: float = _option(16.0, "Maximum size of that folder's files.", "gib", least=None)
    max_queue: int | None = _option(
        None,
        "Maximum requests waiting for a slot; others are rejected.",
        surfaces=_SERVED,
        default_text="no limit",
        served=512,
    )
    prefill_budget: int | None = _option(
        None, "New tokens per step.", surfaces=frozenset({"run", "triton"}), default_text="the engine's"
    )
    schedule: ScheduleName | Any = _option(
        "priority", "Which request runs next; `mlfq` favors short ones.", "name", choices=SCHEDULES
    )
    shares: Mapping[str, float] | None = _option(
        None,
        "Share slots fairly between users; `*=1` is everyone else.",
        "weights",
        _SERVED,
        flag="--share",
        default_text="users do not matter",
    )
    speculate: int | None = _option(
        None, "Draft tokens of the bundle's own head; 0 for none.", least=0, default_text="3 if it has one"
    )
    lookup: int = _option(0, "Prompt lookup decoding with N draft tokens.", surfaces=_RUN, least=0)
    draft: str | Path | None = _option(None, "Speculative decoding with a smaller model, a bundle.", "bundle", _RUN)
    lora: Mapping[str, str | Path] | None = _option(
        None, "LoRA adapters that requests can name.", "folders", default_text="none"
    )
    draft_tokens: int = _option(4, "Tokens that `draft` guesses.", surfaces=frozenset())
    min_shared_tokens: int = _option(16, "The shortest prefix worth sharing.", surfaces=frozenset())
    has_cuda_graphs: bool = _option(True, "Capture and replay an engine's decode steps.", "flag", frozenset())
    detokenizes: bool = _option(
        True, "Whether answers have text; without it, stop strings cannot end them.", "flag", frozenset()
    )
    needs_all_logits: bool = _option(
        False,
        "Run on the reference executor if the engine returns only the last token's logits.",
        "flag",
        frozenset(),
    )

    @classmethod
    def for_server(cls, **values: Any) -> ServingOptions:
        """Return options with the defaults of servers."""
        for item in fields(cls):
            if option_of(item).served is not None:
                values.setdefault(item.name, option_of(item).served)
        return cls(**values)

    def to_json(self) -> str:
        """Return the options that are not defaults as one line, for another process."""
        values = vars(self)
        changed = {item.name: values[item.name] for item in fields(self) if values[item.name] != item.default}
        return json.dumps(changed, default=str)

    def to_values(self) -> dict[str, object]:
        """Return the object that `to_json` writes."""
        values: dict[str, object] = json.loads(self.to_json())
        return values

    @classmethod
    def of(cls, values: object) -> ServingOptions:
        """Return what `to_values` returned. Raises ValueError for anything else."""
        if not isinstance(values, dict) or not values.keys() <= {item.name for item in fields(cls)}:
            raise ValueError(f"not options of trtkit: {values}")
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> ServingOptions:
        """Return what `to_json` wrote. Raises ValueError for anything else."""
        return cls.of(json.loads(text))


def option_of(item: ServingField) -> Option:
    """Return what users read about a field."""
    option: Option = item.metadata["option"]
    return option


def serving_fields(surface: Surface) -> dict[str, ServingField]:
    """Return the fields that can be set at `surface`, by name."""
    return {item.name: item for item in fields(ServingOptions) if surface in option_of(item).surfaces}


def default_of(item: ServingField, surface: Surface) -> object:
    """Return a field's default at `surface`."""
    served = option_of(item).served
    return item.default if surface == "run" or served is None else served


def flag_of(item: ServingField) -> str:
    """Return a field's flag."""
    return option_of(item).flag or "--" + item.name.replace("_", "-")


def help_of(item: ServingField, surface: Surface, *, with_default: bool = True) -> str:
    """Return a field's help at `surface`, as a sentence; with the default in brackets as click writes it."""
    option = option_of(item)
    text, value = option.help, default_of(item, surface)
    if surface != "run" and option.served_help:
        text = f"{text.removesuffix('.')}; {option.served_help}."
    shown = option.default_text if value is None else f"{value:g}" if isinstance(value, float) else str(value or "")
    return f"{text}  [default: {shown}]" if shown and with_default else text

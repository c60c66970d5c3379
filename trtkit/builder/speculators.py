"""Open the draft head that a config names, and check which models and configs support one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from trtkit.builder.stages import DecoderSize
from trtkit.config.llm import BUILT_IN
from trtkit.dtypes import dtype_of
from trtkit.errors import ConfigError, Problem, reader
from trtkit.models.parallel import SINGLE, grid_of
from trtkit.models.speculators import kind_of, kind_part, open_kind
from trtkit.network.host_array import Array
from trtkit.sources import package_file
from trtkit.sources.attached_folders import speculator_config
from trtkit.sources.safetensors_file import read_folder, read_json

if TYPE_CHECKING:
    import numpy as np

    from trtkit.config.schema import ModelConfig
    from trtkit.models.spec import DecoderSpec
    from trtkit.models.speculators import Fields, SpeculatorSpec
    from trtkit.sources.checkpoint import StoredArray

_KEY = "llm.speculator"


@dataclass(frozen=True, eq=False)
class SpeculatorFolder:
    """The contents of a draft head's folder. fields: of config.json, at `where`. stored: its arrays by name."""

    path: str
    where: str
    fields: Fields
    stored: Mapping[str, StoredArray]


class JoinedWeights(Mapping[str, Array]):
    """Weights of two sources by path, read lazily."""

    def __init__(self, weights: Mapping[str, Array], others: Mapping[str, Array]) -> None:
        self._weights, self._others = weights, others

    def __getitem__(self, path: str) -> Array:
        return self._others[path] if path in self._others else self._weights[path]

    def __iter__(self) -> Iterator[str]:
        yield from self._weights
        yield from self._others

    def __len__(self) -> int:
        return len(self._weights) + len(self._others)


@dataclass(frozen=True, eq=False)
class OpenedSpeculator:
    """A draft head with its files open. ids: [V'], the model's token id of each token of the head.

    fusion: weights by path for the model's network. arrays: weights by path for the head's network. borrowed: paths of
    the head's weights that come from the model, to their paths there. layer_fields: the config of the head's layers in
    the form of a model's, if its kind has layers.
    """

    spec: SpeculatorSpec
    ids: np.ndarray
    fusion: Mapping[str, Array]
    arrays: Mapping[str, Array]
    borrowed: Mapping[str, str] = field(default_factory=dict)
    layer_fields: Fields = field(default_factory=dict)

    def weights(self, of_model: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the weights of the head's network by path. of_model: the model's weights by path."""
        return JoinedWeights(self.arrays, {path: of_model[name] for path, name in self.borrowed.items()})


class _KindBuild(Protocol):
    """Interface of the `build.py` of a kind of draft head."""

    @staticmethod
    def open_folder(folder: SpeculatorFolder, target: DecoderSpec) -> OpenedSpeculator: ...


def open_config_speculator(
    config: ModelConfig, spec: DecoderSpec, *, has_quantized_caches: bool
) -> OpenedSpeculator | None:
    """Open the draft head that the config names; None if it names none.

    Raises ConfigError if the model or config does not support it, and what `open_speculator` raises.
    """
    folder = _folder(config)
    if folder is None:
        return None
    obstacles = (*_obstacles(config, spec), *open_kind(folder_kind(folder)).obstacles(spec))
    problems = [Problem(what, _KEY) for what in obstacles]
    if not problems:
        opened = open_speculator(folder, spec)
        if not (has_quantized_caches and opened.spec.reads_target_caches):
            return opened
        problems.append(Problem("the head reads the model's caches, which are quantized", _KEY))
    raise ConfigError("a head that guesses tokens does not work here", problems, "leave `llm.speculator` out")


def _folder(config: ModelConfig) -> Path | None:
    """Return the folder of the config's draft head, which may be the model's own; None if the config names none.

    Raises ConfigError for a built-in head if the model's weights are not in a Hugging Face folder.
    """
    name = None if config.llm is None else config.llm.speculator
    if name != BUILT_IN:
        return None if name is None else Path(name)
    if config.source.hf is None:
        what = f"`{BUILT_IN}`: draft heads in a model's own weights are read from `source.hf` only"
        raise ConfigError("the config does not fit its source", [Problem(what, _KEY, "leave `llm.speculator` out")])
    return package_file.hf_folder(config.source)


def _obstacles(config: ModelConfig, spec: DecoderSpec) -> Iterator[str]:
    """Yield why a model cannot have a draft head of any kind."""
    if grid_of(config) != SINGLE:
        yield "`parallel`: hidden states and caches of a head are not shared by several ranks"
    if config.llm is not None and config.llm.inputs == "embeds":
        yield "`llm.inputs: embeds`: a head reads token ids"
    if config.build.weight_streaming:
        yield "`build.weight_streaming`: a head's weights are not streamed"
    if spec.reads_encoder:
        yield "the model reads an encoder"
    if config.llm is not None and (tokens := config.llm.tree_tokens) is not None:
        for obstacle in tree_obstacles(spec, tokens, config.llm.max_sequence_length):
            yield f"`llm.tree_tokens`: {obstacle}"


def speculator_size(config: ModelConfig, opened: OpenedSpeculator) -> DecoderSize:
    """Return a draft head's size: its cache, its weights including borrowed ones, and the model's weights for it."""
    dtype, spec = dtype_of(config.precision), opened.spec
    sizes = {weight.path: math.prod(weight.shape) for weight in (*spec.network_weights(), *spec.fusion_weights())}
    held, borrowed = sum(sizes.values()), sum(sizes[path] for path in opened.borrowed)
    per_token = dtype.size_bytes(spec.cached_elements)
    length = 0 if config.llm is None else config.llm.max_sequence_length
    own_elements = held - borrowed
    return DecoderSize(
        spec.kind, own_elements, dtype.size_bytes(held), per_token, per_token * length, most_tokens=spec.most_tokens
    )


@reader
def folder_kind(folder: Path) -> str:
    """Return a draft head's kind.

    Raises SourceError if the folder is missing, holds pickles or is not a draft head's.
    """
    path = speculator_config(folder)
    return kind_of(read_json(path), str(path))


@reader
def open_speculator(folder: Path, target: DecoderSpec) -> OpenedSpeculator:
    """Open a draft head for the model `target`.

    Raises what `folder_kind` raises, and ProblemsError for missing, unknown or misshaped weights and for a head that
    was made for another model.
    """
    path = speculator_config(folder)
    fields = read_json(path)
    build = cast("_KindBuild", kind_part(kind_of(fields, str(path)), "build"))
    return build.open_folder(SpeculatorFolder(str(folder), str(path), fields, read_folder(folder)[0]), target)


def tree_obstacles(spec: DecoderSpec, depth: int, length: int) -> Iterator[str]:
    """Yield why a model cannot verify trees of guesses, `depth` deep, in slots of `length` tokens.

    A guess may be further from its ancestors in the cache than in the sequence, so layers whose scores depend on the
    distance of keys would compute wrong values.
    """
    if spec.states:
        yield "recurrent states read one token after another"
    attentions = spec.attentions
    if any(attention.has_alibi for attention in attentions):
        yield "ALiBi scores keys by their places in the cache"
    if any(attention.relative is not None for attention in attentions):
        yield "relative scores follow places in the cache"
    if any((attention.chunk or length) < length for attention in attentions):
        yield "attention in chunks cuts by places in the cache"
    window = min((attention.sliding_window or length for attention in attentions), default=length)
    if depth >= window:
        yield f"{depth} guesses in a row exceed the sliding window of {window} tokens"

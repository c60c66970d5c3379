"""What all draft heads (speculators) have in common. Each kind has a folder in `trtkit/drafts/`.

A draft head guesses a language model's next tokens. Packages below `trtkit.drafts` name no kind; they import the files
of a kind's folder by its name, when a config or a bundle needs them.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, Protocol, cast

from trtkit.errors import SourceError
from trtkit.models.attention import NormSpec
from trtkit.models.spec import DecoderSpec
from trtkit.models.weights import Weight

Fields = Mapping[str, Any]
"""Fields of a `config.json`."""
_PACKAGE = "trtkit.drafts"
_Part = Literal["spec", "build", "network", "proposer", "reference"]


@dataclass(frozen=True)
class FusionSpec:
    """A draft head's input: the model's hidden states at several layers, concatenated and projected to the head's size.

    layers: whose inputs are read, that is the outputs of the layers before them; 0 reads the embedding.
    norm: before the projection, over all of them together, or over each if `is_normed_apart`.
    """

    layers: tuple[int, ...]
    hidden_size: int
    norm: NormSpec | None = None
    is_normed_apart: bool = False
    has_bias: bool = False


class SpeculatorSpec(Protocol):
    """A draft head as data."""

    @property
    def kind(self) -> str:
        """The name of its kind, in manifests and as a folder in `trtkit/drafts/`."""
        ...

    @property
    def fusion(self) -> FusionSpec | None:
        """Its input; None for the model's hidden state after the final norm."""
        ...

    @property
    def cached_elements(self) -> int:
        """Elements per token in its own caches."""
        ...

    @property
    def reads_target_caches(self) -> bool:
        """Whether it reads the model's caches instead of its own."""
        ...

    @property
    def most_tokens(self) -> int | None:
        """Maximum number of tokens that it can propose in a step; None if unlimited."""
        ...

    @property
    def description(self) -> str:
        """Return a description for people: the kind, what it guesses and what it reads."""
        ...

    def fusion_weights(self) -> Iterator[Weight]:
        """Yield the weights that the model's network holds for its draft head."""
        ...

    def network_weights(self) -> Iterator[Weight]:
        """Yield the weights of the draft head's own network; the kind's files define their paths."""
        ...


class Kind(Protocol):
    """A kind's `spec.py`. TITLE: its name for people. SIGN: how people recognize its `config.json`."""

    TITLE: str
    SIGN: str

    @staticmethod
    def describes(fields: Fields) -> bool:
        """Whether a `config.json` describes a draft head of this kind."""

    @staticmethod
    def obstacles(target: DecoderSpec) -> Iterable[str]:
        """Yield the reasons why a model cannot have a draft head of this kind."""


def known_kinds() -> tuple[str, ...]:
    """Return the names of all kinds' folders. Imports none of them."""
    folders = pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)
    return tuple(sorted(folder.name for folder in folders if folder.ispkg))


def kind_part(kind: str, part: _Part) -> ModuleType:
    """Import one file of a kind's folder. Raises SourceError for a kind without a folder."""
    if kind not in known_kinds():
        fix = f"build again with one of these: {', '.join(known_kinds())}"
        raise SourceError(f"unknown kind of draft head `{kind}`", "decoder.speculator.model_type", fix)
    return importlib.import_module(f"{_PACKAGE}.{kind}.{part}")


def open_kind(kind: str) -> Kind:
    """Import a kind's `spec.py`. Raises SourceError for a kind without a folder."""
    return cast("Kind", kind_part(kind, "spec"))


def kind_of(fields: Fields, where: str) -> str:
    """Return the kind of draft head that a `config.json` describes. Raises SourceError if there is no such kind."""
    kinds = {name: open_kind(name) for name in known_kinds()}
    for name, kind in kinds.items():
        if kind.describes(fields):
            return name
    named = fields.get("speculators_model_type") or fields.get("architectures") or fields.get("model_type") or ()
    names = ", ".join(f"`{name}`" for name in ([named] if isinstance(named, str) else named)) or "no architecture"
    fix = "give a head of one of these kinds: " + "; ".join(f"{kind.TITLE}, {kind.SIGN}" for kind in kinds.values())
    raise SourceError(f"not a head of a kind that is supported: the config names {names}", where, fix)

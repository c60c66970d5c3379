"""What trtkit knows of every draft head, and where a kind of head is found: its folder in `trtkit/drafts/`.

A draft head (speculator) guesses a language model's tokens. No layer below `trtkit.drafts` names a kind; they import
the files of a kind's folder by its name, when a config or a bundle needs them.
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
    """What the model gives its draft head: hidden states of some layers side by side, projected to the head's size.

    layers: whose inputs are read, which are the outputs of the layers before them; 0 reads the embedding. norm: before
    the projection, of all together, or of each if `is_normed_apart`.
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
        """Its name in manifests, and that of its kind's folder."""
        ...

    @property
    def fusion(self) -> FusionSpec | None:
        """What it reads; None for the model's hidden state after the final norm."""
        ...

    @property
    def cached_elements(self) -> int:
        """Elements per token in its own caches, which are separate from the model's."""
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
        """Return the kind, what it guesses and what it reads, for people."""
        ...

    def fusion_weights(self) -> Iterator[Weight]:
        """Yield the weights that the model's network has for its draft head."""
        ...

    def network_weights(self) -> Iterator[Weight]:
        """Yield the weights of the draft head's own network, by the names that its kind's files give them."""
        ...


class Kind(Protocol):
    """The `spec.py` of a kind. TITLE: its name for people. SIGN: what tells its `config.json`, for people."""

    TITLE: str
    SIGN: str

    @staticmethod
    def describes(fields: Fields) -> bool:
        """Whether a `config.json` is that of such a draft head."""

    @staticmethod
    def obstacles(target: DecoderSpec) -> Iterable[str]:
        """Yield why no such draft head can propose a model's tokens."""


def known_kinds() -> tuple[str, ...]:
    """Return the names of all kinds, which are those of their folders. Imports none of them."""
    folders = pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)
    return tuple(sorted(folder.name for folder in folders if folder.ispkg))


def kind_part(kind: str, part: _Part) -> ModuleType:
    """Import only one file of a kind's folder. Raises SourceError for a kind without a folder."""
    if kind not in known_kinds():
        fix = f"build again with one of these: {', '.join(known_kinds())}"
        raise SourceError(f"unknown kind of draft head `{kind}`", "decoder.speculator.model_type", fix)
    return importlib.import_module(f"{_PACKAGE}.{kind}.{part}")


def open_kind(kind: str) -> Kind:
    """Return what a kind's `spec.py` says of it. Raises what `kind_part` does."""
    return cast("Kind", kind_part(kind, "spec"))


def kind_of(fields: Fields, where: str) -> str:
    """Return the kind of draft head that a `config.json` describes. Raises SourceError if it is not one of them."""
    kinds = {name: open_kind(name) for name in known_kinds()}
    for name, kind in kinds.items():
        if kind.describes(fields):
            return name
    named = fields.get("speculators_model_type") or fields.get("architectures") or fields.get("model_type") or ()
    names = ", ".join(f"`{name}`" for name in ([named] if isinstance(named, str) else named)) or "no architecture"
    fix = "give a head of one of these kinds: " + "; ".join(f"{kind.TITLE}, {kind.SIGN}" for kind in kinds.values())
    raise SourceError(f"not a head of a kind that is supported: the config names {names}", where, fix)

"""Which kind of head a `config.json` describes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trtkit.errors import SourceError
from trtkit.models.spec import DecoderSpec
from trtkit.models.speculators import eagle3, gemma4_assistant, medusa
from trtkit.models.speculators.spec import Fields


@dataclass(frozen=True)
class Kind:
    """A kind of head.

    title: for people. describes: whether a `config.json` is that of such a head. sign: what it then has, for people.
    obstacles: yields why no such head can guess tokens of a model.
    """

    title: str
    describes: Callable[[Fields], bool]
    sign: str
    obstacles: Callable[[DecoderSpec], Iterable[str]]


KINDS = {
    eagle3.EAGLE3: Kind(
        "EAGLE-3", eagle3.describes, f"`architectures` of {', '.join(eagle3.ARCHITECTURES)}", eagle3.obstacles
    ),
    gemma4_assistant.GEMMA4_ASSISTANT: Kind(
        "Gemma 4's assistant",
        gemma4_assistant.describes,
        f"`model_type` of {gemma4_assistant.GEMMA4_ASSISTANT}",
        gemma4_assistant.obstacles,
    ),
    medusa.MEDUSA: Kind("Medusa", medusa.describes, "`medusa_num_heads`", medusa.obstacles),
}


def kind_of(fields: Fields, where: str) -> str:
    """Return the kind of head that a `config.json` describes. Raises SourceError if it is not one of them."""
    for name, kind in KINDS.items():
        if kind.describes(fields):
            return name
    named = fields.get("speculators_model_type") or fields.get("architectures") or fields.get("model_type") or ()
    names = ", ".join(f"`{name}`" for name in ([named] if isinstance(named, str) else named)) or "no architecture"
    fix = "give a head of one of these kinds: " + "; ".join(f"{kind.title}, {kind.sign}" for kind in KINDS.values())
    raise SourceError(f"not a head of a kind that is supported: the config names {names}", where, fix)

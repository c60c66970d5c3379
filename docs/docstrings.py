"""How the reference reads docstrings: `name: meaning` of an argument or a field is listed with its type and default."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from griffe import Extension

if TYPE_CHECKING:
    from griffe import Class, Docstring, Function

# What ends the meaning of the last name.
_END = re.compile(r"\n(?=\s*\n|Raises |Source: )|(?<=\. )(?=Raises )")


class Arguments(Extension):
    """Rewrites docstrings in Google's form, which the reference knows."""

    def on_function(self, *, func: Function, **_: object) -> None:
        """Read what a docstring says of the function's arguments."""
        _rewrite(func.docstring, {each.name: "Args" for each in func.parameters})

    def on_class(self, *, cls: Class, **_: object) -> None:
        """Read what a docstring says of the arguments of a class's constructor, and of its other fields."""
        arguments = cls.members["__init__"].parameters if "__init__" in cls.members else ()
        _rewrite(cls.docstring, dict.fromkeys(cls.members, "Attributes") | {each.name: "Args" for each in arguments})


def _rewrite(docstring: Docstring | None, titles: dict[str, str]) -> None:
    """Move `name: meaning`, at the start of a line or a sentence, into a section. titles: of the sections, by name."""
    name = "|".join(map(re.escape, titles))
    if docstring is None or not name:
        return
    prose, *entries = re.split(rf"(?:^|(?<=[.;] ))((?:{name})(?:, (?:{name}))*): ", docstring.value, flags=re.MULTILINE)
    sections: dict[str, list[str]] = {}
    for heads, text in zip(entries[::2], entries[1::2], strict=True):
        meaning, *rest = _END.split(text, maxsplit=1)
        prose += "\n".join(rest)
        for head in heads.split(", "):
            sections.setdefault(titles[head], []).append(f"    {head}: {' '.join(meaning.split())}")
    parts = [prose.strip(), *("\n".join([f"{title}:", *rows]) for title, rows in sections.items())]
    docstring.value = "\n\n".join(parts)

"""`--shapes` of commands: input shapes as text, converted to the config's `profiles`."""

import re
from collections.abc import Iterator, Sequence

from trtkit.config.overrides import Override
from trtkit.errors import ConfigError, Problem

_SHAPE = re.compile(r"\d+(x\d+)*")
_FIX = "write INPUT:SHAPE or INPUT:MIN,OPT,MAX, such as `images:1x3x224x224,8x3x224x224,32x3x224x224`"


def shapes_override(texts: Sequence[str]) -> Override:
    """Return an override of one profile, from texts such as `images:1x3x224x224` (fixed) or `images:MIN,OPT,MAX`.

    A text may name several inputs, separated by commas as in trtexec: `ids:1x8,1x64,1x128,mask:1x1`.
    Raises ConfigError with every problem.
    """
    profile: dict[str, list[list[int]]] = {}
    problems = []
    for text in texts:
        for name, shapes in _inputs(text):
            if fault := _fault(name, shapes, profile):
                problems.append(Problem(fault, f"--shapes {text}", _FIX))
            else:
                sizes = [[int(size) for size in shape.split("x")] for shape in shapes]
                profile[name] = sizes if len(sizes) == 3 else sizes * 3
    if problems:
        raise ConfigError("invalid shapes", problems)
    return Override(("profiles",), [profile], f"--shapes {' '.join(texts)}")


def _inputs(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each input with its shapes; a name may contain a colon, as in TensorFlow."""
    name = ""
    shapes: list[str] = []
    for part in text.split(","):
        before, colon, shape = part.rpartition(":")
        if colon and (name or shapes):
            yield name, shapes
            shapes = []
        name = before if colon else name
        shapes.append(shape)
    yield name, shapes


def _fault(name: str, shapes: Sequence[str], earlier: dict[str, list[list[int]]]) -> str | None:
    """Return the problem with an input's shapes; None if they are valid."""
    if not name:
        return "no input is named"
    for shape in shapes:
        if not _SHAPE.fullmatch(shape):
            return f"`{shape}` is not a shape: sizes with `x` between them"
    if len(shapes) not in (1, 3):
        return f"`{name}` has {len(shapes)} shapes: give one, or min, opt and max"
    return f"`{name}` is named twice" if name in earlier else None

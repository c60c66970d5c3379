"""Every error of the tree comes back from a child as itself."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

import trtkit
from trtkit.errors import Problem, ProblemsError, TrtkitError
from trtkit.jobs.faults import error_from_json, error_to_json


def error_classes() -> list[type[TrtkitError]]:
    """Import every module that names TrtkitError's family and return all of its classes."""
    root = Path(trtkit.__file__).parent
    for path in root.rglob("*.py"):
        if re.search(r"^class \w+\([\w, ]*Error\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))
    classes, rest = [], [TrtkitError]
    while rest:
        kind = rest.pop()
        classes.append(kind)
        rest += kind.__subclasses__()
    return [kind for kind in dict.fromkeys(classes) if kind.__module__.startswith("trtkit.")]


CLASSES = error_classes()


def test_the_tree_has_errors_outside_their_own_module() -> None:
    assert len({kind.__module__ for kind in CLASSES}) >= 3


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_error_comes_back_as_itself(kind: type[TrtkitError]) -> None:
    if issubclass(kind, ProblemsError):
        error: TrtkitError = kind("two faults", [Problem("a", "b", "c"), Problem("d")], "mend both")
    else:
        error = kind("what", "where", "fix")
    again = error_from_json(json.loads(json.dumps(error_to_json(error))))
    assert type(again) is kind
    assert (vars(again), str(again), again.args) == (vars(error), str(error), error.args)


@pytest.mark.parametrize("name", ["builtins:SystemExit", "pathlib:Path", "trtkit.errors:Problem"])
def test_other_classes_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"`{name}` is not a TrtkitError"):
        error_from_json({"type": name, "what": "", "where": "", "fix": ""})

"""What a TensorRT library's Python module has: its classes, with the names of their members.

`python -m tests.tensorrt_plugin.surface FOLDER` prints that of full TensorRT, from its bindings alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.tensorrt_plugin.bindings import load

REPLACED = ("DimsExprs", "IDimensionExpr", "ISymExpr", "ISymExprs")
"""Of plugins: `bindings` has them in place of TensorRT's."""


def surface(trt: Any) -> dict[str, list[str]]:
    """Return the public classes and enumerations, and the public names in each."""
    classes = {name: value for name, value in vars(trt).items() if isinstance(value, type) and name[0] != "_"}
    return {
        name: sorted(member for member in getattr(value, "__members__", dir(value)) if member[0] != "_")
        for name, value in classes.items()
        if name not in REPLACED
    }


if __name__ == "__main__":
    trt, _ = load(Path(sys.argv[1]))
    print(json.dumps({"version": trt.__version__, "classes": surface(trt)}))

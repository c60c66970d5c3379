"""TensorRT's Python package on a machine without TensorRT: its real bindings and its real `tensorrt.plugin`.

Not TensorRT's are its libraries (`library.c`) and what only they can make: expressions of sizes and the registry.
"""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")


@dataclass(frozen=True)
class Expression:
    """A size: its value when the engine runs, and whether it is known before."""

    value: int
    known: bool

    def is_constant(self) -> bool:
        return self.known

    def get_constant_value(self) -> int:
        return self.value

    def is_size_tensor(self) -> bool:
        return False


class ExpressionBuilder:
    """Computes with expressions, as TensorRT does when an engine runs."""

    def constant(self, value: int) -> Expression:
        return Expression(value, True)

    def operation(self, kind: Any, a: Expression, b: Expression) -> Expression:
        compute = {
            "PROD": lambda: a.value * b.value,
            "SUM": lambda: a.value + b.value,
            "CEIL_DIV": lambda: -(-a.value // b.value),
            "FLOOR_DIV": lambda: a.value // b.value,
        }
        return Expression(compute[kind.name](), a.known and b.known)


class Argument:
    """An argument of a kernel: what it is, and its expression."""


@dataclass
class Registry:
    """Keeps the creators of plugins."""

    creators: dict[str, Any] = field(default_factory=dict)

    def register_creator(self, creator: Any, namespace: str) -> bool:
        self.creators[f"{namespace}::{creator.name}"] = creator
        return True

    def get_creator(self, name: str, _version: str, namespace: str) -> Any:
        return self.creators[f"{namespace}::{name}"]


def load(folder: Path) -> tuple[Any, Any]:
    """Compile the libraries into `folder` and return the modules `tensorrt` and `tensorrt.plugin`."""
    for name in LIBRARIES:
        library = folder / f"lib{name}.so.11"
        source = Path(__file__).with_name("library.c")
        subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source], check=True)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    trt = importlib.import_module("tensorrt_bindings")
    registry = Registry()
    trt.IDimensionExpr, trt.ISymExpr = Expression, Argument
    trt.DimsExprs = lambda length: [None] * length
    trt.get_plugin_registry = lambda: registry
    sys.modules["tensorrt"] = trt
    return trt, importlib.import_module("tensorrt.plugin")

"""Custom ops, operators that TensorRT lacks: one folder each, with ports, lowering and equivalent ONNX nodes."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtkit.errors import NetworkError
from trtkit.files import named_digest
from trtkit.network.foreign import Fact, Foreign, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    import numpy as np

    from trtkit.dtypes import DType
    from trtkit.network.graph import Shape
    from trtkit.network.lowering.ops import Lowering

DOMAIN = "trtkit"
"""The domain of custom ops in ONNX."""

_PACKAGE = "trtkit_plugins"
X = TypeVar("X")


@dataclass(frozen=True)
class Port:
    """An input or output. dims: a word per axis, such as `N C H W`; equal words are equal sizes.

    Words that are not names, such as `2*K`, only describe an axis and are not compared. types: allowed data types.
    is_variadic: the last port may represent several tensors, of any sizes.
    """

    name: str
    dims: str
    types: tuple[DType, ...]
    is_optional: bool = False
    is_variadic: bool = False

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.dims.split())


@dataclass(frozen=True)
class Native:
    """The node that ONNX Runtime has for an op. inputs: the op's ports in the node's order."""

    domain: str
    op_type: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """Attributes and inputs for testing every implementation of an op.

    make: returns fp32 or int32 arrays, one per port, None if one is missing. dynamic: words of ports' dims that are
    only known at run time. keeps_fp32: inputs that stay in fp32 when the others are fp16. native: ONNX Runtime's node
    for it, if any. forms: those that support the case, if not all do.
    """

    name: str
    attributes: Any
    make: Callable[[np.random.Generator], Sequence[np.ndarray[Any, Any] | None]]
    dynamic: tuple[str, ...] = ()
    keeps_fp32: tuple[str, ...] = ()
    native: Native | None = None
    forms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Typical:
    """Sizes from a known model, for which kernels are compiled. shapes: one per input."""

    model: str
    attributes: Any
    shapes: tuple[Shape | None, ...]


@dataclass(frozen=True)
class CustomOp:
    """An op `trtkit::name`.

    attributes: a frozen dataclass of numbers, texts and tuples of them, with defaults if there are any.
    infer: maps facts of the inputs, one per port, and attributes to facts of the outputs; raises Refusal.
    forms: variants of `lower`, best first.
    foreign: equivalent nodes of other domains.
    is_padded: whether outputs have room for the maximum, while those of the foreign node are as large as their
        contents.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: type[Any]
    infer: Callable[[Sequence[Fact | None], Any], list[Fact]]
    lower: Lowering
    forms: tuple[str, ...]
    foreign: tuple[Foreign, ...] = ()
    is_padded: bool = False
    package: str = field(default="", compare=False)

    def check(self, facts: Sequence[Fact | None], attributes: Any) -> list[Fact]:
        """Return facts of the outputs. Raises Refusal for inputs that do not fit the op or each other."""
        sizes: dict[str, int] = {}
        for port, fact in _pairs(self.inputs, facts):
            _check_port(port, fact, sizes)
        return self.infer(self.complete(facts), attributes)

    def complete(self, inputs: Sequence[X | None]) -> list[X | None]:
        """Return the inputs extended to one per port: None if an optional one is missing."""
        return [*inputs, *[None] * (len(self.inputs) - len(inputs))]

    def form(self, wanted: str | None) -> str:
        """Return the requested form if the op has it, else its first."""
        return wanted if wanted in self.forms else self.forms[0]

    @property
    def folder(self) -> Path:
        """The folder that the op was loaded from."""
        return Path(next(iter(sys.modules[self.package].__path__)))

    @property
    def typicals(self) -> tuple[Typical, ...]:
        """Sizes for which the kernel is compiled: `TYPICAL` of `cases.py`, and `OTHER_TYPICALS` if it has them."""
        cases = self.part("cases")
        return (cases.TYPICAL, *getattr(cases, "OTHER_TYPICALS", ()))

    def has_part(self, name: str) -> bool:
        """Whether the op's folder has a file of this name."""
        return (self.folder / f"{name}.py").is_file()

    def part(self, name: str) -> ModuleType:
        """Import another file of the op's folder: `reference`, `kernel`, `plugin`, `cases`."""
        return importlib.import_module(f"{self.package}.{name}")


def load_ops() -> dict[str, CustomOp]:
    """Return the ops of trtkit and of the folders that TRTKIT_PLUGINS names, by name."""
    ops: dict[str, CustomOp] = {}
    for folder in op_folders():
        op = _load(folder)
        if op.name in ops and ops[op.name].package != op.package:
            raise NetworkError(f"a second custom op `{op.name}`", str(folder), "give it another name")
        ops[op.name] = op
    return ops


def find(name: str) -> CustomOp:
    """Return the op `name`, or the op in the folder of that name. Raises NetworkError."""
    ops = load_ops()
    for op in ops.values():
        if name in {op.name, op.package.rpartition(".")[2]}:
            return op
    raise NetworkError(f"unknown custom op `{name}`", fix=f"known: {', '.join(sorted(ops))}")


def op_folders() -> list[Path]:
    """Return the folders that hold an `op.py`."""
    return [path.parent for root in (_own_root(), *_user_roots()) for path in sorted(root.glob("*/op.py"))]


def user_ops_digest() -> str:
    """Return the SHA-256 of the ops added by TRTKIT_PLUGINS, since builds depend on them; "" if it adds none."""
    return _digest(_user_roots())


def trtkits_ops_digest() -> str:
    """Return the SHA-256 of the ops that come with trtkit."""
    return _digest([_own_root()])


def _digest(roots: list[Path]) -> str:
    files = (path for root in roots for path in sorted(root.glob("*/*.py")))
    return named_digest((f"{path.parent.name}/{path.name}", path) for path in files)


def _own_root() -> Path:
    """Return the folder of trtkit's own ops: in the installed package, or at the top of the repository."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_plugins"
    return installed if installed.is_dir() else package.parent / "plugins"


def _user_roots() -> list[Path]:
    """Return the folders named by TRTKIT_PLUGINS. Raises NetworkError if one does not exist."""
    roots = [Path(root) for root in os.environ.get("TRTKIT_PLUGINS", "").split(os.pathsep) if root]
    for root in roots:
        if not root.is_dir():
            raise NetworkError("no such folder", f"TRTKIT_PLUGINS: {root}", "it names folders of op folders")
    return roots


def _load(folder: Path) -> CustomOp:
    """Import a folder as a package and return its op."""
    package = f"{_PACKAGE}.{folder.name}"
    known = sys.modules.get(package)
    if known is None or list(known.__path__) != [str(folder)]:
        _add_package(_PACKAGE, [str(_own_root())])  # code that ops share is next to their folders
        _add_package(package, [str(folder)])
    module = importlib.import_module(f"{package}.op")
    op = getattr(module, "OP", None)
    if not isinstance(op, CustomOp):
        raise NetworkError("no custom op in it", str(folder / "op.py"), "give it `OP = CustomOp(...)`")
    object.__setattr__(op, "package", package)
    return op


def _add_package(name: str, path: list[str]) -> None:
    """Make a folder importable as a package, replacing earlier imports under its name."""
    if name == _PACKAGE and name in sys.modules:
        return
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]
    spec = importlib.util.spec_from_loader(name, loader=None, is_package=True)
    assert spec is not None
    spec.submodule_search_locations = path
    sys.modules[name] = importlib.util.module_from_spec(spec)


def _pairs(ports: Sequence[Port], facts: Sequence[Fact | None]) -> Iterator[tuple[Port, Fact | None]]:
    """Yield each port with its tensors. Raises Refusal for too many or too few."""
    is_open = bool(ports) and ports[-1].is_variadic
    least = sum(not port.is_optional for port in ports)
    if len(facts) < least or (len(facts) > len(ports) and not is_open):
        count = f"at least {least}" if is_open else str(least) if least == len(ports) else f"{least} to {len(ports)}"
        raise Refusal(f"{len(facts)} inputs, {count} wanted: {', '.join(port.name for port in ports)}")
    for index, fact in enumerate(facts):
        yield ports[min(index, len(ports) - 1)], fact


def _check_port(port: Port, fact: Fact | None, sizes: dict[str, int]) -> None:
    """Check a tensor against its port, and its sizes against earlier ones. Raises Refusal."""
    if fact is None:
        if not port.is_optional:
            raise Refusal(f"input `{port.name}` is missing")
        return
    where = f"input `{port.name}` of shape {list(fact.shape)}"
    if fact.dtype not in port.types:
        raise Refusal(f"input `{port.name}` has type {fact.dtype}, not {', '.join(t.name for t in port.types)}")
    if len(fact.shape) != port.rank:
        raise Refusal(f"{where} has {len(fact.shape)} axes, not {port.rank}: [{port.dims.replace(' ', ', ')}]")
    if port.is_variadic:
        return
    for word, size in zip(port.dims.split(), fact.shape, strict=True):
        if word.isdigit() or re.fullmatch(r"[A-Za-z_]\w*", word):
            wanted = int(word) if word.isdigit() else sizes.setdefault(word, size)
            if -1 not in (wanted, size) and wanted != size:
                raise Refusal(f"{where}: {word} is {size} here and {wanted} before")
            sizes[word] = max(wanted, size) if not word.isdigit() else wanted


def attribute_values(attributes: Any) -> Mapping[str, Any]:
    """Return the attributes of an op by name; ONNX has no empty lists."""
    return {name: value for name, value in vars(attributes).items() if value != ()}

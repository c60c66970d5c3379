"""Check that the parts of a hybrid fit: every seam's ends exist and say the same of the tensor between them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trtkit.dtypes import FP32, dtype_of
from trtkit.errors import Problem, ProblemsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.models.hybrids.spec import HybridSpec, PartPort, Seam


def check_spec(spec: HybridSpec) -> HybridSpec:
    """Return `spec`. Raises ProblemsError with every seam that does not fit and every part that is missing."""
    problems = [
        *_part_problems(spec),
        *(problem for seam in spec.seams for problem in _seam_problems(spec, seam)),
        *_input_problems(spec),
        *_output_problems(spec),
    ]
    if problems:
        raise ProblemsError(f"the parts of `{spec.model_type}` do not fit together", problems)
    return spec


def shape_fault(shape: tuple[int | str, ...], wanted: tuple[int | str, ...]) -> str:
    """Return in words how two shapes differ, empty if they do not. -1 and symbols are sizes at run time."""
    if len(shape) != len(wanted):
        return f"got rank {len(shape)}; expected rank {len(wanted)}"
    for axis, (have, want) in enumerate(zip(shape, wanted, strict=True)):
        if have != want and -1 not in (have, want):
            name = "the batch" if axis == 0 else f"axis {axis}"
            return f"{name} is {_dim(have)}; expected {_dim(want)}"
    return ""


def shape_text(shape: tuple[int | str, ...]) -> str:
    """Return `[batch, 3, 224, 224]`."""
    return f"[{', '.join('?' if dim == -1 else str(dim) for dim in shape)}]"


def _dim(dim: int | str) -> str:
    return f"`{dim}`" if isinstance(dim, str) else str(dim)


def _part_problems(spec: HybridSpec) -> Iterator[Problem]:
    """Yield names that represent several parts, or several ports of one."""
    for name, count in Counter(part.name for part in spec.parts).items():
        if count > 1:
            yield Problem(f"{count} parts are called `{name}`", fix="give each a name of its own")


def _seam_problems(spec: HybridSpec, seam: Seam) -> Iterator[Problem]:
    """Yield what is wrong with one seam."""
    where = f"seam `{seam}`"
    source, target = spec.output_ports().get(seam.source), spec.input_ports().get(seam.target)
    if source is None or target is None:
        yield from _missing_ends(spec, seam)
        return
    order = [part.name for part in spec.parts]
    if order.index(seam.source.partition(".")[0]) >= order.index(seam.target.partition(".")[0]):
        yield Problem("runs backwards: its source comes after its target", where, "put the parts into another order")
    if fault := shape_fault(source.shape, target.shape):
        shapes = f"`{seam.source}` gives {shape_text(source.shape)}, `{seam.target}` expects {shape_text(target.shape)}"
        yield Problem(f"{fault}: {shapes}", where, "change one of the two ports")
    if fault := _type_fault(source, target):
        yield Problem(fault, where, "change one of the two ports: a seam casts between floating-point types only")
    if sum(other.target == seam.target for other in spec.seams) > 1:
        yield Problem(f"several seams feed `{seam.target}`", where, "keep one")


def _missing_ends(spec: HybridSpec, seam: Seam) -> Iterator[Problem]:
    """Yield the ends of a seam that do not exist, each with those that do."""
    known = {part.name: part for part in spec.parts}
    for end, kind in ((seam.source, "outputs"), (seam.target, "inputs")):
        part, _, port = end.partition(".")
        if part not in known:
            fix = f"the parts are {', '.join(known)}"
            yield Problem(f"there is no part `{part}`", f"seam `{seam}`", fix)
            continue
        ports = [item.name for item in getattr(known[part], kind)]
        if port not in ports:
            what = f"part `{part}` has no {kind[:-1]} `{port}`"
            yield Problem(what, f"seam `{seam}`", f"its {kind} are {', '.join(ports)}")


def _type_fault(source: PartPort, target: PartPort) -> str:
    """Return how two types differ where no cast is allowed."""
    have, want = (FP32 if port.dtype == "compute" else dtype_of(port.dtype) for port in (source, target))
    return "" if have == want or (have.is_float and want.is_float) else f"got type {have}; expected {want}"


def _input_problems(spec: HybridSpec) -> Iterator[Problem]:
    """Yield inputs that several parts share but describe differently."""
    first = {port.name: port for port in spec.inputs}
    for part in spec.parts:
        for port in part.inputs:
            if spec.source_of(part.name, port.name) is not None:
                continue
            known = first[port.name]
            if (known.shape, known.dtype) != (port.shape, port.dtype):
                forms = f"{shape_text(known.shape)} {known.dtype} and {shape_text(port.shape)} {port.dtype}"
                fix = "describe it the same in both parts, or feed it by a seam"
                yield Problem(f"input `{port.name}` is {forms}", f"part `{part.name}`", fix)


def _output_problems(spec: HybridSpec) -> Iterator[Problem]:
    """Yield outputs that no part gives."""
    known = spec.output_ports()
    for name in spec.outputs:
        if name not in known:
            yield Problem(f"no part gives output `{name}`", fix=f"known: {', '.join(known)}")
    if not spec.outputs:
        yield Problem("the model has no outputs", fix="name them in `outputs`")

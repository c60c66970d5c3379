"""Custom ops: each kernel against its reference, and its time against that of the lowering's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.gpu.networks import Bound, build_plan
from tests.gpu.steps.machine import copy_bytes_per_s
from trtkit.network.aot import load_kernels
from trtkit.network.custom_op import load_ops
from trtkit.reference import to_array, to_tensor
from trtkit.verification.custom_ops.outcomes import Trial, network_of, trials

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tests.gpu.place import Place
    from tests.gpu.step import Answer
    from trtkit.arrays import Array
    from trtkit.network.custom_op import CustomOp
    from trtkit.network.plugin import Plugin

INTERPRETED = "PillarScatter"
"""The op that is fast enough in Triton's interpreter."""


def ask(place: Place) -> Iterator[Answer]:
    """Test every kernel; after one that fails, the others are still tried."""
    rate = copy_bytes_per_s(place)
    ops = [op for op in load_ops().values() if op.has_part("kernel")]
    for op in ops if place.has_gpu else [op for op in ops if op.name == INTERPRETED]:
        try:
            yield from _asked(place, op, rate)
        except Exception as error:  # the other ops are still tested
            yield {"what": op.name, "holds": False, "error": f"{type(error).__name__}: {error}"}


def _asked(place: Place, op: CustomOp, rate: float) -> Iterator[Answer]:
    """Check every case of a kernel, then time its largest."""
    cases = trials(op, _dtypes(op)) if place.has_gpu else trials(op)[:2]
    errors = [trial.compare(_outputs(place, trial)).relative_rms_error for trial in cases]
    for dtype in dict.fromkeys(trial.dtype for trial in cases):
        worst = max(error for trial, error in zip(cases, errors, strict=True) if trial.dtype == dtype)
        yield {
            "what": f"{op.name}, {dtype}: worst of its cases",
            "holds": worst <= dtype.tolerance,
            "relative_rms_error": worst,
        }
    yield _timed(place, op, cases, rate)


def _dtypes(op: CustomOp) -> tuple[str, ...]:
    """Return the data types that the op's plugin supports."""
    plugin: Plugin = op.part("plugin").PLUGIN
    return tuple(plugin.types_of(op.typicals[0].attributes)[plugin.data].lower().split("|"))


def _timed(place: Place, op: CustomOp, cases: list[Trial], rate: float) -> Answer:
    """Time the kernel and, if engines run here, the lowering's engine on the op's large case in fp32."""
    large = getattr(op.part("cases"), "LARGE", None)
    trial = cases[0] if large is None or not place.has_gpu else Trial(op, large, cases[0].dtype)
    inputs, launch = _inputs(place, trial), load_kernels(op, interpreted=not place.has_gpu).launch
    kernel_ms = place.median_ms(lambda: launch(inputs, trial.case.attributes))
    outputs = launch(inputs, trial.case.attributes)
    moved = sum(x.nbytes for x in [*inputs, *outputs] if x is not None)
    answer: Answer = {"what": f"{op.name}, {trial}", "kernel_ms": kernel_ms, "bytes": moved}
    answer["percent_of_bandwidth"] = 100 * moved / rate / (kernel_ms / 1e3)
    if trial.case.dynamic or not place.has_engines:
        return answer
    plan = build_plan(place, network_of(place.backend, trial, trial.forms[0]), {})
    named = {f"x{index}": x for index, x in enumerate(inputs) if x is not None}
    return answer | {"lowering_ms": Bound(place, plan, named).median_ms()}


def _inputs(place: Place, trial: Trial) -> list[torch.Tensor | None]:
    tensors = [None if x is None else to_tensor(x, f"x{index}") for index, x in enumerate(trial.inputs)]
    return [None if x is None else x.to(place.torch_device) for x in tensors]


def _outputs(place: Place, trial: Trial) -> list[Array]:
    kernels = load_kernels(trial.op, interpreted=not place.has_gpu)
    return [to_array(y) for y in kernels.launch(_inputs(place, trial), trial.case.attributes)]

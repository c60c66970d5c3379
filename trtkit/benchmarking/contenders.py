"""Contenders that compute a network's outputs: the bundle, its source in PyTorch, ONNX Runtime, another bundle."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.benchmarking.ceiling import CPU, GPU
from trtkit.benchmarking.provenance import verification
from trtkit.builder.hybrids import open_hybrid
from trtkit.bundle.bundle import is_bundle, open_bundle
from trtkit.errors import BenchError, SourceError, TrtkitError
from trtkit.resolve import resolve
from trtkit.runtime import device as devices
from trtkit.runtime.model import open_model
from trtkit.verification.hybrid_reference import HybridReference
from trtkit.verification.references import (
    TRUST_FIX,
    NetworkOrigin,
    OnnxRuntimeReference,
    TorchReference,
    choose_reference,
    factory_withheld,
    source_change,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtkit.arrays import Array
    from trtkit.benchmarking.request import BenchRequest
    from trtkit.bundle.bundle import Bundle
    from trtkit.serving_options import Runtime, WeightBudget

    Run = Callable[[Mapping[str, Array]], dict[str, Array]]

TORCH, COMPILED, ONNX_RUNTIME = "torch", "torch.compile", "onnxruntime"


@dataclass(frozen=True, eq=False)
class Contender:
    """A contender. name: in ratios. computes: what runs and where, as shown with every figure.

    device: CPU, GPU, or None if unknown. precision: of the measured bundle's network, if that is what it runs.
    layer_seconds: time of each layer in one run; None if unavailable. cuda_graphs: description of their use.
    """

    name: str
    computes: str
    run: Run
    device: str | None = None
    precision: str | None = None
    layer_seconds: Callable[[Mapping[str, Array]], dict[str, float]] | None = None
    cuda_graphs: str = ""


def own_contender(
    bundle: Bundle,
    runtime: Runtime,
    name: str = "trtkit",
    *,
    has_cuda_graphs: bool | None = None,
    weight_budget_gib: WeightBudget | None = None,
) -> Contender:
    """Return the bundle on this machine's GPU engine, or on the reference executor. runtime: as in `open_model`.

    Raises BenchError if CUDA graphs are requested of the reference executor.
    """
    device = None if runtime == "reference" else devices.find_device()
    has_engine = runtime == "tensorrt" or device is not None
    graphs = graphs_text(has_cuda_graphs, has_engine=has_engine, are_usual=False)
    kind: Runtime = "tensorrt" if has_engine else runtime
    model = open_model(bundle.path, kind, has_cuda_graphs=bool(has_cuda_graphs), weight_budget_gib=weight_budget_gib)
    precision = bundle.manifest.config.precision
    reference = f"{model.description.partition(' on ')[0]}, CPU"
    where = reference if device is None else f"{bundle.manifest.backend.name} engine, {device.name}"
    hardware = GPU if has_engine else CPU
    return Contender(name, f"{where}, {precision}", model.run, hardware, precision, model.layer_seconds, graphs)


def graphs_text(wanted: bool | None, *, has_engine: bool, are_usual: bool) -> str:
    """Describe whether CUDA graphs are used; None requests the default.

    Raises BenchError if they are requested of the reference executor.
    """
    if has_engine:
        return "on" if (are_usual if wanted is None else wanted) else "off"
    if wanted:
        what = "the reference executor has no CUDA graphs: they replay an engine's launches on a GPU"
        raise BenchError(what, "--cuda-graphs", "leave it out")
    return "none: the reference executor has none"


def rival(name: str, bundle: Bundle, request: BenchRequest) -> Contender:
    """Return one of a request's rivals. Raises BenchError if it cannot compute this bundle's network."""
    if name in (TORCH, COMPILED):
        return _torch(bundle, is_compiled=name == COMPILED, is_trusted=request.trusts_source)
    if name == ONNX_RUNTIME:
        return _onnx_runtime(bundle)
    if not is_bundle(Path(name)):
        fix = f"use {TORCH}, {COMPILED}, {ONNX_RUNTIME}, for a language model transformers, or a bundle's folder"
        raise BenchError(f"cannot compare with `{name}`", "--compare", fix)
    other = open_bundle(name)
    verification(other, is_waived=request.is_waived)
    _check_inputs(bundle, other)
    return replace(own_contender(other, request.options.runtime, name), precision=None)  # other networks, other counts


def _torch(bundle: Bundle, *, is_compiled: bool, is_trusted: bool) -> Contender:
    source = bundle.manifest.config.source.torch
    if source is not None and not is_trusted:
        raise BenchError(factory_withheld(source.factory), f"--compare {TORCH}", TRUST_FIX)
    try:
        reference = _torch_reference(bundle)
    except SourceError as error:
        fix = f"use --compare {ONNX_RUNTIME}" if bundle.is_one_file else "build the bundle again"
        raise BenchError(error.what, f"--compare {TORCH}", fix) from None
    if is_compiled:
        _check_compiler()
    else:
        return Contender(TORCH, "PyTorch eager, CPU, fp32", reference.run, CPU, "fp32")
    import torch

    reference.module = torch.compile(reference.module, dynamic=False)  # a kernel for each shape, as engines tune
    return Contender(COMPILED, "torch.compile, CPU, fp32", reference.run, CPU, "fp32")


def _torch_reference(bundle: Bundle) -> TorchReference | HybridReference:
    """Return the source in eager PyTorch; for a hybrid, the whole model. Raises SourceError if it has none."""
    manifest = bundle.manifest
    digests = [file.sha256 for file in manifest.sources]
    if manifest.config.engine_nms is not None:
        raise SourceError("the module ends before NMS, which the engine has")
    if bundle.is_one_file:
        origin = NetworkOrigin(bundle.onnx_path(), [tensor.name for tensor in manifest.outputs], digests)
        reference = choose_reference(manifest.config, TORCH, origin)
        assert isinstance(reference, TorchReference)
        return reference
    if change := source_change(manifest.config.source, digests):
        raise SourceError(f"the source {change}")
    return HybridReference(open_hybrid(resolve(manifest.config)))


def _check_compiler() -> None:
    """Raise BenchError if torch.compile would find no compiler for its kernels."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        fix = f"install it, or set CXX to another compiler; --compare {TORCH} needs none"
        raise BenchError(
            f"torch.compile needs the C++ compiler `{compiler}`, which was not found", f"--compare {COMPILED}", fix
        )


def _onnx_runtime(bundle: Bundle) -> Contender:
    try:
        path = bundle.onnx_path()
    except TrtkitError as error:
        raise BenchError(error.what, f"--compare {ONNX_RUNTIME}", f"use --compare {TORCH}") from None
    reference = OnnxRuntimeReference(path, "ONNX Runtime, CPU")
    precision = bundle.manifest.config.precision
    return Contender(ONNX_RUNTIME, f"{reference.description}, {precision}", reference.run, CPU, precision)


def _check_inputs(bundle: Bundle, other: Bundle) -> None:
    """Raise BenchError if two bundles have different inputs."""
    ours, theirs = ([(t.name, t.dtype) for t in side.manifest.inputs] for side in (bundle, other))
    if ours != theirs:
        what = f"its inputs are {theirs}; the first bundle's are {ours}"
        raise BenchError(what, f"--compare {other.path}", "compare bundles that take the same inputs")

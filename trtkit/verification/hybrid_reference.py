"""The whole model in torch as a hybrid's reference, with its parts read at the modules that they correspond to."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError
from trtkit.verification.decoder_reference import hybrid_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from trtkit.arrays import Array, Arrays
    from trtkit.builder.hybrids import OpenedHybrid


class HybridReference:
    """The model that `HybridSpec.reference` builds, in fp32 on the CPU."""

    def __init__(self, opened: OpenedHybrid) -> None:
        self._spec, self._outputs = opened.spec, opened.output_names
        self._inputs = [port.name for port in opened.spec.inputs]
        module, _, function = opened.spec.reference.partition(":")
        make = getattr(importlib.import_module(module), function)
        with hybrid_folder(opened) as folder:
            self.module: torch.nn.Module = make(folder=str(folder), outputs=self._outputs).eval()
        rows = "; rows are paired, since queries have no order" if opened.spec.has_unordered_rows else ""
        quantization = opened.quantization
        weights = "; written parts' weights dequantized" if quantization is not None and quantization.layers else ""
        self.description = f"PyTorch on {opened.spec.reference}{rows}{weights}"

    def run(self, inputs: Mapping[str, Array]) -> Arrays:
        """Return the outputs by name."""
        import torch

        tensors = [torch.from_numpy(_widened(inputs[name])) for name in self._inputs]
        with torch.inference_mode():
            outputs = self.module(*tensors)
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        return {name: output.numpy() for name, output in zip(self._outputs, outputs, strict=True)}

    def part_outputs(self, inputs: Mapping[str, Array]) -> Arrays:
        """Return, by `part.output`, the outputs of the modules that ports name as their reference."""
        ports = {name: port.reference for name, port in self._spec.output_ports().items() if port.reference}
        outputs: Arrays = {}
        handles = [self._hook(path, name, outputs) for name, path in ports.items()]
        try:
            self.run(inputs)
        finally:
            for handle in handles:
                handle.remove()
        return outputs

    def _hook(self, path: str, name: str, outputs: Arrays) -> Any:
        """Record a module's output under `name` when it runs. path: `a.b`, or `a.b:1` for the second output."""
        where, _, index = path.partition(":")
        whole = getattr(self.module, "model", self.module)
        try:
            module = functools.reduce(getattr, where.split("."), whole)
        except AttributeError as error:
            raise SourceError(f"the reference model has no module `{where}`", self._spec.reference) from error

        def take(_module: Any, _inputs: Any, output: Any) -> None:
            outputs[name] = list(_tensors(output))[int(index or 0)].detach().float().numpy()

        return module.register_forward_hook(take)


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a module's return value, in order."""
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    if isinstance(output, tuple | list):
        for item in output:
            yield from _tensors(item)
    elif output is not None:
        yield output


def _widened(array: Array) -> Array:
    """Return floating-point arrays as fp32."""
    return array.astype(np.float32) if array.dtype.kind not in "iub" else array

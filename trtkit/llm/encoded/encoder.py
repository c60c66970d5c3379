"""The encoder of a bundle, on TensorRT or on the reference executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trtkit.backends import load_backend
from trtkit.builder.encoder import output_names
from trtkit.builder.stages import plan_files
from trtkit.llm.execution import engine_device
from trtkit.models.model import ENCODER
from trtkit.network.input_spec import ENCODED_MASK
from trtkit.reference import Executor
from trtkit.runtime.stages import engine_stages, parsed_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trtkit.arrays import Array
    from trtkit.backends import Backend
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.records import EncoderRecord
    from trtkit.serving_options import Runtime

    Run = Callable[[Mapping[str, Array]], Mapping[str, torch.Tensor]]


class Encoder:
    """Turns features or ids into what each decoder layer reads. run: the network, inputs and outputs by name."""

    def __init__(self, record: EncoderRecord, run: Run) -> None:
        self._record, self._names, self._run = record, output_names(record.layers), run

    def encode(self, values: Array) -> dict[str, torch.Tensor]:
        """Return every layer's keys and values [N, length, H] of features [bins, frames] or ids [S], on the host.

        Those of ids are padded with zeros to `length`; a mask [length] is 1 where the text is.
        """
        outputs = self._run({self._record.input_name: values[None]})
        encoded = {name: torch.as_tensor(outputs[name]).detach()[0].clone() for name in self._names}
        if self._record.audio is not None:
            return encoded
        empty = self._record.length - len(values)
        padded = {name: torch.nn.functional.pad(array, (0, 0, 0, empty)) for name, array in encoded.items()}
        mask = torch.nn.functional.pad(torch.ones(len(values), dtype=torch.int32), (0, empty))
        return {**padded, ENCODED_MASK: mask}


def open_encoder(bundle: Bundle, runtime: Runtime = "auto") -> Encoder:
    """Open the encoder of a bundle. Raises BundleError if its file is not the one that was built."""
    record = bundle.manifest.encoder
    assert record is not None
    device = engine_device(runtime)
    if device is not None:
        bundle.check_network()
        backend = load_backend(bundle.manifest.backend.name)
        names = list(output_names(record.layers))
        return Encoder(record, engine_stages(backend, plan_files(bundle)[:1], names, device).run)
    if (layers := bundle.layers(ENCODER)) is not None:
        return Encoder(record, Executor(layers).run)
    bundle.check_network()
    return reference_encoder(record, load_backend(bundle.manifest.backend.name), bundle.onnx_path(ENCODER))


def reference_encoder(record: EncoderRecord, backend: Backend, onnx: Path) -> Encoder:
    """Return an encoder on the reference executor. onnx: the file that TensorRT parses."""
    return Encoder(record, parsed_run(backend, onnx))

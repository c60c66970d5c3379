"""The encoder of audio of a bundle, on TensorRT or on the reference executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trtkit.backends import load_backend
from trtkit.engine.audio import output_names
from trtkit.engine.stages import plan_files
from trtkit.models.model import AUDIO
from trtkit.runtime.decoder import engine_device
from trtkit.runtime.stages import engine_stages, parsed_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trtkit.arrays import Array
    from trtkit.backends import Backend
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import AudioRecord
    from trtkit.runtime.decoder import Runtime

    Run = Callable[[Mapping[str, Array]], Mapping[str, torch.Tensor]]


class AudioEncoder:
    """From features to what each decoder layer reads. run: the network, inputs and outputs by name."""

    def __init__(self, record: AudioRecord, run: Run) -> None:
        self._names, self._run = output_names(record.layers), run

    def encode(self, features: Array) -> dict[str, torch.Tensor]:
        """Return every layer's keys and values [N, length, H] of features [bins, frames], on the host."""
        outputs = self._run({"input_features": features[None]})
        return {name: torch.as_tensor(outputs[name]).detach()[0].clone() for name in self._names}


def open_encoder(bundle: Bundle, runtime: Runtime = "auto") -> AudioEncoder:
    """Open the encoder of a bundle. Raises BundleError where its file is not the one that was built."""
    record = bundle.manifest.audio
    assert record is not None
    backend = load_backend(bundle.manifest.backend.name)
    bundle.check_network()
    device = engine_device(runtime)
    if device is not None:
        names = list(output_names(record.layers))
        return AudioEncoder(record, engine_stages(backend, plan_files(bundle)[:1], names, device).run)
    return reference_encoder(record, backend, bundle.onnx_path(AUDIO))


def reference_encoder(record: AudioRecord, backend: Backend, onnx: Path) -> AudioEncoder:
    """Return an encoder on the reference executor. onnx: the file that TensorRT parses."""
    return AudioEncoder(record, parsed_run(backend, onnx))

"""Shapes behind inputs that are quantized by block while running, which TensorRT-RTX 1.7.1 does not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtkit.backends import Backend


class StandIns:
    """For a while, layers read a tensor before it was quantized by block, in place of it quantized and dequantized.

    Both have one shape and type. A network without such tensors stays as it is.
    """

    def __init__(self, backend: Backend, network: Any) -> None:
        self._originals: dict[str, Any] = {}
        self._moved: dict[tuple[str, int], Any] = {}
        self._layers: list[tuple[Any, int]] = []
        codes: dict[str, Any] = {}
        for layer in (network.get_layer(index) for index in range(network.num_layers)):
            kind = backend.layer_type(layer)
            if kind == "DYNAMIC_QUANTIZE":
                codes[layer.get_output(0).name] = layer.get_input(0)
            elif kind == "DEQUANTIZE" and layer.get_input(0).name in codes:
                original, output = codes[layer.get_input(0).name], layer.get_output(0)
                if original.dtype == output.dtype:
                    self._originals[output.name] = original
            elif self._originals:
                self._move(layer)

    def _move(self, layer: Any) -> None:
        """Let a layer read originals."""
        for index in range(layer.num_inputs):
            tensor = layer.get_input(index)
            if tensor is not None and tensor.name in self._originals:
                self._moved[layer.name, index] = tensor
                self._layers.append((layer, index))
                layer.set_input(index, self._originals[tensor.name])

    def of(self, name: str) -> Any | None:
        """Return the tensor that stands in for another one, None where none does."""
        return self._originals.get(name)

    def inputs_of(self, layer: Any) -> list[Any]:
        """Return a layer's inputs as they are in the network."""
        tensors = [self._moved.get((layer.name, i)) or layer.get_input(i) for i in range(layer.num_inputs)]
        return [tensor for tensor in tensors if tensor is not None]

    def put_back(self) -> None:
        """Let every layer read again what it did."""
        for layer, index in self._layers:
            layer.set_input(index, self._moved[layer.name, index])

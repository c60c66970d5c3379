"""A layer's parameters by their kinds, as the reference executor and the ONNX writer read them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtkit.network.layer_graph import LayerNode


@dataclass(frozen=True, eq=False)
class LayerView:
    """One layer. Reading a parameter that it does not have raises the error from `lacks`."""

    node: LayerNode

    @abstractmethod
    def lacks(self, attribute: str) -> Exception:
        """Return the error for a parameter that the layer does not have."""

    def has_attribute(self, attribute: str) -> bool:
        """Whether the layer has a parameter."""
        return attribute in self.node.attributes

    def option(self, attribute: str) -> str:
        """Return a text or the name of an enumeration, such as `MAX`."""
        return str(self.attribute(attribute))

    def flag(self, attribute: str) -> bool:
        """Return a parameter that is true or false."""
        return bool(self.attribute(attribute))

    def number(self, attribute: str) -> int:
        """Return a whole number."""
        return int(self.attribute(attribute))

    def real(self, attribute: str) -> float:
        """Return a number."""
        return float(self.attribute(attribute))

    def ints(self, attribute: str) -> tuple[int, ...] | None:
        """Return a list of sizes; None if it comes from an input or was never set."""
        value = self.attribute(attribute)
        return None if value is None else tuple(int(item) for item in value)

    def reals(self, attribute: str) -> tuple[float, ...]:
        """Return a list of numbers."""
        return tuple(float(item) for item in self.attribute(attribute) or ())

    def axes(self) -> tuple[int, ...]:
        """Return the axes whose bits are set in the layer's mask."""
        mask = self.number("axes")
        return tuple(axis for axis in range(mask.bit_length()) if mask >> axis & 1)

    def attribute(self, attribute: str) -> Any:
        """Return a parameter unconverted."""
        if attribute not in self.node.attributes:
            raise self.lacks(attribute)
        return self.node.attributes[attribute]


@dataclass(frozen=True)
class Window:
    """A sliding window: size, stride, dilation and padding per spatial axis.

    mode: TensorRT's PaddingMode. SAME_* derive the padding from the input's size.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str

    @property
    def is_symmetric(self) -> bool:
        """Whether torch's own padding argument can express it."""
        return self.mode == "EXPLICIT_ROUND_DOWN" and self.before == self.after

    def reach(self, axis: int) -> int:
        """Return how many elements of an axis the window spans."""
        return (self.size[axis] - 1) * self.dilation[axis] + 1

    def padding(self, spatial: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Return the padding before and after each axis that gives TensorRT's output size.

        EXPLICIT_ROUND_UP rounds the output size up, so the last window hangs over the padded end.
        Source: `nvinfer1::PaddingMode` in NvInfer.h.
        """
        before, after = list(self.before), list(self.after)
        for axis, length in enumerate(spatial):
            reach, step = self.reach(axis), self.stride[axis]
            if self.mode.startswith("SAME"):
                total = max((-(-length // step) - 1) * step + reach - length, 0)
                small, large = total // 2, total - total // 2
                before[axis], after[axis] = (small, large) if self.mode == "SAME_UPPER" else (large, small)
            elif self.mode == "EXPLICIT_ROUND_UP":
                spare = length + before[axis] + after[axis] - reach
                after[axis] += -(-spare // step) * step - spare
        return before, after


def window_of(layer: LayerView, size: str) -> Window:
    """Read the window parameters of a convolution or pooling layer."""
    shape = layer.ints(size)
    assert shape is not None
    dilation = layer.ints("dilation_nd") if layer.has_attribute("dilation_nd") else None
    return Window(
        shape,
        layer.ints("stride_nd") or (1,) * len(shape),
        dilation or (1,) * len(shape),
        layer.ints("pre_padding") or (),
        layer.ints("post_padding") or (),
        layer.option("padding_mode"),
    )
